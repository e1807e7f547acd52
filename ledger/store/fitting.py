"""
What every database holds and every reader can read: looked at once, before it is recorded.

Postgres has no NUL character, and a lone surrogate has no bytes in UTF-8. Neither has a place in a
name, a label or a reason, and no machine has a number or a name beyond `ledger.domain.bounds`.
Nothing of a command that has one is recorded, on no database; what stands beside it in a batch is.
"""

from __future__ import annotations

import re
from typing import Final

from ledger.domain.bounds import NAME_MAX, WALL
from ledger.domain.errors import LedgerError
from ledger.domain.log.codec import Json, misfit, plain_value
from ledger.domain.log.events import encode_event
from ledger.domain.log.recorded import NewEvent

AROUND_MAX: Final = 640
"""Characters of a stream, a key and the like, which are made of a few names: of at most four bytes
each they are a key of any index."""
_NUL: Final = "\x00"
_NUL_AS_JSON: Final = "\\u0000"


class UnfitError(LedgerError):
    """A value of a command can't be recorded. Refuse the command; it will not get better."""


class UnfitTextError(UnfitError):
    """A text holds a NUL or half of a character."""


class UnfitNumberError(UnfitError):
    """An integer is out of its bounds."""


class UnfitNameError(UnfitError):
    """A name, or what is recorded around an event, is longer than the index that it is a key of."""


def body_bytes_of(new: NewEvent) -> tuple[str, bytes]:
    """
    Return the event's canonical body and the bytes that are hashed.

    Raises:
        UnfitTextError: a text of the event, or of what is recorded around it, holds a NUL or a lone
            surrogate; with the event's type and the field.
        UnfitNumberError: an integer is out of its bounds; likewise.
        UnfitNameError: a name is too long; likewise.
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
    """Return what is wrong with the first part of an event that would not read back."""
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
    for field in ("stream", "actor", "correlation_id", "idempotency_key"):
        length = len(getattr(new, field))
        if length > AROUND_MAX:
            raise _too_long(new, field, length, AROUND_MAX)


def _too_long(new: NewEvent, field: str, length: int, most: int) -> UnfitNameError:
    return UnfitNameError(
        f"a name is too long: event_type={new.event.event_type}, field={field},"
        f" characters={length}, most={most}"
    )


def _unfit_number(new: NewEvent, field: str) -> UnfitNumberError:
    assert field, new.event  # else a body is written wrongly, which is our own bug
    return UnfitNumberError(
        f"a number is out of its bounds: event_type={new.event.event_type}, field={field}"
    )


def _refuse(new: NewEvent) -> None:
    """Raise for the first text that does not fit; six letters that look like a NUL may be text."""
    around = {
        "stream": new.stream,
        "actor": new.actor,
        "correlation_id": new.correlation_id,
        "idempotency_key": new.idempotency_key,
    }
    field = _unfit(around, "") or _unfit(plain_value(new.event), "")
    if field:
        raise UnfitTextError(
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
