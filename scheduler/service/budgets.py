"""How much each of many may do now, and for how long what failed is left alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

KEPT_MAX: Final = 4_096

_What = TypeVar("_What", bound=Hashable)
_Value = TypeVar("_Value")


def put_newest(newest: dict[_What, _Value], key: _What, value: _Value, most: int) -> None:
    """Put an entry last, and drop the first ones while there are more than `most`."""
    newest.pop(key, None)
    newest[key] = value
    while len(newest) > most:
        del newest[next(iter(newest))]


@dataclass(slots=True, eq=False)
class Budgets:
    """
    Budgets by key, all alike.

    Attributes:
        burst: how many one may spend at once.
        seconds: after how long one of them has come back.
        kept_max: of how many keys it is known what they spent; who spent something the longest ago
            is forgotten first.
    """

    now: Callable[[], float]
    burst: float
    seconds: float
    kept_max: int = KEPT_MAX
    _spent: dict[Hashable, tuple[float, float]] = field(
        default_factory=dict
    )  # how many, as of when; oldest first

    def __len__(self) -> int:
        return len(self._spent)

    def has(self, key: Hashable) -> bool:
        """Tell whether one is left."""
        return self._left(key) >= 1

    def take(self, key: Hashable) -> bool:
        """Take one; tell whether there was one."""
        left = self._left(key)
        if left < 1:
            return False
        put_newest(self._spent, key, (self.burst - left + 1, self.now()), self.kept_max)
        return True

    def give_back(self, key: Hashable) -> None:
        """Give one back that was taken for nothing."""
        spent, at = self._spent.get(key, (0.0, self.now()))
        if spent > 1:
            self._spent[key] = (spent - 1, at)
        else:
            self._spent.pop(key, None)

    def _left(self, key: Hashable) -> float:
        spent, at = self._spent.get(key, (0.0, 0.0))
        return self.burst - max(0.0, spent - (self.now() - at) / self.seconds)


class SharedBudgets:
    """Budgets by key, and one of all keys together."""

    def __init__(self, each: Budgets, together: Budgets) -> None:
        self._each = each
        self._together = together

    def take(self, key: Hashable) -> bool:
        """Take one of a key; tell whether there was one."""
        return self._together.has(None) and self._each.take(key) and self._together.take(None)

    def give_back(self, key: Hashable) -> None:
        """Give one back that was taken for nothing."""
        self._each.give_back(key)
        self._together.give_back(None)


FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 60.0


class Delays(Generic[_What]):
    """When what failed may be tried again, by a clock that is never set back."""

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
