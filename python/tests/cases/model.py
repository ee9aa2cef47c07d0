"""A model whose memory is registered: gradients are the same as without."""

import ringway.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_rank import join, leave

me, n = join()


def train(register):
    torch.manual_seed(7)
    net = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 500), nn.ReLU(), nn.BatchNorm1d(500), nn.Linear(500, 10)),
        gradient_as_bucket_view=True,
    )
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    registration = None
    for step in range(6):
        if register and step == 2:
            registration = ringway.torch.register_parameter_buffers(net)
            assert registration.bytes > sum(p.nbytes for p in net.parameters())
        generator = torch.Generator().manual_seed(100 * step + me)
        sgd.zero_grad(set_to_none=False)
        net(torch.randn(8, 64, generator=generator)).square().mean().backward()
        sgd.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


assert torch.equal(train(True), train(False))
dist.barrier()
leave()
