"""What an agent asks next, and what each answer of the service changes; in every order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.decide.following import (
    BACKOFF_SECONDS,
    BACKOFF_SECONDS_MAX,
    SETTLE_SECONDS,
    Following,
    failed,
    refused,
    told_all,
    told_changes,
)
from agent.decide.node_holdings import Change, HeldByPod, NodeHoldings, Origin
from tests.support.proofs import held_by_pod

HERE = Origin(node_name="a", node_uid="uid-a", cluster="ledger/1", incarnation="first")


def held(pod_uid: str = "p", position: int = 3) -> HeldByPod:
    """Return a holding."""
    return held_by_pod(pod_uid=pod_uid, namespace="ml", pod_name=pod_uid, position=position)


def change(position: int, holding: HeldByPod | None, pod_uid: str = "p") -> Change:
    """Return a change of a Pod's first attempt."""
    return Change(position=position, what="any", pod_uid=pod_uid, attempt=1, holding=holding)


def known(state: Following) -> NodeHoldings:
    """Return what is known; there is something."""
    assert state.known is not None
    return state.known


def at(position: int, *holdings: HeldByPod) -> Following:
    """Return where an agent stands after an answer with all holdings."""
    return told_all(Following(), HERE, position, holdings)


def test_it_begins_with_all_holdings_and_goes_on_with_changes() -> None:
    """At once, from the answer's own position."""
    assert (Following().ask().after, Following().ask().pause_seconds) == (None, 0)
    state = at(7, held())
    assert (state.ask().after, state.ask().pause_seconds, state.is_heard) == (7, 0, True)


def test_a_copy_of_an_earlier_word_is_no_word_of_now() -> None:
    """All is asked for, and what the copy says counts until then."""
    state = Following(known=known(at(7, held())))
    assert (state.ask().after, state.is_heard, known(state).position) == (None, False, 7)


def test_a_change_that_comes_again_changes_nothing() -> None:
    """Newer ones are told beside it, before the position has come to them."""
    changes = (change(8, held("p", 8)), change(9, None, "q"))
    once = told_changes(at(7, held("q")), HERE, 7, changes)
    again = told_changes(once, HERE, 9, changes)
    assert known(once).held == known(again).held == {("p", 1): held("p", 8)}
    assert (known(once).ended, known(again).ended) == ({"q": 9}, {})
    assert (once.ask().after, again.ask().after) == (7, 9)
    assert (once.ask().pause_seconds, again.ask().pause_seconds) == (SETTLE_SECONDS, 0)


@pytest.mark.parametrize(
    ("origin", "position"),
    [
        pytest.param(Origin(node_name="a", node_uid="uid-b"), 9, id="a node made anew"),
        pytest.param(
            Origin(node_name="a", node_uid="uid-a", cluster="ledger/1", incarnation="i-2"),
            9,
            id="a ledger that was put back",
        ),
        pytest.param(HERE, 6, id="a position before the last"),
    ],
)
def test_changes_that_do_not_follow_are_not_taken(origin: Origin, position: int) -> None:
    """All is asked for; meanwhile the last word is an old one."""
    state = told_changes(at(7, held()), origin, position, [change(9, None)])
    assert (state.ask().after, state.is_heard) == (None, False)
    assert known(state).held == {("p", 1): held()}


@pytest.mark.parametrize(
    ("status", "knows", "asks_for_all"),
    [
        (404, True, True),
        (409, False, True),
        (410, True, True),
        (429, True, False),
        (503, True, False),
        (401, True, False),
        (403, True, False),
        (500, True, False),
    ],
    ids=str,
)
def test_a_refusal_is_no_word_about_holdings(
    status: int,
    knows: bool,  # noqa: FBT001 - pytest gives it
    asks_for_all: bool,  # noqa: FBT001 - likewise
) -> None:
    """But 409: the Node of our token is gone, and what was held there with it."""
    state = refused(at(7, held()), status, "why")
    assert (state.known is not None, state.ask().after is None) == (knows, asks_for_all)
    assert (state.is_heard, state.problem) == (False, f"{status}: why")


def test_who_wants_to_be_left_alone_is() -> None:
    """For half of the longest pause at least, whatever is drawn; but not for ever."""
    assert refused(at(7), 503, "", retry_after=4.0).ask().pause_seconds == 8.0
    assert refused(at(7), 503, "", retry_after=1e9).ask().pause_seconds == 120.0
    assert refused(at(7), 503, "", retry_after=-3.0).ask().pause_seconds == BACKOFF_SECONDS


def test_pauses_grow_to_a_bound_and_end_with_an_answer() -> None:
    """Each is twice the one before, half a minute at most."""
    state, pauses = at(7), []
    for _ in range(40):
        state = failed(state, "down")
        pauses.append(state.ask().pause_seconds)
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert set(pauses[6:]) == {BACKOFF_SECONDS_MAX}
    assert told_changes(state, HERE, 7, []).ask().pause_seconds == 0


def test_a_service_that_answers_410_to_every_question_is_not_asked_without_a_pause() -> None:
    """What it answers between, all holdings, does not make the pause short again."""
    state = at(7)
    for _ in range(8):
        state = told_all(refused(state, 410, "expired"), HERE, 7, [])
    assert refused(state, 410, "expired").ask().pause_seconds == BACKOFF_SECONDS_MAX


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.sampled_from("pqr")),
        st.tuples(st.just("release"), st.sampled_from("pqr")),
        st.tuples(st.sampled_from(["ask", "lag", "down", "410", "503", "other"]), st.just("")),
    ),
    max_size=40,
)


class Service:
    """A service whose answers lag behind what it recorded; the truth to compare with."""

    def __init__(self) -> None:
        self.position = self.told = 1
        self.held: dict[str, HeldByPod] = {}
        self.log: list[tuple[int, str]] = []
        self.incarnation = "first"

    def origin(self) -> Origin:
        """Return of what it tells."""
        return Origin(node_name="a", node_uid="u", cluster="c", incarnation=self.incarnation)

    def record(self, what: str, pod: str) -> None:
        """Record a reservation or its end."""
        if (what == "release") != (pod in self.held):
            return
        self.position += 1
        self.log.append((self.position, pod))
        if what == "reserve":
            self.held[pod] = held(pod, self.position)
        else:
            del self.held[pod]

    def answer(self, state: Following) -> Following:
        """Answer what is asked."""
        after = state.ask().after
        if after is None:
            return told_all(state, self.origin(), self.position, self.held.values())
        if after > self.position:
            return refused(state, 410, "")
        changes = [change(at, self.held.get(pod), pod) for at, pod in self.log if at > after]
        return told_changes(state, self.origin(), max(after, self.told), changes)


@given(steps=_STEPS)
def test_whatever_happens_what_is_heard_is_what_the_ledger_says(
    steps: list[tuple[str, str]],
) -> None:
    """And after every failure at most two answers lead back to it."""
    service, state = Service(), Following()
    for step, pod in steps:
        match step:
            case "reserve" | "release":
                service.record(step, pod)
            case "ask":
                service.told = service.position
                state = service.answer(state)
            case "lag":
                state = service.answer(state)
            case "down":
                state = failed(state, "down")
            case "other":
                service.incarnation += "'"
                service.position, service.told, service.log = 1, 1, []
            case status:
                state = refused(state, int(status), "")
        if step in {"ask", "lag"} and state.is_heard:
            assert {one.pod_uid for one in known(state).pods()} == set(service.held)
    for _ in range(2):
        service.told = service.position
        state = service.answer(state)
    assert state.is_heard
    assert known(state).held == {one.key: one for one in service.held.values()}
    assert known(state).position == service.position
    assert not known(state).ended
