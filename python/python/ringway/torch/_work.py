"""What an operation in flight is to PyTorch."""

import threading
import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from ringway import Error
from ringway._ringway import Work
from ringway.torch import _record
from ringway.torch._tensors import Finish

_NO_LIMIT = timedelta(0)


class RingwayWork(dist.Work):
    """One or more operations in flight. They need nobody to wait for them."""

    def __init__(self, works: Sequence[Work], tensors: Sequence[Tensor], finish: Finish = None) -> None:
        super().__init__()
        self._works = works
        self._tensors = list(tensors)
        self._finish = finish
        self._lock = threading.RLock()
        self._future: torch.futures.Future[list[Tensor]] | None = None

    @classmethod
    def of(cls, works: "Sequence[RingwayWork]") -> "RingwayWork":
        """Works as one."""

        def finish() -> None:
            for work in works:
                work._hand_out()

        tensors = [tensor for work in works for tensor in work._tensors]
        return cls([each for work in works for each in work._works], tensors, finish)

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Waits until all have ended, and raises the error of one that failed."""
        limit, began = None if timeout <= _NO_LIMIT else timeout.total_seconds(), time.perf_counter()
        for work in self._works:
            if not work.wait(limit):
                raise Error(f"the operation has not ended within the {limit} s that were waited; it goes on")
        _record.waited("work", began)
        self._hand_out()
        return True

    def _hand_out(self) -> None:
        """Puts results where they belong, once."""
        if self._finish is None:
            return
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()

    def is_completed(self) -> bool:
        if not all(work.is_done() for work in self._works):
            return False
        if self.exception() is None:
            self._hand_out()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """The error of an operation that has ended badly."""
        for work in self._works:
            if work.is_done():
                try:
                    work.wait()
                except Error as error:
                    return error
        return None

    def result(self) -> list[Tensor]:
        return self._tensors

    def synchronize(self) -> None:
        """There are no streams on the CPU."""
        self.wait()

    def get_future(self) -> "torch.futures.Future[list[Tensor]]":
        """A future of the tensors, or of the error, that is complete when the operations have ended."""
        with self._lock:
            if self._future is None:
                self._future = self._make_future()
            return self._future

    def _make_future(self) -> "torch.futures.Future[list[Tensor]]":
        ended: torch.futures.Future[None] = torch.futures.Future()
        left = len(self._works)
        counting = threading.Lock()
        first: list[Exception] = []

        def end(error: Exception | None) -> None:
            nonlocal left
            with counting:
                left -= 1
                last = left == 0
                if error is not None:
                    first.append(error)
            if last:
                ended.set_result(None)

        def value(_: "torch.futures.Future[None]") -> list[Tensor]:
            if first:
                raise first[0]
            self._hand_out()
            return self._tensors

        # An exception in a callback is an error to C++, which an exception set as a result is not.
        future = ended.then(value)
        for work in self._works:
            work._on_end(end)
        if not self._works:
            ended.set_result(None)
        return future
