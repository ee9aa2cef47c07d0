"""DistributedDataParallel: gradients are those of the whole batch, whatever the model."""

import copy
import io
from contextlib import nullcontext

import pytest
import ringway
import ringway.torch
import torch
import torch.distributed as dist
from ringway.torch._buckets import choose
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
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


WIRES = {"fp16": 1e-3, "bf16": 1e-2, "int8": 4e-2, "int4": 0.5, "dynamic:0.05": 0.1, "topk:0.3": 0.7, "powersgd:4": 1.0}


def with_hooks_of_ringway():
    exact = averaged()
    for wire, accuracy in {"plain": 1e-6, **WIRES}.items():
        net = DistributedDataParallel(perceptron(), bucket_cap_mb=0.1)
        net.register_comm_hook(None, ringway.torch.comm_hook(wire))
        for step in range(3):  # The first is plain.
            net.zero_grad()
            loss(net, me).backward()
            found = gradients(net)
            assert (found - exact).norm() <= accuracy * exact.norm(), wire
            if step > 0 and wire != "plain":
                assert not torch.equal(found, exact), wire
            first = found.clone()
            dist.broadcast(first, 0)
            assert torch.equal(found, first)
    with pytest.raises(ringway.ArgumentError, match="`fp12` is no codec; expected none, fp16"):
        ringway.torch.comm_hook("fp12")


def feedback():
    """What was not sent comes later: the mean of many steps is near the exact average. Resumed, all is as if it had
    gone on."""
    exact = averaged()
    straight, _ = hooked("topk:0.05", range(1, 41))
    assert (sum(straight) / 40 - exact).norm() < 0.5 * exact.norm()
    for wire in (*WIRES, "int:3", "threshold:0.001", "adaptive"):
        straight, state = hooked(wire, range(1, 6))
        resumed, _ = hooked(wire, range(1, 3), state)
        assert torch.equal(resumed[0], straight[3]), wire
        assert torch.equal(resumed[1], straight[4]), wire


def hooked(wire, steps, state=None):
    """Gradients of steps, of which the first, plain one is left out, and the state before the last two."""
    net = DistributedDataParallel(perceptron(), bucket_cap_mb=0.1)
    hook = ringway.torch.comm_hook(wire)
    net.register_comm_hook(None, hook)
    if state is not None:
        hook.load_state_dict(torch.load(io.BytesIO(state)))
    loss(net, me).backward()
    found, file = [], io.BytesIO()
    for step in steps:
        if step == len(steps) - 1:
            torch.save(hook.state_dict(), file)
        net.zero_grad()
        loss(net, me).backward()
        found.append(gradients(net))
    return found, file.getvalue()


def a_gradient_that_is_not_finite():
    for with_names, tensor in ((False, r"bucket 0, parameter \d+"), (True, r"\d\.(weight|bias)")):
        net = DistributedDataParallel(perceptron())
        net.register_comm_hook(net.module if with_names else None, ringway.torch.comm_hook("int8"))
        loss(net, me).backward()
        with pytest.raises(RuntimeError, match=rf"rank 1, tensor {tensor}, element \d+: the gradient is NaN"):
            (loss(net, me) * (torch.nan if me == 1 else 1)).backward()


def adaptive():
    """On a wire that steps do not wait for, it turns itself off within 200 steps, on all ranks."""
    net = DistributedDataParallel(perceptron())
    hook = ringway.torch.comm_hook("adaptive")
    net.register_comm_hook(net.module, hook)
    for step in range(202):
        net.zero_grad()
        loss(net, me, step % 3).backward()
    decisions: list[object] = [None] * n
    dist.all_gather_object(decisions, hook.decisions())
    assert decisions[0] and all(theirs == decisions[0] for theirs in decisions), decisions


def states_of_the_hook():
    net = DistributedDataParallel(perceptron())
    net.register_comm_hook(dist.group.WORLD, ringway.torch.comm_hook("int8"))
    with pytest.raises(RuntimeError, match=r"state of ringway\.torch\.comm_hook is a ProcessGroup; expected the model"):
        loss(net, me).backward()


def sizes_of_buckets():
    mib, sizes = 1 << 20, range(16, 29)
    steady = [(mib, 0.01 * at) for at in range(10)]
    # All but the last is hidden: that is as small as it can be, with as few calls before it as there can be.
    first, cap = choose(steady, [0.001 + (1 << power) / 1e9 for power in sizes])
    assert sum(nbytes for nbytes, _ in steady[:-1]) <= first + cap + mib
    # A call that takes longer than the backward pass is made once.
    assert min(choose(steady, [1.0 for _ in sizes])) >= 10 * mib
    # One on a slow wire begins as soon as there is something.
    assert choose(steady, [(1 << power) / 1e7 for power in sizes])[0] <= mib

    net = perceptron()
    chosen = ringway.torch.bucket_sizes(net, lambda: loss(net, me).backward())
    assert all(parameter.grad is None for parameter in net.parameters())
    of_all: list[object] = [None] * n
    dist.all_gather_object(of_all, chosen)
    assert all(theirs == chosen for theirs in of_all) and 0.0625 <= chosen[0] <= chosen[1], of_all
    # It takes parts of MiB, whatever its annotation says.
    net = DistributedDataParallel(net, bucket_cap_mb_list=chosen)  # type: ignore[arg-type]
    for _ in range(2):
        net.zero_grad()
        loss(net, me).backward()
        torch.testing.assert_close(gradients(net), averaged())
    with pytest.raises(ringway.ArgumentError, match="the backward pass made no gradients"):
        ringway.torch.bucket_sizes(perceptron(), lambda: None)
    # Rank 0's pass decides: without gradients there no rank waits, and without any elsewhere all have its sizes.
    again = perceptron()

    def some():
        loss(again, me).backward()

    def nothing():
        pass

    with pytest.raises(ringway.ArgumentError, match="no gradients on rank 0"):
        ringway.torch.bucket_sizes(again, nothing if me == 0 else some)
    dist.all_gather_object(of_all, ringway.torch.bucket_sizes(again, some if me == 0 else nothing))
    assert all(theirs == of_all[0] for theirs in of_all), of_all


class Everything(nn.Module):
    """Shared and frozen parameters, and a part that is computed again."""

    def __init__(self):
        super().__init__()
        self.shared, self.frozen = nn.Linear(6, 6), nn.Linear(6, 6).requires_grad_(False)
        self.again = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 6))
        self.out = nn.Linear(6, 4)

    def forward(self, x):
        h = self.shared(torch.tanh(self.shared(x)))
        return self.out(checkpoint(self.again, torch.tanh(self.frozen(h)), use_reentrant=False))


def a_training_loop_with_everything():
    """Scaler, clipping, accumulation, checkpoints, shared and frozen parameters: as computed alone."""

    def train(net, ranks):
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.5, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        for step in range(4):
            optimizer.zero_grad()
            for micro in range(2):
                syncs = micro == 1 or len(ranks) > 1
                with nullcontext() if syncs else net.no_sync():
                    total = sum(loss(net, rank, 2 * step + micro) for rank in ranks) / len(ranks)
                    scaler.scale(total).backward()
            scaler.unscale_(optimizer)
            assert nn.utils.clip_grad_norm_(net.parameters(), 0.1) > 0.1
            scaler.step(optimizer)
            scaler.update()
        return torch.cat([p.detach().reshape(-1) for p in net.parameters()])

    torch.manual_seed(3)
    alone = Everything()
    net = DistributedDataParallel(copy.deepcopy(alone))
    torch.testing.assert_close(train(net, [me]), train(alone, list(range(n))), rtol=1e-4, atol=1e-5)


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
    feedback,
    unused_parameters,
    training_with_batch_norm,
    without_synchronization,
    uneven_inputs,
    adaptive,
    a_training_loop_with_everything,
    a_gradient_that_is_not_finite,
    states_of_the_hook,
    sizes_of_buckets,
)
leave()
