"""Where the backend, the pipeline and the hooks tell a profiler what they do, if there is one."""

import time
from typing import Protocol

from ringway import _ringway
from ringway._ringway import Work
from ringway._types import Operation

_NAMES = {place: name for name, place in _ringway.places()[0].items()}


class Recorder(Protocol):
    """Times are those of `time.perf_counter`."""

    def waited(self, what: str, began: float, ended: float) -> None:
        """The program waited for what is under way."""

    def started(self, collective: str, size: int, work: Work) -> None:
        """A collective of so many bytes is under way."""

    def called(self, collective: str, size: int, began: float, ended: float) -> None:
        """A collective came and went while the program waited."""


recorder: Recorder | None = None


def started(operation: Operation, size: int, work: Work) -> None:
    if recorder is not None:
        recorder.started(_NAMES[operation[0]], size, work)


def started_compressed(codec: str, size: int, work: Work) -> None:
    if recorder is not None:
        recorder.started(f"all_reduce, {codec}", size, work)


def called(operation: Operation, size: int, began: float) -> None:
    if recorder is not None:
        recorder.called(_NAMES[operation[0]], size, began, time.perf_counter())


def waited(what: str, began: float) -> None:
    if recorder is not None:
        recorder.waited(what, began, time.perf_counter())
