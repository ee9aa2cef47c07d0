//! RDMA is compared with TCP before it is used.

use std::{
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use crate::{
    breakable::{Break, Way},
    end::LIMIT,
    pair::{Pair, buffers, listeners, same},
    proxy::{self, Chop},
    relay::{Faults, Path},
};

/// Which ranks use RDMA after a few operations.
fn rounds(pair: &mut Pair) -> [bool; 2] {
    let (out, into) = buffers();
    for op in 0..3 {
        into.iter()
            .for_each(|into| into.memory().write(&[0; 100_000]));
        pair.round(op, &out, &into);
        assert!(into.iter().all(|into| same(into, &out)), "operation {op}");
    }
    [0, 1].map(|own| pair.ranks[own].reaches(1 - own))
}

/// A relay copies each packet twice more, and wakes a thread for it.
#[test]
fn a_peer_to_whom_tcp_is_faster_is_reached_over_tcp_and_rdma_is_not_tried_again() {
    let mut pair = Pair::with(Way::Relayed(Faults::NONE), |settings| {
        settings.measures = true;
        settings.proof_timeout = LIMIT;
        settings.first_retry = Duration::from_millis(1);
    });
    assert_eq!(rounds(&mut pair), [false; 2]);
    let until = Instant::now() + Duration::from_millis(50);
    while Instant::now() < until {
        pair.poll();
    }
    assert_eq!(
        [0, 1].map(|own| pair.ranks[own].reaches(1 - own)),
        [false; 2]
    );
}

/// TCP goes through a proxy that takes a fifth of a millisecond for each 4 KiB.
#[test]
fn a_peer_to_whom_rdma_is_faster_is_reached_over_rdma() {
    let slow = Chop {
        pieces: vec![4096],
        pause_every: 1,
        cut_after: None,
    };
    let listeners = listeners().map(|(listener, addresses)| {
        let slowly = addresses.iter().map(|to| proxy::through(to, &slow));
        (listener, slowly.collect())
    });
    let mut pair = Pair::among(listeners, Way::Straight, |settings| {
        settings.measures = true;
        settings.proof_timeout = LIMIT;
    });
    assert_eq!(rounds(&mut pair), [true; 2]);
}

#[test]
fn both_ranks_come_to_the_same_choice() {
    let mut pair = Pair::with(Way::Straight, |settings| settings.measures = true);
    let [first, second] = rounds(&mut pair);
    assert_eq!(first, second);
}

/// Each request of the proof and of the measurement in turn, on either side.
#[test]
fn a_queue_pair_that_fails_while_it_is_measured_costs_nothing() {
    for rank in [0, 1] {
        for at in (0..12).chain([20, 30]) {
            let mut pair = Pair::with(Way::Straight, |settings| settings.measures = true);
            let is_done = at % 2 == 0;
            *pair.breaks[rank].lock().unwrap() = Some(Break { at, is_done });
            let [first, second] = rounds(&mut pair);
            assert_eq!(first, second, "rank {rank}, request {at}");
        }
    }
}

/// Nothing comes through from the beginning.
#[test]
fn a_path_that_is_dead_before_it_is_measured_is_tried_again() {
    static PATH: Path = Path::new();
    dies_after(&PATH, 0);
}

/// The probes are not answered any more: that is no measurement, and it is tried again.
#[test]
fn a_path_that_dies_while_it_is_measured_is_tried_again() {
    static PATH: Path = Path::new();
    // Greetings are three packets of 4 KiB in each direction, and probes 16 of them before the streams.
    let carried = dies_after(&PATH, 40_000);
    assert!((40_000..1 << 20).contains(&carried), "{carried} bytes");
}

/// Cuts the path after so many bytes, until messages go over TCP. Returns how many bytes had passed then.
fn dies_after(path: &'static Path, bytes: u64) -> u64 {
    let cutter = thread::spawn(move || {
        while path.carried.load(Ordering::Relaxed) < bytes {
            thread::yield_now();
        }
        path.is_cut.store(true, Ordering::Relaxed);
    });
    if bytes == 0 {
        cutter.join().unwrap();
    }
    let mut pair = Pair::with(Way::Along(path), |settings| {
        settings.measures = true;
        settings.proof_timeout = Duration::from_millis(300);
        settings.first_retry = Duration::from_millis(20);
        settings.longest_retry = Duration::from_millis(20);
    });
    assert_eq!(rounds(&mut pair), [false; 2]);
    let before = path.carried.load(Ordering::Relaxed);
    path.is_cut.store(false, Ordering::Relaxed);
    // The proof and the stream of the next attempt.
    pair.until(|_| path.carried.load(Ordering::Relaxed) - before > 1 << 20);
    before
}
