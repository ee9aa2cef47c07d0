"""Stretches of time, as (begin, end) in seconds."""

from collections.abc import Iterable

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time in intervals that neither overlap nor touch, in order."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif end > begin:
            joined.append((begin, end))
    return joined


def length(intervals: Iterable[Interval]) -> float:
    """Seconds that any of the intervals covers."""
    return sum(end - begin for begin, end in union(intervals))


def common(some: Iterable[Interval], others: Iterable[Interval]) -> float:
    """Seconds that intervals of both kinds cover."""
    some, others = list(some), list(others)
    return length(some) + length(others) - length([*some, *others])


def within(intervals: Iterable[Interval], begin: float, end: float) -> list[Interval]:
    """The parts of intervals between two moments."""
    return [(max(a, begin), min(b, end)) for a, b in intervals if a < end and b > begin]
