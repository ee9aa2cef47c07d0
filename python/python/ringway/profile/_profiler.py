"""Collects where the time of training steps goes."""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ringway import ArgumentError
from ringway._ringway import Work
from ringway.profile._event import Event
from ringway.profile._intervals import Interval, common, length, within
from ringway.profile._report import html, timeline, trace
from ringway.profile._stats import CollectiveStats, Percentiles, Stats, Step
from ringway.torch import _record
from ringway.torch._watch import Hook

_log = logging.getLogger("ringway.profile")
_KEPT_CALLS = 1000
_KEPT_STEPS = 1000
_NOTICEABLE = 0.02
"""Of a step: how much longer others must wait for a rank to be called the slowest."""


class Profiler:
    """Where the time of training goes: forward and backward pass, update, communication exposed and hidden.

        profiler = ringway.profile.Profiler(model, optimizer)
        for x, y in loader:
            loss(model(x), y).backward()
            pipeline.step()                    # or optimizer.step(), with DistributedDataParallel
            profiler.record_step()

    Every ``log_every`` steps the ranks tell each other how long they wait, and rank 0 logs a line to the logger
    ``ringway.profile``; with 0 they never do. Figures are means of at most the last 1,000 steps. Events of the last
    ``trace_steps`` steps are kept for :meth:`chrome_trace` and the report.

    With DistributedDataParallel, whose waiting is C++'s, the time from the last gradient to the optimizer's step
    counts as exposed. One profiler at a time records.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, log_every: int = 100, trace_steps: int = 10
    ) -> None:
        if _record.recorder is not None:
            raise ArgumentError("another profiler is recording: close() it first")
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._log_every = log_every
        self._reducer_waits = isinstance(model, nn.parallel.DistributedDataParallel)
        self._begin = time.perf_counter()
        self._number = 0
        self._forward_began = self._forward_ended = self._last_gradient = self._update_began = self._encode = 0.0
        self._events: list[Event] = []
        self._under_way: list[tuple[str, int, float, Work]] = []
        """Calls that have not ended, and when they began."""
        self._calls: dict[tuple[str, int], deque[tuple[int, float]]] = defaultdict(lambda: deque(maxlen=_KEPT_CALLS))
        self._counts: dict[tuple[str, int], int] = defaultdict(int)
        self._steps: deque[Step] = deque(maxlen=_KEPT_STEPS)
        self._since_log: deque[Step] = deque(maxlen=_KEPT_STEPS)
        self._stats = Stats(self._rank, 0)
        self._recent: deque[list[Event]] = deque(maxlen=trace_steps)
        self._waits: list[float] = []
        self._slowest_steps: list[int] = []
        self._slowest: int | None = None
        self._hooks = [
            model.register_forward_pre_hook(Hook(self._before_forward), prepend=True),
            model.register_forward_hook(Hook(self._after_forward)),
        ]
        for parameter in model.parameters():
            if parameter.requires_grad:
                hook = Hook(self._after_gradient)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        self._hooks.append(optimizer.register_step_pre_hook(Hook(self._before_update)))
        self._hooks.append(optimizer.register_step_post_hook(Hook(self._after_update)))
        _record.recorder = self

    def close(self) -> None:
        """Stops recording. What was recorded stays."""
        if _record.recorder is self:
            _record.recorder = None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def record_step(self) -> None:
        """Ends a step; all ranks call it after each."""
        now = time.perf_counter()
        self._collect_calls()
        step = self._step(now)
        self._steps.append(step)
        self._since_log.append(step)
        self._recent.append(self._events)
        self._events = []
        self._begin, self._number = now, self._number + 1
        if self._log_every and self._number % self._log_every == 0:
            self._compare_ranks()
            stats = self.get_stats()
            if self._rank == 0:
                _log.info(stats.line())
            self._since_log.clear()

    def get_stats(self) -> Stats:
        """What there is so far: means since the last log line (or of the interval before it, directly after one)."""
        if self._since_log:
            count, of = len(self._since_log), self._since_log
            step = sum(each.seconds for each in of) / count
            exposed = sum(each.exposed for each in of) / count
            self._stats = Stats(
                rank=self._rank,
                steps=self._number,
                step=step,
                forward=sum(each.forward for each in of) / count,
                backward=sum(each.backward for each in of) / count,
                update=sum(each.update for each in of) / count,
                exposed=exposed,
                hidden=sum(each.hidden for each in of) / count,
                other=sum(each.other for each in of) / count,
                exposed_share=exposed / step if step > 0 else 0.0,
                collectives=self._collectives(),
                encode=sum(each.encode for each in of) / count,
                waits=self._waits,
                slowest_steps=self._slowest_steps,
                slowest_rank=self._slowest,
            )
        return self._stats

    def chrome_trace(self, path: str | Path) -> None:
        """Writes this rank's last steps for Perfetto or chrome://tracing: computation and communication on one time
        line. Files of several ranks of a host can be looked at together."""
        Path(path).write_text(trace([event for events in self._recent for event in events], self._rank))

    def report(self, path: str | Path) -> None:
        """Writes a page with the steps, the calls and a time line of the last steps. It needs nothing from
        elsewhere."""
        events = [event for events in self._recent for event in events]
        Path(path).write_text(html(self.get_stats(), list(self._steps), events))

    def picture(self, path: str | Path, steps: int = 2) -> None:
        """Writes the time line of the last steps as an SVG."""
        events = [event for events in list(self._recent)[-steps:] for event in events]
        Path(path).write_text(timeline(events))

    # What is recorded.

    def waited(self, what: str, began: float, ended: float) -> None:
        self._events.append(Event("wait", what, began, ended))

    def started(self, collective: str, size: int, work: Work) -> None:
        self._under_way.append((collective, size, time.perf_counter(), work))

    def called(self, collective: str, size: int, began: float, ended: float) -> None:
        self._events.append(Event("wait", collective, began, ended))
        self._ended(collective, size, began, ended)

    def _before_forward(self, _: int) -> None:
        # With gradient accumulation a step has several passes.
        self._end_backward()
        self._forward_began = time.perf_counter()

    def _after_forward(self, _: int) -> None:
        self._forward_ended = time.perf_counter()
        self._events.append(Event("forward", "forward", self._forward_began, self._forward_ended))
        self._last_gradient = 0.0

    def _after_gradient(self, _: int) -> None:
        self._last_gradient = time.perf_counter()

    def _before_update(self, _: int) -> None:
        self._update_began = time.perf_counter()
        if self._reducer_waits and self._last_gradient:
            self._events.append(Event("wait", "reducer", self._last_gradient, self._update_began))

    def _after_update(self, _: int) -> None:
        self._events.append(Event("update", "update", self._update_began, time.perf_counter()))

    def _collect_calls(self) -> None:
        """Calls that have ended meanwhile. Those that have not are seen in a later step."""
        left = []
        for collective, size, began, work in self._under_way:
            ages = work._ages()
            if ages is None:
                left.append((collective, size, began, work))
            else:
                now = time.perf_counter()
                self._ended(collective, size, now - ages[0], now - ages[1])
                self._encode += work._coding() or 0.0
        self._under_way = left

    def _ended(self, collective: str, size: int, began: float, ended: float) -> None:
        self._events.append(Event("communication", collective, began, ended, size))
        key = collective, 1 << (size.bit_length() - 1) if size else 0
        self._calls[key].append((size, ended - began))
        self._counts[key] += 1

    def _end_backward(self) -> None:
        if self._last_gradient > self._forward_ended > 0.0:
            self._events.append(Event("backward", "backward", self._forward_ended, self._last_gradient))
        self._forward_ended = self._last_gradient = 0.0

    def _step(self, end: float) -> Step:
        self._end_backward()
        of: dict[str, list[Interval]] = defaultdict(list)
        for event in self._events:
            of[event.kind].append((event.begin, event.end))
        # What goes on into the next step is counted in both, in each what is in it.
        of["communication"].extend((began, end) for _, _, began, _ in self._under_way)
        encode, self._encode = self._encode, 0.0
        here = {kind: within(intervals, self._begin, end) for kind, intervals in of.items()}
        waits, updates = here.get("wait", []), here.get("update", [])
        away = [*waits, *updates]
        forward, backward = here.get("forward", []), here.get("backward", [])
        communication = here.get("communication", [])
        return Step(
            number=self._number,
            begin=self._begin,
            end=end,
            forward=length(forward) - common(forward, away),
            backward=length(backward) - common(backward, away),
            update=length(updates) - common(updates, waits),
            exposed=length(waits),
            hidden=length(communication) - common(communication, waits),
            encode=encode,
        )

    def _collectives(self) -> list[CollectiveStats]:
        return [
            CollectiveStats(
                collective=collective,
                size=size,
                calls=self._counts[collective, size],
                latency=Percentiles.of([seconds for _, seconds in calls]),
                bandwidth=Percentiles.of([count / seconds for count, seconds in calls], at_least=True),
            )
            for (collective, size), calls in sorted(self._calls.items())
        ]

    def _compare_ranks(self) -> None:
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        count = len(self._since_log)
        mine = torch.tensor([step.exposed for step in self._since_log], dtype=torch.float64, device="cpu")
        everyone = torch.empty((dist.get_world_size(), count), dtype=torch.float64, device="cpu")
        recorder, _record.recorder = _record.recorder, None
        try:
            dist.all_gather_into_tensor(everyone, mine)
        finally:
            _record.recorder = recorder
        self._waits = everyone.mean(1).tolist()
        step = sum(step.seconds for step in self._since_log) / count
        slowest = [_slowest(waits, step) for waits in everyone.T.tolist()]
        self._slowest_steps = [slowest.count(rank) for rank in range(len(self._waits))]
        self._slowest = _slowest(self._waits, step)
        # The comparison is not part of a step.
        self._begin = time.perf_counter()


def _slowest(waits: Sequence[float], step: float) -> int | None:
    """The rank that waits least, if others wait noticeably longer."""
    least = min(waits)
    return waits.index(least) if max(waits) - least > _NOTICEABLE * step else None
