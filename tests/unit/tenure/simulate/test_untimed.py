import pytest

from ledger.domain.log.events import (
    GroupPlanned,
    NodeDescribed,
    NodeInventoried,
    PodReserved,
    RequestDescribed,
    RequestRefused,
    SettingsChanged,
    WorkloadDescribed,
)
from ledger.domain.request.requests import GangRef
from scheduler.cluster.model import RefusedPod
from scheduler.decide.outcome import Unplaced
from tests.support.runs import arrival, broken_pod, gpu_node, gpu_pod, play, run_of


def test_settings_and_inventory_come_first() -> None:
    """Whoever reads the ledger knows what there was before anything was promised."""
    played = play(run_of([gpu_node("a"), gpu_node("b")], [arrival(gpu_pod("p"))]))

    kinds = [type(event.event) for event in played.ledger.events]
    assert kinds == [
        SettingsChanged,
        WorkloadDescribed,
        NodeInventoried,
        NodeDescribed,
        NodeInventoried,
        NodeDescribed,
        RequestDescribed,
        PodReserved,
    ]
    assert [len(commit) for commit in played.ledger.commits] == [6, 2]


def test_every_pod_is_decided_once_in_order() -> None:
    """First come, first served: what fits is placed, what does not is refused and stays so."""
    pods = [gpu_pod("p0", 2), gpu_pod("p1", 2), gpu_pod("p2"), gpu_pod("p3")]
    played = play(run_of([gpu_node("a", 3)], [arrival(pod) for pod in pods]))

    assert [played.node_of(f"p{i}") for i in range(4)] == ["a", None, "a", None]
    assert [type(outcome).__name__ for outcome in played.outcomes] == [
        "Placed",
        "Unplaced",
        "Placed",
        "Unplaced",
    ]
    tally = played.simulator.tally
    assert (tally.placed, tally.failed, tally.decisions) == (2, 2, 4)
    assert (tally.nodes_used, tally.cards_used) == ({0}, {(0, 0), (0, 1), (0, 2)})


def test_a_refusal_names_every_node_and_is_recorded() -> None:
    """Why a Pod waits can be asked of the ledger, with the shape of what it asked for."""
    played = play(run_of([gpu_node("a"), gpu_node("b")], [arrival(gpu_pod("p", 4))]))

    (outcome,) = played.outcomes
    assert isinstance(outcome, Unplaced)
    assert outcome.message.startswith("0/2 nodes are available: 2 ")
    assert outcome.nodes is not None
    assert set(outcome.nodes.by_node(("a", "b"))) == {"a", "b"}
    (refused,) = played.ledger.of_type(RequestRefused)
    assert isinstance(refused.event, RequestRefused)
    assert refused.stream == "sys"
    assert refused.event.shape == "4 x whole gpu, 1 cpu, 1 GiB"
    assert refused.event.gpu_core_percent == 400
    assert refused.event.message == outcome.message


def test_a_pod_that_breaks_a_rule_is_recorded_and_holds_nothing() -> None:
    """It takes its turn, has the field errors as its message, and others go on."""
    arrivals = [arrival(broken_pod("bad")), arrival(gpu_pod("good"))]
    played = play(run_of([gpu_node("a")], arrivals))

    assert isinstance(played.outcomes[0], RefusedPod)
    assert played.outcomes[0].message == "spec.x: Forbidden: no"
    assert played.node_of("good") == "a"
    (refused,) = played.ledger.of_type(RequestRefused)
    assert isinstance(refused.event, RequestRefused)
    assert refused.event.stage == "admission"


def test_a_gang_is_decided_at_its_first_member() -> None:
    """Later members of a gang are placed before an earlier Pod outside it (cli.md, Order)."""
    gang = GangRef(name="g", min_available=2, waiting_seconds=60)
    arrivals = [
        arrival(gpu_pod("g0", 2, gang=gang)),
        arrival(gpu_pod("single", 2)),
        arrival(gpu_pod("g1", 2, gang=gang)),
    ]
    played = play(run_of([gpu_node("a"), gpu_node("b")], arrivals))

    assert (played.node_of("g0"), played.node_of("single"), played.node_of("g1")) == (
        "a",
        None,
        "b",
    )
    kinds = [type(event.event) for event in played.ledger.events[6:]]
    assert kinds == [
        RequestDescribed,
        GroupPlanned,
        PodReserved,
        PodReserved,
        RequestDescribed,
        RequestRefused,
    ]
    assert [len(commit) for commit in played.ledger.commits] == [6, 4, 2]


@pytest.mark.parametrize(
    ("cards", "core", "whole"), [(2, 100, [(0, 1), (0, 1)]), (1, 50, [(), ()])]
)
def test_only_whole_cards_wait_for_members(
    cards: int, core: int, whole: list[tuple[int, ...]]
) -> None:
    """A card that members share is in the plan, and is no place."""
    gang = GangRef(name="g", min_available=2, waiting_seconds=60)
    arrivals = [arrival(gpu_pod(f"g{i}", cards, core, gang=gang)) for i in range(2)]
    played = play(run_of([gpu_node("a"), gpu_node("b")], arrivals))

    (recorded,) = played.ledger.of_type(GroupPlanned)
    assert isinstance(recorded.event, GroupPlanned)
    assert [member.whole for member in recorded.event.members] == whole
    assert all(len(member.minors) == cards for member in recorded.event.members)


def test_a_gang_that_does_not_fit_gets_nothing() -> None:
    """All members are refused with one reason on every node; nothing is held meanwhile."""
    gang = GangRef(name="g", min_available=3, waiting_seconds=60)
    arrivals = [arrival(gpu_pod(f"g{i}", 2, gang=gang)) for i in range(3)]
    played = play(run_of([gpu_node("a"), gpu_node("b")], [*arrivals, arrival(gpu_pod("p", 2))]))

    assert [played.node_of(f"g{i}") for i in range(3)] == [None] * 3
    assert played.node_of("p") == "a"
    first = played.outcomes[0]
    assert isinstance(first, Unplaced)
    assert first.nodes is not None
    assert set(first.nodes.by_node(("a", "b"))) == {"a", "b"}
    (plan,) = (new.event for new in played.ledger.of_type(GroupPlanned))
    assert isinstance(plan, GroupPlanned)
    assert (plan.members, [each.pod_name for each in plan.waiting]) == ((), ["g0", "g1", "g2"])


def test_the_series_follows_the_arrivals() -> None:
    """Asked and allocated after every arrival: the paper's curve is drawn from these."""
    arrivals = [arrival(gpu_pod("a", 2)), arrival(gpu_pod("b", 1, 50)), arrival(gpu_pod("c", 2))]
    played = play(run_of([gpu_node("n", 3)], arrivals))

    assert played.simulator.tally.series == [(200, 200), (250, 250), (450, 250)]
    assert played.simulator.tally.asked_core_percent == 450
