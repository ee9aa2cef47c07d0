"""What the ranks of a pipeline must agree on: the model, and in each step which parameters have gradients."""

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ringway import ArgumentError, Error
from ringway.torch._engine import SUM, Engine, dense_stride
from ringway.torch._staging import Pending

_LONGEST = 1 << 28
"""Bytes of a model's description: memory is taken for what other ranks announce."""
_SHOWN = 5
"""Parameters that an error names."""


def check_models(engine: Engine, names: Sequence[str], parameters: Sequence[nn.Parameter], settings: str) -> None:
    """An error on all ranks if one has other parameters or settings than rank 0."""
    lines = [
        f"{name}: {str(parameter.dtype).removeprefix('torch.')} {tuple(parameter.shape)}, strides {parameter.stride()}"
        for name, parameter in zip(names, parameters, strict=True)
    ]
    lines.append(settings)
    text = "\n".join(lines).encode()
    digests = engine.all_gather(torch.frombuffer(bytearray(hashlib.sha256(text).digest()), dtype=torch.uint8))
    if bool((digests == digests[0]).all()):
        return
    lengths = engine.all_gather(torch.tensor([len(text)], device="cpu"))
    if int(lengths.max()) > _LONGEST:
        raise ArgumentError(f"a rank describes its model in {int(lengths.max())} bytes; expected at most {_LONGEST}")
    padded = bytearray(text.ljust(int(lengths.max())))
    texts = engine.all_gather(torch.frombuffer(padded, dtype=torch.uint8))
    of_ranks = [bytes(row.tolist()).decode().rstrip().split("\n") for row in texts]
    rank = next(rank for rank in range(engine.size) if of_ranks[rank] != of_ranks[0])
    mine, first = of_ranks[rank], of_ranks[0]
    # Lists of different lengths differ where the shorter one has its last line, which is no parameter's.
    at = next(at for at, (theirs, there) in enumerate(zip(first, mine, strict=False)) if theirs != there)
    raise ArgumentError(
        f"the ranks have different models: rank 0 has {len(first) - 1} parameters and number {at} is {first[at]!r}; "
        f"rank {rank} has {len(mine) - 1} and there {mine[at]!r}. Make the same model and optimizer on all ranks"
    )


def copy_from_first(engine: Engine, tensor: Tensor) -> None:
    """Rank 0's values for everyone."""
    if tensor.stride() == dense_stride(tensor):
        engine.broadcast(tensor)
    else:
        dense = tensor.contiguous()
        engine.broadcast(dense)
        tensor.copy_(dense)


class Flags:
    """Which gradients are absent, counted over the ranks beside the gradients themselves, which are zeros then."""

    def __init__(self, engine: Engine, names: Sequence[str]) -> None:
        self._engine, self._names = engine, names
        self._mine: list[int] = []
        self._counts = engine.allocate(len(names), torch.int32)
        self._work: Pending | None = None

    def start(self, absent: Iterable[int]) -> None:
        """Tells the other ranks; every gradient is on its way now, or absent."""
        self._mine = list(absent)
        self._counts.zero_()
        self._counts[self._mine] = 1
        # The first gradient that is asked for waits for it.
        self._work = self._engine.start_all_reduce(self._counts, SUM, 255)

    def check(self) -> None:
        """Waits for the others' flags, once; an error on all ranks if a parameter has a gradient on some only."""
        if self._work is None:
            return
        self._work.wait()
        # If that was interrupted, it is still to be waited for.
        self._work = None
        some = ((self._counts > 0) & (self._counts < self._engine.size)).nonzero().flatten().tolist()
        if some:
            self._raise(some)

    def _raise(self, some: list[int]) -> None:
        mine = torch.zeros(len(self._names), dtype=torch.int32, device="cpu")
        mine[self._mine] = 1
        absent = self._engine.all_gather(mine)
        parts = []
        for index in some[:_SHOWN]:
            without = absent[:, index].nonzero().flatten().tolist()
            having = [rank for rank in range(self._engine.size) if rank not in without]
            parts.append(f"{self._names[index]} has a gradient on {_ranks(having)} and none on {_ranks(without)}")
        if len(some) > _SHOWN:
            parts.append(f"and so on, {len(some)} parameters in all")
        raise Error(
            f"{'; '.join(parts)}. Every rank must use the same parameters in a step: freeze those that are not used, "
            f"on all ranks, or give them a gradient by adding 0 * parameter.sum() to the loss"
        )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
