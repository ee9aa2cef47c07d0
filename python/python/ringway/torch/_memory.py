"""Tensors in memory that the ranks of a host share."""

import torch
from torch import Tensor

import ringway
from ringway import ArgumentError
from ringway.torch._tensors import KINDS


def allocate(communicator: ringway.Communicator, size: torch.Size, dtype: torch.dtype) -> Tensor:
    """A tensor of zeros in the arena of a communicator."""
    if dtype not in KINDS:
        raise ArgumentError(f"expected a data type that can be reduced, found {dtype}")
    if size.numel() == 0:
        return torch.zeros(size, dtype=dtype)
    buffer = communicator.allocate(size.numel() * dtype.itemsize, "u8")
    return torch.frombuffer(buffer, dtype=dtype).view(size)
