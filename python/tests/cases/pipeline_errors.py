"""What a pipeline refuses, and what ranks get that do not use the same parameters: errors that say so, on all ranks."""

import time

import pytest
import ringway
import ringway.torch
import torch
import torch.distributed as dist
from torch import nn
from torch_rank import join, leave, run

me, n = join()


class Choice(nn.Module):
    """Uses one of two branches, or the weight of one without calling it."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, which):
        if which == "weight":
            return nn.functional.linear(x, self.left.weight)
        return (self.left if which == "left" else self.right)(x)


def make(kind=Choice, **options):
    net = kind()
    return net, ringway.torch.Pipeline(net, torch.optim.SGD(net.parameters(), lr=0.1), **options)


def train(net, pipeline, *which):
    for each in which:
        net(torch.ones(4), each).sum().backward()
    pipeline.step()


def different_branches():
    for bytes in (1, 1 << 20):
        for steps in (0, 2):
            net, pipeline = make(bucket_bytes=bytes)
            with pytest.raises(ringway.Error) as error:
                for _ in range(steps):
                    train(net, pipeline, "left")
                train(net, pipeline, "left" if me == 0 else "right")
                pipeline.synchronize()
            others = "rank 1" if n == 2 else "ranks " + ", ".join(map(str, range(1, n)))
            assert f"left.weight has a gradient on rank 0 and none on {others}" in str(error.value)
            # Nobody has updated anything, and all may save what they have.
            everyones = [torch.empty_like(net.left.weight) for _ in range(n)]
            dist.all_gather(everyones, net.state_dict()["left.weight"])
            assert all(torch.equal(theirs, everyones[0]) for theirs in everyones)
            assert f"right.weight has a gradient on {others} and none on rank 0" in str(error.value)
            # And go on, even where that was the first step.
            train(net, pipeline, "left")
            dist.all_gather(everyones, net.state_dict()["left.weight"])
            assert all(torch.equal(theirs, everyones[0]) for theirs in everyones)


def one_rank_without_a_backward_pass():
    net, pipeline = make()
    train(net, pipeline, "left")
    with pytest.raises(ringway.Error, match=rf"left.weight has a gradient on .* and none on rank {n - 1}"):
        train(net, pipeline, *(["left"] if me < n - 1 else []))
        pipeline.synchronize()


def two_backward_passes():
    net, pipeline = make()
    train(net, pipeline, "left")
    with pytest.raises(ringway.Error, match=r"left\.\w+ came twice since the last step.*no_sync"):
        train(net, pipeline, "left", "left")


def use_before_the_update():
    net, pipeline = make()
    for _ in range(2):
        train(net, pipeline, "left")
    with pytest.raises(ringway.Error, match=r"left\.weight was used before its update.*synchronize"):
        # The module around it is called before and stands for it only where it is not called by itself.
        nn.functional.linear(torch.ones(4), net.left.weight).sum().backward()
    # As the error says:
    net, pipeline = make()
    for which in ("left", "left", "weight", "left"):
        pipeline.synchronize()
        train(net, pipeline, which)


def sparse_gradients():
    net, pipeline = make(lambda: nn.Embedding(4, 4, sparse=True))
    with pytest.raises(ringway.ArgumentError, match=r"sparse=False"):
        net(torch.tensor([1])).sum().backward()
        pipeline.step()


def optimizers():
    net = Choice()
    with pytest.raises(ringway.ArgumentError, match="LBFGS evaluates the model again within its step"):
        ringway.torch.Pipeline(net, torch.optim.LBFGS(net.parameters()))
    with pytest.raises(ringway.ArgumentError, match="parameters that are not the model's"):
        ringway.torch.Pipeline(net.left, torch.optim.SGD(net.parameters()))
    with pytest.raises(ringway.ArgumentError, match=r"left\.weight is on meta"):
        ringway.torch.Pipeline(net.to("meta"), torch.optim.SGD(net.parameters()))


def groups_that_are_added():
    net = Choice()
    optimizer = torch.optim.SGD(net.left.parameters(), lr=0.1)
    pipeline = ringway.torch.Pipeline(net, optimizer)
    train(net, pipeline, "left")
    optimizer.add_param_group({"params": net.right.parameters()})
    with pytest.raises(ringway.ArgumentError, match=r"SGD has other parameters .*add_param_group"):
        train(net, pipeline, "left")
    with pytest.raises(ringway.ArgumentError, match="add_param_group"):
        optimizer.step()


class Counting(torch.optim.SGD):
    """Keeps the number of steps in its groups."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


def an_optimizer_that_counts_in_its_groups():
    net = Choice()
    pipeline = ringway.torch.Pipeline(net, Counting(net.parameters()))
    train(net, pipeline, "left")
    with pytest.raises(ringway.Error, match="Counting keeps steps in its parameter groups"):
        train(net, pipeline, "left")
        pipeline.synchronize()


def different_models():
    with pytest.raises(ringway.ArgumentError, match=r"rank 1 has 2 and there 'weight: float32 \(5, 4\)"):
        make(lambda: nn.Linear(4, 4 if me == 0 else 5))
    with pytest.raises(ringway.ArgumentError, match="bucket_bytes=1"):
        make(bucket_bytes=1 + me)


def a_gradient_that_is_not_finite():
    """With a codec it is named on all ranks; after it they go on."""
    for value, text in ((torch.nan, "NaN"), (torch.inf, "inf")):
        net, pipeline = make(wire="int8")
        for _ in range(2):
            train(net, pipeline, "left")
        factor = value if me == n - 1 else 1.0
        with pytest.raises(
            ringway.Error, match=rf"rank {n - 1}, tensor left\.\w+, element \d+: the gradient is {text}"
        ):
            (net(torch.ones(4), "left") * factor).sum().backward()
            pipeline.synchronize()
        train(net, pipeline, "left")
        weight = net.state_dict()["left.weight"]
        everyones = [torch.empty_like(weight) for _ in range(n)]
        dist.all_gather(everyones, weight)
        assert weight.isfinite().all() and all(torch.equal(theirs, weight) for theirs in everyones)


def a_gradient_that_is_refused_while_others_are_applied():
    """Of a step that a codec refuses in part all ranks apply the rest, whatever had come where the refusal was seen."""
    for slow in range(n):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
        pipeline = ringway.torch.Pipeline(net, torch.optim.SGD(net.parameters(), lr=0.1), bucket_bytes=1, wire="int8")
        factor = torch.ones(())
        weight = net[1].weight
        assert isinstance(weight, nn.Parameter)
        weight.register_hook(factor.mul)
        for _ in range(2):
            net(torch.ones(4)).sum().backward()
            pipeline.step()
        pipeline.synchronize()
        before = {name: value.clone() for name, value in net.state_dict().items()}
        factor.fill_(torch.nan if me == n - 1 else 1.0)
        net(torch.ones(4)).sum().backward()
        pipeline.step()
        # On one rank all has come before the first module is called.
        time.sleep(0.1 * (me == slow))
        with pytest.raises(ringway.Error, match=rf"rank {n - 1}, tensor 1\.weight, .*the gradient is NaN"):
            net(torch.ones(4))
        factor.fill_(1.0)
        for name, value in net.state_dict().items():
            everyones = [torch.empty_like(value) for _ in range(n)]
            dist.all_gather(everyones, value)
            assert all(torch.equal(theirs, value) for theirs in everyones)
            assert torch.equal(value, before[name]) == (name == "1.weight"), name
        net(torch.ones(4)).sum().backward()
        pipeline.step()
        assert not torch.equal(net.state_dict()["1.weight"], before["1.weight"])


def state_of_another_model():
    _, pipeline = make()
    with pytest.raises(ringway.ArgumentError, match="state of a pipeline for other parameters"):
        pipeline.load_state_dict({"order": ["a"], "need": ["a"]})


run(
    different_branches,
    one_rank_without_a_backward_pass,
    two_backward_passes,
    use_before_the_update,
    sparse_gradients,
    optimizers,
    groups_that_are_added,
    an_optimizer_that_counts_in_its_groups,
    different_models,
    a_gradient_that_is_not_finite,
    a_gradient_that_is_refused_while_others_are_applied,
    state_of_another_model,
)
leave()
