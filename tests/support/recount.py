"""
An independent recount: what bound Pods say of themselves beside what the ledger's rows say.

Neither our readers of annotations nor the fold of the events is used: the Pods' JSON is counted as
it stands, and the ledger by SQL.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import text

from ledger.store.open import open_ledger

ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
STATUS: Final = "scheduling.koordinator.sh/resource-status"
CORE: Final = "koordinator.sh/gpu-core"
MEMORY: Final = "koordinator.sh/gpu-memory"
ENDED: Final = ("Succeeded", "Failed")
Held = Counter[tuple[str, ...]]
"""(Pod UID, node, what) -> how much."""


def held_by_pods(pods: Iterable[Mapping[str, Any]]) -> Held:
    """Count what bound Pods say that they hold of GPUs and CPUs."""
    held: Held = Counter()
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if not node or pod.get("status", {}).get("phase") in ENDED:
            continue
        uid = pod["metadata"]["uid"]
        words = pod["metadata"].get("annotations") or {}
        for share in json.loads(words.get(ALLOCATED, "{}")).get("gpu", ()):
            amounts = share["resources"]
            card = f"gpu {share['minor']}"
            held[uid, node, f"{card} memory"] += int(amounts.get(MEMORY, 0))
            held[uid, node, f"{card} core"] += int(amounts.get(CORE, 0))
        for cpu in _cpus(json.loads(words.get(STATUS, "{}")).get("cpuset", "")):
            held[uid, node, f"cpu {cpu}"] += 1
    return +held


def held_by_ledger(url: str) -> Held:
    """Count what the rows of a ledger say that is held of GPUs and CPUs."""
    held: Held = Counter()
    devices = (
        "SELECT pod_uid, node_name, minor, core_percent, memory_bytes FROM audit_holdings"
        " WHERE closed_position IS NULL AND device_type = 'gpu'"
    )
    cpus = "SELECT pod_uid, node_name, cpuset FROM audit_reservations WHERE closed_position IS NULL"
    with open_ledger(url, mode="read") as ledger, ledger.connection.begin():
        for uid, node, minor, core, memory in ledger.connection.execute(text(devices)):
            held[uid, node, f"gpu {minor} memory"] += memory
            held[uid, node, f"gpu {minor} core"] += core
        for uid, node, cpuset in ledger.connection.execute(text(cpus)):
            for cpu in _cpus(cpuset or ""):
                held[uid, node, f"cpu {cpu}"] += 1
    return +held


def by_device(held: Held) -> Counter[tuple[str, str]]:
    """Return how much is held of every card and CPU of a node, by all Pods together."""
    total: Counter[tuple[str, str]] = Counter()
    for (_, node, what), amount in held.items():
        total[node, what] += amount
    return total


def most(held: Held, what: str) -> int:
    """Return the most that is held of one card's `memory` or `core`, or of one `cpu`."""
    amounts = (amount for (_, name), amount in by_device(held).items() if what in name.split())
    return max(amounts, default=0)


def differences(pods: Iterable[Mapping[str, Any]], url: str) -> list[str]:
    """Return what bound Pods and a ledger count differently, in words."""
    said, recorded = held_by_pods(pods), held_by_ledger(url)
    return [
        f"{' '.join(what)}: said={said[what]}, recorded={recorded[what]}"
        for what in sorted(said.keys() | recorded.keys())
        if said[what] != recorded[what]
    ]


def _cpus(text: str) -> list[int]:
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
