//! The executors of all ranks on modelled machines, in virtual time.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{Link, Machine, Time};
use crate::{
    executor::{Action, ActionId, Executor},
    generate::Topology,
    key_map::KeyMap,
    layout::Layout,
    schedule::{Collective, Rank},
    verify::{Memory, Verified},
};

/// A vector is cut in no more slices than this divided by the ranks, or 32 if that is more; each then stands for
/// several. A pipeline over h ranks that is cut in s slices takes longer by h / s, so that at most 1 % is lost
/// among 6 ranks, and an operation among many stays quick to predict.
const SLICES: usize = 4096;

/// From, to, lane, message, slice.
type Key = (Rank, Rank, u16, u32, u32);

/// A message of which one side has started.
#[derive(Clone, Copy)]
struct Half {
    id: ActionId,
    since: Time,
    /// Of a send: its number among the rank's.
    number: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Both sides of a message have started.
    Meets {
        from: Rank,
        to: Rank,
        len: usize,
        sent: ActionId,
        wanted: ActionId,
    },
    /// A message reaches its receiver's port.
    Arrives {
        to: Rank,
        port: usize,
        id: ActionId,
        takes: Time,
    },
    /// An action of a rank is done.
    Done { rank: Rank, id: ActionId },
}

struct Drive<'a> {
    machine: &'a Machine,
    executors: Vec<Executor>,
    hosts: Vec<usize>,
    /// The network card of each rank, as a port.
    cards: Vec<usize>,
    /// When each port, of ranks and of cards, has sent and received what it must so far.
    sending: Vec<Time>,
    receiving: Vec<Time>,
    /// When each rank's processor is free.
    processors: Vec<Time>,
    halves: KeyMap<Key, Half>,
    /// What happens when; the second number keeps the order of equal times.
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    count: u64,
    /// How many sends each rank has started.
    sends: Vec<u64>,
}

/// Runs `schedule` to its end, and says when that is.
pub(super) fn run(
    schedule: &Verified,
    bytes: usize,
    topology: &Topology,
    machine: &Machine,
) -> Time {
    let n = schedule.ranks();
    let parted = !matches!(
        schedule.collective,
        Collective::AllReduce | Collective::Broadcast { .. } | Collective::Reduce { .. }
    );
    let bytes = if parted {
        bytes.next_multiple_of(n)
    } else {
        bytes
    };
    let slice_bytes = machine
        .slice_bytes
        .max(bytes.div_ceil((SLICES / n).max(32)))
        .next_multiple_of(8);
    let executor = |rank: Rank| {
        let (collective, chunks) = (schedule.collective, schedule.chunks);
        let program = &schedule.programs[rank];
        let layout = Layout::even(collective, program, n, chunks, rank, bytes, 1);
        Executor::new(schedule, rank, &layout, slice_bytes, Memory::Apart)
    };
    let (mut hosts, mut cards) = (vec![0; n], (0..n).collect::<Vec<_>>());
    for (host, members) in topology.hosts().into_iter().enumerate() {
        for (i, rank) in members
            .into_iter()
            .enumerate()
            .filter(|&(_, rank)| rank < n)
        {
            hosts[rank] = host;
            cards[rank] = n + host * machine.cards + i % machine.cards;
        }
    }
    let ports = cards.iter().max().map_or(0, |last| last + 1);
    // What is compiled once does for all ranks, where all do the same.
    let model = executor(0);
    let mut drive = Drive {
        machine,
        executors: (0..n)
            .map(|rank| model.turned(rank).unwrap_or_else(|| executor(rank)))
            .collect(),
        hosts,
        cards,
        sending: vec![Time::default(); ports],
        receiving: vec![Time::default(); ports],
        processors: vec![Time::default(); n],
        halves: KeyMap::default(),
        events: BinaryHeap::new(),
        count: 0,
        sends: vec![0; n],
    };
    for rank in 0..n {
        drive.poll(rank, Time::default());
    }
    let mut end = Time::default();
    while let Some(Reverse((now, _, event))) = drive.events.pop() {
        end = end.max(now);
        match event {
            Event::Meets {
                from,
                to,
                len,
                sent,
                wanted,
            } => drive.transfer(now, from, to, len, sent, wanted),
            Event::Arrives {
                to,
                port,
                id,
                takes,
            } => {
                drive.receiving[port] = drive.receiving[port].max(now) + takes;
                drive.at(drive.receiving[port], Event::Done { rank: to, id });
            }
            Event::Done { rank, id } => {
                drive.executors[rank].handle_done(id);
                drive.poll(rank, now);
            }
        }
    }
    end
}

impl Drive<'_> {
    /// Starts all that a rank may start now.
    fn poll(&mut self, rank: Rank, now: Time) {
        while let Some(action) = self.executors[rank].poll() {
            match action {
                Action::Send {
                    id,
                    peer,
                    lane,
                    message,
                    slice,
                    src,
                } => {
                    let key = (rank, peer, lane, message, slice);
                    self.sends[rank] += 1;
                    let sent = Half {
                        id,
                        since: now,
                        number: self.sends[rank],
                    };
                    match self.halves.remove(&key) {
                        Some(wanted) => self.meet(key, src.len, sent, wanted),
                        None => drop(self.halves.insert(key, sent)),
                    }
                }
                Action::Recv {
                    id,
                    peer,
                    lane,
                    message,
                    slice,
                    dst,
                } => {
                    let wanted = Half {
                        id,
                        since: now,
                        number: 0,
                    };
                    self.receive((peer, rank, lane, message, slice), dst.len, wanted);
                }
                Action::View {
                    id,
                    peer,
                    lane,
                    message,
                    slice,
                    len,
                    ..
                } => {
                    let wanted = Half {
                        id,
                        since: now,
                        number: 0,
                    };
                    self.receive((peer, rank, lane, message, slice), len, wanted);
                }
                Action::Combine { id, dst, .. }
                | Action::Copy { id, dst, .. }
                | Action::Reduce { id, dst, .. } => {
                    let start = now.max(self.processors[rank]);
                    let done = start.reduction(self.machine.reduction(dst.len as u64));
                    self.processors[rank] = done;
                    self.at(done, Event::Done { rank, id });
                }
            }
        }
    }

    fn receive(&mut self, key: Key, len: usize, wanted: Half) {
        match self.halves.remove(&key) {
            Some(sent) => self.meet(key, len, sent, wanted),
            None => drop(self.halves.insert(key, wanted)),
        }
    }

    /// Of messages that meet at the same time, a rank sends first what it started first.
    fn meet(&mut self, (from, to, ..): Key, len: usize, sent: Half, wanted: Half) {
        let event = Event::Meets {
            from,
            to,
            len,
            sent: sent.id,
            wanted: wanted.id,
        };
        let last = 1 << 48;
        self.events.push(Reverse((
            sent.since.max(wanted.since),
            last + sent.number,
            event,
        )));
    }

    fn transfer(
        &mut self,
        now: Time,
        from: Rank,
        to: Rank,
        len: usize,
        sent: ActionId,
        wanted: ActionId,
    ) {
        let (link, out, into) = match self.hosts[from] == self.hosts[to] {
            true => (self.machine.intra, from, to),
            false => (self.machine.inter, self.cards[from], self.cards[to]),
        };
        let Link {
            latency, overhead, ..
        } = link;
        let slices = len.div_ceil(self.machine.slice_bytes).max(1) as u64;
        let takes = Time::default()
            .latency(slices * overhead)
            .wire(link.wire(len as u64));
        let mut start = now.max(self.sending[out]);
        if link.by_processor {
            start = start.max(self.processors[from]);
            self.processors[from] = start + takes;
        }
        self.sending[out] = start + takes;
        self.at(
            self.sending[out],
            Event::Done {
                rank: from,
                id: sent,
            },
        );
        let arrives = Event::Arrives {
            to,
            port: into,
            id: wanted,
            takes,
        };
        self.at(start.latency(latency), arrives);
    }

    fn at(&mut self, when: Time, event: Event) {
        self.events.push(Reverse((when, self.count, event)));
        self.count += 1;
    }
}
