"""Children that are forked: they may load data, they cannot communicate, and their end is not the rank's."""

import os
import traceback

import ringway
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch_rank import join, leave, run

me, n = join()


def data_loaders():
    loader = DataLoader(TensorDataset(torch.arange(32.0)), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        seen = torch.zeros(1)
        for (x,) in loader:
            seen += x.sum()
            dist.all_reduce(x)
        assert seen.item() == 31 * 32 / 2
    dist.barrier()


def in_a_child(body):
    """The exit status of a forked child that runs `body` and then ends as programs do, handlers and all."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            if status == 0:
                ringway._leave_all()  # As at the interpreter's end.
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def a_call_in_a_child():
    def call():
        try:
            dist.all_reduce(torch.ones(1))
        except ringway.Error as error:
            assert "forked" in str(error), error
        else:
            raise AssertionError("a forked child communicated")

    assert in_a_child(call) == 0
    dist.barrier()


def everything_dropped_in_a_child():
    work = dist.all_reduce(ringway.torch.empty(100), async_op=True)

    def drop():
        nonlocal work
        work = None
        dist.destroy_process_group()

    assert in_a_child(drop) == 0
    work.wait()
    dist.barrier()


run(data_loaders, a_call_in_a_child, everything_dropped_in_a_child)
x = torch.ones(1)
dist.all_reduce(x)
assert x.item() == n
leave()
