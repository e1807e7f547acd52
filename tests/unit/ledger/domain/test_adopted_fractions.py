from __future__ import annotations

import pytest

from ledger.domain.adopted.pods import adopt
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.log.events import PodObserved
from tests.support.objects import Object, container, device, gpu_device, node, pod

GIB = 2**30
MIB = 2**20
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
INDEX = "vke.volcengine.com/gpu-index-container-"
COUNTS = "vke.volcengine.com/container-multiple-gpu"
V2 = "scheduler.framework.gpushare.allocation"
V2_CORE = "gpushare.alibabacloud.com/core-percentage"
IDX = "ALIYUN_COM_GPU_MEM_IDX"
POD_UNITS = "ALIYUN_COM_GPU_MEM_POD"
CORE = "vke.volcengine.com/mgpu-core"
MEMORY = "vke.volcengine.com/mgpu-memory"
GPU_MEM = "aliyun.com/gpu-mem"
GPU_CORE = "aliyun.com/gpu-core.percentage"

FOUR_CARDS = decode_node(node(), device(*(gpu_device(minor) for minor in range(4))))[0]
"""Cards GPU-0 to GPU-3 of 24 GiB."""


def held(*containers: Object, annotations: Object | None = None) -> PodObserved:
    """Return what a running Pod of these containers holds."""
    fields: Object = {"uid": "u1", "nodeName": "n1", "phase": "Running"}
    body = pod(*containers, annotations=annotations, **fields)
    return adopt(body, FOUR_CARDS)


def asks(name: str, core: int | None = None, memory: int | None = None) -> Object:
    """Return a container that asks for so much mGPU."""
    amounts = {CORE: core, MEMORY: memory}
    return container(name, limits={key: value for key, value in amounts.items() if value})


def shares_memory(name: str, units: int, **more: object) -> Object:
    """Return a container that asks for so much GPU memory."""
    return container(name, limits={GPU_MEM: units, **more})


def numbers(adopted: PodObserved) -> list[tuple[int, int, int, int, bool]]:
    """Return minor, core, MiB, instances and exclusive of every share."""
    return [
        (
            share.minor,
            share.core_percent,
            share.memory_bytes // MIB,
            share.instances,
            share.exclusive,
        )
        for share in adopted.shares
    ]


def test_a_container_whose_cards_nobody_names_is_on_unknown_ones() -> None:
    """A.5, known faults upstream: a rebuild that skips a container would show its card as free."""
    found = held(asks("a", 30, 1024), asks("b", 40, 2048), annotations={f"{INDEX}b": "2"})

    assert numbers(found) == [(2, 40, 2048, 1, False)]
    assert found.unknown_types == ("gpu",)
    assert found.faults == ("container a asks for mGPU, and no annotation names its cards",)


def test_a_first_container_without_cards_hides_nothing() -> None:
    """The upstream rebuild stops at a first container that has no card; this one asked for none."""
    found = held(container("a"), asks("b", 40, 2048), annotations={f"{INDEX}b": "2"})

    assert numbers(found) == [(2, 40, 2048, 1, False)]
    assert (found.unknown_types, found.faults) == ((), ())


def test_amounts_that_do_not_divide_are_rounded_up() -> None:
    """A card must never look emptier than it is; the list says 3 cards too, so that is no fault."""
    found = held(asks("a", 100, 1000), annotations={COUNTS: "3", f"{INDEX}a": "0,1,3"})

    assert numbers(found) == [(minor, 34, 333, 1, False) for minor in (0, 1, 3)]
    assert found.shares[0].memory_bytes == -(-1000 * MIB // 3)
    assert found.faults == ()


@pytest.mark.parametrize(
    ("containers", "annotations", "fault"),
    [
        pytest.param(
            [asks("a", 100, 1000)],
            {COUNTS: "2", f"{INDEX}a": "0,1,3"},
            "container a has not the cards it asks for: asked=2, named=3",
            id="more cards than the list says",
        ),
        pytest.param(
            [asks("a", 30, 1000)],
            {f"{INDEX}a": "0,1"},
            "container a has not the cards it asks for: asked=1, named=2",
            id="two cards without a list",
        ),
        pytest.param(
            [asks("a", 200)],
            {f"{INDEX}a": "0"},
            "container a has not the cards it asks for: asked=2, named=1",
            id="too few whole cards",
        ),
        pytest.param(
            [asks("a", 30, 1000)],
            {COUNTS: "two", f"{INDEX}a": "0"},
            f"metadata.annotations[{COUNTS}]: not an integer: value='two'",
            id="a list that is none",
        ),
        pytest.param(
            [asks("a", 30, 1000), container("b")],
            {f"{INDEX}a": "0", f"{INDEX}b": "1"},
            "container b has cards and asks for no mGPU",
            id="cards for nothing",
        ),
        pytest.param(
            [asks("a", 30, 1000)],
            {f"{INDEX}a": "9"},
            "container a has card 9, which the node does not have",
            id="a card that is not there",
        ),
        pytest.param(
            [asks("a", 30, 1000)],
            {f"{INDEX}a": "GPU-old"},
            "container a has card GPU-old, which the node does not have",
            id="a UUID that is not there",
        ),
        pytest.param(
            [asks("a", 30, 1000)],
            {f"{INDEX}a": "0, 1"},
            f"metadata.annotations[{INDEX}a]: not a list of cards: value='0, 1'",
            id="a list with a blank",
        ),
        pytest.param(
            [asks("a", 30, 1000)],
            {f"{INDEX}gone": "0"},
            f"metadata.annotations[{INDEX}gone]: names no container: value='gone'",
            id="a container that is gone",
        ),
    ],
)
def test_what_contradicts_an_mgpu_request_is_named(
    containers: list[Object], annotations: Object, fault: str
) -> None:
    """Never silent: the sentence says which container or annotation."""
    assert held(*containers, annotations=annotations).faults == (fault,)


def entry(minor: int, *, core: int, mib: int, ratio: int) -> Object:
    """Return one entry of the allocation annotation, as our Binding writes it."""
    amounts = {
        "koordinator.sh/gpu-core": str(core),
        "koordinator.sh/gpu-memory": str(mib * MIB),
        "koordinator.sh/gpu-memory-ratio": str(ratio),
    }
    return {"minor": minor, "id": f"GPU-{minor}", "resources": amounts}


def test_what_we_wrote_for_mgpu_is_read_back_container_by_container() -> None:
    """
    Cards and amounts from `device-allocated`, containers from the dialect's own annotations.

    Else a card with 3 containers would count 1 (A.5, the cap), and the part of a card beside a
    whole one in the same Pod would be held alone.
    """
    annotations: Object = {
        ALLOCATED: {
            "gpu": [
                entry(0, core=80, mib=3072, ratio=12),
                entry(1, core=100, mib=24576, ratio=100),
            ]
        },
        f"{INDEX}a": "0",
        f"{INDEX}b": "1",
        f"{INDEX}c": "0",
        f"{INDEX}d": "0",
    }
    found = held(
        asks("a", 30, 1024),
        asks("b", 100),
        asks("c", 25, 1024),
        asks("d", 25, 1024),
        annotations=annotations,
    )

    assert found.source == "device-allocated"
    assert numbers(found) == [(0, 80, 3072, 3, False), (1, 100, 24576, 1, True)]
    assert [part.index for part in found.shares[0].containers] == ["0", "2", "3"]
    assert found.faults == ()


def test_a_whole_and_a_part_are_told_apart_without_the_dialects_annotations() -> None:
    """Only the canonical annotation is left: what is all of a card is held alone, no other."""
    found = held(
        asks("a", 30, 1024),
        asks("b", 100),
        annotations={
            ALLOCATED: {
                "gpu": [
                    entry(0, core=30, mib=1024, ratio=4),
                    entry(1, core=100, mib=24576, ratio=100),
                ]
            }
        },
    )

    assert [share.exclusive for share in found.shares] == [False, True]


def test_a_part_with_all_of_a_cards_memory_is_no_whole_card() -> None:
    """The containers say so, where ratio 100 alone could mean either."""
    amounts = [entry(0, core=30, mib=24576, ratio=100), entry(1, core=100, mib=24576, ratio=100)]
    found = held(
        asks("a", 30, 24576),
        asks("b", 100),
        annotations={ALLOCATED: {"gpu": amounts}, f"{INDEX}a": "0", f"{INDEX}b": "1"},
    )

    assert [share.exclusive for share in found.shares] == [False, True]


@pytest.mark.parametrize(
    ("containers", "annotations", "minor"),
    [
        pytest.param(
            [asks("a", 30, 1024)],
            {ALLOCATED: {"gpu": [entry(2, core=30, mib=2**60, ratio=10**9)]}},
            2,
            id="canonical",
        ),
        pytest.param(
            [asks("a", 30, 1024)],
            {ALLOCATED: {"gpu": [entry(2, core=10**19, mib=1, ratio=1)]}},
            2,
            id="canonical, core",
        ),
        pytest.param(
            [shares_memory(f"c{n}", 8_000_000) for n in range(200)],
            {V2: {str(n): {"1": 8_000_000} for n in range(200)}},
            1,
            id="a sum of many",
        ),
    ],
)
def test_absurd_amounts_close_the_card_and_are_named(
    containers: list[Object], annotations: Object, minor: int
) -> None:
    """Whatever a Pod says it holds, a sum over the card can still be kept, and it is over-full."""
    found = held(*containers, annotations=annotations)

    (share,) = found.shares
    assert share.minor == minor
    assert share.memory_bytes <= 2**50
    assert max(share.core_percent, share.memory_ratio_percent) <= 8_000_000
    assert share.core_percent > 100 or share.memory_bytes > 24 * GIB
    assert f"more of gpu {minor} than can be counted" in found.faults


@pytest.mark.parametrize("digits", [10, 5000])
def test_a_text_of_too_many_digits_is_no_index(digits: int) -> None:
    """It is no card of the node, and no failure of ours."""
    absurd = "9" * digits

    for body, words in (
        (asks("a", 30, 1024), {f"{INDEX}a": absurd}),
        (asks("a", 30, 1024), {f"{INDEX}{absurd}": "0"}),
        (shares_memory("a", 100), {IDX: absurd}),
        (shares_memory("a", 100), {V2: {"0": {absurd: 100}}}),
    ):
        found = held(body, annotations=words)
        assert (found.shares, found.unknown_types) == ((), ("gpu",))
        assert [len(fault) <= 240 for fault in found.faults] == [True]


def test_a_pod_that_is_wrong_in_many_ways_is_named_a_few_times() -> None:
    """The list of conflicts is for people; the rest is counted."""
    found = held(
        shares_memory("a", 1), annotations={V2: {str(n): {"1": 5} for n in range(1, 3000)}}
    )

    assert len(found.faults) == 5
    assert found.faults[-1] == "and 2996 more"


def test_two_annotations_that_name_different_cards_are_a_fault() -> None:
    """The first source counts; that the second one contradicts it is said."""
    found = held(
        asks("a", 30, 1024),
        annotations={ALLOCATED: {"gpu": [entry(0, core=30, mib=1024, ratio=4)]}, f"{INDEX}a": "3"},
    )

    assert numbers(found) == [(0, 30, 1024, 1, False)]
    assert found.faults == ("device-allocated names cards 0, gpu-index-container names 3",)


def test_compute_percent_of_the_second_generation_is_held_too() -> None:
    """GPU-sharing contract B.1: `core-percentage`, container -> card -> percent."""
    found = held(
        shares_memory("a", 1024, **{GPU_CORE: 20}),
        shares_memory("b", 7168, **{GPU_CORE: 50}),
        annotations={
            V2: {"0": {"1": 1024}, "1": {"1": 3072, "2": 4096}},
            V2_CORE: {"0": {"1": 20}, "1": {"1": 30, "2": 20}},
        },
    )

    assert numbers(found) == [(1, 50, 4096, 2, False), (2, 20, 4096, 1, False)]
    assert found.faults == ()


@pytest.mark.parametrize("annotation", [{}, {V2_CORE: "{"}], ids=["absent", "broken"])
def test_compute_percent_nobody_wrote_down_is_the_containers_request(annotation: Object) -> None:
    """Over several cards in equal parts, rounded up."""
    found = held(
        shares_memory("a", 7168, **{GPU_CORE: 55}),
        annotations={V2: {"0": {"1": 3072, "2": 4096}}, **annotation},
    )

    assert [share.core_percent for share in found.shares] == [28, 28]
    assert [V2_CORE in fault for fault in found.faults] == [True] * len(annotation)


def test_the_first_generation_counts_the_containers_side_by_side() -> None:
    """One card for the whole Pod; an init container is gone when the others run."""
    init = {"initContainers": [shares_memory("i", 9000)]}
    fields: Object = {"uid": "u1", "nodeName": "n1", "phase": "Running", **init}
    body = pod(
        shares_memory("a", 1000),
        container("b"),
        shares_memory("c", 2000),
        annotations={IDX: "1"},
        **fields,
    )

    assert numbers(adopt(body, FOUR_CARDS)) == [(1, 0, 9000, 2, False)]


@pytest.mark.parametrize(
    ("annotations", "source", "faults"),
    [
        pytest.param(
            {V2: "{", IDX: "1"}, "gpushare-v1", [V2], id="v2 that does not parse, v1 that does"
        ),
        pytest.param(
            {V2: "{}", IDX: "1"}, "gpushare-v1", ["names no card"], id="v2 without a card"
        ),
        pytest.param({IDX: "7"}, "gpushare-v1", ["has card 7"], id="a card that is not there"),
        pytest.param({IDX: "x"}, "gpushare-v1", [IDX], id="an index that is no number"),
        pytest.param(
            {IDX: "1", POD_UNITS: "999"}, "gpushare-v1", [POD_UNITS], id="another amount, v1"
        ),
        pytest.param({IDX: "1", POD_UNITS: "lots"}, "gpushare-v1", [POD_UNITS], id="no amount, v1"),
        pytest.param(
            {V2: {"0": {"1": 999}}},
            "gpushare-v2",
            ["container main asks for 1000 of aliyun.com/gpu-mem and has 999"],
            id="another amount, v2",
        ),
        pytest.param(
            {V2: {"0": {"1": 1000}, "4": {"1": 5}}},
            "gpushare-v2",
            ["container 4 has 5"],
            id="a container that is not there",
        ),
        pytest.param(
            {V2: {"0": {"8": 1000}}}, "gpushare-v2", ["has card 8"], id="v2, no such card"
        ),
    ],
)
def test_what_contradicts_a_gpu_share_is_named(
    annotations: Object, source: str, faults: list[str]
) -> None:
    """Never silent: source and sentence say where to look."""
    found = held(shares_memory("main", 1000), annotations=annotations)

    assert found.source == source
    assert len(found.faults) == len(faults)
    assert all(words in fault for words, fault in zip(faults, found.faults, strict=True))


@pytest.mark.parametrize(
    ("body", "annotations", "fault"),
    [
        pytest.param(shares_memory("a", 1000), {V2: "{"}, V2, id="a broken v2 alone"),
        pytest.param(
            shares_memory("a", 1000),
            {"gpushare.alibabacloud.com/gpumemory": "x"},
            "gpushare.alibabacloud.com/gpumemory",
            id="the third generation",
        ),
        pytest.param(
            asks("a", 30, 1000),
            {"vke.volcengine.com/assumed": "true"},
            "vke.volcengine.com/assumed",
            id="assumed, on no card",
        ),
    ],
)
def test_words_that_name_no_card_are_named_themselves(
    body: Object, annotations: Object, fault: str
) -> None:
    """The card is unknown, and why."""
    found = held(body, annotations=annotations)

    assert (found.source, found.shares, found.unknown_types) == ("", (), ("gpu",))
    (said,) = found.faults
    assert fault in said


def test_units_of_containers_that_are_not_there_are_held() -> None:
    """The card has them, whoever they are for."""
    found = held(shares_memory("main", 1000), annotations={V2: {"0": {"1": 1000}, "4": {"1": 5}}})

    assert numbers(found) == [(1, 0, 1005, 2, False)]


@pytest.mark.parametrize(
    ("containers", "annotations"),
    [
        ([asks("a", 30, 1024)], {f"{INDEX}a": "0"}),
        ([asks("a", 200)], {f"{INDEX}a": "2,0"}),
        (
            [asks("a", 100, 1024), asks("b", 10, 256)],
            {COUNTS: "2,1", f"{INDEX}0": "1,0", f"{INDEX}b": "3"},
        ),
        ([shares_memory("a", 1000)], {IDX: "3", POD_UNITS: "1000"}),
        ([shares_memory("a", 1), shares_memory("b", 7)], {V2: {"0": {"1": 1}, "1": {"1": 7}}}),
        (
            [container("a", limits={"nvidia.com/gpu": 1})],
            {ALLOCATED: {"gpu": [entry(0, core=100, mib=24576, ratio=100)]}},
        ),
        ([container("a", limits={"nvidia.com/gpu": 1})], {}),
    ],
    ids=["a part", "whole cards", "multi and ordinal", "v1", "v2", "canonical", "nothing written"],
)
def test_what_is_well_formed_has_no_faults(containers: list[Object], annotations: Object) -> None:
    """A conflict is worth reading only when it is one."""
    assert held(*containers, annotations=annotations).faults == ()
