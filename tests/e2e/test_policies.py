"""The policies in the API server itself, with no webhook registered at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.kube.api import JSON_PATCH
from tests.support.kube.control_plane import MALLORY, SCHEDULER_ACCOUNT, ControlPlane
from tests.support.kube.pods import HALF, binding, pod, pods_in
from tests.support.kube.policies import in_force, let_schedule
from tests.support.kube.webhooks import expect_taken
from webhook.decide.facts import NamespaceFacts
from webhook.decide.review import AdmissionRequest
from webhook.decide.settings import DEFAULT_ADMISSION, Takeover
from webhook.decide.validating.validate import validate
from webhook.manifests.policies import policies
from webhook.manifests.policy import PolicyOptions

Namespace = Callable[..., str]
SECONDS_MAX = 60.0
"""More than a policy takes to be told, on however busy a machine."""
MARK = {"tenure.sh/admitted": "true"}
LSR = {"koordinator.sh/qosClass": "LSR"}
STRATEGIC = "application/strategic-merge-patch+json"
FORGED = {
    "device-allocated": "scheduling.koordinator.sh/device-allocated",
    "resource-status": "scheduling.koordinator.sh/resource-status",
    "assumed": "vke.volcengine.com/assumed",
    "index of a container": "vke.volcengine.com/gpu-index-container-main",
    "ALIYUN result": "ALIYUN_COM_GPU_MEM_IDX",
    "signed allocation": "tenure.sh/allocation",
    "visible devices": "tenure.sh/visible.0",
    "topology": "topology.scheduling.koordinator.sh/gpu",
}


@pytest.fixture(scope="module", autouse=True)
def policed(plane: ControlPlane) -> Iterator[None]:
    """Every policy in force, and our scheduler's account with the rights of its own role."""
    let_schedule(plane)
    plane.api().create("/api/v1/nodes", {"metadata": {"name": "policy-node"}})
    takeover = Takeover(foreign_schedulers=frozenset({"volcano"}))
    settings = replace(DEFAULT_ADMISSION, takeover=takeover)
    with in_force(plane, PolicyOptions(settings=settings)):
        yield


def test_every_policy_compiles_without_a_warning(plane: ControlPlane) -> None:
    """The API server checks types of what it knows."""
    made = [one for one in policies(PolicyOptions()) if one["kind"].endswith("Policy")]
    assert len(made) == 6
    expect_taken(plane, made)


@pytest.mark.parametrize("key", FORGED.values(), ids=FORGED)
def test_nobody_else_writes_an_allocation(
    plane: ControlPlane, namespace: Namespace, key: str
) -> None:
    """On create, replace, patch, status, ephemeral containers and the Binding, anywhere."""
    where = pods_in(namespace(managed=False))
    mallory = plane.api(MALLORY)
    annotations = {"metadata": {"annotations": {key: "forged"}}}
    assert mallory.create(where, pod("a", {"cpu": "1"}, annotations={key: "x"})).status == 422
    assert mallory.create(where, pod("b", {"cpu": "1"})).ok
    mine = mallory.get(f"{where}/b").body
    mine["metadata"].setdefault("annotations", {})[key] = "forged"
    assert mallory.replace(f"{where}/b", mine).status == 422
    assert mallory.patch(f"{where}/b", annotations).status == 422
    assert mallory.patch(f"{where}/b", annotations, STRATEGIC).status == 422
    added = [{"op": "add", "path": "/metadata/annotations", "value": {key: "forged"}}]
    assert mallory.patch(f"{where}/b", added, JSON_PATCH).status == 422
    assert mallory.patch(f"{where}/b/status", annotations).status == 422
    ephemeral = mallory.get(f"{where}/b").body
    ephemeral["metadata"].setdefault("annotations", {})[key] = "forged"
    ephemeral["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "x"}]
    reply = mallory.replace(f"{where}/b/ephemeralcontainers", ephemeral)
    assert reply.status == 422 or key not in reply.body["metadata"].get("annotations", {})
    bound = binding("b", "policy-node", **{key: "forged"})
    assert mallory.create(f"{where}/b/binding", bound).status == 422
    old_way = where.replace("/pods", "/bindings")
    assert mallory.create(old_way, bound).status == 422
    stored = mallory.get(f"{where}/b").body
    assert key not in stored["metadata"].get("annotations", {})
    assert "nodeName" not in stored["spec"]


def test_our_scheduler_writes_allocations_and_others_keep_them(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """What we wrote can't be changed or removed, and other changes still go through."""
    where = pods_in(namespace(managed=False))
    key = FORGED["device-allocated"]
    assert plane.api().create(where, pod("a", {"cpu": "1"})).ok
    ours = plane.api(SCHEDULER_ACCOUNT).create(
        f"{where}/a/binding", binding("a", "policy-node", **{key: "{}"})
    )
    assert ours.ok, ours.message
    mallory = plane.api(MALLORY)
    for value in ("other", None):
        assert (
            mallory.patch(f"{where}/a", {"metadata": {"annotations": {key: value}}}).status == 422
        )
    assert mallory.patch(f"{where}/a", {"metadata": {"annotations": {"note": "fine"}}}).ok
    assert mallory.get(f"{where}/a").body["metadata"]["annotations"][key] == "{}"


def visible_from(**source: object) -> dict[str, Any]:
    """Return a marked Pod of another scheduler that reads its visible cards somewhere."""
    made = pod("a", HALF, annotations=MARK)
    entry = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": source}
    made["spec"]["containers"][0]["env"] = [entry]
    return made


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a device Pod without our mark": (pod("a", HALF), "must pass Tenure's admission"),
    "a device Pod that chose its node": (
        pod("a", HALF, annotations=MARK, nodeName="policy-node"),
        "can't choose its node",
    ),
    "a percentage above one card that is no multiple": (
        pod("a", {**HALF, "koordinator.sh/gpu-core": "150"}, annotations=MARK),
        "multiple of 100",
    ),
    "visible devices by hand": (
        pod("a", HALF, annotations=MARK, env={"NVIDIA_VISIBLE_DEVICES": "all"}),
        "set by Tenure alone",
    ),
    "visible devices out of a config map": (
        visible_from(configMapKeyRef={"name": "cards", "key": "all"}),
        "set by Tenure alone",
    ),
    "a fraction of a CPU for LSR": (pod("a", {"cpu": "1500m"}, labels=LSR), "whole CPUs"),
}


@pytest.mark.parametrize(("body", "fact"), REFUSED.values(), ids=REFUSED)
def test_the_static_rules_hold_while_we_are_down(
    plane: ControlPlane, namespace: Namespace, body: dict[str, Any], fact: str
) -> None:
    """In managed namespaces; elsewhere the same Pod is none of ours, unless it has our mark."""
    mallory, elsewhere = plane.api(MALLORY), pods_in(namespace(managed=False))
    refused = mallory.create(pods_in(namespace()), body)
    assert refused.status == 422, refused.message
    assert fact in refused.message
    if body["metadata"].get("annotations") == MARK:
        assert mallory.create(elsewhere, body).status == 422
        body = {**body, "metadata": {"name": "a"}}
    if "nodeName" not in body["spec"]:
        made = mallory.create(elsewhere, body)
        assert made.ok, made.message


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pod("a", HALF, annotations=MARK), id="half a card"),
        pytest.param(
            pod("a", {**HALF, "koordinator.sh/gpu-core": "200"}, annotations=MARK),
            id="two cards",
        ),
        pytest.param(pod("a", {"cpu": "2"}, labels=LSR), id="two whole CPUs"),
        pytest.param(
            pod("a", {"cpu": "1500m"}, labels=LSR, schedulerName="volcano"),
            id="another scheduler's own business",
        ),
        pytest.param(pod("a", {"nvidia.com/gpu": "0"}), id="a number of cards that is none"),
        pytest.param(
            pod("a", HALF, annotations=MARK, env={"NVIDIA_VISIBLE_DEVICES": "void"}),
            id="no visible devices",
        ),
        pytest.param(pod("a", {"cpu": "1500m", "memory": "1Gi"}), id="nothing of ours"),
    ],
)
def test_what_keeps_the_rules_goes_through(
    plane: ControlPlane, namespace: Namespace, body: dict[str, Any]
) -> None:
    """A policy that refuses everything would pass the other tests too."""
    made = plane.api(MALLORY).create(pods_in(namespace()), body)
    assert made.ok, made.message


def starting(app: str, *before: tuple[str, str], **spec: object) -> dict[str, Any]:
    """Return an LSR Pod whose container of `app` CPUs starts after these (restart policy, CPUs)."""
    made = pod("a", {"cpu": app}, labels=LSR)
    made["spec"] |= spec
    (main,) = made["spec"]["containers"]
    made["spec"]["initContainers"] = [
        {**main, "name": f"i{number}", "resources": {"limits": {"cpu": cpu}}}
        | ({"restartPolicy": policy} if policy else {})
        for number, (policy, cpu) in enumerate(before)
    ]
    return made


SIDECAR = ("Always", "500m")
LEVEL = ("requests", "limits")
COUNTED: dict[str, tuple[dict[str, Any], str]] = {
    "an init container's is larger": (starting("1500m", ("", "2")), ""),
    "an init container's is smaller": (starting("2500m", ("", "2")), "2500m"),
    "a sidecar runs beside the container": (starting("1500m", SIDECAR), ""),
    "a sidecar starts before the init container": (starting("1", SIDECAR, ("", "1500m")), ""),
    "a sidecar starts after the init container": (starting("1", ("", "1500m"), SIDECAR), "1500m"),
    "the Pod says its own": (
        starting("2", resources={key: {"cpu": "2.5"} for key in LEVEL}),
        "2500m",
    ),
    "none": (pod("a", {"memory": "1Gi"}, labels=LSR), "0"),
    "in millionths": (pod("a", {"cpu": "1500000u"}, labels=LSR), "1500m"),
    "less than one": (pod("a", {"cpu": "500m"}, labels=LSR), "500m"),
    "each part is rounded": (starting("999999u", ("Always", "1000001u")), "2001m"),
    "with an exponent": (pod("a", {"cpu": "2e0"}, labels=LSR), ""),
    "more than any machine has": (pod("a", {"cpu": "1e30"}, labels=LSR), ""),
}


@pytest.mark.parametrize(("body", "shown"), COUNTED.values(), ids=COUNTED)
def test_whole_cpus_are_those_that_kubernetes_counts(
    plane: ControlPlane, namespace: Namespace, body: dict[str, Any], shown: str
) -> None:
    """The larger of what starts and what runs; a refusal has the webhook's field and number."""
    reply = plane.api(MALLORY).create(pods_in(namespace()), body, dry_run=True)
    assert reply.ok is not bool(shown), reply.message
    request = AdmissionRequest(uid="u", operation="CREATE", kind="Pod", obj=body)
    found = [one.error for one in validate(request, facts=NamespaceFacts(managed=True)).refusals]
    assert len(found) == bool(shown), found
    for error in found:
        assert f'{error.field}: Invalid value: "{shown}": ' in str(error)
        assert reply.message.endswith(f"LSE and LSR Pods ask for whole CPUs: {error}")


@pytest.mark.parametrize("count", [100, 250])
def test_many_init_containers_cost_what_a_policy_may(
    plane: ControlPlane, namespace: Namespace, count: int
) -> None:
    """Every other one is a sidecar, each with the longest name there is."""
    body = starting("1", *[("Always", "1"), ("", "1")] * (count // 2))
    for container in body["spec"]["initContainers"]:
        container["name"] = container["name"].ljust(63, "x")
    made = plane.api(MALLORY).create(pods_in(namespace()), body, dry_run=True)
    assert made.ok, made.message


def test_one_annotation_full_of_our_words_costs_no_loop_through_them(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """The API server gave up after 34 seconds; a forged key beside it is still found."""
    where, mallory = pods_in(namespace(managed=False)), plane.api(MALLORY)
    quoted = '"tenure' * 37_000
    made = mallory.create(where, pod("a", {"cpu": "1"}, annotations={"note": quoted}))
    assert made.ok, made.message
    for key, status in (("more", 200), ("tenure.sh/visible.0", 422)):
        reply = mallory.patch(f"{where}/a", {"metadata": {"annotations": {key: "x"}}})
        assert reply.status == status, reply.message


@pytest.mark.parametrize(
    "amounts",
    [
        pytest.param({"tenure.sh/slot": "1"}, id="without a device"),
        pytest.param({**HALF, "tenure.sh/slot": "2"}, id="two for one container"),
    ],
)
def test_slots_are_taken_by_nobody(
    plane: ControlPlane, namespace: Namespace, amounts: dict[str, str]
) -> None:
    """Whoever took some would leave the containers of others without, from any namespace."""
    mallory, blind = plane.api(MALLORY), {"NVIDIA_VISIBLE_DEVICES": "void"}

    def ours(asked: dict[str, str]) -> dict[str, Any]:
        return pod("a", asked, annotations=MARK, env=blind, schedulerName="tenure")

    refused = mallory.create(pods_in(namespace()), ours(amounts))
    assert "is given by Tenure" in refused.message
    elsewhere = mallory.create(pods_in(namespace(managed=False)), pod("a", amounts))
    assert "is given to Pods of the scheduler tenure alone" in elsewhere.message
    own = {**HALF, "tenure.sh/slot": "1"}
    assert mallory.create(pods_in(namespace()), ours(own)).ok
    assert not mallory.create(pods_in(namespace(managed=False)), ours(own)).ok


def test_our_scheduler_gives_devices_to_managed_namespaces_alone(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """Elsewhere nobody completes a Pod: it would see the cards that its author names."""
    where = pods_in(namespace(managed=False))
    for forged in (
        pod("a", HALF, annotations=MARK, schedulerName="tenure"),
        pod("a", {"cpu": "2"}, labels=LSR, schedulerName="tenure"),
    ):
        assert "tenure.sh/managed=true" in plane.api(MALLORY).create(where, forged).message
    assert plane.api(MALLORY).create(where, pod("b", {"cpu": "1"}, schedulerName="tenure")).ok


def test_debugging_shows_no_cards_even_once_the_namespace_has_opted_out(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """The Pod holds its cards as before."""
    name, mallory = namespace(), plane.api(MALLORY)
    where = pods_in(name)
    blind = {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert mallory.create(
        where, pod("a", HALF, annotations=MARK, env=blind, schedulerName="tenure")
    ).ok
    label = {"metadata": {"labels": {"tenure.sh/managed": None}}}
    assert mallory.patch(f"/api/v1/namespaces/{name}", label).ok
    until, seen = time.monotonic() + SECONDS_MAX, ""
    while "tenure.sh/managed=true" not in seen:  # the API server knows that it has opted out
        assert time.monotonic() < until, seen
        asks = pod("b", HALF, annotations=MARK, schedulerName="tenure")
        seen = mallory.create(where, asks, dry_run=True).message
    entry = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    debug = {"spec": {"ephemeralContainers": [{"name": "d", "image": "x", "env": [entry]}]}}
    refused = mallory.patch(f"{where}/a/ephemeralcontainers", debug, STRATEGIC)
    assert "an ephemeral container sees no cards" in refused.message


def test_no_path_changes_what_a_pod_was_placed_by(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """A patch of the status can change labels and annotations too; kubelet's reports go through."""
    where = pods_in(namespace())
    mallory = plane.api(MALLORY)
    group = {"gputopology.scheduling.koordinator.sh/name": "a"}
    assert mallory.create(where, pod("a", {"cpu": "2"}, labels={**LSR, **group})).ok
    ours = plane.api(SCHEDULER_ACCOUNT).create(f"{where}/a/binding", binding("a", "policy-node"))
    assert ours.ok, ours.message
    wanted = {
        "QoS class": {"labels": {"koordinator.sh/qosClass": "LS"}},
        "sub-priority": {"labels": {"koordinator.sh/priority": "9"}},
        "stays once": {"annotations": {"scheduling.koordinator.sh/resource-spec": "{}"}},
        "priority class": {"labels": {"koordinator.sh/priority-class": "koord-prod"}},
    }
    for path in (f"{where}/a", f"{where}/a/status"):
        for fact, metadata in wanted.items():
            assert fact in mallory.patch(path, {"metadata": metadata}).message, (path, metadata)
        assert mallory.patch(path, {"metadata": {"labels": {"team": "b"}}}).ok
    assert mallory.patch(f"{where}/a/status", {"status": {"phase": "Running"}}).ok
