"""The last rank does not use all parameters under DistributedDataParallel: an error on all ranks, not a hang."""

import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_rank import join

me, n = join(seconds=10)


class Choice(nn.Module):
    """Two layers, of which the last rank uses one."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x):
        return self.one(x) if me == n - 1 else self.one(x) + self.two(x)


net = DistributedDataParallel(Choice())
try:
    for _ in range(3):
        net(torch.ones(6)).sum().backward()
except RuntimeError as error:
    print(error, flush=True)
    # The last rank learns it of PyTorch, which names the parameters; the others of Ringway, once that rank has gone.
    expected = "did not receive grad" if me == n - 1 else f"rank {n - 1} "
    assert expected in str(error), error
else:
    raise AssertionError("ranks with different parameters came through")
os._exit(0)
