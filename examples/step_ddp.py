"""A training step's communication by DistributedDataParallel over Gloo, and by Ringway with all its optimizations.

    ringway lab run fabric.yaml --order random:1 -- \\
        python examples/step_ddp.py --fabric fabric.yaml --scale 0.02 --compute 0.3

Both have the gradients of `ringway bench step` and wait for the same compute, layer by layer. They take turns, round
by round, and the table has the medians: first DistributedDataParallel over Gloo, with its buckets of 25 MB times
`--scale`, then the stages of `ringway bench step`. Ranks are started by `ringway run`, `ringway lab run` or torchrun,
which say where they meet; `ringway` must be on the PATH.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BUCKET_MB = 25
"""DistributedDataParallel's default."""


class Clock:
    """Compute that is waited for; layers shorter than a sleep can be are waited for together."""

    def __init__(self):
        self.done = time.perf_counter()

    def compute(self, seconds):
        self.done += seconds

    def settle(self):
        time.sleep(max(0.0, self.done - time.perf_counter()))

    def restart(self):
        self.done = max(self.done, time.perf_counter())


class Layer(torch.autograd.Function):
    """What comes in goes out, after a while; backward makes a gradient of the rank's own."""

    @staticmethod
    def forward(ctx, x, parameter, clock, layer):
        clock.compute(layer["forward_seconds"])
        ctx.of = parameter, clock, layer["backward_seconds"]
        return x.view_as(x)

    @staticmethod
    def backward(ctx, *gradients):
        parameter, clock, seconds = ctx.of
        clock.compute(seconds)
        if parameter is None:
            return gradients[0], None, None, None
        clock.settle()
        return gradients[0], torch.full_like(parameter, dist.get_rank()), None, None


class Model(nn.Module):
    """The layers one after the other."""

    def __init__(self, layers, clock):
        super().__init__()
        self.layers, self.clock = layers, clock
        elements = [layer["elements"] for layer in layers]
        self.parameter_of = [nn.Parameter(torch.zeros(count)) if count else None for count in elements]
        self.all = nn.ParameterList([parameter for parameter in self.parameter_of if parameter is not None])

    def forward(self, x):
        for layer, parameter in zip(self.layers, self.parameter_of, strict=True):
            x = Layer.apply(x, parameter, self.clock, layer)
        return x


def ddp_step_seconds(model, steps):
    """Of a step on the slowest rank, the mean of `steps` after one that does not count."""
    clock, began = model.module.clock, 0.0
    x = torch.zeros(1, requires_grad=True)
    for step in range(steps + 1):
        if step == 1:
            dist.barrier()
            began = time.perf_counter()
        clock.restart()
        model(x).sum().backward()
        clock.settle()
        if step < steps:
            for parameter in model.parameters():
                parameter.grad = None
    took = torch.tensor([(time.perf_counter() - began) / steps])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    mean = (dist.get_world_size() - 1) / 2
    if not all(torch.allclose(parameter.grad, torch.tensor(mean)) for parameter in model.parameters()):
        raise SystemExit(f"rank {dist.get_rank()}: gradients are not the mean of all ranks'")
    return took.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet152")
    parser.add_argument("--scale", type=float, default=1.0, help="of each gradient, this part")
    parser.add_argument("--compute", type=float, required=True, help="seconds of compute in a step")
    parser.add_argument("--steps", type=int, default=2, help="of each stage and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fabric", metavar="FILE", help="for Ringway's stage `topology`")
    parser.add_argument("--json", metavar="FILE", type=Path, help="the table, by rank 0")
    args = parser.parse_args()
    if args.steps < 1 or args.rounds < 1:
        parser.error("expected 1 step and 1 round or more")
    torch.set_num_threads(1)
    bench = ["ringway", "bench", "step", "--model", args.model]
    bench += ["--scale", str(args.scale), "--compute", str(args.compute)]
    layers = subprocess.run([*bench, "--layers"], check=True, capture_output=True).stdout
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Model(json.loads(layers), Clock()), bucket_cap_mb=BUCKET_MB * args.scale)
    if args.fabric:
        bench += ["--fabric", args.fabric]
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            times.setdefault("DDP over Gloo", []).append(ddp_step_seconds(model, args.steps))
            dist.barrier()
            # Another port than this program's own, and than the round's before.
            meeting = {**os.environ, "MASTER_PORT": str(int(os.environ["MASTER_PORT"]) + 1 + number)}
            found = Path(folder) / "step.json"
            subprocess.run([*bench, "-n", str(args.steps), "--json", str(found)], check=True, env=meeting)
            dist.barrier()
            if dist.get_rank() == 0:
                for stage in json.loads(found.read_text())["stages"]:
                    times.setdefault(f"Ringway, {stage['stage']}", []).append(stage["step_seconds"])
    if dist.get_rank() == 0:
        medians = {stage: statistics.median(of) for stage, of in times.items()}
        lines = [f"{'medians of ' + str(args.rounds):<24} {'step ms':>10} {'speed-up':>9} {'communication %':>16}"]
        for stage, seconds in medians.items():
            share = 100 * max(0.0, 1 - args.compute / seconds)
            lines.append(f"{stage:<24} {1e3 * seconds:10.1f} {medians['DDP over Gloo'] / seconds:9.2f} {share:16.1f}")
        print("\n" + "\n".join(lines), flush=True)
        if args.json:
            told = {name: value for name, value in vars(args).items() if name != "json"}
            args.json.write_text(json.dumps({**told, "step_seconds": medians, "rounds_seconds": times}, indent=1))
    dist.destroy_process_group()
    # DDP in torch 2.15 aborts now and then while the interpreter shuts down, whatever the backend: leave before that.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
