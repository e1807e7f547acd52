"""What `tenure serve agent` does in the mode `env`: prove it, before a card is granted here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge

from agent.decide.env_proof import ProbePod, Proof, Reason, judged, why_not_run
from agent.discover.faults import ENVIRONMENT_UNPROVED
from agent.discover.machine import Card, Discovery, Fault
from agent.durable import write_durably
from agent.https import NoAnswerError
from agent.kubelet.watch import PodSource
from agent.plugin.files import read_file
from agent.report.condition import Condition, NodeCondition
from agent.report.reporter import Applier
from certs.ports import ApiError, ConflictError, api_path
from ledger.domain.errors import InputError
from tenure.serving.agent_reporting import now_text
from tenure.serving.background import every

CONDITION: Final = "TenureEnvironment"
MANAGER: Final = "tenure-agent-environment"
FILE_NAME: Final = "environment.json"
ROUND_SECONDS: Final = 2.0
PROBE_SECONDS: Final = 60.0
"""How long its containers are waited for: the image is the agent's own, and so is here."""
SOON_SECONDS: Final = 0.5
AGAIN_SECONDS: Final = 5.0
AGAIN_SECONDS_MAX: Final = 600.0
"""What fails is tried again, after twice as long each time."""

_log: Final = logging.getLogger("tenure.agent.environment")


class Objects(Applier, Protocol):
    """The API as far as this needs it. Both raise ApiError, `create` also ConflictError."""

    async def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create an object in a collection, or below another one."""
        ...

    async def remove(self, path: str) -> None:
        """Delete an object; one that is gone is no error."""
        ...


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    proved: str


def stamp_of(boot_id: str, runtime: Path | None) -> str:
    """
    Return of which start of the machine and its runtime a proof is; empty = the runtime is away.

    A runtime's settings change when it starts, and with each start its socket is another one.
    """
    if runtime is None:
        return boot_id
    try:
        there = runtime.lstat()
    except OSError:
        return ""
    return f"{boot_id} {there.st_ino}:{there.st_ctime_ns}"


@dataclass(slots=True, kw_only=True)
class Prover:
    """
    Proves for each start of the runtime that containers see the cards of their annotations.

    Rule: ADR 0028.

    Attributes:
        stamp: `stamp_of` this moment.
        file: remembers what was proved, so that an upgrade closes no card.
        clock: seconds that only grow.
    """

    objects: Objects
    pods: PodSource
    pod: ProbePod
    stamp: Callable[[], str]
    file: Path
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep
    proof: Proof = field(default_factory=lambda: Proof(reason=Reason.NOT_YET))
    _of: str = ""
    _card: Card | None = None
    _failed: int = 0
    _again: float = float("-inf")
    _condition: NodeCondition = field(init=False)

    def __post_init__(self) -> None:
        """Begin with what was proved before; what can't be read is proved again."""
        self._condition = NodeCondition(
            objects=self.objects,
            node=self.pod.node,
            kind=CONDITION,
            manager=MANAGER,
            clock=self.clock,
            now=now_text,
        )
        try:
            kept = msgspec.json.decode(read_file(self.file), type=_Kept)
        except (OSError, msgspec.DecodeError, RecursionError):
            return
        if kept.format == 1 and kept.proved and kept.proved == self.stamp():
            self._become(Proof(reason=Reason.PROVED, message="proved before"), kept.proved)

    def saw(self, found: Discovery) -> None:
        """Take note of the machine's cards: one without a fault is shown to the probe."""
        self._card = next((card for card in found.cards if not card.faults), None)

    def now(self) -> Proof:
        """Return what counts at this moment: a proof is of one start of the runtime."""
        if self.proof.holds and self.stamp() != self._of:
            return Proof(reason=Reason.NOT_YET, message="the runtime is away, or has started")
        return self.proof

    def closes(self) -> tuple[Fault, ...]:
        """Return what closes the node's cards at this moment: no proof that holds."""
        proof = self.now()
        if proof.holds:
            return ()
        words = ": ".join(word for word in (proof.reason, proof.message) if word)
        return (Fault(reason=ENVIRONMENT_UNPROVED, message=words),)

    def is_so(self, reason: Reason) -> bool:
        """Tell whether this is what is known."""
        return self.now().reason is reason

    async def round(self) -> None:
        """Prove it if due, tell the Node of a change, then wait. Raises ApiError, ConflictError."""
        try:
            await self._prove()
            proof = self.now()
            said, reason = "True" if proof.holds else "False", str(proof.reason)
            await self._condition.tell(Condition(status=said, reason=reason, message=proof.message))
        finally:
            await self.wait(ROUND_SECONDS)

    async def _prove(self) -> None:
        now = self.stamp()
        if not now or (self.proof.holds and now == self._of):
            return  # a runtime that is away starts nothing, and can't be asked
        if now != self._of:
            self._become(Proof(reason=Reason.NOT_YET, message="the runtime has started"), now)
            self._failed, self._again = 0, self.clock()
        if self._card is None or self.clock() < self._again:
            return
        found = await self._asked(self._card)
        if self.stamp() != now:
            return  # of which start that was nobody knows
        self._become(found, now)
        if found.holds:
            kept = msgspec.json.encode(_Kept(format=1, proved=now))
            try:
                await asyncio.to_thread(write_durably, self.file, kept)
            except OSError as error:
                _log.warning("not kept: proved again at a start", extra={"reason": str(error)})
            return
        seconds = min(AGAIN_SECONDS * 2**self._failed, AGAIN_SECONDS_MAX)
        self._failed, self._again = min(self._failed + 1, 16), self.clock() + seconds

    def _become(self, proof: Proof, of: str) -> None:
        self._of = of
        if proof != self.proof:
            self.proof = proof
            extra = {"reason": str(proof.reason), "fact": proof.message}
            (_log.info if proof.holds else _log.warning)("environment", extra=extra)

    async def _asked(self, card: Card) -> Proof:
        """Make the Pod, bind it, and wait for what it says; whatever happens, it goes."""
        pods = "v1", "namespaces", self.pod.namespace, "pods"
        own = *pods, self.pod.name
        try:
            try:
                made = await self.objects.create(api_path(*pods), self.pod.made())
                uid = str(made["metadata"]["uid"])
                binding = api_path(*own, "binding")
                await self.objects.create(binding, self.pod.bound(uid, card.uuid))
                return await self._said(uid, card)
            finally:
                await self.objects.remove(api_path(*own))
        except (ApiError, ConflictError) as error:  # a conflict: with one that we left before
            return Proof(reason=Reason.NOT_MADE, message=str(error)[:300])

    async def _said(self, uid: str, card: Card) -> Proof:
        end = self.clock() + PROBE_SECONDS
        why = ""
        while self.clock() < end:
            await self.wait(SOON_SECONDS)
            try:
                pods = await self.pods.pods()
            except (NoAnswerError, InputError) as error:
                why = str(error)
                continue
            pod = next((each for each in pods if each["metadata"]["uid"] == uid), None)
            found = None if pod is None else judged(pod, card=card.uuid, minor=card.minor)
            if found is not None:
                return found
            why = why_not_run(pod)
        return Proof(reason=Reason.NOT_RUN, message=why[:300])


def proving(prover: Prover, registry: CollectorRegistry) -> Coroutine[Any, Any, None]:
    """Return the task that proves it, with what it shows by a metric."""
    shown = Gauge(
        "tenure_agent_environment",
        "1 for what is known of whether containers see the cards of their annotations",
        ["reason"],
        registry=registry,
    )
    for reason in Reason:
        shown.labels(reason).set_function(partial(prover.is_so, reason))
    failures = Counter(
        "tenure_agent_environment_failures",
        "Rounds in which the Node could not be told of it",
        ["what"],
        registry=registry,
    )
    return every(0, "environment", prover.round, failures)
