"""Train a small convolutional network on handwritten digits, data-parallel.

    ringway run -n 2 -- python examples/train_digits.py --backend ringway
    torchrun --nproc-per-node 2 examples/train_digits.py --backend gloo

The script is an ordinary DistributedDataParallel script; the backend's name is all that changes between the two
lines above. It needs scikit-learn for its bundled digits: 1,797 grey images of 8 x 8 pixels, 20 % of them held out.

What the figures mean. After each epoch, training steps (forward, backward, optimizer) with gradient exchange and
without (`no_sync`) alternate on one batch, each from a barrier and timed on the slowest rank. `step` is the median of
those with; `comm`, the communication that a step waits for, is the difference of the two medians, and its share is
that difference over `step`: both come from the same steps. Then the model is put back as it was. Communication that
hides behind the backward pass costs the step nothing and is not in it; waiting for a slower rank costs it time and is.
Where the difference is smaller than the noise of the timing it can come out below zero, and is reported so.
"""

import argparse
import copy
import json
import os
import statistics
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PROBES = 20  # pairs of timed steps after each epoch


def digits(seed):
    """Training and held-out sets: images as (N, 1, 8, 8) in 0..1, labels as (N,)."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.2, stratify=labels, random_state=seed)
    train_x, test_x = (torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) for x in parts[:2])
    train_y, test_y = (torch.tensor(y, dtype=torch.int64) for y in parts[2:])
    return TensorDataset(train_x, train_y), (test_x, test_y)


def network():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def train_step(model, optimizer, x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def train_epoch(model, optimizer, loader):
    """One pass over this rank's share; the mean loss over all ranks."""
    total = torch.zeros(2)
    for x, y in loader:
        loss = train_step(model, optimizer, x, y)
        total += torch.tensor([loss.item() * len(y), len(y)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def accuracy(model, held_out):
    """Share of the held-out digits recognised; each rank looks at its part."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = (t[rank::world] for t in held_out)
    with torch.no_grad():
        right = (model.module(x).argmax(1) == y).sum()
    counts = torch.tensor([right, len(y)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def probe(model, optimizer, batch):
    """Seconds of a training step on the slowest rank, [with, without] gradient exchange.

    The model and the optimizer are left as they were.
    """
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    times = torch.zeros(2, PROBES, dtype=torch.float64)
    for k in range(PROBES):
        for row, context in enumerate((nullcontext, model.no_sync)):
            dist.barrier()
            start = time.perf_counter()
            with context():
                train_step(model, optimizer, *batch)
            times[row, k] = time.perf_counter() - start
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def milliseconds(seconds):
    return 1e3 * statistics.median(seconds)


def figures(probes):
    """The medians of the module's docstring, in milliseconds and as a share."""
    step = milliseconds(probes[0])
    comm = step - milliseconds(probes[1])
    return {"step_ms": step, "comm_ms": comm, "comm_share": comm / step}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["ringway", "gloo"], default="ringway")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="rank 0 appends a line per epoch and one for the run")
    args = parser.parse_args()

    if args.backend == "ringway":
        import ringway.torch  # noqa: F401  registers the backend

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(args.backend)
    rank, world = dist.get_rank(), dist.get_world_size()

    train, held_out = digits(args.seed)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    parameters = sum(p.numel() for p in model.parameters())
    probe_batch = tuple(t[: args.batch] for t in train.tensors)

    def report(event, text, **values):
        if rank == 0:
            print(text, flush=True)
            if args.json:
                with open(args.json, "a") as log:
                    line = {"event": event, "backend": args.backend, "ranks": world, **values}
                    print(json.dumps(line), file=log)

    start = time.perf_counter()
    all_probes: list[list[float]] = [[], []]
    result = 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, optimizer, loader)
        schedule.step()
        result = accuracy(model, held_out)
        probes = probe(model, optimizer, probe_batch)
        now = figures(probes)
        all_probes = [a + b for a, b in zip(all_probes, probes, strict=True)]
        report(
            "epoch",
            f"{args.backend:>7}  epoch {epoch + 1:2}/{args.epochs}  loss {loss:.4f}  held-out {result:7.2%}  "
            f"step {now['step_ms']:6.2f} ms  comm {now['comm_ms']:5.2f} ms ({now['comm_share']:.1%})",
            epoch=epoch + 1,
            loss=loss,
            accuracy=result,
            **now,
        )
    total = figures(all_probes)
    seconds = time.perf_counter() - start
    report(
        "run",
        f"{args.backend:>7}  {world} ranks, {parameters:,} parameters: held-out {result:.2%}, "
        f"step {total['step_ms']:.2f} ms, of which communication {total['comm_ms']:.2f} ms "
        f"({total['comm_share']:.1%}), {seconds:.1f} s",
        torch=torch.__version__,
        parameters=parameters,
        epochs=args.epochs,
        batch=args.batch,
        seconds=seconds,
        accuracy=result,
        **total,
    )
    dist.destroy_process_group()
    # DDP in torch 2.15 aborts now and then while the interpreter shuts down, whatever the backend: leave before that.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
