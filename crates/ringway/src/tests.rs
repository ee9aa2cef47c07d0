//! The engine's promises, over the loopback transport: ranks are threads of this process.

use std::{
    cell::Cell,
    collections::HashMap,
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use ringway_link::{Loopback, LoopbackOptions, Transport};

use crate::{
    Algorithm, AllReduce, Collective, Communicator, Error, Memory, ReduceOp, Request,
    bootstrap::{self, HostId, Launch, Launcher, Rendezvous, Store, StoreError},
    buffer::{exclusive, shared},
    control::Control,
    settings::{Settings, Source},
    share::share_host,
    start::assemble,
};

macro_rules! over_both {
    ($($name:ident),* $(,)?) => {
        mod over_messages {
            use super::Over;
            $(#[test] fn $name() { super::$name(Over::Messages); })*
        }
        mod in_mapped_memory {
            use super::Over;
            $(#[test] fn $name() { super::$name(Over::Mapped); })*
        }
    };
}
mod batch;
mod compress;
mod narrow;
mod places;

/// A store in this process.
#[derive(Default)]
struct Shelf {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl Store for Shelf {
    fn set(&self, key: &str, value: &[u8], _: Instant) -> Result<(), StoreError> {
        self.values
            .lock()
            .unwrap()
            .insert(key.to_owned(), value.to_owned());
        self.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, StoreError> {
        let mut values = self.values.lock().unwrap();
        loop {
            if let Some(value) = values.get(key) {
                return Ok(value.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StoreError::Absent {
                    key: key.to_owned(),
                    waited: left,
                });
            }
            values = self.changed.wait_timeout(values, left).unwrap().0;
        }
    }

    fn describe(&self) -> String {
        "a shelf in this process".to_owned()
    }
}

/// What carries operations in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// Messages, through the loopback transport.
    Messages,
    /// Memory that all ranks map.
    Mapped,
}

/// Runs `body` as every rank of a world of `ranks`, each on a thread.
pub(crate) fn world_over<R: Send>(
    over: Over,
    ranks: usize,
    settings: &[(&str, &str)],
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    world_at(&[], over, ranks, settings, body)
}

/// As [`world_over`], of a rank for each of `hosts`, which it is on as far as the engine knows.
pub(crate) fn world_on<R: Send>(
    hosts: &[&str],
    over: Over,
    settings: &[(&str, &str)],
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    world_with(hosts, over, settings, |_| None, body)
}

/// As [`world_on`], where ranks have a setting of their own besides.
pub(crate) fn world_with<R: Send>(
    hosts: &[&str],
    over: Over,
    settings: &[(&str, &str)],
    own: impl Fn(usize) -> Option<(&'static str, &'static str)> + Sync,
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
    world_each(
        |_, endpoint| Box::new(endpoint),
        own,
        (&hosts, over, hosts.len()),
        settings,
        body,
    )
}

/// As [`world_over`], where rank r is on the host `hosts[r]`, as far as the engine knows.
fn world_at<R: Send>(
    hosts: &[String],
    over: Over,
    ranks: usize,
    settings: &[(&str, &str)],
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    world_through(
        |_, endpoint| Box::new(endpoint),
        hosts,
        over,
        ranks,
        settings,
        body,
    )
}

/// As [`world_at`], with something around each rank's transport.
pub(crate) fn world_through<R: Send>(
    wrap: impl Fn(usize, Loopback) -> Box<dyn Transport> + Sync,
    hosts: &[String],
    over: Over,
    ranks: usize,
    settings: &[(&str, &str)],
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    world_each(wrap, |_| None, (hosts, over, ranks), settings, body)
}

/// As [`world_through`], where `own` is a setting of that rank's besides.
fn world_each<R: Send>(
    wrap: impl Fn(usize, Loopback) -> Box<dyn Transport> + Sync,
    own: impl Fn(usize) -> Option<(&'static str, &'static str)> + Sync,
    (hosts, over, ranks): (&[String], Over, usize),
    settings: &[(&str, &str)],
    body: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let shelf: Arc<dyn Store> = Arc::new(Shelf::default());
    let options = LoopbackOptions {
        slice_bytes: 4096,
        ..LoopbackOptions::default()
    };
    let endpoints = Loopback::world(ranks, options).unwrap();
    std::thread::scope(|scope| {
        let run = |(rank, endpoint): (usize, Loopback)| {
            let (body, wrap, own, shelf) = (&body, &wrap, &own, shelf.clone());
            scope.spawn(move || {
                let mut chosen = Settings::default();
                for &(name, value) in settings.iter().chain(&own(rank)) {
                    chosen
                        .set(
                            name,
                            value,
                            Source::Flag {
                                name: name.to_owned(),
                            },
                        )
                        .unwrap();
                }
                let launch = Launch {
                    launcher: Launcher::Caller,
                    rank,
                    size: ranks,
                    local_rank: None,
                    job: "engine tests".to_owned(),
                    rendezvous: Rendezvous::Store(shelf),
                };
                let mut world = bootstrap::join(&chosen, &launch).unwrap();
                let mut members = world.members.to_vec();
                for (member, host) in members.iter_mut().zip(hosts) {
                    let first = hosts.iter().position(|other| other == host);
                    member.host_id = HostId(first.unwrap() as u64);
                    member.host.clone_from(host);
                }
                world.members = members.into();
                let control = Arc::new(Control::start(&world, &chosen).unwrap());
                let host = match over {
                    Over::Messages => None,
                    Over::Mapped => share_host(&world, &chosen).unwrap(),
                };
                body(assemble(world, control, chosen, wrap(rank, endpoint), host).unwrap())
            })
        };
        let threads: Vec<_> = endpoints.into_iter().enumerate().map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Element `i` of what `rank` brings.
fn brought(rank: usize, i: usize) -> u32 {
    (rank as u32 + 1) * 1000 + (i % 997) as u32
}

fn vector(rank: usize, len: usize) -> Vec<u32> {
    (0..len).map(|i| brought(rank, i)).collect()
}

fn summed(ranks: usize, i: usize) -> u32 {
    (0..ranks).map(|r| brought(r, i)).sum()
}

/// Runs one collective by one algorithm on every rank, out of place and in place, and checks all of it.
fn check(comm: &Communicator, collective: Collective, algorithm: Algorithm, part: usize) {
    let (n, me) = (comm.size(), comm.rank());
    let len = if collective.has_parts() {
        part * n
    } else {
        part
    };
    let ins = collective.input_chunks(n, n, me);
    let outs = collective.output_chunks(n, n, me);
    let elements = |chunks: std::ops::Range<usize>| match collective.has_parts() {
        true => chunks.start * part..chunks.end * part,
        false if chunks.is_empty() => 0..0,
        false => 0..len,
    };
    let (ins, outs) = (elements(ins), elements(outs));
    let expected: Vec<u32> = outs
        .clone()
        .map(|i| match collective {
            Collective::AllReduce | Collective::Reduce { .. } | Collective::ReduceScatter => {
                summed(n, i)
            }
            Collective::AllGather | Collective::Gather { .. } => brought(i / part, i),
            Collective::AllToAll => brought(i / part, me * part + i % part),
            Collective::Broadcast { root } | Collective::Scatter { root } => brought(root, i),
            Collective::Barrier => unreachable!(),
        })
        .collect();
    let input: Vec<u32> = ins.clone().map(|i| brought(me, i)).collect();
    let request = |input: Memory, output: Memory| {
        let op = collective.reduces().then_some(ReduceOp::Sum);
        let request = Request::new(collective, u32::DTYPE, input, output).algorithm(algorithm);
        op.map_or_else(|| request.clone(), |op| request.clone().reduce_op(op))
    };
    use ringway_kernels::Element as _;

    let mut output = vec![0; expected.len()];
    comm.run(request(shared(&input), exclusive(&mut output)))
        .unwrap();
    assert_eq!(
        output, expected,
        "{collective} by {algorithm}, out of place, rank {me} of {n}"
    );
    assert!(
        input
            .iter()
            .zip(ins.clone())
            .all(|(&x, i)| x == brought(me, i)),
        "input was written"
    );

    if collective != Collective::AllToAll {
        let mut both = vec![0; ins.end.max(outs.end)];
        both[ins.clone()].copy_from_slice(&input);
        let memory = exclusive(&mut both);
        let at = |r: &std::ops::Range<usize>| memory.slice(r.start * 4..r.end * 4);
        comm.run(request(at(&ins), at(&outs))).unwrap();
        assert_eq!(
            both[outs], expected,
            "{collective} by {algorithm}, in place, rank {me} of {n}"
        );
    }
}

fn every_collective_by_every_algorithm(over: Over) {
    for ranks in [1, 2, 3, 4, 5, 7, 8, 9] {
        world_over(over, ranks, &[], |comm| {
            for collective in Collective::all(ranks / 2) {
                if collective == Collective::Barrier {
                    continue;
                }
                for algorithm in Algorithm::ALL
                    .into_iter()
                    .filter(|a| a.supports(collective))
                {
                    for part in [1, 3, 64, 3001] {
                        check(&comm, collective, algorithm, part);
                    }
                }
            }
        });
    }
}

fn asynchronous_operations_overlap_and_give_their_buffers_back(over: Over) {
    let ranks = 3;
    let results = world_over(over, ranks, &[], |comm| {
        let me = comm.rank();
        let pending: Vec<_> = (0..20)
            .map(|k| {
                let call = AllReduce::new(vector(me, 100 * k + 1)).priority((k % 4) as u8);
                comm.start(call).unwrap()
            })
            .collect();
        // A blocking call overtakes them.
        comm.barrier().unwrap();
        let mut borrowed = vector(me, 5000);
        comm.scope(|scope| scope.start(AllReduce::new(&mut borrowed)).map(drop))
            .unwrap();
        let owned: Vec<Vec<u32>> = pending.into_iter().map(|p| p.wait().unwrap()).collect();
        (owned, borrowed)
    });
    for (owned, borrowed) in results {
        for buffer in owned.iter().chain([&borrowed]) {
            assert!(
                buffer
                    .iter()
                    .enumerate()
                    .all(|(i, &x)| x == summed(ranks, i))
            );
        }
    }
}

/// Far more than can have begun at a time, of tiny, small and larger ones, in several orders.
fn hundreds_of_operations_end_in_whatever_order_they_are_waited_for(over: Over) {
    let (ranks, count) = (4, 300);
    world_over(over, ranks, &[], |comm| {
        let me = comm.rank();
        let mut pending: Vec<_> = (0..count)
            .map(|k| {
                let call = AllReduce::new(vector(me, k * 7919 % 3000 + 1)).priority((k % 3) as u8);
                Some(comm.start(call).unwrap())
            })
            .collect();
        // Steps that have no factor in common with the count: each rank waits in an order of its own.
        for at in (0..count).map(|k| (k * [1, 7, 299, 101][me] + me) % count) {
            let sum = pending[at].take().unwrap().wait().unwrap();
            let is_right = |(i, &x): (usize, &u32)| x == summed(ranks, i);
            assert!(sum.iter().enumerate().all(is_right), "operation {at}");
        }
    });
}

fn asynchronous_work_ends_without_anybody_waiting(over: Over) {
    let ended = world_over(over, 2, &[], |comm| {
        let pending = comm
            .start(AllReduce::new(vector(comm.rank(), 9000)))
            .unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while !pending.is_done() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        pending.is_done()
    });
    assert_eq!(ended, [true, true]);
}

fn groups_of_a_split_work_side_by_side(over: Over) {
    world_over(over, 5, &[], |comm| {
        let me = comm.rank();
        let color = if me == 4 { None } else { Some((me % 2) as u32) };
        let group = comm.split(color, -(me as i64)).unwrap();
        let Some(group) = group else {
            return assert_eq!(me, 4);
        };
        // Higher ranks have lower keys.
        assert_eq!(group.members(), if me % 2 == 0 { [2, 0] } else { [3, 1] });
        let mut x = [me as u32];
        group.all_reduce(&mut x, ReduceOp::Sum).unwrap();
        assert_eq!(x[0], if me % 2 == 0 { 2 } else { 4 });
    });
}

fn groups_meet_at_a_store_of_their_own(over: Over) {
    let stores: [Arc<dyn Store>; 2] = [Arc::new(Shelf::default()), Arc::new(Shelf::default())];
    world_over(over, 4, &[], |comm| {
        let me = comm.rank();
        // Twice the same members, in an order of their own; rank 3 takes no part.
        for (round, store) in stores.iter().enumerate().filter(|_| me != 3) {
            let group = comm.group_from(&**store, (me + 1) % 3, 3).unwrap();
            assert_eq!(group.members(), [2, 0, 1]);
            let mut x = [me as u32 + round as u32];
            group.all_reduce(&mut x, ReduceOp::Sum).unwrap();
            assert_eq!(x[0], 3 + 3 * round as u32);
        }
        comm.barrier().unwrap();
    });
}

fn a_member_that_does_not_come_is_named(over: Over) {
    let store: Arc<dyn Store> = Arc::new(Shelf::default());
    world_over(over, 3, &[("connect_timeout", "1s")], |comm| {
        if comm.rank() < 2 {
            let error = comm
                .group_from(&*store, comm.rank(), 3)
                .unwrap_err()
                .to_string();
            assert!(error.contains("rank 2 of 3 has not joined"), "{error}");
        }
        comm.barrier().unwrap();
    });
}

fn a_wait_can_be_given_up_and_taken_up_again(over: Over) {
    world_over(over, 2, &[], |comm| {
        let me = comm.rank();
        let late = || std::thread::sleep(Duration::from_millis(if me == 0 { 0 } else { 300 }));
        let mut x = vector(me, 5000);
        let memory = exclusive(&mut x);
        let request = Request::new(Collective::AllReduce, crate::DataType::U32, memory, memory)
            .reduce_op(ReduceOp::Sum);
        late();
        let began = Instant::now();
        let soon = || began.elapsed() > Duration::from_millis(50);
        match comm.run_until(request, &soon).unwrap() {
            Some(work) => {
                assert_eq!(me, 0, "the later one has nobody to wait for");
                assert!(began.elapsed() < Duration::from_millis(250));
                // A signal is told once.
                let told = Cell::new(false);
                let once = || !told.replace(true);
                assert!(work.wait_until(&once).is_none_or(|result| result.is_ok()));
                assert!(began.elapsed() < Duration::from_millis(250));
                work.wait().unwrap();
            }
            None => assert_eq!(me, 1),
        }
        assert!(x.iter().enumerate().all(|(i, &x)| x == summed(2, i)));
        // Whether a rank waited or not makes no difference to what comes after.
        let mut got = vec![0; 2];
        comm.all_to_all_v(&[me as u32, 7], &[1, 1], &mut got, &[1, 1])
            .unwrap();
        assert_eq!(got, if me == 0 { [0, 1] } else { [7, 7] });
    });
}

fn nothing_is_left_of_an_operation_that_has_ended(over: Over) {
    world_over(over, 2, &[], |comm| {
        let mut x = vector(comm.rank(), 5000);
        let memory = exclusive(&mut x);
        let request = Request::new(Collective::AllReduce, crate::DataType::U32, memory, memory)
            .reduce_op(ReduceOp::Sum)
            .timeout(Duration::MAX);
        let work = comm.submit(request).unwrap();
        let task = Arc::downgrade(&work.task);
        assert!(work.wait_for(Duration::MAX).unwrap().is_ok());
        drop(work);
        // The engine thread may have it in hand for another moment.
        let end = Instant::now() + Duration::from_secs(10);
        while task.strong_count() > 0 {
            assert!(Instant::now() < end, "{} hold it", task.strong_count());
            std::thread::yield_now();
        }
    });
}

/// The engine thread sleeps for an operation that a waiter takes over, and then another is started that nobody waits for.
fn what_starts_while_the_engine_sleeps_is_driven(over: Over) {
    world_over(over, 2, &[], |comm| {
        let began = Instant::now();
        for _ in 0..20 {
            let mut x = vector(comm.rank(), 10_000);
            let memory = exclusive(&mut x);
            let dtype = crate::DataType::U32;
            let request =
                Request::new(Collective::AllReduce, dtype, memory, memory).reduce_op(ReduceOp::Sum);
            if comm.rank() == 1 {
                std::thread::sleep(Duration::from_millis(3));
            }
            comm.submit(request.clone()).unwrap().wait().unwrap();
            let work = comm.submit(request).unwrap();
            while !work.is_done() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        // It looks by itself every 100 ms: 2 s in all, if nothing wakes it.
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
    });
}

fn nobody_waits_for_a_rank_that_leaves(over: Over) {
    world_over(over, 2, &[], |comm| {
        if comm.rank() == 1 {
            return comm.leave();
        }
        let error = comm.barrier().unwrap_err().to_string();
        assert!(
            error.contains("rank 1") && error.contains("left"),
            "{error}"
        );
    });
}

fn messages_between_two_match_by_tag(over: Over) {
    world_over(over, 3, &[], |comm| {
        let (me, n) = (comm.rank(), comm.size());
        let (next, before) = ((me + 1) % n, (me + n - 1) % n);
        let (small, large) = (vector(me, 7), vector(me, 40_000));
        let (mut a, mut b) = (vec![0_u32; 7], vec![0_u32; 40_000]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                comm.send(&large, next, 1).unwrap();
                comm.send(&small, next, 2).unwrap();
            });
            // The other way round.
            let late = scope.spawn(|| comm.recv(&mut a, before, 2).unwrap());
            comm.recv(&mut b, before, 1).unwrap();
            late.join().unwrap();
        });
        assert_eq!(a, vector(before, 7));
        assert_eq!(b, vector(before, 40_000));
        assert!(matches!(comm.send(&small, me, 0), Err(Error::Argument(_))));
    });
}

fn parts_of_different_length(over: Over) {
    world_over(over, 4, &[], |comm| {
        let (me, n) = (comm.rank(), comm.size());
        let counts: Vec<usize> = (0..n).map(|r| r * 3 % 7).collect();
        let total: usize = counts.iter().sum();
        let mut gathered = vec![0; total];
        comm.all_gather_v(&vector(me, counts[me]), &mut gathered, &counts)
            .unwrap();
        let expected: Vec<u32> = (0..n).flat_map(|r| vector(r, counts[r])).collect();
        assert_eq!(gathered, expected);
        let mut part = vec![0; counts[me]];
        comm.reduce_scatter_v(&vector(me, total), &mut part, &counts, ReduceOp::Sum)
            .unwrap();
        let start: usize = counts[..me].iter().sum();
        assert!(
            part.iter()
                .enumerate()
                .all(|(i, &x)| x == summed(n, start + i))
        );
        // Rank r sends r + p elements to rank p.
        let send: Vec<usize> = (0..n).map(|p| me + p).collect();
        let mut got = vec![0; send.iter().sum()];
        comm.all_to_all_v(&vec![me as u32; got.len()], &send, &mut got, &send)
            .unwrap();
        let expected: Vec<u32> = (0..n).flat_map(|r| vec![r as u32; me + r]).collect();
        assert_eq!(got, expected);
        for root in 0..n {
            let mut all = vec![0; if me == root { total } else { 0 }];
            comm.gather_v(&vector(me, counts[me]), &mut all, &counts, root)
                .unwrap();
            let mut mine = vec![0; counts[me]];
            comm.scatter_v(&all, &mut mine, &counts, root).unwrap();
            assert_eq!(mine, vector(me, counts[me]));
        }
    });
}

fn averages_divide_once(over: Over) {
    world_over(over, 4, &[], |comm| {
        for algorithm in Algorithm::ALL
            .into_iter()
            .filter(|a| a.supports(Collective::AllReduce))
        {
            let mut x = vec![comm.rank() as f32 + 0.5; 1000];
            let memory = exclusive(&mut x);
            let request = Request::new(Collective::AllReduce, crate::DataType::F32, memory, memory);
            comm.run(request.reduce_op(ReduceOp::Average).algorithm(algorithm))
                .unwrap();
            assert!(x.iter().all(|&v| v == 2.0), "{algorithm}: {}", x[0]);
        }
    });
}

fn different_calls_are_an_error_that_says_both_sides(over: Over) {
    let errors = world_over(over, 2, &[("timeout", "20s")], |comm| {
        let mut x = vec![0_f32; 10 + comm.rank()];
        comm.all_reduce(&mut x, ReduceOp::Sum)
            .unwrap_err()
            .to_string()
    });
    for (me, error) in errors.iter().enumerate() {
        assert!(
            error.contains("of 10 f32") && error.contains("of 11 f32"),
            "rank {me}: {error}"
        );
    }
}

fn a_v_form_against_a_plain_call_is_an_error_of_both(over: Over) {
    let errors = world_over(over, 3, &[("timeout", "20s")], |comm| {
        let (mine, mut all) = ([1_f32; 4], [0_f32; 12]);
        // What goes well before must not get in its way.
        for _ in 0..40 {
            comm.all_gather_v(&mine, &mut all, &[4, 4, 4]).unwrap();
            comm.all_gather(&mine, &mut all).unwrap();
        }
        let result = match comm.rank() {
            1 => comm.all_gather_v(&mine, &mut all, &[4, 4, 4]),
            _ => comm.all_gather(&mine, &mut all),
        };
        result.unwrap_err().to_string()
    });
    for (me, error) in errors.iter().enumerate() {
        assert!(
            error.contains("all_gather (v form) of f32") && error.contains("of 12 f32"),
            "rank {me}: {error}"
        );
    }
}

fn ranks_that_wait_for_each_other_in_different_calls_are_told(over: Over) {
    let errors = world_over(over, 3, &[("timeout", "20s")], |comm| {
        // Everybody waits for another root: nobody sends.
        let mut x = [0_u8; 4];
        let root = (comm.rank() + 1) % 3;
        comm.broadcast(&mut x, root).unwrap_err().to_string()
    });
    for (me, error) in errors.iter().enumerate() {
        assert!(
            error.contains("calls broadcast of 4 u8 elements, root")
                && error.contains("where rank"),
            "rank {me}: {error}"
        );
    }
}

fn a_rank_that_does_not_call_is_a_timeout_that_names_it(over: Over) {
    let errors = world_over(over, 3, &[("timeout", "300ms")], |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_secs(1));
            return None;
        }
        let began = Instant::now();
        let error = comm.barrier().unwrap_err().to_string();
        assert!(began.elapsed() < Duration::from_secs(2));
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        for part in [
            "rank 1",
            "did not end barrier",
            "(operation 1) within",
            "was last heard in",
            // The name of the setting's source.
            "raise timeout",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
}

fn a_limit_of_the_call_is_not_blamed_on_the_settings(over: Over) {
    let errors = world_over(over, 2, &[], |comm| {
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(500));
            return None;
        }
        let request = Request::new(
            Collective::Barrier,
            crate::DataType::U8,
            Memory::EMPTY,
            Memory::EMPTY,
        );
        let error = comm.run(request.timeout(Duration::from_millis(200)));
        Some(error.unwrap_err().to_string())
    });
    let error = errors[0].as_ref().unwrap();
    assert!(error.contains("timeout that the call was given"), "{error}");
    assert!(!error.contains("RINGWAY_TIMEOUT"), "{error}");
}

fn a_recv_of_another_size_says_what_is_sent_and_by_whom(over: Over) {
    for (sent, wanted) in [(8, 4), (4, 8), (1 << 20, 4)] {
        let errors = world_over(over, 3, &[("timeout", "20s")], |comm| {
            let mut x = vec![0_f32; if comm.rank() == 2 { sent } else { wanted }];
            match comm.rank() {
                // What is small is gone before anybody objects.
                2 => comm.send(&x, 1, 7).and_then(|()| comm.barrier()),
                1 => comm.recv(&mut x, 2, 7),
                _ => comm.barrier(),
            }
            .unwrap_err()
            .to_string()
        });
        // Whichever of the two has noticed first.
        let texts = [
            format!("calls send of {sent} f32 elements to rank 1"),
            format!("calls recv of {wanted} f32 elements from rank 2"),
            "memory for just what is sent".to_owned(),
        ];
        for error in errors {
            assert!(texts.iter().all(|text| error.contains(text)), "{error}");
        }
    }
}

fn wrong_arguments_leave_the_communicator_usable(over: Over) {
    world_over(over, 2, &[], |comm| {
        let mut out = vec![0_u32; 5];
        let error = comm.all_gather(&[1_u32, 2], &mut out).unwrap_err();
        assert!(matches!(error, Error::Argument(_)), "{error}");
        let error = comm.all_reduce(&mut [1.0_f32], ReduceOp::Xor).unwrap_err();
        assert!(error.to_string().contains("integers"), "{error}");
        comm.barrier().unwrap();
    });
}

over_both!(
    a_v_form_against_a_plain_call_is_an_error_of_both,
    ranks_that_wait_for_each_other_in_different_calls_are_told,
    a_member_that_does_not_come_is_named,
    a_limit_of_the_call_is_not_blamed_on_the_settings,
    a_rank_that_does_not_call_is_a_timeout_that_names_it,
    a_recv_of_another_size_says_what_is_sent_and_by_whom,
    a_wait_can_be_given_up_and_taken_up_again,
    nothing_is_left_of_an_operation_that_has_ended,
    what_starts_while_the_engine_sleeps_is_driven,
    asynchronous_operations_overlap_and_give_their_buffers_back,
    asynchronous_work_ends_without_anybody_waiting,
    hundreds_of_operations_end_in_whatever_order_they_are_waited_for,
    averages_divide_once,
    different_calls_are_an_error_that_says_both_sides,
    every_collective_by_every_algorithm,
    groups_meet_at_a_store_of_their_own,
    groups_of_a_split_work_side_by_side,
    messages_between_two_match_by_tag,
    nobody_waits_for_a_rank_that_leaves,
    parts_of_different_length,
    wrong_arguments_leave_the_communicator_usable,
);

/// A fabric of `hosts` hosts on two leaves, in a file that goes with the test.
struct FabricFile(std::path::PathBuf);

impl FabricFile {
    fn new(name: &str, hosts: usize, uplink: &str) -> Self {
        let shape = ringway_fabric::Shape::LeafSpine {
            hosts,
            leaves: 2,
            spines: 1,
            gpus: 1,
        };
        let whole = shape.file().unwrap();
        let spine = "join: full, rate: 400Gbit/s";
        assert!(whole.contains(spine), "{whole}");
        let text = whole.replace(spine, &format!("join: full, rate: {uplink}"));
        let name = format!("ringway-{}-{name}.yaml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for FabricFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Hosts 0 to 3 are on one leaf, 4 to 7 on the other; the launcher has dealt them out in turns.
fn dealt(domain: &str) -> Vec<String> {
    let host = |rank: usize| 4 * (rank % 2) + rank / 2;
    (0..8)
        .map(|rank| format!("host{}{domain}", host(rank)))
        .collect()
}

#[test]
fn ranks_of_a_leaf_are_neighbours() {
    let file = FabricFile::new("order", 8, "400Gbit/s");
    let settings = [("fabric", file.path())];
    let orders = world_at(
        &dealt(".cluster.local"),
        Over::Messages,
        8,
        &settings,
        |comm| {
            for collective in [Collective::AllReduce, Collective::AllGather] {
                for algorithm in Algorithm::ALL {
                    if algorithm.supports(collective) {
                        check(&comm, collective, algorithm, 13);
                    }
                }
            }
            let members: Vec<usize> = (0..8).collect();
            let policy = comm.engine().policy();
            comm.engine().topology(&members, &policy).hosts().concat()
        },
    );
    for order in &orders {
        assert_eq!(order, &orders[0], "the ranks agree");
        let leaf = |rank: &usize| rank % 2;
        let changes = order.windows(2).filter(|w| leaf(&w[0]) != leaf(&w[1]));
        assert_eq!(changes.count(), 1, "{order:?}");
    }
}

/// Where leaves share a slow link, what crosses it least often is the quickest.
#[test]
fn algorithms_are_chosen_by_shared_links() {
    let choice = |uplink: &str| {
        let file = FabricFile::new(&format!("choice-{}", &uplink[..3]), 8, uplink);
        let settings = [("fabric", file.path())];
        let chosen = world_at(&dealt(""), Over::Messages, 8, &settings, |comm| {
            comm.algorithm(Collective::AllReduce, 64 << 20)
        });
        assert!(chosen.iter().all(|&algorithm| algorithm == chosen[0]));
        chosen[0]
    };
    let (wide, narrow) = (choice("400Gbit/s"), choice("10Gbit/s"));
    assert_eq!(narrow, Algorithm::Hierarchical);
    assert_ne!(wide, narrow);
}

#[test]
fn a_fabric_that_does_not_fit_is_not_used() {
    let file = FabricFile::new("foreign", 4, "400Gbit/s");
    for hosts in [
        dealt(""),
        (0..8).map(|rank| format!("node{rank}")).collect(),
    ] {
        let settings = [("fabric", file.path())];
        let sums = world_at(&hosts, Over::Messages, 8, &settings, |comm| {
            let mut value = [comm.rank() as u64];
            comm.all_reduce(&mut value, ReduceOp::Sum).unwrap();
            value[0]
        });
        assert_eq!(sums, [28; 8]);
    }
}
