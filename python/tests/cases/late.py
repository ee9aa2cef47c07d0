"""Time limits: of the process group, and of one wait."""

import time
from datetime import timedelta

import ringway
import torch
import torch.distributed as dist
from torch_rank import join, leave

me, n = join(seconds=2)
x = torch.ones(10)
dist.all_reduce(x)
if me == 0:
    work = dist.all_reduce(x, async_op=True)
    began = time.monotonic()
    try:
        work.wait(timedelta(milliseconds=200))
    except ringway.Error as error:
        assert "has not ended within" in str(error), error
        assert 0.1 < time.monotonic() - began < 1
    else:
        raise AssertionError("the wait had no limit")
    try:
        work.wait()
    except ringway.FailedError as error:
        assert error.cause == "timeout", error.cause
        assert "rank 1" in str(error), error
        assert 1.5 < time.monotonic() - began < 3.5
        print("named", flush=True)
    else:
        raise AssertionError("the operation had no limit")
else:
    time.sleep(4)
leave()
