//! Rank 0's part: it pings all others, judges their silence, and carries word between them.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_plan::Rank;

use super::{
    Cause,
    activity::Watch,
    machine::{Lateness, Machine, News, Timing, excuse},
    message::Message,
    process,
    shared::Shared,
};

/// How long rank 0 waits, when one rank has lost its connection to another, for a better reason: a crash closes all
/// connections of a process at once, but word of it may come from a survivor first; and whoever closes a connection
/// because of what came over it says so, but so does the other end, which saw it close.
const DOUBT: Duration = Duration::from_millis(300);

/// Pings that are remembered without an answer.
const MOST_PINGS: usize = 64;

pub(super) struct Hub {
    shared: Arc<Shared>,
    timing: Timing,
    peers: Vec<Peer>,
    own: Watch,
    number: u32,
    next_ping: Instant,
    /// When all must be connected; none once they are.
    connect_by: Option<Instant>,
    /// When all must have joined in full; none before this rank has, and once all have.
    join_by: Option<Instant>,
    doubt: Option<Doubt>,
    failed: bool,
    /// When this rank is gone at the latest, if it leaves.
    leave_by: Option<Instant>,
    finished: bool,
    messages: VecDeque<(Rank, Message)>,
    news: VecDeque<News>,
}

/// One rank has reported that it lost its connection to another.
struct Doubt {
    rank: Rank,
    cause: Cause,
    reporter: Rank,
    until: Instant,
}

struct Peer {
    state: State,
    heard: Instant,
    lateness: Lateness,
    /// More silence that is allowed it, because this thread did not have its turn.
    excused: Duration,
    /// It has joined the job in full.
    joined: bool,
    /// Pings without an answer, the oldest first.
    pings: VecDeque<(u32, Instant)>,
    watch: Watch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Expected,
    Connected,
    Left,
    Gone,
}

impl Hub {
    pub(super) fn new(shared: Arc<Shared>, timing: Timing, now: Instant) -> Self {
        let peer = |rank| Peer {
            state: if rank == 0 {
                State::Connected
            } else {
                State::Expected
            },
            heard: now,
            lateness: Lateness::default(),
            excused: Duration::ZERO,
            joined: false,
            pings: VecDeque::new(),
            watch: Watch::new(now),
        };
        let mut hub = Self {
            peers: (0..shared.members.len()).map(peer).collect(),
            shared,
            timing,
            own: Watch::new(now),
            number: 0,
            next_ping: now,
            connect_by: Some(now + timing.connect),
            join_by: None,
            doubt: None,
            failed: false,
            leave_by: None,
            finished: false,
            messages: VecDeque::new(),
            news: VecDeque::new(),
        };
        hub.look_if_ready();
        hub
    }

    fn look_if_ready(&mut self) {
        if self.connect_by.is_some() && self.peers.iter().all(|p| p.state != State::Expected) {
            self.connect_by = None;
            self.tell_all(&Message::Ready);
            self.news.push_back(News::Ready);
        }
    }

    /// Whether all have joined, as far as that is waited for; a rank that leaves first never will.
    fn judge_joining(&mut self, now: Instant) {
        let Some(by) = self.join_by else {
            return;
        };
        let limit = self.timing.connect;
        let mut missing = (0..self.peers.len()).filter(|&rank| !self.peers[rank].joined);
        let first = missing.clone().next();
        let gone = missing.find(|&rank| self.peers[rank].state == State::Left);
        match (first, gone) {
            (None, _) => self.news.push_back(News::Complete),
            (_, Some(rank)) => self.decide(rank, Cause::Left, now),
            (Some(rank), None) if by <= now => {
                self.decide(rank, Cause::Unconnected { limit }, now);
            }
            (Some(_), None) => return,
        }
        self.join_by = None;
    }

    fn connected(&self) -> impl Iterator<Item = Rank> + use<> {
        let connected = |rank: &Rank| self.peers[*rank].state == State::Connected;
        (1..self.peers.len())
            .filter(connected)
            .collect::<Vec<_>>()
            .into_iter()
    }

    fn tell_all(&mut self, message: &Message) {
        for rank in self.connected() {
            self.messages.push_back((rank, message.clone()));
        }
    }

    /// Decides how the job fails. The first decision holds.
    fn decide(&mut self, rank: Rank, cause: Cause, now: Instant) {
        if self.failed {
            return;
        }
        self.failed = true;
        self.doubt = None;
        let watch = match cause.heard(rank) {
            None => None,
            Some(0) => {
                self.own.look(self.shared.activity.snapshot(), now);
                Some(&self.own)
            }
            Some(heard) => self.peers.get(heard).map(|peer| &peer.watch),
        };
        let failure = self.shared.describe(rank, cause, watch);
        self.tell_all(&Message::Failed(failure.clone()));
        self.news.push_back(News::Failed(failure));
    }

    fn note_left(&mut self, rank: Rank) {
        self.tell_all(&Message::Left(rank));
        self.news.push_back(News::Left(rank));
    }

    /// A rank says that another, or itself, has failed.
    fn judge_report(&mut self, reporter: Rank, rank: Rank, cause: Cause, now: Instant) {
        let Some(peer) = self.peers.get(rank) else {
            return;
        };
        match cause {
            Cause::LinkLost { .. } if peer.state == State::Left => {
                self.decide(rank, Cause::Left, now);
            }
            Cause::LinkLost { .. } if self.doubt.is_none() => {
                self.doubt = Some(Doubt {
                    rank,
                    cause,
                    reporter,
                    until: now + DOUBT,
                });
            }
            Cause::LinkLost { .. } => {}
            cause => self.decide(rank, cause, now),
        }
    }

    /// Judges ranks that do not answer.
    fn judge_silence(&mut self, now: Instant) {
        for rank in self.connected() {
            let Some(due) = self.silent_at(rank).filter(|&due| due <= now) else {
                continue;
            };
            let excuse = excuse(due, now, &self.timing);
            if excuse.is_zero() {
                let silence = now - self.peers[rank].heard;
                let cause = process::silent(&self.shared, rank, silence);
                self.decide(rank, cause, now);
                return;
            }
            self.peers[rank].excused += now - due + excuse;
        }
    }

    /// When a rank's silence becomes its failure: when it has been silent for so long, *and* so long ago was asked,
    /// with a heartbeat's leave, so that a late turn of this thread does not count against it.
    fn silent_at(&self, rank: Rank) -> Option<Instant> {
        let peer = &self.peers[rank];
        let (_, asked) = peer.pings.front()?;
        let Timing {
            heartbeat,
            failure_after,
            ..
        } = self.timing;
        let from = (peer.heard + failure_after).max(*asked + failure_after - heartbeat);
        Some(from + peer.lateness.allowance(&self.timing) + peer.excused)
    }

    fn ping(&mut self, now: Instant) {
        self.number = self.number.wrapping_add(1);
        for rank in self.connected() {
            let pings = &mut self.peers[rank].pings;
            if pings.len() < MOST_PINGS {
                pings.push_back((self.number, now));
                self.messages.push_back((rank, Message::Ping(self.number)));
            }
        }
        // Not `+= heartbeat`: after a pause one ping is enough.
        self.next_ping = now + self.timing.heartbeat;
    }
}

impl Machine for Hub {
    fn handle_connected(&mut self, rank: Rank, now: Instant) {
        let Some(peer) = self.peers.get_mut(rank) else {
            return;
        };
        if peer.state == State::Expected {
            peer.state = State::Connected;
            peer.heard = now;
            self.look_if_ready();
        }
    }

    fn handle_message(&mut self, from: Rank, message: Message, now: Instant) {
        let Some(peer) = self.peers.get_mut(from) else {
            return;
        };
        match message {
            Message::Pong {
                number,
                activity,
                since,
            } => {
                peer.heard = now;
                peer.excused = Duration::ZERO;
                peer.watch.set(activity, since);
                while let Some(&(asked, at)) = peer.pings.front() {
                    // Numbers wrap around; what is less than half of them behind is older.
                    if asked.wrapping_sub(number) as i32 > 0 {
                        break;
                    }
                    peer.pings.pop_front();
                    if asked == number {
                        peer.lateness.note(now - at);
                    }
                }
            }
            Message::Report { rank, cause } => {
                peer.heard = now;
                self.judge_report(from, rank, cause, now);
            }
            Message::Joined => {
                peer.heard = now;
                peer.joined = true;
                self.judge_joining(now);
            }
            Message::Leaving if peer.state == State::Connected => {
                // The leaver too: it waits for this, so that its word is not lost with its socket.
                self.note_left(from);
                self.peers[from].state = State::Left;
                self.judge_joining(now);
            }
            // Nothing else is said to rank 0.
            _ => tracing::debug!(from, ?message, "unexpected control message"),
        }
    }

    fn handle_closed(&mut self, rank: Rank, now: Instant) {
        let Some(peer) = self.peers.get_mut(rank) else {
            return;
        };
        if peer.state != State::Connected {
            return;
        }
        peer.state = State::Gone;
        match &self.doubt {
            // It lost a connection, said so, and ended for that reason.
            Some(doubt) if doubt.reporter == rank && doubt.rank != rank => {}
            _ => self.decide(rank, Cause::Crashed, now),
        }
    }

    fn handle_report(&mut self, rank: Rank, cause: Cause, now: Instant) {
        self.judge_report(0, rank, cause, now);
    }

    fn handle_joined(&mut self, now: Instant) {
        self.peers[0].joined = true;
        self.join_by = Some(now + self.timing.connect);
        self.judge_joining(now);
    }

    fn handle_leave(&mut self, now: Instant, patience: Duration) {
        if self.leave_by.is_none() {
            self.leave_by = Some(now + patience);
            self.note_left(0);
            self.handle_time(now);
        }
    }

    fn handle_time(&mut self, now: Instant) {
        if let Some(by) = self.leave_by
            && (by <= now || self.failed || self.connected().next().is_none())
        {
            self.finished = true;
            return;
        }
        if self.doubt.as_ref().is_some_and(|doubt| doubt.until <= now)
            && let Some(Doubt { rank, cause, .. }) = self.doubt.take()
        {
            self.decide(rank, cause, now);
        }
        if self.connect_by.is_some_and(|by| by <= now) {
            self.connect_by = None;
            if let Some(rank) = self.peers.iter().position(|p| p.state == State::Expected) {
                let limit = self.timing.connect;
                self.decide(rank, Cause::Unconnected { limit }, now);
            }
        }
        self.judge_joining(now);
        if !self.failed {
            self.judge_silence(now);
        }
        if self.next_ping <= now {
            self.ping(now);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let silent = self.connected().filter_map(|rank| self.silent_at(rank));
        let silent = if self.failed { None } else { silent.min() };
        let doubt = self.doubt.as_ref().map(|doubt| doubt.until);
        [
            Some(self.next_ping),
            silent,
            doubt,
            self.connect_by,
            self.join_by,
            self.leave_by,
        ]
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
