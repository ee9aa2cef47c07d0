//! The device over libibverbs: on a stand-in for the library here, on Linux's soft RoCE in the virtual machine of
//! `cargo xtask test vm`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::time::{Duration, Instant};

use ringway_fake_verbs::{OPEN_DEVICE, Refusable};
use ringway_link::rdma::{
    Access, Completion, Device, DeviceError, DeviceEvent, Done, Failure, PostError, QueuePair,
    QueuePairOptions, ReceiveRequest, Region, SendRequest, Source, Status, Verbs, Work,
};
use ringway_sys::{Epoll, Interest, Staging};
use ringway_verbs::{Library, ffi, gid::Wish};

const SIZE: u64 = 1 << 18;
const LONG: Duration = Duration::from_secs(20);

struct End {
    device: Box<dyn Device>,
    pair: QueuePair,
    region: Region,
    buffer: Staging,
}

impl End {
    fn new(device: Verbs) -> Self {
        let mut device: Box<dyn Device> = Box::new(device);
        let buffer = Staging::new(SIZE as usize);
        let region = device.register(buffer.memory(), Access::ALL).unwrap();
        let pair = device.create(&options()).unwrap();
        Self {
            device,
            pair,
            region,
            buffer,
        }
    }

    fn send(&mut self, id: u64, work: Work<'_>) -> Result<(), DeviceError> {
        let request = SendRequest {
            id,
            work,
            signaled: true,
            solicited: false,
        };
        self.device.post_send(self.pair, &request)
    }

    fn receive(&mut self, id: u64, range: std::ops::Range<u64>) -> Result<(), DeviceError> {
        let into = self.region.local(range);
        self.device
            .post_receive(self.pair, ReceiveRequest { id, into })
    }

    /// The next completion, slept for.
    fn next(&mut self) -> Completion {
        let deadline = Instant::now() + LONG;
        let mut ended = Vec::new();
        loop {
            self.device.poll(Instant::now(), &mut ended).unwrap();
            if let Some(&first) = ended.first() {
                assert_eq!(ended.len(), 1, "{ended:?}");
                return first;
            }
            if self.device.arm() {
                let left = deadline.saturating_duration_since(Instant::now());
                assert!(!left.is_zero(), "no completion came");
                let set = Epoll::new().unwrap();
                set.add(self.device.fd(), 0, Interest::Read).unwrap();
                set.wait(&mut Vec::new(), Some(left)).unwrap();
            }
            self.device.disarm();
        }
    }

    fn done(&mut self, id: u64, what: Done) {
        let ended = self.next();
        assert_eq!((ended.queue_pair, ended.id), (self.pair, id));
        assert_eq!(ended.result, Ok(what));
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.memory().slice(at..at + len).read(&mut bytes);
        bytes
    }
}

fn options() -> QueuePairOptions {
    QueuePairOptions {
        send_depth: 16,
        receive_depth: 16,
        retries: 3,
        ..QueuePairOptions::default()
    }
}

fn connect(a: &mut End, b: &mut End) {
    let (at_a, at_b) = (
        a.device.address(a.pair).unwrap(),
        b.device.address(b.pair).unwrap(),
    );
    a.device.connect(a.pair, &at_b).unwrap();
    b.device.connect(b.pair, &at_a).unwrap();
}

/// A device of the stand-in.
fn stand_in() -> Verbs {
    let file = std::env::current_exe()
        .unwrap()
        .with_file_name("libringway_fake_verbs.so");
    let library = Library::open(&file, &file).unwrap();
    Verbs::open(&library, OPEN_DEVICE, 1, Wish::default()).unwrap()
}

/// Two devices of the stand-in.
fn stand_ins() -> (End, End) {
    (End::new(stand_in()), End::new(stand_in()))
}

/// Has the next call of this kind on a device of the stand-in fail.
fn fail(device: &Verbs, call: Refusable, errno: i32) {
    // SAFETY: the context is one of the stand-in.
    unsafe { ringway_fake_verbs::refuse(device.context().as_ptr(), call, errno) }
}

/// Whether a sleeper would wake.
fn readable(device: &dyn Device) -> bool {
    let set = Epoll::new().unwrap();
    set.add(device.fd(), 0, Interest::Read).unwrap();
    let mut ready = Vec::new();
    set.wait(&mut ready, Some(Duration::ZERO)).unwrap();
    !ready.is_empty()
}

/// The virtual machine's two devices.
fn soft() -> (End, End) {
    let library = Library::load().unwrap();
    let end = |name| End::new(Verbs::open(&library, name, 1, Wish::default()).unwrap());
    (end("rxe0"), end("rxe1"))
}

fn all_operations((mut a, mut b): (End, End)) {
    connect(&mut a, &mut b);
    let words: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
    a.buffer.memory().write(&words);
    let source = Source::Memory(a.region.local(0..10_000));

    b.receive(7, 20_000..30_000).unwrap();
    let immediate = Some(11);
    a.send(1, Work::Send { source, immediate }).unwrap();
    a.done(1, Done::Send);
    let length = 10_000;
    b.done(7, Done::Receive { length, immediate });
    assert_eq!(b.bytes(20_000, 10_000), words);

    b.receive(8, 0..0).unwrap();
    let remote = b.region.remote(40_000);
    let work = Work::Write {
        source,
        remote,
        immediate,
    };
    a.send(2, work).unwrap();
    a.done(2, Done::Write);
    let immediate = 11;
    b.done(8, Done::ReceiveWrite { length, immediate });
    assert_eq!(b.bytes(40_000, 10_000), words);

    let into = a.region.local(60_000..70_000);
    a.send(3, Work::Read { into, remote }).unwrap();
    a.done(3, Done::Read);
    assert_eq!(a.bytes(60_000, 10_000), words);

    b.buffer.memory().write(&41_u64.to_ne_bytes());
    let (into, remote) = (a.region.local(0..8), b.region.remote(0));
    let add = 1;
    a.send(4, Work::FetchAdd { into, remote, add }).unwrap();
    a.done(4, Done::FetchAdd);
    assert_eq!(a.bytes(0, 8), 41_u64.to_ne_bytes());
    let work = Work::CompareSwap {
        into,
        remote,
        compare: 42,
        swap: 7,
    };
    a.send(5, work).unwrap();
    a.done(5, Done::CompareSwap);
    assert_eq!(b.bytes(0, 8), 7_u64.to_ne_bytes());

    b.receive(9, 0..64).unwrap();
    let source = Source::Inline(b"inline");
    let immediate = None;
    a.send(6, Work::Send { source, immediate }).unwrap();
    a.done(6, Done::Send);
    let length = 6;
    b.done(9, Done::Receive { length, immediate });
    assert_eq!(b.bytes(0, 6), b"inline");
}

fn a_wrong_key_ends_the_queue_pair((mut a, mut b): (End, End)) {
    connect(&mut a, &mut b);
    let mut remote = b.region.remote(0);
    remote.key.0 ^= 0x5500;
    let work = Work::Write {
        source: Source::Memory(a.region.local(0..64)),
        remote,
        immediate: None,
    };
    a.send(1, work).unwrap();
    let ended = a.next();
    assert!(
        matches!(
            ended.result,
            Err(Failure {
                status: Status::RemoteAccess,
                ..
            })
        ),
        "{ended:?}"
    );
    let refused = a.send(2, work).unwrap_err();
    let state = ringway_roce::rc::State::Error;
    assert!(
        matches!(refused, DeviceError::Post { error: PostError::State(found), .. } if found == state),
        "{refused}"
    );
    // The place of a queue pair that ended is used again, for a connection that works.
    let pair = a.pair;
    a.device.destroy(a.pair);
    b.device.destroy(b.pair);
    a.pair = a.device.create(&options()).unwrap();
    b.pair = b.device.create(&options()).unwrap();
    assert_eq!(a.pair, pair);
    connect(&mut a, &mut b);
    b.receive(3, 0..64).unwrap();
    let source = Source::Inline(b"again");
    let immediate = None;
    a.send(4, Work::Send { source, immediate }).unwrap();
    a.done(4, Done::Send);
}

#[test]
fn all_operations_on_the_stand_in() {
    all_operations(stand_ins());
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn all_operations_on_soft_roce() {
    all_operations(soft());
}

#[test]
fn a_wrong_key_on_the_stand_in() {
    a_wrong_key_ends_the_queue_pair(stand_ins());
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn a_wrong_key_on_soft_roce() {
    a_wrong_key_ends_the_queue_pair(soft());
}

#[test]
fn what_is_asked_for_in_a_wrong_way_is_refused() {
    let (mut a, mut b) = stand_ins();
    let source = Source::Memory(a.region.local(0..8));
    let immediate = None;
    let early = a.send(1, Work::Send { source, immediate }).unwrap_err();
    assert!(early.to_string().contains("Init"), "{early}");
    connect(&mut a, &mut b);
    let address = b.device.address(b.pair).unwrap();
    assert!(a.device.connect(a.pair, &address).is_err());
    let bytes = [0; 65];
    let source = Source::Inline(&bytes);
    let long = a.send(1, Work::Send { source, immediate }).unwrap_err();
    assert!(long.to_string().contains("65 inline bytes"), "{long}");
    let deep = QueuePairOptions {
        send_depth: 1 << 20,
        ..options()
    };
    assert!(matches!(
        a.device.create(&deep),
        Err(DeviceError::Limit {
            asked: 1_048_576,
            ..
        })
    ));
    a.device.destroy(a.pair);
    assert!(a.device.address(a.pair).is_err());
    assert!(a.device.create(&options()).is_ok());
    for alone in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let error = a.device.register(a.buffer.memory(), alone).unwrap_err();
        assert!(error.to_string().contains("local write"), "{error}");
    }
    let region = a.region;
    a.device.deregister(&region).unwrap();
    assert!(a.device.deregister(&region).is_err());
}

#[test]
fn completions_of_a_destroyed_queue_pair_do_not_come() {
    let (mut a, mut b) = stand_ins();
    connect(&mut a, &mut b);
    let other = a.device.create(&options()).unwrap();
    b.receive(1, 0..8).unwrap();
    b.receive(2, 0..8).unwrap();
    let source = Source::Inline(b"x");
    let immediate = None;
    a.send(1, Work::Send { source, immediate }).unwrap();
    a.send(2, Work::Send { source, immediate }).unwrap();
    a.device.destroy(a.pair);
    let mut ended = Vec::new();
    assert!(!a.device.poll(Instant::now(), &mut ended).unwrap());
    assert!(ended.is_empty(), "{ended:?}");
    assert!(a.device.address(other).is_ok());
}

/// Whatever the device says: it is told as it is, what waits is flushed, and other queue pairs go on.
#[test]
fn a_request_that_fails_ends_its_queue_pair_and_no_other() {
    for (code, status) in [
        (7, Status::Other(7)),
        (12, Status::RetriesExceeded),
        (13, Status::RnrRetriesExceeded),
    ] {
        let device = stand_in();
        let context = device.context().clone();
        let (mut a, mut b) = (End::new(device), End::new(stand_in()));
        connect(&mut a, &mut b);
        a.receive(8, 0..8).unwrap();
        // SAFETY: the context is one of the stand-in.
        unsafe { ringway_fake_verbs::fail_next(context.as_ptr(), code) };
        let source = Source::Inline(b"x");
        let immediate = None;
        a.send(1, Work::Send { source, immediate }).unwrap();
        let mut ended = Vec::new();
        a.device.poll(Instant::now(), &mut ended).unwrap();
        let results: Vec<_> = ended.iter().map(|it| (it.id, it.result)).collect();
        let failed = |status, vendor| Err(Failure { status, vendor });
        assert_eq!(
            results,
            [(1, failed(status, 0x81)), (8, failed(Status::Flushed, 0))]
        );
        let refused = a.send(2, Work::Send { source, immediate }).unwrap_err();
        assert!(refused.to_string().contains("Error"), "{refused}");
        assert!(a.receive(3, 0..8).is_err());
        // Another one of the same devices.
        a.pair = a.device.create(&options()).unwrap();
        b.pair = b.device.create(&options()).unwrap();
        connect(&mut a, &mut b);
        b.receive(4, 0..8).unwrap();
        a.send(5, Work::Send { source, immediate }).unwrap();
        a.done(5, Done::Send);
        b.done(
            4,
            Done::Receive {
                length: 1,
                immediate,
            },
        );
    }
}

#[test]
fn what_happens_to_the_port_is_told_and_ends_no_queue_pair() {
    let device = stand_in();
    let context = device.context().clone();
    let (mut a, mut b) = (End::new(device), End::new(stand_in()));
    connect(&mut a, &mut b);
    let raise = |event| {
        // SAFETY: the context is one of the stand-in.
        unsafe { ringway_fake_verbs::raise(context.as_ptr(), event, None) }
    };
    raise(ffi::IBV_EVENT_PORT_ERR);
    raise(ffi::IBV_EVENT_GID_CHANGE);
    raise(ffi::IBV_EVENT_PORT_ACTIVE);
    assert!(readable(&*a.device));
    let told: Vec<_> = std::iter::from_fn(|| a.device.poll_event()).collect();
    assert_eq!(
        told,
        [
            DeviceEvent::PortDown,
            DeviceEvent::AddressChange,
            DeviceEvent::PortUp
        ]
    );
    assert!(!readable(&*a.device));
    // A port that comes and goes ends no queue pair.
    b.receive(1, 0..8).unwrap();
    let source = Source::Inline(b"x");
    let immediate = None;
    a.send(2, Work::Send { source, immediate }).unwrap();
    a.done(2, Done::Send);
}

/// The driver says no, as it does when it has no memory: nothing is posted, and the queue pair goes on.
#[test]
fn a_post_that_the_driver_refuses_is_an_error_and_costs_no_place() {
    let device = stand_in();
    let context = device.context().clone();
    let (mut a, mut b) = (End::new(device), End::new(stand_in()));
    connect(&mut a, &mut b);
    let refuse = |call| {
        // SAFETY: the context is one of the stand-in.
        unsafe { ringway_fake_verbs::refuse(context.as_ptr(), call, 14) } // EFAULT
    };
    let source = Source::Inline(b"x");
    let immediate = None;
    for id in 0..32 {
        refuse(Refusable::PostSend);
        let error = a.send(id, Work::Send { source, immediate }).unwrap_err();
        assert!(error.to_string().contains("ibv_post_send"), "{error}");
        refuse(Refusable::PostReceive);
        let error = a.receive(id, 0..8).unwrap_err();
        assert!(error.to_string().contains("ibv_post_recv"), "{error}");
    }
    for id in 0..16 {
        b.receive(id, 0..8).unwrap();
        a.send(id, Work::Send { source, immediate }).unwrap();
        a.done(id, Done::Send);
        b.done(
            id,
            Done::Receive {
                length: 1,
                immediate,
            },
        );
    }
}

#[test]
fn memory_that_may_not_be_locked_is_refused_with_the_remedy() {
    let mut device = stand_in();
    let buffer = Staging::new(4096);
    fail(&device, Refusable::RegisterMemory, 12); // ENOMEM
    let error = device.register(buffer.memory(), Access::ALL).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("ibv_reg_mr"), "{error}");
    // Which of the two it is depends on the limit of whoever runs this.
    assert!(
        error.contains("locked memory") || error.contains("register fewer"),
        "{error}"
    );
    assert!(device.register(buffer.memory(), Access::ALL).is_ok());
}

/// What had come by then is told, what had not is not, and nothing moves any more.
#[test]
fn a_queue_pair_that_is_stopped_tells_what_had_ended() {
    let (mut a, mut b) = stand_ins();
    connect(&mut a, &mut b);
    for id in 0..4 {
        b.receive(id, 0..8).unwrap();
    }
    let source = Source::Inline(b"x");
    let immediate = None;
    for id in [10, 11] {
        a.send(id, Work::Send { source, immediate }).unwrap();
    }
    for (end, expected) in [
        (
            &mut b,
            [0, 1].map(|id| {
                (
                    id,
                    Done::Receive {
                        length: 1,
                        immediate,
                    },
                )
            }),
        ),
        (&mut a, [10, 11].map(|id| (id, Done::Send))),
    ] {
        let mut ended = Vec::new();
        end.device.stop(end.pair, &mut ended);
        let results: Vec<_> = ended.iter().map(|it| (it.id, it.result)).collect();
        assert_eq!(results, expected.map(|(id, done)| (id, Ok(done))));
        assert!(end.send(20, Work::Send { source, immediate }).is_err());
        assert!(end.receive(21, 0..8).is_err());
    }
}

/// The link of one side goes away for a moment, and its GID with it.
#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn a_link_that_flaps_is_told_and_new_connections_find_the_gid() {
    let (mut a, mut b) = soft();
    let run = |command: &str| {
        let status = std::process::Command::new("sh")
            .args(["-c", command])
            .status();
        assert!(status.unwrap().success(), "{command}");
    };
    run("ip link set rank0 down");
    let mut wait_for = |wanted| {
        let deadline = Instant::now() + LONG;
        while a.device.poll_event() != Some(wanted) {
            assert!(Instant::now() < deadline, "{wanted:?} did not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for(DeviceEvent::PortDown);
    // The address is taken away and given again after another, and so gets another place in the table of GIDs.
    run("ip addr add 10.0.0.99/32 dev rank0 && ip addr del 10.0.0.1/24 dev rank0");
    run("ip addr add 10.0.0.1/24 dev rank0 && ip addr del 10.0.0.99/32 dev rank0 && /vm/link-up 0");
    wait_for(DeviceEvent::PortUp);
    connect(&mut a, &mut b);
    b.receive(1, 0..8).unwrap();
    let source = Source::Inline(b"flapped");
    let immediate = None;
    a.send(1, Work::Send { source, immediate }).unwrap();
    a.done(1, Done::Send);
}

#[test]
#[ignore = "needs the devices of the virtual machine: cargo xtask test vm"]
fn counters_are_the_devices_own() {
    let (mut a, mut b) = soft();
    let sent = |end: &End| {
        let mut found = None;
        end.device.counters(&mut |name, value| {
            if name == "sent_pkts" {
                found = Some(value);
            }
        });
        found.expect("rxe counts packets")
    };
    let before = sent(&a);
    connect(&mut a, &mut b);
    b.receive(1, 0..8).unwrap();
    let source = Source::Inline(b"counted");
    let immediate = None;
    a.send(1, Work::Send { source, immediate }).unwrap();
    a.done(1, Done::Send);
    assert!(sent(&a) > before);
}

#[test]
fn an_armed_device_becomes_readable_and_one_with_something_is_not_slept_on() {
    let (mut a, mut b) = stand_ins();
    connect(&mut a, &mut b);
    let readable = |end: &End| readable(&*end.device);
    for id in [1, 2] {
        b.receive(id, 0..8).unwrap();
    }
    let source = Source::Inline(b"x");
    let immediate = None;
    assert!(b.device.arm());
    assert!(!readable(&b));
    a.send(1, Work::Send { source, immediate }).unwrap();
    assert!(readable(&b));
    b.device.disarm();
    assert!(!readable(&b));
    // What was there before the request for a notification is found by `arm` itself.
    assert!(!b.device.arm());
    b.device.disarm();
    let length = 1;
    b.done(1, Done::Receive { length, immediate });
}

#[test]
fn the_end_of_a_device_is_told_once() {
    for gone in [true, false] {
        let mut device = stand_in();
        for _ in 0..3 {
            if gone {
                fail(&device, Refusable::TakeEvent, 5); // EIO
            }
            let fatal = ffi::IBV_EVENT_DEVICE_FATAL;
            // SAFETY: the context is one of the stand-in.
            unsafe { ringway_fake_verbs::raise(device.context().as_ptr(), fatal, None) };
        }
        assert!(readable(&device));
        assert_eq!(device.poll_event(), Some(DeviceEvent::Fatal));
        assert_eq!(device.poll_event(), None);
        assert!(!readable(&device), "a sleeper would wake for ever");
    }
}

#[test]
fn a_deregistration_that_the_device_refuses_is_told() {
    let mut device = stand_in();
    let buffer = Staging::new(4096);
    let region = device.register(buffer.memory(), Access::ALL).unwrap();
    fail(&device, Refusable::DeregisterMemory, 16); // EBUSY
    let error = device.deregister(&region).unwrap_err().to_string();
    assert!(error.contains("ibv_dereg_mr"), "{error}");
}

/// A completion queue of the stand-in holds 1,024, and so the completions of 32 of these queue pairs.
#[test]
fn queue_pairs_have_as_many_completion_queues_as_they_need() {
    let (mut a, mut b) = stand_ins();
    let mut ends = Vec::new();
    for _ in 0..100 {
        (a.pair, b.pair) = (
            a.device.create(&options()).unwrap(),
            b.device.create(&options()).unwrap(),
        );
        connect(&mut a, &mut b);
        b.receive(a.pair.0.into(), 0..8).unwrap();
        ends.push((a.pair, b.pair));
    }
    assert!(b.device.arm());
    for &(pair, _) in &ends {
        a.pair = pair;
        let source = Source::Inline(b"x");
        let immediate = None;
        a.send(pair.0.into(), Work::Send { source, immediate })
            .unwrap();
    }
    assert!(readable(&*b.device));
    for (device, wanted) in [
        (
            &mut a.device,
            ends.iter().map(|end| end.0).collect::<Vec<_>>(),
        ),
        (&mut b.device, ends.iter().map(|end| end.1).collect()),
    ] {
        let mut ended = Vec::new();
        while device.poll(Instant::now(), &mut ended).unwrap() {}
        let mut told: Vec<_> = ended.iter().map(|end| end.queue_pair).collect();
        told.sort_by_key(|pair| pair.0);
        assert_eq!(told, wanted);
    }
}

/// The stand-in makes 32 of 20, as drivers do.
#[test]
fn a_queue_pair_holds_what_it_was_asked_to() {
    let (mut a, mut b) = stand_ins();
    let uneven = QueuePairOptions {
        send_depth: 20,
        receive_depth: 20,
        ..options()
    };
    for end in [&mut a, &mut b] {
        end.pair = end.device.create(&uneven).unwrap();
    }
    connect(&mut a, &mut b);
    let full = |refused: Result<(), DeviceError>| {
        let error = PostError::Full(20);
        assert!(
            matches!(&refused, Err(DeviceError::Post { error: found, .. }) if *found == error),
            "{refused:?}"
        );
    };
    for round in 0..2 {
        for id in 0..20 {
            b.receive(id, 0..8).unwrap();
        }
        full(b.receive(20, 0..8));
        // Only the last but one tells, for itself and those before it.
        for id in 0..20 - round {
            let source = Source::Inline(b"x");
            let immediate = None;
            let request = SendRequest {
                id,
                work: Work::Send { source, immediate },
                signaled: id == 18,
                solicited: false,
            };
            a.device.post_send(a.pair, &request).unwrap();
        }
        let source = Source::Inline(b"x");
        let immediate = None;
        full(a.send(20, Work::Send { source, immediate }));
        a.done(18, Done::Send);
        let mut ended = Vec::new();
        while b.device.poll(Instant::now(), &mut ended).unwrap() {}
        assert_eq!(ended.len() as u64, 20 - round);
    }
}

#[test]
fn a_number_that_is_used_again_begins_elsewhere() {
    let mut device = stand_in();
    let mut made = || {
        let pair = device.create(&options()).unwrap();
        let address = device.address(pair).unwrap();
        device.destroy(pair);
        (address.number, address.first_psn)
    };
    let first = made();
    let others = [(); 3].map(|()| made());
    assert!(
        others.iter().all(|other| other.0 == first.0),
        "the stand-in gives numbers again"
    );
    assert!(
        others.iter().any(|other| other.1 != first.1),
        "{first:?} {others:?}"
    );
}
