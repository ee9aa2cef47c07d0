//! Over links whose rates change while the job runs: a host for each rank, ranks are threads of this process.

use std::{
    os::fd::BorrowedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ringway_link::{Event, LinkError, Loopback, MessageKey, Sink, Transport};
use ringway_plan::{Collective, DataType, Rank, ReduceOp};
use ringway_sys::Memory;

use super::Replan;
use crate::{
    AllReduce, Communicator, Error, Request,
    buffer::exclusive,
    engine::{Policy, lock},
    probe::{Origin, learn},
    tests::{Over, world_through},
};

const RANKS: usize = 4;

/// Elements of vectors: 48 KiB.
const LONG: usize = 12 << 10;

/// Bytes per second of a link: all that operations take is spent on links.
const RATE: u64 = 4_000_000;

/// Bytes per second from each rank to each other.
struct Rates {
    rates: [[AtomicU64; RANKS]; RANKS],
    /// The rank that dies when it next sends something long to whom it does not send in operations: links are being measured.
    dies: [AtomicBool; RANKS],
}

impl Rates {
    fn new() -> Arc<Self> {
        let row = |_| std::array::from_fn(|_| AtomicU64::new(RATE));
        Arc::new(Self {
            rates: std::array::from_fn(row),
            dies: Default::default(),
        })
    }

    fn set(&self, from: Rank, to: Rank, rate: u64) {
        self.rates[from][to].store(rate, Ordering::Relaxed);
    }
}

/// A transport over links of such rates.
struct Narrow {
    inner: Loopback,
    rank: Rank,
    rates: Arc<Rates>,
    /// By peer, until when its link is busy.
    busy: [Option<Instant>; RANKS],
    held: Vec<(Instant, Rank, MessageKey, Memory, u8)>,
}

impl Transport for Narrow {
    fn name(&self) -> &'static str {
        "narrow"
    }

    fn begin(&mut self, group: u64, op: u32, fingerprint: u32) {
        self.inner.begin(group, op, fingerprint);
    }

    fn send(
        &mut self,
        peer: Rank,
        key: MessageKey,
        src: Memory,
        priority: u8,
    ) -> Result<(), LinkError> {
        let dies = key.group > 0 && src.len() > 1024 && (self.rank + 2) % RANKS == peer;
        assert!(
            !dies || !self.rates.dies[self.rank].load(Ordering::Relaxed),
            "it dies"
        );
        let rate = self.rates.rates[self.rank][peer].load(Ordering::Relaxed);
        let now = Instant::now();
        let free = self.busy[peer].map_or(now, |busy| busy.max(now));
        let sent = free + Duration::from_secs_f64(src.len() as f64 / rate as f64);
        self.busy[peer] = Some(sent);
        self.held.push((sent, peer, key, src, priority));
        Ok(())
    }

    fn recv(&mut self, peer: Rank, key: MessageKey, sink: Sink) -> Result<(), LinkError> {
        self.inner.recv(peer, key, sink)
    }

    fn release(&mut self, peer: Rank, key: MessageKey) {
        self.inner.release(peer, key);
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> bool {
        let mut moved = false;
        while let Some(at) = self.held.iter().position(|held| held.0 <= now) {
            let (_, peer, key, src, priority) = self.held.remove(at);
            if let Err(error) = self.inner.send(peer, key, src, priority) {
                events.push(Event::Lost { peer, error });
            }
            moved = true;
        }
        self.inner.poll(now, events) || moved
    }

    fn arm(&mut self) -> bool {
        match self.held.is_empty() {
            true => self.inner.arm(),
            false => {
                std::thread::sleep(Duration::from_micros(200));
                false
            }
        }
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn cancel(&mut self, group: u64, op: u32) {
        self.held
            .retain(|held| (held.2.group, held.2.op) != (group, op));
        self.inner.cancel(group, op);
    }

    fn slice_bytes(&self) -> usize {
        self.inner.slice_bytes()
    }

    fn memory_in_use(&self) -> usize {
        self.inner.memory_in_use()
    }

    fn close(&mut self, timeout: Duration) {
        let end = Instant::now() + timeout;
        while !self.held.is_empty() && Instant::now() < end {
            self.poll(Instant::now(), &mut Vec::new());
            std::thread::sleep(Duration::from_micros(200));
        }
        self.inner.close(timeout);
    }
}

/// Runs `body` as each rank of a job over such links.
fn world<R: Send>(
    rates: &Arc<Rates>,
    settings: &[(&str, &str)],
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let narrow = |rank, inner| -> Box<dyn Transport> {
        Box::new(Narrow {
            inner,
            rank,
            rates: rates.clone(),
            busy: [None; RANKS],
            held: Vec::new(),
        })
    };
    let hosts: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
    let always = [("probe_lifetime", "0s")];
    let settings = [&always, settings].concat();
    world_through(narrow, &hosts, Over::Messages, RANKS, &settings, |comm| {
        assert_eq!(learn(&comm).unwrap(), Origin::Measured);
        body(comm)
    })
}

/// An all-reduce, whose sum is right.
fn sum(comm: &Communicator) -> Result<(), Error> {
    let mut vector: Vec<u32> = (0..LONG as u32).map(|i| i << comm.rank()).collect();
    comm.all_reduce(&mut vector, ReduceOp::Sum)?;
    let right = |(i, &sum): (usize, &u32)| sum == i as u32 * 0b1111;
    assert!(vector.iter().enumerate().all(right));
    Ok(())
}

/// As if the job had gone on for long, so that algorithms are tried.
fn age(comm: &Communicator) {
    if let Some(adapt) = comm.group.adapting() {
        lock(&adapt.state).judge.age();
    }
}

/// Sums until there have been so many replans, at most for so many sums more; then so many more. How many they were.
fn until(comm: &Communicator, replans: usize, most: usize, more: usize) -> usize {
    let mut sums = 0;
    while comm.replans().len() < replans && sums < most {
        sum(comm).unwrap();
        sums += 1;
    }
    (0..more).for_each(|_| sum(comm).unwrap());
    sums
}

/// Looks until it is so, but not for ever.
fn until_true(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Has rank 0 change rates while all ranks wait.
fn change(comm: &Communicator, change: impl FnOnce()) {
    comm.barrier().unwrap();
    if comm.rank() == 0 {
        change();
    }
    comm.barrier().unwrap();
}

/// The slowest pair, and then another, is left out of the ring, on all ranks alike; sums stay right, and nothing changes without
/// reason.
#[test]
fn an_order_leaves_out_the_pair_that_has_become_slow() {
    let rates = Rates::new();
    let settings = [("adapt_after", "300ms"), ("algorithm", "ring")];
    let found = world(&rates, &settings, |comm| {
        until(&comm, 1, 60, 0);
        assert_eq!(comm.replans(), [], "nothing has changed");
        change(&comm, || rates.set(1, 2, RATE / 4));
        until(&comm, 1, 400, 20);
        let first = comm.replans();
        assert_eq!(first.len(), 1, "it has changed once");
        let order = &first[0].orders[1];
        let neighbours = (0..RANKS).map(|at| (order[at], order[(at + 1) % RANKS]));
        assert!(!neighbours.clone().any(|pair| pair == (1, 2)), "{order:?}");
        // What was slow heals, and a pair of the new order becomes slow.
        let (from, to) = neighbours.clone().next().unwrap();
        change(&comm, || {
            rates.set(1, 2, RATE);
            rates.set(from, to, RATE / 4);
        });
        until(&comm, 2, 400, 20);
        // A group that is made now has the plan, and keeps it.
        let twin = comm.duplicate().unwrap();
        assert!(twin.group.adapting().is_none());
        let [ours, theirs] = [&comm, &twin].map(|comm| lock(&comm.group.plans).policy());
        assert_eq!((theirs.plan, &theirs.order), (ours.plan, &ours.order));
        sum(&twin).unwrap();
        comm.replans()
    });
    assert!(found.iter().all(|replans| replans.len() == 2), "{found:?}");
    let plain = |replans: &[Replan]| -> Vec<_> {
        replans
            .iter()
            .map(|r| (r.plan, r.orders.clone(), r.algorithms, r.slowest))
            .collect()
    };
    assert!(
        found
            .iter()
            .all(|replans| plain(replans) == plain(&found[0]))
    );
    let slowest = found[0][0].slowest.map(Option::unwrap);
    assert_eq!((slowest[0].0, slowest[0].1), (1, 2));
    assert!(slowest[1].2 > slowest[0].2 * 2, "{slowest:?}");
}

#[test]
fn asynchronous_operations_go_on_through_a_change() {
    let rates = Rates::new();
    let found = world(
        &rates,
        &[("adapt_after", "300ms"), ("algorithm", "ring")],
        |comm| {
            until(&comm, 1, 48, 0);
            change(&comm, || rates.set(1, 2, RATE / 4));
            let begin = |turn: u32| comm.start(AllReduce::new(vec![turn; LONG])).unwrap();
            let mut pending = std::collections::VecDeque::new();
            for turn in 0..300 {
                pending.push_back((turn, begin(turn)));
                if comm.replans().len() == 1 && turn % 8 == 7 {
                    break;
                }
                if pending.len() > 5 {
                    let (turn, work) = pending.pop_front().unwrap();
                    assert_eq!(work.wait().unwrap(), vec![turn * 4; LONG]);
                }
            }
            for (turn, work) in pending {
                assert_eq!(work.wait().unwrap(), vec![turn * 4; LONG]);
            }
            comm.replans().len()
        },
    );
    assert_eq!(found, [1; RANKS]);
}

#[test]
fn it_can_be_turned_off_by_rank_0() {
    let rates = Rates::new();
    let found = world(&rates, &[("adapt_after", "off")], |comm| {
        until(&comm, 1, 40, 0);
        comm.group.adapting().is_none()
    });
    assert_eq!(found, [true; RANKS]);
}

/// The others' calls end with an error that names the rank.
#[test]
fn a_rank_that_dies_while_links_are_measured_is_named() {
    let rates = Rates::new();
    let began = Instant::now();
    let found = world(
        &rates,
        &[("adapt_after", "300ms"), ("algorithm", "ring")],
        |comm| {
            let rates = &rates;
            let body = move || {
                until(&comm, 1, 48, 0);
                change(&comm, || {
                    rates.set(1, 2, RATE / 4);
                    rates.dies[3].store(true, Ordering::Relaxed);
                });
                let failed = (0..400).find_map(|_| sum(&comm).err());
                failed.map(|error| error.to_string())
            };
            catch_unwind(AssertUnwindSafe(body))
        },
    );
    assert!(began.elapsed() < Duration::from_secs(60));
    for (rank, end) in found.into_iter().enumerate() {
        match (rank, end) {
            (3, end) => assert!(end.is_err(), "it has died"),
            (_, end) => {
                let error = end.unwrap().expect("the others cannot go on");
                assert!(error.contains("rank 3"), "{error}");
            }
        }
    }
}

/// It has done all that it was asked for: what others compare does not keep it, and that it is gone hurts nobody.
#[test]
fn a_rank_may_leave_before_others_have_compared() {
    let rates = Rates::new();
    let found = world(&rates, &[], |comm| {
        (0..16).for_each(|_| sum(&comm).unwrap());
        comm.barrier().unwrap();
        if comm.rank() == 3 {
            return true;
        }
        let adapt = comm.group.adapting().unwrap();
        adapt
            .before_operation(&comm, comm.timeout(), &|| false)
            .unwrap();
        std::thread::sleep(Duration::from_secs(1));
        comm.engine().usable().is_ok()
    });
    assert_eq!(found, [true; RANKS]);
}

/// Ranks of different plans get an error, and no sums.
#[test]
fn ranks_that_have_not_agreed_do_not_exchange_anything() {
    let rates = Rates::new();
    let found = world(&rates, &[("algorithm", "ring")], |comm| {
        sum(&comm).unwrap();
        comm.barrier().unwrap();
        if comm.rank() == 2 {
            let policy = lock(&comm.group.plans).policy();
            let other = Policy {
                plan: 1,
                ..(*policy).clone()
            };
            comm.engine().adopt_in(Arc::new(other), &comm.group);
        }
        sum(&comm).unwrap_err().to_string()
    });
    for error in found {
        assert!(error.contains("plan 1"), "{error}");
    }
}

/// Whether it waits for what others have not begun to compare, or for them to try algorithms.
#[test]
fn a_wait_for_the_others_can_be_stopped_and_taken_up_again() {
    for (algorithm, ahead) in [("ring", 16), ("auto", 0)] {
        let (rates, stopped) = (Rates::new(), AtomicBool::new(false));
        world(&rates, &[("algorithm", algorithm)], |comm| {
            age(&comm);
            (0..16).for_each(|_| sum(&comm).unwrap());
            if comm.rank() > 0 {
                until_true(|| stopped.load(Ordering::Relaxed));
                (0..=ahead).for_each(|_| sum(&comm).unwrap());
                return comm.barrier().unwrap();
            }
            let vector = || -> Vec<u32> { (0..LONG as u32).collect() };
            let begin = |_| comm.start(AllReduce::new(vector())).unwrap();
            let begun: Vec<_> = (0..ahead).map(begin).collect();
            let mut last = vector();
            let memory = exclusive(&mut last);
            let request = || {
                Request::new(Collective::AllReduce, DataType::U32, memory, memory)
                    .reduce_op(ReduceOp::Sum)
            };
            let began = Instant::now();
            let soon = || began.elapsed() > Duration::from_millis(50);
            for stop in [&soon as &dyn Fn() -> bool, &|| true] {
                let ended = comm.run_until(request(), stop);
                assert!(matches!(ended, Err(Error::Stopped)), "{ended:?}");
            }
            stopped.store(true, Ordering::Relaxed);
            comm.run(request()).unwrap();
            assert!((0..).zip(&last).all(|(i, &sum)| sum == i * 0b1111));
            begun
                .into_iter()
                .for_each(|work| drop(work.wait().unwrap()));
            comm.barrier().unwrap();
        });
    }
}

/// Ctrl-C is heard while algorithms are tried; the next call has what came of it.
#[test]
fn measuring_goes_on_when_a_call_stops_waiting_for_it() {
    let rates = Rates::new();
    world(&rates, &[], |comm| {
        age(&comm);
        (0..16).for_each(|_| sum(&comm).unwrap());
        if comm.rank() > 0 {
            return sum(&comm).unwrap();
        }
        let mut vector: Vec<u32> = (0..LONG as u32).collect();
        let memory = exclusive(&mut vector);
        let request = || {
            Request::new(Collective::AllReduce, DataType::U32, memory, memory)
                .reduce_op(ReduceOp::Sum)
        };
        let adapt = comm.group.adapting().unwrap();
        let plan = || lock(&comm.group.plans).policy().plan;
        while lock(&adapt.state).measuring.is_none() {
            let began = Instant::now();
            let soon = || began.elapsed() > Duration::from_millis(60);
            let ended = comm.run_until(request(), &soon);
            assert!(matches!(ended, Err(Error::Stopped)), "{ended:?}");
        }
        assert_eq!(plan(), 0, "it has not ended");
        comm.run(request()).unwrap();
        assert_eq!(plan(), 1);
        assert!((0..).zip(&vector).all(|(i, &sum)| sum == i * 0b1111));
    });
}

/// What is asked for is tried at once, and once; else not before the job has gone on for a while.
#[test]
fn algorithms_are_tried_when_that_is_asked_for_or_pays() {
    world(&Rates::new(), &[], |comm| {
        let plan = || lock(&comm.group.plans).policy().plan;
        (0..40).for_each(|_| sum(&comm).unwrap());
        assert_eq!(plan(), 0, "a short job gains nothing by trials");
        comm.tune(4 * LONG).unwrap();
        assert_eq!(plan(), 1);
        comm.tune(4 * LONG).unwrap();
        comm.tune(0).unwrap();
        assert_eq!(plan(), 1);
        age(&comm);
        (0..40).for_each(|_| sum(&comm).unwrap());
        assert_eq!(plan(), 1, "they were tried");
    });
}

/// Whoever does not come is named, and what to do if that is meant.
#[test]
fn a_rank_that_does_not_come_to_a_meeting_is_named_with_the_setting() {
    let rates = Rates::new();
    world(&rates, &[("timeout", "5s")], |comm| {
        age(&comm);
        (0..16).for_each(|_| sum(&comm).unwrap());
        if comm.rank() == 2 {
            return until_true(|| comm.engine().usable().is_err());
        }
        let error = sum(&comm).unwrap_err().to_string();
        assert!(error.contains("RINGWAY_ADAPT_AFTER=off"), "{error}");
    });
}
