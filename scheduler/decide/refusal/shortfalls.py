"""
The numbers behind a refusal, for people: what one node lacks, and what no state of the cluster has.

Nobody is told to release anything on nodes that are too small, whoever holds what. Cards count
there that are closed now, for they may be opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.dialects.registry import gpu_dialect_of, reader_of
from ledger.domain.request.card_names import MIG_STATE, NVIDIA_DOMAIN, SLICE, number_in
from ledger.domain.request.extended import held
from ledger.domain.request.near_names import near_names
from ledger.domain.request.requests import DeviceDemand, PodRequest
from ledger.domain.resources import GPU_MEMORY, LABEL_MIG_STRATEGY, NVIDIA_GPU
from ledger.domain.systems import CORDONED, UNHEALTHY
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from scheduler.decide.nodes.arrays import UNLIMITED, BoolArray, IntArray, row_counts
from scheduler.decide.nodes.devices import DeviceArrays
from scheduler.decide.nodes.node_arrays import NodeArrays

_ILL: Final = f"{UNHEALTHY} or {CORDONED}"
_CUTS: Final = frozenset({"pending", "rebooting"})
OPENING: Final = "open "
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
    if cap < asked <= _there(arrays, node, name):
        return f"asks {asked} {name}, {free} of {cap} free", f"{OPENING}{name}"
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
        record
        for column, record in enumerate(devices.records[node])
        if not devices.open.item(node, column)
    ]
    ill = [record for record in shut if not record.healthy]
    others = dict(arrays.nodes[node].systems.closed)
    whys = {others.get(one.device_id, _ILL) for one in ill}
    closed = f"{demand.device_type.upper()} {', '.join(str(record.minor) for record in shut)}"
    detail = f"{closed} closed" + (f": {', '.join(sorted(whys))}" if whys else "")
    return detail, f"{OPENING}{closed} of {arrays.nodes[node].name}"


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
    name, count = arrays.nodes[node].name, demand.count
    kind = NVIDIA_GPU if devices.by_number.item(node) else demand.device_type.upper()
    listed = len(devices.records[node])
    is_gpu = demand.device_type == GPU
    if is_gpu and not listed and (unread := _unread(arrays, node)):
        return f"asks {count} {kind}, {unread}", f"{OPENING}{kind} of {name}"
    present = max(listed, _there(arrays, node, NVIDIA_GPU) if is_gpu else 0)
    healthy = int((devices.healthy[node] & (devices.barred[node] == 0)).sum())
    if listed < count <= present:
        closed = f"{present - healthy} of {present} {kind}"
        return f"asks {count} {kind}, {closed} are closed", f"{OPENING}{closed} of {name}"
    if count > present:
        remedy = f"ask for at most {healthy} {kind}" if healthy else f"add a node with {kind}"
        closed = f", {present - healthy} of them closed" if present > healthy else ""
        return f"asks {count} {kind}, the node has {present}{closed}", remedy
    left = devices.left[node].tolist()
    asked = max(demand.core_percent, demand.memory_ratio_percent)
    if demand.exclusive or asked == WHOLE_PERCENT:
        free = left.count(WHOLE_PERCENT)
        if kind == NVIDIA_GPU:  # replicas or slices
            return f"asks {count} {kind}, {free} free", f"release {count - free} {kind} on {name}"
        return (
            f"asks {count} whole {kind}, {free} untouched",
            f"release {count - free} whole {kind} on {name}",
        )
    if count > 1:
        size = f"{asked} %" if asked else mib_up(demand.memory_bytes)
        fit = ((np.array(left) >= asked) & (devices.memory_free[node] >= demand.memory_bytes)).sum()
        return (
            f"asks {size} of {count} {kind}, {fit} have that left",
            f"release {size} of {count - fit} more {kind} on {name}",
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
        able &= row_counts(large_enough(arrays, demand)) >= demand.count
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
        rows = _alike(arrays, among)
        most = max(max(arrays.extended.cap(r, name), _there(arrays, r, name)) for r in rows)
        if most < amount:
            return f"no node {where} has {amount} {name}; {_at_most(most)}"
    return f"no node {where} has all of it together"


def _there(arrays: NodeArrays, row: int, name: str) -> int:
    """Return how many a node has of a resource, those too which it does not offer now."""
    node = arrays.nodes[row]
    there, labels = node.systems.there(), node.labels
    on = labels.get(MIG_STATE) not in _CUTS and any(there[n] for n in there if NVIDIA_DOMAIN in n)
    if name != NVIDIA_GPU or node.systems.cards or arrays.gpus.records[row] or on:
        return there.get(name, 0)
    told = number_in(labels, f"{name}.count") or labels.get(f"{name}.present") == "true"
    return max(there.get(name, 0), int(told))


def _alike(arrays: NodeArrays, among: BoolArray) -> list[int]:
    """Return the first of these nodes of each kind of `NodeArrays.offers`, in order."""
    rows = np.flatnonzero(among)[::-1]
    first: IntArray = np.full(len(arrays.offers.distinct), -1, dtype=np.int64)
    first[arrays.offers.of[rows]] = rows  # of values for one place the last counts
    return sorted(first[first >= 0].tolist())


def _opens(arrays: NodeArrays, asked: Mapping[str, int], row: int) -> str:
    """Return what is closed of a node that may do once it is open, empty where nothing is."""
    node = arrays.nodes[row]
    there = {name: _there(arrays, row, name) for name in asked}
    units, wholes = node.labels.get(LABEL_MIG_STRATEGY) == "single", asked.get(NVIDIA_GPU, 0)
    is_card = wholes and (units or wholes <= there[NVIDIA_GPU])
    cut = node.labels.get(MIG_STATE)
    if cut in _CUTS and (is_card or any(SLICE.fullmatch(n) for n in asked)):
        return f"{node.name} is being cut ({MIG_STATE}={cut})"
    offers = dict(node.systems.offers)
    unread = _unread(arrays, row) if asked.keys() & offers.keys() else ""
    if unread or (node.other_scheduler and not node.systems.cards):
        return unread
    if any(n > there[name] for name, n in asked.items()):
        return ""
    ill = [
        f"{n} of {there[name]} {name} of {node.name} unhealthy, or the plugin is gone"
        for name in asked
        if (n := there[name] - offers.get(name, 0)) > 0
    ]
    return ", ".join(ill)


def _unread(arrays: NodeArrays, row: int) -> str:
    node = arrays.nodes[row]
    dialects = [gpu_dialect_of(name) for name, amount in node.systems.offers if amount]
    in_parts = node.other_scheduler or any(d and not reader_of(d).by_plugin for d in dialects)
    is_known = node.systems.cards or arrays.gpus.records[row]
    return f"what cards {node.name} has can't be read" if in_parts and not is_known else ""


def not_offered_now(
    arrays: NodeArrays, request: PodRequest, among: BoolArray, admits: BoolArray
) -> str:
    """Return what of those that admit the Pod to wait for, or what was meant; empty for neither."""
    asked = held(request.snapshot)
    large = (arrays.cpu_cap >= request.cpu_milli) & (arrays.memory_cap >= request.memory_bytes)
    rows = _alike(arrays, admits & large)
    closed = next(filter(None, (_opens(arrays, asked, row) for row in rows)), "")
    if closed:
        return f"wait until it is open: {closed}"
    names, rows, of = {*asked, *dict(request.extended)}, _alike(arrays, among), arrays.offers.of
    free = lambda number, name: _free(arrays, among & (of == of[rows[number]]), name)  # noqa: E731
    times = np.bincount(of[among])[of[rows]].tolist()
    kinds = [arrays.nodes[row] for row in rows]
    return "; ".join(near_names(names, kinds, free, DEFAULT_VOCABULARY, times))


def _free(arrays: NodeArrays, alike: BoolArray, name: str) -> int | None:
    """Return how many of a resource are free on such nodes; None where no number counts it."""
    gpus, dialect = arrays.gpus, gpu_dialect_of(name)
    node = arrays.nodes[int(alike.argmax())]
    if node.extended.get(name) or dialect is None:
        times = arrays.extended.times(((name, 1),), np.flatnonzero(alike), UNLIMITED)
        return int(times.sum()) if node.extended.get(name) else None
    if dialect not in (node.dialects or (dialect,)):
        return None
    resource, unit = reader_of(dialect).sums.get(name, (name, 1))
    if resource == GPU_MEMORY:
        free = (gpus.memory_free[alike] * gpus.open[alike]).clip(0).sum(axis=1) // unit
        return int(free.sum())
    return int(gpus.whole[alike].clip(0).sum()) if resource == NVIDIA_GPU else None


def _too_few_cards(arrays: NodeArrays, demand: DeviceDemand, among: BoolArray, where: str) -> str:
    kind = demand.device_type.upper()
    devices = arrays.devices_of(demand.device_type)
    there = [
        _there(arrays, row, NVIDIA_GPU)
        for row in _alike(arrays, among)
        if demand.device_type == GPU and not arrays.nodes[row].other_scheduler  # units, no cards
    ]
    present = max(_most(row_counts(devices.present), among), *there, 0)
    if present < demand.count:
        return f"no node {where} has {demand.count} {kind}; {_at_most(present)}"
    if _most(row_counts(large_enough(arrays, demand)), among) >= demand.count:
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


def large_enough(arrays: NodeArrays, demand: DeviceDemand) -> BoolArray:
    """Return which cards, by node, have as much of one as a demand asks of each."""
    devices = arrays.devices_of(demand.device_type)
    large: BoolArray = devices.present & (devices.core_cap >= demand.core_percent)
    if demand.memory_bytes:
        large &= devices.memory_cap >= demand.memory_bytes
    return large


def _most(values: IntArray, among: BoolArray) -> int:
    return int(values[among].max())
