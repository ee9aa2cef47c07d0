//! The communicator: what users hold, and the untyped calls that everything else is made of.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use ringway_kernels::{Element, Finish};
use ringway_plan::{Algorithm, Collective, DataType, Rank, Topology};
use ringway_sys::Memory;

use crate::{
    ArenaBuffer, Descriptor, Error, Form, Request, Work,
    engine::{Engine, Membership, MessageOp, Operands, Plans, Shape, Task, lock},
    group::{Group, Stream},
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

    /// The name of the transport that messages take: `shm`, `tcp`, `shm+tcp`.
    pub fn transport(&self) -> String {
        self.engine().transport_name()
    }

    /// Ends the job on all ranks: every call, here and there, returns an error that says `reason`, within 1 s.
    pub fn abort(&self, reason: &str) {
        self.engine().control.abort(reason);
        self.engine().wake();
    }

    /// Runs an operation on the calling thread and returns when this rank's part of it is done.
    ///
    /// # Errors
    /// Wrong arguments, which leave the communicator as it was; a failure of any rank, a mismatch between
    /// ranks, or the deadline, after which it cannot be used any more.
    pub fn run(&self, request: Request) -> Result<(), Error> {
        match self.begin(&request, None, true)? {
            Some(task) => self.engine().wait(&task),
            None => Ok(()),
        }
    }

    /// Starts an operation. Its memory must stay valid, and alone the operation's, until it has ended.
    ///
    /// # Errors
    /// Wrong arguments. All else comes from [`Work::wait`].
    pub fn submit(&self, request: Request) -> Result<Work, Error> {
        self.submit_with(request, None)
    }

    /// Like [`Self::submit`]; the operation keeps `buffers` alive until it has ended.
    pub(crate) fn submit_keeping(
        &self,
        request: Request,
        buffers: Box<dyn Any + Send>,
    ) -> Result<Work, Error> {
        self.submit_with(request, Some(buffers))
    }

    fn submit_with(
        &self,
        request: Request,
        buffers: Option<Box<dyn Any + Send>>,
    ) -> Result<Work, Error> {
        let task = match self.begin(&request, buffers, false)? {
            Some(task) => task,
            None => unreachable!("without a waiter, an operation always has a task"),
        };
        Ok(Work {
            communicator: self.clone(),
            task,
        })
    }

    /// The algorithm that an operation on a vector of `bytes` takes.
    pub fn algorithm(&self, collective: Collective, bytes: usize) -> Algorithm {
        lock(&self.group.plans).algorithm(collective, bytes)
    }

    /// Checks, plans and starts. `None` if it is done already and nobody needs the task.
    fn begin(
        &self,
        request: &Request,
        buffers: Option<Box<dyn Any + Send>>,
        waited_for: bool,
    ) -> Result<Option<Arc<Task>>, Error> {
        let group = &self.group;
        let (rank, ranks) = (group.rank, group.size());
        let elements = request.check(rank, ranks)?;
        let in_place = request.in_place(rank, ranks)?;
        let size = request.dtype.size();
        let uneven = request.parts.is_some();
        let mut plans = lock(&group.plans);
        let algorithm = match request.algorithm {
            Some(algorithm) => algorithm,
            None if uneven => Algorithm::Direct,
            None => plans.algorithm(request.collective, elements * size),
        };
        let schedule = plans.schedule(request.collective, algorithm)?;
        if uneven && !schedule.uneven() {
            return Err(Error::Argument(format!(
                "{}: {algorithm} cannot run the v form; use direct",
                request.collective
            )));
        }
        let descriptor = Descriptor {
            collective: request.collective,
            dtype: request.dtype,
            op: request.op,
            elements: if uneven { 0 } else { elements as u64 },
            algorithm,
            form: if uneven { Form::Uneven } else { Form::Even },
        };
        let shape = Shape {
            collective: request.collective,
            algorithm,
            elements,
            element_size: size,
            in_place,
        };
        let layout = || request.layout(&schedule, rank, elements);
        let slice = self.engine().slice_bytes();
        let executor = if uneven {
            Plans::fresh(&schedule, rank, &layout(), slice, in_place)
        } else {
            plans.executor(shape, &schedule, layout, slice)
        };
        drop(plans);
        let number = group.number();
        let timeout = request
            .timeout
            .unwrap_or(self.engine().settings.values().timeout);
        let plan = (!uneven).then(|| (group.clone(), shape));
        let task = Task::new(
            descriptor,
            group.id,
            number,
            timeout,
            request.priority,
            plan,
        );
        if let Some(buffers) = buffers {
            task.keep(buffers);
        }
        let finish = request.op.map_or(Finish::None, |op| {
            Finish::of(op, u32::try_from(ranks).unwrap_or(u32::MAX))
        });
        let (input, output, dtype, op) = (request.input, request.output, request.dtype, request.op);
        let operands = Operands {
            input,
            output,
            dtype,
            op,
            finish,
        };
        let op = MessageOp::new(task.clone(), group.members.clone(), executor, operands);
        self.engine().start(op, waited_for);
        Ok(Some(task))
    }

    /// Starts sending `memory` to `to`.
    pub(crate) fn start_send(
        &self,
        memory: Memory,
        dtype: DataType,
        to: Rank,
        tag: u32,
    ) -> Result<Work, Error> {
        let stream = Stream {
            from: self.rank(),
            to,
            tag,
        };
        self.start_stream(stream, to, memory, memory, dtype)
    }

    /// Starts receiving into `memory` from `from`.
    pub(crate) fn start_recv(
        &self,
        memory: Memory,
        dtype: DataType,
        from: Rank,
        tag: u32,
    ) -> Result<Work, Error> {
        let stream = Stream {
            from,
            to: self.rank(),
            tag,
        };
        self.start_stream(stream, from, Memory::EMPTY, memory, dtype)
    }

    /// A message is a broadcast in a group of two.
    fn start_stream(
        &self,
        stream: Stream,
        peer: Rank,
        input: Memory,
        output: Memory,
        dtype: DataType,
    ) -> Result<Work, Error> {
        if peer >= self.size() || peer == self.rank() {
            return Err(Error::Argument(format!(
                "message between rank {} and rank {peer} in a group of {}: expected two different ranks below {}",
                self.rank(),
                self.size(),
                self.size()
            )));
        }
        let group = self
            .group
            .stream(stream, |rank, topology| self.engine().plans(rank, topology));
        let pair = Self {
            membership: self.membership.clone(),
            group,
        };
        pair.submit(
            Request::new(Collective::Broadcast { root: 0 }, dtype, input, output)
                .algorithm(Algorithm::Direct),
        )
    }

    /// Makes a communicator of the ranks that give the same `color`, in the order of `key` and then of rank here.
    /// With no color a rank is in none. Every rank must call it.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>, Error> {
        let mine = [color.map_or(-1, i64::from), key];
        let mut all = vec![0_i64; 2 * self.size()];
        self.all_gather(&mine, &mut all)?;
        let Some(color) = color else { return Ok(None) };
        let mut chosen: Vec<(i64, Rank)> = all
            .chunks_exact(2)
            .enumerate()
            .filter(|(_, pair)| pair[0] == i64::from(color))
            .map(|(rank, pair)| (pair[1], rank))
            .collect();
        chosen.sort_unstable();
        let members: Arc<[Rank]> = chosen
            .iter()
            .map(|&(_, rank)| self.group.members[rank])
            .collect();
        let id = self.group.split_id(u64::from(color));
        Ok(Some(self.with_group(id, members)))
    }

    /// The communicator of `members` of the world, this rank among them, under an id that all members use.
    pub(crate) fn with_group(&self, id: u64, members: Arc<[Rank]>) -> Self {
        let engine = self.engine();
        let me = engine.world.rank;
        let Some(rank) = members.iter().position(|&m| m == me) else {
            unreachable!("a group is made of the ranks that chose it, this one too")
        };
        let topology = engine.topology(&members);
        let plans = engine.plans(rank, topology);
        let group = Group::new(id, members, rank, plans);
        Self {
            membership: self.membership.clone(),
            group,
        }
    }

    /// Memory that the ranks of this host reach without a copy, for `len` elements, zeros. Where this host has
    /// one rank only, or shared memory is not to be used, it is ordinary memory.
    ///
    /// # Errors
    /// The arena is full: the setting `arena_size`.
    pub fn allocate<T: Element>(&self, len: usize) -> Result<ArenaBuffer<T>, Error> {
        let Some(host) = &self.engine().host else {
            return Ok(ArenaBuffer::on_heap(len));
        };
        let bytes = len.checked_mul(size_of::<T>()).unwrap_or(usize::MAX);
        let block = host
            .user_arena()
            .allocate(bytes)
            .map_err(|e| Error::Memory(e.to_string()))?;
        Ok(ArenaBuffer::in_arena(block, len))
    }

    /// The deadline of operations that name none.
    pub fn timeout(&self) -> Duration {
        self.engine().settings.values().timeout
    }

    /// Bytes that this process has allocated for buffers, over all communicators.
    pub fn memory_in_use(&self) -> usize {
        self.engine().memory_in_use()
    }
}

impl Engine {
    /// What plans a group of `topology` in which this rank is `rank`.
    pub(crate) fn plans(&self, rank: Rank, topology: Topology) -> Plans {
        Plans::new(rank, topology)
    }

    /// Where the members of a group are.
    pub(crate) fn topology(&self, members: &[Rank]) -> Topology {
        let mut hosts = Vec::new();
        let host_of = |&rank: &Rank| {
            let id = self.world.members[rank].host_id;
            hosts.iter().position(|h| *h == id).unwrap_or_else(|| {
                hosts.push(id);
                hosts.len() - 1
            })
        };
        Topology::new(members.iter().map(host_of).collect())
    }
}
