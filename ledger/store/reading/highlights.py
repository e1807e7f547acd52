"""What a demonstration points at: the card with the most holders, Pods that still wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, text

ANOTHER_HISTORY: Final = "UPDATE ledger_events SET body = '{}' WHERE position = 1000"
"""The SQL that would change what happened, were it not refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A Pod whose last word is a refusal, with the message of that refusal."""

    path: str
    message: str


def busiest_card(connection: Connection, at_us: int) -> str | None:
    """Return `node/minor` of the GPU with the most holders at a moment; ties by node and minor."""
    query = text(
        "SELECT node_name, minor FROM audit_holdings "
        "WHERE device_type = 'gpu' AND opened_at_us <= :at "
        "AND (closed_at_us IS NULL OR closed_at_us > :at) "
        "GROUP BY node_name, minor ORDER BY count(*) DESC, node_name, minor LIMIT 1"
    )
    row = connection.execute(query, {"at": at_us}).one_or_none()
    return None if row is None else f"{row.node_name}/{row.minor}"


def waiting_pod(connection: Connection) -> Waiting | None:
    """Return the last Pod that was refused after a scheduling attempt and never placed."""
    query = text(
        "SELECT namespace, pod_name, message FROM audit_refusals WHERE stage = 'scheduling' "
        "AND pod_uid NOT IN (SELECT pod_uid FROM audit_reservations) "
        "ORDER BY position DESC LIMIT 1"
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    return Waiting(path=f"{row.namespace}/{row.pod_name}", message=row.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullCard:
    """A GPU with nothing left, and the position of an open reservation that does not hold it."""

    name: str
    device_no: int
    minor: int
    other_position: int

    @property
    def second_holder(self) -> str:
        """The SQL that would give the card a second holder, were it not refused."""
        return (
            "INSERT INTO ledger_holdings (position, device_no, minor, core_percent, memory_bytes, "
            "memory_ratio_percent, exclusive, instances, kind, opened_at_us) SELECT "
            f"{self.other_position}, {self.device_no}, {self.minor}, 50, 0, 50, 0, 1, 'granted', "
            f"opened_at_us FROM ledger_reservations WHERE position = {self.other_position}"
        )


def full_card(connection: Connection) -> FullCard | None:
    """Return the first GPU whose core percent is all held; None when every card has some left."""
    query = text(
        "SELECT n.node_name, d.device_no, d.minor, "
        "(SELECT max(r.position) FROM ledger_reservations AS r WHERE r.closed_position IS NULL "
        "AND r.kind = 'granted' AND r.position NOT IN "
        "(SELECT h.position FROM ledger_holdings AS h WHERE h.device_no = d.device_no)) AS other "
        "FROM ledger_devices AS d JOIN ledger_nodes AS n ON n.node_no = d.node_no "
        "WHERE d.device_type = 'gpu' AND d.core_used = d.core_reported "
        "ORDER BY d.device_no LIMIT 1"
    )
    row = connection.execute(query).one_or_none()
    if row is None or row.other is None:
        return None
    return FullCard(
        name=f"{row.node_name}/gpu/{row.minor}",
        device_no=row.device_no,
        minor=row.minor,
        other_position=row.other,
    )
