"""Communication hooks of DistributedDataParallel."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ringway import ArgumentError
from ringway.torch._backend import _backend_of
from ringway.torch._engine import AVERAGE, Engine
from ringway.torch._work import RingwayWork

Hook = Callable[[object, dist.GradBucket], Future[Tensor]]
"""What `register_comm_hook` takes."""

_WIRE = {"plain": None, "fp16": torch.float16, "bf16": torch.bfloat16}


def comm_hook(wire: str = "plain", *, group: dist.ProcessGroup | None = None) -> Hook:
    """A hook that averages DistributedDataParallel's gradients over Ringway, for ``model.register_comm_hook(None,
    hook)``.

    ``wire`` is what gradients are between ranks: ``"plain"`` as they are, ``"fp16"`` or ``"bf16"`` rounded to half
    precision, which is half of the bytes. They are rounded once before the average and once after it; values beyond
    the range of fp16 (65,504) become infinite, as a loss scale would have them.

    Buckets that the next forward pass needs first have the highest priority. ``group`` is the process group of the
    model, of the backend ringway; without it, the default group.
    """
    if wire not in _WIRE:
        raise ArgumentError(f"there is no wire format {wire!r}; expected one of {', '.join(_WIRE)}")
    engine, dtype = Engine(_backend_of(group)), _WIRE[wire]
    staging: dict[int, Tensor] = {}
    """Memory that ranks of one host reach without a copy, by bucket."""

    def hook(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        gradients = bucket.buffer()
        memory = gradients
        if dtype is not None and gradients.dtype != dtype:
            index, count = bucket.index(), gradients.numel()
            kept = staging.get(index)
            if kept is None or kept.numel() != count:
                kept = staging[index] = engine.allocate(count, dtype)
            memory = kept.copy_(gradients)
        # DistributedDataParallel begins with the last layers.
        work = engine.start_all_reduce(memory, AVERAGE, min(bucket.index() + 1, 255))
        finish = None if memory is gradients else partial(gradients.copy_, memory)
        return RingwayWork([work], [gradients], finish).get_future().then(_first)

    return hook


def _first(done: "Future[list[Tensor]]") -> Tensor:
    return done.value()[0]
