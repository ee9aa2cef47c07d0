//! What neither soft RoCE nor hardware does on demand, with a stand-in for libibverbs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod pair;

use std::{path::PathBuf, sync::Arc};

use pair::{End, exchange, poll_one};
use ringway_fake_verbs::{LOCKED_DEVICE, OPEN_DEVICE, Refusable};
use ringway_sys::Staging;
use ringway_verbs::{
    Access, AsyncEvent, CompletionChannel, CompletionQueue, Context, Ended, ForkSafety, Library,
    Operation, ProtectionDomain, QueuePairState, Region, SendRequest, Source, Status, VerbsError,
    devices, ffi,
    gid::{self, Wish},
};

/// The stand-in, which cargo builds beside this test.
fn library() -> Arc<Library> {
    let file: PathBuf = std::env::current_exe()
        .unwrap()
        .with_file_name("libringway_fake_verbs.so");
    Library::open(&file, &file).unwrap()
}

fn ends() -> (End, End) {
    let library = library();
    let end = || {
        let context = Context::open(&library, OPEN_DEVICE).unwrap();
        End::new(&context, 1, Wish::default())
    };
    let (a, b) = (end(), end());
    a.connect(&b, 6);
    b.connect(&a, 6);
    (a, b)
}

#[test]
fn all_operations_move_what_they_should() {
    let (a, b) = ends();
    exchange(&a, &b, &[1, 8, 4096]);
}

#[test]
fn devices_are_listed_and_a_locked_one_says_what_to_do() {
    let library = library();
    let names: Vec<_> = devices(&library)
        .unwrap()
        .into_iter()
        .map(|device| (device.name, device.guid))
        .collect();
    let guid = 0x0200_00ff_fe00_0001;
    assert_eq!(
        names,
        [
            (OPEN_DEVICE.to_owned(), guid),
            (LOCKED_DEVICE.to_owned(), guid)
        ]
    );
    let locked = Context::open(&library, LOCKED_DEVICE).unwrap_err();
    assert_eq!(locked.errno(), Some(libc::EACCES));
    assert!(
        locked.to_string().contains("/dev/infiniband/uverbs*"),
        "{locked}"
    );
    let nothing = Context::open(&library, "mlx5_9").unwrap_err().to_string();
    assert!(nothing.contains("mlx5_9, found: fake0, fake1"), "{nothing}");
    // The stand-in refuses `ibv_fork_init`.
    assert_eq!(library.fork_safety(), ForkSafety::Unsafe(libc::ENOSYS));
    assert!(library.fork_safety().to_string().starts_with("NOT safe"));
}

#[test]
fn a_gid_is_chosen_over_holes_and_its_vanishing_is_told() {
    let context = Context::open(&library(), OPEN_DEVICE).unwrap();
    let choose = || gid::choose(&context.gid_table(1).unwrap(), Wish::default()).unwrap();
    let choice = choose();
    assert_eq!(choice.entry.index, 3);
    assert_eq!(choice.entry.netdev.as_deref(), Some("lo"));
    assert_eq!(choice.note, None);

    let (a, b) = (
        End::new(&context, 1, Wish::default()),
        End::new(&context, 1, Wish::default()),
    );
    // SAFETY: the context is one of the stand-in.
    unsafe { ringway_fake_verbs::drop_gid(context.as_ptr(), 3) };
    let error = a.try_connect(&b, 6).unwrap_err().to_string();
    assert!(error.contains("a GID that is gone"), "{error}");
    // Looked up again, what is left is the link-local one, and that is said.
    let choice = choose();
    assert_eq!(choice.entry.index, 1);
    assert!(choice.note.unwrap().contains("link-local"));
}

#[test]
fn refusals_are_errors_with_remedies_and_leave_everything_usable() {
    let context = Context::open(&library(), OPEN_DEVICE).unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    let buffer = Staging::new(4096);
    let register = || Region::register(&domain, buffer.memory(), Access::ALL);
    let refuse = |call| {
        // SAFETY: the context is one of the stand-in.
        unsafe { ringway_fake_verbs::refuse(context.as_ptr(), call, libc::ENOMEM) }
    };
    refuse(Refusable::RegisterMemory);
    let error = register().unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOMEM));
    assert!(error.to_string().contains("register fewer"), "{error}");
    let region = register().unwrap();
    refuse(Refusable::DeregisterMemory);
    let error = region.deregister().unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOMEM));
    assert!(error.to_string().contains("keep it until"), "{error}");
    register().unwrap().deregister().unwrap();
    refuse(Refusable::CreateCompletionQueue);
    let channel = CompletionChannel::new(&context).unwrap();
    let error = CompletionQueue::new(&channel, 8).unwrap_err();
    assert!(error.to_string().contains("shallower"), "{error}");
    assert!(CompletionQueue::new(&channel, 8).is_ok());
    refuse(Refusable::CreateQueuePair);
    assert!(End::try_new(&context, 1, Wish::default()).is_err());
    refuse(Refusable::ModifyQueuePair);
    assert!(End::try_new(&context, 1, Wish::default()).is_err());
    assert!(End::try_new(&context, 1, Wish::default()).is_ok());
}

#[test]
fn a_driver_that_cannot_poll_is_told_before_a_queue_is_made() {
    let context = Context::open(&library(), OPEN_DEVICE).unwrap();
    let channel = CompletionChannel::new(&context).unwrap();
    // SAFETY: the context is one of the stand-in, and only this thread uses it.
    unsafe { ringway_fake_verbs::lose_poll(context.as_ptr()) };
    let call = Refusable::CreateCompletionQueue; // so that the call, were it made, would show
    // SAFETY: the context is one of the stand-in.
    unsafe { ringway_fake_verbs::refuse(context.as_ptr(), call, libc::ENOMEM) };
    let error = CompletionQueue::new(&channel, 8).unwrap_err().to_string();
    assert!(error.contains("poll_cq"), "{error}");
}

#[test]
fn every_status_is_told_and_the_rest_is_flushed() {
    for code in 1..24 {
        let (a, b) = ends();
        b.pair.post_receive(90, b.region.local(0..64)).unwrap();
        a.pair.post_receive(91, a.region.local(0..64)).unwrap();
        // SAFETY: the context is one of the stand-in.
        unsafe { ringway_fake_verbs::fail_next(a.context.as_ptr(), code) };
        for id in [1, 2] {
            a.send(id, 0..8, None).unwrap();
        }
        let ended: Vec<_> = (0..3)
            .map(|_| {
                let completion = poll_one(&a);
                // Of a failure nothing else is valid.
                assert_eq!(completion.ended, Ended::Unknown);
                assert_eq!((completion.len, completion.immediate), (0, None));
                (completion.id, completion.status)
            })
            .collect();
        assert_eq!(
            ended,
            [
                (1, Status(code)),
                (91, Status::FLUSHED),
                (2, Status::FLUSHED)
            ]
        );
        assert_eq!(a.pair.state().unwrap(), QueuePairState::Error);
        let text = Status(code).to_string();
        assert!(text.ends_with(&format!("(status {code})")), "{text}");
        assert!(!text.contains("does not know"), "{text}");
    }
    assert!(Status(77).to_string().contains("does not know"));
}

#[test]
fn asynchronous_events_are_told_in_order() {
    let (a, _b) = ends();
    assert_eq!(a.context.take_event().unwrap(), None);
    let raise = |event, pair| {
        // SAFETY: context and queue pair are of the stand-in and alive.
        unsafe { ringway_fake_verbs::raise(a.context.as_ptr(), event, pair) }
    };
    raise(ffi::IBV_EVENT_PORT_ERR, None);
    raise(ffi::IBV_EVENT_GID_CHANGE, None);
    raise(ffi::IBV_EVENT_PORT_ACTIVE, None);
    raise(ffi::IBV_EVENT_QP_FATAL, Some(a.pair.as_ptr()));
    raise(ffi::IBV_EVENT_QP_ACCESS_ERR, Some(a.pair.as_ptr()));
    raise(ffi::IBV_EVENT_DEVICE_FATAL, None);
    raise(99, None);
    let mut told = Vec::new();
    while let Some(event) = a.context.take_event().unwrap() {
        told.push(event);
    }
    let number = a.pair.number();
    assert_eq!(
        told,
        [
            AsyncEvent::PortDown(1),
            AsyncEvent::GidChange(1),
            AsyncEvent::PortUp(1),
            AsyncEvent::QueuePairFatal(number),
            AsyncEvent::QueuePairRefused(number),
            AsyncEvent::DeviceFatal,
            AsyncEvent::Other(99),
        ]
    );
}

#[test]
fn a_full_queue_is_told_and_an_overrun_too() {
    let (a, b) = ends();
    let mut full = None;
    for id in 0..1000 {
        if let Err(error) = b.pair.post_receive(id, b.region.local(0..8)) {
            full = Some(error);
            break;
        }
    }
    assert!(matches!(
        full,
        Some(VerbsError::Full {
            queue: "receive",
            ..
        })
    ));
    let mut posted = 0;
    let full = loop {
        if let Err(error) = a.send(posted, 0..8, None) {
            break error;
        }
        posted += 1;
    };
    assert!(matches!(full, VerbsError::Full { queue: "send", .. }));
    assert!(full.to_string().contains("poll completions"), "{full}");
    assert_eq!(poll_one(&a).id, 0);
    a.send(posted, 0..8, None).unwrap();
}

#[test]
fn too_many_inline_bytes_and_requests_are_refused_here() {
    let (a, _b) = ends();
    let bytes = vec![0; a.pair.inline() as usize + 1];
    let request = SendRequest {
        id: 1,
        operation: Operation::Send {
            source: Source::Inline(&bytes),
            immediate: None,
        },
        signaled: true,
        solicited: false,
    };
    let error = a.pair.post_send(&request).unwrap_err().to_string();
    assert!(error.contains("65, expected 64 at most"), "{error}");
    let mut posting = a.pair.posting::<2>();
    posting.push(&request).unwrap_err();
    let request = SendRequest {
        operation: Operation::Send {
            source: Source::Inline(b"x"),
            immediate: None,
        },
        ..request
    };
    posting.push(&request).unwrap();
    posting.push(&request).unwrap();
    assert!(posting.push(&request).is_err());
}

#[test]
fn a_list_is_posted_in_its_order() {
    let (a, b) = ends();
    a.region.memory().write(b"abcdef");
    for id in 0..3 {
        let at = 100 + 2 * id;
        b.pair
            .post_receive(id as u64, b.region.local(at..at + 2))
            .unwrap();
    }
    let mut posting = a.pair.posting::<4>();
    for id in 0..3 {
        let source = Source::Region(a.region.local(2 * id..2 * id + 2));
        let operation = Operation::Send {
            source,
            immediate: None,
        };
        posting
            .push(&SendRequest {
                id: id as u64,
                operation,
                signaled: true,
                solicited: false,
            })
            .unwrap();
    }
    posting.post().unwrap();
    assert_eq!([0; 3].map(|_| poll_one(&a).id), [0, 1, 2]);
    assert_eq!([0; 3].map(|_| poll_one(&b).id), [0, 1, 2]);
    let mut got = [0; 6];
    b.region.memory().slice(100..106).read(&mut got);
    assert_eq!(&got, b"abcdef");
}

#[test]
fn device_memory_is_registered_by_its_descriptor() {
    let (a, _b) = ends();
    let any = std::fs::File::open("/dev/null").unwrap();
    let region = Region::register_dmabuf(a.pair.domain(), &any, 0, 1 << 20, Access::ALL).unwrap();
    assert_eq!(region.remote_place(4096).address, 4096);
    assert_ne!(region.remote_key(), a.region.remote_key());
}

#[test]
fn an_armed_queue_notifies_once_and_one_that_is_not_does_not() {
    let (a, b) = ends();
    let channel = b.completions.channel();
    let mut got = Vec::new();
    for (armed, notifies) in [(false, false), (true, true)] {
        for id in [1, 2] {
            b.pair.post_receive(id, b.region.local(0..8)).unwrap();
        }
        if armed {
            b.completions.arm().unwrap();
        }
        assert!(!channel.take().unwrap());
        for id in [1, 2] {
            a.send(id, 0..8, None).unwrap();
        }
        assert_eq!(channel.take().unwrap(), notifies);
        assert!(!channel.take().unwrap());
        got.clear();
        b.completions.poll(&mut got).unwrap();
        b.completions.poll(&mut got).unwrap();
        assert_eq!(got.len(), 2);
    }
}
