from __future__ import annotations

from collections.abc import Iterable

import pytest

from ledger.domain.annotations.qos import PriorityClass, QosClass
from ledger.domain.dialects.mgpu.rules import (
    MgpuAsk,
    check_counts,
    check_multi,
    check_name,
    check_normal,
)
from ledger.domain.errors import FieldError
from ledger.domain.quantity import parse_quantity
from ledger.domain.request.rules import (
    check_batch_qos,
    check_equal_limits,
    check_gpu_combination,
    check_gpu_keys,
    check_memory_split,
    check_percent,
    check_qos,
    check_same_group,
    check_whole_cpus,
    invalid,
    one_of_each,
)

GPU = "koordinator.sh/gpu"
SHARED = "koordinator.sh/gpu.shared"
CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
NPU_CORE = "huawei.com/npu-core"
NPU_CPU = "huawei.com/npu-cpu"
NPU_DVPP = "huawei.com/npu-dvpp"
GIB = 2**30
MEMORY_MAX_MIB = 1048576


def messages(errors: Iterable[FieldError]) -> list[str]:
    """Return what the user reads of each violation."""
    return [error.message for error in errors]


LEGAL_COMBINATIONS = {
    "nvidia alone": {"nvidia.com/gpu": 3},
    "amd alone": {"amd.com/gpu": 1},
    "dcu alone": {"dcu.com/gpu": 2},
    "gpu of a part": {GPU: 35},
    "gpu of one card": {GPU: 100},
    "gpu of three cards": {GPU: 300},
    "memory alone": {MEMORY: GIB},
    "ratio alone": {RATIO: 300},
    "core and memory": {CORE: 200, MEMORY: 40 * GIB},
    "core and ratio": {CORE: 50, RATIO: 60},
    "npu core and ratio": {NPU_CORE: 8, RATIO: 100},
    "shared and memory": {SHARED: 3, MEMORY: 10 * GIB},
    "shared and ratio": {SHARED: 2, RATIO: 200},
    "shared, core and memory": {SHARED: 3, CORE: 90, MEMORY: 9 * GIB},
    "shared, core and ratio": {CORE: 90, RATIO: 60, SHARED: 3},
    "shared at the limit of each card": {CORE: 300, RATIO: 300, SHARED: 3},
    "npu template": {SHARED: 1, NPU_CORE: 4, NPU_CPU: 4, MEMORY: GIB},
    "npu template with media": {SHARED: 1, NPU_CORE: 4, NPU_CPU: 4, MEMORY: GIB, NPU_DVPP: 100},
}


@pytest.mark.parametrize("amounts", LEGAL_COMBINATIONS.values(), ids=LEGAL_COMBINATIONS)
def test_legal_key_combinations_pass(amounts: dict[str, int]) -> None:
    """Koordinator contract 4.2, every row of the table."""
    assert not list(check_gpu_combination({}, amounts, "x"))


ILLEGAL_COMBINATIONS = {
    "ratio 250": ({RATIO: 250}, "200 and 300"),
    "gpu 101": ({GPU: 101}, "the requested GPU must be percentage of 100"),
    "core 150 beside memory": ({CORE: 150, MEMORY: GIB}, f"invalid resource unit {CORE}: 150"),
    "core 100 over 3 cards": ({CORE: 100, RATIO: 99, SHARED: 3}, "gpuCore must multiple of shared"),
    "ratio 100 over 3 cards": (
        {CORE: 99, RATIO: 100, SHARED: 3},
        "gpuMemoryRatio must multiple of shared",
    ),
    "110 percent of each card": ({CORE: 330, MEMORY: 60 * GIB, SHARED: 3}, "more than 300"),
    "ratio 101 on each card": ({RATIO: 202, SHARED: 2}, "more than 200"),
    "core alone": ({CORE: 50}, "invalid resource device requests"),
    "memory and ratio": ({MEMORY: GIB, RATIO: 50}, f"[{MEMORY}, {RATIO}]"),
    "shared alone": ({SHARED: 2}, f"[{SHARED}]"),
    "shared and core": ({SHARED: 2, CORE: 100}, "invalid resource device requests"),
    "gpu and core": ({GPU: 50, CORE: 50}, "invalid resource device requests"),
    "a vendor's card and a share": ({"nvidia.com/gpu": 1, GPU: 50}, "invalid resource device"),
    "cards of two vendors": ({"nvidia.com/gpu": 1, "amd.com/gpu": 1}, "invalid resource device"),
    "npu core and memory": ({NPU_CORE: 4, MEMORY: GIB}, "invalid resource device requests"),
    "npu core alone": ({NPU_CORE: 4}, "invalid resource device requests"),
    "npu template on two cards": (
        {SHARED: 2, NPU_CORE: 4, NPU_CPU: 4, MEMORY: GIB},
        "must be at most 1",
    ),
    "npu media above 100": (
        {SHARED: 1, NPU_CORE: 4, NPU_CPU: 4, MEMORY: GIB, NPU_DVPP: 101},
        "must be at most 100",
    ),
}


@pytest.mark.parametrize(
    ("amounts", "fact"), ILLEGAL_COMBINATIONS.values(), ids=ILLEGAL_COMBINATIONS
)
def test_illegal_key_combinations_are_refused(amounts: dict[str, int], fact: str) -> None:
    """Koordinator contract 4.2: everything that the table does not list."""
    found = messages(check_gpu_combination({}, amounts, "x"))

    assert len(found) == 1
    assert fact in found[0]


def test_core_100_ratio_100_over_three_cards_breaks_the_share_rule_twice() -> None:
    """Koordinator contract 4.2, worked: 100 mod 3; both keys are named at once."""
    amounts = {CORE: 100, RATIO: 100, SHARED: 3}

    errors = list(check_gpu_combination({CORE: "c", RATIO: "r"}, amounts, "x"))

    assert [error.field for error in errors] == ["c", "r"]
    assert "nearest legal values 99 and 102" in errors[0].message


@pytest.mark.parametrize("percent", [0, 1, 99, 100, 200, 800])
def test_percentages_of_the_rule_pass(percent: int) -> None:
    """Koordinator contract 4.2: up to 100, above it a multiple of 100."""
    assert not list(check_percent("f", "koordinator.sh/rdma", percent))


@pytest.mark.parametrize("percent", [101, 150, 199, 201, 250])
def test_other_percentages_are_refused(percent: int) -> None:
    """Koordinator contract 4.2 and 13, `invalid resource unit`."""
    found = messages(check_percent("f", "koordinator.sh/rdma", percent))

    assert f"invalid resource unit koordinator.sh/rdma: {percent}" in found[0]


KEY_RULES = {
    "gpu and shared": ({GPU: 50, SHARED: 1}, ["Forbidden declare GPU and GPU share at same time"]),
    "gpu zero": ({GPU: 0}, ["the requested GPU must be greater than zero"]),
    "shared zero": (
        {SHARED: 0, MEMORY: GIB},
        ["the requested GPU must be greater than zero"],
    ),
    "shared without memory": (
        {SHARED: 2, CORE: 100},
        ["GPU memory and GPU memory ratio all is zero"],
    ),
    "shared with both memories": (
        {SHARED: 1, MEMORY: GIB, RATIO: 50},
        ["declare GPU memory and GPU memory ratio at same time"],
    ),
    "shared zero and without memory": (
        {SHARED: 0},
        ["must be greater than zero", "all is zero"],
    ),
    "vendor's core stops the checks": ({SHARED: 1, NPU_CORE: 4}, []),
    "fine": ({SHARED: 1, MEMORY: GIB}, []),
    "no share": ({CORE: 50, RATIO: 60}, []),
}


@pytest.mark.parametrize(("amounts", "facts"), KEY_RULES.values(), ids=KEY_RULES)
def test_admission_rules_of_gpu_keys(amounts: dict[str, int], facts: list[str]) -> None:
    """Koordinator contract 5.2, in its order and words."""
    found = messages(check_gpu_keys({name: name for name in amounts}, amounts))

    assert len(found) == len(facts)
    for text, fact in zip(found, facts, strict=True):
        assert fact in text


def test_bytes_that_do_not_divide_over_cards_are_refused() -> None:
    """Koordinator contract Q13, ours: no byte is lost; the nearest values are named."""
    found = messages(check_memory_split("f", 10 * GIB, 3))

    assert "nearest legal values 10737418239 and 10737418242" in found[0]
    assert not list(check_memory_split("f", 9 * GIB, 3))


def test_requests_equal_limits() -> None:
    """Koordinator contract 1.1, ours; equal amounts in other words are equal."""
    half, kilo = parse_quantity("500m"), parse_quantity("1k")

    assert not list(check_equal_limits("f", "cpu", half, parse_quantity("0.5")))
    assert messages(check_equal_limits("f", "x", kilo, half)) == [
        'Invalid value: "1k": must be equal to x limit of 500m'
    ]
    assert messages(check_equal_limits("f", "cpu", half, None)) == [
        'Invalid value: "500m": must be equal to cpu limit of none'
    ]


ALLOWED = {
    QosClass.LSE: {PriorityClass.PROD},
    QosClass.LSR: {PriorityClass.PROD},
    QosClass.LS: set(PriorityClass),
    QosClass.BE: {PriorityClass.MID, PriorityClass.BATCH, PriorityClass.FREE},
    QosClass.SYSTEM: set(PriorityClass),
    QosClass.NONE: set(PriorityClass),
}


@pytest.mark.parametrize("priority_class", PriorityClass, ids=lambda item: item or "none")
@pytest.mark.parametrize("qos", QosClass, ids=lambda item: item or "no qos")
def test_qos_and_priority_go_together_as_the_matrix_says(
    qos: QosClass, priority_class: PriorityClass
) -> None:
    """Koordinator contract 5.3, every cell of the matrix."""
    allowed = priority_class in ALLOWED[qos]

    assert allowed is not bool(list(check_qos("f", qos, priority_class)))


@pytest.mark.parametrize(
    ("milli", "ends"),
    [
        (0, ["and more than 0"]),
        (1000, []),
        (1500, ["(nearest legal values 1 and 2)"]),
        (999, ["(nearest legal value 1)"]),
    ],
)
def test_own_cpus_are_whole(milli: int, ends: list[str]) -> None:
    """Koordinator contract 5.3: non-zero and a whole number of CPUs."""
    found = messages(check_whole_cpus("f", milli))

    assert all("the requested CPUs must be integer" in text for text in found)
    assert [text.endswith(end) for text, end in zip(found, ends, strict=True)] == [True] * len(ends)


def test_batch_resources_need_best_effort() -> None:
    """Koordinator contract 5.3."""
    assert not list(check_batch_qos("f", QosClass.BE))
    assert list(check_batch_qos("f", QosClass.LS))


def test_group_and_gang_are_one() -> None:
    """Koordinator GPU-topology proposal, "Works with the Gang plugin": both values consistent."""
    errors = list(check_same_group("n", "r", group=("a", 2), gang=("b", 3)))

    assert [error.field for error in errors] == ["n", "r"]
    assert not list(check_same_group("n", "r", group=("a", 2), gang=("a", 2)))


def test_repeated_violations_are_shown_once() -> None:
    """Two rules may find the same fault."""
    error = invalid("f", 1, "no")

    assert one_of_each([error, invalid("g", 1, "no"), error]) == (error, invalid("g", 1, "no"))


def test_texts_are_quoted_and_numbers_are_not() -> None:
    """Kubernetes' own wording of field errors."""
    assert str(invalid("a.b", "x", "no")) == 'a.b: Invalid value: "x": no'
    assert str(invalid("a.b", 3, "no")) == "a.b: Invalid value: 3: no"


def ask(core: int | None, memory: int | None, name: str = "c1") -> MgpuAsk:
    """Return what a container asks; None is a key that is absent."""
    return MgpuAsk(
        container=name,
        core=core,
        memory_mib=memory,
        core_field="core",
        memory_field="memory",
        name_field="name",
    )


NORMAL = {
    "a part of a card": (50, 1024, None),
    "the least of a card": (1, 256, None),
    "the most of a part": (99, 256, None),
    "one whole card": (100, None, None),
    "three whole cards": (300, None, None),
    "core zero": (0, 1024, "N1"),
    "core negative (proposal, case 1)": (-20, 6000, "N1"),
    "memory without core": (None, 1024, "N1"),
    "memory negative": (50, -1, "N1"),
    "memory negative beside whole cards": (100, -1, "N1"),
    "memory 255": (50, 255, "N2"),
    "memory 256": (50, 256, None),
    "memory not set below a card": (50, None, "N2"),
    "memory 0 below a card": (99, 0, "N2"),
    "core 101": (101, None, "N3"),
    "core 101 with memory": (101, 1024, "N3"),
    "core 199": (199, None, "N3"),
    "core 120, memory 128 (proposal, case 2)": (120, 128, "N3"),
    "core 120 (proposal, case 3)": (120, None, "N3"),
    "core 100 with memory": (100, 1024, "N4"),
    "core 100 with memory 0": (100, 0, "N4"),
    "core 200 with memory 6k (proposal, case 4)": (200, 6000, "N4"),
    "the most memory": (50, MEMORY_MAX_MIB, None),
    "6Gi for 6144": (50, 6442450944, "A.6"),
}


@pytest.mark.parametrize(("core", "memory", "rule"), NORMAL.values(), ids=NORMAL)
def test_rules_of_normal_mgpu_pods(core: int | None, memory: int | None, rule: str | None) -> None:
    """GPU-sharing contract A.3, N1 to N4 with every boundary; the first rule alone fires."""
    found = messages(check_normal(ask(core, memory), memory_max_mib=MEMORY_MAX_MIB))

    assert len(found) == (0 if rule is None else 1)
    if rule is not None:
        assert f"container c1, rule {rule}:" in found[0]


MULTI = {
    "two halves": (2, 100, 2048, None),
    "two whole cards": (2, 200, None, None),
    "one whole card": (1, 100, None, None),
    "half of one card": (1, 50, 256, None),
    "nothing on no card": (0, None, None, None),
    "memory 0 on no card": (0, None, 0, None),
    "three thirds of 99": (3, 99, 768, None),
    "core set to zero": (2, 0, 1024, "M3"),
    "core set to zero on no card": (0, 0, None, "M3"),
    "core negative": (2, -100, 1024, "M3"),
    "memory negative": (2, 100, -1, "M3"),
    "core on no card": (0, 100, None, "M4"),
    "memory on no card": (0, None, 1024, "M4"),
    "nothing asked on two cards": (2, None, None, "M5"),
    "memory alone on two cards": (2, None, 1024, "M5"),
    "whole cards with memory (proposal, case 3)": (2, 200, 6000, "M6"),
    "whole cards with memory 0": (2, 200, 0, "M6"),
    "511 MiB on two cards": (2, 100, 511, "M7"),
    "512 MiB on two cards": (2, 100, 512, None),
    "no memory on two parts": (2, 100, None, "M7"),
    "130 over three cards (proposal, case 4)": (3, 130, 6000, "M8"),
    "33.33 percent of each": (3, 100, 768, "M8"),
    "memory that does not divide": (2, 100, 1025, "M8"),
    "more than a card on each": (2, 202, 1024, "M9"),
    "two cards' worth on one": (1, 200, 512, "M9"),
    "6Gi for 6144": (2, 100, 2 * 6442450944, "A.6"),
}


@pytest.mark.parametrize(("count", "core", "memory", "rule"), MULTI.values(), ids=MULTI)
def test_rules_of_multi_card_mgpu_pods(
    count: int, core: int | None, memory: int | None, rule: str | None
) -> None:
    """GPU-sharing contract A.3, M3 to M9 in order; the first rule alone fires."""
    found = messages(
        check_multi(ask(core, memory), count, memory_min_mib=256, memory_max_mib=MEMORY_MAX_MIB)
    )

    assert len(found) == (0 if rule is None else 1)
    if rule is not None:
        assert f"container c1, rule {rule}:" in found[0]


def test_the_least_memory_on_each_card_is_a_setting() -> None:
    """GPU-sharing contract A.3: 1024 is the implementation's, 256 the proposal's."""
    asked = ask(100, 2047)

    assert list(check_multi(asked, 2, memory_min_mib=1024, memory_max_mib=MEMORY_MAX_MIB))
    legal = ask(100, 2048)
    assert not list(check_multi(legal, 2, memory_min_mib=1024, memory_max_mib=MEMORY_MAX_MIB))


def of_counts(counts: tuple[int, ...], *asks: MgpuAsk) -> list[str]:
    """Return what is said of a list of counts for these containers."""
    text = ",".join(map(str, counts))
    return messages(
        check_counts("f", counts, asks, text, memory_min_mib=256, memory_max_mib=MEMORY_MAX_MIB)
    )


def test_rules_of_the_list_of_counts() -> None:
    """GPU-sharing contract A.3, M1 before M2."""
    two = ask(200, None)

    assert "rule M1" in of_counts((3, 2), two)[0]
    assert "rule M2" in of_counts((-1, 2), two, two)[0]
    assert "rule M1" in of_counts((-1, 2), two)[0]
    assert not of_counts((2, 0), two, ask(None, None))


COUNT_HINTS = {
    "a negative one that M1 would cut off": ((-1, 2), [(200, None)], 'nearest "2"'),
    "a missing one of two that ask": ((2,), [(200, None), (100, None)], 'nearest "2,1"'),
    "a missing one that asks for nothing": ((2,), [(200, None), (None, None)], 'nearest "2,0"'),
    "a negative one that asks": ((-1,), [(50, 512)], 'nearest "1"'),
    "parts that only four cards divide": ((-1,), [(200, 6004)], 'nearest "4"'),
    "an amount that no number of cards mends": ((-1,), [(0, None)], "must not be negative"),
}


@pytest.mark.parametrize(("counts", "amounts", "said"), COUNT_HINTS.values(), ids=COUNT_HINTS)
def test_the_nearest_list_of_counts_is_legal_for_every_container(
    counts: tuple[int, ...], amounts: list[tuple[int | None, int | None]], said: str
) -> None:
    """GPU-sharing contract A.3: "the nearest legal value", or none where there is none."""
    (message,) = of_counts(counts, *(ask(core, memory) for core, memory in amounts))

    assert message.endswith(said)


HINTS = {
    "300 over two cards with memory": (2, 300, 6000, "nearest core 198"),
    "202 over two cards with memory": (2, 202, 6000, "nearest core 198"),
    "two cards' worth on one": (1, 200, 256, "nearest core 99"),
    "memory -1 beside core": (2, 100, -1, "nearest memory 512"),
    "no core on two cards": (2, None, None, "nearest core 200"),
    "33.33 percent of each": (3, 100, 768, "nearest core 99 or core 102"),
    "33.33 percent without memory": (3, 100, None, "nearest core 300"),
    "two cards' worth on none": (0, 200, None, "ask nothing or count 2"),
    "memory alone on no card": (0, None, 1024, "ask nothing"),
    "core 0 on no card": (0, 0, None, "nearest nothing"),
}


@pytest.mark.parametrize(("count", "core", "memory", "said"), HINTS.values(), ids=HINTS)
def test_a_hint_of_a_multi_card_pod_is_legal_itself(
    count: int, core: int | None, memory: int | None, said: str
) -> None:
    """GPU-sharing contract A.3: "the nearest legal value"."""
    asked = ask(core, memory)
    (message,) = messages(
        check_multi(asked, count, memory_min_mib=256, memory_max_mib=MEMORY_MAX_MIB)
    )

    assert message.endswith(said)


@pytest.mark.parametrize(("length", "fine"), [(43, True), (44, False)])
def test_a_container_name_must_fit_into_the_answer(length: int, *, fine: bool) -> None:
    """GPU-sharing contract A.6, key length: 43 characters beside the prefix."""
    errors = list(check_name(ask(50, 256, "c" * length), 43))

    assert fine is not bool(errors)
    assert all(error.field == "name" for error in errors)


def test_denials_name_the_numbers_and_the_nearest_legal_value() -> None:
    """GPU-sharing contract A.3: container name, rule, offending numbers, nearest legal value."""
    error = next(check_normal(ask(120, None), memory_max_mib=MEMORY_MAX_MIB))

    assert error == FieldError(
        field="core",
        reason="FieldValueInvalid",
        message=(
            "Invalid value: 120: container c1, rule N3: core 120, no memory; "
            "above 100 it must be a multiple of 100, nearest core 100 or core 200"
        ),
    )
