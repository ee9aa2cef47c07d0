"""The Kubernetes manifests of `ringway fabric k8s` against Kubernetes's own schemas."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

GOLDEN = Path(__file__).parents[2] / "crates" / "ringway-doctor" / "tests" / "golden"


def objects(path: Path) -> list[dict[str, Any]]:
    """The objects of a file, without custom resources, for which Kubernetes has no schema."""
    documents = yaml.safe_load_all(path.read_text())
    return [it for it in documents if not it["apiVersion"].startswith("k8s.cni.cncf.io/")]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.k8s.yaml")), ids=lambda path: path.name)
def test_manifests_are_valid(path: Path) -> None:
    found = objects(path)
    assert {it["kind"] for it in found} == {"ConfigMap", "Service", "Job"}
    for it in found:
        kubernetes_validate.validate(it, "1.31", strict=True)


def test_a_misspelt_key_is_refused() -> None:
    job = next(it for it in objects(GOLDEN / "plain.k8s.yaml") if it["kind"] == "Job")
    job["spec"]["completionMod"] = job["spec"].pop("completionMode")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.31", strict=True)
