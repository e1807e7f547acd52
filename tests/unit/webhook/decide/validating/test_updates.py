from __future__ import annotations

import copy
from typing import Final

import pytest

from tests.support.objects import Json, Object, container, gpu_pod, pod
from tests.support.requests_to_admit import MANAGED, SCHEDULER, UNMANAGED, change, rules_of
from webhook.decide.answers import AdmissionAnswer
from webhook.decide.validating.validate import validate

GPU = "koordinator.sh/gpu"
CORE = "koordinator.sh/gpu-core"
QOS = "koordinator.sh/qosClass"
CLASS = "koordinator.sh/priority-class"
PRIORITY = "koordinator.sh/priority"
STATUS = "scheduling.koordinator.sh/resource-status"
SPEC = "scheduling.koordinator.sh/resource-spec"
GROUP = "gputopology.scheduling.koordinator.sh/name"
REPLICA = "gputopology.scheduling.koordinator.sh/replica"
REQUESTS = "spec.containers[0].resources.requests"


def updated(
    old: Object, new: Object, *, subresource: str = "", user: str = "alice"
) -> AdmissionAnswer:
    """Return the answer to a change in a managed namespace."""
    request = change(old, new, subresource=subresource, user=user)
    return validate(request, facts=MANAGED)


def lsr(cpu: str = "4", **more: Json) -> Object:
    """Return a Pod with CPUs of its own."""
    return pod(container(limits={"cpu": cpu}), labels={QOS: "LSR"}, priority=9500, **more)


CLASS_CHANGES: Final = {
    "another QoS": (
        pod(labels={QOS: "LS"}),
        pod(labels={QOS: "SYSTEM"}),
        {f"metadata.labels[{QOS}]": "QosImmutable"},
    ),
    "a QoS where there was none": (
        pod(),
        pod(labels={QOS: "LS"}),
        {f"metadata.labels[{QOS}]": "QosImmutable"},
    ),
    "no QoS any more": (
        pod(labels={QOS: "LS"}),
        pod(),
        {f"metadata.labels[{QOS}]": "QosImmutable"},
    ),
    "another priority class by number": (
        pod(priority=9500),
        pod(priority=5500),
        {"spec.priority": "PriorityImmutable"},
    ),
    "another number of one class": (pod(priority=9500), pod(priority=9501), {}),
    "another priority class by label": (
        pod(labels={CLASS: "koord-prod"}),
        pod(labels={CLASS: "koord-batch"}),
        {"spec.priority": "PriorityImmutable"},
    ),
    "the class that the number had, by label": (
        pod(priority=9500),
        pod(priority=9500, labels={CLASS: "koord-prod"}),
        {},
    ),
    "another sub-priority": (
        pod(labels={PRIORITY: "1"}),
        pod(labels={PRIORITY: "2"}),
        {f"metadata.labels[{PRIORITY}]": "PriorityImmutable"},
    ),
    "another label": (pod(labels={"team": "a"}), pod(labels={"team": "b"}), {}),
}


@pytest.mark.parametrize(("old", "new", "expected"), CLASS_CHANGES.values(), ids=CLASS_CHANGES)
def test_classes_are_immutable(old: Object, new: Object, expected: Object) -> None:
    """Koordinator contract 5.3, UPDATE."""
    answer = updated(old, new)

    assert rules_of(answer) == expected
    assert all("field is immutable" in cause.message for cause in answer.causes)
    assert validate(change(old, new), facts=UNMANAGED).allowed


def test_devices_are_immutable_on_every_path() -> None:
    """Design section 8: in place resize of a device is no resize."""
    for subresource in ("", "resize"):
        answer = updated(gpu_pod({GPU: 100}), gpu_pod({GPU: 200}), subresource=subresource)

        assert rules_of(answer) == {f"{REQUESTS}[{GPU}]": "DevicesImmutable"}
        assert answer.causes[0].reason == "FieldValueForbidden"
        assert "was 100, not to become 200" in answer.causes[0].message


def test_a_device_neither_comes_nor_goes() -> None:
    """Absent is an amount too."""
    some, none = gpu_pod({GPU: 100, "cpu": "1"}), gpu_pod({"cpu": "1"})

    assert rules_of(updated(some, none)) == {f"{REQUESTS}[{GPU}]": "DevicesImmutable"}
    assert rules_of(updated(none, some)) == {f"{REQUESTS}[{GPU}]": "DevicesImmutable"}


def test_the_same_amount_in_other_words_is_no_change() -> None:
    """The alias and the other writing of a quantity mean the same."""
    assert updated(gpu_pod({GPU: 100}), gpu_pod({GPU: "100"})).allowed
    assert updated(gpu_pod({"kubernetes.io/gpu": 100}), gpu_pod({GPU: 100})).allowed


def test_a_limit_of_its_own_is_a_change_too() -> None:
    """Where only the limit changes, the limit is named, beside the rule that both are equal."""
    old = pod(container(limits={GPU: 100}, requests={GPU: 100}))
    new = pod(container(limits={GPU: 200}, requests={GPU: 100}))

    assert rules_of(updated(old, new, subresource="resize")) == {
        f"{REQUESTS}[{GPU}]": "RequestsEqualLimits",
        f"spec.containers[0].resources.limits[{GPU}]": "DevicesImmutable",
    }


def test_cpu_and_memory_of_other_pods_may_be_resized() -> None:
    """Only devices and CPU sets are fixed."""
    old = gpu_pod({GPU: 100, "cpu": "1", "memory": "1Gi"})
    new = gpu_pod({GPU: 100, "cpu": "2", "memory": "2Gi"})

    assert updated(old, new, subresource="resize").allowed


HOLDERS: Final = {
    "by its status": (
        lsr(annotations={STATUS: {"cpuset": "0-3"}}, nodeName="n1"),
        "CPUs 0-3",
    ),
    "of no QoS, by its status": (
        pod(container(limits={"cpu": "4"}), annotations={STATUS: {"cpuset": "0-3"}}),
        "CPUs 0-3",
    ),
    "by what it asks and its node": (lsr(nodeName="n1"), "CPUs of its own"),
    "by a status that can't be read": (
        lsr(annotations={STATUS: "{"}, nodeName="n1"),
        "CPUs that can't be read",
    ),
}


@pytest.mark.parametrize(("old", "held"), HOLDERS.values(), ids=HOLDERS)
def test_a_pod_that_holds_a_cpu_set_keeps_its_cpu(old: Object, held: str) -> None:
    """A cpu change on a Pod that holds a CPU set is refused, in place too."""
    new = copy.deepcopy(old)
    new["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "6"

    answer = updated(old, new, subresource="resize")

    assert rules_of(answer) == {f"{REQUESTS}[cpu]": "CpusetResize"}
    assert f"a pod that holds {held} can't change its cpu from 4 to 6" in answer.causes[0].message


def test_the_cpu_of_the_pod_as_a_whole_counts_too() -> None:
    """A Pod-level amount takes the place of its containers'."""
    level = {"limits": {"cpu": "4"}, "requests": {"cpu": "4"}}
    old = pod(labels={QOS: "LSR"}, priority=9500, nodeName="n1", resources=level)
    new = copy.deepcopy(old)
    for side in ("limits", "requests"):
        new["spec"]["resources"][side]["cpu"] = "6"
        assert rules_of(updated(old, new, subresource="resize")) == {
            f"spec.resources.{side}[cpu]": "CpusetResize"
        } | ({"spec.resources.requests[cpu]": "CpuLimits"} if side == "limits" else {})


def test_memory_of_a_pod_with_a_cpu_set_may_change() -> None:
    """Only the CPUs are in the set."""
    old = lsr(annotations={STATUS: {"cpuset": "0-3"}}, nodeName="n1")
    new = copy.deepcopy(old)
    new["spec"]["containers"][0]["resources"]["limits"]["memory"] = "2Gi"

    assert updated(old, new, subresource="resize").allowed


def test_an_empty_set_is_none() -> None:
    """A Pod in the shared pools may be resized."""
    old = pod(
        container(limits={"cpu": "4"}),
        annotations={STATUS: {"cpuset": "", "cpuSharedPools": [{"socket": 0, "node": 0}]}},
        nodeName="n1",
    )
    new = copy.deepcopy(old)
    new["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "6"

    assert updated(old, new, subresource="resize").allowed


@pytest.mark.parametrize(
    ("labels", "annotations", "field"),
    [
        pytest.param({GROUP: "b", REPLICA: "1"}, {}, f"metadata.labels[{GROUP}]", id="a group"),
        pytest.param(
            {GROUP: "a", REPLICA: "1"},
            {SPEC: {"preferredCPUBindPolicy": "SpreadByPCPUs"}},
            f"metadata.annotations[{SPEC}]",
            id="a policy",
        ),
    ],
)
def test_what_a_pod_was_placed_by_stays(labels: Object, annotations: Object, field: str) -> None:
    """Design section 8, Restore: the request stays what the allocation was made for."""
    before = {GROUP: "a", REPLICA: "1"}
    new = gpu_pod({GPU: 100}, labels=labels, annotations=annotations, nodeName="n1")

    placed = gpu_pod({GPU: 100}, labels=before, nodeName="n1")
    assert rules_of(updated(placed, new)) == {field: "RequestImmutable"}
    waiting = gpu_pod({GPU: 100}, labels=before)
    assert updated(waiting, new).allowed


def test_we_write_the_effective_policy_ourselves() -> None:
    """Koordinator contract 2.2: `resource-spec` is rewritten at the Binding."""
    old = lsr(nodeName="n1")
    new = lsr(nodeName="n1", annotations={SPEC: {"requiredCPUBindPolicy": "FullPCPUs"}})

    assert updated(old, new, user=SCHEDULER).allowed
    assert rules_of(updated(old, new)) == {f"metadata.annotations[{SPEC}]": "RequestImmutable"}


def test_old_violations_do_not_lock_a_pod() -> None:
    """A Pod from before a rule can still lose a finalizer; what the update breaks counts."""
    old = gpu_pod({GPU: 150})
    old["metadata"]["finalizers"] = ["example.com/wait"]
    new = gpu_pod({GPU: 150})

    assert updated(old, new).allowed
    new["metadata"]["labels"] = {PRIORITY: "high"}
    rules = {item.rule for item in updated(old, new).refusals}
    assert rules == {"SubPriority", "PriorityImmutable"}


def test_a_status_may_say_anything_but_who_holds_what() -> None:
    """Kubelet reports conditions and phases all day."""
    old, new = lsr(nodeName="n1"), lsr(nodeName="n1", phase="Running")

    assert updated(old, new, subresource="status", user="system:node:n1").allowed


def test_containers_are_told_by_name() -> None:
    """Their order says nothing."""
    one, two = container("a", limits={GPU: 100}), container("b", limits={GPU: 200})

    assert updated(pod(one, two), pod(two, one)).allowed
