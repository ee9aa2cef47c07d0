//! An endpoint with two queue pairs, one of which comes and goes, whose peers and some strangers send whatever they
//! like: memory without remote rights never changes, what waits to be sent stays small, every datagram is either taken
//! by a queue pair or counted as refused, and every request that was taken ends exactly once.
#![no_main]

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use libfuzzer_sys::fuzz_target;
use ringway_roce::{
    Access, Key, Psn, Qpn,
    dcqcn::Parameters,
    endpoint::{Datagram, Endpoint, Handle},
    rc::{
        Attributes, Local, Mtu, ReceiveAttributes, ReceiveRequest, Remote, SendAttributes,
        SendRequest, Source, Work,
    },
    timer::{AckTimeout, RnrTimer},
    wire::{Flow, MAX_OVERHEAD, icrc},
};

/// All small, so that a guess of the fuzzer's hits them.
const NUMBERS: [Qpn; 2] = [Qpn::new(2), Qpn::new(3)];
const OPEN: Key = Key(1);
const CLOSED: Key = Key(2);
const BASE: u64 = 0;

fn place(host: u8, port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 0, 0, host).into(), port)
}

fn connect(endpoint: &mut Endpoint<Vec<u8>>, which: usize) -> Option<Handle> {
    let handle = endpoint
        .create(Attributes {
            number: NUMBERS[which],
            access: Access::ALL,
            send_queue: 8,
            inline: 4,
            receive_queue: 8,
            congestion: Some(Parameters::new(1e9)),
        })
        .ok()?;
    let receive = ReceiveAttributes {
        peer: Qpn::new(9),
        flow: Flow::between(place(1, 7), place(2, 8))?,
        mtu: Mtu::M256,
        first_psn: Psn::new(0),
        responder_resources: 4,
        rnr_timer: RnrTimer::new(1)?,
        selective: which == 1,
    };
    let send = SendAttributes {
        first_psn: Psn::new(0),
        timeout: AckTimeout::new(10)?,
        retries: 3,
        backs_off: false,
        rnr_retries: 3,
        initiator_depth: 2,
        window: NonZeroU32::MIN.saturating_add(15),
        read_window: NonZeroU32::MIN.saturating_add(3),
    };
    endpoint
        .connect(handle, place(2, 8), receive, send)
        .ok()?
        .ok()?;
    Some(handle)
}

fuzz_target!(|bytes: &[u8]| {
    let mut endpoint = Endpoint::new();
    let domain = endpoint.domain_mut();
    domain
        .register(OPEN, vec![0; 1024], BASE, Access::ALL)
        .unwrap();
    domain
        .register(CLOSED, vec![7; 1024], BASE, Access::NONE)
        .unwrap();
    let stays = connect(&mut endpoint, 0).unwrap();
    let mut guest = connect(&mut endpoint, 1);
    let (mut posted, mut ended, mut arrived) = (0_u64, 0_u64, 0_u64);
    let mut now = Instant::now();
    let mut out = [0; 256 + MAX_OVERHEAD];
    let mut rest = bytes;
    while let Some((&[kind, length], more)) = rest.split_first_chunk::<2>() {
        let (datagram, after) = more.split_at(more.len().min(usize::from(length)));
        rest = after;
        let into = Local {
            key: OPEN,
            address: BASE,
            length: u32::from(length) * 4,
        };
        let remote = Remote {
            key: OPEN,
            address: BASE,
        };
        let of = if kind & 8 == 0 { Some(stays) } else { guest };
        let work = match kind & 7 {
            0 => Some(Work::Send {
                source: Source::Inline(datagram),
                immediate: None,
            }),
            1 => Some(Work::Write {
                source: Source::Memory(into),
                remote,
                immediate: Some(1),
            }),
            2 => Some(Work::Read { into, remote }),
            3 => {
                let request = ReceiveRequest { id: 0, into };
                let taken = of.is_some_and(|of| {
                    endpoint
                        .post_receive(of, request)
                        .is_ok_and(|posted| posted.is_ok())
                });
                posted += u64::from(taken && of == Some(stays));
                None
            }
            4 => {
                now += Duration::from_micros(u64::from(length) * 50);
                endpoint.handle_timeout(now);
                None
            }
            5 => {
                guest = match guest {
                    Some(handle) => {
                        endpoint.destroy(handle).unwrap();
                        None
                    }
                    None => connect(&mut endpoint, 1),
                };
                None
            }
            _ => {
                // Rarely a stranger, rarely a wrong CRC.
                let from = place(2, if kind & 0xc0 == 0x40 { 9 } else { 8 });
                let to = place(1, 7);
                let mut bytes = datagram.to_vec();
                if kind & 0xc0 != 0xc0
                    && let Some(flow) = Flow::between(from, to)
                {
                    bytes.extend(icrc(&flow, datagram).to_le_bytes());
                }
                arrived += 1;
                endpoint.handle_datagram(
                    now,
                    &Datagram {
                        from,
                        to,
                        congestion_experienced: kind & 16 != 0,
                        bytes: &bytes,
                    },
                );
                // Sometimes the answers wait, and more come together.
                if kind & 32 != 0 {
                    let mut packets = 0;
                    while endpoint.poll_transmit(now, &mut out).is_some() {
                        packets += 1;
                        assert!(packets < 2000, "packets without end");
                    }
                }
                None
            }
        };
        if let (Some(work), Some(of)) = (work, of) {
            let request = SendRequest {
                id: 0,
                work,
                signaled: true,
                solicited: false,
            };
            let taken = endpoint
                .post_send(of, &request)
                .is_ok_and(|posted| posted.is_ok());
            posted += u64::from(taken && of == stays);
        }
        while let Some((of, _)) = endpoint.poll_completion() {
            ended += u64::from(of == stays);
        }
    }
    let closed = endpoint.domain().region(CLOSED).unwrap();
    assert!(closed.iter().all(|byte| *byte == 7));
    let mut refused = 0;
    endpoint.refused().tell(&mut |_, count| refused += count);
    assert!(refused <= arrived);
    // Nothing answers any more: what is left fails.
    for _ in 0..1000 {
        while endpoint.poll_transmit(now, &mut out).is_some() {}
        let Some(at) = endpoint.poll_timeout() else {
            break;
        };
        now = now.max(at);
        endpoint.handle_timeout(now);
    }
    while let Some((of, _)) = endpoint.poll_completion() {
        ended += u64::from(of == stays);
    }
    let queue_pair = endpoint.queue_pair(stays).unwrap();
    if queue_pair.state() == ringway_roce::rc::State::Error {
        assert_eq!(ended, posted);
    } else {
        assert!(ended <= posted);
    }
});
