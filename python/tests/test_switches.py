"""Configurations of `ringway fabric config` against what others know of the switches' systems."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

# Imported so, as mypy would read tens of megabytes of models.
cumulus: Any = importlib.import_module("nvueschema.models.v5_14")
pyavd: Any = importlib.import_module("pyavd")

GOLDEN = Path(__file__).parents[2] / "crates" / "ringway-doctor" / "tests" / "golden"

# Where `nv set PATH VALUE` adds to a set, which the models have as keys.
SETS = [("qos", "pfc", "default-global", "switch-priority")]


def nvue(text: str) -> dict[str, Any]:
    """The configuration that `nv set` commands make."""
    tree: dict[str, Any] = {}
    for line in text.splitlines():
        if not line.startswith("nv set "):
            continue
        *path, value = line.split()[2:]
        in_set = tuple(path) in SETS
        at = tree
        for key in path if in_set else path[:-1]:
            at = at.setdefault(key, {})
        if in_set:
            at[value] = {}
        else:
            at[path[-1]] = value
    return tree


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The paths of a configuration, without values, which models may write in other words."""
    found: set[tuple[str, ...]] = set()
    for key, value in tree.items():
        below = (*path, str(key))
        found |= leaves(value, below) if isinstance(value, dict) and value else {below}
    return found


@pytest.mark.parametrize("name", ["plain", "rich"])
def test_cumulus_takes_every_word(name: str) -> None:
    tree = nvue((GOLDEN / f"{name}.nvue.apply.txt").read_text())
    model = cumulus.NvueConfig.model_validate(tree)
    # The models leave out without a word what they do not know.
    assert leaves(tree) == leaves(model.model_dump(by_alias=True, exclude_unset=True, mode="json"))


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("probability 100", "probability 101"),
        ("mode dwrr", "mode wrr"),
        ("trust l3", "trust l4"),
        ("polling-interval 100", "polling-interval 10"),
    ],
)
def test_cumulus_refuses_what_is_out_of_range(good: str, bad: str) -> None:
    text = (GOLDEN / "plain.nvue.apply.txt").read_text()
    assert good in text
    with pytest.raises(ValueError, match="validation error"):
        cumulus.NvueConfig.model_validate(nvue(text.replace(good, bad)))


def eos(text: str) -> set[tuple[str, ...]]:
    """The lines of a configuration, each with those that it is below."""
    lines: set[tuple[str, ...]] = set()
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        words = line.strip()
        if not words or words.startswith("!"):
            continue
        indent = len(line) - len(line.lstrip())
        above = [it for it in above if it[0] < indent]
        above.append((indent, words))
        lines.add(tuple(it[1] for it in above))
    return lines


def lossless() -> dict[str, Any]:
    """The intent `plain`, in the words of Arista's own generator."""
    priorities = {26: 3, 48: 6}
    ecn = {"units": "kbytes", "min": 150, "max": 1500, "max_probability": 100}
    shared = {"priority": "no priority", "bandwidth_percent": 50}
    marked = {"id": 3, **shared, "random_detect": {"ecn": {"threshold": ecn}}}
    interface = {
        "mtu": 9214,
        "qos": {"trust": "dscp"},
        "service_profile": "RW",
        "uc_tx_queues": [{"id": 3, "random_detect": {"ecn": {"count": True}}}],
    }
    dscp = [f"{it} to traffic-class {priorities.get(it, 0)}" for it in range(64)]
    watchdog = {"action": "drop", "timeout": "0.20", "recovery_time": "0.20"}
    return {
        "hostname": "leaf",
        "qos": {"map": {"dscp": dscp}},
        "priority_flow_control": {"watchdog": {**watchdog, "polling_interval": "0.100"}},
        "qos_profiles": [
            {
                "name": "RW",
                "trust": "dscp",
                "priority_flow_control": {
                    "enabled": True,
                    "priorities": [{"priority": 3, "no_drop": True}],
                    "watchdog": {"enabled": True},
                },
                "uc_tx_queues": [
                    {"id": 0, **shared},
                    marked,
                    {"id": 6, "priority": "priority strict"},
                ],
            }
        ],
        "ethernet_interfaces": [{"name": f"Ethernet{it}", **interface} for it in (1, 2)],
    }


def test_eos_is_what_pyavd_renders() -> None:
    theirs = eos(pyavd.get_device_config(lossless())) - {("hostname leaf",)}
    ours = eos((GOLDEN / "plain.eos.apply.txt").read_text())
    # In kbps, as the watchdog needs it; pyavd has the form in percent only.
    bare = {it for it in ours if re.match(r"tx-queue|bandwidth guaranteed \d+$", it[-1])}
    assert ours - bare == theirs
    assert {it[-1] for it in bare} == {"tx-queue 3", "bandwidth guaranteed 100"}
