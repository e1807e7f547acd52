from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledger.domain.errors import FieldError
from ledger.domain.request.normalise import examine_pod
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, invalid, of_rule, under, unsupported
from tests.support.mutants import MUTANTS, Mutant, broken
from tests.support.objects import container, gpu_pod, pod, sidecar

QOS = "koordinator.sh/qosClass"
SPEC = "scheduling.koordinator.sh/resource-spec"
MGPU = "vke.volcengine.com/mgpu-core"


def test_a_name_says_nothing_about_what_is_wrong() -> None:
    """Two errors of one field, reason and message are one, whoever named them."""
    named = FieldError(field="a", reason="b", message="c", rule="Gang")

    assert named == FieldError(field="a", reason="b", message="c")
    assert len({named, FieldError(field="a", reason="b", message="c")}) == 1
    assert str(named) == "a: c"


def test_the_nearest_name_counts() -> None:
    """A check inside another names its own rule."""
    inner = under(Rule.DEVICE_PERCENT, [invalid("a", 150, "no")])
    outer = [*under(Rule.GPU_COMBINATION, [*inner, forbidden("b", "no")])]

    assert [error.rule for error in outer] == ["DevicePercent", "GpuCombination"]
    assert unsupported("c", "that").rule == "NotSupported"


def test_a_named_check_keeps_its_own_words() -> None:
    """The name changes neither docstring nor arguments."""

    @of_rule(Rule.GANG)
    def check(field: str) -> Iterator[FieldError]:
        """Say no."""
        yield invalid(field, 1, "no")

    assert check.__doc__ == "Say no."
    assert [error.rule for error in check("a")] == ["Gang"]


BESIDE_ADMISSION = {
    name: mutant
    for name, mutant in MUTANTS.items()
    if mutant.topic not in {"forged", "reserve", "node", "environment", "slot"}
    and "AnnotationSyntax" not in mutant.expected.values()
}


@pytest.mark.parametrize("mutant", BESIDE_ADMISSION.values(), ids=BESIDE_ADMISSION)
def test_every_violation_of_a_request_has_its_rule(mutant: Mutant) -> None:
    """Whoever reads the request, simulation too, hears of the same rule."""
    _, errors = examine_pod(broken(mutant))

    assert {error.field: error.rule for error in errors} == mutant.expected


MORE = {
    "mGPU in an init container": (
        pod(container(limits={MGPU: 100}), init=[sidecar("i", limits={MGPU: 100})]),
        "MgpuInitContainer",
    ),
    "a long name": (pod(container("c" * 44, limits={MGPU: 100})), "MgpuContainerName"),
    "a normal rule": (gpu_pod({MGPU: 101}), "MgpuNormal"),
    "a list that is none": (
        gpu_pod({MGPU: 100}, annotations={"vke.volcengine.com/container-multiple-gpu": "x"}),
        "MgpuMultiple",
    ),
    "a policy that is none": (
        gpu_pod({MGPU: 100}, annotations={"vke.volcengine.com/mgpu-compute-policy": "x"}),
        "MgpuPolicy",
    ),
    "too much memory": (
        gpu_pod({MGPU: 50, "vke.volcengine.com/mgpu-memory": "6Gi"}),
        "MgpuMemoryUnit",
    ),
    "two cards of a share": (
        gpu_pod({"aliyun.com/gpu-mem": 1, "aliyun.com/gpu-count": 2}),
        "GpuShareCard",
    ),
    "more than any card": (gpu_pod({"aliyun.com/gpu-mem": "8Gi"}), "GpuShareUnit"),
    "other shares": (
        pod(
            container("a", limits={"koordinator.sh/gpu": 30}),
            container("b", limits={"koordinator.sh/gpu": 70}),
        ),
        "SameShares",
    ),
    "a Pod's own limit": (
        pod(
            labels={QOS: "LSR"},
            resources={"requests": {"cpu": "4"}, "limits": {"cpu": "8"}},
        ),
        "CpuLimits",
    ),
    "PCPULevel on ARM": (
        pod(
            container(limits={"cpu": "4"}),
            labels={QOS: "LSE"},
            annotations={SPEC: {"preferredCPUExclusivePolicy": "PCPULevel"}},
            nodeSelector={"kubernetes.io/arch": "arm64"},
        ),
        "ArmCpuPolicy",
    ),
}


@pytest.mark.parametrize(("body", "rule"), MORE.values(), ids=MORE)
def test_the_other_rules_have_theirs(body: dict[str, object], rule: str) -> None:
    """Those that the good Pod with a card and CPUs of its own can't break."""
    _, errors = examine_pod(body)

    assert [error.rule for error in errors] == [rule]
