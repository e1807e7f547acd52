"""What `tenure serve agent` sees of who is on its cards, confirms, and keeps of the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from agent.checkpoint import FILE_NAME
from agent.claim_checkpoint import FILE_NAME as CLAIMS_FILE_NAME
from agent.decide.believing import Source
from agent.discover.host_files import HostFiles
from agent.discover.machine import Card, Kind
from agent.plugin.files import CheckpointFile, SpecFolder, claims_in
from agent.report.condition import Condition, NodeCondition
from agent.report.reporter import Applier, path_of_device
from agent.service.keeping import Words
from agent.service.link import ServiceLink
from agent.witness import confirmer as confirming
from agent.witness.asking import PodResources, Runtime
from agent.witness.history import BAD, Verdict
from ledger.domain.annotations.checkpoints import DeviceCheckpoint as GivenDevices
from ledger.domain.annotations.checkpoints import encode_devices_checkpoints
from ledger.domain.resources import ANNOTATION_DEVICES_CHECKPOINTS
from tenure.keys import public_key
from tenure.serving.agent_options import AgentOptions
from tenure.serving.agent_reporting import Looks, cards_probe, now_text
from tenure.serving.agent_words import Told
from tenure.serving.background import Tasks, every

HISTORY_SECONDS: Final = 4.0
"""A ledger that is another one is noticed within 10 s, where the service has few nodes."""
CONDITION: Final = "TenureLedger"
MANAGER: Final = "tenure-agent-witness"
AWAY_CONDITION: Final = "TenureServiceAway"
AWAY_MANAGER: Final = "tenure-agent-words"
AWAY_SECONDS: Final = 10.0
"""A service that another replica takes over is away for less."""
AWAY_LOOK_SECONDS: Final = 5.0
ASIDE: Final = "aside"
GIVEN_SECONDS: Final = 600.0
GIVEN_BYTES_MAX: Final = 100_000
"""All annotations of an object may have 256 KiB."""


@dataclass(slots=True, kw_only=True)
class ProbedCards:
    """The cards as a probe of our own sees them."""

    looks: Looks

    async def cards(self) -> tuple[Sequence[Card], bool]:
        """Return those that the driver tells of, and whether these are all."""
        found = await self.looks.look()
        return found.cards, Kind.GPU not in found.unknown


def witness(
    options: AgentOptions,
    known: Told,
    objects: Applier,
    gate: confirming.Gate,
    *,
    gated: bool,
    registry: CollectorRegistry,
    tasks: Tasks,
) -> None:
    """
    Add the tasks that look, confirm, and watch the ledger.

    Args:
        gated: no container with devices starts without us.
    """
    root = options.kubelet_root
    claims = Path("/nowhere") if root is None else root / CLAIMS_FILE_NAME
    sources = confirming.Sources(
        cards=ProbedCards(looks=Looks(probe=cards_probe(options))),
        checkpoint=CheckpointFile(options.plugins / FILE_NAME).read,
        checkpoint_path=options.plugins / FILE_NAME,
        kubelet=PodResources(options.pod_resources),
        runtime=None if options.runtime is None else Runtime(options.runtime),
        pods=known.pods,
        host=HostFiles(root=options.host),
        specifications=SpecFolder(options.cdi),
        aside=confirming.Quarantine(options.state / ASIDE),
        claims=None if root is None else partial(claims_in, claims),
        claims_path=claims,
    )
    link = known.link
    link.reads_claims = root is not None
    confirmer = confirming.Confirmer(
        link,
        sources,
        gate,
        time.monotonic,
        gated=gated,
        own_pod=known.own_pod[1],
    )
    failures = Counter(
        "tenure_agent_witness_failures",
        "Looks and questions that failed",
        ["what"],
        registry=registry,
    )
    problems = Gauge(
        "tenure_agent_witness_problems",
        "What sources say differently, or could not say, by name",
        ["reason"],
        registry=registry,
    )
    given = GivenOnDevice(objects=objects, node=options.node)

    async def look() -> None:
        await confirmer.round()
        await given.tell(confirmer.given)
        problems.clear()
        for one in confirmer.problems:
            problems.labels(one.reason).inc()
        await asyncio.sleep(confirming.SOON_SECONDS)
        try:
            async with asyncio.timeout(
                confirming.ENDING_SECONDS if confirmer.is_asked else confirming.LOOK_SECONDS
            ):
                await gate.soon.wait()
        except TimeoutError:
            return

    condition = partial(
        NodeCondition, objects=objects, node=options.node, clock=time.monotonic, now=now_text
    )
    away = condition(kind=AWAY_CONDITION, manager=AWAY_MANAGER)
    tasks.append(every(0, "look", look, failures))
    tasks.append(every(AWAY_LOOK_SECONDS, "words", _whose_word(known.words, away), failures))
    if options.ledger_key:
        keys = tuple(map(public_key, options.ledger_key))
        keeper = confirming.Historian(link, options.state / confirming.NOTE_FILE, keys)
        ask = _watched(link, keeper, condition(kind=CONDITION, manager=MANAGER), registry)
        tasks.append(every(HISTORY_SECONDS, "ledger", ask, failures))


@dataclass(slots=True, kw_only=True)
class GivenOnDevice:
    """
    Keeps the Device object's `devices-checkpoints` told of what kubelet gave.

    Rule: Koordinator contract 2.7. It is written where it is another, and looked at once in a
    while: the object may have been made anew.
    """

    objects: Applier
    node: str
    clock: Callable[[], float] = time.monotonic
    _said: str = ""
    _looked: float = float("-inf")

    async def tell(self, given: Sequence[GivenDevices] | None) -> None:
        """Say it on the Device object, if there is one. Raises ApiError: it is said again."""
        if given is None:
            return
        text = encode_devices_checkpoints(tuple(given))
        now = self.clock()
        if len(text) > GIVEN_BYTES_MAX or (
            text == self._said and now - self._looked < GIVEN_SECONDS
        ):
            return
        path = path_of_device(self.node)
        there = await self.objects.read(path)
        if there is None:
            return
        annotations = there["metadata"].get("annotations") or {}
        if annotations.get(ANNOTATION_DEVICES_CHECKPOINTS, "[]") != text:
            body = {
                **{key: there[key] for key in ("apiVersion", "kind")},
                "metadata": {
                    "name": self.node,
                    "annotations": {ANNOTATION_DEVICES_CHECKPOINTS: text},
                },
            }
            await self.objects.apply(path, body, manager=MANAGER, force=True)
        self._said, self._looked = text, now


def _whose_word(words: Words, kept: NodeCondition) -> Callable[[], Awaitable[None]]:
    """Return what tells on the Node whose word counts while it is not the service's."""
    since: float | None = None

    async def look() -> None:
        nonlocal since
        source = words.source()
        if source is Source.SERVICE:
            since = None
            await kept.tell(None)
            return
        now = time.monotonic()
        since = now if since is None else since
        if now - since >= AWAY_SECONDS:
            reason = f"By{source.value.capitalize()}"
            said = "; ".join(words.lines())
            await kept.tell(Condition(status="True", reason=reason, message=said))

    return look


def _watched(
    link: ServiceLink,
    keeper: confirming.Historian,
    kept: NodeCondition,
    registry: CollectorRegistry,
) -> Callable[[], Awaitable[None]]:
    """Return what asks for a checkpoint, and tells by metric and condition what it was."""
    verdicts = Gauge(
        "tenure_agent_ledger",
        "1 for what the last checkpoint of the ledger was beside the one that we keep",
        ["verdict"],
        registry=registry,
    )
    for each in Verdict:
        verdicts.labels(each).set(0)

    async def ask() -> None:
        # Also after a failure: a service that comes back is not asked by all agents at once.
        await asyncio.sleep(max(0.0, link.again_seconds - HISTORY_SECONDS))
        await keeper.round()
        last = keeper.last
        assert last is not None, "it was answered"
        for each in Verdict:
            verdicts.labels(each).set(each is last.verdict)
        said = last.verdict if last.verdict in BAD else Verdict.GROWN
        status = "False" if last.verdict in BAD else "True"
        await kept.tell(
            Condition(status=status, reason=said.value.capitalize(), message=last.words)
        )

    return ask
