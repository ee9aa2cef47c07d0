"""The backend of torch.distributed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import CASES, World, environment


@pytest.mark.parametrize(
    ("case", "ranks"),
    [
        ("tensors", 2),
        ("tensors", 3),
        ("ddp", 2),
        ("pipelined", 2),
        ("pipelined", 3),
        ("pipeline_errors", 2),
        ("pipeline_errors", 3),
        ("sharded", 2),
        ("again", 2),
        ("early", 3),
        ("forked", 2),
        ("late", 2),
        ("unused", 2),
        ("unused", 3),
    ],
)
def test_case(case: str, ranks: int, tmp_path: Path) -> None:
    with World(tmp_path, case, ranks) as world:
        world.succeed()


def test_over_tcp(tmp_path: Path) -> None:
    with World(tmp_path, "tensors", 2, env={"RINGWAY_TRANSPORTS": "tcp"}) as world:
        world.succeed()


@pytest.mark.parametrize("transports", ["rdma", "auto"])
def test_a_model_that_is_registered(transports: str, tmp_path: Path) -> None:
    with World(tmp_path, "model", 2, env={"RINGWAY_TRANSPORTS": transports}) as world:
        world.succeed()


@pytest.mark.parametrize("what", ["shape", "type", "operation", "call"])
def test_different_calls_are_named_on_both_ranks(what: str, tmp_path: Path) -> None:
    with World(tmp_path, "mismatched", 2, [what]) as world:
        for text in world.succeed():
            assert "named both" in text


@pytest.mark.parametrize("call", ["blocking", "wait", "future", "ddp", "pipeline", "compressed"])
def test_a_killed_rank_is_named_within_two_seconds(call: str, tmp_path: Path) -> None:
    with World(tmp_path, "killed", 3, [call]) as world:
        statuses = world.statuses(60)
        assert statuses == [0, 0, -signal.SIGKILL], world.report(statuses)
        for rank in world.ranks[:2]:
            # The autograd engine passes errors on as text.
            assert call in ("future", "ddp") or "named" in rank.text()
            assert "barrier failed" in rank.text()


def torchrun(*args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *args]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100, check=False)


def test_torchrun() -> None:
    run = torchrun(str(CASES / "again.py"))
    assert run.returncode == 0, run.stdout + run.stderr


def test_restart_by_torchrun() -> None:
    run = torchrun("--max-restarts=1", "--monitor-interval=0.1", str(CASES / "restarted.py"))
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.findall(r"rank . came through in attempt (.)", run.stdout) == ["1", "1"]


@pytest.mark.parametrize("how", ["blocking", "wait"])
@pytest.mark.parametrize("what", ["numpy", "torch"])
def test_ctrl_c(what: str, how: str, tmp_path: Path) -> None:
    with World(tmp_path, "interrupted", 2, [what, how]) as world:
        world.wait_for(0, "waiting")
        time.sleep(0.3)
        os.kill(world.ranks[0].process.pid, signal.SIGINT)
        began = time.monotonic()
        world.wait_for(0, "interrupted")
        assert time.monotonic() - began < 1
        world.go(1)
        for text in world.succeed(20):
            assert "the sum is there" in text
