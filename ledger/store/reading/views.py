"""The audit views as tables, what every question over them needs, and how many rows it may have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from ledger.domain.errors import InputError
from ledger.store.failures import advised

ROWS_MAX: Final = "tenure_rows_max"
"""The option of a connection that says how many; without it there is no bound."""


def _view(name: str, columns: str) -> sa.TableClause:
    return sa.table(name, *(sa.column(each) for each in columns.split()))


HOLDINGS: Final = _view(
    "audit_holdings",
    "position pod_uid attempt namespace pod_name owner node_uid node_name device_type minor"
    " device_id model core_percent memory_bytes memory_ratio_percent exclusive kind phase dialect"
    " opened_at_us closed_at_us closed_position end_reason counted_until_us device_no holder",
)


CPU_HOLDINGS: Final = _view(
    "audit_cpu_holdings", "position node_name cpu opened_at_us closed_at_us end_reason"
)


RESERVATIONS: Final = _view(
    "audit_reservations",
    "position pod_uid attempt namespace pod_name owner labels dialect policy node_uid node_name"
    " cpu_milli memory_bytes gpu_core_percent gpu_count cpuset kind phase opened_at_us"
    " closed_at_us closed_position end_reason counted_until_us holder",
)


DEVICES: Final = _view(
    "audit_devices",
    "node_uid node_name device_type minor device_id model core_capacity_percent"
    " memory_capacity_bytes core_used_percent memory_used_bytes tenants healthy closed_reason"
    " device_no",
)


NODES: Final = _view(
    "audit_nodes",
    "node_uid node_name cpu_milli memory_bytes machine_no lost_position system_uuid machine_id",
)


HEALTH: Final = _view(
    "audit_device_health", "position at_us node_uid node_name device_type minor healthy reason"
)


REFUSALS: Final = _view(
    "audit_refusals",
    "position at_us pod_uid namespace pod_name stage message shape policy owner",
)


DRIFT: Final = _view(
    "audit_drift",
    "position drift_id kind node_uid node_name device_type minor pod_uid detail opened_at_us"
    " closed_position",
)


EVENTS: Final = _view("audit_events", "position at_us event_type actor body")


LOST: Final = _view("audit_unknown_ranges", "position opened_at_us closed_at_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """
    Which holders: those at a moment, or those who hold now, or all there ever were.

    With `since_us` those who held at any moment from then to `at_us`.
    """

    at_us: int | None = None
    ever: bool = False
    since_us: int | None = None

    def condition(self, view: sa.FromClause) -> sa.ColumnElement[bool]:
        """Return the condition over the intervals of a view."""
        if self.ever:
            return sa.literal(1) == 1
        ended = view.c.closed_at_us
        if self.at_us is None:
            return ended.is_(None)
        since_us = self.at_us if self.since_us is None else self.since_us
        return (view.c.opened_at_us <= self.at_us) & sa.or_(ended.is_(None), ended > since_us)


NOW: Final = When()


def in_window(view: sa.FromClause, since_us: int, until_us: int) -> sa.ColumnElement[bool]:
    """Return the condition that an interval touches a window."""
    closed = view.c.counted_until_us
    return (view.c.opened_at_us < until_us) & sa.or_(closed.is_(None), closed > since_us)


def names_beside(node: str) -> sa.Select[Any]:
    """Return the names of all Nodes on the machines that the Nodes of a name stand on."""
    machines = sa.select(NODES.c.machine_no).where(NODES.c.node_name == node)
    return sa.select(NODES.c.node_name).where(NODES.c.machine_no.in_(machines))


def matching(
    query: sa.Select[Any], view: sa.FromClause, given: Mapping[str, str | int | None]
) -> sa.Select[Any]:
    """Return the query over the rows whose columns have the values that are given."""
    return query.where(matching_all(view, given))


def matching_all(
    view: sa.FromClause, given: Mapping[str, str | int | None]
) -> sa.ColumnElement[bool]:
    """Return the condition that the columns have the values that are given."""
    return sa.and_(
        sa.true(), *(view.c[name] == value for name, value in given.items() if value is not None)
    )


def each_row(connection: sa.Connection, query: sa.Executable) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query by the names of their columns."""
    for row in rows_of(connection, query):
        yield dict(row._mapping)  # noqa: SLF001 - its name for what is public


def of_pod(pod: tuple[str, str] | None) -> dict[str, str | int | None]:
    """Return what a Pod, by namespace and name, is found by."""
    return {} if pod is None else {"namespace": pod[0], "pod_name": pod[1]}


def rows_of(connection: sa.Connection, query: sa.Executable) -> Iterator[sa.Row[Any]]:
    """
    Yield the rows of a query.

    Raises:
        InputError: there are more than the connection allows.
    """
    assert isinstance(query, sa.Select), query
    most = connection.get_execution_options().get(ROWS_MAX)
    found = connection.execute(query if most is None else query.limit(most + 1))
    for number, row in enumerate(found, start=1):
        if most is not None and number > most:
            step = "ask for less, such as a shorter window, or a copy of the ledger"
            raise advised(InputError(f"the answer takes too many rows: most={most}"), step)
        yield row
