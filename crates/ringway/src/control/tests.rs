//! All ranks' state machines on a virtual clock and wire: crashes, silences, delays and starved threads, to the
//! millisecond.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use ringway_link::PeerAddress;
use ringway_plan::{Collective, Rank};

use super::{
    Cause, Failure,
    hub::Hub,
    machine::{Machine, News, Timing},
    message::Message,
    shared::Shared,
    spoke::Spoke,
};
use crate::bootstrap::{HostId, Member};

const TIMING: Timing = Timing {
    heartbeat: Duration::from_millis(250),
    failure_after: Duration::from_millis(1500),
    connect: Duration::from_secs(60),
};

const TICK: Duration = Duration::from_millis(1);

/// A rank, and how its thread and its process fare.
struct Node {
    machine: Box<dyn Machine>,
    shared: Arc<Shared>,
    /// Does nothing until then.
    stopped_until: Instant,
    /// Its process has ended.
    dead: bool,
    failure: Option<(Failure, Instant)>,
    left: Vec<Rank>,
    ready: bool,
    complete: bool,
}

struct Net {
    nodes: Vec<Node>,
    now: Instant,
    began: Instant,
    latency: Duration,
    /// Arrival, sender, receiver, and the message; none is the end of the connection.
    wire: VecDeque<(Instant, Rank, Rank, Option<Message>)>,
}

impl Net {
    fn new(size: usize) -> Self {
        let member = |rank| Member {
            rank,
            host: format!("host{rank}"),
            // Each on a host of its own: no process here is asked for its state.
            host_id: HostId(rank as u64),
            pid: 1000 + rank as u32,
            address: PeerAddress::at(rank, 1, []),
            has_nic: false,
        };
        let members: Arc<[Member]> = (0..size).map(member).collect();
        let now = Instant::now();
        let node = |rank| {
            let shared = Shared::new(rank, Arc::clone(&members)).unwrap();
            let machine: Box<dyn Machine> = if rank == 0 {
                Box::new(Hub::new(Arc::clone(&shared), TIMING, now))
            } else {
                Box::new(Spoke::new(Arc::clone(&shared), TIMING, now))
            };
            let (stopped_until, left) = (now, Vec::new());
            Node {
                machine,
                shared,
                stopped_until,
                dead: false,
                failure: None,
                left,
                ready: false,
                complete: false,
            }
        };
        let nodes = (0..size).map(node).collect();
        let latency = Duration::from_micros(100);
        let mut net = Self {
            nodes,
            now,
            began: now,
            latency,
            wire: VecDeque::new(),
        };
        for rank in 1..size {
            net.nodes[0].machine.handle_connected(rank, now);
        }
        net
    }

    fn runs(&self, rank: Rank) -> bool {
        let node = &self.nodes[rank];
        !node.dead && node.stopped_until <= self.now
    }

    /// Lets the time pass.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            self.deliver();
            for rank in 0..self.nodes.len() {
                if self.runs(rank) {
                    self.nodes[rank].machine.handle_time(self.now);
                }
            }
            self.collect();
        }
    }

    fn deliver(&mut self) {
        // What a stopped process does not read stays on the wire, in order.
        for (at, from, to, message) in std::mem::take(&mut self.wire) {
            if at > self.now || (!self.runs(to) && !self.nodes[to].dead) {
                self.wire.push_back((at, from, to, message));
            } else if !self.nodes[to].dead {
                let machine = &mut self.nodes[to].machine;
                match message {
                    Some(message) => machine.handle_message(from, message, self.now),
                    None => machine.handle_closed(from, self.now),
                }
            }
        }
        self.collect();
    }

    fn collect(&mut self) {
        for from in 0..self.nodes.len() {
            let node = &mut self.nodes[from];
            while let Some((to, message)) = node.machine.poll_message() {
                if !node.dead {
                    self.wire
                        .push_back((self.now + self.latency, from, to, Some(message)));
                }
            }
            while let Some(news) = node.machine.poll_news() {
                match news {
                    News::Failed(failure) => {
                        node.failure.get_or_insert((failure, self.now));
                    }
                    News::Left(rank) => node.left.push(rank),
                    News::Complete => node.complete = true,
                    News::Ready => node.ready = true,
                }
            }
        }
    }

    fn kill(&mut self, rank: Rank) {
        self.nodes[rank].dead = true;
        let ends: Vec<Rank> = if rank == 0 {
            (1..self.nodes.len()).collect()
        } else {
            vec![0]
        };
        for to in ends {
            self.wire
                .push_back((self.now + self.latency, rank, to, None));
        }
    }

    fn stop(&mut self, rank: Rank, time: Duration) {
        self.nodes[rank].stopped_until = self.now + time;
    }

    fn join(&mut self, rank: Rank) {
        self.nodes[rank].machine.handle_joined(self.now);
        self.collect();
    }

    fn report(&mut self, reporter: Rank, rank: Rank, cause: Cause) {
        self.nodes[reporter]
            .machine
            .handle_report(rank, cause, self.now);
        self.collect();
    }

    /// The failure that all running ranks agree on, and when the last of them knew.
    fn agreed(&self) -> Option<(&Failure, Duration)> {
        let mut all = (0..self.nodes.len())
            .filter(|&rank| self.runs(rank))
            .map(|r| self.nodes[r].failure.as_ref());
        let (first, mut last) = all.next()??.clone();
        for other in all {
            let (failure, at) = other?;
            assert_eq!(failure, &first, "the ranks agree");
            last = last.max(*at);
        }
        let first = self
            .nodes
            .iter()
            .find_map(|n| n.failure.as_ref())
            .map(|(failure, _)| failure)?;
        Some((first, last - self.began))
    }

    fn quiet(&self) -> bool {
        self.nodes.iter().all(|node| node.failure.is_none())
    }
}

fn link_lost(peer: Rank) -> Cause {
    Cause::LinkLost {
        peer,
        detail: "reset".into(),
    }
}

#[test]
fn nothing_fails_where_nothing_is_wrong() {
    let mut net = Net::new(5);
    net.run(Duration::from_secs(20));
    assert!(net.quiet());
    assert!(net.nodes.iter().all(|node| node.ready));
}

#[test]
fn rank_0_has_joined_when_all_have_and_the_others_before() {
    let mut net = Net::new(3);
    net.join(0);
    net.join(2);
    net.run(Duration::from_secs(30));
    assert!(net.quiet());
    assert_eq!([0, 2].map(|rank| net.nodes[rank].complete), [false, true]);
    net.join(1);
    net.run(Duration::from_millis(10));
    assert!(net.nodes[0].complete);
    net.run(Duration::from_secs(60));
    assert!(net.quiet());
}

#[test]
fn a_rank_that_leaves_or_hangs_before_it_has_joined_is_named() {
    for leaves in [true, false] {
        let mut net = Net::new(3);
        net.join(0);
        net.join(1);
        if leaves {
            let now = net.now;
            net.nodes[2]
                .machine
                .handle_leave(now, Duration::from_secs(1));
            net.collect();
            net.run(Duration::from_millis(10));
            assert!(matches!(
                net.nodes[0].failure,
                Some((
                    Failure {
                        rank: 2,
                        cause: Cause::Left,
                        ..
                    },
                    _
                ))
            ));
        } else {
            net.run(TIMING.connect - Duration::from_secs(1));
            assert!(net.quiet());
            net.run(Duration::from_secs(2));
            let (failure, _) = net.agreed().expect("known when the time is over");
            assert_eq!(failure.rank, 2);
            assert!(
                matches!(failure.cause, Cause::Unconnected { .. }),
                "{failure}"
            );
        }
        assert!(!net.nodes[0].complete);
    }
}

#[test]
fn a_stop_is_known_after_the_silence_and_not_before() {
    for victim in 0..3 {
        for at in [5000, 5060, 5120, 5249] {
            let mut net = Net::new(3);
            net.nodes[victim]
                .shared
                .activity
                .begin(Collective::AllGather, 7, 4);
            net.run(Duration::from_millis(at));
            net.stop(victim, Duration::from_secs(100));
            net.run(Duration::from_millis(1200));
            assert!(net.quiet(), "too early");
            net.run(Duration::from_millis(800));
            let (failure, when) = net.agreed().expect("known within 2 s");
            assert_eq!(failure.rank, victim);
            assert!(matches!(failure.cause, Cause::Silent { .. }), "{failure}");
            let known = when - Duration::from_millis(at);
            assert!(known <= Duration::from_millis(1600), "{known:?}");
            assert_eq!(
                failure
                    .operation
                    .contains("all_gather (operation 4 of group 7)"),
                victim != 0
            );
        }
    }
}

#[test]
fn a_crash_is_known_at_once() {
    for victim in 0..3 {
        let mut net = Net::new(3);
        net.run(Duration::from_secs(3));
        net.kill(victim);
        net.run(Duration::from_millis(5));
        let (failure, _) = net.agreed().expect("known");
        assert_eq!((failure.rank, &failure.cause), (victim, &Cause::Crashed));
    }
}

/// Rank 0's thread gets no turn for longer than anybody may be silent: it judges by what it has asked, and hears all
/// that has come before it judges.
#[test]
fn a_starved_hub_blames_nobody_else() {
    let mut net = Net::new(4);
    net.run(Duration::from_secs(2));
    // Its own silence would be a failure to the others; so they are starved as well, as on one busy machine.
    for rank in 0..4 {
        net.stop(rank, Duration::from_secs(30));
    }
    net.run(Duration::from_millis(30_001));
    net.run(Duration::from_secs(5));
    assert!(net.quiet());
}

/// A rank that has been late is allowed to be later.
#[test]
fn lateness_earns_leave() {
    let silence = |late: u64| {
        let mut net = Net::new(2);
        net.run(Duration::from_secs(2));
        net.stop(1, Duration::from_millis(late));
        net.run(Duration::from_millis(late + 10));
        assert!(net.quiet(), "{late} ms are no failure");
        let stopped = net.now;
        net.stop(1, Duration::from_secs(100));
        net.run(Duration::from_secs(5));
        let (_, when) = net.agreed().expect("known in the end");
        when - (stopped - net.began)
    };
    let (quick, slow) = (silence(1), silence(1200));
    assert!(quick < Duration::from_millis(1600), "{quick:?}");
    assert!(
        slow > Duration::from_millis(2500) && slow < Duration::from_millis(3100),
        "{slow:?}"
    );
}

#[test]
fn a_lost_connection_is_in_doubt_until_the_crash_is_known() {
    let mut net = Net::new(4);
    net.run(Duration::from_secs(2));
    net.report(2, 3, link_lost(2));
    net.run(Duration::from_millis(200));
    assert!(net.quiet());
    net.kill(3);
    net.run(Duration::from_millis(5));
    let (failure, _) = net.agreed().expect("known");
    assert_eq!((failure.rank, &failure.cause), (3, &Cause::Crashed));
}

#[test]
fn a_lost_connection_between_the_living_is_told_after_the_doubt() {
    for (reporter, rank) in [(2, 3), (0, 1), (1, 0)] {
        let mut net = Net::new(4);
        net.run(Duration::from_secs(2));
        net.report(reporter, rank, link_lost(reporter));
        net.run(Duration::from_millis(400));
        let (failure, _) = net.agreed().expect("known");
        assert_eq!((failure.rank, &failure.cause), (rank, &link_lost(reporter)));
    }
}

/// The reporter ends for the connection it lost; that must not hide who began.
#[test]
fn a_reporter_that_ends_is_not_the_culprit() {
    let mut net = Net::new(4);
    net.run(Duration::from_secs(2));
    net.report(2, 3, link_lost(2));
    net.run(TICK);
    net.kill(2);
    net.run(Duration::from_millis(400));
    let (failure, _) = net.agreed().expect("known");
    assert_eq!(failure.rank, 3);
}

#[test]
fn leaves_are_told_and_are_no_failures() {
    let mut net = Net::new(4);
    net.run(Duration::from_secs(1));
    net.nodes[3]
        .machine
        .handle_leave(net.now, Duration::from_secs(5));
    net.collect();
    net.run(Duration::from_millis(5));
    assert!(net.nodes[3].machine.is_finished());
    net.kill(3);
    net.run(Duration::from_secs(3));
    assert!(net.quiet());
    assert!(net.nodes[..3].iter().all(|node| node.left == [3]));
    net.report(1, 3, link_lost(1));
    net.run(Duration::from_millis(5));
    let (failure, _) = net.agreed().expect("known");
    assert_eq!((failure.rank, &failure.cause), (3, &Cause::Left));
}

#[test]
fn rank_0_serves_while_it_leaves() {
    let mut net = Net::new(3);
    net.run(Duration::from_secs(1));
    net.nodes[0]
        .machine
        .handle_leave(net.now, Duration::from_secs(10));
    net.run(Duration::from_millis(500));
    assert!(!net.nodes[0].machine.is_finished());
    assert!(net.nodes[1..].iter().all(|node| node.left == [0]));
    net.kill(2);
    net.run(Duration::from_millis(5));
    assert_eq!(net.nodes[1].failure.as_ref().map(|(f, _)| f.rank), Some(2));
    assert!(net.nodes[0].machine.is_finished());
}

#[test]
fn the_first_failure_stays() {
    let mut net = Net::new(4);
    net.run(Duration::from_secs(1));
    let abort = Cause::Aborted {
        reason: "enough".into(),
    };
    net.report(1, 1, abort.clone());
    net.run(TICK);
    net.kill(3);
    net.report(2, 0, link_lost(2));
    net.run(Duration::from_secs(3));
    let (failure, when) = net.agreed().expect("known");
    assert_eq!((failure.rank, &failure.cause), (1, &abort));
    assert!(when < Duration::from_millis(1010));
}

proptest! {
    /// Whatever happens first, to whomever, all who still run agree on one failure, and within 2 s.
    #[test]
    fn all_agree(
        size in 2_usize..6,
        latency in 0_u64..40,
        events in proptest::collection::vec((0_usize..6, 0_u8..4, 0_u64..600), 1..4),
    ) {
        let mut net = Net::new(size);
        net.latency = Duration::from_millis(latency);
        net.run(Duration::from_secs(2));
        for (rank, kind, pause) in events {
            let rank = rank % size;
            match kind {
                0 => net.kill(rank),
                1 => net.stop(rank, Duration::from_secs(1000)),
                2 if net.runs(rank) => net.report(rank, (rank + 1) % size, link_lost(rank)),
                _ if net.runs(rank) => net.report(rank, rank, Cause::Aborted { reason: "x".into() }),
                _ => {}
            }
            net.run(Duration::from_millis(pause));
        }
        net.run(Duration::from_secs(4));
        let alive: Vec<Rank> = (0..size).filter(|&rank| net.runs(rank)).collect();
        // A rank that lost rank 0 while rank 0's word was under way knows rank 0's end only.
        let hub_runs = net.runs(0);
        for &rank in &alive {
            let failure = net.nodes[rank].failure.as_ref();
            prop_assert!(failure.is_some(), "rank {} knows", rank);
            if hub_runs {
                prop_assert_eq!(failure.map(|f| &f.0), net.nodes[0].failure.as_ref().map(|f| &f.0));
            }
        }
    }
}
