"""The profiler, under Pipeline and under DistributedDataParallel; the last rank is slow."""

import json
import logging
import sys
import tempfile
import time
from pathlib import Path

import pytest
import ringway
import ringway.profile
import ringway.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_rank import join, leave, run

me, n = join()
DELAY = 0.05
lines: list[str] = []


class Lines(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())


logging.getLogger("ringway.profile").addHandler(Lines())
logging.getLogger("ringway.profile").setLevel(logging.INFO)


def train(steps, pipelined, **options):
    net = nn.Sequential(*(nn.Linear(300, 300) for _ in range(6)))
    model = net if pipelined else DistributedDataParallel(net, bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = ringway.torch.Pipeline(net, optimizer).step if pipelined else optimizer.step
    profiler = ringway.profile.Profiler(model, optimizer, **options)
    for _ in range(steps):
        loss = model(torch.ones(8, 300)).sum()
        if me == n - 1:
            time.sleep(DELAY)
        loss.backward()
        step()
        optimizer.zero_grad()
        profiler.record_step()
    profiler.close()
    return profiler


def steps(pipelined):
    lines.clear()
    profiler = train(8, pipelined, log_every=4)
    stats = profiler.get_stats()
    assert stats.steps == 8
    parts = stats.forward + stats.backward + stats.update + stats.exposed + stats.other
    assert abs(parts - stats.step) < 0.02 * stats.step
    assert min(stats.forward, stats.backward, stats.update, stats.hidden) > 0
    # The others wait for the slow one, which computes for longer.
    assert stats.slowest_rank == n - 1
    assert len(stats.waits) == n
    assert stats.slowest_steps[n - 1] == max(stats.slowest_steps) > 2 and sum(stats.slowest_steps) <= 4
    if me < n - 1:
        assert stats.exposed > 0.5 * DELAY, stats
    else:
        assert stats.backward > 0.9 * DELAY, stats
    reduced = [each for each in stats.collectives if each.collective == "all_reduce"]
    assert sum(each.calls for each in reduced) >= 8
    for each in reduced:
        assert 0 < each.latency.p50 <= each.latency.p90 <= each.latency.p99 < 10
        assert each.bandwidth.p50 >= each.bandwidth.p90 >= each.bandwidth.p99 > 0
    if me == 0:
        assert len(lines) == 2
        assert f"step 8: {stats.step * 1e3:.2f} ms (forward" in lines[1]
        assert f"rank {n - 1} is waited for" in lines[1]


def under_the_pipeline():
    steps(pipelined=True)


def under_ddp():
    steps(pipelined=False)


def accumulation():
    """All passes of a step count."""
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    profiler = ringway.profile.Profiler(net, optimizer, log_every=0)

    def slowly(x):
        time.sleep(0.02)
        return x

    for _ in range(3):
        y = net(torch.ones(2, 4))
        y.register_hook(slowly)
        y.sum().backward()
    optimizer.step()
    profiler.record_step()
    profiler.close()
    stats = profiler.get_stats()
    assert stats.backward >= 0.06, stats
    assert stats.other < 0.02, stats


def communication_across_steps():
    """What begins in a step and ends in the next is in both, in each what is in it."""
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    profiler = ringway.profile.Profiler(net, optimizer, log_every=0)
    dist.barrier()
    profiler.record_step()
    x = torch.ones(10)
    if me == 0:
        work = dist.all_reduce(x, async_op=True)
    time.sleep(0.05)
    profiler.record_step()
    time.sleep(0.05)
    if me > 0:
        work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()
    profiler.record_step()
    profiler.close()
    if me == 0:
        first, second = list(profiler._steps)[1:]
        assert first.hidden >= 0.04, first
        assert second.hidden >= 0.04, second


def codecs():
    """What codecs take is told apart."""
    net = nn.Linear(300, 300)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    pipeline = ringway.torch.Pipeline(net, optimizer, wire="int8")
    profiler = ringway.profile.Profiler(net, optimizer, log_every=4)
    for _ in range(4):
        net(torch.ones(8, 300)).sum().backward()
        pipeline.step()
        pipeline.synchronize()
        profiler.record_step()
    profiler.close()
    stats = profiler.get_stats()
    assert 0 < stats.encode < stats.step, stats
    assert me != 0 or "of that codecs" in lines[-1]


def files():
    profiler = train(5, True, log_every=0, trace_steps=2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        profiler.chrome_trace(folder / "trace.json")
        profiler.report(folder / "profile.html")
        profiler.picture(folder / "steps.svg")
        trace = json.loads((folder / "trace.json").read_text())["traceEvents"]
        page, picture = ((folder / it).read_text() for it in ("profile.html", "steps.svg"))
    complete = [event for event in trace if event["ph"] == "X"]
    assert {event["cat"] for event in complete} == {"forward", "backward", "update", "wait", "communication"}
    assert sum(event["cat"] == "forward" for event in complete) == 2
    assert all(event["pid"] == me and event["dur"] >= 0 for event in complete)
    assert abs(complete[0]["ts"] / 1e6 - time.time()) < 60
    # What is in one lane does not overlap.
    lanes: dict[int, float] = {}
    for event in sorted((it for it in complete if it["cat"] == "communication"), key=lambda it: it["ts"]):
        assert event["ts"] >= lanes.get(event["tid"], 0.0) - 0.01
        lanes[event["tid"]] = event["ts"] + event["dur"]
    # Communication is under way while the program computes.
    backward = [event for event in complete if event["cat"] == "backward"]
    assert any(
        event["ts"] < computing["ts"] + computing["dur"] and computing["ts"] < event["ts"] + event["dur"]
        for event in complete
        if event["cat"] == "communication"
        for computing in backward
    )
    assert page.count("<svg") == 2
    assert "all_reduce" in page
    assert picture.startswith("<svg") and picture.endswith("</svg>\n")


def one_at_a_time():
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters())
    first = ringway.profile.Profiler(net, optimizer)
    with pytest.raises(ringway.ArgumentError, match="another profiler is recording"):
        ringway.profile.Profiler(net, optimizer)
    first.close()
    first.close()
    ringway.profile.Profiler(net, optimizer).close()
    net(torch.ones(2)).sum().backward()
    assert first.get_stats().steps == 0


def cost():
    """Prints what recording adds to a step, and by how much steps without it differ among themselves: `cost ROUNDS`."""
    net = nn.Sequential(*(nn.Linear(500, 500) for _ in range(20)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    pipeline = ringway.torch.Pipeline(net, optimizer)
    x = torch.ones(64, 500)

    def timed(steps, record):
        dist.barrier()
        began = time.process_time()
        for _ in range(steps):
            net(x).sum().backward()
            pipeline.step()
            record()
        pipeline.synchronize()
        return (time.process_time() - began) / steps

    without: list[float] = []
    again: list[float] = []
    recorded: list[float] = []
    timed(5, lambda: None)
    for turn in range(int(sys.argv[2])):
        for at in range(3):
            times = (without, again, recorded)[(turn + at) % 3]
            if times is recorded:
                profiler = ringway.profile.Profiler(net, optimizer)
                times.append(timed(20, profiler.record_step))
                profiler.close()
            else:
                times.append(timed(20, lambda: None))
    a, b, c = (sorted(times)[len(times) // 2] * 1e3 for times in (without, again, recorded))
    print(f"CPU time of a step: {a:.3f}, {b:.3f} ms, recorded {c:.3f} ms, {2 * c / (a + b) - 1:.2%} more", flush=True)


run(
    *(
        [cost]
        if "cost" in sys.argv
        else [under_the_pipeline, under_ddp, accumulation, communication_across_steps, codecs, files, one_at_a_time]
    )
)
leave()
