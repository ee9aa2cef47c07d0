//! A network between two queue pairs that loses, repeats and reorders packets.
//!
//! Each side is told the relay's address as its peer's. The CRC covers the ports, so the relay checks it and makes it
//! anew.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use ringway_link::rdma::Address;
use ringway_roce::wire::{Flow, icrc};

/// What happens to packets: of each thousand, so many are lost, come twice, or come after the next one.
#[derive(Clone, Copy)]
pub(crate) struct Faults {
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
    pub(crate) late: u64,
    /// Longer ones are lost, in bytes of UDP payload: a path with a smaller MTU.
    pub(crate) longest: usize,
}

impl Faults {
    pub(crate) const NONE: Self = Self {
        lost: 0,
        repeated: 0,
        late: 0,
        longest: usize::MAX,
    };
}

pub(crate) struct Relay {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
    /// What each side is told as its peer's address.
    pub(crate) addresses: [Address; 2],
}

/// A relay's sockets, before it runs: one towards each side.
pub(crate) struct Sockets {
    towards: [Arc<UdpSocket>; 2],
    pub(crate) path: Option<&'static Path>,
}

/// A path that is cut and mended while packets go.
pub(crate) struct Path {
    /// Nothing comes through.
    pub(crate) is_cut: AtomicBool,
    /// How many bytes came through.
    pub(crate) carried: AtomicU64,
}

impl Path {
    pub(crate) const fn new() -> Self {
        Self {
            is_cut: AtomicBool::new(false),
            carried: AtomicU64::new(0),
        }
    }

    fn carries(&self, bytes: usize) -> bool {
        let carries = !self.is_cut.load(Ordering::Relaxed);
        if carries {
            self.carried.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        carries
    }
}

impl Sockets {
    pub(crate) fn open(ip: IpAddr) -> Self {
        Self::at([0, 1].map(|_| SocketAddr::new(ip, 0)))
    }

    /// At these addresses.
    pub(crate) fn at(own: [SocketAddr; 2]) -> Self {
        let towards = own.map(|address| {
            let socket = UdpSocket::bind(address).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(20)))
                .unwrap();
            Arc::new(socket)
        });
        let path = None;
        Self { towards, path }
    }

    /// What a side is told as the address of the other one.
    pub(crate) fn seen_by(&self, side: usize, mut end: Address) -> Address {
        let port = self.towards[side].local_addr().unwrap().port();
        if let Some(software) = &mut end.software {
            software.port = port;
            // The relay's sockets are ordinary ones, with little room.
            software.window = software.window.min(16);
        }
        end
    }

    /// Relays between the two sides.
    pub(crate) fn start(&self, ends: [Address; 2], faults: Faults) -> Relay {
        let stop = Arc::new(AtomicBool::new(false));
        let places = ends.map(|end| SocketAddr::new(end.ip, end.software.unwrap().port));
        let threads = (0..2)
            .map(|side| {
                let (from, to) = (self.towards[side].clone(), self.towards[1 - side].clone());
                let (stop, peer, path) = (stop.clone(), places[1 - side], self.path);
                thread::spawn(move || {
                    let carries = |bytes| path.is_none_or(|path| path.carries(bytes));
                    carry(&stop, carries, &from, &to, peer, faults, side as u64)
                })
            })
            .collect();
        Relay {
            stop,
            threads,
            addresses: [0, 1].map(|side: usize| self.seen_by(side, ends[1 - side])),
        }
    }
}

impl Relay {
    pub(crate) fn start(ends: [Address; 2], faults: Faults) -> Self {
        Sockets::open(ends[0].ip).start(ends, faults)
    }

    /// Ends the relay. Returns how many packets it has lost.
    pub(crate) fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let lost = self
            .threads
            .into_iter()
            .map(|thread| thread.join().unwrap());
        lost.sum()
    }
}

fn carry(
    stop: &AtomicBool,
    carries: impl Fn(usize) -> bool,
    from: &UdpSocket,
    to: &UdpSocket,
    peer: SocketAddr,
    faults: Faults,
    seed: u64,
) -> u64 {
    let mut random = seed + 1;
    let mut chance = |of_thousand: u64| {
        // Marsaglia's xorshift.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % 1000 < of_thousand
    };
    let (own_from, own_to) = (from.local_addr().unwrap(), to.local_addr().unwrap());
    let mut bytes = vec![0; 1 << 16];
    let (mut kept, mut lost): (Option<Vec<u8>>, u64) = (None, 0);
    while !stop.load(Ordering::Relaxed) {
        let (length, sender) = match from.recv_from(&mut bytes) {
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Nothing overtakes the one that is kept any more.
                if let Some(packet) = kept.take() {
                    to.send_to(&packet, peer).unwrap();
                }
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let packet = &mut bytes[..length];
        assert!(Flow::between(sender, own_from).unwrap().verify_icrc(packet));
        let (covered, crc) = packet.split_at_mut(length - 4);
        let flow = Flow::between(own_to, peer).unwrap();
        crc.copy_from_slice(&icrc(&flow, covered).to_le_bytes());
        if !carries(length) || length > faults.longest || chance(faults.lost) {
            lost += 1;
            continue;
        }
        if kept.is_none() && chance(faults.late) {
            kept = Some(packet.to_vec());
            continue;
        }
        to.send_to(packet, peer).unwrap();
        if chance(faults.repeated) {
            to.send_to(packet, peer).unwrap();
        }
        if let Some(packet) = kept.take() {
            to.send_to(&packet, peer).unwrap();
        }
    }
    lost
}
