//! The device in software against Linux's soft RoCE, in the virtual machine of `cargo xtask test vm`: `rxe0` at fd00::1
//! through verbs, and in a network namespace of its own, where UDP port 4791 is free, the endpoint at fd00::9.
//!
//! Not over IPv4: rxe counts the identification of its packets, which the CRC covers and a UDP socket does not tell.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::{
    collections::VecDeque,
    fmt::Write as _,
    io::{BufRead, BufReader, Write as _},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use ringway_link::rdma::{
    Access, Address, Completion, Device, Done, Key, QueuePair, QueuePairOptions, ReceiveRequest,
    Region, Remote, SendRequest, SoftwareDevice, SoftwareOptions, Source, Verbs, Work,
};
use ringway_sys::{Epoll, Interest, Staging, end_with_parent};
use ringway_verbs::{
    Library,
    gid::{Family, Wish},
};

const LONG: Duration = Duration::from_secs(20);
const ROLE: &str = "RINGWAY_TEST_ENDPOINT";

/// The length of a message: several packets, and a last one that is no multiple of four.
const LEN: u64 = 100_003;
/// Places in each side's memory: what it sends, what it gets by SEND, by WRITE and by READ, and a number.
const OUT: u64 = 0;
const SENT: u64 = 1 << 17;
const WRITTEN: u64 = 2 << 17;
const READ: u64 = 3 << 17;
const NUMBER: u64 = 4 << 17;
const SIZE: u64 = 5 << 17;

/// One side: a device with a queue pair and memory.
struct Side {
    device: Box<dyn Device>,
    pair: QueuePair,
    region: Region,
    memory: Staging,
    ended: VecDeque<Completion>,
    /// The bytes that it sends begin with this one.
    seed: u64,
}

impl Side {
    fn new(mut device: Box<dyn Device>, seed: u64) -> Self {
        let memory = Staging::new(SIZE as usize);
        let region = device.register(memory.memory(), Access::ALL).unwrap();
        let pair = device.create(&QueuePairOptions::default()).unwrap();
        let mut side = Self {
            device,
            pair,
            region,
            memory,
            ended: VecDeque::new(),
            seed,
        };
        side.put(OUT, &pattern(seed));
        side.put(NUMBER, &(40 + seed).to_ne_bytes());
        // For the other side's turn: a SEND, a WRITE with immediate data, and the SEND that ends it.
        for (id, at) in [(1, SENT), (2, SENT), (3, SENT + LEN)] {
            let into = side.region.local(at..at + if id == 1 { LEN } else { 64 });
            side.device
                .post_receive(pair, ReceiveRequest { id, into })
                .unwrap();
        }
        side
    }

    /// What the other side has to know, in a line.
    fn introduction(&self) -> String {
        let mut line = String::from("side ");
        for byte in self.device.address(self.pair).unwrap().encode() {
            write!(line, "{byte:02x}").unwrap();
        }
        write!(line, " {} {}", self.region.address, self.region.remote.0).unwrap();
        line
    }

    fn connect(&mut self, introduction: &str) -> Remote {
        let mut words = introduction.split(' ').skip(1);
        let hex = words.next().unwrap();
        let bytes: Vec<u8> = (0..hex.len() / 2)
            .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let address = words.next().unwrap().parse().unwrap();
        let key = Key(words.next().unwrap().parse().unwrap());
        let peer = Address::parse(&bytes).unwrap();
        self.device.connect(self.pair, &peer).unwrap();
        Remote { key, address }
    }

    /// The next completion, slept for; the device works meanwhile for the other side.
    fn next(&mut self) -> Completion {
        let deadline = Instant::now() + LONG;
        let set = Epoll::new().unwrap();
        set.add(self.device.fd(), 0, Interest::Read).unwrap();
        loop {
            if let Some(ended) = self.ended.pop_front() {
                return ended;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no completion came");
            let mut got = Vec::new();
            self.device.poll(Instant::now(), &mut got).unwrap();
            self.ended.extend(got);
            if self.ended.is_empty() {
                if self.device.arm() {
                    set.wait(&mut Vec::new(), Some(left)).unwrap();
                }
                self.device.disarm();
            }
        }
    }

    fn done(&mut self, id: u64, what: Done) {
        let ended = self.next();
        assert_eq!((ended.id, ended.result), (id, Ok(what)));
    }

    fn ask(&mut self, id: u64, work: Work<'_>, done: Done) {
        let request = SendRequest {
            id,
            work,
            signaled: true,
            solicited: false,
        };
        self.device.post_send(self.pair, &request).unwrap();
        self.done(id, done);
    }

    /// Every operation, in the memory of the other side.
    fn act(&mut self, peer: Remote) {
        let at = |place: u64| Remote {
            address: peer.address + place,
            ..peer
        };
        let source = Source::Memory(self.region.local(OUT..OUT + LEN));
        let immediate = Some(0x5ca1_ab1e);
        self.ask(11, Work::Send { source, immediate }, Done::Send);
        let remote = at(WRITTEN);
        let write = Work::Write {
            source,
            remote,
            immediate,
        };
        self.ask(12, write, Done::Write);
        let into = self.region.local(READ..READ + LEN);
        self.ask(13, Work::Read { into, remote }, Done::Read);
        assert!(self.get(READ, LEN) == pattern(self.seed), "READ");
        let (into, remote) = (self.region.local(READ..READ + 8), at(NUMBER));
        let add = 2;
        self.ask(14, Work::FetchAdd { into, remote, add }, Done::FetchAdd);
        let before = u64::from_ne_bytes(self.get(READ, 8).try_into().unwrap());
        let swap = Work::CompareSwap {
            into,
            remote,
            compare: before + 2,
            swap: 7,
        };
        self.ask(15, swap, Done::CompareSwap);
        assert_eq!(self.get(READ, 8), (before + 2).to_ne_bytes());
        let source = Source::Inline(b"that was all");
        let immediate = None;
        self.ask(16, Work::Send { source, immediate }, Done::Send);
    }

    /// What the other side's turn looks like from here.
    fn suffer(&mut self, peer_seed: u64) {
        let (length, immediate) = (LEN as u32, 0x5ca1_ab1e);
        let sent = Done::Receive {
            length,
            immediate: Some(immediate),
        };
        self.done(1, sent);
        assert!(self.get(SENT, LEN) == pattern(peer_seed), "SEND");
        self.done(2, Done::ReceiveWrite { length, immediate });
        assert!(self.get(WRITTEN, LEN) == pattern(peer_seed), "WRITE");
        let last = Done::Receive {
            length: 12,
            immediate: None,
        };
        self.done(3, last);
        assert_eq!(self.get(SENT + LEN, 12), b"that was all");
        assert_eq!(self.get(NUMBER, 8), 7_u64.to_ne_bytes());
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        self.memory
            .memory()
            .slice(at..at + bytes.len())
            .write(bytes);
    }

    fn get(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        let at = at as usize;
        self.memory
            .memory()
            .slice(at..at + bytes.len())
            .read(&mut bytes);
        bytes
    }
}

fn pattern(seed: u64) -> Vec<u8> {
    (0..LEN).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

/// The child: the endpoint in software, which is acted upon first and then acts.
fn endpoint() {
    let options = SoftwareOptions {
        ip: "fd00::9".parse().unwrap(),
        roce_port: true,
    };
    let mut side = Side::new(Box::new(SoftwareDevice::open(&options).unwrap()), 2);
    println!("\n{}", side.introduction());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let peer = side.connect(line.trim());
    println!("\nconnected");
    side.suffer(1);
    side.act(peer);
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn software_and_the_kernel_work_in_each_others_memory() {
    if std::env::var_os(ROLE).is_some() {
        endpoint();
        return;
    }
    shell(
        "ip netns add endpoint
        ip link add rank9 netns endpoint mtu 4200 type veth peer name port9 mtu 4200
        ip link set port9 master fabric up
        ip -n endpoint link set rank9 up
        ip -n endpoint addr add fd00::9/64 dev rank9 nodad",
    );
    // More than once: each time with other queue pairs, keys and sequence numbers.
    for _ in 0..3 {
        converse();
    }
}

fn shell(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success(), "{script}");
}

fn converse() {
    let library = Library::load().unwrap();
    let wish = Wish {
        family: Family::V6,
        address: None,
    };
    let device = Verbs::open(&library, "rxe0", 1, wish).unwrap();
    let mut side = Side::new(Box::new(device), 1);
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", "endpoint"])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture"])
        .env(ROLE, "yes")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    end_with_parent(&mut command);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line_with = |start: &str| {
        lines
            .find_map(|line| line.ok().filter(|line| line.starts_with(start)))
            .expect("the endpoint ended early")
    };
    let introduction = line_with("side ");
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{}", side.introduction()).unwrap();
    let peer = side.connect(&introduction);
    line_with("connected");
    side.act(peer);
    side.suffer(2);
    assert!(child.wait().unwrap().success());
}
