"""How far a process believes its own wall clock: as far as the monotonic one agrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SKEW_MAX_US: Final = 5_000_000
"""Rule: design section 8: so far wall time may move from the monotonic clock in a process."""
NOTHING_BELIEVED: Final = -1
"""What `SteadyClock.latest_us` says of a clock that moved: no time that it gave is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Both clocks of a machine at one moment, in microseconds."""

    wall_us: int
    monotonic_us: int


def ahead_us(start: Reading, now: Reading) -> int:
    """Return how far wall time has moved ahead of the monotonic clock since the start."""
    return (now.wall_us - start.wall_us) - (now.monotonic_us - start.monotonic_us)


class SteadyClock:
    """A process's clock since it was made, which is when somebody compared it with another's."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read
        self._start = read()

    def latest_us(self) -> int:
        """Return the latest wall time that is believed of an event now."""
        now = self._read()
        moved = abs(ahead_us(self._start, now)) > SKEW_MAX_US
        return NOTHING_BELIEVED if moved else now.wall_us + SKEW_MAX_US
