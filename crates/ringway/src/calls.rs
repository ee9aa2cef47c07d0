//! The typed calls: what Rust programs use.

use ringway_kernels::Element;
use ringway_plan::{Collective, Rank, ReduceOp};
use ringway_sys::Memory;

use crate::{
    Communicator, Error, Parts, Request,
    buffer::{exclusive, shared},
};

impl Communicator {
    /// Reduces `buffer` over all ranks; every rank gets the result, in place.
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let memory = exclusive(buffer);
        self.run(Request::new(Collective::AllReduce, T::DTYPE, memory, memory).reduce_op(op))
    }

    /// Reduces `input` over all ranks into every rank's `output`, of the same length.
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let (input, output) = (shared(input), exclusive(output));
        self.run(Request::new(Collective::AllReduce, T::DTYPE, input, output).reduce_op(op))
    }

    /// Reduces `input` over all ranks; rank r gets the r-th of `size` equal parts as `output`.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let (input, output) = (shared(input), exclusive(output));
        self.run(Request::new(Collective::ReduceScatter, T::DTYPE, input, output).reduce_op(op))
    }

    /// Like [`Self::reduce_scatter`], with `counts[r]` elements for rank r.
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let parts = Parts {
            input: packed(counts),
            output: whole(output.len()),
        };
        let (input, output) = (shared(input), exclusive(output));
        self.run(
            Request::new(Collective::ReduceScatter, T::DTYPE, input, output)
                .reduce_op(op)
                .parts(parts),
        )
    }

    /// Gathers every rank's `input`, in rank order, into every rank's `output`.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let (input, output) = (shared(input), exclusive(output));
        self.run(Request::new(Collective::AllGather, T::DTYPE, input, output))
    }

    /// Like [`Self::all_gather`], with `counts[r]` elements from rank r.
    pub fn all_gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        let parts = Parts {
            input: whole(input.len()),
            output: packed(counts),
        };
        let (input, output) = (shared(input), exclusive(output));
        self.run(Request::new(Collective::AllGather, T::DTYPE, input, output).parts(parts))
    }

    /// Every rank gets the root's `buffer`.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: Rank) -> Result<(), Error> {
        let memory = exclusive(buffer);
        let input = if self.rank() == root {
            memory
        } else {
            Memory::EMPTY
        };
        self.run(Request::new(
            Collective::Broadcast { root },
            T::DTYPE,
            input,
            memory,
        ))
    }

    /// Reduces `input` over all ranks into the root's `output`; other ranks' `output` is not used and may be empty.
    pub fn reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<(), Error> {
        let output = self.at_root(root, exclusive(output));
        let request = Request::new(Collective::Reduce { root }, T::DTYPE, shared(input), output);
        self.run(request.reduce_op(op))
    }

    /// The root gets every rank's `input`, in rank order; other ranks' `output` is not used and may be empty.
    pub fn gather<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let output = self.at_root(root, exclusive(output));
        self.run(Request::new(
            Collective::Gather { root },
            T::DTYPE,
            shared(input),
            output,
        ))
    }

    /// Like [`Self::gather`], with `counts[r]` elements from rank r.
    pub fn gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: Rank,
    ) -> Result<(), Error> {
        let is_root = self.rank() == root;
        let parts = Parts {
            input: whole(input.len()),
            output: if is_root { packed(counts) } else { Vec::new() },
        };
        let output = self.at_root(root, exclusive(output));
        let request = Request::new(Collective::Gather { root }, T::DTYPE, shared(input), output);
        self.run(request.parts(parts))
    }

    /// Rank r gets the r-th of `size` equal parts of the root's `input`; other ranks' `input` is not used.
    pub fn scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let input = self.at_root(root, shared(input));
        self.run(Request::new(
            Collective::Scatter { root },
            T::DTYPE,
            input,
            exclusive(output),
        ))
    }

    /// Like [`Self::scatter`], with `counts[r]` elements for rank r.
    pub fn scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: Rank,
    ) -> Result<(), Error> {
        let is_root = self.rank() == root;
        let parts = Parts {
            input: if is_root { packed(counts) } else { Vec::new() },
            output: whole(output.len()),
        };
        let input = self.at_root(root, shared(input));
        let request = Request::new(
            Collective::Scatter { root },
            T::DTYPE,
            input,
            exclusive(output),
        );
        self.run(request.parts(parts))
    }

    /// The r-th of `size` equal parts of `input` goes to rank r; `output` has what the ranks sent, in rank order.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let (input, output) = (shared(input), exclusive(output));
        self.run(Request::new(Collective::AllToAll, T::DTYPE, input, output))
    }

    /// Like [`Self::all_to_all`], with `send[r]` elements to and `receive[r]` elements from rank r, packed.
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        send: &[usize],
        output: &mut [T],
        receive: &[usize],
    ) -> Result<(), Error> {
        let parts = Parts {
            input: packed(send),
            output: packed(receive),
        };
        let (input, output) = (shared(input), exclusive(output));
        self.run(Request::new(Collective::AllToAll, T::DTYPE, input, output).parts(parts))
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<(), Error> {
        self.run(Request::new(
            Collective::Barrier,
            ringway_plan::DataType::U8,
            Memory::EMPTY,
            Memory::EMPTY,
        ))?;
        self.engine().give_way();
        Ok(())
    }

    /// Sends `elements` to `to`, whose [`Self::recv`] has the same `tag`.
    pub fn send<T: Element>(&self, elements: &[T], to: Rank, tag: u32) -> Result<(), Error> {
        self.start_send(shared(elements), T::DTYPE, to, tag, None)?
            .wait()
    }

    /// Receives `elements` that `from` sends with the same `tag`.
    pub fn recv<T: Element>(&self, elements: &mut [T], from: Rank, tag: u32) -> Result<(), Error> {
        self.start_recv(exclusive(elements), T::DTYPE, from, tag, None)?
            .wait()
    }

    fn at_root(&self, root: Rank, memory: Memory) -> Memory {
        if self.rank() == root {
            memory
        } else {
            Memory::EMPTY
        }
    }
}

/// One part.
pub(crate) fn whole(len: usize) -> Vec<std::ops::Range<usize>> {
    std::iter::once(0..len).collect()
}

/// The ranges of parts that lie one after the other.
pub(crate) fn packed(counts: &[usize]) -> Vec<std::ops::Range<usize>> {
    let mut end = 0;
    counts
        .iter()
        .map(|count| {
            let start = end;
            end += count;
            start..end
        })
        .collect()
}
