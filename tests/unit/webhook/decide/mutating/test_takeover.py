from __future__ import annotations

import json

import pytest

from tests.support.mutation import MANAGED, mutate
from tests.support.objects import Object, gpu_pod, pod
from webhook.decide.facts import NamespaceFacts
from webhook.decide.settings import AdmissionSettings, Takeover, TakeoverRule

NVIDIA = {"nvidia.com/gpu": "1"}
LABEL = "tenure.sh/takeover"
PINNED_BY_FIELD: Object = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
            ]
        }
    }
}
MARK = {"tenure.sh/admitted": "true"}


def namespace(takeover: str = "") -> NamespaceFacts:
    """Return a managed namespace, with our takeover label if one is given."""
    labels = {"tenure.sh/managed": "true"} | ({LABEL: takeover} if takeover else {})
    return NamespaceFacts(labels=labels, managed=True)


def scheduler(body: Object) -> object:
    """Return the scheduler that a Pod names."""
    return body["spec"].get("schedulerName")


DEVICE_PODS = {
    "whole cards": gpu_pod(NVIDIA),
    "a share": gpu_pod({"koordinator.sh/gpu": "50"}),
    "mgpu": gpu_pod({"vke.volcengine.com/mgpu-core": "100"}),
    "gpu share": gpu_pod({"aliyun.com/gpu-mem": "1000"}),
    "rdma": gpu_pod({"koordinator.sh/rdma": "1"}),
    "CPUs of its own": pod(labels={"koordinator.sh/qosClass": "LSR"}),
    "a broken request": gpu_pod({"koordinator.sh/gpu": "150"}),
    "the default scheduler by name": gpu_pod(NVIDIA, schedulerName="default-scheduler"),
}


@pytest.mark.parametrize("body", DEVICE_PODS.values(), ids=DEVICE_PODS)
def test_pods_that_ask_for_devices_or_cpus_get_our_scheduler(body: Object) -> None:
    """In a managed namespace, by the default rule; the mark and the toleration come with it."""
    after = mutate(body)

    assert scheduler(after) == "tenure"
    assert after["metadata"]["annotations"]["tenure.sh/admitted"] == "true"
    assert after["spec"]["tolerations"] == [{"key": "tenure.sh/owned", "operator": "Exists"}]


UNTOUCHED = {
    "asks for nothing of ours": pod(),
    "only requests CPU": gpu_pod({"cpu": "1"}),
    "shares CPUs": pod(labels={"koordinator.sh/qosClass": "LS"}),
    "has a node already": gpu_pod(NVIDIA, nodeName="n1"),
}


@pytest.mark.parametrize("body", UNTOUCHED.values(), ids=UNTOUCHED)
def test_other_pods_are_not_touched(body: Object) -> None:
    """Nothing at all is changed, not even a mark."""
    assert mutate(body) == body


@pytest.mark.parametrize("body", DEVICE_PODS.values(), ids=DEVICE_PODS)
def test_nothing_happens_in_a_namespace_that_is_not_managed(body: Object) -> None:
    """Design section 8: opt-in by namespace label."""
    assert mutate(body, facts=NamespaceFacts(labels={LABEL: "true"})) == body


def owned_by_daemon_set() -> Object:
    """Return a Pod that a DaemonSet owns."""
    body = gpu_pod(NVIDIA)
    body["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d", "controller": True}]
    return body


FOREIGN = AdmissionSettings(takeover=Takeover(foreign_schedulers=frozenset({"volcano"})))
LEFT_ALONE = {
    "a DaemonSet's Pod": owned_by_daemon_set(),
    "pinned by a field": gpu_pod(NVIDIA, affinity=PINNED_BY_FIELD),
    "a foreign scheduler": gpu_pod(NVIDIA, schedulerName="volcano"),
}


@pytest.mark.parametrize("body", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_pods_that_others_place_are_only_marked(body: Object) -> None:
    """A rewrite without our scheduler would leave them without cards."""
    after = mutate(body, FOREIGN)

    assert after == {**body, "metadata": {**body["metadata"], "annotations": MARK}}


@pytest.mark.parametrize("body", [owned_by_daemon_set(), LEFT_ALONE["pinned by a field"]])
def test_a_pinned_pod_that_names_our_scheduler_is_placed_by_it(body: Object) -> None:
    """The DaemonSet's author chose it; nobody else would place the Pod, nor give it its cards."""
    after = mutate({**body, "spec": {**body["spec"], "schedulerName": "tenure"}})

    assert "koordinator.sh/gpu-core" in after["spec"]["containers"][0]["resources"]["limits"]
    assert after["spec"]["tolerations"] == [{"key": "tenure.sh/owned", "operator": "Exists"}]
    assert after["spec"].get("affinity") == body["spec"].get("affinity")


def test_a_scheduler_that_is_not_foreign_is_replaced_and_remembered() -> None:
    """What the user named stands in the annotation with the original."""
    after = mutate(gpu_pod(NVIDIA, schedulerName="my-own"), FOREIGN)

    assert scheduler(after) == "tenure"
    kept = json.loads(after["metadata"]["annotations"]["tenure.sh/original-request"])
    assert kept["schedulerName"] == "my-own"


RULES: dict[str, tuple[TakeoverRule, str, str, bool]] = {
    "devices": (TakeoverRule.DEVICES, "", "", True),
    "devices, the namespace opts out": (TakeoverRule.DEVICES, "false", "", False),
    "devices, the Pod opts out": (TakeoverRule.DEVICES, "", "false", False),
    "devices, the Pod opts in again": (TakeoverRule.DEVICES, "false", "true", True),
    "labelled, no label": (TakeoverRule.LABELLED, "", "", False),
    "labelled, on the namespace": (TakeoverRule.LABELLED, "true", "", True),
    "labelled, on the Pod": (TakeoverRule.LABELLED, "", "true", True),
    "labelled, the Pod opts out": (TakeoverRule.LABELLED, "true", "false", False),
    "none": (TakeoverRule.NONE, "true", "true", False),
}


@pytest.mark.parametrize("case", RULES.values(), ids=RULES)
def test_the_rule_and_the_labels_choose(case: tuple[TakeoverRule, str, str, bool]) -> None:
    """The Pod's own label counts before its namespace's."""
    rule, on_namespace, on_pod, expected = case
    settings = AdmissionSettings(takeover=Takeover(rule=rule))
    body = gpu_pod(NVIDIA, labels={LABEL: on_pod} if on_pod else None)

    after = mutate(body, settings, namespace(on_namespace))

    assert scheduler(after) == ("tenure" if expected else None)
    if not expected:
        assert after == {**body, "metadata": {**body["metadata"], "annotations": MARK}}


def test_a_pod_that_names_our_scheduler_is_ours_whatever_the_rule() -> None:
    """The user chose; there is nothing to take over."""
    settings = AdmissionSettings(
        takeover=Takeover(rule=TakeoverRule.NONE), scheduler_name="our-own"
    )

    after = mutate(gpu_pod(NVIDIA, schedulerName="our-own"), settings, MANAGED)

    assert "koordinator.sh/gpu-core" in after["spec"]["containers"][0]["resources"]["limits"]


ENOUGH: dict[str, tuple[list[Object], bool]] = {
    "tolerates everything": ([{"operator": "Exists"}], True),
    "tolerates the taint": ([{"key": "tenure.sh/owned", "operator": "Exists"}], True),
    "only one effect": (
        [{"key": "tenure.sh/owned", "operator": "Exists", "effect": "NoExecute"}],
        False,
    ),
    "another taint": ([{"key": "gpu", "operator": "Exists"}], False),
    "one value only": ([{"key": "tenure.sh/owned", "operator": "Equal", "value": "x"}], False),
}


@pytest.mark.parametrize("case", ENOUGH.values(), ids=ENOUGH)
def test_the_toleration_is_added_where_it_is_missing(case: tuple[list[Object], bool]) -> None:
    """Design section 3: nodes of ours are tainted `tenure.sh/owned`."""
    tolerations, enough = case

    after = mutate(gpu_pod(NVIDIA, tolerations=tolerations))

    added = [] if enough else [{"key": "tenure.sh/owned", "operator": "Exists"}]
    assert after["spec"]["tolerations"] == [*tolerations, *added]


def test_another_kind_or_operation_is_not_ours_to_change() -> None:
    """Updates, bindings and Nodes pass unchanged."""
    body = gpu_pod(NVIDIA)

    assert mutate(body, operation="UPDATE") == body
    assert mutate(body, kind="Node") == body
    assert mutate(body, subresource="binding") == body
