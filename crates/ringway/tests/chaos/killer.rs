//! A transport that kills its process at a step.

use std::{
    io::Write,
    os::fd::BorrowedFd,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use ringway::{Memory, Rank};
use ringway_link::{
    Event, LinkError, MessageKey, RegisterError, RegisteredMemory, Sink, Transport,
};
use rustix::process::{Signal, getpid, kill_process};

use super::world::now;

/// Steps that are left; `usize::MAX` until they count.
static LEFT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// From now on steps count, and after so many the process dies.
pub(crate) fn arm(steps: usize) {
    LEFT.store(steps, Ordering::Relaxed);
}

fn step() {
    let counted = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
        (left != usize::MAX).then(|| left.saturating_sub(1))
    });
    if counted == Ok(0) {
        println!("AT {}", now().as_micros());
        let _ = std::io::stdout().flush();
        let _ = kill_process(getpid(), Signal::KILL);
    }
}

pub(crate) struct Killer(pub(crate) Box<dyn Transport>);

impl Transport for Killer {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn begin(&mut self, group: u64, op: u32, fingerprint: u32) {
        self.0.begin(group, op, fingerprint);
    }

    fn send(
        &mut self,
        peer: Rank,
        key: MessageKey,
        src: Memory,
        priority: u8,
    ) -> Result<(), LinkError> {
        step();
        self.0.send(peer, key, src, priority)
    }

    fn recv(&mut self, peer: Rank, key: MessageKey, sink: Sink) -> Result<(), LinkError> {
        step();
        self.0.recv(peer, key, sink)
    }

    fn release(&mut self, peer: Rank, key: MessageKey) {
        step();
        self.0.release(peer, key);
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        let moved = self.0.poll(now, events);
        if moved {
            step();
        }
        moved
    }

    fn arm(&mut self) -> bool {
        self.0.arm()
    }

    fn disarm(&mut self) {
        self.0.disarm();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn cancel(&mut self, group: u64, op: u32) {
        step();
        self.0.cancel(group, op);
    }

    fn slice_bytes(&self) -> usize {
        self.0.slice_bytes()
    }

    fn memory_in_use(&self) -> usize {
        self.0.memory_in_use()
    }

    fn register(&mut self, memory: Memory) -> Result<(), RegisterError> {
        self.0.register(memory)
    }

    fn deregister(&mut self, memory: Memory) {
        self.0.deregister(memory);
    }

    fn registered(&self) -> RegisteredMemory {
        self.0.registered()
    }

    fn close(&mut self, timeout: Duration) {
        self.0.close(timeout);
    }
}
