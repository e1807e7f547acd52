"""
Commands that share a transaction: each is recorded whole or not at all, and gets its own answer.

A batch is tried as one transaction first. When the database refuses it, repeated commands are
answered from the ledger and the rest is halved until only the offender is left to be refused.

What no database holds or no reader can read is refused before: Postgres has no NUL character, and a
lone surrogate has no bytes in UTF-8. No number or name is beyond `ledger.domain.bounds`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError

from ledger.domain import errors
from ledger.domain.bounds import NAME_MAX, WALL
from ledger.domain.log.codec import Json, misfit, plain_value
from ledger.domain.log.events import encode_event
from ledger.domain.log.recorded import NewEvent
from ledger.store import schema
from ledger.store.failures import refused_by_rule, unavailable
from ledger.store.reading.tables import CONTRADICTION, in_parts

if TYPE_CHECKING:
    from ledger.store.writing.append import Writer

AROUND_MAX: Final = 640
"""Characters of a stream, a key and the like, which are made of a few names: of at most four bytes
each they are a key of any index."""
_AROUND: Final = ("stream", "actor", "correlation_id", "idempotency_key")
_NUL: Final = "\x00"
_NUL_AS_JSON: Final = "\\u0000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """
    What one caller decided: at least one event; all of them stand or fall together.

    Their idempotency keys make the command known when it comes again. `expected`: stream -> the
    version that the decision was made on. `after`: keys of events of others that it counted.
    """

    events: tuple[NewEvent, ...]
    expected: Mapping[str, int] = field(default_factory=dict)
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.events, "a command records something"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The command is durable, at the positions `first` to `last`; the same for a repeat."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """
    Nothing of the command is recorded.

    `error` is a StaleStreamError, NotAfterError, CapacityError, IdempotencyError, ClockSkewError,
    UnfitError, or a LedgerError for events that contradict the ledger in another way.
    """

    error: errors.LedgerError


Outcome = Recorded | Refused
_Known = tuple[int, tuple[str, str, bytes]]  # where a key is recorded, and with which arguments


def record(writer: Writer, commands: Sequence[Command]) -> list[Outcome]:
    """
    Record a batch and return every command's answer, in the order of the commands.

    Rule: design section 4, "One fenced writer with group commit".

    `expected` is compared with the versions that the commands before it in the batch leave.

    Raises:
        FencedError: another writer took over. What of the batch was recorded before is durable.
        UnknownOutcomeError: the answer to a commit was lost.
        LedgerError: the database failed; asking again with the same keys is safe.
    """
    try:
        return _together(writer, commands, None)
    except (DBAPIError, errors.CapacityError, *CONTRADICTION) as error:
        reason = _refusal(writer, error)
    recorded = _recorded(writer, _keys(commands))
    if recorded:
        try:
            return _together(writer, commands, recorded)
        except (DBAPIError, errors.CapacityError, *CONTRADICTION) as error:
            reason = _refusal(writer, error)
    if len(commands) == 1:
        return [Refused(error=reason)]
    middle = len(commands) // 2
    return [*record(writer, commands[:middle]), *record(writer, commands[middle:])]


def _together(
    writer: Writer, commands: Sequence[Command], recorded: Mapping[str, _Known] | None
) -> list[Outcome]:
    """Record what is new among the commands in one transaction."""
    batch: list[NewEvent] = []
    outcomes: list[Outcome] = []
    known: dict[str, _Known] = {**_counted(writer, commands), **(recorded or {})}
    ahead: dict[str, int] = {}
    for command in commands:
        try:
            arguments = [arguments_of(new) for new in command.events]
        except UnfitError as error:
            outcomes.append(Refused(error=error))
            continue
        answer = _answer(command, known)
        stale = None if answer else _stale(writer, command, ahead, known)
        if stale and recorded is None:  # perhaps a repeat, whose own success moved the version
            recorded = _recorded(writer, _keys(commands))
            known = {**recorded, **known}
            answer = _answer(command, known)
        answer = answer or stale
        skewed = None if answer else writer.skew(command.events)
        if skewed:
            recorded = _recorded(writer, _keys(commands)) if recorded is None else recorded
            known = {**recorded, **known}
            answer = _answer(command, known) or Refused(error=skewed)
        if answer is None:
            first = writer.head.position + len(batch) + 1
            pairs = zip(command.events, arguments, strict=True)
            for position, (new, words) in enumerate(pairs, first):
                ahead[new.stream] = ahead.get(new.stream, 0) + 1
                known[new.idempotency_key] = (position, words)
            batch += command.events
            answer = Recorded(first=first, last=first + len(command.events) - 1)
        outcomes.append(answer)
    writer.commit(batch)
    return outcomes


def _answer(command: Command, known: Mapping[str, _Known]) -> Outcome | None:
    keys = [new.idempotency_key for new in command.events]
    found = [known.get(key) for key in keys]
    if len(set(keys)) == len(keys) and not any(found):
        return None
    first = found[0][0] if found[0] else 0
    for offset, (new, at) in enumerate(zip(command.events, found, strict=True)):
        if at != (first + offset, arguments_of(new)):
            return Refused(error=_used_before(new))
    return Recorded(first=first, last=first + len(keys) - 1)


def not_recorded(connection: Connection, events: Sequence[NewEvent]) -> list[NewEvent]:
    """
    Return the events, one of each key, that the ledger does not have.

    Raises:
        IdempotencyError: a key was used before with other arguments.
    """
    fresh: dict[str, NewEvent] = {}
    with connection.begin():
        keys = {new.idempotency_key for new in events}
        recorded = known_keys(connection, [key for key in keys if fits(key)])
    for new in events:
        arguments = arguments_of(new)
        earlier = fresh.get(new.idempotency_key)
        _, found = recorded.get(new.idempotency_key, (0, None))
        known = arguments_of(earlier) if earlier else found
        if known is None:
            fresh[new.idempotency_key] = new
        elif known != arguments:
            raise _used_before(new)
    return list(fresh.values())


def _used_before(new: NewEvent) -> errors.IdempotencyError:
    return errors.IdempotencyError(
        "the key was used for another command:"
        f" idempotency_key={new.idempotency_key}, event_type={new.event.event_type}"
    )


def _stale(
    writer: Writer, command: Command, ahead: Mapping[str, int], known: Mapping[str, _Known]
) -> Refused | None:
    for stream, version in command.expected.items():
        if writer.stream_version(stream) + ahead.get(stream, 0) != version:
            return Refused(error=errors.StaleStreamError(stream=stream, expected_version=version))
    for key in command.after:
        if key not in known and key not in writer.recent:
            fact = f"what was counted is not in the ledger: idempotency_key={key}"
            return Refused(error=errors.NotAfterError(fact))
    return None


def _refusal(writer: Writer, error: Exception) -> errors.LedgerError:
    """Return a refusal in the ledger's words; raise what is the database's failure, not a rule."""
    if isinstance(error, errors.CapacityError):
        return error
    if not isinstance(error, DBAPIError):
        return errors.LedgerError(f"the command can't be recorded: {type(error).__name__}: {error}")
    if refused_by_rule(error):
        return writer.refusal(error)
    raise unavailable(error) from error


def _keys(commands: Sequence[Command]) -> set[str]:
    return {new.idempotency_key for command in commands for new in command.events}


def _counted(writer: Writer, commands: Sequence[Command]) -> dict[str, _Known]:
    """Return what is recorded of events that commands counted and nobody here knows of."""
    counted = {key for command in commands for key in command.after}
    keys = {key for key in counted - _keys(commands) if key not in writer.recent}
    return _recorded(writer, keys) if keys else {}


def _recorded(writer: Writer, keys: Iterable[str]) -> dict[str, _Known]:
    try:
        with writer.connection.begin():
            return known_keys(writer.connection, [key for key in keys if fits(key)])
    except DBAPIError as error:
        raise unavailable(error) from error


def known_keys(connection: Connection, keys: Iterable[str]) -> dict[str, _Known]:
    """Return where these keys are recorded and with which arguments, archived ones too."""
    found: dict[str, _Known] = {}
    for part in in_parts(keys):
        for table in (schema.ledger_events.c, schema.ledger_archived.c):
            columns = (table.position, table.stream, table.event_type, table.args_hash)
            query = select(table.idempotency_key, *columns).where(table.idempotency_key.in_(part))
            for key, position, *words, args in connection.execute(query):
                found[key] = (position, (words[0], words[1], bytes(args)))
    return found


def arguments_of(new: NewEvent) -> tuple[str, str, bytes]:
    """Return what makes two commands with one key the same; raises UnfitError."""
    _, body = body_bytes_of(new)
    return (new.stream, new.event.event_type, hashlib.sha256(body).digest())


class UnfitError(errors.LedgerError):
    """A value of a command can't be recorded. Refuse the command; it will not get better."""


def body_bytes_of(new: NewEvent) -> tuple[str, bytes]:
    """
    Return the event's canonical body and the bytes that are hashed.

    Raises:
        UnfitError: a text of the event, or of what is recorded around it, holds a NUL or a lone
            surrogate, an integer is out of its bounds, or a name is longer than the index that it
            is a key of; with the event's type and the field.
    """
    try:
        body = encode_event(new.event)
    except AssertionError as error:  # what the codec asserts, said with the field
        raise _misfit(new) from error
    except UnicodeEncodeError:
        _refuse(new)
        raise  # not reached: what has no bytes is found in one of the fields
    if type(new.wall_us) is not int or not WALL[0] <= new.wall_us <= WALL[1]:
        raise _unfit_number(new, "wall_us")
    if new.causation_position is not None and type(new.causation_position) is not int:
        raise _unfit_number(new, "causation_position")
    around = f"{new.stream}{new.actor}{new.correlation_id}{new.idempotency_key}"
    if len(around) > AROUND_MAX:
        _expect_short(new)
    if not fits(around) or ("\\" in body and _NUL_AS_JSON in body):
        _refuse(new)
    return body, body.encode()


def fits(text: str) -> bool:
    """Tell whether a text can be recorded."""
    if text.isascii():
        return _NUL not in text
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return _NUL not in text


def _misfit(new: NewEvent) -> UnfitError:
    path = misfit(new.event)
    value = plain_value(new.event)
    for key in re.findall(r"[^.\[\]]+", path):
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list | tuple) and key.isdigit():
            value = value[int(key)]
    if isinstance(value, str):
        return _too_long(new, path, len(value), NAME_MAX)
    return _unfit_number(new, path)


def _expect_short(new: NewEvent) -> None:
    for name in _AROUND:
        length = len(getattr(new, name))
        if length > AROUND_MAX:
            raise _too_long(new, name, length, AROUND_MAX)


def _too_long(new: NewEvent, field: str, length: int, most: int) -> UnfitError:
    return UnfitError(
        f"a name is too long: event_type={new.event.event_type}, field={field},"
        f" characters={length}, most={most}"
    )


def _unfit_number(new: NewEvent, field: str) -> UnfitError:
    assert field, new.event  # else a body is written wrongly, which is our own bug
    return UnfitError(
        f"a number is out of its bounds: event_type={new.event.event_type}, field={field}"
    )


def _refuse(new: NewEvent) -> None:
    """Raise for the first text that does not fit; six letters that look like a NUL may be text."""
    around: dict[str, Json] = {name: getattr(new, name) for name in _AROUND}
    field = _unfit(around, "") or _unfit(plain_value(new.event), "")
    if field:
        raise UnfitError(
            "a text holds a NUL or half of a character:"
            f" event_type={new.event.event_type}, field={field}"
        )


def _unfit(value: Json, path: str) -> str:
    """Return the path of the first text in `value` that does not fit; empty where all do."""
    if isinstance(value, str):
        return "" if fits(value) else path
    if isinstance(value, dict):
        joint = f"{path}." if path else ""
        below = [(item, f"{joint}{key}" if fits(key) else path) for key, item in value.items()]
        broken = next((path for key in value if not fits(key)), "")
        return broken or next(filter(None, (_unfit(item, at) for item, at in below)), "")
    if isinstance(value, list | tuple):
        found = (_unfit(item, f"{path}[{i}]") for i, item in enumerate(value))
        return next(filter(None, found), "")
    return ""
