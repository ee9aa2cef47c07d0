//! MSCCL files, written here.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use ringway_plan::{Collective, MscclError, Op, Verified, read_msccl};

/// One rank's thread blocks: send peer, receive peer, channel, and steps.
type Blocks = Vec<(i32, i32, i32, Vec<String>)>;

fn step(
    kind: &str,
    src: (&str, usize),
    dst: (&str, usize),
    count: usize,
    after: Option<(usize, usize)>,
) -> String {
    let (block, at) = after.map_or((-1, -1), |(b, s)| (b as i32, s as i32));
    format!(
        r#"type="{kind}" srcbuf="{}" srcoff="{}" dstbuf="{}" dstoff="{}" cnt="{count}" depid="{block}" deps="{at}" hasdep="0""#,
        src.0, src.1, dst.0, dst.1
    )
}

fn file(
    collective: &str,
    in_place: bool,
    chunks: (usize, usize, usize),
    gpus: &[Blocks],
) -> String {
    let (i, o, s) = chunks;
    let (n, place, all) = (gpus.len(), u8::from(in_place), i.max(o));
    let mut lines = vec![format!(
        r#"<algo name="mine" proto="Simple" nchannels="2" nchunksperloop="{all}" ngpus="{n}" coll="{collective}" inplace="{place}">"#
    )];
    for (id, blocks) in gpus.iter().enumerate() {
        lines.push(format!(
            r#"<gpu id="{id}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">"#
        ));
        for (id, (send, recv, channel, steps)) in blocks.iter().enumerate() {
            lines.push(format!(
                r#"<tb id="{id}" send="{send}" recv="{recv}" chan="{channel}">"#
            ));
            let number = |(s, step)| format!(r#"<step s="{s}" {step}/>"#);
            lines.extend(steps.iter().enumerate().map(number));
            lines.push("</tb>".to_owned());
        }
        lines.push("</gpu>".to_owned());
    }
    lines.push("</algo>\n".to_owned());
    lines.join("\n")
}

/// In place on the input: reduce around the ring, then hand the sums on.
fn ring(n: usize) -> String {
    let gpu = |rank: usize| {
        let chunk = |step: usize| (rank + 2 * n - step) % n;
        let at = |c| ("i", c);
        let mut steps = vec![step("s", at(chunk(0)), at(chunk(0)), 1, None)];
        for round in 1..n - 1 {
            let c = chunk(round);
            steps.push(step("rrcs", at(c), at(c), 1, None));
        }
        let c = chunk(n - 1);
        steps.push(step("rrcs", at(c), at(c), 1, None));
        for round in 0..n - 2 {
            let c = chunk(n + round);
            steps.push(step("rcs", at(c), at(c), 1, None));
        }
        let c = chunk(2 * n - 2);
        steps.push(step("r", at(c), at(c), 1, None));
        vec![(
            ((rank + 1) % n) as i32,
            ((rank + n - 1) % n) as i32,
            0,
            steps,
        )]
    };
    file(
        "allreduce",
        true,
        (n, 0, 0),
        &(0..n).map(gpu).collect::<Vec<_>>(),
    )
}

/// Everyone collects one chunk from all in scratch, adds up in a block of its own, and hands the sum out.
fn all_pairs(n: usize) -> String {
    let gpu = |rank: usize| {
        let others: Vec<usize> = (0..n).filter(|&r| r != rank).collect();
        let slot = |of: usize, rank: usize| rank - usize::from(rank > of);
        let mut adds = Vec::new();
        for (i, _) in others.iter().enumerate() {
            let after = Some((1 + i, 1));
            adds.push(step("re", ("s", i), ("i", rank), 1, after));
        }
        let mut blocks: Blocks = vec![(-1, -1, 0, adds)];
        for &other in &others {
            let last = Some((0, others.len() - 1));
            blocks.push((
                other as i32,
                other as i32,
                0,
                vec![
                    step("s", ("i", other), ("s", slot(other, rank)), 1, None),
                    step("r", ("i", rank), ("s", slot(rank, other)), 1, None),
                    step("nop", ("i", 0), ("i", 0), 0, last),
                    step("s", ("i", rank), ("i", rank), 1, None),
                    step("r", ("i", other), ("i", other), 1, None),
                ],
            ));
        }
        blocks
    };
    file(
        "allreduce",
        true,
        (n, 0, n - 1),
        &(0..n).map(gpu).collect::<Vec<_>>(),
    )
}

fn read(text: &str) -> Verified {
    read_msccl(text, 0).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

#[test]
fn rings_and_all_pairs_are_proved() {
    for n in [2, 3, 4, 8] {
        for text in [ring(n), all_pairs(n)] {
            let schedule = read(&text);
            assert_eq!(schedule.collective, Collective::AllReduce);
            assert_eq!((schedule.ranks(), schedule.algorithm.as_str()), (n, "mine"));
        }
    }
}

#[test]
fn a_fused_step_becomes_two() {
    let schedule = read(&ring(3));
    let lane = &schedule.programs[0].lanes[0].steps;
    // copy; s; rrcs, rrcs; rcs; r.
    let kinds: Vec<&str> = lane
        .iter()
        .map(|step| match step.op {
            Op::Copy { .. } => "copy",
            Op::Recv { .. } => "recv",
            Op::RecvReduce { .. } => "recv-reduce",
            Op::Reduce { .. } => "reduce",
            Op::Send { .. } => "send",
        })
        .collect();
    let want = "copy send recv-reduce send recv-reduce send recv send recv";
    assert_eq!(kinds.join(" "), want);
}

#[test]
fn sums_that_are_only_sent_on_go_through_scratch() {
    // A reduce along a chain to rank 0; the middle rank keeps nothing.
    let steps = |kind, src, dst| vec![step(kind, src, dst, 2, None)];
    let gpus = [
        vec![(-1, 1, 0, steps("rrc", ("i", 0), ("o", 0)))],
        vec![(0, 2, 0, steps("rrs", ("i", 0), ("o", 0)))],
        vec![(1, -1, 0, steps("s", ("i", 0), ("i", 0)))],
    ];
    let schedule = read(&file("reduce", false, (2, 2, 0), &gpus));
    assert_eq!(schedule.programs[1].scratch, [0, 1]);
    let error = read_msccl(&file("reduce", false, (2, 2, 0), &gpus), 1).unwrap_err();
    assert!(
        matches!(error, MscclError::Refused(_)),
        "rank 1 is no root of this: {error}"
    );
}

#[test]
fn parts_are_gathered_and_scattered_in_place_and_out() {
    // Two ranks exchange their parts, in place: input is a window of the output.
    let block = |other: i32, steps| vec![(other, other, 1, steps)];
    let gpu = |rank: usize| {
        let other = 1 - rank;
        block(
            other as i32,
            vec![
                step("s", ("i", 0), ("o", rank), 1, None),
                step("r", ("i", 0), ("o", other), 1, None),
            ],
        )
    };
    read(&file("allgather", true, (1, 2, 0), &[gpu(0), gpu(1)]));
    // A reduce_scatter in place works on all of the input.
    let gpu = |rank: usize| {
        let other = 1 - rank;
        block(
            other as i32,
            vec![
                step("s", ("i", other), ("i", other), 1, None),
                step("rrc", ("i", rank), ("i", rank), 1, None),
            ],
        )
    };
    read(&file("reduce_scatter", true, (2, 1, 0), &[gpu(0), gpu(1)]));
    // Out of place the own part is copied.
    let gpu = |rank: usize| {
        let other = 1 - rank;
        block(
            other as i32,
            vec![
                step("cpy", ("i", rank), ("o", rank), 1, None),
                step("s", ("i", other), ("o", rank), 1, None),
                step("r", ("i", rank), ("o", other), 1, None),
            ],
        )
    };
    read(&file("alltoall", false, (2, 2, 0), &[gpu(0), gpu(1)]));
}

#[test]
fn wrong_schedules_are_refused_by_the_verifier() {
    let good = all_pairs(3);
    // A wrong chunk is added.
    let wrong = good.replacen(
        r#"type="re" srcbuf="s" srcoff="1""#,
        r#"type="re" srcbuf="s" srcoff="0""#,
        1,
    );
    // One receives what nobody sends.
    let lonely = ring(3).replacen(r#"type="s""#, r#"type="nop""#, 1);
    for text in [wrong, lonely] {
        assert!(text != good);
        let error = read_msccl(&text, 0).unwrap_err();
        assert!(matches!(error, MscclError::Refused(_)), "{error}");
        assert!(error.to_string().contains("rank"), "{error}");
    }
}

#[test]
fn steps_that_conflict_must_be_ordered() {
    // The sum is sent when the first of two has been added.
    let good = all_pairs(3);
    let early = good.replacen(r#"depid="0" deps="1""#, r#"depid="0" deps="0""#, 1);
    assert_ne!(early, good);
    let error = read_msccl(&early, 0).unwrap_err();
    assert_eq!(
        error,
        MscclError::Race {
            gpu: 0,
            line: 11,
            other: 5
        }
    );
    assert!(error.to_string().contains("add depid and deps"), "{error}");
}

#[test]
fn what_is_not_msccl_is_named_with_its_line() {
    let good = ring(2);
    for (from, to, says) in [
        (
            r#"coll="allreduce""#,
            r#"coll="sum""#,
            "line 1: expected coll to be allgather, allreduce",
        ),
        (
            r#"ngpus="2""#,
            r#"ngpus="3""#,
            "line 1: expected a gpu for each id below 3, found fewer",
        ),
        (
            r#"ngpus="2""#,
            r#"ngpus="0""#,
            "line 1: expected ngpus to be a number from 1 to 4096, found 0",
        ),
        (
            r#"id="1" i_"#,
            r#"id="0" i_"#,
            "expected a gpu once, found another with id 0",
        ),
        (
            r#"chan="0""#,
            r#"chan="0" color="red""#,
            "line 3: expected one of the attributes id, send, recv, chan, found color",
        ),
        (
            r#"send="1""#,
            r#"send="0""#,
            "line 3: expected send to be another gpu, found its own",
        ),
        (
            r#"send="1""#,
            r#"send="-1""#,
            "line 4: expected a tb with attribute send",
        ),
        (
            r#"s="1""#,
            r#"s="2""#,
            "line 5: expected step with s 1, found 2",
        ),
        (
            r#"type="s""#,
            r#"type="put""#,
            "line 4: expected type to be cpy, nop, r, rcs, re, rrc, rrcs, rrs or s, found put",
        ),
        (
            r#"srcbuf="i""#,
            r#"srcbuf="x""#,
            "line 4: expected srcbuf to be i, o or s, found x",
        ),
        (
            r#"srcoff="0""#,
            r#"srcoff="-2""#,
            "line 4: expected srcoff to be a number from 0 to 65536, found -2",
        ),
        (
            r#"depid="-1""#,
            r#"depid="7""#,
            "line 4: expected depid to be a number from 0 to 0, found 7",
        ),
        (
            r#"depid="-1" deps="-1""#,
            r#"depid="0" deps="0""#,
            "line 4: expected depid to be another tb",
        ),
        (
            "</tb>",
            "<note/></tb>",
            "expected element step, found element note",
        ),
        ("</tb>", "more</tb>", "expected element step, found text"),
    ] {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{from}");
        let error = read_msccl(&text, 0).unwrap_err().to_string();
        assert!(error.contains(says), "{to}: {error}");
    }
    let error = read_msccl("<algorithm/>", 0).unwrap_err().to_string();
    assert_eq!(
        error,
        "line 1: expected element algo, found element algorithm"
    );
    for text in ["", "{}", "<algo", "<!DOCTYPE a [<!ENTITY b 'c'>]><algo/>"] {
        assert!(
            matches!(read_msccl(text, 0), Err(MscclError::Xml(_))),
            "{text}"
        );
    }
}

#[test]
fn circles_are_named() {
    let copy = |after| vec![step("cpy", ("i", 0), ("o", 0), 1, Some((after, 0)))];
    let gpu = vec![(-1, -1, 0, copy(1)), (-1, -1, 0, copy(0))];
    let error = read_msccl(&file("allreduce", false, (1, 1, 0), &[gpu]), 0).unwrap_err();
    assert_eq!(error, MscclError::Circle { gpu: 0, line: 4 });
}
