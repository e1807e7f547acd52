"""What agents and webhooks are answered on the listener, and what is ordered there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledger.domain.errors import LedgerError
from scheduler.service.api.acts import ActRoutes
from scheduler.service.api.agents import AgentRoutes
from scheduler.service.api.http import Route
from scheduler.service.api.refusals import RefusalRoutes
from scheduler.service.api.words import AGENT_ACCOUNT, WEBHOOK_ACCOUNT, user_of
from tenure.keys import private_key
from tenure.serving.scheduling.checkpoints import Checkpoints
from tenure.serving.scheduling.process import Process
from tenure.serving.scheduling.standing import Standing


def agent_routes(process: Process, standing: Standing) -> list[Route]:
    """
    Return the routes of agents, of acts and of webhooks.

    Whoever records what ends answers them, with the Lease or without: an agent that is not heard
    there counts as silent.
    """
    live, why_not = process.live, process.leading.why_unrecorded
    if process.options.api is None:
        return []
    namespace = process.options.namespace

    def disproved(why: str) -> None:
        if (
            process.leading.epoch
        ):  # else nothing is granted, and who takes it over looks for himself
            standing.disprove(process, why)

    checkpoints = Checkpoints(
        process.options.ledger,
        private_key(process.options.ledger_key),
        now=process.clock.monotonic,
        disproved=disproved,
    )

    async def checkpoint(kept: str, by: str) -> Mapping[str, Any]:
        if why := process.leading.why_unshown():
            raise LedgerError(why)
        return await checkpoints.answer(kept, by)

    agents = AgentRoutes(
        live.agents,
        live.view,
        proofs=process.signing(live.view),
        user=user_of(AGENT_ACCOUNT, namespace),
        why_not=why_not,
        checkpoint=checkpoint,
    )
    acts = ActRoutes(live.releasing, live.guard.gate, live.agents, process.objects, why_not=why_not)
    webhook = user_of(WEBHOOK_ACCOUNT, namespace)
    refusals = RefusalRoutes(
        process.recorder, live.books.recorded, process.clock, user=webhook, why_not=why_not
    )
    words = "Refusals that webhooks told of, by what became of them."
    process.metrics.count("tenure_admission_refusals", words, "what", refusals.counts.copy)
    return [*agents.routes(), *acts.routes(), *refusals.routes()]
