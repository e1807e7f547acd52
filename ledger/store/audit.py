"""
The questions that the commands ask, in SQL over the audit views: who held it, why not, how much.

Every time is microseconds since the epoch. A holding covers its start and not its end, so at the
moment of a hand-over the new holder holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

from sqlalchemy import select, text

from ledger.domain.errors import InputError
from ledger.domain.events import LedgerEvent, RequestRefused
from ledger.store import schema
from ledger.store.bodies import event_of
from ledger.store.open import Ledger

T = TypeVar("T")
NOW: Final = 2**62
"""A time after every event: `at_us` of what is held now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One Pod on one device, with its interval; `closed_at_us` None while it holds."""

    position: int
    pod_uid: str
    attempt: int
    namespace: str
    pod_name: str
    owner: str
    node_uid: str
    node_name: str
    device_type: str
    minor: int
    device_id: str
    model: str
    core_percent: int
    memory_bytes: int
    memory_ratio_percent: int
    exclusive: int
    kind: str
    phase: str
    dialect: str
    opened_at_us: int
    closed_at_us: int | None
    closed_position: int | None
    end_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuHolder:
    """One Pod on one logical CPU."""

    position: int
    pod_uid: str
    attempt: int
    namespace: str
    pod_name: str
    node_uid: str
    node_name: str
    cpu: int
    opened_at_us: int
    closed_at_us: int | None
    end_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One reservation or observed holding of a Pod: where, what, from when to when."""

    position: int
    pod_uid: str
    attempt: int
    namespace: str
    pod_name: str
    owner: str
    labels: str
    priority: int
    qos: str
    dialect: str
    policy: str
    source: str
    node_uid: str
    node_name: str
    cpu_milli: int
    memory_bytes: int
    gpu_core_percent: int
    gpu_count: int
    cpuset: str
    kind: str
    phase: str
    created_at_us: int
    opened_at_us: int
    closed_at_us: int | None
    closed_position: int | None
    end_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device as the ledger has it now; `closed_reason` None when it takes grants."""

    node_uid: str
    node_name: str
    device_type: str
    minor: int
    device_id: str
    model: str
    core_capacity_percent: int
    memory_capacity_bytes: int
    core_used_percent: int
    memory_used_bytes: int
    tenants: int
    core_observed_percent: int
    memory_observed_bytes: int
    observed_holders: int
    healthy: int
    closed_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as last inventoried; `labels` is JSON."""

    node_uid: str
    node_name: str
    cpu_milli: int
    memory_bytes: int
    machine_id: str
    labels: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """A device was closed to grants, or opened again."""

    position: int
    at_us: int
    node_uid: str
    node_name: str
    device_type: str
    minor: int
    healthy: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A Pod was refused, in these words."""

    position: int
    at_us: int
    pod_uid: str
    namespace: str
    pod_name: str
    stage: str
    message: str
    shape: str
    gpu_core_percent: int
    policy: str
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one key (a namespace, a label's value, a day) used in a span of time, in hours."""

    key: str
    gpu_hours: float
    cpu_hours: float
    pods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAt:
    """An event with its place and time."""

    position: int
    at_us: int
    event: LedgerEvent


def holders(
    ledger: Ledger,
    *,
    node_name: str | None = None,
    device_type: str | None = None,
    minor: int | None = None,
    at_us: int | None = None,
    namespace: str | None = None,
    pod_name: str | None = None,
) -> list[Holder]:
    """Return who held the devices at `at_us` (None = now), by node, type, minor, then start."""
    return _rows(
        ledger,
        Holder,
        "audit_holdings",
        "opened_at_us <= :at AND (closed_at_us IS NULL OR closed_at_us > :at)",
        "node_name, device_type, minor, position",
        {"at": NOW if at_us is None else at_us},
        node_name=node_name,
        device_type=device_type,
        minor=minor,
        namespace=namespace,
        pod_name=pod_name,
    )


def holdings_of_card(
    ledger: Ledger, *, node_name: str, device_type: str, minor: int
) -> list[Holder]:
    """Return everyone who ever held a card, by start."""
    return _rows(
        ledger,
        Holder,
        "audit_holdings",
        "",
        "position",
        {},
        node_name=node_name,
        device_type=device_type,
        minor=minor,
    )


def cpu_holders(
    ledger: Ledger,
    *,
    node_name: str | None = None,
    cpu: int | None = None,
    at_us: int | None = None,
) -> list[CpuHolder]:
    """Return who held the CPUs at `at_us` (None = now), by node, CPU, then start."""
    return _rows(
        ledger,
        CpuHolder,
        "audit_cpu_holdings",
        "opened_at_us <= :at AND (closed_at_us IS NULL OR closed_at_us > :at)",
        "node_name, cpu, position",
        {"at": NOW if at_us is None else at_us},
        node_name=node_name,
        cpu=cpu,
    )


def reservations(
    ledger: Ledger,
    *,
    namespace: str | None = None,
    pod_name: str | None = None,
    node_name: str | None = None,
    owner: str | None = None,
    at_us: int | None = None,
) -> list[Reservation]:
    """Return reservations by position: every one there was, or with `at_us` those held then."""
    held = "opened_at_us <= :at AND (closed_at_us IS NULL OR closed_at_us > :at)"
    return _rows(
        ledger,
        Reservation,
        "audit_reservations",
        "" if at_us is None else held,
        "position",
        {} if at_us is None else {"at": at_us},
        namespace=namespace,
        pod_name=pod_name,
        node_name=node_name,
        owner=owner,
    )


def devices(
    ledger: Ledger,
    *,
    node_name: str | None = None,
    device_type: str | None = None,
    minor: int | None = None,
) -> list[Device]:
    """Return devices as they are now, by node, type, minor."""
    return _rows(
        ledger,
        Device,
        "audit_devices",
        "",
        "node_name, device_type, minor, device_id",
        {},
        node_name=node_name,
        device_type=device_type,
        minor=minor,
    )


def nodes(ledger: Ledger, *, node_name: str | None = None) -> list[Node]:
    """Return nodes as last inventoried, by name."""
    return _rows(ledger, Node, "audit_nodes", "", "node_name, node_uid", {}, node_name=node_name)


def health_changes(
    ledger: Ledger,
    *,
    node_name: str | None = None,
    device_type: str | None = None,
    minor: int | None = None,
) -> list[HealthChange]:
    """Return when devices were closed or opened, by position."""
    return _rows(
        ledger,
        HealthChange,
        "audit_device_health",
        "",
        "position, device_type, minor",
        {},
        node_name=node_name,
        device_type=device_type,
        minor=minor,
    )


def refusals(
    ledger: Ledger, *, namespace: str | None = None, pod_name: str | None = None
) -> list[Refusal]:
    """Return refusals by position; the last one of a Pod says why it waits."""
    return _rows(
        ledger,
        Refusal,
        "audit_refusals",
        "",
        "position",
        {},
        namespace=namespace,
        pod_name=pod_name,
    )


def refusal_event(ledger: Ledger, position: int) -> RequestRefused:
    """
    Return the whole refusal at `position`, with its reasons.

    Raises:
        InputError: there is no refusal at that position.
    """
    recorded = event_at(ledger, position)
    if not isinstance(recorded.event, RequestRefused):
        raise InputError(f"no refusal at this position: position={position}")
    return recorded.event


def event_at(ledger: Ledger, position: int) -> RecordedAt:
    """
    Return the event at `position`.

    Raises:
        InputError: the ledger has no such position.
    """
    table = schema.ledger_events.c
    query = select(table.position, table.at_us, table.event_type, table.body)
    with ledger.connection.begin():
        row = ledger.connection.execute(query.where(table.position == position)).first()
    if row is None:
        raise InputError(f"no event at this position: position={position}")
    return RecordedAt(position=row[0], at_us=row[1], event=event_of(row[2], row[3]))


def events_of_type(ledger: Ledger, kinds: Sequence[type[LedgerEvent]]) -> list[RecordedAt]:
    """Return the events of these types, by position. Reads every event once."""
    table = schema.ledger_events.c
    query = select(table.position, table.at_us, table.event_type, table.body).where(
        table.event_type.in_([kind.event_type for kind in kinds])
    )
    with ledger.connection.begin():
        rows = ledger.connection.execute(query.order_by(table.position)).all()
    return [
        RecordedAt(position=p, at_us=at, event=event_of(kind, body)) for p, at, kind, body in rows
    ]


def position_at(ledger: Ledger, at_us: int) -> int:
    """Return the last position whose time is not after `at_us`; 0 when all of it is."""
    table = schema.ledger_events.c
    with ledger.connection.begin():
        low, high = 0, ledger.connection.execute(select(schema.ledger_head.c.position)).scalar_one()
        while low < high:  # times rise with positions
            middle = (low + high + 1) // 2
            time = ledger.connection.execute(
                select(table.at_us).where(table.position == middle)
            ).scalar_one()
            low, high = (middle, high) if time <= at_us else (low, middle - 1)
    return low


def time_span(ledger: Ledger) -> tuple[int, int]:
    """Return the times of the first holding or refusal and of the head; (0, 0) for neither."""
    first = (
        "SELECT min(at_us) FROM (SELECT min(opened_at_us) AS at_us FROM ledger_reservations"
        " UNION ALL SELECT min(at_us) FROM ledger_refusals) AS firsts"
    )
    with ledger.connection.begin():
        start = ledger.connection.execute(text(first)).scalar()
        end = ledger.connection.execute(select(schema.ledger_head.c.at_us)).scalar_one()
    return (start, end) if start is not None else (end, end)


def usage(
    ledger: Ledger, *, by: str, from_us: int | None = None, to_us: int | None = None
) -> list[Usage]:
    """
    Return what was used between two times, most GPU-hours first, then by key.

    What is still held counts up to the head's time.

    Args:
        by: `namespace`, `owner`, `node`, `dialect`, or `label:<key>`; Pods without the label have
            the key "".

    Raises:
        InputError: another `by`.
    """
    key = _USAGE_KEYS.get(by, "r.labels" if by.startswith("label:") else "")
    if not key:
        names = ", ".join(_USAGE_KEYS)
        raise InputError(f"usage is asked by {names} or label:KEY, not {by!r}", field="by")
    query = text(_USAGE.replace("{key}", key))
    with ledger.connection.begin():
        head = ledger.connection.execute(select(schema.ledger_head.c.at_us)).scalar_one()
        until = head if to_us is None else min(to_us, head)
        rows = ledger.connection.execute(query, {"from_us": from_us or 0, "to_us": until}).all()
    label = by.removeprefix("label:")
    sums = rows if label == by else _by_label(rows, label)
    found = [
        Usage(key=key, gpu_hours=gpu / 100, cpu_hours=cpu / 1000, pods=pods)
        for key, gpu, cpu, pods in sums
    ]
    return sorted(found, key=lambda each: (-each.gpu_hours, each.key))


_USAGE_KEYS: Final = {
    "namespace": "r.namespace",
    "owner": "r.owner",
    "node": "r.node_name",
    "dialect": "r.dialect",
}
_USAGE: Final = """
SELECT key, sum(gpu_core_percent * hours), sum(cpu_milli * hours), count(DISTINCT pod_uid)
FROM (
  SELECT {key} AS key, r.gpu_core_percent, r.cpu_milli, r.pod_uid,
    (CASE WHEN r.closed_at_us IS NULL OR r.closed_at_us > :to_us THEN :to_us
      ELSE r.closed_at_us END
    - CASE WHEN r.opened_at_us < :from_us THEN :from_us ELSE r.opened_at_us END)
    / 3600000000.0 AS hours
  FROM audit_reservations AS r
  WHERE r.opened_at_us < :to_us AND (r.closed_at_us IS NULL OR r.closed_at_us > :from_us)
) AS spans
GROUP BY key
"""


def _by_label(rows: Sequence[Any], label: str) -> list[tuple[str, float, float, int]]:
    sums: dict[str, tuple[float, float, int]] = {}
    for labels, gpu, cpu, pods in rows:
        key = json.loads(labels).get(label, "")
        gpu_sum, cpu_sum, pod_sum = sums.get(key, (0, 0, 0))
        sums[key] = (gpu_sum + gpu, cpu_sum + cpu, pod_sum + pods)
    return [(key, *values) for key, values in sums.items()]


def _rows(
    ledger: Ledger,
    kind: type[T],
    view: str,
    condition: str,
    order: str,
    parameters: Mapping[str, Any],
    **equal: str | int | None,
) -> list[T]:
    """Return the rows of a view as values; every word of the SQL is this module's own."""
    given = {name: value for name, value in equal.items() if value is not None}
    conditions = [*([condition] if condition else []), *(f"{name} = :{name}" for name in given)]
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type] # always a dataclass
    sql = f"SELECT {', '.join(names)} FROM {view}"  # noqa: S608
    if conditions:
        sql += f" WHERE {' AND '.join(conditions)}"
    with ledger.connection.begin():
        rows = ledger.connection.execute(text(f"{sql} ORDER BY {order}"), {**parameters, **given})
        return [kind(**dict(zip(names, row, strict=True))) for row in rows]
