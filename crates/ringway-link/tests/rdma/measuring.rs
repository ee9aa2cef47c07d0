//! RDMA is compared with TCP before it is used.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crate::{
    breakable::{Break, Way},
    end::LIMIT,
    pair::{Pair, buffers, same},
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

/// The probes are not answered: that is no measurement, and it is tried again.
#[test]
fn a_path_that_dies_while_it_is_measured_is_tried_again() {
    static PATH: Path = Path::new();
    let mut pair = Pair::with(Way::Along(&PATH), |settings| {
        settings.measures = true;
        settings.first_retry = Duration::from_millis(20);
        settings.longest_retry = Duration::from_millis(20);
    });
    PATH.is_cut.store(true, Ordering::Relaxed);
    assert_eq!(rounds(&mut pair), [false; 2]);
    let before = PATH.carried.load(Ordering::Relaxed);
    PATH.is_cut.store(false, Ordering::Relaxed);
    // The proof and the stream of the next attempt.
    pair.until(|_| PATH.carried.load(Ordering::Relaxed) - before > 1 << 20);
}
