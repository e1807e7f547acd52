"""Axes and areas of the report's charts, as percentages: the page can stretch them at will."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from scheduler.usage.capacity import PARTS
from scheduler.usage.model import WHOLE, CapacityPoint, History
from tenure.units import MICROSECONDS

TICKS_MAX: Final = 8
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_STEPS_SECONDS: Final = (
    *(1, 5, 15, 30),
    *(_MINUTE * n for n in (1, 5, 15, 30)),
    *(_HOUR * n for n in (1, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark on an axis, `percent` of the way along."""

    percent: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """One band of a stacked chart, as an SVG path in a box of 1000 by 100."""

    name: str
    path: str


def local(at_us: int) -> datetime:
    """Return the moment in local time."""
    return (_EPOCH + timedelta(microseconds=at_us)).astimezone()


def axis_ticks(history: History) -> tuple[Tick, ...]:
    """Return the marks of the axis: local midnights or hours, or round positions."""
    span = history.end - history.start
    if span <= 0:
        return ()
    if history.axis == "position":
        step = nice_step(span, TICKS_MAX)
        first = history.start + (-history.start % step)
        return tuple(
            Tick(percent=_along(history, at), label=f"{at:,}")
            for at in range(first, history.end + 1, step)
        )
    return tuple(_time_ticks(history))


def _time_ticks(history: History) -> Iterator[Tick]:
    span = (history.end - history.start) / MICROSECONDS
    step = next((s for s in _STEPS_SECONDS if span / s <= TICKS_MAX), _STEPS_SECONDS[-1])
    first = local(history.start).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    end = local(history.end).replace(tzinfo=None)
    count = int((end - first).total_seconds()) // step + 1
    for i in range(count + 1):
        moment = (first + timedelta(seconds=step * i)).astimezone()
        at = (moment - _EPOCH) // timedelta(microseconds=1)
        if history.start <= at <= history.end:
            yield Tick(percent=_along(history, at), label=_label(moment, step))


def _label(moment: datetime, step: int) -> str:
    if step >= _DAY or (moment.hour == 0 and moment.minute == 0 and moment.second == 0):
        return f"{moment:%a} {moment.day} {moment:%b}"
    return f"{moment:%H:%M:%S}" if step < _MINUTE else f"{moment:%H:%M}"


def nice_step(span: int, parts: int) -> int:
    """Return the smallest 1, 2 or 5 times a power of ten that cuts `span` in at most `parts`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if span <= parts * factor * power:
                return factor * power
        power *= 10


def y_ticks(top: int) -> tuple[Tick, ...]:
    """Return round marks from 0 to `top`, in whole cards."""
    step = nice_step(top, 5)
    return tuple(
        Tick(percent=round(at * 100 / top, 3), label=f"{at:,}") for at in range(0, top + 1, step)
    )


def areas(history: History, points: Sequence[CapacityPoint]) -> tuple[Area, ...]:
    """Return the stacked bands: allocated at the bottom, then stranded and the rest."""
    top = max((point.capacity for point in points), default=0)
    if not top:
        return ()
    floor = [0] * len(points)
    bands = []
    for name in PARTS:
        roof = [low + int(getattr(p, name)) for low, p in zip(floor, points, strict=True)]
        if roof != floor:
            bands.append(Area(name=name, path=_band(history, points, floor, roof, top)))
        floor = roof
    return tuple(bands)


def _band(
    history: History,
    points: Sequence[CapacityPoint],
    floor: Sequence[int],
    roof: Sequence[int],
    top: int,
) -> str:
    across = [round(_along(history, point.at) * 10, 1) for point in points]
    up = [round(100 - high * 100 / top, 2) for high in roof]
    down = [round(100 - low * 100 / top, 2) for low in floor]
    there = _steps(across, up)
    back = " ".join(f"L{x:g} {y:g}" for x, y in reversed(list(_corners(across, down))))
    return f"M{there} {back}Z"


def _steps(across: Sequence[float], heights: Sequence[float]) -> str:
    return " L".join(f"{x:g} {y:g}" for x, y in _corners(across, heights))


def _corners(across: Sequence[float], heights: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yield the corners of a line that keeps each height until the next point."""
    before: float | None = None
    for i, (x, y) in enumerate(zip(across, heights, strict=True)):
        if before is not None and before != y:
            yield x, before
        if before != y or i == len(across) - 1:
            yield x, y
        before = y


def cards_of(core_percent: int) -> float:
    """Return core percent as cards."""
    return core_percent / WHOLE


def _along(history: History, at: int) -> float:
    span = history.end - history.start
    return round((at - history.start) * 100 / span, 3) if span else 0.0
