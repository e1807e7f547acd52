"""For how long what failed is left alone: each time twice as long, up to a bound."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 60.0

_What = TypeVar("_What", bound=Hashable)


class Delays(Generic[_What]):
    """
    When what failed may be tried again.

    Args:
        now: seconds of a clock that is never set back.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._failed: dict[_What, tuple[float, float]] = {}  # seconds, not before when

    def is_due(self, what: _What) -> bool:
        """Tell whether something may be tried now."""
        return what not in self._failed or self._now() >= self._failed[what][1]

    def failed(self, what: _What) -> None:
        """Leave something alone that was tried in vain."""
        before, _ = self._failed.get(what, (0.0, 0.0))
        seconds = min(2 * before, LONGEST_SECONDS) or FIRST_SECONDS
        self._failed[what] = seconds, self._now() + seconds

    def over(self, what: _What) -> None:
        """Forget that something failed: it was done, or is wanted no more."""
        self._failed.pop(what, None)
