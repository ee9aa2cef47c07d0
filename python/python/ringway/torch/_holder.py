"""Asking for completion of a Work that is written in Python.

What a backend written in Python returns reaches the caller in a holder, which passes on `wait` and `get_future` and
answers everything else itself: `is_completed` is then False for ever. Such a holder has no operation type, which no
Work of PyTorch's own backends lacks; for those alone, the future answers.
"""

import torch
import torch.distributed as dist

_UNKNOWN = 100  # c10d::OpType::UNKNOWN


def _operation(work: dist.Work) -> int:
    kind: int = work._get_op_type()  # type: ignore[attr-defined]  # Not in its stub.
    return kind


def pass_on_completion() -> None:
    """Makes the questions work. More calls change nothing."""
    work = dist.Work
    if getattr(work.is_completed, "__module__", None) == __name__:
        return
    known_is_completed, known_exception, known_result = work.is_completed, work.exception, work.result

    def held(self: dist.Work) -> "torch.futures.Future[object] | None":
        if type(self) is not work or _operation(self) != _UNKNOWN:
            return None
        try:
            return self.get_future()
        except RuntimeError:
            return None

    def is_completed(self: dist.Work) -> bool:
        if known_is_completed(self):
            return True
        future = held(self)
        return future is not None and future.done()

    def exception(self: dist.Work) -> object:
        future = held(self)
        if future is None or not future.done():
            return known_exception(self)
        try:
            future.value()
        except Exception as error:  # Whatever the operation ended with.
            return error
        return None

    def result(self: dist.Work) -> list[torch.Tensor]:
        future = held(self)
        if future is None:
            return known_result(self)
        value = future.wait()
        return value if isinstance(value, list) else []

    work.is_completed, work.exception, work.result = is_completed, exception, result  # type: ignore[method-assign]
