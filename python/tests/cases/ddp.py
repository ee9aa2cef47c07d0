"""DistributedDataParallel: gradients are those of the whole batch, whatever the model."""

import pytest
import ringway
import ringway.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch_rank import join, leave, run

me, n = join()


def batch(rank, step=0):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 6, generator=generator), torch.randint(4, (8,), generator=generator)


def loss(net, rank, step=0):
    x, y = batch(rank, step)
    return nn.functional.cross_entropy(net(x), y)


def perceptron():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 4))


def gradients(net):
    return torch.cat([p.grad.reshape(-1) for p in net.parameters()])


def averaged():
    """What every rank should have: the mean of all ranks' gradients, computed here alone."""
    total = 0
    for rank in range(n):
        net = perceptron()
        loss(net, rank).backward()
        total = total + gradients(net)
    return total / n


def as_computed_alone():
    expected = averaged()
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.1}, {"static_graph": True}):
        net = DistributedDataParallel(perceptron(), **options)
        loss(net, me).backward()
        torch.testing.assert_close(gradients(net), expected, msg=str(options))


def with_hooks():
    for hook, accuracy in ((default_hooks.allreduce_hook, 1e-6), (default_hooks.fp16_compress_hook, 1e-3)):
        net = DistributedDataParallel(perceptron())
        net.register_comm_hook(None, hook)
        loss(net, me).backward()
        torch.testing.assert_close(gradients(net), averaged(), rtol=accuracy, atol=accuracy)


def with_hooks_of_ringway():
    for wire, accuracy in (("plain", 1e-6), ("fp16", 1e-3), ("bf16", 1e-2)):
        net = DistributedDataParallel(perceptron(), bucket_cap_mb=0.1)
        net.register_comm_hook(None, ringway.torch.comm_hook(wire))
        for _ in range(3):  # Buckets are made anew after the first step.
            net.zero_grad()
            loss(net, me).backward()
            found = gradients(net)
            torch.testing.assert_close(found, averaged(), rtol=accuracy, atol=accuracy, msg=wire)
            first = found.clone()
            dist.broadcast(first, 0)
            assert torch.equal(found, first)
            if wire != "plain":  # It was rounded on its way.
                dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[wire]
                assert torch.equal(found, found.to(dtype).float())
    with pytest.raises(ringway.ArgumentError, match="expected one of plain, fp16, bf16"):
        ringway.torch.comm_hook("fp12")


class Choice(nn.Module):
    """Uses one of its two branches; which one depends on the rank."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.never = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x):
        return (self.one if me == 0 else self.two)(x)


def unused_parameters():
    torch.manual_seed(1)
    net = DistributedDataParallel(Choice(), find_unused_parameters=True)
    for _ in range(2):
        net.zero_grad()
        loss(net, me).backward()
    for branch in (net.module.one, net.module.two):
        mine = branch.weight.grad.clone()
        dist.broadcast(mine, 0)
        assert torch.equal(branch.weight.grad, mine)
        assert mine.abs().sum() > 0
    assert net.module.never.weight.grad is None


def training_with_batch_norm():
    torch.manual_seed(me)  # The ranks are made alike by DistributedDataParallel.
    net = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    values = []
    for step in range(30):
        value = loss(net, me, step % 3)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < 0.5 * values[0]
    for parameter in net.parameters():
        root = parameter.detach().clone()
        dist.broadcast(root, 0)
        assert torch.equal(parameter, root)


def without_synchronization():
    net = DistributedDataParallel(perceptron())
    with net.no_sync():
        loss(net, me, 1).backward()
    loss(net, me).backward()
    total = 0
    for rank in range(n):
        alone = perceptron()
        (loss(alone, rank, 1) + loss(alone, rank)).backward()
        total = total + gradients(alone)
    torch.testing.assert_close(gradients(net), total / n)


def uneven_inputs():
    net = DistributedDataParallel(perceptron())
    with net.join():
        for step in range(1 + me):
            loss(net, me, step).backward()


run(
    as_computed_alone,
    with_hooks,
    with_hooks_of_ringway,
    unused_parameters,
    training_with_batch_norm,
    without_synchronization,
    uneven_inputs,
)
leave()
