"""`tenure map -o json`: the picture of the cards as plain records; an interface (docs/map.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tenure.picture import many_record

if TYPE_CHECKING:
    from scheduler.usage.picture import (
        CardGroup,
        DeviceNow,
        HolderNow,
        NodeNow,
        Picture,
        Units,
    )

Record = dict[str, Any]


def picture_record(picture: Picture, *, whole: Picture | None = None) -> Record:
    """Return all of the picture; of a part of a `whole` one, of how many nodes it is a part too."""
    sums = picture.summary
    return {
        "summary": {
            "nodes": len(picture.nodes),
            **({} if whole is None else {"nodes_in_all": len(whole.nodes)}),
            "cards": many_record(sums.cards),
            "free": many_record(sums.free),
            "gettable": many_record(sums.gettable),
            **({} if picture.is_part else {"percent": asdict(picture.parts)}),
        },
        "nodes": [_node(node) for node in picture.nodes],
        "double": [
            {
                "node": double.node,
                "id": double.id,
                "minor": double.minor,
                "holders": list(double.holders),
            }
            for double in picture.double
        ],
        "contradictions": [
            {"object": each.object, "text": each.text} for each in picture.contradictions
        ],
    }


def _node(node: NodeNow) -> Record:
    return {
        "node": node.name,
        "open": node.is_open,
        "closed_because": list(node.closed_because),
        "groups": [_group(group) for group in node.groups],
        "not_looked_at": _units(node.not_looked_at),
    }


def _group(group: CardGroup) -> Record:
    return {
        "system": group.system,
        "model": group.model,
        "memory_mib": group.memory_mib,
        "mode": group.mode,
        "cards": many_record(group.cards),
        "free": many_record(group.free),
        "gettable": many_record(group.gettable),
        "units": _units(group.units),
        "devices": [_device(device) for device in group.devices],
        "unplaced": [
            {
                "namespace": each.namespace,
                "name": each.name,
                "uid": each.uid,
                "amount": each.amount,
                "unit": each.unit,
            }
            for each in group.unplaced
        ],
    }


def _units(units: Mapping[str, Units]) -> Record:
    return {
        name: {
            "allocatable": each.allocatable,
            "held": {"min": each.held, "max": None} if each.is_least else each.held,
        }
        for name, each in units.items()
    }


def _device(device: DeviceNow) -> Record:
    return {
        "id": device.id,
        "minor": device.minor,
        "healthy": device.healthy,
        "closed": device.closed,
        "holders": [_holder(holder) for holder in device.holders],
    }


def _holder(holder: HolderNow) -> Record:
    return {
        "namespace": holder.namespace,
        "name": holder.name,
        "uid": holder.uid,
        "core_percent": holder.core_percent,
        "memory_mib": holder.memory_mib,
        "whole": holder.whole,
        **({} if holder.users is None else {"pods": list(holder.users)}),
    }
