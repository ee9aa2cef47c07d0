//! Hosts as network namespaces: which of their addresses lead to a rank, and how a dead host is noticed.
//!
//! Needs root and `ip` (iproute2); without, the tests say so and pass.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ringway_link::{
    Arrival, Bind, Event, Identity, InterfaceFilter, JobId, Listener, MessageKey, PeerAddress,
    Purpose, Sink, Transport,
    tcp::{TcpSettings, TcpTransport},
};
use ringway_sys::Staging;

/// Namespaces are the machine's: one test at a time makes some.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Err(format!("ip: {error}")),
    }
}

/// Two hosts with a cable between them, gone when dropped.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// `None`, with the reason printed, where the machine cannot.
    fn new(addresses: [&[&str]; 2]) -> Option<Self> {
        let name = |side| format!("ringway-{}-{side}", std::process::id());
        let hosts = Self {
            names: [name("a"), name("b")],
        };
        match hosts.set_up(addresses) {
            Ok(()) => Some(hosts),
            Err(reason) => {
                println!("skipped: cannot make network namespaces: {reason}");
                None
            }
        }
    }

    fn set_up(&self, addresses: [&[&str]; 2]) -> Result<(), String> {
        let [a, b] = &self.names;
        for name in [a, b] {
            ip(&format!("netns add {name}"))?;
            // Addresses count at once, without the seconds that IPv6 takes to look for doubles.
            let quick =
                "for f in all default; do echo 0 > /proc/sys/net/ipv6/conf/$f/accept_dad; done";
            let done = Command::new("ip")
                .args(["netns", "exec", name, "sh", "-c", quick])
                .status();
            if !done.is_ok_and(|status| status.success()) {
                return Err("no IPv6 settings".into());
            }
            ip(&format!("-n {name} link set lo up"))?;
        }
        ip(&format!(
            "link add cable netns {a} type veth peer name cable netns {b}"
        ))?;
        for (name, addresses) in self.names.iter().zip(addresses) {
            ip(&format!("-n {name} link set cable up"))?;
            for address in addresses {
                ip(&format!("-n {name} address add {address} dev cable"))?;
            }
        }
        Ok(())
    }

    /// An interface with the same address on both hosts, as container bridges have.
    fn add_decoys(&self) {
        for name in &self.names {
            ip(&format!(
                "-n {name} link add docker0 type veth peer name docker1"
            ))
            .unwrap();
            for end in ["docker0", "docker1"] {
                ip(&format!("-n {name} link set {end} up")).unwrap();
            }
            ip(&format!("-n {name} address add 172.17.0.1/16 dev docker0")).unwrap();
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

/// A rank in a host: this test binary, running [`as_a_rank`].
struct Rank {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Rank {
    fn start(host: &str, rank: usize, task: &str) -> Self {
        let mut child = Command::new("ip")
            .args(["netns", "exec", host])
            .arg(env::current_exe().unwrap())
            .args(["--exact", "as_a_rank", "--nocapture", "--test-threads", "1"])
            .env("RINGWAY_TEST_RANK", rank.to_string())
            .env("RINGWAY_TEST_TASK", task)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The next thing it says, after the word `name`.
    fn said(&mut self, name: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.output.read_line(&mut line).unwrap();
            assert!(read > 0, "the rank ended before it said {name}");
            if let Some((_, rest)) = line.split_once(&format!("{name}=")) {
                return rest.trim().to_owned();
            }
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a rank on each host and tells them of each other.
fn start(hosts: &Hosts, task: &str) -> [Rank; 2] {
    let [a, b] = &hosts.names;
    let mut ranks = [Rank::start(a, 0, task), Rank::start(b, 1, task)];
    let addresses: Vec<String> = ranks.iter_mut().map(|rank| rank.said("address")).collect();
    for rank in &mut ranks {
        addresses.iter().for_each(|address| rank.tell(address));
    }
    ranks
}

/// Which address leads from the second host to the first.
fn found(hosts: &Hosts) -> String {
    let mut ranks = start(hosts, "meet");
    let remote = ranks[1].said("remote");
    assert_eq!(ranks[0].said("peer"), "1");
    remote
}

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The port is the same on both hosts, so that a decoy's address leads to a rank of the job: oneself.
#[test]
fn decoys_that_both_hosts_have_do_not_win() {
    let _alone = alone();
    let Some(hosts) = Hosts::new([&["10.9.0.1/24"], &["10.9.0.2/24"]]) else {
        return;
    };
    hosts.add_decoys();
    assert_eq!(found(&hosts), "10.9.0.1:29400");
}

#[test]
fn hosts_with_only_ipv6_meet() {
    let _alone = alone();
    let Some(hosts) = Hosts::new([&["fd09::1/64"], &["fd09::2/64"]]) else {
        return;
    };
    assert_eq!(found(&hosts), "[fd09::1]:29400");
}

#[test]
fn hosts_with_only_link_local_addresses_meet() {
    let _alone = alone();
    let Some(hosts) = Hosts::new([&[], &[]]) else {
        return;
    };
    hosts.add_decoys();
    let remote = found(&hosts);
    assert!(
        remote.starts_with("[fe80::") && remote.contains('%'),
        "{remote}"
    );
}

#[test]
fn with_both_families_a_broken_one_does_not_matter() {
    let _alone = alone();
    // The IPv4 addresses are on no common subnet and have no route.
    let Some(hosts) = Hosts::new([
        &["10.9.0.1/32", "fd09::1/64"],
        &["10.9.1.2/32", "fd09::2/64"],
    ]) else {
        return;
    };
    assert_eq!(found(&hosts), "[fd09::1]:29400");
}

#[test]
fn a_host_that_dies_is_noticed_while_sending_and_while_waiting() {
    let _alone = alone();
    let Some(hosts) = Hosts::new([&["10.9.0.1/24"], &["10.9.0.2/24"]]) else {
        return;
    };
    let mut ranks = start(&hosts, "stream");
    for rank in &mut ranks {
        assert_eq!(rank.said("streaming"), "yes");
    }
    let began = Instant::now();
    ip(&format!("-n {} link set cable down", hosts.names[0])).unwrap();
    for rank in &mut ranks {
        let lost = rank.said("lost");
        assert!(
            lost.contains("closed the connection") || lost.contains("timed out"),
            "{lost}"
        );
    }
    let took = began.elapsed();
    println!("a dead host was noticed after {took:.1?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// A rank, in its host; not a test by itself.
#[test]
fn as_a_rank() {
    let Ok(rank) = env::var("RINGWAY_TEST_RANK") else {
        return;
    };
    let rank: usize = rank.parse().unwrap();
    let bind = Bind {
        address: None,
        ports: "29400".parse().unwrap(),
    };
    let identity = Identity::new(JobId::from_name("namespaces"), 2, rank);
    let listener = Listener::start(&bind, identity).unwrap();
    let own = listener
        .address(&InterfaceFilter::default())
        .unwrap()
        .encode();
    let hex: String = own.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("address={hex}");
    let mut lines = std::io::stdin().lines();
    let mut next = || {
        let line = lines.next().unwrap().unwrap();
        let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..line.len()).step_by(2).map(byte).collect();
        PeerAddress::decode(&bytes).unwrap()
    };
    let addresses = vec![next(), next()];
    let deadline = Instant::now() + Duration::from_secs(20);
    match (env::var("RINGWAY_TEST_TASK").unwrap().as_str(), rank) {
        ("meet", 0) => match listener.inbox(Purpose::Control).wait(deadline) {
            Some(Arrival::Session(session)) => {
                println!("peer={}", session.peer);
                // Until the other has said where it found us.
                std::thread::sleep(Duration::from_secs(1));
            }
            other => panic!("{other:?}"),
        },
        ("meet", _) => {
            let session = listener
                .connect(addresses[0].clone(), Purpose::Control, 0, deadline)
                .unwrap();
            println!("remote={}", session.remote);
        }
        (_, rank) => stream(
            TcpTransport::new(Arc::new(listener), addresses, TcpSettings::default()).unwrap(),
            rank,
        ),
    }
}

/// Rank 0 sends without end, rank 1 receives without end, until the other is lost.
fn stream(mut tcp: TcpTransport, rank: usize) {
    let memory = Staging::new(1 << 20);
    let key = |slice| MessageKey {
        group: 0,
        op: 0,
        lane: 0,
        message: 0,
        slice,
    };
    tcp.begin(0, 0, 1);
    let mut events = Vec::new();
    for slice in 0.. {
        match rank {
            0 => tcp.send(1, key(slice), memory.memory(), 0).unwrap(),
            _ => tcp
                .recv(0, key(slice), Sink::Place(memory.memory()))
                .unwrap(),
        }
        loop {
            tcp.poll(Instant::now(), &mut events);
            match events.pop() {
                Some(Event::Lost { error, .. }) => {
                    println!("lost={error}");
                    return;
                }
                Some(_) => break,
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        if slice == 20 {
            println!("streaming=yes");
        }
    }
}
