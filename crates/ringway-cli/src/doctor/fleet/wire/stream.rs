//! How many bytes a second come through a stream of TCP, one way at a time; and by RDMA, where both ends have it.
//!
//! Who asks says for how long and in which direction. The receiver measures: from a moment after the first byte, when TCP has
//! found its pace, to the last.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use ringway_doctor::fleet;
use socket2::{Domain, Protocol, Socket, Type};

use super::port::Address;
use crate::perf::{Name, Probe};

/// How often a direction is measured: the best counts, as a moment's disturbance only slows down.
const RUNS: usize = 3;

/// How long bytes are sent.
const SEND: Duration = Duration::from_millis(150);

/// What TCP takes to find its pace: not measured.
const WARM: Duration = Duration::from_millis(50);

/// How long nothing may come.
const SILENCE: Duration = Duration::from_millis(1500);

/// Bytes that are handed to the kernel at once.
const BLOCK: usize = 256 << 10;

/// A question: the token, and what is asked for.
const QUESTION: usize = 9;

/// What is asked for: that the asked end receives, or sends, or serves a probe of RDMA. The device of the last three is a NIC's;
/// with `IN_SOFTWARE` added Ringway's own.
const RECEIVE: u8 = 0;
const SEND_BACK: u8 = 1;
const PROBES: [(u8, Probe); 3] = [
    (2, Probe::WriteBandwidth),
    (3, Probe::ReadBandwidth),
    (4, Probe::WriteLatency),
];
const IN_SOFTWARE: u8 = 16;

/// Which devices RDMA is measured with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::doctor) enum Rdma {
    /// NICs, where both ends' interfaces have one.
    #[default]
    Nics,
    /// Ringway's device in software, which takes any interface.
    Software,
    /// None.
    None,
}

impl Rdma {
    /// This end's device for a way, if there is one at both ends.
    pub(super) fn device(self, from: &Address, to: &Address) -> Option<Name> {
        match self {
            Self::Nics => {
                let (device, port) = from.rdma.clone().filter(|_| to.rdma.is_some())?;
                Some(Name::Verbs(device, port))
            }
            Self::Software => Some(Name::Software),
            Self::None => None,
        }
    }
}

/// Answers those who ask for streams, until it is dropped.
pub(super) struct Streams {
    pub(super) port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Streams {
    pub(super) fn start(token: u64, addresses: Vec<Address>) -> io::Result<Self> {
        let listener = listen()?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("doctor-streams".to_owned())
            .spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    match listener.accept() {
                        // One at a time: a pair measures alone. What a stranger does ends by itself.
                        Ok((stream, _)) => drop(answer(stream, token, &addresses)),
                        Err(_) => thread::sleep(Duration::from_millis(2)),
                    }
                }
            })?;
        Ok(Self {
            port,
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// All addresses of this host, IPv4 and IPv6.
fn listen() -> io::Result<TcpListener> {
    let open = |address: IpAddr| {
        let address = SocketAddr::new(address, 0);
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        socket.listen(16)?;
        Ok(socket.into())
    };
    open([0; 16].into()).or_else(|_: io::Error| open([0, 0, 0, 0].into()))
}

fn answer(mut stream: TcpStream, token: u64, addresses: &[Address]) -> Result<()> {
    prepare(&stream)?;
    let here = stream.local_addr()?.ip().to_canonical();
    let here = addresses.iter().find(|it| it.ip == here);
    if let Some(here) = here {
        here.hold(&stream);
    }
    let mut question = [0; QUESTION];
    stream.read_exact(&mut question)?;
    if question[..8] != token.to_be_bytes() {
        return Ok(());
    }
    match question[8] {
        RECEIVE => {
            let rate = receive(&mut stream)?;
            Ok(stream.write_all(&rate.to_be_bytes())?)
        }
        SEND_BACK => Ok(send(&mut stream)?),
        other => {
            let asked = |(number, _): &&(u8, Probe)| *number == other & !IN_SOFTWARE;
            let (_, probe) = PROBES.iter().find(asked).context("an unknown question")?;
            let device = match other & IN_SOFTWARE {
                0 => here.and_then(|it| it.rdma.clone()),
                _ => return probe.answer(stream, Name::Software),
            };
            let (device, port) = device.context("this address is no RDMA device's")?;
            probe.answer(stream, Name::Verbs(device, port))
        }
    }
}

/// The end that asks.
pub(super) struct Caller<'a> {
    pub(super) from: &'a Address,
    pub(super) to: SocketAddr,
    pub(super) token: u64,
}

impl Caller<'_> {
    /// Bytes per second from this end to the other, or back; none if no stream came through.
    pub(super) fn rate(&self, back: bool) -> Option<f64> {
        let rates = (0..RUNS).filter_map(|_| self.run(back).ok());
        rates.max_by(f64::total_cmp)
    }

    fn run(&self, back: bool) -> io::Result<f64> {
        if back {
            return receive(&mut self.call(SEND_BACK)?);
        }
        let mut stream = self.call(RECEIVE)?;
        send(&mut stream)?;
        let mut rate = [0; 8];
        stream.read_exact(&mut rate)?;
        Ok(f64::from_be_bytes(rate))
    }

    /// RDMA between this end's device and the other's.
    pub(super) fn rdma(&self, own: &Name) -> Result<fleet::Rdma> {
        let software = match own {
            Name::Software => IN_SOFTWARE,
            Name::Verbs(..) => 0,
        };
        let mut found = fleet::Rdma::default();
        for (number, probe) in PROBES {
            let stream = self.call(number | software)?;
            let (figure, devices) = probe.ask(stream, own.clone())?;
            let place = match probe {
                Probe::WriteBandwidth => &mut found.there,
                Probe::ReadBandwidth => &mut found.back,
                Probe::WriteLatency => &mut found.latency,
            };
            *place = figure;
            found.devices = devices;
        }
        Ok(found)
    }

    fn call(&self, question: u8) -> io::Result<TcpStream> {
        let socket = Socket::new(
            Domain::for_address(self.to),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        socket.bind(&SocketAddr::new(self.from.ip, 0).into())?;
        self.from.hold(&socket);
        socket.connect_timeout(&self.to.into(), SILENCE)?;
        let mut stream: TcpStream = socket.into();
        prepare(&stream)?;
        stream.write_all(&self.token.to_be_bytes())?;
        stream.write_all(&[question])?;
        Ok(stream)
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))
}

fn send(stream: &mut TcpStream) -> io::Result<()> {
    let block = vec![0; BLOCK];
    let end = Instant::now() + SEND;
    while Instant::now() < end {
        // A block at a time may take long on a slow link: what the kernel takes counts.
        let _ = stream.write(&block)?;
    }
    stream.shutdown(std::net::Shutdown::Write)
}

fn receive(stream: &mut TcpStream) -> io::Result<f64> {
    let mut block = vec![0; BLOCK];
    let first = stream.read(&mut block)?;
    let (mut start, mut bytes, mut last) = (Instant::now(), 0_usize, Instant::now());
    let mut warm = first > 0;
    // What waits in queues when the sender has ended comes late: it is not waited for.
    let end = start + SEND;
    loop {
        let length = stream.read(&mut block)?;
        let now = Instant::now();
        if warm && now - start >= WARM {
            (start, bytes, warm) = (now, 0, false);
        } else {
            bytes += length;
        }
        if length == 0 || now >= end {
            break;
        }
        last = now;
    }
    let elapsed = last.saturating_duration_since(start).as_secs_f64();
    if bytes == 0 || elapsed <= 0.0 {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "too few bytes came",
        ));
    }
    // The rest is taken, so that the sender is not cut off in the middle.
    let patience = Instant::now() + SILENCE;
    while Instant::now() < patience && stream.read(&mut block).is_ok_and(|length| length > 0) {}
    Ok(bytes as f64 / elapsed)
}
