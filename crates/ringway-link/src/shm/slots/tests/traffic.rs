//! Single messages of each kind, and what is at the limits.

use super::*;

#[test]
fn each_kind_of_message_arrives_as_place_and_as_view() {
    let mut ranks = mesh(2, SlotOptions::default());
    let arena = ranks[0].host.user_arena().allocate(20_000).unwrap();
    arena.memory().write(&pattern(20_000, 9));
    let private: Vec<_> = [0, 1, 24, 25, 4096, 65536].map(|len| buffer(len, 5)).into();
    let mut sources: Vec<Memory> = private.iter().map(Staging::memory).collect();
    sources.extend([
        arena.memory(),
        arena.memory().slice(1..4097),
        arena.memory().slice(3..20),
    ]);
    for rank in &mut ranks {
        rank.begin(0, 1, 77);
    }
    for (i, src) in sources.into_iter().enumerate() {
        let by_reference = i > 5 && src.len() >= 4096;
        let (place, view) = (key(1, 2 * i as u32), key(1, 2 * i as u32 + 1));
        let target = buffer(src.len(), 0);
        ranks[1]
            .recv(0, place, Sink::Place(target.memory()))
            .unwrap();
        ranks[0].send(1, place, src, 0).unwrap();
        assert_eq!(
            assert_received(&next(&mut ranks[1]), 0, place),
            Memory::EMPTY
        );
        assert_eq!(bytes(target.memory()), bytes(src));
        assert_sent(&next(&mut ranks[0]), 1, place);

        ranks[0].send(1, view, src, 0).unwrap();
        assert!(poll(&mut ranks[1]).is_empty());
        ranks[1].recv(0, view, Sink::View(src.len())).unwrap();
        let shown = assert_received(&next(&mut ranks[1]), 0, view);
        assert_eq!(bytes(shown), bytes(src));
        if by_reference {
            // The receiver looks at the sender's own memory, which it must not reuse yet.
            assert!(poll(&mut ranks[0]).is_empty());
            src.write(&[255]);
            assert_eq!(bytes(shown)[0], 255);
        }
        ranks[1].release(0, view);
        assert_sent(&next(&mut ranks[0]), 1, view);
    }
    for rank in &mut ranks {
        rank.cancel(0, 1);
        assert!(poll(rank).is_empty());
    }
    assert_eq!(ranks[1].budget.used(), 0);
}

#[test]
fn messages_not_asked_for_do_not_stop_those_that_are() {
    let mut ranks = mesh(2, small());
    for rank in &mut ranks {
        rank.begin(0, 1, 0);
    }
    // Far more than there are slots, of which none is asked for.
    let src = buffer(4096, 1);
    for message in 0..50 {
        ranks[0].send(1, key(1, message), src.memory(), 0).unwrap();
    }
    let last = buffer(3000, 2);
    ranks[0].send(1, key(1, 50), last.memory(), 0).unwrap();
    for _ in 0..10 {
        poll(&mut ranks[0]);
        poll(&mut ranks[1]);
    }
    assert!(ranks[1].budget.used() == 0, "nothing is copied to wait");
    let target = buffer(3000, 0);
    ranks[1]
        .recv(0, key(1, 50), Sink::Place(target.memory()))
        .unwrap();
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < Duration::from_secs(10) {
        sent += poll(&mut ranks[0]).len();
        if let Some(event) = poll(&mut ranks[1]).first() {
            assert_received(event, 0, key(1, 50));
            assert_eq!(bytes(target.memory()), pattern(3000, 2));
            assert!(sent < 10, "the others wait in their sender's memory");
            // And those too arrive in the end.
            for message in 0..50 {
                ranks[1].recv(0, key(1, message), Sink::View(4096)).unwrap();
                while poll(&mut ranks[1]).is_empty() {
                    poll(&mut ranks[0]);
                }
                ranks[1].release(0, key(1, message));
            }
            return;
        }
    }
    panic!("the message that was asked for did not arrive");
}

#[test]
fn short_messages_not_asked_for_are_bounded_too() {
    let mut ranks = mesh(2, small());
    for rank in &mut ranks {
        rank.begin(0, 1, 0);
    }
    let src = buffer(8, 1);
    let mut sent = 0;
    for message in 0..2000 {
        ranks[0].send(1, key(1, message), src.memory(), 0).unwrap();
    }
    for _ in 0..2000 {
        sent += poll(&mut ranks[0]).len();
        poll(&mut ranks[1]);
    }
    assert!((100..400).contains(&sent), "{sent} sent");
    ranks[1].recv(0, key(1, 1999), Sink::View(8)).unwrap();
    while poll(&mut ranks[1]).is_empty() {
        poll(&mut ranks[0]);
    }
}

#[test]
fn a_higher_priority_goes_first() {
    let mut ranks = mesh(2, small());
    for rank in &mut ranks {
        rank.begin(0, 1, 0);
    }
    let src = buffer(4096, 1);
    for message in 0..20u32 {
        ranks[1].recv(0, key(1, message), Sink::View(4096)).unwrap();
        ranks[0]
            .send(1, key(1, message), src.memory(), (message / 5) as u8)
            .unwrap();
    }
    let mut order = Vec::new();
    while order.len() < 20 {
        poll(&mut ranks[0]);
        for event in poll(&mut ranks[1]) {
            let Event::Received { key, .. } = event else {
                panic!("{event:?}")
            };
            order.push(key.message);
            ranks[1].release(0, key);
        }
    }
    // The first three had tickets at once.
    assert_eq!(order[..3], [0, 1, 2]);
    let rest: Vec<u32> = (15..20).chain(10..15).chain(5..10).chain(3..5).collect();
    assert_eq!(order[3..], rest);
}

#[test]
fn views_never_hold_the_last_ticket() {
    let mut ranks = mesh(2, small());
    for rank in &mut ranks {
        rank.begin(0, 1, 0);
    }
    let src = buffer(4096, 1);
    for message in 0..40 {
        ranks[1].recv(0, key(1, message), Sink::View(4096)).unwrap();
        ranks[0].send(1, key(1, message), src.memory(), 0).unwrap();
    }
    // None is released, and yet all come.
    let mut views = Vec::new();
    let start = Instant::now();
    while views.len() < 40 && start.elapsed() < Duration::from_secs(10) {
        poll(&mut ranks[0]);
        for event in poll(&mut ranks[1]) {
            let Event::Received { view, .. } = event else {
                panic!("{event:?}")
            };
            views.push(view);
        }
    }
    assert_eq!(views.len(), 40);
    assert!(views.iter().all(|&view| bytes(view) == pattern(4096, 1)));
    assert!(ranks[1].budget.used() >= 36 * 4096);
    for message in 0..40 {
        ranks[1].release(0, key(1, message));
    }
    assert_eq!(ranks[1].budget.used(), 0);
}

#[test]
fn copies_of_views_are_limited() {
    let options = SlotOptions {
        memory_limit: 20_000,
        ..small()
    };
    let mut ranks = mesh(2, options);
    for rank in &mut ranks {
        rank.begin(0, 1, 0);
    }
    let src = buffer(4096, 1);
    for message in 0..40 {
        ranks[1].recv(0, key(1, message), Sink::View(4096)).unwrap();
        ranks[0].send(1, key(1, message), src.memory(), 0).unwrap();
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        poll(&mut ranks[0]);
        for event in poll(&mut ranks[1]) {
            if let Event::Lost { peer: 0, error } = event {
                assert!(
                    matches!(error, LinkError::MemoryLimit { limit: 20_000, .. }),
                    "{error}"
                );
                assert!(ranks[1].memory_in_use() < 20_000 + small().geometry.area_bytes());
                return;
            }
        }
    }
    panic!("no limit");
}

#[test]
fn only_what_can_be_sent_is_accepted() {
    let mut ranks = mesh(2, small());
    let long = buffer(4097, 1);
    let short = long.memory().slice(0..10);
    let detail = |result: Result<(), LinkError>| match result {
        Err(LinkError::Misuse { detail, .. }) => detail,
        other => panic!("{other:?}"),
    };
    assert!(detail(ranks[0].send(1, key(1, 0), short, 0)).contains("not begun"));
    assert!(detail(ranks[0].recv(1, key(1, 0), Sink::View(1))).contains("not begun"));
    ranks[0].begin(0, 1, 0);
    assert!(detail(ranks[0].send(1, key(1, 0), long.memory(), 0)).contains("slice_bytes"));
    assert!(detail(ranks[0].send(0, key(1, 0), short, 0)).contains("another rank"));
    assert!(detail(ranks[0].send(2, key(1, 0), short, 0)).contains("another rank"));
    ranks[0].recv(1, key(1, 0), Sink::View(1)).unwrap();
    assert!(detail(ranks[0].recv(1, key(1, 0), Sink::View(1))).contains("already"));
    let arena = ranks[0].host.user_arena().allocate(1 << 20).unwrap();
    ranks[0].send(1, key(1, 1), arena.memory(), 0).unwrap();
}
