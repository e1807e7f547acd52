"""Cards that no inventory has, as rows like those of a ledger."""

from collections.abc import Iterable

from ledger.domain.kube.node_objects import decode_node
from ledger.domain.log.events import PodObserved
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.systems import DRA, DeviceSystems, SystemCard, SystemPart
from ledger.store.reading.report_rows import Span, UnplacedRow
from scheduler.usage.claims import dra_groups, register_groups
from scheduler.usage.others import POSITION, OthersRows, rows_of_others
from scheduler.usage.picture import CardGroup, NodeNow, Picture
from tests.support.objects import node

NUMBER = "volcano.sh/vgpu-number"
REGISTER = "volcano.sh/node-vgpu-register"


def held(snapshot: PodSnapshot, *parts: SystemPart) -> PodObserved:
    """Return a Pod of position 5, as a picture of others' cards has it."""
    return PodObserved(
        pod_uid=f"{POSITION}5",
        attempt=1,
        namespace="ml",
        pod_name="p",
        node_uid="n",
        node_name="n",
        source="",
        snapshot=snapshot,
        parts=parts,
    )


def rows(groups: Iterable[CardGroup]) -> OthersRows:
    """Return the rows of node `n`, of whose Pod the ledger has one row."""
    row = UnplacedRow(
        position=5,
        node_uid="n",
        namespace="ml",
        pod_name="p",
        pod_uid="p",
        owner="",
        labels="{}",
        opened_at_us=0,
        closed_at_us=None,
        closed_position=None,
        end_reason=None,
        counted_until_us=None,
        gpu_count=0,
    )
    picture = Picture(nodes=(NodeNow(name="n", uid="n", groups=tuple(groups)),))
    return rows_of_others(picture, {5: row}, [], Span(first_at_us=0, last_at_us=9, last_position=9))


def test_cards_without_an_id_are_not_taken_for_each_other() -> None:
    """Two that look alike and are one Pod's are two: none of them is drawn free."""
    cards = [SystemCard(system=DRA, key=key, driver="npu.example.com") for key in "ab"]
    parts = [
        SystemPart(system=DRA, card=key, driver="npu.example.com", claim=f"ml/{key}", whole=True)
        for key in "ab"
    ]

    found = rows(
        dra_groups(DeviceSystems(cards=tuple(cards)), [held(PodSnapshot(), *parts)], is_open=True)
    )

    assert sorted(each.minor for each in found.holdings) == [0, 1]


def test_a_holding_of_some_card_of_two_models_is_one() -> None:
    """It is shown beside the cards of both, and is billed once, of neither model."""
    text = "GPU-a,10,20000,NVIDIA-A10,true,hami-core:GPU-b,10,40000,NVIDIA-A40,true,hami-core:"
    facts, _ = decode_node(node("n", allocatable={NUMBER: "20"}, annotations={REGISTER: text}))
    there = [held(PodSnapshot(original={f"main.{NUMBER}": "1"}))]

    found = rows(register_groups(facts.systems, there, {}, is_open=True))

    (used,) = found.used
    assert (used.model, len(used.among), len(found.unplaced)) == ("", 2, 1)
