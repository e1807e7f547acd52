"""Pods of every dialect in a namespace whose Pods are given claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ledger.domain.dialects.dra.asking import TEMPLATE_PREFIX, Asking
from ledger.domain.request.claimed import as_asked, asked_by_claim, template_named
from ledger.domain.request.normalise import decode_pod
from ledger.domain.vocabulary import Vocabulary
from tests.support.objects import Object, container, gpu_pod, pod, sidecar
from tests.support.requests_to_admit import judged, quota_fact, rules_of
from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating.pod import mutated
from webhook.decide.settings import DEFAULT_ADMISSION

CLAIMS = NamespaceFacts(managed=True, labels={"tenure.sh/managed": "true", "tenure.sh/mode": "dra"})
HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"}
RATIO = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}

DIALECTS: dict[str, Mapping[str, str]] = {
    "nvidia, whole cards": {"nvidia.com/gpu": "2"},
    "koordinator, bytes": HALF,
    "koordinator, ratio": RATIO,
    "koordinator, percent": {"koordinator.sh/gpu": "200"},
    "mgpu": {"vke.volcengine.com/mgpu-core": "30", "vke.volcengine.com/mgpu-memory": "1024"},
    "gpu share": {"aliyun.com/gpu-mem": "2048"},
    "hami": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "25"},
}


def claimed(asked: Object, facts: NamespaceFacts = CLAIMS) -> Any:  # noqa: ANN401 - a Pod
    """Return a Pod as admission leaves it there."""
    return mutated(asked, DEFAULT_ADMISSION, facts, namespace="ml")


def asking(made: Mapping[str, object]) -> Asking:
    """Return what a Pod's claim has to ask for."""
    found = asked_by_claim(made)
    assert found is not None
    return found


@pytest.mark.parametrize("limits", DIALECTS.values(), ids=DIALECTS)
def test_every_dialect_is_one_claim_by_a_template_of_its_request(limits: Mapping[str, str]) -> None:
    """No device's resource stays, its scheduler does; read back it is what its user wrote."""
    before = gpu_pod({"cpu": "1", **limits}, schedulerName="default-scheduler")
    made = claimed(before)

    main = made["spec"]["containers"][0]
    assert main["resources"]["limits"] == {"cpu": "1"}
    assert {one["name"] for one in main["resources"]["claims"]} == {"tenure"}
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert template_named(made).startswith(TEMPLATE_PREFIX)
    assert decode_pod(as_asked(made)).devices == decode_pod(before).devices
    names = [one["request"] for one in main["resources"]["claims"]]
    assert names == [one.name for one in asking(made).requests]
    assert claimed(made) == made, "twice is once"
    assert judged(made, facts=CLAIMS).allowed


def test_the_same_request_has_the_same_template_in_any_pod() -> None:
    """And another one another."""
    first, second = claimed(gpu_pod(HALF, name="a")), claimed(gpu_pod(HALF, name="b"))
    other = claimed(gpu_pod({**HALF, "koordinator.sh/gpu-core": "51"}))

    assert template_named(first) == template_named(second) != template_named(other)


def test_each_container_uses_the_cards_that_are_its_own() -> None:
    """An init container takes the first of those that no sidecar before it keeps."""
    whole = {"nvidia.com/gpu": "1"}
    made = claimed(
        pod(
            container("a", limits={"nvidia.com/gpu": "2"}),
            container("b", limits=whole),
            container("none"),
            init=(sidecar("side", limits=whole), container("init", limits=whole)),
        )
    )

    found = asking(made)
    assert [(one.name, one.count) for one in found.requests] == [
        ("g0", 1),
        ("g1", 1),
        ("g2", 1),
        ("g3", 1),
    ]
    assert found.users == {
        "init-0": ("g0",),
        "init-1": ("g1",),
        "0": ("g1", "g2"),
        "1": ("g3",),
    }


def test_all_containers_of_a_gpu_share_use_one_card() -> None:
    """Its share is the Pod's."""
    half = {"aliyun.com/gpu-mem": "2048"}
    made = claimed(pod(container("a", limits=half), container("b", limits=half)))

    assert [one.memory_bytes for one in asking(made).requests] == [4 << 30]
    assert asking(made).users == {"0": ("g0",), "1": ("g0",)}


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (gpu_pod({"koordinator.sh/rdma": "1", **HALF}), "spec.containers"),
        (gpu_pod({"amd.com/gpu": "1"}), "spec.containers"),
        (
            gpu_pod(
                {"cpu": "2", **HALF},
                labels={"koordinator.sh/qosClass": "LSR"},
            ),
            "metadata.labels[koordinator.sh/qosClass]",
        ),
        (gpu_pod({"nvidia.com/gpu": "33"}), "spec.containers"),
    ],
    ids=["a NIC beside", "another vendor's card", "CPUs of its own", "more than a claim has"],
)
def test_what_no_claim_can_say_is_refused_and_not_forgotten(asked: Object, field: str) -> None:
    """The Pod stays as its user wrote it, and validation says so."""
    resources = asked["spec"]["containers"][0]["resources"]
    resources["requests"] = dict(resources["limits"])
    if "memory" not in resources["requests"]:
        for section in resources.values():
            section |= {"memory": "1Gi"}
    made = claimed(asked)

    assert not template_named(made)
    answer = judged(made, facts=CLAIMS)
    assert not answer.allowed
    assert rules_of(answer) == {field: "NotSupported"}


def test_gates_and_claims_that_others_add_behind_us_are_no_forgery() -> None:
    """A queue adds its gate after our webhook; in which order they stand says nothing."""
    made = claimed(gpu_pod(HALF))
    made["spec"]["schedulingGates"].append({"name": "kueue.x-k8s.io/admission"})
    theirs = {"name": "net", "resourceClaimName": "nic"}
    made["spec"]["resourceClaims"].append(theirs)
    made["spec"]["containers"][0]["resources"]["claims"].append({"name": "net"})

    assert judged(made, facts=CLAIMS).allowed
    made["spec"]["schedulingGates"].append({"name": "tenure.sh/place"})
    assert not judged(made, facts=CLAIMS).allowed


def test_a_claim_that_its_request_does_not_give_is_refused() -> None:
    """Whoever writes the annotation gets what it says, or nothing."""
    forged = claimed(gpu_pod(HALF))
    forged["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "tenure-other"

    answer = judged(forged, facts=CLAIMS)
    assert list(rules_of(answer).values()) == ["ForgedAllocation"]
    assert asked_by_claim(forged) is None


@pytest.mark.parametrize(
    ("asked", "facts"),
    [
        (gpu_pod(HALF), replace(CLAIMS, labels={"tenure.sh/managed": "true"})),
        (gpu_pod(HALF, labels={"tenure.sh/takeover": "false"}), CLAIMS),
        (gpu_pod(HALF, schedulerName=DEFAULT_ADMISSION.scheduler_name), CLAIMS),
        (gpu_pod(HALF, schedulerName=min(DEFAULT_ADMISSION.takeover.foreign_schedulers)), CLAIMS),
        (gpu_pod({"cpu": "1"}), CLAIMS),
    ],
    ids=["another mode", "taken out", "our scheduler", "a foreign scheduler", "no device"],
)
def test_others_get_no_claim(asked: Object, facts: NamespaceFacts) -> None:
    """Only who asks for cards, where its namespace says so, and nobody else places it."""
    assert not template_named(claimed(asked, facts))


def test_whole_cards_stay_where_nobody_rewrites_them() -> None:
    """A DeviceClass may serve their name: the gate sees that claim like any other."""
    settings = replace(DEFAULT_ADMISSION, vocabulary=Vocabulary(whole_cards="nvidia"))
    asked = gpu_pod({"nvidia.com/gpu": "1"})
    made = mutated(asked, settings, CLAIMS, namespace="ml")

    assert made["spec"] == asked["spec"]
    assert judged(made, settings, CLAIMS).allowed


def test_a_quota_on_cards_has_to_count_claims() -> None:
    """Else a Pod would ask past it; the answer has the line to add."""
    facts = replace(CLAIMS, quotas=(quota_fact(nvidia=4),))
    made = claimed(gpu_pod({"nvidia.com/gpu": "1"}), facts)
    answer = judged(made, facts=facts)

    assert not template_named(made)
    assert set(rules_of(answer).values()) == {"QuotaEvaded"}
    assert "<DeviceClass>.deviceclass.resource.k8s.io/devices: 4" in answer.message

    counted = quota_fact(nvidia=4)
    hard = {
        **counted.hard,
        "gpu.x.deviceclass.resource.k8s.io/devices": counted.hard[next(iter(counted.hard))],
    }
    facts = replace(CLAIMS, quotas=(replace(counted, hard=hard),))
    assert judged(claimed(gpu_pod({"nvidia.com/gpu": "1"}), facts), facts=facts).allowed
