"""Ranks call different things; each error names both. The argument says what differs."""

import sys
import time

import ringway
import torch
import torch.distributed as dist
from torch_rank import join, leave

me, n = join()
x = torch.ones(10 + me)
same = torch.ones(10)
calls, texts = {
    "shape": (lambda: dist.all_reduce(x), ["of 10 f32 elements", "of 11 f32 elements"]),
    "type": (lambda: dist.all_reduce(same if me else same.double()), ["of 10 f32", "of 10 f64"]),
    "operation": (
        lambda: dist.all_reduce(same, dist.ReduceOp.MAX if me else dist.ReduceOp.SUM),
        [", max", ", sum"],
    ),
    "call": (lambda: dist.broadcast(same, 0) if me else dist.all_reduce(same), ["broadcast", "all_reduce"]),
}[sys.argv[1]]
began = time.monotonic()
try:
    calls()
except ringway.FailedError as error:
    assert all(text in str(error) for text in texts), error
    assert error.cause == "mismatch"
    assert time.monotonic() - began < 5
    print("named both", flush=True)
else:
    raise AssertionError("different calls came through")
leave()
