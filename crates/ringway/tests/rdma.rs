//! Collectives over RDMA in software, between threads: exact, and the same bits as over TCP.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

mod rdma_world;

use proptest::prelude::*;
use rdma_world::{calls, same_bits, world_with};
use ringway::{Communicator, ReduceOp};

/// Every rank may use all interfaces.
fn all(_: usize) -> String {
    "all".to_owned()
}

/// Runs `body` as every rank of a world over these transports, and returns what each gives.
fn world<R: Send>(
    ranks: usize,
    transports: &str,
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    world_with(ranks, transports, all, &[], body)
}

/// A model's worth of buffers, registered or in the arena, reduced and gathered again and again.
fn steps(comm: &Communicator, is_registered: bool) -> Vec<Vec<f32>> {
    let (me, n) = (comm.rank(), comm.size());
    let value = |i: usize| ((me * 31 + i) as f32).sin();
    let make = |len: usize| (0..len).map(value).collect::<Vec<f32>>();
    // Of which two may lie in the same page.
    let mut model: Vec<Vec<f32>> = [300, 70_000, 200, 30_001].map(make).into();
    let mut arena = comm.allocate::<f32>(50_000).unwrap();
    let mut all = vec![0.0; 9_000 * n];
    let mut step = |buffers: &mut [&mut [f32]]| {
        for buffer in buffers {
            comm.all_reduce(buffer, ReduceOp::Average).unwrap();
        }
        arena
            .iter_mut()
            .enumerate()
            .for_each(|(i, x)| *x = value(i));
        comm.all_reduce(&mut arena, ReduceOp::Sum).unwrap();
        comm.all_gather(&arena[..9_000], &mut all).unwrap();
    };
    if is_registered {
        let buffers = model.iter_mut().map(Vec::as_mut_slice);
        let mut registered = comm.register_parameter_buffers(buffers).unwrap();
        let mut buffers: Vec<&mut [f32]> = registered.iter_mut().map(|it| &mut **it).collect();
        step(&mut buffers);
        let before = comm.registered_memory();
        // The model's page ranges, and the arena's.
        assert!((4..=5).contains(&before.regions), "{before:?}");
        for _ in 0..5 {
            step(&mut buffers);
        }
        assert_eq!(
            comm.registered_memory(),
            before,
            "an operation registers nothing"
        );
        drop(buffers);
        drop(registered);
        assert_eq!(comm.registered_memory().regions, 1);
    } else {
        let mut buffers: Vec<&mut [f32]> = model.iter_mut().map(Vec::as_mut_slice).collect();
        for _ in 0..6 {
            step(&mut buffers);
        }
    }
    drop(arena);
    assert_eq!(comm.registered_memory().bytes, 0);
    model.push(all);
    model
}

#[test]
fn registered_memory_gives_the_bits_that_tcp_gives_and_is_registered_once() {
    for ranks in [2, 3] {
        let registered = world(ranks, "rdma", |comm| steps(&comm, true));
        let tcp = world(ranks, "tcp", |comm| steps(&comm, false));
        assert!(registered.iter().all(|results| *results == tcp[0]));
    }
}

#[test]
fn any_number_of_queue_pairs_gives_the_same() {
    let lengths = [1, 3_000, 700_000];
    let make = |i: usize| (i as f32).sin();
    let tcp = world(2, "tcp", |comm| calls(&comm, &lengths, make));
    for count in ["1", "8"] {
        let chosen = [("queue_pairs", count)];
        let rdma = world_with(2, "rdma", all, &chosen, |comm| calls(&comm, &lengths, make));
        assert!(rdma.iter().all(|results| *results == tcp[0]), "{count}");
    }
}

/// Each pair of ranks measures while the first operation waits, and comes to its own choice.
#[test]
fn the_faster_of_rdma_and_tcp_gives_the_bits_that_tcp_gives() {
    let lengths = [1, 3_000, 700_000];
    let make = |i: usize| (i as f32).sin();
    for ranks in [2, 4] {
        let tcp = world(ranks, "tcp", |comm| calls(&comm, &lengths, make));
        let either = world(ranks, "tcp,rdma", |comm| calls(&comm, &lengths, make));
        assert!(either.iter().all(|results| *results == tcp[0]), "{ranks}");
    }
}

#[test]
fn more_than_the_limit_is_refused_or_copied() {
    let limit = [("registered_limit", "1MiB")];
    let results = world_with(2, "rdma", all, &limit, |comm| {
        let refused = comm.register(vec![0_u8; 2 << 20]).unwrap_err().to_string();
        // Arena memory works all the same.
        let mut x = comm.allocate::<u32>(1 << 20).unwrap();
        x.fill(1);
        comm.all_reduce(&mut x, ReduceOp::Sum).unwrap();
        assert!(x.iter().all(|&x| x == 2));
        assert_eq!(comm.registered_memory().bytes, 0);
        refused
    });
    for refused in results {
        assert!(refused.contains("the limit is 1048576"), "{refused}");
        assert!(refused.contains("RINGWAY_REGISTERED_LIMIT"), "{refused}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]
    #[test]
    fn any_number_of_ranks_type_and_length_gives_the_bits_that_tcp_gives(
        ranks in 2_usize..=5,
        dtype in 0..4,
        short in 0_usize..2_000,
        long in 2_000_usize..400_000,
    ) {
        let lengths = [1, short, long];
        match dtype {
            0 => same_bits(ranks, all, &lengths, |i| i as u8),
            1 => same_bits(ranks, all, &lengths, |i| i as i64 * 7_919),
            2 => same_bits(ranks, all, &lengths, |i| (i as f32).sin()),
            _ => same_bits(ranks, all, &lengths, |i| (i as f64).cos() * 1e300),
        }
    }
}
