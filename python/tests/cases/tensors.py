"""Every public collective of torch.distributed, against what it promises."""

import pytest
import ringway
import ringway.torch
import torch
import torch.distributed as dist
from torch_rank import join, leave, run, world

me, n = join()
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OP = dist.ReduceOp


def data(rank, *shape, dtype=torch.float32):
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + rank * 3) % 4 + 1).to(dtype).reshape(shape)


def all_data(*shape, dtype=torch.float32):
    return torch.stack([data(rank, *shape, dtype=dtype) for rank in range(n)])


def equal(found, expected):
    torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=0, atol=0)


def fold(stack, combine):
    result = stack[0]
    for each in stack[1:]:
        result = combine(result, each)
    return result


def reductions():
    numbers = {OP.SUM: torch.add, OP.PRODUCT: torch.mul, OP.MIN: torch.minimum, OP.MAX: torch.maximum}
    bits = {OP.BAND: torch.bitwise_and, OP.BOR: torch.bitwise_or, OP.BXOR: torch.bitwise_xor}
    for dtype in INTEGERS + FLOATS:
        for op, combine in {**numbers, **({} if dtype in FLOATS else bits)}.items():
            for count in (1, 4097):
                x = data(me, count, dtype=dtype)
                dist.all_reduce(x, op)
                equal(x, fold(all_data(count, dtype=dtype), combine))
    for dtype in FLOATS:
        x = data(me, 100, dtype=dtype) * n
        dist.all_reduce(x, OP.AVG)
        equal(x, fold(all_data(100, dtype=dtype), torch.add))
    for op, expected in {
        OP.SUM: [True, True, False],
        OP.MIN: [False, True, False],
        OP.BXOR: [True, n % 2 == 1, False],
    }.items():
        truth = torch.tensor([me == 0, True, False])
        dist.all_reduce(truth, op)
        equal(truth, torch.tensor(expected))
    z = torch.view_as_complex(data(me, 30, 2))
    dist.all_reduce(z)
    equal(torch.view_as_real(z), all_data(30, 2).sum(0))


def rooted():
    for root in range(n):
        x = data(me, 3, 5)
        dist.reduce(x, root, OP.MAX)
        equal(x, all_data(3, 5).amax(0) if me == root else data(me, 3, 5))
        for dtype in [*INTEGERS, *FLOATS, torch.bool, torch.complex64, torch.float8_e4m3fn]:
            x = data(me, 17).to(dtype)
            dist.broadcast(x, root)
            equal(x.view(torch.uint8), data(root, 17).to(dtype).view(torch.uint8))
        outputs = [torch.zeros(4, 2) for _ in range(n)] if me == root else None
        dist.gather(data(me, 4, 2), outputs, dst=root)
        if outputs is not None:
            equal(torch.stack(outputs), all_data(4, 2))
        part = torch.zeros(4, 2)
        dist.scatter(part, outputs, src=root)
        equal(part, data(me, 4, 2))


def gathering():
    outputs = [torch.zeros(5, dtype=torch.int64) for _ in range(n)]
    dist.all_gather(outputs, data(me, 5, dtype=torch.int64))
    equal(torch.stack(outputs), all_data(5, dtype=torch.int64))
    # Parts of one tensor are written in place.
    whole = torch.zeros(n, 5)
    dist.all_gather(list(whole.unbind()), data(me, 5))
    equal(whole, all_data(5))
    # Sizes may differ.
    outputs = [torch.zeros(rank + 1) for rank in range(n)]
    dist.all_gather(outputs, data(me, me + 1))
    for rank, output in enumerate(outputs):
        equal(output, data(rank, rank + 1))
    for shape in [(n * 3, 4), (n, 3, 4)]:
        out = torch.zeros(shape)
        dist.all_gather_into_tensor(out, data(me, 3, 4))
        equal(out.reshape(n, 3, 4), all_data(3, 4))


def scattering():
    inputs = [data(me + rank, 6) for rank in range(n)]
    expected = sum(data(rank + me, 6) for rank in range(n))
    out = torch.zeros(6)
    dist.reduce_scatter(out, inputs)
    equal(out, expected)
    dist.reduce_scatter_tensor(out, torch.cat(inputs))
    equal(out, expected)
    dist.reduce_scatter_tensor(out, torch.cat(inputs), OP.AVG)
    torch.testing.assert_close(out, expected / n)
    sizes = [rank + 1 for rank in range(n)]
    out = torch.zeros(sizes[me])
    dist.reduce_scatter(out, [data(me, size) for size in sizes])
    equal(out, all_data(sizes[me]).sum(0))


def all_to_all():
    inputs = [data(me * n + rank, 4) for rank in range(n)]
    expected = torch.stack([data(rank * n + me, 4) for rank in range(n)])
    out = torch.zeros(n, 4)
    dist.all_to_all_single(out, torch.stack(inputs))
    equal(out, expected)
    outputs = [torch.zeros(4) for _ in range(n)]
    dist.all_to_all(outputs, inputs)
    equal(torch.stack(outputs), expected)
    splits = [me + rank for rank in range(n)]
    out = torch.zeros(sum(splits), 2)
    dist.all_to_all_single(out, torch.full((sum(splits), 2), float(me)), splits, splits)
    equal(out[:, 1], torch.arange(n).repeat_interleave(torch.tensor(splits)).float())
    outputs = [torch.zeros(split) for split in splits]
    dist.all_to_all(outputs, [data(me, split) for split in splits])
    for rank, output in enumerate(outputs):
        equal(output, data(rank, splits[rank]))


def memory_in_other_orders():
    x = data(me, 6, 5).t()
    dist.all_reduce(x)
    equal(x, all_data(6, 5).sum(0).t())
    x = data(me, 2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    dist.all_reduce(x)
    equal(x, all_data(2, 3, 4, 5).sum(0))
    wide = torch.zeros(4, 10)
    wide[:, 3] = data(me, 4)
    dist.broadcast(wide[:, 3], 0)
    equal(wide[:, 3], data(0, 4))
    assert wide.sum() == data(0, 4).sum()
    out = torch.zeros(6, n).t()
    work = dist.all_gather_into_tensor(out, data(me, 12)[::2], async_op=True)
    assert work is not None
    work.wait()
    equal(out, all_data(12)[:, ::2])


def nothing():
    for x in (torch.empty(0), torch.empty(3, 0)):
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather([torch.empty(0) for _ in range(n)], x.reshape(-1))
    out = torch.empty(0)
    dist.reduce_scatter_tensor(out, torch.empty(0))
    dist.all_gather_into_tensor(out, torch.empty(0))
    dist.barrier()


def messages():
    following, before = (me + 1) % n, (me - 1) % n
    for count in (1, 100_000):
        x, got = data(me, count), torch.zeros(count)
        work = dist.isend(x, following, tag=3)
        dist.recv(got, before, tag=3)
        assert work is not None
        work.wait()
        equal(got, data(before, count))
    got = torch.zeros(7)
    ops = [dist.P2POp(dist.isend, data(me, 7), following), dist.P2POp(dist.irecv, got, before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    equal(got, data(before, 7))
    with pytest.raises(ringway.ArgumentError, match="receives from one rank"):
        dist.recv(got)


def several_at_once():
    xs = [data(me, 50 * (k + 1)) for k in range(6)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    dist.barrier()
    for work, x in reversed(list(zip(works, xs, strict=True))):
        assert work.wait()
        assert work.is_completed()
        assert work.exception() is None
        equal(x, all_data(len(x)).sum(0))
    work = dist.all_gather_into_tensor(torch.zeros(n * 4), data(me, 4), async_op=True)
    assert work is not None
    future = work.get_future()
    equal(future.wait()[0].reshape(n, 4), all_data(4))
    heard = []
    future = (
        dist.all_reduce(torch.ones(1000), async_op=True)
        .get_future()
        .then(lambda f: heard.append(f.value()[0][0].item()))
    )
    future.wait()
    assert heard == [n]
    # Nobody waits, nobody keeps the tensor.
    for _ in range(20):
        dist.all_reduce(torch.ones(50_000), async_op=True)
    # One rank waits at once, the others later.
    x = torch.ones(300_000)
    work = dist.all_reduce(x, async_op=me != 0)
    if work is not None:
        work.wait()
    assert (x == n).all()


def coalesced():
    xs = [data(me, 5), data(me, 800)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    for x in xs:
        equal(x, all_data(len(x)).sum(0))
    several_types_and_strides()
    outs = [torch.zeros(n * 5), torch.zeros(n * 800)]
    with dist._coalescing_manager():
        for out, x in zip(outs, (data(me, 5), data(me, 800)), strict=True):
            dist.all_gather_into_tensor(out, x)
    for out in outs:
        equal(out.reshape(n, -1), all_data(out.numel() // n))
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.all_to_all_single(torch.zeros(n), torch.ones(n))
        dist.barrier()
    manager.wait()


def several_types_and_strides():
    """As few operations, on tensors that lie apart: some empty, some not contiguous, of two types."""
    xs = [data(me, 40_000), torch.zeros(0), data(me, 12).reshape(3, 4).T, torch.full((9,), me), data(me, 7)]
    wants = [all_data(40_000).sum(0), torch.zeros(0), all_data(12).sum(0).reshape(3, 4).T]
    wants += [torch.full((9,), n * (n - 1) // 2), all_data(7).sum(0)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    for x, want in zip(xs, wants, strict=True):
        equal(x, want)


def objects():
    found: list[object] = [None] * n
    dist.all_gather_object(found, {"rank": me, "text": "x" * me})
    assert found == [{"rank": rank, "text": "x" * rank} for rank in range(n)]
    box: list[object] = [("from", 1)] if me == n - 1 else [None]
    dist.broadcast_object_list(box, src=n - 1)
    assert box == [("from", 1)]
    mine = [None]
    dist.scatter_object_list(mine, list(range(n)) if me == 0 else None, src=0)
    assert mine == [me]


def groups():
    pairs = [dist.new_group([0, rank]) for rank in range(1, n)]
    for rank, pair in enumerate(pairs, 1):
        if me in (0, rank):
            assert isinstance(pair, dist.ProcessGroup)
            x = torch.tensor([me])
            dist.all_reduce(x, group=pair)
            assert x.item() == rank
    everyone = dist.new_group()
    assert isinstance(everyone, dist.ProcessGroup)
    dist.barrier(everyone)
    mine, _ = dist.new_subgroups(1)
    x = torch.ones(1)
    dist.all_reduce(x, group=mine)
    assert x.item() == 1
    dist.destroy_process_group(everyone)
    local = dist.new_group([me], use_local_synchronization=True)
    assert isinstance(local, dist.ProcessGroup)
    dist.barrier(local)


def in_the_arena():
    x = ringway.torch.empty(30, 40)
    assert x.shape == (30, 40)
    x.copy_(data(me, 30, 40))
    dist.all_reduce(x)
    equal(x, all_data(30, 40).sum(0))
    assert ringway.torch.empty(0, 3).shape == (0, 3)
    assert ringway.torch.empty(3, dtype=torch.bfloat16).dtype == torch.bfloat16


def wrong_arguments():
    sparse = torch.eye(3, device="cpu").to_sparse()
    for text, call in {
        "dense tensors": lambda: dist.all_reduce(sparse),
        "PREMUL_SUM": lambda: dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(2.0)),
        "float8": lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)),
        "expected the same": lambda: dist.all_gather_into_tensor(torch.zeros(n * 2), torch.ones(2).double()),
        "do not add up": lambda: dist.all_to_all_single(torch.zeros(n), torch.zeros(n), [5] * n, [1] * n),
        "with a tag": lambda: dist.send(torch.ones(1), (me + 1) % n, tag=-1),
        "outputs": lambda: world().allgather([[torch.ones(1)] * (n + 1)], [torch.ones(1)]),
    }.items():
        with pytest.raises((ringway.ArgumentError, ValueError), match=text if text != "with a tag" else "tag"):
            work = call()
            # Calls on an accelerator are looked at when they are made, which is later.
            if work is not None:
                work.wait()
    dist.barrier()


def what_it_is():
    assert dist.get_backend() == "ringway"
    backend = world()._get_backend(torch.device("cpu"))
    assert backend.name() == "ringway"
    assert backend.options.backend == "ringway"


run(
    what_it_is,
    reductions,
    rooted,
    gathering,
    scattering,
    all_to_all,
    memory_in_other_orders,
    nothing,
    messages,
    several_at_once,
    coalesced,
    objects,
    groups,
    in_the_arena,
    wrong_arguments,
)
leave()
