"""DaemonSets of shares and of CPUs: their Pods are ours where the template names our scheduler."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.kube.bursts import eventually, remove_pods
from tests.support.kube.control_plane import MALLORY, ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import HALF, pod, pods_in
from tests.support.kube.policies import in_force
from tests.support.kube.schedulers import (
    Identities,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.kube.webhooks import serving
from tests.support.process import tenure
from tests.support.recount import differences

OURS: Final = {"schedulerName": "tenure"}
SHARED: Final = {"koordinator.sh/gpu.shared": "100"}
NODES: Final = ("daemon-0", "daemon-1")

Json = dict[str, Any]
Namespace = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def admitted(plane: ControlPlane) -> Iterator[None]:
    """Webhooks and policies in force."""
    with serving(plane), in_force(plane):
        yield


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[None]:
    """Two nodes with a card each, one of them cordoned, and one that the DaemonSets don't name."""
    made = (*NODES, "daemon-other")
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    for name in made:
        add_gpu_node(plane, name, gpus=1, binds_cpus=False)
        label = {"metadata": {"labels": {"pool": "a" if name in NODES else "b"}}}
        assert plane.api().patch(f"/api/v1/nodes/{name}", label).ok
        shared = {"capacity": SHARED, "allocatable": SHARED}
        assert plane.api().patch(f"/api/v1/nodes/{name}/status", {"status": shared}).ok
    cordoned = {"spec": {"unschedulable": True}}
    assert plane.api().patch(f"/api/v1/nodes/{NODES[1]}", cordoned).ok
    yield
    for name in made:
        remove_node(plane, name)


def pinned(name: str, amounts: dict[str, str], node: str, **more: Any) -> Json:  # noqa: ANN401 - JSON
    """Return a Pod that is bound to a node as the DaemonSet controller writes it."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return pod(name, amounts, affinity={"nodeAffinity": required}, **more)


def daemon_set(name: str, amounts: dict[str, str], **spec: Any) -> Json:  # noqa: ANN401 - JSON
    """Return a DaemonSet on the nodes of pool a."""
    made = pod(name, amounts, labels={"app": name}, nodeSelector={"pool": "a"}, **spec)
    template = {"metadata": {"labels": made["metadata"]["labels"]}, "spec": made["spec"]}
    selected = {"selector": {"matchLabels": {"app": name}}, "template": template}
    head = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}}
    return {**head, "spec": selected}


def checked(folder: Path, body: Json) -> Json:
    """Return what `tenure check` says of an object."""
    (folder / "object.json").write_text(json.dumps(body))
    done = tenure("check", "object.json", "-o", "json", cwd=folder)
    assert done.returncode in {0, 1}, done.stderr
    said: Json = json.loads(done.stdout)[0]
    return said


CRITICAL: Final = {"priorityClassName": "system-node-critical"}
PINNED: Final[dict[str, tuple[Json, bool]]] = {
    "a share, by our scheduler": (pinned("a", HALF, "n", **OURS), True),
    "a share, by no scheduler's name": (pinned("a", HALF, "n"), False),
    "nothing of ours, by our scheduler": (pinned("a", {"cpu": "1"}, "n", **OURS), False),
    "the system's": (pinned("a", {"cpu": "1"}, "n", **CRITICAL), False),
}


@pytest.mark.parametrize("case", PINNED.values(), ids=PINNED)
def test_a_pinned_pod_is_stored_as_check_says(
    plane: ControlPlane, namespace: Namespace, tmp_path: Path, case: tuple[Json, bool]
) -> None:
    """The scheduler's name alone decides whose it is; none is refused for being pinned."""
    body, ours = case
    where = pods_in(namespace())
    made = plane.api(MALLORY).create(where, body)
    assert made.ok, made.message
    remove_pods(plane, where, ["a"])
    said = checked(tmp_path, body)
    assert said["allowed"], said["message"]
    for spec in (made.body["spec"], said["object"]["spec"]):
        assert any(one["name"] == "NVIDIA_VISIBLE_DEVICES" for one in _environment(spec)) == ours


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_a_daemon_set_of_shares_gets_a_pod_on_each_of_its_nodes(
    plane: ControlPlane,
    namespace: Namespace,
    ledger: str,
    identities: Identities,
    tmp_path: Path,
) -> None:
    """Cordoned ones too, as its controller tolerates; the ledger has all of them."""
    api, name = plane.api(), namespace()
    where, sets = pods_in(name), f"/apis/apps/v1/namespaces/{name}/daemonsets"
    wanted = [
        daemon_set("shares", HALF, **OURS),
        daemon_set("bare", {"cpu": "1"}, **OURS),
    ]
    for body in wanted:
        assert checked(tmp_path, body)["allowed"]
        made = api.create(sets, body)
        assert made.ok, made.message
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(extender(plane, ledger, identities))
        stack.enter_context(plane.scheduler(asking(plane, served, identities, impatient=True)))
        stack.enter_context(plane.claim_controller("daemonset-controller"))

        def bound() -> list[Json]:
            pods: list[Json] = api.get(where).body["items"]
            placed = [one for one in pods if one["spec"].get("nodeName")]
            return placed if len(placed) == len(wanted) * len(NODES) else []

        pods = eventually(bound)
        assert sorted(one["spec"]["nodeName"] for one in pods) == sorted(NODES * len(wanted))
        assert differences(pods, ledger) == []
        for body in wanted:
            assert api.delete(f"{sets}/{body['metadata']['name']}").ok
    remove_pods(plane, where, [one["metadata"]["name"] for one in pods])


def _environment(spec: Json) -> list[Json]:
    return [one for container in spec["containers"] for one in container.get("env") or ()]
