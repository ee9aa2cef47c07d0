//! Plans that follow what operations take while a job runs.
//!
//! After so many operations of a group its ranks compare how long these took, by a small all-reduce that goes beside the group's
//! operations. What came of it all of them take up at the same operation, the one after as many more, before they begin it: so
//! nobody waits for a comparison but who is that far ahead of others. Where operations have been slower or quicker than usual for
//! long enough ([`judge`]), all ranks measure the links at that operation ([`probe::again`]), and, if there is something to
//! gain by what operations then take, go on by another plan: other algorithms, another order of hosts. Operations begun before end by the old one. Descriptors
//! carry the plan's number, so that ranks which did not agree would get a mismatch, not wrong sums.
//!
//! At the same points they try all-reduces of a length that is new there ([`probe::tried`]): the model is off by what processors
//! and switches are, and which of those algorithms that it holds for nearly the quickest is the quickest, only time tells.

mod judge;
mod replan;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard,
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ringway_plan::{Algorithm, Collective, DataType, ReduceOp};
use ringway_sys::Memory;

use crate::{
    AllReduce, Communicator, Descriptor, Error, Request,
    communicator::Seat,
    engine::{Kind, Samples, Task, lock, spawn, try_lock},
    group::{Group, mix},
    probe,
};
use judge::{Cause, Compared, Judge};
pub use replan::Replan;

/// What adapts the group that a job starts with.
pub(crate) struct Adapt {
    began: Instant,
    counts: Mutex<Counts>,
    state: Mutex<State>,
    replans: Mutex<Vec<Replan>>,
}

/// Operations since the last comparison: the same on all ranks when one is due.
struct Counts {
    calls: u32,
    /// One for each, and one for each [`LONG`] bytes: a few long operations take as long as thousands of short ones.
    work: usize,
    due: u32,
    kinds: HashMap<Kind, u32>,
}

impl Counts {
    fn new(due: u32) -> Self {
        Self {
            calls: 0,
            work: 0,
            due,
            kinds: HashMap::new(),
        }
    }
}

struct State {
    judge: Judge,
    /// The comparison that is under way, and of what.
    pending: Option<(Arc<Task>, Option<Kind>)>,
    /// What came of one, until it is taken up.
    compared: Option<Compared>,
    /// A group of all ranks that is to measure, and its barrier, for which this rank has stopped waiting.
    gathering: Option<(Arc<Group>, Arc<Task>)>,
    /// Measuring, for whose end this rank has stopped waiting.
    measuring: Option<Measuring>,
    since: Instant,
    /// For names of groups that compare and measure.
    groups: u64,
    comparing: Option<Arc<Group>>,
    /// Logarithms of lengths of all-reduces for which algorithms were tried.
    tried: HashSet<u32>,
}

/// Measuring goes on whether or not the call that needs it waits: the other ranks are in it.
struct Measuring {
    thread: JoinHandle<()>,
    ends: Receiver<Result<Outcome, Error>>,
}

/// What was measured; the same on all ranks.
enum Outcome {
    /// A better plan, if there is one, and how long finding it took.
    Look(Option<Box<probe::Found>>, Duration),
    Trial(Box<probe::Trial>, Duration),
}

/// How a call waits for other ranks.
#[derive(Clone, Copy)]
struct Wait<'a> {
    time: Duration,
    /// Ends the wait.
    stop: &'a dyn Fn() -> bool,
}

/// Operations between two comparisons, at least: who is not so far ahead of others does not wait for them.
const LEAST_CALLS: u32 = 16;

/// See [`Counts`].
const LONG: usize = 4 << 10;

/// Kinds of operations that are counted between two comparisons.
const MOST_KINDS: usize = 64;

/// Replans that are remembered.
const MOST_REPLANS: usize = 256;

/// Whether a call is to stop waiting is asked so often while its rank measures.
const ASK: Duration = Duration::from_millis(50);

/// Part of the names of groups that compare and measure.
const NAME: u64 = 0x72_696e_6761_6461;

/// A comparison is waited for only when its outcome is due, and from then on as long as any operation.
const UNHURRIED: Duration = Duration::from_secs(10_000_000);

impl Adapt {
    /// For a group of all ranks, in which a change counts that has lasted for so long.
    pub(crate) fn new(group: &Group, lasting: Duration) -> Self {
        let judge = Judge::new(lasting);
        *lock(&group.plans).samples() = Some(Samples::default());
        let now = Instant::now();
        Self {
            began: now,
            counts: Mutex::new(Counts::new(judge.interval())),
            state: Mutex::new(State {
                judge,
                pending: None,
                compared: None,
                gathering: None,
                measuring: None,
                since: now,
                groups: 0,
                comparing: None,
                tried: HashSet::new(),
            }),
            replans: Mutex::default(),
        }
    }

    pub(crate) fn replans(&self) -> Vec<Replan> {
        lock(&self.replans).clone()
    }

    /// Counts an operation that begins.
    pub(crate) fn count(&self, descriptor: &Descriptor) {
        let mut counts = lock(&self.counts);
        counts.calls = counts.calls.saturating_add(1);
        let long = Kind::of(descriptor).bytes / LONG;
        counts.work = counts.work.saturating_add(long).saturating_add(1);
        if let Some(kind) = Kind::counted(descriptor)
            && (counts.kinds.len() < MOST_KINDS || counts.kinds.contains_key(&kind))
        {
            *counts.kinds.entry(kind).or_default() += 1;
        }
    }

    /// To be called before an operation is planned: where one is due, compares, and takes up what came of the comparison before.
    /// `time` is the operation's, within which ranks must come to it; `stop` ends the wait for them.
    ///
    /// # Errors
    /// A rank has failed meanwhile, or has not come so far in that time, or in the setting's if that is longer.
    /// [`Error::Stopped`] if `stop` said so: the next operation does what this one left.
    pub(crate) fn before_operation(
        &self,
        comm: &Communicator,
        time: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let is_due = || {
            let counts = lock(&self.counts);
            counts.calls >= LEAST_CALLS && counts.work >= counts.due as usize
        };
        if !is_due() {
            return Ok(());
        }
        let wait = Wait {
            // Without this, nobody would have to be there in the time of a root's broadcast.
            time: time.max(comm.timeout()),
            stop,
        };
        let mut state = self.hold(comm, wait)?;
        if !is_due() {
            // Another thread has done it.
            return Ok(());
        }
        let counted = {
            let mut counts = lock(&self.counts);
            let due = counts.due;
            std::mem::replace(&mut *counts, Counts::new(due))
        };
        let done = self.compare(&mut state, comm, &counted, wait);
        if let Err(Error::Stopped) = done {
            *lock(&self.counts) = counted;
        }
        done
    }

    /// Tries algorithms for all-reduces of `bytes` now, in place of when the job has gone on for a while.
    ///
    /// # Errors
    /// As [`Self::before_operation`].
    pub(crate) fn tune(&self, comm: &Communicator, bytes: usize) -> Result<(), Error> {
        let wait = Wait {
            time: comm.timeout(),
            stop: &|| false,
        };
        let kind = Kind {
            collective: Collective::AllReduce,
            algorithm: comm.algorithm(Collective::AllReduce, bytes),
            bytes,
        };
        let mut state = self.hold(comm, wait)?;
        if state.measuring.is_some() || state.gathering.is_some() {
            return Err(Error::Argument(format!(
                "algorithms cannot be tried on {comm:?} while an operation that was stopped is still measuring links; expected that operation again first"
            )));
        }
        try_algorithms(&mut state, comm, kind, wait)
    }

    /// The state, once no other thread has it.
    fn hold(&self, comm: &Communicator, wait: Wait<'_>) -> Result<MutexGuard<'_, State>, Error> {
        let began = Instant::now();
        while began.elapsed() < wait.time {
            if let Some(state) = try_lock(&self.state) {
                return Ok(state);
            }
            if (wait.stop)() {
                return Err(Error::Stopped);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Error::Argument(format!(
            "another call on {comm:?} has been comparing links for {:?}: expected one call at a time, and none in a callback \
             while another begins; wait for operations before the next, or set adapt_after to off",
            wait.time
        )))
    }

    /// What is to be done when it is due. Each part of it waits for other ranks before it changes anything: after
    /// [`Error::Stopped`] it is called again, and goes on there.
    fn compare(
        &self,
        state: &mut State,
        comm: &Communicator,
        counted: &Counts,
        wait: Wait<'_>,
    ) -> Result<(), Error> {
        let kind = most(&counted.kinds);
        let mut mine = lock(&comm.group.plans)
            .samples()
            .as_mut()
            .and_then(|samples| samples.take(kind?));
        let elapsed = state.since.elapsed();
        if let Some((task, kind)) = &state.pending {
            let [nanos, elapsed] = ended(comm, task, wait)?;
            let time = (nanos < u64::MAX).then(|| Duration::from_nanos(nanos));
            state.compared = Some(Compared {
                kind: kind.zip(time),
                elapsed: Duration::from_nanos(elapsed),
            });
            state.pending = None;
        }
        if let Some(compared) = state.compared {
            let mut judge = state.judge.clone();
            match judge.judge(&compared) {
                None => state.judge = judge,
                Some(cause) => {
                    let kind = cause.kind();
                    let measured = state.measured(comm, wait, move |field| look(&field, kind))?;
                    state.judge = judge;
                    if let Outcome::Look(found, took) = measured {
                        self.take_up(state, comm, &cause, found, took);
                    }
                    // These took what they took by the plan before.
                    mine = None;
                }
            }
            state.compared = None;
        }
        if let Some(kind) = kind
            && state.judge.may_try()
        {
            try_algorithms(state, comm, kind, wait)?;
        }
        state.since = Instant::now();
        lock(&self.counts).due = state.judge.interval();
        let words = [mine.unwrap_or(Duration::MAX), elapsed].map(nanos);
        state.pending = Some((state.begin(comm, words)?, kind));
        Ok(())
    }

    /// Goes on by a better plan if a look has found one.
    fn take_up(
        &self,
        state: &mut State,
        comm: &Communicator,
        cause: &Cause,
        found: Option<Box<probe::Found>>,
        took: Duration,
    ) {
        let kind = cause.kind();
        state.judge.note_look(cause, found.is_some(), took);
        let Some(found) = found else {
            if comm.rank() == 0 {
                tracing::info!(?cause, "links were measured; the plan stays");
            }
            return;
        };
        // What was tried on other links says nothing.
        state.tried.clear();
        state.tried.extend(kind.bytes.checked_ilog2());
        let plan = found.policy.plan;
        comm.engine().adopt_in(found.policy, &comm.group);
        let algorithm = comm.algorithm(kind.collective, kind.bytes);
        let replan = Replan {
            plan,
            after: self.began.elapsed(),
            took,
            thousandths: match cause {
                Cause::Trend { thousandths, .. } => Some(*thousandths),
                Cause::Again { .. } => None,
            },
            collective: kind.collective,
            bytes: kind.bytes,
            algorithms: [kind.algorithm, algorithm],
            times: found.took,
            orders: found.orders,
            slowest: found.slowest,
        };
        if comm.rank() == 0 {
            tracing::warn!("links have changed: {replan}");
        }
        let mut replans = lock(&self.replans);
        if replans.len() < MOST_REPLANS {
            replans.push(replan);
        }
    }
}

/// Has all ranks, which have come, measure links.
fn look(field: &Communicator, kind: Kind) -> Result<Outcome, Error> {
    let began = Instant::now();
    let found = probe::again(field, kind)?;
    let took = all_know(field, began)?;
    Ok(Outcome::Look(found.map(Box::new), took))
}

/// How long it has taken since then, by rank 0's clock.
fn all_know(field: &Communicator, began: Instant) -> Result<Duration, Error> {
    let mut took = [nanos(began.elapsed())];
    probe::share(field, &mut took)?;
    Ok(Duration::from_nanos(took[0]))
}

/// Has all ranks try algorithms for all-reduces of such a length, if that was not done before and the choice is theirs.
fn try_algorithms(
    state: &mut State,
    comm: &Communicator,
    kind: Kind,
    wait: Wait<'_>,
) -> Result<(), Error> {
    let policy = lock(&comm.group.plans).policy();
    let is_free = kind.collective == Collective::AllReduce
        && comm.size() <= probe::MOST_COMPARED
        && policy
            .overrides
            .algorithm(kind.collective, kind.bytes)
            .is_none()
        && comm.algorithm(kind.collective, kind.bytes) == kind.algorithm;
    let Some(log) = kind.bytes.checked_ilog2() else {
        return Ok(());
    };
    if !is_free || state.tried.contains(&log) {
        return Ok(());
    }
    let measured = state.measured(comm, wait, move |field| {
        let began = Instant::now();
        let trial = probe::tried(&field, kind.bytes, probe::Effort::WIDE)?;
        let took = all_know(&field, began)?;
        Ok(Outcome::Trial(Box::new(trial), took))
    })?;
    state.tried.insert(log);
    let Outcome::Trial(trial, took) = measured else {
        return Ok(());
    };
    state.judge.note_trial(took);
    let mut next = (*policy).clone();
    next.tried.push(trial.tried);
    next.plan = next.plan.wrapping_add(1);
    comm.engine().adopt_in(Arc::new(next), &comm.group);
    let now = comm.algorithm(kind.collective, kind.bytes);
    if comm.rank() == 0 {
        let Kind {
            algorithm, bytes, ..
        } = kind;
        tracing::info!(%algorithm, %now, "algorithms were tried for all-reduces of {bytes} bytes");
    }
    Ok(())
}

impl State {
    /// Another group of the same ranks, for operations that are not the program's.
    fn group(&mut self, comm: &Communicator) -> Result<Communicator, Error> {
        self.groups += 1;
        let seats: Vec<Seat> = comm
            .members()
            .iter()
            .map(|&rank| Seat { rank, block: None })
            .collect();
        let id = mix(&[NAME, comm.group.id, self.groups]) >> 1;
        let policy = lock(&comm.group.plans).policy();
        let group = comm.engine().group_by(id, &seats, None, policy)?;
        group.hide();
        Ok(Communicator {
            membership: comm.membership.clone(),
            group,
        })
    }

    /// Such a group, once all ranks have come to this operation: in the time that they have for it, which a program may set, while all
    /// that is measured then has the setting's.
    fn assembled(&mut self, comm: &Communicator, wait: Wait<'_>) -> Result<Communicator, Error> {
        let (group, task) = match self.gathering.take() {
            Some(gathering) => gathering,
            None => {
                let field = self.group(comm)?;
                let (collective, none) = (Collective::Barrier, Memory::EMPTY);
                let barrier = Request::new(collective, DataType::U8, none, none).timeout(wait.time);
                let task = field.submit(barrier)?.task;
                (field.group, task)
            }
        };
        match comm.engine().wait_within(&task, wait.time, wait.stop) {
            Some(result) => result?,
            None => {
                self.gathering = Some((group, task));
                return Err(Error::Stopped);
            }
        }
        Ok(Communicator {
            membership: comm.membership.clone(),
            group,
        })
    }

    /// What such a group measures, by a thread of its own: it cannot be left off where a call stops waiting.
    fn measured(
        &mut self,
        comm: &Communicator,
        wait: Wait<'_>,
        measure: impl FnOnce(Communicator) -> Result<Outcome, Error> + Send + 'static,
    ) -> Result<Outcome, Error> {
        let Measuring { thread, ends } = match self.measuring.take() {
            Some(measuring) => measuring,
            None => {
                let field = self.assembled(comm, wait)?;
                let (end, ends) = sync_channel(1);
                let run = move || drop(end.send(measure(field)));
                let thread = spawn("measuring links", "ringway-measure".into(), run)?;
                Measuring { thread, ends }
            }
        };
        loop {
            match ends.recv_timeout(ASK) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Timeout) if (wait.stop)() => {
                    self.measuring = Some(Measuring { thread, ends });
                    return Err(Error::Stopped);
                }
                // What it waits for has its own deadlines.
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => match thread.join() {
                    Err(panic) => std::panic::resume_unwind(panic),
                    Ok(()) => unreachable!("the thread ends with what it has measured"),
                },
            }
        }
    }

    /// Begins a comparison: the least of all ranks' words.
    fn begin(&mut self, comm: &Communicator, words: [u64; 2]) -> Result<Arc<Task>, Error> {
        let group = match &self.comparing {
            Some(group) => group.clone(),
            None => self.group(comm)?.group,
        };
        self.comparing = Some(group.clone());
        // Only the group is kept: a communicator would keep this rank in the job.
        let comparing = Communicator {
            membership: comm.membership.clone(),
            group,
        };
        let call = AllReduce::new(words.to_vec())
            .op(ReduceOp::Min)
            .algorithm(Algorithm::RecursiveDoubling)
            .timeout(UNHURRIED);
        let task = comparing.start(call)?.into_task();
        // Ranks may leave, having done their last operation, before others have this one's outcome.
        task.set_optional(true);
        Ok(task)
    }
}

/// What came of a comparison.
fn ended(comm: &Communicator, task: &Task, wait: Wait<'_>) -> Result<[u64; 2], Error> {
    task.set_optional(false);
    match comm.engine().wait_within(task, wait.time, wait.stop) {
        Some(result) => result?,
        None => {
            // This rank may not come back for it.
            task.set_optional(true);
            return Err(Error::Stopped);
        }
    }
    let words = task
        .take()
        .and_then(|kept| kept.downcast::<Vec<u64>>().ok());
    match words.as_deref().map(Vec::as_slice) {
        Some(&[nanos, elapsed]) => Ok([nanos, elapsed]),
        _ => unreachable!("a comparison keeps two words, which are taken once"),
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The kind that moved the most bytes; the same on all ranks.
fn most(kinds: &HashMap<Kind, u32>) -> Option<Kind> {
    let order = |kind: &Kind| {
        let Kind {
            collective,
            algorithm,
            bytes,
        } = *kind;
        (bytes, Collective::name(collective), algorithm)
    };
    kinds
        .iter()
        .max_by_key(|(kind, times)| (kind.bytes as u128 * u128::from(**times), order(kind)))
        .map(|(kind, _)| *kind)
}

#[cfg(test)]
mod tests;
