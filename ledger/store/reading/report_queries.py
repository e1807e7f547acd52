"""
What people ask of the ledger: holders, reasons, usage, and everything for one report.

Reads the audit views, whose columns and units are documented and stable, through SQLAlchemy Core,
so that SQLite and Postgres get the same questions. Moments are microseconds since the epoch; an
interval is [opened, closed).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Float,
    FromClause,
    Integer,
    Select,
    Subquery,
    TableClause,
    Text,
    and_,
    case,
    cast,
    column,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    table,
    true,
    tuple_,
    union_all,
)

from ledger.domain.cpuset import CpuSet
from ledger.domain.devices import COUNTER, GPU
from ledger.domain.log.events import BY_COUNT, POD, NodeInventoried, decode_event
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.store.reading.bounds import rows_of
from ledger.store.reading.gpu_hours import PERCENT_HOUR_US, GpuGroup, gpu_use
from ledger.store.reading.report_rows import (
    Counts,
    Device,
    DriftRow,
    HealthRow,
    HolderRow,
    HoldingRow,
    LostRange,
    Node,
    PlacingRow,
    PodLifeRow,
    PodSummary,
    RefusalRow,
    Span,
    UnknownRow,
    UnplacedRow,
    UsageRecord,
)
from ledger.store.schema import (
    ledger_cpus,
    ledger_devices,
    ledger_events,
    ledger_nodes,
    ledger_refusals,
    ledger_reservations,
    ledger_slot_holdings,
    ledger_stands,
)

UNKNOWN: Final = "unknown/"
"""What the slot of a holder on an unknown device begins with; its type follows."""

_BY_COUNT: Final = f'%"source":"{BY_COUNT}"%'
"""In the canonical text of an event: nothing that a stranger writes has such a name."""

_PODS_PER_QUERY: Final = 200
_NODES_PER_QUERY: Final = 500
HOUR_US: Final = 3_600_000_000.0


def _view(name: str, columns: str) -> TableClause:
    return table(name, *(column(each) for each in columns.split()))


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
_UNKNOWN_COLUMNS: Final = tuple(
    EVENTS.c.body if name == "body" else RESERVATIONS.c[name] for name in UnknownRow._fields[:-1]
)
_NAMED: Final = (
    select(func.count())
    .where(HOLDINGS.c.position == RESERVATIONS.c.position, HOLDINGS.c.device_type == GPU)
    .scalar_subquery()
)
"""How many GPUs of a reservation somebody can name."""
_UNPLACED_COLUMNS: Final = (
    *(RESERVATIONS.c[name] for name in UnplacedRow._fields[:-1]),
    RESERVATIONS.c.gpu_count - _NAMED,
)
LOST: Final = _view("audit_unknown_ranges", "position opened_at_us closed_at_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """Which holders: those at a moment, or those who hold now, or all there ever were."""

    at_us: int | None = None
    ever: bool = False

    def condition(self, view: FromClause) -> ColumnElement[bool]:
        """Return the condition over the intervals of a view."""
        if self.ever:
            return literal(1) == 1
        ended = view.c.closed_at_us
        if self.at_us is None:
            return ended.is_(None)
        return (view.c.opened_at_us <= self.at_us) & or_(ended.is_(None), ended > self.at_us)


NOW: Final = When()


def device_holders(
    connection: Connection,
    when: When = NOW,
    *,
    node: str | None = None,
    device_type: str | None = None,
    minor: int | None = None,
    pod: tuple[str, str] | None = None,
) -> list[HolderRow]:
    """
    Return who holds devices, by node, device and position.

    Rule: design section 4, "One account per physical device": a card or a node that is named means
    the metal, so that those come too who got it through another Node of its machine.
    """
    h, r = HOLDINGS, RESERVATIONS
    own = [c for c in h.c if c.name != "phase"]
    query = (
        select(*own, h.c.phase, r.c.cpu_milli, r.c.cpuset, r.c.policy)
        .join_from(h, r, h.c.position == r.c.position)
        .where(when.condition(h), h.c.device_type != COUNTER)
        .order_by(h.c.node_name, h.c.device_type, h.c.minor, h.c.position)
    )
    given = {"device_type": device_type, "minor": minor}
    if node is not None:
        card = {"node_name": node, **given}
        listed = select(DEVICES.c.device_no).where(_matching_all(DEVICES, card))
        through_another = h.c.node_uid.not_in(
            select(DEVICES.c.node_uid).where(_matching_all(DEVICES, card))
        )
        by_name, of_card = _matching_all(h, card), h.c.device_no.in_(listed)
        if when != NOW or minor is None:
            query = query.where(or_(by_name, of_card & through_another))
        else:  # whatever its minor was when it was given
            query = query.where(or_(of_card, by_name & ~listed.exists()))
        query, given = query.where(h.c.device_no.in_(_devices_of_machines(node))), {}
    return _holders(connection, _matching(query, h, {**given, **_pod(pod)}))


def cpu_holders(connection: Connection, when: When, *, node: str, cpus: CpuSet) -> list[HolderRow]:
    """Return who holds any of these CPUs, through whichever Node of their machine, by position."""
    h, r = CPU_HOLDINGS, RESERVATIONS
    names = select(NODES.c.node_name).where(NODES.c.machine_no.in_(_machines_of(node)))
    query = (
        select(*_as_holder(r))
        .join_from(r, h, h.c.position == r.c.position)
        .where(when.condition(h), h.c.node_name.in_(names), h.c.cpu.in_(list(cpus)))
        .order_by(r.c.position)
        .distinct()
    )
    return _holders(connection, query)


def has_cpus(connection: Connection, *, node: str, cpus: CpuSet) -> bool:
    """Tell whether the ledger knows each logical CPU, now or from an earlier holder."""
    c, n = ledger_cpus.c, ledger_nodes.c
    query = (
        select(func.count(c.cpu.distinct()))
        .select_from(ledger_cpus)
        .join(ledger_nodes, c.machine_no == n.machine_no)
        .where(n.node_name == node, c.cpu.in_(list(cpus)))
    )
    return int(connection.execute(query).scalar_one()) == len(cpus)


def pod_holders(
    connection: Connection,
    when: When = NOW,
    *,
    node: str | None = None,
    pod: tuple[str, str] | None = None,
) -> list[HolderRow]:
    """Return whole reservations, of a node those of its whole machine, by position."""
    r = RESERVATIONS
    query = select(*_as_holder(r)).where(when.condition(r)).order_by(r.c.position)
    if node is not None:
        names = select(NODES.c.node_name).where(NODES.c.machine_no.in_(_machines_of(node)))
        query = query.where(r.c.node_name.in_(names))
    holders = _holders(connection, _matching(query, r, _pod(pod)))
    return [_with_unknown_types(connection, holder) for holder in holders]


def devices(
    connection: Connection,
    *,
    node: str | None = None,
    device_type: str | None = None,
    minor: int | None = None,
) -> list[Device]:
    """Return devices as they stand, by node, type and minor."""
    return _devices(connection, node_name=node, device_type=device_type, minor=minor)


def devices_at(connection: Connection, device_id: str, *, node: str | None = None) -> list[Device]:
    """Return the devices with an id, or with a PCI address in the last inventory of their node."""
    found = _devices(connection, device_id=device_id, node_name=node)
    if found or ":" not in device_id:
        return found
    e = EVENTS.c
    query = select(e.body).where(e.event_type == NodeInventoried.event_type).order_by(e.position)
    if node is not None:
        query = query.where(e.body.contains(f'"{node}"', autoescape=True))
    newest: dict[str, NodeInventoried] = {}
    for row in _rows(connection, query):
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


def _devices(connection: Connection, **given: str | int | None) -> list[Device]:
    d = DEVICES
    query = (
        select(d)
        .where(d.c.device_type != COUNTER)
        .order_by(d.c.node_name, d.c.node_uid, d.c.device_type, d.c.minor)
    )
    return [
        Device(
            **{
                **row,
                "healthy": bool(row["healthy"]),
                "closed_reason": row["closed_reason"] or "",
            }
        )
        for row in _rows(connection, _matching(query, d, given))
    ]


def nodes(
    connection: Connection, *, name: str | None = None, until: int = INTEGER_MAX
) -> list[Node]:
    """Return the nodes, by name; `until` a position, behind which none of them was lost."""
    query = select(NODES).order_by(NODES.c.node_name, NODES.c.node_uid)
    found = [Node(**row) for row in _rows(connection, _matching(query, NODES, {"node_name": name}))]
    return [
        replace(node, lost_position=None) if (node.lost_position or 0) > until else node
        for node in found
    ]


def health_changes(connection: Connection, *, node: str | None = None) -> list[HealthRow]:
    """Return when devices were closed and opened, by position."""
    h = HEALTH
    columns = (c for c in h.c if c.name != "node_name")
    query = select(*columns).where(h.c.device_type != COUNTER).order_by(h.c.position)
    return [
        HealthRow(**{**row, "healthy": bool(row["healthy"])})
        for row in _rows(connection, _matching(query, h, {"node_name": node}))
    ]


def pods(
    connection: Connection,
    *,
    pod: tuple[str, str] | None = None,
    owner: str | None = None,
    namespace: str | None = None,
    name: str | None = None,
) -> list[PodSummary]:
    """
    Return where Pods stand, by namespace and name; two UIDs of one name in order of age.

    `owner` also matches what the ReplicaSets of a Deployment are called: its name and a hash.
    """
    seen = _seen()
    query = _grouped(seen)
    if owner is not None:
        query = query.where(_is_owner(seen, owner))
    given = {"namespace": namespace or None, "pod_name": name, **_pod(pod)}
    query = _matching(query, seen, given)
    newest = func.max(seen.c.reserved_position + seen.c.refused_position)
    query = query.order_by(seen.c.namespace, seen.c.pod_name, newest)
    return [PodSummary(**row) for row in _rows(connection, query)]


def refusals(connection: Connection, *, position: int | None = None) -> Iterator[RefusalRow]:
    """Yield refusals by position, or the one at `position`."""
    f, e = REFUSALS, EVENTS
    query = select(f, e.c.body, e.c.actor).join_from(f, e, e.c.position == f.c.position)
    query = _matching(query.order_by(f.c.position), f, {"position": position})
    for row in _rows(connection, query):
        yield RefusalRow(**row)


def refusal_count(connection: Connection, *, pod_uid: str) -> int:
    """Return how many refusals of one Pod are recorded."""
    query = select(func.count()).select_from(REFUSALS).where(REFUSALS.c.pod_uid == pod_uid)
    return int(connection.execute(query).scalar_one())


def last_refusals(
    connection: Connection, pod_uids: Sequence[str]
) -> dict[str, tuple[int, int, bool]]:
    """
    Return how often these Pods were refused, where last, and whether that is their last word.

    It is not where a place was reserved for the Pod since. Pods without a refusal are left out.
    """
    f, r = ledger_refusals.c, ledger_reservations.c
    refused = (
        select(f.pod_uid, func.count(), func.max(f.position))
        .where(f.pod_uid.in_(pod_uids))
        .group_by(f.pod_uid)
    )
    placed = (
        select(r.pod_uid, func.max(r.position)).where(r.pod_uid.in_(pod_uids)).group_by(r.pod_uid)
    )
    since: dict[str, int] = dict(map(tuple, connection.execute(placed)))
    return {
        uid: (number, position, since.get(uid, 0) < position)
        for uid, number, position in connection.execute(refused)
    }


def open_drifts(connection: Connection) -> list[DriftRow]:
    """Return what is found and not resolved, in order, with the Pods that the ledger knows."""
    d, r = DRIFT.c, RESERVATIONS.c
    newest = (
        select(r.pod_uid, func.max(r.position).label("position"))
        .where(r.pod_uid.in_(select(d.pod_uid).where(d.closed_position.is_(None))))
        .group_by(r.pod_uid)
        .subquery()
    )
    query = (
        select(
            *(column for column in d if column.name != "closed_position"),
            r.namespace,
            r.pod_name,
        )
        .select_from(
            DRIFT.outerjoin(newest, newest.c.pod_uid == d.pod_uid).outerjoin(
                RESERVATIONS, r.position == newest.c.position
            )
        )
        .where(d.closed_position.is_(None))
        .order_by(d.position)
    )
    return [DriftRow(**row) for row in _rows(connection, query)]


def counts(
    connection: Connection, *, admission: str, since_us: int = 0, until_us: int | None = None
) -> Counts:
    """
    Return the counts of the headline.

    A Pod that was only adopted was not decided, one placed by count was.

    Args:
        admission: the actor of refusals at admission: what has such a last word never was there.
        since_us, until_us: of what was said between these moments alone.
    """
    seen = _seen(decided_only=True, since_us=since_us, until_us=until_us)
    pod = _grouped(seen).subquery("pod")
    reserved, refused = pod.c.reserved_position, pod.c.refused_position
    e = ledger_events.c
    never_was = func.coalesce(e.actor, "") == admission
    query = select(
        func.count().label("decided"),
        _how_many(reserved > 0).label("placed"),
        _how_many(refused > 0).label("refused"),
        _how_many((refused > reserved) & ~never_was).label("waiting"),
        _how_many((refused > reserved) & never_was).label("at_admission"),
    ).select_from(pod.outerjoin(ledger_events, e.position == refused))
    return Counts(**next(_rows(connection, query)))


def ahead_us(connection: Connection) -> int | None:
    """Return how far the last event's time is ahead of the clock that it was recorded by."""
    e = ledger_events.c
    query = select(e.at_us - e.wall_us).where(e.wall_us > 0).order_by(e.position.desc()).limit(1)
    found: int | None = connection.execute(query).scalar()
    return found


def span(connection: Connection) -> Span:
    """Return from when to when the ledger speaks, from its first inventory on."""
    e = EVENTS
    inventoried = case((e.c.event_type.like("node.inventoried.%"), e.c.at_us), else_=null())
    query = select(
        func.coalesce(func.min(inventoried), func.min(e.c.at_us), 0).label("first_at_us"),
        func.coalesce(func.max(e.c.at_us), 0).label("last_at_us"),
        func.coalesce(func.max(e.c.position), 0).label("last_position"),
    )
    return Span(**next(_rows(connection, query)))


def lost_ranges(connection: Connection) -> list[LostRange]:
    """Return the times that recoveries lost, in the order of the recoveries."""
    query = select(LOST.c.opened_at_us, LOST.c.closed_at_us).order_by(LOST.c.position)
    return [LostRange(**row) for row in _rows(connection, query)]


def usage(
    connection: Connection,
    by: GpuGroup,
    since_us: int,
    until_us: int,
    *,
    namespace: str | None = None,
) -> list[UsageRecord]:
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
            UsageRecord(group=key, pods=use.pods, gpu_hours=hours[key], cpu_hours=None)
            for key, use in gpu.items()
        ]
    r = RESERVATIONS
    cpu_hours = func.sum(r.c.cpu_milli * _overlap(r, since_us, until_us)) / 1000.0 / HOUR_US
    query = (
        select(
            r.c[by].label("key"),
            func.count(r.c.pod_uid.distinct()).label("pods"),
            cpu_hours.label("hours"),
        )
        .where(_in_window(r, since_us, until_us))
        .group_by(r.c[by])
        .order_by(r.c[by])
    )
    return [
        UsageRecord(
            group=row["key"],
            pods=row["pods"],
            gpu_hours=hours.get(row["key"], 0.0),
            cpu_hours=row["hours"],
        )
        for row in _rows(connection, _matching(query, r, {"namespace": namespace}))
    ]


def holding_rows(connection: Connection) -> Iterator[HoldingRow]:
    """Yield every holding there ever was, by position and device."""
    h, r = HOLDINGS, RESERVATIONS
    columns = [r.c.policy if name == "policy" else h.c[name] for name in HoldingRow._fields]
    query = (
        select(*columns)
        .join_from(h, r, h.c.position == r.c.position)
        .where(h.c.device_type != COUNTER)
        .order_by(h.c.position, h.c.device_type, h.c.minor)
    )
    for row in rows_of(connection, query):
        yield HoldingRow._make(row)


def first_reserved(connection: Connection) -> int:
    """Return the position of the first reservation, 1 where there is none."""
    found = connection.execute(select(func.min(ledger_reservations.c.position))).scalar()
    return int(found or 1)


def placing_rows(connection: Connection) -> Iterator[PlacingRow]:
    """Yield the places that Pods got which were refused at some time, by position."""
    r = RESERVATIONS
    refused = select(REFUSALS.c.pod_uid)
    columns = (r.c[name] for name in PlacingRow._fields)
    query = select(*columns).where(r.c.pod_uid.in_(refused)).order_by(r.c.position)
    for row in rows_of(connection, query):
        yield PlacingRow._make(row)


def unknown_rows(
    connection: Connection, when: When = NOW, *, node: str | None = None
) -> list[UnknownRow]:
    """
    Return the Pods that may hold devices which nobody can name, by position.

    Of one whose event is in an archive what the rows still say.
    """
    r, e = RESERVATIONS, EVENTS
    query = (
        select(*_UNKNOWN_COLUMNS)
        .join_from(r, e, e.c.position == r.c.position, isouter=True)
        .where(when.condition(r), r.c.kind == "observed")
        .order_by(r.c.position)
    )
    if node is not None:
        names = select(NODES.c.node_name).where(NODES.c.machine_no.in_(_machines_of(node)))
        query = query.where(r.c.node_name.in_(names))
    rows = [UnknownRow._make((*row, "")) for row in rows_of(connection, query)]
    archived = [row.position for row in rows if row.body is None]
    slots = _unknown_slots(connection, archived)
    return [
        row._replace(unknown_types=slots[row.position][0], gpu_count=slots[row.position][1])
        if row.position in slots
        else row
        for row in rows
    ]


def _unknown_slots(connection: Connection, positions: Sequence[int]) -> dict[int, tuple[str, int]]:
    """Return position -> the types of devices held there that nobody can name, GPUs by number."""
    s, r = ledger_slot_holdings.c, RESERVATIONS.c
    found: dict[int, tuple[str, int]] = {}
    for start in range(0, len(positions), _PODS_PER_QUERY):
        query = (
            select(s.position, s.slot, r.gpu_count - _NAMED)
            .join_from(ledger_slot_holdings, RESERVATIONS, r.position == s.position)
            .where(s.position.in_(positions[start : start + _PODS_PER_QUERY]))
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
    Return node UID and path of the Pods of a window whose event is in an archive.

    By position, each holding once.
    """
    r, e = RESERVATIONS, EVENTS
    query = (
        select(r.c.node_uid, r.c.namespace, r.c.pod_name)
        .join_from(r, e, e.c.position == r.c.position, isouter=True)
        .where(e.c.position.is_(None), _in_window(r, since_us, until_us))
        .order_by(r.c.position)
    )
    rows = _rows(connection, _matching(query, r, {"namespace": namespace}))
    return [(row["node_uid"], f"{row['namespace']}/{row['pod_name']}") for row in rows]


def granted_rows(
    connection: Connection, when: When, *, nodes: Iterable[str]
) -> Iterator[UnknownRow]:
    """
    Yield who was granted something on these nodes, by UID, with what they asked for.

    Nothing of that where the event is in an archive.
    """
    r, e, wanted = RESERVATIONS, EVENTS, sorted(nodes)
    for start in range(0, len(wanted), _NODES_PER_QUERY):
        query = (
            select(*_UNKNOWN_COLUMNS)
            .join_from(r, e, e.c.position == r.c.position, isouter=True)
            .where(when.condition(r), r.c.kind == "granted", r.c.holder == POD)
            .where(r.c.node_uid.in_(wanted[start : start + _NODES_PER_QUERY]))
            .order_by(r.c.position)
        )
        for row in rows_of(connection, query):
            yield UnknownRow._make((*row, ""))


def unplaced_rows(connection: Connection, *, namespace: str | None = None) -> Iterator[UnplacedRow]:
    """Yield the Pods that ever held GPUs which nobody can name, by position."""
    r, s = RESERVATIONS, ledger_slot_holdings
    query = (
        select(*_UNPLACED_COLUMNS)
        .join_from(r, s, s.c.position == r.c.position)
        .where(s.c.slot == f"{UNKNOWN}{GPU}", r.c.kind == "observed")
        .order_by(r.c.position)
    )
    for row in rows_of(connection, _matching(query, r, {"namespace": namespace})):
        yield UnplacedRow._make(row)


def opened_rows(connection: Connection, positions: Iterable[int]) -> Iterator[UnplacedRow]:
    """Yield the reservations that were opened at these positions, in order."""
    r, wanted = RESERVATIONS, sorted(positions)
    for start in range(0, len(wanted), _NODES_PER_QUERY):
        query = (
            select(*_UNPLACED_COLUMNS)
            .where(r.c.position.in_(wanted[start : start + _NODES_PER_QUERY]))
            .order_by(r.c.position)
        )
        for row in rows_of(connection, query):
            yield UnplacedRow._make(row)


def voided_attempts(connection: Connection) -> dict[str, int]:
    """Return Pod UID -> the newest attempt that was voided, of Pods of which one was."""
    r = ledger_reservations.c
    voided: ColumnElement[str] = literal_column("'voided'")  # a value would hide the index
    query = select(r.pod_uid, func.max(r.attempt)).where(r.phase == voided).group_by(r.pod_uid)
    return dict(map(tuple, connection.execute(query)))


def newest_attempts(connection: Connection, uids: Iterable[str]) -> dict[str, int]:
    """Return the number of the newest holding of each of these holders, ended or not."""
    r, wanted = ledger_reservations.c, sorted(uids)
    found: dict[str, int] = {}
    for start in range(0, len(wanted), _PODS_PER_QUERY):
        part = r.pod_uid.in_(wanted[start : start + _PODS_PER_QUERY])
        query = select(r.pod_uid, func.max(r.attempt)).where(part).group_by(r.pod_uid)
        found.update(map(tuple, connection.execute(query)))
    return found


def lives_of_pods(connection: Connection, pods: Iterable[tuple[str, str]]) -> list[PodLifeRow]:
    """Return all that was reserved for these Pods, by namespace and name, in order."""
    r, n, wanted = ledger_reservations.c, ledger_nodes.c, sorted(pods)
    found: list[PodLifeRow] = []
    for start in range(0, len(wanted), _PODS_PER_QUERY):
        part = wanted[start : start + _PODS_PER_QUERY]
        query = (
            select(r.pod_uid, r.attempt, n.node_uid, r.phase, r.phase_position)
            .add_columns(r.position, r.lost_position, r.closed_position)
            .join_from(ledger_reservations, ledger_nodes, r.node_no == n.node_no)
            .where(tuple_(r.namespace, r.pod_name).in_(part), r.kind == "granted")
            .order_by(r.position)
        )
        for uid, attempt, node_uid, phase, phase_position, *positions in connection.execute(query):
            is_bound = phase in {"bound", "assigned"}
            found.append(
                PodLifeRow(
                    pod_uid=uid,
                    attempt=attempt,
                    node_uid=node_uid,
                    bound_position=phase_position if is_bound else None,
                    positions=tuple(positions),
                )
            )
    return found


def _as_holder(r: TableClause) -> list[ColumnElement[Any]]:
    """Return the columns of a whole reservation, in the words of `HolderRow`."""
    return [
        *(c for c in r.c if c.name not in ("labels", "gpu_core_percent", "gpu_count")),
        r.c.gpu_core_percent.label("core_percent"),
        cast(null(), Text).label("device_type"),
        cast(null(), Integer).label("minor"),
        literal_column("''").label("device_id"),
        literal_column("''").label("model"),
        literal_column("0").label("memory_ratio_percent"),
        literal_column("0").label("exclusive"),
    ]


def _seen(
    *, decided_only: bool = False, since_us: int = 0, until_us: int | None = None
) -> Subquery:
    """Return each reservation and each refusal of a Pod with its position."""
    r, f = RESERVATIONS, REFUSALS
    reserved = select(
        *(r.c.pod_uid, r.c.namespace, r.c.pod_name, r.c.owner),
        r.c.position.label("reserved_position"),
        literal_column("0").label("refused_position"),
    )
    if decided_only:
        by_count = select(EVENTS.c.position).where(
            EVENTS.c.event_type.like("pod.observed.%"), EVENTS.c.body.like(_BY_COUNT)
        )
        reserved = reserved.where(or_(r.c.kind == "granted", r.c.position.in_(by_count)))
    refused = select(
        *(f.c.pod_uid, f.c.namespace, f.c.pod_name, f.c.owner),
        literal_column("0").label("reserved_position"),
        f.c.position.label("refused_position"),
    )
    if since_us:
        reserved = reserved.where(r.c.opened_at_us >= since_us)
        refused = refused.where(f.c.at_us >= since_us)
    if until_us is not None:
        reserved = reserved.where(r.c.opened_at_us <= until_us)
        refused = refused.where(f.c.at_us <= until_us)
    return union_all(reserved, refused).subquery("seen")


def _grouped(seen: Subquery) -> Select[Any]:
    pod = (seen.c.pod_uid, seen.c.namespace, seen.c.pod_name)
    return select(
        *pod,
        func.max(seen.c.owner).label("owner"),
        func.max(seen.c.reserved_position).label("reserved_position"),
        func.max(seen.c.refused_position).label("refused_position"),
    ).group_by(*pod)


def _is_owner(seen: Subquery, owner: str) -> ColumnElement[bool]:
    kind, _, name = owner.partition("/")
    same = seen.c.owner == owner
    if kind != "deployment":
        return same
    return or_(same, seen.c.owner.startswith(f"replicaset/{name}-", autoescape=True))


def _overlap(view: FromClause, since_us: int, until_us: int) -> ColumnElement[float]:
    """Return the microseconds of an interval inside the window; floats can't overflow in a sum."""
    opened, closed = view.c.opened_at_us, view.c.counted_until_us
    ended = case((closed < until_us, closed), else_=until_us)
    began = case((opened > since_us, opened), else_=since_us)
    return cast(ended - began, Float)


def _in_window(view: FromClause, since_us: int, until_us: int) -> ColumnElement[bool]:
    closed = view.c.counted_until_us
    return (view.c.opened_at_us < until_us) & or_(closed.is_(None), closed > since_us)


def _how_many(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def _pod(pod: tuple[str, str] | None) -> dict[str, str | int | None]:
    return {} if pod is None else {"namespace": pod[0], "pod_name": pod[1]}


def _with_unknown_types(connection: Connection, holder: HolderRow) -> HolderRow:
    """Return the holder with the device types it holds on devices that nobody can name."""
    if holder.kind != "observed":
        return holder
    s = ledger_slot_holdings.c
    query = select(s.slot).where(s.position == holder.position, s.slot.startswith(UNKNOWN))
    slots = sorted(connection.execute(query.order_by(s.slot)).scalars())
    return replace(holder, unknown_types=",".join(slot.removeprefix(UNKNOWN) for slot in slots))


def _machines_of(node: str) -> Select[Any]:
    """Return the machines that the Nodes of a name stand on."""
    return select(NODES.c.machine_no).where(NODES.c.node_name == node)


def _devices_of_machines(node: str) -> Select[Any]:
    """Return every device of the machines that the Nodes of a name ever stood on."""
    d, s, n = ledger_devices.c, ledger_stands.c, ledger_nodes.c
    return (
        select(d.device_no)
        .join_from(ledger_nodes, ledger_stands, s.node_no == n.node_no)
        .join(ledger_devices, d.machine_no == s.machine_no)
        .where(n.node_name == node)
    )


def _matching(
    query: Select[Any], view: FromClause, given: Mapping[str, str | int | None]
) -> Select[Any]:
    """Return the query over the rows whose columns have the values that are given."""
    return query.where(_matching_all(view, given))


def _matching_all(view: FromClause, given: Mapping[str, str | int | None]) -> ColumnElement[bool]:
    return and_(
        true(), *(view.c[name] == value for name, value in given.items() if value is not None)
    )


def _holders(connection: Connection, query: Select[Any]) -> list[HolderRow]:
    return [
        HolderRow(**{**row, "exclusive": bool(row["exclusive"]), "cpuset": row["cpuset"] or ""})
        for row in _rows(connection, query)
    ]


def _rows(connection: Connection, query: Executable) -> Iterator[dict[str, Any]]:
    for row in rows_of(connection, query):
        yield dict(row._mapping)  # noqa: SLF001 - its name for what is public
