//! What the software RDMA device reaches between two processes of this host: bandwidth of WRITEs, and half the round
//! trip of small SENDs.
//!
//!     cargo run --release -p ringway-link --example rdma_bench [ADDRESS]
//!     cargo run --release -p ringway-link --example rdma_bench -- --lossy
//!
//! ADDRESS is one of this host's, 127.0.0.1 if it is left out. With `--lossy`, the bandwidth through a relay that loses packets,
//! with selective retransmission and without.

mod relay;

use std::{
    env,
    error::Error,
    io::{self, Read, Write},
    net::IpAddr,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ringway_link::rdma::{
    Access, Address, Completion, Device, Key, Local, QueuePair, QueuePairOptions, ReceiveRequest,
    Region, Remote, SendRequest, SoftwareDevice, SoftwareOptions, Source, Work,
};
use ringway_sys::Staging;

const MEMORY: usize = 16 << 20;
const DEPTH: usize = 64;
/// How long each size is measured.
const TIME: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(60);
const ROUND_TRIPS: u32 = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some("--child") {
        let ip = arguments.next().unwrap_or_default().parse()?;
        return child(ip);
    }
    if first.as_deref() == Some("--lossy") {
        return lossy();
    }
    let ip: IpAddr = first.as_deref().unwrap_or("127.0.0.1").parse()?;
    let mut child = Command::new(env::current_exe()?)
        .args(["--child", &ip.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(mut to), Some(mut from)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("the child has no pipes".into());
    };
    let mut end = End::connect(ip, &mut from, &mut to)?;
    println!("{:>10} {:>8}", "WRITE", "GB/s");
    for bytes in [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20] {
        println!("{bytes:>10} {:>8.2}", end.write_bandwidth(bytes)?);
    }
    println!("{:>10} {:>8}", "SEND", "µs");
    for bytes in [8, 64, 1024, 4096] {
        println!("{bytes:>10} {:>8.2}", end.ping(bytes)?);
    }
    end.done = 0;
    end.send(0)?;
    while end.done == 0 {
        end.poll()?;
    }
    child.wait()?;
    end.device.counters(&mut |name, count| {
        if count > 0 {
            println!("{name} {count}");
        }
    });
    Ok(())
}

/// WRITEs of 1 MiB from one thread to another, through a third.
fn lossy() -> Result<(), Box<dyn Error>> {
    println!(
        "{:>6} {:>10} {:>8} {:>12} {:>12}",
        "lost", "", "GB/s", "sent again", "time-outs"
    );
    for lost in [0, 1, 10, 50] {
        for selective in [false, true] {
            let ip = "127.0.0.1".parse()?;
            let [own, peer] = [End::open(ip)?, End::open(ip)?];
            let addresses = [own.address()?, peer.address()?];
            let mut told = relay::start(addresses, lost)?;
            for software in told.iter_mut().filter_map(|it| it.software.as_mut()) {
                software.selective = selective;
            }
            let remotes = [own.own.remote(0), peer.own.remote(0)];
            let (mut own, mut peer) = (own, peer);
            own.join(&told[0], remotes[1])?;
            peer.join(&told[1], remotes[0])?;
            let done = Arc::new(AtomicBool::new(false));
            let is_done = done.clone();
            let answers = thread::spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    peer.poll().map_err(|error| error.to_string())?;
                    peer.start = Instant::now();
                }
                Ok::<(), String>(())
            });
            let bandwidth = own.write_bandwidth(1 << 20)?;
            done.store(true, Ordering::Relaxed);
            answers.join().map_err(|_| "the peer's thread panicked")??;
            let way = if selective { "selective" } else { "go-back-N" };
            let lost = lost as f64 / 10.0;
            let [again, sent, timeouts] =
                ["retransmitted", "packets_sent", "local_ack_timeout_err"]
                    .map(|name| own.counter(name));
            let again = 100.0 * again as f64 / sent as f64;
            println!("{lost:>5}% {way:>10} {bandwidth:>8.3} {again:>11.2}% {timeouts:>12}");
        }
    }
    Ok(())
}

/// Sends back whatever comes, until something empty does.
fn child(ip: IpAddr) -> Result<(), Box<dyn Error>> {
    let mut end = End::connect(ip, &mut io::stdin(), &mut io::stdout())?;
    loop {
        match end.receive()? {
            0 => break,
            bytes => end.send(bytes)?,
        }
    }
    // The last acknowledgement.
    end.poll()?;
    end.device.arm();
    Ok(())
}

struct End {
    device: SoftwareDevice,
    queue_pair: QueuePair,
    own: Region,
    peer: Remote,
    completions: Vec<Completion>,
    done: usize,
    received: Vec<usize>,
    start: Instant,
    _memory: Staging,
}

impl End {
    fn open(ip: IpAddr) -> Result<Self, Box<dyn Error>> {
        let memory = Staging::new(MEMORY);
        let mut device = SoftwareDevice::open(&SoftwareOptions {
            ip,
            roce_port: false,
        })?;
        let own = device.register(memory.memory(), Access::ALL)?;
        let queue_pair = device.create(&QueuePairOptions::default())?;
        Ok(Self {
            device,
            queue_pair,
            own,
            peer: own.remote(0),
            completions: Vec::new(),
            done: 0,
            received: Vec::new(),
            start: Instant::now(),
            _memory: memory,
        })
    }

    fn address(&self) -> Result<Address, Box<dyn Error>> {
        Ok(self.device.address(self.queue_pair)?)
    }

    fn join(&mut self, address: &Address, peer: Remote) -> Result<(), Box<dyn Error>> {
        self.peer = peer;
        for _ in 0..DEPTH {
            self.post_receive()?;
        }
        Ok(self.device.connect(self.queue_pair, address)?)
    }

    /// Opens an end and joins it with the one at the other end of the pipes.
    fn connect(
        ip: IpAddr,
        from: &mut impl Read,
        to: &mut impl Write,
    ) -> Result<Self, Box<dyn Error>> {
        let mut end = Self::open(ip)?;
        to.write_all(&end.address()?.encode())?;
        to.write_all(&end.own.remote.0.to_le_bytes())?;
        to.write_all(&end.own.address.to_le_bytes())?;
        to.flush()?;
        let (mut address, mut key, mut start) = ([0; Address::LEN], [0; 4], [0; 8]);
        from.read_exact(&mut address)?;
        from.read_exact(&mut key)?;
        from.read_exact(&mut start)?;
        let peer = Remote {
            key: Key(u32::from_le_bytes(key)),
            address: u64::from_le_bytes(start),
        };
        end.join(&Address::parse(&address)?, peer)?;
        Ok(end)
    }

    fn counter(&self, wanted: &str) -> u64 {
        let mut found = 0;
        self.device.counters(&mut |name, count| {
            if name == wanted {
                found = count;
            }
        });
        found
    }

    fn post_receive(&mut self) -> Result<(), Box<dyn Error>> {
        let into = self.own.local(0..4096);
        let request = ReceiveRequest { id: 0, into };
        Ok(self.device.post_receive(self.queue_pair, request)?)
    }

    fn post(&mut self, work: Work<'_>) -> Result<(), Box<dyn Error>> {
        let request = SendRequest {
            id: 0,
            work,
            signaled: true,
            solicited: false,
        };
        Ok(self.device.post_send(self.queue_pair, &request)?)
    }

    fn poll(&mut self) -> Result<(), Box<dyn Error>> {
        if self.start.elapsed() > LIMIT {
            return Err("no answer within a minute".into());
        }
        self.device.poll(Instant::now(), &mut self.completions)?;
        let mut receives = 0;
        for completion in self.completions.drain(..) {
            match completion.result? {
                ringway_link::rdma::Done::Receive { length, .. } => {
                    self.received.push(length as usize);
                    receives += 1;
                }
                _ => self.done += 1,
            }
        }
        for _ in 0..receives {
            self.post_receive()?;
        }
        Ok(())
    }

    fn send(&mut self, bytes: usize) -> Result<(), Box<dyn Error>> {
        let local = self.own.local(8192..8192 + bytes as u64);
        self.post(Work::Send {
            source: Source::Memory(local),
            immediate: None,
        })
    }

    fn receive(&mut self) -> Result<usize, Box<dyn Error>> {
        self.start = Instant::now();
        loop {
            if let Some(bytes) = self.received.pop() {
                return Ok(bytes);
            }
            self.poll()?;
        }
    }

    /// In GB/s.
    fn write_bandwidth(&mut self, bytes: usize) -> Result<f64, Box<dyn Error>> {
        self.start = Instant::now();
        (self.done, self.received) = (0, vec![]);
        let (mut posted, start) = (0, Instant::now());
        let window = (MEMORY / bytes).min(DEPTH);
        loop {
            let over = start.elapsed() > TIME;
            if over && self.done == posted {
                break;
            }
            if !over && posted - self.done < window {
                let at = ((posted % window) * bytes) as u64;
                let local: Local = self.own.local(at..at + bytes as u64);
                let remote = Remote {
                    address: self.peer.address + at,
                    ..self.peer
                };
                self.post(Work::Write {
                    source: Source::Memory(local),
                    remote,
                    immediate: None,
                })?;
                posted += 1;
                continue;
            }
            self.poll()?;
        }
        Ok((posted * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9)
    }

    /// Half a round trip in microseconds.
    fn ping(&mut self, bytes: usize) -> Result<f64, Box<dyn Error>> {
        let mut start = Instant::now();
        for round in 0..ROUND_TRIPS + 100 {
            if round == 100 {
                start = Instant::now();
            }
            self.send(bytes)?;
            self.receive()?;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(ROUND_TRIPS) / 2.0 * 1e6)
    }
}
