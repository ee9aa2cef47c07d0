//! The rendezvous without its sockets: who has come, what was left, who waits for what.
//!
//! Requests and the passing of time go in (`handle_*`), replies come out ([`Book::poll_reply`]). Time is an
//! argument.

use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

use ringway_plan::Rank;

use super::wire::{Join, Reply, Request};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Guest {
    /// A call of rank 0's own.
    Local(u64),
    /// A connection.
    Remote(u64),
}

/// Remarks about those who did not get in, at most.
const MOST_REMARKS: usize = 8;

/// Bytes of all values in the store, at most: strangers must not fill rank 0's memory.
const MOST_STORED: usize = 1 << 28;

pub(super) struct Book {
    /// What rank 0 itself was started as.
    host: Join,
    seats: Vec<Option<Seat>>,
    /// Whether all have come. Seats do not change any more.
    complete: bool,
    values: HashMap<String, Vec<u8>>,
    stored: usize,
    waiting: Vec<Waiting>,
    replies: VecDeque<(Guest, Reply)>,
    remarks: Vec<String>,
}

struct Seat {
    join: Join,
    guest: Guest,
}

struct Waiting {
    guest: Guest,
    until: Instant,
    /// The key that it waits for; none: for all to have come.
    key: Option<String>,
}

impl Book {
    pub(super) fn new(host: Join) -> Self {
        Self {
            seats: (0..host.size).map(|_| None).collect(),
            host,
            complete: false,
            values: HashMap::new(),
            stored: 0,
            waiting: Vec::new(),
            replies: VecDeque::new(),
            remarks: Vec::new(),
        }
    }

    /// A request has come.
    pub(super) fn handle_request(&mut self, guest: Guest, request: Request, now: Instant) {
        match request {
            Request::Join { join, wait } => match self.admit(guest, join) {
                Ok(()) => {
                    self.waiting.push(Waiting {
                        guest,
                        until: now + wait,
                        key: None,
                    });
                    self.announce();
                }
                Err(reply) => self.replies.push_back((guest, reply)),
            },
            Request::Set { key, value } => {
                let reply = self.set(key, value);
                self.replies.push_back((guest, reply));
            }
            Request::Get { key, wait } => match self.values.get(&key) {
                Some(value) => self.replies.push_back((guest, Reply::Value(value.clone()))),
                None => self.waiting.push(Waiting {
                    guest,
                    until: now + wait,
                    key: Some(key),
                }),
            },
        }
    }

    /// A guest has hung up before it had its reply.
    pub(super) fn handle_gone(&mut self, guest: Guest) {
        self.waiting.retain(|waiting| waiting.guest != guest);
        if self.complete {
            return;
        }
        for seat in &mut self.seats {
            if seat.as_ref().is_some_and(|seat| seat.guest == guest)
                && let Some(left) = seat.take()
            {
                self.remarks
                    .push(format!("{} had come and went away", left.join.member));
            }
        }
        self.remarks.truncate(MOST_REMARKS);
    }

    /// It is now so late. The first rank that gives up waiting for the others leaves, and then no world can come
    /// about: all who wait for it are told the same.
    pub(super) fn handle_time(&mut self, now: Instant) {
        let fails = self
            .waiting
            .iter()
            .any(|waiting| waiting.key.is_none() && waiting.until <= now);
        let over = |w: &mut Waiting| w.until <= now || (fails && w.key.is_none());
        let late = self.waiting.extract_if(.., over).collect();
        self.give_up(late);
    }

    /// Nobody will come any more.
    pub(super) fn handle_close(&mut self) {
        let all = std::mem::take(&mut self.waiting);
        self.give_up(all);
    }

    fn give_up(&mut self, late: Vec<Waiting>) {
        for waiting in late {
            let reply = match waiting.key {
                Some(_) => Reply::Absent,
                None => Reply::Missing {
                    ranks: self.missing(),
                    note: self.remarks.join("; "),
                },
            };
            self.replies.push_back((waiting.guest, reply));
        }
    }

    /// When [`Book::handle_time`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }

    /// The next reply to send.
    pub(super) fn poll_reply(&mut self) -> Option<(Guest, Reply)> {
        self.replies.pop_front()
    }

    /// The ranks that have not come.
    pub(super) fn missing(&self) -> Vec<Rank> {
        (0..self.seats.len())
            .filter(|&rank| self.seats[rank].is_none())
            .collect()
    }

    /// Gives a rank its seat, or says why not.
    fn admit(&mut self, guest: Guest, join: Join) -> Result<(), Reply> {
        let host = &self.host;
        let rank = join.member.rank;
        let reason = if join.software != host.software {
            format!(
                "{} runs Ringway {}, and {} runs {}: install the same Ringway everywhere",
                join.member, join.software, host.member, host.software
            )
        } else if join.job != host.job {
            format!(
                "it belongs to job `{}`, and the rendezvous is of job `{}`: give each job a master port of its own",
                join.job, host.job
            )
        } else if join.size != host.size || rank >= host.size {
            format!(
                "{} was started in a world of {} ranks, and {} in one of {}: start all ranks with the same world size",
                join.member, join.size, host.member, host.size
            )
        } else {
            return self.take_seat(guest, join);
        };
        if self.remarks.len() < MOST_REMARKS {
            self.remarks
                .push(format!("refused {}: {reason}", join.member));
        }
        Err(Reply::Refused { reason })
    }

    fn take_seat(&mut self, guest: Guest, join: Join) -> Result<(), Reply> {
        let rank = join.member.rank;
        match &mut self.seats[rank] {
            Some(seat) if seat.join.member.instance() != join.member.instance() => {
                tracing::warn!(first = %seat.join.member, second = %join.member, "two processes with one rank");
                Err(Reply::Duplicate {
                    first: seat.join.member.to_string(),
                })
            }
            // It asks again, because its connection broke.
            Some(seat) => {
                seat.guest = guest;
                Ok(())
            }
            empty => {
                *empty = Some(Seat { join, guest });
                self.complete = self.seats.iter().all(Option::is_some);
                Ok(())
            }
        }
    }

    /// If all have come, tells all who wait for that.
    fn announce(&mut self) {
        if !self.complete {
            return;
        }
        let members = self
            .seats
            .iter()
            .flatten()
            .map(|seat| seat.join.member.clone());
        let world = Reply::World(members.collect());
        for waiting in self.waiting.extract_if(.., |waiting| waiting.key.is_none()) {
            self.replies.push_back((waiting.guest, world.clone()));
        }
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> Reply {
        let size = key.len() + value.len();
        // A value that is replaced makes room.
        let old = self.values.get(&key).map_or(0, |old| key.len() + old.len());
        if self.stored - old + size > MOST_STORED {
            return Reply::Refused {
                reason: format!("the store has {MOST_STORED} bytes already"),
            };
        }
        self.stored = self.stored - old + size;
        for waiting in self
            .waiting
            .extract_if(.., |w| w.key.as_ref() == Some(&key))
        {
            self.replies
                .push_back((waiting.guest, Reply::Value(value.clone())));
        }
        self.values.insert(key, value);
        Reply::Done
    }
}

/// What is to hold for any order of requests, hang-ups and time: nobody is answered twice, and nobody waits on after
/// the end. Each four bytes of the script are one happening.
#[cfg(any(test, fuzzing))]
pub(super) fn check(script: &[u8]) {
    use std::time::Duration;

    let join = |rank: u8, nonce: u8| {
        let rank = Rank::from(rank);
        let member = super::Member {
            rank,
            host: "host".into(),
            host_id: super::HostId(1),
            pid: 1,
            address: ringway_link::PeerAddress {
                nonce: nonce.into(),
                ..ringway_link::PeerAddress::at(rank, 1, [])
            },
            has_nic: false,
        };
        Join {
            software: "1".into(),
            job: "j".into(),
            size: 3,
            member,
        }
    };
    let mut book = Book::new(join(0, 0));
    let mut now = Instant::now();
    // Of each guest: how many replies it is owed.
    let mut owed = [0_usize; 8];
    let settle = |book: &mut Book, owed: &mut [usize; 8]| {
        while let Some((Guest::Remote(guest) | Guest::Local(guest), _)) = book.poll_reply() {
            let owed = &mut owed[usize::try_from(guest).unwrap_or(usize::MAX)];
            assert!(*owed > 0, "guest {guest} is answered without having asked");
            *owed -= 1;
        }
        let stored: usize = book.values.iter().map(|(k, v)| k.len() + v.len()).sum();
        assert_eq!(book.stored, stored);
    };
    for happening in script.chunks_exact(4) {
        let [what, who, a, b] = [happening[0], happening[1] % 8, happening[2], happening[3]];
        let guest = Guest::Remote(who.into());
        let wait = Duration::from_millis(b.into());
        let key = String::from(char::from(b'a' + a % 3));
        let request = match what % 6 {
            0 => Request::Join {
                join: join(a % 4, b % 2),
                wait,
            },
            1 => Request::Set {
                key,
                value: vec![b; b.into()],
            },
            2 => Request::Get { key, wait },
            3 => {
                book.handle_gone(guest);
                settle(&mut book, &mut owed);
                owed[usize::from(who)] = 0;
                continue;
            }
            4 => {
                now += Duration::from_millis(a.into());
                book.handle_time(now);
                assert!(book.poll_timeout().is_none_or(|next| next > now));
                settle(&mut book, &mut owed);
                continue;
            }
            _ => {
                book.handle_close();
                settle(&mut book, &mut owed);
                assert_eq!(owed, [0; 8]);
                continue;
            }
        };
        owed[usize::from(who)] += 1;
        book.handle_request(guest, request, now);
        settle(&mut book, &mut owed);
    }
    book.handle_close();
    settle(&mut book, &mut owed);
    assert_eq!(owed, [0; 8], "somebody waits for ever");
    assert_eq!(book.poll_timeout(), None);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use ringway_link::PeerAddress;

    use super::*;
    use crate::bootstrap::{HostId, Member};

    fn join(rank: Rank, nonce: u64) -> Request {
        let address = PeerAddress {
            nonce,
            ..PeerAddress::at(rank, 1, [])
        };
        let member = Member {
            rank,
            host: format!("host{nonce}"),
            host_id: HostId(1),
            pid: 7,
            address,
            has_nic: false,
        };
        let join = Join {
            software: "1".into(),
            job: "j".into(),
            size: 3,
            member,
        };
        Request::Join {
            join,
            wait: Duration::from_secs(10),
        }
    }

    fn book() -> Book {
        let Request::Join { join, .. } = join(0, 10) else {
            unreachable!("made as one")
        };
        Book::new(join)
    }

    fn replies(book: &mut Book) -> Vec<(Guest, Reply)> {
        std::iter::from_fn(|| book.poll_reply()).collect()
    }

    const fn remote(n: u64) -> Guest {
        Guest::Remote(n)
    }

    #[test]
    fn the_last_to_come_lets_all_go() {
        let (mut book, now) = (book(), Instant::now());
        book.handle_request(Guest::Local(0), join(0, 10), now);
        book.handle_request(remote(1), join(2, 12), now);
        assert!(replies(&mut book).is_empty());
        book.handle_request(remote(2), join(1, 11), now);
        let all = replies(&mut book);
        assert_eq!(
            all.iter().map(|(guest, _)| *guest).collect::<Vec<_>>(),
            [Guest::Local(0), remote(1), remote(2)]
        );
        for (_, reply) in all {
            let Reply::World(members) = reply else {
                panic!("{reply:?}")
            };
            assert_eq!(
                members.iter().map(Member::instance).collect::<Vec<_>>(),
                [10, 11, 12]
            );
        }
        // Who asks again, because the answer was lost, gets it again; others come too late.
        book.handle_request(remote(3), join(1, 11), now);
        assert!(matches!(replies(&mut book)[..], [(_, Reply::World(_))]));
        book.handle_request(remote(4), join(1, 99), now);
        assert!(
            matches!(&replies(&mut book)[..], [(_, Reply::Duplicate { first })] if first.contains("host11"))
        );
    }

    #[test]
    fn who_hangs_up_gives_its_seat_free() {
        let (mut book, now) = (book(), Instant::now());
        book.handle_request(Guest::Local(0), join(0, 10), now);
        book.handle_request(remote(1), join(1, 11), now);
        book.handle_gone(remote(1));
        book.handle_request(remote(2), join(1, 21), now);
        book.handle_request(remote(3), join(2, 12), now);
        let Some((_, Reply::World(members))) = replies(&mut book).pop() else {
            panic!("no world")
        };
        assert_eq!(members[1].instance(), 21);
    }

    #[test]
    fn the_first_to_give_up_ends_the_wait_of_all() {
        let (mut book, now) = (book(), Instant::now());
        book.handle_request(remote(1), join(1, 11), now);
        book.handle_request(Guest::Local(0), join(0, 10), now + Duration::from_secs(5));
        assert_eq!(book.poll_timeout(), Some(now + Duration::from_secs(10)));
        book.handle_time(now + Duration::from_secs(9));
        assert!(replies(&mut book).is_empty());
        book.handle_time(now + Duration::from_secs(10));
        let missing = Reply::Missing {
            ranks: vec![2],
            note: String::new(),
        };
        assert_eq!(
            replies(&mut book),
            [(remote(1), missing.clone()), (Guest::Local(0), missing)]
        );
    }

    #[test]
    fn misfits_get_no_seat_and_are_remembered() {
        let (mut book, now) = (book(), Instant::now());
        let misfit = |change: fn(&mut Join)| {
            let mut request = join(1, 11);
            if let Request::Join { join, .. } = &mut request {
                change(join);
            }
            request
        };
        for (change, part) in [
            ((|j| j.size = 4) as fn(&mut Join), "world of 4"),
            (|j| j.job = "k".into(), "job `k`"),
            (|j| j.software = "2".into(), "runs Ringway 2"),
            (|j| j.member.rank = 3, "rank 3 ("),
        ] {
            book.handle_request(remote(1), misfit(change), now);
            let all = replies(&mut book);
            assert!(
                matches!(&all[..], [(_, Reply::Refused { reason })] if reason.contains(part)),
                "{all:?}"
            );
        }
        book.handle_request(Guest::Local(0), join(0, 10), now);
        book.handle_close();
        let all = replies(&mut book);
        let [(_, Reply::Missing { ranks, note })] = &all[..] else {
            panic!("{all:?}")
        };
        assert_eq!(ranks, &[1, 2]);
        assert!(
            note.contains("world of 4") && note.contains("job `k`"),
            "{note}"
        );
    }

    #[test]
    fn values_are_kept_up_to_a_limit_and_waited_for() {
        let (mut book, now) = (book(), Instant::now());
        let get = |wait| Request::Get {
            key: "k".into(),
            wait: Duration::from_secs(wait),
        };
        book.handle_request(remote(1), get(5), now);
        book.handle_request(remote(2), get(1), now);
        book.handle_time(now + Duration::from_secs(1));
        assert_eq!(replies(&mut book), [(remote(2), Reply::Absent)]);
        let set = |value| Request::Set {
            key: "k".into(),
            value,
        };
        book.handle_request(remote(3), set(vec![1]), now);
        assert_eq!(
            replies(&mut book),
            [(remote(1), Reply::Value(vec![1])), (remote(3), Reply::Done)]
        );
        book.handle_request(remote(4), set(vec![0; MOST_STORED]), now);
        assert!(matches!(
            replies(&mut book)[..],
            [(_, Reply::Refused { .. })]
        ));
    }

    proptest! {
        #[test]
        fn any_order_of_guests_is_answered(script in proptest::collection::vec(any::<u8>(), 0..400)) {
            check(&script);
        }
    }

    #[test]
    fn a_value_that_is_replaced_makes_room() {
        let (mut book, now) = (book(), Instant::now());
        for _ in 0..2 * MOST_STORED / (1 << 20) {
            let request = Request::Set {
                key: "k".into(),
                value: vec![0; 1 << 20],
            };
            book.handle_request(remote(1), request, now);
            assert_eq!(book.poll_reply(), Some((remote(1), Reply::Done)));
        }
    }
}
