//! What links and processors do, measured when a job of several hosts starts: the choice of algorithms goes by it.
//!
//! One rank of each host, of 32 hosts at most, does all-reduces of the shortest and of long vectors, by `ring` and by
//! `direct`, and the cost model's link is set so that the model says what was measured ([`Machine::fitted`]). The ranks of
//! rank 0's host do the same among them. Then all ranks, if there are 256 at most, do an all-reduce by each algorithm that may be the quickest, of a short
//! and of a long vector: by these the model's times of all-reduces are corrected. That takes some 100 ms, on slow links some more;
//! rank 0 keeps the outcome in a file, for the next job on these hosts. All ranks choose by rank 0's numbers, which are whole: so they choose alike.

mod again;
mod cache;
mod fingerprint;
mod measure;
mod pairs;
mod trial;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ringway_plan::{Algorithm, Collective, Link, Machine, Rank};

use crate::{
    Communicator, Element, Error, Request,
    adapt::Adapt,
    buffer::{exclusive, shared},
    communicator::Seat,
    engine::{Policy, Tuning, lock},
    group::mix,
    settings::Probing,
};
pub(crate) use again::{Found, again};
use cache::Cache;
use measure::Field;
pub(crate) use trial::{Effort, Trial, tried};

/// Where the numbers come from that algorithms are chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nothing was measured: defaults, and the fabric's file if there is one.
    Assumed,
    /// Measured when this job started.
    Measured,
    /// Measured by another job on these hosts, so long ago.
    Kept {
        /// Whole seconds.
        age: Duration,
    },
    /// Measured while this job ran, because its links had changed.
    Changed,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Assumed => f.write_str("assumed"),
            Self::Measured => f.write_str("measured at this job's start"),
            Self::Changed => f.write_str("measured when this job's links had changed"),
            Self::Kept { age } => write!(f, "measured {} s ago", age.as_secs()),
        }
    }
}

/// A link, in whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    /// Nanoseconds.
    latency: u64,
    /// Nanoseconds.
    overhead: u64,
    /// Bytes per second, not 0.
    rate: u64,
    /// Thousandths.
    unsteady: u64,
}

impl Pace {
    fn of(link: Link) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            latency: nanos(link.latency()),
            overhead: nanos(link.overhead()),
            rate: whole(link.rate()),
            unsteady: link.unsteady(),
        }
    }

    fn link(self, kind: Link) -> Link {
        let [latency, overhead] = [self.latency, self.overhead].map(Duration::from_nanos);
        kind.timed(latency, overhead, self.rate as f64)
            .with_unsteady(self.unsteady)
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    between: Pace,
    within: Pace,
    /// Bytes reduced per second, not 0.
    reduce: u64,
    tuning: Tuning,
}

impl Numbers {
    fn of(machine: &Machine, tuning: Tuning) -> Self {
        Self {
            tuning,
            between: Pace::of(machine.inter()),
            within: Pace::of(machine.intra()),
            reduce: whole(machine.reduce_rate()),
        }
    }

    /// With slices for what was measured.
    fn machine(&self, before: &Machine, longest_slice: usize) -> Machine {
        let within = self.within.link(before.intra());
        let between = self.between.link(before.inter());
        let machine = before.with_measured(within, between, self.reduce as f64);
        machine.sliced(longest_slice)
    }

    fn words(&self) -> [u64; NUMBERS] {
        let pace = |p: Pace| [p.latency, p.overhead, p.rate, p.unsteady];
        let Tuning { bytes, thousandths } = self.tuning;
        let parts = [
            &pace(self.between)[..],
            &pace(self.within),
            &[self.reduce],
            &bytes,
            thousandths.as_flattened(),
        ];
        let mut words = [0; NUMBERS];
        for (word, from) in words.iter_mut().zip(parts.into_iter().flatten()) {
            *word = *from;
        }
        words
    }

    fn from_words(words: [u64; NUMBERS]) -> Self {
        let pace = |at: usize| Pace {
            latency: words[at],
            overhead: words[at + 1],
            rate: words[at + 2].max(1),
            unsteady: words[at + 3],
        };
        Self {
            between: pace(0),
            within: pace(4),
            reduce: words[8].max(1),
            tuning: Tuning {
                bytes: [words[9], words[10]],
                thousandths: std::array::from_fn(|size| {
                    std::array::from_fn(|place| words[11 + size * Algorithm::ALL.len() + place])
                }),
            },
        }
    }
}

const NUMBERS: usize = 11 + 2 * Algorithm::ALL.len();

/// A rate as a whole number, of which there is something.
fn whole(rate: f64) -> u64 {
    rate.clamp(1.0, 1e15) as u64
}

/// What rank 0 says to all.
enum Notice {
    Off,
    Measure,
    Known(Origin, Box<Numbers>),
}

impl Notice {
    fn words(&self) -> [u64; NUMBERS + 2] {
        let (kind, age, numbers) = match self {
            Self::Off | Self::Known(Origin::Assumed | Origin::Changed, _) => (0, 0, [0; NUMBERS]),
            Self::Measure => (1, 0, [0; NUMBERS]),
            Self::Known(Origin::Measured, numbers) => (2, 0, numbers.words()),
            Self::Known(Origin::Kept { age }, numbers) => (3, age.as_secs(), numbers.words()),
        };
        let mut words = [0; NUMBERS + 2];
        words[0] = kind;
        words[1] = age;
        words[2..].copy_from_slice(&numbers);
        words
    }

    fn from_words([kind, age, words @ ..]: [u64; NUMBERS + 2]) -> Self {
        let age = Duration::from_secs(age);
        match kind {
            1 => Self::Measure,
            2 => Self::Known(Origin::Measured, Numbers::from_words(words).into()),
            3 => Self::Known(Origin::Kept { age }, Numbers::from_words(words).into()),
            _ => Self::Off,
        }
    }

    /// What rank 0 says, on all ranks.
    fn share(self, comm: &Communicator) -> Result<Self, Error> {
        let mut words = self.words();
        share(comm, &mut words)?;
        Ok(Self::from_words(words))
    }
}

/// Has the world's communicator, on which nothing has run, choose by what its links do. All ranks call it.
///
/// # Errors
/// A rank failed meanwhile.
pub(crate) fn learn(comm: &Communicator) -> Result<Origin, Error> {
    let engine = comm.engine();
    let values = engine.settings.values();
    if engine.world.hosts().len() < 2 {
        return Ok(Origin::Assumed);
    }
    let fingerprint = fingerprint::of(comm)?;
    let cache = match values.probe_lifetime.is_zero() {
        true => None,
        false => Cache::new(fingerprint),
    };
    let kept = || {
        cache
            .as_ref()?
            .read(values.probe_lifetime, SystemTime::now())
    };
    let notice = match values.probes {
        _ if comm.rank() > 0 => Notice::Off,
        Probing::Off => Notice::Off,
        Probing::Refresh => Notice::Measure,
        Probing::Auto => kept().map_or(Notice::Measure, |(age, numbers)| {
            Notice::Known(Origin::Kept { age }, numbers.into())
        }),
    };
    let mut notice = notice.share(comm)?;
    if let Notice::Measure = notice {
        let measured = measure(comm)?;
        if let (0, Some(cache)) = (comm.rank(), &cache) {
            cache.write(&measured, SystemTime::now());
        }
        notice = Notice::Known(Origin::Measured, measured.into()).share(comm)?;
    }
    let Notice::Known(origin, numbers) = notice else {
        return Ok(Origin::Assumed);
    };
    if comm.rank() == 0 {
        tracing::info!(?numbers, "links and reductions, {origin}");
    }
    let before = engine.policy();
    let policy = Policy {
        machine: numbers.machine(&before.machine, engine.slice_bytes),
        tuning: Some(numbers.tuning),
        origin,
        ..(*before).clone()
    };
    engine.adopt(policy, &comm.group);
    let lasting = values.adapt_after.unwrap_or(Duration::ZERO).as_nanos();
    let mut lasting = [u64::try_from(lasting).unwrap_or(u64::MAX)];
    share(comm, &mut lasting)?;
    if lasting != [0] {
        let adapt = Adapt::new(&comm.group, Duration::from_nanos(lasting[0]));
        comm.group.adapt(adapt);
    }
    Ok(origin)
}

/// Among more ranks algorithms are not compared: each rank makes and proves the schedules of all ranks, by `direct` and
/// `ring` millions of steps among a thousand, also of those that it would never choose.
pub(crate) const MOST_COMPARED: usize = 256;

/// More hosts than these would not make the numbers better.
const MOST_HOSTS: usize = 32;

/// Numbers of the groups that measure; others are hashes.
const GROUPS: [u64; 2] = [0x72_696e67_776179, 0x72_696e67_776180];

/// Measures; what comes out counts on rank 0.
fn measure(comm: &Communicator) -> Result<Numbers, Error> {
    let engine = comm.engine();
    let hosts = engine.world.hosts();
    let chosen = hosts.len().min(MOST_HOSTS);
    let leaders: Vec<Rank> = (0..chosen)
        .map(|at| hosts[at * hosts.len() / chosen][0])
        .collect();
    let policy = lock(&comm.group.plans).policy();
    let mut machine = policy.machine;
    let mut long = measure::COMPARED;
    if comm.rank() == 0 {
        let rate = measure::reduce_rate();
        machine = machine.with_measured(machine.intra(), machine.inter(), rate);
    }
    for (ranks, id) in [&leaders, &hosts[0]].into_iter().zip(GROUPS) {
        if ranks.len() > 1 && ranks.contains(&comm.rank()) {
            let seat = |&rank: &Rank| Seat { rank, block: None };
            let seats: Vec<Seat> = ranks.iter().map(seat).collect();
            let id_here = mix(&[id, comm.group.id]) >> 1;
            let group = engine.group_by(id_here, &seats, None, policy.clone())?;
            group.hide();
            let topology = engine.topology(ranks, &policy);
            let comm = Communicator {
                membership: comm.membership.clone(),
                group,
            };
            let mut field = Field::new(&comm);
            match comm.rank() {
                0 => {
                    let observed = field.lead()?;
                    machine = machine.fitted(&topology, &observed);
                    // Of the vectors between hosts, which come first and are not longer.
                    long = if id == GROUPS[0] { observed.long } else { long };
                }
                _ => field.follow()?,
            }
        }
    }
    let mut tuning = Tuning {
        bytes: [0; 2],
        thousandths: [[1000; Algorithm::ALL.len()]; 2],
    };
    if comm.size() > MOST_COMPARED {
        return Ok(Numbers::of(&machine, tuning));
    }
    // All ranks have slices as they will, and only rank 0's model counts: until all have the same, nothing lets it choose.
    let numbers = Numbers::of(&machine, tuning);
    let mut slice = [numbers.machine(&machine, engine.slice_bytes).slice_bytes() as u64];
    share(comm, &mut slice)?;
    let untuned = Policy {
        machine: machine.with_slice_bytes(slice[0] as usize),
        tuning: None,
        tried: Vec::new(),
        ..(*policy).clone()
    };
    engine.adopt_in(Arc::new(untuned), &comm.group);
    let mut field = Field::new(comm);
    if comm.rank() > 0 {
        field.follow()?;
        return Ok(Numbers::of(&machine, tuning));
    }
    for (at, compared) in field.compare(long)?.into_iter().enumerate() {
        tuning.bytes[at] = compared.bytes as u64;
        for (place, found) in compared.thousandths.into_iter().enumerate() {
            let before = tuning.thousandths[0][place];
            tuning.thousandths[at][place] = found.unwrap_or(before);
        }
    }
    Ok(Numbers::of(&machine, tuning))
}

/// Rank 0's words, on all.
pub(crate) fn share(comm: &Communicator, words: &mut [u64]) -> Result<(), Error> {
    let memory = exclusive(words);
    let collective = Collective::Broadcast { root: 0 };
    comm.run(Request::new(collective, u64::DTYPE, memory, memory).algorithm(Algorithm::Tree))
}

/// What every rank says, on rank 0.
fn gather(comm: &Communicator, word: u64) -> Result<Vec<u64>, Error> {
    let input = [word];
    let mut output = vec![0_u64; if comm.rank() == 0 { comm.size() } else { 0 }];
    let root = 0;
    let (from, to) = (shared(&input), exclusive(&mut output));
    comm.run(
        Request::new(Collective::Gather { root }, u64::DTYPE, from, to).algorithm(Algorithm::Tree),
    )?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ReduceOp,
        tests::{Over, world_on},
    };

    #[test]
    fn numbers_are_the_same_after_the_words_and_the_machine() {
        let link = Link::new(
            Duration::from_nanos(12_345),
            Duration::from_micros(5),
            1e9 / 3.0,
        );
        let machine = Machine::new(Link::LOOPBACK, link.with_unsteady(70), 40e9);
        let tuning = Tuning {
            bytes: [1, 2],
            thousandths: [[3; Algorithm::ALL.len()], [4; Algorithm::ALL.len()]],
        };
        let numbers = Numbers::of(&machine, tuning);
        assert_eq!(Numbers::from_words(numbers.words()), numbers);
        let again = Numbers::of(&numbers.machine(&machine, 1 << 20), tuning);
        assert_eq!(again.between, numbers.between);
        let Notice::Known(Origin::Kept { age }, found) = Notice::from_words(
            Notice::Known(
                Origin::Kept {
                    age: Duration::from_secs(7),
                },
                numbers.into(),
            )
            .words(),
        ) else {
            panic!("another notice came out");
        };
        assert_eq!((age.as_secs(), *found), (7, numbers));
    }

    /// Hosts of different numbers of ranks, which learn the same and then choose the same.
    #[test]
    fn all_ranks_learn_the_same_within_the_time() {
        let settings = [("probe_lifetime", "0s")];
        let hosts = ["a", "a", "b", "c", "c"];
        let found = world_on(&hosts, Over::Messages, &settings, |comm| {
            let began = std::time::Instant::now();
            let before = comm.machine();
            assert_eq!(learn(&comm).unwrap(), Origin::Measured);
            let took = began.elapsed();
            let mut vector = vec![1_u32; 5000];
            comm.all_reduce(&mut vector, ReduceOp::Sum).unwrap();
            assert_eq!(vector, [5; 5000]);
            assert_ne!(comm.machine(), before);
            (comm.machine(), took)
        });
        assert!(found.iter().all(|(machine, _)| *machine == found[0].0));
        let longest = found.iter().map(|f| f.1).max().unwrap();
        // Many times what it may be with processors of its own.
        assert!(longest < Duration::from_secs(3), "{longest:?}");
    }

    #[test]
    fn one_host_and_a_setting_measure_nothing() {
        for (hosts, settings) in [
            (["a", "a"], [("probes", "auto")]),
            (["a", "b"], [("probes", "off")]),
        ] {
            world_on(&hosts, Over::Messages, &settings, |comm| {
                let before = comm.machine();
                assert_eq!(learn(&comm).unwrap(), Origin::Assumed);
                assert_eq!(comm.machine(), before);
            });
        }
    }
}
