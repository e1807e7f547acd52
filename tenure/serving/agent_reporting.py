"""What `tenure serve agent` tells the cluster of its machine: look, write what differs, again."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge

from agent.decide.isolation import Provider
from agent.decide.node_holdings import HeldByPod
from agent.discover.combined import CombinedProbe, Part
from agent.discover.declared import DeclaredProbe, FileProbe
from agent.discover.fault_file import read_faults, write_faults
from agent.discover.faults import CardFault, Faults, after_events, after_look, marked, recovered
from agent.discover.host_files import HostFiles
from agent.discover.machine import Discovery, Fault, Identity, Kind, Probe
from agent.discover.sysfs import SysfsProbe
from agent.report.held import NodeWord
from agent.report.reporter import Reported, Reporter
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import no_offers
from ledger.domain.dialects.registry import READERS
from ledger.domain.errors import InputError
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from tenure.exits import with_next
from tenure.kube.objects import KubeObjects
from tenure.serving.agent_cpus import CpuReader
from tenure.serving.agent_options import AgentMode, AgentOptions
from tenure.serving.background import Tasks, every

FAULTS_NOT_KEPT: Final = "FaultsNotKept"
NO_ANSWER: Final = "NoAnswer"
HOLDINGS_UNKNOWN: Final = "HoldingsUnknown"
HELD_SECONDS: Final = 1.0
"""Binds in a burst are told of together."""
LOOK_SECONDS: Final = 60.0
"""A look takes milliseconds; a driver that hangs may never come back from one."""
EVENT_MILLISECONDS: Final = 2_000
"""The thread that listens ends so long after it was told to."""

_log: Final = logging.getLogger("tenure.agent.report")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeToTell:
    """
    What the rest of the process knows of this node, or is told of it.

    Attributes:
        sizes: the bytes of every card by id, as looks have found them; a card that can't be looked
            at keeps its own.
        heard: is told what the machine has, at each round.
        closes: what closes all of its cards at this moment; asked again and again.
        cpus: reads its CPUs; None = they are not reported.
    """

    held: NodeWord
    sizes: dict[str, int]
    isolation: Provider
    heard: Callable[[Discovery], None] = lambda _: None
    closes: Callable[[], tuple[Fault, ...]] = tuple
    cpus: CpuReader | None = None

    def version(self) -> object:
        """Return what differs from before once a round has something new to tell."""
        cpus = None if self.cpus is None else self.cpus.version()
        return self.held.version(), self.closes(), cpus


def offered(names: Iterable[str], option: str) -> frozenset[Dialect]:
    """Return these dialects. Raises InputError: unknown, or its amounts are no Node's."""
    served = {str(one.dialect): one.dialect for one in READERS if one.offers is not no_offers}
    found = set()
    for name in names:
        if name not in served:
            known = ", ".join(sorted(served))
            raise InputError(f"expected one of {known}: value={name!r}", field=option)
        found.add(served[name])
    return frozenset(found)


@dataclass(slots=True, kw_only=True)
class KeptFaults:
    """
    What cards were found with: what counts now, and what its file has of that.

    Attributes:
        late: what the driver said since the last look: nobody has declared that to be over.
        is_whole: what the Device object says against cards is among what counts: a file that was
            lost, with its disk or by hand, opens no card.
    """

    path: Path
    faults: Faults
    saved: Faults
    late: tuple[CardFault, ...] = ()
    is_whole: bool = False

    def become(self, faults: Faults) -> bool:
        """Let these count from now on; tell whether they are others."""
        is_new = faults != self.faults
        self.faults = faults
        return is_new

    def note(self, events: tuple[CardFault, ...]) -> bool:
        """Let what the driver said count; tell whether that is new."""
        self.late = after_events(Faults(kept=self.late), events).kept
        return self.become(after_events(self.faults, events))

    def recover(self, uuid: str) -> bool:
        """Let a card be whole again but for what came late; tell whether it was not."""
        return self.become(after_events(recovered(self.faults, uuid), self.late))

    def save(self) -> tuple[Fault, ...]:
        """Bring the file to what counts; return what kept it from that."""
        faults = self.faults
        if faults == self.saved:
            return ()
        try:
            write_faults(self.path, faults)
        except OSError as error:
            return (Fault(reason=FAULTS_NOT_KEPT, message=str(error)),)
        self.saved = faults
        return ()


@dataclass(slots=True, kw_only=True)
class Looks:
    """
    Looks in a thread; when a driver hangs for so many seconds, its devices are unknown.

    The next look waits for the same one.
    """

    probe: Probe
    seconds: float = LOOK_SECONDS
    identity: Identity = field(default_factory=Identity)
    _running: asyncio.Future[Discovery] | None = None

    async def look(self) -> Discovery:
        """Return what there is now; all kinds of devices are unknown if that takes too long."""
        if self._running is None:
            self._running = in_thread_of_its_own(self.probe.look)
        await asyncio.wait([self._running], timeout=self.seconds)
        if not self._running.done():
            fact = f"nobody could look at the machine: seconds={self.seconds}"
            problem = Fault(reason=NO_ANSWER, message=fact)
            return Discovery(identity=self.identity, unknown=tuple(Kind), problems=(problem,))
        done, self._running = self._running, None
        found = done.result()
        self.identity = found.identity
        return found


async def reporting(
    options: AgentOptions,
    node: NodeToTell,
    objects: KubeObjects,
    registry: CollectorRegistry,
    tasks: Tasks,
) -> None:
    """Add the tasks that report this node. Raises InputError: its --state can't be read."""
    if not options.state.is_dir():
        missing = InputError(f"no such folder: {options.state}", field="--state")
        raise with_next(missing, "mount a folder of the node's own there")
    file = options.state / "faults.json"
    try:
        faults, forgotten = read_faults(file)
    except OSError as error:
        raise InputError(f"can't be read: {error}", field="--state") from error
    kept = KeptFaults(path=file, faults=faults, saved=faults)
    host = HostFiles(root=options.host)
    parts = _parts(options, host)
    looks = Looks(probe=CombinedProbe(parts=parts, measured=options.bandwidth))
    reporter = Reporter(
        objects=objects,
        node_name=options.node,
        clock=time.monotonic,
        now=now_text,
        isolation=node.isolation,
    )
    reporter.vocabulary = replace(DEFAULT_VOCABULARY, gpushare_unit=str(options.gpushare_unit))
    served = [options.mode] if options.mode is AgentMode.GPUSHARE else []
    reporter.dialects |= offered([*options.offers, *served], "--offers")
    failures = Counter(
        "tenure_agent_failures", "Rounds of work that failed", ["what"], registry=registry
    )
    said = _Said(registry, forgotten)
    soon = asyncio.Event()

    async def report() -> None:
        soon.clear()
        kept.late = ()
        found = await looks.look()
        node.sizes.update((card.uuid, card.memory_bytes) for card in found.cards)
        pods, unread = _held(node.held)
        kept.become(after_look(kept.faults, found))
        unsaved = await asyncio.to_thread(kept.save)
        if not kept.is_whole:
            if kept.become(after_events(kept.faults, await reporter.closed())):
                soon.set()  # and then it is saved
            kept.is_whole = True
        node.heard(marked(found, kept.faults))
        now = marked(found, kept.faults, node.closes())
        cpus, unknown = (None, ()) if node.cpus is None else await node.cpus.read()
        cpus = cpus and replace(cpus, told=node.held.cpu_claims())
        told = await reporter.report(now, pods, node.held.asked(), cpus)
        said.round(told, (*unsaved, *unread, *unknown))
        for device in told.recovered:
            if kept.recover(device):
                _log.info("declared whole again", extra={"device_id": device})
                soon.set()

    tasks.append(_rounds(options.report_seconds, soon, report, failures))
    tasks.append(every(HELD_SECONDS, "held", _watching(node, soon), failures))
    if options.machine is None:
        tasks.append(
            every(options.report_seconds, "events", _listening(host, kept, soon), failures)
        )


def _held(held: NodeWord) -> tuple[Sequence[HeldByPod] | None, tuple[Fault, ...]]:
    try:
        return held.pods(), ()
    except InputError as error:
        return None, (Fault(reason=HOLDINGS_UNKNOWN, message=str(error)),)


def _watching(node: NodeToTell, soon: asyncio.Event) -> Callable[[], Awaitable[None]]:
    """Return what has a round begin when somebody holds something else, or cards open or close."""
    known = node.version()

    async def look() -> None:
        nonlocal known
        now = node.version()
        if now != known:
            known = now
            soon.set()

    return look


async def _rounds(
    seconds: float, soon: asyncio.Event, act: Callable[[], Awaitable[None]], failures: Counter
) -> None:
    """Act every so many seconds, and at once when something is known to have changed."""

    async def wait() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await soon.wait()

    async def round_and_wait() -> None:
        try:
            await act()
        except Exception:
            await wait()
            raise
        await wait()

    await every(0, "report", round_and_wait, failures)


def _listening(
    host: HostFiles, kept: KeptFaults, soon: asyncio.Event
) -> Callable[[], Awaitable[None]]:
    """Return what listens for events of the cards for as long as their driver answers."""

    async def listen() -> None:
        loop, stopped = asyncio.get_running_loop(), threading.Event()

        def tell(events: tuple[CardFault, ...]) -> None:
            loop.call_soon_threadsafe(_note, events, kept, soon)

        try:
            await in_thread_of_its_own(partial(_listen, host, stopped, tell))
        finally:
            stopped.set()

    return listen


def _listen(
    host: HostFiles, stopped: threading.Event, tell: Callable[[tuple[CardFault, ...]], None]
) -> None:
    """Tell of events of the cards until stopped. It blocks, and all of it is in one thread."""
    import pynvml  # where there is a machine to look at, and the extra with it

    from agent.discover.nvml import NvmlProbe, card_events

    probe = NvmlProbe(host)  # another than the one that looks, in another thread
    try:
        with card_events(probe) as wait:
            while not stopped.is_set():
                if events := wait(EVENT_MILLISECONDS):
                    tell(events)
    except pynvml.NVMLError as error:
        _log.debug("no events of cards", extra={"reason": str(error)})
    finally:
        probe.close()


def _note(events: tuple[CardFault, ...], kept: KeptFaults, soon: asyncio.Event) -> None:
    for event in events:
        _log.warning("card", extra={"device_id": event.uuid, "reason": event.reason})
    if kept.note(events):
        soon.set()


def cards_probe(options: AgentOptions) -> Probe:
    """Return another probe that looks at the cards alone."""
    parts = _parts(options, HostFiles(root=options.host))
    return CombinedProbe(parts=tuple(one for one in parts if Kind.GPU in one.kinds))


def _parts(options: AgentOptions, host: HostFiles) -> tuple[Part, ...]:
    if options.machine is not None:
        return (Part(probe=FileProbe(path=options.machine), kinds=tuple(Kind)),)
    from agent.discover.nvml import NvmlProbe

    parts = [
        Part(probe=NvmlProbe(host), kinds=(Kind.GPU,)),
        Part(probe=SysfsProbe(host=host), kinds=(Kind.RDMA,)),
    ]
    if options.declared is not None:
        declared = DeclaredProbe(path=options.declared, host=host)
        parts.append(Part(probe=declared, kinds=(Kind.OTHER,)))
    return tuple(parts)


class _Said:
    """What is counted and logged of rounds: writes, and problems when they come and go."""

    def __init__(self, registry: CollectorRegistry, problems: tuple[Fault, ...]) -> None:
        self._known: frozenset[Fault] = frozenset()
        self._forgotten = problems
        self._writes = Counter(
            "tenure_agent_report_writes", "Parts of objects that were written", registry=registry
        )
        self._problems = Gauge(
            "tenure_agent_problems", "What is wrong, by reason", ["reason"], registry=registry
        )

    def round(self, told: Reported, problems: tuple[Fault, ...]) -> None:
        """Take note of a round, and of what else was wrong in it."""
        now = frozenset((*told.problems, *problems, *self._forgotten))
        self._writes.inc(len(told.written))
        if told.written:
            _log.info("reported", extra={"written": list(told.written)})
        for problem in sorted(now - self._known, key=str):
            extra = {"reason": problem.reason, "fact": problem.message}
            _log.warning("problem", extra=extra)
        self._known = now
        self._problems.clear()
        for problem in now:
            self._problems.labels(problem.reason).inc()


def now_text() -> str:
    """Return the time of day as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_T = TypeVar("_T")


def in_thread_of_its_own(act: Callable[[], _T]) -> asyncio.Future[_T]:
    """
    Start what may block for ever, such as a call into a driver that hangs, and return its result.

    Threads of the loop's own executor are waited for when the loop closes, and by the interpreter
    once more when it ends.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def finish(result: Callable[[], None]) -> None:
        if not done.cancelled():
            result()

    def run() -> None:
        try:
            value = act()
        except BaseException as error:  # noqa: BLE001 - whoever waits is told
            told = error
            result = lambda: done.set_exception(told)  # noqa: E731 - said once
        else:
            result = lambda: done.set_result(value)  # noqa: E731 - said once
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, result)

    threading.Thread(target=run, daemon=True).start()
    return done
