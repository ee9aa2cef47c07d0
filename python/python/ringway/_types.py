"""Types of arguments."""

from collections.abc import Sequence
from typing import TypeAlias, TypedDict


class Options(TypedDict, total=False):
    """Keywords that all calls take."""

    algorithm: str | None
    """The algorithm, in place of the selector's choice; the same on all ranks. Not for send and recv."""
    dtype: str | None
    """What the buffers' bytes are, in place of their own format: ``bf16``, say, which NumPy does not have."""
    priority: int | None
    """0 to 255: among operations in flight, higher goes first. Not for send and recv."""
    timeout: float | None
    """Seconds that the call may take; otherwise the setting ``timeout``."""


Operation: TypeAlias = tuple[int, int, int, int | None]
"""Collective, root, kind of elements, reduction: places as ``_ringway.places`` and ``_ringway.kinds`` have them."""

Range: TypeAlias = tuple[int, int]
"""Address and bytes."""

Counts: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Elements of each part of input and output."""
