from __future__ import annotations

from itertools import combinations

import pytest

from ledger.domain.request.normalise import decode_pod
from tests.support.mutants import MUTANTS, Mutant, broken, good
from tests.support.requests_to_admit import judged, rules_of
from webhook.decide.settings import AdmissionSettings


def test_the_good_pod_is_allowed_without_a_word() -> None:
    """What follows breaks one thing at a time, so nothing else may be wrong."""
    answer = judged(good(), AdmissionSettings(koordlet_binds_cpus=True))

    assert (answer.allowed, answer.causes, answer.warnings) == (True, (), ())


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_one_thing_wrong_is_one_violation(mutant: Mutant) -> None:
    """Each single violation gives exactly its own error, under its own rule, and refuses."""
    answer = judged(broken(mutant))

    assert rules_of(answer) == mutant.expected
    assert not answer.allowed
    assert [cause.field for cause in answer.causes] == list(mutant.expected)


def independent_pairs() -> list[tuple[str, str]]:
    """Return every two mutants of different topics."""
    return [
        (first, second)
        for first, second in combinations(MUTANTS, 2)
        if MUTANTS[first].topic != MUTANTS[second].topic
    ]


def test_two_things_wrong_are_two_violations() -> None:
    """Whatever two independent violations come together, both are said: none hides another."""
    pairs = independent_pairs()

    assert len(pairs) > 300
    for first, second in pairs:
        expected = {**MUTANTS[first].expected, **MUTANTS[second].expected}
        assert rules_of(judged(broken(MUTANTS[first], MUTANTS[second]))) == expected, (
            first,
            second,
        )


def test_everything_wrong_is_said_at_once() -> None:
    """One mutant of every topic together gives the violations of all of them."""
    by_topic = {mutant.topic: mutant for mutant in MUTANTS.values()}
    answer = judged(broken(*by_topic.values()))

    expected = {field for mutant in by_topic.values() for field in mutant.expected}
    assert {cause.field for cause in answer.causes} == expected


def test_what_is_allowed_can_be_decoded() -> None:
    """The good Pod is one that the allocator understands."""
    assert decode_pod(good()).cpuset is not None
