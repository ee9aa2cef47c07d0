"""The examples that compare."""

import json
from pathlib import Path

from ranks import World

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_ablation(tmp_path: Path) -> None:
    """All stages train to the same parameters on all ranks, and to about the same accuracy where they should."""
    report, page = tmp_path / "ablation.json", tmp_path / "ablation.html"
    args = ["--task", "text", "--steps", "6", "--batch", "8", "--seeds", "1", "--codecs", "int8"]
    files = ["--json", str(report), "--html", str(page)]
    with World(tmp_path, str(EXAMPLES / "ablation"), 2, [*args, *files]) as world:
        world.succeed()
    record = json.loads(report.read_text())
    stages = {row["stage"]: row for row in record["stages"]}
    assert list(stages) == ["alone", "gloo", "ringway", "+ buckets", "+ pipeline", "+ int8", "+ batching"]
    assert all(row["step_seconds"] > 0 for row in stages.values())
    # What differs is the order of additions and what int8 has not sent yet.
    losses = [row["loss"] for name, row in stages.items() if name != "alone"]
    assert max(losses) - min(losses) < 0.02 * max(losses), losses
    # One rank by itself sees half of the examples.
    alone = next(run["loss"] for run in record["runs"] if run["stage"] == "alone")
    assert abs(alone - stages["gloo"]["loss"]) > 1e-4
    assert page.read_text().count("<rect") == 2 * len(stages)
