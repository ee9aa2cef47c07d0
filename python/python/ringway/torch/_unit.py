"""What one all-reduce of the pipeline carries: a large gradient, or several small ones."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ringway import Error
from ringway.torch._engine import dense_stride
from ringway.torch._staging import Pending, Staged


class Unit:
    """Gradients of parameters that are reduced together, in memory that peers on the host reduce from and to, or that
    is on the parameters' accelerator.

    They are copied there when they come, from the core's cache as it were. What autograd has made for them is free at
    once, and soon has the next gradient: that saves the faults on new pages, which cost more than the copy.
    """

    def __init__(
        self, parameters: Sequence[int], of: Sequence[Tensor], allocate: Callable[[int, torch.dtype], Tensor]
    ) -> None:
        self.parameters = tuple(parameters)
        """Which of the pipeline's parameters these are."""
        self.priority = 0
        """Among all-reduces in flight, higher goes first."""
        self.absent = set(parameters)
        """Parameters whose gradients are not here yet."""
        self.work: Pending | None = None
        """The all-reduce, from its start until its result is handed out."""
        self._memory = allocate(sum(of[index].numel() for index in parameters), of[parameters[0]].dtype)
        self._views: dict[int, Tensor] = {}
        begin = 0
        for index in parameters:
            parameter = of[index]
            part = self._memory[begin : begin + parameter.numel()]
            self._views[index] = part.as_strided(parameter.shape, dense_stride(parameter))
            begin += parameter.numel()

    def has_come(self) -> bool:
        """Whether the reduced gradients are here."""
        return self.work is not None and self.work.is_done()

    def refusal(self) -> Error | None:
        """Waits for the reduced gradients; the error if there are none."""
        assert self.work is not None
        try:
            self.work.wait()
        except Error as error:
            return error
        if isinstance(self.work, Staged):
            self.work.join()
        return None

    def take(self, index: int, gradient: Tensor) -> None:
        """Takes a gradient of this rank's."""
        view = self._views[index]
        # They are the same where a backward pass adds to an average.
        if view.data_ptr() != gradient.data_ptr():
            view.copy_(gradient)
        self.absent.discard(index)

    def memory(self) -> Tensor:
        """What is to be reduced, with zeros for gradients that are absent."""
        for index in self.absent:
            self._views[index].zero_()
        return self._memory

    def gradient(self, index: int) -> Tensor:
        """The reduced gradient of a parameter."""
        return self._views[index]

    def clear(self) -> None:
        """Gets ready for the gradients of the next backward pass."""
        self.absent = set(self.parameters)
        self.work = None


def units(
    order: Sequence[int], of: Sequence[Tensor], size: int, allocate: Callable[[int, torch.dtype], Tensor]
) -> list[Unit]:
    """Parameters `order` as units, in the order in which they can be complete. A gradient of `size` bytes or more is
    alone; others are together, by their data type, until they are as much."""
    made: list[Unit] = []
    gathered: dict[torch.dtype, list[int]] = {}
    for index in order:
        parameter = of[index]
        if parameter.nbytes >= size:
            made.append(Unit([index], of, allocate))
            continue
        together = gathered.setdefault(parameter.dtype, [])
        together.append(index)
        if sum(of[each].nbytes for each in together) >= size:
            made.append(Unit(gathered.pop(parameter.dtype), of, allocate))
    made.extend(Unit(together, of, allocate) for together in gathered.values())
    return made
