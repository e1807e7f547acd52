"""What bound Pods and the ConfigMap have seen decides whether anything is granted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ledger.domain.annotations.proof import SignedHolding, encode_proof
from ledger.domain.annotations.signed import Checker
from ledger.domain.cpuset import CpuSet
from ledger.domain.errors import InputError
from ledger.domain.log.standing import Incarnation, Lost, Own, Witness
from ledger.domain.log.state import GRANTED, Holding, LedgerState, NodeState
from ledger.domain.resources import ANNOTATION_TENURE_PROOF
from ledger.signing import PrivateKey, published, trusting
from scheduler.service.witnesses import (
    CONFIG_MAP,
    RECOVERING,
    ProofBook,
    Reservation,
    config_map,
    config_map_path,
    examine,
    kept_witness,
    mangled,
    set_back,
    write_head,
)
from tests.support.fake_api import ApiClient, ApiServer

CLUSTER = "ledger/ours"
KEY, DELETED, FORGER = (PrivateKey.new(name) for name in ("proofs", "proofs", "proofs"))
CHECK: Checker = trusting(published((KEY.public,)))
SEEN = Witness(origin=CLUSTER, incarnation="first", epoch=2, position=9, chain="aa", seen_by="")


def own(position: int = 10, **changes: Any) -> Own:  # noqa: ANN401
    """Return a ledger of ten events in its second epoch."""
    words: dict[str, Any] = {"origin": CLUSTER, "position": position, "epoch": 2}
    return Own(**words | changes)


def proof(uid: str, position: int, **changes: Any) -> SignedHolding:  # noqa: ANN401
    """Return what was signed for the first reservation of a Pod."""
    words: dict[str, Any] = {
        "cluster": CLUSTER,
        "incarnation": "first",
        "epoch": 2,
        "position": position,
        "attempt": 1,
        "pod_uid": uid,
        "node_uid": "uid-n-1",
        "machine": ("", ""),
    }
    return SignedHolding(**words | changes)


def pod(uid: str, said: SignedHolding, key: PrivateKey = KEY, node: str = "n-1") -> dict[str, Any]:
    """Return a bound Pod that carries a proof."""
    notes = encode_proof(said, key=key.public.key_id, sign=key.sign)
    metadata = {"namespace": "ml", "name": uid, "uid": uid, "annotations": notes}
    return {"metadata": metadata, "spec": {"nodeName": node}}


def book(*pods: dict[str, Any], held: Mapping[str, int] | None = None) -> ProofBook:
    """Return a book that was told of Pods, beside a ledger that holds for these."""
    holdings = {
        f"{uid}/1": Holding(
            pod_uid=uid,
            attempt=1,
            namespace="ml",
            pod_name=uid,
            kind=GRANTED,
            phase="bound",
            opened_position=position,
            shares=(),
            cpuset=CpuSet(),
        )
        for uid, position in (held or {}).items()
    }
    node = NodeState(uid="uid-n-1", name="n-1", holdings=holdings)
    made = ProofBook(CLUSTER, LedgerState(nodes={node.uid: node}))
    for item in pods:
        made.put(item["metadata"]["uid"], item)
    return made


def reason(
    told: ProofBook,
    ledger: Own,
    kept: Witness | None = None,
    reserved: Mapping[int, Reservation | None] | None = None,
) -> str:
    """Return why nothing is granted."""
    return examine(ledger, reserved or {}, told.claims.values(), kept, CHECK).reason


def test_a_ledger_that_has_all_that_was_seen_is_granted_from() -> None:
    """Proofs of what it holds are not even kept; nobody at all is no witness of a loss."""
    told = book(pod("a", proof("a", 4)), pod("b", proof("b", 9)), held={"a": 4, "b": 9})
    assert told.claims == {}
    assert reason(told, own(), SEEN) == ""
    assert reason(book(), own(position=0, origin="", epoch=0)) == ""


def test_a_ledger_behind_a_bound_pod_grants_nothing() -> None:
    """The reason names what is lacking, who has seen it, and what to do."""
    told = book(pod("a", proof("a", 4)), pod("b", proof("b", 14)), held={"a": 4})
    why = reason(told, own())
    assert why == (
        f"{RECOVERING}: the ledger lacks positions 11 to 14 of first, seen by Pod ml/b:"
        " run `tenure ledger recover`"
    )


def test_of_two_witnesses_that_disagree_the_one_who_saw_more_counts() -> None:
    """The ConfigMap is written seldom; a Pod that was bound later tells more, or the reverse."""
    behind = book(pod("b", proof("b", 14)))
    assert "11 to 14 of first, seen by Pod ml/b" in reason(behind, own(), SEEN)
    ahead = replace(SEEN, position=20, chain="")
    assert "11 to 20 of first, seen by " in reason(behind, own(), ahead)


def test_another_history_at_a_position_grants_nothing() -> None:
    """By the chain that the ConfigMap says, or by the reservation that a Pod proves."""
    why = reason(book(), own(chains={9: "bb"}), SEEN)
    assert why.startswith(f"{RECOVERING}: another history than was seen: another event")
    assert "put back a copy of this cluster's own ledger" in why
    told = book(pod("a", proof("a", 4)))
    for there in (None, ("other", 1), ("a", 2)):
        assert "position=4, by=Pod ml/a" in reason(told, own(), reserved={4: there})


@pytest.mark.parametrize("there", [{}, {4: ("a", 1)}], ids=["in an archive", "in the log"])
def test_a_reservation_that_has_ended_is_no_loss(there: dict[int, Reservation | None]) -> None:
    """The Pod has ended and its object is there still; the event is where it was."""
    assert reason(book(pod("a", proof("a", 4))), own(), reserved=there) == ""


def test_what_a_recovery_has_named_as_lost_is_known() -> None:
    """A Pod of the lost range runs on; beyond that range it tells something new again."""
    lives = (Incarnation(name="first", began_at=1), Incarnation(name="i2", began_at=11))
    lost = (Lost(incarnation="first", first=11, last=14),)
    recovered = own(position=13, epoch=3, incarnations=lives, lost=lost)
    assert reason(book(pod("b", proof("b", 14))), recovered) == ""
    assert "15 to 16 of first" in reason(book(pod("b", proof("b", 16))), recovered)


def _forged(position: int = 99) -> dict[str, Any]:
    item = pod("b", proof("b", 14))
    text = item["metadata"]["annotations"][ANNOTATION_TENURE_PROOF]
    text = text.replace('"position":14', f'"position":{position}')
    item["metadata"]["annotations"][ANNOTATION_TENURE_PROOF] = text
    return item


@pytest.mark.parametrize(
    "item",
    [
        pod("b", proof("b", 14), key=DELETED),
        _forged(),
        _forged(-(2**64)),
        _forged(2**64),
        _forged(0),
        pod("b", proof("b", 14, cluster="ledger/theirs")),
        pod("b", proof("c", 14)),
        {
            "metadata": {"name": "b", "uid": "b", "annotations": {ANNOTATION_TENURE_PROOF: "{"}},
            "spec": {"nodeName": "n-1"},
        },
    ],
    ids=[
        *("of a deleted key", "forged", "below what a database counts", "beyond it"),
        *("of no position", "of another cluster", "of another Pod", "no JSON"),
    ],
)
def test_what_is_no_proof_of_ours_closes_nothing_and_is_named(item: dict[str, Any]) -> None:
    """Whoever can write a Pod's annotations can't stop a cluster with it."""
    told = book(item)
    found = examine(own(), {}, told.claims.values(), None, CHECK)
    assert found.reason == ""
    assert {*found.disbelieved, *told.broken} == {"b"}


def test_a_pod_without_a_node_or_that_is_gone_tells_nothing() -> None:
    """Its annotations are not a Binding's."""
    assert book(pod("b", proof("b", 14), node="")).claims == {}
    told = book(pod("b", proof("b", 14)))
    told.drop("b")
    assert told.claims == {}


def test_the_config_map_says_what_was_written_in_it() -> None:
    """The same witness, told by its name."""
    item = config_map(SEEN, "tenure-system")
    assert kept_witness(item, CLUSTER) == replace(SEEN, seen_by=f"ConfigMap {CONFIG_MAP}")


@pytest.mark.parametrize(
    "data",
    [None, {}, {"witness": "{"}, {"witness": "[]"}, {"witness": '{"origin":"ledger/ours"}'}],
    ids=["no data", "no key", "no JSON", "no object", "half of it"],
)
def test_a_mangled_config_map_grants_nothing_until_somebody_looked(
    data: dict[str, str] | None,
) -> None:
    """Nobody can tell what it said, so nobody can tell that nothing is lost."""
    with pytest.raises(InputError) as caught:
        kept_witness({"metadata": {}, "data": data}, CLUSTER)
    assert mangled(caught.value).startswith(f"{RECOVERING}: ConfigMap {CONFIG_MAP} can't be read")


class Head:
    """A ConfigMap that is kept told of a head."""

    def __init__(self) -> None:
        self.server = ApiServer()
        self.position = 10
        self.path = config_map_path("tenure-system")
        self.api = ApiClient(self.server, lambda _: asyncio.sleep(0))

    def own(self) -> Own:
        """Return what the ledger says of itself."""
        return own(self.position, chains={self.position: f"chain {self.position}"})

    def tell(self) -> str:
        """Look once."""
        return asyncio.run(write_head(self.api, "tenure-system", self.own()))

    @property
    def kept(self) -> int:
        """How far the ConfigMap has seen the ledger."""
        return kept_witness(self.server.objects[self.path], CLUSTER).position


def _rolled_back(item: dict[str, Any]) -> None:
    item["data"] = config_map(replace(SEEN, position=3), "tenure-system")["data"]


def _mangled(item: dict[str, Any]) -> None:
    item["data"] = None


def test_a_head_that_is_written_is_looked_at_and_not_written_again() -> None:
    """Of a ledger in which nothing happens too."""
    head = Head()
    for position in (10, 10, 11, 11):
        head.position = position
        assert head.tell() == ""
        assert head.kept == position
    assert [verb for verb, _ in head.server.written] == ["create", "patch"]


@pytest.mark.parametrize(
    "meddle",
    [
        lambda head: head.server.delete(head.path),
        lambda head: head.server.change(head.path, _rolled_back),
        lambda head: head.server.change(head.path, _mangled),
    ],
    ids=["deleted", "put back", "mangled"],
)
def test_who_meddles_with_the_head_of_an_idle_ledger_is_undone(
    meddle: Callable[[Head], None],
) -> None:
    """At the next look and not with the next event: a restore meanwhile would not be seen."""
    head = Head()
    head.tell()
    meddle(head)
    assert head.tell() == ""
    assert head.kept == 10


def test_a_head_that_is_ahead_of_an_idle_ledger_closes_it() -> None:
    """Somebody else writes a copy of it."""
    head = Head()
    head.tell()
    ahead = config_map(replace(SEEN, position=12), "tenure-system")["data"]
    head.server.change(head.path, lambda item: item.update(data=ahead))
    assert head.tell().startswith(RECOVERING)
    assert head.kept == 12


def test_the_config_map_of_another_cluster_is_not_ours() -> None:
    """As when all objects of a namespace were copied."""
    with pytest.raises(InputError, match="of another ledger: 'ledger/ours'"):
        kept_witness(config_map(SEEN, "tenure-system"), "ledger/theirs")


@pytest.mark.parametrize(
    ("seen", "now", "is_set_back"),
    [
        ([], "5", False),
        (["4", "9"], "9", False),
        (["4", "9"], "8", True),
        (["10"], "9", True),
        (["x", ""], "9", False),
        (["10"], "", True),
        ([], "", True),
    ],
)
def test_versions_that_run_backwards_tell_of_an_api_server_that_was_set_back(
    seen: list[str], now: str, *, is_set_back: bool
) -> None:
    """By their number, not by their text; while Pods are listed anew nobody can tell."""
    assert bool(set_back(seen, now)) is is_set_back


def test_once_closed_a_book_keeps_nothing() -> None:
    """From then on every proof is signed by the one writer."""
    told = book(pod("b", proof("b", 14)))
    told.close()
    told.put("c", pod("c", proof("c", 15)))
    assert (told.claims, told.broken) == ({}, {})
