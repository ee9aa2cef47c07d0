"""Memory that is registered with an RDMA device: results are the same, and it is registered once."""

import numpy as np
import ringway

comm = ringway.init(timeout="30s")
me, n = comm.rank, comm.size
assert comm.transport == "rdma"

x, out = np.empty(100_000, np.float32), np.empty((n, 100_000), np.float32)


def step():
    x[:] = me + 1
    comm.all_reduce(x)
    assert (x == n * (n + 1) / 2).all()
    x[:] = me
    comm.all_gather(x, out)
    assert (out == np.arange(n)[:, None]).all()


step()
assert comm.registered_memory()["bytes"] == 0
with comm.register(x) as first, comm.register(out):
    assert first.bytes == x.nbytes
    step()
    before = comm.registered_memory()
    assert before["regions"] == 2 and before["bytes"] >= x.nbytes + out.nbytes
    for _ in range(5):
        step()
    assert comm.registered_memory() == before
assert first.bytes == 0
assert comm.registered_memory()["regions"] == 0

# What is dropped is registered no longer, and what is allocated is already.
registration = comm.register(x)
del registration
y = comm.allocate(50_000)
assert comm.registered_memory()["regions"] == 1
np.asarray(y)[:] = me
comm.broadcast(y, 1)
assert (np.asarray(y) == 1).all()
del y
assert comm.registered_memory()["regions"] == 0
try:
    comm.register(b"read-only")
except ringway.ArgumentError as error:
    assert "read-only" in str(error)
else:
    raise AssertionError("read-only memory was registered")
comm.barrier()
