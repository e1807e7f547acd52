"""Which nodes are to be looked at: those that were noted, and each in its turn of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice


class NodesDue:
    """
    Names of nodes to look at.

    Args:
        names: all nodes, asked for at the begin of each sweep.
        together: so many are taken at once.
        sweep_seconds: from the begin of one sweep to the next, which waits for its end.
        delays: seconds after which noted nodes are due; those of the first delay come first.
    """

    def __init__(
        self,
        now: Callable[[], float],
        names: Callable[[], Iterable[str]],
        *,
        together: int,
        sweep_seconds: float,
        delays: tuple[float, ...] = (0.0,),
    ) -> None:
        self._now = now
        self._names = names
        self._together = together
        self._sweep_seconds = sweep_seconds
        self._noted: dict[float, dict[str, float]] = {delay: {} for delay in delays}
        self._sweep: list[str] = []
        self._sweep_at = 0.0

    def note(self, name: str, delay: float = 0.0, since: float | None = None) -> None:
        """Let a node be due so long after a moment (None = now); a noted one keeps its time."""
        self._noted[delay].setdefault(name, (self._now() if since is None else since) + delay)

    def take_noted(self) -> list[str]:
        """Return noted nodes that are due, and forget that they are."""
        now, names = self._now(), dict[str, None]()
        for noted in self._noted.values():
            for name in list(islice(noted, self._together - len(names))):
                if noted[name] > now:
                    break
                del noted[name]
                names[name] = None
        return list(names)

    def take(self) -> list[str]:
        """Return noted nodes that are due, then those whose turn it is."""
        now = self._now()
        if now >= self._sweep_at and not self._sweep:
            self._sweep_at = now + self._sweep_seconds
            self._sweep = list(self._names())
        names = dict.fromkeys(self.take_noted())
        while self._sweep and len(names) < self._together:
            names[self._sweep.pop()] = None
        return list(names)
