"""
A copy of the service's word on the node's own disk, for starts while the service is away.

    {"format": 1, "sha256": "<of the next line>"}
    {"at": 1772409601, "boot_id": "...", "ended": {}, "holdings": [...], "position": 1017, ...}

The second line is what the service answers (docs/contracts/agents.md). It is believed when every
holding in it is proved for this node (`agent.decide.believing`); the checksum only tells what a
failing disk did from what somebody else wrote. `Words` shows whose word counts and how old it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.decide.believing import Believing, Source
from agent.decide.node_holdings import NodeHoldings, all_holdings
from agent.durable import write_durably
from agent.kubelet.watch import PodsHere
from agent.plugin.held import HeldHere
from agent.service.link import ServiceLink
from agent.service.wire import read_beside, read_holdings, written
from ledger.domain.errors import InputError

FILE_NAME: Final = "holdings.copy"
FORMAT: Final = 1
BYTES_MAX: Final = 32 * 2**20

AGAIN_SECONDS: Final = 5.0

_log: Final = logging.getLogger("tenure.agent.service")


class _Head(msgspec.Struct):
    format: int
    sha256: str


class _Beside(msgspec.Struct):
    at: int
    boot_id: str
    ended: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """An earlier answer: at which epoch second by our clock, and during which boot."""

    known: NodeHoldings
    at: int
    boot_id: str


class CopyFile:
    """The file of the copy, for nobody but us to read or write."""

    def __init__(self, folder: Path) -> None:
        self.path: Final = folder / FILE_NAME

    def write(self, copy: Copy) -> None:
        """Put a copy in the place of the last one, at once and on disk. Raises OSError."""
        beside = {"at": copy.at, "boot_id": copy.boot_id, "ended": copy.known.ended}
        body = written(copy.known, **beside)
        head = msgspec.json.encode(_Head(format=FORMAT, sha256=hashlib.sha256(body).hexdigest()))
        write_durably(self.path, head + b"\n" + body + b"\n")

    def read(self) -> Copy | None:
        """
        Return the copy; None where there is none. Whether to believe it is another question.

        Raises:
            InputError: it can't be read, others may write it, or it is not what was written.
        """
        try:
            content = self._content()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"can't be read: {error}", place=str(self.path)) from error
        head, _, body = content.partition(b"\n")
        body = body.removesuffix(b"\n")
        try:
            said = msgspec.json.decode(head, type=_Head)
            if said.format != FORMAT:
                raise InputError(f"an unknown format: value={said.format}", place=str(self.path))
            if hashlib.sha256(body).hexdigest() != said.sha256:
                raise InputError("torn: its checksum is another", place=str(self.path))
            known = all_holdings(*read_holdings(body))
            beside = msgspec.json.decode(body, type=_Beside)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"torn: {error}", place=str(self.path)) from error
        known = replace(known, ended=beside.ended, cpu_claims=read_beside(body).cpu_claims)
        return Copy(known=known, at=beside.at, boot_id=beside.boot_id)

    def _content(self) -> bytes:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(self.path, flags), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise InputError("not a file of ours", place=str(self.path))
            if found.st_mode & 0o077:
                raise InputError("others may read or write it", place=str(self.path))
            content = file.read(BYTES_MAX + 1)
        if len(content) > BYTES_MAX:
            raise InputError(f"too large: bytes_max={BYTES_MAX}", place=str(self.path))
        return content


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
