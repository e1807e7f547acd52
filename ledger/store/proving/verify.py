"""
Prove the ledger: every hash, every position, every constraint at every prefix, every projection.

Rule: design section 4. Nothing here writes, and nothing trusts what it proves: hashes are computed
again from the stored words, and what is held is counted again from the events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from operator import le, lt
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy import Connection

from ledger.domain.bounds import AT, WALL
from ledger.domain.errors import CorruptLedgerError, InputError, LedgerError, UnknownEventError
from ledger.domain.log import events
from ledger.domain.log.quotes import Quotes
from ledger.domain.log.state_codec import encode_state
from ledger.domain.proofs.hashing import GENESIS, chain_hash, row_leaf
from ledger.store import schema
from ledger.store.archives.archived_proof import NO_PAST, ProofStart, past_of, tile_leaves
from ledger.store.archives.ended_rows import NotCompared
from ledger.store.archives.segments import End, Segment, end_of
from ledger.store.failures import DAMAGE, fact_of
from ledger.store.mending import acts
from ledger.store.mending.correcting import false_correction, outside_of_calendar
from ledger.store.open import Ledger
from ledger.store.profile_postgres import one_snapshot
from ledger.store.projections.held import HeldByFold
from ledger.store.proving.damage import broken_checks, changed_rules, damaged_pages, other_revision
from ledger.store.proving.resumed import ResumedProof
from ledger.store.proving.tree_proof import NO_WITNESS, KeptCheckpoint, TreeProof
from ledger.store.reading import tables
from ledger.store.reading.kept import seldom_of
from ledger.store.reading.read import checked_head, proven_chain
from ledger.store.reading.snapshots import SnapshotProof
from ledger.store.writing.append import Head
from ledger.store.writing.statements import Row

T = TypeVar("T")
_NONE: Final[list[tuple[int, events.LedgerEvent]]] = []
PROVED: Final = "proved"
NOT_COMPARED: Final = "not compared"
"""Nothing is wrong with what was compared; of some rows of archived events that is not known."""
NOT_PROVED: Final = "not proved"
FINDINGS_MAX: Final = 50
"""A report names at most this many; one altered event may contradict many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it must be, with the first position it concerns, if any."""

    position: int | None
    text: str

    def __str__(self) -> str:
        return self.text if self.position is None else f"position {self.position}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """
    What `verify` saw.

    Attributes:
        events: the last position that was checked.
        unread: so many events, from the first on, are in an archive and were not read; their hashes
            were, and what the ledger kept of them.
        findings: by position, those about no position last.
        not_compared: rows of archived events that nothing says anything of.
        chain_hash: the chain value at the last event that was checked.
        withdrawn: stored checkpoints that count for nothing: an event withdraws them, the events do
            not bear them out, and no trusted key signed them.
        ahead_us, ahead_position: how far an event's time is ahead of its clock at most, and where.
            Events without a clock's time are left out.
    """

    events: int
    findings: tuple[Finding, ...]
    seconds: float
    chain_hash: bytes
    unread: int = 0
    not_compared: tuple[NotCompared, ...] = ()
    withdrawn: tuple[acts.Withdrawal, ...] = ()
    ahead_us: int = 0
    ahead_position: int = 0

    @property
    def ok(self) -> bool:
        """Whether everything was compared and nothing was found."""
        return self.outcome == PROVED

    @property
    def outcome(self) -> str:
        """Which of the three the ledger is."""
        return NOT_PROVED if self.findings else NOT_COMPARED if self.not_compared else PROVED


@dataclass(slots=True)
class _Findings:
    found: list[Finding] = field(default_factory=list)
    more: int = 0

    def add(self, position: int | None, text: str) -> None:
        if len(self.found) < FINDINGS_MAX:
            self.found.append(Finding(position=position, text=text))
        else:
            self.more += 1

    def sorted(self) -> tuple[Finding, ...]:
        found = sorted(self.found, key=lambda each: (each.position is None, each.position or 0))
        if self.more:
            found.append(Finding(position=None, text=f"and {self.more} more findings"))
        return tuple(found)


@tables.few_collections()
def verify(
    ledger: Ledger,
    progress: Callable[[int, int], None] | None = None,
    *,
    witness: KeptCheckpoint = NO_WITNESS,
    segments: Path | None = None,
    also_void: acts.Voids = acts.NO_VOIDS,
    also_withdrawn: acts.Withdrawals = acts.NO_WITHDRAWALS,
) -> VerifyReport:
    """
    Check everything the ledger promises, in one snapshot of it.

    Every position from 1 to the head exists once; every leaf and chain hash follows from the stored
    words; streams count densely; the head is the last event; replayed from the first event on, no
    device or CPU is ever promised beyond what it has; the projections are what the events say; the
    Merkle tree is the one over the events; every snapshot is the fold at its position, and the log
    commits to it; the database's own rules are in place and its pages are whole.

    Args:
        progress: called with (positions done, positions in all) now and then.
        witness: what was kept outside, which alone shows a tail that was cut off, an older copy,
            or a history that was written anew.
        segments: the folder of the archive, to read archived events too. Without it the proof
            begins at the state behind the last of them, which the log commits to.
        also_void: what would be found if the log declared these positions void.
        also_withdrawn: what would be found if the log withdrew these checkpoints.
    """
    started = time.perf_counter()
    findings = _Findings()
    connection = ledger.connection
    snapshot = connection.begin()
    try:
        one_snapshot(connection)
        for look in (damaged_pages, broken_checks, changed_rules, other_revision):
            for text in look(connection):
                findings.add(None, text)
        past = _past(connection, findings, segments)
        walk = Walk(
            connection,
            findings.add,
            witness,
            past,
            also_void=also_void,
            also_withdrawn=also_withdrawn,
        )
        with closing(walk):
            walk.run(past.rows(connection, findings.add), progress or (lambda _done, _all: None))
    finally:
        with suppress(*DAMAGE):  # nothing was written; a damaged database can't even end that
            snapshot.rollback()
    return VerifyReport(
        events=walk.position,
        findings=findings.sorted(),
        seconds=time.perf_counter() - started,
        chain_hash=walk.chain,
        unread=past.start.position,
        not_compared=past.not_compared,
        withdrawn=walk.tree.withdrawn,
        ahead_us=walk.ahead[0],
        ahead_position=walk.ahead[1],
    )


def _past(connection: Connection, findings: _Findings, folder: Path | None) -> ProofStart:
    """Return where the proof begins; an archive that can't be believed is a finding."""
    try:
        return past_of(connection, findings.add, folder)
    except CorruptLedgerError as error:
        findings.add(error.position, str(error).removesuffix(f": position={error.position}"))
    except (tables.UnreadableError, *DAMAGE, *tables.CONTRADICTION) as error:
        findings.add(None, f"the archive's records are unreadable: {error}")
    return NO_PAST


def unopened(fact: str) -> VerifyReport:
    """Return the report on what was a ledger and can't be opened as one."""
    return VerifyReport(
        events=0,
        findings=(Finding(position=None, text=f"the ledger is damaged: {fact}"),),
        seconds=0.0,
        chain_hash=GENESIS,
    )


_WITH_ROWS: Final = (
    *events.Opening.__args__,
    *events.Ending.__args__,
    *(events.PodBound, events.PodAssigned, events.ClaimBound),
    *(events.NodeInventoried, events.NodeLost, events.NodeCleared, events.DeviceHealthChanged),
    *(events.RequestRefused, events.GroupPlanned, events.PlanDropped),
    *(events.CheckpointStored, events.CheckpointWithdrawn),
)
"""Events that the tables tell of: one that they do not know may be declared void, no other."""


def _read(read: Callable[[], T], otherwise: T) -> T:
    """Return what is read of the log, `otherwise` where it can't be."""
    try:
        return read()
    except (*DAMAGE, *tables.CONTRADICTION, LedgerError):
        return otherwise


def _voidable(position: int, event: events.LedgerEvent) -> bool:
    """Tell whether an event that can be read may be declared void all the same."""
    if isinstance(event, events.TimeCorrected):
        return bool(false_correction(event, position))
    return isinstance(event, _WITH_ROWS)


class Walk:
    """One pass over the events behind `past`, which proves the projections beside them."""

    def __init__(
        self,
        connection: Connection,
        report: tables.Report,
        witness: KeptCheckpoint = NO_WITNESS,
        past: ProofStart = NO_PAST,
        *,
        also_void: acts.Voids = acts.NO_VOIDS,
        also_withdrawn: acts.Withdrawals = acts.NO_WITHDRAWALS,
    ) -> None:
        start = past.start
        self.position = start.position
        self.chain = start.chain_hash
        self.proof = ResumedProof(connection, report, start)
        self._held = HeldByFold(connection, start.folded())
        self._snapshots = SnapshotProof(connection, report)
        declared = _read(partial(acts.voids_of, connection), acts.NO_VOIDS)
        self._voids: dict[int, AbstractSet[str]] = {**declared, **also_void}
        withdrawn = _read(
            partial(acts.withdrawals_of, connection, self._voids), acts.NO_WITHDRAWALS
        )
        withdrawals = {**also_withdrawn, **withdrawn}
        stored = {
            event.size: (position, event.note.encode())
            for position, event in _read(
                partial(seldom_of, connection, events.CheckpointStored), _NONE
            )
            if isinstance(event, events.CheckpointStored) and position not in self._voids
        }
        self.tree = TreeProof(connection, report, witness, withdrawals, stored)
        for leaf in tile_leaves(connection, start.position) if start.position else ():
            self.tree.add(leaf)
        self._connection = connection
        self._report = report
        self._void: set[tuple[int, str]] = set()
        kinds = (events.RequestDescribed, events.DriftFound, events.DriftResolved)
        quoted = _read(partial(seldom_of, connection, *kinds), _NONE) if start.position else []
        self._quotes = Quotes(event for at, event in quoted if at <= start.position)
        self._start = start.position
        self._seals = past.seals
        self._kinds = tables.kinds_of(schema.ledger_events)
        self._versions: dict[str, int] = dict(start.streams)
        self._at_us = start.at_us
        self.ahead = (0, 0)
        self._epoch = start.epoch
        self._writer = start.writer
        self._sound = True  # until an event is not what it was: then the replay would mislead

    def run(self, rows: Iterator[Row], progress: Callable[[int, int], None]) -> None:
        """Check every row in order, then what must be so at the head."""
        head = self._head()
        total = head.position if head else 0
        self.take(rows, lambda: progress(self.position, total))
        if self._sound:
            self.tree.finish(self._writer.origin)
            self._snapshots.finish()
        self._snapshots.close()
        if self._sound and head is not None:
            self._end(head)
            self._streams()
            self._times()
        if self._sound:
            self._compare()
        else:
            self._report(None, "holdings were compared only up to the first bad event")
        progress(self.position, total)

    def take(self, rows: Iterator[Row], progress: Callable[[], None] = lambda: None) -> None:
        """Check rows of the log, in order."""
        try:
            for page in tables.pages_of(rows):
                if not self._page(page):
                    for row in page:
                        self._row(row)
                progress()
        except tables.UnreadableError as error:
            self._bad(self.position + 1, f"the event is unreadable: {error}")

    def _page(self, page: Sequence[Row]) -> bool:
        """
        Check rows together, column by column, and replay each.

        Nothing is done where one of them may not be what it was, or a segment ends among them: they
        are then looked at one by one.
        """
        after, end = self.position, self.position + len(page)
        if not self.chain or any(after < seal <= end for seal in self._seals):
            return False
        chain = proven_chain(page, after, self.chain)
        if chain is None or not page:
            return not page
        columns = list(zip(*page, strict=True))
        epochs, times, walls, leaves = columns[6], columns[11], columns[12], columns[13]
        versions = self._counted(columns[1], columns[2])
        in_order = (
            versions is not None
            and all(map(lt, (self._at_us, *times), times))
            and all(map(le, (self._epoch, *epochs), epochs))
        )
        in_bounds = min(times) >= AT[0] and max(times) <= AT[1]
        if not (in_order and in_bounds and WALL[0] <= min(walls) and max(walls) <= WALL[1]):
            return False
        self._versions.update(versions or {})
        self._look_ahead(times, walls, page[0][0])
        taken = 0
        for row in page if self._sound else ():
            self._epoch = row[6]
            self._replay(row)
            taken += 1
            if not self._sound:
                break
        self.tree.extend(leaves[:taken])
        last = page[-1]
        self.position, self.chain, self._at_us, self._epoch = last[0], chain, last[11], last[6]
        return True

    def _counted(self, streams: Sequence[str], versions: Sequence[int]) -> dict[str, int] | None:
        found: dict[str, int] = {}
        known = self._versions.get
        for stream, version in zip(streams, versions, strict=True):
            if version != (found.get(stream) or known(stream, 0)) + 1:
                return None
            found[stream] = version
        return found

    def _look_ahead(self, times: Sequence[int], walls: Sequence[int], first: int) -> None:
        ahead = [
            at_us - wall_us if wall_us else 0 for at_us, wall_us in zip(times, walls, strict=True)
        ]
        most = max(ahead)
        if most > self.ahead[0]:
            self.ahead = (most, first + ahead.index(most))

    def end(self) -> End:
        """Return what is known behind the last event that was taken."""
        return End(
            position=self.position,
            at_us=self._at_us,
            chain_hash=self.chain,
            epoch=self._epoch,
            writer=self._writer,
            streams=dict(self._versions),
            state=encode_state(self._held.state),
            rows=self.proof.rows(),
        )

    def close(self) -> None:
        """Let go of every query."""
        self.proof.close()
        self._snapshots.close()

    def _seal(self, segment: Segment) -> None:
        keys = end_of(segment).keys  # compared with the keys themselves, before
        text = replace(self.end(), keys=keys).text()
        if self._sound and sha256(text.encode()).digest() != segment.state_digest:
            fact = "the state at the segment's end is not the fold of its events"
            self._report(segment.last, fact)  # or a row that was open there is another, named above

    def _compare(self) -> None:
        """Compare what is held at the end with the tables, by the writer's fold and by ours."""
        try:
            self.proof.finish()
            for position, text in self._held.differences():
                self._report(position, text)
        except (tables.UnreadableError, *tables.CONTRADICTION) as error:
            fact = f"{type(error).__name__}: {error}"
            self._report(None, f"the projections can't be compared: {fact}")

    def _head(self) -> Head | None:
        try:
            return checked_head(self._connection)
        except CorruptLedgerError as error:
            self._report(None, str(error))
        except DAMAGE as error:
            self._report(None, f"the head is unreadable: {fact_of(error)}")
        return None

    def _bad(self, position: int, text: str) -> None:
        self._sound = False
        self._report(position, text)

    def _ill_typed(self, row: Row) -> None:
        """Report a row whose values are not of their columns; the chain goes on behind it."""
        at, chain = row[0], row[-1]
        self.position = at if type(at) is int else self.position + 1
        self._bad(self.position, tables.other_types(schema.ledger_events, row))
        self.chain = chain if isinstance(chain, bytes) else b""

    def _row(self, row: Row) -> None:
        if tuple(map(type, row)) in self._kinds:
            self._event(row)
        else:
            self._ill_typed(row)
        if self.position in self._seals:
            self._seal(self._seals[self.position])

    def _event(self, row: Row) -> None:
        position, stream, version, _, _, _, epoch, _, _, _, _, at_us, wall_us, leaf, _ = row
        self._hashes(row)
        if version != self._versions.get(stream, 0) + 1:
            self._bad(position, f"the stream has a gap: stream={stream}, version={version}")
        if at_us <= self._at_us or epoch < self._epoch:
            self._bad(position, "time or epoch run backwards")
        if wall_us:
            self._look_ahead((at_us,), (wall_us,), position)
        if not (AT[0] <= at_us <= AT[1] and WALL[0] <= wall_us <= WALL[1]):
            self._report(position, f"a time is out of its bounds: at={at_us}, wall={wall_us}")
        self._versions[stream], self._at_us, self._epoch = version, at_us, epoch
        if self._sound:
            self.tree.add(leaf)
            self._replay(row)

    def _hashes(self, row: Row) -> None:
        position, leaf, chain = row[0], row[13], row[14]
        expected = self.position + 1
        self.position = position
        if position != expected:
            gap = f"{expected} to {position - 1}" if position - 1 > expected else str(expected)
            self._bad(expected, f"events are missing: positions={gap}")
            self.chain = b""
        computed = row_leaf(row)
        linked = chain_hash(self.chain, leaf) if self.chain else chain
        if computed != leaf:
            self._bad(position, "the event was altered: its words do not give its hash")
        elif linked != chain:
            self._bad(position, "the chain is broken: the hash does not follow from the one before")
        self.chain = linked if computed == leaf else chain

    def _replay(self, row: Row) -> None:
        position, at_us, void = row[0], row[11], None
        if position in self._voids:
            void = acts.void_event(self._voids, position, row[13])
        event: events.LedgerEvent | None = None
        try:
            event = events.decode_event(row[3], row[4])
        except (UnknownEventError, InputError, *tables.CONTRADICTION) as error:
            if void is None:
                self._bad(position, f"the event can't be read by this version: {error}")
                return
        if void is not None:
            if event is not None and not (
                _voidable(position, event) or any(self._quotes.untold(position, event))
            ):
                self._bad(position, "the event is sound, and declared void")
            self._void.add((position, void.leaf_hash))
            event = void
        elif isinstance(event, events.PositionVoided) and (
            (event.position, event.leaf_hash) not in self._void and event.position > self._start
        ):
            self._bad(position, f"the event declares void what is not there: {event.position}")
        elif isinstance(event, events.TimeCorrected):
            fact = false_correction(event, position)
            if fact:
                self._bad(position, fact)
        assert event is not None, row
        if self._epoch != self._writer.epoch or isinstance(event, events.EpochStarted):
            self._writes(position, event)
        for fact in self._quotes.untold(position, event):
            self._report(position, fact)
        try:
            self.proof.add(position, at_us, event)
            self._held.add(position, event)
            self._snapshots.add(position, event, lambda: self._held.state)
        except tables.CONTRADICTION as error:
            fact = f"{type(error).__name__}: {error}"
            self._bad(position, f"the event contradicts itself or those before it: {fact}")

    def _writes(self, position: int, event: events.LedgerEvent) -> None:
        if isinstance(event, events.EpochStarted):
            before = self._writer
            if event.epoch <= before.epoch or (before.epoch and event.origin != before.origin):
                fact = f"epoch={event.epoch}, origin={event.origin}"
                self._bad(position, f"the epoch does not follow from the one before: {fact}")
            self._writer = event
        if self._epoch != self._writer.epoch:
            fact = f"epoch={self._epoch}, started={self._writer.epoch}"
            self._bad(position, f"the event is of an epoch that was not started: {fact}")

    def _end(self, head: Head) -> None:
        last = self.position
        if head.position > last:
            self._bad(last + 1, f"events are missing: last={last}, head={head.position}")
        elif head.position < last:
            self._bad(head.position + 1, f"events are beyond the head: head={head.position}")
        elif (head.chain_hash, head.at_us) != (self.chain, self._at_us):
            self._bad(last, "the head has another chain value or time than its event")
        writer = self._writer
        if (head.epoch, head.holder, head.origin) != (writer.epoch, writer.holder, writer.origin):
            self._report(
                None,
                "the head has another epoch, holder or origin than the last epoch that was"
                f" started: head={(head.epoch, head.holder, head.origin)}",
            )

    def _times(self) -> None:
        try:
            if acts.is_corrected(self._connection):
                position = outside_of_calendar(self._connection)
                if position is not None:
                    self._report(position, "the true time is outside of the calendar")
        except DAMAGE as error:
            self._report(None, f"the true times are unreadable: {fact_of(error)}")

    def _streams(self) -> None:
        try:
            rows = list(
                tables.rows_of(self._connection, tables.in_key_order(schema.ledger_streams))
            )
        except tables.UnreadableError as error:
            self._report(None, f"ledger_streams is unreadable: {error}")
            return
        for row in rows:
            if not tables.is_typed(schema.ledger_streams, row):
                self._report(None, tables.other_types(schema.ledger_streams, row))
                return
        streams: dict[str, int] = dict(rows)
        if streams != self._versions:
            wrong = sorted(
                name
                for name in streams.keys() | self._versions.keys()
                if streams.get(name) != self._versions.get(name)
            )
            self._report(None, f"ledger_streams is not what the events say: {wrong[:5]}")
