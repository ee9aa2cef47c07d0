"""What the ranks of PyTorch cases begin with: joins the process group, with the backend named on the command line."""

import os
import sys
import time
from datetime import timedelta
from functools import cache
from itertools import count

import ringway.torch  # noqa: F401  registers the backend
import torch
import torch.distributed as dist

torch.set_default_device(os.environ.get("TEST_DEVICE", "cpu"))
torch.set_num_threads(1)


@cache
def rendezvous():
    """One store for all groups of the process: init_process_group alone makes one each time at the same port, and who
    is quick then reaches the one before, which rank 0 is about to close."""
    return next(dist.rendezvous("env://"))


joins = count()


def join(backend="ringway", seconds=30):
    store, me, size = rendezvous()
    own = dist.PrefixStore(f"group {next(joins)}", store)
    dist.init_process_group(backend, store=own, rank=me, world_size=size, timeout=timedelta(seconds=seconds))
    return me, size


def world():
    """The default group."""
    group = dist.group.WORLD
    assert group is not None
    return group


def run(*checks):
    """Runs checks, or those that the command line names, and says how long each took."""
    chosen = sys.argv[1:]
    for check in checks:
        if chosen and check.__name__ not in chosen:
            continue
        began = time.perf_counter()
        check()
        print(f"{check.__name__}: {time.perf_counter() - began:.2f} s", flush=True)


def leave():
    """Ends the process before PyTorch's shutdown, which aborts now and then after DistributedDataParallel, whatever the
    backend."""
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
