//! The part of every rank but 0: it answers rank 0's pings, and hears from it what the others do.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_plan::Rank;

use super::{
    AGREEMENT, Cause,
    activity::Watch,
    machine::{Lateness, Machine, News, Timing, excuse},
    message::Message,
    process,
    shared::Shared,
};

pub(super) struct Spoke {
    shared: Arc<Shared>,
    timing: Timing,
    watch: Watch,
    hub: State,
    heard: Instant,
    lateness: Lateness,
    /// More silence that is allowed rank 0, because this thread did not have its turn.
    excused: Duration,
    /// When rank 0 must have said that all are connected, or who is not; none once it has.
    ready_by: Option<Instant>,
    leave_by: Option<Instant>,
    finished: bool,
    messages: VecDeque<(Rank, Message)>,
    news: VecDeque<News>,
}

/// What is known of rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Here,
    /// It has left; its connection may still serve.
    Left,
    /// The job has failed, or there is no connection any more.
    Over,
}

impl Spoke {
    pub(super) fn new(shared: Arc<Shared>, timing: Timing, now: Instant) -> Self {
        Self {
            shared,
            timing,
            watch: Watch::new(now),
            hub: State::Here,
            heard: now,
            lateness: Lateness::default(),
            excused: Duration::ZERO,
            ready_by: Some(now + timing.connect + AGREEMENT),
            leave_by: None,
            finished: false,
            messages: VecDeque::new(),
            news: VecDeque::new(),
        }
    }

    /// Rank 0 itself has failed: every rank sees that for itself.
    fn give_up_hub(&mut self, cause: Cause) {
        if self.hub == State::Here {
            // What rank 0 did it told nobody.
            let failure = self.shared.describe(0, cause, None);
            self.news.push_back(News::Failed(failure));
        }
        self.hub = State::Over;
    }

    /// When rank 0's silence becomes its failure.
    fn silent_at(&self) -> Option<Instant> {
        let allowed =
            self.timing.failure_after + self.lateness.allowance(&self.timing) + self.excused;
        (self.hub == State::Here).then(|| self.heard + allowed)
    }

    fn judge_silence(&mut self, now: Instant) {
        let Some(due) = self.silent_at().filter(|&due| due <= now) else {
            return;
        };
        let excuse = excuse(due, now, &self.timing);
        if excuse.is_zero() {
            let cause = process::silent(&self.shared, 0, now - self.heard);
            self.give_up_hub(cause);
        } else {
            self.excused += now - due + excuse;
        }
    }
}

impl Machine for Spoke {
    fn handle_connected(&mut self, _rank: Rank, now: Instant) {
        self.heard = now;
    }

    fn handle_message(&mut self, _from: Rank, message: Message, now: Instant) {
        let interval = now - self.heard;
        self.heard = now;
        self.excused = Duration::ZERO;
        match message {
            Message::Ping(number) => {
                self.lateness
                    .note(interval.saturating_sub(self.timing.heartbeat));
                self.watch.look(self.shared.activity.snapshot(), now);
                let Watch {
                    snapshot: activity,
                    since,
                    ..
                } = self.watch;
                self.messages.push_back((
                    0,
                    Message::Pong {
                        number,
                        activity,
                        since,
                    },
                ));
            }
            Message::Failed(failure) => {
                if self.hub != State::Over {
                    self.news.push_back(News::Failed(failure));
                    self.hub = State::Over;
                }
            }
            Message::Left(rank) => {
                if rank == 0 && self.hub == State::Here {
                    self.hub = State::Left;
                }
                if rank == self.shared.rank {
                    self.finished = true;
                } else {
                    self.news.push_back(News::Left(rank));
                }
            }
            Message::Ready => {
                self.ready_by = None;
                self.news.push_back(News::Ready);
            }
            // Nothing else is said by rank 0.
            _ => tracing::debug!(?message, "unexpected control message"),
        }
    }

    fn handle_closed(&mut self, _rank: Rank, _now: Instant) {
        self.give_up_hub(Cause::Crashed);
        self.finished = self.leave_by.is_some();
    }

    fn handle_report(&mut self, rank: Rank, cause: Cause, _now: Instant) {
        if self.hub == State::Over {
            let failure = self.shared.describe(rank, cause, None);
            self.news.push_back(News::Failed(failure));
        } else {
            self.messages
                .push_back((0, Message::Report { rank, cause }));
        }
    }

    fn handle_joined(&mut self, _now: Instant) {
        self.messages.push_back((0, Message::Joined));
        // Rank 0 waits for the others; they need not.
        self.news.push_back(News::Complete);
    }

    fn handle_leave(&mut self, now: Instant, patience: Duration) {
        if self.leave_by.is_none() {
            self.leave_by = Some(now + patience);
            self.news.push_back(News::Left(self.shared.rank));
            self.messages.push_back((0, Message::Leaving));
            self.finished |= self.hub == State::Over;
        }
    }

    fn handle_time(&mut self, now: Instant) {
        if self.leave_by.is_some_and(|by| by <= now) {
            self.finished = true;
            return;
        }
        if self.ready_by.is_some_and(|by| by <= now) {
            self.ready_by = None;
            self.give_up_hub(Cause::Unconnected {
                limit: self.timing.connect,
            });
        }
        self.judge_silence(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.silent_at(), self.ready_by, self.leave_by]
            .into_iter()
            .flatten()
            .min()
    }

    fn poll_message(&mut self) -> Option<(Rank, Message)> {
        self.messages.pop_front()
    }

    fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}
