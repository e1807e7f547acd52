"""The picture of a cluster's cards, out of a ledger or of manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.asking import EVERYBODY, Sight
from tenure.output import one_line

if TYPE_CHECKING:
    from ledger.domain.vocabulary import Vocabulary
    from ledger.store.open import Ledger
    from scheduler.cluster.model import Cluster
    from scheduler.usage.picture import Many, NodeNow, Picture

_SHOWN_MAX = 4


def picture_of_cluster(cluster: Cluster, vocabulary: Vocabulary) -> Picture:
    """Return the cards of a cluster that manifests describe, read by these words."""
    from scheduler.usage.cluster_now import cluster_now_of_objects

    faults = [(f"Pod {each.pod}", each.fault) for each in cluster.conflicts]
    faults += cluster.of_nodes
    faults += [(each.object, f"can't be read: {each.text}") for each in cluster.unreadable]
    faults += [(about, f"can't be read: {text}") for about, text in cluster.vgpus.unread.items()]
    return cluster_now_of_objects(
        cluster.nodes,
        cluster.adopted,
        cluster.offers,
        capacity=cluster.capacity,
        dra=cluster.dra,
        vgpus=cluster.vgpus,
        faults=faults,
        vocabulary=vocabulary,
    )


def picture_of_ledger(source: Ledger, at_us: int | None, sight: Sight = EVERYBODY) -> Picture:
    """
    Return the cards of a ledger, now or at a moment, from one transaction.

    It is the caller's where there is one, which then asks for now.
    """
    from contextlib import nullcontext

    from ledger.domain.log.events import NodeDescribed
    from ledger.domain.proofs.canonical import INTEGER_MAX
    from ledger.store.reading import report_queries as queries
    from ledger.store.reading.kept import each_of
    from ledger.store.reading.report_queries import When
    from ledger.store.reading.timetravel import position_at
    from scheduler.usage.cluster_now import closed_at, cluster_now_of_ledger
    from scheduler.usage.picture import held_alone

    connection, when = source.connection, When(at_us=at_us)
    until = INTEGER_MAX if at_us is None else position_at(source, at_us)
    with nullcontext() if connection.in_transaction() else connection.begin():
        held = queries.device_holders(connection, when)
        unknown = queries.unknown_rows(connection, when)
        picture = cluster_now_of_ledger(
            queries.nodes(connection, until=until),
            queries.devices(connection),
            [holder for holder in held if sight.sees(holder.namespace)],
            closed_at(queries.health_changes(connection), at_us),
            [row for row in unknown if sight.sees(row.namespace)],
            described={
                each.node_uid: each.facts for each in each_of(connection, NodeDescribed, until)
            },
        )
    return picture if sight.whole else held_alone(picture)


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
    from scheduler.usage.picture import sums_of, unplaced_cards, unplaced_on

    pods = unplaced_on(node)
    if not pods:
        return ""
    shown = ", ".join(pod.path for pod in pods[:_SHOWN_MAX])
    rest = f" and {len(pods) - _SHOWN_MAX} more" if len(pods) > _SHOWN_MAX else ""
    held, sums = unplaced_cards(node), sums_of(node)
    which = "which one is not known" if held == 1 else "which of them is not known"
    return one_line(
        f"{node.name}: {held} of {many_text(sums.cards)} held, {which}"
        f" ({shown}{rest}); {many_text(sums.free)} free"
    )
