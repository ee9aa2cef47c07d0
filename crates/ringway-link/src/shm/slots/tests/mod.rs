//! Whole transports, several in one process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

mod exchange;
mod faults;
mod traffic;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_sys::{Memory, Staging};

use super::*;
use crate::shm::{HostIdentity, SegmentSizes};

/// Fewer of everything, so that little traffic reaches every limit.
fn small() -> SlotOptions {
    SlotOptions {
        geometry: Geometry::new(4, 4, 4096),
        memory_limit: 1 << 20,
    }
}

/// The segments of `n` ranks of one host.
fn hosts(n: usize) -> Vec<Arc<HostSegment>> {
    let identity = HostIdentity {
        job: [3; 16],
        world: n,
        ranks: (0..n).collect(),
    };
    let sizes = SegmentSizes {
        control: 1,
        slots: 1,
        staging: 1,
        arena: 8 << 20,
    };
    let first = HostSegment::create(identity.clone(), sizes).unwrap();
    let join = |me| {
        let fds = first
            .descriptors()
            .iter()
            .map(|fd| fd.try_clone_to_owned().unwrap())
            .collect();
        HostSegment::join(fds, identity.clone(), me).unwrap()
    };
    let others: Vec<_> = (1..n).map(join).collect();
    std::iter::once(Arc::clone(&first)).chain(others).collect()
}

/// Transports of `n` ranks of one host.
fn mesh(n: usize, options: SlotOptions) -> Vec<SlotTransport> {
    hosts(n)
        .into_iter()
        .map(|host| SlotTransport::new(host, options).unwrap())
        .collect()
}

const fn key(op: u32, message: u32) -> MessageKey {
    MessageKey {
        group: 0,
        op,
        lane: 0,
        message,
        slice: 0,
    }
}

/// A buffer of bytes that tell it from others.
fn buffer(len: usize, seed: u8) -> Staging {
    let staging = Staging::new(len);
    staging.memory().write(&pattern(len, seed));
    staging
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

fn bytes(memory: Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(&mut bytes);
    bytes
}

/// Polls once.
fn poll(transport: &mut SlotTransport) -> Vec<Event> {
    let mut events = Vec::new();
    transport.poll(Instant::now(), &mut events);
    events
}

/// Polls until there is an event.
fn next(transport: &mut SlotTransport) -> Event {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        let mut events = poll(transport);
        if !events.is_empty() {
            assert_eq!(events.len(), 1, "{events:?}");
            return events.remove(0);
        }
    }
    panic!("no event within 10 s");
}

#[track_caller]
fn assert_sent(event: &Event, peer: Rank, key: MessageKey) {
    assert!(
        matches!(event, Event::Sent { peer: p, key: k } if (*p, *k) == (peer, key)),
        "{event:?}"
    );
}

#[track_caller]
fn assert_received(event: &Event, peer: Rank, key: MessageKey) -> Memory {
    match *event {
        Event::Received {
            peer: p,
            key: k,
            view,
        } if (p, k) == (peer, key) => view,
        _ => panic!("expected {key} from {peer}, got {event:?}"),
    }
}
