"""What a profile comes to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Step:
    """Where a training step's time went, in seconds on this rank."""

    number: int
    begin: float
    end: float
    forward: float
    """In the model's forward pass, without waits and updates there."""
    backward: float
    """From the end of the forward pass to the last gradient, without waits: with the loss."""
    update: float
    """In the optimizer."""
    exposed: float
    """Waiting for communication."""
    hidden: float
    """Communication under way while the program did something else."""
    encode: float = 0.0
    """Encoding, decoding and adding up by codecs, on threads beside the program's: of sums that ended in this step."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def other(self) -> float:
        """Loading data, and whatever else there is."""
        return max(0.0, self.seconds - self.forward - self.backward - self.update - self.exposed)


@dataclass(frozen=True)
class Percentiles:
    """What 50, 90 and 99 % of values keep within, by the nearest rank."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float], *, at_least: bool = False) -> "Percentiles":
        """Of values of which small ones are good, or large ones (`at_least`)."""
        ordered = sorted(values, reverse=at_least)
        p50, p90, p99 = (ordered[math.ceil(share * len(ordered) / 100) - 1] for share in (50, 90, 99))
        return cls(p50, p90, p99)


@dataclass(frozen=True)
class CollectiveStats:
    """Calls of a collective with vectors of about one size."""

    collective: str
    size: int
    """Bytes, rounded down to a power of two."""
    calls: int
    """Since the beginning; the percentiles are of the last 1,000."""
    latency: Percentiles
    """Seconds from the start to the end of a call on this rank."""
    bandwidth: Percentiles
    """Bytes of the vector per second (nccl-tests' algbw), which 50, 90 and 99 % of the calls reach."""


@dataclass(frozen=True)
class Stats:
    """Means of the steps since the last log line, and percentiles of all calls. Times are seconds."""

    rank: int
    steps: int
    """Steps recorded since the beginning."""
    step: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    update: float = 0.0
    exposed: float = 0.0
    hidden: float = 0.0
    other: float = 0.0
    exposed_share: float = 0.0
    """Of the step, 0 to 1."""
    encode: float = 0.0
    """By codecs, within the communication."""
    collectives: list[CollectiveStats] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """Of each rank, the mean exposed communication of a step at the last log line. Whoever waits least is waited
    for."""
    slowest_steps: list[int] = field(default_factory=list)
    """Of each rank, in how many of the steps before the last log line the others waited noticeably for it."""
    slowest_rank: int | None = None
    """The rank that the others waited for, if there was a log line and one of them waited noticeably longer."""

    def line(self) -> str:
        """The log line."""
        text = (
            f"step {self.steps}: {_ms(self.step)} (forward {_ms(self.forward)}, backward {_ms(self.backward)}, "
            f"update {_ms(self.update)}, other {_ms(self.other)}), communication exposed {_ms(self.exposed)} "
            f"({self.exposed_share:.1%}) and hidden {_ms(self.hidden)}"
        )
        if self.encode > 0.0:
            text += f", of that codecs {_ms(self.encode)}"
        if self.slowest_rank is not None:
            waits = f"others wait {_ms(max(self.waits))}, it {_ms(min(self.waits))}"
            often = f"slowest in {self.slowest_steps[self.slowest_rank]} steps"
            text += f"; rank {self.slowest_rank} is waited for: {waits}, {often}"
        return text


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
