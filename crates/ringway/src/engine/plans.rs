//! Which algorithm an operation takes, and what has been prepared for calls that come again.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ringway_link::shm::mapped::{MappedPlan, MappedSchedule};
use ringway_plan::{
    Algorithm, Collective, DataType, Executor, Layout, Machine, Memory, Overrides, Rank, ReduceOp,
    Topology, Verified, estimate, generate, verify,
};

use super::{
    Narrow, Site, narrow,
    past::{Candidate, Past, Prediction},
    samples::{Kind, Samples},
    tuning::{Tried, Tuning},
};
use crate::{Descriptor, Error, Form, Request, probe::Origin};

/// What calls have in common that are prepared alike.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    collective: Collective,
    dtype: DataType,
    op: Option<ReduceOp>,
    algorithm: Option<Algorithm>,
    wide: bool,
    input: usize,
    output: usize,
    /// By which of the group's plans.
    plan: u32,
}

impl Call {
    fn of(request: &Request, plan: u32) -> Self {
        let [input, output] = request.lens();
        Self {
            plan,
            collective: request.collective,
            dtype: request.dtype,
            op: request.op,
            algorithm: request.algorithm,
            wide: request.wide,
            input,
            output,
        }
    }
}

/// A call that has been checked, and how it is run.
pub(crate) struct Prepared {
    pub(crate) call: Call,
    pub(crate) descriptor: Descriptor,
    /// The descriptor, encoded.
    pub(crate) words: [u64; 2],
    pub(crate) elements: usize,
    pub(crate) way: Way,
}

/// How an operation is run.
pub(crate) enum Way {
    /// In memory that all members map.
    Mapped(Arc<MappedPlan>),
    /// Over messages.
    Messages(Verified),
}

/// What the choice of algorithms goes by; the same on all ranks.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) machine: Machine,
    /// For groups of all ranks.
    pub(crate) tuning: Option<Tuning>,
    /// For groups of all ranks; goes before `tuning`.
    pub(crate) tried: Vec<Tried>,
    pub(crate) overrides: Overrides,
    pub(crate) ring_size: Option<usize>,
    /// No hierarchy, though ranks share hosts.
    pub(crate) flat: bool,
    /// As what elements of `f32` go from host to host in hierarchical all-reduces, if not as they are.
    pub(crate) between_hosts: Option<DataType>,
    /// Where the ranks are, if that is known.
    pub(crate) site: Option<Arc<Site>>,
    /// Hosts side by side, numbered by their lowest rank, as measured while the job ran; before, the site's order counts.
    pub(crate) order: Option<Arc<[usize]>>,
    /// Where `machine` and `tuning` come from.
    pub(crate) origin: Origin,
    /// How many policies a group has had before, as its links changed or algorithms were tried.
    pub(crate) plan: u32,
}

/// A group's schedules, and what waits for the next operation of its kind.
pub(crate) struct Plans {
    rank: Rank,
    /// By rank of the group, the world's.
    members: Arc<[Rank]>,
    topology: Topology,
    /// By algorithm, the seconds for each byte of the vector that the fabric's busiest link takes.
    busiest: HashMap<(Collective, Algorithm), f64>,
    /// Whether the members map each other's memory.
    mapped: bool,
    /// Whether these are all ranks, in order.
    is_world: bool,
    form: Form,
    policy: Arc<Policy>,
    /// Calls that came last, the newest first: training loops go round a few.
    recent: Vec<Arc<Prepared>>,
    prepared: HashMap<Call, Arc<Prepared>>,
    schedules: HashMap<(Collective, Algorithm), Verified>,
    compiled: HashMap<(Collective, Algorithm), MappedSchedule>,
    executors: HashMap<(Call, bool), Vec<Executor>>,
    past: Past,
    /// Where the group adapts: times of operations since its ranks last compared them.
    samples: Option<Samples>,
}

/// Calls to look through before hashing, which takes longer than a comparison or four.
const RECENT: usize = 4;

/// Calls to keep prepared. Jobs use a few dozen; one that never repeats a call must not fill memory.
const CALLS: usize = 256;

/// Vectors are reduced by every rank for itself within a host, in one round in place of two, while all ranks' together
/// have no more bytes. Measured: 2 ranks 0.51 us against 0.95 for 8 KiB; 4 ranks on 2 cores 4.5 us against 8.4 for 4 KiB,
/// 11.9 against 9.0 for 8 KiB.
const ONE_SHOT_BYTES: usize = 16 << 10;

impl Plans {
    pub(crate) fn new(
        rank: Rank,
        members: Arc<[Rank]>,
        topology: Topology,
        mapped: bool,
        form: Form,
        world: usize,
        policy: Arc<Policy>,
    ) -> Self {
        let topology = grouped(topology, &policy);
        let is_world = members.iter().copied().eq(0..world);
        Self {
            rank,
            members,
            topology,
            busiest: HashMap::new(),
            mapped,
            is_world,
            form,
            policy,
            recent: Vec::with_capacity(RECENT),
            prepared: HashMap::new(),
            schedules: HashMap::new(),
            compiled: HashMap::new(),
            executors: HashMap::new(),
            past: Past::default(),
            samples: None,
        }
    }

    /// Chooses by another policy from now on. Of the plan that counted before no operation is in flight, unless the new one has
    /// another number: an executor of the choice before would come back.
    pub(crate) fn adopt(&mut self, policy: Arc<Policy>, topology: Topology) {
        self.topology = grouped(topology, &policy);
        self.policy = policy;
        self.recent.clear();
        self.prepared.clear();
        self.executors.clear();
        self.compiled.clear();
        // Of algorithms that were measured, most are never chosen.
        self.schedules.clear();
        self.busiest.clear();
        self.past = Past::default();
    }

    /// An operation over messages has ended after `took`.
    pub(crate) fn note(&mut self, descriptor: &Descriptor, took: Duration) {
        let Descriptor {
            collective,
            algorithm,
            dtype,
            elements,
            form,
            plan,
            ..
        } = *descriptor;
        let elements = usize::try_from(elements);
        // The model knows neither single messages nor parts of different lengths, nor this one any more what it said before.
        let (Form::Even, Ok(elements), true) = (form, elements, plan == self.plan()) else {
            return;
        };
        if let Some(samples) = &mut self.samples {
            samples.note(Kind::of(descriptor), took);
        }
        let bytes = elements * dtype.size();
        let known = self.past.entry(collective, algorithm, bytes);
        let predicted = match known {
            Some(predicted) => predicted,
            None => match self.candidate(collective, algorithm, dtype, bytes) {
                Some(candidate) => candidate.total(),
                None => return,
            },
        };
        self.past
            .note(collective, algorithm, bytes, predicted, took);
    }

    pub(crate) fn predictions(&self) -> Vec<Prediction> {
        self.past.predictions()
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.policy.clone()
    }

    /// What tells ranks apart that follow different plans: they must not exchange messages.
    fn plan(&self) -> u8 {
        match self.form {
            // Two ranks may see a change between other messages of theirs, and there is but one way for a message.
            Form::Pair => 0,
            _ => (self.policy.plan % Descriptor::PLANS) as u8,
        }
    }

    /// Where times of operations are collected; none if nobody has asked for that.
    pub(crate) const fn samples(&mut self) -> &mut Option<Samples> {
        &mut self.samples
    }

    /// Checks a call and prepares it, unless that was done before.
    pub(crate) fn prepare(&mut self, request: &Request) -> Result<&Arc<Prepared>, Error> {
        let call = Call::of(request, self.policy.plan);
        if let Some(at) = self.recent.iter().position(|recent| recent.call == call) {
            return Ok(&self.recent[at]);
        }
        let prepared = match self.prepared.get(&call) {
            Some(prepared) => prepared.clone(),
            None => {
                let prepared = Arc::new(self.prepare_new(call, request)?);
                if self.prepared.len() >= CALLS {
                    self.prepared.clear();
                }
                self.prepared.insert(call, prepared.clone());
                prepared
            }
        };
        self.recent.truncate(RECENT - 1);
        self.recent.insert(0, prepared);
        Ok(&self.recent[0])
    }

    fn prepare_new(&mut self, call: Call, request: &Request) -> Result<Prepared, Error> {
        let elements = request.check(self.rank, self.topology.ranks())?;
        let bytes = elements * call.dtype.size();
        // Of what goes as it is, any type that `wire_between_hosts` does not mean.
        let sent = if call.wide { DataType::U8 } else { call.dtype };
        let algorithm = call
            .algorithm
            .unwrap_or_else(|| self.algorithm(call.collective, sent, bytes));
        let schedule = self.schedule(call.collective, algorithm)?;
        let form = self.form;
        let (
            Call {
                collective,
                dtype,
                op,
                ..
            },
            count,
        ) = (call, elements as u64);
        let descriptor = Descriptor {
            plan: self.plan(),
            collective,
            dtype,
            op,
            elements: count,
            algorithm,
            form,
            wire: self.wire(collective, algorithm, sent),
        };
        let way = if self.mapped {
            let rank = self.rank;
            let compiled = self
                .compiled
                .entry((collective, algorithm))
                .or_insert_with(|| MappedSchedule::compile(&schedule, rank));
            let op = op.unwrap_or(ReduceOp::Sum);
            Way::Mapped(Arc::new(MappedPlan::new(compiled, elements, dtype, op)))
        } else {
            Way::Messages(schedule)
        };
        Ok(Prepared {
            call,
            descriptor,
            words: descriptor.encode(),
            elements,
            way,
        })
    }

    /// Prepares a call in the `v` form, which is different each time.
    pub(crate) fn prepare_uneven(&mut self, request: &Request) -> Result<Prepared, Error> {
        let elements = request.check(self.rank, self.topology.ranks())?;
        let call = Call::of(request, self.policy.plan);
        let algorithm = call.algorithm.unwrap_or(Algorithm::Direct);
        let schedule = self.schedule(call.collective, algorithm)?;
        if !schedule.uneven() {
            return Err(Error::Argument(format!(
                "{}: {algorithm} cannot run the v form; use direct",
                call.collective
            )));
        }
        let Call {
            collective,
            dtype,
            op,
            ..
        } = call;
        let form = Form::Uneven;
        let descriptor = Descriptor {
            plan: self.plan(),
            collective,
            dtype,
            op,
            elements: 0,
            algorithm,
            form,
            wire: None,
        };
        Ok(Prepared {
            call,
            descriptor,
            words: descriptor.encode(),
            elements,
            way: Way::Messages(schedule),
        })
    }

    /// The algorithm for a vector of `bytes`: the settings' choice, else the selector's. In mapped memory every
    /// rank reaches every other's bytes at the same cost, so that nothing beats going there directly.
    pub(crate) fn algorithm(
        &mut self,
        collective: Collective,
        dtype: DataType,
        bytes: usize,
    ) -> Algorithm {
        if let Some(algorithm) = self.policy.overrides.algorithm(collective, bytes) {
            return algorithm;
        }
        match collective {
            Collective::AllReduce
                if self.mapped && bytes * self.topology.ranks() <= ONE_SHOT_BYTES =>
            {
                Algorithm::OneShot
            }
            _ if self.mapped => Algorithm::Direct,
            _ => self.choose(collective, dtype, bytes),
        }
    }

    /// How long an operation on a vector of `bytes` is expected to take, by the cost model, with all messages as they are; the same
    /// on all ranks.
    pub(crate) fn time(&mut self, collective: Collective, bytes: usize) -> Duration {
        let algorithm = self.algorithm(collective, DataType::U8, bytes);
        let (topology, machine) = (&self.topology, &self.policy.machine);
        estimate(collective, algorithm, bytes, topology, machine)
            .map_or(Duration::ZERO, |cost| cost.total)
    }

    /// As what an operation's elements go from host to host, if not as they are.
    pub(crate) fn wire(
        &self,
        collective: Collective,
        algorithm: Algorithm,
        dtype: DataType,
    ) -> Option<DataType> {
        let is_meant = (collective, algorithm, dtype)
            == (
                Collective::AllReduce,
                Algorithm::Hierarchical,
                DataType::F32,
            );
        let is_spread = !self.mapped && self.topology.hosts().len() > 1;
        self.policy
            .between_hosts
            .filter(|_| is_meant && is_spread && self.form == Form::Even)
    }

    /// What it takes to send an operation's elements so.
    pub(crate) fn narrow(&self, descriptor: &Descriptor) -> Option<Narrow> {
        let wire = descriptor.wire?;
        let far = narrow::far(&self.topology, self.rank);
        Narrow::new(descriptor.dtype, wire, far)
    }

    /// The quickest by the cost model.
    fn choose(&mut self, collective: Collective, dtype: DataType, bytes: usize) -> Algorithm {
        self.candidates(collective, dtype, bytes)
            .first()
            .map_or(Algorithm::Direct, |quickest| quickest.algorithm)
    }

    /// Every algorithm that may do the collective, the quickest by the cost model first.
    pub(crate) fn candidates(
        &mut self,
        collective: Collective,
        dtype: DataType,
        bytes: usize,
    ) -> Vec<Candidate> {
        let flat = self.policy.flat;
        let allowed = |a: &Algorithm| !flat || *a != Algorithm::Hierarchical;
        let mut candidates: Vec<Candidate> = Algorithm::ALL
            .into_iter()
            .filter(allowed)
            .filter_map(|algorithm| self.candidate(collective, algorithm, dtype, bytes))
            .collect();
        candidates.sort_by_key(|c| (c.total(), c.algorithm));
        candidates
    }

    /// What the cost model says, and what links that several ranks share take longer.
    fn candidate(
        &mut self,
        collective: Collective,
        algorithm: Algorithm,
        dtype: DataType,
        bytes: usize,
    ) -> Option<Candidate> {
        let wire = self.wire(collective, algorithm, dtype);
        let (machine, crossing) = match wire {
            Some(wire) => (
                self.policy.machine.with_half_between_hosts(),
                bytes / dtype.size() * wire.size(),
            ),
            None => (self.policy.machine, bytes),
        };
        let cost = estimate(collective, algorithm, bytes, &self.topology, &machine)?;
        let shared = self.busiest(collective, algorithm) * crossing as f64;
        let policy = &self.policy;
        let tuning = policy.tuning.filter(|_| self.is_world);
        // They were tried with `f32`.
        let is_alike = wire == self.wire(collective, algorithm, DataType::F32);
        let tried = policy.tried.iter().filter(|_| self.is_world && is_alike);
        let tried = tried
            .filter(|tried| tried.covers(collective, bytes))
            .find_map(|tried| tried.of(algorithm));
        Some(Candidate {
            algorithm,
            wire,
            cost,
            contention: cost.contention(shared),
            thousandths: tried
                .or_else(|| Some(tuning?.thousandths(collective, algorithm, bytes)))
                .unwrap_or(1000),
        })
    }

    fn busiest(&mut self, collective: Collective, algorithm: Algorithm) -> f64 {
        let Some(site) = self.policy.site.clone() else {
            return 0.0;
        };
        let (members, topology) = (&self.members, &self.topology);
        let busiest = self.busiest.entry((collective, algorithm));
        *busiest.or_insert_with(|| {
            let schedule = generate(collective, algorithm, topology);
            schedule.map_or(0.0, |schedule| site.busiest(members, &schedule))
        })
    }

    /// The verified schedule of an algorithm.
    fn schedule(
        &mut self,
        collective: Collective,
        algorithm: Algorithm,
    ) -> Result<Verified, Error> {
        if let Some(verified) = self.schedules.get(&(collective, algorithm)) {
            return Ok(verified.clone());
        }
        let verified = verify(generate(collective, algorithm, &self.topology)?)?;
        self.schedules
            .insert((collective, algorithm), verified.clone());
        Ok(verified)
    }

    /// An executor for a prepared call, used before or new.
    pub(crate) fn executor(
        &mut self,
        prepared: &Prepared,
        schedule: &Verified,
        layout: impl FnOnce() -> Layout,
        in_place: bool,
        longest_slice: usize,
    ) -> Executor {
        // Two ranks may have another plan each while a message is on its way between them.
        let slice_bytes = match self.form {
            Form::Pair => longest_slice,
            _ => self.policy.machine.slice_bytes(),
        };
        let kept = self.executors.get_mut(&(prepared.call, in_place));
        let memory = if in_place {
            Memory::Shared
        } else {
            Memory::Apart
        };
        match kept
            .and_then(Vec::pop)
            .filter(|_| prepared.descriptor.form != Form::Uneven)
        {
            Some(executor) => executor,
            None => Executor::new(schedule, self.rank, &layout(), slice_bytes, memory),
        }
    }

    /// Takes back an executor whose operation has ended well.
    pub(crate) fn reuse(&mut self, (call, in_place): (Call, bool), mut executor: Executor) {
        if call.plan != self.policy.plan {
            return;
        }
        if self.executors.len() >= CALLS && !self.executors.contains_key(&(call, in_place)) {
            self.executors.clear();
        }
        executor.reset();
        self.executors
            .entry((call, in_place))
            .or_default()
            .push(executor);
    }
}

/// A topology with groups as large as the settings want them.
fn grouped(topology: Topology, policy: &Policy) -> Topology {
    match policy.ring_size {
        Some(ranks) => topology.with_group(ranks),
        None => topology,
    }
}
