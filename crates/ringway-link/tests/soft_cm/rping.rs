//! The other side of rping (rdma-core, librdmacm/examples): the client tells by SEND where its data is, the server READs it,
//! is told where the answer goes, and WRITEs the same there.

use std::net::{IpAddr, SocketAddr};

use ringway_link::rdma::{ConnectionId, Key, QueuePair, Remote, Source, Work};

use crate::peer::Peer;

const PORT: u16 = 7174;

/// Places in memory: two receives, what is read or sent, and what is written by the server.
const RECEIVES: [(u64, u64); 2] = [(0, INFO), (64, INFO)];
const START: u64 = 4096;
const SINK: u64 = 1 << 17;
const MEMORY: usize = 1 << 18;

/// A place in memory as rping tells it: address, key and length, of 8, 4 and 4 bytes, big-endian.
const INFO: u64 = 16;

/// What rping's client sends in one of its rounds.
fn text(round: u32, size: u64) -> Vec<u8> {
    let letters = u32::from(b'z' - b'A') + 1;
    let mut bytes = format!("rdma-ping-{round}: ").into_bytes();
    let letter = |at| b'A' + ((round + at) % letters) as u8;
    bytes.extend((0..).map(letter).take(size as usize));
    bytes.truncate(size as usize - 1);
    bytes.push(0);
    bytes
}

/// The client's place, of which so much is told.
fn told(peer: &mut Peer, pair: QueuePair) -> (Remote, u64) {
    let (at, length) = peer.received(pair);
    assert_eq!(length, INFO);
    let bytes = peer.get(at, INFO as usize);
    let number = |range| {
        let part: &[u8] = &bytes[range];
        part.iter()
            .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    peer.post_receive(pair, at, INFO);
    let remote = Remote {
        address: number(0..8),
        key: Key(number(8..12) as u32),
    };
    (remote, number(12..16))
}

fn tell(peer: &mut Peer, pair: QueuePair, at: u64, size: u64) {
    let place = peer.remote(at);
    let mut bytes = place.address.to_be_bytes().to_vec();
    bytes.extend(place.key.0.to_be_bytes());
    bytes.extend((size as u32).to_be_bytes());
    peer.send(pair, &bytes);
}

pub(crate) fn serve(ip: &str, size: u64, count: u32) {
    let mut peer = Peer::new(ip, MEMORY);
    peer.listen(PORT);
    let (connection, pair) = peer.accept(&RECEIVES);
    for round in 0..count {
        let (remote, length) = told(&mut peer, pair);
        assert_eq!(length, size);
        let into = peer.local(START, size);
        peer.ask(pair, Work::Read { into, remote });
        assert!(peer.get(START, size as usize) == text(round, size), "READ");
        peer.send(pair, &[0; INFO as usize]);
        let (remote, _) = told(&mut peer, pair);
        let source = Source::Memory(peer.local(START, size));
        let immediate = None;
        let write = Work::Write {
            source,
            remote,
            immediate,
        };
        // The client compares it.
        peer.ask(pair, write);
        peer.send(pair, &[0; INFO as usize]);
    }
    peer.disconnected(connection);
}

pub(crate) fn ask(ip: &str, to: &str, size: u64, count: u32) {
    let mut peer = Peer::new(ip, MEMORY);
    let to: IpAddr = to.parse().unwrap();
    let (connection, pair): (ConnectionId, _) = peer.connect(SocketAddr::new(to, PORT), &RECEIVES);
    for round in 0..count {
        let bytes = text(round, size);
        peer.put(START, &bytes);
        peer.put(SINK, &vec![0xff; size as usize]);
        for at in [START, SINK] {
            tell(&mut peer, pair, at, size);
            let (at, length) = peer.received(pair);
            assert_eq!(length, INFO);
            peer.post_receive(pair, at, INFO);
        }
        assert!(peer.get(SINK, size as usize) == bytes, "WRITE");
    }
    peer.disconnect(connection);
}
