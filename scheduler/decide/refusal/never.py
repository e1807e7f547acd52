"""
What no state of the cluster can give: nodes that are too small for a request, whoever holds what.

Nobody is told to release anything there. Cards count that are closed now, for they may be opened.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ledger.domain.devices import GPU
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.nodes.arrays import BoolArray, IntArray, row_counts
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.refusal.amounts import cores, size, size_down

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
    devices = arrays.devices.get(demand.device_type, arrays.no_devices)
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
    """Return which cards have, when nobody holds them, what the demand asks of one."""
    devices = arrays.devices.get(demand.device_type, arrays.no_devices)
    large: BoolArray = devices.present & (devices.core_cap >= demand.core_percent)
    if demand.memory_bytes:
        large &= devices.memory_cap >= demand.memory_bytes
    return large


def _most(values: IntArray, among: BoolArray) -> int:
    return int(values[among].max())
