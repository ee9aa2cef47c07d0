"""Tensors in memory that the ranks of a host share, or that is registered with an RDMA device."""

from itertools import chain

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

import ringway
from ringway import ArgumentError, _ringway
from ringway.torch._tensors import KINDS


def allocate(communicator: ringway.Communicator, size: torch.Size, dtype: torch.dtype) -> Tensor:
    """A tensor of zeros in the arena of a communicator."""
    if dtype not in KINDS:
        raise ArgumentError(f"expected a data type that can be reduced, found {dtype}")
    if size.numel() == 0:
        return torch.zeros(size, dtype=dtype, device="cpu")
    buffer = communicator.allocate(size.numel() * dtype.itemsize, "u8")
    return torch.frombuffer(buffer, dtype=dtype).view(size)


def register(communicator: ringway.Communicator, model: torch.nn.Module) -> ringway.Registration:
    """Registers the memory of a model, which the registration keeps.

    Its storages must not be resized meanwhile, as FSDP does with those of unsharded parameters: register it sharded.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    for tensor in chain(model.parameters(), model.buffers()):
        for part in (tensor, tensor.grad):
            local = part.to_local() if isinstance(part, DTensor) else part
            if local is not None and local.is_cpu and local.layout is torch.strided:
                storage = local.untyped_storage()
                if storage.nbytes() > 0:
                    storages[storage.data_ptr()] = storage
    ranges = [(place, storage.nbytes()) for place, storage in storages.items()]
    return _ringway.register(communicator, ranges, list(storages.values()))
