"""The communicator on objects with the buffer protocol, and what the package says of itself."""

import subprocess
import sys
from pathlib import Path

import pytest
import ringway
from ranks import World, environment


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_call(ranks: int, tmp_path: Path) -> None:
    with World(tmp_path, "arrays", ranks) as world:
        world.succeed()


def test_registered_memory(tmp_path: Path) -> None:
    with World(tmp_path, "registered", 2, env={"RINGWAY_TRANSPORTS": "rdma"}) as world:
        world.succeed()


def test_a_rank_leaves_at_its_end(tmp_path: Path) -> None:
    with World(tmp_path, "leaving", 2) as world:
        assert "rank 1 has left" in world.succeed()[0]


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    program = "import ringway; ringway.init(connect_timeout='1s')"
    env = environment(RANK="0", WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", MASTER_PORT="29499")
    run = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=30, check=False
    )
    assert run.returncode == 1
    assert "ringway.errors.BootstrapError: ranks 1, 2 of 3 have not joined" in run.stderr


def test_without_a_launcher() -> None:
    with pytest.raises(ringway.BootstrapError, match="ringway run"):
        ringway.init()


def test_the_stubs_say_what_is_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy.stubtest", "ringway._ringway"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
