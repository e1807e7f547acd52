"""The numbers behind a refusal on one node, and what would make up for them, for people."""

from __future__ import annotations

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.nodes.devices import DeviceArrays
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.refusal.amounts import cores, mib_down, mib_up

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
    devices = arrays.devices.get(demand.device_type, arrays.no_devices)
    shut = [
        str(record.minor)
        for column, record in enumerate(devices.records[node])
        if not devices.open.item(node, column)
    ]
    closed = f"{demand.device_type.upper()} {', '.join(shut)}"
    return f"{closed} closed", f"open {closed} of {arrays.nodes[node].name}"


def explain_devices(arrays: NodeArrays, node: int, demand: DeviceDemand) -> Explained:
    """Explain a node that has too little left of a device type."""
    devices = arrays.devices.get(demand.device_type, arrays.no_devices)
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
