"""LS Pods on a real control plane: ours to place where their namespace says so, and only there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.test_scheduler import node_of
from tests.support.kube.bursts import eventually, remove_pods
from tests.support.kube.control_plane import MALLORY, ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.policies import in_force
from tests.support.kube.schedulers import Identities, add_gpu_node, asking, extender, remove_node
from tests.support.kube.webhooks import Webhooks, serving
from tests.support.process import tenure

NODE: Final = "aligned"
QOS: Final = "koordinator.sh/qosClass"
SHARED: Final = {"tenure.sh/cpus": "true"}
MANAGED: Final = {"tenure.sh/managed": "true"}
AMOUNTS: Final = {"cpu": "2", "memory": "1Gi"}
STATUS: Final = "scheduling.koordinator.sh/resource-status"

Namespace = Callable[..., str]


@pytest.fixture
def node(plane: ControlPlane) -> Iterator[str]:
    """A node that aligns Pods to single NUMA nodes."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    add_gpu_node(plane, NODE, binds_cpus=False)
    labels = {"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"}
    assert plane.api().patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": labels}}).ok
    yield NODE
    remove_node(plane, NODE)


@pytest.fixture(scope="module", autouse=True)
def hooks(plane: ControlPlane) -> Iterator[Webhooks]:
    """One replica of the webhook, and every policy in force."""
    with serving(plane) as running, in_force(plane):
        yield running


def ls(name: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return a Pod that says QoS LS."""
    return pod(name, AMOUNTS, labels={QOS: "LS", **more.pop("labels", {})}, **more)


@pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)
def test_an_ls_pod_gets_its_pools_where_the_namespace_says_so(
    plane: ControlPlane, node: str, namespace: Namespace, ledger: str, identities: Identities
) -> None:
    """Its user writes no scheduler: admission does, and the Binding has the pools."""
    where = pods_in(namespace(**SHARED))
    with (
        extender(plane, ledger, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        made = plane.api(MALLORY).create(where, ls("web"))
        assert made.ok, made.message
        assert made.body["spec"]["schedulerName"] == "tenure"
        eventually(lambda: node_of(plane, f"{where}/web") == node)
        bound = plane.api().get(f"{where}/web").body
    status = json.loads(bound["metadata"]["annotations"][STATUS])
    assert status["cpuSharedPools"], status
    assert "cpuset" not in status
    remove_pods(plane, where, ["web"])


DAEMON: Final = {
    "metadata": {
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "name": "d",
                "uid": "a",
                "controller": True,
            }
        ]
    }
}


@pytest.mark.parametrize(
    ("labels", "body", "taken"),
    [
        pytest.param(SHARED, ls("a"), True, id="LS"),
        pytest.param(SHARED, pod("a", {"cpu": "1"}), True, id="without a QoS class"),
        pytest.param(
            SHARED, ls("a", labels={"tenure.sh/takeover": "false"}), False, id="opted out"
        ),
        pytest.param(SHARED, ls("a", schedulerName="hami-scheduler"), False, id="another system's"),
        pytest.param(SHARED, {**ls("a"), "owned": True}, False, id="of a DaemonSet"),
        pytest.param({}, ls("a"), False, id="managed alone"),
        pytest.param({"tenure.sh/cpus": "false"}, ls("a"), False, id="the label says no"),
    ],
)
def test_pods_without_devices_are_taken_over_only_where_the_namespace_says_so(
    plane: ControlPlane,
    namespace: Namespace,
    tmp_path: Path,
    *,
    labels: dict[str, str],
    body: dict[str, Any],
    taken: bool,
) -> None:
    """The same by `tenure check`, where the file has the Namespace."""
    if body.pop("owned", False):
        body["metadata"] |= DAEMON["metadata"]
    name = namespace(**labels)
    made = plane.api(MALLORY).create(pods_in(name), body, dry_run=True)
    assert made.ok, made.message
    before = body["spec"].get("schedulerName", "default-scheduler")
    assert made.body["spec"]["schedulerName"] == ("tenure" if taken else before)
    if not taken:
        assert made.body["metadata"].get("annotations", {}) == {}
        assert made.body["metadata"]["labels"] == body["metadata"]["labels"]
    metadata = {"name": name, "labels": {**MANAGED, **labels}}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    own = {**body, "metadata": {**body["metadata"], "namespace": name}}
    file = tmp_path / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [space, own]}))
    done = tenure("check", str(file), "-o", "json", cwd=tmp_path)
    said = json.loads(done.stdout)[-1]
    assert said["object"]["spec"].get("schedulerName", before) == made.body["spec"]["schedulerName"]


@pytest.mark.parametrize(
    "labels", [pytest.param(SHARED, id="not managed"), pytest.param({}, id="nothing said")]
)
def test_a_namespace_that_is_not_managed_keeps_its_pods(
    plane: ControlPlane, namespace: Namespace, hooks: Webhooks, labels: dict[str, str]
) -> None:
    """The label alone opts nobody in, and no such Pod reaches us."""
    before = admissions(hooks)
    made = plane.api(MALLORY).create(pods_in(namespace(managed=False, **labels)), ls("a"))
    assert made.body["spec"]["schedulerName"] == "default-scheduler"
    assert admissions(hooks) == before


def test_system_namespaces_and_our_own_keep_their_pods(
    plane: ControlPlane, hooks: Webhooks
) -> None:
    """Whatever their labels say: the cluster must start without us."""
    before = admissions(hooks)
    for name in ("kube-system", "tenure-system"):
        path = f"/api/v1/namespaces/{name}"
        marked = {"metadata": {"labels": {**MANAGED, **SHARED}}}
        assert plane.api().patch(path, marked).ok
        try:
            made = plane.api().create(pods_in(name), ls("a"), dry_run=True)
        finally:
            gone = {"metadata": {"labels": dict.fromkeys((*MANAGED, *SHARED))}}
            assert plane.api().patch(path, gone).ok
        assert made.ok, made.message
        assert made.body["spec"]["schedulerName"] == "default-scheduler"
    assert admissions(hooks) == before


def test_managed_alone_warns_of_pods_that_say_ls(plane: ControlPlane, namespace: Namespace) -> None:
    """Of those that say so, and of no other Pod; not where the namespace or the Pod has decided."""
    users, where, shared = plane.api(MALLORY), pods_in(namespace()), pods_in(namespace(**SHARED))

    def warned(path: str, body: dict[str, Any]) -> bool:
        made = users.create(path, body, dry_run=True)
        assert made.ok, made.message
        return any("tenure.sh/cpus" in text for text in made.warnings)

    assert warned(where, ls("a"))
    assert not warned(where, pod("a", {"cpu": "1"}))
    assert not warned(where, ls("a", schedulerName="tenure"))
    assert not warned(where, ls("a", schedulerName="hami-scheduler"))
    assert not warned(where, ls("a", labels={"tenure.sh/takeover": "false"}))
    assert not warned(shared, ls("a"))


def test_pods_without_devices_go_on_while_the_webhook_is_down(
    plane: ControlPlane, namespace: Namespace, hooks: Webhooks
) -> None:
    """They are nobody's then, and run in all shared pools; device Pods wait."""
    where = pods_in(namespace(**SHARED))
    hooks.stop(hooks.replicas[0])
    try:
        made = plane.api(MALLORY).create(where, ls("a"), dry_run=True)
        assert made.ok, made.message
        assert made.body["spec"]["schedulerName"] == "default-scheduler"
        assert not plane.api(MALLORY).create(where, pod("b", {"nvidia.com/gpu": "1"})).ok
    finally:
        hooks.add()


def admissions(hooks: Webhooks) -> int:
    """Return how many requests have reached the webhook."""
    return hooks.replicas[0].log.read_text().count('"event": "admission"')
