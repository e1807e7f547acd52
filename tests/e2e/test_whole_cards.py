"""Whole cards on nodes of NVIDIA's device plugin: what a Pod gets, and why it waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kube.bursts import eventually, remove_pods
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import Identities, asking, extender
from tests.support.mutation import mutate
from tests.support.process import tenure

GPU = "nvidia.com/gpu"
NO_AGENT = (
    "NodeNotOffered: the node does not advertise koordinator.sh/gpu-core:"
    " run the agent with --node there"
)
SQLITE = pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)


def add_plugin_node(plane: ControlPlane, name: str, **cards: str) -> None:
    """Make a Node whose cards NVIDIA's device plugin advertises, and nobody else."""
    api = plane.api()
    labels = {"kubernetes.io/hostname": name}
    made = api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    assert made.ok, made.message
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", **cards}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    assert api.patch(f"/api/v1/nodes/{name}/status", {"status": status}).ok


def remove_nodes(plane: ControlPlane) -> None:
    """Delete every Node."""
    for one in plane.api().get("/api/v1/nodes").body["items"]:
        plane.api().delete(f"/api/v1/nodes/{one['metadata']['name']}")


@pytest.fixture
def plugin_nodes(plane: ControlPlane) -> Iterator[tuple[str, ...]]:
    """Two nodes with eight cards each, without an agent."""
    for name in ("gpu-1", "gpu-2"):
        add_plugin_node(plane, name, **{GPU: "8"})
    yield "gpu-1", "gpu-2"
    remove_nodes(plane)


def admitted(name: str, amounts: dict[str, str]) -> dict[str, Any]:
    """Return a Pod as admission stores it by its defaults."""
    made: dict[str, Any] = mutate(pod(name, amounts))
    return made


def told(plane: ControlPlane, where: str, name: str, reason: str) -> str:
    """Return what the newest Event of a reason says of a Pod, empty without one."""
    events = plane.api().get(where.replace("/pods", "/events")).body["items"]
    about = [
        one for one in events if one["involvedObject"]["name"] == name and one["reason"] == reason
    ]
    return str(about[-1]["message"]) if about else ""


@SQLITE
@pytest.mark.usefixtures("plugin_nodes")
def test_a_node_that_does_not_advertise_what_a_pod_is_stored_with_is_named_so(
    plane: ControlPlane,
    namespace: Callable[..., str],
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """The Event, `why` of the ledger and `why` of the objects say which name, and what to do."""
    where = pods_in(team := namespace(managed=False))
    with (
        extender(plane, ledger, identities) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        assert plane.api().create(where, admitted("first", {GPU: "1"})).ok
        said = eventually(lambda: told(plane, where, "first", "DevicesRefused"))
    assert said == (
        f"0/2 nodes are available: 2 {NO_AGENT}. Nearest on gpu-1: run the agent with --node there."
    )
    of_ledger = tenure("why", f"{team}/first", "--ledger", ledger, "-o", "json", cwd=tmp_path)
    items = [
        *plane.api().get("/api/v1/nodes").body["items"],
        plane.api().get(f"{where}/first").body,
    ]
    kinds = ("Node", "Node", "Pod")
    listed = [{"kind": kind, **one} for kind, one in zip(kinds, items, strict=True)]
    (tmp_path / "dump.json").write_text(json.dumps({"kind": "List", "items": listed}))
    of_files = tenure("why", f"{team}/first", "dump.json", "-o", "json", cwd=tmp_path)
    for answer in (of_ledger, of_files):
        assert answer.returncode == 0, answer.stderr
        document = json.loads(answer.stdout)
        assert [one["reason"] for one in document["reasons"]] == [NO_AGENT], answer.stdout
        assert document["nearest"]["fits"] is None, answer.stdout
        assert {one["reason"] for one in document["nodes"]} == {NO_AGENT}, answer.stdout
    remove_pods(plane, where, ["first"])
