"""
What somebody orders: a release though the node is silent. The one writer does it, in their name.

Rule: design section 8, "When parts are down": `tenure release --force` has its own RBAC verb and
records its actor. Who asks is known by the listener; what they may do, the API server says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from aiohttp import web

from ledger.domain.errors import InputError
from scheduler.service.api.callers import Caller
from scheduler.service.api.http import RefusedError, Route, json_answer
from scheduler.service.api.rights import may
from scheduler.service.api.words import FORCE, GROUP, HOLDINGS, ROOT, VERSION
from scheduler.service.ports import Api
from scheduler.service.releasing import Releasing

REASON_MAX: Final = 256


class ActRoutes:
    """
    Does what is ordered.

    Args:
        why_not: why nothing may be decided now, empty when it may.
    """

    def __init__(self, releasing: Releasing, api: Api, *, why_not: Callable[[], str]) -> None:
        self._releasing = releasing
        self._api = api
        self._why_not = why_not

    def routes(self) -> list[Route]:
        """Return what is done, at which path."""
        path = f"{ROOT}/namespaces/{{namespace}}/{HOLDINGS}/{{pod}}/release"
        return [Route(method="POST", path=path, act=self.release)]

    async def release(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Release what a Pod that has ended holds on a node that does not confirm it."""
        namespace, pod = request.match_info["namespace"], request.match_info["pod"]
        await self._check(caller, namespace, pod)
        uid, reason = read_order(await request.read())
        why = self._why_not()
        if why:
            raise RefusedError(503, "ServiceUnavailable", why, retry=True)
        released = await self._releasing.force(
            namespace, pod, uid, reason=reason, actor=f"user/{caller.user}"
        )
        if not released:
            fact = "nothing of it waits for its node: what runs is ended by deleting its Pod"
            raise RefusedError(409, "Conflict", f"{fact}: pod={namespace}/{pod}")
        return json_answer({"released": released})

    async def _check(self, caller: Caller, namespace: str, pod: str) -> None:
        """Raise RefusedError unless the caller may force a release there."""
        attributes = {
            "verb": FORCE,
            "group": GROUP,
            "version": VERSION,
            "resource": HOLDINGS,
            "namespace": namespace,
            "name": pod,
        }
        if not await may(self._api, caller, attributes):
            fact = f"{caller.user!r} may not {FORCE} {HOLDINGS}.{GROUP}"
            raise RefusedError(403, "Forbidden", f"{fact}: pod={namespace}/{pod}")


def read_order(body: bytes) -> tuple[str, str]:
    """
    Return the UID of the Pod that is meant, empty for whichever had the name, and why.

    Raises:
        InputError: another shape, or no reason.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", field="body") from error
    if not isinstance(value, dict) or not value.keys() <= {"uid", "reason"}:
        raise InputError("expected an object with `reason`, and `uid` if need be", field="body")
    uid, reason = value.get("uid", ""), value.get("reason", "")
    if not isinstance(uid, str):
        raise InputError("expected a text", field="body.uid")
    if not isinstance(reason, str) or not reason.strip() or len(reason) > REASON_MAX:
        raise InputError(f"say why, in at most {REASON_MAX} characters", field="body.reason")
    return uid, reason.strip()
