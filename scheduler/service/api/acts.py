"""
What somebody orders though a node is silent or lost. The one writer does it, in their name.

Rule: design section 8, "When parts are down": `tenure release --force` has its own RBAC verb and
records its actor. Who asks is known by the listener; what they may do, the API server says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from certs.ports import Objects
from ledger.domain.errors import InputError
from scheduler.service.agents import Agents
from scheduler.service.api.callers import Caller
from scheduler.service.api.http import RefusedError, Route, json_answer, read_object
from scheduler.service.api.rights import may
from scheduler.service.api.words import FORCE, GROUP, HOLDINGS, ROOT, VERSION
from scheduler.service.gate import Gate
from scheduler.service.http import read_aside
from scheduler.service.ports import WhyNot
from scheduler.service.releasing import Releasing

REASON_MAX: Final = 256


class ActRoutes:
    """Does what is ordered."""

    def __init__(
        self, releasing: Releasing, gate: Gate, agents: Agents, api: Objects, *, why_not: WhyNot
    ) -> None:
        self._releasing = releasing
        self._gate = gate
        self._agents = agents
        self._api = api
        self._why_not = why_not

    def routes(self) -> list[Route]:
        """Return what is done, at which path."""
        path = f"{ROOT}/namespaces/{{namespace}}/{HOLDINGS}/{{holder}}/release"
        lost = f"{ROOT}/{HOLDINGS}/{{holder}}/clear"
        return [
            Route(method="POST", path=path, act=self.release),
            Route(method="POST", path=lost, act=self.clear),
        ]

    async def release(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Release what an ended Pod, or a claim, holds on a node that does not confirm it."""
        namespace, name = request.match_info["namespace"], request.match_info["holder"]
        order = await self._order(request, caller, namespace, name)
        actor, dry_run = f"user/{caller.user}", order.dry_run
        released = await self._releasing.force(
            namespace, name, order.uid, reason=order.reason, actor=actor, dry_run=dry_run
        )
        claims = await self._gate.force(
            namespace, name, order.uid, reason=order.reason, actor=actor, dry_run=dry_run
        )
        if not (released or claims):
            fact = "nothing of it waits for its node: what runs is ended by deleting its Pod"
            raise RefusedError(409, "Conflict", f"{fact}: holder={namespace}/{name}")
        released += [each for each, is_released in claims.items() if is_released]
        return json_answer(
            {"released": released, "let_go": [each for each in claims if not claims[each]]}
        )

    async def clear(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """End what lost Pods and claims hold of a node; takes the right in all namespaces."""
        node = request.match_info["holder"]
        order = await self._order(request, caller, "", node)
        if order.uid:
            raise InputError("expected none: the path names the node", field="body.uid")
        found = await self._agents.clear(
            node, reason=order.reason, actor=f"user/{caller.user}", dry_run=order.dry_run
        )
        if not found:
            fact = f"nothing is held by a lost Pod of this node: node={node}"
            raise RefusedError(409, "Conflict", fact)
        ended = [
            {
                "node": state.name,
                "node_uid": state.uid,
                "pod": f"{held.namespace}/{held.pod_name}",
                "pod_uid": held.pod_uid,
            }
            for state in found
            for held in state.lost_holdings()
        ]
        return json_answer({"ended": ended})

    async def _order(
        self, request: web.Request, caller: Caller, namespace: str, name: str
    ) -> Order:
        """Return what is ordered by who may, where it can be done now. Raises RefusedError."""
        await self._check(caller, namespace, name)
        order = await read_aside(read_order, await request.read())
        why = self._why_not()
        if why:
            raise RefusedError(503, "ServiceUnavailable", why, retry=True)
        return order

    async def _check(self, caller: Caller, namespace: str, name: str) -> None:
        """Raise RefusedError unless the caller may force a release there."""
        attributes = {
            "verb": FORCE,
            "group": GROUP,
            "version": VERSION,
            "resource": HOLDINGS,
            "namespace": namespace,
            "name": name,
        }
        if not await may(self._api, caller, attributes):
            fact = f"{caller.user!r} may not {FORCE} {HOLDINGS}.{GROUP}"
            about = f"holder={namespace}/{name}" if namespace else f"node={name}"
            raise RefusedError(403, "Forbidden", f"{fact}: {about}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An act that is ordered; `uid` is a holder's, empty = whichever had the name."""

    uid: str
    reason: str
    dry_run: bool


def read_order(body: bytes) -> Order:
    """Return what is ordered. Raises InputError: another shape, or no reason."""
    words = "expected an object with `reason`, and `uid` and `dryRun` if need be"
    value = read_object(body, words)
    if not value.keys() <= {"uid", "reason", "dryRun"}:
        raise InputError(words, field="body")
    uid, reason, dry_run = value.get("uid", ""), value.get("reason", ""), value.get("dryRun", False)
    if not isinstance(uid, str):
        raise InputError("expected a text", field="body.uid")
    if not isinstance(reason, str) or not reason.strip() or len(reason) > REASON_MAX:
        raise InputError(f"say why, in at most {REASON_MAX} characters", field="body.reason")
    if not isinstance(dry_run, bool):
        raise InputError("expected true or false", field="body.dryRun")
    return Order(uid=uid, reason=reason.strip(), dry_run=dry_run)
