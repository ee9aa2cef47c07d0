"""What one all-reduce of the pipeline carries: one large gradient where it lies, or several small ones, packed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ringway._ringway import Work
from ringway.torch._engine import dense_stride


class Unit(ABC):
    """Gradients of parameters that are reduced together."""

    def __init__(self, parameters: Sequence[int]) -> None:
        self.parameters = tuple(parameters)
        """Which of the pipeline's parameters these are."""
        self.priority = 0
        """Among all-reduces in flight, higher goes first."""
        self.absent = set(parameters)
        """Parameters whose gradients are not here yet."""
        self.work: Work | None = None
        """The all-reduce, from its start until its result is handed out."""

    def has_come(self) -> bool:
        """Whether the reduced gradients are here."""
        return self.work is not None and self.work.is_done()

    def clear(self) -> None:
        """Gets ready for the gradients of the next backward pass."""
        self.absent = set(self.parameters)
        self.work = None

    @abstractmethod
    def take(self, index: int, gradient: Tensor) -> None:
        """Takes a gradient of this rank's."""

    @abstractmethod
    def memory(self) -> Tensor:
        """What is to be reduced, with zeros for gradients that are absent."""

    @abstractmethod
    def gradient(self, index: int) -> Tensor:
        """The reduced gradient of a parameter."""


class Alone(Unit):
    """One gradient, reduced in the memory that the backward pass has made for it."""

    def __init__(self, index: int, parameter: Tensor) -> None:
        super().__init__((index,))
        self._parameter = parameter
        self._stride = dense_stride(parameter)
        self._gradient: Tensor | None = None

    def clear(self) -> None:
        super().clear()
        self._gradient = None

    def take(self, index: int, gradient: Tensor) -> None:
        if gradient.stride() != self._stride:
            gradient = self._empty().copy_(gradient)
        self._gradient = gradient
        self.absent.discard(index)

    def memory(self) -> Tensor:
        if self._gradient is None:
            self._gradient = self._empty().zero_()
        return self._gradient

    def gradient(self, index: int) -> Tensor:
        assert index in self.parameters
        return self.memory()

    def _empty(self) -> Tensor:
        return torch.empty_strided(self._parameter.shape, self._stride, dtype=self._parameter.dtype)


class Packed(Unit):
    """Small gradients, copied to memory that peers on the host reduce from and to."""

    def __init__(
        self, parameters: Sequence[int], of: Sequence[Tensor], allocate: Callable[[int, torch.dtype], Tensor]
    ) -> None:
        super().__init__(parameters)
        self._memory = allocate(sum(of[index].numel() for index in parameters), of[parameters[0]].dtype)
        self._views: dict[int, Tensor] = {}
        begin = 0
        for index in parameters:
            parameter = of[index]
            part = self._memory[begin : begin + parameter.numel()]
            self._views[index] = part.as_strided(parameter.shape, dense_stride(parameter))
            begin += parameter.numel()

    def take(self, index: int, gradient: Tensor) -> None:
        view = self._views[index]
        if view.data_ptr() != gradient.data_ptr():
            view.copy_(gradient)
        self.absent.discard(index)

    def memory(self) -> Tensor:
        for index in self.absent:
            self._views[index].zero_()
        return self._memory

    def gradient(self, index: int) -> Tensor:
        return self._views[index]


def units(
    order: Sequence[int], of: Sequence[Tensor], size: int, allocate: Callable[[int, torch.dtype], Tensor]
) -> list[Unit]:
    """Parameters `order` as units, in the order in which they can be complete. Gradients of `size` bytes or more are
    alone; others are packed, by their data type, until a pack has as much."""
    made: list[Unit] = []
    open_packs: dict[torch.dtype, list[int]] = {}

    def close(dtype: torch.dtype) -> None:
        made.append(Packed(open_packs.pop(dtype), of, allocate))

    for index in order:
        parameter = of[index]
        if parameter.nbytes >= size:
            made.append(Alone(index, parameter))
            continue
        pack = open_packs.setdefault(parameter.dtype, [])
        pack.append(index)
        if sum(of[each].nbytes for each in pack) >= size:
            close(parameter.dtype)
    for dtype in list(open_packs):
        close(dtype)
    return made
