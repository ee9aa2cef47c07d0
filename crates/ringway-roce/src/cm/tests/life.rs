//! The table of a connection's states, a test for a line.

use super::*;

fn reason(event: Option<Event>) -> Reason {
    match event {
        Some(Event::Rejected { reason, .. }) => reason,
        other => panic!("not rejected: {other:?}"),
    }
}

fn message(connection: &mut Connection) -> Message {
    connection.poll_transmit().unwrap().message
}

#[test]
fn both_sides_come_to_the_same_terms() {
    let now = Instant::now();
    let (mut a, mut b, rtu) = replied(now);
    assert_eq!((a.state(), b.state()), (State::Established, State::RepSent));
    let Some(Event::Established {
        terms,
        private_data,
    }) = a.poll_event()
    else {
        panic!("not established");
    };
    let expected = Terms {
        peer: Qpn::new(0x22),
        send_psn: Psn::new(0x65_4321),
        receive_psn: Psn::new(0x12_3456),
        mtu: Mtu::M1024,
        responder_resources: 4,
        initiator_depth: 5,
        ack_timeout: AckTimeout::new(14).unwrap(),
        retries: 6,
        rnr_retries: 5,
    };
    assert_eq!(terms, expected);
    assert!(private_data.starts_with(b"welcome\0"));
    assert!(b.handle(now, &rtu));
    assert_eq!(b.state(), State::Established);
    let Some(Event::Established { terms, .. }) = b.poll_event() else {
        panic!("not established");
    };
    let expected = Terms {
        peer: Qpn::new(0x11),
        send_psn: Psn::new(0x12_3456),
        receive_psn: Psn::new(0x65_4321),
        responder_resources: 5,
        initiator_depth: 4,
        rnr_retries: 7,
        ..expected
    };
    assert_eq!(terms, expected);
    assert_eq!((a.poll_timeout(), b.poll_timeout()), (None, None));
    assert_eq!((a.ids().remote, b.ids().remote), (0xb, 0xa));
}

#[test]
fn the_users_private_data_follows_the_addresses() {
    let mad = initiator(Instant::now()).poll_transmit().unwrap();
    let Message::Req(req) = mad.message else {
        panic!("no REQ");
    };
    let (header, user) = req.private_data.split_first_chunk().unwrap();
    let header = IpHeader::parse(header).unwrap();
    assert_eq!(header.source_port, 4000);
    assert!(user.starts_with(b"hello\0"));
    let long = Connection::connect(Instant::now(), 1, 1, proposal(), &[0; 57]);
    let error = TooLong {
        length: 57,
        max: 56,
    };
    assert_eq!(long.map(|_| ()), Err(error));
}

#[test]
fn an_unanswered_req_is_sent_again_until_the_retries_end() {
    let mut now = Instant::now();
    let mut a = initiator(now);
    for _ in 0..=CM_RETRIES {
        assert!(matches!(message(&mut a), Message::Req(_)));
        assert_eq!(a.poll_transmit(), None);
        assert_eq!(a.poll_timeout(), Some(now + INTERVAL));
        a.handle_timeout(now);
        now += INTERVAL;
        a.handle_timeout(now);
    }
    let Message::Rej(rej) = message(&mut a) else {
        panic!("no REJ");
    };
    assert_eq!(rej.reason, Reason::TIMEOUT);
    assert_eq!(rej.information[..8], proposal().guid.to_be_bytes());
    assert_eq!(a.poll_event(), Some(Event::Unreachable));
    assert_eq!((a.state(), a.poll_timeout()), (State::Closed, None));
}

#[test]
fn a_busy_listener_is_waited_for() {
    let now = Instant::now();
    let mut a = initiator(now);
    let req = a.poll_transmit().unwrap();
    let mut b = listener(&req);
    assert!(b.handle(now, &req));
    let mra = b.poll_transmit().unwrap();
    assert!(a.handle(now, &mra));
    let service = Duration::from_nanos(4096 << 20);
    assert_eq!(a.poll_timeout(), Some(now + service + INTERVAL));
    assert_eq!((a.state(), b.state()), (State::ReqSent, State::ReqReceived));
}

#[test]
fn an_initiator_can_be_waited_for() {
    let now = Instant::now();
    let (_, mut b, _) = replied(now);
    let mra = Mra {
        ids: Ids {
            local: 0xa,
            remote: 0xb,
        },
        about: About::Rep,
        service_timeout: 17,
        private_data: [0; 222],
    };
    let message = Message::Mra(mra);
    assert!(b.handle(
        now,
        &Mad {
            transaction: 1,
            message
        }
    ));
    let service = Duration::from_nanos(4096 << 17);
    assert_eq!(b.poll_timeout(), Some(now + service + INTERVAL));
}

#[test]
fn a_rejected_request_is_over() {
    let now = Instant::now();
    let mut a = initiator(now);
    let req = a.poll_transmit().unwrap();
    let mut b = listener(&req);
    b.reject(Reason::CONSUMER, b"full").unwrap();
    let rej = b.poll_transmit().unwrap();
    assert_eq!(b.state(), State::Closed);
    // The initiator asks again, for the answer got lost.
    assert!(b.handle(now, &req));
    assert_eq!(b.poll_transmit().as_ref(), Some(&rej));
    assert!(a.handle(now, &rej));
    let Some(Event::Rejected {
        reason,
        private_data,
    }) = a.poll_event()
    else {
        panic!("not rejected");
    };
    assert_eq!(reason, Reason::CONSUMER);
    assert!(private_data.starts_with(b"full\0"));
    assert_eq!((a.state(), a.poll_timeout()), (State::Closed, None));
    assert_eq!(
        b.accept(now, &acceptance(), &[]),
        Err(CmError::State(State::Closed))
    );
    assert_eq!(
        b.reject(Reason::CONSUMER, &[]),
        Err(CmError::State(State::Closed))
    );
}

#[test]
fn what_cannot_be_is_rejected_at_once() {
    let now = Instant::now();
    for (transport, mtu, expected) in [
        (1, 3, Reason::INVALID_TRANSPORT),
        (0, 6, Reason::INVALID_MTU),
        (0, 0, Reason::INVALID_MTU),
    ] {
        let mut a = initiator(now);
        let Some(Mad {
            transaction,
            message: Message::Req(mut req),
        }) = a.poll_transmit()
        else {
            panic!("no REQ");
        };
        req.transport = transport;
        req.mtu = mtu;
        let mut b = Connection::requested(0xb, transaction, req);
        assert_eq!(b.state(), State::Closed);
        assert!(a.handle(now, &b.poll_transmit().unwrap()));
        assert_eq!(reason(a.poll_event()), expected);
    }
}

#[test]
fn a_lost_rep_is_sent_again_when_asked_and_by_the_clock() {
    let mut now = Instant::now();
    let mut a = initiator(now);
    let req = a.poll_transmit().unwrap();
    let mut b = listener(&req);
    b.accept(now, &acceptance(), &[]).unwrap();
    let rep = b.poll_transmit().unwrap();
    assert!(b.handle(now, &req));
    assert_eq!(b.poll_transmit().as_ref(), Some(&rep));
    for _ in 0..CM_RETRIES {
        now += INTERVAL;
        b.handle_timeout(now);
        assert_eq!(b.poll_transmit().as_ref(), Some(&rep));
    }
    now += INTERVAL;
    b.handle_timeout(now);
    assert!(matches!(message(&mut b), Message::Rej(rej) if rej.reason == Reason::TIMEOUT));
    assert_eq!(b.poll_event(), Some(Event::Unreachable));
    assert_eq!(b.state(), State::Closed);
}

#[test]
fn a_rejected_rep_ends_the_listeners_side() {
    let now = Instant::now();
    let (_, mut b, _) = replied(now);
    let rej = Rej {
        ids: Ids {
            local: 0xa,
            remote: 0xb,
        },
        about: About::Rep,
        reason: Reason::CONSUMER,
        information_length: 0,
        information: [0; 72],
        private_data: [0; 148],
    };
    let message = Message::Rej(rej);
    assert!(b.handle(
        now,
        &Mad {
            transaction: 1,
            message
        }
    ));
    assert_eq!(reason(b.poll_event()), Reason::CONSUMER);
    assert_eq!(b.state(), State::Closed);
}

#[test]
fn a_lost_rtu_is_sent_again_or_done_without() {
    let now = Instant::now();
    let (mut a, mut b, rtu) = replied(now);
    b.handle_timeout(now + INTERVAL);
    let rep = b.poll_transmit().unwrap();
    assert!(a.handle(now, &rep));
    assert_eq!(a.poll_transmit(), Some(rtu.clone()));
    // Data says as much as the RTU.
    b.heard_from_peer();
    assert_eq!(b.state(), State::Established);
    assert!(matches!(b.poll_event(), Some(Event::Established { .. })));
    assert!(!b.handle(now, &rtu));
    b.heard_from_peer();
    assert_eq!(b.poll_event(), None);
}

#[test]
fn either_side_can_disconnect() {
    for listener_ends in [false, true] {
        let now = Instant::now();
        let (a, b) = established(now);
        let (mut a, mut b) = if listener_ends { (b, a) } else { (a, b) };
        a.disconnect(now).unwrap();
        assert_eq!(a.state(), State::DreqSent);
        let dreq = a.poll_transmit().unwrap();
        assert!(b.handle(now, &dreq));
        assert_eq!(
            (b.poll_event(), b.state()),
            (Some(Event::Disconnected), State::TimeWait)
        );
        let drep = b.poll_transmit().unwrap();
        // The DREP gets lost.
        a.handle_timeout(now + INTERVAL);
        assert_eq!(a.poll_transmit().as_ref(), Some(&dreq));
        assert!(b.handle(now, &dreq));
        assert_eq!(b.poll_transmit().as_ref(), Some(&drep));
        assert!(a.handle(now, &drep));
        assert_eq!(
            (a.poll_event(), a.state()),
            (Some(Event::Disconnected), State::TimeWait)
        );
        for side in [&mut a, &mut b] {
            side.handle_timeout(now + INTERVAL);
            assert_eq!((side.state(), side.poll_timeout()), (State::Closed, None));
            assert_eq!((side.poll_event(), side.poll_transmit()), (None, None));
            assert_eq!(side.disconnect(now), Err(CmError::State(State::Closed)));
        }
    }
}

#[test]
fn both_sides_may_disconnect_at_once() {
    let now = Instant::now();
    let (mut a, mut b) = established(now);
    a.disconnect(now).unwrap();
    b.disconnect(now).unwrap();
    let (from_a, from_b) = (a.poll_transmit().unwrap(), b.poll_transmit().unwrap());
    assert!(a.handle(now, &from_b) && b.handle(now, &from_a));
    for side in [&mut a, &mut b] {
        assert!(matches!(message(side), Message::Drep(_)));
        assert_eq!(
            (side.poll_event(), side.state()),
            (Some(Event::Disconnected), State::TimeWait)
        );
    }
}

#[test]
fn a_peer_that_does_not_answer_a_dreq_is_gone() {
    let mut now = Instant::now();
    let (mut a, _) = established(now);
    a.disconnect(now).unwrap();
    for _ in 0..=CM_RETRIES {
        assert!(matches!(message(&mut a), Message::Dreq(_)));
        now += INTERVAL;
        a.handle_timeout(now);
    }
    assert_eq!(
        (a.poll_event(), a.state()),
        (Some(Event::Disconnected), State::TimeWait)
    );
}

#[test]
fn each_message_has_all_retries() {
    let mut now = Instant::now();
    let mut a = initiator(now);
    let req = a.poll_transmit().unwrap();
    for _ in 0..CM_RETRIES {
        now += INTERVAL;
        a.handle_timeout(now);
        assert!(a.poll_transmit().is_some());
    }
    let mut b = listener(&req);
    b.accept(now, &acceptance(), &[]).unwrap();
    assert!(a.handle(now, &b.poll_transmit().unwrap()));
    a.disconnect(now).unwrap();
    for _ in 0..CM_RETRIES {
        now += INTERVAL;
        a.handle_timeout(now);
        assert_eq!(a.state(), State::DreqSent);
    }
}

#[test]
fn a_dreq_may_overtake_the_rtu() {
    let now = Instant::now();
    let (mut a, mut b, _) = replied(now);
    a.disconnect(now).unwrap();
    assert!(b.handle(now, &a.poll_transmit().unwrap()));
    assert!(matches!(message(&mut b), Message::Drep(_)));
    assert_eq!(b.state(), State::TimeWait);
}

#[test]
fn messages_of_other_connections_change_nothing() {
    let now = Instant::now();
    let mut a = initiator(now);
    let req = a.poll_transmit().unwrap();
    let mut b = listener(&req);
    let mut other = Connection::connect(now, 0xc, 0x2000, proposal(), &[]).unwrap();
    let other_req = other.poll_transmit().unwrap();
    assert!(!b.handle(now, &other_req));
    assert!(!a.handle(now, &other_req));
    let mut other_b = listener(&other_req);
    other_b.accept(now, &acceptance(), &[]).unwrap();
    assert!(!a.handle(now, &other_b.poll_transmit().unwrap()));

    let (mut a, mut b) = established(now);
    for (ids, remote_qpn) in [
        (
            Ids {
                local: 0xa,
                remote: 0xf,
            },
            0x22,
        ),
        (
            Ids {
                local: 0xf,
                remote: 0xb,
            },
            0x22,
        ),
        (
            Ids {
                local: 0xa,
                remote: 0xb,
            },
            0x23,
        ),
    ] {
        let dreq = Dreq {
            ids,
            remote_qpn: Qpn::new(remote_qpn),
            private_data: [0; 220],
        };
        let message = Message::Dreq(dreq);
        assert!(!b.handle(
            now,
            &Mad {
                transaction: 1,
                message
            }
        ));
    }
    let drep = Drep {
        ids: Ids {
            local: 0xb,
            remote: 0xa,
        },
        private_data: [0; 224],
    };
    let message = Message::Drep(drep);
    assert!(!a.handle(
        now,
        &Mad {
            transaction: 1,
            message
        }
    ));
    assert_eq!(
        (a.state(), b.state()),
        (State::Established, State::Established)
    );
    assert_eq!((a.poll_transmit(), b.poll_transmit()), (None, None));
}
