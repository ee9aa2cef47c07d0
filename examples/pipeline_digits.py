"""Train on handwritten digits with DistributedDataParallel and with Ringway's pipeline, and compare.

    ringway run -n 2 -- python examples/pipeline_digits.py --pictures out

Both train the network of train_digits.py from the same beginning on the same batches. For each the script prints where
the time of a step goes (see docs/pipeline.md) and the share of held-out digits recognised, and then whether the
parameters are the same bits; with two ranks they are. `--pictures` writes a report, a trace for Perfetto and the time
line of two steps for each.
"""

import argparse
import os
import sys
from pathlib import Path

import ringway.profile
import ringway.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from train_digits import digits, network


def accuracy(model, held_out):
    """Share of the held-out digits recognised."""
    x, y = held_out
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def train(name, pipelined, args):
    """The trained parameters, and what the profiler has seen."""
    torch.manual_seed(args.seed)
    train_set, held_out = digits(args.seed)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(train_set, seed=args.seed)
    loader = DataLoader(train_set, batch_size=args.batch, sampler=sampler)
    net = network()
    model = net if pipelined else DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    pipeline = ringway.torch.Pipeline(net, optimizer) if pipelined else None
    profiler = ringway.profile.Profiler(model, optimizer, log_every=0)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            if pipeline is not None:
                pipeline.step()
            else:
                optimizer.step()
                optimizer.zero_grad()
            profiler.record_step()
    if pipeline is not None:
        pipeline.synchronize()
    profiler.close()
    if dist.get_rank() == 0:
        print(f"{name}: {profiler.get_stats().line()}; held-out {accuracy(net, held_out):.2%}", flush=True)
        if args.pictures:
            args.pictures.mkdir(parents=True, exist_ok=True)
            profiler.report(args.pictures / f"{name}.html")
            profiler.chrome_trace(args.pictures / f"{name}.json")
            profiler.picture(args.pictures / f"{name}.svg")
    return [parameter.detach() for parameter in net.parameters()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pictures", metavar="DIRECTORY", type=Path, help="for rank 0's reports, traces and time lines"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("ringway")
    both = [train("ddp", False, args), train("pipeline", True, args)]
    same = all(torch.equal(a, b) for a, b in zip(*both, strict=True))
    if dist.get_rank() == 0:
        print(f"the same bits: {'yes' if same else 'no'}", flush=True)
    dist.destroy_process_group()
    # DDP in torch 2.15 aborts now and then while the interpreter shuts down, whatever the backend: leave before that.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
