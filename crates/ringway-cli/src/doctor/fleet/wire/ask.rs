//! The end that asks, and measures.

use std::{
    io,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use ringway_doctor::fleet::{
    Flow, Path, Way,
    datagram::{HEAD, Message},
};
use ringway_sys::{
    Epoll, Interest,
    datagram::{Arrivals, DatagramSocket, Outgoing},
};

use super::{
    MARK, headers, now,
    port::Address,
    stream::{self, Rdma},
    ways::ways,
};

/// Source ports that are tried: routers that have two equal ways give all of them to one of the two once in 30,000 times.
const FLOWS: usize = 16;

/// Questions by each.
const QUESTIONS: u64 = 6;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_millis(150);

/// How often the first question is asked: the other end may have to be woken, and its address to be looked for.
const CALLS: usize = 10;

/// Datagrams of the train, how many of them at once, and how long until the next: 9 Mb/s, which no link is too slow for.
const TRAIN: u64 = 400;
const BURST: u64 = 4;
const PAUSE: Duration = Duration::from_millis(1);

/// The length of each, in bytes.
const LENGTH: usize = 256;

/// Lengths of packets that are tried where the interfaces' own does not pass, in bytes.
const LENGTHS: [u32; 9] = [9000, 8950, 4500, 4200, 2200, 1500, 1450, 1400, 1280];

/// Bytes of datagrams that may wait.
const BUFFER: usize = 4 << 20;

/// The host at the other end.
pub(in crate::doctor::fleet) struct Peer<'a> {
    pub(in crate::doctor::fleet) addresses: &'a [Address],
    pub(in crate::doctor::fleet) stream_port: u16,
    pub(in crate::doctor::fleet) token: u64,
}

/// Measures all ways to another host that can be begun within `time`; what has begun by then ends within half a minute. Returns
/// them, and why they are not all, or none leads there.
pub(in crate::doctor::fleet) fn ask(
    own: &[Address],
    peer: &Peer<'_>,
    rdma: Rdma,
    time: Duration,
) -> (Vec<Path>, Option<String>) {
    let end = Instant::now() + time;
    let ways = ways(own, peer.addresses);
    if ways.is_empty() {
        let list = |of: &[Address]| addresses(of.iter());
        let trouble = format!(
            "no address here ({}) has a way to one there ({})",
            list(own),
            list(peer.addresses)
        );
        return (Vec::new(), Some(trouble));
    }
    let (mut paths, mut answers) = (Vec::new(), false);
    for &(from, to) in &ways {
        if Instant::now() >= end {
            break;
        }
        let measured = Line::new(from, to, peer, end).measure(rdma);
        answers |= measured.is_some();
        paths.push(measured.unwrap_or_else(|| silent(from, to)));
    }
    let begun = format!("{} of {} ways", paths.len(), ways.len());
    let seconds = time.as_secs_f64();
    if !answers {
        let mut trouble = format!(
            "no datagram is answered at {}",
            addresses(ways[..paths.len()].iter().map(|(_, to)| *to))
        );
        if paths.len() < ways.len() {
            trouble += &format!("; the {seconds} s for a pair were over when {begun} were tried");
        }
        return (Vec::new(), Some(trouble));
    }
    let trouble = (Instant::now() >= end).then(|| {
        format!("the {seconds} s for a pair were over when {begun} were measured, the last perhaps in part")
    });
    (paths, trouble)
}

/// Addresses in a sentence.
fn addresses<'a>(of: impl Iterator<Item = &'a Address>) -> String {
    let shown: Vec<String> = of.map(|it| it.ip.to_string()).collect();
    match shown.is_empty() {
        true => "none".to_owned(),
        false => shown.join(", "),
    }
}

/// A way on which nothing is answered.
fn silent(from: &Address, to: &Address) -> Path {
    let flow = Flow {
        sent: CALLS as u64,
        ..Flow::default()
    };
    Path {
        at_a: from.report(),
        at_b: to.report(),
        flows: vec![flow],
        ..Path::default()
    }
}

/// A way to the other host.
pub(super) struct Line<'a> {
    from: &'a Address,
    pub(super) to: &'a Address,
    pub(super) peer: &'a Peer<'a>,
    pub(super) arrivals: Arrivals,
    /// The last train's name.
    pub(super) trains: u64,
    /// When no measurement is begun any more.
    end: Instant,
}

/// An answer, and how long it took.
struct Answer {
    message: Message,
    /// The type of service with which it came.
    tos: u8,
    length: usize,
    seconds: f64,
}

impl<'a> Line<'a> {
    fn new(from: &'a Address, to: &'a Address, peer: &'a Peer<'a>, end: Instant) -> Self {
        Self {
            from,
            to,
            peer,
            arrivals: Arrivals::default(),
            trains: now(),
            end,
        }
    }

    /// Whether there is time for more.
    pub(super) fn goes_on(&self) -> bool {
        Instant::now() < self.end
    }

    /// All that is measured of it; none if nothing is answered.
    fn measure(mut self, rdma: Rdma) -> Option<Path> {
        let socket = self.socket(0).ok()?;
        (0..CALLS).find_map(|_| self.question(&socket, 0, HEAD, 0))?;
        let mut path = Path {
            at_a: self.from.report(),
            at_b: self.to.report(),
            ..Path::default()
        };
        self.flows(&mut path);
        self.train(&mut path);
        let (there, back) = (self.largest(&socket, true), self.largest(&socket, false));
        (path.there.mtu, path.back.mtu) = (there, back);
        let to = SocketAddr::new(self.to.ip, self.peer.stream_port);
        let caller = stream::Caller {
            from: self.from,
            to,
            token: self.peer.token,
            end: self.end,
        };
        (path.there.bandwidth, path.back.bandwidth) = (caller.rate(false), caller.rate(true));
        let device = rdma.device(self.from, self.to).filter(|_| self.goes_on());
        match device.map(|own| caller.rdma(&own)) {
            Some(Ok(measured)) => path.rdma = Some(measured),
            Some(Err(error)) => path.rdma_trouble = Some(format!("{error:#}")),
            None => {}
        }
        Some(path)
    }

    fn socket(&self, tos: u8) -> io::Result<DatagramSocket> {
        let socket = DatagramSocket::bind(SocketAddr::new(self.from.ip, 0), tos, BUFFER)?;
        self.from.hold(&socket);
        Ok(socket)
    }

    /// Sends a datagram of so many bytes.
    pub(super) fn send(
        &self,
        socket: &DatagramSocket,
        message: &Message,
        length: usize,
    ) -> io::Result<()> {
        let to = SocketAddr::new(self.to.ip, self.to.port);
        let bytes = message.encode(length);
        let sent = socket.send([Outgoing {
            to,
            bytes: &bytes,
            segment: None,
            traffic_class: None,
        }]);
        sent.map(drop)
    }

    /// Asks once, in `length` bytes, for an answer of `back` bytes; none if none comes.
    fn question(
        &mut self,
        socket: &DatagramSocket,
        tos: u8,
        length: usize,
        back: usize,
    ) -> Option<Answer> {
        self.trains += 1;
        let message = Message {
            tos,
            length: u16::try_from(back).ok()?,
            token: self.peer.token,
            train: self.trains,
            ..Message::default()
        };
        let start = Instant::now();
        self.send(socket, &message, length).ok()?;
        let mut found = None;
        self.listen(socket, start + PATIENCE, |answer| {
            if answer.message.train == message.train {
                found = Some(Answer {
                    seconds: start.elapsed().as_secs_f64(),
                    ..answer
                });
            }
            found.is_some()
        });
        found
    }

    /// Takes answers until `take` has enough, or the time is over.
    fn listen(
        &mut self,
        socket: &DatagramSocket,
        end: Instant,
        mut take: impl FnMut(Answer) -> bool,
    ) {
        let Ok(epoll) = Epoll::new() else { return };
        if epoll.add(socket, 0, Interest::Read).is_err() {
            return;
        }
        let mut ready = Vec::new();
        loop {
            while self.arrivals.receive(socket).is_ok_and(|count| count > 0) {
                for incoming in self.arrivals.iter() {
                    for bytes in incoming.datagrams() {
                        let message = Message::decode(bytes);
                        let Some(message) =
                            message.filter(|it| it.answer && it.token == self.peer.token)
                        else {
                            continue;
                        };
                        let answer = Answer {
                            message,
                            tos: incoming.traffic_class,
                            length: bytes.len(),
                            seconds: 0.0,
                        };
                        if take(answer) {
                            return;
                        }
                    }
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || epoll.wait(&mut ready, Some(left)).is_err() {
                return;
            }
        }
    }

    /// Round trips by several source ports, of packets that are marked as data is, and the routers that they pass.
    fn flows(&mut self, path: &mut Path) {
        path.there.marked = MARK;
        path.back.marked = MARK;
        let mut trips = Vec::new();
        let mut quickest = f64::INFINITY;
        let mut sockets = Vec::new();
        for _ in 0..FLOWS {
            if !self.goes_on() {
                break;
            }
            let Ok(socket) = self.socket(MARK) else {
                continue;
            };
            let mut flow = Flow {
                port: socket.local().port(),
                ..Flow::default()
            };
            // One that is silent is not asked so often.
            while flow.sent < QUESTIONS && (flow.sent < 3 || flow.answered > 0) {
                flow.sent += 1;
                let asked = now();
                let Some(answer) = self.question(&socket, MARK, HEAD, 0) else {
                    continue;
                };
                flow.answered += 1;
                flow.best = Some(flow.best.unwrap_or(f64::INFINITY).min(answer.seconds));
                path.there.mark = Some(answer.message.tos);
                path.back.mark = Some(answer.tos);
                trips.push(answer.seconds);
                if answer.seconds < quickest {
                    quickest = answer.seconds;
                    let ahead = answer.message.time as f64 - asked as f64;
                    path.clock = Some(ahead / 1e9 - answer.seconds / 2.0);
                }
            }
            path.flows.push(flow);
            sockets.push(socket);
        }
        self.trace(&sockets, &mut path.flows);
        trips.sort_by(f64::total_cmp);
        path.round_trip = trips.first().map(|best| (*best, trips[trips.len() / 2]));
    }

    /// A numbered train, marked as data is: what is lost and what comes late, each way.
    fn train(&mut self, path: &mut Path) {
        let Ok(socket) = self.socket(MARK) else {
            return;
        };
        self.trains += 1;
        let (token, train) = (self.peer.token, self.trains);
        let message = |counted, number| Message {
            counted,
            tos: MARK,
            token,
            train,
            number,
            ..Message::default()
        };
        let mut sent = 0;
        for number in 0..TRAIN {
            // A buffer that is full is this host's own matter.
            sent += u64::from(self.send(&socket, &message(true, number), LENGTH).is_ok());
            if number % BURST == BURST - 1 {
                thread::sleep(PAUSE);
            }
        }
        let last = message(false, u64::MAX);
        let (mut came, mut late, mut next, mut counts) = (0, 0, 0, None);
        for _ in 0..3 {
            // Once more, as this may be lost, too: it says what has come there.
            let _ = self.send(&socket, &last, HEAD);
            self.listen(&socket, Instant::now() + PATIENCE, |answer| {
                let answer = answer.message;
                if answer.train != last.train {
                    return false;
                }
                if answer.counted {
                    came += 1;
                    late += u64::from(answer.number < next);
                    next = next.max(answer.number.saturating_add(1));
                } else {
                    counts = Some((answer.arrived, answer.reordered));
                }
                counts.is_some_and(|(arrived, _)| came >= arrived)
            });
            if counts.is_some_and(|(arrived, _)| came >= arrived) {
                break;
            }
        }
        let dropped = socket.dropped().unwrap_or(0);
        let (arrived, reordered) = counts.unwrap_or((came, 0));
        path.there = Way {
            sent,
            arrived: arrived.min(sent),
            reordered,
            ..path.there.clone()
        };
        // What this host itself has dropped was not lost on the way.
        path.back = Way {
            sent: arrived,
            arrived: (came + dropped).min(arrived),
            reordered: late,
            ..path.back.clone()
        };
    }

    /// The largest packet that comes through without being cut, in bytes.
    fn largest(&mut self, socket: &DatagramSocket, there: bool) -> Option<u32> {
        let (sender, end) = (if there { self.from } else { self.to }, self.end);
        let most = sender.mtu()?;
        let lengths = [most]
            .into_iter()
            .chain(LENGTHS.into_iter().filter(|it| *it < most));
        let head = headers(self.from.ip.is_ipv4());
        lengths
            // 65,535 bytes are the most that an IP packet has.
            .map(|length| length.min(65_535))
            .take_while(|_| Instant::now() < end)
            .find(|&length| {
                let payload = (length as usize).saturating_sub(head);
                let (out, back) = if there { (payload, 0) } else { (HEAD, payload) };
                (0..2).any(|_| {
                    let answer = self.question(socket, 0, out, back);
                    answer.is_some_and(|answer| there || answer.length == payload)
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, sync::mpsc};

    use ringway_doctor::fleet::datagram::Trains;

    use super::*;

    const TOKEN: u64 = 7;

    /// Addresses on the loopback network, each on an interface of its own: `eth1` has 1 here and 101 there.
    fn host(numbers: &[u8]) -> Vec<Address> {
        let address = |number: &u8| {
            let interface = format!("eth{}", number % 100);
            Address::of(&interface, [127, 0, 0, *number].into(), 24)
        };
        numbers.iter().map(address).collect()
    }

    /// The other host: a socket for each address, of which some answer.
    struct There {
        addresses: Vec<Address>,
        /// Until it is dropped.
        stops: Vec<mpsc::Sender<()>>,
        silent: Vec<UdpSocket>,
    }

    impl There {
        fn new(numbers: &[u8], answering: &[u8]) -> Self {
            let mut there = Self {
                addresses: host(numbers),
                stops: Vec::new(),
                silent: Vec::new(),
            };
            for (address, number) in there.addresses.iter_mut().zip(numbers) {
                let socket = UdpSocket::bind((address.ip, 0)).unwrap();
                address.port = socket.local_addr().unwrap().port();
                if answering.contains(number) {
                    there.stops.push(answer(socket));
                } else {
                    there.silent.push(socket);
                }
            }
            there
        }

        fn asked(&self, own: &[Address], time: Duration) -> (Vec<Path>, Option<String>) {
            let peer = Peer {
                addresses: &self.addresses,
                stream_port: 1,
                token: TOKEN,
            };
            ask(own, &peer, Rdma::None, time)
        }
    }

    /// Answers until what is returned is dropped.
    fn answer(socket: UdpSocket) -> mpsc::Sender<()> {
        let (stop, stopped) = mpsc::channel();
        socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        thread::spawn(move || {
            let (mut trains, mut bytes) = (Trains::new(TOKEN), [0; 1 << 16]);
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                let Ok((length, from)) = socket.recv_from(&mut bytes) else {
                    continue;
                };
                if let Some((_, answer)) = trains.answer(&bytes[..length], MARK, now()) {
                    let _ = socket.send_to(&answer.encode(0), from);
                }
            }
        });
        stop
    }

    #[test]
    fn what_was_not_tried_in_time_is_not_called_silent() {
        let there = There::new(&[101, 102, 103], &[]);
        // The first way alone takes 1.5 s.
        let begin = Instant::now();
        let (paths, trouble) = there.asked(&host(&[1, 2, 3]), Duration::from_secs(1));
        assert!(begin.elapsed() < Duration::from_secs(10));
        assert!(paths.is_empty());
        assert_eq!(
            trouble.unwrap(),
            "no datagram is answered at 127.0.0.101; the 1 s for a pair were over when 1 of 3 ways were tried"
        );
    }

    #[test]
    fn a_pair_that_takes_too_long_is_measured_in_part() {
        let there = There::new(&[101, 102], &[101, 102]);
        // The numbered train alone takes 0.1 s.
        let time = Duration::from_millis(50);
        let (paths, trouble) = there.asked(&host(&[1, 2]), time);
        assert_eq!(paths.len(), 1);
        assert_eq!(
            trouble.unwrap(),
            "the 0.05 s for a pair were over when 1 of 2 ways were measured, the last perhaps in part"
        );
    }

    #[test]
    fn a_silent_way_is_told_beside_one_that_answers() {
        let there = There::new(&[101, 102], &[102]);
        let time = Duration::from_secs(120);
        let (paths, trouble) = there.asked(&host(&[1, 2]), time);
        assert_eq!((paths.len(), trouble), (2, None));
        let answered = |path: &Path| path.flows.iter().map(|it| it.answered).sum::<u64>();
        assert_eq!(answered(&paths[0]), 0);
        assert!(answered(&paths[1]) > 0);
        assert_eq!(
            (paths[1].there.sent, paths[1].there.mark),
            (TRAIN, Some(MARK))
        );
    }

    #[test]
    fn hosts_without_a_way_between_them_are_told_as_such() {
        let (_, trouble) = There::new(&[101], &[]).asked(&[], Duration::from_secs(1));
        let expected = "no address here (none) has a way to one there (127.0.0.101)";
        assert_eq!(trouble.unwrap(), expected);
    }
}
