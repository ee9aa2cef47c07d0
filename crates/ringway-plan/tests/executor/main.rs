//! The executor against an adversarial network, with real bytes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

mod hand;
mod world;

use proptest::prelude::*;
use ringway_plan::{
    Action, Algorithm, Collective, Executor, Layout, Memory, Op, Place, Space, Span, StepRef,
    Topology, Verified, WINDOW, generate, verify,
};
use world::{Case, World, expected, inputs};

/// Runs a schedule twice with the same executors, and checks every rank's result.
fn check(schedule: &Verified, case: Case) {
    let mut world = World::new(schedule, case);
    for seed in [case.seed, case.seed + 1] {
        let case = Case { seed, ..case };
        world.again(schedule, seed);
        world.run();
        for (rank, want) in expected(schedule, case).iter().enumerate() {
            let got = world.output(rank, want.len());
            assert!(
                &got == want,
                "{} of {} ranks, rank {rank}, {case:?}",
                schedule.algorithm,
                schedule.ranks()
            );
            if case.memory == Memory::Apart {
                assert_eq!(
                    world.input(rank),
                    inputs(schedule, case)[rank],
                    "input was written"
                );
            }
        }
    }
}

fn cases(seed: u64) -> impl Iterator<Item = Case> {
    let sizes = [
        (0, 8),
        (1, 8),
        (5, 8),
        (97, 16),
        (300, 24),
        (1000, 64),
        (1000, 1 << 20),
    ];
    let memories = [Memory::Apart, Memory::Shared];
    sizes.into_iter().flat_map(move |(count, slice_bytes)| {
        memories.into_iter().map(move |memory| {
            let seed = seed + count as u64;
            let size = if count % 2 == 0 { 4 } else { 1 };
            Case {
                count,
                size,
                slice_bytes,
                memory,
                buffered: count % 3,
                seed,
            }
        })
    })
}

#[test]
fn schedules_by_hand() {
    for n in 1..=6 {
        let mut all = vec![
            hand::ring(n, 1),
            hand::ring(n, 3),
            hand::chain(n),
            hand::all_to_all(n),
        ];
        if n > 1 {
            all.extend([hand::gather_and_add(n), hand::barrier(n)]);
        }
        for schedule in all {
            for case in cases(n as u64) {
                if case.memory == Memory::Apart || schedule.in_place() {
                    check(&schedule, case);
                }
            }
        }
    }
}

/// Every collective by every algorithm that does it, on these hosts.
fn generated(hosts: &[usize]) -> Vec<Verified> {
    let topology = Topology::new(hosts.to_vec()).with_channels(2);
    let root = hosts.len() - 1;
    let all = Collective::all(root).into_iter().flat_map(|collective| {
        let does = Algorithm::ALL
            .into_iter()
            .filter(move |a| a.supports(collective));
        does.map(move |algorithm| (collective, algorithm))
    });
    let prove = |(collective, algorithm)| {
        let schedule = generate(collective, algorithm, &topology).unwrap_or_else(|e| panic!("{e}"));
        verify(schedule).unwrap_or_else(|e| panic!("{algorithm} {collective}: {e}"))
    };
    all.map(prove).collect()
}

#[test]
fn every_collective_by_every_algorithm() {
    for n in 1..=9 {
        let hosts = [vec![0; n], (0..n).map(|r| r % 3).collect()];
        for (i, schedule) in hosts.iter().flat_map(|h| generated(h)).enumerate() {
            // Not all cases for all schedules: the property test below meets the others.
            for (j, case) in cases((n + i) as u64).enumerate() {
                let apart = case.memory == Memory::Apart;
                if (i + j).is_multiple_of(8) && (apart || schedule.in_place()) {
                    check(&schedule, case);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_size_and_order(
        n in 2..10_usize,
        per_host in 1..5_usize,
        which: prop::sample::Index,
        count in 0..400_usize,
        wide: bool,
        eights in 1..40_usize,
        shared: bool,
        buffered in 0..3_usize,
        seed: u64,
    ) {
        let mut schedules = vec![
            hand::ring(n, 2),
            hand::chain(n),
            hand::gather_and_add(n),
            hand::all_to_all(n),
            hand::barrier(n),
        ];
        schedules.extend(generated(&(0..n).map(|r| r / per_host).collect::<Vec<_>>()));
        let schedule = which.get(&schedules);
        let shared = shared && schedule.in_place();
        let memory = if shared { Memory::Shared } else { Memory::Apart };
        let size = if wide { 4 } else { 1 };
        let seed = seed >> 1;
        check(schedule, Case { count, size, slice_bytes: 8 * eights, memory, buffered, seed });
    }
}

/// The `v` forms: ranks with parts of different sizes, one of them without any.
#[test]
fn parts_of_different_sizes() {
    let part = |r: usize| (r * 37) % 50;
    let n = 5;
    let ends = |sizes: &dyn Fn(usize) -> usize| {
        let start = |r| (0..r).map(sizes).sum::<usize>();
        (0..n).map(|r| start(r)..start(r + 1)).collect::<Vec<_>>()
    };
    let mut run = 0;
    for collective in [Collective::AllGather, Collective::AllToAll] {
        for algorithm in Algorithm::ALL
            .into_iter()
            .filter(|a| a.supports(collective))
        {
            let topology = Topology::single_host(n);
            let schedule = verify(generate(collective, algorithm, &topology).unwrap()).unwrap();
            if !schedule.uneven() {
                continue;
            }
            let gathers = collective == Collective::AllGather;
            let layouts: Vec<Layout> = (0..n)
                .map(|r| match gathers {
                    true => Layout::uneven(std::iter::once(0..part(r)).collect(), ends(&part)),
                    false => Layout::uneven(
                        ends(&|to| part(r + 2 * to)),
                        ends(&|from| part(from + 2 * r)),
                    ),
                })
                .collect();
            let byte = |r: usize, i: usize| (r * 101 + i * 7) as u8;
            let len = |r: usize| match gathers {
                true => part(r),
                false => (0..n).map(|to| part(r + 2 * to)).sum(),
            };
            let inputs: Vec<Vec<u8>> = (0..n)
                .map(|r| (0..len(r)).map(|i| byte(r, i)).collect())
                .collect();
            let (memory, slice_bytes) = (Memory::Apart, 16);
            let case = Case {
                count: 0,
                size: 1,
                slice_bytes,
                memory,
                buffered: 0,
                seed: 3,
            };
            let mut world = World::with(&schedule, case, &layouts, inputs.clone());
            world.run();
            run += 1;
            for r in 0..n {
                let want: Vec<u8> = match gathers {
                    true => inputs.concat(),
                    false => (0..n)
                        .flat_map(|from| {
                            let sent = ends(&|to| part(from + 2 * to))[r].clone();
                            inputs[from][sent].to_vec()
                        })
                        .collect(),
                };
                assert_eq!(
                    world.output(r, want.len()),
                    want,
                    "{algorithm} {collective} rank {r}"
                );
            }
        }
    }
    assert!(run >= 2, "direct can do both");
}

fn ring_of_two(count: usize, slice_bytes: usize) -> (Verified, Executor) {
    let schedule = hand::ring(2, 1);
    let layout = Layout::even(
        schedule.collective,
        &schedule.programs[0],
        2,
        schedule.chunks,
        0,
        count,
        4,
    );
    let executor = Executor::new(&schedule, 0, &layout, slice_bytes, Memory::Apart);
    (schedule, executor)
}

#[test]
fn a_reduction_is_forwarded_slice_by_slice() {
    // 2 ranks, 64 elements of 4 bytes: chunks of 128 bytes, 4 slices of 32 bytes.
    let (_, mut executor) = ring_of_two(64, 32);
    let mut views = Vec::new();
    while let Some(action) = executor.poll() {
        if let Action::View { id, .. } = action {
            views.push(id);
        }
    }
    assert_eq!(views.len(), 4, "all slices of the receive are posted");
    executor.handle_done(views[0]);
    let Some(Action::Combine {
        id,
        own,
        dst,
        finish,
        ..
    }) = executor.poll()
    else {
        panic!("the first slice has arrived and its operand is input")
    };
    assert_eq!(
        (own.range(), dst.range(), finish),
        (128..160, 128..160, true)
    );
    assert_eq!(executor.poll(), None);
    executor.handle_done(id);
    let Some(Action::Send {
        message: 1,
        slice: 0,
        src,
        ..
    }) = executor.poll()
    else {
        panic!("the reduced slice goes on while three are still missing")
    };
    assert_eq!(
        src,
        Place {
            space: Space::Output,
            offset: 128,
            len: 32
        }
    );
    assert_eq!(executor.poll(), None);
}

#[test]
fn the_window_bounds_what_is_under_way() {
    let (_, mut executor) = ring_of_two(10_000, 64);
    let (mut sends, mut views) = (Vec::new(), 0);
    while let Some(action) = executor.poll() {
        match action {
            Action::Send { id, .. } => sends.push(id),
            Action::View { .. } => views += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((sends.len(), views), (WINDOW as usize, WINDOW));
    // The window counts from the oldest: the second one's completion opens nothing.
    executor.handle_done(sends[1]);
    assert_eq!(executor.poll(), None);
    executor.handle_done(sends[0]);
    let more = std::iter::from_fn(|| executor.poll()).count();
    assert_eq!(more, 2);
}

#[test]
fn local_slices_that_complete_late_are_followed_by_the_rest() {
    // A driver in virtual time starts all that it may before the first is done.
    let topology = Topology::single_host(1);
    let copy = generate(Collective::AllReduce, Algorithm::Ring, &topology).unwrap();
    let copy = verify(copy).unwrap();
    let layout = Layout::even(
        copy.collective,
        &copy.programs[0],
        1,
        copy.chunks,
        0,
        8 * 500,
        1,
    );
    let mut executor = Executor::new(&copy, 0, &layout, 8, Memory::Apart);
    let mut copied = 0;
    while !executor.is_done() {
        let started: Vec<Action> = std::iter::from_fn(|| executor.poll()).collect();
        assert!(!started.is_empty(), "{copied} of 500 slices, and no more");
        for action in started {
            let Action::Copy { id, .. } = action else {
                panic!("{action:?}");
            };
            copied += 1;
            executor.handle_done(id);
        }
    }
    assert_eq!(copied, 500);
}

#[test]
fn pending_names_peer_step_and_slice() {
    let (_, mut executor) = ring_of_two(64, 32);
    while executor.poll().is_some() {}
    let pending = executor.pending();
    let text: Vec<String> = pending.iter().map(|p| p.to_string()).collect();
    assert_eq!(
        text,
        [
            "waiting for rank 1 at lane 0 step 0: send in[0] to 1 (slice 1 of 4)",
            "waiting for rank 1 at lane 0 step 1: recv-reduce out[1] = from 1 + in[1] (slice 1 of 4)",
            "waiting for rank 1 at lane 0 step 3: recv out[0] from 1 (slice 1 of 4)",
        ]
    );
    assert_eq!(pending[1].at, StepRef { lane: 0, step: 1 });
    assert!(matches!(pending[0].op, Op::Send { peer: 1, src } if src == Span::input(0, 1)));
}

#[test]
fn completions_that_nobody_waits_for_are_ignored() {
    let (_, mut executor) = ring_of_two(64, 32);
    let Some(Action::Send { id, .. }) = executor.poll() else {
        panic!("a send comes first")
    };
    executor.handle_done(id);
    executor.handle_done(id);
    let view = executor.receiving(1, 0, 0, 0).expect("the message exists");
    executor.handle_done(view);
    assert_eq!(executor.receiving(1, 0, 9, 0), None);
    assert_eq!(executor.receiving(2, 0, 0, 0), None);
    assert_eq!(executor.sending(1, 0, 0, 4), None);
    let pending = executor.pending();
    assert!(pending.is_empty(), "{pending:?}");
}

#[test]
fn empty_messages_are_skipped_and_counted() {
    // One element: of the two chunks the second is empty, and so are its messages.
    let (_, mut executor) = ring_of_two(1, 64);
    let Some(Action::Send {
        message: 0, src, ..
    }) = executor.poll()
    else {
        panic!("sends in[0]")
    };
    assert_eq!(src.len, 4);
    let Some(Action::Recv {
        message: 1, dst, ..
    }) = executor.poll()
    else {
        panic!("message 0 is empty; message 1 is the sum")
    };
    assert_eq!(dst.range(), 0..4);
    assert_eq!(executor.poll(), None);
}
