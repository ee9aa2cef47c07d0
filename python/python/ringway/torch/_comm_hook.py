"""Communication hooks of DistributedDataParallel."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from ringway import ArgumentError
from ringway._ringway import Work
from ringway.torch._backend import _backend_of
from ringway.torch._codec import PLAIN, Codecs
from ringway.torch._engine import AVERAGE, Engine
from ringway.torch._staging import Pending
from ringway.torch._work import RingwayWork


class CommHook:
    """What :func:`comm_hook` makes. With its state a run that is resumed goes on with what was not sent yet."""

    def __init__(self, engine: Engine, codecs: Codecs | None) -> None:
        self._engine, self._codecs = engine, codecs
        self._under_way: list[Pending] = []
        """What this backward pass has started."""
        self._names: dict[int, str] = {}
        self._is_settled = False
        """Whether DistributedDataParallel has made its buckets anew, as it does after the first step."""
        # DistributedDataParallel asks for a function's names.
        self.__name__ = self.__qualname__ = "ringway.torch.comm_hook"

    def __call__(self, state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        if state is not None and not isinstance(state, nn.Module):
            raise ArgumentError(
                f"the state of ringway.torch.comm_hook is a {type(state).__name__}; expected the model, for the names "
                f"of its parameters, or None. A process group is an argument of comm_hook"
            )
        gradients, index = bucket.buffer(), bucket.index()
        codecs = self._codecs if self._is_settled and gradients.dtype == torch.float32 else None
        if codecs is None:
            # DistributedDataParallel begins with the last layers.
            work = self._engine.start_all_reduce(gradients, AVERAGE, min(index + 1, 255))
        else:
            if state is not None and not self._names:
                self._names = {id(parameter): name for name, parameter in state.named_parameters()}
            tensors = [
                (self._names.get(id(parameter), f"bucket {index}, parameter {at}"), list(parameter.shape))
                for at, parameter in enumerate(bucket.parameters())
            ]
            codecs.prepare(index, tensors)
            work = codecs.start_average(index, gradients)
        self._under_way.append(work)
        if bucket.is_last():
            # DistributedDataParallel has nothing left to compute, and waits in C++.
            for each in self._under_way:
                if isinstance(each, Work):
                    each._waits_from_now()
            self._under_way = []
        self._is_settled = self._is_settled or bucket.is_last()
        return RingwayWork([work], [gradients]).get_future().then(_first)

    def decisions(self) -> dict[int, str]:
        """Of ``adaptive``: what each bucket has decided last, and the numbers that it went by."""
        return {} if self._codecs is None else self._codecs.decisions()

    def state_dict(self) -> dict[str, object]:
        """What the codecs have kept; empty without."""
        return {} if self._codecs is None else self._codecs.state()

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Takes up what :meth:`state_dict` gave, on the rank that it was of."""
        if self._codecs is not None:
            self._codecs.load(state)


def comm_hook(
    wire: str = PLAIN, *, feedback: bool = True, seed: int = 0, group: dist.ProcessGroup | None = None
) -> CommHook:
    """A hook that averages DistributedDataParallel's gradients over Ringway, for
    ``model.register_comm_hook(model, hook)``: errors then have the names of ``model``'s parameters. None will do.

    ``wire`` is what 32-bit gradients are between ranks: ``"plain"`` as they are, or the name of a codec: fp16, bf16,
    int8, int4, int:BITS, dynamic:ERROR, topk:SHARE, threshold:MAGNITUDE, powersgd:RANK. With ``"adaptive"`` each bucket
    chooses one after each 100 steps, by what it does to them, or none where steps do not wait. With ``feedback`` what
    was not sent is added to the next gradient; without, numbers are rounded at random, by ``seed``. The first step is
    plain: after it DistributedDataParallel makes its buckets anew.

    A gradient that is not finite, or that the codec cannot hold, is an error on all ranks that names it.

    ``group`` is the process group of the model, of the backend ringway; without it, the default group.
    """
    engine = Engine(_backend_of(group))
    return CommHook(engine, None if wire == PLAIN else Codecs(engine, wire, feedback, seed))


def _first(done: Future[list[Tensor]]) -> Tensor:
    return done.value()[0]
