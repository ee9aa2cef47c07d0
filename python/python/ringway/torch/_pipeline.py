"""Training with gradients that are reduced, and parameters that are updated, while the model computes."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ringway import ArgumentError, Error
from ringway.torch import _agreement, _record
from ringway.torch._backend import _backend_of
from ringway.torch._codec import PLAIN, Codecs
from ringway.torch._divided import DividedOptimizer, Hyperparameters
from ringway.torch._engine import AVERAGE, Engine
from ringway.torch._staging import Pending, accelerator
from ringway.torch._tensors import number_kind
from ringway.torch._unit import Unit, units
from ringway.torch._watch import Hook, Modules


class Pipeline:
    """Data-parallel training of a model, in which communication hides behind computation.

        pipeline = ringway.torch.Pipeline(model, optimizer)
        for x, y in loader:
            loss(model(x), y).backward()
            pipeline.step()

    While the backward pass runs, gradients are averaged over the ranks of ``group`` as soon as they are there. ``step``
    returns at once: a parameter is updated when its gradient has come, at the latest when the next forward pass calls
    the module that it belongs to. The parameters are the same bits as with the same all-reduces after the backward
    pass and a step of the optimizer then.

    At the beginning rank 0's parameters and buffers are copied to all ranks. A gradient of ``bucket_bytes`` or more
    has an all-reduce to itself, smaller ones share those of about that size. Every rank must use the same parameters
    in a step; if not, all ranks get an :class:`ringway.Error` that names them.

    ``wire``, ``feedback`` and ``seed`` are those of :func:`ringway.torch.comm_hook`: what gradients are between ranks.

    Whoever reads or writes parameters or gradients other than by calling modules calls :meth:`synchronize` first. The
    ``state_dict`` and ``load_state_dict`` of model and optimizer do so by themselves.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        group: dist.ProcessGroup | None = None,
        bucket_bytes: int = 1 << 19,
        wire: str = PLAIN,
        feedback: bool = True,
        seed: int = 0,
    ) -> None:
        self._optimizer = optimizer
        self._divided = DividedOptimizer(optimizer)
        self._names, self._parameters = _of_both(model, self._divided)
        self._device = self._parameters[0].device
        self._bucket_bytes = bucket_bytes
        self._engine = Engine(_backend_of(group))
        settings = f"bucket_bytes={bucket_bytes}, wire={wire}, feedback={feedback}, seed={seed}"
        _agreement.check_models(self._engine, self._names, self._parameters, settings)
        self._codecs = None if wire == PLAIN else Codecs(self._engine, wire, feedback, seed)
        for tensor in (*model.parameters(), *model.buffers()):
            _agreement.copy_from_first(self._engine, tensor.detach())
        self._flags = _agreement.Flags(self._engine, self._names)
        self._modules = Modules(model, self._parameters)

        self._syncs = True
        self._is_open = False
        """Whether a backward pass has begun to reduce."""
        self._are_averages = False
        """Whether the parameters' gradients are averages, and not this rank's own."""
        self._came: list[int] | None = []
        """Parameters in the order in which their gradients came; None once that order is settled."""
        self._called: dict[int, None] = {}
        """Modules that were called since the last step, in order."""
        self._in_flight: dict[Unit, None] = {}
        """Units whose all-reduces were started for gradients that nobody has asked for yet."""
        self._updates: dict[Unit, None] = {}
        """Units that a step was called for and that are not updated yet."""
        self._hyperparameters: Hyperparameters = []
        """Those of that step."""
        self._waiting: dict[int, list[Unit]] = {}
        """What must be updated when a module is called."""
        self._place(range(len(self._parameters) - 1, -1, -1), range(len(self._parameters)))

        self._hooked: set[int] = set()
        self._hook_parameters()
        for number, module in enumerate(self._modules.modules):
            module.register_forward_pre_hook(Hook(self._before_call, number), prepend=True)
            # Updates belong to the values that were there, and not to those that are loaded.
            module.register_load_state_dict_pre_hook(Hook(self._before_access))  # type: ignore[no-untyped-call]
        model.register_state_dict_pre_hook(Hook(self._before_access))  # type: ignore[no-untyped-call]
        optimizer.register_state_dict_pre_hook(Hook(self._before_access))
        optimizer.register_load_state_dict_pre_hook(Hook(self._before_access))
        optimizer.register_step_pre_hook(Hook(self._before_whole_step))

    # What the program calls.

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it backward passes add gradients up on this rank, for a later one outside of it to average."""
        syncs, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = syncs

    def step(self) -> None:
        """Steps the optimizer with the averaged gradients, by parameters as these come, and then drops the gradients.

        Hyperparameters are as they are now, whatever a scheduler does next. After :meth:`synchronize`, and for an
        optimizer with step hooks of the program's, the step is taken as a whole and at once.
        """
        self._finish_updates()
        self._divided.check_parameters()
        if self._are_averages or self._came is not None or self._divided.has_hooks():
            if not self._are_averages:
                # Before hooks of the program's that were there before the pipeline's.
                self._average()
            self._optimizer.step()
            for parameter in self._parameters:
                parameter.grad = None
        else:
            self._start_rest()
            self._hyperparameters = self._divided.hyperparameters()
            self._updates = self._in_flight
            self._in_flight = {}
            # It has taken a step as far as schedulers are concerned.
            self._optimizer._opt_called = True  # type: ignore[attr-defined]
            self._defer()
        self._hook_parameters()

    def synchronize(self) -> float:
        """Waits for what is under way; returns the seconds waited.

        Then the parameters are what the last :meth:`step` makes of them. If a backward pass was the last call, every
        ``parameter.grad`` is the average: clip them or unscale them, and call :meth:`step` or the optimizer's own,
        directly or through a scaler. The price is what this returns: a wait for the last gradient, with nothing to
        hide it behind.
        """
        began = time.perf_counter()
        self._finish_updates()
        if self._is_open:
            self._average()
        return time.perf_counter() - began

    def decisions(self) -> dict[int, str]:
        """With ``wire="adaptive"``: what each bucket has decided last, and the numbers that it went by."""
        return {} if self._codecs is None else self._codecs.decisions()

    def state_dict(self) -> dict[str, Any]:
        """The order in which gradients are reduced, and what codecs have not sent yet, which is each rank's own. A run
        that is resumed with it makes the same calls, and so gets the same bits."""
        self.synchronize()
        if self._came is not None:
            return {}
        order, need = ([self._names[index] for index in order] for order in (self._order, self._need))
        return {"order": order, "need": need, "wire": None if self._codecs is None else self._codecs.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up what :meth:`state_dict` gave, on all ranks. Model and optimizer have state of their own."""
        self.synchronize()
        if not state:
            return
        numbers = {name: index for index, name in enumerate(self._names)}
        order, need = state["order"], state["need"]
        if sorted(order) != sorted(numbers) or sorted(need) != sorted(numbers):
            raise ArgumentError(
                "this is the state of a pipeline for other parameters: load it into one for the same model"
            )
        self._came = None
        if self._codecs is not None:
            self._codecs.load(state["wire"] or {})
        self._place([numbers[name] for name in order], [numbers[name] for name in need])

    # What hooks call.

    def _gradient_is_here(self, index: int) -> None:
        unit = self._unit_of[index]
        if unit in self._updates:
            raise Error(
                f"{self._names[index]} was used before its update: the module that it belongs to was not called as in "
                f"the step before. Call synchronize() before a forward pass that uses parameters in another way"
            )
        self._are_averages = False
        if not self._syncs:
            return
        if index not in unit.absent:
            raise Error(
                f"the gradient of {self._names[index]} came twice since the last step: put all backward passes but the "
                f"last under no_sync(), and have checkpoints use_reentrant=False"
            )
        self._is_open = True
        if self._came is not None:
            self._came.append(index)
        self._take(index)
        self._start_complete()

    def _before_call(self, module: int) -> None:
        self._called[module] = None
        needed = self._waiting.pop(module, None)
        if needed is not None and self._updates:
            self._update([unit for unit in self._updates if unit in needed])

    def _before_access(self, _: int) -> None:
        self._finish_updates()

    def _before_whole_step(self, _: int) -> None:
        if self._divided.is_stepping:
            return
        self._divided.check_parameters()
        self._finish_updates()
        if not self._are_averages:
            self._average()
        self._are_averages = False
        self._called = {}

    # Gradients on their way.

    def _place(self, order: Iterable[int], need: Iterable[int]) -> None:
        """Makes the units, in the order of the backward pass. Those that the forward pass needs first have the highest
        priority."""
        self._order, self._need = list(order), list(need)
        allocate = partial(self._engine.allocate, device=self._device)
        self._units = units(self._order, self._parameters, self._bucket_bytes, allocate)
        self._unit_of = {index: unit for unit in self._units for index in unit.parameters}
        turn = {index: at for at, index in enumerate(self._need)}
        for unit in self._units:
            unit.priority = 254 - min(turn[index] for index in unit.parameters) * 254 // len(self._parameters)
        if self._codecs is not None and self._came is None:
            for number, unit in enumerate(self._units):
                tensors = [(self._names[index], list(self._parameters[index].shape)) for index in unit.parameters]
                self._codecs.prepare(number, tensors)
        self._next = 0
        """The unit whose all-reduce is to be started next."""
        self._plan = _Plan(frozenset(), {}, self._units)

    def _hook_parameters(self) -> None:
        for index, parameter in enumerate(self._parameters):
            if parameter.requires_grad and index not in self._hooked:
                hook = Hook(self._gradient_is_here, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._hooked.add(index)

    def _take(self, index: int) -> None:
        parameter = self._parameters[index]
        gradient = parameter.grad
        if gradient is None:
            return
        if gradient.layout is not torch.strided:
            raise ArgumentError(
                f"the gradient of {self._names[index]} is sparse; expected dense ones: make embeddings with "
                f"sparse=False"
            )
        parameter.grad = None
        self._unit_of[index].take(index, gradient.detach())

    def _is_frozen(self, unit: Unit) -> bool:
        return not any(self._parameters[index].requires_grad for index in unit.parameters)

    def _start_complete(self) -> None:
        """Starts all-reduces in the order that all ranks have, as far as gradients are there."""
        for unit in self._units[self._next :]:
            if unit in self._updates or (unit.absent and not self._is_frozen(unit)):
                return
            self._start(unit)

    def _start_rest(self) -> None:
        """Starts what the backward pass did not: gradients that came under `no_sync` alone, and zeros for those that
        did not come."""
        for unit in self._units[self._next :]:
            for index in tuple(unit.absent):
                self._take(index)
            self._start(unit)
        self._flags.start(index for unit in self._units for index in unit.absent)
        self._next = 0
        self._is_open = False

    def _start(self, unit: Unit) -> None:
        self._next += 1
        if len(unit.absent) == len(unit.parameters) and self._is_frozen(unit):
            return
        unit.work = self._average_of(unit)
        self._in_flight[unit] = None

    def _average_of(self, unit: Unit) -> Pending:
        memory = unit.memory()
        if self._codecs is None or self._came is not None or memory.dtype != torch.float32:
            return self._engine.start_all_reduce(memory, AVERAGE, unit.priority)
        absent = [place for place, index in enumerate(unit.parameters) if index in unit.absent]
        return self._codecs.start_average(self._units.index(unit), memory, absent)

    def _average(self) -> None:
        """Waits until all gradients are averages."""
        self._start_rest()
        refusal = self._wait_for(self._in_flight)
        if refusal is not None:
            # Nothing of the step is applied yet, on any rank.
            self._give_up()
            raise refusal
        self._hand_out(self._in_flight)
        self._in_flight = {}
        self._are_averages = True
        if self._came is not None:
            self._settle_order(self._came)

    def _wait_for(self, arriving: Iterable[Unit]) -> Error | None:
        """Waits for units; the first error, if a codec refuses one, or the job has failed.

        Before anything of a step is applied it is an error on all ranks, which drop the step, if they do not have the
        same gradients.
        """
        began = time.perf_counter()
        try:
            self._flags.check()
        except Error:
            self._give_up()
            raise
        refusals = [error for unit in arriving if (error := unit.refusal()) is not None]
        _record.waited("gradients", began)
        return refusals[0] if refusals else None

    def _hand_out(self, come: Iterable[Unit]) -> list[Tensor]:
        """Gives parameters the gradients of units that have come; returns those that have one."""
        parameters: list[Tensor] = []
        for unit in come:
            for index in unit.parameters:
                # The flags agree: what is absent here is absent everywhere.
                if index not in unit.absent:
                    self._parameters[index].grad = unit.gradient(index)
                    parameters.append(self._parameters[index])
            unit.clear()
        return parameters

    def _give_up(self) -> None:
        """Drops the gradients of a step of which nothing is applied, on all ranks alike."""
        for unit in (*self._in_flight, *self._updates):
            if unit.work is not None:
                # It is not needed any more; what was wrong first is raised.
                unit.refusal()
            unit.clear()
        self._in_flight, self._updates, self._waiting = {}, {}, {}
        if self._came is not None:
            # The next backward pass is the first then.
            self._came = []

    def _settle_order(self, came: list[int]) -> None:
        """From the first backward pass on rank 0 all ranks know the order of gradients, and from the modules that were
        called the order of need."""
        self._came = None
        order = [*came, *(index for index in self._order if index not in came)]
        turns = {module: turn for turn, module in enumerate(self._called)}
        first = [
            min((turns[user] for user in self._modules.users(parameter, turns) or ()), default=len(turns))
            for parameter in self._parameters
        ]
        need = sorted(range(len(first)), key=first.__getitem__)
        both = torch.tensor([order, need], device="cpu")
        self._engine.broadcast(both)
        order, need = both.tolist()
        self._place(order, need)

    # Updates on their way.

    def _defer(self) -> None:
        """Finds out which module's call each update can wait for."""
        called = frozenset(self._called)
        if called != self._plan.called:
            self._plan = self._plan_for(called)
        self._waiting = dict(self._plan.waiting)
        self._called = {}
        at_once = [unit for unit in self._plan.at_once if unit in self._updates]
        if at_once:
            self._update(at_once)

    def _plan_for(self, called: frozenset[int]) -> "_Plan":
        waiting: dict[int, list[Unit]] = {}
        at_once: list[Unit] = []
        for unit in self._units:
            users = [self._modules.users(self._parameters[index], called) for index in unit.parameters]
            if None in users:
                at_once.append(unit)
                continue
            for user in {module for each in users for module in each or ()}:
                waiting.setdefault(user, []).append(unit)
        return _Plan(called, waiting, at_once)

    def _finish_updates(self) -> None:
        if self._updates:
            self._update(list(self._updates))

    def _update(self, needed: list[Unit]) -> None:
        """Waits for units and updates their parameters, and those of whatever else has come.

        If a codec refuses one of those that are needed, which is the same unit on all ranks and at the same place of
        the program, all others are updated before that is raised: ranks go on with the same parameters.
        """
        refusal = self._wait_for(needed)
        if refusal is not None:
            # Whichever was refused first in the order of all ranks.
            refusal = self._wait_for(self._updates) or refusal
        here = self._updates if refusal is not None else {**dict.fromkeys(needed), **self._come()}
        self._apply([unit for unit in here if unit.refusal() is None])
        if refusal is not None:
            for unit in self._updates:
                unit.clear()
            self._updates, self._waiting = {}, {}
            raise refusal

    def _come(self) -> dict[Unit, None]:
        """What has come well. What was refused is left for whoever needs it: other ranks may not know of it yet."""
        return {unit: None for unit in self._updates if unit.has_come() and unit.refusal() is None}

    def _apply(self, come: list[Unit]) -> None:
        """Updates the parameters of units, in whatever mode the forward pass that needs them runs."""
        with torch.inference_mode(False), torch.autocast(self._device.type, enabled=False):
            parameters = self._hand_out(come)
            for unit in come:
                del self._updates[unit]
            self._divided.step(parameters, self._hyperparameters)
        for parameter in parameters:
            parameter.grad = None


@dataclass(frozen=True)
class _Plan:
    """Where updates are waited for, if certain modules are called."""

    called: frozenset[int]
    waiting: dict[int, list[Unit]]
    at_once: list[Unit]
    """Units with parameters that are used otherwise."""


def _of_both(model: nn.Module, divided: DividedOptimizer) -> tuple[list[str], list[nn.Parameter]]:
    """The parameters of a model that an optimizer steps."""
    stepped = {id(parameter) for parameter in divided.parameters()}
    of_model = dict(model.named_parameters())
    if stepped - {id(parameter) for parameter in of_model.values()}:
        raise ArgumentError(
            "the optimizer steps parameters that are not the model's: no call of a module could wait for them. Give "
            "the pipeline a module that has them all"
        )
    both = {name: parameter for name, parameter in of_model.items() if id(parameter) in stepped}
    if not both:
        raise ArgumentError("the optimizer steps no parameters of the model")
    device = next(iter(both.values())).device
    for name, parameter in both.items():
        if isinstance(parameter, DTensor) or parameter.device != device or device.type not in ("cpu", accelerator()):
            kind = "a DTensor" if isinstance(parameter, DTensor) else f"on {parameter.device}"
            raise ArgumentError(
                f"the pipeline is for whole parameters, all on the CPU or on one accelerator, and {name} is {kind}"
            )
        number_kind(parameter)
    return list(both), list(both.values())
