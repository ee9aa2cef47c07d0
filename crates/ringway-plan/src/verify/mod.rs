//! The verifier: executes a schedule symbolically and proves it, or says what is wrong and where.
//!
//! # What a schedule is proved against
//!
//! *Touching.* A step works chunk by chunk: chunk i of what it writes depends on chunk i of what it reads
//! and of what it receives, and on no other chunk.
//!
//! *Order.* On a rank, an earlier step of a lane comes before a later one where they touch a common chunk
//! and one of them writes it. A step comes before those that name it in [`Step::after`](crate::Step::after),
//! whole step before whole step. A send comes before the receive that it meets. Nothing else orders:
//! steps of one lane that touch different chunks, signals among them, run in any order.
//! What a `Send` reads must not change until its message has been received; a step that is ordered after
//! the send, or after something that is ordered after its receive, waits for that.
//!
//! *Waiting.* A transport may have no buffer at all. A step begins when every step that comes before it on
//! its rank is done, for all chunks; a message is done when both its sides have begun. Of the messages of a
//! lane from one rank to another, each side begins one when the one before is done: a transport may
//! carry so few at a time, though nothing relies on it for order.
//! A cycle of these waits is a deadlock. An executor that begins steps earlier (slice by slice) or buffers
//! messages only waits less; one that holds back a step for any other reason is wrong.
//!
//! # What is proved
//!
//! Twice, with input and output apart, and with them the same memory:
//! spans lie in range, input is never written, both sides of a message have the same number of chunks, of
//! the same sizes whatever the number of elements; every send meets a receive and the reverse; nothing waits
//! for itself; accesses that conflict are ordered; nothing is read before it is written; every rank ends
//! with what the collective promises, each rank's contribution once; ranks that end with the same chunk have
//! combined the same operands in the same order, so that they end with the same bits.
//!
//! An in-place all_to_all would need a copy of its input, which would tax those who do not need it; so it
//! is the one collective that may verify out of place only, see [`Verified::in_place`].

mod barrier;
mod error;
mod graph;
mod hazard;
mod order;
mod race;
mod run;
mod sets;
mod shape;
mod turned;
mod value;

use std::{fmt, ops::Deref, sync::Arc};

pub use error::{Memory, Site, VerifyError};

use crate::{
    programs::Turned,
    schedule::{Collective, Program, Rank, Schedule, StepRef},
};
use graph::Graph;

/// A schedule that was proved. Cheap to clone; made by [`verify`] only.
#[derive(Clone, PartialEq, Eq)]
pub struct Verified(Arc<Proof>);

#[derive(PartialEq, Eq)]
struct Proof {
    schedule: Schedule,
    /// By rank, lane and step: whether the step completes a reduction. Of a program that is turned, for all ranks at once.
    completes: Vec<Vec<Vec<bool>>>,
    in_place: bool,
    uneven: bool,
}

impl Verified {
    /// Whether this reduce step's result holds the contribution of every rank, in all its chunks. An average
    /// divides there. Each output chunk's value went through exactly one such step, except with one
    /// rank, where nothing is reduced at all.
    pub fn completes(&self, rank: Rank, at: StepRef) -> bool {
        let completes = &self.0.completes;
        let lanes = completes.get(rank % completes.len().max(1));
        lanes
            .and_then(|l| l.get(at.lane)?.get(at.step))
            .is_some_and(|&c| c)
    }

    /// Whether input and output may be the same memory. True of every collective but all_to_all.
    pub fn in_place(&self) -> bool {
        self.0.in_place
    }

    /// Whether the schedule can run a `v` form, whose chunks have sizes of their own: one chunk for each
    /// rank, steps of one chunk, no scratch, and nothing on its way through a chunk of another size.
    pub fn uneven(&self) -> bool {
        self.0.uneven
    }
}

impl Deref for Verified {
    type Target = Schedule;

    fn deref(&self) -> &Schedule {
        &self.0.schedule
    }
}

impl fmt::Debug for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verified").field(&self.0.schedule).finish()
    }
}

/// Proves `schedule`, or says which rank, lane, step and chunk is wrong. See the module's documentation for
/// what is proved. A program that is turned around a ring is proved once for all ranks. Else it takes time and memory in proportion to the number of chunks that steps touch, and to the number of
/// different sets of ranks whose elements are reduced, times ranks / 64.
pub fn verify(schedule: Schedule) -> Result<Verified, VerifyError> {
    if let Some(outcome) = turned::prove(&schedule) {
        let one = schedule.programs.as_turned().map(Turned::one);
        let completes = by_step(one, &outcome.completes);
        return Ok(Verified(Arc::new(Proof {
            schedule,
            completes,
            in_place: true,
            uneven: outcome.uneven,
        })));
    }
    shape::check(&schedule)?;
    let apart = Graph::new(&schedule)?;
    let outcome = prove(&apart)?;
    let shared = apart.in_place().and_then(|shared| agree(&shared, &outcome));
    let in_place = match shared {
        Ok(()) => true,
        Err(_) if schedule.collective == Collective::AllToAll => false,
        Err(error) => return Err(error),
    };
    let completes = by_step(schedule.programs.iter(), &outcome.completes);
    let uneven = outcome.uneven;
    Ok(Verified(Arc::new(Proof {
        schedule,
        completes,
        in_place,
        uneven,
    })))
}

/// Proves the schedule in the graph's memory layout.
fn prove(graph: &Graph<'_>) -> Result<run::Outcome, VerifyError> {
    let order = graph.order()?;
    race::check(graph, &order)?;
    run::run(graph, &order)
}

/// Proves the schedule in place, and that reductions are complete in the same steps as out of place.
fn agree(shared: &Graph<'_>, apart: &run::Outcome) -> Result<(), VerifyError> {
    let outcome = prove(shared)?;
    let mut pairs = apart.completes.iter().zip(&outcome.completes);
    match pairs.position(|(a, b)| a != b) {
        None => Ok(()),
        Some(step) => Err(VerifyError::CompletionDiffers {
            at: shared.site(step, 0),
        }),
    }
}

fn by_step<'a>(
    programs: impl IntoIterator<Item = &'a Program>,
    flat: &[bool],
) -> Vec<Vec<Vec<bool>>> {
    let mut rest = flat;
    let mut take = |count: usize| {
        let (head, tail) = rest.split_at(count);
        rest = tail;
        head.to_vec()
    };
    programs
        .into_iter()
        .map(|p| p.lanes.iter().map(|l| take(l.steps.len())).collect())
        .collect()
}
