//! Proof of a program that is turned around a ring or a torus: what one rank does shows what all do.
//!
//! All ranks do a step together, each from its place. If the steps of one rank have an order, each receive with the send that
//! meets it, then so have all: a cycle of waits among ranks would be one of the steps. What a rank holds after a step is what
//! the rank at place 0 holds, turned to its place; so a value is kept as a tree of reductions and its turn.
//!
//! It proves less than [`super::prove`] does, only what generators make: all-reduces without scratch, whose steps stay with the
//! same chunks of the vector, and whose lanes touch different memory. What it does not prove is proved rank by rank.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{error::Memory, graph::NONE, run::Outcome, shape::main_span};
use crate::{
    programs::Turned,
    schedule::{Collective, Op, Order, Schedule, Space, Span},
};

/// What the proof shows, or `None` where there is none: for all that this says, the schedule may be right.
pub(super) fn prove(schedule: &Schedule) -> Option<Outcome> {
    let turned = schedule.programs.as_turned()?;
    let fits = schedule.chunks == turned.ranks() * turned.chunks_each();
    if schedule.collective != Collective::AllReduce || !fits || turned.ranks() < 2 {
        return None;
    }
    let steps = Steps::new(turned, schedule.chunks)?;
    let apart = steps.run(Memory::Apart)?;
    let shared = steps.run(Memory::Shared)?;
    let is_by_one = |&(_, op): &(usize, Op)| main_span(&op).count == 1;
    (apart == shared).then(|| Outcome {
        completes: apart,
        uneven: turned.chunks_each() == 1 && steps.all.iter().all(is_by_one),
    })
}

/// The steps of the rank at place 0, lane after lane.
struct Steps<'a> {
    turned: &'a Turned,
    chunks: usize,
    all: Vec<(usize, Op)>,
    /// The other side of each message: the same message of another rank.
    partner: Vec<u32>,
    /// The message before in the same lane and direction, with the same peer.
    previous: Vec<u32>,
}

impl<'a> Steps<'a> {
    fn new(turned: &'a Turned, chunks: usize) -> Option<Self> {
        let program = turned.one();
        let mut all = Vec::new();
        for (lane, steps) in program.lanes.iter().enumerate() {
            for step in &steps.steps {
                let main = main_span(&step.op);
                let mut spans = step.op.reads().chain(step.op.writes());
                let is_plain = spans.all(|s| {
                    (s.chunk, s.count) == (main.chunk, main.count)
                        && s.count > 0
                        && s.chunk < chunks
                        && s.count <= chunks - s.chunk
                        && s.space != Space::Scratch
                });
                let writes_input = step.op.writes().is_some_and(|s| s.space == Space::Input);
                if !is_plain || writes_input || !step.after.is_empty() {
                    return None;
                }
                all.push((lane, step.op));
            }
        }
        let mut steps = Self {
            turned,
            chunks,
            partner: vec![NONE; all.len()],
            previous: vec![NONE; all.len()],
            all,
        };
        if !program.scratch.is_empty() || !steps.stay_consecutive() {
            return None;
        }
        steps.meet()?;
        Some(steps)
    }

    /// Whether the chunks of every span are consecutive for all ranks.
    fn stay_consecutive(&self) -> bool {
        let spans = self.all.iter().map(|(_, op)| main_span(op));
        let mut open: Vec<_> = spans.map(|s| (s.chunk, s.count)).collect();
        let mut known: BTreeSet<_> = open.iter().copied().collect();
        open.dedup();
        while let Some((chunk, count)) = open.pop() {
            for unit in self.turned.units() {
                let turned = (chunk..chunk + count).map(|c| self.turned.chunk(c, unit));
                let turned: BTreeSet<usize> = turned.collect();
                let (Some(&first), Some(&last)) = (turned.first(), turned.last()) else {
                    return false;
                };
                if last - first + 1 != count {
                    return false;
                }
                if known.insert((first, count)) {
                    open.push((first, count));
                }
            }
        }
        true
    }

    /// Finds partners: the k-th send to a place that is so far ahead meets the k-th receive from one as far behind.
    fn meet(&mut self) -> Option<()> {
        let mut sends: BTreeMap<(usize, usize), Vec<u32>> = BTreeMap::new();
        let mut receives: BTreeMap<(usize, usize), Vec<u32>> = BTreeMap::new();
        for (step, &(lane, op)) in self.all.iter().enumerate() {
            let (messages, peer) = match op {
                Op::Send { peer, .. } => (&mut sends, peer),
                Op::Recv { peer, .. } | Op::RecvReduce { peer, .. } => (&mut receives, peer),
                Op::Copy { .. } | Op::Reduce { .. } => continue,
            };
            if !(1..self.turned.ranks()).contains(&peer) {
                return None;
            }
            let ahead = match op {
                Op::Send { .. } => peer,
                _ => self.turned.back(peer),
            };
            let messages = messages.entry((lane, ahead)).or_default();
            self.previous[step] = messages.last().copied().unwrap_or(NONE);
            messages.push(step as u32);
        }
        if !sends.keys().eq(receives.keys()) {
            return None;
        }
        for ((key, sent), received) in sends.iter().zip(receives.values()) {
            if sent.len() != received.len() {
                return None;
            }
            let behind = self.turned.back(key.1);
            for (&send, &receive) in sent.iter().zip(received) {
                let span = |step: u32| main_span(&self.all[step as usize].1);
                let (src, dst) = (span(send), span(receive));
                let comes = self
                    .turned
                    .first(src.chunk..src.chunk + src.count, behind)?;
                if (comes, src.count) != (dst.chunk, dst.count) {
                    return None;
                }
                self.partner[send as usize] = receive;
                self.partner[receive as usize] = send;
            }
        }
        Some(())
    }

    /// Where the chunks of a span are in memory.
    fn places(&self, span: Span, memory: Memory) -> std::ops::Range<usize> {
        let first = match (span.space, memory) {
            (Space::Output, Memory::Apart) => self.chunks + span.chunk,
            _ => span.chunk,
        };
        first..first + span.count
    }

    /// Which steps wait for each, and for how many each waits; `None` where lanes share memory that one of them writes.
    fn waits(&self, memory: Memory) -> Option<(Vec<Vec<u32>>, Vec<u32>)> {
        let mut lane_of: Vec<Option<usize>> = vec![None; 2 * self.chunks];
        for &(lane, op) in &self.all {
            for place in op.writes().map_or(0..0, |dst| self.places(dst, memory)) {
                if *lane_of[place].get_or_insert(lane) != lane {
                    return None;
                }
            }
        }
        let (mut waiting, mut missing) =
            (vec![Vec::new(); self.all.len()], vec![0; self.all.len()]);
        let mut writer = vec![NONE; 2 * self.chunks];
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); 2 * self.chunks];
        for (step, &(lane, op)) in self.all.iter().enumerate() {
            let mut wait = |on: u32| {
                if on != NONE && on != step as u32 {
                    waiting[on as usize].push(step as u32);
                    missing[step] += 1;
                }
            };
            wait(self.previous[step]);
            for place in op.reads().flat_map(|span| self.places(span, memory)) {
                if lane_of[place].is_some_and(|of| of != lane) {
                    return None;
                }
                wait(writer[place]);
                readers[place].push(step as u32);
            }
            for place in op.writes().map_or(0..0, |dst| self.places(dst, memory)) {
                wait(writer[place]);
                readers[place].drain(..).for_each(&mut wait);
                writer[place] = step as u32;
            }
        }
        Some((waiting, missing))
    }

    /// Runs all steps, and says which complete a reduction.
    fn run(&self, memory: Memory) -> Option<Vec<bool>> {
        let (waiting, mut missing) = self.waits(memory)?;
        let mut run = Run::new(self, memory);
        let mut begun: Vec<u32> = (0..self.all.len() as u32)
            .filter(|&s| missing[s as usize] == 0)
            .collect();
        let mut done = vec![false; self.all.len()];
        // A step is done at once if it is alone, else when its partner has begun too.
        while let Some(step) = begun.pop() {
            let both = match self.partner[step as usize] {
                NONE => [Some(step), None],
                partner if missing[partner as usize] > 0 => continue,
                partner => [Some(step), Some(partner)],
            };
            if done[step as usize] {
                continue;
            }
            for step in both.into_iter().flatten() {
                done[step as usize] = true;
                run.step(step as usize)?;
            }
            for step in both.into_iter().flatten() {
                for &waiter in &waiting[step as usize] {
                    missing[waiter as usize] -= 1;
                    if missing[waiter as usize] == 0 {
                        begun.push(waiter);
                    }
                }
            }
        }
        (done.iter().all(|&done| done) && run.keeps_promise()).then_some(run.completes)
    }
}

/// A tree of reductions, turned.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Value {
    tree: u32,
    turn: usize,
}

/// The vector's chunk of a tree, and the places whose contributions it has, as bits.
struct Tree {
    chunk: usize,
    places: Vec<u64>,
}

struct Run<'a> {
    steps: &'a Steps<'a>,
    turned: &'a Turned,
    memory: Memory,
    /// First the inputs of the rank at place 0, by chunk.
    trees: Vec<Tree>,
    /// The trees of reductions, by those of their operands and the turn of the second against the first.
    known: HashMap<(u32, u32, usize), u32>,
    /// What the rank at place 0 has in each place of its memory.
    held: Vec<Option<Value>>,
    completes: Vec<bool>,
}

impl<'a> Run<'a> {
    fn new(steps: &'a Steps<'a>, memory: Memory) -> Self {
        let words = steps.turned.ranks().div_ceil(64);
        let tree = |chunk| {
            let mut places = vec![0; words];
            places[0] = 1;
            Tree { chunk, places }
        };
        let input = |tree: usize| Value {
            tree: tree as u32,
            turn: 0,
        };
        let mut held: Vec<_> = (0..steps.chunks).map(|c| Some(input(c))).collect();
        held.resize(2 * steps.chunks, None);
        Self {
            steps,
            turned: steps.turned,
            memory,
            trees: (0..steps.chunks).map(tree).collect(),
            known: HashMap::new(),
            held,
            completes: vec![false; steps.all.len()],
        }
    }

    fn step(&mut self, step: usize) -> Option<()> {
        let op = self.steps.all[step].1;
        let main = main_span(&op);
        let mut result = Vec::with_capacity(main.count);
        for chunk in main.chunk..main.chunk + main.count {
            result.push(match op {
                Op::Send { src, .. } => self.read(src.space, chunk)?,
                Op::Copy { src, .. } => self.read(src.space, chunk)?,
                Op::Recv { peer, .. } => self.received(step, peer, chunk)?,
                Op::RecvReduce {
                    peer, own, order, ..
                } => {
                    let own = self.read(own.space, chunk)?;
                    let other = self.received(step, peer, chunk)?;
                    match order {
                        Order::LocalFirst => self.reduce(own, other)?,
                        Order::RemoteFirst => self.reduce(other, own)?,
                    }
                }
                Op::Reduce { a, b, .. } => {
                    let (a, b) = (self.read(a.space, chunk)?, self.read(b.space, chunk)?);
                    self.reduce(a, b)?
                }
            });
        }
        if matches!(op, Op::RecvReduce { .. } | Op::Reduce { .. }) {
            let mut complete = result.iter().map(|&value| self.is_complete(value));
            let first = complete.next()?;
            if complete.any(|complete| complete != first) {
                return None;
            }
            self.completes[step] = first;
        }
        let places = op
            .writes()
            .map_or(0..0, |dst| self.steps.places(dst, self.memory));
        for (place, value) in places.zip(result) {
            self.held[place] = Some(value);
        }
        Some(())
    }

    /// What the rank at place 0 has of a chunk.
    fn read(&self, space: Space, chunk: usize) -> Option<Value> {
        let span = Span {
            space,
            chunk,
            count: 1,
        };
        self.held[self.steps.places(span, self.memory).start]
    }

    /// What comes from the rank at place `peer` of a chunk: what the one at place 0 sends, turned.
    fn received(&self, step: usize, peer: usize, chunk: usize) -> Option<Value> {
        let sent = self.steps.all.get(self.steps.partner[step] as usize)?;
        let chunk = self.turned.chunk(chunk, self.turned.back(peer));
        let value = self.read(main_span(&sent.1).space, chunk)?;
        Some(self.turn(value, peer))
    }

    const fn turn(&self, value: Value, turn: usize) -> Value {
        Value {
            turn: self.turned.turn(value.turn, turn),
            ..value
        }
    }

    fn reduce(&mut self, a: Value, b: Value) -> Option<Value> {
        if self.chunk(a) != self.chunk(b) {
            return None;
        }
        let turn = self.turned.turn(b.turn, self.turned.back(a.turn));
        let key = (a.tree, b.tree, turn);
        if let Some(&tree) = self.known.get(&key) {
            return Some(Value { tree, ..a });
        }
        let first = &self.trees[a.tree as usize];
        let mut places = first.places.clone();
        for (word, &bits) in self.trees[b.tree as usize].places.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let place = word * 64 + bits.trailing_zeros() as usize;
                let place = self.turned.turn(place, turn);
                let bit = 1 << (place % 64);
                if places[place / 64] & bit != 0 {
                    return None;
                }
                places[place / 64] |= bit;
                bits &= bits - 1;
            }
        }
        let chunk = first.chunk;
        let tree = self.trees.len() as u32;
        self.trees.push(Tree { chunk, places });
        self.known.insert(key, tree);
        Some(Value { tree, ..a })
    }

    fn chunk(&self, value: Value) -> usize {
        let chunk = self.trees[value.tree as usize].chunk;
        self.turned.chunk(chunk, value.turn)
    }

    fn is_complete(&self, value: Value) -> bool {
        let places = self.trees[value.tree as usize].places.iter();
        places.map(|w| w.count_ones() as usize).sum::<usize>() == self.turned.ranks()
    }

    /// Whether the rank at place 0 has every chunk of all ranks reduced, and its neighbours the same.
    fn keeps_promise(&self) -> bool {
        let output = |chunk| self.read(Space::Output, chunk);
        (0..self.steps.chunks).all(|chunk| {
            let Some(value) = output(chunk) else {
                return false;
            };
            let is_same = |unit| {
                let neighbour = output(self.turned.chunk(chunk, unit));
                neighbour == Some(self.turn(value, unit))
            };
            self.chunk(value) == chunk
                && self.is_complete(value)
                && self.turned.units().all(is_same)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        algorithm::Algorithm,
        generate::{Topology, generate},
        schedule::{Lane, Program, StepRef},
        verify::verify,
    };

    /// All-reduces by rings and tori, in the order of ranks and in another.
    fn turned() -> Vec<Schedule> {
        let mut all = Vec::new();
        for n in 2..18 {
            let hosts = |step: usize| Topology::new((0..n).map(|r| r * step % 19).collect());
            for topology in [hosts(1), hosts(7).with_order((0..19).collect())] {
                let ring = |channels| (Algorithm::Ring, topology.clone().with_channels(channels));
                let torus = |w| (Algorithm::Torus, topology.clone().with_torus_width(w));
                let widths = (1..=n).filter(|&w| n.is_multiple_of(w));
                let kinds = [1, 2, 3].map(ring).into_iter().chain(widths.map(torus));
                all.extend(kinds.map(|(algorithm, topology)| {
                    generate(Collective::AllReduce, algorithm, &topology).unwrap()
                }));
            }
        }
        all
    }

    /// The same with a program for each rank, for the proof rank by rank.
    fn expanded(schedule: &Schedule) -> Schedule {
        Schedule {
            programs: schedule.programs.iter().cloned().collect(),
            ..schedule.clone()
        }
    }

    #[test]
    fn one_rank_shows_what_all_show() {
        let all = turned();
        for schedule in &all {
            let name = format!("{} of {}", schedule.algorithm, schedule.ranks());
            let outcome = prove(schedule);
            let outcome = outcome.unwrap_or_else(|| panic!("{name} is not proved"));
            let each = verify(expanded(schedule)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(outcome.uneven, each.uneven(), "{name}");
            for rank in 0..schedule.ranks() {
                let mut completes = outcome.completes.iter();
                for (lane, l) in schedule.programs[rank].lanes.iter().enumerate() {
                    for step in 0..l.steps.len() {
                        let expected = each.completes(rank, StepRef { lane, step });
                        assert_eq!(completes.next(), Some(&expected), "{name}");
                    }
                }
            }
        }
        assert!(all.len() > 150, "only {}", all.len());
    }

    /// Changes one thing of the program that is turned.
    fn spoil(one: &mut Program, (chunks, ranks): (usize, usize), mut number: usize) {
        let mut pick = |below: usize| {
            let picked = number % below.max(1);
            number /= below.max(1);
            picked
        };
        let kind = pick(8);
        let lanes = one.lanes.len();
        let lane = pick(lanes);
        let steps = &mut one.lanes[lane].steps;
        let (at, other) = (pick(steps.len()), pick(steps.len()));
        let (chunk, place) = (pick(chunks), pick(ranks));
        match (kind, &mut steps[at].op) {
            (0, _) => drop(steps.remove(at)),
            (1, _) => steps.swap(at, other),
            (2, Op::Send { peer, .. } | Op::Recv { peer, .. }) => *peer = place,
            (2 | 3, Op::RecvReduce { order, .. }) => {
                *order = match order {
                    Order::LocalFirst => Order::RemoteFirst,
                    Order::RemoteFirst => Order::LocalFirst,
                }
            }
            (4, Op::RecvReduce { own, .. }) => own.space = Space::Output,
            (5, Op::Send { src, .. }) => {
                src.space = match src.space {
                    Space::Input => Space::Output,
                    _ => Space::Input,
                }
            }
            (6, Op::Send { src, .. }) => src.chunk = chunk,
            (6, Op::Recv { dst, .. }) => dst.chunk = chunk,
            _ => {
                let moved = steps.remove(at);
                one.lanes.resize_with(lanes.max(lane + 2), Lane::default);
                one.lanes[lane + 1].steps.push(moved);
            }
        }
    }

    #[test]
    fn what_is_proved_of_one_rank_is_so_of_all() {
        let (mut proved, mut refused) = (0, 0);
        for schedule in turned().iter().filter(|s| s.ranks() <= 8) {
            let turned = schedule.programs.as_turned().unwrap();
            for number in 0..60_usize {
                let mut one = turned.one().clone();
                let sizes = (schedule.chunks, schedule.ranks());
                spoil(
                    &mut one,
                    sizes,
                    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 3,
                );
                let spoilt = Schedule {
                    programs: turned.with(one),
                    ..schedule.clone()
                };
                if prove(&spoilt).is_none() {
                    refused += 1;
                    continue;
                }
                proved += 1;
                let each = verify(expanded(&spoilt));
                assert!(
                    each.is_ok(),
                    "{} {number}: {:?}",
                    spoilt.algorithm,
                    each.err()
                );
            }
        }
        assert!(
            proved > 100 && refused > 1000,
            "{proved} proved, {refused} refused"
        );
    }
}
