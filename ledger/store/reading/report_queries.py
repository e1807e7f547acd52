"""
What people ask of the ledger: holders, reasons, usage, and everything for one report.

Reads the audit views, whose columns and units are documented and stable. Moments are microseconds
since the epoch; an interval is [opened, closed).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa

from ledger.domain.cpuset import CpuSet
from ledger.domain.devices import COUNTER
from ledger.domain.log.events import NodeInventoried, decode_event
from ledger.store import schema
from ledger.store.reading import report_rows, views
from ledger.store.reading.gpu_hours import PERCENT_HOUR_US, GpuGroup, gpu_use
from ledger.store.reading.unnamed_queries import unknown_slots

HOUR_US: Final = 3_600_000_000.0


def device_holders(
    connection: sa.Connection,
    when: views.When = views.NOW,
    *,
    node: str | None = None,
    device_type: str | None = None,
    minor: int | None = None,
    pod: tuple[str, str] | None = None,
    then: frozenset[int] = frozenset(),
) -> list[report_rows.HolderRow]:
    """
    Return who holds devices, by node, device and position.

    Rule: design section 4, "One account per physical device": a card or a node that is named means
    the metal, so that those come too who got it through another Node of its machine.

    Args:
        then: the numbers of the devices that are meant, where the name means others today.
    """
    h, r = views.HOLDINGS, views.RESERVATIONS
    own = [c for c in h.c if c.name != "phase"]
    query = (
        sa.select(*own, h.c.phase, r.c.cpu_milli, r.c.cpuset, r.c.policy)
        .join_from(h, r, h.c.position == r.c.position)
        .where(when.condition(h), h.c.device_type != COUNTER)
        .order_by(h.c.node_name, h.c.device_type, h.c.minor, h.c.position)
    )
    given = {"device_type": device_type, "minor": minor}
    if then:
        query, given = query.where(h.c.device_no.in_(then)), {}
    elif node is not None:
        card = {"node_name": node, **given}
        listed = sa.select(views.DEVICES.c.device_no).where(views.matching_all(views.DEVICES, card))
        through_another = h.c.node_uid.not_in(
            sa.select(views.DEVICES.c.node_uid).where(views.matching_all(views.DEVICES, card))
        )
        by_name, of_card = views.matching_all(h, card), h.c.device_no.in_(listed)
        if when != views.NOW or minor is None:
            query = query.where(sa.or_(by_name, of_card & through_another))
        else:  # whatever its minor was when it was given
            query = query.where(sa.or_(of_card, by_name & ~listed.exists()))
        query, given = query.where(h.c.device_no.in_(_devices_of_machines(node))), {}
    return _holders(connection, views.matching(query, h, {**given, **views.of_pod(pod)}))


def cpu_holders(
    connection: sa.Connection, when: views.When, *, node: str, cpus: CpuSet
) -> list[report_rows.HolderRow]:
    """Return who holds any of these CPUs, through whichever Node of their machine, by position."""
    h, r = views.CPU_HOLDINGS, views.RESERVATIONS
    query = (
        sa.select(*_as_holder(r))
        .join_from(r, h, h.c.position == r.c.position)
        .where(
            when.condition(h), h.c.node_name.in_(views.names_beside(node)), h.c.cpu.in_(list(cpus))
        )
        .order_by(r.c.position)
        .distinct()
    )
    return _holders(connection, query)


def has_cpus(connection: sa.Connection, *, node: str, cpus: CpuSet) -> bool:
    """Tell whether the ledger knows each logical CPU, now or from an earlier holder."""
    c, n = schema.ledger_cpus.c, schema.ledger_nodes.c
    query = (
        sa.select(sa.func.count(c.cpu.distinct()))
        .select_from(schema.ledger_cpus)
        .join(schema.ledger_nodes, c.machine_no == n.machine_no)
        .where(n.node_name == node, c.cpu.in_(list(cpus)))
    )
    return int(connection.execute(query).scalar_one()) == len(cpus)


def pod_holders(
    connection: sa.Connection,
    when: views.When = views.NOW,
    *,
    node: str | None = None,
    pod: tuple[str, str] | None = None,
) -> list[report_rows.HolderRow]:
    """Return whole reservations, of a node those of its whole machine, by position."""
    r = views.RESERVATIONS
    query = sa.select(*_as_holder(r)).where(when.condition(r)).order_by(r.c.position)
    if node is not None:
        query = query.where(r.c.node_name.in_(views.names_beside(node)))
    holders = _holders(connection, views.matching(query, r, views.of_pod(pod)))
    observed = [holder.position for holder in holders if holder.kind == "observed"]
    slots = unknown_slots(connection, observed)
    return [
        replace(holder, unknown_types=slots[holder.position][0])
        if holder.position in slots
        else holder
        for holder in holders
    ]


def devices(
    connection: sa.Connection, *, node: str | None = None, device_type: str | None = None
) -> list[report_rows.Device]:
    """Return devices as they stand, by node, type and minor."""
    return _devices(connection, node_name=node, device_type=device_type)


def devices_at(
    connection: sa.Connection, device_id: str, *, node: str | None = None
) -> list[report_rows.Device]:
    """Return the devices with an id, or with a PCI address in the last inventory of their node."""
    found = _devices(connection, device_id=device_id, node_name=node)
    if found or ":" not in device_id:
        return found
    e = views.EVENTS.c
    query = sa.select(e.body).where(e.event_type == NodeInventoried.event_type).order_by(e.position)
    if node is not None:
        query = query.where(e.body.contains(f'"{node}"', autoescape=True))
    newest: dict[str, NodeInventoried] = {}
    for row in views.each_row(connection, query):
        event = decode_event(NodeInventoried.event_type, row["body"])
        assert isinstance(event, NodeInventoried), event
        newest[event.node_uid] = event
    return [
        listed
        for event in newest.values()
        for device in event.devices
        if device.topology is not None and device.topology.bus_id.lower() == device_id
        for listed in _devices(
            connection,
            node_uid=event.node_uid,
            device_type=device.device_type,
            minor=device.minor,
        )
        if node in (None, listed.node_name)
    ]


def _devices(connection: sa.Connection, **given: str | int | None) -> list[report_rows.Device]:
    d = views.DEVICES
    query = (
        sa.select(d, schema.ledger_devices.c.unique_id)
        .join_from(d, schema.ledger_devices, schema.ledger_devices.c.device_no == d.c.device_no)
        .where(d.c.device_type != COUNTER)
        .order_by(d.c.node_name, d.c.node_uid, d.c.device_type, d.c.minor)
    )
    return [
        report_rows.Device(
            **{
                **row,
                "healthy": bool(row["healthy"]),
                "unique_id": bool(row["unique_id"]),
                "closed_reason": row["closed_reason"] or "",
            }
        )
        for row in views.each_row(connection, views.matching(query, d, given))
    ]


def nodes(connection: sa.Connection, *, name: str | None = None) -> list[report_rows.Node]:
    """Return the nodes, by name."""
    query = sa.select(views.NODES).order_by(views.NODES.c.node_name, views.NODES.c.node_uid)
    return [
        report_rows.Node(**row)
        for row in views.each_row(
            connection, views.matching(query, views.NODES, {"node_name": name})
        )
    ]


def health_changes(
    connection: sa.Connection, *, node: str | None = None
) -> list[report_rows.HealthRow]:
    """Return when devices were closed and opened, by position."""
    h, x = views.HEALTH, schema.ledger_device_health.c
    columns = (c for c in h.c if c.name != "node_name")
    d, n = schema.ledger_devices.c, schema.ledger_nodes.c
    same = (x.position == h.c.position) & (x.healthy == h.c.healthy) & (x.reason == h.c.reason)
    there = (d.device_type == h.c.device_type) & (d.minor == h.c.minor)
    query = (
        sa.select(*columns, x.device_no)
        .join_from(h, schema.ledger_device_health, same)
        .join(schema.ledger_devices, (d.device_no == x.device_no) & there)
        .join(schema.ledger_nodes, (n.node_no == d.node_no) & (n.node_uid == h.c.node_uid))
        .where(h.c.device_type != COUNTER)
        .order_by(h.c.position, x.device_no)
        .distinct()
    )
    return [
        report_rows.HealthRow(**{**row, "healthy": bool(row["healthy"])})
        for row in views.each_row(connection, views.matching(query, h, {"node_name": node}))
    ]


def open_drifts(connection: sa.Connection) -> list[report_rows.DriftRow]:
    """Return what is found and not resolved, in order, with the holders that the ledger knows."""
    d, r = views.DRIFT.c, views.RESERVATIONS.c
    newest = (
        sa.select(r.pod_uid, sa.func.max(r.position).label("position"))
        .where(r.pod_uid.in_(sa.select(d.pod_uid).where(d.closed_position.is_(None))))
        .group_by(r.pod_uid)
        .subquery()
    )
    query = (
        sa.select(
            *(column for column in d if column.name != "closed_position"),
            r.namespace,
            r.pod_name,
            r.holder,
            r.position.label("opened_by"),
        )
        .select_from(
            views.DRIFT.outerjoin(newest, newest.c.pod_uid == d.pod_uid).outerjoin(
                views.RESERVATIONS, r.position == newest.c.position
            )
        )
        .where(d.closed_position.is_(None))
        .order_by(d.position)
    )
    return [report_rows.DriftRow(**row) for row in views.each_row(connection, query)]


def ahead_us(connection: sa.Connection) -> int | None:
    """Return how far the last event's time is ahead of the clock that it was recorded by."""
    e = schema.ledger_events.c
    query = sa.select(e.at_us - e.wall_us).where(e.wall_us > 0).order_by(e.position.desc()).limit(1)
    found: int | None = connection.execute(query).scalar()
    return found


def span(connection: sa.Connection) -> report_rows.Span:
    """Return from when to when the ledger speaks, from its first inventory on."""
    e = views.EVENTS
    inventoried = sa.case((e.c.event_type.like("node.inventoried.%"), e.c.at_us), else_=sa.null())
    query = sa.select(
        sa.func.coalesce(sa.func.min(inventoried), sa.func.min(e.c.at_us), 0).label("first_at_us"),
        sa.func.coalesce(sa.func.max(e.c.at_us), 0).label("last_at_us"),
        sa.func.coalesce(sa.func.max(e.c.position), 0).label("last_position"),
    )
    return report_rows.Span(**next(views.each_row(connection, query)))


def lost_ranges(connection: sa.Connection) -> list[report_rows.LostRange]:
    """Return the times that recoveries lost, in the order of the recoveries."""
    query = sa.select(views.LOST.c.opened_at_us, views.LOST.c.closed_at_us).order_by(
        views.LOST.c.position
    )
    return [report_rows.LostRange(**row) for row in views.each_row(connection, query)]


def usage(
    connection: sa.Connection,
    by: GpuGroup,
    since_us: int,
    until_us: int,
    *,
    namespace: str | None = None,
) -> list[report_rows.UsageRecord]:
    """
    Return what each group used in [since, until), by group; of one namespace or of all.

    A device of an inventory counts as docs/audit.md says (GPU-hours). What is still held counts up
    to `until`, what was lost with its node up to the loss.
    """
    found = gpu_use(connection, by, since_us, until_us, namespace=namespace)
    gpu = {use.key: use for use in found}
    hours = {key: use.amount / PERCENT_HOUR_US for key, use in gpu.items()}
    if by == "model":
        return [
            report_rows.UsageRecord(group=key, pods=use.pods, gpu_hours=hours[key], cpu_hours=None)
            for key, use in gpu.items()
        ]
    r = views.RESERVATIONS
    cpu_hours = sa.func.sum(r.c.cpu_milli * _overlap(r, since_us, until_us)) / 1000.0 / HOUR_US
    query = (
        sa.select(
            r.c[by].label("key"),
            sa.func.count(r.c.pod_uid.distinct()).label("pods"),
            cpu_hours.label("hours"),
        )
        .where(views.in_window(r, since_us, until_us))
        .group_by(r.c[by])
        .order_by(r.c[by])
    )
    return [
        report_rows.UsageRecord(
            group=row["key"],
            pods=row["pods"],
            gpu_hours=hours.get(row["key"], 0.0),
            cpu_hours=row["hours"],
        )
        for row in views.each_row(connection, views.matching(query, r, {"namespace": namespace}))
    ]


def holding_rows(connection: sa.Connection) -> Iterator[report_rows.HoldingRow]:
    """Yield every holding there ever was, by position and device."""
    h, r = views.HOLDINGS, views.RESERVATIONS
    columns = [
        r.c.policy if name == "policy" else h.c[name] for name in report_rows.HoldingRow._fields
    ]
    query = (
        sa.select(*columns)
        .join_from(h, r, h.c.position == r.c.position)
        .where(h.c.device_type != COUNTER)
        .order_by(h.c.position, h.c.device_type, h.c.minor)
    )
    for row in views.rows_of(connection, query):
        yield report_rows.HoldingRow._make(row)


def first_reserved(connection: sa.Connection) -> int:
    """Return the position of the first reservation, 1 where there is none."""
    found = connection.execute(
        sa.select(sa.func.min(schema.ledger_reservations.c.position))
    ).scalar()
    return int(found or 1)


def _as_holder(r: sa.TableClause) -> list[sa.ColumnElement[Any]]:
    return [
        *(c for c in r.c if c.name not in ("labels", "gpu_core_percent", "gpu_count")),
        r.c.gpu_core_percent.label("core_percent"),
        sa.cast(sa.null(), sa.Text).label("device_type"),
        sa.cast(sa.null(), sa.Integer).label("minor"),
        sa.literal_column("''").label("device_id"),
        sa.literal_column("''").label("model"),
        sa.literal_column("0").label("memory_ratio_percent"),
        sa.literal_column("0").label("exclusive"),
    ]


def _overlap(view: sa.FromClause, since_us: int, until_us: int) -> sa.ColumnElement[float]:
    """Return the microseconds of an interval inside the window; floats can't overflow in a sum."""
    opened, closed = view.c.opened_at_us, view.c.counted_until_us
    ended = sa.case((closed < until_us, closed), else_=until_us)
    began = sa.case((opened > since_us, opened), else_=since_us)
    return sa.cast(ended - began, sa.Float)


def _devices_of_machines(node: str) -> sa.Select[Any]:
    d, s, n = schema.ledger_devices.c, schema.ledger_stands.c, schema.ledger_nodes.c
    return (
        sa.select(d.device_no)
        .join_from(schema.ledger_nodes, schema.ledger_stands, s.node_no == n.node_no)
        .join(schema.ledger_devices, d.machine_no == s.machine_no)
        .where(n.node_name == node)
    )


def _holders(connection: sa.Connection, query: sa.Select[Any]) -> list[report_rows.HolderRow]:
    return [
        report_rows.HolderRow(
            **{**row, "exclusive": bool(row["exclusive"]), "cpuset": row["cpuset"] or ""}
        )
        for row in views.each_row(connection, query)
    ]
