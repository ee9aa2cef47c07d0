//! The schedule: a collective operation as data.
//!
//! A collective works on a *vector* that is cut in [`Schedule::chunks`] chunks. Each rank sees three
//! memory spaces, each a row of chunks:
//!
//! | collective        | input chunks of a rank        | output chunks of a rank       |
//! |-------------------|-------------------------------|-------------------------------|
//! | all_reduce        | all                           | all                           |
//! | broadcast         | all, at the root only         | all                           |
//! | reduce            | all                           | all, at the root only         |
//! | reduce_scatter    | all                           | its part: chunks / ranks      |
//! | all_gather        | its part                      | all                           |
//! | gather            | its part                      | all, at the root only         |
//! | scatter           | all, at the root only         | its part                      |
//! | all_to_all        | all: part p is for rank p     | all: part p is from rank p    |
//! | barrier           | none                          | none                          |
//!
//! *Its part* of rank r is chunks `r * k .. (r + 1) * k` of the vector, k = chunks / ranks. Input and
//! output may be the same memory (in place): then input chunk c and output chunk c of the vector are the
//! same bytes. Schedules must be right both ways and must not write to input when the two are apart.
//! Scratch is memory of the operation's own.
//!
//! A rank's [`Program`] has lanes, which run concurrently. Within a lane, steps take effect as if one
//! after the other: the executor may overlap those that touch different chunks, and pipelines slices of
//! those that touch the same. Between lanes only [`Step::after`] orders.
//!
//! Matching: the k-th `Send` to rank b in lane l of rank a goes to the k-th `Recv` or `RecvReduce` from
//! rank a in lane l of rank b.

use std::fmt;

use crate::{
    data::{UnknownName, lookup},
    programs::Programs,
};

/// The number of a process in a group, from 0.
pub type Rank = usize;

/// What the ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Collective {
    /// Every rank gets all ranks' parts.
    AllGather,
    /// Every rank gets the reduction of all ranks' vectors.
    AllReduce,
    /// Part p of each rank goes to rank p.
    AllToAll,
    /// No rank leaves before every rank has entered.
    Barrier,
    /// Every rank gets the root's vector.
    Broadcast {
        /// The rank that has the vector.
        root: Rank,
    },
    /// The root gets all ranks' parts.
    Gather {
        /// The rank that gets them.
        root: Rank,
    },
    /// The root gets the reduction of all ranks' vectors.
    Reduce {
        /// The rank that gets it.
        root: Rank,
    },
    /// Each rank gets its part of the reduction of all ranks' vectors.
    ReduceScatter,
    /// Each rank gets its part of the root's vector.
    Scatter {
        /// The rank that has the vector.
        root: Rank,
    },
}

impl Collective {
    /// Every collective, with `root` where there is one.
    pub const fn all(root: Rank) -> [Self; 9] {
        [
            Self::AllGather,
            Self::AllReduce,
            Self::AllToAll,
            Self::Barrier,
            Self::Broadcast { root },
            Self::Gather { root },
            Self::Reduce { root },
            Self::ReduceScatter,
            Self::Scatter { root },
        ]
    }

    /// The name users write: `all_reduce` ...
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::AllReduce => "all_reduce",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
            Self::Broadcast { .. } => "broadcast",
            Self::Gather { .. } => "gather",
            Self::Reduce { .. } => "reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::Scatter { .. } => "scatter",
        }
    }

    /// The collective of that name (`all-reduce`, `all_reduce` and `AllReduce` alike), with `root` where it has one.
    pub fn parse(name: &str, root: Rank) -> Result<Self, UnknownName> {
        lookup("collective", &Self::all(root), Self::name, &[], name)
    }

    /// The root rank, of those that have one.
    pub const fn root(self) -> Option<Rank> {
        match self {
            Self::Broadcast { root }
            | Self::Gather { root }
            | Self::Reduce { root }
            | Self::Scatter { root } => Some(root),
            _ => None,
        }
    }

    /// Whether elements are reduced.
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Self::AllReduce | Self::Reduce { .. } | Self::ReduceScatter
        )
    }

    /// Whether ranks have parts of the vector, so that its length must be a multiple of their number.
    pub const fn has_parts(self) -> bool {
        !matches!(
            self,
            Self::AllReduce | Self::Barrier | Self::Broadcast { .. } | Self::Reduce { .. }
        )
    }

    /// The vector's chunks that rank `rank` has as input, in the order of its input space.
    /// For all_to_all, chunk c of the input of rank r is meant for rank c / (chunks / ranks).
    pub fn input_chunks(self, ranks: usize, chunks: usize, rank: Rank) -> std::ops::Range<usize> {
        let part = chunks / ranks;
        match self {
            Self::AllReduce | Self::Reduce { .. } | Self::ReduceScatter | Self::AllToAll => {
                0..chunks
            }
            Self::AllGather | Self::Gather { .. } => rank * part..(rank + 1) * part,
            Self::Broadcast { root } | Self::Scatter { root } if rank == root => 0..chunks,
            Self::Broadcast { .. } | Self::Scatter { .. } | Self::Barrier => 0..0,
        }
    }

    /// The vector's chunks that rank `rank` has as output, in the order of its output space.
    pub fn output_chunks(self, ranks: usize, chunks: usize, rank: Rank) -> std::ops::Range<usize> {
        let part = chunks / ranks;
        match self {
            Self::AllReduce | Self::Broadcast { .. } | Self::AllGather | Self::AllToAll => {
                0..chunks
            }
            Self::ReduceScatter | Self::Scatter { .. } => rank * part..(rank + 1) * part,
            Self::Reduce { root } | Self::Gather { root } if rank == root => 0..chunks,
            Self::Reduce { .. } | Self::Gather { .. } | Self::Barrier => 0..0,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One of a rank's memory spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// What the rank brings.
    Input,
    /// What the rank gets.
    Output,
    /// Memory of the operation's own, see [`Program::scratch`].
    Scratch,
}

/// Consecutive chunks of one space. Indices count in the space: input chunk 0 of an all_gather is the
/// rank's own first chunk, wherever it lies in the vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Which space.
    pub space: Space,
    /// The first chunk.
    pub chunk: usize,
    /// How many chunks.
    pub count: usize,
}

impl Span {
    /// `count` chunks of input from `chunk`.
    pub const fn input(chunk: usize, count: usize) -> Self {
        Self {
            space: Space::Input,
            chunk,
            count,
        }
    }

    /// `count` chunks of output from `chunk`.
    pub const fn output(chunk: usize, count: usize) -> Self {
        Self {
            space: Space::Output,
            chunk,
            count,
        }
    }

    /// `count` chunks of scratch from `chunk`.
    pub const fn scratch(chunk: usize, count: usize) -> Self {
        Self {
            space: Space::Scratch,
            chunk,
            count,
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = match self.space {
            Space::Input => "in",
            Space::Output => "out",
            Space::Scratch => "tmp",
        };
        match self.count {
            1 => write!(f, "{space}[{}]", self.chunk),
            _ => write!(
                f,
                "{space}[{}..{}]",
                self.chunk,
                self.chunk.saturating_add(self.count)
            ),
        }
    }
}

/// Which operand stands first. Matters to bits only: NaN payloads differ with the order, so where two
/// ranks compute the same element both must use the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The rank's own operand, then the received one.
    LocalFirst,
    /// The received operand, then the rank's own.
    RemoteFirst,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// `dst = src`, on this rank. Nothing to do where both are the same memory.
    Copy {
        /// Read.
        src: Span,
        /// Written.
        dst: Span,
    },
    /// Receives into `dst`.
    Recv {
        /// The sender.
        peer: Rank,
        /// Written.
        dst: Span,
    },
    /// `dst = own (op) received`, operands in `order`. `dst` may be `own`.
    RecvReduce {
        /// The sender.
        peer: Rank,
        /// Read.
        own: Span,
        /// Written.
        dst: Span,
        /// Which operand stands first.
        order: Order,
    },
    /// `dst = a (op) b`, on this rank. `dst` may be `a` or `b`.
    Reduce {
        /// The first operand.
        a: Span,
        /// The second operand.
        b: Span,
        /// Written.
        dst: Span,
    },
    /// Sends `src`. A span of no chunks is a signal that carries no data.
    Send {
        /// The receiver.
        peer: Rank,
        /// Read.
        src: Span,
    },
}

impl Op {
    /// The spans that the step reads.
    pub fn reads(&self) -> impl Iterator<Item = Span> + use<> {
        let (first, second) = match *self {
            Self::Copy { src, .. } | Self::Send { src, .. } => (Some(src), None),
            Self::Recv { .. } => (None, None),
            Self::RecvReduce { own, .. } => (Some(own), None),
            Self::Reduce { a, b, .. } => (Some(a), Some(b)),
        };
        first.into_iter().chain(second)
    }

    /// The span that the step writes.
    pub const fn writes(&self) -> Option<Span> {
        match *self {
            Self::Copy { dst, .. }
            | Self::Recv { dst, .. }
            | Self::RecvReduce { dst, .. }
            | Self::Reduce { dst, .. } => Some(dst),
            Self::Send { .. } => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy { src, dst } => write!(f, "copy {src} -> {dst}"),
            Self::Recv { peer, dst } => write!(f, "recv {dst} from {peer}"),
            Self::RecvReduce {
                peer,
                own,
                dst,
                order: Order::LocalFirst,
            } => {
                write!(f, "recv-reduce {dst} = {own} + from {peer}")
            }
            Self::RecvReduce {
                peer,
                own,
                dst,
                order: Order::RemoteFirst,
            } => {
                write!(f, "recv-reduce {dst} = from {peer} + {own}")
            }
            Self::Reduce { a, b, dst } => write!(f, "reduce {dst} = {a} + {b}"),
            Self::Send { peer, src } => write!(f, "send {src} to {peer}"),
        }
    }
}

/// Where a step stands in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepRef {
    /// Index of the lane.
    pub lane: usize,
    /// Index of the step in the lane.
    pub step: usize,
}

impl fmt::Display for StepRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {} step {}", self.lane, self.step)
    }
}

/// One step of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// What it does.
    pub op: Op,
    /// Steps of other lanes that must have taken effect before this one.
    pub after: Vec<StepRef>,
}

impl From<Op> for Step {
    fn from(op: Op) -> Self {
        Self {
            op,
            after: Vec::new(),
        }
    }
}

/// Steps that take effect one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The steps, in order.
    pub steps: Vec<Step>,
}

impl Lane {
    /// Adds a step.
    pub fn push(&mut self, op: Op) {
        self.steps.push(op.into());
    }
}

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Program {
    /// Scratch chunks: for each, the chunk of the vector whose size it has.
    pub scratch: Vec<usize>,
    /// The lanes; they run concurrently.
    pub lanes: Vec<Lane>,
}

/// A collective operation as data: a program for each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What it promises.
    pub collective: Collective,
    /// The generator's name, or that of the file it came from.
    pub algorithm: String,
    /// In how many chunks the vector is cut; a multiple of the number of ranks where ranks have parts.
    pub chunks: usize,
    /// One program for each rank.
    pub programs: Programs,
}

impl Schedule {
    /// The number of ranks.
    pub const fn ranks(&self) -> usize {
        self.programs.len()
    }

    /// The number of steps of all ranks.
    pub fn steps(&self) -> usize {
        self.programs.steps()
    }
}
