"""What the watch shows of a claim, as events: stored, used by others, gone, or past the gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import structs

from ledger.domain.cpuset import EMPTY
from ledger.domain.devices import GPU, WHOLE_PERCENT, DeviceRecord, DeviceShare
from ledger.domain.dialects.dra.cpus import CPU
from ledger.domain.log import events
from ledger.domain.systems import Claimant
from scheduler.gate.claims import ClaimSeen
from scheduler.gate.cpus import cpus_of, is_of_cpus, with_class
from scheduler.gate.decide import DEALLOCATED, Accounted, Accounts, Standing, end_of
from scheduler.gate.leaving import Stays

SOURCE: Final = "resourceclaim"
DELETED: Final = "deleted"
REWRITTEN: Final = "rewritten"
"""The source of what is stored otherwise than it was let through."""
NAMED: Final = "its devices are known now"


def follow(
    seen: ClaimSeen,
    standing: Standing | None,
    consumers: tuple[Claimant, ...],
    accounts: Accounts,
    *,
    attempts: int,
    kept: Stays | None = None,
    runs: Callable[[str], bool] = lambda _: False,
) -> tuple[events.ClaimEvent, ...]:
    """
    Return what is to be recorded of a claim as the watch shows it.

    What is allocated and was reserved otherwise, or not at all, got past the gate: it is observed,
    outside of the constraint. What was reserved, or may be in use yet, is held beside it until the
    allocation goes. What is taken away past the gate is held while something of it may be left, and
    a Pod that runs uses a claim also where somebody took it off the claim's list.

    Args:
        consumers: as the ledger has them.
        attempts: the number of the claim's newest holding, ended or not.
        kept: why what the claim has stays.
        runs: tells of a Pod's UID whether it has a node and has not ended.
    """
    if seen.allocated is None:
        is_past = standing is not None and seen.version > standing.fence
        if standing is None or not is_past or (standing.stored and kept is not None):
            return ()
        return (end_of(standing, DEALLOCATED),)
    if standing is not None and standing.opening.results == seen.allocated.results:
        opening, found = standing.opening, list[events.ClaimEvent]()
        if isinstance(opening, events.ClaimObserved) and opening.unknown_types:
            beside = opening if opening.source == REWRITTEN else None
            named = observed_of(seen, accounts, attempts + 1, beside=beside)
            if named is not None and len(named.unknown_types) < len(opening.unknown_types):
                return (end_of(standing, NAMED), named)
        uid, attempt, node_uid = opening.claim_uid, opening.attempt, opening.node_uid
        if not standing.stored:
            found.append(events.ClaimBound(claim_uid=uid, attempt=attempt, node_uid=node_uid))
        still = (one for one in consumers if one not in seen.consumers and runs(one.uid))
        using = (*seen.consumers, *still)
        if consumers != using:
            found.append(
                events.ClaimConsumed(
                    claim_uid=uid, attempt=attempt, node_uid=node_uid, consumers=using
                )
            )
        return tuple(found)
    if standing is not None and seen.version <= standing.fence:
        return ()  # what was shown late
    ended = () if standing is None else (end_of(standing, DEALLOCATED),)
    stays = standing is not None and (not standing.stored or kept is not None)
    observed = observed_of(
        seen,
        accounts,
        attempts + 1,
        beside=standing.opening if standing is not None and stays else None,
    )
    return (*ended, observed) if observed is not None else ended


def observed_of(
    seen: ClaimSeen,
    accounts: Accounts,
    attempt: int,
    *,
    beside: events.ClaimReserved | events.ClaimObserved | None = None,
) -> events.ClaimObserved | None:
    """
    Return that a claim holds what no gate let through; None of a node that is not known.

    Args:
        beside: what it holds besides, where that is on the same node.
    """
    assert seen.allocated is not None, "it holds something"
    node = accounts.node(seen.allocated.node_name)
    if node is None:
        return None
    found = accounts.account(seen.allocated)
    known = found if isinstance(found, Accounted) else Accounted(shares=(), models=())
    sizes = {(one.device_type, one.device_id): one for one in node.devices}
    held = {
        _account(one): (_at_most(one, sizes.get((one.device_type, one.device_id))), model)
        for one, model in zip(known.shares, known.models, strict=True)
    }
    is_more = beside is not None and beside.node_uid == node.uid
    if beside is not None and is_more:
        for one, model in zip(beside.shares, beside.device_models, strict=True):
            also = held.get(_account(one))
            held[_account(one)] = (one if also is None else _greater(one, also[0]), model)
    in_order = [held[account] for account in sorted(held)]
    results = seen.allocated.results
    unknown = [] if known is found else [GPU]
    unknown += [CPU] if any(is_of_cpus(one) and not one.cpus for one in results) else []
    return events.ClaimObserved(
        claim_uid=seen.uid,
        attempt=attempt,
        node_uid=node.uid,
        namespace=seen.namespace,
        claim_name=seen.name,
        node_name=node.name,
        results=results,
        shares=tuple(one for one, _ in in_order),
        device_models=tuple(model for _, model in in_order),
        unknown_types=tuple(unknown),
        consumers=seen.consumers,
        cpuset=cpus_of(results) | (beside.cpuset if beside is not None and is_more else EMPTY),
        resource_version=str(seen.version),
        snapshot=with_class(seen.snapshot, results),
        source=REWRITTEN if is_more else SOURCE,
    )


def _account(share: DeviceShare) -> tuple[str, int, str]:
    return share.device_type, share.minor, share.device_id


def _greater(one: DeviceShare, other: DeviceShare) -> DeviceShare:
    return structs.replace(
        one,
        core_percent=max(one.core_percent, other.core_percent),
        memory_bytes=max(one.memory_bytes, other.memory_bytes),
        memory_ratio_percent=max(one.memory_ratio_percent, other.memory_ratio_percent),
        exclusive=one.exclusive or other.exclusive,
    )


def _at_most(share: DeviceShare, card: DeviceRecord | None) -> DeviceShare:
    """Return what is held of a card where more than all of it was written: all of it."""
    if card is None or (
        share.core_percent <= card.core_percent and share.memory_bytes <= card.memory_bytes
    ):
        return share
    return structs.replace(
        share,
        core_percent=min(share.core_percent, card.core_percent),
        memory_bytes=min(share.memory_bytes, card.memory_bytes),
        memory_ratio_percent=min(share.memory_ratio_percent, WHOLE_PERCENT),
    )


def gone(standing: Standing, kept: Stays | None) -> tuple[events.ClaimEvent, ...]:
    """
    Return the end of what a claim had that is gone; none while something of it may be left.

    Also of one that no watch showed stored: it may have come and gone while nobody looked, and a
    Pod runs with what was.
    """
    return (end_of(standing, DELETED),) if kept is None else ()
