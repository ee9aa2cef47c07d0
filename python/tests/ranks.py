"""Starts the ranks of a case and looks after them."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

CASES = Path(__file__).parent / "cases"


@dataclass
class Rank:
    """A rank's process, and where its output goes."""

    process: "subprocess.Popen[bytes]"
    output: Path

    def text(self) -> str:
        return self.output.read_text(errors="replace")


def environment(**more: str) -> dict[str, str]:
    """Of a process that is no rank yet. Imports are kept compiled: there are many processes here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RINGWAY_", "PYTHONDONTWRITE"))}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**kept, **threads, **more}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class World:
    """The ranks of a case, as processes of this machine."""

    def __init__(
        self, folder: Path, case: str, ranks: int, args: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        self.ranks: list[Rank] = []
        port = str(free_port())
        for rank in range(ranks):
            variables = environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(ranks),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                **(env or {}),
            )
            output = folder / f"rank-{rank}.txt"
            command = [sys.executable, "-X", "faulthandler", str(CASES / f"{case}.py"), *args]
            with output.open("wb") as file:
                self.ranks.append(Rank(start(command, variables, file), output))

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            if rank.process.poll() is None:
                os.killpg(rank.process.pid, signal.SIGKILL)
            rank.process.wait()
            if rank.process.stdin is not None:
                rank.process.stdin.close()

    def statuses(self, limit: float) -> list[int]:
        """The exit statuses; whoever has not ended after so many seconds is made to say where it is, and killed."""
        end = time.monotonic() + limit
        for rank in self.ranks:
            try:
                rank.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                rank.process.send_signal(signal.SIGABRT)
        return [rank.process.wait(10) for rank in self.ranks]

    def succeed(self, limit: float = 60) -> list[str]:
        """The outputs of ranks that all end well."""
        statuses = self.statuses(limit)
        assert statuses == [0] * len(self.ranks), self.report(statuses)
        return [rank.text() for rank in self.ranks]

    def report(self, statuses: Sequence[int]) -> str:
        parts = (
            f"rank {n} ended with {s}:\n{r.text()}" for n, (s, r) in enumerate(zip(statuses, self.ranks, strict=True))
        )
        return "\n".join(parts)

    def go(self, rank: int) -> None:
        """Gives a rank the line that it waits for."""
        stdin = self.ranks[rank].process.stdin
        assert stdin is not None
        stdin.write(b"go\n")
        stdin.close()

    def wait_for(self, rank: int, text: str, limit: float = 60) -> None:
        """Returns when a rank has printed a text."""
        end = time.monotonic() + limit
        while text not in self.ranks[rank].text():
            assert self.ranks[rank].process.poll() is None, self.ranks[rank].text()
            assert time.monotonic() < end, f"rank {rank} did not print {text!r} but {self.ranks[rank].text()!r}"
            time.sleep(0.01)


def start(command: Sequence[str], variables: Mapping[str, str], output: IO[bytes]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command, env=variables, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.PIPE, start_new_session=True
    )
