"""PyTorch's store, as the engine wants one."""

import contextlib
import time
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

# A wait in PyTorch's store cannot be cut short, and keeps others from the connection.
_SLICE = 0.25


class TorchStore:
    """A store of ``torch.distributed`` under a prefix of its own."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._name = f"PyTorch's store ({_describe(store)})"
        # A connection of its own, where the store can: the program's calls need not wait for those of the engine.
        with contextlib.suppress(NotImplementedError, RuntimeError):
            store = store.clone()
        self._store = PrefixStore(prefix, store)

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)  # type: ignore[arg-type]  # It takes bytes, whatever its stub says.

    def get(self, key: str, seconds: float) -> bytes | None:
        end = time.monotonic() + seconds
        while not self._store.check([key]):
            now = time.monotonic()
            if now >= end:
                return None
            limit = max(min(_SLICE, end - now), 0.001)
            try:
                self._store.wait([key], timedelta(seconds=limit))
            except RuntimeError:
                # A timeout takes its time; whatever comes sooner is a failure.
                if time.monotonic() - now < limit / 2:
                    raise
        return self._store.get(key)

    def describe(self) -> str:
        return self._name


def _describe(store: Store) -> str:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, TCPStore):
        return f"{store.host}:{store.port}"
    return type(store).__name__
