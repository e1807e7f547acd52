"""What the kernel says of CPUs where it differs from the ledger, out of the drift that is open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.domain.cpuset import CpuSet, parse_cpuset, union
from ledger.domain.log.drift import OF_KERNEL
from tenure.times import iso_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.store.open import Ledger
    from ledger.store.reading.report_rows import DriftRow, HolderRow
    from tenure.asking import Sight


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWord:
    """One such difference; `cpus` are those that the kernel gives, as when it was found."""

    row: DriftRow
    cpus: CpuSet

    @property
    def line(self) -> str:
        """Return it for people."""
        return f"{self.row.kind} since {iso_time(self.row.opened_at_us)}: {self.row.detail}"

    @property
    def record(self) -> dict[str, Any]:
        """Return it as data, by the names that `tenure drift` has."""
        row = self.row
        return {
            "kind": row.kind,
            "since": iso_time(row.opened_at_us),
            "node": row.node_name or row.node_uid,
            "pod": f"{row.namespace}/{row.pod_name}" if row.pod_name else "",
            "pod_uid": row.pod_uid,
            "words": row.detail,
            "position": row.position,
            "cpuset": str(self.cpus),
        }

    def is_about(self, cpus: CpuSet, holders: Iterable[HolderRow]) -> bool:
        """Tell whether one of these CPUs is held by the ledger or given by the kernel alone."""
        mine = (one for one in holders if one.pod_uid == self.row.pod_uid)
        own = union(parse_cpuset(one.cpuset) for one in mine)
        return not cpus.isdisjoint((self.cpus - own) | (own - self.cpus))


def kernel_words(source: Ledger, sight: Sight) -> list[KernelWord]:
    """Return what is open of Pods that are seen, in order; in a transaction of the caller's."""
    from ledger.domain.log.events import DriftFound
    from ledger.store.reading.kept import events_at
    from ledger.store.reading.report_queries import open_drifts

    rows = [
        one
        for one in open_drifts(source.connection)
        if one.kind in OF_KERNEL and (sight.whole or sight.sees(one.namespace or ""))
    ]
    found = events_at(source.connection, [one.position for one in rows])
    return [
        KernelWord(row=row, cpus=event.cpus)
        for row in rows
        if isinstance(event := found.get(row.position), DriftFound)
    ]
