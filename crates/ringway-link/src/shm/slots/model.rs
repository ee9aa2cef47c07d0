//! Every interleaving of the ring's and the sleepers' steps, tried by loom:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p ringway-link --lib model`.

use std::sync::Arc;

use loom::{
    cell::UnsafeCell,
    model::Builder,
    sync::{Notify, atomic::AtomicU64},
    thread,
};

use super::{
    descriptor::{Body, Descriptor, WORDS},
    geometry::{DESCRIPTORS, Geometry},
    parking::{Parking, PeerParking},
    ring::{Consumer, Producer, Ticket, Tickets},
};
use crate::MessageKey;

type Cells = Arc<[AtomicU64]>;

fn cells(count: usize) -> Cells {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// Both ends of a ring of two descriptors.
fn ring() -> (Producer<Cells>, Consumer<Cells>) {
    let geometry = Geometry::new(2, 2, 4096);
    let cells = cells(DESCRIPTORS + 2 * WORDS);
    (
        Producer::new(Arc::clone(&cells), &geometry),
        Consumer::new(cells, geometry),
    )
}

fn message(number: u32, body: Body) -> Descriptor {
    let key = MessageKey {
        group: 1,
        op: 2,
        lane: 3,
        message: number,
        slice: 4,
    };
    Descriptor {
        key,
        fingerprint: 5,
        len: 6,
        body,
    }
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn messages_arrive_whole_and_in_order_and_lines_are_not_reused_too_early() {
    explore(3, || {
        let (mut producer, mut consumer) = ring();
        let sender = thread::spawn(move || {
            for number in 0..3 {
                while !producer.room().unwrap() {
                    thread::yield_now();
                }
                producer.publish(&message(number, Body::Inline([number as u8; 24])));
            }
        });
        for number in 0..3 {
            let got = loop {
                match consumer.take().unwrap() {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, message(number, Body::Inline([number as u8; 24])));
            consumer.settle();
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_payload_has_one_owner_at_a_time() {
    explore(3, || {
        let (mut producer, mut consumer) = ring();
        // Loom panics if accesses to it are not ordered.
        let slot = Arc::new(UnsafeCell::new(()));
        let payload = Arc::clone(&slot);
        let sender = thread::spawn(move || {
            let out = Tickets {
                slots: 1,
                references: 0,
            };
            for number in 0..2 {
                payload.with_mut(|_| ());
                while !producer.room().unwrap() {
                    thread::yield_now();
                }
                producer.publish(&message(number, Body::Slot(0)));
                while producer.collect(out).unwrap() != out {
                    thread::yield_now();
                }
            }
        });
        for _ in 0..2 {
            while consumer.take().unwrap().is_none() {
                thread::yield_now();
            }
            slot.with(|_| ());
            consumer.settle();
            consumer.give_back(Ticket::Slot(0));
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_receiver_that_sleeps_is_woken_for_a_message() {
    explore(4, || {
        let (mut producer, mut consumer) = ring();
        let word = cells(1);
        let bell = Arc::new(Notify::new());
        let (parked, ring) = (Arc::clone(&word), Arc::clone(&bell));
        let sender = thread::spawn(move || {
            let mut parking = PeerParking::new(parked);
            for number in 0..2 {
                producer.publish(&message(number, Body::Inline([0; 24])));
                if parking.must_ring() {
                    ring.notify();
                }
            }
        });
        let mut parking = Parking::new(word);
        let mut taken = 0;
        while taken < 2 {
            if consumer.take().unwrap().is_some() {
                taken += 1;
                continue;
            }
            parking.park();
            if !consumer.ready() {
                // Loom panics if this is never notified.
                bell.wait();
            }
            parking.unpark();
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_sender_that_sleeps_is_woken_for_a_ticket() {
    explore(4, || {
        let (mut producer, mut consumer) = ring();
        producer.publish(&message(0, Body::Slot(0)));
        assert!(consumer.take().unwrap().is_some());
        let word = cells(1);
        let bell = Arc::new(Notify::new());
        let (parked, ring) = (Arc::clone(&word), Arc::clone(&bell));
        let receiver = thread::spawn(move || {
            let mut parking = PeerParking::new(parked);
            consumer.give_back(Ticket::Slot(0));
            if consumer.sender_waits() && parking.must_ring() {
                ring.notify();
            }
        });
        let mut parking = Parking::new(word);
        let out = Tickets {
            slots: 1,
            references: 0,
        };
        while producer.collect(out).unwrap() != out {
            producer.set_waits(true);
            parking.park();
            if !producer.has_news(out) {
                bell.wait();
            }
            parking.unpark();
        }
        receiver.join().unwrap();
    });
}

#[test]
fn a_rank_is_woken_by_the_second_if_the_first_is_stopped_before_it_rings() {
    explore(4, || {
        let (mut producer, consumer) = ring();
        let word = cells(1);
        let bell = Arc::new(Notify::new());
        let stopped = Arc::clone(&word);
        let first = thread::spawn(move || {
            // It would have to ring, and never does.
            PeerParking::new(stopped).must_ring();
        });
        let (parked, ring) = (Arc::clone(&word), Arc::clone(&bell));
        let second = thread::spawn(move || {
            producer.publish(&message(0, Body::Inline([0; 24])));
            if PeerParking::new(parked).must_ring() {
                ring.notify();
            }
        });
        let mut parking = Parking::new(word);
        parking.park();
        if !consumer.ready() {
            bell.wait();
        }
        first.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn what_was_read_after_its_owner_took_it_back_is_not_believed() {
    use std::sync::atomic::Ordering::Relaxed;

    explore(4, || {
        let (mut producer, mut consumer) = ring();
        let memory = Arc::new(AtomicU64::new(7));
        producer.publish(&message(
            0,
            Body::Reference {
                ticket: 0,
                offset: 0,
            },
        ));
        assert!(consumer.take().unwrap().is_some());
        let own = Arc::clone(&memory);
        let sender = thread::spawn(move || {
            producer.revoke(1);
            own.store(8, Relaxed);
        });
        let read = memory.load(Relaxed);
        assert!(read == 7 || consumer.is_revoked(0));
        sender.join().unwrap();
    });
}
