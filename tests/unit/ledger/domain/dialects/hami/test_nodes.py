from __future__ import annotations

import pytest

from ledger.domain.dialects.names import Dialect
from ledger.domain.kube.node_objects import decode_node
from tests.support.hami import REGISTER, card, registered, registered_v2_7
from tests.support.objects import Object, device, gpu_device, node

MIB = 2**20
CORDON = "hami.io/device-cordon"
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
        pytest.param({}, "GPU-x, GPU-a", id="cordoned"),
    ],
)
def test_a_card_that_takes_no_pods_is_closed(more: Object, cordon: str) -> None:
    """Contract 4, as ours."""
    text = registered(card("GPU-a", **more), card("GPU-b", index=1))
    found = cards_of(node(annotations={REGISTER: text, CORDON: cordon}))

    assert [one[-1] for one in found] == [False, True]


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
