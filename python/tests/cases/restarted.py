"""Under torchrun: the first attempt fails on one rank, the second comes through."""

import os
import signal

import torch
import torch.distributed as dist
from torch_rank import join, leave

me, n = join()
x = torch.ones(1)
dist.all_reduce(x)
assert x.item() == n
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and me == n - 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(x)
assert x.item() == n * n
print(f"rank {me} came through in attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
leave()
