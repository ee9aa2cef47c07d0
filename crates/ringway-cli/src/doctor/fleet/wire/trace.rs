//! The routers on the way to another host, by source port: equal ways of a fabric differ in nothing else that an end can see.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use ringway_doctor::fleet::Flow;
use ringway_sys::{Epoll, Interest, datagram::DatagramSocket};

use super::{
    MARK,
    ask::Line,
    message::{HEAD, Message},
};

/// The most routers that are looked for: two more than leaf, spine, core, spine, leaf, and one for good measure.
const MOST: u8 = 8;

/// How long the reports of routers are waited for. They limit how many they send: Linux six at once, then one a second.
const PATIENCE: Duration = Duration::from_millis(150);

impl Line<'_> {
    /// Sends a datagram by each of the sockets that ends at the first router, then one that ends at the second, until all
    /// arrive, and writes down who reports it.
    pub(super) fn trace(&mut self, sockets: &[DatagramSocket], flows: &mut [Flow]) {
        let Ok(epoll) = Epoll::new() else { return };
        for (i, socket) in sockets.iter().enumerate() {
            let kept = socket.keep_reports();
            if kept.is_err() || epoll.add(socket, i as u64, Interest::Read).is_err() {
                return;
            }
        }
        let mut arrived = vec![false; sockets.len()];
        let mut silent = 0;
        for limit in 1..=MOST {
            let open: Vec<usize> = (0..sockets.len()).filter(|&i| !arrived[i]).collect();
            let reports = self.wave(&epoll, sockets, &open, limit, &mut arrived);
            if open.iter().all(|&i| arrived[i]) {
                break;
            }
            for &i in open.iter().filter(|&&i| !arrived[i]) {
                flows[i].hops.push(reports[i].clone());
            }
            // Two routers in a row that say nothing: those behind will not, either, or there are none.
            let heard = reports.iter().any(Option::is_some) || open.iter().any(|&i| arrived[i]);
            silent = if heard { 0 } else { silent + 1 };
            if silent == 2 {
                break;
            }
        }
        for flow in flows {
            while flow.hops.last() == Some(&None) {
                flow.hops.pop();
            }
        }
    }

    /// One datagram by each open socket with this limit. Returns the routers that have reported one, by socket.
    fn wave(
        &mut self,
        epoll: &Epoll,
        sockets: &[DatagramSocket],
        open: &[usize],
        limit: u8,
        arrived: &mut [bool],
    ) -> Vec<Option<String>> {
        self.trains += 1;
        let message = Message {
            tos: MARK,
            token: self.peer.token,
            train: self.trains,
            ..Message::default()
        };
        for &i in open {
            if sockets[i].limit_hops(limit).is_ok() {
                // What is not sent is not reported.
                let _ = self.send(&sockets[i], &message, HEAD);
            }
        }
        let mut reports: Vec<Option<String>> = vec![None; sockets.len()];
        let end = Instant::now() + PATIENCE;
        let mut ready = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let all = open.iter().all(|&i| arrived[i] || reports[i].is_some());
            if all || left.is_zero() {
                return reports;
            }
            ready.clear();
            if epoll.wait(&mut ready, Some(left)).is_err() {
                return reports;
            }
            for which in ready.iter().filter_map(|&it| usize::try_from(it).ok()) {
                let socket = &sockets[which];
                while let Ok(Some(router)) = socket.expired() {
                    reports[which] = Some(router.to_string());
                }
                let of_this = |answer: &Message| answer.train == message.train;
                arrived[which] |= self.answers(socket).iter().any(of_this);
            }
        }
    }

    /// The answers that have come.
    fn answers(&mut self, socket: &DatagramSocket) -> Vec<Message> {
        let mut found = Vec::new();
        let from = SocketAddr::new(self.to.ip, self.to.port);
        // An error is a report that was taken meanwhile: nothing is there.
        while self.arrivals.receive(socket).is_ok_and(|count| count > 0) {
            let incoming = self.arrivals.iter().filter(|it| it.from == from);
            let messages = incoming
                .flat_map(|it| it.datagrams())
                .filter_map(Message::decode);
            found.extend(messages.filter(|it| it.answer && it.token == self.peer.token));
        }
        found
    }
}
