//! Two sides of a connection on a table.

mod layout;
mod life;
mod lossy;
mod manager;

use std::time::{Duration, Instant};

use super::*;
use crate::{Psn, Qpn, rc::Mtu, timer::AckTimeout};

/// 4.096 µs · 2^16.
const INTERVAL: Duration = Duration::from_nanos(4096 << 16);
const CM_RETRIES: u8 = 3;

fn proposal() -> Proposal {
    Proposal {
        source: "10.0.0.1:4000".parse().unwrap(),
        destination: "10.0.0.2:18515".parse().unwrap(),
        guid: 0x0200_00ff_fe00_0001,
        qpn: Qpn::new(0x11),
        receive_psn: Psn::new(0x12_3456),
        mtu: Mtu::M1024,
        responder_resources: 4,
        initiator_depth: 8,
        ack_timeout: AckTimeout::new(14).unwrap(),
        retries: 6,
        rnr_retries: 7,
        traffic_class: 106,
        response_timeout: 16,
        cm_retries: CM_RETRIES,
    }
}

fn acceptance() -> Acceptance {
    Acceptance {
        guid: 0x0200_00ff_fe00_0002,
        qpn: Qpn::new(0x22),
        receive_psn: Psn::new(0x65_4321),
        responder_resources: 5,
        initiator_depth: 16,
        rnr_retries: 5,
    }
}

fn initiator(now: Instant) -> Connection {
    Connection::connect(now, 0xa, 0x1000, proposal(), b"hello").unwrap()
}

/// A listener's side of what an initiator has sent.
fn listener(mad: &Mad) -> Connection {
    let Message::Req(req) = &mad.message else {
        panic!("no REQ: {mad:?}");
    };
    Connection::requested(0xb, mad.transaction, req.clone())
}

/// Both sides, the initiator established, its RTU still to be taken by the listener.
fn replied(now: Instant) -> (Connection, Connection, Mad) {
    let mut a = initiator(now);
    let mut b = listener(&a.poll_transmit().unwrap());
    b.accept(now, &acceptance(), b"welcome").unwrap();
    assert!(a.handle(now, &b.poll_transmit().unwrap()));
    let rtu = a.poll_transmit().unwrap();
    (a, b, rtu)
}

fn established(now: Instant) -> (Connection, Connection) {
    let (mut a, mut b, rtu) = replied(now);
    assert!(b.handle(now, &rtu));
    assert!(matches!(a.poll_event(), Some(Event::Established { .. })));
    assert!(matches!(b.poll_event(), Some(Event::Established { .. })));
    (a, b)
}
