//! Vectors that lie in several places.

use std::sync::Arc;

use ringway_sys::{Memory, Places};

use super::{Over, world_on};
use crate::{Algorithm, Collective, Communicator, DataType, ReduceOp, Request, buffer::exclusive};

/// Numbers whose sum has other bits in another order.
fn value(rank: usize, i: usize) -> f32 {
    ((rank * 7919 + i * 104_729) % 10_007) as f32 * [1e-3, 1.0, 30.0][(rank + i) % 3] - 7.0
}

/// A vector cut at places of the rank's own, some without elements.
fn pieces(whole: &[f32], rank: usize) -> Vec<Vec<f32>> {
    let mut rest = whole;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let len = (pieces.len() * 7919 + rank * 31) % (whole.len() / 9 + 2);
        let (piece, behind) = rest.split_at(len.min(rest.len()));
        pieces.push(piece.to_vec());
        rest = behind;
    }
    pieces
}

/// The average, in a row and in places; bit for bit the same, or this panics.
fn averaged(comm: &Communicator, count: usize, algorithm: Algorithm) -> Vec<u32> {
    let whole: Vec<f32> = (0..count).map(|i| value(comm.rank(), i)).collect();
    let request = |memory| {
        Request::new(Collective::AllReduce, DataType::F32, memory, memory)
            .reduce_op(ReduceOp::Average)
            .algorithm(algorithm)
    };
    let mut row = whole.clone();
    comm.run(request(exclusive(&mut row))).unwrap();
    let mut pieces = pieces(&whole, comm.rank());
    let places = Places::new(pieces.iter_mut().map(|piece| exclusive(piece)));
    let in_places = request(Memory::EMPTY).places(Arc::new(places));
    comm.submit(in_places).unwrap().wait().unwrap();
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let (row, pieces) = (bits(&row), bits(&pieces.concat()));
    assert!(
        row == pieces,
        "{algorithm}, {count} elements: places give other bits than a row"
    );
    row
}

fn places_have_the_bits_of_a_row(over: Over, hosts: &[&str], settings: &[(&str, &str)]) {
    let all = world_on(hosts, over, settings, |comm| {
        let may = |a: &Algorithm| a.supports(Collective::AllReduce);
        Algorithm::ALL
            .into_iter()
            .filter(may)
            .flat_map(|algorithm| {
                [0, 1, 5, 400, 100_003].map(|count| averaged(&comm, count, algorithm))
            })
            .collect::<Vec<_>>()
    });
    assert!(all.iter().all(|one| *one == all[0]), "ranks differ");
}

#[test]
fn in_mapped_memory() {
    for ranks in 1..=4 {
        places_have_the_bits_of_a_row(Over::Mapped, &vec!["a"; ranks], &[]);
    }
}

#[test]
fn over_messages() {
    for ranks in 1..=4 {
        places_have_the_bits_of_a_row(Over::Messages, &vec!["a"; ranks], &[]);
    }
}

#[test]
fn in_half_precision_between_hosts() {
    let settings = [("wire_between_hosts", "bf16")];
    places_have_the_bits_of_a_row(Over::Messages, &["a", "b", "a", "c", "b"], &settings);
}

#[test]
fn places_that_overlap_half_an_element_and_other_collectives_are_refused() {
    world_on(&["a"; 2], Over::Mapped, &[], |comm| {
        let mut bytes = [0_u8; 8];
        let memory = exclusive(&mut bytes);
        let cut = Arc::new(Places::new([memory.slice(0..3), memory.slice(3..8)]));
        let twice = Arc::new(Places::new([memory, memory.slice(4..8)]));
        let run = |collective, places: &Arc<Places>| {
            let request = Request::new(collective, DataType::F32, Memory::EMPTY, Memory::EMPTY)
                .reduce_op(ReduceOp::Sum)
                .places(places.clone());
            comm.run(request).unwrap_err().to_string()
        };
        let error = run(Collective::AllReduce, &cut);
        assert!(error.contains("a place has 3 bytes"), "{error}");
        let error = run(Collective::AllReduce, &twice);
        assert!(error.contains("places that overlap"), "{error}");
        let error = run(Collective::Reduce { root: 0 }, &cut);
        assert!(error.contains("expected an all_reduce"), "{error}");
    });
}
