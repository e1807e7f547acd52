from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from ledger.domain.annotations.guarded import is_allocation
from ledger.domain.annotations.tenure import ContainerDevices, encode_container_devices
from ledger.domain.dialects.gpushare.annotations import GpuShareAnswer, encode_gpushare_answer
from ledger.domain.dialects.mgpu.annotations import MgpuAllocation, encode_mgpu_allocation
from ledger.domain.resources import ANNOTATION_BIND_GANG_GROUP_ID, ANNOTATION_BIND_GANG_MEMBER_COUNT
from tests.support.objects import Object, container, device, gpu_pod, node, pod
from tests.support.requests_to_admit import (
    AGENT,
    MANAGED,
    SCHEDULER,
    UNMANAGED,
    WEBHOOK,
    binding,
    change,
    creation,
    judged,
    rules_of,
)
from webhook.decide.review import AdmissionRequest
from webhook.decide.validating.validate import validate

FORGED: Final = "ForgedAllocation"

KEYS: Final = (
    "scheduling.koordinator.sh/device-allocated",
    "scheduling.koordinator.sh/resource-status",
    "scheduling.koordinator.sh/bind-timestamp",
    "scheduling.koordinator.sh/gpu-minors",
    "topology.scheduling.koordinator.sh/gpu",
    "internal.scheduling.koordinator.sh/bind-gang-group-id",
    "internal.scheduling.koordinator.sh/bind-gang-member-count",
    "vke.volcengine.com/assumed",
    "vke.volcengine.com/gpu-index-container-main",
    "ALIYUN_COM_GPU_MEM_IDX",
    "ALIYUN_GPU_ID",
    "ALIYUN_COM_GPU_MEM_POD",
    "ALIYUN_COM_GPU_MEM_DEV",
    "ALIYUN_COM_GPU_MEM_ASSIGNED",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
    "ALIYUN_COM_GPU_MEM_ASSIGN_TIME",
    "scheduler.framework.gpushare.allocation",
    "scheduler.framework.gpushare.assigned",
    "scheduler.framework.gpushare.assume-time",
    "gpushare.alibabacloud.com/core-percentage",
    "gpushare.alibabacloud.com/gpumemory",
    "gpushare.alibabacloud.com/assigned",
    "gpushare.alibabacloud.com/assume-time",
    "gpushare.alibabacloud.com/device-resource",
    "tenure.sh/allocation",
    "tenure.sh/visible.0",
    "tenure.sh/allocated.init-0",
    "tenure.sh/something-new",
)
FREE: Final = (
    "scheduling.koordinator.sh/resource-spec",
    "vke.volcengine.com/container-multiple-gpu",
    "predicate-time",
    "example.com/gpu",
    "nottenure.sh/visible.0",
)


def field_of(key: str) -> str:
    """Return an annotation's field path."""
    return f"metadata.annotations[{key}]"


def paths(
    before: Mapping[str, str], after: Mapping[str, str], user: str
) -> dict[str, AdmissionRequest]:
    """Return the change on every path by which a Pod's annotations can be written."""
    old, new = pod(annotations=before), pod(annotations=after)
    return {
        "create": creation(new, user=user),
        "update or patch": change(old, new, user=user),
        "status": change(old, new, user=user, subresource="status"),
        "ephemeral containers": change(old, new, user=user, subresource="ephemeralcontainers"),
        "resize": change(old, new, user=user, subresource="resize"),
        "binding": creation(
            binding(after), kind="Binding", resource="pods", subresource="binding", user=user
        ),
        "old binding": creation(binding(after), kind="Binding", user=user),
    }


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("path", paths({}, {}, ""))
def test_nobody_else_sets_an_allocation(key: str, path: str) -> None:
    """Koordinator contract 5.4, GPU-sharing contract A.3, design section 5: on every path."""
    request = paths({}, {key: "x"}, "alice")[path]
    for facts in (MANAGED, UNMANAGED):
        answer = validate(request, facts=facts)

        assert rules_of(answer) == {field_of(key): FORGED}
        (cause,) = answer.causes
        assert cause.reason == "FieldValueForbidden"
        assert 'may set it (here "x")' in cause.message


@pytest.mark.parametrize("user", [SCHEDULER, AGENT, WEBHOOK])
@pytest.mark.parametrize("path", paths({}, {}, ""))
def test_our_service_accounts_set_them(user: str, path: str) -> None:
    """The Binding of our scheduler and the marks of our agent are what the guard is for."""
    request = paths({}, dict.fromkeys(KEYS[:8], "x"), user)[path]

    assert FORGED not in rules_of(validate(request, facts=MANAGED)).values()


@pytest.mark.parametrize("path", ["update or patch", "status", "ephemeral containers", "resize"])
@pytest.mark.parametrize(
    ("before", "after", "act"),
    [
        pytest.param({KEYS[0]: "a"}, {KEYS[0]: "b"}, "change it", id="changed"),
        pytest.param({KEYS[0]: "a"}, {}, "remove it", id="removed"),
    ],
)
def test_nobody_else_changes_or_removes_one(
    path: str, before: Object, after: Object, act: str
) -> None:
    """A removed allocation frees a card that is held; a changed one names another."""
    answer = validate(paths(before, after, "alice")[path], facts=UNMANAGED)

    assert rules_of(answer) == {field_of(KEYS[0]): FORGED}
    assert act in answer.causes[0].message
    assert '"a"' in answer.causes[0].message


@pytest.mark.parametrize("path", ["update or patch", "status", "ephemeral containers", "resize"])
def test_what_stays_as_it_was_is_nobodys_doing(path: str) -> None:
    """Labels, finalizers and everything else of a placed Pod can be changed by others."""
    held = dict.fromkeys(KEYS, "x")
    request = paths(held, {**held, "example.com/note": "y"}, "alice")[path]

    assert validate(request, facts=UNMANAGED).allowed


@pytest.mark.parametrize("key", FREE)
def test_other_annotations_are_free(key: str) -> None:
    """Wishes are the user's to write, and names that only look like ours are anyone's."""
    for request in paths({}, {key: "{}"}, "alice").values():
        assert FORGED not in rules_of(validate(request, facts=UNMANAGED)).values()


def test_the_marks_of_our_own_webhook_are_taken_on_create_only() -> None:
    """It writes them under the name of whoever creates the Pod; later nobody else touches them."""
    marks = {"tenure.sh/admitted": "true", "tenure.sh/original-request": "{}"}

    assert validate(creation(pod(annotations=marks)), facts=MANAGED).allowed
    answer = validate(change(pod(annotations=marks), pod()), facts=MANAGED)
    assert rules_of(answer) == {field_of(key): FORGED for key in marks}


def test_all_that_our_binding_writes_is_guarded() -> None:
    """Whatever an answer's encoder writes, in every dialect, is guarded."""
    written = {
        **encode_mgpu_allocation(MgpuAllocation(assumed=True, cards=(("main", (1,)),))),
        **encode_gpushare_answer(
            GpuShareAnswer(card=0, pod_units=1, card_units=2, assume_time_ns=3)
        ),
        **encode_container_devices(
            [ContainerDevices(index="0", visible=("GPU-1",), allocated=("GPU-1",))]
        ),
        ANNOTATION_BIND_GANG_GROUP_ID: "g",
        ANNOTATION_BIND_GANG_MEMBER_COUNT: "2",
    }

    assert all(map(is_allocation, written))


# --- Pods that bring their own node ---------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["koordinator.sh/gpu", "kubernetes.io/gpu", "aliyun.com/gpu-mem", "koordinator.sh/rdma"],
)
def test_a_pod_with_our_resources_brings_no_node(name: str) -> None:
    """cli.md, tenure check: spec.nodeName FieldValueForbidden; in every namespace."""
    for facts in (MANAGED, UNMANAGED):
        answer = validate(creation(gpu_pod({name: 100}, nodeName="n1")), facts=facts)

        assert rules_of(answer) == {"spec.nodeName": "PinnedNode"}
        assert name in answer.causes[0].message
        assert answer.causes[0].reason == "FieldValueForbidden"


def test_a_device_plugins_own_name_is_ours_in_managed_namespaces_only() -> None:
    """Elsewhere `nvidia.com/gpu` is between the Pod and the device plugin."""
    body = gpu_pod({"nvidia.com/gpu": 1}, nodeName="n1")

    assert rules_of(validate(creation(body), facts=MANAGED)) == {"spec.nodeName": "PinnedNode"}
    assert validate(creation(body), facts=UNMANAGED).allowed


def test_a_pod_with_cpus_of_its_own_brings_no_node() -> None:
    """A CPU set is given by the scheduler too."""
    body = pod(
        container(limits={"cpu": "4"}),
        labels={"koordinator.sh/qosClass": "LSR"},
        nodeName="n1",
        priority=9500,
    )

    assert rules_of(validate(creation(body), facts=MANAGED)) == {"spec.nodeName": "PinnedNode"}


def test_what_else_is_wrong_does_not_hide_the_node() -> None:
    """A Pod that asks for CPUs of its own asks for them, though it asks for half of one."""
    body = pod(
        container(limits={"cpu": "500m"}),
        labels={"koordinator.sh/qosClass": "LSE"},
        nodeName="n1",
        priority=9500,
    )

    assert set(rules_of(validate(creation(body), facts=MANAGED)).values()) == {
        "PinnedNode",
        "WholeCpus",
    }


@pytest.mark.parametrize("limits", [{"cpu": "1"}, {"koordinator.sh/gpu": 0}, {}])
def test_a_pod_without_our_resources_may(limits: Object) -> None:
    """Zero asks for nothing."""
    answer = validate(creation(gpu_pod(limits, nodeName="n1")), facts=UNMANAGED)

    assert answer.allowed


def test_a_static_pod_is_said_not_refused() -> None:
    """Kubelet runs it whatever we answer: refusing would hide it from the API."""
    body = gpu_pod(
        {"koordinator.sh/gpu": 100},
        nodeName="n1",
        annotations={"kubernetes.io/config.mirror": "hash"},
    )
    kubelet = creation(body, user="system:node:n1", groups=("system:nodes",))

    answer = validate(kubelet, facts=MANAGED)
    assert answer.allowed
    assert any("static pod" in text for text in answer.warnings)
    assert not validate(creation(body), facts=MANAGED).allowed


def test_no_pod_of_a_user_is_a_reservation() -> None:
    """Koordinator contract 5.3."""
    key = "scheduling.koordinator.sh/reserve-pod"
    answer = judged(pod(annotations={key: "true"}))

    assert rules_of(answer) == {field_of(key): "ReservePod"}


# --- Devices and Nodes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["node.koordinator.sh/devices-checkpoints", "node.koordinator.sh/gpu-checkpoints"]
)
def test_checkpoints_of_a_device_are_the_agents(key: str) -> None:
    """Koordinator contract 2.7, ours: set, changed or removed by anyone else is refused."""
    without, with_one = device(), device(annotations={key: "[]"})

    for request in (
        creation(with_one, kind="Device"),
        change(without, with_one, kind="Device"),
        change(with_one, without, kind="Device"),
        change(with_one, device(annotations={key: "null"}), kind="Device", subresource="status"),
    ):
        assert rules_of(validate(request)) == {field_of(key): "ForgedDevice"}
    assert validate(creation(with_one, kind="Device", user=AGENT)).allowed
    assert validate(change(with_one, with_one, kind="Device")).allowed


def test_allocations_in_a_devices_status_are_the_agents() -> None:
    """Koordinator contract 3.1, ours: filled from the ledger."""
    claimed = device() | {"status": {"allocations": [{"type": "gpu", "entries": []}]}}
    request = change(device(), claimed, kind="Device", subresource="status")

    assert rules_of(validate(request)) == {"status.allocations": "ForgedDevice"}
    assert validate(change(device(), claimed, kind="Device", user=AGENT)).allowed


def test_our_annotations_on_a_node_are_ours() -> None:
    """Design section 5: a release wakes waiting Pods by one."""
    key = "tenure.sh/released-at"
    woken = node(annotations={key: "2026-01-05T14:05:09Z"})

    for subresource in ("", "status"):
        request = change(node(), woken, kind="Node", subresource=subresource)
        assert rules_of(validate(request)) == {field_of(key): "ForgedNode"}
    assert validate(change(node(), woken, kind="Node", user=SCHEDULER)).allowed
    assert validate(change(woken, woken, kind="Node", user="system:node:n1")).allowed
