"""Every call of the communicator on NumPy arrays, against NumPy."""

import array
import time

import numpy as np
import pytest
import ringway

comm = ringway.init(timeout="30s")
me, n = comm.rank, comm.size

NUMBERS = [np.float16, np.float32, np.float64] + [
    np.dtype(f"{sign}int{bits}").type for sign in ("", "u") for bits in (8, 16, 32, 64)
]
OPS = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce,
    "xor": np.bitwise_xor.reduce,
}


def data(rank, count, dtype=np.float32):
    return ((np.arange(count) * 7 + rank * 3) % 4 + 1).astype(dtype)


def all_data(count, dtype=np.float32):
    return np.stack([data(rank, count, dtype) for rank in range(n)])


def reductions():
    for dtype in NUMBERS:
        for op, reference in OPS.items():
            if op in ("and", "or", "xor") and np.issubdtype(dtype, np.floating):
                continue
            for count in (1, 13, 5000):
                x = data(me, count, dtype)
                comm.all_reduce(x, op=op)
                expected = reference(all_data(count, dtype)).astype(dtype)
                np.testing.assert_array_equal(x, expected, f"{op} of {count} {dtype}")
    x = data(me, 100, np.float64)
    comm.all_reduce(x, op="avg")
    np.testing.assert_allclose(x, all_data(100).mean(0))


def out_of_place():
    x, out = data(me, 100), np.zeros(100, np.float32)
    comm.all_reduce(x, out)
    np.testing.assert_array_equal(out, all_data(100).sum(0))
    np.testing.assert_array_equal(x, data(me, 100))


def truth_and_complex():
    for op, reference in {"sum": np.any, "max": np.any, "prod": np.all, "min": np.all}.items():
        x = np.array([me == 0, True, False])
        comm.all_reduce(x, op=op)
        expected = reference([[rank == 0, True, False] for rank in range(n)], axis=0)
        np.testing.assert_array_equal(x, expected, op)
    z = data(me, 50).astype(np.complex64) * (1 + 2j)
    comm.all_reduce(z)
    np.testing.assert_array_equal(z, (all_data(50) * np.complex64(1 + 2j)).sum(0))
    with pytest.raises(ringway.ArgumentError, match="prod is not defined for complex64"):
        comm.all_reduce(z, op="prod")


def halves_of_16_bits():
    x = np.full(9, 0x3FC0, np.uint16)  # 1.5
    comm.all_reduce(x, dtype="bf16")
    if n == 2:
        assert (x == 0x4040).all()  # 3.0


def movements():
    for count in (1, 6, 3000):
        out = np.zeros((n, count), np.float32)
        comm.all_gather(data(me, count), out)
        np.testing.assert_array_equal(out, all_data(count))

        big = np.concatenate([data(me + rank, count) for rank in range(n)])
        out = np.zeros(count, np.float32)
        comm.reduce_scatter(big, out)
        np.testing.assert_array_equal(out, sum(data(rank + me, count) for rank in range(n)))

        out = np.zeros(n * count, np.float32)
        comm.all_to_all(big, out)
        np.testing.assert_array_equal(out, np.concatenate([data(rank + me, count) for rank in range(n)]))

        for root in range(n):
            x = data(me, count)
            comm.broadcast(x, root)
            np.testing.assert_array_equal(x, data(root, count))

            x = data(me, count)
            comm.reduce(x, root=root, op="max")
            expected = all_data(count).max(0) if me == root else data(me, count)
            np.testing.assert_array_equal(x, expected)

            out = np.zeros((n, count), np.float32) if me == root else None
            comm.gather(data(me, count), out, root=root)
            if me == root:
                np.testing.assert_array_equal(out, all_data(count))

            part = np.zeros(count, np.float32)
            comm.scatter(out, part, root=root)
            np.testing.assert_array_equal(part, data(me, count))
    comm.barrier()


def uneven_parts():
    counts = [rank * 3 % 5 for rank in range(n)]
    total = sum(counts)
    out = np.zeros(total, np.int32)
    comm.all_gather(data(me, counts[me], np.int32), out, counts=counts)
    np.testing.assert_array_equal(out, np.concatenate([data(r, counts[r], np.int32) for r in range(n)]))
    part = np.zeros(counts[me], np.int32)
    comm.reduce_scatter(data(me, total, np.int32), part, counts=counts)
    start = sum(counts[:me])
    np.testing.assert_array_equal(part, all_data(total, np.int32).sum(0)[start : start + counts[me]])
    send = [me + rank for rank in range(n)]
    out = np.zeros(sum(send), np.int32)
    comm.all_to_all(np.full(sum(send), me, np.int32), out, input_counts=send, output_counts=send)
    np.testing.assert_array_equal(out, np.repeat(np.arange(n), send))
    for root in range(n):
        out = np.zeros(total, np.int32) if me == root else None
        comm.gather(data(me, counts[me], np.int32), out, root=root, counts=counts)
        part = np.zeros(counts[me], np.int32)
        comm.scatter(out, part, root=root, counts=counts)
        np.testing.assert_array_equal(part, data(me, counts[me], np.int32))


def started():
    arrays = [data(me, 100 * (k + 1)) for k in range(8)]
    works = [comm.start.all_reduce(x, priority=k % 3) for k, x in enumerate(arrays)]
    comm.barrier()  # Overtakes them.
    for work, x in reversed(list(zip(works, arrays, strict=True))):
        assert work.wait(10)
        assert work.is_done()
        np.testing.assert_array_equal(x, all_data(len(x)).sum(0))
    # Nobody holds on to these: the operations do.
    comm.start.all_reduce(np.ones(200_000, np.float32))
    kept = np.ones(10, np.float32)
    comm.start.all_reduce(kept).wait()
    assert (kept == n).all()


def messages():
    if n == 1:
        return
    following, before = (me + 1) % n, (me - 1) % n
    for count in (3, 200_000):
        got = np.zeros(count, np.float32)
        work = comm.start.send(data(me, count), following, tag=5)
        comm.recv(got, before, tag=5)
        work.wait()
        np.testing.assert_array_equal(got, data(before, count))


def in_the_arena():
    buffer = comm.allocate(1000, "f64")
    x = np.asarray(buffer)
    assert len(buffer) == 1000
    assert x.dtype == np.float64
    assert x.shape == (1000,)
    assert buffer.is_shared == (n > 1)
    x[:] = data(me, 1000)
    comm.all_reduce(x)
    np.testing.assert_array_equal(x, all_data(1000, np.float64).sum(0))
    del buffer
    assert x[0] > 0  # The array keeps the memory.


def groups():
    group = comm.split(me % 2, key=-me)
    assert group is not None
    members = [rank for rank in reversed(range(n)) if rank % 2 == me % 2]
    assert group.members == members
    x = np.array([me])
    group.all_reduce(x)
    assert x[0] == sum(members)
    assert comm.split(None) is None


def other_objects():
    numbers = array.array("i", [me, 1])
    comm.all_reduce(numbers)
    assert list(numbers) == [sum(range(n)), n]
    text = bytearray(b"from rank 0" if me == 0 else 11)
    comm.broadcast(memoryview(text))
    assert text == b"from rank 0"


def wrong_arguments():
    x = np.zeros(4, np.float32)
    for text, call in {
        "buffer protocol": lambda: comm.all_reduce([1, 2]),  # type: ignore[arg-type]
        "contiguous": lambda: comm.all_reduce(np.zeros((4, 4))[:, 1]),
        "read-only": lambda: comm.all_reduce(b"1234"),
        "unknown reduce operation 'mean of all'": lambda: comm.all_reduce(x, op="mean of all"),
        "input has elements of f32 and output of f64": lambda: comm.all_reduce(x, np.zeros(4)),
        "below": lambda: comm.broadcast(x, root=n),
        "integers": lambda: comm.all_reduce(x, op="xor"),
        "byte order": lambda: comm.all_reduce(np.zeros(4, np.dtype(np.float32).newbyteorder())),
        "one for each": lambda: comm.all_gather(x, x, counts=[1] * (n + 1)),
        "positive number of seconds": lambda: comm.barrier(timeout=-1),
        "unknown data type": lambda: comm.allocate(1, "f17"),
    }.items():
        with pytest.raises(ringway.ArgumentError, match=text) as caught:
            call()
        assert isinstance(caught.value, (ringway.Error, ValueError))
    with pytest.raises(TypeError, match="colour"):
        comm.barrier(colour=1)  # type: ignore[call-arg]
    with pytest.raises(ringway.SettingsError, match="timeout"):
        ringway.init(timeout="soon")
    comm.barrier()


for check in (
    reductions,
    out_of_place,
    truth_and_complex,
    halves_of_16_bits,
    movements,
    uneven_parts,
    started,
    messages,
    in_the_arena,
    groups,
    other_objects,
    wrong_arguments,
):
    began = time.perf_counter()
    check()
    print(f"{check.__name__}: {time.perf_counter() - began:.2f} s", flush=True)
comm.leave()
with pytest.raises(ringway.Error, match="left the job"):
    comm.barrier()
