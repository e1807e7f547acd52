"""The work of the ledger's one writer: nodes, releases, and what the cluster is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tenure.serving.scheduling.ledger import PROBE_SECONDS
from tenure.serving.scheduling.process import FATAL, Process

SETTLE_SECONDS: Final = 0.05
"""How long changes of nodes gather before they are recorded."""
EXPLAIN_SECONDS: Final = 0.25
"""Between looks at the Pods that were refused: a few at a time, beside the calls."""
DRIFT_SECONDS: Final = 0.1
"""Between two slices of the comparison with the API."""
_LOOK_SECONDS: Final = 2.0


def record_what_changes(process: Process) -> None:
    """Record nodes, ends and drift, and tell the cluster of room."""
    releasing = process.live.releasing
    process.repeat(SETTLE_SECONDS, "inventory", _settling(process), fatal=FATAL)
    process.repeat(SETTLE_SECONDS, "templates", process.live.templates.settle, fatal=FATAL)
    process.repeat(SETTLE_SECONDS, "releases", releasing.settle, fatal=FATAL)
    process.repeat(SETTLE_SECONDS, "groups", process.live.gangs.settle, fatal=FATAL)
    process.repeat(SETTLE_SECONDS, "wakes", releasing.tell)
    process.repeat(EXPLAIN_SECONDS, "refusals", process.live.refusing.settle, fatal=FATAL)
    process.repeat(PROBE_SECONDS, "events", process.live.telling.send)
    process.repeat(DRIFT_SECONDS, "drift", process.live.reconciling.settle, fatal=FATAL)


def _settling(process: Process) -> Callable[[], Awaitable[None]]:
    inventory, freshness, woken = process.live.inventory, process.freshness, process.woken

    async def settle() -> None:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await woken.wait()
        except TimeoutError:
            pass
        woken.clear()
        await inventory.settle()
        freshness.settled = inventory.settled

    return settle
