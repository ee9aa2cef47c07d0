"""The engine's calls that the pipeline and the communication hooks make, in a group of their own."""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from ringway import _ringway
from ringway._ringway import Work
from ringway.torch import _memory, _record
from ringway.torch._backend import RingwayBackend
from ringway.torch._staging import Pending, Staging
from ringway.torch._tensors import EMPTY, KINDS, kind_of, place

_collectives, _reductions = _ringway.places()
_ALL_GATHER, _ALL_REDUCE, _BROADCAST = (_collectives[name] for name in ("all_gather", "all_reduce", "broadcast"))
AVERAGE, SUM = _reductions["avg"], _reductions["sum"]


class Engine:
    """The ranks of a process group, as a group of its own: the program may make calls of its own in between."""

    def __init__(self, backend: RingwayBackend) -> None:
        self._backend = backend
        self.rank, self.size = backend.rank(), backend.size()
        communicator = backend.communicator.split(0, self.rank)
        assert communicator is not None  # Who gives a colour is in a group.
        self.communicator = communicator
        self._staging: Staging | None = None

    def allocate(self, count: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
        """Zeros in memory that ranks of one host reach without a copy, or on an accelerator."""
        if device is not None and device.type != "cpu":
            return torch.zeros(count, dtype=dtype, device=device)
        return _memory.allocate(self.communicator, torch.Size((count,)), dtype)

    def timeout(self) -> float:
        """Seconds that an operation may take: the process group's."""
        return self._backend._timeout

    def start(self, submit: Callable[[Tensor], Work], memory: Tensor) -> Pending:
        """Starts an operation in place of a tensor: of itself, or of memory of the host for one on an accelerator."""
        if self._staging is None and not memory.is_cpu:
            self._staging = Staging(memory.device)
            weakref.finalize(self, self._staging.end)
        if self._staging is None:
            return submit(memory)
        # Operations on the CPU too, as all ranks must begin them in the same order.
        return self._staging.start(lambda tensors: submit(*tensors), [memory], ((0,), (0,)), self.timeout())

    def start_all_reduce(self, memory: Tensor, op: int, priority: int) -> Pending:
        """Starts an all-reduce in place of a tensor whose elements lie one after the other, in whatever order."""

        def submit(memory: Tensor) -> Work:
            operation, where = (_ALL_REDUCE, 0, KINDS[memory.dtype], op), place(memory)
            limit = self.timeout()
            work = _ringway.submit(self.communicator, operation, (where, where), None, limit, memory, priority)
            _record.started(operation, memory.nbytes, work)
            return work

        return self.start(submit, memory)

    def _settle(self) -> None:
        if self._staging is not None:
            self._staging.settle()

    def all_gather(self, mine: Tensor) -> Tensor:
        """What every rank has: (ranks, *shape), on the CPU."""
        self._settle()
        gathered = torch.empty((self.size, *mine.shape), dtype=mine.dtype, device="cpu")
        operation = (_ALL_GATHER, 0, KINDS[mine.dtype], None)
        memory = (place(mine), place(gathered))
        _ringway.run(self.communicator, operation, memory, None, self.timeout(), (mine, gathered))
        return gathered

    def broadcast(self, memory: Tensor) -> None:
        """Rank 0's values for everyone, in place of a tensor whose elements lie one after the other."""
        self._settle()
        if not memory.is_cpu:
            twin = memory.cpu()
            self.broadcast(twin)
            memory.copy_(twin)
            return
        operation, where = (_BROADCAST, 0, kind_of(memory), None), place(memory)
        source = where if self.rank == 0 else EMPTY
        _ringway.run(self.communicator, operation, (source, where), None, self.timeout(), memory)


def dense_stride(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's strides if its elements lie one after the other in whatever order, else those of a copy."""
    return torch.empty_like(tensor, device="meta").stride()
