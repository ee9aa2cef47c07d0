"""Joining, leaving and joining again, at the same store; groups of the same names; beside another backend."""

import ringway
import torch
import torch.distributed as dist
from torch_rank import join, leave, run, world


def total(group=None):
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    return x.item()


def again_and_again():
    for _ in range(3):
        me, n = join()
        assert total() == n
        assert total(dist.new_group()) == n
        alone = [dist.new_group([rank]) for rank in range(n)][me]
        assert total(alone) == 1
        dist.destroy_process_group()


def at_one_store():
    me, n = join("gloo")
    store = dist.PrefixStore("lasting", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    for _ in range(3):
        dist.init_process_group("ringway", store=store, rank=me, world_size=n)
        assert total() == n
        dist.destroy_process_group()


def beside_another_backend():
    _, n = join("gloo")
    first, second = (dist.new_group(backend="ringway") for _ in range(2))
    assert total(first) == n
    dist.destroy_process_group(first)
    assert total(second) == n
    assert total() == n
    dist.destroy_process_group()
    join("cpu:ringway")
    assert total() == n
    dist.destroy_process_group()


def after_leaving():
    join()
    group = world()
    dist.destroy_process_group()
    try:
        group.allreduce([torch.ones(1)]).wait()
    except ringway.Error as error:
        assert "left the job" in str(error)
    else:
        raise AssertionError("a call after leaving did not fail")


run(again_and_again, at_one_store, beside_another_backend, after_leaving)
leave()
