"""When bind calls of a gang's members are allowed, rejected, or wait on."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.decide.group.permit import (
    CALLS_MAX,
    NEWER,
    TOO_MANY,
    WAIT_SECONDS,
    Allow,
    Attempt,
    Call,
    Facts,
    Reject,
    come,
    gone,
    judge,
)
from tests.support.examples import examples

BEGIN: Final = 100.0
ENOUGH: Final = Facts(needed=2)


def call(number: int, pod: str, node: str = "a") -> Call:
    """Return a call for a Pod."""
    return Call(number=number, pod_uid=pod, node_name=node)


def attempt(*calls: Call) -> Attempt:
    """Return an attempt to which these have come, one a second."""
    found: Attempt | None = None
    for second, one in enumerate(calls):
        found, rejected = come(found, one, BEGIN + second, needed=3)
        assert rejected is None, rejected
    assert found is not None
    return found


def test_the_deadline_is_that_of_the_first_call() -> None:
    """A gang whose members come one by one does not wait for ever."""
    assert attempt(call(1, "p")).until == BEGIN + WAIT_SECONDS
    assert attempt(call(1, "p"), call(2, "q"), call(3, "r")).until == BEGIN + WAIT_SECONDS


def test_a_newer_call_for_a_pod_takes_the_place_of_the_older() -> None:
    """Of two kube-schedulers the one that asked last counts, on whatever node."""
    first, second = call(1, "p"), call(2, "p", "b")
    found, rejected = come(attempt(first), second, BEGIN + 1, needed=3)
    assert rejected == Reject((first,), NEWER)
    assert found is not None
    assert found.calls == {"p": second}
    assert found.until == BEGIN + WAIT_SECONDS


def test_a_call_whose_caller_is_gone_is_void() -> None:
    """It counts no more, and is in no answer; an older one of its Pod ends nothing."""
    first, newer, other = call(1, "p"), call(2, "p"), call(3, "q")
    found, _ = come(attempt(first, other), newer, BEGIN, needed=3)
    assert found is not None
    assert gone(found, first) == found
    left = gone(found, newer)
    assert left is not None
    assert judge(left, ENOUGH, BEGIN) is None
    assert gone(left, other) is None


def test_no_more_calls_wait_than_there_is_room_for() -> None:
    """One more is rejected at once; one that takes an older's place is not one more."""
    found, others = attempt(call(1, "p")), CALLS_MAX - 3
    assert come(None, call(2, "q"), BEGIN, needed=4, others=others) == (
        None,
        Reject((call(2, "q"),), TOO_MANY),
    )
    same, rejected = come(found, call(2, "q"), BEGIN, needed=3, others=others)
    assert (same and same.size, rejected) == (3, None)
    assert come(found, call(2, "q"), BEGIN, needed=3, others=others + 1)[0] == found
    _, rejected = come(found, call(3, "p"), BEGIN, needed=3, others=others + 1)
    assert rejected == Reject((call(1, "p"),), NEWER)


BOTH: Final = (call(1, "p"), call(2, "q"))
MISSING: Final = ("ml/r: 0/2 nodes are available", "ml/s")


@pytest.mark.parametrize(
    ("facts", "later", "is_over", "why"),
    [
        pytest.param(Facts(needed=3), 0.0, None, "", id="too few: they wait"),
        pytest.param(ENOUGH, 0.0, False, "", id="enough: all are bound"),
        pytest.param(Facts(needed=0), 0.0, False, "", id="the gang has begun meanwhile"),
        pytest.param(
            Facts(needed=4, missing=MISSING),
            WAIT_SECONDS,
            True,
            "the gang is not begun: 2 of 4 members came in time; missing:"
            " ml/r: 0/2 nodes are available; ml/s",
            id="too few at the deadline",
        ),
        pytest.param(
            ENOUGH,
            WAIT_SECONDS,
            True,
            "the gang is not begun: 2 of 2 members came in time",
            id="enough, and the deadline has passed",
        ),
        pytest.param(
            Facts(needed=2, wrong="ml/p: the Pod is gone"),
            0.0,
            True,
            "the gang is not begun: ml/p: the Pod is gone",
            id="enough, and one is gone",
        ),
        pytest.param(
            Facts(needed=3, wrong="ml/p: the Pod is gone"),
            0.0,
            True,
            "the gang is not begun: ml/p: the Pod is gone",
            id="one of those that have come is gone",
        ),
        pytest.param(
            Facts(needed=2, why_not="NotLeader", wrong="x"),
            WAIT_SECONDS,
            False,
            "NotLeader",
            id="another replica leads",
        ),
    ],
)
def test_what_becomes_of_the_calls(
    facts: Facts,
    later: float,
    is_over: bool | None,  # noqa: FBT001 - a column of the table
    why: str,
) -> None:
    """All of them together; only a gang that could not begin backs off."""
    found = judge(attempt(*BOTH), facts, BEGIN + later)
    if is_over is None:
        assert found is None
    elif why:
        assert found == Reject(BOTH, why, is_over=is_over)
    else:
        assert found == Allow(BOTH)


STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(["come", "gone", "look"]),
        st.integers(0, 5),
        st.floats(0, 6),
        st.sampled_from(["", "", "", "NotLeader"]),
        st.sampled_from(["", "", "", "gone"]),
    ),
    max_size=40,
)


@given(steps=STEPS, needed=st.integers(1, 6))
@settings(max_examples=examples(200))
def test_whatever_comes_nobody_is_bound_before_enough_wait(
    steps: list[tuple[str, int, float, str, str]], needed: int
) -> None:
    """
    Allowed are the newest calls of as many Pods as are needed, all of callers that wait, in time.

    Each call is answered once at most.
    """
    found: Attempt | None = None
    now, begun, waiting = 0.0, 0.0, dict[str, Call]()
    answered = list[Call]()
    for number, (what, pod, seconds, why_not, wrong) in enumerate(steps):
        now += seconds
        one = call(number, f"p{pod}")
        if what == "come":
            begun = now if found is None else begun
            found, rejected = come(found, one, now, needed=needed)
            answered += rejected.calls if rejected else ()
            waiting[one.pod_uid] = one
        elif what == "gone" and found is not None and one.pod_uid in waiting:
            found = gone(found, waiting.pop(one.pod_uid))
        if found is None:
            assert not waiting
            continue
        verdict = judge(found, Facts(needed=needed, why_not=why_not, wrong=wrong), now)
        if isinstance(verdict, Allow):
            assert len(verdict.calls) >= needed
            assert now < begun + WAIT_SECONDS
            assert not why_not
            assert not wrong
        if verdict is not None:
            assert {each.pod_uid: each for each in verdict.calls} == waiting
            answered += verdict.calls
            found, waiting = None, {}
    assert len({each.number for each in answered}) == len(answered)
