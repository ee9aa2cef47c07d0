"""Gradient codecs for the buckets of the pipeline and of DistributedDataParallel."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ringway import ArgumentError
from ringway._ringway import Bucket, Lanes, Work
from ringway.torch import _record
from ringway.torch._engine import Engine
from ringway.torch._staging import Pending
from ringway.torch._tensors import place

PLAIN = "plain"
"""The name of no codec."""


class Codecs:
    """One kind of codec; each bucket has its own, with what it has not sent yet."""

    def __init__(self, engine: Engine, name: str, feedback: bool, seed: int) -> None:
        self._engine = engine
        self._lanes = Lanes(engine.communicator, name, feedback, seed)
        self._name = name
        self._buckets: dict[int, tuple[list[tuple[str, list[int]]], Bucket]] = {}
        self._loaded: dict[int, bytes] = {}
        """Of buckets that are not there yet."""

    def prepare(self, index: int, tensors: Sequence[tuple[str, list[int]]]) -> None:
        """Makes the codec of a bucket, unless it is there. All ranks do so in the same order."""
        known = self._buckets.get(index)
        if known is None or known[0] != list(tensors):
            bucket = self._lanes.bucket(tensors)
            if index in self._loaded:
                bucket.restore(self._loaded.pop(index))
            self._buckets[index] = list(tensors), bucket

    def start_average(self, index: int, memory: Tensor, absent: Sequence[int] = ()) -> Pending:
        """Starts averaging a bucket, in place. Tensors `absent`, by their places in it, have no gradient anywhere."""
        bucket, timeout = self._buckets[index][1], self._engine.timeout()

        def submit(memory: Tensor) -> Work:
            work = bucket.submit(place(memory), list(absent), timeout, memory)
            _record.started_compressed(self._name, memory.nbytes, work)
            return work

        return self._engine.start(submit, memory)

    def decisions(self) -> dict[int, str]:
        """What adaptive buckets have decided last, and why."""
        decisions = {index: bucket.decision() for index, (_, bucket) in self._buckets.items()}
        return {index: decision for index, decision in decisions.items() if decision is not None}

    def state(self) -> dict[str, object]:
        """What the codecs have not sent yet, as tensors of bytes by bucket."""
        buckets = {index: bucket.state() for index, (_, bucket) in self._buckets.items()} or self._loaded
        return {
            "codec": self._name,
            "buckets": {
                index: torch.frombuffer(bytearray(state), dtype=torch.uint8) for index, state in buckets.items()
            },
        }

    def load(self, state: dict[str, object]) -> None:
        """Takes up what :meth:`state` gave, now or when the buckets are made."""
        buckets = state.get("buckets")
        if state.get("codec") != self._name or not isinstance(buckets, dict):
            raise ArgumentError(f"this is the state of codec {state.get('codec')!r}; expected one of {self._name!r}")
        self._loaded = {index: bytes(kept.numpy()) for index, kept in buckets.items()}
        for index, (_, bucket) in self._buckets.items():
            if index in self._loaded:
                bucket.restore(self._loaded.pop(index))
