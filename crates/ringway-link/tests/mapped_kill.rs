//! Ranks that are killed at any instant: the others end with an error that names them, and nothing is left behind.
//!
//! The ranks are processes: this test binary again, told by the environment which rank it is.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

mod ranks;

use std::{
    process::Child,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ringway_link::shm::{
    HostIdentity, HostSegment, Offer, SegmentSizes, fetch,
    mapped::{
        Descriptor, GroupBlock, MappedCall, MappedError, MappedGroup, MappedPlan, MappedSchedule,
        Patience,
    },
};
use ringway_plan::{Algorithm, Collective, DataType, ReduceOp, Topology, generate, verify};
use ringway_sys::{Memory, Staging};

use ranks::{READY, own, ready, start};

const RANKS: usize = 3;
/// How long survivors wait for the dead.
const DEADLINE: Duration = Duration::from_millis(400);
/// What a survivor exits with if it saw member k fail.
const SAW: i32 = 40;

fn group(rank: usize, name: &str) -> (Arc<HostSegment>, MappedGroup) {
    let identity = HostIdentity {
        job: [5; 16],
        world: RANKS,
        ranks: (0..RANKS).collect(),
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    let segment = if rank == 0 {
        let sizes = SegmentSizes {
            control: 1,
            slots: 1,
            staging: 64 << 20,
            arena: 64 << 20,
        };
        let segment = HostSegment::create(identity, sizes).unwrap();
        Offer::bind(name)
            .unwrap()
            .serve(&segment, deadline, &mut |_| None)
            .unwrap();
        segment
    } else {
        let fds = fetch(name, &identity, rank, deadline, &mut || None).unwrap();
        HostSegment::join(fds, identity, rank).unwrap()
    };
    let block = GroupBlock::allocate(&segment).unwrap();
    // Every rank's first block lies at the same offset.
    let members: Vec<_> = (0..RANKS).map(|local| (local, block.offset())).collect();
    let patience = Patience::for_ranks(RANKS);
    let group = MappedGroup::new(Arc::clone(&segment), block, &members, rank, patience).unwrap();
    (segment, group)
}

/// All-reduces vectors of all sizes for ever; every result is checked.
fn work(rank: usize, name: &str) -> MappedError {
    let (segment, group) = group(rank, name);
    println!("{READY}");
    let plan = |algorithm, count| {
        let topology = Topology::single_host(RANKS);
        let schedule = verify(generate(Collective::AllReduce, algorithm, &topology).unwrap());
        let compiled = MappedSchedule::compile(&schedule.unwrap(), rank);
        Arc::new(MappedPlan::new(
            &compiled,
            count,
            DataType::U64,
            ReduceOp::Sum,
        ))
    };
    let plans = [
        (1, plan(Algorithm::OneShot, 1)),
        (700, plan(Algorithm::OneShot, 700)),
        (60_000, plan(Algorithm::Direct, 60_000)),
        (200_000, plan(Algorithm::Direct, 200_000)),
    ];
    let arena = segment.user_arena().allocate(8 * 200_000).unwrap();
    let private = Staging::new(8 * 200_000);
    for round in 0u64.. {
        for (count, plan) in &plans {
            for memory in [arena.memory(), private.memory()] {
                let memory = memory.slice(0..8 * count);
                fill(memory, round + rank as u64);
                let call = MappedCall {
                    descriptor: Descriptor([*count as u64, 0]),
                    plan: Arc::clone(plan),
                    input: memory,
                    output: memory,
                    places: None,
                };
                if let Err(error) = group.run(&call, Instant::now() + DEADLINE, &|| false) {
                    return error;
                }
                check(memory, 3 * round + 3);
            }
        }
    }
    unreachable!("the loop has no end")
}

fn fill(memory: Memory, value: u64) {
    let bytes = value.to_ne_bytes().repeat(memory.len() / 8);
    memory.write(&bytes);
}

fn check(memory: Memory, value: u64) {
    let mut bytes = vec![0; memory.len()];
    memory.read(&mut bytes);
    assert!(
        bytes
            .as_chunks()
            .0
            .iter()
            .all(|&b| u64::from_ne_bytes(b) == value)
    );
}

/// Not a test: a rank, when the environment says so.
#[test]
fn rank() {
    let Some((rank, name)) = own() else { return };
    let code = match work(rank, &name) {
        MappedError::Timeout { member, .. } => SAW + member as i32,
        error => panic!("{error}"),
    };
    std::process::exit(code);
}

fn shared_files() -> usize {
    std::fs::read_dir("/dev/shm").map_or(0, Iterator::count)
}

#[test]
fn survivors_of_a_killed_rank_name_it_and_nothing_is_left() {
    let before = shared_files();
    for attempt in 0..8u64 {
        let name = format!("ringway-kill-{}-{attempt}", std::process::id());
        let mut ranks: Vec<Child> = (0..RANKS).map(|rank| start(rank, &name)).collect();
        let victim = attempt as usize % RANKS;
        ranks.iter_mut().for_each(ready);
        // Into the middle of any operation.
        thread::sleep(Duration::from_micros(7123 * attempt));
        ranks[victim].kill().unwrap();
        let killed = Instant::now();
        for (rank, child) in ranks.iter_mut().enumerate() {
            let status = child.wait().unwrap();
            if rank != victim {
                // A survivor may first wait for the other one, who has stopped for the same reason.
                let saw = status.code().unwrap_or(0) - SAW;
                assert!(
                    (0..RANKS as i32).contains(&saw),
                    "rank {rank} ended with {status}"
                );
                assert_ne!(saw, rank as i32);
            }
        }
        assert!(killed.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(shared_files(), before);
}
