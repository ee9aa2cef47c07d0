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
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
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

/// How long a probe of RDMA may take: its ends are patient for as long as each hears that the other is there.
const PROBE: Duration = Duration::from_secs(20);

/// Callers who have not said yet what they ask for, at a time.
const GUESTS: usize = 64;

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
                let mut guests = Vec::new();
                while !stopped.load(Ordering::Relaxed) {
                    match next(&listener, &mut guests, token) {
                        // One at a time: a pair measures alone.
                        Some((stream, question)) => drop(answer(stream, question, &addresses)),
                        None => thread::sleep(Duration::from_millis(2)),
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

/// A caller who has not said all of the question.
struct Guest {
    stream: TcpStream,
    said: [u8; QUESTION],
    length: usize,
    until: Instant,
}

impl Guest {
    /// Takes in what has come; says whether it is all.
    fn listen(&mut self) -> io::Result<bool> {
        match self.stream.read(&mut self.said[self.length..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.length += length;
                Ok(self.length == QUESTION)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A caller who has the token, and what is asked for. Strangers, who are silent or slow or say something else, keep nobody.
fn next(listener: &TcpListener, guests: &mut Vec<Guest>, token: u64) -> Option<(TcpStream, u8)> {
    while guests.len() < GUESTS
        && let Ok((stream, _)) = listener.accept()
    {
        if stream.set_nonblocking(true).is_ok() {
            guests.push(Guest {
                stream,
                said: [0; QUESTION],
                length: 0,
                until: Instant::now() + SILENCE,
            });
        }
    }
    let mut at = 0;
    while at < guests.len() {
        match guests[at].listen() {
            Ok(true) => {
                let guest = guests.swap_remove(at);
                if guest.said[..8] == token.to_be_bytes() {
                    return Some((guest.stream, guest.said[8]));
                }
            }
            Ok(false) if Instant::now() < guests[at].until => at += 1,
            _ => drop(guests.swap_remove(at)),
        }
    }
    None
}

/// Ends a connection after that time, unless what is returned is dropped before.
fn limit(stream: &TcpStream, time: Duration) -> io::Result<mpsc::Sender<()>> {
    let stream = stream.try_clone()?;
    let (done, ended) = mpsc::channel::<()>();
    thread::Builder::new()
        .name("doctor-limit".to_owned())
        .spawn(move || {
            if ended.recv_timeout(time) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        })?;
    Ok(done)
}

fn answer(mut stream: TcpStream, question: u8, addresses: &[Address]) -> Result<()> {
    prepare(&stream)?;
    let here = stream.local_addr()?.ip().to_canonical();
    let here = addresses.iter().find(|it| it.ip == here);
    if let Some(here) = here {
        here.hold(&stream);
    }
    match question {
        RECEIVE => {
            let rate = receive(&mut stream)?;
            Ok(stream.write_all(&rate.to_be_bytes())?)
        }
        SEND_BACK => Ok(send(&mut stream)?),
        other => {
            let asked = |(number, _): &&(u8, Probe)| *number == other & !IN_SOFTWARE;
            let (_, probe) = PROBES.iter().find(asked).context("an unknown question")?;
            let _limit = limit(&stream, PROBE)?;
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
    /// When nothing is begun any more.
    pub(super) end: Instant,
}

impl Caller<'_> {
    /// Bytes per second from this end to the other, or back; none if no stream came through.
    pub(super) fn rate(&self, back: bool) -> Option<f64> {
        let runs = (0..RUNS).take_while(|_| Instant::now() < self.end);
        let rates = runs.filter_map(|_| self.run(back).ok());
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
            ensure!(Instant::now() < self.end, "the time for the pair is over");
            let stream = self.call(number | software)?;
            let _limit = limit(&stream, PROBE)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What the port says to a question, and how long that takes.
    fn asked(port: u16, question: u8) -> (io::Result<f64>, Duration) {
        let here = Address::of("lo", [127, 0, 0, 1].into(), 8);
        let caller = Caller {
            from: &here,
            to: SocketAddr::new(here.ip, port),
            token: 7,
            end: Instant::now() + Duration::from_secs(10),
        };
        let start = Instant::now();
        (caller.run(question == SEND_BACK), start.elapsed())
    }

    #[test]
    fn strangers_keep_nobody_from_being_answered() {
        let streams = Streams::start(7, Vec::new()).unwrap();
        let here = SocketAddr::new([127, 0, 0, 1].into(), streams.port);
        // Silent ones, one in the middle of the question, one with another token, one that is gone.
        let mut strangers: Vec<TcpStream> =
            (0..20).map(|_| TcpStream::connect(here).unwrap()).collect();
        strangers[0].write_all(&[0; QUESTION - 1]).unwrap();
        strangers[1].write_all(&[9; QUESTION]).unwrap();
        strangers.truncate(18);
        for question in [RECEIVE, SEND_BACK] {
            let (rate, took) = asked(streams.port, question);
            assert!(rate.unwrap() > 1e6);
            assert!(took < SILENCE, "{took:?}");
        }
    }

    #[test]
    fn a_probe_that_never_ends_is_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _peer = listener.accept().unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let done = limit(&stream, Duration::from_millis(20)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        drop(done);
        // One that is done in time is let alone.
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        drop(limit(&stream, Duration::from_millis(20)).unwrap());
        thread::sleep(Duration::from_millis(40));
        peer.write_all(&[1]).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 1);
    }
}
