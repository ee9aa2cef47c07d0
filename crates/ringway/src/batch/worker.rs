//! The thread that closes batches and adds them up.
//!
//! Operations work through tensors where these lie. Where ranks map their memory, the thread carries them out itself; over messages
//! it starts them, so that there is always one that can use the wire.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ringway_kernels::Element;
use ringway_plan::Collective;
use ringway_sys::{Memory, Places};

use super::{
    Pending, Shared, Sought, State,
    announcement::{self, Announcement, WORDS},
    climb::Climb,
};
use crate::{
    Communicator, Error, Request, Work,
    buffer::exclusive,
    engine::{lock, spawn},
};

/// Batches under way at a time over messages: while one waits for others, the next one is on the wire.
const DEPTH: usize = 2;

/// Nobody sleeps longer, though all that matters wakes the thread.
const LONGEST_NAP: Duration = Duration::from_secs(1);

pub(super) fn start<T: Element>(
    communicator: Communicator,
    shared: Arc<Shared<T>>,
) -> Result<JoinHandle<()>, Error> {
    let worker = Worker {
        climb: Climb::new(shared.limits.bytes.clone()),
        communicator,
        shared,
        first: 0,
        asked: None,
        announced: None,
        running: VecDeque::new(),
    };
    let name = "ringway-batcher".to_owned();
    spawn("a batcher", name, move || worker.run())
}

struct Worker<T: Element> {
    communicator: Communicator,
    shared: Arc<Shared<T>>,
    climb: Climb,
    /// The place of the first tensor that is in no batch.
    first: u64,
    /// A broadcast that will say what is in the next batch.
    asked: Option<Work>,
    /// What it said, and when.
    announced: Option<(Announcement, Instant)>,
    running: VecDeque<Running<T>>,
}

struct Running<T> {
    work: Work,
    batch: Kept<T>,
    bytes: usize,
    began: Instant,
    /// Closed because it was large enough.
    full: bool,
}

/// A batch that its operation keeps alive; taken when that has ended, or was not started.
type Kept<T> = Arc<Mutex<Option<Vec<Pending<T>>>>>;

/// What came of looking around.
enum Turn {
    Moved,
    Nothing,
    End,
}

impl<T: Element> Worker<T> {
    fn run(mut self) {
        if self.communicator.is_mapped()
            && let Err(error) = ringway_sys::take_short_turns()
        {
            tracing::debug!(%error, "the batcher's thread keeps turns of the usual length");
        }
        loop {
            match self.turn() {
                Ok(Turn::Moved) => {}
                Ok(Turn::Nothing) => self.sleep(),
                Ok(Turn::End) => return,
                Err(error) => return self.fail(&error),
            }
        }
    }

    fn leads(&self) -> bool {
        self.communicator.rank() == 0
    }

    fn turn(&mut self) -> Result<Turn, Error> {
        if self
            .running
            .front()
            .is_some_and(|running| running.work.is_done())
        {
            self.finish()?;
            return Ok(Turn::Moved);
        }
        if self.running.len() < DEPTH {
            let moved = if self.leads() {
                self.lead()?
            } else {
                self.follow()?
            };
            if moved {
                return Ok(Turn::Moved);
            }
        }
        let state = lock(&self.shared.state);
        let idle = self.running.is_empty() && state.pending.is_empty();
        if state.closing && idle {
            return Ok(Turn::End);
        }
        drop(state);
        // Tensors that wait for others have no operation yet that would say so.
        self.communicator.engine().usable()?;
        Ok(Turn::Nothing)
    }

    /// Sleeps until there may be something to do.
    fn sleep(&self) {
        let mut state = lock(&self.shared.state);
        let done = |work: &Work| work.is_done();
        let ended = self
            .running
            .front()
            .is_some_and(|running| done(&running.work));
        if ended || self.asked.as_ref().is_some_and(done) {
            return;
        }
        let free = self.running.len() < DEPTH;
        let nap = match (state.pending.front(), &self.announced) {
            (Some(_), _) if self.leads() && free && self.closes(&state) => return,
            (Some(first), _) if self.leads() => self
                .shared
                .limits
                .window
                .saturating_sub(first.since.elapsed()),
            (Some(_), None) if !self.leads() && free && self.asked.is_none() => return,
            (_, Some((words, _))) if free && state.pending.len() >= announcement::count(words) => {
                return;
            }
            _ => LONGEST_NAP,
        };
        // At a busy depth the window may have passed: then the end of an operation wakes this.
        let nap = if nap.is_zero() {
            LONGEST_NAP
        } else {
            nap.min(LONGEST_NAP)
        };
        // Where as many batches run as may, the end of one wakes this.
        state.sought = Some(match &self.announced {
            Some((words, _)) if free => Sought {
                tensors: announcement::count(words),
                ..Sought::FIRST
            },
            None if free && self.leads() => Sought {
                bytes: self.climb.target(),
                ..Sought::FIRST
            },
            _ => Sought::FIRST,
        });
        let slept = self.shared.changed.wait_timeout(state, nap);
        slept.unwrap_or_else(PoisonError::into_inner).0.sought = None;
    }

    /// Whether the batch that begins with the first pending tensor is to be closed.
    fn closes(&self, state: &State<T>) -> bool {
        state.pending.front().is_some_and(|first| {
            state.pending_bytes >= self.climb.target()
                || state.wanted > self.first
                || state.closing
                || first.since.elapsed() >= self.shared.limits.window
        })
    }

    /// Closes a batch, tells the others, and starts it; whether there was one.
    fn lead(&mut self) -> Result<bool, Error> {
        let shared = self.shared.clone();
        let mut state = lock(&shared.state);
        pass_flushes(&mut state, self.first);
        if !self.closes(&state) {
            return Ok(false);
        }
        let (count, bytes) = self.batch(&state);
        let flushed = state.flushes.front() == Some(&(self.first + count as u64));
        let tensors = take(&mut state, count);
        state.stats.target = self.climb.target();
        drop(state);
        self.first += count as u64;
        let lengths = lengths(&tensors);
        if let Err(error) = self.tell(announcement::announce(&lengths, flushed)) {
            end_all(tensors, &Err(error.clone()));
            return Err(error);
        }
        let full = bytes >= self.climb.target();
        self.begin(tensors, bytes, full)?;
        Ok(true)
    }

    /// The tensors of the batch that is to be closed, and their bytes: up to the target, and not beyond a flush. What is as large as a
    /// batch is one by itself.
    fn batch(&self, state: &State<T>) -> (usize, usize) {
        let (target, most) = (self.climb.target(), *self.shared.limits.bytes.end());
        let flush = state
            .flushes
            .front()
            .map_or(u64::MAX, |flush| flush - self.first);
        let (mut count, mut bytes) = (0, 0);
        for pending in &state.pending {
            let ends = bytes >= target || bytes + pending.bytes > most || pending.bytes >= target;
            if count > 0 && (ends || count as u64 >= flush) {
                break;
            }
            count += 1;
            bytes += pending.bytes;
        }
        (count, bytes)
    }

    /// Asks what is in the next batch, and starts it when all of it is there; whether something has moved.
    fn follow(&mut self) -> Result<bool, Error> {
        if let Some(work) = self.asked.take_if(|work| work.is_done()) {
            work.wait()?;
            let Some(Ok(words)) = work.task.take().map(|kept| kept.downcast::<Announcement>())
            else {
                unreachable!("the broadcast kept the words, and nobody else takes them")
            };
            self.announced = Some((*words, Instant::now()));
            return Ok(true);
        }
        let shared = self.shared.clone();
        let mut state = lock(&shared.state);
        pass_flushes(&mut state, self.first);
        let Some((words, since)) = &self.announced else {
            let asks = self.asked.is_none() && !state.pending.is_empty();
            drop(state);
            if asks {
                self.ask()?;
            }
            return Ok(asks);
        };
        let count = announcement::count(words);
        let end = self.first + count as u64;
        if let Some(text) = self.contradiction(&state, words, *since) {
            drop(state);
            self.communicator.abort(&text);
            return Err(Error::Argument(text));
        }
        if state.pending.len() < count {
            return Ok(false);
        }
        let tensors = take(&mut state, count);
        drop(state);
        let lengths = lengths(&tensors);
        let mismatch =
            announcement::mismatch(words, self.communicator.rank(), self.first, &lengths);
        self.announced = None;
        self.first = end;
        if let Some(text) = mismatch {
            self.communicator.abort(&text);
            let error = Error::Argument(text);
            end_all(tensors, &Err(error.clone()));
            return Err(error);
        }
        let bytes = tensors.iter().map(|tensor| tensor.bytes).sum();
        self.begin(tensors, bytes, false)?;
        Ok(true)
    }

    /// What is wrong, if this rank has other tensors than rank 0 by number.
    fn contradiction(
        &self,
        state: &State<T>,
        words: &Announcement,
        since: Instant,
    ) -> Option<String> {
        let (me, end) = (
            self.communicator.rank(),
            self.first + announcement::count(words) as u64,
        );
        let expected = "expected the same tensors in the same order on all ranks";
        let flush = state.flushes.front().copied();
        if let Some(flush) = flush.filter(|&flush| flush < end) {
            return Some(format!(
                "rank {me} has added {flush} tensors to a batcher at its flush and rank 0 at least {end}; {expected}"
            ));
        }
        if announcement::flushed(words) && state.added > end && flush != Some(end) {
            return Some(format!(
                "rank 0 has added {end} tensors to a batcher at its flush and rank {me} more; {expected}"
            ));
        }
        let missing = state.pending.len() < announcement::count(words);
        let late = state.closing || since.elapsed() > self.communicator.timeout();
        (missing && late).then(|| {
            format!(
                "rank {me} has added {} tensors to a batcher and rank 0 at least {end}; {expected}",
                state.added
            )
        })
    }

    /// Tells the others what is in the next batch.
    fn tell(&self, mut words: Announcement) -> Result<(), Error> {
        if self.communicator.is_mapped() {
            return self.broadcast_now(&mut words);
        }
        self.broadcast(words).map(drop)
    }

    /// Asks what is in the next batch.
    fn ask(&mut self) -> Result<(), Error> {
        let mut words = [0; WORDS];
        if self.communicator.is_mapped() {
            self.broadcast_now(&mut words)?;
            self.announced = Some((words, Instant::now()));
        } else {
            self.asked = Some(self.broadcast(words)?);
        }
        Ok(())
    }

    fn broadcast(&self, words: Announcement) -> Result<Work, Error> {
        let mut words = Box::new(words);
        let request = self.announcing(&mut words);
        let work = self.communicator.submit_keeping(request, words)?;
        self.wake_at_end(&work);
        Ok(work)
    }

    fn broadcast_now(&self, words: &mut Announcement) -> Result<(), Error> {
        self.communicator.run(self.announcing(words))
    }

    fn announcing(&self, words: &mut Announcement) -> Request {
        let output = exclusive(&mut words[..]);
        let input = if self.leads() { output } else { Memory::EMPTY };
        Request::new(Collective::Broadcast { root: 0 }, u64::DTYPE, input, output)
    }

    /// Starts the operation of a batch; where ranks map their memory, carries it out.
    fn begin(
        &mut self,
        mut tensors: Vec<Pending<T>>,
        bytes: usize,
        full: bool,
    ) -> Result<(), Error> {
        let mut state = lock(&self.shared.state);
        state.stats.batches += 1;
        state.stats.tensors += tensors.len() as u64;
        state.stats.bytes += bytes as u64;
        drop(state);
        let adding = |memory| {
            Request::new(Collective::AllReduce, T::DTYPE, memory, memory).reduce_op(self.shared.op)
        };
        let request = match &mut tensors[..] {
            [one] => adding(one.held().memory()),
            several => {
                let places = several.iter_mut().map(|tensor| tensor.held().memory());
                adding(Memory::EMPTY).places(Arc::new(Places::new(places)))
            }
        };
        if self.communicator.is_mapped() {
            self.add_up(request, tensors, bytes, full)
        } else {
            self.start(request, tensors, bytes, full)
        }
    }

    fn add_up(
        &mut self,
        request: Request,
        tensors: Vec<Pending<T>>,
        bytes: usize,
        full: bool,
    ) -> Result<(), Error> {
        let began = Instant::now();
        let result = self.communicator.run(request);
        let took = began.elapsed();
        end_all(tensors, &result);
        result?;
        self.note(bytes, took, full);
        Ok(())
    }

    fn start(
        &mut self,
        request: Request,
        tensors: Vec<Pending<T>>,
        bytes: usize,
        full: bool,
    ) -> Result<(), Error> {
        let began = Instant::now();
        let batch: Kept<T> = Arc::new(Mutex::new(Some(tensors)));
        let started = self
            .communicator
            .submit_keeping(request, Box::new(batch.clone()));
        let work = match started {
            Ok(work) => work,
            Err(error) => {
                if let Some(tensors) = lock(&batch).take() {
                    end_all(tensors, &Err(error.clone()));
                }
                return Err(error);
            }
        };
        self.wake_at_end(&work);
        self.running.push_back(Running {
            work,
            batch,
            bytes,
            began,
            full,
        });
        Ok(())
    }

    /// Takes a lock that [`Self::sleep`] holds while it looks, so that no end goes unseen.
    fn wake_at_end(&self, work: &Work) {
        let shared = self.shared.clone();
        work.on_end(move |_| {
            drop(lock(&shared.state));
            shared.changed.notify_all();
        });
    }

    /// Gives the tensors of the first operation back, which has ended.
    fn finish(&mut self) -> Result<(), Error> {
        let Some(running) = self.running.pop_front() else {
            return Ok(());
        };
        let result = running.work.wait();
        let Some(tensors) = lock(&running.batch).take() else {
            unreachable!("nobody else takes a batch that runs")
        };
        let took = running.began.elapsed();
        end_all(tensors, &result);
        result?;
        self.note(running.bytes, took, running.full);
        Ok(())
    }

    /// A batch has taken so long.
    fn note(&mut self, bytes: usize, took: Duration, full: bool) {
        if full && let Some((target, rate)) = self.climb.record(bytes, took) {
            tracing::debug!(target, rate, "batches are closed at another size");
        }
    }

    /// Ends all that there is, and all that will be added. The others are told, lest they wait for this rank; what they have told
    /// first stands.
    fn fail(mut self, error: &Error) {
        self.communicator
            .abort(&format!("a batcher has ended: {error}"));
        self.end_with(error);
    }

    fn end_with(&mut self, error: &Error) {
        let mut state = lock(&self.shared.state);
        state.failed.get_or_insert_with(|| error.clone());
        let pending: Vec<_> = state.pending.drain(..).collect();
        drop(state);
        end_all(pending, &Err(error.clone()));
        while !self.running.is_empty() {
            // Says to its tickets how it has ended.
            drop(self.finish());
        }
    }
}

/// However the thread ends, nobody waits for it.
impl<T: Element> Drop for Worker<T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.communicator
                .abort("the thread of a batcher has panicked");
        }
        self.end_with(&Error::Memory(
            "the batcher has ended; its thread panicked, and the log says where".to_owned(),
        ));
    }
}

/// The last one first: who waits for one tensor after the other is woken for the first of a batch, and finds the others there.
fn end_all<T>(tensors: Vec<Pending<T>>, result: &Result<(), Error>) {
    for tensor in tensors.into_iter().rev() {
        tensor.end(result.clone());
    }
}

fn lengths<T>(tensors: &[Pending<T>]) -> Vec<usize> {
    tensors
        .iter()
        .map(|tensor| tensor.bytes / size_of::<T>())
        .collect()
}

/// Forgets flushes that all batches so far have passed.
fn pass_flushes<T>(state: &mut MutexGuard<'_, State<T>>, first: u64) {
    while state.flushes.front().is_some_and(|&flush| flush <= first) {
        state.flushes.pop_front();
    }
}

fn take<T>(state: &mut State<T>, count: usize) -> Vec<Pending<T>> {
    let tensors: Vec<_> = state.pending.drain(..count).collect();
    state.pending_bytes -= tensors.iter().map(|tensor| tensor.bytes).sum::<usize>();
    tensors
}
