from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, Unpack, final, type_check_only

import typing_extensions

from ringway._types import Counts, Operation, Options, Range

__all__ = [
    "ArenaBuffer",
    "Bucket",
    "Communicator",
    "Lanes",
    "Registration",
    "Start",
    "Work",
    "__version__",
    "after_fork",
    "group",
    "init",
    "join",
    "kinds",
    "message",
    "places",
    "register",
    "run",
    "submit",
]

__version__: str

@type_check_only
class _Array(Protocol):
    """An array of numpy's, whose type does not tell of its buffer before Python 3.12."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...

_Buffer: TypeAlias = typing_extensions.Buffer | _Array

@final
class Communicator:
    """The ranks of a group, as one of them sees it.

    Every rank of the group makes the same collective calls in the same order. Arrays are objects with the buffer
    protocol, contiguous, of numbers, truth values or complex numbers.

    ``op`` is sum, avg, prod, min, max, and, or, xor. Truth values are reduced as such: their sum is "or".
    """

    @property
    def rank(self) -> int:
        """This rank's number in the group, from 0."""
    @property
    def size(self) -> int:
        """The number of ranks in the group."""
    @property
    def members(self) -> list[int]:
        """The world's rank of each member of the group."""
    @property
    def transport(self) -> str:
        """What messages go over: shm, tcp or shm+tcp."""
    def predict_all_reduce(self, bytes: int) -> float:
        """Seconds that the cost model expects of an all-reduce of so many bytes in this group."""
    @property
    def start(self) -> Start:
        """The same calls, asynchronous: ``comm.start.all_reduce(x)`` returns a :class:`Work`."""
    def all_reduce(
        self, input: _Buffer, output: _Buffer | None = None, *, op: str = "sum", **options: Unpack[Options]
    ) -> None:
        """Reduces ``input`` over all ranks into every rank's ``output``, or in place."""
    def reduce_scatter(
        self,
        input: _Buffer,
        output: _Buffer,
        *,
        op: str = "sum",
        counts: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Reduces ``input`` over all ranks; rank r gets its r-th part as ``output``: of ``size`` equal parts, or of
        ``counts[r]`` elements."""
    def all_gather(
        self, input: _Buffer, output: _Buffer, *, counts: Sequence[int] | None = None, **options: Unpack[Options]
    ) -> None:
        """Gathers every rank's ``input``, in rank order, into every rank's ``output``; with ``counts[r]`` elements
        from rank r, or as many from each."""
    def broadcast(self, buffer: _Buffer, root: int = 0, **options: Unpack[Options]) -> None:
        """Every rank gets the root's ``buffer``."""
    def reduce(
        self,
        input: _Buffer,
        output: _Buffer | None = None,
        *,
        root: int = 0,
        op: str = "sum",
        **options: Unpack[Options],
    ) -> None:
        """Reduces ``input`` over all ranks into the root's ``output``, or there in place. Others' ``output`` is not
        used."""
    def gather(
        self,
        input: _Buffer,
        output: _Buffer | None = None,
        *,
        root: int = 0,
        counts: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> None:
        """The root gets every rank's ``input``, in rank order. Others' ``output`` is not used."""
    def scatter(
        self,
        input: _Buffer | None,
        output: _Buffer,
        *,
        root: int = 0,
        counts: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Rank r gets the r-th part of the root's ``input``. Others' ``input`` is not used."""
    def all_to_all(
        self,
        input: _Buffer,
        output: _Buffer,
        *,
        input_counts: Sequence[int] | None = None,
        output_counts: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> None:
        """The r-th part of ``input`` goes to rank r; ``output`` has what the ranks sent, in rank order. Parts are
        equal, or of ``input_counts[r]`` elements to and ``output_counts[r]`` from rank r."""
    def barrier(self, **options: Unpack[Options]) -> None:
        """Returns when every rank has called it."""
    def send(self, buffer: _Buffer, to: int, tag: int = 0, **options: Unpack[Options]) -> None:
        """Sends ``buffer`` to rank ``to``, which receives it with the same ``tag``."""
    def recv(self, buffer: _Buffer, source: int, tag: int = 0, **options: Unpack[Options]) -> None:
        """Receives what rank ``source`` sends with the same ``tag``; the length must be the sender's."""
    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Makes a communicator of the ranks that give the same ``color``, in the order of ``key`` and then of rank
        here. With None a rank is in none. Every rank must call it."""
    def allocate(self, count: int, dtype: str = "f32") -> ArenaBuffer:
        """Zeros in memory that the ranks of this host reach without a copy; ordinary memory where none is shared."""
    def register(self, buffer: _Buffer) -> Registration:
        """Registers a buffer with the RDMA device that carries the job's messages, once for all calls that use it or
        parts of it: long messages are sent from there and received there without a copy. Without such a device it
        does nothing. What :meth:`allocate` gives is registered already."""
    def registered_memory(self) -> dict[str, int]:
        """What is registered with RDMA devices: ``bytes`` in so many ``regions``, and how many ``registrations``
        devices were asked for so far."""
    def abort(self, reason: str) -> None:
        """Ends the job on all ranks: calls, here and there, raise an error that says ``reason``."""
    def leave(self) -> None:
        """Leaves the job in good order: for all communicators of the job in this process. It happens by itself when
        the last is gone, or at the process's end."""

@final
class Start:
    """A communicator's calls, started and not waited for. Buffers must not be touched until the work has ended."""

    def all_reduce(
        self, input: _Buffer, output: _Buffer | None = None, *, op: str = "sum", **options: Unpack[Options]
    ) -> Work: ...
    def reduce_scatter(
        self,
        input: _Buffer,
        output: _Buffer,
        *,
        op: str = "sum",
        counts: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Work: ...
    def all_gather(
        self, input: _Buffer, output: _Buffer, *, counts: Sequence[int] | None = None, **options: Unpack[Options]
    ) -> Work: ...
    def broadcast(self, buffer: _Buffer, root: int = 0, **options: Unpack[Options]) -> Work: ...
    def reduce(
        self,
        input: _Buffer,
        output: _Buffer | None = None,
        *,
        root: int = 0,
        op: str = "sum",
        **options: Unpack[Options],
    ) -> Work: ...
    def gather(
        self,
        input: _Buffer,
        output: _Buffer | None = None,
        *,
        root: int = 0,
        counts: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Work: ...
    def scatter(
        self,
        input: _Buffer | None,
        output: _Buffer,
        *,
        root: int = 0,
        counts: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Work: ...
    def all_to_all(
        self,
        input: _Buffer,
        output: _Buffer,
        *,
        input_counts: Sequence[int] | None = None,
        output_counts: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Work: ...
    def barrier(self, **options: Unpack[Options]) -> Work: ...
    def send(self, buffer: _Buffer, to: int, tag: int = 0, **options: Unpack[Options]) -> Work: ...
    def recv(self, buffer: _Buffer, source: int, tag: int = 0, **options: Unpack[Options]) -> Work: ...

@final
class Work:
    """An operation in flight. It goes on, and keeps its buffers, when this object is dropped."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has ended, and raises its error if it failed. False if it has not ended within ``timeout``
        seconds."""
    def is_done(self) -> bool:
        """Whether it has ended, well or not."""
    def _ages(self) -> tuple[float, float] | None: ...
    def _coding(self) -> float | None: ...
    def _waits_from_now(self) -> None: ...
    def _on_end(self, callback: Callable[[Exception | None], object]) -> None: ...

@final
class Registration:
    """Keeps memory registered, and where it is, until it is released, left as a context manager, or dropped. Operations
    that are under way then go on."""

    @property
    def bytes(self) -> int:
        """The bytes that are kept registered."""
    def release(self) -> None: ...
    def __enter__(self) -> Registration: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class ArenaBuffer(typing_extensions.Buffer):
    """Elements in memory that the ranks of this host reach without a copy, with the buffer protocol:
    ``numpy.asarray(buffer)``. bfloat16 appears as 16-bit integers."""

    def __len__(self) -> int: ...
    @property
    def is_shared(self) -> bool:
        """Whether peers on this host reach the memory."""

def init(**settings: object) -> Communicator: ...
def after_fork() -> None: ...

# What ringway.torch is made of.

@final
class Lanes:
    """Where averages of gradients run, all in the form of one kind of codec, or with ``"adaptive"`` each in its own."""

    def __new__(cls, communicator: Communicator, codec: str, feedback: bool, seed: int) -> Lanes: ...
    def bucket(self, tensors: Sequence[tuple[str, Sequence[int]]]) -> Bucket:
        """A bucket of tensors, of which name and shape are given. All ranks make them in the same order."""

@final
class Bucket:
    """A bucket of gradients with its codec."""

    def submit(self, range: Range, absent: Sequence[int], timeout: float, keep: object) -> Work:
        """Starts averaging 32-bit floats, which ``keep`` keeps. ``absent`` are the places of tensors without a gradient
        on any rank. Each collective may take ``timeout`` seconds."""
    def decision(self) -> str | None:
        """What an adaptive bucket has decided last, and why."""
    def state(self) -> bytes:
        """What the codec keeps for later averages, after those that are under way."""
    def restore(self, state: bytes) -> None:
        """Takes up what :meth:`state` gave."""

@type_check_only
class Store(Protocol):
    """Where ranks leave values for each other. Keys are written once."""

    def set(self, key: str, value: bytes) -> None: ...
    def get(self, key: str, seconds: float) -> bytes | None:
        """The value, waiting for it for so long; None if nobody has left one."""
    def describe(self) -> str: ...

def kinds() -> dict[str, int]: ...
def places() -> tuple[dict[str, int], dict[str, int]]: ...
def join(
    store: Store, rank: int, size: int, job: str, settings: Mapping[str, object] | None = None
) -> Communicator: ...
def group(world: Communicator, store: Store, rank: int, size: int) -> Communicator: ...
def register(communicator: Communicator, ranges: Sequence[Range], keep: object) -> Registration: ...
def run(
    communicator: Communicator,
    operation: Operation,
    memory: tuple[Range, Range],
    counts: Counts | None,
    timeout: float,
    keep: object,
    places: Sequence[Range] | None = None,
) -> None: ...
def submit(
    communicator: Communicator,
    operation: Operation,
    memory: tuple[Range, Range],
    counts: Counts | None,
    timeout: float,
    keep: object,
    priority: int = 0,
    places: Sequence[Range] | None = None,
) -> Work: ...
def message(
    communicator: Communicator,
    sends: bool,
    kind: int,
    range: Range,
    peer: tuple[int, int],
    timeout: float,
    keep: object,
) -> Work: ...
