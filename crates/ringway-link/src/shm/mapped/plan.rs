//! What an operation of a certain kind and size does, made once and used for every call.

use ringway_kernels::Finish;
use ringway_plan::{
    DataType, Layout, ReduceOp, Span, Verified,
    mapped::{BoundProgram, MappedProgram, Mode},
};

use super::{block::POINT_BITS, exchange::Exchange, inline::InlinePlan, stores::StoreChoice};

/// Bytes of staging that an operation takes at most, unless a single line for each slot is more: it should
/// stay in the second-level cache of the rank that fills it and not crowd out the rest.
const STAGING: usize = 768 << 10;
/// What another core's second-level cache still holds is written at 8 GB/s, what only the last level holds at 25 to 30
/// (measured between two cores of a Zen 5 with 1 MiB of second-level cache each, from 32 KiB at a time on). So this much
/// is written before the same again.
pub(super) const ROTATION: usize = 2 << 20;
/// Up to this many bytes of staging two members hand each other, which a second-level cache of 1 MiB holds among the rest.
const EXCHANGED: usize = 1 << 20;
/// Segments are not cut smaller than this.
const SHORTEST: usize = 32 << 10;
/// Nor than this where some ranks only show and others only read, who then wait for the first one only.
const SHORTEST_ONE_WAY: usize = 16 << 10;
/// Segments are not larger than this.
const LONGEST: usize = 128 << 10;
/// Up to this many bytes of the longest chunk, data goes through staging though it may lie in the arena: that takes one
/// exchange between the ranks less, which costs more than the copy.
const ARENA_FROM: usize = 4 << 10;
/// From this many bytes of the longest chunk, results bypass the caches, but for those that replace input which was
/// read just before (measured: 1.5 to 1.8 times the time).
const STREAM_FROM: usize = 2 << 20;

/// A schedule compiled for one member of a group, for any number of elements.
#[derive(Clone, Debug)]
pub struct MappedSchedule {
    schedule: Verified,
    member: usize,
    arena: MappedProgram,
    staged: MappedProgram,
}

impl MappedSchedule {
    /// Compiles for `member`.
    ///
    /// # Panics
    /// If the schedule has no such rank.
    pub fn compile(schedule: &Verified, member: usize) -> Self {
        Self {
            schedule: schedule.clone(),
            member,
            arena: MappedProgram::compile(schedule, member, Mode::Arena),
            staged: MappedProgram::compile(schedule, member, Mode::Staged),
        }
    }

    /// The schedule.
    pub const fn schedule(&self) -> &Verified {
        &self.schedule
    }

    /// The program for memory of a mode, for people to read.
    pub const fn program(&self, mode: Mode) -> &MappedProgram {
        match mode {
            Mode::Arena => &self.arena,
            Mode::Staged => &self.staged,
        }
    }
}

/// A compiled schedule for a vector of a certain type, size and reduction. All members' plans of an operation must be
/// made of the same schedule, numbers and reduction; the call's descriptor stands for them.
#[derive(Debug)]
pub struct MappedPlan {
    pub(super) member: usize,
    pub(super) members: usize,
    pub(super) dtype: DataType,
    pub(super) op: ReduceOp,
    pub(super) finish: Finish,
    pub(super) staged: BoundProgram,
    /// `None` where the arena does not pay.
    pub(super) arena: Option<BoundProgram>,
    /// If data travels in contexts or parcels.
    pub(super) inline: Option<InlinePlan>,
    /// Bytes of a segment of staging.
    pub(super) segment: usize,
    pub(super) segments: u64,
    /// Copies of each slot that staging holds: at least as many as the program needs.
    pub(super) copies: u64,
    /// Whether staging is to be filled all round before the same is written again. Where others answer in it, their
    /// caches hold it anyhow, and it is to stay in this member's.
    pub(super) rotates: bool,
    /// Whether two members hand their staging to each other instead.
    pub(super) exchanges: bool,
    pub(super) stream: bool,
    /// How staging is filled.
    pub(super) stores: StoreChoice,
    /// Bytes of each member's input and output.
    extents: Vec<[usize; 2]>,
}

/// Bytes of a member's input and output. All of it, whether or not its own program touches it: others may.
fn extent(schedule: &Verified, rank: usize, count: usize, size: usize) -> [usize; 2] {
    let (collective, ranks, chunks) = (schedule.collective, schedule.ranks(), schedule.chunks);
    let program = &schedule.programs[rank];
    let layout = Layout::even(collective, program, ranks, chunks, rank, count, size);
    let input = collective.input_chunks(ranks, chunks, rank).len();
    let output = collective.output_chunks(ranks, chunks, rank).len();
    [Span::input(0, input), Span::output(0, output)].map(|span| layout.range(span).end)
}

impl MappedPlan {
    /// For vectors of `count` elements, cut as [`ringway_plan::Layout::even`] does. Where nothing is reduced, `op` does not
    /// matter.
    pub fn new(compiled: &MappedSchedule, count: usize, dtype: DataType, op: ReduceOp) -> Self {
        let schedule = &compiled.schedule;
        let bind = |program| BoundProgram::even(program, schedule, count, dtype.size());
        let staged = bind(&compiled.staged);
        let longest = staged.longest();
        // Where even the arena's program needs staging, nothing is gained by two kinds of it.
        let arena =
            (compiled.arena.slots == 0 && longest > ARENA_FROM).then(|| bind(&compiled.arena));
        let ranks = u32::try_from(schedule.ranks()).unwrap_or(u32::MAX);
        let (segment, segments) = segments(&staged);
        let rotates = staged.shown_bytes().is_some();
        let slots = staged.slots().max(1) * segment;
        let lasting = if rotates { ROTATION / slots } else { 0 };
        let copies = staged.ring().max(lasting as u64).min(segments);
        let shown = slots.saturating_mul(segments as usize);
        // What a rank shows must be the other's alone, who writes there next.
        let handed_on = staged.read_by_others() && !staged.one_way();
        let exchanges = ranks == 2 && rotates && handed_on && shown <= EXCHANGED;
        let rotation = if exchanges { 2 } else { ROTATION / shown };
        let extents = (0..schedule.ranks())
            .map(|rank| extent(schedule, rank, count, dtype.size()))
            .collect();
        Self {
            member: compiled.member,
            members: schedule.ranks(),
            dtype,
            op,
            finish: Finish::of(op, ranks),
            inline: InlinePlan::new(&staged),
            staged,
            arena,
            segment,
            segments,
            copies,
            rotates,
            exchanges,
            stream: longest >= STREAM_FROM,
            stores: StoreChoice::new(rotation as u32),
            extents,
        }
    }

    /// Bytes of a member's input and output that this member touches.
    pub(super) fn extent(&self, member: usize) -> [usize; 2] {
        self.extents[member]
    }

    /// Bytes of staging that each member needs.
    pub(super) fn staging_bytes(&self) -> usize {
        self.copies as usize * self.staged.slots() * self.segment
    }

    /// Bytes of what each member lends for that.
    pub(super) fn block_bytes(&self) -> usize {
        match (self.staging_bytes(), self.exchanges) {
            (bytes @ 1.., true) => Exchange::block_len(bytes),
            (bytes, _) => bytes,
        }
    }
}

/// In how many segments of how many bytes chunks are worked through in staging.
fn segments(program: &BoundProgram) -> (usize, u64) {
    let longest = program.longest().next_multiple_of(64).max(64);
    let slots = program.slots().max(1);
    let share = STAGING / (slots * program.ring() as usize) / 64 * 64;
    // All points of an operation must fit its progress counter.
    let rounds = (1u64 << POINT_BITS) / (program.points() + 1) - program.stages() as u64;
    let fewest = longest
        .div_ceil(rounds.max(1) as usize)
        .next_multiple_of(64);
    let (shortest, parts) = match program.one_way() {
        true => (SHORTEST_ONE_WAY, 4),
        false => (SHORTEST, 1),
    };
    let most = share.min(longest.div_ceil(parts).next_multiple_of(64));
    let segment = longest.min(most.clamp(shortest, LONGEST)).max(fewest);
    (segment, program.longest().div_ceil(segment).max(1) as u64)
}
