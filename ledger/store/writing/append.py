"""
The one writer: events in, one durable commit, or nothing at all.

Worked example, head and epoch. The head is one row, and to append is to move it from where the
writer believes it to be: `UPDATE ledger_head ... WHERE epoch = :e AND position = :p` touches one
row or none, in the transaction that inserts the events.

    writer  does                               head after it: position, epoch
    A       start_epoch: epoch.started at 1    1, 1
    A       append two events                  3, 1
    B       start_epoch: epoch.started at 4    4, 2
    A       append, where epoch 1, position 3  no row: `FencedError`, nothing is recorded
    B       append one event                   5, 2

A was not told, need not be reached, and may have been stopped between its decision and its append:
its word is refused all the same. Positions have no gap, for only who moves the head inserts.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from msgspec import Struct, structs
from sqlalchemy import Connection, select, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ledger.domain import errors
from ledger.domain.bounds import WALL_MAX_US
from ledger.domain.log.clock import SteadyClock
from ledger.domain.log.events import GRANTS, EpochStarted, GroupPlanned
from ledger.domain.log.recorded import NewEvent
from ledger.domain.proofs.hashing import GENESIS, chain_hash, row_leaf
from ledger.store import schema
from ledger.store.failures import fact_of, in_our_words, refused_by_rule, unavailable
from ledger.store.projections.project import Projector
from ledger.store.proving.tree import Tree
from ledger.store.writing import commands, statements
from ledger.store.writing.commands import Command, Outcome, body_bytes_of, fits
from ledger.store.writing.outbox import Outbox
from ledger.store.writing.statements import Row

_RECENT: Final = 256
_GRANTS: Final = (*GRANTS, GroupPlanned)
"""What promises a device to somebody; everything else says what has become of it."""
_LEAF: Final = [column.name for column in schema.ledger_events.columns].index("leaf_hash")


class Head(Struct, frozen=True, kw_only=True):
    """Where the ledger stands: its last position, the chain value there, and whose turn it is."""

    position: int
    chain_hash: bytes
    epoch: int
    holder: str
    origin: str
    at_us: int


def read_head(connection: Connection, *, lock: bool = False) -> Head:
    """
    Return the head row.

    With `lock` nobody else moves it until this transaction ends, and what a writer before us has
    not finished is waited for. On SQLite a transaction that writes has the whole file anyway.

    Raises:
        CorruptLedgerError: there is none.
    """
    query = select(*(schema.ledger_head.c[name] for name in Head.__struct_fields__))
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise errors.CorruptLedgerError("the head is missing", position=0)
    return Head(**{**row._mapping, "chain_hash": bytes(row.chain_hash)})  # noqa: SLF001 - its public one


def _fenced(head: Head) -> errors.FencedError:
    return errors.FencedError(
        f"another writer took over: epoch={head.epoch}, position={head.position}"
    )


def _dropped() -> errors.LedgerError:
    return errors.LedgerError("the database dropped events without a word: run `tenure verify`")


@dataclass(slots=True, kw_only=True)
class _Batch:
    """Events with their positions and rows, and where they leave the head and the streams."""

    events: Sequence[NewEvent]
    rows: list[Row]
    times: list[int]
    head: Head
    versions: dict[str, int]


class Writer:
    """
    Appends to the ledger for one epoch. Made by `Ledger.start_epoch`.

    What it remembers (head, stream versions, inventory) changes only with a durable commit: an
    append that fails leaves the writer as it was.
    """

    def __init__(
        self, connection: Connection, head: Head, clock: SteadyClock | None = None
    ) -> None:
        """Make one; without a `clock`, as offline and in virtual time, every time is believed."""
        self._clock = clock
        self._connection = connection
        self._head = head
        self._versions: dict[str, int] | None = None
        self._projector: Projector | None = None
        self._tree: Tree | None = None
        self._outbox = Outbox(connection)
        self._lost: _Batch | None = None
        self.recent: deque[str] = deque(maxlen=_RECENT)  # keys of the newest events

    @property
    def head(self) -> Head:
        """The head as of the last durable commit."""
        return self._head

    @property
    def connection(self) -> Connection:
        """What the writer writes through."""
        return self._connection

    @in_our_words
    def stream_version(self, stream: str) -> int:
        """Return the last version of a stream, 0 for one without events."""
        return self._stream_versions().get(stream, 0)

    def skew(self, events: Sequence[NewEvent]) -> errors.ClockSkewError | None:
        """Return the refusal of events that grant by a clock that is not believed, if they do."""
        latest = self._latest_us()
        for new in events:
            if new.wall_us > latest and isinstance(new.event, _GRANTS):
                fact = f"wall_us={new.wall_us}, event_type={new.event.event_type}"
                return errors.ClockSkewError(
                    f"ClockSkew: our clock moved, nothing is granted: {fact}"
                )
        return None

    @in_our_words
    def append(
        self, events: Sequence[NewEvent], *, expected: Mapping[str, int] | None = None
    ) -> int:
        """
        Record `events` in one transaction, all or none, and return the head position.

        Rule: design section 4, "One fenced writer with group commit".

        An event whose idempotency key is recorded with the same arguments is not recorded again.

        Args:
            expected: stream -> the version that the decision was made on.

        Raises:
            StaleStreamError: a stream has another version than expected.
            FencedError: another writer has moved the head or the epoch.
            CapacityError: the database refused a holder; nothing of the batch is recorded.
            ClockSkewError: a grant by a clock that moved; nothing of the batch is recorded.
            IdempotencyError: a key was used before with other arguments.
            UnfitError: a text or a number can't be recorded; nothing is.
            UnknownOutcomeError: the answer to this commit, or to the one before, was lost.
            BusyError: another process holds the ledger; nothing of the batch is recorded.
            LedgerError: the database failed; nothing of the batch is recorded.
        """
        self._asked()
        for stream, version in (expected or {}).items():
            if self.stream_version(stream) != version:
                if not commands.not_recorded(self._connection, events):
                    return self._head.position  # the same command again: the same answer
                raise errors.StaleStreamError(stream=stream, expected_version=version)
        skewed = self.skew(events)
        if skewed and commands.not_recorded(self._connection, events):
            raise skewed
        try:
            return self.commit(events)
        except (DBAPIError, errors.CapacityError) as error:
            if isinstance(error, DBAPIError) and not refused_by_rule(error):
                raise unavailable(error) from error
            return self._append_without_repeats(events, error)

    @in_our_words
    def record(self, batch: Sequence[Command]) -> list[Outcome]:
        """Record commands in one transaction; see `ledger.store.writing.commands.record`."""
        self._asked()
        return commands.record(self, batch)

    def _begin_epoch(self, version: str, wall_us: int) -> None:
        head = self._head
        started = EpochStarted(
            epoch=head.epoch, holder=head.holder, origin=head.origin, tenure_version=version
        )
        new = NewEvent(
            stream="sys",
            event=started,
            actor=head.holder,
            idempotency_key=f"epoch:{head.epoch}",
            wall_us=wall_us,
        )
        self._begin_with([new])

    def _begin_with(self, events: Sequence[NewEvent]) -> None:
        batch = self._batch(events)
        self._write(batch)
        self._stand_behind(batch)

    def commit(
        self, events: Sequence[NewEvent], beside: Callable[[Connection], None] | None = None
    ) -> int:
        """
        Record `events` in one transaction, and let what the database says of them through.

        `beside` writes what is no projection in the same transaction, after the events.
        """
        self._asked()
        if not events:
            return self._head.position
        batch = self._batch(events)
        transaction = self._connection.begin()
        try:
            self._write(batch, last=beside is None)
            if beside is not None:
                beside(self._connection)
        except BaseException as error:
            committing = self._outbox.committing
            self._projector = self._tree = None  # they counted on rows that are not there
            self._outbox = Outbox(self._connection)
            with suppress(DBAPIError):  # a connection that is gone has nothing to undo
                transaction.rollback()
            if not committing or not isinstance(error, DBAPIError) or refused_by_rule(error):
                raise
            self._settle_lost(batch, error)
        else:
            try:
                transaction.commit()
            except DBAPIError as error:
                transaction.close()
                self._settle_lost(batch, error)
        self._stand_behind(batch)
        return batch.head.position

    def _write(self, batch: _Batch, *, last: bool = False) -> None:
        before, after = self._head, batch.head
        row = (after.position, after.at_us, after.chain_hash, before.epoch, before.position)
        outbox = self._outbox
        outbox.add(statements.MOVE_HEAD, [row], lambda: _fenced(before))
        outbox.add(statements.EVENT, batch.rows, _dropped)
        if self._projector is None or self._tree is None:
            outbox.send()  # what is read now is read under the head's lock
            self._projector = Projector(self._connection, outbox)
            self._tree = Tree(self._connection, before.position, outbox)
        add = self._projector.add
        try:
            for position, (new, at_us) in enumerate(
                zip(batch.events, batch.times, strict=True), before.position + 1
            ):
                add(position, at_us, new.event)
        except errors.CapacityError:
            outbox.send()  # who is fenced hears that first
            raise
        self._projector.flush()
        self._tree.grow([row[_LEAF] for row in batch.rows])
        outbox.send(last=last)

    def _batch(self, events: Sequence[NewEvent]) -> _Batch:
        """Give every event its place in the ledger; touches no table."""
        position, at_us, chain = self._head.position, self._head.at_us, self._head.chain_hash
        epoch = self._head.epoch
        known, versions = self._stream_versions(), dict[str, int]()
        rows: list[Row] = []
        times: list[int] = []
        latest_us = self._latest_us()
        for new in events:
            position += 1
            at_us += 1
            if at_us < new.wall_us <= latest_us:
                at_us = new.wall_us
            times.append(at_us)
            event, stream, actor = new.event, new.stream, new.actor
            version = 1 + (versions.get(stream) or known.get(stream, 0))
            versions[stream] = version
            body, as_bytes = body_bytes_of(new)
            said = hashlib.sha256(as_bytes)
            words = (
                position,
                stream,
                version,
                event.event_type,
                body,
                actor,
                epoch,
                new.causation_position,
                new.correlation_id,
                new.idempotency_key,
                said.digest(),
                at_us,
                new.wall_us,
            )
            leaf = row_leaf(words, said.hexdigest())
            chain = chain_hash(chain, leaf)
            rows.append((*words, leaf, chain))
        head = structs.replace(self._head, position=position, chain_hash=chain, at_us=at_us)
        return _Batch(events=events, rows=rows, times=times, head=head, versions=versions)

    def _latest_us(self) -> int:
        return WALL_MAX_US if self._clock is None else self._clock.latest_us()

    def _settle_lost(self, batch: _Batch, error: DBAPIError) -> None:
        """
        Learn what became of a commit that failed: an error there is an unknown outcome.

        Returns if the batch is recorded after all. What can't be learnt now is asked before
        anything else.
        """
        self._projector = self._tree = None
        self._lost = batch
        try:
            self._connection.connection.rollback()  # the driver may still be inside of it
            self._settle()
        except (SQLAlchemyError, self._connection.dialect.loaded_dbapi.Error) as lost:
            raise errors.UnknownOutcomeError(
                f"the answer to a commit was lost: position={batch.head.position}"
            ) from lost
        if self._head != batch.head:
            raise unavailable(error) from error

    def _settle(self) -> None:
        """
        Stand where a commit whose answer was lost has left the ledger, if there is one.

        Raises:
            FencedError: neither where it began nor where it would have ended.
        """
        if self._lost is None:
            return
        with self._connection.begin():
            now = read_head(self._connection, lock=True)
        lost, self._lost = self._lost, None
        if now == lost.head:
            self._stand_behind(lost)
        elif now != self._head:
            raise errors.FencedError(f"another writer took over: epoch={self._head.epoch}")

    def _stand_behind(self, batch: _Batch) -> None:
        """Remember what a batch that is durable leaves."""
        self._head = batch.head
        self._stream_versions().update(batch.versions)
        self.recent.extend(new.idempotency_key for new in batch.events)

    def _asked(self) -> None:
        """Settle what is not, before anything is decided on what this writer remembers."""
        try:
            self._settle()
        except SQLAlchemyError as error:  # what is asked now may be just what was lost
            raise errors.UnknownOutcomeError(
                f"the answer to a commit is still lost: position={self._head.position}"
            ) from error

    def _append_without_repeats(
        self, events: Sequence[NewEvent], error: DBAPIError | errors.CapacityError
    ) -> int:
        """Append what is not recorded yet; raise the refusal if it was not about a repeat."""
        fresh = commands.not_recorded(self._connection, events)
        if len(fresh) < len(events):
            return self.append(fresh)
        if isinstance(error, errors.CapacityError):
            raise error
        raise self.refusal(error) from error

    def refusal(self, error: DBAPIError) -> errors.LedgerError:
        """Return the error for what a rule of the database refused."""
        if error.statement == statements.EVENT.text(self._connection):
            return errors.LedgerError(f"the ledger refused an event: {fact_of(error)}")
        return errors.CapacityError(fact_of(error))

    def _stream_versions(self) -> dict[str, int]:
        """Return every stream's version; read once, for only this writer moves them after."""
        if self._versions is None:
            table = schema.ledger_streams.c
            own = not self._connection.in_transaction()
            try:
                rows = self._connection.execute(select(table.stream, table.version))
                self._versions = {row.stream: row.version for row in rows}
            finally:
                if own:
                    self._connection.rollback()
        return self._versions


def start_epoch(
    connection: Connection,
    *,
    holder: str,
    origin: str,
    version: str,
    wall_us: int,
    place: str,
    clock: SteadyClock | None = None,
    above: int = 0,
    then: Sequence[NewEvent] = (),
    keep: bool = True,
) -> Writer:
    """
    Move the epoch and record that it moved, in one transaction; return the epoch's writer.

    Args:
        clock: what this process may believe of its wall clock; None offline and in virtual time.
        above: the epoch must be beyond this one; every one up to there is started.
        then: the epoch's first events, in the same transaction.
        keep: False rolls everything back at the end; the writer is then of no use.

    Raises:
        InputError: the ledger has another origin, or these words can't be recorded.
        CorruptLedgerError: the head is not where the events end.
        CapacityError: the database refused one of the events; nothing is recorded.
    """
    assert origin, "a ledger belongs to someone"
    for name, text in (("holder", holder), ("origin", origin)):
        if not fits(text):  # the head has them before their event is looked at
            raise errors.InputError("holds a NUL or half of a character", field=name)
    try:
        with connection.begin() as transaction:
            before = read_head(connection, lock=True)
            _check_end(connection, before)
            if before.epoch > 0 and before.origin != origin:
                raise errors.InputError(
                    f"the ledger belongs to another origin: origin={before.origin},"
                    f" expected={origin}",
                    place=place,
                )
            for epoch in range(before.epoch + 1, max(before.epoch, above) + 2):
                connection.execute(
                    update(schema.ledger_head).values(epoch=epoch, holder=holder, origin=origin)
                )
                writer = Writer(connection, read_head(connection), clock)
                writer._begin_epoch(version, wall_us)  # noqa: SLF001 - the function's other half
            if then:
                writer._begin_with(then)  # noqa: SLF001 - as above
            if not keep:
                transaction.rollback()
    except DBAPIError as error:
        if then and refused_by_rule(error):
            raise errors.CapacityError(fact_of(error)) from error
        raise unavailable(error) from error
    return writer


def _check_end(connection: Connection, head: Head) -> None:
    events = schema.ledger_events.c
    last = connection.execute(
        select(events.position, events.chain_hash).order_by(events.position.desc()).limit(1)
    ).first()
    position, chain = (last.position, bytes(last.chain_hash)) if last else (0, GENESIS)
    if (position, chain) != (head.position, head.chain_hash):
        raise errors.CorruptLedgerError(
            f"the head is not where the events end: last={position}", position=head.position
        )
