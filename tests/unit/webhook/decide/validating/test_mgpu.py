from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.domain.vocabulary import Vocabulary
from tests.support.objects import Object, container, gpu_pod, pod, sidecar
from tests.support.requests_to_admit import judged, rules_of
from webhook.decide.settings import AdmissionSettings

CORE = "vke.volcengine.com/mgpu-core"
MEMORY = "vke.volcengine.com/mgpu-memory"
COUNTS = "vke.volcengine.com/container-multiple-gpu"
POLICY = "vke.volcengine.com/mgpu-compute-policy"
ROOT = "spec.containers[0].resources.requests"
CORE_FIELD = f"{ROOT}[{CORE}]"
MEMORY_FIELD = f"{ROOT}[{MEMORY}]"
COUNTS_FIELD = f"metadata.annotations[{COUNTS}]"


def amounts(core: object, memory: object) -> Object:
    """Return a resource list; None is a key that is absent."""
    items = {CORE: core, MEMORY: memory}
    return {name: value for name, value in items.items() if value is not None}


NORMAL_TAKEN = [
    (1, 256),
    (1, 257),
    (50, 8192),
    (99, 256),
    (99, 1048576),
    (100, None),
    (200, None),
    (800, None),
]


@pytest.mark.parametrize(
    ("core", "memory"), NORMAL_TAKEN, ids=[f"core {c}, memory {m}" for c, m in NORMAL_TAKEN]
)
def test_normal_shapes_are_taken(core: int, memory: int | None) -> None:
    """GPU-sharing contract A.3: `1..99` with 256 MiB or more, or whole cards without memory."""
    assert judged(gpu_pod(amounts(core, memory))).allowed


NORMAL_REFUSED = {
    "memory without core": (None, 512, "N1", MEMORY_FIELD, "nearest core 1"),
    "core 0": (0, 512, "N1", CORE_FIELD, "nearest core 1"),
    "core 0 alone": (0, None, "N1", CORE_FIELD, "nearest core 100"),
    "core 1 without memory": (1, None, "N2", CORE_FIELD, "at least 256"),
    "core 99 without memory": (99, None, "N2", CORE_FIELD, "at least 256"),
    "core 50, memory 0": (50, 0, "N2", MEMORY_FIELD, "at least 256"),
    "core 50, memory 255": (50, 255, "N2", MEMORY_FIELD, "at least 256"),
    "core 101": (101, None, "N3", CORE_FIELD, "nearest core 100 or core 200"),
    "core 101 with memory": (101, 512, "N3", CORE_FIELD, "nearest core 99"),
    "core 199": (199, None, "N3", CORE_FIELD, "nearest core 100 or core 200"),
    "core 250": (250, None, "N3", CORE_FIELD, "nearest core 200 or core 300"),
    "core 100 with memory": (100, 1024, "N4", MEMORY_FIELD, "leave"),
    "core 100 with memory 0": (100, 0, "N4", MEMORY_FIELD, "leave"),
    "the proposal's case 2, core 120 with 128 MiB": (
        120,
        128,
        "N3",
        CORE_FIELD,
        "nearest core 99 and memory 256 or core 100 and no memory or core 200 and no memory",
    ),
    "the proposal's case 3, core 120": (120, None, "N3", CORE_FIELD, "core 100 or core 200"),
    "the proposal's case 4, core 200 with 6k": (200, "6k", "N4", MEMORY_FIELD, "leave"),
}


@pytest.mark.parametrize(
    ("core", "memory", "rule", "field", "nearest"), NORMAL_REFUSED.values(), ids=NORMAL_REFUSED
)
def test_normal_shapes_are_refused(
    core: int | None, memory: object, rule: str, field: str, nearest: str
) -> None:
    """GPU-sharing contract A.3, N1 to N4 with every boundary; container, rule, nearest value."""
    answer = judged(gpu_pod(amounts(core, memory)))

    assert rules_of(answer) == {field: "MgpuNormal"}
    (cause,) = answer.causes
    assert cause.reason == "FieldValueInvalid"
    assert f"container main, rule {rule}:" in cause.message
    assert nearest in cause.message


@pytest.mark.parametrize("memory", [1048577, "6Gi"])
def test_memory_beyond_any_card_is_a_wrong_unit(memory: object) -> None:
    """GPU-sharing contract A.6: 6Gi counts 6442450944 MiB; the limit of 1048576 itself is taken."""
    answer = judged(gpu_pod(amounts(50, memory)))

    assert rules_of(answer) == {MEMORY_FIELD: "MgpuMemoryUnit"}
    assert "write 6144 for 6 GiB, not 6Gi" in answer.causes[0].message


@pytest.mark.parametrize("annotations", [{}, {COUNTS: "1"}], ids=["normal", "multiple"])
def test_a_wrong_unit_is_shown_as_it_was_written(annotations: dict[str, str]) -> None:
    """Nobody wrote the 8000000 that an amount is capped at."""
    message = judged(gpu_pod(amounts(50, "6Gi"), annotations=annotations)).causes[0].message

    assert 'Invalid value: "6Gi": container main, rule A.6: core 50, memory 6Gi;' in message
    assert "8000000" not in message


MULTI_TAKEN = {
    "a count of 0 with nothing asked": ("0", None, None),
    "a count of 1": ("1", 40, 512),
    "two halves": ("2", 100, 512),
    "two cards of 99": ("2", 198, 512),
    "two whole cards": ("2", 200, None),
    "three times 33": ("3", 99, 768),
    "three whole cards": ("3", 300, None),
    "the least memory on each card": ("4", 4, 1024),
}


@pytest.mark.parametrize(("counts", "core", "memory"), MULTI_TAKEN.values(), ids=MULTI_TAKEN)
def test_multiple_shapes_are_taken(counts: str, core: int | None, memory: int | None) -> None:
    """GPU-sharing contract A.3: what no rule from M0 to M9 denies."""
    assert judged(gpu_pod(amounts(core, memory), annotations={COUNTS: counts})).allowed


MULTI_REFUSED = {
    "an empty list": ("", 100, 512, "M0", COUNTS_FIELD),
    "blanks": ("2, 1", 100, 512, "M0", COUNTS_FIELD),
    "a decimal": ("2.0", 100, 512, "M0", COUNTS_FIELD),
    "no numbers": ("two", 100, 512, "M0", COUNTS_FIELD),
    "an empty part": ("2,", 100, 512, "M0", COUNTS_FIELD),
    "more counts than containers": ("3,2", 200, "6k", "M1", COUNTS_FIELD),
    "the proposal's case 2, two counts": ("-1,2", 200, "6k", "M1", COUNTS_FIELD),
    "a negative count": ("-1", 200, "6k", "M2", COUNTS_FIELD),
    "core 0": ("2", 0, 512, "M3", CORE_FIELD),
    "core on 0 cards": ("0", 50, None, "M4", CORE_FIELD),
    "memory on 0 cards": ("0", None, 512, "M4", MEMORY_FIELD),
    "cards without core": ("2", None, 512, "M5", MEMORY_FIELD),
    "whole cards with memory": ("2", 200, "6k", "M6", MEMORY_FIELD),
    "whole cards with memory 0": ("2", 200, 0, "M6", MEMORY_FIELD),
    "255 MiB on each card": ("2", 100, 511, "M7", MEMORY_FIELD),
    "no memory": ("2", 100, None, "M7", CORE_FIELD),
    "core that does not divide": ("3", 130, "6k", "M8", CORE_FIELD),
    "100 over three cards": ("3", 100, 768, "M8", CORE_FIELD),
    "memory that does not divide": ("2", 100, 513, "M8", MEMORY_FIELD),
    "101 on each card": ("2", 202, 512, "M9", CORE_FIELD),
    "300 over two cards": ("2", 300, 512, "M9", CORE_FIELD),
}


@pytest.mark.parametrize(
    ("counts", "core", "memory", "rule", "field"), MULTI_REFUSED.values(), ids=MULTI_REFUSED
)
def test_multiple_shapes_are_refused(
    counts: str, core: int | None, memory: object, rule: str, field: str
) -> None:
    """GPU-sharing contract A.3, M0 to M9 in their order; mGPU proposal, Multiple MGPU Pod."""
    answer = judged(gpu_pod(amounts(core, memory), annotations={COUNTS: counts}))

    assert rules_of(answer) == {field: "MgpuMultiple"}
    assert f"rule {rule}:" in answer.causes[0].message


def test_a_list_of_another_length_shows_the_nearest() -> None:
    """GPU-sharing contract A.3: the nearest legal value, one that no container is refused with."""
    longer = judged(gpu_pod(amounts(200, None), annotations={COUNTS: "3,2"}))
    two = [container(name, limits={CORE: 200}) for name in "ab"]
    shorter = judged(pod(*two, annotations={COUNTS: "2"}))

    assert 'lists 2 counts for 1 containers, nearest "2"' in longer.causes[0].message
    assert 'lists 1 counts for 2 containers, nearest "2,2"' in shorter.causes[0].message


def test_a_broken_list_does_not_hide_a_broken_amount() -> None:
    """Whatever the list should be, a core of 0 is none."""
    answer = judged(gpu_pod(amounts(0, None), annotations={COUNTS: "x"}))

    assert [cause.field for cause in answer.causes] == [COUNTS_FIELD, CORE_FIELD]


def test_a_pod_whose_containers_ask_for_nothing_needs_no_cards() -> None:
    """M5 is about a count above 0; a list over containers without mGPU is no mGPU Pod at all."""
    assert judged(pod(annotations={COUNTS: "2"})).allowed


def test_the_least_memory_of_several_cards_is_a_setting() -> None:
    """GPU-sharing contract A.3, ours: 256 as the proposal says, or the implementation's 1024."""
    settings = AdmissionSettings(vocabulary=Vocabulary(mgpu_multi_min_memory_mib=1024))
    answer = judged(gpu_pod(amounts(100, 2047), annotations={COUNTS: "2"}), settings)

    assert "each needs 1024 MiB, nearest memory 2048" in answer.causes[0].message
    assert judged(gpu_pod(amounts(100, 2048), annotations={COUNTS: "2"}), settings).allowed
    assert judged(gpu_pod(amounts(50, 256)), settings).allowed


def test_later_containers_are_checked_after_whole_cards() -> None:
    """GPU-sharing contract A.3, M6: upstream stops looking there; we do not."""
    body = pod(
        container("a", limits={CORE: 200}),
        container("b", limits={CORE: 130, MEMORY: 768}),
        annotations={COUNTS: "2,3"},
    )

    assert rules_of(judged(body)) == {
        f"spec.containers[1].resources.requests[{CORE}]": "MgpuMultiple"
    }


def test_every_container_says_its_own_violation() -> None:
    """GPU-sharing contract A.3: the first rule of each container, those of all at once."""
    body = pod(container("a", limits={CORE: 0}), container("b", limits={CORE: 101}))

    assert rules_of(judged(body)) == {
        f"spec.containers[0].resources.requests[{CORE}]": "MgpuNormal",
        f"spec.containers[1].resources.requests[{CORE}]": "MgpuNormal",
    }


@pytest.mark.parametrize("make", [container, sidecar])
def test_init_containers_hold_no_share(make: Callable[..., Object]) -> None:
    """GPU-sharing contract A.3, ours; a sidecar is no entry of `spec.containers` either."""
    body = pod(container(limits={CORE: 100}), init=[make("i", limits={CORE: 100})])

    assert rules_of(judged(body)) == {
        f"spec.initContainers[0].resources.requests[{CORE}]": "MgpuInitContainer"
    }


@pytest.mark.parametrize("policy", ["fixed-share", "guaranteed-burst-share", "native-burst-share"])
def test_the_three_policies_are_taken(policy: str) -> None:
    """GPU-sharing contract A.1."""
    assert judged(gpu_pod(amounts(100, None), annotations={POLICY: policy})).allowed


def test_another_policy_is_refused() -> None:
    """GPU-sharing contract A.1."""
    answer = judged(gpu_pod(amounts(100, None), annotations={POLICY: "burst"}))

    assert rules_of(answer) == {f"metadata.annotations[{POLICY}]": "MgpuPolicy"}


def test_several_cards_without_the_burst_policy_are_said_to_wait_for_ever() -> None:
    """GPU-sharing contract A.4: the Pod's policy and the node's must both be native-burst-share."""
    plain = judged(gpu_pod(amounts(200, None), annotations={COUNTS: "2"}))
    burst = gpu_pod(amounts(200, None), annotations={COUNTS: "2", POLICY: "native-burst-share"})

    assert any("waits for ever" in text for text in plain.warnings)
    assert judged(burst).warnings == ()


def test_a_container_name_has_to_fit_into_the_answer() -> None:
    """GPU-sharing contract A.6: 43 characters are left after the annotation's prefix."""
    whole = {CORE: 100}

    assert judged(pod(container("c" * 43, limits=whole))).allowed
    answer = judged(pod(container("c" * 44, limits=whole)))
    assert rules_of(answer) == {"spec.containers[0].name": "MgpuContainerName"}
    assert answer.causes[0].reason == "FieldValueTooLong"


def test_the_policy_and_the_counts_are_both_wrong_at_once() -> None:
    """Two violations that have nothing to do with one another are both said."""
    annotations = {COUNTS: "2,2", POLICY: "burst"}
    answer = judged(gpu_pod(amounts(200, None), annotations=annotations))

    assert set(rules_of(answer).values()) == {"MgpuMultiple", "MgpuPolicy"}
