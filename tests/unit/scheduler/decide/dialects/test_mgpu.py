from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.dialects.mgpu import search as mgpu_search
from scheduler.decide.dialects.mgpu.search import best_assignment
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.refusal import reasons
from scheduler.decide.settings import MGPUSettings, SchedulingSettings
from tests.support.cards import GIB, MIB, card, mgpu_pod, minors_of, node_of, part, pod, whole

NATIVE = "native-burst-share"


def mgpu_settings(
    *,
    policy: str = "binpack",
    enabled: bool = True,
    search_levels: int = 5,
    max_containers_per_card: int = 16,
) -> SchedulingSettings:
    """Return settings with these mGPU arguments."""
    return SchedulingSettings(
        mgpu=MGPUSettings(
            policy=policy,
            enabled=enabled,
            search_levels=search_levels,
            max_containers_per_card=max_containers_per_card,
        )
    )


BINPACK = mgpu_settings()
SPREAD = mgpu_settings(policy="spread")


def small(
    minor: int,
    *,
    core_free: int = 100,
    memory_mib: int = 16384,
    exclusive: bool = False,
    instances: int | None = None,
    closed: bool = False,
) -> CardView:
    """Return a card of 16384 MiB with so much free."""
    return card(
        minor,
        memory_bytes=16384 * MIB,
        core_used=100 - core_free,
        memory_used=(16384 - memory_mib) * MIB,
        exclusive=exclusive,
        instances=instances,
        closed=closed,
    )


def fraction(core: int, memory_mib: int, count: int = 1) -> DeviceDemand:
    """Return what a container takes of each of its cards."""
    return part(core, memory=memory_mib * MIB, count=count)


def choice(request: PodRequest, node: NodeView, settings: SchedulingSettings = BINPACK) -> Choice:
    """Return the choice, or fail with the reason."""
    answer = choose(request, node, settings)
    assert isinstance(answer, Choice), answer
    return answer


def reason(request: PodRequest, node: NodeView, settings: SchedulingSettings = BINPACK) -> str:
    """Return the reason, or fail with the shares."""
    answer = choose(request, node, settings)
    assert isinstance(answer, Unfit), answer
    return answer.reason


@pytest.mark.parametrize(
    ("policy", "taken", "score"),
    [
        pytest.param("binpack", 1, Fraction(681250, 10**6), id="binpack fills the used card"),
        pytest.param("spread", 0, Fraction(355750, 10**6), id="spread takes the idle card"),
        pytest.param("Spread", 0, Fraction(355750, 10**6), id="the policy's case is ignored"),
    ],
)
def test_the_worked_score(policy: str, taken: int, score: Fraction) -> None:
    """GPU-sharing contract A.5: 0.681250 and 0.355750, exactly."""
    cards = [small(0), small(1, core_free=70, memory_mib=12288)]

    result = best_assignment([fraction(20, 2048)], cards, MGPUSettings(policy=policy))

    assert (result.assignment, result.score, result.cut) == (((taken,),), score, False)


def test_the_containers_of_a_pod_go_where_binpack_likes() -> None:
    """Three containers on three cards: all on one, in one share with a part for each."""
    request = mgpu_pod(fraction(30, 1024), fraction(20, 2048), fraction(50, 256))

    answer = choice(request, node_of(small(0), small(1), small(2)))

    (share,) = answer.shares
    assert (share.minor, share.core_percent, share.memory_bytes) == (0, 100, 3328 * MIB)
    assert (share.instances, share.exclusive, share.memory_ratio_percent) == (3, False, 20)
    assert [(use.container, use.index, use.core_percent) for use in share.containers] == [
        ("c0", "0", 30),
        ("c1", "1", 20),
        ("c2", "2", 50),
    ]
    assert not answer.search_cut


def test_spread_gives_each_container_a_card() -> None:
    """The same three containers, one card each."""
    request = mgpu_pod(fraction(30, 1024), fraction(20, 2048), fraction(50, 256))

    shares = choice(request, node_of(small(0), small(1), small(2)), SPREAD).shares

    assert minors_of(shares) == (0, 1, 2)
    assert [share.instances for share in shares] == [1, 1, 1]


def test_a_later_container_counts_what_the_earlier_took() -> None:
    """Two containers of 60 need two cards, though each card alone could take either."""
    request = mgpu_pod(fraction(60, 1024), fraction(60, 1024))

    assert minors_of(choice(request, node_of(small(0), small(1))).shares) == (0, 1)
    assert reason(request, node_of(small(0))) == reasons.NO_COMBINATION.text


def test_the_search_goes_back_on_a_bad_first_choice() -> None:
    """The small container must leave the roomy card to the large one."""
    request = mgpu_pod(fraction(20, 256), fraction(90, 256))
    node = node_of(small(0, core_free=100), small(1, core_free=20))

    shares = choice(request, node).shares

    assert [share.core_percent for share in shares] == [90, 20]


def test_whole_cards_are_untouched_and_used_up() -> None:
    """A.5: k untouched cards, each fully consumed, memory included."""
    node = node_of(small(0, memory_mib=16383), small(1), small(2), small(3))

    shares = choice(mgpu_pod(whole(2)), node).shares

    assert minors_of(shares) == (1, 2)
    assert all(share.exclusive and share.core_percent == 100 for share in shares)
    assert all(share.memory_bytes == 16384 * MIB for share in shares)


def test_a_whole_card_that_names_no_memory_gets_all_of_it() -> None:
    """A.3, N4: whole cards name no memory; the share holds the card's."""
    bare = replace(whole(1), memory_ratio_percent=0)

    (share,) = choice(mgpu_pod(bare), node_of(small(0))).shares

    assert (share.memory_bytes, share.memory_ratio_percent) == (16384 * MIB, 100)


def test_a_container_over_several_cards_takes_different_ones() -> None:
    """A.5, multi: 100 core over 2 cards is 50 on each of two."""
    request = mgpu_pod(fraction(50, 4096, count=2), mgpu_policy=NATIVE, mgpu_multi=True)
    node = node_of(small(0), small(1), mgpu_policy=NATIVE)

    shares = choice(request, node).shares

    assert minors_of(shares) == (0, 1)
    assert [share.core_percent for share in shares] == [50, 50]
    assert reason(request, node_of(small(0), mgpu_policy=NATIVE)) == "Insufficient gpu devices"


def test_the_instance_cap_holds_after_placement() -> None:
    """A.5: with a cap of 2 a card with one container takes one more."""
    capped = mgpu_settings(max_containers_per_card=2)
    request = mgpu_pod(fraction(10, 256), fraction(10, 256))
    node = node_of(small(0, core_free=90, instances=1), small(1))

    shares = choice(request, node, capped).shares

    assert minors_of(shares) == (1,)
    assert (
        reason(request, node_of(small(0, core_free=90, instances=1)), capped)
        == reasons.NO_COMBINATION.text
    )


@pytest.mark.parametrize(
    ("pod_policy", "node_policy", "multi", "demand", "fits"),
    [
        pytest.param("", "", False, fraction(10, 256), True, id="both default"),
        pytest.param("fixed-share", "", False, fraction(10, 256), True, id="default spelt out"),
        pytest.param(NATIVE, "", False, fraction(10, 256), False, id="fraction, other policy"),
        pytest.param(NATIVE, NATIVE, False, fraction(10, 256), True, id="fraction, same policy"),
        pytest.param(NATIVE, "", False, whole(1), True, id="whole cards ignore the policy"),
        pytest.param(NATIVE, NATIVE, True, whole(1), True, id="multi on native"),
        pytest.param(NATIVE, "", True, whole(1), False, id="whole but multi, node not native"),
        pytest.param("", "", True, fraction(10, 256), False, id="multi, equal but not native"),
    ],
)
def test_policies_must_match(
    pod_policy: str,
    node_policy: str,
    multi: bool,  # noqa: FBT001 - a column of the table
    demand: DeviceDemand,
    fits: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """GPU-sharing contract A.4, steps 2 and 3."""
    request = mgpu_pod(demand, mgpu_policy=pod_policy, mgpu_multi=multi)
    answer = choose(request, node_of(small(0), mgpu_policy=node_policy), BINPACK)

    assert isinstance(answer, Choice) is fits
    if isinstance(answer, Unfit):
        assert (answer.reason, answer.preemptible) == ("MGPUPolicyMismatch", False)


def test_mgpu_can_be_turned_off() -> None:
    """A.2, `MGPUEnable` false: no node serves it."""
    off = mgpu_settings(enabled=False)

    assert reason(mgpu_pod(fraction(10, 256)), node_of(small(0)), off) == "MGPUDisabled"


def test_a_node_with_an_invalid_label_serves_no_mgpu() -> None:
    """A.1: any other value of the schedule label means no mGPU cards."""
    node = node_of(small(0), mgpu_invalid=True)

    assert reason(mgpu_pod(fraction(10, 256)), node) == "MGPUNodeInvalid"


def test_more_cards_than_the_node_has_can_not_be_helped() -> None:
    """A.4, step 4."""
    request = mgpu_pod(fraction(10, 256, count=3), mgpu_policy=NATIVE, mgpu_multi=True)
    answer = choose(request, node_of(small(0), small(1), mgpu_policy=NATIVE), BINPACK)

    assert isinstance(answer, Unfit)
    assert (answer.requested, answer.available, answer.preemptible) == (3, 2, False)


def test_closed_and_exclusively_held_cards_are_out() -> None:
    """One card's capacity is one row, whoever asks."""
    node = node_of(small(0, closed=True), small(1, core_free=50, exclusive=True), small(2))

    assert minors_of(choice(mgpu_pod(fraction(10, 256)), node).shares) == (2,)


def test_above_the_search_levels_the_first_fit_is_taken_and_marked() -> None:
    """A.2: more containers than levels: first fit, recorded in the choice."""
    few = mgpu_settings(search_levels=2, policy="spread")
    request = mgpu_pod(*(fraction(10, 256) for _ in range(3)))

    answer = choice(request, node_of(small(0), small(1)), few)

    assert minors_of(answer.shares) == (0,)
    assert answer.search_cut


def test_a_search_over_its_budget_is_cut_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best so far is the answer; it fits."""
    monkeypatch.setattr(mgpu_search, "STEPS_MAX", 3)
    cards = [small(minor, core_free=90 - minor) for minor in range(4)]

    answer = choice(mgpu_pod(fraction(10, 256), fraction(10, 256)), node_of(*cards))

    assert answer.search_cut
    assert sum(share.core_percent for share in answer.shares) == 20


def test_equal_scores_keep_the_lowest_indexes() -> None:
    """A.5, ties: the first assignment in ascending order stays."""
    shares = choice(mgpu_pod(fraction(40, 1024)), node_of(small(0), small(1))).shares

    assert minors_of(shares) == (0,)


def test_hundreds_of_containers_are_placed() -> None:
    """The search does not depend on the interpreter's recursion limit."""
    node = node_of(*(card(minor, memory_bytes=80 * GIB) for minor in range(16)))
    request = mgpu_pod(*(fraction(1, 256) for _ in range(1600)))

    answer = choice(request, node, mgpu_settings(max_containers_per_card=200))

    assert sum(share.instances for share in answer.shares) == 1600


def test_cards_of_different_memory_are_scored_by_their_own() -> None:
    """2048 MiB are a smaller part of the large card: taking it there costs less of the score."""
    cards = [card(0, memory_bytes=32768 * MIB), small(1)]

    result = best_assignment([fraction(20, 2048)], cards, MGPUSettings(weight_of_core=0))

    assert result.assignment == ((0,),)
    assert result.score == (Fraction(30720, 32768) ** 2 + 1) / 2


def test_cards_without_memory_are_scored_by_core() -> None:
    """A whole card of unknown memory is still a card."""
    node = node_of(card(0, memory_bytes=0), card(1, memory_bytes=0))

    assert minors_of(choice(mgpu_pod(whole(1)), node).shares) == (0,)


def test_a_pod_without_gpus_is_no_business_of_mgpu() -> None:
    """No demand, no search."""
    assert choose(pod(), node_of(small(0)), BINPACK) == Choice()
