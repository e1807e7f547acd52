"""What the exhaustive campaigns found where wishes, links and half-known places meet."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from ledger.domain.annotations.partitions import GpuPartition
from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.links import pick_linked
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.settings import MGPUSettings, SchedulingSettings
from tests.support.cards import GIB, card, mgpu_pod, node_of, part, whole
from tests.support.links import islands, matrix_of
from tests.support.machine_z import (
    GPU,
    HINT,
    PARTITION,
    WHOLE,
    ask,
    facts_of,
    minors,
    place,
    reason,
    view_of,
)
from tests.support.objects import Object, gpu_device

CROSSED = matrix_of(4, lambda a, b: 48.0 if {a, b} == {0, 2} else 4.0)
"""Four GPUs; 0 and 2 are linked."""


def node(*places: Object, links: LinkMatrix | None = None, **labels: str) -> NodeView:
    """Return an idle node with a GPU at each place; labels by minor, such as `gpu0="gold"`."""
    gpus = [
        gpu_device(minor, topology=where, labels={"tier": labels.get(f"gpu{minor}", "tin")})
        for minor, where in enumerate(places)
    ]
    return view_of(replace(facts_of(*gpus), links=links))


def hint(**wish: object) -> dict[str, object]:
    """Return the annotation for GPUs."""
    return {HINT: {"gpu": wish}}


def test_links_decide_inside_a_required_numa_node_not_inside_its_first_root() -> None:
    """0 and 1 share a root, 0 and 2 a NUMA node and the fast link: the NUMA node was required."""
    view = node(place(0, "a0"), place(0, "a0"), place(0, "a1"), place(1, "b0"), links=CROSSED)

    answer = ask(view, {WHOLE: 2}, hint(requiredTopologyScope="NUMANode"))

    assert minors(answer) == [0, 2]


def test_links_decide_between_the_scopes_that_would_do() -> None:
    """The fast pair is under the second root."""
    links = matrix_of(4, lambda a, b: 48.0 if {a, b} == {2, 3} else 4.0)
    view = node(*(place(0, root) for root in ("a0", "a0", "a1", "a1")), links=links)

    answer = ask(view, {WHOLE: 2}, hint(requiredTopologyScope="PCIe"))

    assert minors(answer) == [2, 3]


@pytest.mark.parametrize("wish", [{"selector": {"matchLabels": {"tier": "gold"}}}], ids=str)
def test_what_a_filter_leaves_out_is_still_left_to_others(wish: Object) -> None:
    """Of 0 and 3 only 0 is half of a fast pair; the other half is not gold, and the next's."""
    view = node(*(place(0, "a0") for _ in range(4)), links=CROSSED, gpu0="gold", gpu3="gold")

    assert minors(ask(view, {WHOLE: 1}, hint(**wish))) == [3]


def test_a_single_filtered_gpu_is_taken_whatever_its_links() -> None:
    """No choice is left, and a filter that leaves none is a refusal."""
    view = node(*(place(0, "a0") for _ in range(4)), links=CROSSED, gpu0="gold")
    wish = hint(selector={"matchLabels": {"tier": "gold"}})

    assert minors(ask(view, {WHOLE: 1}, wish)) == [0]


@pytest.mark.parametrize(
    "links", [None, islands(4, 2, inside=48.0, between=4.0)], ids=["no", "yes"]
)
def test_parts_that_want_to_be_alone_are_parts(links: LinkMatrix | None) -> None:
    """Two halves, each alone on its GPU, skip the tree (contract 8.4): equal scores, 0 and 1."""
    view = node(place(0, "a0"), place(1, "b0"), place(1, "b0"), place(0, "a0"), links=links)
    limits = {"koordinator.sh/gpu.shared": 2, GPU + "-core": 100, GPU + "-memory-ratio": 100}

    answer = ask(view, limits, hint(exclusivePolicy="DeviceLevel"))

    assert minors(answer) == [0, 1]


@pytest.mark.parametrize("scope", ["PCIe", "NUMANode"])
def test_one_gpu_tells_the_numa_node_of_all_under_its_root(scope: str) -> None:
    """A root is on one NUMA node (contract 3.1), whichever of its GPUs knows which."""
    view = node(place(0, "a0"), place(1, "b0"), place(-1, "b0"))

    assert minors(ask(view, {WHOLE: 2}, hint(requiredTopologyScope=scope))) == [1, 2]


def test_a_numa_node_that_nobody_knows_is_no_scope_in_use() -> None:
    """0 is beside nobody: that 2 is used says nothing of it. 1 is beside 3, on a used NUMA node."""
    facts = node(place(-1, "x0"), place(0, "a0"), place(-1, "x1"), place(0, "a1")).facts

    answer = ask(view_of(facts, used=[2, 3]), {WHOLE: 1})

    assert minors(answer) == [1]


def test_a_partition_may_be_inside_the_one_numa_node_of_a_machine_that_numbers_none() -> None:
    """All GPUs say -1: that is one scope, for a partition as for the tree."""
    view = node(*(place(-1, root) for root in ("a0", "a1", "b0")))
    table = {2: (GpuPartition(minors=(1, 2)),)}
    view = replace(view, facts=replace(view.facts, partitions=table))

    answer = ask(view, {WHOLE: 2}, {**hint(requiredTopologyScope="NUMANode"), PARTITION: {}})

    assert minors(answer) == [1, 2]


def test_among_many_free_gpus_the_scopes_hold_too() -> None:
    """Beyond what a table holds each scope is searched; the faster one wins, then the lower."""
    links = matrix_of(20, lambda a, b: 30.0 if min(a, b) >= 10 else 40.0)

    assert pick_linked(range(20), 2, links, within=[range(10, 20)]) == (10, 11)
    assert pick_linked(range(20), 2, links, within=[range(10, 20), range(5, 10)]) == (5, 6)


def test_among_few_free_gpus_of_a_large_machine_the_scopes_hold_too() -> None:
    """The free ones get a table of their own."""
    links = matrix_of(20, lambda a, b: 30.0 if min(a, b) >= 10 else 40.0)
    free = range(8, 14)

    assert pick_linked(free, 2, links, within=[range(10, 14)]) == (10, 11)


class TestPartsBesidePartitions:
    """An mGPU Pod with whole cards and parts, on a node whose table binds."""

    TABLE: Final = {2: (GpuPartition(minors=(0, 1)), GpuPartition(minors=(1, 2)))}

    def choose(
        self, *cards: CardView, whole_cards: int = 2, policy: str = "", levels: int = 5
    ) -> Choice | Unfit:
        """Ask for whole cards in the first container and for half of one in the second."""
        view = node_of(*cards)
        facts = replace(view.facts, partitions=self.TABLE, honors_partitions=True)
        request = mgpu_pod(whole(whole_cards), part(50, memory=16 * GIB), mgpu_policy=policy)
        settings = SchedulingSettings(mgpu=MGPUSettings(search_levels=levels))
        return choose(request, replace(view, facts=facts), settings)

    def test_the_whole_cards_are_one_partition(self) -> None:
        """0 and 2 would leave more of what is used, but they are no partition."""
        answer = self.choose(card(0), card(1), card(2), card(3, core_used=50))

        assert isinstance(answer, Choice)
        assert [share.minor for share in answer.shares if share.exclusive] == [0, 1]
        assert [share.minor for share in answer.shares if not share.exclusive] == [3]

    def test_the_partition_beside_which_the_parts_fit_is_taken(self) -> None:
        """Only card 0 has the memory for the half: 1 and 2 are the other row of the table."""
        answer = self.choose(card(0), card(1), card(2, memory_bytes=8 * GIB))

        assert isinstance(answer, Choice)
        assert [share.minor for share in answer.shares if share.exclusive] == [1, 2]

    def test_no_partition_no_place(self) -> None:
        """Three whole cards are in no row of the table, and that no Pod's end changes."""
        answer = self.choose(card(0), card(1), card(2), card(3), whole_cards=3)

        assert reason(answer) == "node(s) Unsupported number of GPU requests"

    def test_no_place_beside_any_partition(self) -> None:
        """Free enough in all, but not both ways."""
        answer = self.choose(card(0), card(1), card(2, core_used=80), card(3, core_used=80))

        assert isinstance(answer, Unfit)
        assert answer.preemptible

    def test_a_policy_that_does_not_match_is_the_first_reason(self) -> None:
        """No partition helps where the node can never serve the Pod (GPU-sharing contract A.4)."""
        answer = self.choose(card(0), card(1), policy="native-burst-share")

        assert isinstance(answer, Unfit)
        assert not answer.preemptible

    @pytest.mark.parametrize(("levels", "cut"), [(1, True), (2, False)])
    def test_the_levels_of_the_whole_pod_count(self, levels: int, *, cut: bool) -> None:
        """Two containers are two levels, though they are placed one after the other."""
        answer = self.choose(card(0), card(1), card(2), levels=levels)

        assert isinstance(answer, Choice)
        assert answer.search_cut is cut
