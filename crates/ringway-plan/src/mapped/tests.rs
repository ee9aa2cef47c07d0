//! Runs all ranks' programs on plain memory, in random interleavings, and checks what the collective promises and that
//! every conflicting pair of accesses is ordered by waits alone, whatever the interleaving.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
};

use proptest::prelude::*;

use super::{Base, BoundOperand, BoundProgram, MappedProgram, Mode, Wait, Walk};
use crate::{
    Algorithm, Collective, Layout, Program, Rank, Span, Topology, Verified, generate, verify,
};

/// Elements are of this many bytes.
const SIZE: usize = 8;

/// What an element holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    /// The sum of its contributions, each a random number.
    sum: u64,
    /// Which calls made it of what, in which order: the same wherever the bits must be the same.
    shape: u64,
    /// How often it was completed.
    completed: u32,
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn contribution(rank: Rank, element: usize) -> Value {
    let value = hash((rank, element));
    Value {
        sum: value,
        shape: value,
        completed: 0,
    }
}

/// One element of memory and who touched it when, in epochs of each rank.
#[derive(Clone, Debug, Default)]
struct Cell {
    value: Option<Value>,
    writer: Option<(Rank, u64)>,
    readers: BTreeMap<Rank, u64>,
}

type Clock = Vec<u64>;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Address {
    User {
        rank: Rank,
        base_is_input: bool,
        element: usize,
    },
    Staging {
        rank: Rank,
        slot: usize,
        copy: u64,
        element: usize,
    },
}

/// How a run is set up.
#[derive(Clone, Debug)]
struct Setup {
    count: usize,
    segment: usize,
    in_place: Vec<bool>,
    /// Show all staging first, then all meet, then go on without waits.
    shown_at_once: bool,
    picks: Vec<usize>,
}

struct Machine<'a> {
    schedule: &'a Verified,
    setup: &'a Setup,
    programs: Vec<BoundProgram>,
    cells: HashMap<Address, Cell>,
    clocks: Vec<Clock>,
    /// Of each rank, every progress it made, with its clock then.
    progress: Vec<Vec<(u64, Clock)>>,
    ranks: usize,
}

impl<'a> Machine<'a> {
    fn new(schedule: &'a Verified, programs: Vec<BoundProgram>, setup: &'a Setup) -> Self {
        let ranks = schedule.ranks();
        let mut machine = Self {
            schedule,
            setup,
            programs,
            cells: HashMap::new(),
            clocks: vec![vec![0; ranks]; ranks],
            progress: vec![vec![(0, vec![0; ranks])]; ranks],
            ranks,
        };
        for rank in 0..ranks {
            for (element, vector) in machine.vector(rank, true).enumerate() {
                let value = Some(contribution(rank, vector));
                let address = machine.user(rank, true, element);
                machine.cells.insert(
                    address,
                    Cell {
                        value,
                        ..Cell::default()
                    },
                );
            }
        }
        machine
    }

    /// The vector's elements of a rank's input or output.
    fn vector(&self, rank: Rank, input: bool) -> std::ops::Range<usize> {
        let (n, chunks) = (self.schedule.ranks(), self.schedule.chunks);
        let collective = self.schedule.collective;
        let range = match input {
            true => collective.input_chunks(n, chunks, rank),
            false => collective.output_chunks(n, chunks, rank),
        };
        let every = Program {
            scratch: (0..chunks).collect(),
            ..Program::default()
        };
        let every = Layout::even(collective, &every, n, chunks, rank, self.setup.count, SIZE);
        let end = |chunk: usize| every.range(Span::scratch(0, chunk)).end / SIZE;
        match chunks {
            0 => 0..0,
            _ => end(range.start)..end(range.end),
        }
    }

    /// In place, both are the same vector.
    fn user(&self, rank: Rank, input: bool, element: usize) -> Address {
        match self.setup.in_place[rank] {
            true => {
                let element = self.vector(rank, input).start + element;
                Address::User {
                    rank,
                    base_is_input: true,
                    element,
                }
            }
            false => Address::User {
                rank,
                base_is_input: input,
                element,
            },
        }
    }

    fn address(&self, operand: BoundOperand, segment: u64, element: usize) -> Address {
        let within = segment as usize * self.setup.segment + element;
        match operand.base {
            Base::Staging => Address::Staging {
                rank: operand.rank,
                slot: operand.offset,
                copy: segment % self.programs[operand.rank].ring(),
                element,
            },
            base => self.user(
                operand.rank,
                base == Base::Input,
                operand.offset / SIZE + within,
            ),
        }
    }

    fn ordered(&self, rank: Rank, (other, epoch): (Rank, u64)) -> bool {
        other == rank || self.clocks[rank][other] >= epoch
    }

    fn read(&mut self, rank: Rank, address: Address) -> Value {
        let epoch = self.clocks[rank][rank];
        let cell = self.cells.entry(address).or_default().clone();
        assert!(
            cell.writer.is_none_or(|writer| self.ordered(rank, writer)),
            "rank {rank} reads {address:?} while {:?} may write it",
            cell.writer
        );
        let value = cell
            .value
            .unwrap_or_else(|| panic!("rank {rank} reads {address:?} unwritten"));
        self.cells
            .entry(address)
            .or_default()
            .readers
            .insert(rank, epoch);
        value
    }

    fn write(&mut self, rank: Rank, address: Address, value: Value) {
        let epoch = self.clocks[rank][rank];
        let cell = self.cells.remove(&address).unwrap_or_default();
        for (other, at) in cell.readers.into_iter().chain(cell.writer) {
            assert!(
                self.ordered(rank, (other, at)),
                "rank {rank} writes {address:?} while rank {other} may use it"
            );
        }
        let cell = Cell {
            value: Some(value),
            writer: Some((rank, epoch)),
            readers: BTreeMap::new(),
        };
        self.cells.insert(address, cell);
    }

    /// Whether the wait is over; then what the other did up to that point is known to `rank`, and no more.
    fn wait(&mut self, rank: Rank, wait: &Wait, segment: u64) -> bool {
        let target = wait.target(segment);
        let Some((_, clock)) = self.progress[wait.rank]
            .iter()
            .find(|(at, _)| *at >= target)
        else {
            return false;
        };
        let clock = clock.clone();
        self.join(rank, &clock);
        true
    }

    fn join(&mut self, rank: Rank, clock: &Clock) {
        for (own, other) in self.clocks[rank].iter_mut().zip(clock) {
            *own = (*own).max(*other);
        }
    }

    /// Does the step, if its waits are over.
    fn step(&mut self, rank: Rank, step: usize, segment: u64, round: u64, waits: bool) -> bool {
        let program = self.programs[rank].clone();
        let step = program.step(step);
        if waits {
            let mut over = true;
            for wait in program.waits(&step.waits) {
                over &= self.wait(rank, wait, segment);
            }
            if segment >= program.ring() {
                for wait in program.waits(&step.reuse) {
                    over &= self.wait(rank, wait, segment - program.ring());
                }
            }
            if !over {
                return false;
            }
        }
        self.clocks[rank][rank] += 1;
        let start = segment as usize * self.setup.segment;
        let elements = (step.len / SIZE)
            .saturating_sub(start)
            .min(self.setup.segment);
        for element in 0..elements {
            let at = |&operand: &BoundOperand| self.address(operand, segment, element);
            let (from, to) = (
                program.operands(&step.sources),
                program.operands(&step.destinations),
            );
            if from.len() == 1 && !step.completes && to.iter().all(|to| at(to) == at(&from[0])) {
                continue;
            }
            let sources: Vec<Value> = program
                .operands(&step.sources)
                .iter()
                .map(|&source| self.read(rank, self.address(source, segment, element)))
                .collect();
            let shapes: Vec<u64> = sources.iter().map(|s| s.shape).collect();
            let value = match *sources.as_slice() {
                [value] if !step.completes => value,
                _ => Value {
                    sum: sources.iter().fold(0, |sum, s| s.sum.wrapping_add(sum)),
                    shape: hash((shapes, step.completes)),
                    completed: sources.iter().map(|s| s.completed).sum::<u32>()
                        + u32::from(step.completes),
                },
            };
            for &destination in program.operands(&step.destinations) {
                self.write(rank, self.address(destination, segment, element), value);
            }
        }
        let unneeded = step.only_reuse && self.segments() <= program.ring();
        if let Some(point) = step.point.filter(|_| !unneeded) {
            let count = round * program.points() + u64::from(point);
            assert!(
                self.progress[rank]
                    .last()
                    .is_some_and(|(last, _)| *last < count),
                "the progress of rank {rank} goes back to {count}"
            );
            let clock = self.clocks[rank].clone();
            self.progress[rank].push((count, clock));
        }
        true
    }

    fn segments(&self) -> u64 {
        let longest = self
            .programs
            .iter()
            .map(BoundProgram::longest)
            .max()
            .unwrap_or(0)
            / SIZE;
        longest.div_ceil(self.setup.segment).max(1) as u64
    }

    fn run(&mut self) {
        let segments = self.segments();
        let mut walks: Vec<Walk> = self
            .programs
            .iter()
            .map(|program| Walk::new(program, segments))
            .collect();
        if self.setup.shown_at_once {
            assert_eq!(segments, 1);
            self.show();
        }
        let mut left = vec![false; self.ranks];
        let mut picks = self.setup.picks.iter().cycle();
        while left.iter().any(|left| !left) {
            let pick = picks.next().copied().unwrap_or(0);
            let ranks = self.ranks;
            let moved = (pick..pick + ranks)
                .map(|rank| rank % ranks)
                .any(|rank| self.advance(rank, &mut walks[rank], &mut left[rank], segments));
            assert!(moved, "deadlock: {walks:?}");
        }
        self.check_leave();
    }

    /// Does the rank's next step if it can.
    fn advance(&mut self, rank: Rank, walk: &mut Walk, left: &mut bool, segments: u64) -> bool {
        if *left {
            return false;
        }
        let Some((step, segment)) = walk.at(&self.programs[rank]) else {
            let last = self.programs[rank].last().to_vec();
            *left = last.iter().all(|wait| self.wait(rank, wait, segments - 1));
            return *left;
        };
        let moved = match self.setup.shown_at_once {
            true if self.publishes(rank, step) => true,
            shown => self.step(rank, step, segment, walk.round(), !shown),
        };
        if moved {
            walk.advance(&self.programs[rank]);
        }
        moved
    }

    fn publishes(&self, rank: Rank, step: usize) -> bool {
        let program = &self.programs[rank];
        let destinations = program.operands(&program.step(step).destinations);
        destinations.iter().all(|d| d.base == Base::Staging)
    }

    fn show(&mut self) {
        for rank in 0..self.ranks {
            let program = self.programs[rank].clone();
            let mut walk = Walk::new(&program, 1);
            while let Some((step, _)) = walk.at(&program) {
                if self.publishes(rank, step) {
                    assert!(self.step(rank, step, 0, 0, false));
                }
                walk.advance(&program);
            }
            assert!(program.shown_bytes().is_some());
        }
        for clock in self.clocks.clone() {
            for rank in 0..self.ranks {
                self.join(rank, &clock);
            }
        }
    }

    /// Whoever touches a rank's own memory must have told so before the rank leaves.
    fn check_leave(&self) {
        for (address, cell) in &self.cells {
            let &Address::User { rank, .. } = address else {
                continue;
            };
            for (&other, &epoch) in &cell.readers {
                assert!(
                    self.ordered(rank, (other, epoch)),
                    "{address:?} is read after leaving"
                );
            }
            if let Some(writer) = cell.writer {
                assert!(
                    self.ordered(rank, writer),
                    "{address:?} is written after leaving"
                );
            }
        }
    }

    fn check_result(&self) {
        let collective = self.schedule.collective;
        let mut shapes: HashMap<usize, u64> = HashMap::new();
        let part = self.setup.count.checked_div(self.ranks).unwrap_or(0);
        for rank in 0..self.ranks {
            for (element, vector) in self.vector(rank, false).enumerate() {
                let got = self
                    .cells
                    .get(&self.user(rank, false, element))
                    .and_then(|c| c.value);
                let got = got.unwrap_or_else(|| panic!("rank {rank} misses element {vector}"));
                let want = match collective {
                    Collective::AllToAll => {
                        contribution(vector / part, rank * part + vector % part).sum
                    }
                    Collective::AllGather | Collective::Gather { .. } => {
                        contribution(vector / part, vector).sum
                    }
                    Collective::Broadcast { root } | Collective::Scatter { root } => {
                        contribution(root, vector).sum
                    }
                    _ => (0..self.ranks).fold(0, |sum: u64, r| {
                        sum.wrapping_add(contribution(r, vector).sum)
                    }),
                };
                assert_eq!(got.sum, want, "rank {rank}, element {vector}");
                let completions = u32::from(collective.reduces() && self.ranks > 1);
                assert_eq!(got.completed, completions, "rank {rank}, element {vector}");
                if collective != Collective::AllToAll {
                    let shape = *shapes.entry(vector).or_insert(got.shape);
                    assert_eq!(got.shape, shape, "bits of element {vector} at rank {rank}");
                }
            }
        }
    }
}

fn compile(schedule: &Verified, mode: Mode) -> Vec<MappedProgram> {
    (0..schedule.ranks())
        .map(|rank| MappedProgram::compile(schedule, rank, mode))
        .collect()
}

fn run(schedule: &Verified, programs: &[MappedProgram], setup: &Setup) {
    let bound = programs
        .iter()
        .map(|p| BoundProgram::even(p, schedule, setup.count, SIZE));
    let mut machine = Machine::new(schedule, bound.collect(), setup);
    machine.run();
    machine.check_result();
}

fn made(collective: Collective, algorithm: Algorithm, topology: &Topology) -> Verified {
    verify(generate(collective, algorithm, topology).unwrap()).unwrap()
}

/// All combinations that there are generators for.
fn every(root: Rank) -> impl Iterator<Item = (Collective, Algorithm)> {
    Collective::all(root).into_iter().flat_map(|collective| {
        let algorithms = Algorithm::ALL.into_iter();
        algorithms
            .filter(move |a| a.supports(collective))
            .map(move |a| (collective, a))
    })
}

fn setup(ranks: usize, seed: u64, count: usize, in_place: bool) -> Setup {
    Setup {
        count,
        segment: 1 + (seed % 5) as usize,
        in_place: (0..ranks as u64)
            .map(|rank| in_place && hash((seed, rank)).is_multiple_of(2))
            .collect(),
        shown_at_once: false,
        picks: (0..97u64)
            .map(|i| hash((seed, i)) as usize % ranks)
            .collect(),
    }
}

/// Runs a schedule's programs in both modes.
fn run_both(schedule: &Verified, elements: usize, seed: u64) {
    let n = schedule.ranks();
    let count = elements.next_multiple_of(n);
    for mode in [Mode::Arena, Mode::Staged] {
        let programs = compile(schedule, mode);
        let mut setup = setup(n, seed, count, schedule.in_place());
        if programs.iter().all(|p| p.slots == 0) {
            setup.segment = count.max(1);
        }
        run(schedule, &programs, &setup);
        if mode == Mode::Staged && programs[0].shows_input_only {
            (setup.segment, setup.shown_at_once) = (count.max(1), true);
            run(schedule, &programs, &setup);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_program_does_what_its_collective_promises(
        hosts in proptest::collection::vec(0..4usize, 1..10),
        root in any::<usize>(),
        pick in any::<usize>(),
        elements in 0..40usize,
        seed in any::<u64>(),
    ) {
        let all: Vec<_> = every(root % hosts.len()).collect();
        let (collective, algorithm) = all[pick % all.len()];
        run_both(&made(collective, algorithm, &Topology::new(hosts)), elements, seed);
    }
}

#[test]
fn every_combination_for_a_few_ranks() {
    for n in [1, 2, 3, 4, 6] {
        for (collective, algorithm) in every(n - 1) {
            run_both(
                &made(collective, algorithm, &Topology::single_host(n)),
                2 * n + 1,
                n as u64,
            );
        }
    }
}

fn direct(collective: Collective, mode: Mode) -> (Verified, Vec<MappedProgram>) {
    let schedule = made(collective, Algorithm::Direct, &Topology::single_host(3));
    let programs = compile(&schedule, mode);
    (schedule, programs)
}

#[test]
fn a_direct_all_reduce_is_one_pass_into_all_memories() {
    let (_, programs) = direct(Collective::AllReduce, Mode::Arena);
    let text = programs[1].to_string();
    let step = "in[1]@0 + in[1]@1 + in[1]@2 -> out[1]@1, out[1]@0, out[1]@2; point 1";
    assert!(text.starts_with(&format!("stage 0: {step}\n")), "{text}");
    assert_eq!((programs[1].steps.len(), programs[1].slots), (1, 0));
}

#[test]
fn a_one_shot_all_reduce_shows_input_and_reduces_in_rank_order() {
    let topology = Topology::single_host(3);
    let schedule = made(Collective::AllReduce, Algorithm::OneShot, &topology);
    let program = MappedProgram::compile(&schedule, 1, Mode::Staged);
    assert!(program.shows_input_only);
    let text = program.to_string();
    assert!(
        text.contains("stage[0]@0 + in[0]@1 + stage[0]@2 -> out[0]@1"),
        "{text}"
    );
}

#[test]
fn results_go_back_in_the_slots_that_the_contributions_came_in() {
    let (_, programs) = direct(Collective::AllReduce, Mode::Staged);
    for program in &programs {
        // A slot for each other rank, and none for the result.
        assert_eq!(program.slots, 2, "{program}");
    }
}

#[test]
fn relays_are_passed_over() {
    let topology = Topology::new(vec![0, 1, 2, 3]);
    let schedule = made(
        Collective::Broadcast { root: 0 },
        Algorithm::Tree,
        &topology,
    );
    for program in compile(&schedule, Mode::Arena) {
        assert_eq!(program.stages, 1, "{program}");
    }
}

#[test]
#[should_panic(expected = "after leaving")]
fn leaving_early_is_caught() {
    let (schedule, mut programs) = direct(Collective::AllReduce, Mode::Arena);
    programs[2].last.clear();
    run(
        &schedule,
        &programs,
        &Setup {
            segment: 9,
            ..setup(3, 1, 9, false)
        },
    );
}

#[test]
#[should_panic(expected = "reads")]
fn a_missing_wait_is_caught() {
    let (schedule, mut programs) = direct(Collective::AllReduce, Mode::Staged);
    for step in &mut programs[2].steps {
        step.waits.clear();
    }
    run(&schedule, &programs, &setup(3, 1, 9, false));
}

#[test]
#[should_panic(expected = "may use it")]
fn reusing_a_slot_too_early_is_caught() {
    let (schedule, mut programs) = direct(Collective::Broadcast { root: 0 }, Mode::Staged);
    for program in &mut programs {
        for step in &mut program.steps {
            step.reuse.clear();
        }
    }
    run(
        &schedule,
        &programs,
        &Setup {
            segment: 1,
            ..setup(3, 1, 60, false)
        },
    );
}
