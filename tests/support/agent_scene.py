"""The service's part for nodes' agents, over a ledger in memory, with any caller."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from msgspec import structs

from ledger.domain.cpuset import EMPTY, CpuSet, parse_cpuset
from ledger.domain.log.events import (
    ClaimReleased,
    ClaimReserved,
    PodAssigned,
    PodBound,
    PodReserved,
)
from ledger.domain.resources import CALLER_NODE_NAME, CALLER_NODE_UID
from ledger.signing import PrivateKey
from scheduler.service.agents import Agents
from scheduler.service.api.agents import AgentRoutes
from scheduler.service.api.callers import Caller
from scheduler.service.api.http import api_app
from scheduler.service.api.words import AGENT_ACCOUNT, CPUS_ACCOUNT, user_of
from scheduler.service.ending import NodeWord
from scheduler.service.proofs import Signing
from scheduler.service.releasing import SWEEP_SECONDS
from tests.support.live import Live
from tests.support.objects import container, pod

Json = dict[str, Any]
PROOF_KEY = PrivateKey.new("proofs.test")


@dataclass(slots=True)
class Known:
    """Says who calls."""

    caller: Caller

    async def who(self, *_: object) -> Caller:
        """Return who calls."""
        return self.caller


class Believing:
    """Nobody shows a certificate here."""

    def believes(self, _: object) -> bool:
        """Believe it."""
        return True


AGENT: Final = user_of(AGENT_ACCOUNT)
CPUS: Final = user_of(CPUS_ACCOUNT)


def agent_of(name: str, uid: str = "", *, user: str = AGENT, how: Any = "token") -> Caller:  # noqa: ANN401
    """Return the agent of a node as the API server names it."""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ((CALLER_NODE_NAME, (name,)),) if name else ()
    if uid:
        extra = (*extra, (CALLER_NODE_UID, (uid,)))
    return Caller(user=user, extra=extra, how=how)


class Scene:
    """Nodes `a` and `b` with two cards each, and the routes of agents over them."""

    def __init__(self) -> None:
        self.live = Live()
        for name in ("a", "b"):
            self.live.add_node(name, 2)
        self.live.settle()
        begun = self.live.ledger.beginning()
        books = self.live.books(begun)
        self.why = ""
        self.agents = Agents(
            self.live.view,
            books,
            self.live.ledger,
            self.live.clock,
            actor="scheduler/test",
            why_not=lambda: self.why,
        )
        self.told: list[str] = []
        wakeups = self.live.wakeups
        wakeups.agent_appeared.subscribe(lambda name: self.told.append(f"first {name}"))
        wakeups.agent_reported.subscribe(lambda name: self.told.append(f"gone {name}"))
        self.known = Known(agent_of("a"))
        self.signing = Signing(
            cluster="ledger/test",
            incarnation=lambda: "first",
            proof_key=PROOF_KEY,
            ledger_key=PROOF_KEY,
            machine_of=lambda uid: (f"system-{uid}", ""),
        )
        self.routes = AgentRoutes(
            self.agents,
            self.live.view,
            proofs=self.signing,
            user=AGENT,
            reader=CPUS,
            why_not=lambda: self.why,
            checkpoint=self._checkpoint,
        )

    async def _checkpoint(self, kept: str, by: str) -> Json:
        return {"checkpoint": f"after {kept} of {by}", "consistency": []}

    def hold(
        self,
        name: str,
        on: str = "a",
        percent: int = 50,
        *,
        is_bound: bool = True,
        cpus: CpuSet = EMPTY,
        shown: tuple[str, ...] = (),
    ) -> PodReserved:
        """Let a Pod be reserved for, and bound."""
        asked = pod(container(limits={"koordinator.sh/gpu": percent}), name=name, uid=f"pod-{name}")
        placement = structs.replace(self.live.placement(asked, on), cpuset=cpus)
        event = self.live.reserve(placement, shown=shown)
        if is_bound:
            self.live.record(PodBound(pod_uid=event.pod_uid, attempt=1, node_uid=f"uid-{on}"))
        return event

    def claim(self, name: str, cpus: str, on: str = "a") -> None:
        """Let a claim have CPUs."""
        self.live.record(
            ClaimReserved(
                claim_uid=f"claim-{name}",
                attempt=1,
                node_uid=f"uid-{on}",
                namespace="ml",
                claim_name=name,
                node_name=on,
                cpuset=parse_cpuset(cpus),
            )
        )

    def claim_ends(self, name: str, on: str = "a") -> None:
        """Let it be released."""
        ended = ClaimReleased(
            claim_uid=f"claim-{name}", attempt=1, node_uid=f"uid-{on}", reason="deleted"
        )
        self.live.record(ended)

    def app(self) -> web.Application:
        """Return what listens."""
        return api_app(self.routes.routes(), self.known, Believing(), lambda _: nullcontext())

    def ask(self, *calls: tuple[str, str, Json | None]) -> list[tuple[int, Json]]:
        """Call one after the other, and return every status and answer."""

        async def asking() -> list[tuple[int, Json]]:
            answers = []
            async with TestClient(TestServer(self.app())) as client:
                for method, path, body in calls:
                    async with client.request(method, path, json=body) as answer:
                        answers.append((answer.status, json.loads(await answer.read())))
            return answers

        return asyncio.run(asking())

    def get(self, path: str) -> tuple[int, Json]:
        """Ask one thing."""
        [answer] = self.ask(("GET", f"/agents/v1/{path}", None))
        return answer

    def confirm(self, **body: Any) -> tuple[int, Json]:  # noqa: ANN401
        """Confirm."""
        [answer] = self.ask(("POST", "/agents/v1/confirmations", body))
        return answer

    def word(self, name: str = "a") -> NodeWord:
        """Return what a node says by now."""
        state = self.live.view.recorded(f"uid-{name}")
        assert state is not None
        return self.agents.word(state)

    def pass_by(self, seconds: float) -> None:
        """Let time pass in which nodes are looked at once in a while, as they are."""
        ends = self.live.clock.now + seconds
        while self.live.clock.now < ends:
            self.word()
            self.live.clock.now = min(ends, self.live.clock.now + SWEEP_SECONDS)

    @property
    def assigned(self) -> list[str]:
        """Whose devices the ledger knows to be given."""
        return [one.pod_uid for one in self.live.ledger.log if isinstance(one, PodAssigned)]
