//! Collectives over Linux's soft RoCE through libibverbs, in the virtual machine of `cargo xtask test vm`: rank *i* has the
//! device `rxe<i>` on the link `rank<i>`. Exact, and the same bits as over TCP.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

mod rdma_world;

use rdma_world::same_bits;
use ringway::Element;

/// A link for each rank: its address says which device is the rank's.
fn own_link(rank: usize) -> String {
    format!("rank{rank}")
}

/// Short messages, and some of several slices.
const LENGTHS: [usize; 3] = [1, 1000, 50_000];

/// How many packets a rank's device has sent.
fn sent(rank: usize) -> u64 {
    let file = format!("/sys/class/infiniband/rxe{rank}/ports/1/hw_counters/sent_pkts");
    let text = std::fs::read_to_string(file).unwrap();
    text.trim().parse().unwrap()
}

/// Compares, and sees to it that it was not TCP that carried both.
fn same_bits_by_rdma<T: Element + PartialEq + std::fmt::Debug>(
    ranks: usize,
    lengths: &[usize],
    make: fn(usize) -> T,
) {
    let before: Vec<_> = (0..ranks).map(sent).collect();
    same_bits(ranks, own_link, lengths, make);
    for (rank, before) in before.into_iter().enumerate() {
        // At 4 KiB a packet, what one rank's part of one message takes at least.
        let least = lengths.iter().sum::<usize>() * size_of::<T>() / 4096 / ranks;
        let sent = sent(rank) - before;
        assert!(sent > least as u64, "rank {rank} has sent {sent} packets");
    }
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn two_ranks() {
    same_bits_by_rdma(2, &LENGTHS, |i| i as i64 * 7_919);
    same_bits_by_rdma(2, &[400_000], |i| (i as f32).sin());
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn four_ranks() {
    same_bits_by_rdma(4, &LENGTHS, |i| (i as f32).sin());
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn eight_ranks() {
    same_bits_by_rdma(8, &LENGTHS, |i| (i as f64).cos() * 1e300);
}
