"""A played CPU process beside a played agent, at the live service on a real API server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.domain.log.events import DriftFound, DriftResolved, PodAssigned, PodReleased
from ledger.domain.resources import CONDITION_TENURE_CPUS
from ledger.store.open import open_ledger
from tests.e2e.test_agents import bound_to, events_of
from tests.support.kube.bursts import DIALECTS, eventually, remove_pods
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.kube.service_api import OURS, Service, agents_token
from tests.support.kube.webhooks import apply, remove
from tests.support.process import tenure

NODE, OTHER = "kernelled", "kernelled-other"
CPUS: Final = "tenure-cpus"
ACCOUNT: Final[dict[str, Any]] = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {"name": CPUS, "namespace": OURS},
}


@pytest.fixture
def node(plane: ControlPlane) -> Iterator[str]:
    """Two nodes with CPUs, the other one closed to Pods that choose a node."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    for name in (NODE, OTHER):
        add_gpu_node(plane, name, gpus=1)
    apply(plane, [ACCOUNT])
    yield NODE
    remove_pods(plane, pods_in(OURS), ["agent", "cpus", "cpus-other"])
    remove(plane, [ACCOUNT])
    for name in (NODE, OTHER):
        remove_node(plane, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The played processes of a node, at the service."""

    service: Service
    agent: str
    cpus: str

    def say(self, token: str, **words: Any) -> dict[str, Any]:  # noqa: ANN401 - the contract's own
        """Confirm by one of the tokens."""
        status, body = self.service.call("/agents/v1/confirmations", token, words)
        assert status == 200, body
        return body

    def bound(self, uid: str, cpus: str) -> str:
        """Say which CPUs the container of a Pod has; return what came of it."""
        given = {"pod_uid": uid, "attempt": 1, "containers": [{"index": "0", "cpus": cpus}]}
        [one] = self.say(self.cpus, assigned=[given], crossing={})["assigned"]
        return str(one["result"])


def drifts(url: str) -> tuple[list[DriftFound], list[str]]:
    """Return the drift that was found, and the ids of what is over."""
    with open_ledger(url, mode="read") as ledger:
        events = [one.event for one in ledger.read_events()]
    return (
        [one for one in events if isinstance(one, DriftFound)],
        [one.drift_id for one in events if isinstance(one, DriftResolved)],
    )


def test_the_cpus_of_a_pod_are_confirmed_and_compared_by_its_nodes_cpu_process(
    plane: ControlPlane,
    namespace: Callable[..., str],
    node: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """
    Other CPUs become drift that people read; the right ones are recorded, and the drift is over.

    The end waits for both processes, and another node's word counts for nothing.
    """
    team, port = namespace(managed=False), free_port()
    where, url = pods_in(team), f"sqlite:///{tmp_path / 'live.db'}"
    assert tenure("ledger", "init", "--ledger", url, cwd=tmp_path).returncode == 0
    service = Service(port=port, authority=identities.server / "ca.crt")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    ours = {"type": CONDITION_TENURE_CPUS, "status": "True", "reason": "Bound"}
    with extender(plane, url, identities, api=port, forked=True) as served:
        path = f"/api/v1/nodes/{node}/status"
        assert plane.api().patch(path, {"status": {"conditions": [ready, ours]}}).ok
        both = Node(
            service=service,
            agent=agents_token(plane, node),
            cpus=agents_token(plane, node, CPUS, "cpus"),
        )
        stranger = agents_token(plane, OTHER, CPUS, "cpus-other")
        with plane.scheduler(asking(plane, served, identities)):
            body = pod("own", schedulerName="tenure", **DIALECTS["cpuset"])
            body["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
            made = plane.api().create(where, body)
            assert made.ok, made.message
            uid = str(made.body["metadata"]["uid"])
            eventually(lambda: bound_to(plane, f"{where}/own") == node)
        for token in (both.agent, both.cpus):
            status, held = service.call("/agents/v1/holdings", token)
            assert (status, len(held["holdings"])) == (200, 1)
        [own] = [one["cpus"] for one in held["holdings"][0]["containers"] if one["cpus"]]
        checkpoint = service.call("/agents/v1/checkpoint", both.cpus, {"kept": ""})
        assert checkpoint[0] == 403, "that is the agent's"
        assert service.call("/agents/v1/confirmations", both.cpus, {"runs": []})[0] == 400

        eventually(lambda: both.bound(uid, "60-63") == "different")
        found = eventually(lambda: both.bound(uid, "60-63") and drifts(url)[0])
        assert [(one.kind, str(one.cpus), one.pod_uid) for one in found] == [
            ("CpusDiffer", "60-63", uid)
        ]
        check_told(team, node, own, url, tmp_path)
        assert not events_of(url, PodAssigned)
        assert 'tenure_drift{kind="CpusDiffer"} 1.0' in served.probe("metrics")

        given = {"pod_uid": uid, "attempt": 1, "containers": [{"index": "0", "cpus": own}]}
        elsewhere = both.say(stranger, assigned=[given], gone=[uid])
        assert elsewhere["assigned"][0]["result"] == "unknown"
        assert elsewhere["gone"][0]["result"] == "nothing"
        assert both.bound(uid, own) == "assigned"
        assert uid in events_of(url, PodAssigned)
        eventually(lambda: both.bound(uid, own) and drifts(url)[1])
        assert tenure("drift", "--ledger", url, cwd=tmp_path).returncode == 0

        remove_pods(plane, where, ["own"])
        unconfirmed = 'tenure_scheduler_view{what="unconfirmed"} 1.0'
        eventually(lambda: unconfirmed in served.probe("metrics"))
        both.say(both.agent, gone=[uid])
        both.say(stranger, gone=[uid])
        assert unconfirmed in served.probe("metrics"), "the CPU process has not said so"
        assert not events_of(url, PodReleased)
        assert both.say(both.cpus, gone=[uid])["gone"][0]["result"] == "noted"
        eventually(lambda: uid in events_of(url, PodReleased))


def check_told(team: str, node: str, own: str, url: str, folder: Path) -> None:
    """The map, `who` and `why` say what the kernel does."""
    first = own.split("-", maxsplit=1)[0].split(",", maxsplit=1)[0]
    for command in (
        ("map", "--cpus"),
        ("who", f"{node}/cpu/60"),
        ("who", f"{node}/cpu/{first}"),
        ("why", f"{team}/own"),
    ):
        told = tenure(*command, "--ledger", url, cwd=folder)
        assert "CpusDiffer since" in told.stdout, (command, told.stdout, told.stderr)
    data = tenure("who", f"{node}/cpu/60", "-o", "json", "--ledger", url, cwd=folder)
    [word] = json.loads(data.stdout)["kernel"]
    assert (word["cpuset"], word["pod"]) == ("60-63", f"{team}/own")
