"""The backend of torch.distributed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
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


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library of an accelerator that is simulated."""
    library = tmp_path_factory.mktemp("device") / "device.so"
    home = Path(torch.__file__).parent
    include = [f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    source = Path(__file__).parent / "device" / "device.cpp"
    command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-o", str(library), str(source), *include]
    subprocess.run([*command, f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"], check=True, timeout=300)
    return str(library)


ON_DEVICE = [
    (2, "accelerated"),
    (3, "accelerated"),
    (2, "tensors"),
    (2, "ddp", "as_computed_alone", "with_hooks_of_ringway", "unused_parameters", "a_gradient_that_is_not_finite"),
    (2, "pipelined", "clipping", "mixed_precision", "freezing"),
    (2, "sharded", "fully_sharded", "functional_collectives"),
]


@pytest.mark.parametrize("case", ON_DEVICE, ids=lambda case: f"{case[1]}-{case[0]}")
def test_tensors_on_an_accelerator(case: tuple[int, *tuple[str, ...]], simulated: str, tmp_path: Path) -> None:
    ranks, *what = case
    with World(tmp_path, "on_device", ranks, [simulated, *what]) as world:
        world.succeed(180)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("case", ON_DEVICE, ids=lambda case: f"{case[1]}-{case[0]}")
def test_tensors_on_a_gpu(case: tuple[int, *tuple[str, ...]], tmp_path: Path) -> None:
    ranks, *what = case
    with World(tmp_path, "on_device", ranks, ["cuda", *what]) as world:
        world.succeed(180)


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
