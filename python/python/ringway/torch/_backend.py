"""The backend: what ``torch.distributed`` calls, as calls of the engine."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from ringway import ArgumentError, Communicator, Registration, _ringway
from ringway._types import Counts, Operation, Range
from ringway.torch import _memory, _record, _world
from ringway.torch._staging import Staging, first_device, tensors_of
from ringway.torch._tensors import (
    EMPTY,
    Finish,
    check,
    kind_of,
    number_kind,
    place,
    readable,
    readable_row,
    writable,
    writable_row,
)
from ringway.torch._work import RingwayWork

_collectives, _reductions = _ringway.places()
_ALL_REDUCE = _collectives["all_reduce"]
_ALL_GATHER = _collectives["all_gather"]
_ALL_TO_ALL = _collectives["all_to_all"]
_BARRIER = _collectives["barrier"]
_BROADCAST = _collectives["broadcast"]
_GATHER = _collectives["gather"]
_REDUCE = _collectives["reduce"]
_REDUCE_SCATTER = _collectives["reduce_scatter"]
_SCATTER = _collectives["scatter"]

_SUM = _reductions["sum"]
_OPERATIONS: dict[object, int] = {
    getattr(dist.ReduceOp, name): _reductions[op]
    for name, op in {
        "SUM": "sum",
        "AVG": "avg",
        "PRODUCT": "prod",
        "MIN": "min",
        "MAX": "max",
        "BAND": "and",
        "BOR": "or",
        "BXOR": "xor",
    }.items()
}
_NO_LIMIT = timedelta(0)
_OPTIONS = ("reduceOp", "rootRank", "timeout")
_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Method = TypeVar("_Method", bound=Callable[..., Any])


class _Options(Protocol):
    """What all options of collectives have."""

    timeout: timedelta
    asyncOp: bool


def _reduction(op: object) -> int:
    """The place of a `ReduceOp`."""
    if op == dist.ReduceOp.SUM:
        return _SUM
    kind = getattr(op, "op", op)
    known = _OPERATIONS.get(kind)
    if known is None:
        raise ArgumentError(
            f"the backend ringway does not know {kind}; for a scaled sum, scale the tensor and use SUM, or AVG"
        )
    return known


def _only(tensors: Sequence[Tensor]) -> Tensor:
    if len(tensors) != 1:
        raise ArgumentError(f"expected one tensor, found {len(tensors)}")
    return tensors[0]


def _same_kind(a: Tensor, b: Tensor, kind: Callable[[Tensor], int]) -> int:
    if a.dtype != b.dtype:
        raise ArgumentError(f"input has elements of {a.dtype} and output of {b.dtype}; expected the same")
    return kind(a)


class _Batches(threading.local):
    """What a thread coalesces: works, while it does."""

    batch: list["RingwayWork"] | None = None


def _staged(*, reads: Sequence[int], writes: Sequence[int]) -> Callable[[_Method], _Method]:
    """Has a call of tensors on an accelerator made on memory of the host. `reads` and `writes` are places of arguments:
    whose tensors are read, and whose are written."""

    def decorate(method: _Method) -> _Method:
        @wraps(method)
        def call(self: "RingwayBackend", *arguments: Any) -> Any:
            device = first_device(arguments)
            if device is not None:
                return self._on_twins(method, arguments, (reads, writes), device)
            if self._staging is not None:
                self._staging.settle()
            return method(self, *arguments)

        return cast(_Method, call)

    return decorate


class RingwayBackend(c10d.Backend):
    """One process group. Made by ``torch.distributed``, not by programs."""

    def __init__(self, options: c10d._DistributedBackendOptions, _: object = None) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._rank, self._size = options.group_rank, options.group_size
        self._timeout = options.timeout.total_seconds()
        self._options = c10d.Backend.Options("ringway", options.timeout)
        self._batches = _Batches()
        self._staging: Staging | None = None
        self._calls = 0
        self.communicator: Communicator
        self.communicator, self._is_job = _world.join(options)

    # What it is.

    def getBackendName(self) -> str:
        return "ringway"

    @property
    def options(self) -> c10d.Backend.Options:
        return self._options

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def _set_sequence_number_for_group(self) -> None:
        """Numbers start at 0 on every rank."""

    def shutdown(self) -> None:
        if self._staging is not None:
            self._staging.close(self._timeout)
        if self._is_job:
            _world.leave(self.communicator)

    def abort(self) -> None:
        self.communicator.abort("the program aborted its process group")

    def supports_tensor_alloc(self, device: object) -> bool:
        # C++ asks with a number, and could not make the call that follows.
        return isinstance(device, torch.device) and device.type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory that ranks of one host reach without a copy."""
        if device.type != "cpu":
            raise ArgumentError(f"the backend ringway has memory for the device cpu, and not for {device}")
        return _memory.allocate(self.communicator, torch.Size((size,)), dtype)

    # What it does not have. (Asked for in C++, which asks here: an inherited property would ask for ever.)

    supports_coalescing = property(lambda _: False)
    supports_reconfigure = property(lambda _: False)
    supports_shrinking = property(lambda _: False)
    supports_splitting = property(lambda _: False)
    supports_window = property(lambda _: False)
    _supports_time_estimate = property(lambda _: False)

    # How calls are made.

    def _call(
        self,
        operation: Operation,
        memory: tuple[Range, Range],
        options: _Options,
        keep: object,
        *,
        tensors: Sequence[Tensor] = (),
        finish: Finish = None,
        counts: Counts | None = None,
        places: Sequence[Range] | None = None,
    ) -> RingwayWork | None:
        """Makes a collective call on the memory of an input and an output, or of the `places` in which both lie, which
        `keep` keeps. A blocking one returns when it has ended, and no work for anybody to wait for."""
        self._calls += 1
        timeout = options.timeout
        limit = self._timeout if timeout <= _NO_LIMIT else timeout.total_seconds()
        size = max(memory[0][1], memory[1][1]) if places is None else sum(size for _, size in places)
        if options.asyncOp or self._batches.batch is not None:
            work = _ringway.submit(self.communicator, operation, memory, counts, limit, keep, places=places)
            _record.started(operation, size, work)
            return self._batched(RingwayWork([work], tensors, finish))
        began = time.perf_counter()
        _ringway.run(self.communicator, operation, memory, counts, limit, keep, places)
        _record.called(operation, size, began)
        if finish is not None:
            finish()
        return None

    def _on_twins(
        self,
        method: Callable[..., Any],
        arguments: Sequence[Any],
        places: tuple[Sequence[int], Sequence[int]],
        device: torch.device,
    ) -> RingwayWork | None:
        """Makes a call with memory of the host in place of tensors on an accelerator."""
        if self._staging is None:
            _log.info("tensors on %s go through memory of the host", device)
            self._staging = Staging(device)
        returns, limit = True, self._timeout
        options = arguments[-1]
        if hasattr(options, "asyncOp"):
            returns = options.asyncOp or self._batches.batch is not None
            if options.timeout > _NO_LIMIT:
                limit = options.timeout.total_seconds()
            # As they are now; whoever makes the call later waits for nothing.
            values = {name: getattr(options, name) for name in _OPTIONS if hasattr(options, name)}
            arguments = (*arguments[:-1], SimpleNamespace(**values, asyncOp=True))
        staged = self._staging.start(partial(_apply, method, self), arguments, places, limit)
        work = RingwayWork([staged], list(tensors_of(arguments[at] for at in places[1])))
        if returns:
            return self._batched(work)
        work.wait()
        return None

    def _batched(self, work: RingwayWork) -> RingwayWork:
        if self._batches.batch is not None:
            self._batches.batch.append(work)
        return work

    def _several(self, options: _Options, calls: Sequence[Callable[[], RingwayWork | None]]) -> RingwayWork | None:
        """Makes calls that are in flight together."""
        asynchronous, options.asyncOp = options.asyncOp, True
        try:
            works = [work for work in (call() for call in calls) if work is not None]
        finally:
            options.asyncOp = asynchronous
        all_works = RingwayWork.of(works)
        if asynchronous or self._batches.batch is not None:
            return all_works
        all_works.wait()
        return None

    def start_coalescing(self) -> None:
        self._batches.batch = []

    def end_coalescing(self) -> RingwayWork:
        works, self._batches.batch = self._batches.batch or [], None
        return RingwayWork.of(works)

    # Collectives.

    @_staged(reads=(0,), writes=(0,))
    def allreduce(self, tensors: list[Tensor], opts: c10d.AllreduceOptions) -> RingwayWork | None:
        tensor = _only(tensors)
        memory, finish = writable(tensor, keep=True)
        operation = (_ALL_REDUCE, 0, number_kind(tensor), _reduction(opts.reduceOp))
        where = place(memory)
        return self._call(operation, (where, where), opts, memory, tensors=tensors, finish=finish)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: c10d.AllreduceCoalescedOptions) -> RingwayWork | None:
        by_kind: dict[int, list[Tensor]] = {}
        for tensor in tensors:
            by_kind.setdefault(number_kind(tensor), []).append(tensor)
        return self._several(opts, [partial(self._allreduce_row, *each, opts) for each in by_kind.items()])

    @_staged(reads=(1,), writes=(1,))
    def _allreduce_row(
        self, kind: int, tensors: list[Tensor], opts: c10d.AllreduceCoalescedOptions
    ) -> RingwayWork | None:
        """One operation for all `tensors`, as if they were in a row."""
        memories, finishes = zip(*(writable(tensor, keep=True) for tensor in tensors), strict=True)

        def finish() -> None:
            for each in finishes:
                if each is not None:
                    each()

        operation = (_ALL_REDUCE, 0, kind, _reduction(opts.reduceOp))
        places = [place(memory) for memory in memories]
        return self._call(operation, (EMPTY, EMPTY), opts, memories, tensors=tensors, finish=finish, places=places)

    def allreduce_sparse(self, tensors: list[Tensor], opts: c10d.AllreduceOptions) -> RingwayWork | None:
        check(_only(tensors))  # Which says what to do.
        return self.allreduce(tensors, opts)

    @_staged(reads=(0,), writes=(0,))
    def reduce(self, tensors: list[Tensor], opts: c10d.ReduceOptions) -> RingwayWork | None:
        tensor = _only(tensors)
        is_root = self._rank == opts.rootRank
        memory, finish = writable(tensor, keep=True) if is_root else (readable(tensor), None)
        operation = (_REDUCE, opts.rootRank, number_kind(tensor), _reduction(opts.reduceOp))
        where = place(memory)
        return self._call(operation, (where, where if is_root else EMPTY), opts, memory, tensors=tensors, finish=finish)

    @_staged(reads=(0,), writes=(0,))
    def broadcast(self, tensors: list[Tensor], opts: c10d.BroadcastOptions) -> RingwayWork | None:
        tensor = _only(tensors)
        is_root = self._rank == opts.rootRank
        memory, finish = (readable(tensor), None) if is_root else writable(tensor)
        operation = (_BROADCAST, opts.rootRank, kind_of(tensor), None)
        where = place(memory)
        return self._call(operation, (where if is_root else EMPTY, where), opts, memory, tensors=tensors, finish=finish)

    @_staged(reads=(1,), writes=(0,))
    def allgather(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: c10d.AllgatherOptions
    ) -> RingwayWork | None:
        tensor, outputs = _only(inputs), self._for_all(output_lists[0], "outputs")
        memory = readable(tensor)
        row, keep, finish = writable_row(outputs)
        operation = (_ALL_GATHER, 0, _same_kind(tensor, outputs[0], kind_of), None)
        sizes = _uneven(outputs)
        counts = None if sizes is None else ((tensor.numel(),), sizes)
        return self._call(
            operation, (place(memory), row), opts, (memory, keep), tensors=outputs, finish=finish, counts=counts
        )

    @_staged(reads=(1,), writes=(0,))
    def all_gather_single(self, output: Tensor, input: Tensor, opts: c10d.AllgatherOptions) -> RingwayWork | None:
        operation = (_ALL_GATHER, 0, _same_kind(input, output, kind_of), None)
        source, (memory, finish) = readable(input), writable(output)
        return self._call(
            operation, (place(source), place(memory)), opts, (source, memory), tensors=(output,), finish=finish
        )

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: c10d.AllgatherOptions
    ) -> RingwayWork | None:
        pairs = zip(outputs, inputs, strict=True)
        return self._several(opts, [partial(self.all_gather_single, o, i, opts) for o, i in pairs])

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: c10d.AllgatherOptions
    ) -> RingwayWork | None:
        # A list for each rank, with a tensor for each input.
        outputs = zip(*self._for_all(output_lists, "lists of outputs"), strict=True)
        pairs = zip(outputs, inputs, strict=True)
        return self._several(opts, [partial(self.allgather, [list(o)], [i], opts) for o, i in pairs])

    @_staged(reads=(1,), writes=(0,))
    def reduce_scatter(
        self, outputs: list[Tensor], input_lists: list[list[Tensor]], opts: c10d.ReduceScatterOptions
    ) -> RingwayWork | None:
        tensor, inputs = _only(outputs), self._for_all(input_lists[0], "inputs")
        row, keep = readable_row(inputs)
        memory, finish = writable(tensor)
        kind = _same_kind(inputs[0], tensor, number_kind)
        operation = (_REDUCE_SCATTER, 0, kind, _reduction(opts.reduceOp))
        sizes = _uneven(inputs)
        counts = None if sizes is None else (sizes, (tensor.numel(),))
        return self._call(
            operation, (row, place(memory)), opts, (memory, keep), tensors=outputs, finish=finish, counts=counts
        )

    @_staged(reads=(1,), writes=(0,))
    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, opts: c10d.ReduceScatterOptions
    ) -> RingwayWork | None:
        kind = _same_kind(input, output, number_kind)
        operation = (_REDUCE_SCATTER, 0, kind, _reduction(opts.reduceOp))
        source, (memory, finish) = readable(input), writable(output)
        return self._call(
            operation, (place(source), place(memory)), opts, (source, memory), tensors=(output,), finish=finish
        )

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: c10d.ReduceScatterOptions
    ) -> RingwayWork | None:
        pairs = zip(outputs, inputs, strict=True)
        return self._several(opts, [partial(self.reduce_scatter_single, o, i, opts) for o, i in pairs])

    @_staged(reads=(1,), writes=(0,))
    def gather(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: c10d.GatherOptions
    ) -> RingwayWork | None:
        tensor = _only(inputs)
        memory = readable(tensor)
        operation = (_GATHER, opts.rootRank, kind_of(tensor), None)
        if self._rank != opts.rootRank:
            return self._call(operation, (place(memory), EMPTY), opts, memory)
        outputs = self._for_all(output_lists[0], "outputs")
        _same_kind(tensor, outputs[0], kind_of)
        row, keep, finish = writable_row(outputs)
        return self._call(operation, (place(memory), row), opts, (memory, keep), tensors=outputs, finish=finish)

    @_staged(reads=(1,), writes=(0,))
    def gather_single(self, output: Tensor, input: Tensor, opts: c10d.GatherOptions) -> RingwayWork | None:
        source = readable(input)
        operation = (_GATHER, opts.rootRank, kind_of(input), None)
        if self._rank != opts.rootRank:
            return self._call(operation, (place(source), EMPTY), opts, source)
        _same_kind(input, output, kind_of)
        memory, finish = writable(output)
        return self._call(
            operation, (place(source), place(memory)), opts, (source, memory), tensors=(output,), finish=finish
        )

    @_staged(reads=(1,), writes=(0,))
    def scatter(
        self, outputs: list[Tensor], input_lists: list[list[Tensor]], opts: c10d.ScatterOptions
    ) -> RingwayWork | None:
        tensor = _only(outputs)
        memory, finish = writable(tensor)
        operation = (_SCATTER, opts.rootRank, kind_of(tensor), None)
        if self._rank != opts.rootRank:
            return self._call(operation, (EMPTY, place(memory)), opts, memory, tensors=outputs, finish=finish)
        inputs = self._for_all(input_lists[0], "inputs")
        _same_kind(inputs[0], tensor, kind_of)
        row, keep = readable_row(inputs)
        return self._call(operation, (row, place(memory)), opts, (memory, keep), tensors=outputs, finish=finish)

    @_staged(reads=(1,), writes=(0,))
    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: c10d.AllToAllOptions) -> RingwayWork | None:
        self._for_all(outputs, "outputs")
        self._for_all(inputs, "inputs")
        row, kept_inputs = readable_row(inputs)
        into, kept_outputs, finish = writable_row(outputs)
        operation = (_ALL_TO_ALL, 0, _same_kind(inputs[0], outputs[0], kind_of), None)
        # A rank sees only its own sizes: whether all are alike it cannot know.
        counts = [tensor.numel() for tensor in inputs], [tensor.numel() for tensor in outputs]
        return self._call(
            operation, (row, into), opts, (kept_inputs, kept_outputs), tensors=outputs, finish=finish, counts=counts
        )

    @_staged(reads=(1,), writes=(0,))
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: c10d.AllToAllOptions,
    ) -> RingwayWork | None:
        operation = (_ALL_TO_ALL, 0, _same_kind(input, output, kind_of), None)
        source, (memory, finish) = readable(input), writable(output)
        counts = None
        if output_splits or input_splits:
            counts = self._split(input, input_splits, "input"), self._split(output, output_splits, "output")
        keep = (source, memory)
        return self._call(
            operation, (place(source), place(memory)), opts, keep, tensors=(output,), finish=finish, counts=counts
        )

    @_staged(reads=(), writes=())
    def barrier(self, opts: c10d.BarrierOptions) -> RingwayWork | None:
        return self._call((_BARRIER, 0, 0, None), (EMPTY, EMPTY), opts, None)

    # Messages.

    @_staged(reads=(0,), writes=())
    def send(self, tensors: list[Tensor], peer: int, tag: int) -> RingwayWork:
        tensor = _only(tensors)
        return self._message(True, readable(tensor), (peer, tag), tensors)

    @_staged(reads=(), writes=(0,))
    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> RingwayWork:
        memory, finish = writable(_only(tensors))
        return self._message(False, memory, (peer, tag), tensors, finish)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> RingwayWork:
        raise ArgumentError("the backend ringway receives from one rank: expected recv(tensor, src=...)")

    def _message(
        self, sends: bool, memory: Tensor, stream: tuple[int, int], tensors: list[Tensor], finish: Finish = None
    ) -> RingwayWork:
        if stream[1] < 0:
            raise ArgumentError(f"expected a tag from 0, found {stream[1]}")
        kind = kind_of(memory)
        work = _ringway.message(self.communicator, sends, kind, place(memory), stream, self._timeout, memory)
        return self._batched(RingwayWork([work], tensors, finish))

    # Arguments.

    def _for_all(self, items: Sequence[_T], what: str) -> Sequence[_T]:
        if len(items) != self._size:
            raise ArgumentError(f"found {len(items)} {what} in a group of {self._size} ranks; expected one for each")
        return items

    def _split(self, tensor: Tensor, splits: Sequence[int], what: str) -> list[int]:
        """Elements of each part; splits count along the first dimension."""
        rows = tensor.size(0) if tensor.dim() else 1
        if not splits:
            if rows % self._size:
                raise ArgumentError(f"{what} has {rows} rows, which do not divide by {self._size} ranks")
            splits = [rows // self._size] * self._size
        if sum(self._for_all(splits, f"{what} splits")) != rows or min(splits) < 0:
            raise ArgumentError(f"{what} splits {list(splits)} do not add up to the {rows} rows of the tensor")
        width = tensor.numel() // rows if rows else 0
        return [split * width for split in splits]

    # Names of before PyTorch 2.15.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    gather_into_tensor = gather_single
    alltoall_base = all_to_all_single


def _apply(method: Callable[..., RingwayWork], backend: RingwayBackend, arguments: Sequence[Any]) -> RingwayWork:
    return method(backend, *arguments)


def _uneven(tensors: Sequence[Tensor]) -> list[int] | None:
    """The tensors' sizes, unless they are alike. All ranks see the same."""
    sizes = [tensor.numel() for tensor in tensors]
    return None if all(size == sizes[0] for size in sizes) else sizes


def _backend_of(group: dist.ProcessGroup | None) -> RingwayBackend:
    backend = (group or dist.distributed_c10d._get_default_group())._get_backend(torch.device("cpu"))
    if not isinstance(backend, RingwayBackend):
        raise ArgumentError(f"expected a process group of the backend ringway, found {backend.name()}")
    return backend


def empty(*size: int, dtype: torch.dtype | None = None, group: dist.ProcessGroup | None = None) -> Tensor:
    """A tensor of zeros in the arena: collectives of ranks on one host read and write it in place, without a copy.

    ``group`` is any process group of the backend; without it, the default group.
    """
    communicator = _backend_of(group).communicator
    return _memory.allocate(communicator, torch.Size(size), dtype or torch.get_default_dtype())


def register_parameter_buffers(model: torch.nn.Module, group: dist.ProcessGroup | None = None) -> Registration:
    """Registers the memory of a model with the RDMA device, once: collectives then send from there and receive there
    without a copy. Without such a device it does nothing.

    That is the memory of parameters, of gradients that there are already, and of buffers. With
    ``DistributedDataParallel(..., gradient_as_bucket_view=True)`` gradients are views of the buckets that are reduced;
    those have their final place after the second step, so call it then. The memory is kept, and kept registered, for
    as long as the returned object.

    ``group`` is any process group of the backend; without it, the default group.
    """
    return _memory.register(_backend_of(group).communicator, model)
