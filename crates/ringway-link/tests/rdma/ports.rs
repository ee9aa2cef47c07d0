//! What a device makes of its port: sleepers, link-local addresses, and peers that can't be reached.

use std::{
    env,
    net::{IpAddr, Ipv4Addr},
    process::Command,
    time::{Duration, Instant},
};

use ringway_link::rdma::{
    AckTimeout, Device, DeviceEvent, QueuePairOptions, SoftwareDevice, SoftwareOptions, Source,
    Work,
};
use ringway_sys::{Epoll, Interest, interface_addresses};

use crate::end::{End, LIMIT, pair, until};

fn send(end: &mut End, id: u64) {
    let (source, immediate) = (Source::Inline(b"abc"), None);
    end.post(id, Work::Send { source, immediate });
}

#[test]
fn a_flush_sends_and_a_sleeper_is_neither_woken_nor_forgotten() {
    let options = QueuePairOptions {
        // 67 ms.
        ack_timeout: AckTimeout::new(14).unwrap(),
        ..QueuePairOptions::default()
    };
    let mut ends = pair(Ipv4Addr::LOCALHOST.into(), &options);
    let epoll = Epoll::new().unwrap();
    epoll.add(ends[0].device.fd(), 0, Interest::Read).unwrap();
    let readable = |within| {
        let mut ready = Vec::new();
        epoll.wait(&mut ready, Some(within)).unwrap();
        !ready.is_empty()
    };
    assert!(ends[0].device.arm());
    send(&mut ends[0], 0);
    ends[0].device.flush();
    assert!(!readable(Duration::ZERO));
    // The packet is there, and the acknowledgement wakes the sleeper.
    ends[1].post_receive(0, 0, 100);
    let deadline = Instant::now() + LIMIT;
    while ends[1].completions.is_empty() {
        assert!(Instant::now() < deadline, "nothing was sent");
        ends[1].poll();
    }
    ends[1].device.flush();
    assert!(readable(LIMIT));
    ends[0].device.flush();
    assert!(readable(Duration::ZERO), "a flush has eaten the wake-up");
    ends[0].device.disarm();
    ends[0].poll();
    assert_eq!(ends[0].completions.len(), 1);
    // Nobody answers: the time for another try wakes a sleeper who was asleep when the packet was sent.
    assert!(ends[0].device.arm());
    send(&mut ends[0], 1);
    ends[0].device.flush();
    assert!(readable(LIMIT), "the timer was not set");
}

#[test]
fn link_local_addresses_belong_to_their_interface() {
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let all = interface_addresses().unwrap();
    let Some(ip) = all.iter().map(|at| at.address).find(is_link_local) else {
        println!("skipped: no interface of this machine has a link-local address");
        return;
    };
    let mut ends = pair(ip, &QueuePairOptions::default());
    send(&mut ends[0], 0);
    ends[1].post_receive(0, 0, 100);
    until(&mut ends, |ends| {
        ends.iter().all(|end| end.completions.len() == 1)
    });
    assert!(ends.iter().all(|end| end.completions[0].result.is_ok()));
}

/// The test runs itself in a network namespace whose interface it can take down.
const INSIDE: &str = "RINGWAY_TEST_NAMESPACE";

#[test]
fn a_peer_without_a_route_says_nothing_of_the_port() {
    if env::var_os(INSIDE).is_some() {
        return inside();
    }
    let script = "ip link add cable type veth peer name end && ip link set end up && ip link set cable up && ip address add 10.1.1.1/24 dev cable && \
                  ip route add unreachable 10.9.0.0/16 && exec \"$0\" --exact --nocapture \
                  ports::a_peer_without_a_route_says_nothing_of_the_port";
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", script])
        .arg(env::current_exe().unwrap())
        .env(INSIDE, "1")
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => return println!("skipped: unshare: {error}"),
    };
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if !text.contains("running 1 test") {
        return println!("skipped: cannot make a network namespace: {text}");
    }
    assert!(output.status.success(), "{text}");
}

fn inside() {
    let ip: IpAddr = "10.1.1.1".parse().unwrap();
    let mut device = SoftwareDevice::open(&SoftwareOptions {
        ip,
        roce_port: false,
    })
    .unwrap();
    let mut to = |peer: &str| {
        let pair = device.create(&QueuePairOptions::default()).unwrap();
        let mut address = device.address(pair).unwrap();
        address.ip = peer.parse().unwrap();
        device.connect(pair, &address).unwrap();
        pair
    };
    let pairs = [to("10.9.0.1"), to("10.1.1.1")];
    let lost = |device: &SoftwareDevice| {
        let mut lost = 0;
        device.counters(&mut |name, count| lost += if name == "send_errors" { count } else { 0 });
        lost
    };
    // To both by turns: one is refused each time, the other goes out.
    let mut events = Vec::new();
    let deadline = Instant::now() + LIMIT;
    let mut id = 0;
    while lost(&device) < 4 {
        assert!(Instant::now() < deadline);
        for pair in pairs {
            let (source, immediate) = (Source::Inline(b"abc"), None);
            let work = Work::Send { source, immediate };
            let request = ringway_link::rdma::SendRequest {
                id,
                work,
                signaled: true,
                solicited: false,
            };
            id += 1;
            let _ = device.post_send(pair, &request);
        }
        device.poll(Instant::now(), &mut Vec::new()).unwrap();
        events.extend(
            std::iter::from_fn(|| device.poll_event())
                .filter(|event| matches!(event, DeviceEvent::PortDown | DeviceEvent::PortUp)),
        );
    }
    assert_eq!(events, []);
    for (state, expected) in [("down", DeviceEvent::PortDown), ("up", DeviceEvent::PortUp)] {
        let done = Command::new("ip")
            .args(["link", "set", "cable", state])
            .status();
        assert!(done.unwrap().success());
        let event = loop {
            assert!(Instant::now() < deadline, "no event when it is {state}");
            device.poll(Instant::now(), &mut Vec::new()).unwrap();
            let mut events = std::iter::from_fn(|| device.poll_event());
            if let Some(event) = events
                .by_ref()
                .find(|event| !matches!(event, DeviceEvent::QueuePair(_)))
            {
                break event;
            }
        };
        assert_eq!(event, expected);
    }
}
