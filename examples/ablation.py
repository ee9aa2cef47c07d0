"""Train with one optimization of the gradient path on top of the other, and compare.

    ringway run -n 4 -- python examples/ablation.py
    ringway lab run fabric.yaml -- python examples/ablation.py --task text --fabric fabric.yaml --seeds 0,1,2

Every stage trains the same model from the same beginning on the same batches, as many steps:

    alone        each rank by itself, nothing is exchanged: what a step takes without communication
    gloo         DistributedDataParallel over Gloo: the baseline
    ringway      DistributedDataParallel over Ringway, with the defaults
    + buckets    and its buckets as large as ringway.torch.bucket_sizes says, in place of 25 MB
    + topology   and --fabric: hosts in the order, and algorithms by the shared links, of the fabric
    + pipeline   ringway.torch.Pipeline in place of DistributedDataParallel, every gradient by itself
    + CODEC      and gradients in fewer bytes (--codecs, one after the other in place of each other)
    + batching   and gradients together, of 512 KiB or more, with the codec of --batched

What the figures mean. Of each seed the steps after the first few are timed, from a barrier to the last update, on the
slowest rank; the table has the medians over the seeds. `comm` is what a step takes longer than one alone, as a share of
the step, and `speed-up` is over gloo, both of the same seed. `sent` are the bytes that rank 0's interfaces have sent in
a step, but for loopback's. `CPU` is processor time of all ranks. Loss and accuracy are of held-out data after the last
step, means over the seeds. The digits are those of train_digits.py; the text is that of the licences that Debian
carries.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path

import ringway.torch
import torch
import torch.distributed as dist
from ablation_tasks import TASKS
from torch.nn.parallel import DistributedDataParallel

BATCHED_BYTES = 512 << 10


@dataclass(frozen=True)
class Stage:
    """How gradients are exchanged."""

    name: str
    backend: str | None = None
    fabric: str = "none"
    wire: str = "plain"
    bucket_bytes: int | None = None
    """Of the pipeline; DistributedDataParallel where there is none."""
    chooses_buckets: bool = False


@dataclass(frozen=True)
class Run:
    """What training came to."""

    stage: str
    seed: int
    step_seconds: float
    sent_bytes: float
    processor_seconds: float
    loss: float
    accuracy: float


def stages(args):
    now = Stage("ringway", backend="ringway")
    found = [Stage("alone"), Stage("gloo", backend="gloo"), now]
    now = replace(now, name="+ buckets", chooses_buckets=True)
    found.append(now)
    if args.fabric:
        now = replace(now, name="+ topology", fabric=args.fabric)
        found.append(now)
    now = replace(now, name="+ pipeline", bucket_bytes=1)
    found.append(now)
    found += [replace(now, name=f"+ {codec}", wire=codec) for codec in args.codecs]
    return [*found, replace(now, name="+ batching", wire=args.batched, bucket_bytes=BATCHED_BYTES)]


def sent():
    """Bytes that the interfaces of this network namespace have sent, but loopback's."""
    rows = (line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    return sum(int(counters.split()[8]) for name, counters in rows if name.strip() != "lo")


def counters():
    return time.perf_counter(), sent(), time.process_time()


def train(stage, seed, args):
    """Trains as `stage` says; the process group of all ranks compares."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    task = TASKS[args.task](seed)
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=task.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    os.environ["RINGWAY_FABRIC"] = stage.fabric
    group = None if stage.backend is None else dist.new_group(backend=stage.backend)
    assert not isinstance(group, int)  # Every rank is in it.
    model, pipeline = task.model, None
    if stage.bucket_bytes is not None:
        pipeline = ringway.torch.Pipeline(
            model, optimizer, group=group, bucket_bytes=stage.bucket_bytes, wire=stage.wire
        )
    elif group is not None:
        sizes = bucket_sizes(task, group, args.batch) if stage.chooses_buckets else None
        model = DistributedDataParallel(model, process_group=group, bucket_cap_mb_list=sizes)
    task = replace(task, model=model)
    chance = torch.Generator().manual_seed(seed)
    warm = min(5, args.steps // 2)
    began = counters()
    for step in range(args.steps):
        if step == warm:
            if pipeline is not None:
                pipeline.synchronize()
            dist.barrier()
            began = counters()
        at = torch.randint(task.examples, (world, args.batch), generator=chance)[rank]
        task.loss(*task.take(at)).backward()
        if pipeline is not None:
            pipeline.step()
        else:
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
    if pipeline is not None:
        pipeline.synchronize()
    took, wire, processor = (b - a for a, b in zip(began, counters(), strict=True))
    slowest, all_processors = torch.tensor([took]), torch.tensor([processor])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    dist.all_reduce(all_processors)
    if group is not None:
        check_same(task.model)
    loss, accuracy = task.evaluate()
    dist.barrier()
    if group is not None:
        del model, task, pipeline
        gc.collect()
        dist.destroy_process_group(group)
    count = args.steps - warm
    each = (slowest.item() / count, wire / count, all_processors.item() / count)
    return Run(stage.name, seed, *each, loss, accuracy)


def bucket_sizes(task, group, batch):
    """MiB of DistributedDataParallel's buckets."""
    at = torch.arange(batch) % task.examples
    sizes = ringway.torch.bucket_sizes(task.model, lambda: task.loss(*task.take(at)).backward(), group=group)
    if dist.get_rank() == 0:
        print(f"buckets of {sizes[0]:g} MiB and then {sizes[1]:g} MiB", flush=True)
    return sizes


def check_same(model):
    """All ranks must have come to the same parameters, bit by bit."""
    for name, parameter in model.named_parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        if not torch.equal(first, parameter):
            raise SystemExit(f"rank {dist.get_rank()}: {name} is not what it is on rank 0 after training")


def summary(runs):
    """A row for each stage: medians over seeds of times, means of loss and accuracy."""
    by_seed = {(run.stage, run.seed): run for run in runs}
    rows = []
    for stage in dict.fromkeys(run.stage for run in runs):
        of = [run for run in runs if run.stage == stage]
        alone, gloo = ([by_seed[other, run.seed].step_seconds for run in of] for other in ("alone", "gloo"))
        times = [run.step_seconds for run in of]
        row = {
            "stage": stage,
            "step_seconds": statistics.median(times),
            "speed_up": statistics.median(b / a for a, b in zip(times, gloo, strict=True)),
            "communication_share": statistics.median(1 - b / a for a, b in zip(times, alone, strict=True)),
            "sent_bytes": statistics.median(run.sent_bytes for run in of),
            "processor_seconds": statistics.median(run.processor_seconds for run in of),
        }
        if stage != "alone":
            row["loss"] = statistics.fmean(run.loss for run in of)
            row["accuracy"] = statistics.fmean(run.accuracy for run in of)
        rows.append(row)
    return rows


HEADINGS = ("stage", "step ms", "speed-up", "comm %", "sent MB", "CPU ms", "loss", "held-out %")


def cells(row):
    trained = (f"{row['loss']:.4f}", f"{100 * row['accuracy']:.2f}") if "loss" in row else ("-", "-")
    times = (f"{1e3 * row['step_seconds']:.1f}", f"{row['speed_up']:.2f}", f"{100 * row['communication_share']:.1f}")
    sums = (f"{row['sent_bytes'] / 1e6:.3f}", f"{1e3 * row['processor_seconds']:.1f}")
    return (row["stage"], *times, *sums, *trained)


def table(rows):
    lines = [HEADINGS, *(cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(zip(*pair)))  # noqa: B905
        for pair in ((line, widths) for line in lines)
    )


def page(heading, rows):
    """A page that needs nothing from elsewhere: bars of the steps, what is communication in red, and the table."""
    longest = max(row["step_seconds"] for row in rows)
    bars = []
    for number, row in enumerate(rows):
        y, wide = 26 * number, 560 * row["step_seconds"] / longest
        waits = wide * max(0.0, row["communication_share"])
        bars.append(
            f'<text x="0" y="{y + 15}">{escape(row["stage"])}</text>'
            f'<rect x="120" y="{y}" width="{wide - waits:.1f}" height="20" fill="#4c78a8"/>'
            f'<rect x="{120 + wide - waits:.1f}" y="{y}" width="{waits:.1f}" height="20" fill="#e45756"/>'
            f'<text x="{128 + wide:.1f}" y="{y + 15}">{1e3 * row["step_seconds"]:.1f} ms</text>'
        )
    lines = [f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in HEADINGS)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells(row))}</tr>" for row in rows]
    style = "body{font:14px sans-serif;margin:2em}td,th{padding:3px 12px;text-align:right}"
    picture = f'<svg width="800" height="{26 * len(rows)}" font-size="13">{"".join(bars)}</svg>'
    return (
        f"<!doctype html><meta charset=utf-8><title>Ablation</title><style>{style}</style><h1>{escape(heading)}</h1>"
        f"<p>A step; red is what communication adds.</p>{picture}<table>{''.join(lines)}</table>"
    )


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=32, help="examples per rank and step")
    parser.add_argument("--seeds", default="0,1,2", help="one after the other, all stages of each in turns")
    parser.add_argument("--codecs", default="bf16,int8,topk:0.01")
    parser.add_argument("--batched", default="int8", metavar="CODEC", help="of the last stage; plain for none")
    parser.add_argument("--fabric", metavar="FILE", help="the stage `+ topology`, and all that follow, know of it")
    parser.add_argument("--json", metavar="FILE", type=Path, help="all runs and the table, by rank 0")
    parser.add_argument("--html", metavar="FILE", type=Path, help="the table and a picture, by rank 0")
    args = parser.parse_args()
    if args.steps < 2 or args.batch < 1:
        parser.error("expected 2 steps or more, of a batch of 1 or more")
    args.seeds = [int(seed) for seed in args.seeds.split(",")]
    args.codecs = [codec for codec in args.codecs.split(",") if codec]
    return args


def main():
    args = arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # Compares ranks, and has no part in what is measured.
    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0
    runs = []
    for seed in args.seeds:
        for stage in stages(args):
            run = train(stage, seed, args)
            runs.append(run)
            if is_first:
                name, step = f"seed {seed}  {run.stage:<12}", f"step {1e3 * run.step_seconds:7.1f} ms"
                print(f"{name}  {step}  held-out {run.accuracy:.2%}", flush=True)
    if is_first:
        rows = summary(runs)
        parameters = sum(parameter.numel() for parameter in TASKS[args.task](0).model.parameters())
        heading = (
            f"{args.task}, {parameters:,} parameters, {dist.get_world_size()} ranks, {args.steps} steps of "
            f"{args.batch} examples a rank, seeds {','.join(map(str, args.seeds))}"
        )
        print(f"\n{heading}\n\n{table(rows)}", flush=True)
        if args.json:
            record = {"heading": heading, "torch": torch.__version__, "parameters": parameters, "steps": args.steps}
            record |= {"ranks": dist.get_world_size(), "batch": args.batch, "task": args.task}
            record |= {"stages": rows, "runs": [asdict(run) for run in runs]}
            args.json.write_text(json.dumps(record, indent=1))
        if args.html:
            args.html.write_text(page(heading, rows))
    dist.barrier()
    dist.destroy_process_group()
    # DDP in torch 2.15 aborts now and then while the interpreter shuts down, whatever the backend: leave before that.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
