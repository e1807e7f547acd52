"""The process that looks at the node and confirms, round after round, what it sees."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from agent.checkpoint import FILE_NAME, CheckpointError, DeviceCheckpoint
from agent.claim_checkpoint import FILE_NAME as CLAIMS_FILE_NAME
from agent.claim_checkpoint import PreparedClaim
from agent.decide.claim_ends import ClaimsHere
from agent.decide.confirming import Confirming, Look, Observed, Said, answered, said, unanswered
from agent.decide.node_holdings import NodeHoldings
from agent.decide.slots import KIND
from agent.discover.host_files import HostFiles
from agent.discover.machine import Card, Fault
from agent.durable import write_durably
from agent.https import NoAnswerError
from agent.kubelet.watch import SOURCE, PodsHere
from agent.plugin.files import SpecFolder, read_file
from agent.plugin.preparing import Holdings
from agent.service.link import RefusedError, ServiceLink
from agent.service.wire import Verdicts
from agent.witness.asking import AwayError, PodResources, Runtime, places
from agent.witness.history import BAD, Judged, judged, readable
from agent.witness.seen import SOURCE_AWAY, Read, Seen, Source, seen
from agent.witness.visible import shown as cards_shown
from ledger.domain.annotations.checkpoints import DeviceCheckpoint as GivenDevices
from ledger.domain.annotations.proof import ProvenDevice
from ledger.domain.annotations.tenure import cards_in
from ledger.domain.errors import InputError, TenureError
from ledger.domain.kube.object_fields import found_in, items_in, section, text_in
from ledger.domain.resources import NVIDIA_GPU, SLOT, TYPE_GPU
from ledger.signing import PublicKey

LOOK_SECONDS: Final = 10.0
ENDING_SECONDS: Final = 1.0
"""While the service waits for our word of a claim."""
SOON_SECONDS: Final = 0.5
"""Between two rounds, whoever waits."""
GONE_FILE: Final = "gone.json"
NOTE_FILE: Final = "ledger.checkpoint"
CHECKPOINT_CORRUPT: Final = "CheckpointCorrupt"
UNHEARD: Final = "ServiceUnheard"
_STATIC: Final = frozenset({"file", "http"})

_T = TypeVar("_T")
_log: Final = logging.getLogger("tenure.agent.witness")


class Discoveries(Protocol):
    """Who knows the cards of this machine."""

    async def cards(self) -> tuple[Sequence[Card], bool]:
        """Return those that can be looked at, with their processes, and whether these are all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What is asked of the node: `claims` None = not looked at, `aside` is for damaged files."""

    cards: Discoveries
    checkpoint: Callable[[], DeviceCheckpoint]
    checkpoint_path: Path
    kubelet: PodResources
    runtime: Runtime | None
    pods: PodsHere
    host: HostFiles
    specifications: SpecFolder
    aside: Quarantine
    claims: Callable[[], tuple[PreparedClaim, ...]] | None = None
    claims_path: Path = Path("/nowhere")


class Speaker:
    """
    Says at the service what was seen, and knows by a file of the folder whom this node called gone.

    Attributes:
        state: what was said.
        forgot: whom we called gone is not known: it may be anybody who holds something.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        gone, self.forgot = gone_in(folder)
        self.state = Confirming(gone=gone)

    def hear_other(self, known: NodeHoldings | None) -> None:
        """Know whom another process of this node called gone: at an upgrade there are two."""
        self.forgot = self.forgot or gone_in(self._folder)[1]
        if not self.forgot:
            self.become(self.state)
        elif known is not None:
            self.become(replace(self.state, gone=frozenset(uid for uid, _ in known.held)))
            self.forgot = False

    def become(self, state: Confirming) -> None:
        """Know this from now on; whom we call gone is on disk before anybody is told."""
        before = self.state.gone
        state = replace(state, gone=state.gone | (gone_in(self._folder)[0] - before))
        if state.gone != before or self.forgot:
            write_durably(self._folder / GONE_FILE, msgspec.json.encode(sorted(state.gone)))
        self.state = state

    async def say(
        self, link: ServiceLink, message: Said, after: int | None, held: AbstractSet[str]
    ) -> Verdicts:
        """
        Say it, and know what came of it; `held` as for `confirming.answered`.

        Raises:
            NoAnswerError, RefusedError, InputError: it is to be said again.
            OSError: whom we call gone can't be written.
        """
        try:
            verdicts = await link.confirm(message, after=after)
        except (NoAnswerError, RefusedError, InputError):
            self.state = unanswered(self.state, message)
            raise
        if verdicts.taken:
            self.become(answered(self.state, message, held, verdicts.ended))
        else:  # another message of this node was taken since the look
            self.state = unanswered(self.state, message)
        return verdicts


class Gate(Speaker):
    """
    Who may start: nobody whom the service was told to be gone, before that was taken back.

    Attributes:
        passed: Pods that may have begun to start since the last look began.
        wanted: Pods that wait; `soon` is set by the first.
    """

    def __init__(self, holdings: Holdings, folder: Path) -> None:
        super().__init__(folder)
        self._holdings = holdings
        self.passed: set[str] = set()
        self.wanted: set[str] = set()
        self.soon = asyncio.Event()

    def devices_of(self, pod_uid: str, container: str) -> Sequence[ProvenDevice] | None:
        """Return a container's devices; None where they are not known, or it may not start yet."""
        devices = self._holdings.devices_of(pod_uid, container)
        return devices if not devices or self._lets(pod_uid) else None

    def shown_to(self, pod_uid: str) -> Sequence[str]:
        """Return the ids of all cards that the containers of a Pod see; none = their own alone."""
        return self._holdings.shown_to(pod_uid)

    def is_held(self, pod_uid: str) -> bool:
        """Tell whether a Pod holds something; by that alone one starts that ran before."""
        return self._holdings.is_held(pod_uid) and self._lets(pod_uid)

    def _lets(self, pod_uid: str) -> bool:
        """Tell whether a Pod that holds something may start now; one that may not is asked for."""
        gone, is_lost = gone_in(self._folder)  # another agent's word too: at an upgrade
        may_start = self.state.may_start(pod_uid) and pod_uid not in gone
        if self.forgot or is_lost or not may_start:
            self.wanted.add(pod_uid)
            self.soon.set()
            return False
        self.passed.add(pod_uid)
        return True


@dataclass(slots=True, eq=False)
class Confirmer:
    """
    Looks, and tells the service.

    Attributes:
        gated: no container with devices starts without us; else nobody is called gone of whom
            nobody knows that they ran.
        own_pod: UID of the Pod that we run in; empty = in none.
        problems: what is wrong with the sources and what they say, of the last round.
        seen: the last look; `cards`: those of the machine that it was about.
        given: what kubelet gave Pods that live, by other plugins than ours; None = not known.
    """

    link: ServiceLink
    sources: Sources
    gate: Gate
    clock: Callable[[], float]
    gated: bool = True
    own_pod: str = ""
    _asked: str = ""
    problems: tuple[Fault, ...] = ()
    seen: Seen | None = None
    given: tuple[GivenDevices, ...] | None = None
    cards: tuple[Card, ...] = ()
    _all_known: bool = False  # the driver told all cards once

    def __post_init__(self) -> None:
        self.link.changed.append(self._hear)

    def _hear(self) -> None:
        if self.is_asked and self.link.state.asked.version != self._asked:
            self.gate.soon.set()

    @property
    def is_asked(self) -> bool:
        """Tell whether the service waits for our word of a claim."""
        return bool(self.link.state.asked.ends)

    async def round(self) -> None:
        """Look and confirm once. Raises OSError: gone Pods can't be written; none is named."""
        before = self.link.sequence  # what is said of this look follows nothing newer
        self.gate.soon.clear()
        self.gate.passed.clear()
        self.gate.hear_other(self.link.holdings if self.link.is_heard else None)
        asked = self.link.state.asked
        self._asked = asked.version
        read, claims, faults = await self._read()
        found = self.seen = seen(self.cards, read, is_card=lambda name: name == NVIDIA_GPU)
        self.given = _given(read, found)
        problems = [*faults, *found.disagreements]
        if self._is_without_us(found):
            problems.append(Fault(reason=SOURCE_AWAY, message="kubelet tells not even of our Pod"))
        if self._is_unlisted(read):
            words = "the container runtime lists not even our Pod"
            problems.append(Fault(reason=SOURCE_AWAY, message=words))
        known = self.link.holdings
        is_numbered = before is not None or self.link.sequence is None
        if known is None or not self.link.is_heard or not is_numbered or self.gate.forgot:
            self.problems = tuple(problems)
            return
        look = replace(self._look(known, read, found), claims=claims)
        wants = frozenset(self.gate.passed | self.gate.wanted)
        state, message = said(
            self.gate.state,
            known,
            look,
            now=self.clock(),
            wants=wants,
            gated=self.gated,
            asked=asked.ends,
        )
        if not message.is_empty:
            self.gate.become(state)
            held = {uid for uid, _ in known.held}
            try:
                verdicts = await self.gate.say(self.link, message, before, held)
            except (NoAnswerError, RefusedError, InputError) as error:
                problems.append(Fault(reason=UNHEARD, message=str(error)))
            else:
                if not verdicts.taken:
                    self.gate.soon.set()
                _tell(verdicts.assigned, verdicts.observed, verdicts.cleared)
        self.gate.wanted &= self.gate.state.gone  # whoever else waited may start
        self.problems = tuple(problems)

    # --- looks ----------------------------------------------------------------------------------

    async def _read(self) -> tuple[Read, ClaimsHere | None, list[Fault]]:
        """Ask all sources: who may start first, and who runs then."""
        faults: list[Fault] = []
        sources = self.sources
        await sources.pods.look()
        cards, are_all = await sources.cards.cards()
        told = {card.uuid for card in cards}
        before = () if are_all else (card for card in self.cards if card.uuid not in told)
        self.cards = (*cards, *(replace(card, processes=None) for card in before))
        self._all_known = self._all_known or are_all
        answer = await _or_none(sources.kubelet.answer())
        runtime = sources.runtime
        there = None if runtime is None else await _or_none(runtime.containers())
        pids = [one.pid for card in self.cards for one in card.processes or ()]
        read = Read(
            checkpoint=self._checkpoint(faults),
            given=None if answer is None else answer.given,
            containers=None if there is None else there[0],
            inside={} if there is None else there[1],
            places=await asyncio.to_thread(places, sources.host, pids),
            driver=are_all,
            all_known=self._all_known,
        )
        prepared = claims = None
        if sources.claims is not None:  # a kubelet that knows claims always has that file
            prepared = self._trusted(sources.claims, CLAIMS_FILE_NAME, sources.claims_path, faults)
        if prepared is not None and answer is not None:
            claims = ClaimsHere(prepared=prepared, listed=answer.claims)
        return read, claims, faults

    def _checkpoint(self, faults: list[Fault]) -> DeviceCheckpoint | None:
        """Return kubelet's file; where there is none, no container was given anything."""
        path, nothing = self.sources.checkpoint_path, DeviceCheckpoint(entries=())
        return self._trusted(self.sources.checkpoint, FILE_NAME, path, faults, nothing)

    def _trusted(
        self,
        read: Callable[[], _T],
        name: str,
        path: Path,
        faults: list[Fault],
        otherwise: _T | None = None,
    ) -> _T | None:
        """Return what kubelet's file says; one that can't be trusted is kept aside and said."""
        try:
            return read()
        except CheckpointError as error:
            fact = str(error)
            try:
                kept = self.sources.aside.keep(name, read_file(path))
            except OSError as failure:
                fact += f"; not kept aside: {failure}"
            else:
                fact += f"; kept aside: {kept}" if kept else ""
        except OSError as error:
            if isinstance(error, FileNotFoundError) and otherwise is not None:
                return otherwise
            fact = str(error)
        faults.append(Fault(reason=CHECKPOINT_CORRUPT, message=fact))
        return None

    def _is_without_us(self, found: Seen) -> bool:
        """Tell whether kubelet began and has not read its Pods: we run, and it knows us not."""
        uids = {pod["metadata"]["uid"] for pod in self.sources.pods.pods}
        return self.own_pod in found.live and self.own_pod not in uids

    def _is_unlisted(self, read: Read) -> bool:
        """Tell whether the runtime does not list our Pod, of which kubelet says that it runs."""
        own = (pod for pod in self.sources.pods.pods if pod["metadata"]["uid"] == self.own_pod)
        runs = any(
            found_in(one, "state", "running") is not None
            for pod in own
            for one in items_in(pod, "status", "containerStatuses")
        )
        return runs and all(one.pod_uid != self.own_pod for one in read.containers or ())

    def _look(self, known: NodeHoldings, read: Read, found: Seen) -> Look:
        pods = self.sources.pods
        static = [
            section(pod, "metadata")
            for pod in pods.running()
            if text_in(pod, "metadata", "annotations", SOURCE) in _STATIC
        ]
        names = {(text_in(one, "namespace"), text_in(one, "name")) for one in static}
        mirrors = {one.pod_uid for one in known.pods() if (one.namespace, one.pod_name) in names}
        return Look(
            places=None if pods.problem or self._is_without_us(found) else pods.places(),
            live=found.live | mirrors | {uid for uid, _ in _outside(found, read)},
            complete=found.complete and not self._is_unlisted(read),
            hidden=frozenset(hidden_cards(known, found)),
            blind=found.blind,
            started=dict(self._started(read)),
            observed=tuple(_observed(known, found, read)),
        )

    def _started(self, read: Read) -> Iterable[tuple[tuple[str, str], frozenset[str]]]:
        """Yield the containers that were made with cards, by names of ours or other words."""
        for one in read.containers or ():
            inside = read.inside.get(one.container_id)
            if inside is None:
                continue
            names = [name.partition("=") for name in inside.cdi]
            ours = [device for kind, _, device in names if kind == KIND]
            shown = [self.sources.specifications.devices(name) for name in ours]
            if not shown:
                by_words = cards_shown(inside, self.cards, all_known=self._all_known)
                if by_words.cards and not by_words.everything:
                    yield (one.pod_uid, one.name), by_words.cards
            elif None not in shown:
                yield (one.pod_uid, one.name), frozenset().union(*(each or () for each in shown))


def _given(read: Read, found: Seen) -> tuple[GivenDevices, ...] | None:
    """Return what kubelet's file says of Pods that live; of all where that is not known."""
    if read.checkpoint is None:
        return None
    entries = (
        GivenDevices(
            pod_uid=one.pod_uid,
            container_name=one.container,
            resource_name=one.resource,
            device_ids=tuple(sorted(one.ids())),
        )
        for one in read.checkpoint.entries
        if one.resource != SLOT and (one.pod_uid in found.live or not found.complete)
    )
    return tuple(sorted(entries, key=lambda one: (one.pod_uid, one.container_name)))


def hidden_cards(known: NodeHoldings, found: Seen) -> Iterable[str]:
    """Yield the cards that are held or seen and of which it is not known who is on them."""
    for one in known.pods():
        others = {each.device_id for each in one.devices if each.device_type != TYPE_GPU}
        yield from filter(found.hides, one.in_sight - others)


def _observed(known: NodeHoldings, found: Seen, read: Read) -> Iterable[Observed]:
    cards: dict[str, dict[str, set[str]]] = {}
    names: dict[str, tuple[str, str]] = {}
    for card in found.cards:
        for whose, sources in card.holders:
            by_sight = sources == {Source.ENVIRONMENT} and any(
                card.uuid in cards_in(one.shown) for one in known.of_pod(whose.pod_uid)
            )
            if whose.pod_uid and not by_sight:
                cards.setdefault(whose.pod_uid, {}).setdefault(whose.container, set()).add(
                    card.uuid
                )
                names[whose.pod_uid] = (whose.namespace, whose.pod_name)
    for uid, uuid in _outside(found, read):
        cards.setdefault(uid, {}).setdefault("", set()).add(uuid)
        names[uid] = ("", uid)
    for uid, by_container in sorted(cards.items()):
        held = {device.device_id for one in known.of_pod(uid) for device in one.devices}
        if not set().union(*by_container.values()) <= held:
            namespace, name = names[uid]
            frozen = {key: frozenset(ids) for key, ids in by_container.items()}
            yield Observed(pod_uid=uid, namespace=namespace, pod_name=name, cards=frozen)


def _outside(found: Seen, read: Read) -> Iterable[tuple[str, str]]:
    """Yield the processes of no Pod, as if they were Pods, each with its card."""
    for card in found.cards:
        for pid in card.outside:
            if pid in read.places:  # and not one that nobody could look at
                yield f"process-{pid}", card.uuid


class Historian:
    """Keeps the ledger's last checkpoint, out of which each one must grow; `last` may be None."""

    def __init__(self, link: ServiceLink, path: Path, keys: Sequence[PublicKey]) -> None:
        self._link = link
        self._path = path
        self._keys = keys
        self.last: Judged | None = None
        self._kept = _note_in(path)

    async def round(self) -> None:
        """Ask and judge once. Raises NoAnswerError, RefusedError, InputError, OSError: again."""
        shown = await self._link.checkpoint(self._kept)
        found = judged(self._kept, shown, self._keys)
        if found.keep != self._kept:
            write_durably(self._path, found.keep.encode())
            self._kept = found.keep
        if self.last is None or found.verdict != self.last.verdict:
            level = logging.ERROR if found.verdict in BAD else logging.INFO
            _log.log(level, "the ledger", extra={"verdict": found.verdict, "fact": found.words})
        self.last = found


def gone_in(path: Path) -> tuple[frozenset[str], bool]:
    """Return whom we called gone before we began, and whether that is lost."""
    try:
        uids = msgspec.json.decode(read_file(path / GONE_FILE), type=list[str])
    except FileNotFoundError:
        return frozenset(), False
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return frozenset(), True
    return frozenset(uids), False


def _note_in(path: Path) -> str:
    try:
        note = read_file(path).decode()
    except (OSError, UnicodeDecodeError):
        return ""
    return note if readable(note) else ""


def _tell(assigned: Iterable[object], observed: Iterable[object], cleared: Iterable[str]) -> None:
    for one in (*assigned, *observed):
        result = getattr(one, "result", "")
        words = {"pod_uid": getattr(one, "pod_uid", ""), "reason": getattr(one, "why", "")}
        if result in {"different", "refused"}:
            _log.error(f"the service says: {result}", extra=words)
    for uid in cleared:
        _log.info("a Node of this machine was cleared", extra={"node_uid": uid})


async def _or_none(asked: Awaitable[_T]) -> _T | None:
    try:
        return await asked
    except (AwayError, TenureError) as error:
        _log.debug("a source is away", extra={"reason": str(error)})
        return None


KEPT_MAX: Final = 8
"""Of each file; the oldest goes."""
BYTES_MAX: Final = 1 << 20
"""As much of a file is kept: its beginning."""
_SUFFIX: Final = ".corrupt"


class Quarantine:
    """Copies of what could not be trusted, no content twice. Kubelet's own file stays there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, name: str, content: bytes) -> Path | None:
        """Copy a file; return its path, None = it is there already. Raises OSError."""
        digest = hashlib.sha256(content).hexdigest()[:16]
        path = self._folder / f"{name}.{digest}{_SUFFIX}"
        if path.exists():
            return None
        self._folder.mkdir(mode=0o700, exist_ok=True)
        there = sorted(self._folder.glob(f"{name}.*{_SUFFIX}"), key=_age)
        for old in there[: max(0, len(there) - KEPT_MAX + 1)]:
            old.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(FileExistsError), os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(content[:BYTES_MAX])
        return path


def _age(path: Path) -> tuple[int, str]:
    try:
        return path.lstat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name
