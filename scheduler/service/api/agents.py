"""
The agents' part of the listener: what is held on my node, what changed, and what I confirm.

Rule: docs/contracts/agents.md. Whose node it is, the caller's token says and nothing else: a
ServiceAccount's token that is bound to a Pod on that node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from aiohttp import web

from ledger.domain.annotations.checkpoints import DeviceCheckpoint
from ledger.domain.annotations.proof import containers_of
from ledger.domain.annotations.tenure import cards_in
from ledger.domain.bounds import Count, Name
from ledger.domain.cpuset import CpuSet
from ledger.domain.errors import InputError
from ledger.domain.log.codec import decode_value, plain_value
from ledger.domain.log.state import Holding
from ledger.domain.resources import CALLER_NODE_NAME, CALLER_NODE_UID
from scheduler.service.agents import (
    CONFIRMED_MAX,
    LATER,
    Agents,
    Given,
    Role,
    SeenPod,
)
from scheduler.service.api.callers import Caller
from scheduler.service.api.http import RefusedError, Route, json_answer, read_object
from scheduler.service.claim_ends import ConfirmedClaim
from scheduler.service.http import read_aside
from scheduler.service.node_log import Change, TooOldError
from scheduler.service.ports import WhyNot
from scheduler.service.view import ClusterView

FORMAT: Final = 1
PATH: Final = "/agents/v1"
DEVICES_MAX: Final = 1024
"""That one Pod is seen to have: replicas and units of memory are ids of their own."""
WAIT_SECONDS_MAX: Final = 25.0
CHECKPOINTS_A_SECOND: Final = 100
"""Of all agents together, each of which is told when to ask again: 6,000 each minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDevices:
    """Devices of one resource that an agent sees a container have."""

    container: str
    resource: Name
    ids: tuple[Name, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod:
    """What an agent sees a Pod have that others gave it."""

    pod_uid: Name
    namespace: Name
    pod_name: Name
    devices: tuple[SeenDevices, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """
    What an agent confirms.

    Attributes:
        gone: UIDs of Pods of which no container and no process is left.
        here: UIDs of Pods that may start, though it was said that they are gone.
        runs: UIDs of all Pods of which a container or process is there; None = it can't tell.
        sequence: number of the message; None = of an agent that does not number them.
        claims: claims of which it was asked, and of which nothing is left.
        crossing: by UID, all Pods on CPUs that others have to themselves; None = it does not say.
    """

    assigned: tuple[Given, ...] = ()
    gone: tuple[str, ...] = ()
    observed: tuple[ObservedPod, ...] = ()
    here: tuple[str, ...] = ()
    runs: tuple[str, ...] | None = None
    sequence: Count | None = None
    claims: tuple[ConfirmedClaim, ...] = ()
    crossing: Mapping[Name, CpuSet] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The signed checkpoint that an agent saw last; empty = it has seen none."""

    kept: str = ""


class Proofs(Protocol):
    """Signs for nodes what they hold; see `scheduler.service.proofs`."""

    @property
    def cluster(self) -> str:
        """Return the origin of the ledger."""
        ...

    @property
    def incarnation(self) -> Callable[[], str]:
        """Return what tells the incarnation that is open."""
        ...

    def proof(self, holding: Holding, node_uid: str) -> str:
        """Return the text of the proof, empty where we gave nothing."""
        ...


class AgentRoutes:
    """
    Answers agents.

    Args:
        proofs: signs each holding, for a node believes no copy of it else.
        user: whose tokens are agents'.
        reader: whose tokens are of CPU processes: told what is held, and witnesses of CPUs alone.
        checkpoint: given what an agent has kept and whose it is, the ledger's signed checkpoint.

    Attributes:
        seconds_max: how long a caller may wait for changes.
    """

    def __init__(
        self,
        agents: Agents,
        view: ClusterView,
        *,
        proofs: Proofs,
        user: str,
        reader: str,
        why_not: WhyNot,
        checkpoint: Callable[[str, str], Awaitable[Mapping[str, Any]]],
    ) -> None:
        self._agents = agents
        self._proofs = proofs
        self._view = view
        self._user = user
        self._readers = (user, reader)
        self._why_not = why_not
        self._checkpoint = checkpoint
        self.seconds_max = WAIT_SECONDS_MAX

    def routes(self) -> list[Route]:
        """Return what is answered, at which paths."""
        return [
            Route(method=method, path=f"{PATH}/{name}", act=act, agents=users)
            for method, name, act, users in (
                ("GET", "holdings", self.holdings, self._readers),
                ("GET", "changes", self.changes, self._readers),
                ("POST", "confirmations", self.confirm, self._readers),
                ("POST", "checkpoint", self.checkpoint, (self._user,)),
            )
        ]

    async def holdings(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Say who holds what on the caller's node."""
        self._compare(request)
        name, uid = self._node(caller)
        position, held = self._agents.log.holdings(uid)
        listed = [self._holding(each, uid) for each in held]
        return self._answer(name, uid, self._role(caller), position, holdings=listed)

    async def changes(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Say what changed on the caller's node after a position; wait for it a while."""
        self._compare(request)
        name, uid = self._node(caller)
        after = _count(request, "after", None)
        seconds = min(float(_count(request, "seconds", 0)), self.seconds_max)
        known, cpus = request.query.get("claims"), request.query.get("cpu_claims")
        role = self._role(caller)
        if role is Role.DEVICES:
            self._agents.claims.heard(uid, reads=known is not None)
        position, found = self._changed(uid, after)
        claims = self._agents.log.cpu_claims(uid)
        newest = f"{len(claims)}/{claims[-1].opened_position if claims else 0}"
        is_same = cpus in {None, newest} and known in {None, self._agents.claims.told(uid)[0]}
        if not found and seconds and is_same:
            await self._agents.log.wait(uid, seconds, caller.user)
            if self._node(caller) != (name, uid):
                raise RefusedError(410, "Expired", "the Node is another one now: ask for holdings")
            position, found = self._changed(uid, after)
        changes = [self._change(each, uid) for each in found]
        return self._answer(name, uid, role, position, changes=changes, **self._ends(uid, known))

    async def confirm(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Take what the caller's node confirms."""
        name, uid = self._node(caller)
        role = self._role(caller)
        said = await read_aside(read_confirmation, await request.read())
        _expect_own(said, role)
        self._agents.heard(name, uid, role)
        number = self._agents.take(uid, said.sequence, role)
        if number is None:
            return self._answer(name, uid, role, self._view.position, taken=False)
        # What needs no ledger comes before the first wait: while this message waits, its agent may
        # give it up and say by the next one that a Pod is here again.
        here = self._agents.here(uid, said.here, role)
        gone = self._agents.gone(uid, said.gone, role)
        if said.crossing is not None:
            self._agents.crosses(uid, said.crossing)
        listed = {
            name: [{"pod_uid": pod, "result": result} for pod, result in answers.items()]
            for name, answers in (("gone", gone), ("here", here))
        }
        ended = self._agents.claims.said(uid, said.claims)
        claims = [
            {"claim_uid": one.claim_uid, "attempt": one.attempt, "result": result}
            for one, result in zip(said.claims, ended, strict=True)
        ]
        seen = []
        for pod in said.observed:
            result, why = self._agents.observed(uid, _seen(pod))
            seen.append({"pod_uid": pod.pod_uid, "result": result, "why": why})
        results = []
        for one in said.assigned:
            result, why = LATER, "a newer message of this node was taken meanwhile"
            if self._agents.taken(uid, role) == number:
                result, why = await self._agents.assigned(uid, one, role)
            words = {"pod_uid": one.pod_uid, "attempt": one.attempt}
            results.append({**words, "result": result, "why": why})
        cleared = []
        if said.runs is not None and self._agents.taken(uid, role) == number:
            cleared = await self._agents.runs(uid, set(said.runs))
        results_of = {"assigned": results, **listed, "observed": seen, "cleared": cleared}
        position = self._view.position
        return self._answer(name, uid, role, position, taken=True, claims=claims, **results_of)

    async def checkpoint(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """
        Say what the ledger is, with the proof that it grew out of what the caller has kept.

        In quarantine too: then above all a node has to see for itself.
        """
        name, _ = node_of(caller, (self._user,))
        said: Kept = decode_value(Kept, await read_aside(read_object, await request.read()), "body")
        answer = await self._checkpoint(said.kept, f"the agent of {name}")
        again = len(self._agents.ready.names) // CHECKPOINTS_A_SECOND
        return json_answer({"format": FORMAT, **answer, "again_seconds": again})

    def _compare(self, request: web.Request) -> None:
        ours, told = self._view.settings.vocabulary.slot_mode, request.query.get("mode", "")
        if told and told != ours:
            fact = f"slotMode of the service is {ours}, --mode of the agent {told}"
            raise RefusedError(412, "PreconditionFailed", f"{fact}: give both one value")

    def _node(self, caller: Caller) -> tuple[str, str]:
        """
        Return name and UID of the caller's node, and take note that its agent is there.

        Raises:
            RefusedError: no agent, an agent of no node, or of one that is not there; or not now.
        """
        name, node_uid = node_of(caller, self._readers)
        why = self._why_not()
        if why:
            raise RefusedError(503, "ServiceUnavailable", why, retry=True)
        uid, before = self._view.uid(name), self._view.recorded(node_uid)
        if uid is not None and node_uid not in {"", uid} and before is not None and before.lost:
            fact = f"the Node of your token is gone, its name is another's: name={name}"
            raise RefusedError(409, "Conflict", f"{fact}, yours={node_uid}, now={uid}")
        if uid is None or node_uid not in {"", uid}:
            fact = f"the node is not known yet: name={name}"
            raise RefusedError(404, "NotFound", f"{fact}, uid={node_uid}" if node_uid else fact)
        if caller.user == self._user:
            self._agents.heard(name, uid)
        return name, uid

    def _role(self, caller: Caller) -> Role:
        return Role.DEVICES if caller.user == self._user else Role.CPUS

    def _changed(self, uid: str, after: int) -> tuple[int, list[Change]]:
        try:
            return self._agents.log.changes(uid, after)
        except TooOldError as error:
            fact = f"what changed since is not known any more: ask for holdings: after={after}"
            raise RefusedError(410, "Expired", fact) from error

    def _answer(
        self, name: str, uid: str, role: Role, position: int, **parts: object
    ) -> web.Response:
        said = {
            "format": FORMAT,
            "node": {"name": name, "uid": uid},
            "ledger": {
                "cluster": self._proofs.cluster,
                "incarnation": self._proofs.incarnation(),
            },
            "position": position,
            "sequence": self._agents.taken(uid, role),
            "cpu_claims": list(map(_claim_body, self._agents.log.cpu_claims(uid))),
        }
        return json_answer({**said, **parts})

    def _ends(self, uid: str, known: str | None) -> dict[str, Any]:
        if known is None:
            return {}
        version, ends = self._agents.claims.told(uid)
        return {"claims": {"version": version, "ends": [plain_value(each) for each in ends]}}

    def _holding(self, holding: Holding, node_uid: str) -> dict[str, Any]:
        return {
            "pod_uid": holding.pod_uid,
            "attempt": holding.attempt,
            "namespace": holding.namespace,
            "pod_name": holding.pod_name,
            "kind": holding.kind,
            "phase": holding.phase,
            "position": holding.opened_position,
            "containers": [plain_value(each) for each in containers_of(holding)],
            **({"shown": shown} if (shown := cards_in(holding.shown)) else {}),
            "proof": self._proofs.proof(holding, node_uid),
        }

    def _change(self, change: Change, node_uid: str) -> dict[str, Any]:
        holding = change.holding
        return {
            "position": change.position,
            "what": change.what,
            "pod_uid": change.pod_uid,
            "attempt": change.attempt,
            "reason": change.reason,
            "holding": None if holding is None else self._holding(holding, node_uid),
        }


def node_of(caller: Caller, users: tuple[str, ...]) -> tuple[str, str]:
    """
    Return name and UID of the node whose agent calls; the UID is empty where a token has none.

    Raises:
        RefusedError: whoever calls is no agent of a node.
    """
    if caller.user not in users or caller.how != "token":
        raise RefusedError(403, "Forbidden", f"agents alone are answered here: user={caller.user}")
    extra = dict(caller.extra)
    names, uids = extra.get(CALLER_NODE_NAME, ()), extra.get(CALLER_NODE_UID, ())
    if len(names) != 1 or not names[0] or len(uids) > 1:
        fact = "the token is bound to no Pod on one node: give the one that kubelet mounts"
        raise RefusedError(403, "Forbidden", fact)
    return names[0], "".join(uids)


def read_confirmation(body: bytes) -> Confirmation:
    """Read what an agent confirms. Raises InputError: another shape, or too much at once."""
    said: Confirmation = decode_value(Confirmation, read_object(body), "body")
    lists = (said.assigned, said.gone, said.observed, said.here, said.runs or (), said.claims)
    if sum(map(len, (*lists, said.crossing or ()))) > CONFIRMED_MAX:
        raise InputError(f"too many Pods at once: most={CONFIRMED_MAX}", field="body")
    for number, pod in enumerate(said.observed):
        count = sum(len(each.ids) for each in pod.devices)
        if not 1 <= count <= DEVICES_MAX:
            fact = f"expected 1 to {DEVICES_MAX} devices: count={count}"
            raise InputError(fact, field=f"body.observed[{number}].devices")
    return said


def _expect_own(said: Confirmation, role: Role) -> None:
    """Let neither of a node's two processes speak of the other's part. Raises InputError."""
    is_said = {"crossing": said.crossing is not None}
    if role is Role.CPUS:
        given = (each.devices for one in said.assigned for each in one.containers)
        is_said = {
            "observed": bool(said.observed),
            "runs": said.runs is not None,
            "claims": bool(said.claims),
            "assigned": any(given),
        }
    for name, is_there in is_said.items():
        if is_there:
            raise InputError(f"not said by who speaks of {role}", field=f"body.{name}")


def _seen(pod: ObservedPod) -> SeenPod:
    return SeenPod(
        pod_uid=pod.pod_uid,
        namespace=pod.namespace,
        pod_name=pod.pod_name,
        entries=tuple(
            DeviceCheckpoint(
                pod_uid=pod.pod_uid,
                container_name=each.container,
                resource_name=each.resource,
                device_ids=each.ids,
            )
            for each in pod.devices
        ),
    )


def _claim_body(one: Holding) -> dict[str, Any]:
    named = {"claim_uid": one.pod_uid, "namespace": one.namespace, "name": one.pod_name}
    return {**named, "position": one.opened_position, "cpus": str(one.cpuset)}


def _count(request: web.Request, key: str, otherwise: int | None) -> int:
    """Return a number of the query. Raises InputError: it is none, or missing."""
    text = request.query.get(key)
    if text is None:
        if otherwise is None:
            raise InputError("missing", field=key)
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InputError(f"expected a number from 0: {text[:20]!r}", field=key)
    return int(text)
