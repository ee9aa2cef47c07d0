//! What the hosts of a job reach between each other.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ringway::{Builder, Communicator, DataType, bootstrap::Launch};
use ringway_fabric::{opponent, turns};

use super::{
    cluster::{median, racks},
    file::{Found, Links, by_lldp},
    look::Host,
};

/// An exchange takes about so long.
const EXCHANGE: Duration = Duration::from_millis(60);

/// Bytes of an exchange, in each direction.
const BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=64 << 20;

/// More hosts would take minutes.
const MOST_HOSTS: usize = 64;

/// Messages there and back, for the latency.
const ROUNDS: usize = 10;

/// Bytes of a name.
const NAME: usize = 64;

/// The most cards of a host whose switches are told.
const RAILS: usize = 8;

/// What a rank says of its host: its name, and those of its cards' switches.
type Card = [u8; (1 + RAILS) * NAME];

/// Measures, as all ranks of a job; what was found is rank 0's.
pub(super) fn measure(launch: Launch, host: Host) -> Result<Option<Found>> {
    let comm = Builder::default().launch(launch).connect()?;
    let cards = cards(&comm, &host)?;
    let (mut names, mut leaders, mut switches) = (Vec::new(), Vec::new(), Vec::new());
    for (rank, card) in cards.iter().enumerate() {
        let mut texts = card.chunks_exact(NAME).map(text);
        let name = texts.next().unwrap_or_default();
        if !names.contains(&name) {
            names.push(name);
            leaders.push(rank);
            let rails = host.rails().len().clamp(1, RAILS);
            switches.push(texts.take(rails).collect());
        }
    }
    let hosts = names.len();
    if !(2..=MOST_HOSTS).contains(&hosts) {
        bail!("{hosts} hosts; expected 2 to {MOST_HOSTS} to measure between, or --here");
    }
    let rate = comm.machine().inter().rate();
    let bytes = (rate * EXCHANGE.as_secs_f64()) as usize;
    let field = Field {
        comm: &comm,
        leaders: &leaders,
        bytes: bytes.clamp(*BYTES.start(), *BYTES.end()),
    };
    let matrix = field.matrix()?;
    comm.barrier()?;
    if comm.rank() > 0 {
        return Ok(None);
    }
    let rates: Vec<Vec<f64>> = matrix
        .iter()
        .map(|row| row.iter().map(|p| p.0).collect())
        .collect();
    // Of more cards than are told, all are taken to be at the first one's leaf.
    let named = by_lldp(&switches).filter(|_| host.rails().len() <= RAILS);
    let at_one = |racks: Vec<usize>| -> Vec<Vec<usize>> {
        let rails = host.rails().len().max(1);
        racks.into_iter().map(|rack| vec![rack; rails]).collect()
    };
    let (leaves, leaves_are) = match named {
        Some(leaves) => (leaves, "read, by LLDP"),
        None => match racks(&rates) {
            Some(racks) => (
                at_one(racks),
                "measured: pairs of a rack were quicker while all exchanged messages",
            ),
            None => (
                at_one(vec![0; hosts]),
                "guessed: no pair was clearly quicker than others",
            ),
        },
    };
    let racks: Vec<usize> = leaves.iter().map(|cards| cards[0]).collect();
    let pairs = || (0..hosts).flat_map(|a| (0..a).map(move |b| (a, b)));
    let both = |within: bool| -> Vec<f64> {
        pairs()
            .filter(|&(a, b)| (racks[a] == racks[b]) == within)
            .map(|(a, b)| rates[a][b].min(rates[b][a]))
            .collect()
    };
    let within = median(both(true));
    let across = median(both(false));
    let latencies: Vec<f64> = pairs().map(|(a, b)| matrix[a][b].1).collect();
    // There are a link up and one down, at least.
    let latency = median(latencies) / 2.0;
    let links = Links {
        rate: 8.0 * if within > 0.0 { within } else { across },
        rate_is: "measured: what messages get of them",
        latency,
        latency_is: "measured, with what the hosts' own processors take",
        upwards: (across > 0.0).then_some(8.0 * across),
    };
    Ok(Some(Found {
        names,
        leaves,
        leaves_are,
        links,
        host,
    }))
}

fn cards(comm: &Communicator, host: &Host) -> Result<Vec<Card>> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").context("the host's name")?;
    let mut mine = [0; (1 + RAILS) * NAME];
    let switches = host.rails().iter().map(|nic| nic.switch.as_deref());
    let texts = std::iter::once(name.trim()).chain(switches.map(Option::unwrap_or_default));
    for (place, text) in mine.chunks_exact_mut(NAME).zip(texts) {
        let text = &text.as_bytes()[..text.floor_char_boundary(NAME)];
        place[..text.len()].copy_from_slice(text);
    }
    let mut all = vec![0; comm.size() * mine.len()];
    comm.all_gather(&mine, &mut all)?;
    let (cards, _) = all.as_chunks::<{ (1 + RAILS) * NAME }>();
    Ok(cards.to_vec())
}

fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches('\0').to_owned()
}

/// One rank of each host.
struct Field<'a> {
    comm: &'a Communicator,
    leaders: &'a [usize],
    bytes: usize,
}

impl Field<'_> {
    /// Bytes per second and seconds one way between each two hosts, on all ranks.
    fn matrix(&self) -> Result<Vec<Vec<(f64, f64)>>> {
        let hosts = self.leaders.len();
        let me = self
            .leaders
            .iter()
            .position(|&rank| rank == self.comm.rank());
        let mut mine = vec![0.0_f64; 2 * hosts];
        for turn in 0..turns(hosts) {
            self.comm.barrier()?;
            let peer = me.and_then(|me| opponent(hosts, turn, me));
            let pair = me.zip(peer);
            if let Some((me, peer)) = pair {
                mine[2 * peer + 1] = self.latency(me < peer, self.leaders[peer])?;
            }
            // All exchange at once: links that pairs share are full then.
            self.comm.barrier()?;
            if let Some((_, peer)) = pair {
                mine[2 * peer] = self.rate(self.leaders[peer])?;
            }
        }
        let mut all = vec![0.0; self.comm.size() * mine.len()];
        self.comm.all_gather(&mine, &mut all)?;
        let row = |&rank: &usize| {
            let row = &all[rank * mine.len()..][..mine.len()];
            row.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
        };
        Ok(self.leaders.iter().map(row).collect())
    }

    fn message(&self, bytes: usize, peer: usize, is_sent: bool) -> Result<()> {
        let buffer = self.comm.allocate::<u8>(bytes)?;
        let memory = buffer.handle();
        let work = match is_sent {
            true => self.comm.start_send(memory, DataType::U8, peer, 0, None)?,
            false => self.comm.start_recv(memory, DataType::U8, peer, 0, None)?,
        };
        work.wait()?;
        Ok(())
    }

    /// Seconds one way; the least of some.
    fn latency(&self, first: bool, peer: usize) -> Result<f64> {
        let mut least = f64::INFINITY;
        for _ in 0..ROUNDS {
            let began = Instant::now();
            self.message(8, peer, first)?;
            self.message(8, peer, !first)?;
            least = least.min(began.elapsed().as_secs_f64() / 2.0);
        }
        Ok(least)
    }

    /// Bytes per second in each direction, both at once. What was in buckets and windows before is used up by a part that
    /// does not count.
    fn rate(&self, peer: usize) -> Result<f64> {
        let mut took = Duration::ZERO;
        for bytes in [self.bytes / 4, self.bytes] {
            let (out, into) = (
                self.comm.allocate::<u8>(bytes)?,
                self.comm.allocate::<u8>(bytes)?,
            );
            let began = Instant::now();
            let send = self
                .comm
                .start_send(out.handle(), DataType::U8, peer, 0, None)?;
            let receive = self
                .comm
                .start_recv(into.handle(), DataType::U8, peer, 0, None)?;
            send.wait()?;
            receive.wait()?;
            took = began.elapsed();
        }
        Ok(self.bytes as f64 / took.as_secs_f64().max(1e-9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_where_they_end() {
        assert_eq!(text(b"leaf\0\0"), "leaf");
    }
}
