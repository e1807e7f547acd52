"""Moments and durations as people read and write them on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from ledger.domain.errors import InputError

MICROSECONDS: Final = 1_000_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DATE: Final = re.compile(r"\s*[0-9]{4}-[0-9]{2}-[0-9]{2}\s*")
_AGO: Final = re.compile(r"(?P<parts>(?:[0-9]{1,18}[smhdw]\s*+)+)ago", re.IGNORECASE)
_PART: Final = re.compile(r"([0-9]{1,18})([smhdw])", re.IGNORECASE)
_DECIMAL: Final = re.compile(r"[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_YEARS: Final = (1970, 9000)


def parse_time(text: str, *, now_us: int, field: str = "") -> int:
    """
    Return the moment in microseconds since the epoch.

    Rule: cli.md, Commands: ISO 8601 with a zone, or `2h ago`, `1d12h ago`; also `now`, and a date,
    which is its first moment in the local zone: midnight, if it has one.

    Raises:
        InputError: anything else, a time without a zone among it.
    """
    words = text.strip()
    if words.lower() == "now":
        return now_us
    ago = _AGO.fullmatch(words)
    if ago is not None:
        seconds = sum(
            int(number) * _SECONDS[unit.lower()] for number, unit in _PART.findall(ago["parts"])
        )
        return _bounded(now_us - seconds * MICROSECONDS, text, field)
    try:
        moment = datetime.fromisoformat(words)
        if DATE.fullmatch(words):
            moment = datetime.fromtimestamp(moment.timestamp(), UTC)  # a day may have no midnight
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"not a time such as 2026-03-03T14:05:00+01:00 or '2h ago': value={text!r}", field=field
        ) from error
    if moment.tzinfo is None:
        raise InputError(f"a time needs its zone, such as Z or +01:00: value={text!r}", field=field)
    return _bounded((moment - _EPOCH) // timedelta(microseconds=1), text, field)


def parse_decimal(text: str) -> Decimal | None:
    """Return a plain number such as 4 or 0.25, in ASCII digits alone; None for another text."""
    return Decimal(text) if _DECIMAL.fullmatch(text) else None


def format_time(at_us: int, *, timespec: str = "seconds") -> str:
    """Return the moment in local time with its offset; one that no calendar has as the number."""
    try:
        moment = (_EPOCH + timedelta(microseconds=at_us)).astimezone()
    except (OverflowError, ValueError):
        return f"{at_us} us after 1970"
    return moment.isoformat(timespec=timespec)


def format_duration(duration_us: int) -> str:
    """Return a duration by its two largest units: `2d 3h`, `5m 10s`, `0.4s`; `0s` below 1 ms."""
    if duration_us < MICROSECONDS // 1000:
        return "0s"
    if duration_us < 10 * MICROSECONDS:
        return f"{duration_us / MICROSECONDS:.2g}s"
    rest, parts = duration_us // MICROSECONDS, []
    for unit in ("w", "d", "h", "m", "s"):
        number, rest = divmod(rest, _SECONDS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return " ".join(parts[:2])


def _bounded(at_us: int, text: str, field: str) -> int:
    first, last = (datetime(year, 1, 1, tzinfo=UTC) for year in _YEARS)
    micro = timedelta(microseconds=1)
    if not (first - _EPOCH) // micro <= at_us < (last - _EPOCH) // micro:
        raise InputError(
            f"a time between {_YEARS[0]} and {_YEARS[1]} is needed: {text!r}", field=field
        )
    return at_us
