"""The profiler's arithmetic; what it records is tested by the case `profiled`."""

from pathlib import Path

import pytest
from ranks import World
from ringway.profile import Percentiles
from ringway.profile._intervals import common, length, union, within


def test_intervals() -> None:
    assert union([(3, 4), (0, 1), (0.5, 2), (2, 2.5)]) == [(0, 2.5), (3, 4)]
    assert union([(1, 1)]) == []
    assert length([(0, 2), (1, 3), (5, 6)]) == 4
    assert common([(0, 2), (4, 6)], [(1, 5)]) == 2
    assert within([(0, 2), (3, 5), (7, 8)], 1, 4) == [(1, 2), (3, 4)]


def test_percentiles() -> None:
    values = [float(value) for value in range(1, 101)]
    assert Percentiles.of(values) == Percentiles(50, 90, 99)
    assert Percentiles.of(values, at_least=True) == Percentiles(51, 11, 2)
    assert Percentiles.of([7.0]) == Percentiles(7, 7, 7)


@pytest.mark.parametrize("ranks", [2, 3])
def test_profiler(ranks: int, tmp_path: Path) -> None:
    with World(tmp_path, "profiled", ranks) as world:
        world.succeed()
