"""What is different with tensors on an accelerator: streams, and calls that begin later."""

import gc
import threading
import time
from datetime import timedelta

import pytest
import ringway
import ringway.torch
import torch
import torch.distributed as dist
from torch_rank import join, leave, run

me, n = join(seconds=20)
SUM = n * (n + 1) // 2


def hold(seconds):
    """Has the device busy."""
    if torch.get_default_device().type == "cuda":
        torch.cuda._sleep(int(seconds * 1.5e9))
    else:
        torch.ops.simulated.hold(seconds)


def kernels_before_a_call_and_after():
    for asynchronous in (False, True):
        x = torch.full((1000,), float(me))
        hold(0.1)
        x += 1
        work = dist.all_reduce(x, async_op=asynchronous)
        if work is not None:
            work.wait()
        y = x * 2
        assert (y == 2 * SUM).all()


def a_program_that_goes_on():
    x = torch.full((1000,), me + 1.0)
    hold(0.5)
    began = time.perf_counter()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    assert time.perf_counter() - began < 0.4
    assert not work.is_completed()
    work.wait()
    assert (x == SUM).all()
    assert work.is_completed()


def a_stream_of_the_program_s():
    x, stream = torch.zeros(1000), torch.Stream()
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        hold(0.1)
        x += me + 1
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        future = work.get_future()
    assert (future.wait()[0] == SUM).all()


def in_the_order_of_the_program():
    on_device = [torch.full((size,), me + 1.0) for size in (1, 1000, 100_000)]
    works = []
    for x in on_device:
        hold(0.02)
        works.append(dist.all_reduce(x, async_op=True))
        on_host = torch.full((10,), me + 1.0, device="cpu")
        dist.all_reduce(on_host)
        assert (on_host == SUM).all()
    for work, x in reversed(list(zip(works, on_device, strict=True))):
        work.wait()
        assert (x == SUM).all()


def in_an_inference_mode():
    with torch.inference_mode():
        x = torch.full((1000,), me + 1.0)
        dist.all_reduce(x)
        outputs = [torch.zeros(10) for _ in range(n)]
        dist.all_gather(outputs, torch.full((10,), float(me)))
    assert (x == SUM).all()
    for rank, output in enumerate(outputs):
        assert (output == rank).all()


def nobody_keeps_them():
    for _ in range(10):
        dist.all_reduce(torch.ones(50_000), async_op=True)
    dist.barrier()


def threads_end_with_their_pipelines():
    def threads():
        return sum(thread.name == "ringway-staging" for thread in threading.enumerate())

    before = threads()
    model = torch.nn.Linear(8, 8)
    pipeline = ringway.torch.Pipeline(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(2, 8)).sum().backward()
    pipeline.step()
    pipeline.synchronize()
    assert threads() == before + 1
    del model, pipeline
    until = time.monotonic() + 10
    while threads() > before:
        assert time.monotonic() < until
        gc.collect()
        time.sleep(0.01)


def a_kernel_that_hangs():
    group = dist.new_group(timeout=timedelta(seconds=1))
    assert isinstance(group, dist.ProcessGroup)
    x = torch.ones(4)
    dist.all_reduce(x, group=group)
    hold(4)
    began = time.perf_counter()
    with pytest.raises(ringway.Error, match="does a kernel hang"):
        dist.all_reduce(x, group=group)
    assert time.perf_counter() - began < 3
    torch.accelerator.synchronize()


run(
    kernels_before_a_call_and_after,
    a_program_that_goes_on,
    a_stream_of_the_program_s,
    in_the_order_of_the_program,
    in_an_inference_mode,
    nobody_keeps_them,
    threads_end_with_their_pipelines,
    a_kernel_that_hangs,
)
leave()
