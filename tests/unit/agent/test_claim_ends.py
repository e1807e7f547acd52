"""Of which claims an agent says that nothing is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.claim_checkpoint import PreparedClaim
from agent.decide.claim_ends import ClaimsHere, EndingClaim, ended
from agent.decide.confirming import Confirming, Look, said
from agent.decide.node_holdings import Origin, all_holdings

GONE = EndingClaim(claim_uid="c", attempt=2, namespace="ml", name="gpu", pods=("p",))
NOTHING = ClaimsHere(prepared=())
WHOLE = Look(places={}, live=frozenset(), complete=True, claims=NOTHING)


def prepared(uid: str, name: str = "gpu", *pods: str) -> PreparedClaim:
    """Return a claim in kubelet's record."""
    return PreparedClaim(claim_uid=uid, namespace="ml", name=name, pods=frozenset(pods))


@pytest.mark.parametrize(
    ("here", "there", "is_gone"),
    [
        (NOTHING, set(), True),
        (NOTHING, {"other"}, True),
        (NOTHING, {"p"}, False),
        (None, set(), False),
        (ClaimsHere(prepared=(prepared("c"),)), set(), False),
        (ClaimsHere(prepared=(prepared("d", "other"),)), set(), True),
        (ClaimsHere(prepared=(), listed={("ml", "gpu")}), set(), False),
        (ClaimsHere(prepared=(prepared("d"),), listed={("ml", "gpu")}), set(), True),
        (ClaimsHere(prepared=(prepared("d"), prepared("c")), listed={("ml", "gpu")}), set(), False),
    ],
    ids=[
        "nothing is there",
        "another Pod runs",
        "its Pod runs, or kubelet may start it",
        "nobody could look",
        "kubelet's record has it",
        "kubelet's record has another",
        "kubelet's answer has it",
        "kubelet's answer has another of its name",
        "kubelet's record has both",
    ],
)
def test_what_is_gone(here: ClaimsHere | None, there: set[str], *, is_gone: bool) -> None:
    """Only what nobody has, by all that was read."""
    assert ended([GONE], here, there) == ((GONE,) if is_gone else ())


@pytest.mark.parametrize(
    ("look", "wants", "says"),
    [
        (WHOLE, set(), True),
        (Look(places={}, live=frozenset(), complete=False, claims=NOTHING), set(), False),
        (Look(places=None, live=frozenset(), complete=True, claims=NOTHING), set(), False),
        (Look(places={}, live=frozenset(), complete=True), set(), False),
        (replace(WHOLE, blind=True), set(), False),
        (Look(places={"p": {}}, live=frozenset(), complete=True, claims=NOTHING), set(), False),
        (Look(places={}, live=frozenset("p"), complete=True, claims=NOTHING), set(), False),
        (Look(places={}, live=frozenset(), complete=True, claims=NOTHING), {"p"}, False),
    ],
)
def test_a_look_that_is_not_whole_says_nothing(look: Look, wants: set[str], *, says: bool) -> None:
    """A source or a card was away, kubelet told no Pods, or a container waits to start."""
    known = all_holdings(Origin(node_name="a", node_uid="uid-a"), 1, ())

    _, message = said(Confirming(), known, look, now=0.0, wants=wants, asked=[GONE])

    assert message.claims == ((GONE,) if says else ())
    assert said(Confirming(), known, look, now=0.0, wants=wants)[1].claims == ()
