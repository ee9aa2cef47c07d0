//! That messages arrive: whole, once, where they belong, whatever else is on its way.

use ringway_sys::Staging;

use super::worlds::{Make, SLICE, bytes, drive, filled, key, pattern};

/// From nothing to several slices, to memory of the receiver's and to be looked at.
pub(crate) fn every_size_arrives_whole_in_place_and_as_a_view(make: Make) {
    let mut nodes = make(2);
    let sizes = [
        0,
        1,
        7,
        24,
        25,
        999,
        1000,
        1001,
        SLICE - 1,
        SLICE,
        SLICE + 1,
        3 * SLICE + 5,
    ];
    for (op, &size) in sizes.iter().enumerate() {
        let op = op as u32;
        nodes.iter_mut().for_each(|node| node.begin(op));
        let slices: Vec<usize> = (0..size.max(1))
            .step_by(SLICE)
            .map(|at| SLICE.min(size - at))
            .collect();
        let out: Vec<Staging> = slices
            .iter()
            .enumerate()
            .map(|(i, &len)| filled(len, i))
            .collect();
        let into: Vec<Staging> = slices.iter().map(|&len| Staging::new(len)).collect();
        for (i, &len) in slices.iter().enumerate() {
            let slice = i as u32;
            nodes[1].place(0, key(op, 0, slice), &into[i]);
            nodes[1].view(0, key(op, 1, slice), len);
            nodes[0].send(1, key(op, 0, slice), &out[i]);
            nodes[0].send(1, key(op, 1, slice), &out[i]);
        }
        drive(&mut nodes, |nodes| {
            nodes[0].sent.len() == 2 * slices.len() && nodes[1].received.len() == 2 * slices.len()
        });
        for (_, key, view) in std::mem::take(&mut nodes[1].received) {
            let i = key.slice as usize;
            let got = if key.message == 0 {
                bytes(into[i].memory())
            } else {
                view
            };
            assert_eq!(got, pattern(slices[i], i), "{size} bytes, {key}");
            nodes[1].transport.release(0, key);
        }
        nodes[0].sent.clear();
        for node in &mut nodes {
            node.transport.cancel(super::worlds::GROUP, op);
            assert!(node.lost.is_empty() && node.mismatches.is_empty());
        }
    }
}

/// The receive before the message or after it, the first message last.
pub(crate) fn a_key_finds_its_receive_in_any_order(make: Make) {
    for early in [true, false] {
        let mut nodes = make(3);
        nodes.iter_mut().for_each(|node| node.begin(0));
        let count = 3;
        let out: Vec<Staging> = (0..2 * count).map(|m| filled(50 + m, m)).collect();
        let into: Vec<Staging> = (0..2 * count).map(|m| Staging::new(50 + m)).collect();
        let receive = |nodes: &mut [super::worlds::Node]| {
            for m in (0..count).rev() {
                nodes[2].place(0, key(0, m as u32, 0), &into[m]);
                nodes[2].place(1, key(0, m as u32, 0), &into[count + m]);
            }
        };
        if early {
            receive(&mut nodes);
        }
        for m in 0..count {
            nodes[0].send(2, key(0, m as u32, 0), &out[m]);
            nodes[1].send(2, key(0, m as u32, 0), &out[count + m]);
        }
        if !early {
            super::worlds::settle(&mut nodes);
            assert!(nodes[2].received.is_empty());
            receive(&mut nodes);
        }
        drive(&mut nodes, |nodes| nodes[2].received.len() == 2 * count);
        for (m, into) in into.iter().enumerate() {
            assert_eq!(bytes(into.memory()), pattern(50 + m, m));
        }
    }
}

/// Far more than any buffer holds, in both directions, of several operations, received in the opposite order.
pub(crate) fn many_keys_are_in_flight_at_once(make: Make) {
    let mut nodes = make(2);
    let (ops, count) = (3, 60);
    for op in 0..ops {
        nodes.iter_mut().for_each(|node| node.begin(op));
    }
    let len = |m: u32| [8, 700, 2_500, SLICE][m as usize % 4];
    let seed = |rank: usize, op: u32, m: u32| rank * 7919 + op as usize * 101 + m as usize;
    let all: Vec<_> = (0..ops)
        .flat_map(|op| (0..count).map(move |m| (op, m)))
        .collect();
    let out = [0, 1].map(|rank| {
        let out = all.iter().map(|&(op, m)| filled(len(m), seed(rank, op, m)));
        out.collect::<Vec<_>>()
    });
    let into = [0, 1].map(|_| {
        all.iter()
            .map(|&(_, m)| Staging::new(len(m)))
            .collect::<Vec<_>>()
    });
    for rank in 0..2 {
        for (i, &(op, m)) in all.iter().enumerate() {
            nodes[rank].send(1 - rank, key(op, m, 0), &out[rank][i]);
        }
    }
    for rank in 0..2 {
        for (i, &(op, m)) in all.iter().enumerate().rev() {
            nodes[rank].place(1 - rank, key(op, m, 0), &into[rank][i]);
        }
    }
    drive(&mut nodes, |nodes| {
        nodes
            .iter()
            .all(|n| n.sent.len() == all.len() && n.received.len() == all.len())
    });
    for (rank, into) in into.iter().enumerate() {
        for (&(op, m), into) in all.iter().zip(into) {
            let expected = pattern(len(m), seed(1 - rank, op, m));
            assert_eq!(bytes(into.memory()), expected);
        }
    }
}

/// Messages without a receive wait at bounded memory, and those that are asked for pass them.
pub(crate) fn what_nobody_asks_for_holds_up_nothing(make: Make) {
    let mut nodes = make(2);
    nodes.iter_mut().for_each(|node| node.begin(0));
    let out: Vec<Staging> = (0..100).map(|m| filled(900, m)).collect();
    for (m, src) in out.iter().enumerate() {
        nodes[0].send(1, key(0, m as u32, 0), src);
    }
    super::worlds::settle(&mut nodes);
    let used = nodes[1].transport.memory_in_use();
    assert!(used < 1 << 20, "{used} bytes for what nobody asks for");
    let into = Staging::new(900);
    nodes[1].place(0, key(0, 99, 0), &into);
    drive(&mut nodes, |nodes| nodes[1].received.len() == 1);
    assert_eq!(bytes(into.memory()), pattern(900, 99));
}

/// Views that were given back, and operations that have ended, leave nothing.
pub(crate) fn buffers_do_not_grow_with_traffic(make: Make) {
    let mut nodes = make(2);
    let src = filled(SLICE, 1);
    let mut after = Vec::new();
    for op in 0..60 {
        nodes.iter_mut().for_each(|node| node.begin(op));
        for m in 0..6 {
            nodes[0].send(1, key(op, m, 0), &src);
            nodes[1].view(0, key(op, m, 0), SLICE);
        }
        // The last two are still being looked at when their operation ends.
        let mut released = 0;
        drive(&mut nodes, |nodes| !nodes[1].received.is_empty());
        while released < 4 {
            while let Some((peer, key, _)) = nodes[1].received.pop() {
                nodes[1].transport.release(peer, key);
                released += 1;
            }
            drive(&mut nodes, |nodes| {
                released >= 4 || !nodes[1].received.is_empty()
            });
        }
        for node in &mut nodes {
            node.transport.cancel(super::worlds::GROUP, op);
            node.sent.clear();
            node.received.clear();
        }
        after.push(
            nodes
                .iter()
                .map(|n| n.transport.memory_in_use())
                .sum::<usize>(),
        );
    }
    // How much is in use at once depends on who is faster; a leak would have added up to far more.
    let settled = after[..30].iter().max().unwrap();
    assert!(
        after[30..].iter().all(|used| *used <= 2 * settled),
        "{after:?}"
    );
}
