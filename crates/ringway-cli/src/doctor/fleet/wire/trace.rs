//! The routers on the way to another host, by source port: equal ways of a fabric differ in nothing else that an end can see.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use ringway_doctor::fleet::{
    Flow,
    datagram::{HEAD, Message},
};
use ringway_sys::{Epoll, Expired, Interest, datagram::DatagramSocket};

use super::{MARK, ask::Line};

/// The most routers that are looked for: two more than leaf, spine, core, spine, leaf, and one for good measure.
const MOST: usize = 8;

/// How long the reports of routers are waited for. They limit how many they send: Linux six at once, then one a second.
const PATIENCE: Duration = Duration::from_millis(150);

/// What is known of the ways.
struct Ways {
    /// The name that the datagrams of each hop limit had.
    trains: Vec<u64>,
    /// By socket, and by hop limit.
    routers: Vec<[Option<String>; MOST]>,
    /// The sockets whose datagrams arrive.
    arrived: Vec<bool>,
    /// Whether a router has said anything since it was last asked.
    heard: bool,
}

impl Ways {
    /// Takes a report for the datagram that the router sends back, however late it is; for the last one if it sends back too
    /// little to tell.
    fn take(&mut self, socket: usize, report: &Expired) {
        let asked = Message::decode(&report.payload);
        let hop = match asked {
            Some(asked) => self.trains.iter().position(|it| *it == asked.train),
            None => self.trains.len().checked_sub(1),
        };
        if let Some(hop) = hop {
            self.routers[socket][hop].get_or_insert_with(|| report.router.to_string());
            self.heard = true;
        }
    }
}

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
        let mut ways = Ways {
            trains: Vec::new(),
            routers: vec![Default::default(); sockets.len()],
            arrived: vec![false; sockets.len()],
            heard: false,
        };
        // How many routers each socket's datagrams have passed or ended at.
        let mut passed = vec![0; sockets.len()];
        let mut silent = 0;
        while ways.trains.len() < MOST && silent < 2 && self.goes_on() {
            let before = ways.arrived.clone();
            self.wave(&epoll, sockets, &mut ways);
            for (passed, arrived) in passed.iter_mut().zip(&ways.arrived) {
                *passed += usize::from(!arrived);
            }
            if ways.arrived.iter().all(|it| *it) {
                break;
            }
            // Two routers in a row that say nothing: those behind will not, either, or there are none.
            silent = match ways.heard || before != ways.arrived {
                true => 0,
                false => silent + 1,
            };
        }
        let known = |ways: &Ways| {
            let mut flows = ways.routers.iter().zip(&passed);
            flows.all(|(routers, &passed)| routers[..passed].iter().all(Option::is_some))
        };
        self.listen_all(&epoll, sockets, &mut ways, known);
        for ((flow, routers), passed) in flows.iter_mut().zip(ways.routers).zip(passed) {
            flow.hops = routers.into_iter().take(passed).collect();
            while flow.hops.last() == Some(&None) {
                flow.hops.pop();
            }
        }
    }

    /// One datagram by each socket whose datagrams have not arrived yet, with the next limit.
    fn wave(&mut self, epoll: &Epoll, sockets: &[DatagramSocket], ways: &mut Ways) {
        self.trains += 1;
        let message = Message {
            tos: MARK,
            token: self.peer.token,
            train: self.trains,
            ..Message::default()
        };
        let hop = ways.trains.len();
        ways.trains.push(self.trains);
        ways.heard = false;
        for (socket, _) in sockets.iter().zip(&ways.arrived).filter(|it| !it.1) {
            let limit = u8::try_from(hop + 1).unwrap_or(u8::MAX);
            if socket.limit_hops(limit).is_ok() {
                // What is not sent is not reported.
                let _ = self.send(socket, &message, HEAD);
            }
        }
        self.listen_all(epoll, sockets, ways, |ways| {
            let mut sockets = ways.arrived.iter().zip(&ways.routers);
            sockets.all(|(arrived, routers)| *arrived || routers[hop].is_some())
        });
    }

    /// Takes answers and reports until that is enough, or the time is over.
    fn listen_all(
        &mut self,
        epoll: &Epoll,
        sockets: &[DatagramSocket],
        ways: &mut Ways,
        enough: impl Fn(&Ways) -> bool,
    ) {
        let end = Instant::now() + PATIENCE;
        let mut ready = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if enough(ways) || left.is_zero() {
                return;
            }
            ready.clear();
            if epoll.wait(&mut ready, Some(left)).is_err() {
                return;
            }
            for which in ready.iter().filter_map(|&it| usize::try_from(it).ok()) {
                let socket = &sockets[which];
                while let Ok(Some(report)) = socket.expired() {
                    ways.take(which, &report);
                }
                let answers = self.answers(socket);
                let came = |answer: &Message| ways.trains.contains(&answer.train);
                ways.arrived[which] |= answers.iter().any(came);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_is_late_is_its_own_hops() {
        let mut ways = Ways {
            trains: vec![5, 6],
            routers: vec![Default::default(); 2],
            arrived: vec![false; 2],
            heard: false,
        };
        let report = |router: &str, train: Option<u64>| Expired {
            router: router.parse().unwrap(),
            payload: train.map_or(Vec::new(), |train| {
                let message = Message {
                    train,
                    ..Message::default()
                };
                message.encode(0)
            }),
        };
        // The first router's, after the second was asked; then the second's.
        ways.take(0, &report("10.0.0.1", Some(5)));
        ways.take(0, &report("10.0.0.2", Some(6)));
        // One that sends back nothing is taken for the one that was asked last, and one for something else for none.
        ways.take(1, &report("10.0.0.2", None));
        assert!(std::mem::take(&mut ways.heard));
        ways.take(1, &report("10.0.0.9", Some(4)));
        assert!(!ways.heard);
        let hops = |socket: usize| {
            let routers = ways.routers[socket][..2].iter();
            routers
                .map(|it| it.as_deref().unwrap_or("-"))
                .collect::<Vec<_>>()
        };
        assert_eq!(hops(0), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(hops(1), ["-", "10.0.0.2"]);
    }
}
