"""What a profiler keeps of a step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """Something that took time, by `time.perf_counter`. Kinds are forward, backward, update and wait, of the program's
    thread, and communication."""

    kind: str
    name: str
    begin: float
    end: float
    size: int = 0
    """Bytes of a communication."""
