//! Packets from those who may not send them, and requests that the peer may not make.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use ringway_link::rdma::{
    Access, Device, DeviceEvent, Done, QueuePairOptions, Remote, Source, Status, Work,
};
use ringway_roce::{
    Psn,
    wire::{Bth, Flow, Operation, Packet, Reth},
};

use crate::end::{End, LENGTH, pair, until};

const IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[test]
fn what_strangers_send_is_counted_and_changes_nothing() {
    let mut ends = pair(IP, &QueuePairOptions::default());
    let victim = ends[1].address();
    let port = victim.software.unwrap().port;
    let to = SocketAddr::new(IP, port);
    let stranger = UdpSocket::bind(SocketAddr::new(IP, 0)).unwrap();
    let flow = Flow::between(stranger.local_addr().unwrap(), to).unwrap();
    let forged = |number, key| {
        let operation = Operation::WriteOnly(Reth {
            address: ends[1].region.address,
            key,
            length: 8,
        });
        let packet = Packet {
            // What the peer's first packet would have.
            bth: Bth::new(number, ends[0].address().first_psn),
            operation,
            payload: &[0xee; 8],
        };
        let mut bytes = vec![];
        packet.emit(&flow, &mut bytes);
        bytes
    };
    // Who knows everything but isn't at the peer's address and port.
    let mut all_right = forged(victim.number, ends[1].region.remote);
    let wrong_number = forged(
        ringway_roce::Qpn::new(victim.number.get() ^ 0x10),
        ends[1].region.remote,
    );
    stranger.send_to(&all_right, to).unwrap();
    stranger.send_to(&wrong_number, to).unwrap();
    stranger.send_to(&all_right[..20], to).unwrap();
    stranger.send_to(&[], to).unwrap();
    all_right[0] = 0xc1;
    stranger.send_to(&all_right, to).unwrap();
    all_right[0] = 0x0a;
    all_right[30] ^= 1;
    stranger.send_to(&all_right, to).unwrap();
    until(&mut ends, |ends| {
        ends[1].counter("rx_icrc_encapsulated") == 1
    });
    for (name, expected) in [
        ("wrong_source", 1),
        ("unknown_queue_pair", 1),
        ("truncated", 2),
        ("unknown_opcode", 1),
    ] {
        assert_eq!(ends[1].counter(name), expected, "{name}");
    }
    assert!(ends[1].bytes(0, LENGTH) == vec![0; LENGTH]);
    // The connection has taken no harm.
    let remote = ends[1].remote(3);
    ends[0].post(
        1,
        Work::Write {
            source: Source::Inline(b"fine"),
            remote,
            immediate: None,
        },
    );
    until(&mut ends, |ends| !ends[0].completions.is_empty());
    assert_eq!(ends[0].completions[0].result, Ok(Done::Write));
    assert_eq!(ends[1].bytes(3, 4), b"fine");
}

#[test]
fn keys_bounds_and_rights_are_the_regions() {
    let bad: [fn(&mut End) -> Remote; 5] = [
        |end| Remote {
            key: ringway_link::rdma::Key(end.region.remote.0 ^ 1),
            ..end.remote(0)
        },
        |end| end.remote(LENGTH - 7),
        |end| Remote {
            address: end.region.address - 1,
            ..end.remote(0)
        },
        |end| {
            let memory = end.memory.memory().slice(4096..8192);
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
            end.device.register(memory, access).unwrap().remote(0)
        },
        |end| {
            let memory = end.memory.memory().slice(0..4096);
            let gone = end.device.register(memory, Access::ALL).unwrap();
            end.device.deregister(&gone).unwrap();
            gone.remote(0)
        },
    ];
    for place in bad {
        let mut ends = pair(IP, &QueuePairOptions::default());
        let remote = place(&mut ends[1]);
        let immediate = None;
        let source = Source::Inline(&[0xee; 8]);
        let work = Work::Write {
            source,
            remote,
            immediate,
        };
        ends[0].post(1, work);
        ends[0].post(2, work);
        until(&mut ends, |ends| ends[0].completions.len() == 2);
        let statuses = ends[0]
            .completions
            .iter()
            .map(|completion| completion.result.unwrap_err().status);
        let statuses: Vec<_> = statuses.collect();
        assert_eq!(statuses, [Status::RemoteAccess, Status::Flushed]);
        assert_eq!(ends[1].counter("resp_remote_access_errors"), 1);
        assert!(ends[1].bytes(0, LENGTH) == vec![0; LENGTH]);
        for end in &mut ends {
            let failed = DeviceEvent::QueuePair(end.queue_pair);
            assert_eq!(end.device.poll_event(), Some(failed));
            assert_eq!(end.device.poll_event(), None);
        }
    }
}

#[test]
fn keys_numbers_and_first_psns_are_no_series() {
    let end = End::new(IP, &QueuePairOptions::default());
    let other = End::new(IP, &QueuePairOptions::default());
    let third = End::new(IP, &QueuePairOptions::default());
    let steps = |of: fn(&End) -> u32| {
        let numbers = [of(&end), of(&other), of(&third)];
        assert!(
            numbers[0] != numbers[1] && numbers[1] != numbers[2],
            "{numbers:x?}"
        );
        numbers[1].wrapping_sub(numbers[0]) == numbers[2].wrapping_sub(numbers[1])
    };
    // By chance once in 2^24.
    assert!(!steps(|end| end.region.remote.0));
    assert!(!steps(|end| end.address().number.get()));
    assert!(!steps(|end| Psn::get(end.address().first_psn)));
}
