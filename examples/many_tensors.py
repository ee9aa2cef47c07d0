"""A thousand tensors of 4 to 64 KiB: each by itself, all in flight together, and in one call; over Ringway and Gloo.

    ringway run -n 2 -- python examples/many_tensors.py
    RINGWAY_TRANSPORTS=tcp ringway run -n 2 -- python examples/many_tensors.py

All ways take turns; each figure is the best of the rounds, in ms on rank 0. `one call` is PyTorch's
`all_reduce_coalesced`: over Ringway one operation on the tensors where they lie.
"""

import time
import warnings
from collections.abc import Callable

import ringway.torch  # noqa: F401  registers the backend
import torch
import torch.distributed as dist
from torch import Tensor

ROUNDS = 10
LENGTHS = [1024 + i * 7919 % 15_361 for i in range(1000)]


def each(tensors: list[Tensor], group: dist.ProcessGroup) -> None:
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)


def together(tensors: list[Tensor], group: dist.ProcessGroup) -> None:
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
        work.wait()


def in_one_call(tensors: list[Tensor], group: dist.ProcessGroup) -> None:
    dist.all_reduce_coalesced(tensors, group=group)


WAYS: dict[str, Callable[[list[Tensor], dist.ProcessGroup], None]] = {
    "one by one": each,
    "in flight": together,
    "one call": in_one_call,
}


def main() -> None:
    warnings.filterwarnings("ignore", message=".*all_reduce_coalesced.*")
    dist.init_process_group("ringway")
    groups = {"ringway": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    best: dict[tuple[str, str], float] = {}
    for _ in range(ROUNDS):
        for backend, group in groups.items():
            assert isinstance(group, dist.ProcessGroup)
            for way, run in WAYS.items():
                tensors = [torch.ones(length) for length in LENGTHS]
                dist.barrier()
                began = time.perf_counter()
                run(tensors, group)
                took = (time.perf_counter() - began) * 1e3
                assert all((tensor == dist.get_world_size()).all() for tensor in tensors)
                best[backend, way] = min(took, best.get((backend, way), took))
    if dist.get_rank() == 0:
        for backend in groups:
            print(backend, *(f"{way} {best[backend, way]:.1f} ms" for way in WAYS), sep=", ", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
