//! A communicator as codecs see it.

use std::time::{Duration, Instant};

use ringway_codec::{Values, Wire, WireError};
use ringway_kernels::Element;
use ringway_plan::{Collective, Rank, ReduceOp};
use ringway_sys::Memory;

use crate::{
    Communicator, Error, Parts, Request,
    buffer::{exclusive, shared},
    calls::{packed, whole},
    engine::lock,
};

pub(super) struct CommunicatorWire<'a> {
    communicator: &'a Communicator,
    priority: u8,
    timeout: Option<Duration>,
    /// In collectives.
    pub(super) time: Duration,
    /// By this rank.
    pub(super) sent: u64,
}

impl<'a> CommunicatorWire<'a> {
    pub(super) const fn new(
        communicator: &'a Communicator,
        priority: u8,
        timeout: Option<Duration>,
    ) -> Self {
        Self {
            communicator,
            priority,
            timeout,
            time: Duration::ZERO,
            sent: 0,
        }
    }

    fn run(&mut self, request: Request, sent: usize) -> Result<(), WireError> {
        let began = Instant::now();
        let mut request = request.priority(self.priority);
        if let Some(timeout) = self.timeout {
            request = request.timeout(timeout);
        }
        let ended: Result<(), Error> = self.communicator.run(request);
        self.time += began.elapsed();
        self.sent += sent as u64;
        ended.map_err(Into::into)
    }

    fn sum<T: Element>(&mut self, values: &mut [T]) -> Result<(), WireError> {
        let (ranks, memory) = (self.ranks(), exclusive(values));
        let request = Request::new(Collective::AllReduce, T::DTYPE, memory, memory);
        // What a codec keeps for the next step goes by what it has sent.
        let request = request.reduce_op(ReduceOp::Sum).wide();
        self.run(request, 2 * memory.len() / ranks * (ranks - 1))
    }
}

fn bytes(collective: Collective, input: Memory, output: Memory) -> Request {
    Request::new(collective, u8::DTYPE, input, output)
}

impl Wire for CommunicatorWire<'_> {
    fn rank(&self) -> Rank {
        self.communicator.rank()
    }

    fn ranks(&self) -> usize {
        self.communicator.size()
    }

    fn all_reduce(&mut self, values: Values<'_>) -> Result<(), WireError> {
        match values {
            Values::F16(values) => self.sum(values),
            Values::Bf16(values) => self.sum(values),
            Values::F32(values) => self.sum(values),
        }
    }

    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) -> Result<(), WireError> {
        let (ranks, input, output) = (self.ranks(), shared(send), exclusive(receive));
        let request = bytes(Collective::AllToAll, input, output);
        self.run(request, send.len() / ranks * (ranks - 1))
    }

    fn all_to_all_v(
        &mut self,
        send: &[u8],
        counts: &[usize],
        receive: &mut [u8],
        expected: &[usize],
    ) -> Result<(), WireError> {
        let parts = Parts {
            input: packed(counts),
            output: packed(expected),
        };
        let kept = counts[self.rank()];
        let request = bytes(Collective::AllToAll, shared(send), exclusive(receive)).parts(parts);
        self.run(request, send.len() - kept)
    }

    fn all_gather(&mut self, send: &[u8], receive: &mut [u8]) -> Result<(), WireError> {
        let sent = send.len() * (self.ranks() - 1);
        let request = bytes(Collective::AllGather, shared(send), exclusive(receive));
        self.run(request, sent)
    }

    fn all_gather_v(
        &mut self,
        send: &[u8],
        receive: &mut [u8],
        counts: &[usize],
    ) -> Result<(), WireError> {
        let parts = Parts {
            input: whole(send.len()),
            output: packed(counts),
        };
        let sent = send.len() * (self.ranks() - 1);
        let request = bytes(Collective::AllGather, shared(send), exclusive(receive)).parts(parts);
        self.run(request, sent)
    }

    fn time(&self, collective: Collective, bytes: usize) -> Duration {
        lock(&self.communicator.group.plans).time(collective, bytes)
    }
}
