//! All operations over a network that misbehaves: everything is done exactly once.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ringway_link::rdma::{AckTimeout, Device as _, Done, Mtu, QueuePairOptions, Source, Work};

use crate::{
    end::{End, pattern, until},
    relay::{Faults, Relay},
};

/// Of each operation.
const ROUNDS: usize = 30;
const BYTES: usize = 20_001;

#[test]
fn one_in_a_hundred_lost() {
    run(Ipv4Addr::LOCALHOST.into(), 10, true, usize::MAX);
}

#[test]
fn one_in_twenty_lost() {
    run(Ipv6Addr::LOCALHOST.into(), 50, true, usize::MAX);
}

/// As between a NIC and this device.
#[test]
fn one_in_twenty_lost_and_one_side_only_goes_back_to_n() {
    run(Ipv4Addr::LOCALHOST.into(), 50, false, usize::MAX);
}

#[test]
fn one_in_twenty_lost_and_no_room_for_what_comes_early() {
    run(Ipv4Addr::LOCALHOST.into(), 50, true, 256 * 1024 - 1);
}

/// `room`: the bytes that a device may take for packets before their turn.
fn run(ip: IpAddr, lost: u64, selective: bool, room: usize) {
    let options = QueuePairOptions {
        mtu: Mtu::M1024,
        // 8 ms, so that the test doesn't take long; a loaded machine only makes it retry more often.
        ack_timeout: AckTimeout::new(11).unwrap(),
        retries: 200,
        rnr_retries: 7,
        ..QueuePairOptions::default()
    };
    let mut ends = [End::new(ip, &options), End::new(ip, &options)];
    for end in &mut ends {
        end.device.limit_footprint(room);
    }
    let keeps = selective && room >= 256 * 1024;
    let faults = Faults {
        lost,
        repeated: 10,
        late: 10,
        ..Faults::NONE
    };
    let mut relay = Relay::start([ends[0].address(), ends[1].address()], faults);
    for address in &mut relay.addresses {
        if let Some(software) = &mut address.software {
            assert!(software.selective);
            software.selective = selective;
        }
    }
    for (end, peer) in ends.iter_mut().zip(&relay.addresses) {
        end.connect(peer);
    }
    let (data, written, received, read) = (0, 100_000, 200_000, 900_000);
    ends[0].fill(data, &pattern(3, BYTES));
    ends[1].fill(read, &pattern(4, BYTES));
    let counter = ends[1].remote(1_000_000);
    for round in 0..ROUNDS {
        // Late on purpose now and then.
        if round % 8 != 7 {
            ends[1].post_receive(round as u64, received + round * BYTES, BYTES);
        }
        let source = Source::Memory(ends[0].local(data, BYTES));
        let (remote, immediate) = (ends[1].remote(written), None);
        ends[0].post(0, Work::Send { source, immediate });
        ends[0].post(
            1,
            Work::Write {
                source,
                remote,
                immediate,
            },
        );
        let into = ends[0].local(read, BYTES);
        let remote = ends[1].remote(read);
        ends[0].post(2, Work::Read { into, remote });
        let into = ends[0].local(950_000, 8);
        ends[0].post(
            3,
            Work::FetchAdd {
                into,
                remote: counter,
                add: 1,
            },
        );
        let mut polls = 0;
        until(&mut ends, |ends| {
            polls += 1;
            if round % 8 == 7 && polls == 1000 {
                ends[1].post_receive(round as u64, received + round * BYTES, BYTES);
            }
            ends[0].completions.len() == 4 && ends[1].completions.len() == 1
        });
        let done: Vec<_> = ends[0]
            .completions
            .drain(..)
            .map(|completion| completion.result.unwrap())
            .collect();
        assert_eq!(done, [Done::Send, Done::Write, Done::Read, Done::FetchAdd]);
        let got = ends[1].completions.remove(0);
        let length = BYTES as u32;
        let expected = Done::Receive { length, immediate };
        assert_eq!((got.id, got.result), (round as u64, Ok(expected)));
        let at = received + round * BYTES;
        assert!(ends[1].bytes(at, BYTES) == pattern(3, BYTES));
        assert!(ends[1].bytes(written, BYTES) == pattern(3, BYTES));
        assert!(ends[0].bytes(read, BYTES) == pattern(4, BYTES));
        // For the next round to have something to do.
        ends[0].fill(read, &[0; BYTES]);
        ends[1].fill(written, &[0; BYTES]);
    }
    let count = ends[1].bytes(1_000_000, 8);
    assert_eq!(u64::from_ne_bytes(count.try_into().unwrap()), ROUNDS as u64);
    let lost = relay.stop();
    assert!(lost > 0);
    assert!(ends[0].counter("retransmitted") > 0);
    let again = ends[1].counter("duplicate_request") + ends[1].counter("out_of_sequence");
    assert!(again > 0);
    assert_eq!(ends[1].counter("kept") > 0, keeps);
    // Room for what came early was made when it was first needed.
    assert_eq!(ends[1].device.footprint() > 0, keeps);
}
