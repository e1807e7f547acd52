"""What a node's agent may write, by tokens of a real API server and the printed manifests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from ledger.domain.dialects.gpushare.words import ANNOTATION_GPUSHARE_ASSIGNED as MARK
from tests.support.kube.agents import agent_token
from tests.support.kube.api import Api
from tests.support.kube.bursts import eventually
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.webhooks import apply, expect_taken, remove
from tests.support.manifests import AGENT_ACCOUNT, printed_agent

OURS: Final = "tenure-agents"
NODES: Final = "/api/v1/nodes"
APPLY: Final = "application/apply-patch+yaml"
AGENT: Final = "?fieldManager=tenure-agent"
OPTIONS: Final = ("--namespace", OURS, "--gpushare", "--topology")
REFUSED: Final = "own node alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """The API as the agent of node `agent-a` reaches it, and with a token of no node."""

    mine: Api
    unbound: Api


@pytest.fixture(scope="module")
def agents(plane: ControlPlane) -> Iterator[Agents]:
    """Everything that is printed, applied, and in force."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    plane.api().create("/api/v1/namespaces", {"metadata": {"name": OURS}})
    made = printed_agent(*OPTIONS)
    apply(plane, made)
    nodes = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        for name in ("agent-a", "agent-b")
    ]
    apply(plane, nodes)
    words = pod("agent", {"cpu": "1m"}, nodeName="agent-a", serviceAccountName=AGENT_ACCOUNT)
    running = plane.api().create(pods_in(OURS), words)
    assert running.ok, running.message
    for name in ("agent-a", "agent-b"):
        body = pod(f"on-{name}", {"cpu": "1m"}, nodeName=name)
        body["metadata"]["annotations"] = {MARK: "false", "other": "1"}
        other = plane.api().create(pods_in(OURS), body)
        assert other.ok, other.message
    found = Agents(
        mine=Api(plane.url, ca_file=plane.ca_file, token=agent_token(plane, OURS, running.body)),
        unbound=Api(plane.url, ca_file=plane.ca_file, token=agent_token(plane, OURS, None)),
    )

    def is_in_force() -> bool:
        reply = found.unbound.patch(f"{NODES}/agent-a", {"metadata": {"labels": {"x": "1"}}})
        return "bound to no Pod" in reply.message

    eventually(is_in_force)
    yield found
    for name in ("agent", "on-agent-a", "on-agent-b"):
        plane.api().delete(f"{pods_in(OURS)}/{name}?gracePeriodSeconds=0")
    plane.api().delete(f"{DEVICES}/agent-a")
    plane.api().delete(f"{TOPOLOGIES}/agent-a")
    remove(plane, [*nodes, *made])


def device(name: str) -> dict[str, Any]:
    """Return a Device as an agent applies it."""
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}
    return {**kind, "metadata": {"name": name}, "spec": {"devices": []}}


def node(name: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return a Node as an agent applies it."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, **more}


def topology(name: str) -> dict[str, Any]:
    """Return a NodeResourceTopology as an agent applies it."""
    kind = {"apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology"}
    return {**kind, "metadata": {"name": name}, "topologyPolicies": ["None"], "zones": []}


def writes(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return what an agent applies to a node's objects, by path."""
    labelled = node(name)
    labelled["metadata"]["labels"] = {"node.koordinator.sh/gpu-model": "A100"}
    capacity = {"koordinator.sh/gpu": "100"}
    return [
        (f"{NODES}/{name}", labelled),
        (f"{NODES}/{name}/status", node(name, status={"capacity": capacity})),
        (f"{DEVICES}/{name}", device(name)),
        (f"{DEVICES}/{name}/status", {**device(name), "status": {"allocations": []}}),
        (f"{TOPOLOGIES}/{name}", topology(name)),
    ]


def test_the_api_server_takes_all_that_is_printed(plane: ControlPlane, agents: Agents) -> None:
    """The policy compiles without a warning; the DaemonSet is what it takes for one."""
    assert agents
    expect_taken(plane, printed_agent(*OPTIONS))


def test_an_agent_writes_what_is_of_its_own_node(agents: Agents) -> None:
    """Node, Device and the status of both, as reporting does, and marks Pods there."""
    for path, body in writes("agent-a"):
        reply = agents.mine.patch(f"{path}{AGENT}&force=true", body, APPLY)
        assert reply.ok, (path, reply.message)
    for kind in (NODES, DEVICES, TOPOLOGIES):
        assert agents.mine.get(f"{kind}/agent-a").ok
    marked = {"metadata": {"annotations": {MARK: "true"}}}
    reply = agents.mine.patch(f"{pods_in(OURS)}/on-agent-a", marked)
    assert reply.ok, reply.message


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"other": "2"}},
        {"annotations": {"other": None}},
        {"annotations": {"new": "1"}},
        {"annotations": {MARK: "maybe"}},
        {"annotations": {MARK: None}},
        {"annotations": {MARK: "true", "new": "1"}},
        {"labels": {"a": "b"}},
        {"finalizers": ["a.test/b"]},
    ],
    ids=str,
)
def test_an_agent_changes_nothing_else_of_a_pod_of_its_node(
    agents: Agents, metadata: dict[str, Any]
) -> None:
    """The mark of GPU share alone, from false to true, in whichever order the tests run."""
    reply = agents.mine.patch(f"{pods_in(OURS)}/on-agent-a", {"metadata": metadata})
    assert (reply.status, "nothing of a Pod but" in reply.message) == (403, True), reply.message


def test_an_agent_writes_nothing_of_another_node(plane: ControlPlane, agents: Agents) -> None:
    """Neither what is there nor what it would create; its account's role does allow it."""
    for path, body in writes("agent-b"):
        if path.startswith(DEVICES) and path.endswith("/status"):
            assert plane.api().create(DEVICES, device("agent-b")).ok
        reply = agents.mine.patch(f"{path}{AGENT}&force=true", body, APPLY)
        assert (reply.status, REFUSED in reply.message) == (403, True), (path, reply.message)
    for kind, made in ((DEVICES, device("agent-c")), (TOPOLOGIES, topology("agent-c"))):
        created = agents.mine.create(kind, made)
        assert (created.status, REFUSED in created.message) == (403, True)
    marked = {"metadata": {"annotations": {MARK: "true"}}}
    reply = agents.mine.patch(f"{pods_in(OURS)}/on-agent-b", marked)
    assert (reply.status, REFUSED in reply.message) == (403, True)
    plane.api().delete(f"{DEVICES}/agent-b")


def test_an_agent_changes_no_spec_of_its_node(agents: Agents) -> None:
    """No taint and no cordon of its own: what a node takes is not the agent's to say."""
    for spec in ({"unschedulable": True}, {"taints": [{"key": "a", "effect": "NoExecute"}]}):
        reply = agents.mine.patch(f"{NODES}/agent-a", {"spec": spec})
        assert (reply.status, "no spec" in reply.message) == (403, True), reply.message


def test_who_has_the_rights_without_the_claim_writes_nothing(agents: Agents) -> None:
    """A token of the account that no kubelet mounted."""
    for path, body in writes("agent-a"):
        reply = agents.unbound.patch(f"{path}{AGENT}&force=true", body, APPLY)
        assert (reply.status, "bound to no Pod" in reply.message) == (403, True), reply.message


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/pods",
        pods_in(OURS),
        f"{pods_in(OURS)}/agent",
        NODES,
        DEVICES,
        TOPOLOGIES,
        f"/api/v1/namespaces/{OURS}/secrets",
        f"{NODES}/agent-a/proxy/pods",
        f"{NODES}/agent-a/proxy/configz",
    ],
    ids=[
        *("all Pods", "Pods", "a Pod", "Nodes", "Devices", "topologies", "Secrets"),
        *("kubelet's Pods by way of the API", "its configuration by way of the API"),
    ],
)
def test_an_agent_reads_its_own_objects_alone(agents: Agents, path: str) -> None:
    """Above all no list of Pods: they come from kubelet."""
    assert agents.mine.get(path).status == 403
