"""What a demonstration points at: the card with the most holders, Pods that still wait."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text


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


def waiting_pods(connection: Connection, limit: int) -> list[Waiting]:
    """Return Pods that were refused after a scheduling attempt and never placed, latest first."""
    query = text(
        "SELECT namespace, pod_name, message FROM audit_refusals WHERE stage = 'scheduling' "
        "AND pod_uid NOT IN (SELECT pod_uid FROM audit_reservations) "
        "ORDER BY position DESC LIMIT :limit"
    )
    rows = connection.execute(query, {"limit": limit})
    return [Waiting(path=f"{row.namespace}/{row.pod_name}", message=row.message) for row in rows]
