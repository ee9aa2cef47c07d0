//! Compressed sums over real collectives.

use std::time::{Duration, Instant};

use ringway_codec::{Codec, Feedback, Kind, Options, Tensors};
use ringway_kernels::Element as _;
use ringway_plan::Collective;

use super::{Over, world_over};
use crate::{Bucket, Error, ReduceOp, Request, SumOptions, buffer::exclusive};

const KINDS: [Kind; 8] = [
    Kind::None,
    Kind::Fp16,
    Kind::Bf16,
    Kind::Int(8),
    Kind::Int(4),
    Kind::Dynamic(0.1),
    Kind::TopK(0.1),
    Kind::PowerSgd(2),
];

fn codec(kind: Kind, len: usize) -> Codec {
    Codec::new(kind, Options::default(), Tensors::vector("bucket", len))
}

/// Another one for each rank and step.
fn gradients(rank: usize, step: usize, len: usize) -> Vec<f32> {
    let x = |i: usize| ((i * 31 + rank * 17 + step * 7) % 101) as f32 / 50.0 - 1.0;
    (0..len).map(x).collect()
}

/// Fewer than ranks, no multiple of them, and more than slices hold.
const fn lens(ranks: usize) -> &'static [usize] {
    if ranks == 3 { &[1, 601, 5003] } else { &[601] }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn all_ranks_get_the_same_bits_and_about_the_sum(over: Over) {
    for ranks in 1..=9 {
        let all = world_over(over, ranks, &[], |comm| {
            let mut results = Vec::new();
            for kind in KINDS {
                for &len in lens(ranks) {
                    let mut codec = codec(kind, len);
                    for step in 0..2 {
                        let mut x = gradients(comm.rank(), step, len);
                        comm.all_reduce_compressed(&mut x, ReduceOp::Average, &mut codec)
                            .unwrap();
                        results.push((kind, len, step, bits(&x)));
                    }
                }
            }
            results
        });
        for results in &all {
            for (one, first) in results.iter().zip(&all[0]) {
                let (kind, len, step, bits) = one;
                assert!(one == first, "{kind}, {len} elements, {ranks} ranks");
                if matches!(kind, Kind::TopK(_)) {
                    continue;
                }
                let brought: Vec<_> = (0..ranks)
                    .map(|rank| gradients(rank, *step, *len))
                    .collect();
                for (i, &bits) in bits.iter().enumerate() {
                    let exact = brought.iter().map(|x| x[i]).sum::<f32>() / ranks as f32;
                    let found = f32::from_bits(bits);
                    // Rounding to numbers of 4 bits, twice, and what the step before has left.
                    assert!((found - exact).abs() < 0.5, "{kind}: {found} for {exact}");
                }
            }
        }
    }
}

fn lanes_overlap_and_give_what_blocking_calls_give(over: Over) {
    let (ranks, len) = (3, 5000);
    world_over(over, ranks, &[], |comm| {
        let lanes = comm.lanes(2).unwrap();
        let buckets: Vec<_> = KINDS
            .into_iter()
            .map(|kind| lanes.bucket(codec(kind, len)))
            .collect();
        let mut blocking: Vec<_> = KINDS.into_iter().map(|kind| codec(kind, len)).collect();
        for step in 0..3 {
            let mine = || gradients(comm.rank(), step, len);
            let pending: Vec<_> = buckets
                .iter()
                .map(|bucket| bucket.start(mine(), ReduceOp::Sum))
                .collect();
            // Calls of the communicator itself go on meanwhile.
            comm.barrier().unwrap();
            let mut expected = Vec::new();
            for codec in &mut blocking {
                let mut x = mine();
                comm.all_reduce_compressed(&mut x, ReduceOp::Sum, codec)
                    .unwrap();
                expected.push(x);
            }
            for (pending, expected) in pending.into_iter().zip(expected) {
                let (found, traffic) = pending.wait();
                assert!(traffic.unwrap().sent > 0);
                assert_eq!(bits(&found), bits(&expected));
            }
        }
        let mut x = gradients(comm.rank(), 3, len);
        let work = buckets[3].submit(exclusive(&mut x), ReduceOp::Sum).unwrap();
        work.wait().unwrap();
        assert_eq!(buckets[3].codec().state().len(), blocking[3].state().len());
        let odd = exclusive(&mut x).slice(1..9);
        assert!(matches!(
            buckets[3].submit(odd, ReduceOp::Sum),
            Err(Error::Argument(_))
        ));
    });
}

/// All ranks decide the same at the same step, by what the worst of them has measured, and sums stay sums.
fn all_ranks_change_codecs_at_the_same_step(over: Over) {
    let (ranks, len) = (3, 600);
    let all = world_over(over, ranks, &[], |comm| {
        let lanes = comm.lanes(1).unwrap();
        let bucket = lanes.adaptive_bucket(Options::default(), Tensors::vector("bucket", len));
        let mut names = Vec::new();
        let mut results = Vec::new();
        for step in 0..305 {
            let pending = bucket.start(gradients(comm.rank(), step, len), ReduceOp::Average);
            let (x, result) = pending.wait();
            result.unwrap();
            results.push(bits(&x));
            names.push(bucket.codec().name().to_owned());
        }
        let decision = bucket.decision().unwrap();
        assert_eq!(decision.kind.to_string(), bucket.codec().name());
        assert!(decision.measured.step >= decision.measured.wire && decision.measured.wire > 0.0);
        (names, results, decision)
    });
    assert!(all.iter().all(|one| *one == all[0]));
    assert!(all[0].0[..100].iter().all(|name| name == "bf16"));
}

/// Also where other programs make ranks late: what they wait for then is not the wire.
fn a_bucket_that_steps_do_not_wait_for_is_off_before_200_steps(over: Over) {
    let off = world_over(over, 2, &[], |comm| {
        let lanes = comm.lanes(1).unwrap();
        let bucket = lanes.adaptive_bucket(Options::default(), Tensors::vector("bucket", 100));
        (1..200).find(|&step| {
            if comm.rank() == 1 && step % 4 == 0 {
                std::thread::sleep(Duration::from_millis(40));
            }
            // The sum has ended by then also where threads wait for processors.
            let pending = bucket.start(gradients(comm.rank(), step, 100), ReduceOp::Average);
            std::thread::sleep(Duration::from_millis(20));
            pending.wait().1.unwrap();
            bucket.codec().name() == "none"
        })
    });
    assert!(off[0].is_some() && off[1] == off[0], "{off:?}");
}

fn all_who_ask_hear_of_the_end(over: Over) {
    let heard = world_over(over, 2, &[], |comm| {
        let lanes = comm.lanes(1).unwrap();
        let bucket = lanes.bucket(codec(Kind::Bf16, 100));
        let (tell, heard) = std::sync::mpsc::channel();
        let ask = |number: u32| {
            let tell = tell.clone();
            move || tell.send(number).unwrap()
        };
        // Neither ends before the other rank takes part.
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(100));
        }
        let (mut x, mut y) = (gradients(comm.rank(), 0, 100), [1_u32]);
        let sum = bucket.submit(exclusive(&mut x), ReduceOp::Sum).unwrap();
        for hear in [ask(0), ask(1)] {
            sum.on_end(move |_| hear());
        }
        sum.wait().unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(100));
        }
        let memory = exclusive(&mut y);
        let request = Request::new(Collective::AllReduce, u32::DTYPE, memory, memory);
        let work = comm.submit(request.reduce_op(ReduceOp::Sum)).unwrap();
        for hear in [ask(2), ask(3)] {
            work.on_end(move |_| hear());
        }
        work.wait().unwrap();
        let mut all = Vec::new();
        while all.len() < 4 {
            all.push(heard.recv_timeout(Duration::from_secs(10)).unwrap());
        }
        all
    });
    assert_eq!(heard, [[0, 1, 2, 3], [0, 1, 2, 3]]);
}

fn a_nan_is_named_and_all_go_on(over: Over) {
    let (ranks, len) = (3, 100);
    let errors = world_over(over, ranks, &[], |comm| {
        let lanes = comm.lanes(1).unwrap();
        let mut errors = Vec::new();
        for kind in KINDS.into_iter().skip(1) {
            let options = Options {
                feedback: Feedback::Residual,
                seed: 3,
            };
            let bucket = lanes.bucket(Codec::new(
                kind,
                options,
                Tensors::vector("conv1.weight", len),
            ));
            let mut x = gradients(comm.rank(), 0, len);
            if comm.rank() == 2 {
                x[41] = f32::NAN;
            }
            let before = bits(&x);
            let (x, error) = bucket.start(x, ReduceOp::Average).wait();
            assert_eq!(bits(&x), before);
            errors.push(error.unwrap_err().to_string());
            let (_, result) = bucket
                .start(gradients(comm.rank(), 1, len), ReduceOp::Average)
                .wait();
            result.unwrap();
        }
        errors
    });
    for error in errors.iter().flatten() {
        assert!(
            error.contains("rank 2, tensor conv1.weight, element 41: the gradient is NaN"),
            "{error}"
        );
    }
}

fn other_codecs_on_other_ranks_are_an_error_of_both(over: Over) {
    let errors = world_over(over, 2, &[("timeout", "20s")], |comm| {
        let kind = if comm.rank() == 0 {
            Kind::Int(8)
        } else {
            Kind::Bf16
        };
        let mut x = gradients(comm.rank(), 0, 64);
        let error = comm.all_reduce_compressed(&mut x, ReduceOp::Sum, &mut codec(kind, 64));
        error.unwrap_err().to_string()
    });
    for error in errors {
        assert!(
            error.contains("all_to_all") && error.contains("all_reduce"),
            "{error}"
        );
    }
}

fn what_codecs_do_not_have_is_refused(over: Over) {
    world_over(over, 1, &[], |comm| {
        let error =
            comm.all_reduce_compressed(&mut [1.0], ReduceOp::Max, &mut codec(Kind::Fp16, 1));
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("expected sum or avg")
        );
    });
}

fn a_sum_has_the_time_limit_of_its_call(over: Over) {
    world_over(over, 2, &[("timeout", "60s")], |comm| {
        let lanes = comm.lanes(1).unwrap();
        let bucket = lanes.bucket(codec(Kind::Int(8), 100));
        if comm.rank() == 0 {
            let options = SumOptions {
                timeout: Some(Duration::from_millis(300)),
                ..SumOptions::default()
            };
            let (began, mut x) = (Instant::now(), vec![1.0_f32; 100]);
            let work = bucket.submit_with(exclusive(&mut x), ReduceOp::Sum, options);
            work.unwrap().wait().unwrap_err();
            let took = began.elapsed();
            assert!((300..10_000).contains(&took.as_millis()), "{took:?}");
        } else {
            // Takes no part in it.
            std::thread::sleep(Duration::from_secs(1));
        }
    });
}

/// What it has not sent, and which codec it has chosen, a bucket takes along.
fn adaptive_buckets_are_resumed(over: Over) {
    world_over(over, 2, &[], |comm| {
        let lanes = comm.lanes(1).unwrap();
        let bucket = || lanes.adaptive_bucket(Options::default(), Tensors::vector("bucket", 500));
        let sum = |bucket: &Bucket, step| {
            let (x, ended) = bucket
                .start(gradients(comm.rank(), step, 500), ReduceOp::Sum)
                .wait();
            ended.unwrap();
            bits(&x)
        };
        let straight = bucket();
        for step in 0..3 {
            sum(&straight, step);
        }
        let resumed = bucket();
        resumed.restore(&straight.state()).unwrap();
        assert!(resumed.codec().residual().iter().any(|x| *x != 0.0));
        assert_eq!(sum(&resumed, 3), sum(&straight, 3));
        let plain = lanes.bucket(codec(Kind::Bf16, 500));
        resumed.restore(&plain.state()).unwrap_err();
    });
}

over_both!(
    a_bucket_that_steps_do_not_wait_for_is_off_before_200_steps,
    a_nan_is_named_and_all_go_on,
    a_sum_has_the_time_limit_of_its_call,
    adaptive_buckets_are_resumed,
    all_who_ask_hear_of_the_end,
    all_ranks_change_codecs_at_the_same_step,
    all_ranks_get_the_same_bits_and_about_the_sum,
    lanes_overlap_and_give_what_blocking_calls_give,
    other_codecs_on_other_ranks_are_an_error_of_both,
    what_codecs_do_not_have_is_refused,
);
