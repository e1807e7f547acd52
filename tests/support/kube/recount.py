"""What is held, counted from the Pods alone and from the ledger alone."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from ledger.store.open import open_ledger
from ledger.store.reading.timetravel import load_state

ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"


def shares_on_pods(pods: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """Recount from annotations alone what is held of every card, in bytes of memory."""
    held: Counter[tuple[str, int]] = Counter()
    for one in pods:
        text = one["metadata"].get("annotations", {}).get(ALLOCATED)
        for share in json.loads(text)["gpu"] if text else ():
            bytes_held = int(share["resources"]["koordinator.sh/gpu-memory"])
            held[one["spec"]["nodeName"], share["minor"]] += bytes_held
    return held


def shares_in_ledger(url: str) -> Counter[tuple[str, int]]:
    """Recount from the ledger's fold what is held of every card, in bytes of memory."""
    held: Counter[tuple[str, int]] = Counter()
    with open_ledger(url, mode="read") as ledger:
        for node in load_state(ledger).state.nodes.values():
            for holding in node.holdings.values():
                for share in holding.shares:
                    held[node.name, share.minor] += share.memory_bytes
    return held
