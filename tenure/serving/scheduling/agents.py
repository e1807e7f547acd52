"""What agents and webhooks are answered on the listener, and what is ordered there."""

from __future__ import annotations

from scheduler.service.api.acts import ActRoutes
from scheduler.service.api.agents import AgentRoutes
from scheduler.service.api.http import Route
from scheduler.service.api.refusals import RefusalRoutes
from tenure.serving.scheduling.process import Process


def agent_routes(process: Process) -> list[Route]:
    """
    Return the routes of agents, of acts and of webhooks.

    Whoever records what ends answers them, with the Lease or without: an agent that is not heard
    there counts as silent.
    """
    live, why_not = process.live, process.leading.why_unrecorded
    options = process.options.api
    if options is None:
        return []
    agents = AgentRoutes(live.agents, live.view, user=options.agent, why_not=why_not)
    acts = ActRoutes(live.releasing, process.objects, why_not=why_not)
    refusals = RefusalRoutes(process.recorder, process.clock, user=options.webhook, why_not=why_not)
    words = "Refusals that webhooks told of, by what became of them."
    process.metrics.count("tenure_admission_refusals", words, "what", refusals.counts.copy)
    return [*agents.routes(), *acts.routes(), *refusals.routes()]
