from __future__ import annotations

from dataclasses import replace

from ledger.domain.dialects.names import Dialect
from ledger.domain.request.requests import CardFilter
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice
from scheduler.decide.dialects.hami import CHOOSER
from scheduler.decide.outcome import Unfit
from scheduler.decide.settings import SchedulingSettings
from tests.support.cards import GIB, card, node_of, part, pod, whole
from tests.support.topologies import EIGHT_GPU_NVLINK

WANTED = CardFilter(models=("a100",), not_ids=("GPU-1",))
REQUEST = replace(pod(part(memory=GIB), dialect=Dialect.HAMI), card_filter=WANTED)


def test_each_list_of_cards_can_be_dropped() -> None:
    """What would make a Pod fit is one wish less at a time; no wish is no filter."""
    found = {text: each.card_filter for text, each in CHOOSER.alternatives(REQUEST, ())}

    assert found == {
        "drop nvidia.com/use-gputype": CardFilter(not_ids=("GPU-1",)),
        "drop nvidia.com/nouse-gpuuuid": CardFilter(models=("a100",)),
    }
    one = replace(REQUEST, card_filter=CardFilter(models=("a100",)))
    assert [each.card_filter for _, each in CHOOSER.alternatives(one, ())] == [None]
    none = replace(REQUEST, card_filter=None)
    assert list(CHOOSER.alternatives(none, ())) == []


def test_only_cards_that_pass_are_given() -> None:
    """Contract 2; where too few pass it is the filter that is named, and no Pod's end helps."""
    cards = [card(0, model="V100"), card(1, model="NVIDIA A100"), card(2, model="NVIDIA A100")]

    answer = choose(REQUEST, node_of(*cards), SchedulingSettings())
    assert isinstance(answer, Choice)
    assert [share.minor for share in answer.shares] == [2]
    refused = choose(REQUEST, node_of(*cards[:2]), SchedulingSettings())
    assert isinstance(refused, Unfit)
    assert (refused.reason, refused.available, refused.preemptible) == (
        "CardFilterMismatch",
        0,
        False,
    )


def test_a_wish_for_links_is_what_whole_cards_get() -> None:
    """Contract 2, `topology-aware`: the fastest pair, whatever card the node policy would like."""
    wished = replace(
        pod(whole(2), dialect=Dialect.HAMI), card_scoring="topology-aware", card_filter=None
    )
    node = node_of(*(card(minor) for minor in range(8)), links=EIGHT_GPU_NVLINK)

    answer = choose(wished, node, SchedulingSettings())

    assert isinstance(answer, Choice)
    assert [share.minor for share in answer.shares] == [2, 3]


def test_a_wish_for_a_policy_of_cards_is_before_the_settings() -> None:
    """Contract 2, `binpack` and `spread`: of one demand and of several."""
    cards = [card(0), card(1, core_used=20, memory_used=GIB), card(2)]
    for demands in ([part(10, memory=GIB)], [part(10, memory=GIB), part(20, memory=GIB)]):
        for scoring, takes_the_used in (("MostAllocated", True), ("LeastAllocated", False)):
            wished = replace(pod(*demands, dialect=Dialect.HAMI), card_scoring=scoring)
            answer = choose(wished, node_of(*cards), SchedulingSettings())

            assert isinstance(answer, Choice)
            assert (1 in [share.minor for share in answer.shares]) is takes_the_used
