//! Two queue pairs over a wire that loses, repeats and reorders: every operation takes place exactly once and in
//! order, or both memories would differ from the model's.

use proptest::prelude::*;

use super::*;

// The parts of each end's region. Packets may be repeated, and a READ with them: so the peer reads only what nobody
// writes, and atomic operations have numbers of their own.
const CONSTANT: usize = 0;
const WRITTEN: usize = 16 << 10;
const NUMBERS: usize = 32 << 10;
const ANSWERS: usize = 33 << 10;
const RECEIVED: usize = 48 << 10;
const MAX_LENGTH: usize = 700;

#[derive(Clone, Debug)]
enum Op {
    Send(usize, Option<u32>),
    SendInline(usize),
    Write(usize, usize, Option<u32>),
    Read(usize, usize),
    Add(usize, u64),
    Swap(usize, u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let length = 0..MAX_LENGTH;
    let immediate = prop::option::of(any::<u32>());
    prop_oneof![
        (length.clone(), immediate.clone()).prop_map(|(length, data)| Op::Send(length, data)),
        (0..100usize).prop_map(Op::SendInline),
        (0..1000usize, length.clone(), immediate)
            .prop_map(|(at, length, data)| Op::Write(at, length, data)),
        (0..1000usize, length).prop_map(|(at, length)| Op::Read(at, length)),
        (0..3usize, 0..5u64).prop_map(|(slot, add)| Op::Add(slot, add)),
        (0..3usize, 0..5u64, 0..5u64)
            .prop_map(|(slot, compare, swap)| Op::Swap(slot, compare, swap)),
    ]
}

#[derive(Clone, Debug)]
struct Wire {
    /// Of a thousand packets.
    lost: u64,
    repeated: u64,
    /// The longest delay in microseconds; each packet has its own.
    delay: u64,
    seed: u64,
}

fn wire() -> impl Strategy<Value = Wire> {
    (0..150u64, 0..100u64, 1..300u64, 1..u64::MAX).prop_map(|(lost, repeated, delay, seed)| Wire {
        lost,
        repeated,
        delay,
        seed,
    })
}

impl Wire {
    /// xorshift64.
    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below
    }

    fn delays(&mut self) -> Vec<Duration> {
        let copies = if self.random(1000) < self.lost {
            0
        } else {
            1 + usize::from(self.random(1000) < self.repeated)
        };
        (0..copies)
            .map(|_| Duration::from_micros(1 + self.random(self.delay)))
            .collect()
    }
}

/// What one end's operations should do to both memories, and which completions they should have.
struct Model {
    memories: [Vec<u8>; 2],
    sent: [Vec<Completion>; 2],
    received: [Vec<Completion>; 2],
}

const fn success(id: u64, done: Done) -> Completion {
    Completion {
        id,
        status: Status::Success,
        done,
    }
}

impl Model {
    fn new(constants: [Vec<u8>; 2]) -> Self {
        Self {
            memories: constants.map(|mut bytes| {
                bytes.resize(LENGTH, 0);
                bytes
            }),
            sent: [vec![], vec![]],
            received: [vec![], vec![]],
        }
    }

    fn run(&mut self, own: usize, id: u64, op: &Op) {
        let peer = 1 - own;
        let answer = ANSWERS + id as usize * MAX_LENGTH;
        let next = self.received[peer].len();
        let place = RECEIVED + next * MAX_LENGTH;
        let receive = |done| success(next as u64, done);
        let done = match *op {
            Op::Send(length, immediate) => {
                self.copy(own, CONSTANT, peer, place, length);
                let length = length as u32;
                self.received[peer].push(receive(Done::Receive { length, immediate }));
                Done::Send
            }
            Op::SendInline(length) => {
                self.memories[peer][place..place + length].copy_from_slice(&pattern(length));
                let (length, immediate) = (length as u32, None);
                self.received[peer].push(receive(Done::Receive { length, immediate }));
                Done::Send
            }
            Op::Write(at, length, immediate) => {
                self.copy(own, CONSTANT + at, peer, WRITTEN + at, length);
                if let Some(immediate) = immediate {
                    let length = length as u32;
                    self.received[peer].push(receive(Done::ReceiveWrite { length, immediate }));
                }
                Done::Write
            }
            Op::Read(at, length) => {
                self.copy(peer, CONSTANT + at, own, answer, length);
                Done::Read
            }
            Op::Add(slot, add) => {
                self.number(own, slot, answer, |before| before + add);
                Done::FetchAdd
            }
            Op::Swap(slot, compare, swap) => {
                self.number(own, slot, answer, |before| {
                    if before == compare { swap } else { before }
                });
                Done::CompareSwap
            }
        };
        self.sent[own].push(success(id, done));
    }

    fn copy(&mut self, from: usize, at: usize, to: usize, place: usize, length: usize) {
        let bytes = self.memories[from][at..at + length].to_vec();
        self.memories[to][place..place + length].copy_from_slice(&bytes);
    }

    fn number(&mut self, own: usize, slot: usize, answer: usize, change: impl Fn(u64) -> u64) {
        let at = NUMBERS + slot * 8;
        let bytes: [u8; 8] = self.memories[1 - own][at..at + 8].try_into().unwrap();
        let before = u64::from_ne_bytes(bytes);
        self.memories[1 - own][at..at + 8].copy_from_slice(&change(before).to_ne_bytes());
        self.memories[own][answer..answer + 8].copy_from_slice(&bytes);
    }
}

fn work<'a>(own: &End, peer: &End, id: u64, op: &Op, inline: &'a [u8]) -> Work<'a> {
    let answer = ANSWERS + id as usize * MAX_LENGTH;
    match *op {
        Op::Send(length, immediate) => Work::Send {
            source: Source::Memory(own.local(CONSTANT, length)),
            immediate,
        },
        Op::SendInline(_) => send(inline),
        Op::Write(at, length, immediate) => Work::Write {
            source: Source::Memory(own.local(CONSTANT + at, length)),
            remote: peer.remote(WRITTEN + at),
            immediate,
        },
        Op::Read(at, length) => Work::Read {
            into: own.local(answer, length),
            remote: peer.remote(CONSTANT + at),
        },
        Op::Add(slot, add) => Work::FetchAdd {
            into: own.local(answer, 8),
            remote: peer.remote(NUMBERS + slot * 8),
            add,
        },
        Op::Swap(slot, compare, swap) => Work::CompareSwap {
            into: own.local(answer, 8),
            remote: peer.remote(NUMBERS + slot * 8),
            compare,
            swap,
        },
    }
}

/// Two ends, and the packets on the wire between them with their times of arrival.
struct World {
    ends: [End; 2],
    wire: Wire,
    under_way: Vec<(Instant, usize, Vec<u8>)>,
    now: Instant,
    completions: [Vec<Completion>; 2],
    receives_left: [Vec<u64>; 2],
}

impl World {
    /// Lets everything happen that happens now, then goes on to when something happens next. False if nothing will.
    fn step(&mut self) -> bool {
        let now = self.now;
        let (arrived, under_way) = std::mem::take(&mut self.under_way)
            .into_iter()
            .partition(|(time, ..)| *time <= now);
        self.under_way = under_way;
        let mut arrived: Vec<_> = arrived;
        arrived.sort_by_key(|(time, ..)| *time);
        for (_, to, bytes) in arrived {
            self.ends[to].take(now, &bytes);
        }
        for own in 0..2 {
            self.ends[own].qp.handle_timeout(now);
            for bytes in self.ends[own].transmit_all(now) {
                for delay in self.wire.delays() {
                    self.under_way.push((now + delay, 1 - own, bytes.clone()));
                }
            }
            let ended = self.ends[own].completions();
            // Whoever waits for a receive gets one at last.
            if self.ends[own].qp.counters().rnr_naks_sent > 0 || !ended.is_empty() {
                self.post_receive(own);
            }
            self.completions[own].extend(ended);
        }
        let arrival = self.under_way.iter().map(|(time, ..)| *time).min();
        let timeouts = self.ends.iter().filter_map(|end| end.qp.poll_timeout());
        match timeouts.chain(arrival).min() {
            Some(next) => {
                self.now = next.max(now);
                true
            }
            None => false,
        }
    }

    fn post_receive(&mut self, own: usize) {
        if let Some(id) = self.receives_left[own].pop() {
            self.ends[own].post_receive(id, RECEIVED + id as usize * MAX_LENGTH, MAX_LENGTH);
        }
    }
}

fn run(
    setup: Setup,
    wire: Wire,
    ops: &[Vec<Op>; 2],
    posted: usize,
    room: usize,
) -> Result<(), TestCaseError> {
    let constants =
        [1u8, 2].map(|salt| (0..WRITTEN).map(|i| ((i * 31) >> 3) as u8 ^ salt).collect());
    let mut model = Model::new(constants.clone());
    let (a, b) = connected(setup);
    let mut world = World {
        ends: [a, b],
        wire,
        under_way: vec![],
        now: Instant::now(),
        completions: [vec![], vec![]],
        receives_left: [vec![], vec![]],
    };
    for own in 0..2 {
        world.ends[own].qp.limit_growth(room);
        world.ends[own].fill(CONSTANT, &constants[own]);
        for (id, op) in ops[own].iter().enumerate() {
            model.run(own, id as u64, op);
            let inline = match *op {
                Op::SendInline(length) => pattern(length),
                _ => vec![],
            };
            let work = work(
                &world.ends[own],
                &world.ends[1 - own],
                id as u64,
                op,
                &inline,
            );
            world.ends[own].post(id as u64, work);
        }
    }
    for own in 0..2 {
        world.receives_left[own] = (0..model.received[own].len() as u64).rev().collect();
        for _ in 0..posted {
            world.post_receive(own);
        }
    }
    let mut steps = 0;
    while world.step() {
        steps += 1;
        prop_assert!(
            steps < 100_000,
            "no end: {:?}",
            world.ends.map(|end| *end.qp.counters())
        );
    }
    for own in 0..2 {
        let is_receive = |done: &Completion| {
            matches!(done.done, Done::Receive { .. } | Done::ReceiveWrite { .. })
        };
        let (received, sent): (Vec<_>, Vec<_>) =
            world.completions[own].iter().copied().partition(is_receive);
        prop_assert_eq!(&sent, &model.sent[own]);
        prop_assert_eq!(&received, &model.received[own]);
        prop_assert!(world.ends[own].memory() == model.memories[own]);
        prop_assert!(world.ends[own].qp.footprint() <= room);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn exactly_once_and_in_order(
        wire in wire(),
        ops in prop::collection::vec(op(), 0..20),
        other_ops in prop::collection::vec(op(), 0..20),
        mtu in prop::sample::select(vec![Mtu::M256, Mtu::M512]),
        window in 1..64u32,
        read_window in 1..16u32,
        depth in 1..5u8,
        posted in 0..20usize,
        psn: u32,
        selective: bool,
        // None, enough for the smaller MTU, and for both.
        room in prop::sample::select(vec![0, 256 * 256, usize::MAX]),
    ) {
        let setup = Setup {
            mtu,
            window,
            read_window,
            depth,
            resources: depth,
            // The wire may be as bad as it likes; that retries end is another test's.
            retries: 200,
            rnr_retries: 7,
            psn,
            selective,
            ..Setup::default()
        };
        run(setup, wire, &[ops, other_ops], posted, room)?;
    }
}
