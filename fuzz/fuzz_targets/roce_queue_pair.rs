//! A queue pair whose peer sends whatever it likes: memory without remote rights never changes, what waits to be sent
//! stays small, and every request that was taken ends exactly once.
#![no_main]

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use libfuzzer_sys::fuzz_target;
use ringway_roce::{
    Access, Key, ProtectionDomain, Psn, Qpn,
    dcqcn::Parameters,
    rc::{
        Arrival, Attributes, Local, Mtu, QueuePair, ReceiveAttributes, ReceiveRequest, Remote,
        SendAttributes, SendRequest, Source, Work,
    },
    timer::{AckTimeout, RnrTimer},
    wire::{Flow, MAX_OVERHEAD, Packet, ROCE_PORT},
};

/// Both are small, so that a guess of the fuzzer's hits them.
const NUMBER: Qpn = Qpn::new(1);
const BASE: u64 = 0;

fuzz_target!(|bytes: &[u8]| {
    let Some((&mode, bytes)) = bytes.split_first() else {
        return;
    };
    let (own, peer) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let (Some(flow), Some(timeout), Some(rnr_timer)) = (
        Flow::new(own.into(), peer.into(), ROCE_PORT),
        AckTimeout::new(10),
        RnrTimer::new(1),
    ) else {
        return;
    };
    let mut domain = ProtectionDomain::new();
    let open = domain.register(Key(0x0001), vec![0; 1024], BASE, Access::ALL);
    let closed = domain.register(Key(0x0101), vec![7; 1024], BASE, Access::NONE);
    let (Ok(open), Ok(closed)) = (open, closed) else {
        return;
    };
    let mut now = Instant::now();
    let mut qp = QueuePair::new(Attributes {
        number: NUMBER,
        access: Access::ALL,
        send_queue: 8,
        inline: 0,
        receive_queue: 8,
        congestion: Some(Parameters::new(1e9)),
    });
    qp.receive_with(ReceiveAttributes {
        peer: NUMBER,
        flow,
        mtu: Mtu::M256,
        first_psn: Psn::new(0),
        responder_resources: 4,
        rnr_timer,
        selective: mode & 1 != 0,
    })
    .unwrap();
    qp.send_with(SendAttributes {
        first_psn: Psn::new(0),
        timeout,
        retries: 3,
        backs_off: false,
        rnr_retries: 3,
        initiator_depth: 2,
        window: NonZeroU32::MIN.saturating_add(15),
        read_window: NonZeroU32::MIN.saturating_add(3),
    })
    .unwrap();

    let (mut posted, mut ended) = (0, 0);
    let mut out = [0; 256 + MAX_OVERHEAD];
    let mut rest = bytes;
    while let Some((&[kind, length], more)) = rest.split_first_chunk::<2>() {
        let (datagram, after) = more.split_at(more.len().min(usize::from(length)));
        rest = after;
        let into = Local {
            key: open,
            address: BASE,
            length: u32::from(length) * 4,
        };
        let remote = Remote {
            key: open,
            address: BASE,
        };
        let source = Source::Memory(into);
        let work = match kind & 7 {
            0 => Work::Send {
                source,
                immediate: None,
            },
            1 => Work::Write {
                source,
                remote,
                immediate: Some(1),
            },
            2 => Work::Read { into, remote },
            3 => Work::FetchAdd {
                into: Local { length: 8, ..into },
                remote,
                add: 1,
            },
            4 => {
                posted += u32::from(qp.post_receive(ReceiveRequest { id: 0, into }).is_ok());
                continue;
            }
            5 => {
                now += Duration::from_micros(u64::from(length) * 50);
                qp.handle_timeout(now);
                continue;
            }
            _ => {
                if let Ok(packet) = Packet::parse(datagram) {
                    let arrival = Arrival {
                        from: SocketAddr::new(peer.into(), ROCE_PORT),
                        congestion_experienced: kind & 8 != 0,
                        packet,
                    };
                    qp.handle_packet(now, &arrival, &mut domain);
                }
                // Sometimes the answers wait, and more come together.
                if kind & 16 != 0 {
                    let mut packets = 0;
                    while qp.poll_transmit(now, &domain, &mut out).is_some() {
                        packets += 1;
                        assert!(packets < 1000, "packets without end");
                    }
                }
                ended += std::iter::from_fn(|| qp.poll_completion()).count() as u32;
                continue;
            }
        };
        let request = SendRequest {
            id: 0,
            work,
            signaled: true,
            solicited: false,
        };
        posted += u32::from(qp.post_send(&request).is_ok());
    }
    assert!(
        domain
            .region(closed)
            .is_some_and(|bytes| bytes.iter().all(|byte| *byte == 7))
    );
    qp.fail();
    ended += std::iter::from_fn(|| qp.poll_completion()).count() as u32;
    assert_eq!(ended, posted);
});
