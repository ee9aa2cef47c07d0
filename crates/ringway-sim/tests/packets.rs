//! Packets, by hand: queues, pauses, marks, losses, and what the protocol makes of them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

mod common;

use std::time::Duration;

use common::{between_hosts, schedule};
use proptest::prelude::*;
use ringway_fabric::{Fabric, Hop, Routes, Shape, random_order};
use ringway_plan::{Algorithm, Collective, generate, verify};
use ringway_roce::rc::Mtu;
use ringway_sim::{
    Background, Change, FlowControl, Flows, Level, Marking, Message, Moment, Network, PacketReport,
    PacketSettings, Packets, Passage, Scenario, SimError, Simulation, Time, World,
};

/// Around a payload: UDP, IPv4, Ethernet, preamble and gap (66), base header and CRC (16); of a message, the first packet has
/// 16 bytes more and the last one 4.
const HEADERS: u64 = 82;
const FIRST: u64 = 16;
const LAST: u64 = 4;
/// An acknowledgement: headers, and 4 bytes of its own.
const ACK: u64 = 86;
const MTU: u64 = 1024;

/// Hosts at one switch; 1 GB/s, so that a byte takes a nanosecond, and 1 us for each link.
fn star(hosts: usize) -> Fabric {
    let text = format!(
        "
fabric: star
hosts:
  - {{name: host, count: {hosts}, overhead: 0us}}
switches:
  - {{name: leaf, tier: leaf}}
links:
  - {{from: host, to: leaf, join: full, rate: 1GB/s, latency: 1us}}
"
    );
    Fabric::parse(&text).unwrap()
}

fn world(fabric: &Fabric) -> World {
    let order: Vec<usize> = (0..fabric.hosts()).collect();
    World::new(fabric, &order, 1).unwrap()
}

/// No congestion control, no marks, and a buffer that nothing fills.
fn plain() -> PacketSettings {
    PacketSettings {
        mtu: Mtu::M1024,
        marking: None,
        dcqcn: false,
        ..PacketSettings::default()
    }
}

fn packets<'a>(fabric: &'a Fabric, world: &'a World, settings: PacketSettings) -> Packets<'a> {
    Packets::new(fabric, world, &Scenario::default(), settings, 0, true).unwrap()
}

fn message(id: u32, from: usize, to: usize, bytes: u64, at: u64) -> Message {
    Message {
        id,
        from,
        to,
        stream: 0,
        bytes,
        since: Moment::START.latency(Time(at)),
    }
}

/// When each message arrived and was acknowledged, in nanoseconds, by message.
fn run(network: &mut impl Network) -> Vec<(u64, u64)> {
    let mut ends = Vec::new();
    while let Some(next) = network.next() {
        while let Some(passage) = network.poll(next) {
            let (Passage::Arrives { id, .. } | Passage::Free { id, .. }) = passage;
            if ends.len() <= id as usize {
                ends.resize(id as usize + 1, (0, 0));
            }
            match passage {
                Passage::Arrives { at, .. } => {
                    let parts = [at.latency, at.wire, at.contention, at.reduction];
                    assert_eq!(parts.iter().map(|p| p.0).sum::<u64>(), at.at.0);
                    assert_eq!(ends[id as usize].0, 0, "message {id} arrives twice");
                    ends[id as usize].0 = at.at.0 / 1000;
                }
                Passage::Free { at, .. } => ends[id as usize].1 = at.at.0 / 1000,
            }
        }
        assert_eq!(network.failure(), None);
    }
    ends
}

fn hop(fabric: &Fabric, name: &str) -> usize {
    let mut hops = (0..2 * fabric.links().len()).map(Hop::of_index);
    hops.find(|hop| hop.name(fabric) == name).unwrap().index()
}

#[test]
fn a_message_takes_what_its_packets_take() {
    let fabric = star(2);
    let world = world(&fabric);
    let mut network = packets(&fabric, &world, plain());
    // Three packets: 1122, 1106 and 450 + 82 + 4 bytes, padded to 452.
    network.send(message(0, 0, 1, 2 * MTU + 450, 0));
    let sent = (MTU + HEADERS + FIRST) + (MTU + HEADERS) + (452 + HEADERS + LAST);
    // The switch forwards the first packet when it is whole, and the others follow it without a gap, for they are no longer.
    let first = (MTU + HEADERS + FIRST) + 1000;
    let arrives = first + sent + 1000;
    // The acknowledgement: 86 bytes over two links.
    let freed = arrives + 2 * (ACK + 1000);
    assert_eq!(run(&mut network), [(arrives, freed)]);
    let report = network.report().unwrap();
    let there = report.ports[hop(&fabric, "host0>leaf")];
    assert_eq!((there.packets, there.wire_bytes), (3, sent));
    let back = report.ports[hop(&fabric, "leaf>host0")];
    // The first packet of a connection asks for an acknowledgement, too.
    assert_eq!((back.packets, back.wire_bytes), (2, 2 * ACK));
    assert_eq!(
        network.carried()[hop(&fabric, "leaf>host1")],
        (2 * MTU + 450) as f64
    );
}

/// The receiver's link has half of the sender's rate: 500 MB/s.
fn half() -> Scenario {
    Scenario {
        slow: vec![(0, 0.5)],
        ..Scenario::default()
    }
}

/// Host 1 sends twelve packets to host 0, twice as fast as they go on. In nanoseconds: of 1122, 10 times 1106, and 1110 bytes,
/// packet k is at the switch at 2122 + 1106 k; it goes on at 2122 + 2244, and every 2212 from there on.
fn twelve<'a>(fabric: &'a Fabric, world: &'a World, settings: PacketSettings) -> Packets<'a> {
    let mut network = Packets::new(fabric, world, &half(), settings, 0, true).unwrap();
    network.send(message(0, 1, 0, 12 * MTU, 0));
    network
}

#[test]
fn a_pause_by_hand() {
    let fabric = star(2);
    let world = world(&fabric);
    let flow = FlowControl::Lossless {
        xoff: Some(4000),
        xon: Some(1200),
    };
    let mut network = twelve(&fabric, &world, PacketSettings { flow, ..plain() });
    // What waits, after each event:
    //   3228 packet 1: 1106   4334 packet 2: 2212   4366 1 goes: 1106   5440 packet 3: 2212   6546 packet 4: 3318
    //   6578 2 goes: 2212     7652 packet 5: 3318   8758 packet 6: 4424, more than 4000: XOFF
    // The pause frame takes 84 ns and 1 us: 9842. Packet 7 left before, packet 8 is being sent and ends at 9970.
    //   8790 3 goes: 3318     9864 packet 7: 4424   10970 packet 8: 5530   11002 4 goes: 4424   13214: 3318   15426: 2212
    //  17638 7 goes: 1106, no more than 1200: XON, which is there at 18722.
    // Packet 9 is sent from 18722 to 19828 and there at 20828; 10 at 21934; 11, 4 bytes longer, at 23044. Packet 8 goes from
    // 19850 to 22062, the others after it: 24274, 26486, and the last, of 2220 ns, 28706. It arrives a microsecond later.
    let arrives = 29_706;
    let answers = 2 * ACK + 1000 + ACK + 1000;
    assert_eq!(run(&mut network), [(arrives, arrives + answers)]);
    let report = network.report().unwrap();
    let sender = report.ports[hop(&fabric, "host1>leaf")];
    assert_eq!(
        (sender.pauses, sender.paused),
        (1, Time((18_722 - 9_842) * 1000))
    );
    let [pause] = report.pauses[..] else {
        panic!("{:?}", report.pauses);
    };
    assert_eq!(pause.hop, hop(&fabric, "host1>leaf"));
    assert_eq!(
        (pause.begun, pause.ended),
        (Time(9_842_000), Time(18_722_000))
    );
    let receiver = report.ports[hop(&fabric, "leaf>host0")];
    assert_eq!((receiver.longest_queue, receiver.dropped), (5530, 0));
}

#[test]
fn marks_and_the_notification_by_hand() {
    let fabric = star(2);
    let world = world(&fabric);
    let settings = PacketSettings {
        // A step: whoever finds more than 3000 bytes is marked.
        marking: Some(Marking {
            from: 3000,
            full: 3000,
            chance: 0.0,
        }),
        dcqcn: true,
        ..plain()
    };
    let mut network = twelve(&fabric, &world, settings);
    // As above without a pause: packets 6 and 7 find 3318 bytes, 8 and 9 find 4424, 10 finds 5530, and so does 11, which is
    // there at 14292, after 5 went at 13214. All but the first six: six marks. They come within 50 us: one notification.
    let first = run(&mut network);
    let report = network.report().unwrap();
    assert_eq!(report.ports[hop(&fabric, "leaf>host0")].marked, 6);
    assert_eq!(report.ports[hop(&fabric, "leaf>host1")].notifications, 1);
    assert_eq!(report.notifications, 1);
    // The first cut halves the rate, and 55 us after it the first step back comes. Packets of 1056 and 1040 bytes between UDP
    // and Ethernet's check sequence are sent 2112 and 2080 ns apart: at 50000, 52112 and 54192. The first is at the switch at
    // 52122 and sent on until 54366, the second, there at 54218, until 56578, the third until 58798.
    assert!(first[0].1 < 50_000);
    network.send(message(1, 1, 0, 3 * MTU, 50_000_000));
    assert_eq!(run(&mut network)[1].0, 59_798);
}

#[test]
fn a_loss_and_going_back_by_hand() {
    let fabric = star(2);
    let world = world(&fabric);
    let settings = PacketSettings {
        flow: FlowControl::Lossy,
        buffer: 4 * 1106,
        ..plain()
    };
    let mut network = Packets::new(&fabric, &world, &half(), settings, 0, true).unwrap();
    network.send(message(0, 1, 0, 6 * MTU, 0));
    // The queue may have what is free. Packet 4 comes at 6546 and finds 2212 of 4424 bytes used: with its 1106 the queue would have
    // 3318, but 2212 are free. Packet 5, at 7656, finds 1106 (packet 2 went at 6578), and goes, after 3, from 11002 to 13222. It is
    // at host 0 at 14222, which misses packet 4: its NAK, 86 bytes, is back at 14222 + 172 + 1000 + 86 + 1000 = 16480.
    // Packets 4 and 5 again: 4 is at the switch at 18586 and sent on until 20798, 5 until 23018.
    let arrives = 24_018;
    assert_eq!(run(&mut network)[0].0, arrives);
    let report = network.report().unwrap();
    let sender = report.ports[hop(&fabric, "host1>leaf")];
    assert_eq!(
        (sender.packets, sender.resent, sender.resent_bytes),
        (8, 2, 2 * MTU)
    );
    assert_eq!(report.ports[hop(&fabric, "leaf>host0")].dropped, 1);
    assert_eq!((report.resent, report.timeouts), (2, 0));
}

#[test]
fn the_last_packet_that_is_lost_is_sent_again_after_the_timeout() {
    let fabric = star(2);
    let world = world(&fabric);
    let settings = PacketSettings {
        flow: FlowControl::Lossy,
        buffer: 4 * 1106,
        ..plain()
    };
    let mut network = Packets::new(&fabric, &world, &half(), settings, 0, false).unwrap();
    // As above, but packet 4 is the last: nothing after it tells that it is missing. 67.1 ms after the acknowledgement of the
    // first packet (2122 + 2244 + 1000 + 172 + 1000 + 86 + 1000 = 7624) the sender begins again.
    network.send(message(0, 1, 0, 5 * MTU, 0));
    // It goes back to the oldest packet that is not acknowledged, which is the second: four packets.
    let again = 7_624 + 67_108_864;
    let arrives = again + 1106 + 1000 + 3 * 2212 + 2220 + 1000;
    assert_eq!(run(&mut network)[0].0, arrives);
    let report = network.report().unwrap();
    assert_eq!((report.timeouts, report.resent), (1, 4));
}

/// Eight hosts at two leaves that a spine joins with ten times their rate.
fn two_leaves() -> Fabric {
    let text = "
fabric: two leaves
hosts:
  - {name: host, count: 8, overhead: 0us}
switches:
  - {name: leaf, count: 2, tier: leaf}
  - {name: spine, tier: spine}
links:
  - {from: host, to: leaf, join: {blocks: 2}, rate: 1GB/s, latency: 1us}
  - {from: leaf, to: spine, join: full, rate: 10GB/s, latency: 1us}
";
    Fabric::parse(text).unwrap()
}

/// When the victim's megabyte from host 7 to host 1 arrived, in microseconds, while hosts 4, 5 and 6 send to host 0.
fn victim(settings: PacketSettings) -> (f64, PacketReport, Fabric) {
    let fabric = two_leaves();
    let world = world(&fabric);
    let mut network = packets(&fabric, &world, settings);
    for from in [4, 5, 6] {
        network.send(message(from as u32 - 3, from, 0, 4_000_000, 0));
    }
    network.send(message(0, 7, 1, 1_000_000, 0));
    let arrived = run(&mut network)[0].0 as f64 / 1e3;
    (arrived, network.report().unwrap(), fabric.clone())
}

#[test]
fn a_pause_spreads_and_stops_a_victim() {
    let alone = 1_000_000.0 / 1024.0 * 1106.0 / 1000.0;
    let flow = FlowControl::Lossless {
        xoff: Some(50_000),
        xon: None,
    };
    let (stopped, report, fabric) = victim(PacketSettings { flow, ..plain() });
    // All four flows come over one link, which pauses for the queue of host 0: in it they stand in turns, and each goes as fast
    // as a third of host 0's link.
    assert!(
        (stopped / alone / 3.0 - 1.0).abs() < 0.05,
        "{stopped} {alone}"
    );
    for name in ["spine>leaf0", "leaf1>spine", "host7>leaf1"] {
        let paused = report.ports[hop(&fabric, name)].paused;
        assert!(paused > Time(1_000_000_000), "{name}: {paused}");
    }
    // Its own last link is not what it waits for.
    let longest = |name| report.ports[hop(&fabric, name)].longest_queue;
    assert!(longest("leaf0>host0") > 5 * longest("leaf0>host1"));
    assert!(report.ports.iter().all(|p| p.dropped == 0));

    // Congestion control makes pauses rare. It does not make up for them here: the victim, whose packets waited and were marked
    // with the others', slows down like these, and comes back by small steps.
    let marking = Some(Marking {
        from: 10_000,
        full: 40_000,
        chance: 0.1,
    });
    let with_dcqcn = PacketSettings {
        flow,
        marking,
        dcqcn: true,
        ..plain()
    };
    let paused = |report: &PacketReport| report.ports[hop(&fabric, "host7>leaf1")].paused;
    let (_, calm, _) = victim(with_dcqcn);
    assert!(4 * paused(&calm).0 < paused(&report).0, "{}", paused(&calm));
    assert!(calm.notifications > 0);

    // Without pauses the victim goes as if alone, and others' packets are lost.
    let (free, report, _) = victim(PacketSettings {
        flow: FlowControl::Lossy,
        buffer: 100_000,
        ..plain()
    });
    assert!((free / alone - 1.0).abs() < 0.05, "{free} for {alone}");
    assert!(report.resent > 0);
}

/// N messages of a megabyte each to host 0: when each arrived, in seconds.
fn incast(network: &mut impl Network, senders: usize) -> Vec<f64> {
    for i in 0..senders {
        network.send(message(i as u32, i + 1, 0, 1 << 20, 0));
    }
    run(network)
        .into_iter()
        .map(|end| end.0 as f64 / 1e9)
        .collect()
}

#[test]
fn a_full_link_is_shared_as_by_flows() {
    let fabric = star(9);
    let world = world(&fabric);
    for senders in [1, 2, 4, 8] {
        let mut flows = Flows::new(&fabric, &world, &Scenario::default(), 0);
        let fluid = incast(&mut flows, senders);
        let large = PacketSettings {
            mtu: Mtu::M4096,
            ..plain()
        };
        let found = incast(&mut packets(&fabric, &world, large), senders);
        for (found, fluid) in found.iter().zip(&fluid) {
            let error = found / fluid - 1.0;
            // Headers are 2 %, and among equals the last packet of one is before another's.
            assert!(
                (0.0..0.035).contains(&error),
                "{senders}: {found} for {fluid}"
            );
        }
    }
}

#[test]
fn traffic_of_others_takes_its_rate() {
    let fabric = star(3);
    let world = world(&fabric);
    let background = vec![Background {
        from: 2,
        to: 0,
        rate: 0.25e9,
    }];
    let scenario = Scenario {
        background,
        ..Scenario::default()
    };
    let mut network = Packets::new(&fabric, &world, &scenario, plain(), 0, false).unwrap();
    network.send(message(0, 1, 0, 4_000_000, 0));
    let mut arrived = None;
    while arrived.is_none() {
        let next = network.next().unwrap();
        while let Some(passage) = network.poll(next) {
            if let Passage::Arrives { at, .. } = passage {
                arrived = Some(at.at.seconds());
            }
        }
    }
    // A quarter of the link, and headers of both.
    let share = 1.0 - 0.25 * 1106.0 / 1024.0;
    let expected = 4e6 * 1106.0 / 1024.0 / 1e9 / share;
    let found = arrived.unwrap();
    assert!(
        (found / expected - 1.0).abs() < 0.04,
        "{found} for {expected}"
    );
    assert_eq!(network.carried()[hop(&fabric, "leaf>host0")], 4e6);
}

#[test]
fn links_that_go_down_hold_packets_until_switches_know() {
    let fabric = star(2);
    let world = world(&fabric);
    let usual = {
        let mut network = packets(&fabric, &world, plain());
        network.send(message(0, 0, 1, 1 << 20, 0));
        run(&mut network)[0].0
    };
    let mut network = packets(&fabric, &world, plain());
    network.send(message(0, 0, 1, 1 << 20, 0));
    let steps = [(100_000, 0.0), (300_000, 1.0)];
    let mut ends = Vec::new();
    for (at, share) in steps {
        let at = Time(at * 1000);
        while network.next().is_some_and(|next| next < at) {
            let next = network.next().unwrap();
            while network.poll(next).is_some() {}
        }
        network.set_link(at, hop(&fabric, "leaf>host1") / 2, share);
    }
    ends.extend(run(&mut network));
    let late = ends[0].0 - usual;
    assert!((199_000..=201_200).contains(&late), "{late}");
}

#[test]
fn what_still_comes_for_a_link_that_was_given_up_holds_up_nobody() {
    let fabric = star(3);
    let world = world(&fabric);
    let mut network = packets(&fabric, &world, plain());
    let link = hop(&fabric, "leaf>host1") / 2;
    network.set_link(Time(0), link, 0.0);
    network.send(message(0, 0, 1, 1 << 20, 0));
    // What waits in the switch has host0 pause.
    let told = Time(10_000_000_000);
    while network.next().is_some_and(|next| next < told) {
        let next = network.next().unwrap();
        assert_eq!(network.poll(next), None);
    }
    network.reroute(told, Routes::without(&fabric, &[link]));
    network.send(message(1, 0, 2, 1 << 20, told.0));
    let mut arrived = None;
    while arrived.is_none() {
        let next = network.next().expect("host0 pauses for ever");
        while let Some(passage) = network.poll(next) {
            if let Passage::Arrives { id: 1, at, .. } = passage {
                arrived = Some(at.at.since(told));
            }
        }
        assert_eq!(network.failure(), None);
    }
    // It shares its NIC with the other message, whose packets are lost in the switch.
    assert!(arrived.unwrap() < Time(4_000_000_000), "{arrived:?}");
}

#[test]
fn a_link_that_stays_down_breaks_the_connection_and_names_it() {
    let fabric = star(2);
    let world = world(&fabric);
    let settings = PacketSettings {
        timeout: ringway_roce::timer::AckTimeout::new(8).unwrap(),
        ..plain()
    };
    let mut network = packets(&fabric, &world, settings);
    network.set_link(Time(0), hop(&fabric, "leaf>host1") / 2, 0.0);
    // So little that the sender, which tries eight times, is not paused: then nothing would happen any more.
    network.send(message(0, 0, 1, 16 << 10, 0));
    while network.failure().is_none() {
        let next = network.next().unwrap();
        while network.poll(next).is_some() {}
    }
    let error = network.failure().unwrap();
    assert!(matches!(error, SimError::Connection { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("from host0 to host1"), "{error}");
    assert!(error.contains("retries exceeded"), "{error}");
}

#[test]
fn settings_that_cannot_be_are_told() {
    let fabric = star(4);
    let world = world(&fabric);
    let refused = |settings| {
        let network = Packets::new(&fabric, &world, &Scenario::default(), settings, 0, false);
        network.map(|_| ()).unwrap_err().to_string()
    };
    let lossless = |xoff, xon| PacketSettings {
        flow: FlowControl::Lossless { xoff, xon },
        ..plain()
    };
    let marking = |from, full, chance| PacketSettings {
        marking: Some(Marking { from, full, chance }),
        ..plain()
    };
    let small = |flow| PacketSettings {
        buffer: 20_000,
        flow,
        ..plain()
    };
    for (settings, says) in [
        (lossless(Some(100), None), "one packet"),
        (lossless(Some(5000), Some(5000)), "pause for ever"),
        (lossless(None, Some(5000)), "XOFF threshold beside it"),
        (lossless(Some(20 << 20), None), "leaf has 4 links"),
        (marking(2000, 1000, 0.1), "Kmin up to Kmax"),
        (marking(0, 1000, 1.5), "from 0 to 1"),
        (
            PacketSettings {
                buffer: 100,
                ..plain()
            },
            "four packets",
        ),
        (small(plain().flow), "make the buffer larger"),
    ] {
        let error = refused(settings);
        assert!(error.contains(says), "{error}");
    }
    let lossy = Packets::new(
        &fabric,
        &world,
        &Scenario::default(),
        small(FlowControl::Lossy),
        0,
        false,
    );
    assert!(lossy.is_ok());
    assert_eq!(
        Duration::from_nanos(67_108_864),
        PacketSettings::default().timeout.duration().unwrap()
    );
}

#[test]
fn ranks_that_stand_still_beside_traffic_of_others_are_told() {
    let fabric = star(4);
    let world = World::new(&fabric, &[0, 1], 1).unwrap();
    let collective = Collective::Broadcast { root: 0 };
    let schedule = generate(collective, Algorithm::Tree, &world.topology()).unwrap();
    let schedule = verify(schedule).unwrap();
    let scenario = Scenario {
        changes: vec![Change {
            at: Duration::ZERO,
            link: hop(&fabric, "leaf>host0") / 2,
            share: 0.0,
        }],
        background: vec![Background {
            from: 2,
            to: 3,
            rate: 1e6,
        }],
        ..Scenario::default()
    };
    let simulation = Simulation::new(&fabric, &world)
        .with_level(Level::Packet)
        .with_packets(plain())
        .with_scenario(scenario);
    let error = simulation.run(&schedule, 1 << 20).unwrap_err();
    assert!(matches!(error, SimError::Stalled { .. }), "{error}");
}

/// A leaf-spine of 100 Gbit/s, a rank for each host, and links that are never shared by a ring in the order of the file.
#[test]
fn without_contention_packets_take_what_flows_take_and_their_headers() {
    let shape = Shape::LeafSpine {
        hosts: 8,
        leaves: 2,
        spines: 2,
        gpus: 1,
    };
    let fabric = Fabric::parse(&shape.file().unwrap()).unwrap();
    let world = world(&fabric);
    let ring = schedule(Algorithm::Ring, &world);
    let seconds = |level, mtu| {
        let simulation = Simulation::new(&fabric, &world).with_level(level);
        let settings = PacketSettings {
            mtu,
            ..PacketSettings::default()
        };
        let outcome = simulation.with_packets(settings).run(&ring, 8 << 20);
        outcome.unwrap().end.at.seconds()
    };
    let fluid = seconds(Level::Flow, Mtu::M4096);
    for (mtu, headers) in [(Mtu::M1024, 0.08), (Mtu::M4096, 0.02)] {
        let error = seconds(Level::Packet, mtu) / fluid - 1.0;
        assert!(
            (headers..headers + 0.03).contains(&error),
            "{mtu:?}: {error}"
        );
    }
}

fn fabrics() -> impl Strategy<Value = Shape> {
    let leaf_spine = (1..4_usize, 2..4_usize, 1..4_usize, 1..3_usize);
    prop_oneof![
        leaf_spine.prop_map(|(each, leaves, spines, gpus)| Shape::LeafSpine {
            hosts: each * leaves,
            leaves,
            spines,
            gpus,
        }),
        Just(Shape::FatTree { k: 4, gpus: 1 }),
        (1..3_usize, 1..4_usize).prop_map(|(each, rails)| Shape::RailOptimised {
            hosts: 2 * each,
            rails,
            blocks: 2,
            spines: 2,
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Whatever the fabric, the thresholds and the algorithm: every byte arrives once, no link is above its rate, lossless
    /// networks lose nothing and come to an end (paths go up and then down, so that no pause waits for itself).
    #[test]
    fn every_byte_arrives_once(
        shape in fabrics(),
        algorithm in proptest::sample::select(vec![
            Algorithm::Direct,
            Algorithm::HalvingDoubling,
            Algorithm::Ring,
            Algorithm::Tree,
        ]),
        bytes in 1..400_000_usize,
        (lossy, dcqcn) in any::<(bool, bool)>(),
        xoff in 20_000..60_000_u64,
        seed: u64,
    ) {
        let fabric = Fabric::parse(&shape.file().unwrap()).unwrap();
        let gpus = fabric.host(0).unwrap().gpus;
        let world = World::new(&fabric, &random_order(fabric.hosts(), seed), gpus).unwrap();
        let schedule = schedule(algorithm, &world);
        let settings = PacketSettings {
            mtu: Mtu::M1024,
            buffer: if lossy { 60_000 } else { 8 << 20 },
            flow: match lossy {
                true => FlowControl::Lossy,
                false => FlowControl::Lossless { xoff: Some(xoff), xon: None },
            },
            marking: Some(Marking { from: 5_000, full: 50_000, chance: 0.1 }),
            dcqcn,
            ..PacketSettings::default()
        };
        let simulation = Simulation::new(&fabric, &world)
            .with_level(Level::Packet)
            .with_packets(settings)
            .with_seed(seed)
            .with_records();
        let outcome = simulation.run(&schedule, bytes).unwrap();
        let report = outcome.packets.clone().unwrap();
        let (mut out, mut into, mut dropped) = (0, 0, 0);
        for (load, port) in outcome.hops.iter().zip(&report.ports) {
            prop_assert!(load.busy <= 1.0 + 1e-9, "{load:?}");
            let hop = Hop::of_index(load.hop);
            let (from, to) = hop.ends(&fabric.links()[hop.link]);
            if from.0 < fabric.hosts() {
                out += load.bytes as u64 - port.resent_bytes;
            }
            if to.0 < fabric.hosts() {
                into += load.bytes as u64;
            }
            dropped += port.dropped;
        }
        let sent = between_hosts(&schedule, &world, bytes);
        // Of a connection that goes back, all packets from the missing one on come again, and some had come before.
        prop_assert_eq!(out, sent);
        prop_assert!(into >= sent);
        if !lossy {
            prop_assert_eq!((into, dropped, report.resent), (sent, 0, 0));
        }
        let end = outcome.end;
        let parts = [end.latency, end.wire, end.contention, end.reduction].map(|p| p.0);
        prop_assert_eq!(parts.iter().sum::<u64>(), end.at.0);
        for pause in &report.pauses {
            prop_assert!(pause.begun <= pause.ended && pause.ended <= end.at);
        }
        prop_assert_eq!(simulation.run(&schedule, bytes).unwrap(), outcome);
    }
}
