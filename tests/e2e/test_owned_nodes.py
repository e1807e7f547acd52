"""Cards of our nodes for Pods that our scheduler did not place, where nobody opted in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from tests.support.claiming import (
    ALLOWED,
    ANYTHING,
    BY_NAME,
    CORE,
    REFUSED,
    of_a_daemon_set,
    pinned_to,
    wanting,
)
from tests.support.kube.api import Reply
from tests.support.kube.control_plane import (
    DAEMON_SETS,
    KUBELET,
    MALLORY,
    SCHEDULER_ACCOUNT,
    ControlPlane,
)
from tests.support.kube.pods import WHOLE, pod, pods_in
from tests.support.kube.policies import in_force, let_schedule

Namespace = Callable[..., str]
FACTS = (
    "tolerates tenure.sh/owned by the scheduler tenure alone",
    "tolerates everything is kept off them",
    "what is in tenure.sh/ is given to Pods of the scheduler tenure alone",
)


@pytest.fixture(scope="module", autouse=True)
def policed(plane: ControlPlane) -> Iterator[None]:
    """Every policy in force, and one node of ours."""
    taint = {"key": "tenure.sh/owned", "effect": "NoSchedule"}
    label = {"tenure.sh/owned": "true"}
    node = {"metadata": {"name": "ours", "labels": label}, "spec": {"taints": [taint]}}
    plane.api().create("/api/v1/nodes", node)
    let_schedule(plane)
    with in_force(plane):
        yield


def refused(reply: Reply) -> bool:
    """Tell whether the policy about our nodes refused it, and nothing else did."""
    return "tenure-pods" in reply.message and any(fact in reply.message for fact in FACTS)


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_nobody_gets_onto_our_nodes_by_himself(
    plane: ControlPlane, namespace: Namespace, body: dict[str, Any]
) -> None:
    """Not where nobody opted in, not out of takeover, and not in a managed namespace either."""
    reply = plane.api(MALLORY).create(pods_in(namespace(managed=False)), body)
    assert reply.status == 422, reply.message
    assert refused(reply), reply.message
    left_alone = namespace(**{"tenure.sh/takeover": "false"})
    assert plane.api(MALLORY).create(pods_in(left_alone), body).status == 422


@pytest.mark.parametrize("body", ALLOWED.values(), ids=ALLOWED)
def test_other_nodes_go_on_serving_whom_they_serve(
    plane: ControlPlane, namespace: Namespace, body: dict[str, Any]
) -> None:
    """A name that others share is never refused by itself."""
    reply = plane.api(MALLORY).create(pods_in(namespace(managed=False)), body)
    assert reply.ok, reply.message


@pytest.mark.parametrize("where", ["default", "kube-system", "tenure-system"])
def test_no_namespace_is_left_out(plane: ControlPlane, where: str) -> None:
    """Not even those that other policies pass over: whoever made it."""
    assert refused(plane.api(MALLORY).create(pods_in(where), wanting(CORE, BY_NAME)))
    assert refused(plane.api(SCHEDULER_ACCOUNT).create(pods_in(where), wanting(CORE, BY_NAME)))


def test_a_toleration_that_comes_later_is_refused(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """The API server lets a waiting Pod gain tolerations."""
    where, mallory = pods_in(namespace(managed=False)), plane.api(MALLORY)
    assert mallory.create(where, wanting(CORE)).ok
    for toleration in (BY_NAME, ANYTHING):
        more = mallory.get(f"{where}/a").body
        more["spec"]["tolerations"] = [*more["spec"].get("tolerations", ()), toleration]
        assert refused(mallory.replace(f"{where}/a", more))
    assert mallory.patch(f"{where}/a", {"metadata": {"labels": {"note": "fine"}}}).ok


def test_a_daemon_sets_pods_run_everywhere_and_get_no_card(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """Its controller makes them; what monitors a node tolerates everything and asks for nothing."""
    where = pods_in(namespace(managed=False))
    controller = plane.api(DAEMON_SETS)

    def made(amounts: dict[str, str], toleration: dict[str, str]) -> Reply:
        body = of_a_daemon_set(wanting(amounts, toleration, affinity=pinned_to("ours")))
        body["metadata"] = {**body["metadata"], "generateName": "d-"}
        del body["metadata"]["name"]
        return controller.create(where, body)

    for toleration in (BY_NAME, ANYTHING):
        assert made({"cpu": "1"}, toleration).ok
        assert refused(made(CORE, toleration))
    assert made(WHOLE, ANYTHING).ok


def test_kubelet_shows_its_static_pods(plane: ControlPlane) -> None:
    """One that asks for a card runs already; refusing would hide it."""
    created = plane.api().create("/api/v1/nodes", {"metadata": {"name": "kubelet-1"}})
    node = created.body if created.ok else plane.api().get("/api/v1/nodes/kubelet-1").body
    body = wanting(CORE, ANYTHING, nodeName="kubelet-1")
    uid = node["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "kubelet-1", "uid": uid}
    body["metadata"] = {
        "name": "static",
        "annotations": {"kubernetes.io/config.mirror": "x"},
        "ownerReferences": [{**owner, "controller": True}],
    }
    shown = plane.api(KUBELET).create(pods_in("default"), body)
    assert shown.ok, shown.message
    disguised = deepcopy(body)
    disguised["metadata"]["name"] = "disguised"
    assert refused(plane.api(MALLORY).create(pods_in("default"), disguised))
    plane.api().delete("/api/v1/nodes/kubelet-1")


@pytest.mark.parametrize("section", ["ephemeralContainers", "resources"])
def test_the_other_places_of_resources_take_no_device(
    plane: ControlPlane, namespace: Namespace, section: str
) -> None:
    """The API server itself refuses them there, or the policy does."""
    body = wanting({"cpu": "1"}, BY_NAME)
    amounts = {"limits": CORE, "requests": CORE}
    body["spec"][section] = (
        amounts if section == "resources" else [{"name": "e", "image": "x", "resources": amounts}]
    )
    reply = plane.api(MALLORY).create(pods_in(namespace(managed=False)), body)
    assert reply.status == 422, reply.message


OURS: dict[str, dict[str, Any]] = {
    "by hand": {"metadata": {"name": "a"}},
    "with a name made for it": {"metadata": {"generateName": "a-"}},
    "and tolerates our taint": {"tolerations": [BY_NAME]},
    "by a template of claims": {"claim": {"resourceClaimTemplateName": "x"}},
}


@pytest.mark.parametrize("change", OURS.values(), ids=OURS)
def test_our_scheduler_gives_no_claims_where_nobody_opted_in(
    plane: ControlPlane, namespace: Namespace, change: dict[str, Any]
) -> None:
    """Whoever names it there is refused a device by a claim as by any other words."""
    where = pods_in(namespace(managed=False))
    body = wanting({"cpu": "1"}, *change.get("tolerations", ()), schedulerName="tenure")
    body["metadata"] = change.get("metadata", body["metadata"])
    assert plane.api(MALLORY).create(where, body, dry_run=True).ok
    claim = change.get("claim", {"resourceClaimName": "x"})
    body["spec"]["resourceClaims"] = [{"name": "c", **claim}]
    for account in (MALLORY, DAEMON_SETS):
        reply = plane.api(account).create(where, body, dry_run=True)
        assert reply.status == 422, reply.message
        assert "tenure-pods" in reply.message
        assert "to Pods of managed namespaces alone" in reply.message
    assert plane.api(MALLORY).create(pods_in(namespace()), body, dry_run=True).ok


def test_a_large_pod_is_judged_in_time(plane: ControlPlane, namespace: Namespace) -> None:
    """A policy that costs too much refuses whatever it looks at."""
    body = pod("large", {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"})
    first = body["spec"]["containers"][0]
    body["spec"]["containers"] = [{**first, "name": f"c{number}"} for number in range(400)]
    body["spec"]["tolerations"] = [
        {"key": f"key-{number}", "operator": "Exists"} for number in range(100)
    ]
    reply = plane.api(MALLORY).create(pods_in(namespace(managed=False)), body)
    assert reply.ok, reply.message
