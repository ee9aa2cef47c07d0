//! Notes of a peer that come when nobody waits for them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{exchange::NOTE, *};
use crate::{Bind, Identity, InterfaceFilter, JobId, Listener, tcp::TcpSettings};

/// Two ranks that know TCP alone.
fn ranks() -> [TcpTransport; 2] {
    let job = JobId::from_name("late notes");
    let listeners = [0, 1].map(|rank| {
        let identity = Identity::new(job, 2, rank);
        Arc::new(Listener::start(&Bind::default(), identity).unwrap())
    });
    let addresses = listeners
        .each_ref()
        .map(|listener| listener.address(&InterfaceFilter::default()).unwrap());
    listeners.map(|listener| {
        TcpTransport::new(listener, addresses.to_vec(), TcpSettings::default()).unwrap()
    })
}

#[test]
fn notes_that_come_too_late_are_taken() {
    let [first, mut second] = ranks();
    let no_device = Err("none".to_owned());
    let mut first = RdmaTransport::new(first, no_device, RdmaSettings::default()).unwrap();
    second.begin(exchange::GROUP, 0, NOTES);
    let refused = exchange::encode(&Err("too late".into()));
    let notes = Staging::new(NOTE);
    notes.memory().write(&refused);
    // The second's no is followed by notes on a decision that is made, and by one of a round long ago.
    let stages = [Stage::Offer, Stage::Fault, Stage::Broken];
    let keys = stages.map(|stage| stage.key(0)).into_iter();
    let old = Stage::Verdict.key(0_u32.wrapping_sub(3));
    for key in keys.chain([old]) {
        second.send(0, key, notes.memory(), 0).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut events = Vec::new();
    let mut sent = 0;
    let is_settled = |first: &RdmaTransport| matches!(first.peers[1].route, Route::Tcp);
    while sent < 4 || !is_settled(&first) || !first.tcp.unasked(exchange::GROUP, 0).is_empty() {
        assert!(
            Instant::now() < deadline,
            "{sent} sent, left {:?}",
            first.tcp.unasked(exchange::GROUP, 0)
        );
        first.poll(Instant::now(), &mut events);
        second.poll(Instant::now(), &mut events);
        let is_sent = |event: &Event| matches!(event, Event::Sent { .. });
        sent += events.drain(..).filter(is_sent).count();
    }
}
