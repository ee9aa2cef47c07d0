//! Good schedules, spoilt: the verifier must refuse each, and say where.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

mod brute;

use brute::{Mode, Random};
use proptest::prelude::*;
use ringway_plan::{
    Algorithm, Collective, Lane, Op, Order, Program, Schedule, Space, Span, Step, StepRef,
    Topology, VerifyError, generate, verify,
};

fn schedule(collective: Collective, algorithm: Algorithm, topology: &Topology) -> Schedule {
    generate(collective, algorithm, topology).unwrap_or_else(|error| panic!("{error}"))
}

/// Schedules of five ranks on uneven hosts, with every algorithm and for every collective.
fn good() -> impl Iterator<Item = Schedule> {
    let topology = Topology::new(vec![0, 0, 0, 1, 1]);
    Collective::all(2).into_iter().flat_map(move |collective| {
        let algorithms = Algorithm::ALL
            .into_iter()
            .filter(move |a| a.supports(collective));
        let topology = topology.clone();
        algorithms.map(move |algorithm| schedule(collective, algorithm, &topology))
    })
}

/// Where the steps are: rank, lane, step.
fn places(schedule: &Schedule) -> Vec<(usize, usize, usize)> {
    let mut places = Vec::new();
    for (rank, program) in schedule.programs.iter().enumerate() {
        for (lane, l) in program.lanes.iter().enumerate() {
            places.extend((0..l.steps.len()).map(|step| (rank, lane, step)));
        }
    }
    places
}

fn step_mut(schedule: &mut Schedule, (rank, lane, step): (usize, usize, usize)) -> &mut Step {
    &mut schedule.programs[rank].lanes[lane].steps[step]
}

/// The error, which must name a rank, a lane, a step and a chunk.
fn refused(schedule: Schedule, what: &str) -> VerifyError {
    let table = schedule.table();
    let Err(error) = verify(schedule) else {
        panic!("{what} was not refused:\n{table}")
    };
    let text = error.to_string();
    for word in ["rank ", "lane", "step", "chunk"] {
        assert!(
            text.contains(word),
            "{what}: '{word}' is missing in: {text}"
        );
    }
    error
}

/// Applies `spoil` to each step of each good schedule; where it does something, the result must be refused
/// with an error that passes `expect`.
fn each_step(
    what: &str,
    mut spoil: impl FnMut(&mut Schedule, (usize, usize, usize)) -> bool,
    expect: impl Fn(&VerifyError) -> bool,
) {
    let mut spoilt = 0;
    for original in good() {
        for at in places(&original) {
            let mut schedule = original.clone();
            if spoil(&mut schedule, at) {
                spoilt += 1;
                let what = format!("{what} at {at:?}");
                let error = refused(schedule, &what);
                assert!(expect(&error), "{what}: unexpected {error:?}");
            }
        }
    }
    assert!(spoilt >= 20, "{what}: only {spoilt} places");
}

fn peer_mut(op: &mut Op) -> Option<&mut usize> {
    match op {
        Op::Recv { peer, .. } | Op::RecvReduce { peer, .. } | Op::Send { peer, .. } => Some(peer),
        Op::Copy { .. } | Op::Reduce { .. } => None,
    }
}

fn spans_mut(op: &mut Op) -> Vec<&mut Span> {
    match op {
        Op::Send { src, .. } => vec![src],
        Op::Recv { dst, .. } => vec![dst],
        Op::Copy { src, dst } => vec![src, dst],
        Op::RecvReduce { own, dst, .. } => vec![own, dst],
        Op::Reduce { a, b, dst } => vec![a, b, dst],
    }
}

#[test]
fn a_dropped_step() {
    each_step(
        "dropped step",
        |s, (rank, lane, step)| {
            s.programs[rank].lanes[lane].steps.remove(step);
            true
        },
        |e| {
            matches!(
                e,
                VerifyError::Unmatched { .. }
                    | VerifyError::MessageSize { .. }
                    | VerifyError::After { .. }
                    | VerifyError::Undefined { .. }
                    | VerifyError::WrongOutput { .. }
            )
        },
    );
}

#[test]
fn a_wrong_peer() {
    let turn = |s: &mut Schedule, at: (usize, usize, usize)| {
        let n = s.ranks();
        let Some(peer) = peer_mut(&mut step_mut(s, at).op) else {
            return false;
        };
        *peer = (0..n).find(|&r| r != *peer && r != at.0).unwrap_or(n);
        true
    };
    each_step("wrong peer", turn, |e| {
        matches!(
            e,
            VerifyError::Unmatched { .. } | VerifyError::MessageSize { .. }
        )
    });
    let own = |s: &mut Schedule, at: (usize, usize, usize)| {
        peer_mut(&mut step_mut(s, at).op)
            .map(|peer| *peer = at.0)
            .is_some()
    };
    each_step("itself as peer", own, |e| {
        matches!(e, VerifyError::Peer { .. })
    });
}

#[test]
fn a_repeated_reduce() {
    // The message is sent twice as well, so that only the sum is wrong.
    let repeat = |s: &mut Schedule, at: (usize, usize, usize)| {
        let Op::RecvReduce {
            peer, dst, order, ..
        } = step_mut(s, at).op
        else {
            return false;
        };
        let like = |op: &Op| matches!(op, Op::Recv { peer: p, .. } | Op::RecvReduce { peer: p, .. } if *p == peer);
        let nth = s.programs[at.0].lanes[at.1].steps[..at.2]
            .iter()
            .filter(|x| like(&x.op))
            .count();
        let sends = &mut s.programs[peer].lanes[at.1].steps;
        let is_send = |x: &&(usize, &Step)| matches!(x.1.op, Op::Send { peer: p, .. } if p == at.0);
        let Some((i, send)) = sends.iter().enumerate().filter(|x| is_send(&x)).nth(nth) else {
            return false;
        };
        let send = send.clone();
        sends.insert(i, send);
        let again = Op::RecvReduce {
            peer,
            own: dst,
            dst,
            order,
        };
        s.programs[at.0].lanes[at.1]
            .steps
            .insert(at.2 + 1, again.into());
        true
    };
    each_step("repeated reduce", repeat, |e| {
        matches!(
            e,
            VerifyError::Duplicate { .. } | VerifyError::Deadlock { .. }
        )
    });
}

#[test]
fn a_wrong_chunk() {
    for which in 0..2 {
        let shift = |s: &mut Schedule, at: (usize, usize, usize)| {
            let (collective, n, chunks) = (s.collective, s.ranks(), s.chunks);
            let scratch = s.programs[at.0].scratch.len();
            let mut spans = spans_mut(&mut step_mut(s, at).op);
            let Some(span) = spans.get_mut(which).filter(|s| s.count > 0) else {
                return false;
            };
            let space = match span.space {
                Space::Input => collective.input_chunks(n, chunks, at.0).len(),
                Space::Output => collective.output_chunks(n, chunks, at.0).len(),
                Space::Scratch => scratch,
            };
            span.chunk = if span.chunk + span.count < space {
                span.chunk + 1
            } else {
                span.chunk.wrapping_sub(1)
            };
            span.chunk < space
        };
        each_step("wrong chunk", shift, |_| true);
        // Past the end of its space.
        let beyond = |s: &mut Schedule, at: (usize, usize, usize)| {
            let chunks = s.chunks.max(64);
            let mut spans = spans_mut(&mut step_mut(s, at).op);
            spans
                .get_mut(which)
                .filter(|s| s.count > 0)
                .map(|span| span.chunk += chunks)
                .is_some()
        };
        each_step("chunk out of range", beyond, |e| {
            matches!(e, VerifyError::OutOfRange { .. })
        });
    }
}

#[test]
fn steps_in_the_wrong_order() {
    // Swaps each step with the next of its lane that depends on it by what one of them writes.
    let mut refusals = 0;
    for original in good() {
        for (rank, lane, step) in places(&original) {
            let steps = &original.programs[rank].lanes[lane].steps;
            let Some(dst) = steps[step].op.writes() else {
                continue;
            };
            let reads = |s: &Step| s.op.reads().any(|r| r == dst);
            let Some(next) = (step + 1..steps.len()).find(|&i| reads(&steps[i])) else {
                continue;
            };
            // Two partial sums that swap may well make the same whole.
            if matches!(steps[next].op, Op::RecvReduce { .. } | Op::Reduce { .. }) {
                continue;
            }
            let mut schedule = original.clone();
            schedule.programs[rank].lanes[lane].steps.swap(step, next);
            refused(
                schedule,
                &format!("swap of {rank} {lane} {step} and {next}"),
            );
            refusals += 1;
        }
    }
    assert!(refusals >= 20, "only {refusals}");
}

#[test]
fn operands_in_another_order_on_one_rank() {
    let topology = Topology::single_host(8);
    for algorithm in [Algorithm::RecursiveDoubling, Algorithm::OneShot] {
        let original = schedule(Collective::AllReduce, algorithm, &topology);
        for at in places(&original) {
            let mut schedule = original.clone();
            let Op::RecvReduce { order, .. } = &mut step_mut(&mut schedule, at).op else {
                continue;
            };
            *order = match *order {
                Order::LocalFirst => Order::RemoteFirst,
                Order::RemoteFirst => Order::LocalFirst,
            };
            let error = refused(schedule, "flipped operands");
            assert!(matches!(error, VerifyError::Differs { .. }), "{error}");
        }
    }
}

#[test]
fn a_missing_wait() {
    for algorithm in [Algorithm::RecursiveDoubling, Algorithm::Tree] {
        let original = schedule(Collective::Barrier, algorithm, &Topology::single_host(8));
        let mut spoilt = 0;
        for at in places(&original) {
            let mut schedule = original.clone();
            if !std::mem::take(&mut step_mut(&mut schedule, at).after).is_empty() {
                let error = refused(schedule, "missing wait");
                assert!(matches!(error, VerifyError::Barrier { .. }), "{error}");
                spoilt += 1;
            }
        }
        assert!(spoilt > 4, "{algorithm}: {spoilt}");
    }
}

#[test]
fn partners_that_wait_for_each_other() {
    // Receiving where the send still reads: each waits for the other to be done.
    let mut schedule = schedule(
        Collective::AllReduce,
        Algorithm::RecursiveDoubling,
        &Topology::single_host(4),
    );
    for program in schedule.programs.iter_mut() {
        for step in &mut program.lanes[0].steps {
            for span in spans_mut(&mut step.op) {
                *span = if span.space == Space::Scratch {
                    Span::output(0, 1)
                } else {
                    *span
                };
            }
        }
    }
    let error = refused(schedule, "exchange in one place");
    let VerifyError::Deadlock { cycle, .. } = &error else {
        panic!("{error}")
    };
    let ranks: std::collections::BTreeSet<_> = cycle.iter().map(|site| site.rank).collect();
    assert_eq!(ranks.len(), 2, "{error}");
}

/// Changes something, anything.
fn mutate(schedule: &mut Schedule, random: &mut Random) {
    let all = places(schedule);
    let at @ (rank, lane, step) = all[random.below(all.len())];
    let n = schedule.ranks();
    let steps = &mut schedule.programs[rank].lanes[lane].steps;
    match random.below(9) {
        0 => drop(steps.remove(step)),
        1 => {
            let other = random.below(steps.len());
            steps.swap(step, other);
        }
        2 => {
            let copy = steps[step].clone();
            steps.insert(random.below(step + 1), copy);
        }
        3 => {
            if let Some(peer) = peer_mut(&mut steps[step].op) {
                *peer = random.below(n);
            }
        }
        4 => {
            let mut spans = spans_mut(&mut steps[step].op);
            let which = random.below(spans.len());
            spans[which].chunk = random.below(4);
        }
        5 => {
            let mut spans = spans_mut(&mut steps[step].op);
            let which = random.below(spans.len());
            spans[which].space = [Space::Input, Space::Output, Space::Scratch][random.below(3)];
        }
        6 => steps[step].after.clear(),
        7 => {
            if let Op::RecvReduce { order, .. } = &mut steps[step].op {
                *order = Order::RemoteFirst;
            }
        }
        // To a lane of its own, and its counterpart too, so that only the order is lost.
        _ => {
            let moved = steps.remove(step);
            let lane = schedule
                .programs
                .iter()
                .map(|p| p.lanes.len())
                .max()
                .unwrap_or(0);
            let counterpart = counterpart(schedule, at, &moved.op);
            push(schedule, rank, lane, moved);
            if let Some((r, l, s)) = counterpart {
                let moved = schedule.programs[r].lanes[l].steps.remove(s);
                push(schedule, r, lane, moved);
            }
        }
    }
}

fn push(schedule: &mut Schedule, rank: usize, lane: usize, step: Step) {
    let lanes = &mut schedule.programs[rank].lanes;
    lanes.resize_with(lanes.len().max(lane + 1), Default::default);
    lanes[lane].steps.push(step);
}

/// The other side of the message that stood at `at`, which has been removed.
fn counterpart(
    schedule: &Schedule,
    (rank, lane, step): (usize, usize, usize),
    op: &Op,
) -> Option<(usize, usize, usize)> {
    let is_send = |op: &Op| matches!(op, Op::Send { .. });
    let peer = peer_mut(&mut op.clone()).map(|p| *p)?;
    let like = |x: &Step, to: usize, send: bool| {
        is_send(&x.op) == send && peer_mut(&mut x.op.clone()).is_some_and(|p| *p == to)
    };
    let own = &schedule.programs[rank].lanes[lane].steps[..step];
    let nth = own.iter().filter(|x| like(x, peer, is_send(op))).count();
    let program = (peer < schedule.ranks()).then(|| &schedule.programs[peer])?;
    let theirs = program.lanes.get(lane)?.steps.iter().enumerate();
    let (at, _) = theirs
        .filter(|(_, x)| like(x, rank, !is_send(op)))
        .nth(nth)?;
    Some((peer, lane, at))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    /// What the verifier lets pass ends well in any order of execution, spoilt or not.
    #[test]
    fn what_verifies_runs(seed in any::<u64>(), ranks in 2_usize..6, mutations in 0_usize..3) {
        let mut random = Random(seed);
        let hosts = (0..ranks).map(|_| random.below(3)).collect();
        let collective = Collective::all(random.below(ranks))[random.below(9)];
        let algorithms: Vec<_> = Algorithm::ALL.into_iter().filter(|a| a.supports(collective)).collect();
        let algorithm = algorithms[random.below(algorithms.len())];
        let mut schedule = schedule(collective, algorithm, &Topology::new(hosts));
        for _ in 0..mutations {
            mutate(&mut schedule, &mut random);
        }
        let verified = verify(schedule);
        prop_assert!(mutations > 0 || verified.is_ok());
        let Ok(verified) = verified else { return Ok(()) };
        for mode in [Mode::Loose, Mode::Loose, Mode::Strict] {
            for in_place in [false, true].into_iter().filter(|&p| !p || verified.in_place()) {
                let outcome = brute::run(&verified, in_place, mode, &mut random);
                prop_assert!(outcome.is_ok(), "{mode:?} in place {in_place}: {outcome:?}\n{}", verified.table());
            }
        }
    }

    /// Nonsense is refused, never a panic.
    #[test]
    fn nonsense_is_refused(seed in any::<u64>(), ranks in 1_usize..4) {
        let mut random = Random(seed);
        let collective = Collective::all(random.below(ranks))[random.below(9)];
        let chunks = [0, 1, 2, ranks, 2 * ranks, usize::MAX][random.below(6)];
        let program = |_| nonsense(&mut random, ranks);
        let programs = (0..ranks).map(program).collect();
        let schedule = Schedule { collective, algorithm: String::new(), chunks, programs };
        let table = schedule.table();
        if let Err(error) = verify(schedule) {
            prop_assert!(!error.to_string().is_empty(), "{}", table);
        }
    }
}

fn nonsense(random: &mut Random, ranks: usize) -> Program {
    let number = |random: &mut Random| match random.below(12) {
        0 => usize::MAX,
        1 => usize::MAX / 2 + 1,
        _ => random.below(3),
    };
    let span = |random: &mut Random| {
        let space = [Space::Input, Space::Output, Space::Scratch][random.below(3)];
        Span {
            space,
            chunk: number(random),
            count: number(random),
        }
    };
    let mut lanes = Vec::new();
    for _ in 0..random.below(3) {
        let mut lane = Lane::default();
        for _ in 0..random.below(4) {
            let (peer, order) = (random.below(ranks + 1), Order::LocalFirst);
            let (a, b, dst) = (span(random), span(random), span(random));
            let op = match random.below(5) {
                0 => Op::Copy { src: a, dst },
                1 => Op::Recv { peer, dst },
                2 => Op::RecvReduce {
                    peer,
                    own: a,
                    dst,
                    order,
                },
                3 => Op::Reduce { a, b, dst },
                _ => Op::Send { peer, src: a },
            };
            let after = (0..random.below(2)).map(|_| StepRef {
                lane: number(random),
                step: number(random),
            });
            lane.steps.push(Step {
                op,
                after: after.collect(),
            });
        }
        lanes.push(lane);
    }
    Program {
        scratch: vec![0; random.below(3)],
        lanes,
    }
}
