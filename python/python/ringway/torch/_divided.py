"""An optimizer's step in parts: some parameters now, others when their gradients have come."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ringway import ArgumentError, Error
from ringway.torch._watch import Hook

Hyperparameters = list[dict[str, Any]]
"""Of each parameter group, without its parameters."""


class DividedOptimizer:
    """Steps an optimizer that treats each parameter by itself, by parts that together are one step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._name = type(optimizer).__name__
        if isinstance(optimizer, torch.optim.LBFGS) or _wants_closure(optimizer):
            raise ArgumentError(
                f"{self._name} evaluates the model again within its step and looks at all gradients at once: there is "
                f"no step to begin before they have come. Train with DistributedDataParallel, or with an optimizer "
                f"that treats each parameter by itself (SGD, Adam, AdamW, ...)"
            )
        self._optimizer = optimizer
        self._known = self._ids()
        self.is_stepping = False

    def parameters(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _ids(self) -> list[int]:
        return [id(parameter) for parameter in self.parameters()]

    def check_parameters(self) -> None:
        """An error if the optimizer has been given others since."""
        if self._ids() != self._known:
            raise ArgumentError(
                f"{self._name} has other parameters than when its pipeline was made (add_param_group?): make a new "
                f"pipeline after such a change"
            )

    def has_hooks(self) -> bool:
        """Whether the program has hooks that are to be called once a step."""
        optimizer = self._optimizer
        hooks = (*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values())
        return any(not isinstance(hook, Hook) for hook in hooks)

    def hyperparameters(self) -> Hyperparameters:
        """As they are now: a scheduler may change them before the last part is stepped."""
        return [
            {key: _kept(value) for key, value in group.items() if key != "params"}
            for group in self._optimizer.param_groups
        ]

    def step(self, parameters: Iterable[Tensor], hyperparameters: Hyperparameters) -> None:
        """Steps some parameters, which have their gradients."""
        wanted = {id(parameter) for parameter in parameters}
        whole = self._optimizer.param_groups
        parts: list[dict[str, Any]] = []
        for group, values in zip(whole, hyperparameters, strict=True):
            part = [parameter for parameter in group["params"] if id(parameter) in wanted]
            if part:
                parts.append({**values, "params": part})
        before = [{key: value for key, value in part.items() if key != "params"} for part in parts]
        self._optimizer.param_groups = parts
        self.is_stepping = True
        try:
            self._optimizer.step()
        finally:
            self.is_stepping = False
            self._optimizer.param_groups = whole
        self._check(parts, before)

    def _check(self, parts: list[dict[str, Any]], before: Hyperparameters) -> None:
        for part, values in zip(parts, before, strict=True):
            changed = [key for key, value in part.items() if key != "params" and values.get(key) is not value]
            if changed:
                raise Error(
                    f"{self._name} keeps {', '.join(changed)} in its parameter groups and changes it in each step, "
                    f"which here has several parts: call synchronize() and then the optimizer's own step()"
                )


def _wants_closure(optimizer: torch.optim.Optimizer) -> bool:
    parameters = inspect.signature(type(optimizer).step).parameters
    closure = parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _kept(value: Any) -> Any:
    # Schedulers write to rates that are tensors.
    return value.clone() if isinstance(value, Tensor) else value
