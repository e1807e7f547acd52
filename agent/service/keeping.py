"""Keeps the copy of the service's word, and shows whose word counts and how old it is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.decide.believing import Believing, Source
from agent.decide.node_holdings import NodeHoldings
from agent.kubelet.watch import PodsHere
from agent.plugin.held import HeldHere
from agent.service.copy import Copy, CopyFile
from agent.service.link import ServiceLink
from ledger.domain.errors import InputError

AGAIN_SECONDS: Final = 5.0

_log: Final = logging.getLogger("tenure.agent.service")


@dataclass(slots=True, kw_only=True)
class Keeper:
    """
    Writes every word that is heard to the copy.

    Attributes:
        now: seconds since the epoch.
        problem: why the copy is not what was heard last, or was not believed at the start.
    """

    file: CopyFile
    boot_id: str
    now: Callable[[], float] = time.time
    problem: str = ""
    _kept: NodeHoldings | None = None
    _due: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, believing: Believing) -> tuple[NodeHoldings, float] | None:
        """Return what the copy says and how old it is in seconds; None where none is believed."""
        try:
            copy = self.file.read()
            if copy is not None:
                believing.copy(copy.known)
        except InputError as error:
            self.problem = str(error)
            _log.warning("the copy is not believed", extra={"reason": self.problem})
            return None
        if copy is None:
            return None
        self._kept = copy.known
        age = max(0.0, self.now() - copy.at)
        extra = {
            "position": copy.known.position,
            "age_seconds": int(age),
            "boot": "this" if copy.boot_id == self.boot_id else "an earlier one",
        }
        _log.info("begun with the copy", extra=extra)
        return copy.known, age

    def keep(self, link: ServiceLink) -> None:
        """Let what a link hears be written from now on."""
        link.changed.append(self._due.set)

    async def run(self, link: ServiceLink) -> None:
        """Write what was heard, until cancelled; what fails is tried again."""
        while True:
            await self._due.wait()
            self._due.clear()
            if not await self.write(link):
                await asyncio.sleep(AGAIN_SECONDS)
                self._due.set()

    async def write(self, link: ServiceLink) -> bool:
        """Write what was heard last, also if nobody answers since; tell whether it is written."""
        known, age = link.holdings, link.age_seconds()
        if known is None or age is None or known is self._kept:
            return True
        copy = Copy(known=known, at=int(self.now() - age), boot_id=self.boot_id)
        try:
            await asyncio.to_thread(self.file.write, copy)
        except OSError as error:
            if str(error) != self.problem:
                _log.warning("the copy can't be written", extra={"reason": str(error)})
            self.problem = str(error)
            return False
        self._kept, self.problem = known, ""
        return True


@dataclass(frozen=True, kw_only=True, eq=False)
class Words(Collector):
    """Whose word counts on this node, for metrics and for people who ask whether it is ready."""

    link: ServiceLink
    keeper: Keeper
    pods: PodsHere
    held: HeldHere

    def register(self, registry: CollectorRegistry) -> None:
        """Show it in the metrics."""
        registry.register(self)

    def source(self) -> Source:
        """Return whose word counts for a Pod of which all speak."""
        if self.link.is_heard:
            return Source.SERVICE
        return Source.ANNOTATION if self.link.holdings is None else Source.COPY

    def lines(self) -> list[str]:
        """Return in lines whose word counts, how old it is, and what keeps others from counting."""
        age = self.link.age_seconds()
        old = "" if age is None else f", {int(age)} s old"
        said = [f"holdings: by {self.source()}{old}"]
        problems = (
            ("service", "" if self.link.is_heard else self.link.state.problem or "not heard yet"),
            ("copy", self.keeper.problem),
            ("kubelet", self.pods.problem),
        )
        return [*said, *(f"{what}: {problem}" for what, problem in problems if problem)]

    def collect(self) -> list[Metric]:
        """Return what counts now."""
        by_source = GaugeMetricFamily(
            "tenure_agent_holdings_source", "Whose word counts now.", labels=["source"]
        )
        used = CounterMetricFamily(
            "tenure_agent_words", "Containers that were told what they hold.", labels=["source"]
        )
        for each in Source:
            by_source.add_metric([each], 1.0 if each is self.source() else 0.0)
            used.add_metric([each], float(self.held.used[each]))
        age = GaugeMetricFamily(
            "tenure_agent_holdings_age_seconds", "How long ago the service said so; NaN: never."
        )
        seconds = self.link.age_seconds()
        age.add_metric([], float("nan") if seconds is None else seconds)
        away = GaugeMetricFamily(
            "tenure_agent_away", "Who does not answer, or is not believed.", labels=["what"]
        )
        for what, is_away in (
            ("service", not self.link.is_heard),
            ("copy", bool(self.keeper.problem)),
            ("kubelet", bool(self.pods.problem)),
        ):
            away.add_metric([what], 1.0 if is_away else 0.0)
        return [by_source, used, age, away]
