//! All-reduces on a fabric, and what they send.
#![allow(
    clippy::unwrap_used,
    reason = "a test that panics has failed, as it should"
)]

use ringway_plan::{Algorithm, Collective, Layout, Op, Verified, generate, verify};
use ringway_sim::World;

/// A proved all-reduce.
pub(crate) fn schedule(algorithm: Algorithm, world: &World) -> Verified {
    let schedule = generate(Collective::AllReduce, algorithm, &world.topology()).unwrap();
    verify(schedule).unwrap_or_else(|e| panic!("{e}"))
}

/// Bytes that the schedule sends between hosts, by the layout that the simulation uses.
pub(crate) fn between_hosts(schedule: &Verified, world: &World, bytes: usize) -> u64 {
    let n = schedule.ranks();
    let mut sum = 0;
    for (rank, program) in schedule.programs.iter().enumerate() {
        let (collective, chunks) = (schedule.collective, schedule.chunks);
        let layout = Layout::even(collective, program, n, chunks, rank, bytes, 1);
        for step in program.lanes.iter().flat_map(|l| &l.steps) {
            if let Op::Send { peer, src } = step.op
                && world.place(rank).host != world.place(peer).host
            {
                sum += layout.range(src).len() as u64;
            }
        }
    }
    sum
}
