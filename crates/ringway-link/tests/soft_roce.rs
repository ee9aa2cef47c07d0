//! The device in software against Linux's soft RoCE, in the virtual machine of `cargo xtask test vm`: `rxe0` at 10.0.0.1
//! and fd00::1 through verbs, and in a network namespace of its own, where UDP port 4791 is free, the endpoint at 10.0.0.9
//! and fd00::9.
#![allow(clippy::unwrap_used, reason = "a test")]

mod soft_network;

use std::{
    fmt::Write as _,
    io::{BufReader, Lines, Write as _},
    process::{Child, ChildStdin, ChildStdout},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use ringway_link::rdma::{
    Access, AckTimeout, Address, Completion, Device, Done, Key, QueuePair, QueuePairOptions,
    ReceiveRequest, Region, Remote, SendRequest, SoftwareDevice, SoftwareOptions, Source, Status,
    Verbs, Work,
};
use ringway_sys::{Epoll, Interest, Staging};
use ringway_verbs::{
    Library,
    gid::{Family, Wish},
};
use soft_network::{Faults, in_namespace, line_with, lines};

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
    ended: Vec<Completion>,
    /// The bytes that it sends begin with this one.
    seed: u64,
}

impl Side {
    fn new(mut device: Box<dyn Device>, seed: u64) -> Self {
        let memory = Staging::new(SIZE as usize);
        let region = device.register(memory.memory(), Access::ALL).unwrap();
        let options = QueuePairOptions {
            // 268 ms: an emulated kernel on a busy host takes longer to answer than a NIC does.
            ack_timeout: AckTimeout::new(16).unwrap(),
            ..QueuePairOptions::default()
        };
        let pair = device.create(&options).unwrap();
        let mut side = Self {
            device,
            pair,
            region,
            memory,
            ended: Vec::new(),
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

    /// The completion of a request, slept for; the device works meanwhile for the other side. Those of the other queue may
    /// come before: a lost acknowledgement keeps a SEND from completing, not the other side from going on.
    fn completion(&mut self, id: u64) -> Completion {
        let deadline = Instant::now() + LONG;
        let set = Epoll::new().unwrap();
        set.add(self.device.fd(), 0, Interest::Read).unwrap();
        loop {
            if let Some(at) = self.ended.iter().position(|ended| ended.id == id) {
                return self.ended.swap_remove(at);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no completion came");
            let mut got = Vec::new();
            self.device.poll(Instant::now(), &mut got).unwrap();
            let nothing = got.is_empty();
            self.ended.extend(got);
            if nothing {
                if self.device.arm() {
                    set.wait(&mut Vec::new(), Some(left)).unwrap();
                }
                self.device.disarm();
            }
        }
    }

    fn done(&mut self, id: u64, what: Done) {
        assert_eq!(self.completion(id).result, Ok(what), "request {id}");
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

    /// The next line of standard input. Until then the device goes on answering: if its last acknowledgement was lost, the
    /// other side sends again.
    fn answers_until_told(&mut self) -> Option<String> {
        let (sender, said) = mpsc::channel();
        thread::spawn(move || {
            let line = std::io::stdin().lines().next().map(Result::unwrap);
            sender.send(line)
        });
        loop {
            self.device.poll(Instant::now(), &mut self.ended).unwrap();
            if let Ok(line) = said.recv_timeout(Duration::from_millis(10)) {
                return line;
            }
        }
    }

    /// All retries go unheard.
    fn finds_nobody(&mut self) {
        let request = SendRequest {
            id: 21,
            work: Work::Send {
                source: Source::Inline(b"hello?"),
                immediate: None,
            },
            signaled: true,
            solicited: false,
        };
        self.device.post_send(self.pair, &request).unwrap();
        let result = self.completion(21).result;
        let status = result.map_err(|failure| failure.status);
        assert_eq!(status, Err(Status::RetriesExceeded));
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

/// The child: the endpoint in software, which is acted upon first, then acts, and at last finds its peer gone.
fn endpoint(ip: &str) {
    let options = SoftwareOptions {
        ip: ip.parse().unwrap(),
        roce_port: true,
    };
    let mut side = Side::new(Box::new(SoftwareDevice::open(&options).unwrap()), 2);
    println!("\n{}", side.introduction());
    let mut lines = std::io::stdin().lines().map(Result::unwrap);
    let peer = side.connect(&lines.next().unwrap());
    println!("\nconnected");
    side.suffer(1);
    side.act(peer);
    println!("\ndone");
    drop(lines);
    if side.answers_until_told().as_deref() == Some("gone") {
        side.finds_nobody();
    }
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn software_and_the_kernel_work_in_each_others_memory() {
    if let Ok(ip) = std::env::var(ROLE) {
        endpoint(&ip);
        return;
    }
    // More than once: each time with other queue pairs, keys and sequence numbers.
    for family in [Family::V4, Family::V6, Family::V4, Family::V6] {
        let mut pair = Pair::new(family);
        pair.converse();
        pair.kernel_goes();
    }
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn a_network_that_misbehaves_changes_nothing() {
    for family in [Family::V4, Family::V6] {
        for faults in [
            "loss 1%",
            "loss 5%",
            "duplicate 5%",
            "delay 2ms reorder 5%",
            "delay 1ms loss 1% duplicate 1% reorder 2%",
        ] {
            let mut pair = Pair::new(family);
            let network = Faults::new(faults);
            pair.converse();
            pair.ends();
            if faults == "loss 5%" {
                // Of hundreds of packets.
                assert!(network.dropped() > 0);
            }
        }
    }
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn the_kernel_notices_that_the_endpoint_is_dead() {
    for family in [Family::V4, Family::V6] {
        let mut pair = Pair::new(family);
        pair.child.kill().unwrap();
        pair.child.wait().unwrap();
        pair.side.finds_nobody();
    }
}

/// rxe here and the endpoint in a child, connected.
struct Pair {
    side: Side,
    peer: Remote,
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Pair {
    fn new(family: Family) -> Self {
        let library = Library::load().unwrap();
        let wish = Wish {
            family,
            address: None,
        };
        let device = Verbs::open(&library, "rxe0", 1, wish).unwrap();
        let mut side = Side::new(Box::new(device), 1);
        let ip = match family {
            Family::V4 => "10.0.0.9",
            Family::V6 => "fd00::9",
        };
        let test = "software_and_the_kernel_work_in_each_others_memory";
        let mut child = in_namespace(test, ROLE, ip).spawn().unwrap();
        let mut lines = lines(&mut child);
        let introduction = line_with("side ", &mut lines);
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "{}", side.introduction()).unwrap();
        let peer = side.connect(&introduction);
        line_with("connected", &mut lines);
        Self {
            side,
            peer,
            child,
            input,
            lines,
        }
    }

    /// All operations, the kernel's first and then the endpoint's.
    fn converse(&mut self) {
        self.side.act(self.peer);
        self.side.suffer(2);
        line_with("done", &mut self.lines);
    }

    /// The kernel's queue pair ends, and the endpoint has to find out.
    fn kernel_goes(mut self) {
        self.side.device.destroy(self.side.pair);
        writeln!(self.input, "gone").unwrap();
        self.ends();
    }

    /// Waits for the child, which has nothing more to do.
    fn ends(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}
