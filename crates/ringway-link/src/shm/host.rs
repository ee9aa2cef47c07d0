//! The segment that all ranks of a host share: where what lies, and who may touch it.
//!
//! ```text
//! header | control, one area per rank | slots, one ring per ordered pair | staging, per rank | arena, per rank
//! ```
//!
//! Sizes are virtual: a page costs memory once it is touched. Everything is zeros at first. Only a rank
//! itself allocates in its own areas; others reach what it tells them the offset of, and every offset that comes
//! out of shared memory is checked against the area of the rank that it is about.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use ringway_plan::Rank;
use ringway_sys::{Memory, Segment, Shared32, Shared64, barrier};

use super::{Arena, ShmError};

/// What makes a host's ranks certain that they share one segment of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// The job's secret number.
    pub job: [u8; 16],
    /// The number of ranks in the world.
    pub world: usize,
    /// The world ranks on this host, ascending; a rank's place in this list is its *local rank*.
    pub ranks: Vec<Rank>,
}

/// Bytes of the segment's areas; all are rounded up to 2 MiB. Virtual: only touched pages cost memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSizes {
    /// For each rank: control blocks of groups.
    pub control: usize,
    /// For each ordered pair of ranks: the ring of slots that messages go through.
    pub slots: usize,
    /// For each rank: where private memory is copied for peers to read. Caps what operations in flight take.
    pub staging: usize,
    /// For each rank: memory that users allocate. Caps it.
    pub arena: usize,
}

impl Default for SegmentSizes {
    fn default() -> Self {
        Self {
            control: 64 << 20,
            slots: 2 << 20,
            staging: 256 << 20,
            arena: 64 << 30,
        }
    }
}

const MAGIC: u64 = u64::from_le_bytes(*b"ringway\x01");
/// Areas start at multiples of this, a huge page.
const ALIGN: usize = 2 << 20;
/// What a rank's control area starts with, see [`HostSegment::sleepers`]; group blocks follow.
const CONTROL_HEAD: usize = 4096;

/// Offsets of the header's fields.
mod header {
    pub(super) const MAGIC: usize = 0;
    pub(super) const WORLD: usize = 8;
    pub(super) const LOCAL: usize = 16;
    pub(super) const SIZES: usize = 24;
    pub(super) const JOB: usize = 64;
    pub(super) const RANKS: usize = 128;
}

/// The shared memory of one host's ranks, as one of them sees it.
#[derive(Debug)]
pub struct HostSegment {
    segment: Arc<Segment>,
    /// Each rank's bell, then each rank's bell for messages.
    bells: Vec<OwnedFd>,
    identity: HostIdentity,
    me: usize,
    plan: AreaPlan,
    control: Arena,
    staging: Arena,
    arena: Arena,
}

/// Where the areas lie.
#[derive(Clone, Copy, Debug)]
struct AreaPlan {
    ranks: usize,
    sizes: SegmentSizes,
    control: usize,
    slots: usize,
    staging: usize,
    arena: usize,
    end: usize,
}

impl AreaPlan {
    /// `None` if the sum does not fit the address space.
    fn new(ranks: usize, sizes: SegmentSizes) -> Option<Self> {
        let round = |bytes: usize| bytes.max(1).checked_next_multiple_of(ALIGN);
        let sizes = SegmentSizes {
            control: round(sizes.control)?,
            slots: round(sizes.slots)?,
            staging: round(sizes.staging)?,
            arena: round(sizes.arena)?,
        };
        let control = round(header::RANKS.checked_add(ranks.checked_mul(4)?)?)?;
        let slots = control.checked_add(ranks.checked_mul(sizes.control)?)?;
        let pairs = ranks.checked_mul(ranks)?;
        let staging = slots.checked_add(pairs.checked_mul(sizes.slots)?)?;
        let arena = staging.checked_add(ranks.checked_mul(sizes.staging)?)?;
        let end = arena.checked_add(ranks.checked_mul(sizes.arena)?)?;
        (end <= isize::MAX.unsigned_abs()).then_some(Self {
            ranks,
            sizes,
            control,
            slots,
            staging,
            arena,
            end,
        })
    }
}

impl HostSegment {
    /// Makes the segment, for the host's lowest rank; it hands [`HostSegment::descriptors`] to the others.
    pub fn create(identity: HostIdentity, sizes: SegmentSizes) -> Result<Arc<Self>, ShmError> {
        let ranks = identity.ranks.len();
        let plan = AreaPlan::new(ranks, sizes).ok_or(ShmError::TooLarge { ranks, sizes })?;
        let segment = Segment::create("ringway", plan.end)?;
        let memory = segment.memory();
        Shared64::at(memory, header::WORLD).store(identity.world as u64);
        Shared64::at(memory, header::LOCAL).store(ranks as u64);
        let plain = [
            plan.sizes.control,
            plan.sizes.slots,
            plan.sizes.staging,
            plan.sizes.arena,
        ];
        for (i, size) in plain.into_iter().enumerate() {
            Shared64::at(memory, header::SIZES + 8 * i).store(size as u64);
        }
        memory
            .slice(header::JOB..header::JOB + 16)
            .write(&identity.job);
        for (local, &rank) in identity.ranks.iter().enumerate() {
            let rank =
                u32::try_from(rank).map_err(|_| ShmError::TooLarge { ranks: rank, sizes })?;
            Shared32::at(memory, header::RANKS + 4 * local).store(rank);
        }
        Shared64::at(memory, header::MAGIC).store(MAGIC);
        let bells = (0..2 * ranks)
            .map(|_| new_bell())
            .collect::<Result<_, _>>()?;
        Ok(Arc::new(Self::assemble(segment, bells, identity, 0, plan)))
    }

    /// Joins the segment behind `descriptors`, which came from the host's lowest rank, as local rank `me`.
    pub fn join(
        descriptors: Vec<OwnedFd>,
        identity: HostIdentity,
        me: usize,
    ) -> Result<Arc<Self>, ShmError> {
        let mut descriptors = descriptors.into_iter();
        let first = descriptors.next().ok_or_else(|| ShmError::Header {
            field: "descriptors",
            expected: "1 or more".into(),
            found: "none".into(),
        })?;
        let segment = Segment::join(first)?;
        let bells: Vec<_> = descriptors.collect();
        let ranks = identity.ranks.len();
        let plan = check_header(segment.memory(), &identity)?;
        expect("bells", 2 * ranks, bells.len())?;
        if me >= ranks {
            return Err(ShmError::Header {
                field: "local rank",
                expected: format!("less than {ranks}"),
                found: me.to_string(),
            });
        }
        Ok(Arc::new(Self::assemble(segment, bells, identity, me, plan)))
    }

    fn assemble(
        segment: Segment,
        bells: Vec<OwnedFd>,
        identity: HostIdentity,
        me: usize,
        plan: AreaPlan,
    ) -> Self {
        barrier::register();
        segment.advise_huge(plan.staging..plan.end);
        let segment = Arc::new(segment);
        let area = |start: usize, size: usize| start + me * size..start + (me + 1) * size;
        let control = area(plan.control, plan.sizes.control);
        let control = Arena::new(
            Arc::clone(&segment),
            control.start + CONTROL_HEAD..control.end,
            "groups",
            "make fewer groups",
        );
        let staging = Arena::new(
            Arc::clone(&segment),
            area(plan.staging, plan.sizes.staging),
            "staging of operations in flight",
            "raise RINGWAY_STAGING_SIZE",
        );
        let arena = Arena::new(
            Arc::clone(&segment),
            area(plan.arena, plan.sizes.arena),
            "arena memory",
            "raise RINGWAY_ARENA_SIZE",
        );
        Self {
            segment,
            bells,
            identity,
            me,
            plan,
            control,
            staging,
            arena,
        }
    }

    /// What another rank needs to [`HostSegment::join`].
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(self.segment.fd())
            .chain(self.bells.iter().map(AsFd::as_fd))
            .collect()
    }

    /// Who shares the segment.
    pub const fn identity(&self) -> &HostIdentity {
        &self.identity
    }

    /// The number of ranks on this host.
    pub const fn local_ranks(&self) -> usize {
        self.plan.ranks
    }

    /// This rank's local rank.
    pub const fn local_rank(&self) -> usize {
        self.me
    }

    /// The local rank of a world rank; `None` if it is on another host.
    pub fn local_of(&self, rank: Rank) -> Option<usize> {
        self.identity.ranks.binary_search(&rank).ok()
    }

    /// The ring for messages between local ranks, `from` writing and `to` reading (the two may be the same).
    ///
    /// # Panics
    /// If there is no such local rank.
    pub fn slots(&self, from: usize, to: usize) -> Memory {
        assert!(
            from < self.plan.ranks && to < self.plan.ranks,
            "no local ranks {from} and {to}"
        );
        let size = self.plan.sizes.slots;
        let start = self.plan.slots + (from * self.plan.ranks + to) * size;
        self.segment.memory().slice(start..start + size)
    }

    /// A rank's memory for control blocks, of which only that rank allocates.
    pub fn control(&self, local: usize) -> Memory {
        self.area(self.plan.control, self.plan.sizes.control, local)
    }

    /// A rank's memory for staging, of which only that rank allocates.
    pub fn staging(&self, local: usize) -> Memory {
        self.area(self.plan.staging, self.plan.sizes.staging, local)
    }

    /// A rank's memory for users, of which only that rank allocates.
    pub fn arena(&self, local: usize) -> Memory {
        self.area(self.plan.arena, self.plan.sizes.arena, local)
    }

    fn area(&self, start: usize, size: usize, local: usize) -> Memory {
        assert!(
            local < self.plan.ranks,
            "no local rank {local} among {}",
            self.plan.ranks
        );
        self.segment
            .memory()
            .slice(start + local * size..start + (local + 1) * size)
    }

    /// Allocates in this rank's control area.
    pub(super) const fn control_arena(&self) -> &Arena {
        &self.control
    }

    /// Allocates in this rank's staging area.
    pub(super) const fn staging_arena(&self) -> &Arena {
        &self.staging
    }

    /// Allocates memory for users that all ranks of the host can reach.
    pub const fn user_arena(&self) -> &Arena {
        &self.arena
    }

    /// Where in this rank's arena `memory` lies; `None` if it does not, or not wholly.
    pub fn locate(&self, memory: Memory) -> Option<usize> {
        let arena = self.arena(self.me);
        let offset = memory.as_ptr().addr().checked_sub(arena.as_ptr().addr())?;
        (offset.checked_add(memory.len())? <= arena.len()).then_some(offset)
    }

    /// The `len` bytes at `offset` of a rank's arena; `None` if they are not within it, as when a broken peer
    /// wrote the offset.
    pub fn resolve(&self, local: usize, offset: u64, len: usize) -> Option<Memory> {
        let arena = self.arena(local);
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len)?;
        (end <= arena.len()).then(|| arena.slice(start..end))
    }

    /// Of a rank: bit `r % 64` is set while local rank r sleeps, or is about to, until that rank progresses.
    /// Who progresses looks there, clears the bits and wakes the sleepers' futexes ([`HostSegment::alarm`]).
    pub(super) fn sleepers(&self, local: usize) -> Shared64 {
        Shared64::at(self.control(local), 0)
    }

    /// As [`HostSegment::sleepers`], for those that sleep on their [`HostSegment::bell`].
    pub(super) fn armed(&self, local: usize) -> Shared64 {
        Shared64::at(self.control(local), 8)
    }

    /// The futex that a rank's threads sleep on.
    pub(super) fn alarm(&self, local: usize) -> Shared32 {
        Shared32::at(self.control(local), 128)
    }

    /// A descriptor (eventfd) of a rank's, readable once another rank rang.
    pub fn bell(&self, local: usize) -> BorrowedFd<'_> {
        self.bells[local].as_fd()
    }

    /// Makes a rank's [`HostSegment::bell`] readable.
    pub fn ring(&self, local: usize) {
        // Fails only when the counter is at its maximum, and then the descriptor is readable.
        let _ = rustix::io::write(&self.bells[local], &1u64.to_ne_bytes());
    }

    /// Makes this rank's own bell unreadable again, until the next [`HostSegment::ring`].
    pub fn hush(&self) {
        // Fails only when nobody rang.
        let _ = rustix::io::read(&self.bells[self.me], &mut [0u8; 8]);
    }

    /// A descriptor (eventfd) of a rank's, readable once another rank rang it for messages. Apart from
    /// [`HostSegment::bell`], so that two sleepers of a rank never hush each other's ring.
    pub(super) fn message_bell(&self, local: usize) -> BorrowedFd<'_> {
        self.bell(self.plan.ranks + local)
    }

    /// Makes a rank's [`HostSegment::message_bell`] readable.
    pub(super) fn ring_messages(&self, local: usize) {
        self.ring(self.plan.ranks + local);
    }

    /// Makes this rank's own message bell unreadable again.
    pub(super) fn hush_messages(&self) {
        // Fails only when nobody rang.
        let _ = rustix::io::read(self.message_bell(self.me), &mut [0u8; 8]);
    }

    /// Bytes that this rank has allocated in its areas: control, staging and arena.
    pub fn memory_in_use(&self) -> usize {
        self.control.in_use() + self.staging.in_use() + self.arena.in_use()
    }
}

fn new_bell() -> Result<OwnedFd, ShmError> {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| ShmError::System {
        what: "eventfd",
        source: errno.into(),
        remedy: "raise the limit on open files (ulimit -n)",
    })
}

fn expect<T: PartialEq + std::fmt::Debug>(
    field: &'static str,
    expected: T,
    found: T,
) -> Result<(), ShmError> {
    if expected == found {
        return Ok(());
    }
    Err(ShmError::Header {
        field,
        expected: format!("{expected:?}"),
        found: format!("{found:?}"),
    })
}

/// The areas of a segment that another process made, if it is one of this job's.
fn check_header(memory: Memory, identity: &HostIdentity) -> Result<AreaPlan, ShmError> {
    let ranks = identity.ranks.len();
    if memory.len() < header::RANKS + 4 * ranks {
        expect("size in bytes", header::RANKS + 4 * ranks, memory.len())?;
    }
    let word = |offset| Shared64::at(memory, offset).load();
    expect("magic number and version", MAGIC, word(header::MAGIC))?;
    let mut job = [0; 16];
    memory.slice(header::JOB..header::JOB + 16).read(&mut job);
    if job != identity.job {
        return Err(ShmError::Header {
            field: "job",
            expected: "this job's number".into(),
            found: "another".into(),
        });
    }
    expect(
        "number of ranks in the world",
        identity.world as u64,
        word(header::WORLD),
    )?;
    expect(
        "number of ranks on this host",
        ranks as u64,
        word(header::LOCAL),
    )?;
    let found: Vec<Rank> = (0..ranks)
        .map(|local| Shared32::at(memory, header::RANKS + 4 * local).load() as Rank)
        .collect();
    expect("ranks on this host", &identity.ranks, &found)?;
    let size = |i: usize| usize::try_from(word(header::SIZES + 8 * i)).unwrap_or(usize::MAX);
    let sizes = SegmentSizes {
        control: size(0),
        slots: size(1),
        staging: size(2),
        arena: size(3),
    };
    let plan = AreaPlan::new(ranks, sizes).ok_or(ShmError::TooLarge { ranks, sizes })?;
    expect("size in bytes", plan.end, memory.len())?;
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> HostIdentity {
        HostIdentity {
            job: [7; 16],
            world: 5,
            ranks: vec![1, 2, 4],
        }
    }

    fn sizes() -> SegmentSizes {
        SegmentSizes {
            control: 1,
            slots: 1,
            staging: 1,
            arena: 8 << 20,
        }
    }

    fn descriptors(segment: &HostSegment) -> Vec<OwnedFd> {
        segment
            .descriptors()
            .iter()
            .map(|fd| fd.try_clone_to_owned().unwrap())
            .collect()
    }

    #[test]
    fn areas_are_shared_and_apart() {
        let one = HostSegment::create(identity(), sizes()).unwrap();
        let two = HostSegment::join(descriptors(&one), identity(), 2).unwrap();
        assert_eq!(
            (one.local_of(4), one.local_of(3), two.local_rank()),
            (Some(2), None, 2)
        );
        one.slots(0, 2).write(&[1]);
        one.slots(2, 0).write(&[2]);
        one.staging(1).write(&[3]);
        one.arena(2).write(&[4]);
        let byte = |memory: Memory| {
            let mut byte = [0];
            memory.read(&mut byte);
            byte[0]
        };
        assert_eq!(
            [
                two.slots(0, 2),
                two.slots(2, 0),
                two.staging(1),
                two.arena(2)
            ]
            .map(byte),
            [1, 2, 3, 4]
        );
        assert_eq!(byte(two.control(0)), 0);
    }

    #[test]
    fn a_bell_rings_in_the_other_process_view() {
        let one = HostSegment::create(identity(), sizes()).unwrap();
        let two = HostSegment::join(descriptors(&one), identity(), 1).unwrap();
        let readable = |segment: &HostSegment| {
            let mut byte = [0u8; 8];
            rustix::io::read(segment.bell(1), &mut byte).is_ok()
        };
        assert!(!readable(&two));
        one.ring(1);
        one.ring(1);
        assert!(readable(&two) && !readable(&two));
        one.ring(1);
        two.hush();
        assert!(!readable(&two));
    }

    #[test]
    fn a_segment_of_another_job_is_refused_with_both_sides_named() {
        let one = HostSegment::create(identity(), sizes()).unwrap();
        let join = |identity| HostSegment::join(descriptors(&one), identity, 1).unwrap_err();
        let error = join(HostIdentity {
            job: [8; 16],
            ..identity()
        });
        assert!(error.to_string().contains("job"), "{error}");
        let error = join(HostIdentity {
            world: 6,
            ..identity()
        });
        assert!(
            error.to_string().contains('6') && error.to_string().contains('5'),
            "{error}"
        );
        let error = join(HostIdentity {
            ranks: vec![1, 3, 4],
            ..identity()
        });
        assert!(error.to_string().contains("[1, 2, 4]"), "{error}");
    }

    #[test]
    fn offsets_of_peers_are_checked() {
        let one = HostSegment::create(identity(), sizes()).unwrap();
        assert!(one.resolve(1, 0, 8 << 20).is_some());
        assert!(one.resolve(1, 1, 8 << 20).is_none());
        assert!(one.resolve(1, u64::MAX, 2).is_none());
        let block = one.user_arena().allocate(100).unwrap();
        let offset = one.locate(block.memory()).unwrap();
        assert_eq!(one.resolve(0, offset as u64, 100), Some(block.memory()));
        assert_eq!(one.locate(one.arena(1)), None);
        assert_eq!(one.locate(Memory::EMPTY), None);
    }
}
