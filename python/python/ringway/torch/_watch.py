"""Hooks on a model: which modules are called, and whose gradients have come."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn


class Hook:
    """A hook that calls a method of an object, as long as that lives. Copies of the model, pickled or deep, have hooks
    that do nothing: they are other models."""

    def __init__(self, method: Callable[[int], None] | None, index: int = 0) -> None:
        self._method = None if method is None else weakref.WeakMethod(method)
        self._index = index

    def __call__(self, *_: object) -> None:
        method = None if self._method is None else self._method()
        if method is not None:
            method(self._index)

    def __deepcopy__(self, _: dict[int, Any]) -> "Hook":
        return Hook(None)

    def __reduce__(self) -> tuple[type["Hook"], tuple[None]]:
        return Hook, (None,)


class Modules:
    """The modules of a model, by number, and which of them own a parameter.

    A parameter is used, as a rule, when a module that owns it is called. Where a module uses parameters of another
    without calling it (`nn.MultiheadAttention` those of its `out_proj`), that one is never seen called, and the
    innermost module around it that is called stands for it.
    """

    def __init__(self, model: nn.Module, parameters: Iterable[nn.Parameter]) -> None:
        self.modules: list[nn.Module] = []
        self._owners: dict[int, list[int]] = {id(parameter): [] for parameter in parameters}
        self._around: list[tuple[int, ...]] = []
        numbers: dict[str, int] = {}
        for name, module in model.named_modules():
            number = numbers[name] = len(self.modules)
            self.modules.append(module)
            parts = name.split(".") if name else []
            prefixes = (".".join(parts[:end]) for end in range(len(parts) - 1, -1, -1))
            self._around.append(tuple(numbers[prefix] for prefix in prefixes if prefix in numbers) if name else ())
            for parameter in module.parameters(recurse=False):
                if id(parameter) in self._owners:
                    self._owners[id(parameter)].append(number)

    def users(self, parameter: nn.Parameter, called: Iterable[int]) -> list[int] | None:
        """The modules at whose calls a parameter may be used first, if these are the modules that are called; None if
        it may be used otherwise."""
        users = []
        for owner in self._owners[id(parameter)]:
            user = next((module for module in (owner, *self._around[owner]) if module in called), None)
            if user is None:
                return None
            users.append(user)
        return users
