//! The communicator: what users hold, and the untyped calls that everything else is made of.

use std::{
    any::Any,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use ringway_kernels::{Element, Finish};
use ringway_link::shm::mapped::{self, GroupBlock, MappedGroup, MappedOp, Patience};
use ringway_plan::{Algorithm, Collective, DataType, Machine, Rank, Topology};
use ringway_sys::Memory;

use crate::{
    ArenaBuffer, Descriptor, Error, Form, Origin, Replan, Request, Work,
    adapt::Adapt,
    bootstrap::{Part, Store},
    engine::{
        Candidate, Engine, Limit, Limiter, Membership, MessageOp, Operands, Plans, Policy,
        Prediction, Task, Way, lock,
    },
    group::{Group, Stream},
    record::{Call, Recorder},
};

/// The ranks of a group, as one of them sees it. Cheap to clone; all clones are the same communicator.
///
/// Every rank of the group must make the same collective calls in the same order. When the last communicator
/// of a process is dropped, its rank leaves the job.
#[derive(Clone)]
pub struct Communicator {
    pub(crate) membership: Arc<Membership>,
    pub(crate) group: Arc<Group>,
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Communicator(rank {} of {}, group {:x})",
            self.rank(),
            self.size(),
            self.group.id
        )
    }
}

impl Communicator {
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.membership.0
    }

    /// This rank's number in the group, from 0.
    pub fn rank(&self) -> Rank {
        self.group.rank
    }

    /// The number of ranks in the group.
    pub fn size(&self) -> usize {
        self.group.size()
    }

    /// The world's rank of each member of the group.
    pub fn members(&self) -> &[Rank] {
        &self.group.members
    }

    /// The name of the transport that messages take: `shm`, `tcp`, `shm+tcp`; with `tcp,rdma` it differs by
    /// peer which of the two, see the log.
    pub fn transport(&self) -> String {
        self.engine().transport_name()
    }

    /// What carries this communicator's collectives: `shm` where all ranks share a host's memory, else the
    /// transport of its messages.
    pub fn path(&self) -> String {
        if self.is_mapped() {
            "shm".to_owned()
        } else {
            self.transport()
        }
    }

    /// Whether all ranks share a host's memory.
    pub(crate) fn is_mapped(&self) -> bool {
        self.group.mapped.is_some()
    }

    /// Ends the job on all ranks: every call, here and there, returns an error that says `reason`, within 1 s.
    pub fn abort(&self, reason: &str) {
        self.engine().control.abort(reason);
        self.engine().wake();
    }

    /// Leaves the job in good order, on behalf of all communicators of this process's job: what the others still
    /// wait for from this rank fails there, and no call here can end any more. More calls do nothing.
    ///
    /// Dropping the last communicator does the same. This is for where that cannot be waited for.
    pub fn leave(&self) {
        self.membership.leave();
    }

    /// Runs an operation on the calling thread and returns when this rank's part of it is done.
    ///
    /// # Errors
    /// Wrong arguments, which leave the communicator as it was; a failure of any rank, a mismatch between
    /// ranks, or the deadline, after which it cannot be used any more.
    pub fn run(&self, request: Request) -> Result<(), Error> {
        match self.run_until(request, &|| false)? {
            None => Ok(()),
            Some(work) => work.wait(),
        }
    }

    /// Like [`Self::run`], until `stop` says so: then the operation is returned, and goes on in the background, as
    /// if [submitted](Self::submit). `stop` is asked at least every 100 ms while there is nothing to do.
    ///
    /// # Errors
    /// As [`Self::run`]; [`Error::Stopped`] if the operation had not begun, as ranks were to meet or to measure links before it (the
    /// setting `adapt_after`): what all ranks measure goes on, and the next operation takes it up.
    pub fn run_until(
        &self,
        request: Request,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Work>, Error> {
        let (group, engine) = (&self.group, self.engine());
        if request.parts.is_none()
            && let Some(mapped) = &group.mapped
        {
            let mut plans = lock(&group.plans);
            let prepared = plans.prepare(&request)?;
            if let Way::Mapped(plan) = &prepared.way {
                request.in_place(group.rank, group.size(), prepared.elements)?;
                let call = request.mapped_call(prepared.words, plan);
                // With the plans in hand, as this takes a moment at most.
                let limit = self.limit(&request);
                let recorded = engine.record(&prepared.descriptor, prepared.elements, group);
                let begun = recorded.as_ref().map(|_| Instant::now());
                let op = engine.begin_mapped(group, mapped, &call, &prepared.descriptor, limit)?;
                let Some(op) = op else {
                    record_blocking(recorded, begun);
                    return Ok(None);
                };
                let prepared = prepared.clone();
                drop(plans);
                let began = Instant::now();
                let label = engine.label(&prepared.descriptor, group.id, &group.members);
                let Some(op) = engine.drive_mapped(op, &label, limit, stop)? else {
                    record_blocking(recorded, begun);
                    return Ok(None);
                };
                let rest = Limit {
                    time: limit.time.saturating_sub(began.elapsed()),
                    ..limit
                };
                let task = self.mapped_task(&request, prepared.descriptor, &op, rest);
                task.note_recorded(recorded);
                engine.drive_behind(op, &task);
                return Ok(Some(Work {
                    communicator: self.clone(),
                    task,
                }));
            }
        }
        let task = self.start_messages(&request, None, Some(stop))?;
        match engine.wait_until(&task, stop) {
            Some(result) => result.map(|()| None),
            None => {
                engine.drive_messages_behind(&task);
                Ok(Some(Work {
                    communicator: self.clone(),
                    task,
                }))
            }
        }
    }

    /// Starts an operation. Its memory must stay valid, and alone the operation's, until it has ended. In a job that adapts to its
    /// links it may wait here for the other ranks, see the setting `adapt_after`.
    ///
    /// # Errors
    /// Wrong arguments; a failure of the job while this waits for the others. All else comes from [`Work::wait`].
    pub fn submit(&self, request: Request) -> Result<Work, Error> {
        self.submit_with(&request, None)
    }

    /// Like [`Self::submit`]; the operation keeps `buffers` alive until it has ended.
    pub(crate) fn submit_keeping(
        &self,
        request: Request,
        buffers: Box<dyn Any + Send>,
    ) -> Result<Work, Error> {
        self.submit_with(&request, Some(buffers))
    }

    fn submit_with(
        &self,
        request: &Request,
        buffers: Option<Box<dyn Any + Send>>,
    ) -> Result<Work, Error> {
        let group = &self.group;
        let task = match &group.mapped {
            Some(mapped) if request.parts.is_none() => {
                let prepared = lock(&group.plans).prepare(request)?.clone();
                let Way::Mapped(plan) = &prepared.way else {
                    unreachable!("a group that maps its memory prepares mapped plans")
                };
                request.in_place(group.rank, group.size(), prepared.elements)?;
                let call = request.mapped_call(prepared.words, plan);
                let limit = self.limit(request);
                let recorded = self
                    .engine()
                    .record(&prepared.descriptor, prepared.elements, group);
                let op =
                    self.engine()
                        .start_mapped(group, mapped, call, &prepared.descriptor, limit)?;
                let task = self.mapped_task(request, prepared.descriptor, &op, limit);
                task.note_recorded(recorded);
                if let Some(buffers) = buffers {
                    task.keep(buffers);
                }
                self.engine().drive_behind(op, &task);
                task
            }
            _ => self.start_messages(request, buffers, None)?,
        };
        Ok(Work {
            communicator: self.clone(),
            task,
        })
    }

    /// The algorithm that an operation on a vector of `bytes`, of `f32`, takes.
    pub fn algorithm(&self, collective: Collective, bytes: usize) -> Algorithm {
        lock(&self.group.plans).algorithm(collective, DataType::F32, bytes)
    }

    /// Every algorithm that may do `collective` on a vector of `bytes`, of `f32`, with the cost model's time, the quickest first. The first
    /// is [`Self::algorithm`]'s, unless a setting says otherwise or the group's ranks share memory, where the model has no say.
    pub fn candidates(&self, collective: Collective, bytes: usize) -> Vec<Candidate> {
        lock(&self.group.plans).candidates(collective, DataType::F32, bytes)
    }

    /// How far the cost model was off for the operations over messages that this rank has ended in this group, by algorithm and
    /// class of sizes.
    pub fn predictions(&self) -> Vec<Prediction> {
        lock(&self.group.plans).predictions()
    }

    /// What the cost model knows of the machines: measured at start where the job has several hosts, see the setting
    /// `probes`.
    pub fn machine(&self) -> Machine {
        lock(&self.group.plans).policy().machine
    }

    /// On how many hosts the group's ranks are.
    pub fn hosts(&self) -> usize {
        self.engine().host_count(self.members())
    }

    /// Where [`Self::machine`] comes from.
    pub fn origin(&self) -> Origin {
        lock(&self.group.plans).policy().origin
    }

    /// How the group's plan has changed since links did, the first change first. See the setting `adapt_after`.
    pub fn replans(&self) -> Vec<Replan> {
        self.group.adapting().map_or_else(Vec::new, Adapt::replans)
    }

    /// Measures which algorithm is the quickest for all-reduces of about `bytes` (within the same power of two), and takes it from
    /// here on, on all ranks, which all call this at the same point. A job does so by itself for what it sends most, once it has gone
    /// on for four times `adapt_after`. Takes some seconds; nothing is done on one host, beyond 256 ranks, for lengths that
    /// were measured already, in groups that do not adapt (`adapt_after: off`, groups split off another), or where a setting has chosen.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn tune(&self, bytes: usize) -> Result<(), Error> {
        match self.group.adapting() {
            Some(adapt) => adapt.tune(self, bytes),
            None => Ok(()),
        }
    }

    fn limit(&self, request: &Request) -> Limit {
        Limit {
            time: request.timeout.unwrap_or_else(|| self.timeout()),
            by: match request.timeout {
                None => Limiter::Setting,
                // Of what is not the program's, only meetings have a time of their own.
                Some(_) if self.group.is_hidden() => Limiter::Meeting,
                Some(_) => Limiter::Call,
            },
        }
    }

    /// The task of an operation in mapped memory. Its number is not the group's next: blocking calls in mapped memory
    /// take none, and the numbers of messages must be the same on all ranks however each of them waits.
    fn mapped_task(
        &self,
        request: &Request,
        descriptor: Descriptor,
        op: &MappedOp,
        limit: Limit,
    ) -> Arc<Task> {
        let number = op.number();
        Task::new(
            descriptor,
            &self.group,
            number as u32,
            number - 1,
            limit,
            request.priority,
            None,
        )
    }

    /// Checks, plans and starts an operation over messages. The caller waits for it, until `stop` says so, if there is one.
    fn start_messages(
        &self,
        request: &Request,
        buffers: Option<Box<dyn Any + Send>>,
        stop: Option<&dyn Fn() -> bool>,
    ) -> Result<Arc<Task>, Error> {
        let (group, engine) = (&self.group, self.engine());
        let (rank, ranks) = (group.rank, group.size());
        if let Some(adapt) = group.adapting() {
            adapt.before_operation(self, self.limit(request).time, stop.unwrap_or(&|| false))?;
        }
        let mut plans = lock(&group.plans);
        let prepared = match request.parts {
            Some(_) => Arc::new(plans.prepare_uneven(request)?),
            None => plans.prepare(request)?.clone(),
        };
        let Way::Messages(schedule) = &prepared.way else {
            unreachable!("without mapped memory, and in the v form, plans are over messages")
        };
        let in_place = request.in_place(rank, ranks, prepared.elements)?;
        let number = group.number();
        if let Some(adapt) = group.adapting() {
            adapt.count(&prepared.descriptor);
        }
        let call = match &group.mapped {
            Some(mapped) => mapped.pass(mapped::Descriptor(prepared.descriptor.encode())) - 1,
            None => number.into(),
        };
        let layout = || request.layout(schedule, rank, prepared.elements);
        let executor = plans.executor(&prepared, schedule, layout, in_place, engine.slice_bytes);
        let narrow = plans.narrow(&prepared.descriptor);
        drop(plans);
        let again = request
            .parts
            .is_none()
            .then(|| (group.clone(), (prepared.call, in_place)));
        let task = Task::new(
            prepared.descriptor,
            group,
            number,
            call,
            self.limit(request),
            request.priority,
            again,
        );
        task.note_recorded(engine.record(&prepared.descriptor, prepared.elements, group));
        if let Some(buffers) = buffers {
            task.keep(buffers);
        }
        let divide = |op| Finish::of(op, u32::try_from(ranks).unwrap_or(u32::MAX));
        let operands = Operands {
            input: request.input,
            output: request.output,
            places: request.places.clone(),
            dtype: request.dtype,
            op: request.op,
            finish: request.op.map_or(Finish::None, divide),
        };
        let op = MessageOp::new(task.clone(), executor, operands, narrow);
        engine.start(op, stop.is_some());
        Ok(task)
    }

    /// Starts sending `memory` to `to`, whose [`Self::start_recv`] has the same length, `dtype` and `tag`. Messages with one
    /// tag arrive in the order in which they were started. Without a `timeout`, the setting holds.
    ///
    /// # Errors
    /// Wrong arguments. All else comes from [`Work::wait`].
    pub fn start_send(
        &self,
        memory: Memory,
        dtype: DataType,
        to: Rank,
        tag: u32,
        timeout: Option<Duration>,
    ) -> Result<Work, Error> {
        let stream = Stream {
            from: self.rank(),
            to,
            tag,
        };
        self.start_stream(stream, to, memory, memory, dtype, timeout)
    }

    /// Starts receiving into `memory` what `from` sends with the same `tag`; see [`Self::start_send`].
    ///
    /// # Errors
    /// Wrong arguments. All else comes from [`Work::wait`].
    pub fn start_recv(
        &self,
        memory: Memory,
        dtype: DataType,
        from: Rank,
        tag: u32,
        timeout: Option<Duration>,
    ) -> Result<Work, Error> {
        let stream = Stream {
            from,
            to: self.rank(),
            tag,
        };
        self.start_stream(stream, from, Memory::EMPTY, memory, dtype, timeout)
    }

    /// A message is a broadcast in a group of two.
    fn start_stream(
        &self,
        stream: Stream,
        peer: Rank,
        input: Memory,
        output: Memory,
        dtype: DataType,
        timeout: Option<Duration>,
    ) -> Result<Work, Error> {
        if peer >= self.size() || peer == self.rank() {
            return Err(Error::Argument(format!(
                "message between rank {} and rank {peer} in a group of {}: expected two different ranks below {}",
                self.rank(),
                self.size(),
                self.size()
            )));
        }
        let group = self.group.stream(stream);
        let pair = Self {
            membership: self.membership.clone(),
            group,
        };
        let request = Request::new(Collective::Broadcast { root: 0 }, dtype, input, output)
            .algorithm(Algorithm::Direct);
        pair.submit(Request { timeout, ..request })
    }

    /// A communicator of the same ranks in the same order, whose operations go beside this one's. Every rank must call it.
    pub(crate) fn duplicate(&self) -> Result<Self, Error> {
        match self.split(Some(0), 0)? {
            Some(twin) => Ok(twin),
            None => unreachable!("a rank with a color is in a group"),
        }
    }

    /// Makes a communicator of the ranks that give the same `color`, in the order of `key` and then of rank here.
    /// With no color a rank is in none. Every rank must call it. It keeps to the plan that this one has now.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>, Error> {
        let block = self.engine().group_block()?;
        let offset = block
            .as_ref()
            .map_or(-1, |block| block.offset().cast_signed());
        let mine = [color.map_or(-1, i64::from), key, offset];
        let mut all = vec![0_i64; mine.len() * self.size()];
        self.all_gather(&mine, &mut all)?;
        let Some(color) = color else { return Ok(None) };
        let mut chosen: Vec<(i64, Rank, i64)> = all
            .chunks_exact(mine.len())
            .enumerate()
            .filter(|(_, theirs)| theirs[0] == i64::from(color))
            .map(|(rank, theirs)| (theirs[1], rank, theirs[2]))
            .collect();
        chosen.sort_unstable();
        let members = chosen.iter().map(|&(_, rank, offset)| Seat {
            rank: self.group.members[rank],
            block: u64::try_from(offset).ok(),
        });
        let id = self.group.split_id(u64::from(color));
        // After the same operation, it is the same on all ranks.
        let policy = lock(&self.group.plans).policy();
        self.engine()
            .group_by(id, &members.collect::<Vec<_>>(), block, policy)
            .map(|group| {
                Some(Self {
                    membership: self.membership.clone(),
                    group,
                })
            })
    }

    /// Memory that the ranks of this host, and RDMA devices, reach without a copy, for `len` elements, zeros. Where this host
    /// has one rank only, or shared memory is not to be used, it is ordinary memory. It is registered with the RDMA device,
    /// if there is one; where that is refused, a warning says why, and messages are copied.
    ///
    /// # Errors
    /// The arena is full: the setting `arena_size`.
    pub fn allocate<T: Element>(&self, len: usize) -> Result<ArenaBuffer<T>, Error> {
        let mut buffer = match &self.engine().host {
            None => ArenaBuffer::private(len),
            Some(host) => {
                let bytes = len.saturating_mul(size_of::<T>());
                let block = host
                    .user_arena()
                    .allocate(bytes)
                    .map_err(|e| Error::Memory(e.to_string()))?;
                ArenaBuffer::in_arena(block, len)
            }
        };
        match self.register_memory(buffer.handle()) {
            Ok(registration) => buffer.hold(registration),
            Err(error) => {
                let bytes = buffer.handle().len();
                lock(&self.engine().not_registered).warn(Instant::now(), |more| {
                    tracing::warn!(%error, bytes, "messages from and to this memory are copied{more}");
                });
            }
        }
        Ok(buffer)
    }

    /// The deadline of operations that name none.
    pub fn timeout(&self) -> Duration {
        self.engine().settings.values().timeout
    }

    /// A store of the job under a name of the caller's, the same on all ranks: for values of its own, or for a second
    /// communicator with other settings ([`Rendezvous::Store`](crate::bootstrap::Rendezvous::Store)). It lasts as long as
    /// rank 0 is in the job.
    pub fn store(&self, name: &str) -> Arc<dyn Store> {
        Arc::new(Part {
            store: self.engine().world.store.clone(),
            prefix: format!("user/{name}"),
        })
    }

    /// Bytes that this process has allocated for buffers, over all communicators.
    pub fn memory_in_use(&self) -> usize {
        self.engine().memory_in_use()
    }
}

/// Writes down that an operation, which its caller has waited for since it began, has ended.
fn record_blocking(recorded: Option<(Arc<Recorder>, Call)>, begun: Option<Instant>) {
    if let (Some((recorder, call)), Some(begun)) = (recorded, begun) {
        let now = Instant::now();
        recorder.wait(call, begun, now);
        recorder.end(call, now);
    }
}

/// A member of a group to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    /// The world's rank.
    pub(crate) rank: Rank,
    /// Where its block for the group lies in the shared memory of its host.
    pub(crate) block: Option<u64>,
}

impl Engine {
    /// A block of shared memory for a group to be made; `None` without shared memory.
    pub(crate) fn group_block(&self) -> Result<Option<GroupBlock>, Error> {
        let allocate = |host| GroupBlock::allocate(host).map_err(|e| Error::Memory(e.to_string()));
        self.host.as_ref().map(allocate).transpose()
    }

    /// The group of `seats`, this rank's among them, under an id that all members use, by the policy of the job's start.
    pub(crate) fn group(
        &self,
        id: u64,
        seats: &[Seat],
        block: Option<GroupBlock>,
    ) -> Result<Arc<Group>, Error> {
        self.group_by(id, seats, block, self.policy())
    }

    /// As [`Self::group`], by a policy that all members have.
    pub(crate) fn group_by(
        &self,
        id: u64,
        seats: &[Seat],
        block: Option<GroupBlock>,
        policy: Arc<Policy>,
    ) -> Result<Arc<Group>, Error> {
        let members: Arc<[Rank]> = seats.iter().map(|seat| seat.rank).collect();
        let Some(rank) = members.iter().position(|&member| member == self.world.rank) else {
            unreachable!("a group is made of the ranks that chose it, this one too")
        };
        let mapped = match (&self.host, block) {
            (Some(host), Some(block)) if seats.len() > 1 => {
                let local = |seat: &Seat| Some((host.local_of(seat.rank)?, seat.block?));
                let locals: Option<Vec<_>> = seats.iter().map(local).collect();
                locals.and_then(|locals| {
                    let patience = Patience::for_ranks(self.world.machine_ranks());
                    MappedGroup::new(host.clone(), block, &locals, rank, patience)
                })
            }
            _ => None,
        };
        if let Some(mapped) = &mapped {
            // Members may look at the block after this rank has dropped the group.
            lock(&self.mapped_groups).push(mapped.clone());
        }
        let plans = Plans::new(
            rank,
            members.clone(),
            self.topology(&members, &policy),
            mapped.is_some(),
            Form::Even,
            self.world.size(),
            policy,
        );
        Ok(Group::new(id, members, rank, plans, mapped))
    }

    /// Where the members of a group are.
    pub(crate) fn topology(&self, members: &[Rank], policy: &Policy) -> Topology {
        let hosts = self.world.hosts();
        let topology = match &policy.site {
            Some(site) => site.topology(members),
            None => {
                let mut host_of = vec![0; self.world.size()];
                for (host, ranks) in hosts.iter().enumerate() {
                    ranks.iter().for_each(|&rank| host_of[rank] = host);
                }
                Topology::new(members.iter().map(|&rank| host_of[rank]).collect())
            }
        };
        match (&policy.order, &policy.site) {
            (None, _) => topology,
            (Some(order), None) => topology.with_order(order.to_vec()),
            // Of the fabric's hosts some have no ranks.
            (Some(order), Some(site)) => {
                let order = order.iter().map(|&host| site.host(hosts[host][0]));
                topology.with_order(order.collect())
            }
        }
    }

    /// On how many hosts ranks are.
    pub(crate) fn host_count(&self, members: &[Rank]) -> usize {
        self.topology(members, &self.policy()).hosts().len()
    }
}
