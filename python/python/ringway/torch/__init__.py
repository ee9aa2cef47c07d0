"""The backend ``ringway`` of ``torch.distributed``, for tensors on the CPU, and on an accelerator through its memory.

    import torch.distributed as dist
    import ringway.torch

    dist.init_process_group("ringway")

From there the script is as with any backend: DistributedDataParallel, FSDP2, DeviceMesh and the collectives of
``torch.distributed`` go through Ringway. Tensors on an accelerator are copied to the host and back; beside a backend
for these: ``"cpu:ringway,cuda:nccl"``.

Errors are :class:`ringway.Error`; where a rank failed, :class:`ringway.FailedError` names it on all ranks. Settings
come from ``ringway.yaml`` and the environment. The time limit of an operation is that of the process group.
"""

import torch.distributed as dist

from ringway.torch._backend import RingwayBackend, empty, register_parameter_buffers
from ringway.torch._buckets import bucket_sizes
from ringway.torch._comm_hook import CommHook, comm_hook
from ringway.torch._holder import pass_on_completion
from ringway.torch._pipeline import Pipeline
from ringway.torch._staging import accelerator
from ringway.torch._work import RingwayWork

__all__ = [
    "CommHook",
    "Pipeline",
    "RingwayBackend",
    "RingwayWork",
    "bucket_sizes",
    "comm_hook",
    "empty",
    "register_parameter_buffers",
]

pass_on_completion()
_accelerator = accelerator()
_devices = ["cpu"] if _accelerator is None else ["cpu", _accelerator]
dist.Backend.register_backend("ringway", RingwayBackend, extended_api=True, devices=_devices)
