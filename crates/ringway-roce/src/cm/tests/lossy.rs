//! Connecting and disconnecting over a wire that loses, repeats and reorders.

use proptest::prelude::*;

use super::*;

proptest! {
    /// Whatever happens to the messages: both sides end, nothing is left to be sent, no clock runs for ever, and a side
    /// that was established was so once, and disconnected once.
    #[test]
    fn every_connection_comes_to_an_end(fates in prop::collection::vec(0..10u8, 1..60), rejects: bool) {
        let mut now = Instant::now();
        let mut a = initiator(now);
        let mut b: Option<Connection> = None;
        let mut wire: Vec<(bool, Mad)> = vec![];
        let mut events: [Vec<Event>; 2] = [vec![], vec![]];
        let mut fates = fates.into_iter();
        for step in 0.. {
            prop_assert!(step < 2000, "no end");
            while let Some(mad) = a.poll_transmit() {
                wire.push((true, mad));
            }
            while let Some(mad) = b.as_mut().and_then(Connection::poll_transmit) {
                wire.push((false, mad));
            }
            // Bad luck runs out some time: then messages arrive in order.
            let fate = fates.next().unwrap_or(9);
            if wire.is_empty() {
                let clocks = [a.poll_timeout(), b.as_ref().and_then(Connection::poll_timeout)];
                let Some(next) = clocks.into_iter().flatten().min() else { break };
                now = next;
                a.handle_timeout(now);
                if let Some(b) = &mut b {
                    b.handle_timeout(now);
                }
            } else {
                let (to_b, mad) = match fate {
                    0..=2 => {
                        wire.remove(0);
                        continue;
                    }
                    3 => wire[0].clone(),
                    4 | 5 => wire.swap_remove(0),
                    _ => wire.remove(0),
                };
                match (to_b, &mut b, &mad.message) {
                    (false, ..) => {
                        a.handle(now, &mad);
                    }
                    (true, Some(b), _) => {
                        b.handle(now, &mad);
                    }
                    (true, None, Message::Req(_)) => {
                        let mut new = listener(&mad);
                        if rejects {
                            new.reject(Reason::CONSUMER, &[]).unwrap();
                        } else {
                            new.accept(now, &acceptance(), &[]).unwrap();
                        }
                        b = Some(new);
                    }
                    (true, None, _) => {}
                }
            }
            events[0].extend(std::iter::from_fn(|| a.poll_event()));
            events[1].extend(std::iter::from_fn(|| b.as_mut()?.poll_event()));
            if a.state() == State::Established {
                a.disconnect(now).unwrap();
            }
        }
        prop_assert_eq!(a.state(), State::Closed);
        for events in &events {
            let is_established = |event: &&Event| matches!(event, Event::Established { .. });
            prop_assert!(events.iter().filter(is_established).count() <= 1);
            prop_assert!(events.len() <= 2, "{:?}", events);
        }
        let first = &events[0][0];
        if rejects {
            prop_assert!(matches!(first, Event::Rejected { .. } | Event::Unreachable), "{:?}", first);
        }
        // The listener may not hear of the end, but of nothing else either.
        if let Some(b) = b {
            prop_assert!(matches!(b.state(), State::Closed | State::Established), "{:?}", b.state());
        }
    }
}
