"""How fast GPUs reach each other: as somebody measured it, else as their links suggest."""

from __future__ import annotations

from typing import Final

from agent.discover.machine import Card, Common, Discovery
from ledger.domain.devices import DeviceRecord, DeviceTopology
from ledger.domain.kube.derived_links import ACROSS_GBPS, NUMA_GBPS, ROOT_GBPS, derive_links
from ledger.domain.resources import TYPE_GPU
from ledger.domain.topology import LinkMatrix

SWITCH_GBPS: Final = 20.0
SWITCHES_GBPS: Final = 18.0
"""Nominal, as those of `derived_links`: below one PCIe switch, below several of one root."""
_COMMON_GBPS: Final = {
    Common.INTERNAL: SWITCH_GBPS,
    Common.SINGLE: SWITCH_GBPS,
    Common.MULTIPLE: SWITCHES_GBPS,
    Common.HOST_BRIDGE: ROOT_GBPS,
    Common.NODE: NUMA_GBPS,
    Common.SYSTEM: ACROSS_GBPS,
}


def bandwidth_of(found: Discovery) -> LinkMatrix | None:
    """
    Return the matrix that the Device object gets, by minor; None where places say it alone.

    Rule: Koordinator GPU-topology proposal, "GPU topology resource reporting": what was measured;
    in its place nominal figures whose order counts: NVLinks, times what one of them carries; else
    what lies between the two. Where nothing but places is known the scheduler derives it by itself.
    """
    if found.measured is not None:
        return found.measured
    known = [link for link in found.links if link.nvlinks or link.common is not None]
    if not known:
        return None
    places = derive_links(map(_record, found.cards))
    size = max(card.minor for card in found.cards) + 1
    rows = [list(row) for row in places.rows] if places else [[0.0] * size for _ in range(size)]
    for link in known:
        wire = link.nvlinks * link.nvlink_mbps / 1000
        common = 0.0 if link.common is None else _COMMON_GBPS[link.common]
        speed = max(wire, common) or rows[link.first][link.second]
        rows[link.first][link.second] = rows[link.second][link.first] = speed
    return LinkMatrix(rows=tuple(map(tuple, rows)))


def _record(card: Card) -> DeviceRecord:
    place = DeviceTopology(numa_node=card.place.numa_node, pcie_id=card.place.root)
    return DeviceRecord(device_type=TYPE_GPU, minor=card.minor, device_id=card.uuid, topology=place)
