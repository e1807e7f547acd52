"""Who holds devices that nobody can name, or that no row of a device has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sqlalchemy import Connection, func, or_, select

from ledger.domain.devices import GPU
from ledger.domain.log.events import POD
from ledger.store.reading import views
from ledger.store.reading.report_rows import UnknownRow, UnplacedRow
from ledger.store.reading.tables import in_parts
from ledger.store.schema import ledger_slot_holdings

UNKNOWN: Final = "unknown/"
"""What the slot of a holder on an unknown device begins with; its type follows."""

_UNKNOWN_COLUMNS: Final = tuple(
    views.EVENTS.c.body if name == "body" else views.RESERVATIONS.c[name]
    for name in UnknownRow._fields[:-1]
)

_NAMED: Final = (
    select(func.count())
    .where(
        views.HOLDINGS.c.position == views.RESERVATIONS.c.position,
        views.HOLDINGS.c.device_type == GPU,
    )
    .scalar_subquery()
)
"""How many GPUs of a reservation somebody can name."""

_UNPLACED_COLUMNS: Final = (
    *(views.RESERVATIONS.c[name] for name in UnplacedRow._fields[:-1]),
    views.RESERVATIONS.c.gpu_count - _NAMED,
)


def unknown_rows(
    connection: Connection, when: views.When = views.NOW, *, node: str | None = None
) -> list[UnknownRow]:
    """
    Return the Pods that may hold devices which nobody can name, by position.

    Where the event is in an archive, what the rows still say.
    """
    r, e = views.RESERVATIONS, views.EVENTS
    query = (
        select(*_UNKNOWN_COLUMNS)
        .join_from(r, e, e.c.position == r.c.position, isouter=True)
        .where(when.condition(r), r.c.kind == "observed")
        .order_by(r.c.position)
    )
    if node is not None:
        query = query.where(r.c.node_name.in_(views.names_beside(node)))
    rows = [UnknownRow._make((*row, "")) for row in views.rows_of(connection, query)]
    archived = [row.position for row in rows if row.body is None]
    slots = unknown_slots(connection, archived)
    return [
        row._replace(unknown_types=slots[row.position][0], gpu_count=slots[row.position][1])
        if row.position in slots
        else row
        for row in rows
    ]


def unknown_slots(connection: Connection, positions: Sequence[int]) -> dict[int, tuple[str, int]]:
    """Return types, comma-separated, and number of unnamed cards of those that hold such."""
    s, r = ledger_slot_holdings.c, views.RESERVATIONS.c
    found: dict[int, tuple[str, int]] = {}
    for part in in_parts(positions):
        query = (
            select(s.position, s.slot, r.gpu_count - _NAMED)
            .join_from(ledger_slot_holdings, views.RESERVATIONS, r.position == s.position)
            .where(s.position.in_(part))
            .where(s.slot.startswith(UNKNOWN))
            .order_by(s.position, s.slot)
        )
        for position, slot, number in connection.execute(query):
            before = found.get(position)
            device_type = slot.removeprefix(UNKNOWN)
            types = device_type if before is None else f"{before[0]},{device_type}"
            found[position] = (types, number)
    return found


def archived_holders(
    connection: Connection, since_us: int, until_us: int, *, namespace: str | None = None
) -> list[tuple[str, str]]:
    """
    Return node UID and path of the Pods of a window of whose cards only archived events tell.

    By position, each holding once, without those who were granted cards of the inventory.
    """
    r, e = views.RESERVATIONS, views.EVENTS
    query = (
        select(r.c.node_uid, r.c.namespace, r.c.pod_name)
        .join_from(r, e, e.c.position == r.c.position, isouter=True)
        .where(e.c.position.is_(None), views.in_window(r, since_us, until_us))
        .where(or_(r.c.kind == "observed", r.c.gpu_count == 0))
        .order_by(r.c.position)
    )
    rows = views.each_row(connection, views.matching(query, r, {"namespace": namespace}))
    return [(row["node_uid"], f"{row['namespace']}/{row['pod_name']}") for row in rows]


def granted_rows(
    connection: Connection, when: views.When, *, nodes: Iterable[str]
) -> Iterator[UnknownRow]:
    """
    Yield who was granted something on these nodes, by UID, with what they asked for.

    That is None where the event is in an archive.
    """
    r, e = views.RESERVATIONS, views.EVENTS
    for part in in_parts(nodes):
        query = (
            select(*_UNKNOWN_COLUMNS)
            .join_from(r, e, e.c.position == r.c.position, isouter=True)
            .where(when.condition(r), r.c.kind == "granted", r.c.holder == POD)
            .where(r.c.node_uid.in_(part))
            .order_by(r.c.position)
        )
        for row in views.rows_of(connection, query):
            yield UnknownRow._make((*row, ""))


def pods_by_node(connection: Connection, when: views.When) -> dict[str, int]:
    """Return UID of a node -> how many Pods hold something there, if only their place."""
    r = views.RESERVATIONS.c
    query = select(r.node_uid, func.count(r.pod_uid.distinct())).group_by(r.node_uid)
    query = query.where(when.condition(views.RESERVATIONS), r.holder == POD)
    return {str(node): int(count) for node, count in connection.execute(query)}


def unplaced_rows(connection: Connection) -> Iterator[UnplacedRow]:
    """Yield the Pods that ever held GPUs which nobody can name, by position."""
    r, s = views.RESERVATIONS, ledger_slot_holdings
    query = (
        select(*_UNPLACED_COLUMNS)
        .join_from(r, s, s.c.position == r.c.position)
        .where(s.c.slot == f"{UNKNOWN}{GPU}", r.c.kind == "observed")
        .order_by(r.c.position)
    )
    for row in views.rows_of(connection, query):
        yield UnplacedRow._make(row)


def opened_rows(connection: Connection, positions: Iterable[int]) -> Iterator[UnplacedRow]:
    """Yield the reservations that were opened at these positions, in order."""
    r = views.RESERVATIONS
    for part in in_parts(positions):
        some = r.c.position.in_(part)
        query = select(*_UNPLACED_COLUMNS).where(some).order_by(r.c.position)
        for row in views.rows_of(connection, query):
            yield UnplacedRow._make(row)
