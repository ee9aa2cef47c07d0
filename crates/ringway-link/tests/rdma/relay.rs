//! A network between two queue pairs that loses, repeats and reorders packets.
//!
//! Each side is told the relay's address as its peer's. The CRC covers the ports, so the relay checks it and makes it
//! anew.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
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
}

pub(crate) struct Relay {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
    /// What each side is told as its peer's address.
    pub(crate) addresses: [Address; 2],
}

impl Relay {
    pub(crate) fn start(ends: [Address; 2], faults: Faults) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let places = ends.map(|end| SocketAddr::new(end.ip, end.software.unwrap().port));
        // A socket towards each side.
        let sockets = ends.map(|end| {
            let socket = UdpSocket::bind(SocketAddr::new(end.ip, 0)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(20)))
                .unwrap();
            Arc::new(socket)
        });
        let threads = (0..2)
            .map(|side| {
                let (from, to) = (sockets[side].clone(), sockets[1 - side].clone());
                let (stop, peer) = (stop.clone(), places[1 - side]);
                thread::spawn(move || carry(&stop, &from, &to, peer, faults, side as u64))
            })
            .collect();
        let addresses = [0, 1].map(|side: usize| {
            let mut address = ends[1 - side];
            let port = sockets[side].local_addr().unwrap().port();
            if let Some(software) = &mut address.software {
                software.port = port;
                // The relay's sockets are ordinary ones, with little room.
                software.window = software.window.min(16);
            }
            address
        });
        Self {
            stop,
            threads,
            addresses,
        }
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
        if chance(faults.lost) {
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
