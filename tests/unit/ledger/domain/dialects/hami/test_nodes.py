from __future__ import annotations

from typing import Final

import pytest

from ledger.domain.dialects.names import Dialect
from ledger.domain.kube.node_objects import decode_node
from tests.support.hami import REGISTER, card, registered, registered_v2_7
from tests.support.objects import Object, device, gpu_device, node

MIB = 2**20
CORDON = "hami.io/device-cordon"
GPU = "nvidia.com/gpu"
HANDSHAKE = "hami.io/node-handshake"
HAMI = frozenset({Dialect.HAMI, Dialect.NVIDIA})


def cards_of(body: Object) -> list[tuple[int, str, str, int, bool]]:
    """Return minor, id, model, MiB and health of the node's GPUs."""
    facts, warnings = decode_node(body)
    assert warnings == []
    return [
        (one.minor, one.device_id, one.model, one.memory_bytes // MIB, one.healthy)
        for one in facts.devices
    ]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(registered(card("GPU-b", index=1), card("GPU-a", index=0)), id="v2.8"),
        pytest.param(
            registered_v2_7(card("GPU-b", index=1), card("GPU-a", index=0)), id="v2.5 to v2.7"
        ),
        pytest.param(registered_v2_7(card("GPU-b"), card("GPU-a"), fields=7), id="until v2.4"),
    ],
)
def test_a_node_has_the_cards_that_hami_registers(text: str) -> None:
    """Contract 4: by index, or where no index is told in the order of the UUIDs."""
    model = "NVIDIA-Tesla V100-PCIE-32GB"
    body = node(allocatable={"nvidia.com/gpu": 20}, annotations={REGISTER: text})

    assert cards_of(body) == [(0, "GPU-a", model, 32768, True), (1, "GPU-b", model, 32768, True)]
    facts, _ = decode_node(body)
    assert facts.dialects == HAMI
    assert all(one.unique_id and one.core_percent == 100 for one in facts.devices)


def test_indexes_that_are_not_unique_say_nothing() -> None:
    """Two cards never have one minor."""
    text = registered(card("GPU-b", index=3), card("GPU-a", index=3))

    assert [(one[0], one[1]) for one in cards_of(node(annotations={REGISTER: text}))] == [
        (0, "GPU-a"),
        (1, "GPU-b"),
    ]


@pytest.mark.parametrize(
    ("more", "cordon"),
    [
        pytest.param({"health": False}, "", id="not healthy"),
        pytest.param({"mode": "mig"}, "", id="in MIG mode"),
        pytest.param({}, ", GPU-a", id="cordoned"),
    ],
)
def test_a_card_that_takes_no_pods_is_closed(more: Object, cordon: str) -> None:
    """Contract 4, as ours."""
    text = registered(card("GPU-a", **more), card("GPU-b", index=1))
    found = cards_of(node(annotations={REGISTER: text, CORDON: cordon}))

    assert [one[-1] for one in found] == [False, True]


@pytest.mark.parametrize(
    ("annotations", "offers", "lives"),
    [
        pytest.param({HANDSHAKE: "Requesting_2026-11-23 07:58:02"}, {GPU: 10}, True, id="asked"),
        pytest.param({HANDSHAKE: "Reported 2026-11-23 07:58:02"}, {GPU: 10}, True, id="answered"),
        pytest.param({}, {"nvidia.com/vgpu": 10}, True, id="under another name"),
        pytest.param({HANDSHAKE: "Deleted_2026-11-23 07:58:02"}, {GPU: 10}, False, id="deleted"),
        pytest.param({HANDSHAKE: "Requesting_2026-11-23 07:58:02"}, {GPU: 0}, False, id="offers 0"),
    ],
)
def test_the_cards_of_a_dead_plugin_are_closed(
    annotations: dict[str, str],
    offers: dict[str, int],
    lives: bool,  # noqa: FBT001 - a case
) -> None:
    """Contract 4, as ours: nobody would show them to a container; beside a Device object we do."""
    told = {REGISTER: registered(card("GPU-0")), **annotations}
    body = node(allocatable={"cpu": "8", **offers}, annotations=told)
    facts, warnings = decode_node(body)
    assert [one.healthy for one in facts.devices] == [lives]
    assert bool(facts.other_scheduler) == lives
    gone = f"metadata.annotations[{REGISTER}]: HAMi's device plugin is gone; its cards take no Pods"
    assert warnings == ([] if lives else [f"node n1: {gone}"])

    facts, warnings = decode_node(body, device(gpu_device(0)))
    assert [one.healthy for one in facts.devices] == [True]
    assert bool(facts.other_scheduler) == lives


@pytest.mark.parametrize(
    ("cards", "labels", "mib"),
    [
        pytest.param([163840], {"nvidia.com/gpu.memory": "81920"}, [81920], id="scaled"),
        pytest.param([81920], {"nvidia.com/gpu.memory": "163840"}, [81920], id="HAMi gives less"),
        pytest.param([163840], {}, [163840], id="nobody says how large it is"),
        pytest.param([163840], {"nvidia.com/gpu.memory": "80Gi"}, [163840], id="no number"),
        pytest.param([16384, 81920], {"nvidia.com/gpu.memory": "8192"}, [16384, 81920], id="mixed"),
    ],
)
def test_a_card_gives_no_more_memory_than_it_has(
    cards: list[int], labels: dict[str, str], mib: list[int]
) -> None:
    """Contract 4, as ours; of several models the label tells one, and not which."""
    listed = [
        card(f"GPU-{number}", index=number, mib=size, type=f"NVIDIA-{size}")
        for number, size in enumerate(cards)
    ]
    facts, _ = decode_node(node(labels=labels, annotations={REGISTER: registered(*listed)}))

    assert [one.memory_bytes >> 20 for one in facts.devices] == mib


def test_scaling_leaves_the_compute_of_a_card_alone() -> None:
    """Contract 4, as ours: no card gives more than 100 percent."""
    facts, _ = decode_node(node(annotations={REGISTER: registered(card("GPU-a", devcore=200))}))

    assert [one.core_percent for one in facts.devices] == [100]


def test_a_device_object_says_more() -> None:
    """The register is only asked where there is none."""
    text = registered(card("GPU-a"))
    facts, _ = decode_node(node(annotations={REGISTER: text}), device(gpu_device(0), gpu_device(1)))

    assert [one.device_id for one in facts.devices] == ["GPU-0", "GPU-1"]
    assert facts.dialects is None


BESIDE_DEVICE: Final = {
    "a cordoned card": (
        {CORDON: "GPU-1"},
        [True, False],
        [f"metadata.annotations[{CORDON}]: takes no Pods: GPU-1"],
    ),
    "a card that is not there": (
        {CORDON: "GPU-9"},
        [True, True],
        [f"metadata.annotations[{CORDON}]: no such card: GPU-9"],
    ),
    "a card that is not healthy": (
        {REGISTER: registered(card("GPU-0", health=False), card("GPU-1", index=1))},
        [False, True],
        [f"metadata.annotations[{REGISTER}]: takes no Pods: GPU-0"],
    ),
    "more cards": (
        {REGISTER: registered(card("GPU-0"), card("GPU-5", index=5))},
        [True, True],
        [f"metadata.annotations[{REGISTER}]: not in the Device object, which counts: GPU-5"],
    ),
    "a text that is none": (
        {REGISTER: "GPU-0,10"},
        [True, True],
        [f"metadata.annotations[{REGISTER}][0]: 2 fields, not 7 or 9; the Device object counts"],
    ),
    "the same cards": (
        {REGISTER: registered(card("GPU-0", mib=0), card("GPU-1", index=1))},
        [True, True],
        [],
    ),
}


@pytest.mark.parametrize(
    ("annotations", "healthy", "said"), BESIDE_DEVICE.values(), ids=list(BESIDE_DEVICE)
)
def test_what_hami_closes_is_closed_beside_a_device_object(
    annotations: dict[str, str], healthy: list[bool], said: list[str]
) -> None:
    """Contract 4, as ours: the Device object counts, and whoever closes a card is believed."""
    facts, warnings = decode_node(
        node(annotations=annotations), device(gpu_device(0), gpu_device(1))
    )

    assert [one.healthy for one in facts.devices] == healthy
    assert warnings == [f"node n1: {text}" for text in said]


@pytest.mark.parametrize(
    ("cards", "cordon", "said"),
    [
        (
            [card("GPU-a", mib=0)],
            "",
            f"metadata.annotations[{REGISTER}]: no memory is told of GPU-a; it takes no Pods",
        ),
        (
            [card("GPU-a", health=False)],
            "GPU-b",
            f"metadata.annotations[{CORDON}]: no such card: GPU-b",
        ),
    ],
)
def test_what_is_odd_in_a_register_is_said(cards: list[Object], cordon: str, said: str) -> None:
    """A card without memory would give any share of nothing."""
    text = registered(*cards)
    facts, warnings = decode_node(node(annotations={REGISTER: text, CORDON: cordon}))

    assert warnings == [f"node n1: {said}"]
    assert [one.healthy for one in facts.devices] == [False]


def test_other_dialects_quantities_count_beside_it() -> None:
    """What the node offers in their words is of the same cards; the register's are taken."""
    quantities = {"nvidia.com/gpu": 10, "aliyun.com/gpu-count": 2, "aliyun.com/gpu-mem": 65536}
    text = registered(card("GPU-a"))
    facts, warnings = decode_node(node(allocatable=quantities, annotations={REGISTER: text}))

    assert [one.device_id for one in facts.devices] == ["GPU-a"]
    assert facts.dialects == HAMI | {Dialect.GPUSHARE}
    (warning,) = warnings
    assert warning == (
        "node n1: different numbers of cards, those that are listed count: "
        f"metadata.annotations[{REGISTER}] 1, resources 2"
    )


def test_a_register_that_does_not_parse_leaves_no_card() -> None:
    """A foreign text stops nobody; `nvidia.com/gpu` counts shares then, so it makes no card."""
    body = node(allocatable={"nvidia.com/gpu": 10}, annotations={REGISTER: "GPU-a,10"})
    facts, warnings = decode_node(body)

    assert facts.devices == ()
    assert facts.dialects == frozenset()
    (warning,) = warnings
    assert warning == (
        f"node n1: metadata.annotations[{REGISTER}][0]: 2 fields, not 7 or 9; no card of it is "
        "offered"
    )


@pytest.mark.parametrize("text", ["[]", "null", ""])
def test_a_register_that_lists_nothing_leaves_shares_of_unknown_cards(text: str) -> None:
    """Forty shares are not forty cards, whoever cut the register."""
    facts, warnings = decode_node(
        node(allocatable={"nvidia.com/gpu": 40}, annotations={REGISTER: text})
    )

    assert (facts.devices, facts.dialects) == ((), frozenset())
    assert warnings == [
        f"node n1: metadata.annotations[{REGISTER}]: lists no card; no nvidia.com/gpu is offered"
    ]
    assert decode_node(node(annotations={REGISTER: text}))[1] == []


def test_a_register_with_fewer_cards_than_the_label_counts_is_named() -> None:
    """The register counts."""
    facts, warnings = decode_node(
        node(
            labels={"nvidia.com/gpu.count": "4"}, annotations={REGISTER: registered(card("GPU-a"))}
        )
    )

    assert len(facts.devices) == 1
    assert warnings == [
        f"node n1: metadata.annotations[{REGISTER}]: lists 1 cards, nvidia.com/gpu.count is 4"
    ]
