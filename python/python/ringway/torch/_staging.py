"""Collectives of tensors on an accelerator, through memory of the host.

A tensor is copied to its *twin*, pinned memory of the host, on a stream for that; the call is made on twins; what it
gives back is copied to the tensors on another stream. So several calls, and the program's kernels, are under way at a
time. Calls begin in the order in which the program makes them, as all ranks must have the same.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from ringway import ArgumentError, Error
from ringway._ringway import Work

Ended = Callable[[Exception | None], None]
"""Hears how something has ended."""


class Operation(Protocol):
    """Something under way."""

    def _on_end(self, heard: Ended) -> None:
        """Has it told, at once if it has ended."""


def accelerator() -> str | None:
    """The type of device that PyTorch was built for, beside the CPU."""
    device = torch.accelerator.current_accelerator()
    return None if device is None else device.type


def first_device(arguments: Iterable[object]) -> torch.device | None:
    """Where the first of the tensors is, in whatever lists they are; None on the CPU."""
    for tensor in tensors_of(arguments):
        return None if tensor.is_cpu else tensor.device
    return None


def tensors_of(arguments: Iterable[object]) -> Iterator[Tensor]:
    """The tensors among arguments, in whatever lists they are."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from tensors_of(argument)


class Staged:
    """A call that is made on twins; to whoever waits it is like an operation of the engine's."""

    def __init__(
        self,
        call: Callable[[], Operation],
        there: torch.Event,
        written: Sequence[tuple[Tensor, Tensor]],
        back: torch.Stream,
        limit: float,
    ) -> None:
        self._call: Callable[[], Operation] | None = call
        self._there = there
        """When twins have what is read."""
        self._written = written
        """Tensors that get what is in their twins."""
        self._back = back
        self._limit = limit
        self._copied: torch.Event | None = None
        """When tensors have got it."""
        self._begun = threading.Event()
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._hearers: list[Ended] = []

    @property
    def device(self) -> torch.device:
        return self._back.device

    def begin(self) -> None:
        """Waits for the copies, and makes the call."""
        try:
            self._there.synchronize()
            # It has its engine with it, which is not to live for as long as the last call is known.
            call, self._call = self._call, None
            assert call is not None  # Each is begun once.
            operation = call()
        except Exception as error:  # Whatever it is, whoever waits gets it.
            self._end(error)
        else:
            self._begun.set()
            operation._on_end(self._give_back)

    def _give_back(self, error: Exception | None) -> None:
        if error is None and self._written:
            try:
                # This is another thread than the program's, whose tensors may be those of an inference mode.
                with torch.inference_mode(), self._back:
                    for tensor, twin in self._written:
                        tensor.copy_(twin, non_blocking=True)
                        tensor.record_stream(self._back)
                    self._copied = self._back.record_event()
            except Exception as failed:  # As above.
                error = failed
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._error = error
        self._written = ()
        with self._lock:
            self._ended.set()
            hearers, self._hearers = self._hearers, []
        self._begun.set()
        for heard in hearers:
            heard(error)

    def wait_for_begin(self) -> None:
        """Waits until the call is made: within the time limit of the process group, as kernels before it may hang."""
        if not self._begun.wait(self._limit):
            raise Error(
                f"a call of tensors on {self.device} has not begun within {self._limit:g} s, as what was given to the "
                f"device before has not ended: does a kernel hang? If kernels take so long, give the process group a "
                f"longer timeout"
            )

    # What the engine's operations have.

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until copies back are on their way, and raises the error if there is one; false if `timeout` seconds
        are too short."""
        if timeout is None:
            self.wait_for_begin()
        if not self._ended.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    def is_done(self) -> bool:
        return self._ended.is_set() and (self._copied is None or self._copied.query())

    def _on_end(self, heard: Ended) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._hearers.append(heard)
                return
        heard(self._error)

    def join(self) -> None:
        """Has the current stream wait for the copies back."""
        if self._copied is not None:
            torch.accelerator.current_stream(self.device).wait_event(self._copied)


Pending: TypeAlias = Work | Staged
"""An operation under way, of tensors on the CPU or on an accelerator."""


class Staging:
    """What makes the calls of a process group on twins."""

    def __init__(self, device: torch.device) -> None:
        if device.type != accelerator():
            raise ArgumentError(
                f"the backend ringway is for tensors on the CPU or on PyTorch's accelerator, found one on {device}"
            )
        self._device = device
        self._to_host, self._back = torch.Stream(device), torch.Stream(device)
        self._queue: SimpleQueue[Staged | None] = SimpleQueue()
        self._last: Staged | None = None
        self._thread = threading.Thread(target=self._run, name="ringway-staging", daemon=True)
        self._thread.start()

    def start(
        self,
        call: Callable[[Sequence[Any]], Operation],
        arguments: Sequence[object],
        places: tuple[Sequence[int], Sequence[int]],
        limit: float,
    ) -> Staged:
        """Makes a call with twins in place of tensors. `places` are those of the arguments whose tensors are read, and
        of those whose tensors are written."""
        reads, writes = ({id(tensor) for tensor in tensors_of(arguments[at] for at in where)} for where in places)
        twins: dict[int, tuple[Tensor, Tensor]] = {}
        here = torch.accelerator.current_stream(self._device)
        self._to_host.wait_stream(here)
        with torch.no_grad(), self._to_host:
            for tensor in tensors_of(arguments):
                if id(tensor) not in twins:
                    twins[id(tensor)] = tensor, self._twin(tensor, id(tensor) in reads)
            there = self._to_host.record_event()
        on_twins = [_replaced(argument, twins) for argument in arguments]
        written = [pair for key, pair in twins.items() if key in writes and pair[0] is not pair[1]]
        staged = Staged(lambda: call(on_twins), there, written, self._back, limit)
        self._last = staged
        self._queue.put(staged)
        return staged

    def _twin(self, tensor: Tensor, is_read: bool) -> Tensor:
        if tensor.is_cpu:
            return tensor
        if tensor.device != self._device or tensor.layout is not torch.strided:
            raise ArgumentError(
                f"expected dense tensors on one device, {self._device}, found one on {tensor.device} of layout "
                f"{tensor.layout}; a process has one accelerator for each process group of the backend ringway"
            )
        # Other threads write to it, which are in no inference mode.
        with torch.inference_mode(False):
            twin = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        if is_read:
            twin.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._to_host)
        return twin

    def settle(self) -> None:
        """Waits until all calls are made: one on the CPU may follow."""
        if self._last is not None:
            self._last.wait_for_begin()
            self._last = None

    def end(self) -> None:
        """Ends the thread when it has made the calls that there are."""
        self._queue.put(None)

    def close(self, patience: float) -> None:
        """As `end`, and waits so many seconds for it."""
        self.end()
        self._thread.join(patience)

    def _run(self) -> None:
        while (staged := self._queue.get()) is not None:
            staged.begin()
            del staged


def _replaced(argument: object, twins: dict[int, tuple[Tensor, Tensor]]) -> object:
    if isinstance(argument, Tensor):
        return twins[id(argument)][1]
    if isinstance(argument, list | tuple):
        return [_replaced(each, twins) for each in argument]
    return argument
