"""What `tenure serve cpus` may write, by tokens of a real API server and the printed manifests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from ledger.domain.resources import CONDITION_TENURE_CPUS
from scheduler.service.api.words import CPUS_ACCOUNT
from tests.support.kube.agents import agent_token
from tests.support.kube.api import Api
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.webhooks import apply, expect_taken, remove
from tests.support.manifests import printed_cpus

OURS: Final = "tenure-cpus-rights"
NODES: Final = "/api/v1/nodes"
APPLY: Final = "application/apply-patch+yaml"
MINE, OTHER = "cpus-a", "cpus-b"
OPTIONS: Final = ("--namespace", OURS, "--bind", "--partitions")


@pytest.fixture(scope="module")
def mine(plane: ControlPlane) -> Iterator[Api]:
    """The API as the process of node `cpus-a` reaches it, with all that is printed in force."""
    plane.api().create("/api/v1/namespaces", {"metadata": {"name": OURS}})
    made = printed_cpus(*OPTIONS)
    apply(plane, made)
    nodes = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in (MINE, OTHER)
    ]
    apply(plane, nodes)
    words = pod("cpus", {"cpu": "1m"}, nodeName=MINE, serviceAccountName=CPUS_ACCOUNT)
    running = plane.api().create(pods_in(OURS), words)
    assert running.ok, running.message
    token = agent_token(plane, OURS, running.body, account=CPUS_ACCOUNT)
    unbound = Api(
        plane.url,
        ca_file=plane.ca_file,
        token=agent_token(plane, OURS, None, account=CPUS_ACCOUNT),
    )

    def is_in_force() -> bool:
        reply = unbound.patch(f"{NODES}/{MINE}", {"metadata": {"labels": {"x": "1"}}})
        return "bound to no Pod" in reply.message

    eventually(is_in_force)
    yield Api(plane.url, ca_file=plane.ca_file, token=token)
    plane.api().delete(f"{pods_in(OURS)}/cpus?gracePeriodSeconds=0")
    remove(plane, [*nodes, *made])


def node(name: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return a Node as it is applied."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, **more}


def said(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return what is applied to a Node while containers are bound there, by path."""
    labelled = node(name)
    labelled["metadata"]["labels"] = {"tenure.sh/cpu-managed": "true"}
    condition = {"type": CONDITION_TENURE_CPUS, "status": "True", "reason": "Bound", "message": "m"}
    return [
        (f"{NODES}/{name}?fieldManager=tenure-cpus", labelled),
        (
            f"{NODES}/{name}/status?fieldManager=tenure-cpus-condition",
            node(name, status={"conditions": [condition]}),
        ),
    ]


def test_the_api_server_takes_all_that_is_printed(plane: ControlPlane, mine: Api) -> None:
    """The policy compiles without a warning; the DaemonSet is what it takes for one."""
    assert mine
    expect_taken(plane, printed_cpus(*OPTIONS))


def test_it_says_on_its_own_node_that_it_binds_and_takes_that_back(mine: Api) -> None:
    """Label and condition, by server-side apply, as the process does."""
    for path, body in said(MINE):
        reply = mine.patch(f"{path}&force=true", body, APPLY)
        assert reply.ok, (path, reply.message)
    there = mine.get(f"{NODES}/{MINE}").body
    assert there["metadata"]["labels"]["tenure.sh/cpu-managed"] == "true"
    assert CONDITION_TENURE_CPUS in {one["type"] for one in there["status"]["conditions"]}
    reply = mine.patch(f"{said(MINE)[0][0]}&force=true", node(MINE), APPLY)
    assert reply.ok, reply.message
    assert "tenure.sh/cpu-managed" not in (reply.body["metadata"].get("labels") or {})


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("", {"metadata": {"labels": {"tenure.sh/bind-cpus": "true"}}}),
        ("", {"metadata": {"labels": {"other": "1"}}}),
        ("", {"metadata": {"annotations": {"a": "b"}}}),
        ("", {"metadata": {"finalizers": ["a.test/b"]}}),
        ("", {"spec": {"unschedulable": True}}),
        ("/status", {"status": {"capacity": {"cpu": "512"}}}),
        ("/status", {"status": {"nodeInfo": {"kubeletVersion": "v9.9.9"}}}),
        ("/status", {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 4444}}}}),
        ("/status", {"status": {"images": [{"names": ["a.test/b:1"], "sizeBytes": 1}]}}),
        ("/status", {"status": {"volumesInUse": ["a.test/b"]}}),
        ("/status", {"status": {"volumesAttached": [{"name": "a.test/b", "devicePath": ""}]}}),
        ("/status", {"status": {"runtimeHandlers": [{"name": "other"}]}}),
        ("/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
    ],
    ids=str,
)
def test_it_writes_nothing_else_of_its_node(mine: Api, part: str, change: dict[str, Any]) -> None:
    """Least of all the label that lets it write."""
    reply = mine.patch(f"{NODES}/{MINE}{part}", change)
    assert (reply.status, "nothing of its Node but" in reply.message) == (403, True), reply.message


def test_each_field_of_a_nodes_status_is_compared(plane: ControlPlane) -> None:
    """The API server says which there are: a new one is named in the policy, or this fails."""
    schemas = plane.api().get("/openapi/v3/api/v1").body["components"]["schemas"]
    fields = schemas["io.k8s.api.core.v1.NodeStatus"]["properties"].keys()
    [policy] = (one for one in printed_cpus() if one["kind"] == "ValidatingAdmissionPolicy")
    words = " ".join(one["expression"] for one in policy["spec"]["validations"])
    assert [one for one in sorted(fields) if f"oldObject.?status.?{one}" not in words] == []


def test_it_writes_nothing_of_another_node(mine: Api) -> None:
    """Its account's role does allow it."""
    for path, body in said(OTHER):
        reply = mine.patch(f"{path}&force=true", body, APPLY)
        assert (reply.status, "own Node alone" in reply.message) == (403, True), reply.message
