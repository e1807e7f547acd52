"""The third listener of `tenure serve scheduler`: for the API server, about claims."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from certs.serving import Folder, Serving
from ledger.store.open import open_ledger
from ledger.store.reading.pod_queries import newest_attempts
from ledger.store.threaded import in_thread
from scheduler.gate.configuration import OPEN
from scheduler.service.http import calls_app, gate_calls
from tenure.serving.background import as_coroutine
from tenure.serving.connections import Connections
from tenure.serving.listening import announced
from tenure.serving.options import Address
from tenure.serving.scheduling.process import FATAL, Process
from tenure.sources.text import content_of

LOOK_SECONDS: Final = 2.0
TAINT_SECONDS: Final = 0.5
"""How long a device is tried in vain at most, where schedulers can be told to pass it over."""
SETTLE_SECONDS: Final = 0.05
"""How long changes of claims gather before they are recorded."""
TEMPLATES_SECONDS: Final = 0.1
CLEAN_SECONDS: Final = 3_600.0

_log: Final = logging.getLogger("tenure.scheduler.gate")

Attempts = Callable[[Sequence[str]], Awaitable[Mapping[str, int]]]


def attempts_in(url: str) -> Attempts:
    """Return what asks the ledger for the newest holdings of claims."""

    def read(uids: Sequence[str]) -> Mapping[str, int]:
        with open_ledger(url, mode="read") as ledger, ledger.connection.begin():
            return newest_attempts(ledger.connection, uids)

    async def attempts(uids: Sequence[str]) -> Mapping[str, int]:
        return await in_thread(read, uids) if uids else {}

    return attempts


def observe_claims(process: Process) -> None:
    """Record what the watch shows of claims, with a gate before them or without."""
    gate = process.live.guard.gate
    process.repeat(SETTLE_SECONDS, "claims", gate.settle, fatal=FATAL)
    process.repeat(LOOK_SECONDS, "claims again", as_coroutine(gate.look_again))


@asynccontextmanager
async def guarding(process: Process, where: Address) -> AsyncIterator[None]:
    """
    Answer the API server about claims until the block ends; who stands by says so.

    Raises:
        InputError: the authority of callers can't be read.
        CertificateError: the certificates can't be served.
    """
    options = process.options
    callers = None if options.gate_client_ca is None else content_of(options.gate_client_ca)
    serving = Serving(clients=callers)
    folder = Folder(
        options.certificates,
        serving,
        names=options.gate_names,
        clock=lambda: datetime.now(UTC),
    )
    folder.look()
    process.repeat(LOOK_SECONDS, "gate certificates", as_coroutine(folder.look))
    templates = process.live.guard.templates
    process.repeat(TEMPLATES_SECONDS, "claim templates", templates.make)
    process.repeat(TEMPLATES_SECONDS, "places of claims", process.live.guard.places.send)
    process.repeat(CLEAN_SECONDS, "unused claim templates", templates.clean)
    process.repeat(TAINT_SECONDS, "device taints", process.live.guard.tainting.settle)
    process.repeat(TAINT_SECONDS, "Pods to be tried again", process.live.guard.waking.settle)
    process.tasks.start()
    if options.gate_open:
        _log.warning(OPEN)
    connections = Connections(names=options.gate_client_names)
    gate = process.live.guard.gate
    gate.confirming.knows_callers = not options.gate_open
    calls = gate_calls(gate.answer, process.metrics)
    app = calls_app(calls, connections.answering, process.leading.is_silent)
    async with announced(app, where, "gate", connections, serving.context):
        yield
