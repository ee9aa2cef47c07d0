//! That a rank may sleep: it is woken for all that concerns it, and for little else.

use std::{
    sync::{Arc, Barrier},
    time::Duration,
};

use ringway_sys::{Epoll, Interest, Staging};

use super::worlds::{GROUP, Make, Node, SLICE, bytes, drive, filled, key, pattern};

/// Whether the transport's descriptor becomes readable in time.
fn wakes(node: &Node, within: Duration) -> bool {
    let set = Epoll::new().unwrap();
    set.add(node.transport.fd(), 0, Interest::Read).unwrap();
    let mut ready = Vec::new();
    set.wait(&mut ready, Some(within)).unwrap();
    !ready.is_empty()
}

fn until(node: &mut Node, done: impl Fn(&Node) -> bool) {
    loop {
        node.poll();
        if done(node) {
            return;
        }
        if node.transport.arm() {
            assert!(
                wakes(node, Duration::from_secs(10)),
                "nothing wakes the sleeper"
            );
        }
        node.transport.disarm();
    }
}

/// Two threads answer each other and sleep whenever there is nothing to do, with messages of all kinds.
pub(crate) fn no_wake_up_is_lost(make: Make) {
    let together = Arc::new(Barrier::new(2));
    let run = |(own, mut node): (usize, Node)| {
        let together = together.clone();
        std::thread::spawn(move || {
            let peer = 1 - own;
            let mut pause = own as u64 + 1;
            for (op, len) in (0..400).zip([4, 24, 900, SLICE].into_iter().cycle()) {
                let count = 1 + op % 7;
                node.begin(op);
                let out: Vec<Staging> = (0..count).map(|m| filled(len, m as usize)).collect();
                let into: Vec<Staging> = (0..count).map(|_| Staging::new(len)).collect();
                // At another moment each time.
                pause = pause
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                std::thread::sleep(Duration::from_nanos(pause >> 49));
                for m in 0..count {
                    node.send(peer, key(op, m, 0), &out[m as usize]);
                }
                node.poll();
                for m in 0..count {
                    node.place(peer, key(op, m, 0), &into[m as usize]);
                }
                let count = count as usize;
                until(&mut node, |node| {
                    node.sent.len() == count && node.received.len() == count
                });
                for (m, into) in into.iter().enumerate() {
                    assert_eq!(bytes(into.memory()), pattern(len, m));
                }
                (node.sent, node.received) = Default::default();
                node.transport.cancel(GROUP, op);
            }
            // Neither leaves while the other still needs it.
            together.wait();
            assert!(node.lost.is_empty() && node.mismatches.is_empty());
        })
    };
    let threads: Vec<_> = make(2).into_iter().enumerate().map(run).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

pub(crate) fn nothing_wakes_a_sleeper_for_nothing(make: Make) {
    let mut nodes = make(2);
    nodes.iter_mut().for_each(|node| node.begin(0));
    let src = filled(50, 1);
    nodes[0].send(1, key(0, 0, 0), &src);
    nodes[1].view(0, key(0, 0, 0), 50);
    drive(&mut nodes, |nodes| {
        nodes[1].received.len() == 1 && nodes[0].sent.len() == 1
    });
    nodes[1].transport.release(0, key(0, 0, 0));
    // What is still on its way in the background, such as credit.
    super::worlds::settle(&mut nodes);
    nodes[1].view(0, key(0, 1, 0), 50);
    // What a rank says when it goes to sleep it says once, and is woken when that has arrived.
    nodes[1].transport.arm();
    nodes[1].transport.disarm();
    super::worlds::settle(&mut nodes);
    assert!(nodes[1].transport.arm());
    assert!(!wakes(&nodes[1], Duration::from_millis(200)));
    nodes[0].send(1, key(0, 1, 0), &src);
    nodes[0].poll();
    assert!(wakes(&nodes[1], Duration::from_secs(5)));
    nodes[1].transport.disarm();
    drive(&mut nodes, |nodes| nodes[1].received.len() == 2);
}
