"""What an operation in flight is to PyTorch."""

import threading
import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from ringway import Error
from ringway.torch import _record
from ringway.torch._staging import Ended, Pending, Staged
from ringway.torch._tensors import Finish

_NO_LIMIT = timedelta(0)


class RingwayWork(dist.Work):
    """One or more operations in flight. They need nobody to wait for them."""

    def __init__(self, works: Sequence[Pending], tensors: Sequence[Tensor], finish: Finish = None) -> None:
        super().__init__()
        self._works = works
        self._staged = [work for work in works if isinstance(work, Staged)]
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
        """Waits until all have ended, and raises the error of one that failed. For tensors on an accelerator the
        current stream then waits for what they get."""
        limit, began = None if timeout <= _NO_LIMIT else timeout.total_seconds(), time.perf_counter()
        for work in self._works:
            if not work.wait(limit):
                raise Error(f"the operation has not ended within the {limit} s that were waited; it goes on")
        _record.waited("work", began)
        self._hand_out()
        return True

    def _hand_out(self) -> None:
        """Puts results where they belong, once."""
        for staged in self._staged:
            staged.join()
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
                except Exception as error:  # Of tensors on an accelerator it may be PyTorch's.
                    return error
        return None

    def result(self) -> list[Tensor]:
        return self._tensors

    def synchronize(self) -> None:
        """On an accelerator, too, the program waits: only then are results on their way to it."""
        self.wait()

    def get_future(self) -> "torch.futures.Future[list[Tensor]]":
        """A future of the tensors, or of the error, that is complete when the operations have ended."""
        with self._lock:
            if self._future is None:
                self._future = self._make_future()
            return self._future

    def _on_end(self, heard: Ended) -> None:
        """Has it told when all have ended and results are where they belong, or with the first error."""
        left = len(self._works)
        counting = threading.Lock()
        first: list[Exception] = []

        def end(error: Exception | None) -> None:
            nonlocal left
            with counting:
                left -= 1
                last = left <= 0
                if error is not None:
                    first.append(error)
            if last:
                heard(first[0] if first else self._try_to_hand_out())

        for work in self._works:
            work._on_end(end)
        if not self._works:
            end(None)

    def _try_to_hand_out(self) -> Exception | None:
        try:
            self._hand_out()
        except Exception as error:  # Whatever it is, whoever waits gets it.
            return error
        return None

    def _make_future(self) -> "torch.futures.Future[list[Tensor]]":
        devices: list[int | str | torch.device] = list({staged.device for staged in self._staged})
        ended: torch.futures.Future[None] = torch.futures.Future(devices=devices or None)
        failed: list[Exception] = []

        def end(error: Exception | None) -> None:
            if error is not None:
                failed.append(error)
            ended.set_result(None)

        def value(_: "torch.futures.Future[None]") -> list[Tensor]:
            if failed:
                raise failed[0]
            self._hand_out()
            return self._tensors

        # An exception in a callback is an error to C++, which an exception set as a result is not.
        future = ended.then(value)
        self._on_end(end)
        return future
