//! A proxy that chops what passes through it, and cuts it off.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ringway_link::PeerAddress;

/// What a proxy does to the bytes of each direction of each connection.
#[derive(Clone, Debug)]
pub(crate) struct Chop {
    /// The lengths of the pieces in which they pass, over and over.
    pub(crate) pieces: Vec<usize>,
    /// A pause after so many pieces.
    pub(crate) pause_every: usize,
    /// After so many bytes all ends.
    pub(crate) cut_after: Option<usize>,
}

/// Redirects connections to `target` through a proxy.
pub(crate) fn through(target: &PeerAddress, chop: &Chop) -> PeerAddress {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, target.port));
    let chop = chop.clone();
    std::thread::spawn(move || {
        for inward in listener.incoming().flatten() {
            let Ok(outward) = TcpStream::connect(to) else {
                return;
            };
            let cut = Arc::new(AtomicBool::new(false));
            for (from, to) in [(&inward, &outward), (&outward, &inward)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                to.set_nodelay(true).unwrap();
                let (chop, cut) = (chop.clone(), Arc::clone(&cut));
                std::thread::spawn(move || pass(&from, &to, &chop, &cut));
            }
        }
    });
    PeerAddress {
        nonce: target.nonce,
        ..PeerAddress::at(target.rank, port, [Ipv4Addr::LOCALHOST.into()])
    }
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, chop: &Chop, cut: &AtomicBool) {
    let mut passed = 0;
    let mut buffer = vec![0; 1 << 16];
    for (count, &piece) in chop.pieces.iter().cycle().enumerate() {
        let piece = chop
            .cut_after
            .map_or(piece, |after| piece.min(after - passed))
            .min(buffer.len());
        let read = if piece == 0 {
            0
        } else {
            from.read(&mut buffer[..piece]).unwrap_or(0)
        };
        if read == 0 || cut.load(Ordering::Relaxed) || to.write_all(&buffer[..read]).is_err() {
            break;
        }
        passed += read;
        if chop.pause_every > 0 && count % chop.pause_every == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    if chop.cut_after.is_some_and(|after| passed >= after) {
        cut.store(true, Ordering::Relaxed);
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}
