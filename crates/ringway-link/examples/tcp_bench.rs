//! Measures the TCP transport between processes on this host.
//!
//! ```text
//! cargo run --release -p ringway-link --example tcp_bench -- [ranks [latency|oneway|both|all]]
//! ```
//!
//! `latency` is half the time of a ping-pong, `oneway` and `both` are bandwidths of a ring in which each rank
//! sends to the next (`oneway`: only rank 0 does), a few messages ahead. CPU seconds are those of all ranks
//! together. The example starts its own ranks.
#![allow(
    clippy::unwrap_used,
    reason = "a measurement that fails should say where"
)]

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_link::{
    Bind, Event, Identity, InterfaceFilter, JobId, Listener, MessageKey, PeerAddress, Sink,
    Transport,
    tcp::{TcpSettings, TcpTransport},
};
use ringway_sys::{Memory, Staging};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let Ok(rank) = env::var("TCP_BENCH_RANK") {
        return run(rank.parse().unwrap(), &arguments);
    }
    let ranks: usize = arguments.first().map_or(2, |n| n.parse().unwrap());
    let mut children: Vec<Child> = (0..ranks)
        .map(|rank| {
            Command::new(env::current_exe().unwrap())
                .args(&arguments)
                .env("TCP_BENCH_RANK", rank.to_string())
                .env("TCP_BENCH_RANKS", ranks.to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    // The launcher is the rendezvous: it reads each rank's address, and tells all to all.
    let mut outputs: Vec<_> = children
        .iter_mut()
        .map(|child| BufReader::new(child.stdout.take().unwrap()))
        .collect();
    let mut addresses = String::new();
    for output in &mut outputs {
        output.read_line(&mut addresses).unwrap();
    }
    for child in &mut children {
        child
            .stdin
            .take()
            .unwrap()
            .write_all(addresses.as_bytes())
            .unwrap();
    }
    for output in outputs {
        output
            .lines()
            .for_each(|line| println!("{}", line.unwrap()));
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

fn setting(name: &str, default: usize) -> usize {
    env::var(name).map_or(default, |value| value.parse().unwrap())
}

struct Bench {
    tcp: TcpTransport,
    rank: usize,
    ranks: usize,
    events: Vec<Event>,
    op: u32,
    sent: usize,
    received: usize,
}

fn run(rank: usize, arguments: &[String]) {
    let ranks = setting("TCP_BENCH_RANKS", 2);
    if ranks <= ringway_sys::cpu_count() {
        let mut core = rustix::thread::CpuSet::new();
        core.set(rank);
        rustix::thread::sched_setaffinity(None, &core).unwrap();
    }
    let identity = Identity::new(JobId::from_name("bench"), ranks, rank);
    let listener = Arc::new(Listener::start(&Bind::default(), identity).unwrap());
    let own = listener
        .address(&InterfaceFilter::default())
        .unwrap()
        .encode();
    let hex: String = own.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{hex}");
    let addresses = std::io::stdin().lines().map(|line| {
        let line = line.unwrap();
        let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..line.len()).step_by(2).map(byte).collect();
        PeerAddress::decode(&bytes).unwrap()
    });
    let defaults = TcpSettings::default();
    let settings = TcpSettings {
        eager_limit: setting("EAGER", defaults.eager_limit),
        streams: setting("STREAMS", defaults.streams),
        socket_buffers: env::var("BUFFERS").ok().map(|bytes| bytes.parse().unwrap()),
        ..defaults
    };
    let tcp = TcpTransport::new(listener, addresses.collect(), settings).unwrap();
    let mut bench = Bench {
        tcp,
        rank,
        ranks,
        events: Vec::new(),
        op: 0,
        sent: 0,
        received: 0,
    };
    let what = arguments.get(1).map_or("all", String::as_str);
    if matches!(what, "latency" | "all") {
        for bytes in [0, 4, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10] {
            bench.latency(bytes);
        }
    }
    for (name, both) in [("oneway", false), ("both", true)] {
        if matches!(what, "all") || what == name {
            for power in [16, 20, 22, 24, 26, 28] {
                bench.bandwidth(1 << power, both, setting("SLICE", 512 << 10));
            }
        }
    }
    bench.tcp.close(Duration::from_secs(5));
}

impl Bench {
    fn key(&self, slice: u32) -> MessageKey {
        MessageKey {
            group: 0,
            op: self.op,
            lane: 0,
            message: 0,
            slice,
        }
    }

    /// Polls until so many messages are sent and received in this operation.
    fn until(&mut self, sent: usize, received: usize) {
        let began = Instant::now();
        let mut now = began;
        let mut polls = 0_u32;
        while self.sent < sent || self.received < received {
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(256) {
                now = Instant::now();
                assert!(now - began < Duration::from_secs(60), "stuck");
            }
            if self.ranks > ringway_sys::cpu_count() && polls.is_multiple_of(64) {
                std::thread::yield_now();
            }
            self.tcp.poll(now, &mut self.events);
            for event in self.events.drain(..) {
                match event {
                    Event::Sent { .. } => self.sent += 1,
                    Event::Received { peer, key, .. } => {
                        self.tcp.release(peer, key);
                        self.received += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn op(&mut self, body: impl FnOnce(&mut Self)) {
        self.tcp.begin(0, self.op, 1);
        (self.sent, self.received) = (0, 0);
        body(self);
        self.tcp.cancel(0, self.op);
        self.op += 1;
    }

    /// All wait for rank 0, and rank 0 for all.
    fn meet(&mut self) {
        self.op(|bench| {
            let others: Vec<usize> = if bench.rank == 0 {
                (1..bench.ranks).collect()
            } else {
                vec![0]
            };
            for &peer in &others {
                bench.tcp.recv(peer, bench.key(0), Sink::View(0)).unwrap();
            }
            if bench.rank == 0 {
                bench.until(0, others.len());
            }
            for &peer in &others {
                bench
                    .tcp
                    .send(peer, bench.key(0), Memory::EMPTY, 0)
                    .unwrap();
            }
            bench.until(others.len(), others.len());
        });
    }

    fn latency(&mut self, bytes: usize) {
        self.meet();
        let (out, into) = (Staging::new(bytes), Staging::new(bytes));
        let mut times = Vec::new();
        let began = Instant::now();
        let rounds = if bytes <= 4096 { 4_000 } else { 1_000 };
        for _ in 0..rounds {
            let before = Instant::now();
            self.op(|bench| {
                if bench.rank > 1 {
                    return;
                }
                let peer = 1 - bench.rank;
                bench
                    .tcp
                    .recv(peer, bench.key(0), Sink::Place(into.memory()))
                    .unwrap();
                if bench.rank == 1 {
                    bench.until(0, 1);
                }
                bench.tcp.send(peer, bench.key(0), out.memory(), 0).unwrap();
                bench.until(1, 1);
            });
            times.push(before.elapsed());
        }
        self.meet();
        if self.rank == 0 {
            times.sort_unstable();
            let us = |time: Duration| time.as_secs_f64() * 1e6 / 2.0;
            println!(
                "latency {bytes:>8} B: half a round trip {:.2} us median, {:.2} us p99 ({:.1} s)",
                us(times[times.len() / 2]),
                us(times[times.len() * 99 / 100]),
                began.elapsed().as_secs_f64()
            );
        }
    }

    fn bandwidth(&mut self, bytes: usize, both: bool, slice: usize) {
        let (out, into) = (Staging::new(bytes), Staging::new(bytes));
        let slices = bytes.div_ceil(slice);
        let part = |memory: Memory, s: usize| memory.slice(s * slice..bytes.min((s + 1) * slice));
        let (next, previous) = (
            (self.rank + 1) % self.ranks,
            (self.rank + self.ranks - 1) % self.ranks,
        );
        let sends = both || self.rank == 0;
        let receives = both || self.rank == 1;
        let mut rates = Vec::new();
        let rounds = (1_usize << 29).div_ceil(bytes).clamp(4, 300);
        self.meet();
        let cpu = cpu_seconds();
        for _ in 0..rounds {
            let before = Instant::now();
            self.op(|bench| {
                for s in 0..slices {
                    if receives {
                        let sink = Sink::Place(part(into.memory(), s));
                        bench.tcp.recv(previous, bench.key(s as u32), sink).unwrap();
                    }
                }
                for s in 0..slices {
                    if sends {
                        bench
                            .tcp
                            .send(next, bench.key(s as u32), part(out.memory(), s), 0)
                            .unwrap();
                    }
                }
                bench.until(slices * usize::from(sends), slices * usize::from(receives));
            });
            self.meet();
            rates.push(bytes as f64 / before.elapsed().as_secs_f64() / 1e9);
        }
        let cpu = cpu_seconds() - cpu;
        let moved = bytes as f64 * rounds as f64 * if both { self.ranks as f64 } else { 1.0 } / 1e9;
        if self.rank == 0 {
            rates.sort_by(f64::total_cmp);
            println!(
                "{} {:>6} KiB: {:.2} GB/s median, {:.2} best; this rank {:.3} CPU s per GB moved by all",
                if both { "both  " } else { "oneway" },
                bytes >> 10,
                rates[rates.len() / 2],
                rates[rates.len() - 1],
                cpu / moved
            );
        }
    }
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    // User and system time, in ticks of 10 ms.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}
