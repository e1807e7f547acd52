"""The picture of a cluster's cards, out of a ledger or of manifests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tenure.asking import EVERYBODY, Sight
from tenure.output import one_line
from tenure.units import MICROSECONDS, format_time

if TYPE_CHECKING:
    from ledger.store.open import Ledger
    from tenure.times import LedgerTime


_ARCHIVED: Final = (
    "its event is in an archive: what it holds of cards by number or claim is not known"
)
_BY_CLAIM: Final = "allocated to claim "
UNKNOWN_HOLDER: Final = "unknown holder"
"""The closed reason of a device that a Pod may hold whose device nobody can name."""
_SHOWN_MAX = 4


def picture_of_cluster(cluster: Cluster, vocabulary: Vocabulary) -> Picture:
    """Return the cards of a cluster that manifests describe, read by these words."""
    from scheduler.usage.cluster_now import cluster_now_of_objects

    return cluster_now_of_objects(
        cluster.nodes,
        cluster.adopted,
        cluster.claims,
        unreadable=[(each.object, each.text) for each in cluster.unreadable],
        vocabulary=vocabulary,
    )


def picture_of_ledger(source: Ledger, at_us: int | None, sight: Sight = EVERYBODY) -> Picture:
    """
    Return the cards of a ledger, now or at a moment, from one transaction.

    It is the caller's where there is one, which then asks for now.
    """
    from contextlib import nullcontext

    from ledger.domain.log.events import CLAIM
    from ledger.domain.proofs.canonical import INTEGER_MAX
    from ledger.store.reading import report_queries as queries
    from ledger.store.reading import unnamed_queries
    from ledger.store.reading.kept import consumers_of
    from ledger.store.reading.registered import registered_at
    from ledger.store.reading.timetravel import position_at
    from ledger.store.reading.views import When
    from scheduler.usage.cluster_now import closed_at, cluster_now_of_ledger, names_of
    from scheduler.usage.others import has_others
    from scheduler.usage.picture import held_alone
    from scheduler.usage.pods import asking_pod, pod_of

    connection, when = source.connection, When(at_us=at_us)
    until = INTEGER_MAX if at_us is None else position_at(source, at_us)
    with nullcontext() if connection.in_transaction() else connection.begin():
        described, labels = _said_of_nodes(source, until)
        granted = list(unnamed_queries.granted_rows(connection, when, nodes=labels))
        others = {uid for uid, facts in described.items() if has_others(facts, labels.get(uid, {}))}
        observed = unnamed_queries.unknown_rows(connection, when)
        pods = [
            *((row, pod_of(row)) for row in observed),
            *((row, asking_pod(row)) for row in granted),
        ]
        cut: dict[str, bool] = {}
        own = {row.position for row in granted if row.gpu_count}  # a Pod has cards of one kind
        for row, _ in pods:
            if row.body is None:
                cut[row.node_uid] = cut.get(row.node_uid, False) or row.position not in own
        held = queries.device_holders(connection, when)
        by_claims = {row.position: row.pod_uid for row in held if row.holder == CLAIM}
        consumers = consumers_of(connection, by_claims, until)
        if at_us is None:
            nodes, devices = queries.nodes(connection), queries.devices(connection)
        else:
            then = registered_at(connection, until)
            nodes, devices = then.nodes, then.devices
        picture = cluster_now_of_ledger(
            nodes,
            devices,
            [holder for holder in held if sight.sees(holder.namespace)],
            closed_at(queries.health_changes(connection), at_us),
            [
                structs.replace(pod, faults=(_ARCHIVED,))
                if row.body is None
                and row.position not in own
                and (pod.unknown_types or row.node_uid in others)
                else pod
                for row, pod in pods
                if sight.sees(row.namespace)
            ],
            described=described,
            labels=labels,
            cut=cut,
            taken=unnamed_queries.pods_by_node(connection, when),
            users={by_claims[each]: names_of(some) for each, some in consumers.items()},
            at_us=at_us,
        )
    return picture if sight.whole else held_alone(picture, sight.sees)


def others_of_ledger(source: Ledger, when: When) -> list[OfOthers]:
    """Return who holds or held cards that no inventory has, as nodes are described now."""
    from scheduler.usage.others import others_of

    return list(others_of(_picture_of_others(source, when)))


def rows_of_ledgers_others(source: Ledger, span: Span) -> OthersRows:
    """Return the cards that no inventory has, and what was ever held of them, as rows."""
    from ledger.store.reading import report_queries as queries
    from ledger.store.reading import unnamed_queries
    from ledger.store.reading.views import When
    from scheduler.usage.others import others_of, rows_of_others

    picture = _picture_of_others(source, When(ever=True))
    positions = {each.position for each in others_of(picture)}
    opened = {
        row.position: row for row in unnamed_queries.opened_rows(source.connection, positions)
    }
    uids = {node.uid for node in picture.nodes}
    devices = [each for each in queries.devices(source.connection) if each.node_uid in uids]
    return rows_of_others(picture, opened, devices, span)


def devices_told(source: Ledger, node: str) -> list[Device]:
    """
    Return a node's devices as the map has them, by type and minor; inside a transaction.

    Real cards where its inventory has units that are parts of cards, those that a plugin tells by
    number alone, and closed ones where another Node of its machine lists them.
    """
    from ledger.store.reading import report_queries as queries

    connection = source.connection
    devices = queries.devices(connection, node=node)
    others = rows_of_ledgers_others(source, queries.span(connection))
    held = [each for each in others.unplaced if each.row.closed_at_us is None]
    unknown = {key for each in held for key in each.among}
    found: list[Device] = []
    for uid in (each.node_uid for each in queries.nodes(connection, name=node)):
        mine = [each for each in devices if each.node_uid == uid]
        real = [each for each in others.devices if each.node_uid == uid]
        keys = {(each.node_uid, each.device_type, each.minor): each for each in real}
        if uid not in others.nodes or all(each in real for each in mine):
            found += mine  # cards with an id are asked for by their holders
            keys = {key: keys[key] for key in keys if key in others.apart}
            by_claim = [key for key, each in keys.items() if _BY_CLAIM in each.closed_reason]
            keys = {k: each for k, each in keys.items() if not each.device_id or k in by_claim}
        found += (
            replace(each, closed_reason=UNKNOWN_HOLDER)
            if key in unknown and not each.closed_reason
            else each
            for key, each in keys.items()
        )
    again = _listed_again(source, found)
    return [
        replace(each, closed_reason=f"the machine is registered again, as {again[each.device_no]}")
        if each.device_no in again
        else each
        for each in found
    ]


def closed_by_others(source: Ledger) -> dict[tuple[str, str], str]:
    """Return node UID and id of cards that are closed though they are healthy, with the reason."""
    from ledger.domain.log.events import NodeDescribed
    from ledger.store.reading.kept import each_of

    facts = {each.node_uid: each.facts for each in each_of(source.connection, NodeDescribed)}
    return {(uid, key): why for uid, one in facts.items() for key, why in one.systems.closed}


def _listed_again(source: Ledger, devices: Sequence[Device]) -> dict[int, str]:
    """Return number of a device -> the other Node that lists it for the whole machine."""
    from ledger.domain.log.events import NodeDescribed
    from ledger.store.reading import report_queries as queries
    from ledger.store.reading.kept import each_of
    from scheduler.usage.machines import has_twins, once_per_machine

    nodes = queries.nodes(source.connection)
    if not has_twins(nodes):
        return {}
    described = each_of(source.connection, NodeDescribed)
    created = {each.node_uid: each.facts.created for each in described}
    _, places = once_per_machine(nodes, queries.devices(source.connection), created)
    names = {node.node_uid: node.node_name for node in nodes}
    return {
        each.device_no: names[places[each.device_no][0]]
        for each in devices
        if each.device_no in places and places[each.device_no][0] != each.node_uid
    }


def _picture_of_others(source: Ledger, when: When) -> Picture:
    """Return the nodes that have such cards, with who holds some, each under his position."""
    from ledger.domain.proofs.canonical import INTEGER_MAX
    from ledger.domain.resources import NVIDIA_GPU
    from ledger.store.reading import report_queries as queries
    from ledger.store.reading import unnamed_queries
    from scheduler.usage.cluster_now import cluster_now_of_ledger
    from scheduler.usage.others import POSITION, has_others
    from scheduler.usage.picture import Picture
    from scheduler.usage.pods import asking_pod, pod_of

    connection = source.connection
    described, labels = _said_of_nodes(source, INTEGER_MAX)
    cut = {uid for uid, facts in described.items() if has_others(facts, labels.get(uid, {}))}
    if not cut:
        return Picture()
    observed = (
        row for row in unnamed_queries.unknown_rows(connection, when) if row.node_uid in cut
    )
    granted = unnamed_queries.granted_rows(connection, when, nodes=cut)
    rows = [
        *((row.position, pod_of(row)) for row in observed),
        # NVIDIA's have rows of devices
        *((row.position, asking_pod(row, without=NVIDIA_GPU)) for row in granted),
    ]
    nodes = [node for node in queries.nodes(connection) if node.node_uid in cut]
    devices = [device for device in queries.devices(connection) if device.node_uid in cut]
    return cluster_now_of_ledger(
        nodes,
        devices,
        [],
        {},
        [structs.replace(pod, pod_uid=f"{POSITION}{position}") for position, pod in rows],
        described=described,
        labels=labels,
    )


def _said_of_nodes(
    source: Ledger, until: int
) -> tuple[dict[str, RecordedNode], dict[str, dict[str, str]]]:
    """Return what was said of nodes last, and the labels of those without a Device object."""
    from ledger.domain.log.events import NodeDescribed
    from ledger.store.reading.kept import each_of, labels_of

    connection = source.connection
    described = {each.node_uid: each.facts for each in each_of(connection, NodeDescribed, until)}
    offering = {uid for uid, facts in described.items() if facts.dialects is not None}
    labels = labels_of(connection, offering, until) if offering else {}
    return described, {uid: labels.get(uid, {}) for uid in offering}


def not_counted_words(pods: Sequence[str], *, of_objects: bool = False) -> str:
    """Say whose hours of cards are not known, by path."""
    shown, more = ", ".join(pods[:_SHOWN_MAX]), len(pods) - _SHOWN_MAX
    rest = f" and {more} more" if more > 0 else ""
    if of_objects:
        return one_line(f"not counted: no object says since when they run: {shown}{rest}")
    fact = "not counted: cards by number or claim of Pods whose events are in an archive"
    return one_line(f"{fact}: {shown}{rest}; the segment files have them")


def many_text(number: Many) -> str:
    """Return a number as people read it."""
    if number.exact is not None:
        return f"{number.exact:,}"
    if number.most is None:
        return f"{number.least:,} or more"
    return f"{number.least:,} to {number.most:,}"


def many_record(number: Many) -> int | dict[str, int | None]:
    """Return a number where it is known, else its bounds."""
    if number.exact is not None:
        return number.exact
    return {"min": number.least, "max": number.most}


def unplaced_line(node: NodeNow) -> str:
    """Say how many cards of a node are held of which nobody knows which; empty for none."""
    from scheduler.usage.picture import (
        Many,
        cards_of,
        gpu_groups,
        held_cards,
        sums_of,
        unplaced_cards,
        unplaced_on,
    )

    pods = unplaced_on(node)
    if not pods:
        return ""
    shown = ", ".join(pod.path for pod in pods[:_SHOWN_MAX])
    rest = f" and {len(pods) - _SHOWN_MAX} more" if len(pods) > _SHOWN_MAX else ""
    held, sums, in_all = unplaced_cards(node), sums_of(node), held_cards(node)
    if sums.cards.most == 0:
        return one_line(f"{node.name}: no object tells of the cards that are held ({shown}{rest})")
    which = "which one is not known" if held == 1 else "which of them is not known"
    number = Many(least=held, most=held)
    if in_all.exact is None:
        cards = [card for group in gpu_groups(node) for card in cards_of(group)]
        named = sum(1 for card in cards if card.holders)
        number = Many(least=min(held, max(1, in_all.least - named)), most=held)
    return one_line(
        f"{node.name}: {many_text(number)} of {many_text(sums.cards)} held, {which}"
        f" ({shown}{rest}); {many_text(sums.free)} free"
    )


def untold(source: Ledger, at_us: int | None, now: LedgerTime, since_us: int | None = None) -> str:
    """
    Return why a moment is not recorded, empty for one that is.

    It is before the first inventory, in a range that a recovery lost, or has not come yet: a
    simulation ends with its last event. With `since_us` it is the last one of an interval.

    Example: who held a card in 2020, of a ledger from 2026:

        "not recorded: this ledger begins at 2026-03-02T08:00:00+00:00"
    """
    from ledger.store.reading.report_queries import lost_ranges, span

    if at_us is None:
        return ""
    first_us = span(source.connection).first_at_us
    first_us -= first_us % MICROSECONDS  # events of one moment are microseconds apart
    if at_us < first_us:
        return f"not recorded: this ledger begins at {format_time(first_us)}"
    if at_us > now.now_us:
        what = "this ledger ends at" if now.virtual else "it is later than now,"
        return f"not known: {what} {format_time(now.now_us)}"
    for lost in lost_ranges(source.connection):
        if lost.opened_at_us < at_us and (since_us or at_us) < lost.closed_at_us:
            since, until = format_time(lost.opened_at_us), format_time(lost.closed_at_us)
            return f"not known: what happened from {since} to {until} is lost"
    return ""


if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.domain.log.recorded_node import RecordedNode
    from ledger.domain.vocabulary import Vocabulary
    from ledger.store.open import Ledger
    from ledger.store.reading.report_rows import Device, Span
    from ledger.store.reading.views import When
    from scheduler.cluster.model import Cluster
    from scheduler.usage.others import OfOthers, OthersRows
    from scheduler.usage.picture import Many, NodeNow, Picture
