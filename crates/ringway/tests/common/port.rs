//! Ports for tests to listen on.

use std::{
    net::TcpListener,
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// Ports for each process, which are below those that Linux gives to connections: one of these that was free a moment ago
/// may be taken by any program's connection before it is listened on.
const EACH: u32 = 8;
const RANGE: std::ops::Range<u32> = 20_000..32_000;

/// A port of the loopback address that nobody listens on, another at each call.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = process::id() * EACH;
    (0..RANGE.end - RANGE.start)
        .map(|_| first + NEXT.fetch_add(1, Ordering::Relaxed))
        .map(|place| (RANGE.start + place % (RANGE.end - RANGE.start)) as u16)
        .find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        .expect("a port below 32,000 is free")
}
