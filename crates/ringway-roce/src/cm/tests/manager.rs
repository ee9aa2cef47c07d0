//! Many connections between two addresses, over a wire that loses, repeats and reorders.

use std::{collections::HashSet, net::IpAddr};

use proptest::prelude::*;

use super::*;

const PORT: u16 = 18515;

fn managers() -> [Manager; 2] {
    let mut managers = [0, 1].map(|side| Manager::new(side, Mtu::M4096, 0x1000));
    assert!(managers[1].listen(PORT));
    managers
}

fn address(side: usize) -> IpAddr {
    [proposal().source, proposal().destination][side].ip()
}

/// One of several connections: each of its own queue pair.
fn numbered(index: u32) -> Proposal {
    Proposal {
        qpn: Qpn::new(0x100 + index),
        ..proposal()
    }
}

fn acceptance_of(index: usize) -> Acceptance {
    Acceptance {
        qpn: Qpn::new(0x200 + index as u32),
        ..acceptance()
    }
}

/// Gives all messages of both to the other.
fn exchange(now: Instant, managers: &mut [Manager; 2]) {
    for side in [0, 1, 0, 1, 0] {
        while let Some((to, mad)) = managers[side].poll_transmit() {
            assert_eq!(to, address(1 - side));
            managers[1 - side].handle(now, address(side), &mad);
        }
    }
}

fn requested(manager: &mut Manager) -> (ConnectionId, Request) {
    match manager.poll_notice() {
        Some((id, Notice::Requested(request))) => (id, request),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_path_with_too_large_packets_is_rejected() {
    let now = Instant::now();
    let mut managers = [0, 1].map(|side| Manager::new(side, Mtu::M512, 7));
    managers[1].listen(PORT);
    managers[0].connect(now, proposal(), &[]).unwrap();
    exchange(now, &mut managers);
    let (_, notice) = managers[0].poll_notice().unwrap();
    let Notice::Changed(Event::Rejected { reason, .. }) = notice else {
        panic!("{notice:?}");
    };
    assert_eq!(reason, Reason::INVALID_MTU);
    assert_eq!(managers[1].poll_notice(), None);
}

#[test]
fn requests_beyond_the_backlog_are_not_heard() {
    let now = Instant::now();
    let mut managers = managers();
    for index in 0..1030 {
        managers[0].connect(now, numbered(index), &[]).unwrap();
    }
    exchange(now, &mut managers);
    assert_eq!(managers[1].counters().overflow, 6);
    // Once some are decided on, the others' repetitions find room.
    for _ in 0..10 {
        let (id, _) = requested(&mut managers[1]);
        managers[1].accept(now, id, &acceptance_of(0), &[]).unwrap();
    }
    exchange(now, &mut managers);
    managers[0].handle_timeout(now + INTERVAL);
    exchange(now + INTERVAL, &mut managers);
    assert_eq!(managers[1].counters().overflow, 6);
}

#[test]
fn a_queue_pair_that_is_gone_takes_its_connection_with_it() {
    let now = Instant::now();
    let mut managers = managers();
    let own = managers[0].connect(now, numbered(1), &[]).unwrap();
    exchange(now, &mut managers);
    let (other, request) = requested(&mut managers[1]);
    assert_eq!((request.port, request.peer), (PORT, proposal().source));
    managers[1]
        .accept(now, other, &acceptance_of(1), &[])
        .unwrap();
    exchange(now, &mut managers);
    assert!(managers[0].connects(Qpn::new(0x101)));
    managers[0].forget(Qpn::new(0x101));
    assert!(!managers[0].connects(Qpn::new(0x101)));
    assert_eq!(
        managers[0].disconnect(now, own),
        Err(CmError::NoConnection(own))
    );
    assert_eq!(managers[0].poll_notice(), None);
    // The peer is answered when it disconnects.
    assert!(managers[1].poll_notice().is_some());
    managers[1].disconnect(now, other).unwrap();
    exchange(now, &mut managers);
    let (_, notice) = managers[1].poll_notice().unwrap();
    assert_eq!(notice, Notice::Changed(Event::Disconnected));
}

/// Its REJ has no number of the listener's.
#[test]
fn an_initiator_that_gives_up_unheard_ends_the_listeners_side() {
    let mut now = Instant::now();
    for is_accepted in [false, true] {
        let mut managers = managers();
        managers[0].connect(now, numbered(1), &[]).unwrap();
        exchange(now, &mut managers);
        let (id, _) = requested(&mut managers[1]);
        if is_accepted {
            managers[1].accept(now, id, &acceptance_of(1), &[]).unwrap();
        }
        for _ in 0..=CM_RETRIES {
            now += INTERVAL;
            managers[0].handle_timeout(now);
            // The listener's answers are lost.
            while let Some((_, mad)) = managers[0].poll_transmit() {
                managers[1].handle(now, address(0), &mad);
            }
        }
        let (_, notice) = managers[1].poll_notice().unwrap();
        let Notice::Changed(Event::Rejected { reason, .. }) = notice else {
            panic!("{notice:?}");
        };
        assert_eq!(reason, Reason::TIMEOUT);
        assert_eq!(managers[1].request(id), None);
    }
}

#[test]
fn times_that_nobody_would_wait_for_are_cut_and_counted() {
    let now = Instant::now();
    let longest = Duration::from_nanos(4096 << 23);
    let mut managers = managers();
    let proposal = Proposal {
        response_timeout: 31,
        ..numbered(1)
    };
    managers[0].connect(now, proposal, &[]).unwrap();
    assert_eq!(managers[0].poll_timeout(), Some(now + longest));
    let (_, req) = managers[0].poll_transmit().unwrap();
    managers[1].handle(now, address(0), &req);
    assert_eq!(managers[1].counters().shortened, 1);
    // The REQ again brings an MRA.
    managers[1].handle(now, address(0), &req);
    let (_, mut mra) = managers[1].poll_transmit().unwrap();
    if let Message::Mra(mra) = &mut mra.message {
        mra.service_timeout = 31;
    }
    managers[0].handle(now, address(1), &mra);
    assert_eq!(managers[0].counters().shortened, 1);
    assert_eq!(managers[0].poll_timeout(), Some(now + 2 * longest));
    let (id, _) = requested(&mut managers[1]);
    managers[1].accept(now, id, &acceptance_of(1), &[]).unwrap();
    assert_eq!(managers[1].poll_timeout(), Some(now + longest));
}

/// A packet of the initiator's says as much as its RTU, if it is the initiator's.
#[test]
fn data_before_the_rtu_establishes() {
    let now = Instant::now();
    let mut managers = managers();
    managers[0].connect(now, numbered(1), &[]).unwrap();
    exchange(now, &mut managers);
    let (id, _) = requested(&mut managers[1]);
    managers[1].accept(now, id, &acceptance_of(1), &[]).unwrap();
    managers[1].heard_from(now, address(1), Qpn::new(0x201));
    managers[1].heard_from(now, address(0), Qpn::new(0x202));
    assert_eq!(managers[1].poll_notice(), None);
    managers[1].heard_from(now, address(0), Qpn::new(0x201));
    let (_, notice) = managers[1].poll_notice().unwrap();
    assert!(matches!(notice, Notice::Changed(Event::Established { .. })));
}

proptest! {
    /// Whatever happens to the messages: each connection is established at most once, ends once, and nothing is left.
    #[test]
    fn all_connections_come_to_an_end(
        fates in prop::collection::vec(0..10_u8, 0..120),
        count in 1..6_u32,
        rejected in 0..6_u32,
    ) {
        let mut now = Instant::now();
        let mut managers = managers();
        for index in 0..count {
            managers[0].connect(now, numbered(index), &[index as u8]).unwrap();
        }
        let mut fates = fates.into_iter();
        let mut wire: Vec<(usize, Mad)> = vec![];
        let mut established = HashSet::new();
        let mut ended = HashSet::new();
        let mut requests = HashSet::new();
        for step in 0.. {
            prop_assert!(step < 5000, "no end");
            for side in [0, 1] {
                while let Some((id, notice)) = managers[side].poll_notice() {
                    match notice {
                        Notice::Requested(request) => {
                            let index = request.private_data[0];
                            prop_assert!(requests.insert(index), "asked for twice");
                            if u32::from(index) == rejected {
                                managers[1].reject(now, id, Reason::CONSUMER, &[]).unwrap();
                            } else {
                                let acceptance = acceptance_of(index.into());
                                managers[1].accept(now, id, &acceptance, &[]).unwrap();
                            }
                        }
                        Notice::Changed(Event::Established { .. }) => {
                            prop_assert!(established.insert((side, id)));
                            if side == 0 {
                                managers[0].disconnect(now, id).unwrap();
                            }
                        }
                        Notice::Changed(_) => prop_assert!(ended.insert((side, id))),
                    }
                }
                while let Some((_, mad)) = managers[side].poll_transmit() {
                    wire.push((side, mad));
                }
            }
            if wire.is_empty() {
                let clocks = managers.each_ref().map(Manager::poll_timeout);
                let Some(next) = clocks.into_iter().flatten().min() else { break };
                now = next;
                for manager in &mut managers {
                    manager.handle_timeout(now);
                }
                continue;
            }
            let (from, mad) = match fates.next().unwrap_or(9) {
                0..=2 => {
                    wire.remove(0);
                    continue;
                }
                3 => wire[0].clone(),
                4 | 5 => wire.swap_remove(0),
                _ => wire.remove(0),
            };
            managers[1 - from].handle(now, address(from), &mad);
        }
        for id in 0..count {
            let id = (0, ConnectionId(0x1001 + id));
            prop_assert!(ended.contains(&id), "{id:?}");
        }
    }
}
