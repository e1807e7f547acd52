"""
Which disagreements last: watches lag and Pods are on their way, and neither is drift.

Rule: design section 6. One is recorded after it was seen in two looks over a grace, and is over
after it was missed in two looks over a while; each once. The caller has the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from ledger.domain.log import drift
from scheduler.service.drift import Disagreement

LOOKS: Final = 2
GRACE_SECONDS: Final = 30.0
GRACES: Final[Mapping[str, float]] = MappingProxyType(
    {
        drift.HOLDER_GONE: 60.0,
        drift.UNSETTLED: 60.0,
        drift.UNKNOWN_HOLDERS: 60.0,
        drift.RELEASE_UNCONFIRMED: 600.0,
    }
)
"""Of kinds that are mended without anybody, and take longer than a watch."""
OVER_SECONDS: Final = 5.0
SCOPE_MAX: Final = 20
"""Open drifts of one node, or of what is about none; more are counted and not recorded."""


@dataclass(slots=True, kw_only=True)
class _Seen:
    """
    One disagreement that was seen, or was open already at the start.

    Attributes:
        first: when it was seen first.
        looks: how often it was seen; `missed`: how often it was not, one after another.
    """

    kind: str
    pod_uid: str
    first: float
    looks: int = 0
    missed: int = 0
    missed_first: float = 0.0
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """
    What is to be recorded after a look.

    Attributes:
        found: what has lasted.
        over: ids of what is open and is no longer so.
    """

    found: tuple[Disagreement, ...] = ()
    over: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Lasting:
    """What was seen of every scope: a node by its name, or the cluster by an empty one."""

    _seen: dict[str, dict[str, _Seen]] = field(default_factory=dict)

    def recorded(self, scope: str, drift_id: str, kind: str, pod_uid: str) -> None:
        """Take note of drift that the ledger has as open, from now on or from the start."""
        seen = _Seen(kind=kind, pod_uid=pod_uid, first=0.0, is_open=True)
        self._seen.setdefault(scope, {})[drift_id] = seen

    def look(
        self,
        scope: str,
        there: Iterable[Disagreement],
        *,
        now: float,
        unsure: AbstractSet[str] = frozenset(),
    ) -> Changes:
        """
        Take a look at one scope; return what is to be recorded of it.

        Args:
            unsure: UIDs of Pods of which nothing can be told now.
        """
        seen = self._seen.setdefault(scope, {})
        now_there = {one.drift_id: one for one in there}
        for drift_id, one in now_there.items():
            known = seen.get(drift_id)
            if known is None:
                known = seen[drift_id] = _Seen(kind=one.kind, pod_uid=one.pod_uid, first=now)
            known.looks += 1
            known.missed = 0
        for drift_id, known in list(seen.items()):
            if drift_id in now_there or known.pod_uid in unsure:
                continue
            if not known.is_open:
                del seen[drift_id]
                continue
            known.missed_first = known.missed_first if known.missed else now
            known.missed += 1
        if not seen:
            del self._seen[scope]
        room = SCOPE_MAX - sum(known.is_open for known in seen.values())
        ripe = [one for drift_id, one in now_there.items() if _is_ripe(seen[drift_id], now)]
        return Changes(
            found=tuple(ripe[: max(room, 0)]),
            over=tuple(drift_id for drift_id, known in seen.items() if _is_over(known, now)),
        )

    def forget(self, scope: str, drift_id: str) -> None:
        """Take note that its end is recorded, or that it was none when somebody looked closer."""
        seen = self._seen.get(scope, {})
        seen.pop(drift_id, None)
        if not seen:
            self._seen.pop(scope, None)

    def is_watched(self, scope: str) -> bool:
        """Tell whether anything was seen there that is not over."""
        return scope in self._seen

    def scopes(self) -> Iterator[str]:
        """Yield where something was seen that is not over."""
        yield from self._seen

    def open(self, scope: str) -> frozenset[str]:
        """Return the ids of what is recorded of a scope and not over."""
        seen = self._seen.get(scope, {})
        return frozenset(drift_id for drift_id, known in seen.items() if known.is_open)

    def counts(self) -> Counter[str]:
        """Count what is recorded and not over, by kind."""
        return Counter(
            known.kind for seen in self._seen.values() for known in seen.values() if known.is_open
        )


def _is_ripe(known: _Seen, now: float) -> bool:
    grace = GRACES.get(known.kind, GRACE_SECONDS)
    return not known.is_open and known.looks >= LOOKS and now - known.first >= grace


def _is_over(known: _Seen, now: float) -> bool:
    return known.is_open and known.missed >= LOOKS and now - known.missed_first >= OVER_SECONDS
