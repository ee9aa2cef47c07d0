//! An interpreter of schedules that shares nothing with the verifier: it carries steps out, one at a time, in
//! a random order among those that are allowed, and looks at what the ranks end with.

use std::collections::{HashMap, VecDeque};

use ringway_plan::{Collective, Op, Order, Schedule, Space, Span};

/// A small generator of random numbers (splitmix64), to have one seed decide everything.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end.max(1) as u64) as usize
    }
}

/// How freely steps run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Chunk by chunk, with unlimited buffers: finds races.
    Loose,
    /// Whole steps, no buffers, one message of a lane between two ranks at a time: finds deadlocks.
    Strict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Value {
    tree: String,
    ranks: Vec<usize>,
    chunk: usize,
}

type Place = (usize, u8, usize);

struct Run<'a> {
    schedule: &'a Schedule,
    in_place: bool,
    mode: Mode,
    memory: HashMap<Place, Value>,
    steps: Vec<(usize, usize, usize)>,
    done: Vec<Vec<bool>>,
    sent: HashMap<(usize, usize), VecDeque<Option<Value>>>,
    meets: HashMap<usize, usize>,
}

/// Runs the schedule once. `Err` says what went wrong.
pub(crate) fn run(
    schedule: &Schedule,
    in_place: bool,
    mode: Mode,
    random: &mut Random,
) -> Result<(), String> {
    let mut run = Run::new(schedule, in_place, mode);
    let (mut entered, mut left) = (vec![None; schedule.ranks()], vec![0; schedule.ranks()]);
    for time in 0.. {
        let mut able: Vec<_> = (0..run.steps.len())
            .flat_map(|s| (0..run.done[s].len()).map(move |i| (s, i)))
            .filter(|&(s, i)| run.is_able(s, i))
            .collect();
        if able.is_empty() {
            break;
        }
        let (step, i) = able.swap_remove(random.below(able.len()));
        // In strict mode a receive carries out its send as well.
        let send = run.meets.get(&step).filter(|_| mode == Mode::Strict);
        for &step in std::iter::once(&step).chain(send) {
            let rank = run.steps[step].0;
            entered[rank].get_or_insert(time);
            left[rank] = time;
        }
        run.act(step, i);
    }
    if run.done.iter().flatten().any(|d| !d) {
        return Err("some steps can never run".to_owned());
    }
    if schedule.collective == Collective::Barrier && schedule.ranks() > 1 {
        let last = entered.iter().map(|e| e.unwrap_or(usize::MAX)).max();
        return match left.iter().all(|&l| Some(l) >= last) {
            true => Ok(()),
            false => Err("a rank left a barrier early".to_owned()),
        };
    }
    run.check()
}

const fn main_span(op: &Op) -> Span {
    match *op {
        Op::Send { src, .. } => src,
        Op::Copy { dst, .. }
        | Op::Recv { dst, .. }
        | Op::RecvReduce { dst, .. }
        | Op::Reduce { dst, .. } => dst,
    }
}

impl<'a> Run<'a> {
    fn new(schedule: &'a Schedule, in_place: bool, mode: Mode) -> Self {
        let mut steps = Vec::new();
        for (rank, program) in schedule.programs.iter().enumerate() {
            for (lane, l) in program.lanes.iter().enumerate() {
                steps.extend((0..l.steps.len()).map(|step| (rank, lane, step)));
            }
        }
        let mut run = Self {
            schedule,
            in_place,
            mode,
            memory: HashMap::new(),
            steps,
            done: Vec::new(),
            sent: HashMap::new(),
            meets: HashMap::new(),
        };
        run.done = (0..run.steps.len())
            .map(|s| vec![false; main_span(&run.op(s)).count.max(1)])
            .collect();
        for rank in 0..schedule.ranks() {
            for (i, chunk) in run.input(rank).enumerate() {
                let value = Value {
                    tree: format!("{rank}"),
                    ranks: vec![rank],
                    chunk,
                };
                run.memory.insert(run.place(rank, Space::Input, i), value);
            }
        }
        for s in 0..run.steps.len() {
            if let Op::Send { peer, .. } = run.op(s) {
                let (rank, lane, _) = run.steps[s];
                let nth = run.nth(s, |op| matches!(op, Op::Send { peer: p, .. } if *p == peer));
                let receive = (0..run.steps.len()).find(|&r| {
                    let here = (run.steps[r].0, run.steps[r].1) == (peer, lane);
                    here && from(&run.op(r)) == Some(rank)
                        && run.nth(r, |op| from(op) == Some(rank)) == nth
                });
                if let Some(receive) = receive {
                    run.meets.insert(s, receive);
                    run.meets.insert(receive, s);
                }
            }
        }
        run
    }

    /// How many steps before `s` in its lane are like it.
    fn nth(&self, s: usize, like: impl Fn(&Op) -> bool) -> usize {
        let (rank, lane, step) = self.steps[s];
        let before = &self.schedule.programs[rank].lanes[lane].steps[..step];
        before.iter().filter(|s| like(&s.op)).count()
    }

    fn op(&self, s: usize) -> Op {
        let (rank, lane, step) = self.steps[s];
        self.schedule.programs[rank].lanes[lane].steps[step].op
    }

    fn input(&self, rank: usize) -> std::ops::Range<usize> {
        let s = self.schedule;
        s.collective.input_chunks(s.ranks(), s.chunks, rank)
    }

    fn output(&self, rank: usize) -> std::ops::Range<usize> {
        let s = self.schedule;
        s.collective.output_chunks(s.ranks(), s.chunks, rank)
    }

    fn place(&self, rank: usize, space: Space, chunk: usize) -> Place {
        match space {
            Space::Input => (rank, 0, self.input(rank).start + chunk),
            Space::Output => {
                let vector = self.output(rank).start + chunk;
                let shared = self.in_place && self.input(rank).contains(&vector);
                (rank, if shared { 0 } else { 1 }, vector)
            }
            Space::Scratch => (rank, 2, chunk),
        }
    }

    /// What touch `i` of a step reads, and what it writes.
    fn uses(&self, s: usize, i: usize) -> (Vec<Place>, Vec<Place>) {
        let (op, rank) = (self.op(s), self.steps[s].0);
        let place =
            |span: Span| (i < span.count).then(|| self.place(rank, span.space, span.chunk + i));
        (
            op.reads().filter_map(place).collect(),
            op.writes().and_then(place).into_iter().collect(),
        )
    }

    fn conflict(&self, a: (usize, usize), b: (usize, usize)) -> bool {
        let ((read_a, write_a), (read_b, write_b)) = (self.uses(a.0, a.1), self.uses(b.0, b.1));
        let meet = |x: &[Place], y: &[Place]| x.iter().any(|p| y.contains(p));
        meet(&write_a, &read_b) || meet(&read_a, &write_b) || meet(&write_a, &write_b)
    }

    /// Whether nothing on its rank keeps touch `i` from running.
    fn is_free(&self, s: usize, i: usize) -> bool {
        let (rank, lane, step) = self.steps[s];
        let first = s - step;
        let waits = (first..s).any(|e| {
            (0..self.done[e].len()).any(|j| !self.done[e][j] && self.conflict((e, j), (s, i)))
        });
        let after = &self.schedule.programs[rank].lanes[lane].steps[step].after;
        let pending = after.iter().any(|at| {
            let target = self
                .steps
                .iter()
                .position(|&t| t == (rank, at.lane, at.step));
            target.is_none_or(|t| self.done[t].iter().any(|d| !d))
        });
        !waits && !pending
    }

    fn has_begun(&self, s: usize) -> bool {
        let op = self.op(s);
        let same = |e: usize| match (op, self.op(e)) {
            (Op::Send { peer: a, .. }, Op::Send { peer: b, .. }) => a == b,
            (op, other) => from(&op).is_some() && from(&op) == from(&other),
        };
        let first = s - self.steps[s].2;
        let queued = (first..s).any(|e| same(e) && self.done[e].iter().any(|d| !d));
        !queued && (0..self.done[s].len()).all(|i| self.is_free(s, i))
    }

    fn is_able(&self, s: usize, i: usize) -> bool {
        if self.done[s][i] {
            return false;
        }
        let met = self.meets.get(&s).copied();
        let (is_send, receives) = (
            matches!(self.op(s), Op::Send { .. }),
            from(&self.op(s)).is_some(),
        );
        match self.mode {
            Mode::Loose if receives => {
                let arrived = met.is_some_and(|m| self.sent.contains_key(&(m, i)));
                arrived && self.is_free(s, i)
            }
            Mode::Loose => self.is_free(s, i),
            // Both sides of a message act at once, when the receiver does.
            Mode::Strict if is_send => false,
            Mode::Strict if receives => met.is_some_and(|m| self.has_begun(m)) && self.has_begun(s),
            Mode::Strict => self.has_begun(s),
        }
    }

    fn act(&mut self, s: usize, i: usize) {
        if self.mode == Mode::Loose {
            return self.touch(s, i);
        }
        if from(&self.op(s)).is_some() {
            let send = self.meets[&s];
            (0..self.done[send].len()).for_each(|i| self.touch(send, i));
        }
        (0..self.done[s].len()).for_each(|i| self.touch(s, i));
    }

    fn touch(&mut self, s: usize, i: usize) {
        self.done[s][i] = true;
        let (op, rank) = (self.op(s), self.steps[s].0);
        let get = |run: &Self, span: Span| {
            run.memory
                .get(&run.place(rank, span.space, span.chunk + i))
                .cloned()
        };
        if main_span(&op).count == 0 {
            self.sent.insert((s, i), VecDeque::new());
            return;
        }
        let arrived = self.meets.get(&s).and_then(|m| self.sent.get(&(*m, i)));
        let arrived = arrived.and_then(|q| q.front().cloned().flatten());
        let result = match op {
            Op::Send { src, .. } => {
                let value = get(self, src);
                self.sent.insert((s, i), VecDeque::from([value]));
                return;
            }
            Op::Copy { src, .. } => get(self, src),
            Op::Recv { .. } => arrived,
            Op::RecvReduce {
                own,
                order: Order::LocalFirst,
                ..
            } => reduce(get(self, own), arrived),
            Op::RecvReduce { own, .. } => reduce(arrived, get(self, own)),
            Op::Reduce { a, b, .. } => reduce(get(self, a), get(self, b)),
        };
        let dst = main_span(&op);
        let place = self.place(rank, dst.space, dst.chunk + i);
        match result {
            Some(value) => self.memory.insert(place, value),
            None => self.memory.remove(&place),
        };
    }

    fn check(&self) -> Result<(), String> {
        let s = self.schedule;
        let n = s.ranks();
        let mut trees: HashMap<usize, &str> = HashMap::new();
        for rank in 0..n {
            for (i, vector) in self.output(rank).enumerate() {
                let part = (s.chunks / n).max(1);
                let (owner, chunk) = match s.collective {
                    Collective::AllGather | Collective::Gather { .. } => (vector / part, vector),
                    Collective::AllToAll => (vector / part, rank * part + vector % part),
                    Collective::Broadcast { root } | Collective::Scatter { root } => (root, vector),
                    _ => (n, vector),
                };
                let Some(value) = self.memory.get(&self.place(rank, Space::Output, i)) else {
                    return Err(format!("rank {rank} has nothing in output chunk {i}"));
                };
                let mut ranks = value.ranks.clone();
                ranks.sort_unstable();
                let expected = if owner < n {
                    vec![owner]
                } else {
                    (0..n).collect()
                };
                let same = owner < n || *trees.entry(vector).or_insert(&value.tree) == value.tree;
                if value.chunk != chunk || ranks != expected || !same {
                    return Err(format!("rank {rank} has {value:?} in output chunk {i}"));
                }
            }
        }
        Ok(())
    }
}

const fn from(op: &Op) -> Option<usize> {
    match *op {
        Op::Recv { peer, .. } | Op::RecvReduce { peer, .. } => Some(peer),
        _ => None,
    }
}

fn reduce(a: Option<Value>, b: Option<Value>) -> Option<Value> {
    let (a, b) = (a?, b?);
    let chunk = if a.chunk == b.chunk {
        a.chunk
    } else {
        usize::MAX
    };
    Some(Value {
        tree: format!("({}+{})", a.tree, b.tree),
        ranks: [a.ranks, b.ranks].concat(),
        chunk,
    })
}
