//! What can be wrong with a schedule.

use std::fmt;

use crate::schedule::{Collective, Op, Rank, Span, StepRef};

/// How input and output lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Input and output are different memory: out of place.
    Apart,
    /// Input and output are the same memory: in place.
    Shared,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Apart => "out of place",
            Self::Shared => "in place",
        })
    }
}

/// A step of a rank, and one chunk that it touches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// The rank.
    pub rank: Rank,
    /// Its lane and step.
    pub step: StepRef,
    /// The chunk, in a span of one; of none for signals.
    pub chunk: Span,
    /// What the step does.
    pub op: Op,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} {} chunk {} ({})",
            self.rank, self.step, self.chunk, self.op
        )
    }
}

/// Why a schedule was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// `after` names a step that is not there, or one of the same lane.
    #[error(
        "{at}: waits for {target}, expected an existing step of another lane; correct its `after`"
    )]
    After {
        /// The step that waits.
        at: Box<Site>,
        /// What it names.
        target: StepRef,
    },
    /// A rank may leave a barrier before another has entered.
    #[error(
        "rank {rank} may leave the barrier before rank {missing} has entered: no chain of signals and \
         `after` leads from there to any step of rank {rank}, the last of which is {last}; add the signal"
    )]
    Barrier {
        /// The rank that leaves.
        rank: Rank,
        /// The rank that may not have entered.
        missing: Rank,
        /// Where the rank's program ends.
        last: String,
    },
    /// A step completes a reduction only out of place, or only in place.
    #[error(
        "{at}: holds every rank's contribution in one of the two memory layouts (out of place, in place) \
         but not in the other, so that an average cannot be placed; do not read input after its output chunk was written"
    )]
    CompletionDiffers {
        /// The step.
        at: Box<Site>,
    },
    /// Steps wait for one another.
    #[error("deadlock {memory}: {}; break the cycle by reordering one of these lanes", cycle_text(.cycle))]
    Deadlock {
        /// The layout in which it happens.
        memory: Memory,
        /// Each waits for the next, the last for the first.
        cycle: Vec<Site>,
    },
    /// Two ranks combined the same operands in different orders.
    #[error(
        "{at}: output chunk {chunk} of rank {rank} is combined in another order than on rank {other} by {other_at}; \
         ranks must end with the same bits: use the same operands, in the same order, everywhere"
    )]
    Differs {
        /// The rank.
        rank: Rank,
        /// The vector's chunk.
        chunk: usize,
        /// The step that wrote it.
        at: Box<Site>,
        /// The rank that it is compared to.
        other: Rank,
        /// The step that wrote it there.
        other_at: Box<Site>,
    },
    /// A reduction would count a rank twice.
    #[error(
        "{at}: adds the contribution of rank {contributor} a second time ({memory}); remove one of the two reductions"
    )]
    Duplicate {
        /// The reduction.
        at: Box<Site>,
        /// Whose contribution is there already.
        contributor: Rank,
        /// The layout in which it happens.
        memory: Memory,
    },
    /// The two sides of a message differ in number or size of chunks.
    #[error(
        "{send}: sends {sent} chunks, and its receive is {receive} of {received}; \
         expected as many, of equal sizes for every element count"
    )]
    MessageSize {
        /// The sending step, at the first chunk that differs.
        send: Box<Site>,
        /// Chunks sent.
        sent: usize,
        /// The receiving step.
        receive: Box<Site>,
        /// Chunks expected there.
        received: usize,
    },
    /// A reduction combines different chunks of the vector.
    #[error(
        "{at}: combines chunk {first} of the vector with chunk {second}; expected the same chunk of both operands"
    )]
    MixedChunks {
        /// The reduction.
        at: Box<Site>,
        /// The vector's chunk of the first operand.
        first: usize,
        /// That of the second.
        second: usize,
    },
    /// A reduction in a collective that has none.
    #[error("{at}: reduces, but {collective} does not; use a receive or a copy")]
    NotReducing {
        /// The step.
        at: Box<Site>,
        /// The collective.
        collective: Collective,
    },
    /// A span reaches outside its space.
    #[error(
        "{at}: reaches outside of the {chunks} chunks of its space on this rank; correct the span"
    )]
    OutOfRange {
        /// The step and the span's first chunk that is outside.
        at: Box<Site>,
        /// How many chunks the space has.
        chunks: usize,
    },
    /// The spans of a step overlap without being the same.
    #[error(
        "{at}: this chunk is also read as another one of the step ({memory}); spans of a step must be the same or apart"
    )]
    Overlap {
        /// The step and the chunk that it writes.
        at: Box<Site>,
        /// The layout in which they overlap.
        memory: Memory,
    },
    /// Only some chunks of a step's result are complete.
    #[error(
        "{at}: this chunk holds every rank's contribution and others of the step do not (or the reverse), so that an \
         average cannot be placed; split the step"
    )]
    PartlyComplete {
        /// The step and the first chunk that differs.
        at: Box<Site>,
    },
    /// The peer is not another rank of the schedule.
    #[error("{at}: has rank {peer} as its peer; expected another rank, below {ranks}")]
    Peer {
        /// The step.
        at: Box<Site>,
        /// The peer it names.
        peer: Rank,
        /// How many ranks there are.
        ranks: usize,
    },
    /// Two accesses to the same chunk are not ordered.
    #[error(
        "{first} and {second} touch the same memory {memory}, one of them writes, and nothing orders them; \
         put them in one lane, or let one wait with `after`"
    )]
    Race {
        /// One access.
        first: Box<Site>,
        /// The other.
        second: Box<Site>,
        /// The layout in which they meet.
        memory: Memory,
    },
    /// The schedule as a whole is not well formed.
    #[error("malformed {collective} schedule of {ranks} ranks and {chunks} chunks: {reason}")]
    Shape {
        /// Its collective.
        collective: Collective,
        /// Its number of ranks.
        ranks: usize,
        /// Its number of chunks.
        chunks: usize,
        /// What was expected.
        reason: String,
    },
    /// The spans of a step differ in number or size of chunks.
    #[error(
        "{at}: its spans differ here in number or size of chunks; expected equal sizes for every element count"
    )]
    StepSize {
        /// The step and the first chunk that differs.
        at: Box<Site>,
    },
    /// A chunk is read before anything was written there.
    #[error(
        "{at}: reads memory that nothing has written yet ({memory}); write it in an earlier step"
    )]
    Undefined {
        /// The step and what it reads.
        at: Box<Site>,
        /// The layout in which it happens.
        memory: Memory,
    },
    /// A send without its receive, or the reverse.
    #[error(
        "{at}: has no counterpart; in lane {} rank {from} sends {sends} messages to rank {to}, \
         which receives {receives} from it; expected as many", .at.step.lane
    )]
    Unmatched {
        /// The first step without counterpart.
        at: Box<Site>,
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// Messages sent.
        sends: usize,
        /// Messages received.
        receives: usize,
    },
    /// Input would be written.
    #[error("{at}: writes input, which may not be changed; write output or scratch")]
    WritesInput {
        /// The step.
        at: Box<Site>,
    },
    /// A rank ends with something else than the collective promises.
    #[error(
        "rank {rank} ends with {found} in output chunk out[{chunk}] {memory}, expected {expected}; {}",
        writer_text(.writer.as_deref())
    )]
    WrongOutput {
        /// The rank.
        rank: Rank,
        /// The chunk of its output space.
        chunk: usize,
        /// What the collective promises.
        expected: String,
        /// What is there.
        found: String,
        /// The step that wrote it last.
        writer: Option<Box<Site>>,
        /// The layout in which it happens.
        memory: Memory,
    },
}

fn cycle_text(cycle: &[Site]) -> String {
    const SHOWN: usize = 6;
    let mut text = String::new();
    for site in cycle.iter().take(SHOWN) {
        text += &format!("{site} waits for ");
    }
    match cycle.len().checked_sub(SHOWN) {
        Some(more @ 1..) => text + &format!("{more} more steps, the last for the first"),
        _ => text + "the first",
    }
}

fn writer_text(writer: Option<&Site>) -> String {
    match writer {
        Some(site) => format!("it was last written by {site}"),
        None => "no step of any lane writes it".to_owned(),
    }
}
