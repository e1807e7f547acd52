"""What the gate answers to one write of a claim's status."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pytest

from ledger.domain.annotations.tenure import encode_shown
from ledger.domain.errors import InputError
from ledger.domain.log.events import (
    ClaimObserved,
    ClaimReleased,
    ClaimReserved,
    ClaimVoided,
    PodReserved,
)
from ledger.domain.systems import Claimant
from scheduler.gate.claims import claim_seen
from scheduler.gate.decide import (
    ALLOCATION_CHANGED,
    DEALLOCATED,
    DEVICE_CLOSED,
    DEVICE_TAKEN,
    DRIVER_UNLISTED,
    NODE_UNKNOWN,
    NOT_STORED,
    OUTCOME_OPEN,
    STALE_WRITE,
    ZERO_SHARE,
    Barred,
    Standing,
    Through,
    Write,
    decide,
)
from scheduler.gate.leaving import (
    NOT_CONFIRMED,
    ON_LOST_NODE,
    STILL_USED,
    Life,
    NodeOfClaim,
    Stays,
    stays,
)
from tests.support.gated import (
    CARD_BYTES,
    DRIVERS,
    FoldedAccounts,
    appears,
    card,
    claim,
    goes,
    result,
    seen,
)

NO_NODE = NodeOfClaim()


def kept(
    node: NodeOfClaim = NO_NODE, *, runs: Collection[str] = ()
) -> Callable[[Sequence[Claimant]], Stays | None]:
    """Return why claim a stays, of which these Pods run and the others are gone."""

    def tell(consumers: Sequence[Claimant]) -> Stays | None:
        lives = {one: Life.RUNS if one.uid in runs else Life.GONE for one in consumers}
        return stays("ml/a", lives, node)

    return tell


def reserved(write: Write, accounts: FoldedAccounts, standing: Standing | None = None) -> Standing:
    """Let a write through, record what it takes, and return what the claim has then."""
    attempts = 0 if standing is None else standing.opening.attempt
    answer = decide(write, accounts, standing, attempts=attempts)
    assert isinstance(answer, Through), answer
    accounts.events.extend(answer.events)
    opening = answer.events[-1]
    assert isinstance(opening, ClaimReserved)
    return Standing(opening=opening, stored=False)


def barred(answer: Through | Barred) -> Barred:
    """Return the refusal that an answer is."""
    assert isinstance(answer, Barred), answer
    return answer


def test_an_allocation_that_appears_is_reserved_before_the_answer() -> None:
    """The event says what the claim was given, for whom, and on top of which version."""
    answer = decide(appears("a", 7, result(1), pods=["train"]), FoldedAccounts(), None)

    assert isinstance(answer, Through)
    (event,) = answer.events
    assert isinstance(event, ClaimReserved)
    assert (event.claim_uid, event.attempt, event.resource_version) == ("claim-a", 1, "7")
    assert [(share.device_id, share.memory_bytes, share.exclusive) for share in event.shares] == [
        ("GPU-1", CARD_BYTES, True)
    ]
    assert [each.name for each in event.consumers] == ["train"]
    assert event.snapshot.owner == "pod/pod-a"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (result(0), result(0)),
        (result(0), result(0, memory="4Gi")),
        (result(0, memory="4Gi"), result(0)),
        (result(0, memory="12Gi"), result(0, memory="5Gi")),
    ],
    ids=["whole and whole", "whole and share", "share and whole", "shares that are too much"],
)
def test_a_card_that_is_held_is_refused_with_its_holders_name(
    first: dict[str, object], second: dict[str, object]
) -> None:
    """Two schedulers that met on one card: the second one's claim is not stored."""
    accounts = FoldedAccounts()
    reserved(appears("a", 1, first, pods=["train"]), accounts)

    answer = barred(decide(appears("b", 2, second), accounts, None))

    assert (answer.reason, answer.taken) == (DEVICE_TAKEN, True)
    assert "gpu GPU-0 of node n1" in answer.message
    assert "held by claim ml/a of Pod train" in answer.message


def test_shares_that_fit_are_let_through_together() -> None:
    """12 GiB and 4 GiB are a card of 16."""
    accounts = FoldedAccounts()
    reserved(appears("a", 1, result(0, memory="12Gi")), accounts)
    reserved(appears("b", 2, result(0, memory="4Gi")), accounts)


def test_a_claim_that_asks_a_card_twice_over_is_refused() -> None:
    """The sum of its own results is what a claim takes of a card: forged, it is more than that."""
    twice = (result(0, memory="12Gi", share_id="x"), result(0, memory="12Gi", share_id="y"))

    answer = barred(decide(appears("a", 1, *twice), FoldedAccounts(), None))

    assert (answer.reason, answer.taken) == (DEVICE_CLOSED, False)


def test_what_is_on_its_way_into_the_ledger_counts() -> None:
    """Of two writes at once the second is decided as if the first were recorded."""
    first = decide(appears("a", 1, result(0)), FoldedAccounts(), None)
    assert isinstance(first, Through)
    opening = first.events[-1]
    assert isinstance(opening, ClaimReserved)

    answer = barred(
        decide(appears("b", 2, result(0)), FoldedAccounts(), None, on_their_way=[opening])
    )

    assert answer.reason == DEVICE_TAKEN


def test_a_pod_of_another_dialect_on_the_card_is_named() -> None:
    """Accounts are of physical devices, whoever holds of them."""
    accounts = FoldedAccounts()
    accounts.events.append(
        PodReserved(
            pod_uid="pod-1",
            attempt=1,
            namespace="ml",
            pod_name="old",
            node_uid="node-1",
            node_name="n1",
            dialect="nvidia",
            policy="scarcity",
            cpu_milli=0,
            memory_bytes=0,
            shares=reserved(appears("x", 1, result(0)), FoldedAccounts()).opening.shares,
        )
    )

    answer = barred(decide(appears("a", 1, result(0)), accounts, None))

    assert "held by Pod ml/old" in answer.message


def test_a_card_that_containers_of_a_pod_see_is_refused() -> None:
    """They are shown it with their group's cards; the Pod that held it has ended."""
    accounts = FoldedAccounts()
    accounts.events.append(
        PodReserved(
            pod_uid="pod-1",
            attempt=1,
            namespace="ml",
            pod_name="old",
            node_uid="node-1",
            node_name="n1",
            cpu_milli=0,
            memory_bytes=0,
            shares=reserved(appears("x", 1, result(1)), FoldedAccounts()).opening.shares,
            annotations=encode_shown(("GPU-0", "GPU-1")),
        )
    )

    answer = barred(decide(appears("a", 1, result(0)), accounts, None))

    assert (answer.reason, answer.taken) == (DEVICE_TAKEN, True)
    assert "GPU-0 of node n1 is shown to containers: held by Pod ml/old" in answer.message


def test_an_observed_holder_counts() -> None:
    """What got past the gate is no room for others."""
    accounts = FoldedAccounts()
    opening = reserved(appears("x", 1, result(0)), FoldedAccounts()).opening
    accounts.events.append(
        ClaimObserved(
            claim_uid="claim-forged",
            attempt=1,
            node_uid="node-1",
            namespace="ml",
            claim_name="forged",
            node_name="n1",
            results=opening.results,
            shares=opening.shares,
            device_models=opening.device_models,
            source="resourceclaim",
        )
    )

    assert "claim ml/forged" in barred(decide(appears("a", 1, result(0)), accounts, None)).message


def test_the_same_write_again_appends_nothing() -> None:
    """kube-scheduler asks again with the same shareID where it got no answer."""
    accounts = FoldedAccounts()
    write = appears("a", 1, result(0, memory="4Gi"))
    standing = reserved(write, accounts)

    assert decide(write, accounts, standing, attempts=1) == Through()


def test_a_claim_is_never_counted_against_itself() -> None:
    """A later version without an allocation proves that the first write was not stored."""
    accounts = FoldedAccounts()
    standing = reserved(appears("a", 1, result(0)), accounts)

    answer = decide(appears("a", 2, result(0)), accounts, standing, attempts=1)

    assert isinstance(answer, Through)
    voided, again = answer.events
    assert isinstance(voided, ClaimVoided)
    assert isinstance(again, ClaimReserved)
    assert (voided.attempt, voided.reason) == (1, NOT_STORED)
    assert (again.attempt, again.resource_version) == (2, "2")


def test_another_device_on_the_same_version_waits_for_a_fence() -> None:
    """Either write may be stored: nothing more is given before it is known which was not."""
    accounts = FoldedAccounts()
    standing = reserved(appears("a", 1, result(0)), accounts)

    answer = barred(decide(appears("a", 1, result(1)), accounts, standing, attempts=1))

    assert (answer.reason, answer.fence) == (OUTCOME_OPEN, True)
    moved = decide(appears("a", 2, result(1)), accounts, standing, attempts=1)
    assert isinstance(moved, Through)
    assert [type(each) for each in moved.events] == [ClaimVoided, ClaimReserved]


@pytest.mark.parametrize(
    ("reserved_at", "watched"), [(5, 0), (0, 5)], ids=["reserved on a newer one", "watched a newer"]
)
def test_a_write_on_an_old_version_is_stale(reserved_at: int, watched: int) -> None:
    """The API server stores nothing on top of a version that is over."""
    accounts = FoldedAccounts()
    standing = reserved(appears("a", reserved_at, result(0)), accounts) if reserved_at else None

    answer = decide(appears("a", 3, result(0)), accounts, standing, attempts=1, seen=watched)

    assert barred(answer).reason == STALE_WRITE


def test_what_was_stored_and_is_gone_is_released_with_the_next_reservation() -> None:
    """The watch may be slower than kube-scheduler."""
    accounts = FoldedAccounts()
    standing = replace(reserved(appears("a", 1, result(0)), accounts), stored=True)

    answer = decide(appears("a", 9, result(1)), accounts, standing, attempts=1)

    assert isinstance(answer, Through)
    released, again = answer.events
    assert isinstance(released, ClaimReleased)
    assert isinstance(again, ClaimReserved)
    assert (released.reason, again.attempt) == (DEALLOCATED, 2)


def test_an_allocation_that_goes_appends_nothing() -> None:
    """It is held until the watch shows that it is gone: the write may be lost yet."""
    accounts = FoldedAccounts()
    standing = replace(reserved(appears("a", 1, result(0)), accounts), stored=True)

    assert decide(goes("a", 2, result(0), pods=["train"]), accounts, standing) == Through()


def test_an_allocation_stays_while_one_of_its_pods_runs() -> None:
    """An administrator can't free a card under a Pod."""
    write = goes("a", 2, result(0), pods=["train", "other"])

    answer = barred(decide(write, FoldedAccounts(), None, kept=kept(runs={"uid-train"})))

    assert (answer.reason, answer.asks) == (STILL_USED, False)
    assert answer.message == "claim ml/a is used by Pods that run: train"


def test_who_emptied_the_list_of_users_first_frees_nothing_under_a_pod() -> None:
    """The ledger has who used the claim, and the Pod runs on."""
    write, users = goes("a", 2, result(0)), (Claimant(name="train", uid="uid-train"),)

    answer = decide(write, FoldedAccounts(), None, consumers=users, kept=kept(runs={"uid-train"}))

    assert barred(answer).reason == STILL_USED


def test_an_allocation_stays_until_its_node_has_confirmed() -> None:
    """Where an agent reports what kubelet has of claims."""
    write = goes("a", 2, result(0), pods=["train"])
    node = NodeOfClaim(name="n1", has_witness=True, agent_ready=True)

    answer = barred(decide(write, FoldedAccounts(), None, kept=kept(node)))

    assert (answer.reason, answer.asks) == (NOT_CONFIRMED, True)
    told = replace(node, confirmed=frozenset({"uid-train"}))
    assert decide(write, FoldedAccounts(), None, kept=kept(told)) == Through()


def test_the_allocation_of_a_lost_node_goes_and_the_ledger_holds_on() -> None:
    """The claim's controller waits for nobody; the claim gets nothing else before it is over."""
    node, accounts = NodeOfClaim(name="n1", is_lost=True), FoldedAccounts()
    standing = replace(reserved(appears("a", 1, result(0)), accounts), stored=True)
    lost = kept(node)

    assert decide(goes("a", 2, result(0)), accounts, standing, kept=lost) == Through()

    again = decide(appears("a", 3, result(1)), accounts, standing, attempts=1, kept=lost)
    assert barred(again).reason == ON_LOST_NODE


def test_consumers_that_come_and_go_are_let_through() -> None:
    """The same allocation for other Pods is no question of room."""
    write = Write(
        old=seen("a", 2, result(0), pods=["one"]), new=seen("a", 2, result(0), pods=["one", "two"])
    )

    assert decide(write, FoldedAccounts(), None) == Through()


def test_an_allocation_never_becomes_another_one() -> None:
    """The API server refuses it too: it goes before another comes."""
    write = Write(old=seen("a", 2, result(0)), new=seen("a", 2, result(1)))

    assert barred(decide(write, FoldedAccounts(), None)).reason == ALLOCATION_CHANGED


def test_a_write_of_unlisted_drivers_alone_is_refused() -> None:
    """The API server asks about listed drivers alone: its list is another one than ours."""
    write = appears("a", 1, result(0, driver="nic.example.com"))

    assert barred(decide(write, FoldedAccounts(), None)).reason == DRIVER_UNLISTED


def test_what_unlisted_drivers_gave_may_go() -> None:
    """Nothing is known of it, so nothing is held."""
    write = goes("a", 1, result(0, driver="nic.example.com"), pods=["train"])

    assert decide(write, FoldedAccounts(), None, kept=kept(runs={"uid-train"})) == Through()


def test_only_what_listed_drivers_gave_is_reserved() -> None:
    """A claim may have a card and a NIC; whose NIC it is, others know."""
    write = appears("a", 1, result(0), result(1, driver="nic.example.com"))

    answer = decide(write, FoldedAccounts(), None)

    assert isinstance(answer, Through)
    opening = answer.events[-1]
    assert isinstance(opening, ClaimReserved)
    assert [each.device for each in opening.results] == ["gpu-0"]


def test_admin_access_holds_nothing() -> None:
    """It is recorded, and takes no room of a card that is held."""
    accounts = FoldedAccounts()
    reserved(appears("a", 1, result(0)), accounts)

    old, new = claim("monitor", 2), claim("monitor", 2, result(0, adminAccess=True))
    new["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    write = Write(old=claim_seen(old, DRIVERS), new=claim_seen(new, DRIVERS))

    standing = reserved(write, accounts)

    assert standing.opening.shares == ()
    assert standing.opening.results[0].admin


@pytest.mark.parametrize("amount", ["0", "0Gi"])
def test_a_share_of_nothing_is_refused(amount: str) -> None:
    """A driver without a minimum lets a holder consume nothing of a card that others have whole."""
    answer = barred(decide(appears("a", 1, result(0, memory=amount)), FoldedAccounts(), None))

    assert answer.reason == ZERO_SHARE


@pytest.mark.parametrize("amount", ["much", "-1"])
def test_an_amount_that_is_none_is_an_error_with_its_name(amount: str) -> None:
    """It is never taken for some other amount."""
    with pytest.raises(InputError, match="memory"):
        appears("a", 1, result(0, memory=amount))


def test_a_device_that_vanished_or_is_of_an_old_generation_is_refused() -> None:
    """A scheduler that has not heard of a new pool allocates from the old one."""
    accounts = FoldedAccounts(gone=frozenset({"gpu-0"}))

    answer = barred(decide(appears("a", 1, result(0)), accounts, None))

    assert "no whole pool has n1/gpu-0" in answer.message


def test_a_card_that_the_ledger_has_not_is_refused() -> None:
    """A pool that was renumbered: what is told of now and what is recorded differ."""
    answer = barred(decide(appears("a", 1, result(0)), FoldedAccounts(devices=()), None))

    assert (answer.reason, answer.taken) == (DEVICE_CLOSED, False)


def test_a_closed_card_is_refused() -> None:
    """Its health, or whoever closed it, counts for claims too."""
    accounts = FoldedAccounts(devices=(card(0, healthy=False),))

    answer = barred(decide(appears("a", 1, result(0)), accounts, None))

    assert (answer.reason, answer.message) == (
        DEVICE_CLOSED,
        "gpu GPU-0 of node n1 is unhealthy: nobody holds it",
    )


@pytest.mark.parametrize("node", ["elsewhere", ""], ids=["unknown", "none"])
def test_a_node_that_is_not_known_gives_nothing(node: str) -> None:
    """Forged, or of a pool that is on no single node."""
    write = appears("a", 1, result(0), node=node)

    assert barred(decide(write, FoldedAccounts(), None)).reason == NODE_UNKNOWN


def test_a_claim_is_read_with_what_newer_servers_add() -> None:
    """Fields that are not known are passed over."""
    item = claim("a", 1, result(0, bindingConditions=["x"]))
    item["spec"]["later"] = {"any": 1}

    assert claim_seen(item, DRIVERS) == seen("a", 1, result(0))


@pytest.mark.parametrize(
    "broken",
    [
        {"metadata": {"uid": "u", "resourceVersion": "new"}},
        {"metadata": {"uid": "", "resourceVersion": "1"}},
        {"status": {"allocation": {"devices": {"results": [{"driver": 1}]}}}},
    ],
    ids=["version", "no UID", "driver"],
)
def test_a_claim_that_can_not_be_read_says_where(broken: dict[str, object]) -> None:
    """Nothing of it is guessed."""
    with pytest.raises(InputError):
        claim_seen({**claim("a", 1), **broken}, DRIVERS)
