"""JSON of callers, decoded within bounds."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from ledger.domain.errors import InputError

NESTED_MAX: Final = 1 << 17
"""Opening brackets of a message: a claim with all that the API allows has a tenth."""
VALUES_MAX: Final = 1 << 20
"""Commas of a message: two claims whose annotations are nothing else have half as many."""
_PART: Final = 1 << 20
"""Bytes that are looked at before other threads have their turn."""

T = TypeVar("T")


def check_values(body: bytes, nested_max: int, values_max: int, field: str = "body") -> None:
    """Refuse a body with more opening brackets or commas, those in texts too. Raises InputError."""
    for marks, most in ((b"[{", nested_max), (b",", values_max)):
        values = 0
        for at in range(0, len(body), _PART):
            part = body[at : at + _PART]
            values += len(part) - len(part.translate(None, marks))
            if values > most:
                raise InputError(f"too many values: count={values}, most={most}", field=field)


def decode_bounded(body: bytes, kind: type[T], *, nested_max: int = NESTED_MAX) -> T:
    """
    Decode a body of JSON that anybody may have sent.

    Raises:
        InputError: it is another kind of value, or beyond a bound.
    """
    check_values(body, nested_max, VALUES_MAX)
    return decode_checked(body, kind)


def decode_checked(body: bytes | msgspec.Raw, kind: type[T], field: str = "body") -> T:
    """Decode a body whose values were counted, as `decode_bounded` does."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InputError(str(error), field=field) from error
