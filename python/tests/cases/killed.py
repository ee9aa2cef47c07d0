"""The last rank is killed while the others are in a call; they say who it was, and how long they waited."""

import math
import os
import signal
import sys
import time

import ringway
import ringway.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_rank import join

me, n = join()
net = DistributedDataParallel(nn.Linear(1000, 1000))
deep = nn.Sequential(*(nn.Linear(200, 200) for _ in range(10)))
wire = "int8" if sys.argv[1] == "compressed" else "plain"
pipeline = ringway.torch.Pipeline(deep, torch.optim.SGD(deep.parameters(), lr=1e-6), wire=wire)
x = torch.ones(10)
dist.barrier()


def train(until):
    while time.monotonic() < until:
        deep(torch.ones(4, 200)).sum().backward()
        pipeline.step()


if me == n - 1:
    if sys.argv[1] in ("pipeline", "compressed"):
        train(time.monotonic() + 0.5)
        # In the middle of a step: the other ranks wait for what is not sent any more.
        deep(torch.ones(4, 200)).sum().backward()
    else:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)

calls = {
    "blocking": lambda: dist.all_reduce(x),
    "wait": lambda: dist.all_reduce(x, async_op=True).wait(),
    "future": lambda: dist.all_reduce(x, async_op=True).get_future().wait(),
    "pipeline": lambda: train(math.inf),
    "compressed": lambda: train(math.inf),
    "ddp": lambda: net(torch.ones(4, 1000)).sum().backward(),
}
began = time.monotonic()
try:
    calls[sys.argv[1]]()
except Exception as error:
    waited = time.monotonic() - began
    print(f"after {waited:.2f} s {type(error).__name__}: {error}", flush=True)
    assert f"rank {n - 1} " in str(error), error
    assert waited < 0.5 + 2, waited
    if isinstance(error, ringway.FailedError):
        assert (error.rank, error.cause) == (n - 1, "crashed")
        assert error.host == os.uname().nodename
        print("named", flush=True)
else:
    raise AssertionError("a call without a rank came through")
# Nothing can be called any more, and nothing waits.
try:
    dist.barrier()
except ringway.FailedError:
    print("barrier failed", flush=True)
os._exit(0)
