"""What people ask of Pods: where they have a place, why they wait, and what they lived through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from ledger.domain.log.events import BY_COUNT, STAGE_GONE
from ledger.store.reading import views
from ledger.store.reading.report_rows import Counts, PlacingRow, PodLifeRow, PodSummary, RefusalRow
from ledger.store.reading.tables import in_parts
from ledger.store.schema import ledger_events, ledger_nodes, ledger_refusals, ledger_reservations

_BY_COUNT: Final = f'%"source":"{BY_COUNT}"%'
"""In the canonical text of an event: nothing that a stranger writes has such a name."""


def pods(
    connection: sa.Connection,
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
    given = {"namespace": namespace or None, "pod_name": name, **views.of_pod(pod)}
    query = views.matching(query, seen, given)
    newest = sa.func.max(seen.c.reserved_position + seen.c.refused_position)
    query = query.order_by(seen.c.namespace, seen.c.pod_name, newest)
    return [PodSummary(**row) for row in views.each_row(connection, query)]


def refusals(connection: sa.Connection, *, position: int | None = None) -> Iterator[RefusalRow]:
    """Yield refusals by position, or the one at `position`."""
    f, e = views.REFUSALS, views.EVENTS
    query = sa.select(f, e.c.body, e.c.actor).join_from(f, e, e.c.position == f.c.position)
    query = views.matching(query.order_by(f.c.position), f, {"position": position})
    for row in views.each_row(connection, query):
        yield RefusalRow(**row)


def refusal_count(connection: sa.Connection, *, pod_uid: str) -> int:
    """Return how many refusals of one Pod are recorded."""
    query = (
        sa.select(sa.func.count())
        .select_from(views.REFUSALS)
        .where(views.REFUSALS.c.pod_uid == pod_uid)
    )
    return int(connection.execute(query).scalar_one())


def last_refusals(
    connection: sa.Connection, pod_uids: Sequence[str]
) -> dict[str, tuple[int, int, bool]]:
    """
    Return how often these Pods were refused, where last, and whether that is their last word.

    It is not where a place was reserved for the Pod since. Pods without a refusal are left out.
    """
    f, r = ledger_refusals.c, ledger_reservations.c
    refused = (
        sa.select(f.pod_uid, sa.func.count(), sa.func.max(f.position))
        .where(f.pod_uid.in_(pod_uids))
        .group_by(f.pod_uid)
    )
    placed = (
        sa.select(r.pod_uid, sa.func.max(r.position))
        .where(r.pod_uid.in_(pod_uids))
        .group_by(r.pod_uid)
    )
    since: dict[str, int] = dict(map(tuple, connection.execute(placed)))
    return {
        uid: (number, position, since.get(uid, 0) < position)
        for uid, number, position in connection.execute(refused)
    }


def waiting_pods(
    connection: sa.Connection,
    pod_uids: Sequence[str] | None,
    *,
    stages: Sequence[str],
    admission: str,
) -> dict[str, tuple[str, str]]:
    """
    Return UID -> namespace and name of the Pods whose last word is a refusal at one of `stages`.

    Args:
        pod_uids: of these alone; None = of all.
        admission: the actor of refusals of Pods that never were.
    """
    f, r, e = ledger_refusals.c, ledger_reservations.c, ledger_events.c
    last = sa.select(sa.func.max(f.position)).group_by(f.pod_uid)
    if pod_uids is not None:
        last = last.where(f.pod_uid.in_(pod_uids))
    placed = sa.exists().where(r.pod_uid == f.pod_uid, r.position > f.position)
    query = (
        sa.select(f.pod_uid, f.namespace, f.pod_name)
        .outerjoin(ledger_events, e.position == f.position)
        .where(f.position.in_(last), f.stage.in_(stages), ~placed)
        .where(sa.func.coalesce(e.actor, "") != admission)
    )
    return {uid: (namespace, name) for uid, namespace, name in connection.execute(query)}


def placing_rows(connection: sa.Connection) -> Iterator[PlacingRow]:
    """Yield the places that Pods got which were refused at some time, by position."""
    r = views.RESERVATIONS
    refused = sa.select(views.REFUSALS.c.pod_uid)
    columns = (r.c[name] for name in PlacingRow._fields)
    query = sa.select(*columns).where(r.c.pod_uid.in_(refused)).order_by(r.c.position)
    for row in views.rows_of(connection, query):
        yield PlacingRow._make(row)


def voided_attempts(connection: sa.Connection) -> dict[str, int]:
    """Return Pod UID -> the newest attempt that was voided, of Pods of which one was."""
    r = ledger_reservations.c
    voided: sa.ColumnElement[str] = sa.literal_column("'voided'")  # a value would hide the index
    query = (
        sa.select(r.pod_uid, sa.func.max(r.attempt)).where(r.phase == voided).group_by(r.pod_uid)
    )
    return dict(map(tuple, connection.execute(query)))


def newest_attempts(connection: sa.Connection, uids: Iterable[str]) -> dict[str, int]:
    """Return the number of the newest holding of each of these holders, ended or not."""
    r = ledger_reservations.c
    found: dict[str, int] = {}
    for part in in_parts(uids):
        some = r.pod_uid.in_(part)
        query = sa.select(r.pod_uid, sa.func.max(r.attempt)).where(some).group_by(r.pod_uid)
        found.update(map(tuple, connection.execute(query)))
    return found


def lives_of_pods(connection: sa.Connection, pods: Iterable[tuple[str, str]]) -> list[PodLifeRow]:
    """Return all that was reserved for these Pods, by namespace and name, in order."""
    r, n = ledger_reservations.c, ledger_nodes.c
    found: list[PodLifeRow] = []
    for part in in_parts(pods):
        query = (
            sa.select(r.pod_uid, r.attempt, n.node_uid, r.phase, r.phase_position)
            .add_columns(r.position, r.lost_position, r.closed_position)
            .join_from(ledger_reservations, ledger_nodes, r.node_no == n.node_no)
            .where(sa.tuple_(r.namespace, r.pod_name).in_(part), r.kind == "granted")
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


def counts(
    connection: sa.Connection, *, admission: str, since_us: int = 0, until_us: int | None = None
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
    never_was = sa.func.coalesce(e.actor, "") == admission
    waits = (refused > reserved) & ~never_was & (ledger_refusals.c.stage != STAGE_GONE)
    query = sa.select(
        sa.func.count().label("decided"),
        _how_many(reserved > 0).label("placed"),
        _how_many(refused > 0).label("refused"),
        _how_many(waits).label("waiting"),
        _how_many((refused > reserved) & never_was).label("at_admission"),
    ).select_from(
        pod.outerjoin(ledger_events, e.position == refused).outerjoin(
            ledger_refusals, ledger_refusals.c.position == refused
        )
    )
    return Counts(**next(views.each_row(connection, query)))


def _seen(
    *, decided_only: bool = False, since_us: int = 0, until_us: int | None = None
) -> sa.Subquery:
    r, f = views.RESERVATIONS, views.REFUSALS
    reserved = sa.select(
        *(r.c.pod_uid, r.c.namespace, r.c.pod_name, r.c.owner),
        r.c.position.label("reserved_position"),
        sa.literal_column("0").label("refused_position"),
    )
    if decided_only:
        by_count = sa.select(views.EVENTS.c.position).where(
            views.EVENTS.c.event_type.like("pod.observed.%"), views.EVENTS.c.body.like(_BY_COUNT)
        )
        reserved = reserved.where(sa.or_(r.c.kind == "granted", r.c.position.in_(by_count)))
    refused = sa.select(
        *(f.c.pod_uid, f.c.namespace, f.c.pod_name, f.c.owner),
        sa.literal_column("0").label("reserved_position"),
        f.c.position.label("refused_position"),
    )
    if since_us:
        reserved = reserved.where(r.c.opened_at_us >= since_us)
        refused = refused.where(f.c.at_us >= since_us)
    if until_us is not None:
        reserved = reserved.where(r.c.opened_at_us <= until_us)
        refused = refused.where(f.c.at_us <= until_us)
    return sa.union_all(reserved, refused).subquery("seen")


def _grouped(seen: sa.Subquery) -> sa.Select[Any]:
    pod = (seen.c.pod_uid, seen.c.namespace, seen.c.pod_name)
    return sa.select(
        *pod,
        sa.func.max(seen.c.owner).label("owner"),
        sa.func.max(seen.c.reserved_position).label("reserved_position"),
        sa.func.max(seen.c.refused_position).label("refused_position"),
    ).group_by(*pod)


def _is_owner(seen: sa.Subquery, owner: str) -> sa.ColumnElement[bool]:
    kind, _, name = owner.partition("/")
    same = seen.c.owner == owner
    if kind != "deployment":
        return same
    return sa.or_(same, seen.c.owner.startswith(f"replicaset/{name}-", autoescape=True))


def _how_many(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0)
