"""FSDP2, DeviceMesh, DTensor and functional collectives."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch_rank import join, leave, run, world

me, n = join()


def batch(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(8, 6, generator=generator), torch.randint(4, (8,), generator=generator)


def model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 33), nn.ReLU(), nn.Linear(33, 33), nn.ReLU(), nn.Linear(33, 4))


def shard(net, **options):
    for layer in (net[0], net[2], net[4], net):
        fully_shard(layer, **options)
    return net


def train(net, ranks, steps=3):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        for rank in ranks:
            x, y = batch(rank)
            (nn.functional.cross_entropy(net(x), y) / len(ranks)).backward()
        optimizer.step()
    return net


def fully_sharded():
    expected = train(model(), range(n))
    for options in ({}, {"reshard_after_forward": False}):
        net = train(shard(model(), **options), [me])
        for (name, found), right in zip(net.named_parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(found.full_tensor(), right, msg=name)
    net = shard(model())
    net.set_allocate_memory_from_process_group_for_comm(True)
    train(net, [me])
    torch.testing.assert_close(net[4].weight.full_tensor(), expected[4].weight)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = train(shard(model(), mp_policy=policy), [me])
    torch.testing.assert_close(net[4].weight.full_tensor(), expected[4].weight, rtol=0.1, atol=0.02)


def meshes():
    mesh = dist.init_device_mesh("cpu", (1, n), mesh_dim_names=("dp", "tp"))
    tp = mesh["tp"]
    whole = torch.arange(4.0 * n * 3).reshape(4 * n, 3)
    x = distribute_tensor(whole, tp, [Shard(0)])
    assert x.to_local().shape == (4, 3)
    assert x.sum().full_tensor() == whole.sum()  # type: ignore[attr-defined]
    torch.testing.assert_close(x.full_tensor(), whole)
    assert torch.equal(x.redistribute(tp, [Replicate()]).to_local(), whole)
    assert torch.equal(x.redistribute(tp, [Shard(1)]).full_tensor(), whole)
    uneven = torch.arange(2.0 * n + 1)
    assert torch.equal(distribute_tensor(uneven, tp, [Shard(0)]).full_tensor(), uneven)
    product = distribute_tensor(whole.t().contiguous(), tp, [Shard(1)]) @ x
    assert isinstance(product, DTensor)
    torch.testing.assert_close(product.full_tensor(), whole.t() @ whole)
    two_dimensions = dist.init_device_mesh("cpu", (n, 1), mesh_dim_names=("replicate", "shard"))
    net = model()
    fully_shard(net, mesh=two_dimensions)
    train(net, [me])
    torch.testing.assert_close(net[4].weight.full_tensor(), train(model(), range(n))[4].weight)


def functional_collectives():
    group = world()
    x = torch.full((4,), me + 1.0)
    total = n * (n + 1) / 2
    assert torch.equal(functional.all_reduce(x, "sum", group) + 0, torch.full((4,), total))
    gathered = functional.all_gather_tensor(x, 0, group)
    assert torch.equal(gathered + 0, torch.arange(1.0, n + 1).repeat_interleave(4))
    scattered = functional.reduce_scatter_tensor(torch.ones(n * 2) * (me + 1), "sum", 0, group)
    assert torch.equal(scattered + 0, torch.full((2,), total))
    exchanged = functional.all_to_all_single(torch.arange(n * 1.0), None, None, group)
    assert torch.equal(exchanged + 0, torch.full((n,), float(me)))
    many = functional.all_reduce_coalesced([x, x * 2], "sum", group)
    assert [t[0].item() for t in many] == [total, 2 * total]
    gathered = functional.all_gather_into_tensor_coalesced([x, x], group)
    assert gathered[1].shape == (4 * n,)
    assert torch.equal(functional.broadcast(x, 0, group) + 0, torch.ones(4))


def gradient(x):
    assert x.grad is not None
    return x.grad


def derivatives():
    x = torch.full((3,), me + 1.0, requires_grad=True)
    differentiable.all_reduce(x).sum().backward()
    assert torch.equal(gradient(x), torch.full((3,), float(n)))
    x.grad = None
    torch.cat(differentiable.all_gather(x)).sum().backward()
    assert torch.equal(gradient(x), torch.full((3,), float(n)))
    x = torch.ones(n * 2, requires_grad=True)
    (functional.all_to_all_single_autograd(x, None, None, world()) * (me + 1)).sum().backward()
    assert torch.equal(gradient(x), torch.arange(1.0, n + 1).repeat_interleave(2))
    x = torch.ones(2, requires_grad=True)
    (functional.all_gather_tensor_autograd(x, 0, world()) * (me + 1)).sum().backward()
    assert torch.equal(gradient(x), torch.full((2,), n * (n + 1) / 2))


run(fully_sharded, meshes, functional_collectives, derivatives)
leave()
