//! `ringway doctor --fleet`: all hosts of a job side by side, and the wires between them.
//!
//! Every rank looks at its host and measures its processor and memory, ranks of a machine one after the other. Then the first
//! ranks of the hosts measure the wires between them, in rounds in which no machine is in two pairs. Rank 0 gathers all of it,
//! and says what it means. What a rank does not say by its deadline is done without.

mod meeting;
mod rounds;
mod show;
mod strain;
mod wire;
mod work;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use ringway::Rank;
use ringway_doctor::{
    fleet::{Fleet, Host, Look, Missing, Pair, Path, Strain, Work},
    host::{self, Root},
};
use serde::{Deserialize, Serialize};

use meeting::Meeting;
use strain::Watch;
pub(super) use wire::Rdma;
use wire::{Address, Answerer, Peer};

/// How long a rank may take to look at its host.
const LOOK: Duration = Duration::from_secs(30);

/// How long the ranks of a machine may be behind in measuring their processor and memory, and how long each of them may take: half
/// a second, as a rule.
const WORK: Duration = Duration::from_secs(10);
const TURN: Duration = Duration::from_secs(2);

/// For how long a pair begins to measure ways between it: each takes seconds, or half a minute where packets of full size get lost.
const PAIR: Duration = Duration::from_secs(120);

/// How long a round of pairs may take.
const ROUND: Duration = Duration::from_secs(180);

/// How long a rank waits for rank 0, which may wait for others.
const LEADER: Duration = Duration::from_secs(300);

/// What a rank says of itself at first.
#[derive(Serialize, Deserialize)]
struct Hello {
    look: Look,
    /// Where the first rank of a host may be asked.
    addresses: Vec<Address>,
    stream_port: u16,
    token: u64,
}

/// What a pair has measured, and why that is not all.
type Measured = (Vec<Path>, Option<String>);

/// Errors on the wire by interface and counter.
type Errors = BTreeMap<String, BTreeMap<String, u64>>;

/// What a host has counted while the wires were measured.
#[derive(Default, Serialize, Deserialize)]
struct Counted {
    errors: Errors,
    strain: Option<Strain>,
}

/// The hosts: their ranks, in the order of their first.
struct Party {
    meeting: Meeting,
    hosts: Vec<Vec<Rank>>,
    /// This rank's host.
    here: usize,
    rdma: Rdma,
}

/// Takes part. Rank 0 prints, and has the exit code of the worst that was found.
pub(super) fn execute(json: bool, rdma: Rdma) -> Result<u8> {
    let meeting = Meeting::join()?;
    let hosts = meeting.world.hosts();
    let rank = meeting.rank();
    let here = hosts.iter().position(|ranks| ranks.contains(&rank));
    let party = Party {
        here: here.context("this rank is on no host")?,
        meeting,
        hosts,
        rdma,
    };
    let code = party.take_part(json)?;
    party.meeting.leave();
    Ok(code)
}

impl Party {
    fn take_part(&self, json: bool) -> Result<u8> {
        let meeting = &self.meeting;
        let rank = meeting.rank();
        let (report, items) = host::examine(&Root::live());
        let look = Look { report, items };
        let me = meeting.world.me();
        let answerer = if self.leader(self.here) == rank {
            let allowed: Vec<_> = me.address.addresses.iter().map(|it| it.ip).collect();
            Some(
                Answerer::start(&allowed, me.instance())
                    .context("opening the ports that others ask at")?,
            )
        } else {
            None
        };
        let hello = Hello {
            look,
            addresses: answerer
                .as_ref()
                .map(|it| it.addresses.clone())
                .unwrap_or_default(),
            stream_port: answerer.as_ref().map_or(0, Answerer::stream_port),
            token: me.instance(),
        };
        meeting.put(&format!("hello/{rank}"), &hello)?;
        // Nothing is measured before all have looked: who still starts takes processors that are measured.
        let hellos = (rank == 0).then(|| self.hellos());
        self.agree("begin", LEADER)?;
        let begin = Instant::now();
        self.work(begin)?;
        let gathered = hellos.map(|hellos| {
            let works = self.works(&hellos, begin);
            (hellos, works)
        });
        self.agree("ready", LEADER + turn(meeting.world.size()))?;
        let mut pairs = Vec::new();
        if answerer.is_some() {
            pairs = self.wires(&hello)?;
        } else {
            // All rounds together may take longer than a rank waits for rank 0.
            for turn in 0..self.rounds().len() {
                self.follow(&format!("round/{turn}"), LEADER)?;
            }
        }
        if let Some((hellos, works)) = gathered {
            let fleet = self.fleet(hellos, works, pairs);
            let shown = show::print(&fleet, json);
            meeting.put("end", &())?;
            return shown;
        }
        meeting.wait::<()>("end", 0, Instant::now() + LEADER)?;
        Ok(0)
    }

    /// The rank that measures wires for a host.
    fn leader(&self, host: usize) -> Rank {
        self.hosts[host][0]
    }

    /// The ranks of a rank's machine that measure before it, without those that are not waited for.
    fn before(&self, rank: Rank) -> Vec<Rank> {
        let members = &self.meeting.world.members;
        let machine = members[rank].host_id.machine();
        let before = members[..rank]
            .iter()
            .filter(|it| it.host_id.machine() == machine)
            .map(|it| it.rank);
        before
            .filter(|rank| self.meeting.lost(*rank).is_none())
            .collect()
    }

    /// Measures this rank's processor and memory after the ranks before it on this machine. One of them that hangs is waited for
    /// once by all of those behind it together.
    fn work(&self, begin: Instant) -> Result<()> {
        let rank = self.meeting.rank();
        for (place, before) in self.before(rank).into_iter().enumerate() {
            let key = format!("work/{before}");
            let _ = self.meeting.wait::<Work>(&key, before, begin + turn(place));
        }
        self.meeting.put(&format!("work/{rank}"), &work::measure())
    }

    /// What all ranks say of their hosts, as far as they do.
    fn hellos(&self) -> BTreeMap<Rank, Hello> {
        let deadline = Instant::now() + LOOK;
        let hello = |rank| {
            let key = format!("hello/{rank}");
            Some((rank, self.meeting.take(&key, rank, deadline)?))
        };
        let ranks = 0..self.meeting.world.size();
        ranks.filter_map(hello).collect()
    }

    /// What they say of themselves.
    fn works(&self, hellos: &BTreeMap<Rank, Hello>, begin: Instant) -> BTreeMap<Rank, Work> {
        let places: Vec<_> = hellos
            .keys()
            .map(|&rank| (rank, self.before(rank).len()))
            .collect();
        let work = |(rank, place)| {
            // A rank begins when those before it have no time left, and needs some itself.
            let deadline = begin + turn(place) + WORK;
            let key = format!("work/{rank}");
            Some((rank, self.meeting.take(&key, rank, deadline)?))
        };
        places.into_iter().filter_map(work).collect()
    }

    /// Goes on together: rank 0, which has waited for what all say, tells the others which ranks are not waited for.
    fn agree(&self, key: &str, patience: Duration) -> Result<()> {
        match self.meeting.rank() {
            0 => self.meeting.put(key, &self.lost()),
            _ => self.follow(key, patience),
        }
    }

    /// The ranks that are not waited for.
    fn lost(&self) -> Vec<Rank> {
        let ranks = 0..self.meeting.world.size();
        ranks
            .filter(|rank| self.meeting.lost(*rank).is_some())
            .collect()
    }

    /// Hears from rank 0 which ranks are not waited for.
    fn follow(&self, key: &str, patience: Duration) -> Result<()> {
        let lost: Vec<Rank> = self.meeting.wait(key, 0, Instant::now() + patience)?;
        lost.into_iter()
            .for_each(|rank| self.meeting.lose(rank, "rank 0 has lost it"));
        Ok(())
    }

    /// Which hosts measure the wires between them, round by round.
    fn rounds(&self) -> Vec<Vec<(usize, usize)>> {
        let members = &self.meeting.world.members;
        let machine = |host| members[self.leader(host)].host_id.machine();
        let machines: Vec<u64> = (0..self.hosts.len()).map(machine).collect();
        rounds::rounds(&machines)
    }

    /// Measures the wires to other hosts. On rank 0, what all have measured.
    fn wires(&self, hello: &Hello) -> Result<Vec<Pair>> {
        let meeting = &self.meeting;
        let before = wire::errors(&hello.addresses);
        let watch = Watch::start();
        let mut all = Vec::new();
        for (turn, pairs) in self.rounds().into_iter().enumerate() {
            let key = |pair: &(usize, usize)| format!("wire/{turn}/{}", pair.0);
            let begin = Instant::now();
            if let Some(pair) = pairs.iter().find(|pair| pair.0 == self.here) {
                meeting.put(&key(pair), &self.ask(&hello.addresses, pair.1))?;
            }
            if meeting.rank() != 0 {
                self.follow(&format!("round/{turn}"), LEADER)?;
                continue;
            }
            // Counted from the round's begin, as other ranks wait for this one from there, and for no longer than `LEADER`.
            let deadline = (begin + ROUND).max(Instant::now() + LOOK);
            for pair in pairs {
                let measured: Option<Measured> =
                    meeting.take(&key(&pair), self.leader(pair.0), deadline);
                let lost = || (Vec::new(), Some("its first rank is lost".to_owned()));
                let (paths, trouble) = measured.unwrap_or_else(lost);
                all.push(Pair {
                    a: pair.0,
                    b: pair.1,
                    paths,
                    trouble,
                });
            }
            meeting.put(&format!("round/{turn}"), &self.lost())?;
        }
        let mut rise = wire::errors(&hello.addresses);
        for (interface, counters) in &mut rise {
            for (counter, count) in counters {
                let then = before.get(interface).and_then(|it| it.get(counter));
                *count = count.saturating_sub(then.copied().unwrap_or(*count));
            }
        }
        let counted = Counted {
            errors: rise,
            strain: Some(watch.end()),
        };
        meeting.put(&format!("counted/{}", self.here), &counted)?;
        Ok(all)
    }

    /// The wires from here to another host.
    fn ask(&self, own: &[Address], to: usize) -> Measured {
        let rank = self.leader(to);
        if let Some(reason) = self.meeting.lost(rank) {
            return (Vec::new(), Some(reason));
        }
        let key = format!("hello/{rank}");
        let hello: Hello = match self.meeting.wait(&key, rank, Instant::now() + LOOK) {
            Ok(hello) => hello,
            Err(error) => return (Vec::new(), Some(format!("{error:#}"))),
        };
        let peer = Peer {
            addresses: &hello.addresses,
            stream_port: hello.stream_port,
            token: hello.token,
        };
        wire::ask(own, &peer, self.rdma, PAIR)
    }

    /// All of it, on rank 0.
    fn fleet(
        &self,
        mut hellos: BTreeMap<Rank, Hello>,
        works: BTreeMap<Rank, Work>,
        mut pairs: Vec<Pair>,
    ) -> Fleet {
        let mut counted = self.counted();
        count_errors(&mut pairs, &counted);
        let hosts = self.hosts.iter().enumerate().map(|(i, ranks)| {
            let work = ranks
                .iter()
                .filter_map(|rank| Some((*rank, works.get(rank)?.clone())));
            Host {
                name: self.name(i),
                work: work.collect(),
                look: merge(
                    ranks
                        .iter()
                        .filter_map(|rank| Some((*rank, hellos.remove(rank)?.look))),
                ),
                ranks: ranks.clone(),
                wired: counted[i].strain.take(),
            }
        });
        let members = &self.meeting.world.members;
        let missing = members.iter().filter_map(|member| {
            let during = match works.contains_key(&member.rank) {
                true => "the wires",
                false => "its host and its figures",
            };
            Some(Missing {
                rank: member.rank,
                host: self.name(self.host_of(member.rank)?),
                during: during.to_owned(),
                reason: self.meeting.lost(member.rank)?,
            })
        });
        Fleet {
            hosts: hosts.collect(),
            missing: missing.collect(),
            pairs,
        }
    }

    /// What the hosts have counted while the wires were measured.
    fn counted(&self) -> Vec<Counted> {
        let deadline = Instant::now() + WORK;
        let wired = self.hosts.len() > 1;
        let of = |host: usize| {
            let key = format!("counted/{host}");
            let counted = wired.then(|| self.meeting.take(&key, self.leader(host), deadline));
            counted.flatten().unwrap_or_default()
        };
        (0..self.hosts.len()).map(of).collect()
    }

    /// The host that a rank is on.
    fn host_of(&self, rank: Rank) -> Option<usize> {
        self.hosts.iter().position(|ranks| ranks.contains(&rank))
    }

    /// The host's name, and its first rank where others have the same name: containers, say.
    fn name(&self, host: usize) -> String {
        let members = &self.meeting.world.members;
        let name = |host: usize| &members[self.leader(host)].host;
        let same = (0..self.hosts.len()).filter(|it| name(*it) == name(host));
        match same.count() {
            1 => name(host).clone(),
            _ => format!("{} (rank {})", name(host), self.leader(host)),
        }
    }
}

/// When the rank that measures after so many others of its machine has to have measured, from when all begin.
fn turn(place: usize) -> Duration {
    WORK + TURN * u32::try_from(place).unwrap_or(u32::MAX)
}

/// Puts the errors that hosts have counted beside the ports.
fn count_errors(pairs: &mut [Pair], counted: &[Counted]) {
    for pair in pairs {
        let (a, b) = (&counted[pair.a].errors, &counted[pair.b].errors);
        for path in &mut pair.paths {
            for (port, counts) in [(&mut path.at_a, a), (&mut path.at_b, b)] {
                let risen = counts.get(&port.interface).into_iter().flatten();
                let risen = risen.filter(|(_, rise)| **rise > 0);
                port.errors = risen.map(|(name, rise)| (name.clone(), *rise)).collect();
            }
        }
    }
}

/// What the ranks of a host have seen: that of the first, and what others have found beside it, as their limits may differ.
fn merge(mut looks: impl Iterator<Item = (Rank, Look)>) -> Option<Look> {
    let (_, mut first) = looks.next()?;
    for (rank, look) in looks {
        for mut finding in look.report.findings {
            let known = first.report.findings.iter();
            let mut known =
                known.filter(|it| it.check == finding.check && it.problem == finding.problem);
            if known.next().is_none() {
                finding.subject = format!("rank {rank}: {}", finding.subject);
                first.report.findings.push(finding);
            }
        }
    }
    first.report.sort();
    Some(first)
}
