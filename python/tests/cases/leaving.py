"""Programs that end without a word: the process ends well, and the ranks have left."""

import sys

import numpy as np
import ringway

comm = ringway.init()
x = np.ones(10)
comm.all_reduce(x)
if comm.rank == 1:
    sys.exit()
try:
    comm.barrier()
except ringway.FailedError as error:
    assert (error.rank, error.cause) == (1, "left"), error
    print("rank 1 has left", flush=True)
