//! The completion queues of a device: as many as its queue pairs together need.

use std::sync::Arc;

use ringway_verbs::{self as verbs, CompletionChannel, CompletionQueue, Context, VerbsError};

/// How many completions a queue holds; less if the device has less. Queues take locked memory for all of them (64 bytes
/// each, as a rule), so that one of the deepest that a device has would be a waste.
const DEPTH: u32 = 16_384;

/// A completion queue, and how much of it is given away.
#[derive(Debug)]
struct Queue {
    queue: Arc<CompletionQueue>,
    promised: u32,
}

/// A place in a completion queue for all completions of a queue pair. To be given back.
#[derive(Debug)]
pub(super) struct Reservation {
    queue: usize,
    room: u32,
}

/// All of them, with one channel.
#[derive(Debug)]
pub(super) struct Completions {
    channel: Arc<CompletionChannel>,
    queues: Vec<Queue>,
    depth: u32,
    /// Which is fetched from first the next time: each in its turn, so that a busy one keeps none waiting.
    first: usize,
}

impl Completions {
    /// With one queue, of a device whose queues hold `most`.
    pub(super) fn new(context: &Arc<Context>, most: u32) -> Result<Self, VerbsError> {
        let mut completions = Self {
            channel: CompletionChannel::new(context)?,
            queues: Vec::new(),
            depth: DEPTH.min(most),
            first: 0,
        };
        completions.grow()?;
        Ok(completions)
    }

    fn grow(&mut self) -> Result<(), VerbsError> {
        let queue = CompletionQueue::new(&self.channel, self.depth)?;
        self.queues.push(Queue { queue, promised: 0 });
        Ok(())
    }

    /// How many completions a queue holds: no more can be reserved for a queue pair.
    pub(super) const fn depth(&self) -> u32 {
        self.depth
    }

    /// Room for `room` completions in one queue, which so cannot run over.
    pub(super) fn reserve(&mut self, room: u32) -> Result<Reservation, VerbsError> {
        let fits = |queue: &Queue| room <= self.depth - queue.promised;
        let queue = match self.queues.iter().position(fits) {
            Some(queue) => queue,
            None => {
                self.grow()?;
                self.queues.len() - 1
            }
        };
        self.queues[queue].promised += room;
        Ok(Reservation { queue, room })
    }

    pub(super) fn give_back(&mut self, reservation: &Reservation) {
        self.queues[reservation.queue].promised -= reservation.room;
    }

    /// The queue that the place is in.
    pub(super) fn queue(&self, reservation: &Reservation) -> &Arc<CompletionQueue> {
        &self.queues[reservation.queue].queue
    }

    /// Any queue, for what completes nothing.
    pub(super) fn any(&self) -> &Arc<CompletionQueue> {
        &self.queues[0].queue
    }

    /// Appends completions to `into` for as long as it has room without growing; true if there were any.
    pub(super) fn fetch(&mut self, into: &mut Vec<verbs::Completion>) -> Result<bool, VerbsError> {
        let before = into.len();
        let (before_first, from_first) = self.queues.split_at(self.first);
        for queue in from_first.iter().chain(before_first) {
            if into.len() == into.capacity() {
                break;
            }
            queue.queue.poll(into)?;
        }
        self.first += 1;
        if self.first >= self.queues.len() {
            self.first = 0;
        }
        Ok(into.len() > before)
    }

    /// Asks all queues for a notification.
    pub(super) fn arm(&self) -> Result<(), VerbsError> {
        self.queues.iter().try_for_each(|queue| queue.queue.arm())
    }

    /// Where they notify.
    pub(super) const fn channel(&self) -> &Arc<CompletionChannel> {
        &self.channel
    }
}
