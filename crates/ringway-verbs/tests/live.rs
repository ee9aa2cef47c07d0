//! Two real devices that reach each other: Linux's soft RoCE in the virtual machine of `cargo xtask test vm`, where they
//! are `rxe0` at 10.0.0.1 and fd00::1 and `rxe1` at 10.0.0.2 and fd00::2, each on a link of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod pair;

use std::{
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pair::{End, LONG, exchange, poll_one, poll_within};
use ringway_sys::{Epoll, Interest, end_with_parent};
use ringway_verbs::{
    Access, AsyncEvent, CmEvent, CmEventKind, CmId, ConnectionTerms, Context, EventChannel,
    ForkSafety, Library, Mtu, Operation, QueuePairState, Source, Status, devices,
    gid::{self, Family, GidKind, Wish},
    sysfs,
};

const NEEDS: &str = "needs the devices of the virtual machine: cargo xtask test vm";

fn context(name: &str) -> Arc<Context> {
    Context::open(&Library::load().unwrap(), name).expect(NEEDS)
}

fn ends() -> (End, End) {
    ends_of(Family::V4)
}

fn ends_of(family: Family) -> (End, End) {
    let wish = Wish {
        family,
        address: None,
    };
    let end = |name| End::new(&context(name), 1, wish);
    let (a, b) = (end("rxe0"), end("rxe1"));
    a.connect(&b, 6);
    b.connect(&a, 6);
    (a, b)
}

fn run(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(status.success(), "{command}: {status}");
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn all_operations_at_all_sorts_of_lengths() {
    let (a, b) = ends();
    assert_eq!(a.pair.state().unwrap(), QueuePairState::ReadyToSend);
    exchange(&a, &b, &[1, 7, 4096, 4097, 100_003]);
    // And the other way over the same connection.
    exchange(&b, &a, &[5000]);
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn all_operations_over_ipv6() {
    let (a, b) = ends_of(Family::V6);
    let addresses = [&a, &b].map(|end| end.gid.gid.to_string());
    assert_eq!(addresses, ["fd00::1", "fd00::2"]);
    exchange(&a, &b, &[1, 4097]);
}

/// What the peer's smaller MTU makes of a path: more packets, the same bytes.
#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn all_operations_at_a_smaller_mtu() {
    let end = |name| End::new(&context(name), 1, Wish::default());
    let (a, b) = (end("rxe0"), end("rxe1"));
    let mtu = Mtu::of_path(a.port.mtu, Mtu::B1024);
    for (one, other) in [(&a, &b), (&b, &a)] {
        one.connect_to(other.gid.gid, other.pair.number(), mtu, 6)
            .unwrap();
    }
    exchange(&a, &b, &[1024, 1025, 4096, 10_000]);
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn devices_ports_and_gids_are_as_files_show_them() {
    let names: Vec<_> = devices(&Library::load().unwrap())
        .unwrap()
        .into_iter()
        .map(|device| device.name)
        .collect();
    let files = sysfs::devices(Path::new("/")).unwrap();
    let named: Vec<_> = files.iter().map(|device| device.name.clone()).collect();
    assert!(names.contains(&"rxe0".to_owned()), "{names:?}");
    assert_eq!(names, named);
    let context = context("rxe0");
    let table = context.gid_table(1).unwrap();
    assert_eq!(table, files[0].ports[0].gids);
    let choice = gid::choose(&table, Wish::default()).unwrap();
    assert_eq!(choice.entry.gid.to_string(), "10.0.0.1");
    assert_eq!(choice.entry.kind, GidKind::RoceV2);
    assert_eq!(choice.entry.netdev.as_deref(), Some("rank0"));
    assert_eq!(choice.note, None);
    // rxe has a link-local GID too, which nothing but its absence of others would make us take.
    assert!(table.iter().any(|entry| entry.gid.is_link_local()));
    let other = Wish {
        family: Family::V6,
        address: None,
    };
    let other = gid::choose(&table, other).unwrap();
    assert_eq!(
        (other.entry.gid.to_string().as_str(), other.note),
        ("fd00::1", None)
    );
    let port = context.port(1).unwrap();
    assert!(port.active && port.ethernet);
    assert_eq!(port.mtu, Mtu::B4096);
    assert_eq!(files[0].ports[0].mtu, Some((4200, Some(Mtu::B4096))));
    assert!(context.limits().unwrap().queue_depth >= 256);
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn refusals_have_their_status() {
    for (key, status) in [(0x5500, Status::REMOTE_ACCESS), (0, Status::SUCCESS)] {
        let (a, b) = ends();
        let mut to = b.place(0);
        to.key ^= key;
        let source = Source::Region(a.region.local(0..4096));
        let operation = Operation::Write {
            source,
            to,
            immediate: None,
        };
        a.post(1, operation).unwrap();
        assert_eq!(poll_one(&a).status, status);
    }
    let (a, b) = ends();
    b.pair.post_receive(2, b.region.local(0..8)).unwrap();
    a.send(1, 0..4096, None).unwrap();
    // By the specification this is a remote invalid request; rxe of Linux 6.1 calls it an operation error.
    assert_eq!(poll_one(&a).status, Status::REMOTE_OPERATION);
    assert!(!poll_one(&b).status.is_success());
    let (a, _b) = ends();
    a.send(1, 0..8, None).unwrap();
    assert_eq!(poll_one(&a).status, Status::RECEIVER_NOT_READY);
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn a_region_may_be_dropped_while_its_request_is_on_its_way() {
    let (a, b) = ends();
    let End { pair, region, .. } = b;
    let source = Source::Region(a.region.local(0..1 << 19));
    let operation = Operation::Write {
        source,
        to: region.remote_place(0),
        immediate: None,
    };
    a.post(1, operation).unwrap();
    drop(region);
    // All of it was there in time, or the peer's device refused what was not.
    let status = poll_one(&a).status;
    assert!(
        [Status::SUCCESS, Status::REMOTE_ACCESS].contains(&status),
        "{status}"
    );
    drop(pair);
}

/// A child that has been forked and does not go away, as Python's data loaders are. Were pages shared with it that the
/// device uses, what this process writes next would go to copies, and the device would send the old bytes.
#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn a_forked_child_takes_no_registered_page_away() {
    let library = Library::load().unwrap();
    assert!(!matches!(library.fork_safety(), ForkSafety::Unsafe(_)));
    let (a, b) = ends();
    // SAFETY: the child calls nothing but pause, which may be called after a fork of a process with threads.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: no arguments.
            unsafe { libc::pause() };
        }
    }
    assert!(child > 0);
    exchange(&a, &b, &[1, 100_003]);
    // SAFETY: the child is ours, and alive until it was waited for.
    let killed = unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY: no place for the status is given, so none is written.
    let waited = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert_eq!((killed, waited), (0, child));
}

/// What another process is killed in the middle of.
#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn a_peer_that_is_killed_is_noticed() {
    const ROLE: &str = "RINGWAY_TEST_PEER_QPN";
    let context_b = || context("rxe1");
    if let Ok(number) = std::env::var(ROLE) {
        // The peer: connects, says its number, and waits to be killed.
        let (b, number) = (
            End::new(&context_b(), 1, Wish::default()),
            number.parse().unwrap(),
        );
        connect_to(&b, "10.0.0.1", number);
        println!("\nqueue pair {}", b.pair.number());
        thread::sleep(LONG);
        return;
    }
    let a = End::new(&context("rxe0"), 1, Wish::default());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--ignored",
            "--nocapture",
            "--exact",
            "a_peer_that_is_killed_is_noticed",
        ])
        .env(ROLE, a.pair.number().to_string())
        .stdout(Stdio::piped());
    end_with_parent(&mut command);
    let mut peer = command.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(peer.stdout.take().unwrap()));
    let number = lines
        .find_map(|line| line.unwrap().strip_prefix("queue pair ")?.parse().ok())
        .unwrap();
    connect_to(&a, "10.0.0.2", number);
    peer.kill().unwrap();
    peer.wait().unwrap();
    a.send(1, 0..64, None).unwrap();
    let completion = poll_one(&a);
    assert_eq!(completion.status, Status::RETRIES_EXCEEDED);
    assert_eq!(a.pair.state().unwrap(), QueuePairState::Error);
}

fn connect_to(end: &End, address: &str, number: u32) {
    let address: std::net::IpAddr = address.parse().unwrap();
    end.connect_to(address.into(), number, end.port.mtu, 3)
        .unwrap();
}

/// The link is taken from its device while a request is on its way, and given back.
#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn a_link_that_goes_down_and_up_is_told() {
    let (a, b) = ends();
    let set = Epoll::new().unwrap();
    set.add(&a.context, 1, Interest::Read).unwrap();
    let wait_for = |wanted: AsyncEvent| {
        let deadline = Instant::now() + LONG;
        loop {
            match a.context.take_event().unwrap() {
                Some(event) if event == wanted => return,
                Some(_) => {}
                None => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    assert!(!left.is_zero(), "{wanted:?} did not come");
                    set.wait(&mut Vec::new(), Some(left)).unwrap();
                }
            }
        }
    };
    run("ip link set rank0 down");
    wait_for(AsyncEvent::PortDown(1));
    assert!(!a.context.port(1).unwrap().active);
    // The address went with the link's routes; a request now ends by time-out or waits.
    b.pair.post_receive(2, b.region.local(0..64)).unwrap();
    run("/vm/link-up 0");
    wait_for(AsyncEvent::PortUp(1));
    assert!(a.context.port(1).unwrap().active);
    a.send(1, 0..64, None).unwrap();
    assert!(poll_one(&a).status.is_success());
    assert!(poll_one(&b).status.is_success());
}

/// The traffic class is in the packets of both sides: requests of one and answers of the other.
#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn the_traffic_class_is_on_the_wire_both_ways() {
    let mut command = Command::new("tcpdump");
    // 104 is DSCP 26; `ip[1]` is the type of service byte, of which the lower two bits are ECN's.
    let filter = "udp port 4791 and ip[1] & 0xfc == 104 and (src 10.0.0.1 or src 10.0.0.2)";
    command
        .args(["-i", "rank0", "-nn", "-l", "-c", "2", "-Q", "inout", filter])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    end_with_parent(&mut command);
    let mut tcpdump = command.spawn().unwrap();
    let mut said = std::io::BufReader::new(tcpdump.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening on") {
        line.clear();
        assert_ne!(
            std::io::BufRead::read_line(&mut said, &mut line).unwrap(),
            0
        );
    }
    let (a, b) = ends();
    b.pair.post_receive(2, b.region.local(0..64)).unwrap();
    a.send(1, 0..64, None).unwrap();
    assert!(poll_one(&a).status.is_success());
    // Two packets of the class: the request and its acknowledgement.
    let output = tcpdump.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("10.0.0.1.") && text.contains("> 10.0.0.2.4791"),
        "{text}"
    );
    assert!(text.contains("> 10.0.0.1.4791"), "{text}");
}

/// A conversation through rdma_cm, from 10.0.0.1 to 10.0.0.2. Over IPv6 the kernel refuses it between two interfaces of
/// one network namespace: its check of where a request came from does not ask the rules of routing.
#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn connections_through_rdma_cm() {
    let library = Library::load().unwrap();
    let listening = EventChannel::new(&library).unwrap();
    let listener = CmId::new(&listening).unwrap();
    listener.set_traffic_class(104).unwrap();
    listener.listen("10.0.0.2:0".parse().unwrap(), 4).unwrap();
    let at = listener.local_address().unwrap();

    let passive = thread::spawn(move || passive_side(&listening, &listener));
    let channel = EventChannel::new(&library).unwrap();
    let id = resolved(&channel, at);
    assert_eq!(id.device().as_deref(), Some("rxe0"));
    let a = End::unconnected(&context("rxe0"), 1, Wish::default()).unwrap();
    id.connect(&terms(&a), b"hello").unwrap();
    let response = next(&channel);
    assert!(
        matches!(response.kind, CmEventKind::ConnectResponse),
        "{response:?}"
    );
    assert_eq!(&response.private_data[..5], b"world");
    id.ready(&a.pair, Access::ALL).unwrap();
    id.establish().unwrap();
    a.region.memory().write(b"over rdma_cm");
    a.send(1, 0..12, Some(12)).unwrap();
    assert!(poll_one(&a).status.is_success());
    id.disconnect().unwrap();
    let event = next(&channel);
    assert!(matches!(event.kind, CmEventKind::Disconnected), "{event:?}");
    passive.join().unwrap();

    // Nobody listens any more: refused, and told so.
    let id = resolved(&channel, at);
    let a = End::unconnected(&context("rxe0"), 1, Wish::default()).unwrap();
    id.connect(&terms(&a), &[]).unwrap();
    let event = next(&channel);
    assert!(
        matches!(event.kind, CmEventKind::Failed { .. }),
        "{event:?}"
    );
}

fn passive_side(channel: &Arc<EventChannel>, listener: &CmId) {
    let request = next(channel);
    assert_eq!(request.id, listener.token());
    assert_eq!(&request.private_data[..5], b"hello");
    let CmEventKind::ConnectRequest(id) = request.kind else {
        panic!("{request:?}");
    };
    assert_eq!(id.device().as_deref(), Some("rxe1"));
    assert_eq!(id.peer_address().unwrap().ip().to_string(), "10.0.0.1");
    let b = End::unconnected(&context("rxe1"), 1, Wish::default()).unwrap();
    id.ready(&b.pair, Access::ALL).unwrap();
    b.pair.post_receive(2, b.region.local(0..64)).unwrap();
    id.accept(&terms(&b), b"world").unwrap();
    let event = next(channel);
    assert!(matches!(event.kind, CmEventKind::Established), "{event:?}");
    let completion = poll_one(&b);
    assert!(completion.status.is_success());
    assert_eq!(completion.immediate, Some(12));
    assert_eq!(b.read_bytes(0..12), b"over rdma_cm");
    let event = next(channel);
    assert!(matches!(event.kind, CmEventKind::Disconnected), "{event:?}");
    assert_eq!(poll_within(&b, Duration::ZERO), None);
}

fn resolved(channel: &Arc<EventChannel>, to: SocketAddr) -> CmId {
    let id = CmId::new(channel).unwrap();
    id.set_traffic_class(104).unwrap();
    id.resolve_address("10.0.0.1:0".parse().unwrap(), to, Duration::from_secs(2))
        .unwrap();
    let event = next(channel);
    assert!(
        matches!(event.kind, CmEventKind::AddressResolved),
        "{event:?}"
    );
    id.resolve_route(Duration::from_secs(2)).unwrap();
    let event = next(channel);
    assert!(
        matches!(event.kind, CmEventKind::RouteResolved),
        "{event:?}"
    );
    id
}

fn next(channel: &Arc<EventChannel>) -> CmEvent {
    channel.wait(Instant::now() + LONG).unwrap()
}

fn terms(end: &End) -> ConnectionTerms {
    ConnectionTerms {
        queue_pair: end.pair.number(),
        reads_answered: 4,
        reads_asked: 4,
        retries: 6,
        rnr_retries: 6,
    }
}
