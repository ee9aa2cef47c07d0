"""What `ringway fabric config --for sonic` prints, against SONiC's own YANG models.

They are in no package: `RINGWAY_SONIC_MODELS` names the directory src/sonic-yang-models of a copy of
github.com/sonic-net/sonic-buildimage (docs/doctor.md, "Against SONiC's models").
"""

import importlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
VARIABLE = "RINGWAY_SONIC_MODELS"
TOOLS = "pip install yangson==1.7.9 pyang==2.7.1"

# The modules of the tables that are written, and of those which these refer to.
MODULES = [
    "sonic-dscp-tc-map",
    "sonic-tc-queue-map",
    "sonic-tc-priority-group-map",
    "sonic-pfc-priority-queue-map",
    "sonic-pfc-priority-priority-group-map",
    "sonic-scheduler",
    "sonic-wred-profile",
    "sonic-port-qos-map",
    "sonic-queue",
    "sonic-buffer-pool",
    "sonic-buffer-profile",
    "sonic-buffer-queue",
    "sonic-cable-length",
    "sonic-pfcwd",
    "sonic-port",
]

# The buffers that SONiC's own templates load, whose profiles a configuration names.
STOCK = {
    "BUFFER_POOL": {
        "egress_lossless_pool": {"type": "egress", "mode": "static", "size": "12766208"},
        "egress_lossy_pool": {"type": "egress", "mode": "dynamic", "size": "7326924"},
    },
    "BUFFER_PROFILE": {
        "egress_lossless_profile": {
            "pool": "egress_lossless_pool",
            "size": "0",
            "static_th": "12766208",
        },
        "egress_lossy_profile": {"pool": "egress_lossy_pool", "size": "1518", "dynamic_th": "3"},
    },
}

INTENTS = {
    "plain": (REPOSITORY / "crates/ringway-doctor/tests/intents/plain.yaml").read_text(),
    "rich": (REPOSITORY / "crates/ringway-doctor/tests/intents/rich.yaml").read_text(),
    "example": (REPOSITORY / "examples/lossless.yaml").read_text(),
    "lossy": """
name: LOSSY
classes:
  data: {dscp: 10, priority: 1, bandwidth: 60, ecn: {min: 200kB, max: 400kB, probability: 5}}
  cnp: {dscp: 48, priority: 6, strict: true}
  default: {priority: 0, bandwidth: 40}
mtu: 4200
watchdog: {enabled: false}
switch: {ports: 1-4}
host: {nics: [{interface: eth0, device: mlx5_0}]}
""",
    "many ports, ends of all ranges": """
name: a-name_of-20-letters
classes:
  data: {dscp: [1, 63], priority: 7, lossless: true, bandwidth: 98, ecn: {min: 1kB, max: 2kB, probability: 1}}
  elevenchars: {dscp: 2, priority: 5, lossless: true, bandwidth: 1, ecn: {min: 1MiB, max: 2MiB}}
  cnp: {dscp: 62, priority: 6, strict: true}
  default: {priority: 0, bandwidth: 1}
mtu: 9000
watchdog: {poll: 100ms, detect: 5s, restore: 60s, action: forward}
switch: {ports: 1-64, cable: 300, sonic_lanes: 4, mtu: 9100}
host: {nics: [{interface: eth0, device: mlx5_0}]}
""",
    "ports by name": """
name: RW
classes:
  data: {dscp: 26, priority: 3, lossless: true, bandwidth: 50, ecn: {min: 150kB, max: 1500kB}}
  cnp: {dscp: 48, priority: 6, strict: true}
  default: {priority: 0, bandwidth: 50}
mtu: 9000
watchdog: {poll: 1s, detect: 1s, restore: 1s}
switch: {ports: [Ethernet0, Ethernet12, Ethernet1024]}
host: {nics: [{interface: eth0, device: mlx5_0}]}
""",
}


def models() -> Path:
    """The directory of the models; a test that needs it is skipped without."""
    named = os.environ.get(VARIABLE)
    if named is None:
        pytest.skip(
            f"{VARIABLE} is not set: SONiC's YANG models are in no package; it takes the directory"
            " src/sonic-yang-models of a copy of github.com/sonic-net/sonic-buildimage"
        )
    directory = Path(named)
    if not (directory / "yang-models" / "sonic-port.yang").is_file():
        pytest.fail(f"{VARIABLE}={named}: expected yang-models/sonic-port.yang in it")
    return directory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """SONiC's models, as yangson has them."""
    directory = models()
    yangson = pytest.importorskip("yangson", reason=f"yangson is missing: {TOOLS}")
    # pyang brings the modules of the IETF's that SONiC's import.
    standard = Path(sys.prefix) / "share" / "yang" / "modules" / "ietf"
    if not standard.is_dir():
        pytest.skip(f"{standard} is missing: {TOOLS}")
    jinja2: Any = importlib.import_module("jinja2")
    here = tmp_path_factory.mktemp("yang")
    files = [*(directory / "yang-models").glob("*.yang"), *standard.glob("ietf-*-types.yang")]
    texts = {it.stem: it.read_text() for it in files}
    for template in (directory / "yang-templates").glob("*.yang.j2"):
        # As their setup.py does it.
        text = jinja2.Template(template.read_text(), trim_blocks=True).render(yang_model_type="py")
        texts[template.name.removesuffix(".yang.j2")] = text
    for name, text in texts.items():
        # The same of a leaf, in the words that yangson knows.
        (here / f"{name}.yang").write_text(text.replace("[text()=", "[.="))
    library = {
        "ietf-yang-library:modules-state": {
            "module-set-id": "sonic",
            "module": [entry(name, texts[name]) for name in closure(MODULES, texts)],
        }
    }
    return yangson.DataModel(json.dumps(library), (str(here),))


def closure(names: list[str], texts: dict[str, str]) -> list[str]:
    """The modules and all that they import."""
    found: list[str] = []
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in found or name not in texts:
            continue
        found.append(name)
        todo += re.findall(r"^\s*import\s+([\w-]+)", texts[name], re.MULTILINE)
    return found


def entry(name: str, text: str) -> dict[str, str]:
    """A module as `ietf-yang-library` lists it."""
    revision = re.search(r"^\s*revision\s+\"?([\d-]+)", text, re.MULTILINE)
    space = re.search(r"^\s*namespace\s+\"([^\"]+)\"", text, re.MULTILINE)
    assert space is not None, name
    return {
        "name": name,
        "revision": revision[1] if revision else "",
        "namespace": space[1],
        "conformance-type": "implement",
    }


def instance(model: Any, config: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A config_db.json in the shape of the models: tables are lists, keys leaves, and numbers numbers."""
    tables = {}
    for module in model.schema.children:
        for table in getattr(module, "children", []):
            tables[table.name] = (module, table)
    found: dict[str, Any] = {}
    for name, entries in config.items():
        # A table that the models do not have is a fault, too.
        module, table = tables[name]
        top = f"{module.ns}:{module.name}"
        lists: dict[str, list[dict[str, Any]]] = {}
        for key, fields in entries.items():
            parts = key.split("|")
            # Lists of one table differ in how many keys they have.
            of = next(it for it in table.children if len(getattr(it, "keys", [])) == len(parts))
            row: dict[str, Any] = dict(zip([it[0] for it in of.keys], parts, strict=True))
            inner = [it for it in of.children if hasattr(it, "keys")]
            if inner:
                # A map: its fields are rows of a list.
                here, there = sorted(inner[0].children, key=lambda it: it.name != inner[0].keys[0][0])
                row[inner[0].name] = [
                    {here.name: typed(here, key), there.name: typed(there, value)} for key, value in fields.items()
                ]
            else:
                leaves = {it.name: it for it in of.children}
                row |= {field: typed(leaves[field], text) for field, text in fields.items()}
            lists.setdefault(of.name, []).append(row)
        found.setdefault(top, {})[table.name] = lists
    return found


def typed(leaf: Any, text: str) -> Any:
    """A value as RFC 7951 has it: numbers of 64 bits are strings there."""
    kind = type(leaf.type).__name__
    if re.fullmatch(r"U?[Ii]nt(8|16|32)Type", kind):
        return int(text)
    if kind == "BooleanType":
        return {"true": True, "false": False}[text]
    return text


def printed(intent: str, where: Path) -> dict[str, Any]:
    """What the command prints for an intent."""
    ringway = [REPOSITORY / "target" / kind / "ringway" for kind in ("debug", "release")]
    ringway = [it for it in ringway if it.is_file()]
    if not ringway:
        pytest.skip("there is no ringway command: cargo build -p ringway-cli makes one")
    newest = max(ringway, key=lambda it: it.stat().st_mtime)
    path = where / "intent.yaml"
    path.write_text(intent)
    command: list[str | Path] = [newest, "fabric", "config", path, "--for", "sonic"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    config: dict[str, Any] = json.loads(done.stdout)
    return config


def with_stock(config: dict[str, Any]) -> dict[str, Any]:
    """The same on a switch that has its buffers and its ports' lanes."""
    config = {**STOCK, **config}
    lanes = itertools.count()
    for port in config["PORT"].values():
        port |= {"lanes": str(next(lanes)), "speed": "100000"}
    return config


def validate(model: Any, config: dict[str, Any]) -> None:
    """Raises what yangson finds wrong."""
    model.from_raw(instance(model, config)).validate()


@pytest.mark.parametrize("name", INTENTS)
def test_sonic_takes_what_is_printed(model: Any, tmp_path: Path, name: str) -> None:
    validate(model, with_stock(printed(INTENTS[name], tmp_path)))


def spoil(table: str, key: str, field: str, value: str | None) -> Callable[[dict[str, Any]], None]:
    """Sets a field to something that is wrong, or takes away what others refer to."""

    def change(config: dict[str, Any]) -> None:
        if value is None:
            del config[table][key]
        else:
            config[table][key][field] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        spoil("WRED_PROFILE", "TRAIN-1-DATA", "green_max_threshold", "1"),
        spoil("WRED_PROFILE", "TRAIN-1-DATA", "ecn", "ecn_everything"),
        spoil("DSCP_TO_TC_MAP", "TRAIN-1", "64", "0"),
        spoil("DSCP_TO_TC_MAP", "TRAIN-1", "", None),
        spoil("TC_TO_QUEUE_MAP", "TRAIN-1", "", None),
        spoil("SCHEDULER", "TRAIN-1-DATA", "weight", "0"),
        spoil("SCHEDULER", "TRAIN-1-DATA", "", None),
        spoil("PORT_QOS_MAP", "Ethernet0", "pfc_enable", "3-4"),
        spoil("BUFFER_QUEUE", "Ethernet0|3", "profile", "no_such_profile"),
        spoil("CABLE_LENGTH", "AZURE", "Ethernet0", "40"),
        spoil("PFC_WD", "Ethernet0", "detection_time", "100"),
        spoil("PORT", "Ethernet0", "mtu", "90000"),
    ],
)
def test_sonic_refuses_what_is_wrong(model: Any, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    exceptions = importlib.import_module("yangson.exceptions")
    config = with_stock(printed(INTENTS["rich"], tmp_path))
    change(config)
    with pytest.raises(exceptions.YangsonException):
        validate(model, config)
