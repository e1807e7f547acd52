from __future__ import annotations

import json

import pytest

from ledger.domain.quantity import Quantity
from ledger.domain.request.normalise import decode_pod
from tests.support.mutation import BLIND, MANAGED, UNMANAGED, mutate, request_for, sees
from tests.support.objects import Object, container, gpu_pod, pod
from webhook.decide.facts import NamespaceFacts, QuotaFact
from webhook.decide.mutating.pod import mutate_pod
from webhook.decide.settings import DEFAULT_ADMISSION

ORIGINAL = "tenure.sh/original-request"
CARDS = {
    "koordinator.sh/gpu-core": "200",
    "koordinator.sh/gpu-memory-ratio": "200",
    "koordinator.sh/gpu.shared": "2",
}


def test_a_whole_pod_before_and_after() -> None:
    """The example of the documentation: two whole cards and a helper beside them."""
    before = pod(
        container("train", limits={"cpu": "8", "nvidia.com/gpu": "2"}),
        container("log"),
        schedulerName="default-scheduler",
    )

    assert mutate(before) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "ml",
            "annotations": {
                ORIGINAL: '{"containers":{"train":{"limits":{"nvidia.com/gpu":"2"}}}}',
                "tenure.sh/admitted": "true",
            },
        },
        "spec": {
            "schedulerName": "tenure",
            "containers": [
                {
                    "name": "train",
                    "resources": {"limits": {"cpu": "8", **CARDS}, "requests": CARDS},
                    "env": sees("0"),
                },
                {"name": "log", "resources": {}, "env": BLIND},
            ],
            "tolerations": [{"key": "tenure.sh/owned", "operator": "Exists"}],
        },
    }


def test_the_patch_touches_nothing_else() -> None:
    """Minimal: every operation adds, or is a test followed by a change at the same place."""
    answer = mutate_pod(
        request_for(gpu_pod({"nvidia.com/gpu": "1"}, schedulerName="default-scheduler")),
        DEFAULT_ADMISSION,
        MANAGED,
    )

    for one, following in zip(answer.patch, answer.patch[1:], strict=False):
        if one.op == "test":
            assert following.path == one.path
            assert following.op in {"replace", "remove"}
    assert {one.op for one in answer.patch} == {"add", "test", "replace", "remove"}


def test_a_pod_that_was_mutated_gets_an_empty_patch() -> None:
    """reinvocationPolicy: IfNeeded calls us again."""
    once = mutate(gpu_pod({"nvidia.com/gpu": "2", "cpu": "1"}))

    assert mutate_pod(request_for(once), DEFAULT_ADMISSION, MANAGED).patch == ()


def test_a_pod_of_a_gang_waits_behind_a_gate_and_one_of_a_group_does_not() -> None:
    """Once, behind the gates that it has; one that breaks a rule is left to validation."""
    gang = {
        "gang.scheduling.koordinator.sh/name": "g",
        "gang.scheduling.koordinator.sh/min-available": "2",
    }
    labels = {
        "gputopology.scheduling.koordinator.sh/name": "g",
        "gputopology.scheduling.koordinator.sh/replica": "2",
    }
    limits = {"nvidia.com/gpu": "2"}
    other = [{"name": "example.org/quota"}]
    gated = mutate(gpu_pod(limits, annotations=gang, schedulingGates=other))

    assert gated["spec"]["schedulingGates"] == [*other, {"name": "tenure.sh/gang"}]
    assert mutate_pod(request_for(gated), DEFAULT_ADMISSION, MANAGED).patch == ()
    assert "schedulingGates" not in mutate(gpu_pod(limits, labels=labels))["spec"]
    broken = {**gang, "gang.scheduling.koordinator.sh/min-available": "0"}
    assert "schedulingGates" not in mutate(gpu_pod(limits, annotations=broken))["spec"]


def test_a_dry_run_is_answered_like_any_other() -> None:
    """Nothing is kept anywhere, so there is nothing to leave out."""
    body = gpu_pod({"nvidia.com/gpu": "2"})

    assert mutate_pod(request_for(body, dry_run=True), DEFAULT_ADMISSION, MANAGED) == mutate_pod(
        request_for(body), DEFAULT_ADMISSION, MANAGED
    )


def test_a_pod_with_a_generated_name_is_read_like_any_other() -> None:
    """On CREATE the name does not exist yet, nor the namespace inside the object."""
    body = gpu_pod({"nvidia.com/gpu": "2"})
    body["metadata"] = {"generateName": "train-"}

    after = mutate(body)

    assert after["spec"]["schedulerName"] == "tenure"
    assert "name" not in after["metadata"]


def test_a_pod_that_can_not_be_read_is_refused_with_its_field() -> None:
    """Never a 500, never an allowed Pod that nobody can decode."""
    broken = gpu_pod({"nvidia.com/gpu": "two"})

    answer = mutate_pod(request_for(broken), DEFAULT_ADMISSION, MANAGED)

    assert not answer.allowed
    assert answer.message == (
        'Pod "p" is invalid: spec.containers[0].resources.limits[nvidia.com/gpu]: '
        "Invalid value: not a quantity: value='two'"
    )
    assert answer.causes[0].reason == "FieldValueInvalid"
    assert mutate_pod(request_for(broken), DEFAULT_ADMISSION, UNMANAGED).allowed


def test_an_unreadable_environment_is_refused_with_its_field() -> None:
    """The path names container and entry."""
    broken = pod(container(limits={"nvidia.com/gpu": "1"}, env=["x"]))

    (cause,) = mutate_pod(request_for(broken), DEFAULT_ADMISSION, MANAGED).causes

    assert cause.field == "spec.containers[0].env[0]"


def quota(**hard: int) -> NamespaceFacts:
    """Return a managed namespace with one ResourceQuota; `nvidia` and `core` are short names."""
    names = {"nvidia": "requests.nvidia.com/gpu", "core": "requests.koordinator.sh/gpu-core"}
    amounts = {names[word]: Quantity(nanos=count * 10**9) for word, count in hard.items()}
    return NamespaceFacts(managed=True, quotas=(QuotaFact(name="q", hard=amounts),))


def test_cards_that_a_quota_counts_are_not_renamed_behind_its_back() -> None:
    """Design section 8: validation refuses the Pod with the quota translated."""
    before = gpu_pod({"nvidia.com/gpu": "1"})

    kept = mutate(before, facts=quota(nvidia=4))
    renamed = mutate(before, facts=quota(nvidia=4, core=400))

    assert kept["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert "koordinator.sh/gpu-core" in renamed["spec"]["containers"][0]["resources"]["limits"]


def test_a_container_added_between_two_calls_joins_the_record() -> None:
    """What the first call recorded stays."""
    once = mutate(pod(container("a", limits={"nvidia.com/gpu": "1"})))
    once["spec"]["containers"].append(container("b", limits={"nvidia.com/gpu": "2"}))

    again = mutate(once)

    assert json.loads(again["metadata"]["annotations"][ORIGINAL])["containers"] == {
        "a": {"limits": {"nvidia.com/gpu": "1"}},
        "b": {"limits": {"nvidia.com/gpu": "2"}},
    }
    assert decode_pod(again).snapshot.original == {"a.nvidia.com/gpu": "1", "b.nvidia.com/gpu": "2"}


def test_a_forged_record_is_dropped() -> None:
    """It says what the container does not ask for, or names no container, or no amount."""
    asked: Object = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
    for forged in (
        {"containers": {"main": {"limits": {"nvidia.com/gpu": "8"}}}},
        {"containers": {"other": {"limits": {"nvidia.com/gpu": "1"}}}},
        {"containers": {"main": {"limits": {"nvidia.com/gpu": "-1"}}}},
    ):
        body = gpu_pod({**asked, "koordinator.sh/gpu.shared": "1"}, annotations={ORIGINAL: forged})

        assert ORIGINAL not in mutate(body)["metadata"]["annotations"]


def test_a_record_that_can_not_be_read_is_refused() -> None:
    """An annotation of ours with JSON that does not parse is an error, never absent."""
    for broken in ("{", "[]", {"containers": {"main": {"limits": {"nvidia.com/gpu": 1}}}}):
        body = gpu_pod({"nvidia.com/gpu": "1"}, annotations={ORIGINAL: broken})

        (cause,) = mutate_pod(request_for(body), DEFAULT_ADMISSION, MANAGED).causes

        assert cause.field.startswith(f"metadata.annotations[{ORIGINAL}]")


ENV_PATH = "/spec/containers/0/env"
TAIL: list[tuple[str, str]] = [
    ("add", "/metadata/annotations"),
    ("add", "/spec/schedulerName"),
    ("add", "/spec/tolerations"),
    ("add", ENV_PATH),
]
RESOURCES = "/spec/containers/0/resources"
GANG = {
    "gang.scheduling.koordinator.sh/name": "g",
    "gang.scheduling.koordinator.sh/min-available": "2",
}
GROUP = {
    "gputopology.scheduling.koordinator.sh/name": "g",
    "gputopology.scheduling.koordinator.sh/replica": "2",
}
PATCHES: dict[str, tuple[Object, list[tuple[str, str]]]] = {
    "whole cards": (
        {"limits": {"nvidia.com/gpu": "2"}},
        [
            ("test", f"{RESOURCES}/limits/nvidia.com~1gpu"),
            ("remove", f"{RESOURCES}/limits/nvidia.com~1gpu"),
            ("add", f"{RESOURCES}/limits/koordinator.sh~1gpu-core"),
            ("add", f"{RESOURCES}/limits/koordinator.sh~1gpu-memory-ratio"),
            ("add", f"{RESOURCES}/limits/koordinator.sh~1gpu.shared"),
            ("add", f"{RESOURCES}/requests"),
        ],
    ),
    "the proposal's half card": (
        {"requests": {"kubernetes.io/gpu": "50"}, "limits": {"kubernetes.io/gpu": "50"}},
        [
            (op, f"{RESOURCES}/{section}/{name}")
            for section in ("requests", "limits")
            for op, name in (
                ("test", "kubernetes.io~1gpu"),
                ("remove", "kubernetes.io~1gpu"),
                ("add", "kubernetes.io~1gpu-core"),
                ("add", "kubernetes.io~1gpu-memory-ratio"),
                ("add", "koordinator.sh~1gpu.shared"),
            )
        ],
    ),
    "the proposal's core and memory": (
        {
            "requests": {"kubernetes.io/gpu-core": "60", "kubernetes.io/gpu-memory": "4Gi"},
            "limits": {"kubernetes.io/gpu-core": "60", "kubernetes.io/gpu-memory": "4Gi"},
        },
        [
            ("add", f"{RESOURCES}/requests/koordinator.sh~1gpu.shared"),
            ("add", f"{RESOURCES}/limits/koordinator.sh~1gpu.shared"),
        ],
    ),
    "mgpu, one card": (
        {"limits": {"vke.volcengine.com/mgpu-core": "30"}, "requests": {}},
        [("add", f"{RESOURCES}/requests/vke.volcengine.com~1mgpu-core")],
    ),
    "gpu share": (
        {"limits": {"aliyun.com/gpu-mem": "8"}, "requests": {"aliyun.com/gpu-mem": "8"}},
        [],
    ),
    "rdma beside a card": (
        {"limits": {"koordinator.sh/rdma": "1", "koordinator.sh/gpu-memory-ratio": "200"}},
        [
            ("add", f"{RESOURCES}/limits/koordinator.sh~1gpu.shared"),
            ("add", f"{RESOURCES}/requests"),
        ],
    ),
}


@pytest.mark.parametrize("case", PATCHES.values(), ids=PATCHES)
def test_each_dialects_patch_is_what_it_needs_and_no_more(
    case: tuple[Object, list[tuple[str, str]]],
) -> None:
    """Besides the four additions that every Pod of ours gets; the order within is free."""
    resources, expected = case
    body = pod(container(**resources))

    patch = mutate_pod(request_for(body), DEFAULT_ADMISSION, MANAGED).patch

    assert sorted((one.op, one.path) for one in patch) == sorted([*expected, *TAIL])


WISHES: dict[str, Object] = {
    "a GPU topology group": pod(container(limits={"koordinator.sh/gpu": "100"}), labels=GROUP),
    "a gang": pod(container(limits={"nvidia.com/gpu": "1"}), annotations=GANG),
    "several mGPU cards": pod(
        container(
            limits={"vke.volcengine.com/mgpu-core": "100", "vke.volcengine.com/mgpu-memory": "6k"}
        ),
        annotations={"vke.volcengine.com/container-multiple-gpu": "2"},
    ),
    "device hints": pod(
        container(limits={"koordinator.sh/gpu": "100", "koordinator.sh/rdma": "100"}),
        annotations={
            "scheduling.koordinator.sh/device-joint-allocate": {"deviceTypes": ["gpu", "rdma"]}
        },
    ),
    "CPUs of its own": pod(
        container(limits={"cpu": "4"}),
        labels={"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"},
        annotations={
            "scheduling.koordinator.sh/resource-spec": {"preferredCPUBindPolicy": "FullPCPUs"}
        },
    ),
}


@pytest.mark.parametrize("body", WISHES.values(), ids=WISHES)
def test_wishes_are_kept_as_they_are(body: Object) -> None:
    """Labels and annotations with a meaning of their own are not ours to change."""
    after = mutate(body)

    before, now = body["metadata"], after["metadata"]
    assert now.get("labels") == before.get("labels")
    assert {**before.get("annotations", {}), **now["annotations"]} == now["annotations"]
    was, request = decode_pod(body), decode_pod(after)
    assert (request.devices, request.cpuset, request.group, request.gang, request.mgpu_multi) == (
        was.devices,
        was.cpuset,
        was.group,
        was.gang,
        was.mgpu_multi,
    )
