//! What the verifier accepts and refuses, on small schedules written by hand.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use ringway_plan::{
    Algorithm, Collective, Lane, Memory, Op, Order, Program, Schedule, Span, Step, StepRef,
    Topology, Verified, VerifyError, generate, verify,
};

/// A schedule of programs, each a list of lanes.
fn schedule(collective: Collective, chunks: usize, programs: Vec<Vec<Vec<Step>>>) -> Schedule {
    let lanes = |lanes: Vec<Vec<Step>>| lanes.into_iter().map(|steps| Lane { steps }).collect();
    let program = |l| Program {
        scratch: vec![0; 2],
        lanes: lanes(l),
    };
    let programs = programs.into_iter().map(program).collect();
    Schedule {
        collective,
        algorithm: "by hand".to_owned(),
        chunks,
        programs,
    }
}

fn send(peer: usize, src: Span) -> Step {
    Op::Send { peer, src }.into()
}

fn recv(peer: usize, dst: Span) -> Step {
    Op::Recv { peer, dst }.into()
}

fn copy(src: Span, dst: Span) -> Step {
    Op::Copy { src, dst }.into()
}

fn recv_reduce(peer: usize, own: Span, dst: Span) -> Step {
    Op::RecvReduce {
        peer,
        own,
        dst,
        order: Order::LocalFirst,
    }
    .into()
}

fn reduce(a: Span, b: Span, dst: Span) -> Step {
    Op::Reduce { a, b, dst }.into()
}

fn after(step: Step, lane: usize, number: usize) -> Step {
    Step {
        after: vec![StepRef { lane, step: number }],
        ..step
    }
}

const fn input(chunk: usize) -> Span {
    Span::input(chunk, 1)
}

const fn output(chunk: usize) -> Span {
    Span::output(chunk, 1)
}

const fn scratch(chunk: usize) -> Span {
    Span::scratch(chunk, 1)
}

const BROADCAST: Collective = Collective::Broadcast { root: 0 };

/// A broadcast from rank 0 to rank 1, which does `lanes`.
fn to_one(lanes: Vec<Vec<Step>>) -> Schedule {
    let root = vec![vec![send(1, input(0)), copy(input(0), output(0))]];
    schedule(BROADCAST, 1, vec![root, lanes])
}

#[test]
fn lanes_need_after() {
    let through = |second: Step| to_one(vec![vec![recv(0, scratch(0))], vec![second]]);
    assert!(verify(through(after(copy(scratch(0), output(0)), 0, 0))).is_ok());

    let error = verify(through(copy(scratch(0), output(0)))).unwrap_err();
    let VerifyError::Race { first, second, .. } = &error else {
        panic!("{error}")
    };
    let mut places = [
        (first.rank, first.step.lane),
        (second.rank, second.step.lane),
    ];
    places.sort_unstable();
    assert_eq!(places, [(1, 0), (1, 1)]);
    assert_eq!((first.chunk, second.chunk), (scratch(0), scratch(0)));
    let text = error.to_string();
    assert!(
        text.contains("rank 1 lane 1 step 0 chunk tmp[0]") && text.contains("`after`"),
        "{text}"
    );
}

#[test]
fn two_lanes_must_not_write_one_chunk() {
    let root = vec![
        vec![send(1, input(0)), copy(input(0), output(0))],
        vec![send(1, input(0))],
    ];
    let twice = vec![vec![recv(0, output(0))], vec![recv(0, output(0))]];
    let error = verify(schedule(BROADCAST, 1, vec![root, twice])).unwrap_err();
    assert!(matches!(error, VerifyError::Race { .. }), "{error}");
}

#[test]
fn messages_order_lanes() {
    // Rank 1 sends input away in lane 0 and overwrites it, in place, in lane 1 with what comes back:
    // the way there and back is what keeps the two apart.
    let one = vec![vec![send(0, input(0))], vec![recv(0, output(0))]];
    let back = |step: Step| vec![vec![recv_reduce(1, input(0), output(0))], vec![step]];
    let good = schedule(
        Collective::AllReduce,
        1,
        vec![back(after(send(1, output(0)), 0, 0)), one],
    );
    let verified = verify(good).unwrap();
    assert!(verified.completes(0, StepRef { lane: 0, step: 0 }));
    assert!(!verified.completes(0, StepRef { lane: 1, step: 0 }));
    assert!(!verified.completes(5, StepRef { lane: 9, step: 9 }));

    // What comes back is independent of what was sent: out of place that is fine, in place a race.
    let one = vec![
        vec![send(0, input(0))],
        vec![recv(0, scratch(0)), reduce(scratch(0), input(0), output(0))],
    ];
    let zero = vec![
        vec![recv_reduce(1, input(0), output(0))],
        vec![send(1, input(0))],
    ];
    let error = verify(schedule(Collective::AllReduce, 1, vec![zero, one])).unwrap_err();
    assert!(
        matches!(
            error,
            VerifyError::Race {
                memory: Memory::Shared,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_send_reads_until_its_message_has_arrived() {
    // Rank 0 overwrites in lane 1 what lane 0 sends.
    let spoil = |wait: bool| {
        let step = copy(input(0), scratch(0));
        let over = if wait { after(step, 0, 1) } else { step };
        let root = vec![
            vec![
                copy(input(0), scratch(0)),
                send(1, scratch(0)),
                copy(input(0), output(0)),
            ],
            vec![over],
        ];
        schedule(BROADCAST, 1, vec![root, vec![vec![recv(0, output(0))]]])
    };
    assert!(verify(spoil(true)).is_ok());
    let error = verify(spoil(false)).unwrap_err();
    assert!(
        matches!(
            error,
            VerifyError::Race {
                memory: Memory::Apart,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn steps_that_wait_for_each_other() {
    let first = after(recv(0, output(0)), 1, 0);
    let second = after(copy(output(0), scratch(0)), 0, 0);
    let error = verify(to_one(vec![vec![first], vec![second]])).unwrap_err();
    let VerifyError::Deadlock { cycle, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(cycle.len(), 2, "{error}");
    let text = error.to_string();
    assert!(text.contains("rank 1 lane 0 step 0 chunk out[0]"), "{text}");
    assert!(text.contains("rank 1 lane 1 step 0 chunk tmp[0]"), "{text}");
}

#[test]
fn messages_of_a_lane_are_carried_one_at_a_time() {
    // Rank 1 can take the first message only when it has the second.
    let root = vec![vec![
        send(1, input(0)),
        send(1, input(1)),
        copy(Span::input(0, 2), Span::output(0, 2)),
    ]];
    let one = vec![
        vec![after(recv(0, output(0)), 1, 0), recv(0, output(1))],
        vec![after(copy(output(1), scratch(1)), 0, 1)],
    ];
    let mut program = schedule(BROADCAST, 2, vec![root, one]);
    program.programs[1].scratch = vec![0, 1];
    let error = verify(program).unwrap_err();
    assert!(matches!(error, VerifyError::Deadlock { .. }), "{error}");
}

#[test]
fn sizes_must_match_for_every_element_count() {
    // Chunks 0 and 1 of a broadcast may differ by an element.
    let root = vec![vec![
        send(1, input(0)),
        copy(Span::input(0, 2), Span::output(0, 2)),
    ]];
    let one = vec![vec![recv(0, output(1))]];
    let error = verify(schedule(BROADCAST, 2, vec![root, one])).unwrap_err();
    let VerifyError::MessageSize { send, receive, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((send.chunk, receive.chunk), (input(0), output(1)));

    let error = verify(to_one(vec![vec![
        recv(0, scratch(0)),
        copy(scratch(0), Span::output(0, 0)),
    ]]));
    assert!(
        matches!(error, Err(VerifyError::StepSize { .. })),
        "{error:?}"
    );
}

#[test]
fn malformed_steps() {
    let of = |lane: Vec<Step>| verify(to_one(vec![lane])).unwrap_err();
    let error = of(vec![recv(0, output(7))]);
    assert!(
        matches!(error, VerifyError::OutOfRange { chunks: 1, .. }),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("rank 1 lane 0 step 0 chunk out[7]"),
        "{error}"
    );
    let error = of(vec![recv(0, Span::output(usize::MAX, 2))]);
    assert!(matches!(error, VerifyError::OutOfRange { .. }), "{error}");
    let error = of(vec![recv(1, output(0))]);
    assert!(
        matches!(error, VerifyError::Peer { peer: 1, .. }),
        "{error}"
    );
    let error = of(vec![recv(0, output(0)), recv(0, output(0))]);
    assert!(
        matches!(
            error,
            VerifyError::Unmatched {
                sends: 1,
                receives: 2,
                ..
            }
        ),
        "{error}"
    );
    let error = of(vec![copy(scratch(0), output(0)), recv(0, output(0))]);
    assert!(matches!(error, VerifyError::Undefined { .. }), "{error}");
    let error = of(vec![after(recv(0, output(0)), 0, 0)]);
    assert!(matches!(error, VerifyError::After { .. }), "{error}");
    let error = of(vec![after(recv(0, output(0)), 3, 0)]);
    assert!(matches!(error, VerifyError::After { .. }), "{error}");
    let error = of(vec![recv_reduce(0, scratch(0), output(0))]);
    assert!(matches!(error, VerifyError::NotReducing { .. }), "{error}");

    let write = vec![vec![copy(input(0), output(0)), copy(output(0), input(0))]];
    let error = verify(schedule(Collective::AllReduce, 1, vec![write])).unwrap_err();
    assert!(matches!(error, VerifyError::WritesInput { .. }), "{error}");
    let overlap = vec![vec![
        copy(Span::input(0, 3), Span::output(0, 3)),
        copy(Span::output(0, 2), Span::output(1, 2)),
    ]];
    let error = verify(schedule(Collective::AllReduce, 3, vec![overlap])).unwrap_err();
    assert!(matches!(error, VerifyError::StepSize { .. }), "{error}");
    // Of an all_gather's chunks, those of different parts do have equal sizes.
    let part = |peer| vec![vec![send(peer, input(0)), recv(peer, Span::output(0, 1))]];
    let mut parts = vec![part(1), part(0)];
    parts[0][0].push(copy(output(0), output(1)));
    parts[1][0].push(copy(Span::output(0, 1), Span::output(1, 1)));
    parts[1][0].push(copy(Span::output(0, 2), Span::output(0, 2)));
    let error = verify(schedule(Collective::AllGather, 2, parts)).unwrap_err();
    assert!(matches!(error, VerifyError::WrongOutput { .. }), "{error}");
}

#[test]
fn malformed_schedules() {
    let bad = |collective, chunks, ranks| {
        let error = verify(schedule(collective, chunks, vec![vec![]; ranks])).unwrap_err();
        assert!(matches!(error, VerifyError::Shape { .. }), "{error}");
    };
    bad(Collective::AllReduce, 1, 0);
    bad(Collective::AllReduce, 0, 1);
    bad(Collective::AllGather, 3, 2);
    bad(Collective::AllReduce, usize::MAX, 2);
    bad(Collective::Reduce { root: 2 }, 1, 2);
    let mut scratch = schedule(Collective::AllReduce, 1, vec![vec![]]);
    scratch.programs[0].scratch = vec![4];
    let error = verify(scratch).unwrap_err().to_string();
    assert!(error.contains("tmp[0] of rank 0"), "{error}");
}

#[test]
fn sums_must_be_of_one_chunk_and_whole() {
    let one = vec![vec![send(0, Span::input(0, 2))]];
    let zero = |steps: Vec<Step>| {
        schedule(
            Collective::Reduce { root: 0 },
            2,
            vec![vec![steps], one.clone()],
        )
    };
    let both = |own| recv_reduce(1, own, Span::output(0, 2));
    assert!(verify(zero(vec![both(Span::input(0, 2))])).is_ok());

    // Chunk 0 is complete when it arrives, chunk 1 is not.
    let one = vec![vec![send(0, Span::input(0, 2))]];
    let two = vec![vec![send(0, input(1))]];
    let two_more = vec![
        recv_reduce(1, Span::input(0, 2), Span::output(0, 2)),
        recv_reduce(2, output(1), output(1)),
    ];
    let error = verify(schedule(
        Collective::Reduce { root: 0 },
        2,
        vec![vec![two_more], one, two],
    ))
    .unwrap_err();
    assert!(
        matches!(
            error,
            VerifyError::WrongOutput {
                chunk: 0,
                rank: 0,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("every rank but 2"), "{error}");
}

#[test]
fn a_step_completes_all_its_chunks_or_none() {
    let send_both = |peer| vec![vec![send(peer, Span::input(0, 2))]];
    let zero = vec![vec![
        recv_reduce(1, input(0), output(0)),
        recv_reduce(2, Span::output(0, 1), output(0)),
        recv_reduce(1, input(1), output(1)),
        recv_reduce(2, output(1), output(1)),
    ]];
    let one = vec![vec![send(0, input(0)), send(0, input(1))]];
    let good = schedule(
        Collective::Reduce { root: 0 },
        2,
        vec![zero, one.clone(), one],
    );
    let verified = verify(good).unwrap();
    let completes = [0, 1, 2, 3].map(|step| verified.completes(0, StepRef { lane: 0, step }));
    assert_eq!(completes, [false, true, false, true]);

    // Chunk 0 from rank 1 first, then both chunks from rank 2, then chunk 1 from rank 1.
    let zero = vec![vec![
        recv_reduce(1, input(0), output(0)),
        copy(input(1), output(1)),
        recv_reduce(2, Span::output(0, 2), Span::output(0, 2)),
        recv_reduce(1, output(1), output(1)),
    ]];
    let one = vec![vec![send(0, input(0)), send(0, input(1))]];
    let mixed = schedule(
        Collective::Reduce { root: 0 },
        2,
        vec![zero, one, send_both(0)],
    );
    let error = verify(mixed).unwrap_err();
    let VerifyError::PartlyComplete { at } = &error else {
        panic!("{error}")
    };
    assert_eq!((at.rank, at.step.step, at.chunk), (0, 2, output(1)));
}

#[test]
fn averages_have_one_place_in_both_layouts() {
    // Reads input after its output chunk was written: in place that makes another sum.
    let zero = vec![vec![
        recv_reduce(2, input(0), output(0)),
        recv(1, scratch(0)),
        reduce(input(0), scratch(0), scratch(1)),
        recv_reduce(1, output(0), output(0)),
    ]];
    let (one, two) = (
        vec![vec![send(0, input(0)), send(0, input(0))]],
        vec![vec![send(0, input(0))]],
    );
    let sums = schedule(Collective::Reduce { root: 0 }, 1, vec![zero, one, two]);
    let error = verify(sums).unwrap_err();
    let VerifyError::CompletionDiffers { at } = &error else {
        panic!("{error}")
    };
    assert_eq!((at.rank, at.step.step), (0, 2));
}

fn verified(collective: Collective, algorithm: Algorithm, ranks: usize) -> Verified {
    let schedule = generate(collective, algorithm, &Topology::single_host(ranks));
    let verified = schedule
        .map(verify)
        .unwrap_or_else(|error| panic!("{error}"));
    verified.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn direct_schedules_run_uneven_chunks() {
    for collective in Collective::all(1) {
        let whole = matches!(
            collective,
            Collective::Broadcast { .. } | Collective::Reduce { .. }
        );
        let schedule = verified(collective, Algorithm::Direct, 4);
        assert_eq!(schedule.uneven(), !whole, "{collective}");
        assert_eq!(
            schedule.in_place(),
            collective != Collective::AllToAll,
            "{collective}"
        );
    }
    assert!(verified(Collective::AllGather, Algorithm::Ring, 4).uneven());
    assert!(!verified(Collective::ReduceScatter, Algorithm::Ring, 4).uneven());
}

#[test]
fn one_step_on_each_way_completes_a_sum() {
    for algorithm in Algorithm::ALL {
        let schedule = verified(Collective::AllReduce, algorithm, 6);
        let mut chunks = 0;
        for (rank, program) in schedule.programs.iter().enumerate() {
            for (lane, l) in program.lanes.iter().enumerate() {
                let completing =
                    l.steps.iter().enumerate().filter(|(step, _)| {
                        schedule.completes(rank, StepRef { lane, step: *step })
                    });
                chunks += completing
                    .filter_map(|(_, s)| s.op.writes())
                    .map(|w| w.count)
                    .sum::<usize>();
            }
        }
        // Those that reduce everywhere complete every chunk on every rank that takes part, others once.
        let expected = match algorithm {
            Algorithm::OneShot => 6,
            Algorithm::RecursiveDoubling => 4,
            _ => schedule.chunks,
        };
        assert_eq!(chunks, expected, "{algorithm}");
    }
}
