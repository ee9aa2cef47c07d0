//! A network of one hop that loses packets, each by itself, though they come and go in trains.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use ringway_link::rdma::Address;
use ringway_roce::wire::{Flow, icrc};
use ringway_sys::datagram::{Arrivals, DatagramSocket, Outgoing};

const CRC: usize = 4;
const BUFFER: usize = 4 << 20;

/// What each side is told as its peer's address. The relay runs until the process ends; it loses so many packets of a
/// thousand.
pub(crate) fn start(ends: [Address; 2], lost: u64) -> io::Result<[Address; 2]> {
    let [towards_first, towards_second] =
        ends.map(|end| DatagramSocket::bind(SocketAddr::new(end.ip, 0), 0, BUFFER));
    let sockets = [towards_first?, towards_second?];
    let told = [0, 1].map(|side: usize| {
        let mut address = ends[1 - side];
        if let Some(software) = &mut address.software {
            software.port = sockets[side].local().port();
        }
        address
    });
    let places = ends.map(|end| place(end.ip, &end));
    thread::spawn(move || {
        let mut carrier = Carrier {
            arrivals: Arrivals::default(),
            train: Vec::new(),
            random: 0x9e37_79b9_7f4a_7c15,
            lost,
        };
        let ways = [(0, 1), (1, 0)];
        loop {
            let moved =
                ways.map(|(from, to)| carrier.carry(&sockets[from], &sockets[to], places[to]));
            match moved {
                [Ok(false), Ok(false)] => thread::sleep(Duration::from_micros(10)),
                [Ok(_), Ok(_)] => {}
                [Err(error), _] | [_, Err(error)] => {
                    eprintln!("the relay has failed: {error}");
                    return;
                }
            }
        }
    });
    Ok(told)
}

fn place(ip: IpAddr, end: &Address) -> SocketAddr {
    SocketAddr::new(ip, end.software.map_or(0, |it| it.port))
}

struct Carrier {
    arrivals: Arrivals,
    /// What is left of a train.
    train: Vec<u8>,
    random: u64,
    lost: u64,
}

impl Carrier {
    /// Whether anything came.
    fn carry(
        &mut self,
        from: &DatagramSocket,
        to: &DatagramSocket,
        place: SocketAddr,
    ) -> io::Result<bool> {
        let count = self.arrivals.receive(from)?;
        let Some(flow) = Flow::between(to.local(), place) else {
            return Ok(false);
        };
        for incoming in self.arrivals.iter() {
            self.train.clear();
            let mut segment = 0;
            for packet in incoming.datagrams() {
                // xorshift64.
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                if self.random % 1000 < self.lost || packet.len() <= CRC {
                    continue;
                }
                segment = segment.max(packet.len());
                let covered = &packet[..packet.len() - CRC];
                self.train.extend(covered);
                // It covers the ports.
                self.train.extend(icrc(&flow, covered).to_le_bytes());
            }
            if !self.train.is_empty() {
                send(to, place, &self.train, segment)?;
            }
        }
        Ok(count > 0)
    }
}

fn send(socket: &DatagramSocket, to: SocketAddr, bytes: &[u8], segment: usize) -> io::Result<()> {
    loop {
        let train = Outgoing {
            to,
            bytes,
            segment: (bytes.len() > segment).then_some(segment as u16),
            traffic_class: None,
        };
        match socket.send([train]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
            sent => return sent.map(drop),
        }
    }
}
