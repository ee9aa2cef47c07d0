"""A rank that ends right after it has joined, with the store in its process, while another still joins."""

import os
import time

import ringway.torch._store
from torch_rank import join

get = ringway.torch._store.TorchStore.get


def late(self: ringway.torch._store.TorchStore, key: str, seconds: float) -> bytes | None:
    if key.startswith("ringway/shm") and os.environ["RANK"] != "0":
        time.sleep(1)
    return get(self, key, seconds)


ringway.torch._store.TorchStore.get = late  # type: ignore[method-assign]
join()
print("joined", flush=True)
# Without leaving, which would wait for the others.
os._exit(0)
