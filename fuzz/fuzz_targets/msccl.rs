//! MSCCL files: reading never panics, and what is proved runs to its end on every rank.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_plan::{Link, Machine, Topology, predict, read_msccl};

fuzz_target!(|text: &str| {
    let Ok(schedule) = read_msccl(text, 0) else {
        return;
    };
    if schedule.ranks() <= 8 && schedule.steps() <= 1000 {
        let machine = Machine::new(Link::SHARED_MEMORY, Link::LOOPBACK, 1e10);
        // Runs the executors of all ranks; a schedule that does not end takes no time at all.
        let bytes = 8 * schedule.chunks;
        let cost = predict(
            &schedule,
            bytes,
            &Topology::single_host(schedule.ranks()),
            &machine,
        );
        assert!(
            schedule.ranks() == 1 || !cost.total.is_zero(),
            "{schedule:?}"
        );
    }
});
