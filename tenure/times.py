"""Which moment a question is about: `--at`, `--since` and `--until` against a ledger's own time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.units import MICROSECONDS, format_time, parse_time

SIMULATION: Final = "simulation/"
"""The origin of a ledger whose time is virtual starts with this (cli.md, Ledger)."""

_EXAMPLE: Final = 'write it as 2026-03-02T14:05:00+01:00, 2026-03-02 or "2h ago"'


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTime:
    """
    What "now" means for the questions to one ledger.

    A simulation's time is virtual: its now is the time of its head, whatever the clock says. Of a
    cluster's objects now is the first second after all moments that they tell; `began` as there.
    """

    now_us: int
    virtual: bool
    began: Mapping[str, int] | None = None

    def since(self, pod_uid: str, at_us: int) -> int | None:
        """Return since when a Pod holds or waits, by the ledger or its object; None = not told."""
        return at_us if self.began is None else self.began.get(pod_uid)

    @property
    def source(self) -> str:
        """Return what relative times count from, for a note beside the answer."""
        what = "the ledger's head" if self.virtual else "now"
        what = what if self.began is None else "the newest moment that the objects tell"
        return f"{what}, {format_time(self.now_us)}"


def decided_us(began: Mapping[str, int]) -> int:
    """Return the moment after which the Pods that wait in a cluster's objects were decided."""
    return began[""] + MICROSECONDS - 1


def ledger_time(*, origin: str, head_at_us: int, clock_us: int) -> LedgerTime:
    """Return the time of a ledger: its head's for a simulation, else the clock's."""
    virtual = origin.startswith(SIMULATION)
    return LedgerTime(now_us=head_at_us if virtual else clock_us, virtual=virtual)


def read_moment(text: str, time: LedgerTime, *, option: str) -> int:
    """Return a moment in epoch microseconds. Raises InputError: no time, or one without a zone."""
    try:
        return parse_time(text, now_us=time.now_us, field=option)
    except InputError as error:
        raise with_next(error, _EXAMPLE) from None


def is_relative(text: str) -> bool:
    """`text` depends on what "now" is."""
    words = text.strip().lower()
    return words == "now" or words.endswith("ago")


def iso_time(at_us: int) -> str:
    """Return the moment exactly, for programs: local time, offset, microseconds if any."""
    return format_time(at_us, timespec="auto")


def iso_or_none(at_us: int | None) -> str | None:
    """Return `iso_time`, or None for what has not happened."""
    return None if at_us is None else iso_time(at_us)
