//! A group of ranks that all share a host.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_sys::{Memory, Places};

use super::{
    MappedError, MappedOp, MappedPlan, Patience,
    block::{CONTEXTS, Context, GroupBlock, PARCELS, POINT_BITS, View},
    exchange::Exchange,
    inline,
    op::Phase,
    plan::ROTATION,
    sequence::Sequence,
    staging::Staging,
    wait::{Awaited, Spins, Waiter, Waker},
};
use crate::shm::HostSegment;

/// What a member calls: bytes that say it all, for members to compare. What they mean is the caller's to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Descriptor(pub [u64; 2]);

/// An operation to start.
#[derive(Clone, Debug)]
pub struct MappedCall {
    /// What is called; must be the same at every member, or none of them goes on.
    pub descriptor: Descriptor,
    /// How it is done.
    pub plan: Arc<MappedPlan>,
    /// What this member brings.
    pub input: Memory,
    /// What it gets; may be `input`.
    pub output: Memory,
    /// Where both lie if not in a row; then `input` and `output` are empty. Each place has whole elements. Other members' need
    /// not lie alike.
    pub places: Option<Arc<Places>>,
}

/// A group of ranks of one host. Cheap to clone. Members start the same operations in the same order; any number
/// may be asked for, of which 16 are in flight at a time.
#[derive(Clone)]
pub struct MappedGroup(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) segment: Arc<HostSegment>,
    pub(super) members: Vec<Member>,
    pub(super) me: usize,
    pub(super) spins: Spins,
    pub(super) yielding: Duration,
    pub(super) sequence: Sequence,
    pub(super) staging: Staging,
    pub(super) exchange: Exchange,
    pub(super) waker: Waker,
    /// Keeps this member's block.
    _block: GroupBlock,
}

pub(super) struct Member {
    pub(super) local: usize,
    pub(super) view: View,
    contexts: Vec<Context>,
    parcels: [Memory; PARCELS],
}

impl MappedGroup {
    /// The group whose members are `(local rank, offset of its block)`, by their rank in the group; the block of member
    /// `me` is `block`. All members must list the same. `None` if an offset cannot be right.
    pub fn new(
        segment: Arc<HostSegment>,
        block: GroupBlock,
        members: &[(usize, u64)],
        me: usize,
        patience: Patience,
    ) -> Option<Self> {
        let members = members
            .iter()
            .enumerate()
            .map(|(member, &(local, offset))| {
                let view = match member == me {
                    true => View::own(&block),
                    false if local < segment.local_ranks() => View::new(&segment, local, offset)?,
                    false => return None,
                };
                let contexts = (0..CONTEXTS).map(|index| view.context(index)).collect();
                let parcels = std::array::from_fn(|index| view.parcel(index));
                Some(Member {
                    local,
                    view,
                    contexts,
                    parcels,
                })
            })
            .collect::<Option<Vec<_>>>()?;
        let own = members
            .get(me)
            .filter(|own| own.local == segment.local_rank())?;
        let sequence = Sequence::new(own.view.finished(), members.len());
        let waker = Waker::new(&segment);
        let staging = Staging::new(ROTATION);
        let inner = Inner {
            segment,
            members,
            me,
            spins: Spins::new(patience.spins),
            yielding: patience.yielding,
            sequence,
            staging,
            exchange: Exchange::default(),
            waker,
            _block: block,
        };
        Some(Self(Arc::new(inner)))
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.0.members.len()
    }

    /// Tells the others that this member's next operation of the group goes another way than through mapped memory:
    /// a member that calls one that does not finds out. Nothing waits; where 16 operations are in flight already,
    /// nothing is told. Returns the number of the operation in its group, from 1.
    pub fn pass(&self, descriptor: Descriptor) -> u64 {
        let group = &self.0;
        let op = group.sequence.next();
        if group.context_taken(op, false).is_none() {
            let context = group.members[group.me].context(op);
            context.describe(descriptor, group.sequence.finished());
            context.progress().store(op << POINT_BITS);
        }
        group.finish(op);
        op
    }

    /// Starts an operation: the next one of the group. Nothing waits; the operation moves when it is stepped or run.
    pub fn start(&self, call: MappedCall) -> Result<MappedOp, MappedError> {
        call.check(&self.0)?;
        let number = self.0.sequence.next();
        Ok(MappedOp::new(self.0.clone(), call, number, Phase::Enter))
    }

    /// Starts an operation, and carries it out if it is small and the others come within a moment: then `None`. What
    /// is returned is to be run or stepped.
    #[inline]
    pub fn begin(&self, call: &MappedCall) -> Result<Option<MappedOp>, MappedError> {
        call.check(&self.0)?;
        let number = self.0.sequence.next();
        let phase = match &call.plan.inline {
            None => Phase::Enter,
            Some(plan) => match inline::try_run(&self.0, call, plan, number)? {
                None => return Ok(None),
                Some(phase) => phase,
            },
        };
        let op = MappedOp::new(self.0.clone(), call.clone(), number, phase);
        Ok(Some(op))
    }

    /// Starts an operation and carries it out on this thread: spins, yields, then sleeps while there is nothing to do.
    /// `interrupt` is asked at least every 20 ms; once it returns true the operation fails.
    pub fn run(
        &self,
        call: &MappedCall,
        deadline: Instant,
        interrupt: &dyn Fn() -> bool,
    ) -> Result<(), MappedError> {
        match self.begin(call)? {
            None => Ok(()),
            Some(mut op) => op.run(deadline, interrupt),
        }
    }
}

impl MappedCall {
    /// Whether plan and memory fit the group.
    pub(super) fn check(&self, group: &Inner) -> Result<(), MappedError> {
        let Self {
            plan,
            input,
            output,
            places,
            ..
        } = self;
        let (me, members) = (group.me, group.members.len());
        if plan.members != members || plan.member != me {
            return Err(MappedError::Plan {
                expected: (me, members),
                found: (plan.member, plan.members),
            });
        }
        let needed = plan.extent(me);
        let found = match places {
            None => [input.len(), output.len()],
            Some(places) => [places.len(); 2],
        };
        for (what, expected, found) in [
            ("input", needed[0], found[0]),
            ("output", needed[1], found[1]),
        ] {
            if found < expected {
                return Err(MappedError::Buffer {
                    what,
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }
}

impl fmt::Debug for MappedGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locals = self
            .0
            .members
            .iter()
            .map(|member| member.local)
            .collect::<Vec<_>>();
        f.debug_struct("MappedGroup")
            .field("me", &self.0.me)
            .field("locals", &locals)
            .finish()
    }
}

impl Member {
    #[inline]
    pub(super) fn context(&self, op: u64) -> &Context {
        &self.contexts[op as usize % CONTEXTS]
    }

    #[inline]
    pub(super) fn parcel(&self, op: u64) -> Memory {
        self.parcels[op as usize % PARCELS]
    }
}

impl Inner {
    /// A member's area for staging.
    pub(super) fn staging_of(&self, member: usize) -> Memory {
        self.segment.staging(self.members[member].local)
    }

    /// What to wait for, if anything, before the context of `op` is free, and if it `has_parcel`, its parcel.
    #[inline]
    pub(super) fn context_taken(&self, op: u64, has_parcel: bool) -> Option<Awaited> {
        // Parcels come again sooner.
        let target = op.saturating_sub(if has_parcel { PARCELS } else { CONTEXTS } as u64);
        while let Some(member) = self.sequence.behind(target) {
            let word = self.members[member].view.finished();
            let finished = word.load();
            if finished < target {
                return Some(Awaited {
                    member,
                    word,
                    target,
                });
            }
            self.sequence.learn(member, finished);
        }
        None
    }

    /// All operations up to this one are finished at every member. Looks at each member's block, in its cache; what the
    /// sequence has heard costs nothing, but is older.
    pub(super) fn finished_everywhere(&self) -> u64 {
        for (index, member) in self.members.iter().enumerate() {
            self.sequence.learn(index, member.view.finished().load());
        }
        self.sequence.finished_everywhere()
    }

    /// This member has finished an operation: it reads nothing of others for it any more.
    #[inline]
    pub(super) fn finish(&self, op: u64) {
        self.sequence.finish(op, self.me);
        self.waker.wake(&self.segment);
    }

    /// Waits a while for `awaited`; true once it is there. Fails when the deadline passes or `interrupt` fires.
    pub(super) fn pause(
        &self,
        waiter: &mut Waiter<'_>,
        awaited: &Awaited,
        op: u64,
        deadline: Instant,
        interrupt: &dyn Fn() -> bool,
    ) -> Result<bool, MappedError> {
        let member = awaited.member;
        let Some(waited) = waiter.pause(awaited, self.members[member].local) else {
            return Ok(true);
        };
        let point = point(awaited);
        if interrupt() {
            return Err(MappedError::Interrupted { member, op, point });
        }
        match Instant::now() >= deadline {
            true => Err(MappedError::Timeout {
                member,
                op,
                point,
                waited,
            }),
            false => Ok(false),
        }
    }
}

/// The point of a member's program that is waited for.
pub(super) const fn point(awaited: &Awaited) -> u64 {
    awaited.target & ((1 << POINT_BITS) - 1)
}

/// For errors: how long an operation was waited for.
pub(super) fn timeout(awaited: &Awaited, op: u64, waited: Duration) -> MappedError {
    MappedError::Timeout {
        member: awaited.member,
        op,
        point: point(awaited),
        waited,
    }
}
