"""Rules that hold in every namespace, and for objects of the cluster, by policies alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from ledger.domain.request.rule_names import Rule
from tests.support.claiming import BY_NAME, CORE, wanting
from tests.support.kube.api import Api
from tests.support.kube.control_plane import MALLORY, ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import HALF, MGPU, MOUNT, SEEING, mounting, pod, pods_in
from tests.support.kube.policies import in_force
from tests.support.requests_to_admit import UNMANAGED, creation
from webhook.decide.validating.pods import EVERYWHERE as RULES
from webhook.decide.validating.validate import validate

Namespace = Callable[..., str]
Json = dict[str, Any]
MARK = {"tenure.sh/admitted": "true"}
CORES, MEMORY = "vke.volcengine.com/mgpu-core", "vke.volcengine.com/mgpu-memory"
COUNTS = {"vke.volcengine.com/container-multiple-gpu": "2"}
STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture(scope="module", autouse=True)
def policed(plane: ControlPlane) -> Iterator[None]:
    """Every policy in force; the kinds of inventory are known."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    with in_force(plane):
        yield


@pytest.fixture
def mallory(plane: ControlPlane) -> Api:
    """Somebody who may do everything that admission lets through."""
    return plane.api(MALLORY)


def mgpu(core: object, memory: object = None, counts: str | None = None, **more: Any) -> Json:  # noqa: ANN401 - JSON
    """Return an mGPU Pod; None is a key that is absent."""
    amounts = {CORES: core, MEMORY: memory}
    asked = {name: str(amount) for name, amount in amounts.items() if amount is not None}
    made = pod("a", asked, **more)
    if counts is not None:
        made["metadata"]["annotations"] = {next(iter(COUNTS)): counts}
    return made


def init_share() -> Json:
    """Return a Pod with an mGPU share in an init container."""
    resources = {"limits": MGPU, "requests": MGPU}
    made = pod("a", {"cpu": "1"})
    made["spec"]["initContainers"] = [{"name": "i", "image": "x", "resources": resources}]
    return made


def long_name() -> Json:
    """Return a Pod whose container's name leaves no room for the answer."""
    made = pod("a", MGPU)
    made["spec"]["containers"][0]["name"] = "c" * 44
    return made


EVERYWHERE: Final[dict[Rule, Json]] = {
    Rule.MGPU_NORMAL: mgpu(101),
    Rule.MGPU_MULTIPLE: mgpu(100, 513, "2"),
    Rule.MGPU_MEMORY_UNIT: mgpu(50, "6Gi"),
    Rule.MGPU_CONTAINER_NAME: long_name(),
    Rule.MGPU_INIT_CONTAINER: init_share(),
    Rule.MGPU_POLICY: pod(
        "a", MGPU, annotations={"vke.volcengine.com/mgpu-compute-policy": "burst"}
    ),
    Rule.FORGED_ALLOCATION: pod("a", {"cpu": "1"}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}),
    Rule.SLOT_BY_HAND: pod("a", {"tenure.sh/slot": "2"}, schedulerName="tenure"),
    Rule.PINNED_NODE: pod("a", HALF, nodeName="somewhere"),
    Rule.OWNED_NODE: wanting(CORE, BY_NAME),
}

SHAPES: Final = [
    *(
        (core, memory, None)
        for core in (None, 0, 1, 99, 100, 101, 200, 250)
        for memory in (None, 0)
    ),
    *((core, memory, None) for core in (50, 100) for memory in (255, 256, 1048576, 1048577)),
    *((core, 512, "2") for core in (None, 0, 1, 2, 198, 200, 202, 300)),
    *((100, memory, "2") for memory in (None, 511, 512, 513, "6Gi")),
    *((200, memory, "2") for memory in (None, 0)),
    *((99, 768, counts) for counts in ("", "3", "3,1", "-1", "0", "2.0", "3,", " 3", "03", "x")),
    *((core, memory, "0") for core, memory in ((50, None), (None, 512))),
]


@pytest.mark.parametrize("rule", EVERYWHERE)
def test_a_rule_of_every_namespace_holds_where_nobody_opted_in(
    mallory: Api, namespace: Namespace, rule: Rule
) -> None:
    """The webhook is not even asked there; `check` says the same."""
    body = EVERYWHERE[rule]
    refused = mallory.create(pods_in(namespace(managed=False)), body)
    assert refused.status == 422, refused.message
    assert "ValidatingAdmissionPolicy" in refused.message
    answer = validate(creation(body), facts=UNMANAGED)
    assert rule in {item.rule for item in answer.refusals}


def test_no_rule_of_every_namespace_is_left_untried() -> None:
    """The document's column is the list."""
    assert set(EVERYWHERE) == RULES


@pytest.mark.parametrize(("core", "memory", "counts"), SHAPES)
def test_mgpu_is_judged_by_the_api_server_as_by_check(
    mallory: Api, namespace: Namespace, core: object, memory: object, counts: str | None
) -> None:
    """GPU-sharing contract A.3, every boundary: whoever owns the Pod."""
    body = mgpu(core, memory, counts)
    reply = mallory.create(pods_in(namespace(managed=False)), body)
    assert reply.status in (201, 422), reply.message
    assert reply.ok == validate(creation(body), facts=UNMANAGED).allowed, reply.message


def test_mgpus_words_change_to_nothing_worse(mallory: Api, namespace: Namespace) -> None:
    """A Pod that waits may change them; one that was wrong before may still lose a label."""
    where = pods_in(namespace(managed=False))
    assert mallory.create(where, mgpu(100, 512, "2")).ok
    for text in ("3", "x"):
        worse = {"metadata": {"annotations": {next(iter(COUNTS)): text}}}
        assert mallory.patch(f"{where}/a", worse).status == 422
    assert mallory.patch(f"{where}/a", {"metadata": {"labels": {"team": "b"}}}).ok


@pytest.mark.parametrize("how", SEEING)
def test_no_other_way_shows_a_holder_more_cards(
    mallory: Api, namespace: Namespace, how: str
) -> None:
    """A Pod that holds no cards may; the webhook warns of it."""
    refused = mallory.create(pods_in(namespace()), SEEING[how](HALF, MARK))
    assert "by Tenure alone" in refused.message, refused.message
    assert mallory.create(pods_in(namespace()), SEEING[how]({"cpu": "1"}, MARK)).ok


@pytest.mark.parametrize("body", [pod("a", {"cpu": "1"}), pod("a", HALF, annotations=MARK)])
def test_an_ephemeral_container_of_a_managed_pod_gets_no_cards(
    mallory: Api, namespace: Namespace, body: Json
) -> None:
    """Whether the Pod has some or not; without such words anybody may debug it."""
    where = pods_in(namespace())
    made = mallory.create(where, mounting({**body, "spec": {**body["spec"]}}, "/data"))
    assert made.ok, made.message
    one = {"name": "d", "image": "x"}
    every = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    for more in (every, {"volumeMounts": [{"name": "v", "mountPath": MOUNT}]}):
        debug = {"spec": {"ephemeralContainers": [{**one, **more}]}}
        refused = mallory.patch(f"{where}/a/ephemeralcontainers", debug, STRATEGIC)
        assert "an ephemeral container gets no cards" in refused.message, refused.message
    plain = {"spec": {"ephemeralContainers": [one]}}
    assert mallory.patch(f"{where}/a/ephemeralcontainers", plain, STRATEGIC).ok


def test_inventory_says_who_holds_what_by_us_alone(plane: ControlPlane, mallory: Api) -> None:
    """Adoption believes a Device's checkpoints, its status, and what kubelet pinned."""
    pinned = {"node.koordinator.sh/pod-cpu-allocs": "[]"}
    handed_out = {"node.koordinator.sh/devices-checkpoints": "[]"}
    for path, kind, forged in (
        (TOPOLOGIES, "NodeResourceTopology", pinned),
        (DEVICES, "Device", handed_out),
    ):
        group, _, version = path.removeprefix("/apis/").rpartition("/")[0].partition("/")
        body = {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": "n"}}
        assert mallory.create(path, body).ok
        more = {"metadata": {"annotations": forged}}
        named = {**body, "metadata": {"name": "m", **more["metadata"]}}
        assert mallory.create(path, named).status == 422
        assert mallory.patch(f"{path}/n", more).status == 422
        assert mallory.patch(f"{path}/n", {"metadata": {"labels": {"a": "b"}}}).ok
        assert plane.api().delete(f"{path}/n").ok
    body = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}
    assert mallory.create(DEVICES, {**body, "metadata": {"name": "n"}}).ok
    held = {"status": {"allocations": [{"type": "gpu"}]}}
    refused = mallory.patch(f"{DEVICES}/n/status", held)
    assert "who holds a device" in refused.message, refused.message
    assert mallory.patch(f"{DEVICES}/n/status", {"status": {"other": 1}}).ok


def test_annotations_of_ours_on_a_node_are_ours(plane: ControlPlane, mallory: Api) -> None:
    """While the webhook is down too; the rest of a Node is its kubelet's."""
    assert plane.api().create("/api/v1/nodes", {"metadata": {"name": "plain-node"}}).ok
    woken = {"metadata": {"annotations": {"tenure.sh/released-at": "2026-01-05T14:05:09Z"}}}
    for way in ("", "/status"):
        path = f"/api/v1/nodes/plain-node{way}"
        assert "written by Tenure alone" in mallory.patch(path, woken).message
        assert mallory.patch(path, {"metadata": {"annotations": {"a": "b"}}}).ok
