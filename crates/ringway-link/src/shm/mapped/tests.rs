//! Ranks are threads here, each with a mapping of its own of the segment.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use ringway_plan::{
    Algorithm, Collective, DataType, Lane, Op, Program, Rank, ReduceOp, Schedule, Span, Topology,
    Verified, generate, verify,
};
use ringway_sys::{Memory, Places, Staging};

use super::*;
use crate::shm::{ArenaBlock, HostIdentity, HostSegment, SegmentSizes};

const SIZES: SegmentSizes = SegmentSizes {
    control: 1 << 20,
    slots: 1,
    staging: 64 << 20,
    arena: 256 << 20,
};

/// One rank of a test's host.
struct Host {
    segment: Arc<HostSegment>,
    group: MappedGroup,
}

/// The ranks of a host, with a group of all of them.
fn hosts(ranks: usize) -> Vec<Host> {
    hosts_of(ranks, SIZES)
}

fn hosts_of(ranks: usize, sizes: SegmentSizes) -> Vec<Host> {
    let identity = HostIdentity {
        job: [1; 16],
        world: ranks,
        ranks: (0..ranks).collect(),
    };
    let first = HostSegment::create(identity.clone(), sizes).unwrap();
    let join = |rank| {
        let fds = first
            .descriptors()
            .iter()
            .map(|fd| fd.try_clone_to_owned().unwrap())
            .collect();
        HostSegment::join(fds, identity.clone(), rank).unwrap()
    };
    let segments: Vec<_> = (0..ranks)
        .map(|rank| {
            if rank == 0 {
                Arc::clone(&first)
            } else {
                join(rank)
            }
        })
        .collect();
    let blocks: Vec<_> = segments
        .iter()
        .map(|s| GroupBlock::allocate(s).unwrap())
        .collect();
    let members: Vec<_> = blocks.iter().map(GroupBlock::offset).enumerate().collect();
    segments
        .into_iter()
        .zip(blocks)
        .enumerate()
        .map(|(me, (segment, block))| {
            let patience = Patience {
                spins: 50,
                yielding: Duration::from_micros(200),
            };
            let group =
                MappedGroup::new(Arc::clone(&segment), block, &members, me, patience).unwrap();
            Host { segment, group }
        })
        .collect()
}

/// Runs `body` as every rank at once.
fn on_all<T: Send>(hosts: &[Host], body: impl Fn(Rank, &Host) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = hosts
            .iter()
            .enumerate()
            .map(|(rank, host)| {
                let body = &body;
                scope.spawn(move || body(rank, host))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Memory of a rank, in the arena or not.
enum Buffer {
    Arena(ArenaBlock),
    Private(Staging),
}

impl Buffer {
    fn new(host: &Host, arena: bool, values: &[u64]) -> Self {
        let bytes = 8 * values.len();
        let buffer = match arena {
            true => Self::Arena(host.segment.user_arena().allocate(bytes).unwrap()),
            false => Self::Private(Staging::new(bytes)),
        };
        let all: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_ne_bytes())
            .collect();
        buffer.memory().write(&all);
        buffer
    }

    fn memory(&self) -> Memory {
        match self {
            Self::Arena(block) => block.memory(),
            Self::Private(staging) => staging.memory(),
        }
    }

    fn values(&self) -> Vec<u64> {
        let mut all = vec![0; self.memory().len()];
        self.memory().read(&mut all);
        all.as_chunks()
            .0
            .iter()
            .map(|&bytes| u64::from_ne_bytes(bytes))
            .collect()
    }
}

fn made(collective: Collective, algorithm: Algorithm, ranks: usize) -> Verified {
    verify(generate(collective, algorithm, &Topology::single_host(ranks)).unwrap()).unwrap()
}

fn plan(schedule: &Verified, rank: Rank, count: usize) -> Arc<MappedPlan> {
    let compiled = MappedSchedule::compile(schedule, rank);
    Arc::new(MappedPlan::new(
        &compiled,
        count,
        DataType::U64,
        ReduceOp::Sum,
    ))
}

/// What rank `rank` has at element `element` of the vector.
fn value(rank: Rank, element: usize) -> u64 {
    (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (element as u64 * 0x1234_5677)
}

/// A rank's input and the output it must get.
fn case(collective: Collective, n: usize, rank: Rank, count: usize) -> (Vec<u64>, Vec<u64>) {
    let part = count / n;
    let own = |e: usize| value(rank, e);
    let sum = |e: usize| (0..n).fold(0u64, |sum, r| sum.wrapping_add(value(r, e)));
    let mine = rank * part..(rank + 1) * part;
    let all = 0..count;
    let at = |root: Rank, range: std::ops::Range<usize>| if rank == root { range } else { 0..0 };
    match collective {
        Collective::AllReduce => (all.clone().map(own).collect(), all.map(sum).collect()),
        Collective::Reduce { root } => (
            all.clone().map(own).collect(),
            at(root, all).map(sum).collect(),
        ),
        Collective::ReduceScatter => (all.map(own).collect(), mine.map(sum).collect()),
        Collective::AllGather => (
            mine.map(own).collect(),
            all.map(|e| value(e / part, e)).collect(),
        ),
        Collective::Gather { root } => (
            mine.map(own).collect(),
            at(root, all).map(|e| value(e / part, e)).collect(),
        ),
        Collective::Broadcast { root } => (
            at(root, all.clone()).map(own).collect(),
            all.map(|e| value(root, e)).collect(),
        ),
        Collective::Scatter { root } => (
            at(root, all).map(own).collect(),
            mine.map(|e| value(root, e)).collect(),
        ),
        Collective::AllToAll => (
            all.clone().map(own).collect(),
            all.map(|e| value(e / part, rank * part + e % part))
                .collect(),
        ),
        Collective::Barrier => (vec![], vec![]),
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// How a rank calls.
#[derive(Clone, Copy, Debug)]
struct Manner {
    arena: bool,
    in_place: bool,
}

/// Runs the schedule once as one rank and checks the result.
fn call(
    host: &Host,
    schedule: &Verified,
    rank: Rank,
    plan: &Arc<MappedPlan>,
    count: usize,
    manner: Manner,
) {
    let n = schedule.ranks();
    let (input, want) = case(schedule.collective, n, rank, count);
    // In place, the smaller of the two is its part of the larger.
    let in_place = manner.in_place && schedule.in_place();
    let (longer, shorter) = (input.len().max(want.len()), input.len().min(want.len()));
    let parted = shorter != longer && shorter > 0;
    let offset = if parted { 8 * rank * (count / n) } else { 0 };
    let mut values = vec![7; longer];
    let (buffer, out);
    let (source, target) = match in_place {
        true => {
            let start = if input.len() < longer { offset / 8 } else { 0 };
            values[start..start + input.len()].copy_from_slice(&input);
            buffer = Buffer::new(host, manner.arena, &values);
            let whole = buffer.memory();
            let part = |len: usize| match len == longer {
                true => whole,
                false => whole.slice(offset..offset + 8 * len),
            };
            (part(input.len()), part(want.len()))
        }
        false => {
            buffer = Buffer::new(host, manner.arena, &input);
            out = Buffer::new(host, manner.arena, &vec![9; want.len()]);
            (buffer.memory(), out.memory())
        }
    };
    let descriptor = Descriptor([count as u64, 1]);
    let call = MappedCall {
        descriptor,
        plan: Arc::clone(plan),
        input: source,
        output: target,
        places: None,
    };
    host.group.run(&call, soon(), &|| false).unwrap();
    let mut got = vec![0; 8 * want.len()];
    target.read(&mut got);
    let got: Vec<u64> = got
        .as_chunks()
        .0
        .iter()
        .map(|&b| u64::from_ne_bytes(b))
        .collect();
    assert!(
        got == want,
        "{} rank {rank} {manner:?} count {count}",
        schedule.collective
    );
    if !in_place {
        assert!(
            buffer.values() == input,
            "{} changed its input",
            schedule.collective
        );
    }
}

fn every(root: Rank) -> impl Iterator<Item = (Collective, Algorithm)> {
    Collective::all(root).into_iter().flat_map(|collective| {
        let algorithms = Algorithm::ALL.into_iter();
        algorithms
            .filter(move |a| a.supports(collective))
            .map(move |a| (collective, a))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn calls_do_what_they_promise_in_any_memory(
        n in 1..6usize,
        pick in any::<usize>(),
        elements in prop_oneof![0..20usize, 20..3000usize, 50_000..150_000usize],
        manners in proptest::collection::vec((any::<bool>(), any::<bool>()), 6),
        mixed in any::<bool>(),
    ) {
        let all: Vec<_> = every(pick % n).collect();
        let (collective, algorithm) = all[pick % all.len()];
        let schedule = made(collective, algorithm, n);
        let hosts = hosts(n);
        let count = elements.next_multiple_of(n);
        on_all(&hosts, |rank, host| {
            let plan = plan(&schedule, rank, count);
            for round in 0..2 {
                let (arena, in_place) = manners[if mixed { rank } else { round }];
                call(host, &schedule, rank, &plan, count, Manner { arena, in_place });
            }
        });
    }
}

#[test]
fn thousands_of_small_calls_reuse_their_contexts() {
    let hosts = hosts(3);
    let one_shot = made(Collective::AllReduce, Algorithm::OneShot, 3);
    let barrier = made(Collective::Barrier, Algorithm::Direct, 3);
    on_all(&hosts, |rank, host| {
        let plans = [plan(&one_shot, rank, 3), plan(&one_shot, rank, 500)];
        let barrier = (&barrier, plan(&barrier, rank, 0));
        for round in 0..1000 {
            let (index, count) = if round % 3 == 0 { (1, 500) } else { (0, 3) };
            let manner = Manner {
                arena: round % 2 == 0,
                in_place: true,
            };
            call(host, &one_shot, rank, &plans[index], count, manner);
            call(host, barrier.0, rank, &barrier.1, 0, manner);
        }
    });
    // Staging was used again and again.
    assert!(hosts[0].segment.memory_in_use() < 1 << 20);
}

/// Each shows what the other reads, so that their staging changes hands.
#[test]
fn two_ranks_write_next_where_they_have_read() {
    let hosts = hosts(2);
    let collectives = [
        Collective::AllGather,
        Collective::AllToAll,
        Collective::ReduceScatter,
    ];
    let schedules = collectives.map(|collective| made(collective, Algorithm::Direct, 2));
    let counts = [2000, 8192, 60_000];
    let in_use = || hosts[0].segment.memory_in_use();
    let before = in_use();
    on_all(&hosts, |rank, host| {
        let manner = Manner {
            arena: false,
            in_place: false,
        };
        for round in 0..60 {
            let (schedule, count) = (&schedules[round % 3], counts[round / 3 % 3]);
            call(
                host,
                schedule,
                rank,
                &plan(schedule, rank, count),
                count,
                manner,
            );
        }
    });
    // A block of each size, and no ring.
    let blocks = counts.map(|count| (count * 4).next_power_of_two());
    assert_eq!(in_use() - before, blocks.iter().sum::<usize>());
}

/// An all_to_all of two ranks, in place too: each keeps its own chunk in scratch while the other chunk lies in its place.
fn with_a_detour() -> Verified {
    let (input, output) = (|at| Span::input(at, 1), |at| Span::output(at, 1));
    let copy = |src, dst| Op::Copy { src, dst };
    let [kept, sent] = [0, 1].map(|at| Span::scratch(at, 1));
    let program = |rank: Rank| {
        let peer = 1 - rank;
        let detour = [
            copy(input(rank), kept),
            copy(input(peer), output(rank)),
            copy(kept, output(rank)),
        ];
        let receive = Op::Recv {
            peer,
            dst: output(peer),
        };
        let send = |src| Op::Send { peer, src };
        // One of them must make room for what comes.
        let swap = match rank {
            0 => vec![send(input(peer)), receive],
            _ => vec![copy(input(peer), sent), receive, send(sent)],
        };
        Program {
            scratch: vec![rank, peer],
            lanes: vec![Lane {
                steps: detour.into_iter().chain(swap).map(Into::into).collect(),
            }],
        }
    };
    let schedule = Schedule {
        collective: Collective::AllToAll,
        algorithm: "by hand".to_owned(),
        chunks: 2,
        programs: (0..2).map(program).collect(),
    };
    verify(schedule).unwrap()
}

/// Who has read all that is for it may write there only if the other reads nothing there itself.
#[test]
fn staging_changes_hands_only_if_its_own_rank_does_not_read_it() {
    let detour = with_a_detour();
    let exchanges = |schedule: &Verified, bytes: usize| {
        let [first, second] = [0, 1].map(|rank| plan(schedule, rank, bytes / 8));
        assert!(first.rotates && second.rotates);
        assert_eq!(first.exchanges, second.exchanges);
        first.exchanges
    };
    for bytes in [16 << 10, 64 << 10, 256 << 10] {
        assert!(!exchanges(&detour, bytes));
        for collective in [Collective::AllGather, Collective::AllToAll] {
            assert!(exchanges(&made(collective, Algorithm::Direct, 2), bytes));
        }
    }
}

/// Rank 1 ends an operation and shows its next data before rank 0 reads its own scratch.
#[test]
fn scratch_stays_with_the_rank_that_reads_it() {
    let (detour, hosts, count) = (with_a_detour(), hosts(2), 16 << 10);
    assert!(detour.in_place());
    let buffers = [0, 1].map(|rank| {
        let (input, want) = case(Collective::AllToAll, 2, rank, count);
        let buffer = || Buffer::new(&hosts[rank], false, &input);
        ([buffer(), buffer()], want)
    });
    let start = |rank: Rank, op: usize| {
        let memory = buffers[rank].0[op].memory();
        let call = MappedCall {
            descriptor: Descriptor([3, 3]),
            plan: plan(&detour, rank, count),
            input: memory,
            output: memory,
            places: None,
        };
        hosts[rank].group.start(call).unwrap()
    };
    let wait = |mut op: MappedOp| {
        let progress = op.step().unwrap();
        assert!(matches!(progress, Progress::Waiting { .. }), "{progress:?}");
        op
    };
    let first = wait(start(0, 0));
    drive(vec![start(1, 0)]);
    let next = wait(start(1, 1));
    drive(vec![first]);
    drive(vec![start(0, 1), next]);
    for (buffers, want) in &buffers {
        assert!(buffers.iter().all(|buffer| buffer.values() == *want));
    }
}

/// Each operation needs all the staging that there is, or half of it.
#[test]
fn staging_of_finished_operations_makes_room_for_others() {
    let (staging, room) = (2 << 20, 128 << 10);
    let hosts = hosts_of(2, SegmentSizes { staging, ..SIZES });
    let fill = |host: &Host| host.segment.staging_arena().allocate(staging - room);
    let _taken: Vec<_> = hosts.iter().map(|host| fill(host).unwrap()).collect();
    let manner = Manner {
        arena: false,
        in_place: false,
    };
    let times = |times, schedule: &Verified, bytes, exchanges| {
        on_all(&hosts, |rank, host| {
            let count = bytes / 8;
            let plan = plan(schedule, rank, count);
            assert_eq!(plan.exchanges, exchanges);
            for _ in 0..times {
                call(host, schedule, rank, &plan, count, manner);
            }
        });
    };
    let in_use = || hosts[0].segment.staging_arena().in_use() - (staging - room);
    let reduce = made(Collective::AllReduce, Algorithm::Direct, 2);
    times(5, &reduce, room, false);
    assert_eq!(in_use(), room);
    // Members know of each other's last operation only if they ask.
    times(1, &reduce, 2 * room, false);
    assert_eq!(in_use(), room);
    let gather = made(Collective::AllGather, Algorithm::Direct, 2);
    times(3, &gather, 2 * room, true);
    assert_eq!(in_use(), room);
}

/// Steps several operations in turn until all are done.
fn drive(mut ops: Vec<MappedOp>) {
    let end = soon();
    while !ops.is_empty() {
        ops.retain_mut(|op| op.step().unwrap() != Progress::Done);
        assert!(Instant::now() < end);
        thread::yield_now();
    }
}

#[test]
fn more_operations_than_contexts_may_be_in_flight_and_finish_in_any_order() {
    // Two ranks of a one_shot hand their staging to each other.
    for (n, algorithm) in [(3, Algorithm::Direct), (2, Algorithm::OneShot)] {
        in_flight_in_any_order(n, algorithm);
    }
}

fn in_flight_in_any_order(n: usize, algorithm: Algorithm) {
    let hosts = hosts(n);
    let schedule = made(Collective::AllReduce, algorithm, n);
    on_all(&hosts, |rank, host| {
        let count = 9000;
        let plan = plan(&schedule, rank, count);
        let (input, want) = case(Collective::AllReduce, n, rank, count);
        let buffers: Vec<_> = (0..40)
            .map(|i| Buffer::new(host, i % 3 == 0, &input))
            .collect();
        let mut ops: Vec<_> = buffers
            .iter()
            .map(|buffer| {
                let memory = buffer.memory();
                let call = MappedCall {
                    descriptor: Descriptor([5, 5]),
                    plan: Arc::clone(&plan),
                    input: memory,
                    output: memory,
                    places: None,
                };
                host.group.start(call).unwrap()
            })
            .collect();
        if rank == 1 {
            ops.reverse();
        }
        drive(ops);
        for buffer in buffers {
            assert!(buffer.values() == want);
        }
    });
}

/// Rank 1 has its vector in a row, the others cut in places of their own.
#[test]
fn vectors_in_several_places_are_added_up_where_they_lie() {
    for n in 1..=4 {
        let hosts = hosts(n);
        for (algorithm, count) in [
            (Algorithm::OneShot, 1),
            (Algorithm::OneShot, 300),
            (Algorithm::Direct, 7),
            (Algorithm::Direct, 900),
            (Algorithm::Direct, 100_000),
        ] {
            let schedule = made(Collective::AllReduce, algorithm, n);
            on_all(&hosts, |rank, host| {
                let (input, want) = case(Collective::AllReduce, n, rank, count);
                let mut rest = &input[..];
                let mut buffers = Vec::new();
                while !rest.is_empty() {
                    let len = match rank {
                        1 => count,
                        _ => (buffers.len() * 7919 + rank * 31) % (count / 9 + 2),
                    };
                    let (part, behind) = rest.split_at(len.min(rest.len()));
                    buffers.push(Buffer::new(host, buffers.len() % 2 == 0, part));
                    rest = behind;
                }
                let places = Places::new(buffers.iter().map(Buffer::memory));
                let (memory, places) = match rank {
                    1 => (places.first(0..8 * count), None),
                    _ => (Memory::EMPTY, Some(Arc::new(places))),
                };
                let call = MappedCall {
                    descriptor: Descriptor([count as u64, 7]),
                    plan: plan(&schedule, rank, count),
                    input: memory,
                    output: memory,
                    places,
                };
                host.group.run(&call, soon(), &|| false).unwrap();
                let got: Vec<u64> = buffers.iter().flat_map(Buffer::values).collect();
                assert!(
                    got == want,
                    "rank {rank} of {n}, {algorithm}, {count} elements"
                );
            });
        }
    }
}

#[test]
fn a_mismatch_is_an_error_at_every_member_that_names_both_sides() {
    let hosts = hosts(3);
    let schedule = made(Collective::AllReduce, Algorithm::Direct, 3);
    let errors = on_all(&hosts, |rank, host| {
        let plan = plan(&schedule, rank, 30);
        let buffer = Buffer::new(host, true, &[1; 30]);
        let descriptor = Descriptor([if rank == 2 { 8 } else { 4 }, 0]);
        let memory = buffer.memory();
        let call = MappedCall {
            descriptor,
            plan,
            input: memory,
            output: memory,
            places: None,
        };
        let error = host
            .group
            .start(call)
            .unwrap()
            .run(soon(), &|| false)
            .unwrap_err();
        assert_eq!(buffer.values(), vec![1; 30]);
        error
    });
    let (four, eight) = (Descriptor([4, 0]), Descriptor([8, 0]));
    let error = |member, theirs, mine| MappedError::Mismatch {
        member,
        theirs,
        mine,
    };
    assert_eq!(errors[0], error(2, eight, four));
    assert_eq!(errors[1], error(2, eight, four));
    assert_eq!(errors[2], error(0, four, eight));
}

#[test]
fn a_member_that_does_not_come_is_named_when_the_deadline_passes() {
    let hosts = hosts(3);
    let schedule = made(Collective::AllReduce, Algorithm::Direct, 3);
    let start = |host: &Host, rank: Rank| {
        let buffer = Buffer::new(host, true, &[1; 30]);
        let memory = buffer.memory();
        let plan = plan(&schedule, rank, 30);
        let call = MappedCall {
            descriptor: Descriptor([1, 1]),
            plan,
            input: memory,
            output: memory,
            places: None,
        };
        (host.group.start(call).unwrap(), buffer)
    };
    let (mut op, _buffer) = start(&hosts[0], 0);
    let deadline = Instant::now() + Duration::from_millis(50);
    let error = op.run(deadline, &|| false).unwrap_err();
    let MappedError::Timeout {
        member: 1,
        op: 1,
        point: 0,
        waited,
    } = error
    else {
        panic!("{error}")
    };
    assert!(waited >= Duration::from_millis(40) && waited < Duration::from_secs(5));
    let (mut op, _buffer) = start(&hosts[1], 1);
    let begin = Instant::now();
    let error = op
        .run(soon(), &|| begin.elapsed() > Duration::from_millis(30))
        .unwrap_err();
    assert_eq!(
        error,
        MappedError::Interrupted {
            member: 2,
            op: 1,
            point: 0
        }
    );
    assert!(begin.elapsed() < Duration::from_secs(1));
}

#[test]
fn a_sleeper_is_woken() {
    let hosts = hosts(2);
    let schedule = made(Collective::Barrier, Algorithm::Direct, 2);
    on_all(&hosts, |rank, host| {
        let plan = plan(&schedule, rank, 0);
        for _ in 0..5 {
            if rank == 1 {
                // Longer than rank 0 spins and yields.
                thread::sleep(Duration::from_millis(3));
            }
            let call = MappedCall {
                descriptor: Descriptor::default(),
                plan: Arc::clone(&plan),
                input: Memory::EMPTY,
                output: Memory::EMPTY,
                places: None,
            };
            host.group.run(&call, soon(), &|| false).unwrap();
        }
    });
}

#[test]
fn a_bell_rings_for_an_armed_operation() {
    let hosts = hosts(2);
    let schedule = made(Collective::Barrier, Algorithm::Direct, 2);
    let start = |rank: Rank| {
        let call = MappedCall {
            descriptor: Descriptor::default(),
            plan: plan(&schedule, rank, 0),
            input: Memory::EMPTY,
            output: Memory::EMPTY,
            places: None,
        };
        hosts[rank].group.start(call).unwrap()
    };
    let rung = |rank: Rank| rustix::io::read(hosts[rank].segment.bell(rank), &mut [0u8; 8]).is_ok();
    let mut first = start(0);
    assert_eq!(
        first.step(),
        Ok(Progress::Waiting {
            member: 1,
            point: 0
        })
    );
    let sleeps = |op: &MappedOp| {
        op.arm();
        ringway_sys::barrier::heavy();
        !op.may_move()
    };
    assert!(sleeps(&first) && !rung(0));
    assert_eq!(start(1).step(), Ok(Progress::Done));
    assert!(rung(0) && !sleeps(&first));
    assert_eq!(first.step(), Ok(Progress::Done));
}

#[test]
fn offsets_that_a_broken_peer_wrote_are_refused() {
    let hosts = hosts(2);
    let schedule = made(Collective::AllReduce, Algorithm::Direct, 2);
    let (plan, count) = (plan(&schedule, 0, 100_000), 100_000);
    let buffer = Buffer::new(&hosts[0], true, &vec![1; count]);
    let memory = buffer.memory();
    let descriptor = Descriptor([1, 1]);
    let call = MappedCall {
        descriptor,
        plan,
        input: memory,
        output: memory,
        places: None,
    };
    let mut op = hosts[0].group.start(call).unwrap();
    assert_eq!(
        op.step(),
        Ok(Progress::Waiting {
            member: 1,
            point: 0
        })
    );
    let context = *hosts[1].group.0.members[1].context(1);
    context.describe(descriptor, 0);
    context.locate(SIZES.arena as u64 - 8, 0, 0);
    context.progress().store(1 << block::POINT_BITS);
    assert!(matches!(
        op.step(),
        Err(MappedError::Corrupt { member: 1, .. })
    ));
    let offset = hosts[0].segment.control(1).len() as u64 - 64;
    let block = GroupBlock::allocate(&hosts[0].segment).unwrap();
    let members = [(0, block.offset()), (1, offset)];
    let patience = Patience::for_ranks(2);
    assert!(
        MappedGroup::new(Arc::clone(&hosts[0].segment), block, &members, 0, patience).is_none()
    );
}

#[test]
fn memory_that_is_too_short_is_refused() {
    let hosts = hosts(1);
    let schedule = made(Collective::AllReduce, Algorithm::Direct, 1);
    let call = MappedCall {
        descriptor: Descriptor::default(),
        plan: plan(&schedule, 0, 10),
        input: Buffer::new(&hosts[0], true, &[1; 9]).memory(),
        output: Buffer::new(&hosts[0], true, &[1; 10]).memory(),
        places: None,
    };
    let error = hosts[0].group.start(call).unwrap_err();
    assert_eq!(
        error,
        MappedError::Buffer {
            what: "input",
            expected: 80,
            found: 72
        }
    );
}

/// A member whose own program touches nothing must not pass for one whose memory is in the arena.
#[test]
fn members_with_memory_in_the_arena_and_without_meet() {
    let schedule = made(Collective::Reduce { root: 1 }, Algorithm::Direct, 3);
    for arena in [
        [true, true, false],
        [false, true, true],
        [true, false, true],
    ] {
        let hosts = hosts(3);
        on_all(&hosts, |rank, host| {
            let plan = plan(&schedule, rank, 1035);
            let manner = Manner {
                arena: arena[rank],
                in_place: false,
            };
            call(host, &schedule, rank, &plan, 1035, manner);
        });
    }
}
