//! The other side of perftest with `-R` (perftest_communication.c): a first connection, over which both sides exchange what
//! they have to, message by message and the client first, and then a second one to measure over.

use std::net::{IpAddr, SocketAddr};

use ringway_link::rdma::{ConnectionId, Key, QueuePair, Remote, Source, Work};

use crate::peer::Peer;

const PORT: u16 = 18515;

/// The message by which queue pairs are told: lid, reads, number, PSN, key, four bytes of padding, address (8), GID (16), and
/// two more numbers; all big-endian.
const PLACE: usize = 56;

/// Places in memory: receives of the conversation, those of the test, and what the peer may write to.
const TALK: [(u64, u64); 4] = [(0, 64), (64, 64), (128, 64), (192, 64)];
const MESSAGES: u64 = 1 << 16;
const OPEN: u64 = 1 << 20;
const MEMORY: usize = 4 << 20;

/// How many receives wait for messages of the test.
const RECEIVES: u64 = 16;

struct Talk {
    peer: Peer,
    pair: QueuePair,
    connection: ConnectionId,
}

impl Talk {
    /// The next message of the other side.
    fn hear(&mut self) -> Vec<u8> {
        let (at, length) = self.peer.received(self.pair);
        let bytes = self.peer.get(at, length as usize);
        self.peer.post_receive(self.pair, at, 64);
        bytes
    }

    /// As the server: answers messages of these lengths with the like, but tells its own place where the client has
    /// told its. Returns the client's.
    fn answer(&mut self, lengths: &[usize]) {
        for &length in lengths {
            let bytes = self.hear();
            assert_eq!(bytes.len(), length, "{bytes:x?}");
            let answer = if length == PLACE { self.place() } else { bytes };
            self.peer.send(self.pair, &answer);
        }
    }

    /// As the client: says something, and takes the answer.
    fn exchange(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.peer.send(self.pair, bytes);
        let answer = self.hear();
        assert_eq!(answer.len(), bytes.len());
        answer
    }

    /// As the client: tells its own place, and is told the server's.
    fn exchange_places(&mut self) -> Remote {
        let own = self.place();
        let bytes = self.exchange(&own);
        Remote {
            key: Key(u32::from_be_bytes(bytes[16..20].try_into().unwrap())),
            address: u64::from_be_bytes(bytes[24..32].try_into().unwrap()),
        }
    }

    /// What the other side may write to.
    fn place(&self) -> Vec<u8> {
        let open = self.peer.remote(OPEN);
        let mut bytes = vec![0; PLACE];
        bytes[16..20].copy_from_slice(&open.key.0.to_be_bytes());
        bytes[24..32].copy_from_slice(&open.address.to_be_bytes());
        // An IPv4 address as a GID.
        bytes[42..48].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 9]);
        bytes
    }
}

/// Version, size of the cycle buffer, of a cache line, and MTU.
const INTRODUCTION: [usize; 4] = [16, 4, 4, 2];

fn receives(size: u64) -> Vec<(u64, u64)> {
    let slot = size.next_multiple_of(64);
    (0..RECEIVES)
        .map(|index| (MESSAGES + index * slot, size))
        .collect()
}

pub(crate) fn serve(test: &str, ip: &str, size: u64, count: u64) {
    let mut peer = Peer::new(ip, MEMORY);
    peer.listen(PORT);
    let (connection, pair) = peer.accept(&TALK);
    let mut talk = Talk {
        peer,
        pair,
        connection,
    };
    talk.answer(&INTRODUCTION);
    // That the second connection may come, and that it is there.
    talk.answer(&[PLACE]);
    let receives = receives(if test == "send_lat" { size } else { 64 });
    let (measured, pair) = talk.peer.accept(&receives);
    talk.answer(&[PLACE]);
    // The queue pairs, twice and once more; and in other places that both are ready.
    talk.answer(&[PLACE; 3]);
    if test == "send_lat" {
        talk.answer(&[PLACE]);
        let mut first = Vec::new();
        for _ in 0..count {
            let bytes = message(&mut talk.peer, pair, size, &mut first);
            reply(&mut talk.peer, pair, &bytes);
        }
    } else {
        // While the client writes, it says nothing; then come the figures: bytes, messages, three rates.
        talk.answer(&[PLACE, 8, 8, 8, 8, 8]);
        assert_written(&talk.peer, size);
    }
    talk.answer(&[PLACE]);
    talk.peer.disconnected(measured);
    talk.peer.disconnected(talk.connection);
}

pub(crate) fn ask(test: &str, ip: &str, to: &str, size: u64, count: u64) {
    let mut peer = Peer::new(ip, MEMORY);
    let to: IpAddr = to.parse().unwrap();
    let to = SocketAddr::new(to, PORT);
    let (connection, pair) = peer.connect(to, &TALK);
    let mut talk = Talk {
        peer,
        pair,
        connection,
    };
    let version = talk.exchange(b"6.00\0\0\0\0\0\0\0\0\0\0\0\0");
    println!("perftest {}", String::from_utf8_lossy(&version));
    talk.exchange(&4096_u32.to_be_bytes());
    talk.exchange(&64_u32.to_be_bytes());
    talk.exchange(b"5\0");
    talk.exchange_places();
    let receives = receives(if test == "send_lat" { size } else { 64 });
    let (measured, pair) = talk.peer.connect(to, &receives);
    talk.exchange_places();
    let mut remote = talk.exchange_places();
    for _ in 0..2 {
        remote = talk.exchange_places();
    }
    let bytes: Vec<u8> = (0..size).map(|at| (at * 7 + at / 251) as u8).collect();
    talk.peer.put(OPEN, &bytes);
    if test == "send_lat" {
        talk.exchange_places();
        let mut first = Vec::new();
        for _ in 0..count {
            reply(&mut talk.peer, pair, &bytes);
            message(&mut talk.peer, pair, size, &mut first);
        }
    } else {
        let source = Source::Memory(talk.peer.local(OPEN, size));
        let immediate = None;
        for _ in 0..count {
            let write = Work::Write {
                source,
                remote,
                immediate,
            };
            talk.peer.ask(pair, write);
        }
        // It can't be read again: perftest takes no READs in this test.
        talk.exchange_places();
        for figure in [size, count, 0, 0, 0] {
            talk.exchange(&figure.to_be_bytes());
        }
    }
    talk.exchange_places();
    talk.peer.disconnect(measured);
    talk.peer.disconnect(talk.connection);
}

/// A message of the test, like all of them.
fn message(peer: &mut Peer, pair: QueuePair, size: u64, first: &mut Vec<u8>) -> Vec<u8> {
    let (at, length) = peer.received(pair);
    assert_eq!(length, size);
    let bytes = peer.get(at, size as usize);
    if first.is_empty() {
        first.clone_from(&bytes);
    }
    assert!(bytes == *first, "perftest sends the same again and again");
    peer.put(at, &vec![0xee; size as usize]);
    peer.post_receive(pair, at, size);
    bytes
}

fn reply(peer: &mut Peer, pair: QueuePair, bytes: &[u8]) {
    let at = 3 * OPEN;
    peer.put(at, bytes);
    let source = Source::Memory(peer.local(at, bytes.len() as u64));
    let immediate = None;
    peer.ask(pair, Work::Send { source, immediate });
}

/// perftest's bytes are random ones: of so many, some are not 0.
fn assert_written(peer: &Peer, size: u64) {
    let written = peer.get(OPEN, size as usize);
    for part in written.chunks(256) {
        assert!(part.iter().any(|byte| *byte != 0), "nothing was written");
    }
}
