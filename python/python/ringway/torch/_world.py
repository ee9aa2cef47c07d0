"""Which job a process group belongs to.

The default group, if it is Ringway's, is the job's world, and other groups are groups of it. A group of Ringway's
beside a default group of another backend is a job of its own.
"""

from torch._C._distributed_c10d import _DistributedBackendOptions

import ringway
from ringway import _ringway
from ringway.torch._store import TorchStore

_world: ringway.Communicator | None = None


def join(options: _DistributedBackendOptions) -> tuple[ringway.Communicator, bool]:
    """The communicator for a process group, and whether it is a job: one that is left with the group."""
    global _world  # noqa: PLW0603
    store, rank, size = options.store, options.group_rank, options.group_size
    # A store may have served a group of this name before: every rank counts how often it has come.
    times = store.add(f"ringway/joined/{rank}", 1)
    meeting = TorchStore(store, f"ringway/{times}")
    is_default = not options.global_ranks_in_group
    if _world is not None and not is_default:
        return _ringway.group(_world, meeting, rank, size), False
    communicator = ringway._leave_at_exit(_ringway.join(meeting, rank, size, f"torch {options.group_id}"))
    if is_default:
        _world = communicator
    return communicator, True


def leave(communicator: ringway.Communicator) -> None:
    """Leaves a job that was joined here."""
    global _world  # noqa: PLW0603
    if _world is communicator:
        _world = None
    communicator.leave()
