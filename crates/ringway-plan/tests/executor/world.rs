//! Executors of all ranks on an adversarial network: whatever may happen next, happens in random order.

use std::collections::{BTreeMap, VecDeque};

use ringway_plan::{
    Action, ActionId, Collective, Executor, Layout, Memory, Order, Place, Rank, Schedule, Space,
    Verified,
};

/// A small generator of pseudo-random numbers (xorshift64*): runs are reproducible from their seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % end
    }
}

/// What is run, and on how much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Elements of the vector; rounded up to a multiple of the ranks where ranks have parts.
    pub(crate) count: usize,
    /// Bytes of an element: 1 or 4.
    pub(crate) size: usize,
    pub(crate) slice_bytes: usize,
    pub(crate) memory: Memory,
    /// Messages that a sender may have on the way without a receive.
    pub(crate) buffered: usize,
    pub(crate) seed: u64,
}

type Key = (Rank, Rank, u16, u32, u32);

/// One rank's memory. In place, input and output are windows of one vector.
struct Bytes {
    input: Vec<u8>,
    output: Vec<u8>,
    scratch: Vec<u8>,
    /// In place: where input and output begin in `output`.
    windows: Option<(usize, usize)>,
}

impl Bytes {
    fn slice(&mut self, place: Place) -> &mut [u8] {
        let range = place.range();
        match (place.space, self.windows) {
            (Space::Scratch, _) => &mut self.scratch[range],
            (Space::Input, None) => &mut self.input[range],
            (Space::Output, None) => &mut self.output[range],
            (Space::Input, Some((at, _))) | (Space::Output, Some((_, at))) => {
                &mut self.output[at + range.start..at + range.end]
            }
        }
    }

    fn read(&mut self, place: Place) -> Vec<u8> {
        self.slice(place).to_vec()
    }
}

/// A message between its start and its end.
#[derive(Default)]
struct Message {
    sent: Option<(ActionId, Place)>,
    wanted: Option<(ActionId, Option<Place>)>,
    /// Read from the sender's memory.
    bytes: Option<Vec<u8>>,
    arrived: bool,
}

pub(crate) struct World {
    ranks: Vec<Executor>,
    bytes: Vec<Bytes>,
    messages: BTreeMap<Key, Message>,
    /// The keys of `messages`, to pick one.
    keys: Vec<Key>,
    /// Local actions that were issued and not done.
    work: Vec<VecDeque<Action>>,
    /// By receiver and id: messages held for a combine.
    views: BTreeMap<(Rank, ActionId), Vec<u8>>,
    held: Vec<Vec<bool>>,
    case: Case,
    random: Random,
    pub(crate) actions: usize,
}

impl World {
    pub(crate) fn new(schedule: &Verified, case: Case) -> Self {
        let n = schedule.ranks();
        let layouts: Vec<Layout> = (0..n).map(|r| layout(schedule, r, case)).collect();
        Self::with(schedule, case, &layouts, inputs(schedule, case))
    }

    pub(crate) fn with(
        schedule: &Verified,
        case: Case,
        layouts: &[Layout],
        inputs: Vec<Vec<u8>>,
    ) -> Self {
        let n = schedule.ranks();
        let executor = |r| Executor::new(schedule, r, &layouts[r], case.slice_bytes, case.memory);
        let ranks: Vec<Executor> = (0..n).map(executor).collect();
        let bytes = inputs.into_iter().enumerate().map(|(r, input)| {
            let scratch = vec![0xEE; ranks[r].scratch_bytes()];
            let output = vec![0xDD; output_len(schedule, r, case, &layouts[r])];
            match case.memory {
                Memory::Apart => Bytes {
                    input,
                    output,
                    scratch,
                    windows: None,
                },
                Memory::Shared => in_place(schedule, r, case, input, scratch),
            }
        });
        Self {
            bytes: bytes.collect(),
            messages: BTreeMap::new(),
            keys: Vec::new(),
            work: vec![VecDeque::new(); n],
            views: BTreeMap::new(),
            held: ranks.iter().map(|r| vec![false; r.views()]).collect(),
            ranks,
            case,
            random: Random::new(case.seed),
            actions: 0,
        }
    }

    /// Runs to the end, or panics with what each rank waits for.
    pub(crate) fn run(&mut self) {
        let n = self.ranks.len();
        let mut idle = 0;
        while !self.is_done() {
            let rank = self.random.below(n);
            let moved = match self.random.below(4) {
                0 => self.poll(rank),
                1 => self.do_work(rank),
                _ => self.move_message(),
            };
            idle = if moved { 0 } else { idle + 1 };
            if idle > 64 && !self.sweep() && !self.is_done() {
                let waits = |r: &Executor| r.pending().iter().map(|p| format!("{p}")).collect();
                let waits: Vec<Vec<String>> = self.ranks.iter().map(waits).collect();
                panic!("stuck with {:?}: {waits:#?}", self.case);
            }
        }
        for r in 0..n {
            assert!(self.ranks[r].poll().is_none(), "an action after the end");
            assert!(self.ranks[r].pending().is_empty());
        }
        assert!(
            self.messages.is_empty(),
            "messages left: {:?}",
            self.messages.keys()
        );
    }

    fn is_done(&self) -> bool {
        self.ranks.iter().all(Executor::is_done)
    }

    /// What rank `rank` has in its output space, by `len`.
    pub(crate) fn output(&mut self, rank: Rank, len: usize) -> Vec<u8> {
        self.bytes[rank].read(Place {
            space: Space::Output,
            offset: 0,
            len,
        })
    }

    pub(crate) fn input(&self, rank: Rank) -> &[u8] {
        &self.bytes[rank].input
    }

    /// Makes the executors ready again, with new input.
    pub(crate) fn again(&mut self, schedule: &Verified, seed: u64) {
        self.case.seed = seed;
        self.random = Random::new(seed);
        for (r, input) in inputs(schedule, self.case).into_iter().enumerate() {
            self.ranks[r].reset();
            let scratch = vec![0xEE; self.ranks[r].scratch_bytes()];
            self.bytes[r] = match self.case.memory {
                Memory::Apart => {
                    let output = vec![0xDD; self.bytes[r].output.len()];
                    Bytes {
                        input,
                        output,
                        scratch,
                        windows: None,
                    }
                }
                Memory::Shared => in_place(schedule, r, self.case, input, scratch),
            };
        }
    }

    /// Everything that can move, once: after that, only if nothing moved is the world stuck.
    fn sweep(&mut self) -> bool {
        let mut moved = false;
        for r in 0..self.ranks.len() {
            while self.poll(r) {
                moved = true;
            }
            while self.do_work(r) {
                moved = true;
            }
        }
        for pick in (0..self.keys.len()).rev() {
            let key = self.keys[pick];
            moved |= self.move_one(key);
            if !self.messages.contains_key(&key) {
                self.keys.swap_remove(pick);
            }
        }
        moved
    }

    fn poll(&mut self, rank: Rank) -> bool {
        let Some(action) = self.ranks[rank].poll() else {
            return false;
        };
        self.actions += 1;
        match action {
            Action::Send {
                id,
                peer,
                lane,
                message,
                slice,
                src,
            } => {
                assert_eq!(
                    self.ranks[rank].sending(peer, lane, message, slice),
                    Some(id)
                );
                let key = (rank, peer, lane, message, slice);
                let old = self.message(key).sent.replace((id, src));
                assert!(old.is_none(), "{key:?} sent twice");
            }
            Action::Recv {
                id,
                peer,
                lane,
                message,
                slice,
                dst,
            } => {
                assert_eq!(
                    self.ranks[rank].receiving(peer, lane, message, slice),
                    Some(id)
                );
                self.want((peer, rank, lane, message, slice), id, Some(dst));
            }
            Action::View {
                id,
                peer,
                lane,
                message,
                slice,
                view,
                ..
            } => {
                assert!(
                    !std::mem::replace(&mut self.held[rank][view], true),
                    "view in use"
                );
                assert_eq!(self.ranks[rank].view(id), Some(view));
                self.want((peer, rank, lane, message, slice), id, None);
            }
            action => self.work[rank].push_back(action),
        }
        true
    }

    fn want(&mut self, key: Key, id: ActionId, place: Option<Place>) {
        let old = self.message(key).wanted.replace((id, place));
        assert!(old.is_none(), "{key:?} received twice");
    }

    /// Does one issued local action, not always the oldest.
    fn do_work(&mut self, rank: Rank) -> bool {
        let count = self.work[rank].len();
        if count == 0 {
            return false;
        }
        let pick = self.random.below(count);
        let Some(action) = self.work[rank].remove(pick) else {
            return false;
        };
        let (size, bytes) = (self.case.size, &mut self.bytes[rank]);
        let id = match action {
            Action::Copy { id, src, dst } => {
                let from = bytes.read(src);
                bytes.slice(dst).copy_from_slice(&from);
                id
            }
            Action::Reduce {
                id,
                a,
                b,
                dst,
                finish,
            } => {
                let (a, b) = (bytes.read(a), bytes.read(b));
                bytes
                    .slice(dst)
                    .copy_from_slice(&reduce(&a, &b, size, finish));
                id
            }
            Action::Combine {
                id,
                view,
                own,
                dst,
                order,
                finish,
            } => {
                let Some(remote) = self.views.remove(&(rank, id)) else {
                    panic!("combine without a view")
                };
                self.held[rank][view] = false;
                let own = bytes.read(own);
                let sum = match order {
                    Order::LocalFirst => reduce(&own, &remote, size, finish),
                    Order::RemoteFirst => reduce(&remote, &own, size, finish),
                };
                bytes.slice(dst).copy_from_slice(&sum);
                id
            }
            other => panic!("{other:?} is no local action"),
        };
        self.ranks[rank].handle_done(id);
        true
    }

    fn message(&mut self, key: Key) -> &mut Message {
        let keys = &mut self.keys;
        self.messages.entry(key).or_insert_with(|| {
            keys.push(key);
            Message::default()
        })
    }

    fn move_message(&mut self) -> bool {
        let count = self.keys.len();
        if count == 0 {
            return false;
        }
        let pick = self.random.below(count);
        let key = self.keys[pick];
        let moved = self.move_one(key);
        if !self.messages.contains_key(&key) {
            self.keys.swap_remove(pick);
        }
        moved
    }

    /// Moves a message one step on: read by the network, delivered, reported.
    fn move_one(&mut self, key: Key) -> bool {
        let (from, to, ..) = key;
        let flying = |m: &Message| m.bytes.is_some() && !m.arrived && m.wanted.is_none();
        let pair = self
            .messages
            .range((from, to, 0, 0, 0)..(from, to + 1, 0, 0, 0));
        let buffered = pair.filter(|(_, m)| flying(m)).count();
        let Some(message) = self.messages.get_mut(&key) else {
            return false;
        };
        if let Some((id, src)) = message.sent
            && message.bytes.is_none()
        {
            if message.wanted.is_none() && buffered >= self.case.buffered {
                return false;
            }
            message.bytes = Some(self.bytes[from].read(src));
            self.ranks[from].handle_done(id);
            return true;
        }
        let (Some(bytes), Some((id, place))) = (&message.bytes, message.wanted) else {
            return false;
        };
        if !message.arrived {
            match place {
                Some(place) => self.bytes[to].slice(place).copy_from_slice(bytes),
                None => drop(self.views.insert((to, id), bytes.clone())),
            }
            message.arrived = true;
        } else {
            self.messages.remove(&key);
            self.ranks[to].handle_done(id);
        }
        true
    }
}

/// A sum, and where it is complete three times the sum, so that each result must be completed once.
fn reduce(a: &[u8], b: &[u8], size: usize, finish: bool) -> Vec<u8> {
    let factor = if finish { 3 } else { 1 };
    let pairs = a.chunks(size).zip(b.chunks(size));
    let sum = pairs.flat_map(|(a, b)| {
        let sum = number(a).wrapping_add(number(b)).wrapping_mul(factor);
        sum.to_le_bytes().into_iter().take(size)
    });
    sum.collect()
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u32::from(b))
}

const fn parted(collective: Collective) -> bool {
    !matches!(
        collective,
        Collective::AllReduce | Collective::Broadcast { .. } | Collective::Reduce { .. }
    )
}

fn elements(schedule: &Schedule, case: Case) -> usize {
    match parted(schedule.collective) {
        true => case.count.next_multiple_of(schedule.ranks()),
        false => case.count,
    }
}

fn layout(schedule: &Schedule, rank: Rank, case: Case) -> Layout {
    Layout::even(
        schedule.collective,
        &schedule.programs[rank],
        schedule.ranks(),
        schedule.chunks,
        rank,
        elements(schedule, case),
        case.size,
    )
}

/// Which bytes of the vector a range of chunks is.
fn window(
    schedule: &Schedule,
    case: Case,
    chunks: std::ops::Range<usize>,
) -> std::ops::Range<usize> {
    let count = elements(schedule, case);
    let bytes = count * case.size;
    match chunks.len() {
        0 => 0..0,
        len if len == schedule.chunks => 0..bytes,
        len => {
            let part = bytes / schedule.ranks();
            let rank = chunks.start / len;
            rank * part..(rank + 1) * part
        }
    }
}

fn output_window(schedule: &Schedule, case: Case, rank: Rank) -> std::ops::Range<usize> {
    let chunks = schedule
        .collective
        .output_chunks(schedule.ranks(), schedule.chunks, rank);
    window(schedule, case, chunks)
}

fn input_window(schedule: &Schedule, case: Case, rank: Rank) -> std::ops::Range<usize> {
    let chunks = schedule
        .collective
        .input_chunks(schedule.ranks(), schedule.chunks, rank);
    window(schedule, case, chunks)
}

fn output_len(schedule: &Schedule, rank: Rank, case: Case, layout: &Layout) -> usize {
    let chunks = schedule
        .collective
        .output_chunks(schedule.ranks(), schedule.chunks, rank);
    let ends = (0..chunks.len()).map(|c| layout.range(ringway_plan::Span::output(c, 1)).end);
    ends.max()
        .unwrap_or(0)
        .max(output_window(schedule, case, rank).len())
}

/// Every rank's input: bytes that differ by rank and place.
pub(crate) fn inputs(schedule: &Schedule, case: Case) -> Vec<Vec<u8>> {
    let mut random = Random::new(case.seed ^ 0xABCD);
    let len = |r| input_window(schedule, case, r).len();
    (0..schedule.ranks())
        .map(|r| (0..len(r)).map(|_| random.below(256) as u8).collect())
        .collect()
}

fn in_place(
    schedule: &Schedule,
    rank: Rank,
    case: Case,
    input: Vec<u8>,
    scratch: Vec<u8>,
) -> Bytes {
    let (from, to) = (
        input_window(schedule, case, rank),
        output_window(schedule, case, rank),
    );
    let mut output = vec![0xDD; elements(schedule, case) * case.size];
    output[from.clone()].copy_from_slice(&input);
    Bytes {
        input,
        output,
        scratch,
        windows: Some((from.start, to.start)),
    }
}

/// What each rank must end with.
pub(crate) fn expected(schedule: &Schedule, case: Case) -> Vec<Vec<u8>> {
    let inputs = inputs(schedule, case);
    let n = schedule.ranks();
    let sum = || {
        let first = inputs[0].clone();
        let last = n - 1;
        let rest = inputs.iter().enumerate().skip(1);
        rest.fold(first, |sum, (r, input)| {
            reduce(&sum, input, case.size, r == last)
        })
    };
    let vector: Vec<u8> = match schedule.collective {
        Collective::AllReduce | Collective::Reduce { .. } | Collective::ReduceScatter => sum(),
        Collective::AllGather | Collective::Gather { .. } => inputs.concat(),
        Collective::Broadcast { root } | Collective::Scatter { root } => inputs[root].clone(),
        Collective::AllToAll => {
            let part = elements(schedule, case) * case.size / n;
            let from = |r: usize| {
                let parts = inputs
                    .iter()
                    .map(move |i| i[r * part..(r + 1) * part].to_vec());
                parts.collect::<Vec<_>>().concat()
            };
            return (0..n).map(from).collect();
        }
        Collective::Barrier => Vec::new(),
    };
    (0..n)
        .map(|r| vector[output_window(schedule, case, r)].to_vec())
        .collect()
}
