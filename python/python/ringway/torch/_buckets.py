"""How large DistributedDataParallel's buckets should be: from the cost model, and from how a backward pass goes."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from ringway import ArgumentError
from ringway.torch._backend import _backend_of
from ringway.torch._engine import AVERAGE, Engine

MIB = 1 << 20
_LEAST, _MOST = 16, 28
"""Buckets of 64 KiB to 256 MiB, in powers of two."""
_PASSES = 3
"""Backward passes that are looked at, after one that does not count."""
_ALIKE = 0.01
"""Of the backward pass: a gain below is none."""

Profile = Sequence[tuple[int, float]]
"""Of each gradient, in the order in which they come: its bytes, and when it is there, in seconds."""


def bucket_sizes(
    model: nn.Module, backward: Callable[[], None], *, group: dist.ProcessGroup | None = None
) -> list[float]:
    """MiB of the first bucket and of all others, with which a step waits least for its gradients.

        sizes = ringway.torch.bucket_sizes(model, lambda: loss(model(x), y).backward())
        net = DistributedDataParallel(model, bucket_cap_mb_list=sizes)

    ``backward`` is a forward and a backward pass as those of training, on each rank with data of its own; it is called
    four times, and what gradients it leaves are dropped. What else it changes, such as running statistics of
    normalization and the state of random numbers, stays changed. From when each gradient came, from what the cost model
    says of all-reduces in this job, and from what a call takes here beside that, follows when the last bucket would
    come with each pair of sizes. Of pairs that are alike the largest buckets are taken: they are the fewest calls.

    Rank 0's backward pass decides for all ranks, which must all call this. ``group`` is the process group of the model,
    of the backend ringway; without it, the default group.
    """
    engine = Engine(_backend_of(group))
    profile = _profile(model, backward)
    call = _call_seconds(engine)
    predicted = [engine.communicator.predict_all_reduce(1 << power) for power in range(_LEAST, _MOST + 1)]
    # A rank that raised before the others know would leave them waiting.
    chosen = torch.tensor(
        choose(profile, [call + seconds for seconds in predicted]) if profile else (0, 0), device="cpu"
    )
    engine.broadcast(chosen)
    if not chosen.all():
        raise ArgumentError(
            "the backward pass made no gradients on rank 0; expected a forward and a backward pass of the model"
        )
    return [size / MIB for size in chosen.tolist()]


def choose(profile: Profile, seconds: Sequence[float]) -> tuple[int, int]:
    """Bytes of the first bucket and of the others. ``seconds`` are those of all-reduces of 64 KiB, 128 KiB ..."""
    sizes = [1 << power for power in range(_LEAST, _MOST + 1)]
    ends = {(cap, first): _end(profile, first, cap, seconds) for cap in sizes for first in sizes if first <= cap}
    enough = min(ends.values()) + _ALIKE * profile[-1][1]
    cap, first = max(pair for pair, end in ends.items() if end <= enough)
    return first, cap


def _end(profile: Profile, first: int, cap: int, seconds: Sequence[float]) -> float:
    """When the last bucket has come, if one goes after the other."""
    free, size, limit = 0.0, 0, first
    for nbytes, at in profile:
        size += nbytes
        # As DistributedDataParallel fills them.
        if size >= limit:
            free, size, limit = max(free, at) + _between(size, seconds), 0, cap
    return free if size == 0 else max(free, profile[-1][1]) + _between(size, seconds)


def _between(size: int, seconds: Sequence[float]) -> float:
    """What an all-reduce of some bytes takes, from those of powers of two."""
    power = min(max(size.bit_length() - 1, _LEAST), _MOST - 1) - _LEAST
    low, high = seconds[power], seconds[power + 1]
    over = size / (1 << (power + _LEAST)) - 1
    return max(low + over * (high - low), min(seconds))


def _profile(model: nn.Module, backward: Callable[[], None]) -> Profile:
    """How a backward pass goes: of each gradient the median over passes of when it came; empty if there are none."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    came: dict[int, list[float]] = {index: [] for index in range(len(parameters))}

    def hook(index: int) -> Callable[[torch.Tensor], None]:
        return lambda _: came[index].append(time.perf_counter())

    hooks = [
        parameter.register_post_accumulate_grad_hook(hook(index))  # type: ignore[no-untyped-call]
        for index, parameter in enumerate(parameters)
    ]
    passes: list[dict[int, float]] = []
    try:
        for _ in range(1 + _PASSES):
            for times in came.values():
                times.clear()
            backward()
            passes.append({index: times[-1] for index, times in came.items() if times})
            for parameter in parameters:
                parameter.grad = None
    finally:
        for handle in hooks:
            handle.remove()
    seen = set.intersection(*(set(each) for each in passes))
    if not seen:
        return []
    # A pass begins, as far as buckets are concerned, with its first gradient.
    begins = [min(each.values()) for each in passes[1:]]
    of = {
        index: statistics.median(each[index] - begin for each, begin in zip(passes[1:], begins, strict=True))
        for index in seen
    }
    return [(parameters[index].nbytes, of[index]) for index in sorted(seen, key=of.__getitem__)]


def _call_seconds(engine: Engine) -> float:
    """What a call takes beside what the cost model knows of."""
    word = engine.allocate(1, torch.float32)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        engine.start_all_reduce(word, AVERAGE, 0).wait()
        times.append(time.perf_counter() - began)
    return max(0.0, statistics.median(times) - engine.communicator.predict_all_reduce(word.nbytes))
