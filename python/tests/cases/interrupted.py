"""Rank 0 waits, until Ctrl-C; what it waited for then comes about. `numpy` or `torch`, `blocking` or `wait`."""

import signal
import sys
import time
from typing import Any

# Whoever runs the tests in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

what, how = sys.argv[1:]
x: Any  # An array or a tensor.
if what == "numpy":
    import numpy as np
    import ringway

    comm = ringway.init()
    me, n = comm.rank, comm.size
    x = np.ones(1000, np.float32)

    def start():
        return comm.start.all_reduce(x)

    def block():
        comm.all_reduce(x)

    barrier = comm.barrier
else:
    import torch
    import torch.distributed as dist
    from torch_rank import join

    me, n = join()
    x = torch.ones(1000)

    def start():
        return dist.all_reduce(x, async_op=True)

    def block():
        dist.all_reduce(x)

    barrier = dist.barrier

barrier()
if me == 0:
    work = start() if how == "wait" else None
    print("waiting", flush=True)
    try:
        block() if work is None else work.wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    else:
        raise AssertionError("the wait was not interrupted")
else:
    while input() != "go":
        pass
    block()
# The operation was not given up with the wait: it ends, at the latest when it is waited for again.
barrier()
if me == 0 and work is not None:
    work.wait()
end = time.monotonic() + 5
while not (x == n).all():
    assert time.monotonic() < end, x
    time.sleep(0.001)
print("the sum is there", flush=True)
sys.stdout.flush()
