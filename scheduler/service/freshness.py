"""Whether the view is fresh enough to be decided by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

STALE: Final = "ClusterViewStale"
AWAY: Final = "LedgerUnavailable"
API_AWAY: Final = "ApiServerUnavailable"
UNSETTLED: Final = f"{STALE}: nodes are being recorded"
SILENT_SECONDS_MAX: Final = 75.0
"""A watch lasts half a minute, and its end in order is news: twice as long without is a fault."""


class Followed(Protocol):
    """A collection that is followed; see `tenure.kube.reflector.Reflector`."""

    @property
    def synced(self) -> bool:
        """Tell whether everything was told at some moment."""

    def staleness(self) -> float | None:
        """Return the seconds since news came: an event, or the end of a watch in order."""


class Freshness:
    """
    Says why nothing may be decided now.

    Rule: design section 8, "When parts are down".

    Attributes:
        followed: name -> collection; nothing may be decided without any.
        away: the ledger can't be reached.
        settled: what the first lists had is recorded.
        quarantine: why nothing is granted from the ledger until an operator acts.
    """

    def __init__(self) -> None:
        self.followed: Mapping[str, Followed] = {}
        self.away = False
        self.settled = False
        self.quarantine = ""

    def synced(self) -> bool:
        """Tell whether every collection was listed."""
        return bool(self.followed) and all(one.synced for one in self.followed.values())

    def why_not(self) -> str:
        """Return why nothing may be decided, empty when it may."""
        return self.why_not_known() or ("" if self.settled else UNSETTLED)

    def why_not_known(self) -> str:
        """Return why the cluster is not known here, empty when it is; also to a standby."""
        return self.quarantine or (AWAY if self.away else self.why_stale())

    def why_stale(self) -> str:
        """Return which collection is not known as it is, empty when all are."""
        for name, one in self.followed.items():
            staleness = one.staleness()
            if not one.synced or staleness is None or staleness > SILENT_SECONDS_MAX:
                return f"{STALE}: {name}"
        return ""
