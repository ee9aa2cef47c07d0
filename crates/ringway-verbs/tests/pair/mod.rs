//! A device with a queue pair and memory, and an exchange between two of them, for tests on real and stand-in devices.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_sys::{Epoll, Interest, Staging};
use ringway_verbs::{
    Access, Completion, CompletionChannel, CompletionQueue, Context, Depths, Ended, Mtu, Operation,
    Path, Persistence, Port, ProtectionDomain, QueuePair, Region, RemotePlace, SendRequest, Source,
    VerbsError,
    gid::{self, Gid, GidEntry, Wish},
};

/// Bytes of each end's memory.
pub(crate) const SIZE: usize = 1 << 20;
/// How long anything may take; far more than it does.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// One side of a connection.
pub(crate) struct End {
    pub(crate) pair: QueuePair,
    pub(crate) region: Region,
    pub(crate) completions: Arc<CompletionQueue>,
    pub(crate) gid: GidEntry,
    pub(crate) port: Port,
    pub(crate) context: Arc<Context>,
    port_number: u8,
    _buffer: Staging,
}

impl End {
    pub(crate) fn new(context: &Arc<Context>, port: u8, wish: Wish) -> Self {
        Self::try_new(context, port, wish).unwrap()
    }

    /// With a queue pair to which receives can be posted.
    pub(crate) fn try_new(
        context: &Arc<Context>,
        port: u8,
        wish: Wish,
    ) -> Result<Self, VerbsError> {
        let end = Self::unconnected(context, port, wish)?;
        end.pair.to_init(port, Access::ALL)?;
        Ok(end)
    }

    /// With a new queue pair.
    pub(crate) fn unconnected(
        context: &Arc<Context>,
        port: u8,
        wish: Wish,
    ) -> Result<Self, VerbsError> {
        let choice = gid::choose(&context.gid_table(port)?, wish).unwrap();
        let domain = ProtectionDomain::new(context)?;
        let buffer = Staging::new(SIZE);
        let region = Region::register(&domain, buffer.memory(), Access::ALL)?;
        let channel = CompletionChannel::new(context)?;
        let completions = CompletionQueue::new(&channel, 256)?;
        let depths = Depths {
            send: 32,
            receive: 32,
            inline: 64,
        };
        Ok(Self {
            pair: QueuePair::new(&domain, &completions, &completions, depths)?,
            region,
            completions,
            gid: choice.entry,
            port: context.port(port)?,
            context: Arc::clone(context),
            port_number: port,
            _buffer: buffer,
        })
    }

    pub(crate) fn connect(&self, peer: &Self, retries: u8) {
        self.try_connect(peer, retries).unwrap();
    }

    pub(crate) fn try_connect(&self, peer: &Self, retries: u8) -> Result<(), VerbsError> {
        let mtu = Mtu::of_path(self.port.mtu, peer.port.mtu);
        self.connect_to(peer.gid.gid, peer.pair.number(), mtu, retries)
    }

    pub(crate) fn connect_to(
        &self,
        peer: Gid,
        peer_number: u32,
        mtu: Mtu,
        retries: u8,
    ) -> Result<(), VerbsError> {
        self.pair.to_receive(&Path {
            peer,
            peer_number,
            first_psn: 100,
            gid_index: u8::try_from(self.gid.index).unwrap(),
            port: self.port_number,
            mtu,
            traffic_class: 104,
            flow_label: 0,
            hop_limit: 64,
            reads_answered: 4,
            min_rnr_timer: 12,
        })?;
        self.pair.to_send(&Persistence {
            first_psn: 100,
            timeout: 14,
            retries,
            rnr_retries: retries,
            reads_asked: 4,
        })
    }

    pub(crate) fn post(&self, id: u64, operation: Operation<'_>) -> Result<(), VerbsError> {
        self.pair.post_send(&SendRequest {
            id,
            operation,
            signaled: true,
            solicited: false,
        })
    }

    pub(crate) fn send(
        &self,
        id: u64,
        bytes: Range<usize>,
        immediate: Option<u32>,
    ) -> Result<(), VerbsError> {
        let source = Source::Region(self.region.local(bytes));
        self.post(id, Operation::Send { source, immediate })
    }

    pub(crate) fn read_bytes(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.region.memory().slice(range).read(&mut bytes);
        bytes
    }

    pub(crate) fn place(&self, offset: usize) -> RemotePlace {
        self.region.remote_place(offset)
    }
}

/// The next completion, slept for at the channel.
pub(crate) fn poll_one(end: &End) -> Completion {
    poll_within(end, LONG).expect("no completion came")
}

/// The next completion if one comes in time: arm, look once more, sleep.
pub(crate) fn poll_within(end: &End, patience: Duration) -> Option<Completion> {
    let deadline = Instant::now() + patience;
    let set = Epoll::new().unwrap();
    set.add(end.completions.channel(), 1, Interest::Read)
        .unwrap();
    let mut got = Vec::new(); // no capacity: one at a time
    loop {
        end.completions.poll(&mut got).unwrap();
        if got.is_empty() {
            end.completions.arm().unwrap();
            end.completions.poll(&mut got).unwrap();
        }
        if let Some(&completion) = got.first() {
            assert_eq!(completion.queue_pair, end.pair.number());
            return Some(completion);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        set.wait(&mut Vec::new(), Some(left)).unwrap();
        while end.completions.channel().take().unwrap() {}
    }
}

/// Bytes that differ by place and by seed.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

fn ended(end: &End, id: u64, what: Ended) -> Completion {
    let completion = poll_one(end);
    assert!(completion.status.is_success(), "{}", completion.status);
    assert_eq!((completion.id, completion.ended), (id, what));
    completion
}

/// Every operation from a to b, with and without immediate data, for messages of these lengths.
pub(crate) fn exchange(a: &End, b: &End, lengths: &[usize]) {
    const FROM: usize = 64;
    const TO: usize = SIZE / 2 + 8;
    let bytes = |end: &End, at: usize, len: usize| end.read_bytes(at..at + len);
    let mut seed = 0;
    for &len in lengths {
        for immediate in [None, Some(0xfeed_0001)] {
            for kind in [Ended::Send, Ended::Write] {
                seed += 1;
                let sent = pattern(len, seed);
                a.region.memory().slice(FROM..SIZE).write(&sent);
                let receives = kind == Ended::Send || immediate.is_some();
                if receives {
                    let into = b.region.local(TO..TO + len);
                    b.pair.post_receive(7, into).unwrap();
                }
                let source = Source::Region(a.region.local(FROM..FROM + len));
                let operation = match kind {
                    Ended::Send => Operation::Send { source, immediate },
                    _ => Operation::Write {
                        source,
                        to: b.place(TO),
                        immediate,
                    },
                };
                a.post(1, operation).unwrap();
                ended(a, 1, kind);
                if receives {
                    let what = match kind {
                        Ended::Send => Ended::Receive,
                        _ => Ended::ReceiveWrite,
                    };
                    let got = ended(b, 7, what);
                    assert_eq!((got.len as usize, got.immediate), (len, immediate));
                }
                assert_eq!(bytes(b, TO, len), sent, "{kind:?} of {len} bytes");
            }
        }
        seed += 1;
        let there = pattern(len, seed);
        b.region.memory().slice(TO..SIZE).write(&there);
        let (into, from) = (a.region.local(FROM..FROM + len), b.place(TO));
        a.post(2, Operation::Read { into, from }).unwrap();
        ended(a, 2, Ended::Read);
        assert_eq!(bytes(a, FROM, len), there, "READ of {len} bytes");
    }

    let number =
        |end: &End, at: usize| u64::from_ne_bytes(end.read_bytes(at..at + 8).try_into().unwrap());
    let there = b.region.memory().slice(TO..SIZE);
    there.write(&41_u64.to_ne_bytes());
    let (into, at) = (a.region.local(FROM..FROM + 8), b.place(TO));
    a.post(3, Operation::FetchAdd { into, at, add: 5 }).unwrap();
    ended(a, 3, Ended::FetchAdd);
    assert_eq!((number(a, FROM), number(b, TO)), (41, 46));
    for (compare, then) in [(45, 46), (46, 9)] {
        let operation = Operation::CompareSwap {
            into,
            at,
            compare,
            swap: 9,
        };
        a.post(4, operation).unwrap();
        ended(a, 4, Ended::CompareSwap);
        assert_eq!((number(a, FROM), number(b, TO)), (46, then));
    }

    b.pair.post_receive(8, b.region.local(TO..TO + 64)).unwrap();
    let source = Source::Inline(b"inline");
    let immediate = Some(1);
    a.post(5, Operation::Send { source, immediate }).unwrap();
    ended(a, 5, Ended::Send);
    assert_eq!(ended(b, 8, Ended::Receive).len, 6);
    assert_eq!(bytes(b, TO, 6), b"inline");
}
