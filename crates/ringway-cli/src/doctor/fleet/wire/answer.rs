//! The end that answers.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    thread,
};

use ringway_doctor::fleet::datagram::Trains;
use ringway_sys::{
    Epoll, Interest, Signal,
    datagram::{Arrivals, DatagramSocket, Incoming, Outgoing},
};

use super::{now, port::Address, stream::Streams};

/// Bytes of datagrams that may wait: a train, while the processor is elsewhere.
const BUFFER: usize = 4 << 20;

/// Answers questions at all addresses of this host, until it is dropped.
pub(in crate::doctor::fleet) struct Answerer {
    /// Where it may be asked.
    pub(in crate::doctor::fleet) addresses: Vec<Address>,
    streams: Streams,
    stop: Arc<Signal>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Answerer {
    /// At the addresses that are `allowed`, to those who know the token.
    pub(in crate::doctor::fleet) fn start(allowed: &[IpAddr], token: u64) -> io::Result<Self> {
        let mut addresses = Vec::new();
        let mut sockets = Vec::new();
        for mut address in Address::all(allowed)? {
            // One that is being taken away is left out.
            if let Ok(socket) = DatagramSocket::bind(SocketAddr::new(address.ip, 0), 0, BUFFER) {
                address.port = socket.local().port();
                address.hold(&socket);
                addresses.push(address);
                sockets.push(socket);
            }
        }
        let stop = Arc::new(Signal::new()?);
        let (epoll, mine) = (Epoll::new()?, Arc::clone(&stop));
        for (i, socket) in sockets.iter().enumerate() {
            epoll.add(socket, i as u64, Interest::Read)?;
        }
        epoll.add(&*stop, u64::MAX, Interest::Read)?;
        let streams = Streams::start(token, addresses.clone())?;
        let thread = thread::Builder::new()
            .name("doctor-answers".to_owned())
            .spawn(move || {
                // A socket that breaks ends it: who asks is told by the silence.
                let _ = serve(&epoll, &sockets, &mine, token);
            })?;
        Ok(Self {
            addresses,
            streams,
            stop,
            thread: Some(thread),
        })
    }

    /// The TCP port that streams are asked for at.
    pub(in crate::doctor::fleet) fn stream_port(&self) -> u16 {
        self.streams.port
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(epoll: &Epoll, sockets: &[DatagramSocket], stop: &Signal, token: u64) -> io::Result<()> {
    let mut arrivals = Arrivals::default();
    let mut trains = Trains::new(token);
    let mut ready = Vec::new();
    loop {
        epoll.wait(&mut ready, None)?;
        if stop.clear() {
            return Ok(());
        }
        for &which in &ready {
            let Some(socket) = usize::try_from(which)
                .ok()
                .and_then(|which| sockets.get(which))
            else {
                continue;
            };
            while arrivals.receive(socket)? > 0 {
                for incoming in arrivals.iter() {
                    for bytes in incoming.datagrams() {
                        answer(socket, &mut trains, &incoming, bytes);
                    }
                }
            }
        }
    }
}

fn answer(socket: &DatagramSocket, trains: &mut Trains, incoming: &Incoming<'_>, bytes: &[u8]) {
    let Some((asked, answer)) = trains.answer(bytes, incoming.traffic_class, now()) else {
        return;
    };
    // One that does not fit the interface, or finds the buffer full, is lost: who asks will see.
    let _ = socket.send([Outgoing {
        to: incoming.from,
        bytes: &answer.encode(asked.length.into()),
        segment: None,
        traffic_class: Some(asked.tos),
    }]);
}
