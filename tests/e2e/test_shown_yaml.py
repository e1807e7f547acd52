"""Every YAML that the documents and examples show, before a real API server and `tenure check`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from ledger.domain.resources import LABEL_TENURE_MANAGED
from tests.support.kube.control_plane import MALLORY, ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.policies import in_force
from tests.support.kube.webhooks import serving
from tests.support.process import ROOT, tenure

_BLOCK: Final = re.compile(r"^```ya?ml[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SETTINGS: Final = {"tenure.sh/v1alpha1", "kubescheduler.config.k8s.io/v1"}
"""The `apiVersion`s of settings files, ours and kube-scheduler's, which no API server takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A file of YAML, or a block of it in a document."""

    place: str
    objects: tuple[dict[str, Any], ...]


def _texts() -> Iterator[tuple[str, str]]:
    """Yield each file and each block with its place."""
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for path in documents:
        text = path.read_text("utf-8")
        for block in _BLOCK.finditer(text):
            line = text[: block.start()].count("\n") + 1
            yield f"{path.relative_to(ROOT)}:{line}", block[1]
    for path in sorted((ROOT / "examples").rglob("*.y*ml")):
        yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def _is_object(body: object) -> bool:
    """Tell a Kubernetes object from settings and from a part of an object."""
    return isinstance(body, dict) and "kind" in body and body.get("apiVersion") not in _SETTINGS


def shown() -> list[Shown]:
    """Return every file and block that has an object."""
    found = []
    for place, text in _texts():
        objects = tuple(filter(_is_object, yaml.safe_load_all(text)))
        if objects:
            found.append(Shown(place=place, objects=objects))
    return found


@pytest.fixture(scope="module", autouse=True)
def cluster(plane: ControlPlane) -> Iterator[None]:
    """Webhooks and policies in force, and the kinds that inventories are of."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    with serving(plane), in_force(plane):
        yield


def test_the_documents_show_objects_and_no_pod_without_its_kind() -> None:
    """What a reader copies is whole: of a part of a Pod nobody could say whether it is right."""
    assert {one.place.partition(":")[0] for one in shown()} >= {
        "docs/cpus.md",
        "docs/admission.md",
        *(f"examples/{name}.yaml" for name in ("cannot", "cluster", "cpuset", "nvidia")),
    }
    for place, text in _texts():
        for body in yaml.safe_load_all(text):
            spec = body.get("spec") if isinstance(body, dict) else None
            assert not (isinstance(spec, dict) and "containers" in spec) or _is_object(body), place


def _collection(plane: ControlPlane, body: dict[str, Any]) -> str:
    """Return the path that an object belongs to, in a managed namespace if it has one at all."""
    version = body["apiVersion"]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    served = plane.api().get(base)
    assert served.ok, f"no such kind is served, define it in this test: {version} {body['kind']}"
    (kind,) = (
        each
        for each in served.body["resources"]
        if each["kind"] == body["kind"] and "/" not in each["name"]
    )
    if not kind["namespaced"]:
        return f"{base}/{kind['name']}"
    where = body["metadata"]["namespace"]
    space = {"metadata": {"name": where, "labels": {LABEL_TENURE_MANAGED: "true"}}}
    assert plane.api().create("/api/v1/namespaces", space).status in {201, 409}
    return f"{base}/namespaces/{where}/{kind['name']}"


@pytest.mark.parametrize("one", [pytest.param(one, id=one.place) for one in shown()])
def test_check_and_the_api_server_answer_alike(
    plane: ControlPlane, one: Shown, tmp_path: Path
) -> None:
    """Of each object, as it stands there, in a namespace that counts as managed for both."""
    for body in one.objects:
        body["metadata"].setdefault("namespace", "shown")
    file = tmp_path / "shown.yaml"
    file.write_text(yaml.safe_dump_all(one.objects))
    done = tenure("check", str(file), "-o", "json", cwd=tmp_path)
    assert done.returncode in {0, 1}, done.stderr
    checked = json.loads(done.stdout)
    assert len(checked) == len(one.objects)
    for body, said in zip(one.objects, checked, strict=True):
        path = _collection(plane, body)
        if "/namespaces/" not in path:
            del body["metadata"]["namespace"]
        reply = plane.api(MALLORY).create(path, body, dry_run=True)
        assert reply.status in {201, 400, 403, 422}, (reply.status, reply.message)
        assert reply.ok == said["allowed"], (body, reply.message, said["message"])
