//! Many messages in any order.

use std::{collections::HashMap, thread};

use proptest::{prelude::*, test_runner::TestRunner};

use super::*;

/// A message of an exchange.
#[derive(Clone, Debug)]
struct Message {
    from: Rank,
    to: Rank,
    len: usize,
    in_arena: bool,
    view: bool,
    priority: u8,
    /// Where it stands in the order of its sender's and of its receiver's calls.
    turns: (u32, u32),
}

fn messages(ranks: usize, count: usize) -> impl Strategy<Value = Vec<Message>> {
    let len = prop_oneof![Just(0), 1..40usize, 1..5000usize];
    let message = (
        0..ranks,
        1..ranks,
        len,
        any::<bool>(),
        any::<bool>(),
        0..3u8,
        any::<(u32, u32)>(),
    )
        .prop_map(move |(from, step, len, in_arena, view, priority, turns)| {
            let len = if in_arena { len * 3 } else { len.min(4096) };
            Message {
                from,
                to: (from + step) % ranks,
                len,
                in_arena,
                view,
                priority,
                turns,
            }
        });
    proptest::collection::vec(message, 1..count)
}

/// One rank's part in an exchange.
struct Part<'a> {
    transport: SlotTransport,
    messages: &'a [Message],
    /// Calls to make, the next one last: (message, whether it is the sender's).
    calls: Vec<(usize, bool)>,
    buffers: HashMap<(usize, bool), Buffer>,
    sent: usize,
    received: usize,
    views: Vec<(Rank, MessageKey)>,
}

enum Buffer {
    Arena(crate::shm::ArenaBlock),
    Private(Staging),
}

impl Buffer {
    fn memory(&self) -> Memory {
        match self {
            Self::Arena(block) => block.memory(),
            Self::Private(staging) => staging.memory(),
        }
    }
}

impl<'a> Part<'a> {
    fn new(mut transport: SlotTransport, messages: &'a [Message]) -> Self {
        transport.begin(0, 1, 5);
        let me = transport.host.local_rank();
        let mut calls: Vec<(usize, bool)> = Vec::new();
        for (i, message) in messages.iter().enumerate() {
            if message.from == me {
                calls.push((i, true));
            }
            if message.to == me {
                calls.push((i, false));
            }
        }
        calls.sort_by_key(|&(i, send)| {
            if send {
                messages[i].turns.0
            } else {
                messages[i].turns.1
            }
        });
        let buffers = HashMap::new();
        Self {
            transport,
            messages,
            calls,
            buffers,
            sent: 0,
            received: 0,
            views: Vec::new(),
        }
    }

    fn call(&mut self) {
        let Some((i, send)) = self.calls.pop() else {
            return;
        };
        let message = &self.messages[i];
        let key = key(1, i as u32);
        if send {
            let buffer = if message.in_arena {
                let block = self
                    .transport
                    .host
                    .user_arena()
                    .allocate(message.len)
                    .unwrap();
                block.memory().write(&pattern(message.len, i as u8));
                Buffer::Arena(block)
            } else {
                Buffer::Private(buffer(message.len, i as u8))
            };
            self.transport
                .send(message.to, key, buffer.memory(), message.priority)
                .unwrap();
            self.buffers.insert((i, true), buffer);
        } else if message.view {
            self.transport
                .recv(message.from, key, Sink::View(message.len))
                .unwrap();
        } else {
            let buffer = Buffer::Private(buffer(message.len, 0));
            self.transport
                .recv(message.from, key, Sink::Place(buffer.memory()))
                .unwrap();
            self.buffers.insert((i, false), buffer);
        }
    }

    fn poll(&mut self, now: Instant) -> bool {
        let mut events = Vec::new();
        let moved = self.transport.poll(now, &mut events);
        for event in events {
            match event {
                Event::Sent { peer, key } => {
                    let i = key.message as usize;
                    assert_eq!(peer, self.messages[i].to);
                    // From now on the sender may do with its memory as it likes.
                    let memory = self.buffers[&(i, true)].memory();
                    memory.write(&vec![0xee; memory.len()]);
                    self.sent += 1;
                }
                Event::Received { peer, key, view } => {
                    let i = key.message as usize;
                    let message = &self.messages[i];
                    assert_eq!(peer, message.from);
                    let got = if message.view {
                        view
                    } else {
                        self.buffers[&(i, false)].memory()
                    };
                    assert_eq!(bytes(got), pattern(message.len, i as u8), "message {i}");
                    self.received += 1;
                    if message.view {
                        self.views.push((peer, key));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        moved
    }

    fn release(&mut self, pick: usize) {
        if !self.views.is_empty() {
            let (peer, key) = self.views.swap_remove(pick % self.views.len());
            self.transport.release(peer, key);
        }
    }

    fn is_done(&self) -> bool {
        let me = self.transport.host.local_rank();
        let count = |of: fn(&Message) -> Rank| {
            self.messages
                .iter()
                .filter(|message| of(message) == me)
                .count()
        };
        self.calls.is_empty()
            && self.views.is_empty()
            && self.sent == count(|message| message.from)
            && self.received == count(|message| message.to)
    }
}

#[test]
fn everything_arrives_in_any_order_of_calls() {
    let strategy = (2..5usize).prop_flat_map(|ranks| {
        let steps = proptest::collection::vec((0..ranks, 0..3u8, any::<usize>()), 0..600);
        (
            Just(ranks),
            2..6usize,
            2..6usize,
            messages(ranks, 120),
            steps,
        )
    });
    let mut runner = TestRunner::new(ProptestConfig::with_cases(60));
    runner
        .run(&strategy, |(ranks, descriptors, slots, messages, steps)| {
            let geometry = Geometry::new(descriptors, slots, 4096);
            let options = SlotOptions {
                geometry,
                ..SlotOptions::default()
            };
            let mut parts: Vec<Part<'_>> = mesh(ranks, options)
                .into_iter()
                .map(|transport| Part::new(transport, &messages))
                .collect();
            let mut now = Instant::now();
            for (rank, what, pick) in steps {
                match what {
                    0 => parts[rank].call(),
                    1 => parts[rank].release(pick),
                    _ => {
                        parts[rank].poll(now);
                    }
                }
                now += Duration::from_micros(10);
            }
            // Whatever came before, the rest runs to its end, in a bounded number of rounds.
            for round in 0..20_000 {
                now += Duration::from_micros(10);
                for part in &mut parts {
                    part.call();
                    part.poll(now);
                    part.release(round);
                }
                if parts.iter().all(Part::is_done) {
                    break;
                }
            }
            for part in &mut parts {
                prop_assert!(
                    part.is_done(),
                    "rank {} waits",
                    part.transport.host.local_rank()
                );
                prop_assert_eq!(part.transport.budget.used(), 0);
                part.transport.cancel(0, 1);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn sleepers_are_woken_for_everything() {
    let strategy = (2..4usize, 2..6usize).prop_flat_map(|(ranks, slots)| {
        (Just(ranks), Just(slots), messages(ranks, 300), any::<u64>())
    });
    let mut runner = TestRunner::new(ProptestConfig::with_cases(30));
    runner
        .run(&strategy, |(ranks, slots, messages, seed)| {
            let geometry = Geometry::new(4, slots, 4096);
            let options = SlotOptions {
                geometry,
                ..SlotOptions::default()
            };
            let transports = mesh(ranks, options);
            thread::scope(|scope| {
                for (rank, transport) in transports.into_iter().enumerate() {
                    let messages = &messages;
                    scope.spawn(move || {
                        run_asleep(
                            Part::new(transport, messages),
                            seed.rotate_left(rank as u32),
                        );
                    });
                }
            });
            Ok(())
        })
        .unwrap();
}

/// Runs a rank's part, sleeping whenever there is nothing to do.
fn run_asleep(mut part: Part<'_>, mut seed: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !part.is_done() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        for _ in 0..seed >> 61 {
            part.call();
        }
        part.release(seed as usize);
        let busy = part.poll(Instant::now()) || !part.calls.is_empty() || !part.views.is_empty();
        if busy || part.is_done() {
            continue;
        }
        if part.transport.arm() {
            let mut ready = Vec::new();
            let left = deadline.saturating_duration_since(Instant::now());
            part.transport.epoll.wait(&mut ready, Some(left)).unwrap();
            assert!(!ready.is_empty(), "slept for ever");
        }
        part.transport.disarm();
    }
    part.transport.cancel(0, 1);
    part.transport.close(Duration::from_secs(20));
}
