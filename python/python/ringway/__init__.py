"""Collective communication for distributed training.

    import numpy as np
    import ringway

    comm = ringway.init()  # torchrun, Slurm, mpirun, `ringway run` or RINGWAY_* environment
    gradients = np.full(1 << 20, comm.rank, np.float32)
    comm.all_reduce(gradients, op="avg")

    work = comm.start.all_reduce(gradients)  # asynchronous
    work.wait()

Any object with the buffer protocol will do for an array; nothing is copied. ``import ringway.torch`` registers the
backend ``ringway`` with PyTorch.
"""

import atexit
import os
import weakref

from ringway import _ringway
from ringway._ringway import ArenaBuffer, Communicator, Registration, Start, Work, __version__
from ringway._types import Options
from ringway.errors import ArgumentError, BootstrapError, Error, FailedError, SettingsError

__all__ = [
    "ArenaBuffer",
    "ArgumentError",
    "BootstrapError",
    "Communicator",
    "Error",
    "FailedError",
    "Options",
    "Registration",
    "SettingsError",
    "Start",
    "Work",
    "__version__",
    "init",
]

_joined: weakref.WeakSet[Communicator] = weakref.WeakSet()


def init(**settings: object) -> Communicator:
    """Join the job that this process was started in, by torchrun, Slurm's srun, mpirun or ``ringway run``, or with
    ``RINGWAY_*`` variables.

    Settings come from ``ringway.yaml`` and the environment; keywords stand above both:
    ``ringway.init(timeout="30s")``.

    The rank leaves the job when its last communicator is gone, or at the process's end.
    """
    return _leave_at_exit(_ringway.init(**settings))


def _leave_at_exit(communicator: Communicator) -> Communicator:
    """Has a rank leave in good order before the interpreter shuts down."""
    _joined.add(communicator)
    return communicator


@atexit.register
def _leave_all() -> None:
    for communicator in list(_joined):
        communicator.leave()


os.register_at_fork(after_in_child=_ringway.after_fork)
