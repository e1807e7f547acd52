"""The state that a ledger's events come to, as far as deciding again goes."""

from __future__ import annotations

from scheduler.record.so_far import SoFar
from tests.support.live import Live
from tests.support.objects import container, pod
from tests.support.stores import claim, claim_ended, share


def test_what_a_claim_held_counts_when_a_decision_is_made_again() -> None:
    """From its event to its end, as what others held; a card of claims alone closes nothing."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    whole = share(0, 100, device_id="GPU-a-0", gib=24, exclusive=True)
    sliced = share(7, 100, device_id="GPU-only-sliced", exclusive=True)
    asked = pod(container(limits={"koordinator.sh/gpu": 100}), name="q", uid="pod-q")
    placement = live.placement(asked, "a")
    so_far = SoFar(at_work=True, by=None, requests={})
    for event in live.ledger.log:
        so_far.apply(event, 0)

    def passes() -> bool:
        return len(so_far.now().filter(placement.request, [0]).passing) == 1

    so_far.apply(claim("other", sliced, node="a"), 0)
    assert passes()
    so_far.apply(claim("c", whole, node="a"), 0)
    assert not passes()
    so_far.apply(claim_ended("c", node="a"), 0)
    assert passes()
