"""What a Pod was given stays by the policies alone, wherever it stands and once opted out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.kube.api import Api, Reply
from tests.support.kube.control_plane import MALLORY, SCHEDULER_ACCOUNT, ControlPlane
from tests.support.kube.pods import HALF, WHOLE, binding, pod, pods_in
from tests.support.kube.policies import in_force, let_schedule

Namespace = Callable[..., str]
Json = dict[str, Any]
NODE = "roomy-node"
MARK = {"tenure.sh/admitted": "true"}
LSR = {"koordinator.sh/qosClass": "LSR"}
STRATEGIC = "application/strategic-merge-patch+json"
CPUS = "the CPUs of a Pod that has some of its own never change"
CPU_SET = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0-1"}'}
POOL = {"scheduling.koordinator.sh/resource-status": '{"cpuSharedPools":[]}'}


@pytest.fixture(scope="module", autouse=True)
def policed(plane: ControlPlane) -> Iterator[None]:
    """Every policy in force, a node, and our scheduler's account with its rights."""
    let_schedule(plane)
    plane.api().create("/api/v1/nodes", {"metadata": {"name": NODE}})
    room = {"cpu": "64", "memory": "256Gi", "pods": "100"}
    able = {"declaredFeatures": ["InPlacePodLevelResourcesVerticalScaling"]}
    status = {"status": {"capacity": room, "allocatable": room, **able}}
    reply = plane.api().patch(f"/api/v1/nodes/{NODE}/status", status)
    assert reply.ok, reply.message
    with in_force(plane):
        yield


@pytest.fixture
def mallory(plane: ControlPlane) -> Api:
    """Somebody who may do everything that admission lets through."""
    return plane.api(MALLORY)


def both(cpu: str) -> Json:
    """Return a request and an equal limit."""
    return {"limits": {"cpu": cpu}, "requests": {"cpu": cpu}}


def pinned(level: Json | None = None, **more: object) -> Json:
    """Return a Pod with CPUs of its own, a sidecar, and an amount for the Pod as a whole."""
    made = pod("a", {"cpu": "2"}, labels=LSR, annotations=MARK)
    sidecar = {"name": "side", "image": "x", "restartPolicy": "Always", "resources": both("1")}
    made["spec"] |= {"initContainers": [sidecar], **({"resources": level} if level else {}), **more}
    return made


def bound(plane: ControlPlane, where: str, body: Json, **annotations: str) -> str:
    """Create a Pod, let our scheduler bind it, and return its path."""
    made = plane.api(MALLORY).create(where, body)
    assert made.ok, made.message
    path = f"{where}/{body['metadata']['name']}"
    placed = binding(body["metadata"]["name"], NODE, **annotations)
    reply = plane.api(SCHEDULER_ACCOUNT).create(f"{path}/binding", placed)
    assert reply.ok, reply.message
    return path


def resized(caller: Api, path: str, section: str, name: str, resources: Json) -> Reply:
    """Resize one container in place."""
    one = {"spec": {section: [{"name": name, "resources": resources}]}}
    return caller.patch(f"{path}/resize", one, STRATEGIC)


@pytest.mark.parametrize(
    ("section", "larger"),
    [
        pytest.param("containers", both("3"), id="a container"),
        pytest.param("containers", {"limits": {"cpu": "3"}}, id="a container's limit"),
        pytest.param("initContainers", both("2"), id="a sidecar"),
    ],
)
def test_no_container_with_cpus_of_its_own_is_resized(
    plane: ControlPlane, mallory: Api, namespace: Namespace, section: str, larger: Json
) -> None:
    """Its set of CPUs stays as it is; memory is none of it."""
    path = bound(plane, pods_in(namespace()), pinned())
    name = "main" if section == "containers" else "side"
    assert CPUS in resized(mallory, path, section, name, larger).message
    memory = {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}
    assert CPUS not in resized(mallory, path, "containers", "main", memory).message


@pytest.mark.parametrize(
    "level", [both("4"), {"limits": {"cpu": "4"}}], ids=["requests and limits", "limits alone"]
)
def test_the_pod_as_a_whole_is_not_resized(
    plane: ControlPlane, mallory: Api, namespace: Namespace, level: Json
) -> None:
    """`spec.resources` is one more place where CPUs stand."""
    path = bound(plane, pods_in(namespace()), pinned(both("3")))
    larger = {"spec": {"resources": level}}
    refused = mallory.patch(f"{path}/resize", larger, STRATEGIC)
    assert CPUS in refused.message, refused.message


def test_cpus_that_the_nodes_policy_gave_stay_too(
    plane: ControlPlane, mallory: Api, namespace: Namespace
) -> None:
    """A Pod of no such class may hold a set; one that holds none may be resized."""
    where = pods_in(namespace())
    for name, status in (("set", CPU_SET), ("pool", POOL)):
        path = bound(plane, where, pod(name, {"cpu": "2"}, annotations=MARK), **status)
        assert resized(mallory, path, "containers", "main", both("3")).ok == (name == "pool")


@pytest.mark.parametrize(
    ("level", "fact"),
    [
        pytest.param(both("2500m"), "whole CPUs", id="a part of one"),
        pytest.param(
            {"requests": {"cpu": "3"}, "limits": {"cpu": "4"}},
            "requests equal",
            id="a higher limit",
        ),
    ],
)
def test_the_pod_as_a_whole_has_whole_cpus(
    mallory: Api, namespace: Namespace, level: Json, fact: str
) -> None:
    """As one container has, or all of them together."""
    body = pod("a", {"cpu": "2"}, labels=LSR, resources=level)
    assert fact in mallory.create(pods_in(namespace()), body).message
    halves = pod("a", {"cpu": "500m"}, labels=LSR)
    more = {**halves["spec"]["containers"][0], "name": "more"}
    halves["spec"]["containers"].append(more)
    assert mallory.create(pods_in(namespace()), halves).ok


def test_leaving_frees_nobody(plane: ControlPlane, mallory: Api, namespace: Namespace) -> None:
    """A rule binds by the Pod's own mark once its namespace has opted out."""
    name = namespace()
    where = pods_in(name)
    cards = pod("cards", HALF, annotations=MARK, env={"NVIDIA_VISIBLE_DEVICES": "void"})
    paths = [bound(plane, where, body) for body in (pinned(), cards)]
    gone = {"metadata": {"labels": {"tenure.sh/managed": None}}}
    assert mallory.patch(f"/api/v1/namespaces/{name}", gone).ok
    _until_opted_out(mallory, where)
    for path in paths:
        for way in (path, f"{path}/status"):
            for metadata in (
                {"labels": {"koordinator.sh/qosClass": "BE"}},
                {"labels": {"koordinator.sh/priority": "9"}},
                {"labels": {"koordinator.sh/priority-class": "koord-batch"}},
                {"annotations": {"scheduling.koordinator.sh/resource-spec": "{}"}},
                {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}},
                {"annotations": {"tenure.sh/admitted": None}},
            ):
                assert mallory.patch(way, {"metadata": metadata}).status == 422, (way, metadata)
            assert mallory.patch(way, {"metadata": {"labels": {"team": "b"}}}).ok
    assert CPUS in resized(mallory, paths[0], "containers", "main", both("3")).message
    assert mallory.create(where, pod("new", HALF)).ok


def _until_opted_out(caller: Api, where: str) -> None:
    """The API server learns of its own labels a moment later."""
    for _ in range(100):
        if caller.create(where, pod("probe", HALF), dry_run=True).ok:
            return
    raise AssertionError("the namespace is still managed")


def test_a_namespace_stays_managed_while_its_pods_hold_something(
    plane: ControlPlane, mallory: Api, namespace: Namespace
) -> None:
    """Our scheduler says when; nobody else writes that label, by any path."""
    path = f"/api/v1/namespaces/{namespace()}"
    ours = plane.api(SCHEDULER_ACCOUNT)

    def labelled(caller: Api, key: str, value: str | None, way: str = "") -> Reply:
        return caller.patch(f"{path}{way}", {"metadata": {"labels": {f"tenure.sh/{key}": value}}})

    assert labelled(mallory, "holding", "true").status == 422
    assert labelled(ours, "holding", "true").ok
    for way in ("", "/status"):
        for value in (None, "false"):
            assert "stays managed" in labelled(mallory, "managed", value, way).message
            assert "written by Tenure alone" in labelled(mallory, "holding", value, way).message
    whole = mallory.get(path).body
    del whole["metadata"]["labels"]["tenure.sh/managed"]
    assert "stays managed" in mallory.replace(f"{path}/finalize", whole).message
    assert labelled(mallory, "team", "b").ok
    assert labelled(ours, "holding", None).ok
    assert labelled(mallory, "managed", None).ok
    named = {"metadata": {"name": "made-holding", "labels": {"tenure.sh/holding": "true"}}}
    assert mallory.create("/api/v1/namespaces", named).status == 422


@pytest.mark.parametrize("count", [20, 150, 400])
@pytest.mark.parametrize("amounts", [HALF, {"cpu": "1"}, WHOLE], ids=["shares", "CPUs", "cards"])
def test_a_large_pod_goes_on(
    mallory: Api, namespace: Namespace, count: int, amounts: dict[str, str]
) -> None:
    """A policy that costs more than the API server allows would refuse every change of it."""
    where = pods_in(namespace())
    blind = {"NVIDIA_VISIBLE_DEVICES": "void"}
    body = pod("large", amounts, labels=LSR if "cpu" in amounts else {}, annotations=MARK)
    first = pod("large", {**amounts, "cpu": "1"}, env=blind)["spec"]["containers"][0]
    body["spec"]["containers"] = [{**first, "name": f"c{number}"} for number in range(count)]
    made = mallory.create(where, body)
    assert made.ok, made.message
    for path in (f"{where}/large", f"{where}/large/status"):
        changed = mallory.patch(path, {"metadata": {"labels": {"team": path[-5:]}}})
        assert changed.ok, changed.message
