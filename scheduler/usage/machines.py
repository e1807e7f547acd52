"""A machine's devices once, whichever of its Node objects list them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ledger.store.reading.report_rows import Device, Node

GONE: Final = "gone"
"""The closed reason of a device that left its node; another may have its minor now."""

DeviceKey = tuple[str, str, int]
"""Node UID, device type, minor."""


def once_per_machine(
    nodes: Sequence[Node], devices: Sequence[Device], created: Mapping[str, str]
) -> tuple[list[Device], dict[int, DeviceKey]]:
    """
    Return the devices, and by number where each of them is now.

    Rule: design section 4, "One account per physical device". A ledger has a device with an id
    once; one without is listed by every Node of its machine, and the Node that grants counts: of
    those that are not lost the one that was made last.

    Args:
        created: node UID -> when its object was made, as far as it was told.
    """
    order = {node.node_uid: number for number, node in enumerate(nodes)}
    by_uid = {node.node_uid: node for node in nodes}
    listing: dict[int, set[str]] = {}
    for device in devices:
        node = by_uid.get(device.node_uid)
        if node is not None and node.machine_no and _is_nameless(device):
            listing.setdefault(node.machine_no, set()).add(device.node_uid)
    instead: dict[str, str] = {}
    for uids in listing.values():
        granting = max(
            uids,
            key=lambda uid: (by_uid[uid].lost_position is None, created.get(uid, ""), order[uid]),
        )
        instead |= {uid: granting for uid in uids if uid != granting}
    there = {(each.node_uid, each.device_type, each.minor) for each in devices}
    kept: list[Device] = []
    places: dict[int, DeviceKey] = {}
    for device in devices:
        key = (device.node_uid, device.device_type, device.minor)
        same = (instead.get(device.node_uid, device.node_uid), *key[1:])
        if same != key and _is_nameless(device) and same in there:
            key = same
        else:
            kept.append(device)
        if device.device_no and device.closed_reason != GONE:
            places[device.device_no] = key
    return kept, places


def has_twins(nodes: Sequence[Node]) -> bool:
    """Tell whether some machine has several Node objects."""
    machines = [node.machine_no for node in nodes if node.machine_no]
    return len(set(machines)) < len(machines)


def _is_nameless(device: Device) -> bool:
    return not device.device_id and device.closed_reason != GONE
