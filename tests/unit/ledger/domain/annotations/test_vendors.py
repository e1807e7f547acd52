from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ledger.domain.annotations.device_allocated import DeviceAllocation
from ledger.domain.annotations.vendors import (
    NodeLock,
    decode_node_lock,
    encode_cambricon,
    encode_hami,
    encode_huawei,
    encode_metax,
    encode_node_lock,
)
from ledger.domain.errors import InputError
from ledger.domain.quantity import parse_quantity
from ledger.domain.resources import GPU_CORE, GPU_MEMORY

NOON = datetime(2026, 1, 5, 12, 0, 0, tzinfo=UTC)


def _share(minor: int, core: str, memory: str, *, template: str = "") -> DeviceAllocation:
    return DeviceAllocation(
        minor=minor,
        id=f"uuid-{minor}",
        resources=((GPU_CORE, parse_quantity(core)), (GPU_MEMORY, parse_quantity(memory))),
        template=template,
    )


def test_huawei_whole_cards_are_listed_by_minor() -> None:
    """Koordinator contract 8.9."""
    cards = [_share(0, "100", "32Gi"), _share(1, "100", "32Gi")]

    assert encode_huawei(cards, predicate_time_ns=1767225600000000000) == {
        "predicate-time": "1767225600000000000",
        "huawei.com/npu-core": "0,1",
    }


def test_huawei_shares_name_their_template() -> None:
    """Koordinator contract 8.9: `<minor>-<template>`."""
    annotations = encode_huawei([_share(3, "40", "8Gi", template="vir02")], predicate_time_ns=1)

    assert annotations["huawei.com/npu-core"] == "3-vir02"


def test_ascend_310p_has_its_own_list() -> None:
    """Koordinator contract 8.9."""
    cards = [_share(0, "100", "32Gi"), _share(1, "100", "32Gi")]
    annotations = encode_huawei(cards, predicate_time_ns=1, ascend_310p=True)

    assert annotations["huawei.com/Ascend310P"] == "Ascend310P-0,Ascend310P-1"


def test_cambricon_counts_memory_in_256_mib() -> None:
    """Koordinator contract 8.9: minor, core percent, units; the vendor's spelling is kept."""
    assert encode_cambricon(_share(2, "40", "8703Mi")) == {
        "CAMBRICON_DSMLU_ASSIGHED": "false",
        "CAMBRICON_DSMLU_PROFILE": "2_40_33",
    }


def test_metax_lists_devices_by_uuid() -> None:
    """Koordinator contract 8.9: core percent and MiB, one inner list."""
    assert encode_metax([_share(1, "30", "8Gi"), _share(0, "30", "8Gi")]) == {
        "metax-tech.com/gpu-devices-allocated": (
            '[[{"compute":30,"uuid":"uuid-0","vRam":8192},'
            '{"compute":30,"uuid":"uuid-1","vRam":8192}]]'
        )
    }


def test_hami_needs_the_nodes_name_as_a_label() -> None:
    """Koordinator contract 2.1."""
    assert encode_hami("n-17") == {"hami.io/vgpu-node": "n-17"}


def test_node_locks_round_trip_and_expire() -> None:
    """Koordinator contract 8.9: `<RFC3339>,<namespace>,<name>`, five minutes."""
    lock = NodeLock(taken_at=NOON, namespace="ml", name="t-0")

    assert encode_node_lock(lock) == "2026-01-05T12:00:00Z,ml,t-0"
    assert decode_node_lock(encode_node_lock(lock)) == lock
    assert decode_node_lock("2026-01-05T20:00:00+08:00,ml,t-0") == lock
    assert not lock.is_expired(NOON + timedelta(minutes=5))
    assert lock.is_expired(NOON + timedelta(minutes=5, seconds=1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "noon,ml,t-0",
        "2026-01-05T12:00:00Z,ml",
        "2026-01-05T12:00:00Z,a,b,c",
        "2026-01-05T12,a,b",
    ],
    ids=["empty", "no time", "no name", "too many parts", "a time without a zone"],
)
def test_broken_locks_are_errors(text: str) -> None:
    """A lock that can't be read is neither taken nor free."""
    with pytest.raises(InputError, match="mutex"):
        decode_node_lock(text)
