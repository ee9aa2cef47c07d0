"""Pipeline: the same bits as with all-reduces after the backward pass and a step of the optimizer then."""

import copy
import io
import warnings
from contextlib import nullcontext
from typing import Any

import ringway.torch
import torch
import torch.distributed as dist
from ringway.torch import _unit
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint
from torch_rank import join, leave, run

me, n = join()
STEPS = 6
# Some gradients have an all-reduce to themselves, others share them.
BYTES = 2000


class Model(nn.Module):
    """A little of everything: shared, frozen and unused parameters, a module that is never called, one that is called
    twice, memory in another order, and a part that is computed again."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.convolution = nn.Conv2d(1, 8, 3, padding=1).to(memory_format=torch.channels_last)
        self.wide = nn.Conv2d(8, 40, 3).to(memory_format=torch.channels_last)
        self.twice = nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.never = nn.Linear(16, 16)
        self.again = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
        self.norm = nn.LayerNorm(16)
        self.scale = nn.Parameter(torch.ones(16))
        self.out = nn.Linear(16, 20, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        h = self.embedding(x)
        h = h + self.attention(h, h, h)[0]
        image = self.wide(self.convolution(h.unsqueeze(1)))
        h = h + image.mean((1, 2, 3)).reshape(-1, 1, 1)
        h = self.frozen(torch.tanh(self.twice(torch.tanh(self.twice(h)))))
        h = checkpoint(self.again, h, use_reentrant=False)
        return self.out(self.norm(h) * self.scale)


def batch(step, micro=0):
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + me)
    return torch.randint(20, (4, 5), generator=generator)


def loss(model, step, micro=0):
    x = batch(step, micro)
    return nn.functional.cross_entropy(model(x).transpose(1, 2), x)


def model(kind=Model):
    torch.manual_seed(7)
    return kind()


class Average:
    """What the pipeline does meanwhile: with two ranks an all-reduce of each gradient. With more, the order of
    additions depends on where in its all-reduce an element is: then of the same vectors, whose order is settled after a
    step."""

    def __init__(self, net, order):
        self.names, self.parameters = zip(*net.named_parameters(), strict=True)
        self.orders = [list(reversed(range(len(self.names)))), [self.names.index(name) for name in order]]

    def __call__(self):
        order = self.orders.pop(0) if len(self.orders) > 1 else self.orders[0]
        if n == 2:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
            return
        for unit in _unit.units(order, self.parameters, BYTES, lambda count, dtype: torch.zeros(count, dtype=dtype)):
            here = [index for index in unit.parameters if self.parameters[index].grad is not None]
            for index in here:
                unit.take(index, self.parameters[index].grad)
            memory = unit.memory()
            dist.all_reduce(memory.as_strided((memory.numel(),), (1,)), dist.ReduceOp.AVG)
            for index in here:
                self.parameters[index].grad = unit.gradient(index)


def parameters(net):
    return [parameter.detach().clone() for parameter in net.parameters()]


def same(pair, what):
    for at, (a, b) in enumerate(zip(*pair, strict=True)):
        assert torch.equal(a, b), f"{what}: parameter {at} differs by {(a - b).abs().max()}"


def both(train, make):
    """Parameters after training, with a pipeline and without."""
    net = model()
    optimizer = make(net)
    pipeline = ringway.torch.Pipeline(net, optimizer, bucket_bytes=BYTES)
    train(net, optimizer, pipeline, None)
    pipeline.synchronize()
    alone = model()
    optimizer = make(alone)
    train(alone, optimizer, None, Average(alone, pipeline.state_dict()["order"]))
    return parameters(net), parameters(alone)


def step(optimizer, pipeline, average):
    """A step with or without."""
    if pipeline is not None:
        pipeline.step()
    else:
        average()
        optimizer.step()
    optimizer.zero_grad()


def plainly(net, optimizer, pipeline, average):
    for k in range(STEPS):
        loss(net, k).backward()
        step(optimizer, pipeline, average)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False),
    "SGD with momentum, foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, foreach=False),
    "AdamW, fused, with a tensor as rate": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


def optimizers():
    for name, make in OPTIMIZERS.items():
        same(both(plainly, lambda net, make=make: make(net.parameters())), name)


def adam(net):
    """With rates of their own for two groups."""
    slow = [p for name, p in net.named_parameters() if "out" in name or "again" in name]
    fast = [p for p in net.parameters() if all(p is not other for other in slow)]
    groups: list[dict[str, Any]] = [{"params": slow, "lr": 1e-3}, {"params": fast}]
    return torch.optim.AdamW(groups, lr=1e-2)


def accumulation():
    def train(net, optimizer, pipeline, average):
        for k in range(STEPS):
            for micro in range(3):
                with pipeline.no_sync() if pipeline is not None and micro < 2 else nullcontext():
                    loss(net, k, micro).backward()
            step(optimizer, pipeline, average)
        # Without a backward pass that reduces.
        with pipeline.no_sync() if pipeline is not None else nullcontext():
            loss(net, 0).backward()
        step(optimizer, pipeline, average)

    same(both(train, adam), "accumulation")


def clipping():
    def train(net, optimizer, pipeline, average):
        for k in range(STEPS):
            loss(net, k).backward()
            if pipeline is None:
                average()
            else:
                assert pipeline.synchronize() > 0
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            assert norm > 0.05
            # Either step will do.
            if pipeline is not None and k % 2:
                pipeline.step()
            else:
                optimizer.step()
            optimizer.zero_grad()

    same(both(train, adam), "clipping")


def scaling():
    def train(net, optimizer, pipeline, average):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        for k in range(STEPS):
            value = loss(net, k)
            if k == 3 and me == 0:  # One rank's gradients overflow: no rank takes the step.
                value = value * torch.inf
            scaler.scale(value).backward()
            if pipeline is None:
                average()
            else:
                pipeline.synchronize()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scaler.get_scale() == 2.0**11

    same(both(train, adam), "scaling")


def mixed_precision():
    def train(net, optimizer, pipeline, average):
        for k in range(STEPS):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                value = loss(net, k)
            value.backward()
            step(optimizer, pipeline, average)

    same(both(train, adam), "mixed precision")


def schedules():
    def train(net, optimizer, pipeline, average):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            schedule = lr_scheduler.OneCycleLR(optimizer, [1e-3, 1e-2], total_steps=STEPS)
            for k in range(STEPS):
                loss(net, k).backward()
                step(optimizer, pipeline, average)
                schedule.step()

    same(both(train, adam), "schedules")


def freezing():
    def train(net, optimizer, pipeline, average):
        for k in range(STEPS):
            net.again.requires_grad_(k not in (2, 3))
            net.frozen.requires_grad_(k > 3)
            loss(net, k).backward()
            step(optimizer, pipeline, average)

    same(both(train, adam), "freezing")


def evaluation_in_between():
    def train(net, optimizer, pipeline, average):
        for k in range(STEPS):
            loss(net, k).backward()
            step(optimizer, pipeline, average)
            if k % 2:
                net.eval()
                with torch.no_grad():
                    seen.append(loss(net, k))
                net.train()

    seen: list[torch.Tensor] = []
    same(both(train, adam), "evaluation in between")
    same((seen[:3], seen[3:]), "what evaluation saw")


def the_program_s_own_calls():
    """Other collectives, and steps of the optimizer without any word of the pipeline."""

    def train(net, optimizer, pipeline, average):
        for k in range(STEPS):
            value = loss(net, k)
            value.backward()
            dist.all_reduce(value.detach())
            if k % 2 and pipeline is not None:
                optimizer.step()
                optimizer.zero_grad()
            else:
                step(optimizer, pipeline, average)

    same(both(train, adam), "calls of its own")


def step_hooks():
    def train(net, optimizer, pipeline, average):
        calls = []
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        for k in range(STEPS):
            loss(net, k).backward()
            step(optimizer, pipeline, average)
        assert len(calls) == STEPS

    same(both(train, adam), "step hooks")


def hooks_that_were_there_before():
    """A hook that clips, registered before the pipeline: it sees averages."""

    def clip(optimizer, *_):
        seen.append(nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.05))

    def make(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(clip)
        return optimizer

    seen: list[torch.Tensor] = []
    same(both(plainly, make), "hooks that were there before")
    assert len(seen) == 2 * STEPS and all(norm > 0 for norm in seen)


def loading():
    """What is loaded right after a step stays what it is."""
    net = model()
    optimizer = adam(net)
    pipeline = ringway.torch.Pipeline(net, optimizer, bucket_bytes=BYTES)
    for k in range(3):
        loss(net, k).backward()
        pipeline.step()
    states = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    loss(net, 3).backward()
    pipeline.step()
    net.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    pipeline.synchronize()
    same((parameters(net), [states[0][name] for name, _ in net.named_parameters()]), "loading")


def straight_on(make):
    net = model()
    pipeline = ringway.torch.Pipeline(net, make(net.parameters()), bucket_bytes=BYTES)
    for k in range(STEPS):
        loss(net, k).backward()
        pipeline.step()
    pipeline.synchronize()
    return parameters(net)


def resuming():
    make = OPTIMIZERS["AdamW"]
    expected = straight_on(make)
    net = model()
    optimizer = make(net.parameters())
    pipeline = ringway.torch.Pipeline(net, optimizer, bucket_bytes=BYTES)
    for k in range(3):
        loss(net, k).backward()
        pipeline.step()
    file = io.BytesIO()
    # Nobody has waited for the last step yet.
    torch.save([part.state_dict() for part in (net, optimizer, pipeline)], file)
    file.seek(0)
    net = Model()
    optimizer = make(net.parameters())
    pipeline = ringway.torch.Pipeline(net, optimizer, bucket_bytes=BYTES)
    states = torch.load(file)
    net.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    pipeline.load_state_dict(states[2])
    for k in range(3, STEPS):
        loss(net, k).backward()
        pipeline.step()
    pipeline.synchronize()
    same((parameters(net), expected), "resuming")


def compressed():
    """Codecs under the pipeline: the same bits on all ranks, near what they are without, and resumed the same again."""
    exact, _ = train_compressed("plain")
    plain = torch.cat([p.reshape(-1) for p in exact])
    for wire, near in WIRES.items():
        found, state = train_compressed(wire)
        flat = torch.cat([p.reshape(-1) for p in found])
        assert 0 < (flat - plain).norm() < near * plain.norm(), wire
        first = flat.clone()
        dist.broadcast(first, 0)
        assert torch.equal(flat, first), wire
        same((train_compressed(wire, state)[0], found), wire)


WIRES = {
    "fp16": 1e-3,
    "bf16": 1e-3,
    "int8": 1e-3,
    "int4": 0.01,
    "int:3": 0.05,
    "dynamic:0.1": 0.05,
    "topk:0.1": 0.05,
    "threshold:0.001": 0.05,
    "powersgd:2": 0.05,
    "adaptive": 1e-3,
}
"""Every codec, and how near it comes in some steps. The adaptive one has decided nothing by then."""


def train_compressed(wire, state=None):
    """The parameters after all steps, begun at the third with a state, and the state before the third."""
    net = model()
    pipeline = ringway.torch.Pipeline(net, torch.optim.SGD(net.parameters(), lr=0.1), bucket_bytes=BYTES, wire=wire)
    if state is not None:
        of_net, of_pipeline = torch.load(io.BytesIO(state))
        net.load_state_dict(of_net)
        pipeline.load_state_dict(of_pipeline)
    file = io.BytesIO()
    for k in range(0 if state is None else 3, STEPS):
        if k == 3:
            torch.save([net.state_dict(), pipeline.state_dict()], file)
        loss(net, k).backward()
        pipeline.step()
    pipeline.synchronize()
    return parameters(net), file.getvalue()


def adaptive():
    """All ranks decide the same at the same step, and say why; and still have the same parameters."""
    net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(2)))
    pipeline = ringway.torch.Pipeline(net, torch.optim.SGD(net.parameters(), lr=0.01), wire="adaptive")
    for k in range(204):
        net(torch.full((2, 16), float(me + k % 3))).square().mean().backward()
        pipeline.step()
    decisions = pipeline.decisions()
    assert len(decisions) == 1 and "from here on" in decisions[0] and "saved" in decisions[0], decisions
    texts: list[Any] = [None] * n
    dist.all_gather_object(texts, (decisions, [p.tolist() for p in net.parameters()]))
    assert all(theirs == texts[0] for theirs in texts)


class Branches(nn.Module):
    """Uses one of two layers."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, left):
        return (self.left if left else self.right)(x)


def what_is_kept_of_unused_parameters():
    """What a codec has not sent of a parameter is not sent in steps without it, where nobody would take it."""
    net = Branches()
    pipeline = ringway.torch.Pipeline(net, torch.optim.SGD(net.parameters(), lr=0.1), wire="topk:0.1")

    def kept(left):
        net(torch.randn(4, 8), left).square().sum().backward()
        pipeline.step()
        state = pipeline.state_dict()
        kept = bytes(state["wire"]["buckets"][0].numpy())[-16 - 4 * 144 : -16]
        values = torch.frombuffer(bytearray(kept), dtype=torch.float32)
        parts, end = {}, 0
        for name in state["order"]:
            count = net.get_parameter(name).numel()
            parts[name], end = values[end : end + count], end + count
        return parts

    net(torch.randn(4, 8), True).square().sum().backward()
    pipeline.step()  # The first is plain.
    before = kept(True)
    assert before["left.weight"].norm() > 0 and before["right.weight"].norm() == 0
    for _ in range(3):
        after = kept(False)
    assert torch.equal(after["left.weight"], before["left.weight"])
    assert after["right.weight"].norm() > 0


def copies():
    """Copies of the model are models of their own."""
    net = model()
    pipeline = ringway.torch.Pipeline(net, adam(net), bucket_bytes=BYTES)
    loss(net, 0).backward()
    pipeline.step()
    pipeline.synchronize()
    twin = copy.deepcopy(net)
    loss(twin, 1).backward()
    assert twin.scale.grad is not None
    assert net.scale.grad is None
    file = io.BytesIO()
    torch.save(twin, file)


def ranks_are_made_alike():
    torch.manual_seed(me)
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    net[1].running_mean += me
    ringway.torch.Pipeline(net, torch.optim.SGD(net.parameters()))
    for tensor in (*net.parameters(), *net.buffers()):
        first = tensor.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(tensor, first)


def while_computing():
    """All-reduces start before the backward pass has ended, and the updates that are left wait for their modules."""
    first = nn.Linear(64, 64)
    net = nn.Sequential(first, *(nn.Linear(64, 64) for _ in range(3)))
    pipeline = ringway.torch.Pipeline(net, torch.optim.SGD(net.parameters(), lr=0.1), bucket_bytes=4096)
    for k in range(3):
        started: list[int] = []
        first.weight.register_hook(lambda _, started=started: started.append(len(pipeline._in_flight)))
        net(torch.ones(2, 64)).sum().backward()
        assert started == [3]
        pipeline.step()
        if k > 0:
            assert len(pipeline._updates) == len(pipeline._units)
            first(torch.ones(2, 64))
            assert pipeline._unit_of[0] not in pipeline._updates


run(
    optimizers,
    accumulation,
    clipping,
    scaling,
    mixed_precision,
    schedules,
    freezing,
    evaluation_in_between,
    the_program_s_own_calls,
    step_hooks,
    hooks_that_were_there_before,
    loading,
    resuming,
    compressed,
    adaptive,
    what_is_kept_of_unused_parameters,
    copies,
    ranks_are_made_alike,
    while_computing,
)
leave()
