"""Tensors as memory: where they are, what their elements are, and copies where they are not contiguous."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ringway import ArgumentError, _ringway
from ringway._types import Range

_places = _ringway.kinds()

KINDS: dict[torch.dtype, int] = {
    getattr(torch, name): _places[kind]
    for name, kind in {
        "bfloat16": "bf16",
        "bool": "bool",
        "complex64": "complex64",
        "complex128": "complex128",
        "float16": "f16",
        "float32": "f32",
        "float64": "f64",
        "int8": "i8",
        "int16": "i16",
        "int32": "i32",
        "int64": "i64",
        "uint8": "u8",
        "uint16": "u16",
        "uint32": "u32",
        "uint64": "u64",
    }.items()
}
"""What the engine takes a data type for."""

_BY_SIZE = {size: _places[kind] for size, kind in {1: "u8", 2: "u16", 4: "u32", 8: "u64"}.items()}
"""Data types that are only moved (float8, say) go as integers of their size."""

EMPTY = (0, 0)
"""No memory."""


def check(tensor: Tensor) -> None:
    """An error for tensors that are not dense, or not on the CPU, where calls are made."""
    if not tensor.is_cpu:
        raise ArgumentError(
            f"expected a tensor on the CPU, as others of the call are, and this one is on {tensor.device}: move it"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise ArgumentError(
            f"the backend ringway is for dense tensors, found layout {tensor.layout}, {tensor.dtype}: use to_dense(), "
            f"or for DistributedDataParallel embeddings without sparse=True"
        )


def kind_of(tensor: Tensor) -> int:
    """What the engine takes a tensor's elements for, where they are moved."""
    kind = KINDS.get(tensor.dtype)
    if kind is None:
        kind = _BY_SIZE.get(tensor.element_size())
    if kind is None:
        raise ArgumentError(f"the backend ringway does not know the data type {tensor.dtype}")
    return kind


def number_kind(tensor: Tensor) -> int:
    """What the engine takes a tensor's elements for, where they are reduced."""
    try:
        return KINDS[tensor.dtype]
    except KeyError:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in KINDS)
        raise ArgumentError(f"cannot reduce elements of {tensor.dtype}; expected one of {known}") from None


def place(tensor: Tensor) -> Range:
    """Address and bytes."""
    return tensor.data_ptr(), tensor.nbytes


def readable(tensor: Tensor) -> Tensor:
    """The tensor with its elements one after the other: itself or a copy."""
    check(tensor)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


Finish = Callable[[], object] | None
"""What is to be done once an operation has ended well."""


def writable(tensor: Tensor, *, keep: bool = False) -> tuple[Tensor, Finish]:
    """Memory to be written in place of the tensor's: its own, or other memory that is copied to it afterwards. With
    `keep` the memory has the tensor's elements to begin with."""
    check(tensor)
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor, None
    memory = readable(tensor) if keep else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return memory, partial(tensor.copy_, memory)


def _lie_in_a_row(tensors: Sequence[Tensor]) -> bool:
    end = tensors[0].data_ptr()
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or tensor.data_ptr() != end:
            return False
        end += tensor.nbytes
    return True


def _same_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    for tensor in tensors:
        check(tensor)
        if tensor.dtype != tensors[0].dtype:
            raise ArgumentError(f"tensors of {tensors[0].dtype} and of {tensor.dtype} in one list; expected one type")
    return tensors[0].dtype


def readable_row(tensors: Sequence[Tensor]) -> tuple[Range, object]:
    """Where the tensors' elements lie one tensor after the other, and what keeps that memory."""
    _same_dtype(tensors)
    if _lie_in_a_row(tensors):
        return (tensors[0].data_ptr(), sum(tensor.nbytes for tensor in tensors)), tensors
    row = torch.cat([readable(tensor).reshape(-1) for tensor in tensors])
    return place(row), row


def writable_row(tensors: Sequence[Tensor]) -> tuple[Range, object, Finish]:
    """Memory to be written in place of the tensors', one after the other; what keeps it; and how it gets to them."""
    dtype = _same_dtype(tensors)
    if _lie_in_a_row(tensors):
        return (tensors[0].data_ptr(), sum(tensor.nbytes for tensor in tensors)), tensors, None
    counts = [tensor.numel() for tensor in tensors]
    row = torch.empty(sum(counts), dtype=dtype, device="cpu")

    def hand_out() -> None:
        for tensor, part in zip(tensors, torch.split(row, counts), strict=True):
            tensor.copy_(part.view(tensor.shape))

    return place(row), row, hand_out
