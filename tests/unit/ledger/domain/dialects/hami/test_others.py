"""Registers of other vendors, registers that can't be read, and cards that HAMi closes."""

from __future__ import annotations

import json

import pytest

from ledger.domain.adopted.pods import adopt
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.nodes import NodeFacts
from tests.support.objects import Object, container, node, pod

NVIDIA = "hami.io/node-nvidia-register"
A100 = {"count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA A100", "health": True}


def facts_of(**annotations: str) -> NodeFacts:
    """Return a node with these annotations under HAMi's domain, `_` for `-` in their names."""
    told = {f"hami.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    body = node("n", allocatable={"nvidia.com/gpu": "20"}, annotations=told)
    return decode_node(body)[0]


@pytest.mark.parametrize(
    ("key", "vendor"),
    [
        ("node-dcu-register", "dcu"),
        ("node-register-Ascend910B3", "Ascend910B3"),
        ("node-MR-V100-register", "MR-V100"),
    ],
)
def test_a_register_of_any_vendor_lists_cards(key: str, vendor: str) -> None:
    """In text and in JSON, whichever way round the name is."""
    text = "D-0,4,65520,100,K100,0,true,0,hami-core:D-1,4,65520,100,K100,0,false,1,hami-core:"
    listed = json.dumps(
        [
            {"id": f"D-{n}", "index": n, "devmem": 65520, "devcore": 100, "type": "K100"}
            | ({"health": True} if not n else {})
            for n in (0, 1)
        ]
    )
    for words in (text, listed):
        body = node("n", annotations={f"hami.io/{key}": words})
        cards = decode_node(body)[0].systems.cards

        assert [(card.system, card.driver, card.key, card.minor) for card in cards] == [
            ("hami", vendor, "D-0", 0),
            ("hami", vendor, "D-1", 1),
        ]
        assert [card.closed for card in cards] == ["", "unhealthy"]
        assert {card.memory_mib for card in cards} == {65520}


def given(facts: NodeFacts, **annotations: str) -> list[tuple[str, int | None, int | None]]:
    """Return the parts of cards that a Pod's annotations name."""
    told = {f"hami.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    held = adopt(pod(container(), name="p", uid="p", annotations=told), facts)
    return [(part.card, part.core_percent, part.memory_mib) for part in held.parts]


def test_a_pod_has_its_parts_of_such_cards() -> None:
    """Containers on one card together; a count of cores is no percent."""
    facts = facts_of(node_dcu_register="D-0,4,65520,100,K100,0,true,0,hami-core:")
    cores = facts_of(node_register_Ascend910B3="A-0,4,65536,20,Ascend910B3,0,true:")

    two = "D-0,DCU,1000,10:;D-0,DCU,2000,20:;"
    assert given(facts, dcu_devices_allocated=two) == [("D-0", 30, 3000)]
    assert given(cores, Ascend910B3_devices_allocated="A-0,Ascend,16384,5:;") == [("A-0", 0, 16384)]
    assert given(facts, dcu_devices_allocated="D-9,DCU,1000,10:;") == []
    assert given(facts, dcu_devices_allocated="garbled") == []


def test_a_register_that_cant_be_read_leaves_what_pods_name() -> None:
    """NVIDIA's too: the holder's card is known by its annotation alone."""
    facts = facts_of(node_nvidia_register='[{"id":"GPU-a","devm', node_dcu_register="D-0,4:")

    assert sorted(facts.systems.unread) == [("hami", "dcu"), ("hami", "nvidia.com/gpu")]
    assert given(facts, vgpu_devices_allocated="GPU-a,NVIDIA,9000,20:;") == [("GPU-a", 20, 9000)]
    assert given(facts_of(), vgpu_devices_allocated="GPU-a,NVIDIA,9000,20:;") == []


@pytest.mark.parametrize(
    ("more", "annotations", "closed"),
    [
        ({}, {"device_cordon": "GPU-a"}, {"GPU-a": "cordoned"}),
        ({"mode": "mig"}, {}, {"GPU-a": "MIG mode"}),
        ({"devmem": 0}, {}, {"GPU-a": "no memory told"}),
        ({}, {"node_handshake": "Deleted_2026"}, {"GPU-a": "plugin gone"}),
        ({"health": False}, {"device_cordon": "GPU-a"}, {}),
        ({}, {}, {}),
    ],
)
def test_a_closed_card_is_not_an_ill_card(
    more: Object, annotations: dict[str, str], closed: dict[str, str]
) -> None:
    """Each reason is its own; what HAMi calls unhealthy has none besides."""
    text = json.dumps([{"id": "GPU-a", **A100, **more}])

    assert dict(facts_of(node_nvidia_register=text, **annotations).systems.closed) == closed
