//! Batches over real collectives.

use std::time::{Duration, Instant};

use super::{Over, world_over};
use crate::{BatchLimits, Batcher, Communicator, ReduceOp};

const LIMITS: (u64, usize, usize) = (10, 16 << 10, 64 << 10);

fn batcher(comm: &Communicator, (window, least, most): (u64, usize, usize)) -> Batcher<f32> {
    let limits = BatchLimits {
        window: Duration::from_millis(window),
        bytes: least..=most,
    };
    comm.batcher_with(ReduceOp::Sum, limits).unwrap()
}

/// Lengths of tensors in an order without a pattern, some of them 0, some larger than a batch.
fn len(i: usize) -> usize {
    match i % 11 {
        0 => 0,
        10 => 20_000 + i,
        _ => i * 7919 % 1500,
    }
}

fn tensor(rank: usize, i: usize) -> Vec<f32> {
    vec![(rank + 1) as f32 * (i % 100) as f32; len(i)]
}

fn tensors_come_back_added_up(over: Over) {
    for ranks in 1..=9 {
        let stats = world_over(over, ranks, &[], |comm| {
            let batcher = batcher(&comm, LIMITS);
            for _ in 0..2 {
                let tickets: Vec<_> = (0..150)
                    .map(|i| batcher.add(tensor(comm.rank(), i)))
                    .collect();
                batcher.flush();
                for (i, ticket) in tickets.into_iter().enumerate() {
                    let sum = (ranks * (ranks + 1) / 2) as f32 * (i % 100) as f32;
                    let found = ticket.wait().unwrap();
                    assert_eq!(found.len(), len(i));
                    assert!(found.iter().all(|x| *x == sum), "tensor {i}");
                }
            }
            batcher.stats()
        });
        for one in &stats {
            assert_eq!(one.tensors, 300);
            assert_eq!(one.batches, stats[0].batches);
            assert!(one.batches < 120, "{one:?}");
        }
    }
}

/// Ranks add at times of their own: no clock but rank 0's closes a batch, so batches are the same.
fn clocks_that_differ_make_no_other_batches(over: Over) {
    let stats = world_over(over, 3, &[], |comm| {
        let batcher = batcher(&comm, (1, 16 << 10, 64 << 10));
        let tickets: Vec<_> = (0..40)
            .map(|i| {
                std::thread::sleep(Duration::from_micros(
                    400 * ((comm.rank() * 5 + i) % 7) as u64,
                ));
                batcher.add(tensor(comm.rank(), i))
            })
            .collect();
        for ticket in tickets {
            ticket.wait().unwrap();
        }
        let mut stats = batcher.stats();
        stats.target = 0;
        stats
    });
    assert!(stats.iter().all(|one| *one == stats[0]), "{stats:?}");
    assert!(stats[0].batches > 4, "the window closes batches: {stats:?}");
}

fn a_tensor_that_is_alone_waits_for_the_window_at_most(over: Over) {
    let waits = world_over(over, 2, &[], |comm| {
        let batcher = batcher(&comm, (20, 1 << 20, 1 << 20));
        let end = Instant::now() + Duration::from_secs(30);
        let ticket = batcher.add(vec![1.0; 10]);
        let began = Instant::now();
        while !ticket.is_done() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let behind = began.elapsed();
        assert!(ticket.is_done(), "nobody waits, and it ends all the same");
        assert_eq!(ticket.wait().unwrap(), [2.0; 10]);
        behind
    });
    assert!(
        waits.iter().all(|wait| *wait >= Duration::from_millis(15)),
        "{waits:?}"
    );
}

fn other_lengths_are_an_error_of_all_that_names_the_tensor(over: Over) {
    let errors = world_over(over, 3, &[], |comm| {
        let batcher = batcher(&comm, LIMITS);
        let tickets: Vec<_> = (0..20)
            .map(|i| {
                let odd = usize::from(comm.rank() == 1 && i == 13);
                batcher.add(vec![0.0_f32; 100 + odd])
            })
            .collect();
        batcher.flush();
        let ended: Vec<_> = tickets.into_iter().map(|ticket| ticket.wait()).collect();
        ended.into_iter().find_map(Result::err).unwrap().to_string()
    });
    for error in errors {
        assert!(
            error.contains("tensor 13 of a batcher has 101 elements on rank 1 and 100 on rank 0"),
            "{error}"
        );
    }
}

fn fewer_and_more_tensors_are_an_error_at_the_flush(over: Over) {
    for (odd, text) in [(9, "9 tensors"), (11, "rank 1 more")] {
        let errors = world_over(over, 2, &[], |comm| {
            let batcher = batcher(&comm, LIMITS);
            let count = if comm.rank() == 1 { odd } else { 10 };
            let tickets: Vec<_> = (0..count)
                .map(|_| batcher.add(vec![0.0_f32; 100]))
                .collect();
            let began = Instant::now();
            batcher.flush();
            let ended: Vec<_> = tickets.into_iter().map(|ticket| ticket.wait()).collect();
            assert!(began.elapsed() < Duration::from_secs(20));
            ended
                .into_iter()
                .find_map(Result::err)
                .map(|error| error.to_string())
        });
        assert!(
            errors.iter().flatten().any(|error| error.contains(text)),
            "{errors:?}"
        );
        assert!(errors[1].is_some(), "{errors:?}");
    }
}

fn what_was_added_is_added_up_when_the_batcher_goes(over: Over) {
    world_over(over, 2, &[], |comm| {
        let batcher = batcher(&comm, (5000, 1 << 20, 1 << 20));
        let ticket = batcher.add(vec![1.0; 10]);
        drop(batcher);
        assert_eq!(ticket.wait().unwrap(), [2.0; 10]);
        let refused = BatchLimits {
            window: Duration::ZERO,
            bytes: 0..=1,
        };
        let error = comm
            .batcher_with::<f32>(ReduceOp::Xor, refused)
            .unwrap_err();
        assert!(error.to_string().contains("by xor"), "{error}");
    });
}

/// The case of the published figures: 1,000 tensors of 4 to 64 KiB.
fn a_thousand_tensors_are_at_most_150_operations(over: Over) {
    let stats = world_over(over, 2, &[], |comm| {
        let batcher = comm.batcher::<f32>(ReduceOp::Average).unwrap();
        let tensors = (0..1000).map(|i| vec![1.0_f32; 1024 + i * 7919 % 15_361]);
        let tickets: Vec<_> = tensors.map(|tensor| batcher.add(tensor)).collect();
        batcher.flush();
        for ticket in tickets {
            assert!(ticket.wait().unwrap().iter().all(|x| *x == 1.0));
        }
        batcher.stats()
    });
    assert!(stats[0].batches <= 150, "{stats:?}");
    assert_eq!(stats[0].batches, stats[1].batches);
}

over_both!(
    a_tensor_that_is_alone_waits_for_the_window_at_most,
    a_thousand_tensors_are_at_most_150_operations,
    clocks_that_differ_make_no_other_batches,
    fewer_and_more_tensors_are_an_error_at_the_flush,
    other_lengths_are_an_error_of_all_that_names_the_tensor,
    tensors_come_back_added_up,
    what_was_added_is_added_up_when_the_batcher_goes,
);
