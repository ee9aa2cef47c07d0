//! The middleware, on loopback endpoints that run verified schedules with real bytes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics has failed, as it should"
)]

use std::time::{Duration, Instant};

use ringway_link::{
    Event, Fault, LinkError, Loopback, LoopbackOptions, MessageKey, Sink, Trace, TraceLog,
    Transport,
};
use ringway_plan::{
    Action, ActionId, Algorithm, Collective, DataType, Executor, Layout, Memory as Mode, Order,
    Place, Rank, ReduceOp, Space, Topology, generate, verify,
};
use ringway_sys::{Epoll, Interest, Memory, Segment};

const ELEMENTS: usize = 3000;

/// A rank that runs an all_reduce of u32 on some transport.
struct Node {
    transport: Box<dyn Transport>,
    executor: Executor,
    spaces: [Segment; 3],
    /// Messages shown: from whom, which, where.
    views: Vec<(Rank, Option<MessageKey>, Memory)>,
    op: u32,
    lost: Option<(Rank, LinkError)>,
}

impl Node {
    fn new(transport: Box<dyn Transport>, rank: Rank, ranks: usize, algorithm: Algorithm) -> Self {
        let schedule = generate(
            Collective::AllReduce,
            algorithm,
            &Topology::single_host(ranks),
        )
        .unwrap_or_else(|e| panic!("{e}"));
        let schedule = verify(schedule).unwrap_or_else(|e| panic!("{e}"));
        let program = &schedule.programs[rank];
        let chunks = schedule.chunks;
        let layout = Layout::even(
            Collective::AllReduce,
            program,
            ranks,
            chunks,
            rank,
            ELEMENTS,
            4,
        );
        let executor = Executor::new(&schedule, rank, &layout, 512, Mode::Apart);
        let segment = |bytes: usize| {
            Segment::create("fault-test", bytes.max(1)).unwrap_or_else(|e| panic!("{e}"))
        };
        let spaces = [4 * ELEMENTS, 4 * ELEMENTS, executor.scratch_bytes()].map(segment);
        for i in 0..ELEMENTS {
            let value = (1_000_003 * rank + 17 * i) as u32;
            spaces[0]
                .memory()
                .slice(4 * i..4 * i + 4)
                .write(&value.to_le_bytes());
        }
        let views = vec![(0, None, Memory::EMPTY); executor.views()];
        Self {
            transport,
            executor,
            spaces,
            views,
            op: 0,
            lost: None,
        }
    }

    fn memory(&self, place: Place) -> Memory {
        let space = match place.space {
            Space::Input => 0,
            Space::Output => 1,
            Space::Scratch => 2,
        };
        self.spaces[space].memory().slice(place.range())
    }

    fn key(&self, lane: u16, message: u32, slice: u32) -> MessageKey {
        MessageKey {
            group: 0,
            op: self.op,
            lane,
            message,
            slice,
        }
    }

    fn act(&mut self, action: Action) -> Result<Option<ActionId>, LinkError> {
        match action {
            Action::Send {
                peer,
                lane,
                message,
                slice,
                src,
                ..
            } => {
                let (key, src) = (self.key(lane, message, slice), self.memory(src));
                self.transport.send(peer, key, src, 0)?;
                Ok(None)
            }
            Action::Recv {
                peer,
                lane,
                message,
                slice,
                dst,
                ..
            } => {
                let (key, dst) = (self.key(lane, message, slice), self.memory(dst));
                self.transport.recv(peer, key, Sink::Place(dst))?;
                Ok(None)
            }
            Action::View {
                peer,
                lane,
                message,
                slice,
                len,
                ..
            } => {
                self.transport
                    .recv(peer, self.key(lane, message, slice), Sink::View(len))?;
                Ok(None)
            }
            Action::Combine {
                id,
                view,
                own,
                dst,
                order,
                ..
            } => {
                let (own, dst) = (self.memory(own), self.memory(dst));
                let (peer, key, view) = self.views[view];
                let (a, b) = match order {
                    Order::LocalFirst => (own, view),
                    Order::RemoteFirst => (view, own),
                };
                Memory::reduce(DataType::U32, ReduceOp::Sum, dst, a, b);
                key.into_iter()
                    .for_each(|key| self.transport.release(peer, key));
                Ok(Some(id))
            }
            Action::Copy { id, src, dst } => {
                self.memory(dst).copy_from(self.memory(src));
                Ok(Some(id))
            }
            Action::Reduce { id, a, b, dst, .. } => {
                let (a, b, dst) = (self.memory(a), self.memory(b), self.memory(dst));
                Memory::reduce(DataType::U32, ReduceOp::Sum, dst, a, b);
                Ok(Some(id))
            }
        }
    }

    /// Starts what may start, and hears what has happened. Returns whether anything has.
    fn drive(&mut self) -> bool {
        let mut moved = false;
        while let Some(action) = self.executor.poll() {
            moved = true;
            match self.act(action) {
                Ok(Some(id)) => self.executor.handle_done(id),
                Ok(None) => {}
                Err(error) => self.lost = Some((error.peer(), error)),
            }
        }
        let mut events = Vec::new();
        moved |= self.transport.poll(Instant::now(), &mut events);
        for event in events {
            match event {
                Event::Sent { peer, key } if key.op == self.op => {
                    let id = self
                        .executor
                        .sending(peer, key.lane, key.message, key.slice);
                    self.executor
                        .handle_done(id.unwrap_or_else(|| panic!("no send {key}")));
                }
                Event::Received { peer, key, view } if key.op == self.op => {
                    let id = self
                        .executor
                        .receiving(peer, key.lane, key.message, key.slice);
                    let id = id.unwrap_or_else(|| panic!("no receive {key}"));
                    if let Some(number) = self.executor.view(id) {
                        self.views[number] = (peer, Some(key), view);
                    }
                    self.executor.handle_done(id);
                }
                Event::Lost { peer, error } => self.lost = Some((peer, error)),
                other => panic!("{other:?}"),
            }
        }
        moved
    }

    fn check(&self, ranks: usize) {
        for i in 0..ELEMENTS {
            let mut got = [0; 4];
            self.spaces[1]
                .memory()
                .slice(4 * i..4 * i + 4)
                .read(&mut got);
            let value = |rank: usize| (1_000_003 * rank + 17 * i) as u32;
            let want = (0..ranks).map(value).fold(0, u32::wrapping_add);
            assert_eq!(u32::from_le_bytes(got), want, "element {i}");
        }
    }
}

fn faulty(inner: Loopback, rank: Rank, plan: &str) -> Box<dyn Transport> {
    let plan = plan.parse().unwrap_or_else(|e| panic!("{e}"));
    Box::new(Fault::new(Box::new(inner), &plan, rank).unwrap_or_else(|e| panic!("{e}")))
}

fn nodes(ranks: usize, algorithm: Algorithm, plan: &str) -> Vec<Node> {
    let world = Loopback::world(
        ranks,
        LoopbackOptions {
            buffer_bytes: 1024,
            slice_bytes: 512,
        },
    );
    let world = world
        .unwrap_or_else(|e| panic!("{e}"))
        .into_iter()
        .enumerate();
    world
        .map(|(rank, inner)| Node::new(faulty(inner, rank, plan), rank, ranks, algorithm))
        .collect()
}

/// Drives all nodes until all are done or lost, or until nothing has moved for `patience`.
fn run(nodes: &mut [Node], patience: Duration) {
    let mut last = Instant::now();
    while nodes
        .iter()
        .any(|n| !n.executor.is_done() && n.lost.is_none())
    {
        let mut moved = false;
        for node in nodes.iter_mut() {
            moved |= node.drive();
        }
        if moved {
            last = Instant::now();
        } else if last.elapsed() > patience {
            return;
        }
    }
}

#[test]
fn results_are_exact_whatever_order_messages_come_in() {
    for (algorithm, plan) in [
        (Algorithm::Ring, ""),
        (Algorithm::Ring, "delay=300us,p=0.2;seed=3"),
        (Algorithm::Direct, "reorder=8;seed=5"),
        (Algorithm::Tree, "split=1;delay=100us,p=0.5,peer=1"),
        (
            Algorithm::RecursiveDoubling,
            "reorder=4;split=2;delay=200us,p=0.1;seed=1",
        ),
    ] {
        let mut nodes = nodes(4, algorithm, plan);
        for op in 0..2 {
            run(&mut nodes, Duration::from_secs(5));
            for node in &mut nodes {
                assert!(
                    node.executor.is_done(),
                    "{plan}: {:?}",
                    node.executor.pending()
                );
                node.check(4);
                node.transport.cancel(0, op);
                node.executor.reset();
                node.op = op + 1;
            }
        }
    }
}

#[test]
fn delays_take_time_and_are_the_same_in_each_run() {
    let time = |plan: &str| {
        let mut nodes = nodes(2, Algorithm::Ring, plan);
        let start = Instant::now();
        run(&mut nodes, Duration::from_secs(5));
        nodes.iter().for_each(|node| node.check(2));
        start.elapsed()
    };
    assert!(
        time("delay=20ms") >= Duration::from_millis(80),
        "two rounds, both sides"
    );
    assert!(
        time("delay=20ms,rank=1,peer=3") < Duration::from_millis(80),
        "no such peer"
    );
}

#[test]
fn a_cut_is_told_with_its_operation() {
    let mut nodes = nodes(3, Algorithm::Ring, "cut=peer1@op1,rank=0");
    run(&mut nodes, Duration::from_secs(5));
    for node in &mut nodes {
        assert!(
            node.executor.is_done() && node.lost.is_none(),
            "operation 0 is whole"
        );
        node.check(3);
        node.transport.cancel(0, 0);
        node.executor.reset();
        node.op = 1;
    }
    run(&mut nodes, Duration::from_millis(50));
    let (peer, error) = nodes[0].lost.as_ref().expect("rank 0 has lost rank 1");
    assert_eq!(*peer, 1);
    assert!(
        error
            .to_string()
            .contains("cut by the fault plan at operation 1"),
        "{error}"
    );
    let key = nodes[0].key(0, 0, 0);
    assert!(nodes[0].transport.recv(1, key, Sink::View(1)).is_err());
    assert!(nodes[0].transport.recv(2, key, Sink::View(1)).is_ok());
    // Nobody told the others.
    assert!(nodes[1].lost.is_none() && !nodes[1].executor.is_done());
}

#[test]
fn a_stall_is_silent() {
    let mut nodes = nodes(2, Algorithm::Ring, "stall=peer1@step9,rank=0");
    run(&mut nodes, Duration::from_millis(50));
    for node in &nodes {
        assert!(!node.executor.is_done() && node.lost.is_none());
    }
    let pending = nodes[0].executor.pending();
    assert!(
        pending.iter().all(|p| p.peer == 1) && !pending.is_empty(),
        "{pending:?}"
    );
}

#[test]
fn a_truncated_message_is_found_by_its_receiver() {
    let mut nodes = nodes(2, Algorithm::Ring, "truncate=peer1@op0.step2,rank=0");
    run(&mut nodes, Duration::from_millis(50));
    let (peer, error) = nodes[1]
        .lost
        .as_ref()
        .expect("rank 1 was sent half a message");
    assert_eq!(*peer, 0);
    assert!(
        error
            .to_string()
            .contains("256 bytes where 512 were expected"),
        "{error}"
    );
}

/// A delayed event wakes a sleeper at its time.
#[test]
fn sleep_ends_when_a_delayed_message_is_due() {
    let mut world = Loopback::world(2, LoopbackOptions::default()).unwrap();
    let mut receiver = faulty(world.pop().unwrap(), 1, "delay=30ms");
    let mut sender = world.pop().unwrap();
    let key = MessageKey {
        group: 0,
        op: 0,
        lane: 0,
        message: 0,
        slice: 0,
    };
    receiver.recv(0, key, Sink::View(0)).unwrap();
    sender.send(1, key, Memory::EMPTY, 0).unwrap();
    let epoll = Epoll::new().unwrap();
    epoll.add(receiver.fd(), 7, Interest::Read).unwrap();
    let mut events = Vec::new();
    let start = Instant::now();
    while events.is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "the message is 30 ms late, not lost"
        );
        receiver.poll(Instant::now(), &mut events);
        if events.is_empty() && receiver.arm() {
            epoll
                .wait(&mut Vec::new(), Some(Duration::from_secs(5)))
                .unwrap();
        }
        receiver.disarm();
    }
    let waited = start.elapsed();
    assert!((25..1000).contains(&waited.as_millis()), "{waited:?}");
}

#[test]
fn a_trace_shows_every_message_as_a_span() {
    let world = Loopback::world(2, LoopbackOptions::default()).unwrap();
    let mut logs = Vec::new();
    let mut nodes = Vec::new();
    for (rank, inner) in world.into_iter().enumerate() {
        let (mut trace, log) = Trace::new(Box::new(inner), rank, 10_000);
        trace.begin(0, 0, 0xfeed);
        logs.push(log);
        nodes.push(Node::new(Box::new(trace), rank, 2, Algorithm::Ring));
    }
    run(&mut nodes, Duration::from_secs(5));
    nodes
        .iter_mut()
        .for_each(|node| node.transport.cancel(0, 0));
    drop(nodes.remove(0));
    nodes[0].drive();
    let mut text = Vec::new();
    TraceLog::write_chrome(&logs, &mut text).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let count = |phase: &str, category: &str| {
        events
            .iter()
            .filter(|e| e["ph"] == phase && e["cat"] == category)
            .count()
    };
    // 3000 elements of 4 bytes in 2 chunks of 6000: 12 slices of 512 bytes, 2 rounds, 2 ranks.
    assert_eq!(count("b", "send"), 48);
    assert_eq!(count("e", "send"), 48);
    assert_eq!(count("b", "receive"), 48);
    assert_eq!(count("e", "receive"), 48);
    assert_eq!((count("b", "view"), count("e", "view")), (24, 24));
    let times: Vec<f64> = events.iter().filter_map(|e| e["ts"].as_f64()).collect();
    assert!(
        times.len() + 2 == events.len(),
        "all but the names of the ranks have a time"
    );
    assert!(
        events
            .iter()
            .any(|e| e["name"] == "lost" && e["args"]["error"].is_string())
    );
    assert!(
        events
            .iter()
            .any(|e| e["args"]["fingerprint"] == "0000feed")
    );
    assert_eq!(logs[0].dropped(), 0);
}

#[test]
fn a_full_trace_counts_what_it_drops() {
    let mut world = Loopback::world(2, LoopbackOptions::default()).unwrap();
    let (mut trace, log) = Trace::new(Box::new(world.remove(0)), 0, 2);
    for op in 0..5 {
        trace.cancel(0, op);
    }
    assert_eq!((log.len(), log.dropped()), (2, 3));
}
