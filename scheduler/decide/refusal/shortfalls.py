"""
The numbers behind a refusal, for people: what one node lacks, and what no state of the cluster has.

Nobody is told to release anything on nodes that are too small, whoever holds what. Cards count
there that are closed now, for they may be opened.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.nodes.arrays import BoolArray, IntArray, row_counts
from scheduler.decide.nodes.devices import DeviceArrays
from scheduler.decide.nodes.node_arrays import NodeArrays

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


def cores(milli: int) -> str:
    """Return CPUs: `0.2`, `64`."""
    sign = "-" if milli < 0 else ""
    whole, part = divmod(abs(milli), 1000)
    return f"{sign}{whole}.{part:03d}".rstrip("0").rstrip(".")


def size(size_bytes: int) -> str:
    """Return what is asked for, rounded up: `80Gi`, `1025Mi`."""
    return f"{size_bytes // _GIB}Gi" if size_bytes % _GIB == 0 else mib_up(size_bytes)


def size_down(size_bytes: int) -> str:
    """Return what is there, rounded down."""
    return f"{size_bytes // _GIB}Gi" if size_bytes % _GIB == 0 else mib_down(size_bytes)


def mib_up(size_bytes: int) -> str:
    """Return MiB, rounded up."""
    return f"{-(-size_bytes // _MIB)}Mi"


def mib_down(size_bytes: int) -> str:
    """Return MiB, rounded down."""
    return f"{size_bytes // _MIB}Mi"


Explained = tuple[str, str]
"""(detail, remedy): `asks 4 whole GPU, 2 untouched` and `release 2 whole GPU on n-17`."""


def explain_cpu(arrays: NodeArrays, node: int, request: PodRequest) -> Explained:
    """Explain a node that is short of cpu."""
    asked, free, cap = request.cpu_milli, arrays.cpu_free.item(node), arrays.cpu_cap.item(node)
    remedy = f"release {cores(asked - free)} cpu on {arrays.nodes[node].name}"
    if asked > cap:
        remedy = f"ask for at most {cores(cap)} cpu"
    return f"asks {cores(asked)} cpu, {cores(free)} free", remedy


def explain_memory(arrays: NodeArrays, node: int, request: PodRequest) -> Explained:
    """Explain a node that is short of memory."""
    asked, free = request.memory_bytes, arrays.memory_free.item(node)
    cap = arrays.memory_cap.item(node)
    remedy = f"release {mib_up(asked - free)} memory on {arrays.nodes[node].name}"
    if asked > cap:
        remedy = f"ask for at most {mib_down(cap)} memory"
    return f"asks {mib_up(asked)} memory, {mib_down(free)} free", remedy


def explain_extended(arrays: NodeArrays, node: int, request: PodRequest, name: str) -> Explained:
    """Explain a node that is short of a resource which it offers by its number alone."""
    asked = dict(request.extended).get(name, 0)
    free, cap = arrays.extended.free(node, name), arrays.extended.cap(node, name)
    if not cap:
        return f"asks {asked} {name}, the node offers none", f"add a node that offers {name}"
    remedy = f"release {asked - free} {name} on {arrays.nodes[node].name}"
    if asked > cap:
        remedy = f"ask for at most {cap} {name}"
    return f"asks {asked} {name}, {free} of {cap} free", remedy


def explain_closed(arrays: NodeArrays, node: int, demand: DeviceDemand) -> Explained:
    """Explain a node whose devices would do, were they not closed."""
    devices = arrays.devices_of(demand.device_type)
    shut = [
        str(record.minor)
        for column, record in enumerate(devices.records[node])
        if not devices.open.item(node, column)
    ]
    closed = f"{demand.device_type.upper()} {', '.join(shut)}"
    return f"{closed} closed", f"open {closed} of {arrays.nodes[node].name}"


def explain_visible(arrays: NodeArrays, node: int, demand: DeviceDemand) -> Explained:
    """Explain a node whose devices would do, were containers of a group not shown them."""
    devices = arrays.devices_of(demand.device_type)
    shown = {
        str(record.minor): devices.viewers(node, column)
        for column, record in enumerate(devices.records[node])
        if devices.viewed.item(node, column)
    }
    groups = ", ".join(sorted({group for groups in shown.values() for group in groups}))
    cards = f"{demand.device_type.upper()} {', '.join(shown)}"
    return (
        f"{cards} shown to containers of {groups}",
        f"end the Pods of {groups} on {arrays.nodes[node].name}",
    )


def explain_devices(arrays: NodeArrays, node: int, demand: DeviceDemand) -> Explained:
    """Explain a node that has too little left of a device type."""
    devices = arrays.devices_of(demand.device_type)
    name, kind, count = arrays.nodes[node].name, demand.device_type.upper(), demand.count
    present = len(devices.records[node])
    healthy = int((devices.healthy[node] & (devices.barred[node] == 0)).sum())
    if count > present:
        remedy = f"ask for at most {healthy} {kind}" if healthy else f"add a node with {kind}"
        closed = f", {present - healthy} of them closed" if present > healthy else ""
        return f"asks {count} {kind}, the node has {present}{closed}", remedy
    left = devices.left[node].tolist()
    asked = max(demand.core_percent, demand.memory_ratio_percent)
    if demand.exclusive or asked == WHOLE_PERCENT:
        free = left.count(WHOLE_PERCENT)
        return (
            f"asks {count} whole {kind}, {free} untouched",
            f"release {count - free} whole {kind} on {name}",
        )
    if count > 1:
        fit = sum(share >= asked for share in left)
        return (
            f"asks {asked} % of {count} {kind}, {fit} have that left",
            f"release {asked} % of {count - fit} more {kind} on {name}",
        )
    if demand.memory_bytes:
        return _explain_bytes(devices, node, demand, name)
    best = max(left)
    return (
        f"asks {asked} % of a {kind}, {best} % left on the best, {sum(left)} % in all",
        f"release {asked - best} % of one {kind} on {name}"
        + (f" or ask for {best} %" if best else ""),
    )


def _explain_bytes(devices: DeviceArrays, node: int, demand: DeviceDemand, name: str) -> Explained:
    """Explain a part of one card by what is short on the card with the most memory left."""
    kind = demand.device_type.upper()
    shares = zip(devices.memory_free[node].tolist(), devices.core_free[node].tolist(), strict=True)
    memory, core = max(shares)
    asked = f"asks {mib_up(demand.memory_bytes)} of a {kind}"
    if demand.core_percent:
        asked += f" and {demand.core_percent} % of its core"
    lacking = []
    if memory < demand.memory_bytes:
        lacking.append(mib_up(demand.memory_bytes - memory))
    if core < demand.core_percent:
        lacking.append(f"{demand.core_percent - core} % core")
    return (
        f"{asked}, {mib_down(max(0, memory))} and {max(0, core)} % left on the best",
        f"release {' and '.join(lacking) or 'what is held'} of one {kind} on {name}",
    )


THERE_IS_NONE: Final = "there is none"


def able_nodes(arrays: NodeArrays, request: PodRequest) -> BoolArray:
    """Return which nodes have as much of everything as the request asks of one node."""
    able: BoolArray = arrays.cpu_cap >= request.cpu_milli
    able &= arrays.memory_cap >= request.memory_bytes
    for name, amount in request.extended:
        able &= ~arrays.extended.too_small(name, amount, arrays.everything)
    for demand in request.devices:
        able &= row_counts(_cards_large_enough(arrays, demand)) >= demand.count
    return able


def never(arrays: NodeArrays, request: PodRequest, among: BoolArray, where: str) -> str:
    """
    Return what none of these nodes has; empty where each thing is there, on one node or another.

    Example, with `where` "in this cluster":

        "no card in this cluster has 80Gi; the largest has 32510Mi"
    """
    for demand in request.devices:
        text = _too_few_cards(arrays, demand, among, where)
        if text:
            return text
    most = _most(arrays.cpu_cap, among)
    if most < request.cpu_milli:
        return f"no node {where} has {cores(request.cpu_milli)} cpu; the most is {cores(most)}"
    most = _most(arrays.memory_cap, among)
    if most < request.memory_bytes:
        asked = size(request.memory_bytes)
        return f"no node {where} has {asked} memory; the most is {size_down(most)}"
    for name, amount in request.extended:
        most = max(arrays.extended.cap(row, name) for row in np.flatnonzero(among).tolist())
        if most < amount:
            return f"no node {where} has {amount} {name}; {_at_most(most)}"
    return f"no node {where} has all of it together"


def _too_few_cards(arrays: NodeArrays, demand: DeviceDemand, among: BoolArray, where: str) -> str:
    kind = demand.device_type.upper()
    devices = arrays.devices_of(demand.device_type)
    present = _most(row_counts(devices.present), among)
    if present < demand.count:
        return f"no node {where} has {demand.count} {kind}; {_at_most(present)}"
    if _most(row_counts(_cards_large_enough(arrays, demand)), among) >= demand.count:
        return ""
    largest = int((devices.memory_cap * devices.present)[among].max())
    if largest < demand.memory_bytes:
        asked = size(demand.memory_bytes)
        card = "card" if demand.device_type == GPU else kind
        if not largest:
            return f"no {card} {where} is known by its memory, and {asked} is asked"
        return f"no {card} {where} has {asked}; the largest has {size_down(largest)}"
    return f"no node {where} has {demand.count} {kind} as large as this"


def _at_most(most: int) -> str:
    return f"the most is {most}" if most else THERE_IS_NONE


def _cards_large_enough(arrays: NodeArrays, demand: DeviceDemand) -> BoolArray:
    devices = arrays.devices_of(demand.device_type)
    large: BoolArray = devices.present & (devices.core_cap >= demand.core_percent)
    if demand.memory_bytes:
        large &= devices.memory_cap >= demand.memory_bytes
    return large


def _most(values: IntArray, among: BoolArray) -> int:
    return int(values[among].max())
