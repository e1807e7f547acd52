"""Whether what a claim has may go, by its Pods and by its node."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from ledger.domain.systems import Claimant
from scheduler.gate.leaving import (
    NOT_CONFIRMED,
    ON_LOST_NODE,
    STILL_USED,
    Life,
    NodeOfClaim,
    stays,
)

TRAIN: Final = Claimant(name="train", uid="t")
OTHER: Final = Claimant(name="other", uid="o")
ALONE: Final = NodeOfClaim(name="n1", kubelet_ready=True)
WATCHED: Final = replace(ALONE, has_witness=True, agent_ready=True)
SILENT: Final = replace(WATCHED, agent_ready=False)
DARK: Final = replace(SILENT, kubelet_ready=False)


def said(*uids: str, node: NodeOfClaim = WATCHED) -> NodeOfClaim:
    """Return the node once its agent said that nothing of the claim is left beside these Pods."""
    return replace(node, confirmed=frozenset(uids))


@pytest.mark.parametrize(
    ("node", "life", "reason"),
    [
        (ALONE, Life.GONE, ""),
        (ALONE, Life.RUNS, STILL_USED),
        (WATCHED, Life.GONE, NOT_CONFIRMED),
        (WATCHED, Life.OVER, NOT_CONFIRMED),
        (said("t"), Life.GONE, ""),
        (said("t"), Life.RUNS, STILL_USED),
        (said(), Life.GONE, NOT_CONFIRMED),
        (said("x"), Life.GONE, NOT_CONFIRMED),
        (said(), Life.UNBOUND, ""),
        (WATCHED, Life.UNBOUND, NOT_CONFIRMED),
        (SILENT, Life.OVER, ""),
        (SILENT, Life.UNBOUND, NOT_CONFIRMED),
        (SILENT, Life.GONE, NOT_CONFIRMED),
        (said("t", node=SILENT), Life.GONE, ""),
        (DARK, Life.OVER, NOT_CONFIRMED),
        (said("t", node=DARK), Life.GONE, ""),
        (replace(said("t"), is_lost=True), Life.GONE, ON_LOST_NODE),
        (replace(ALONE, is_lost=True), Life.GONE, ON_LOST_NODE),
    ],
)
def test_what_lets_a_claim_go(node: NodeOfClaim, life: Life, reason: str) -> None:
    """The claim controller alone, the agent, or kubelet while the agent is silent; never less."""
    why = stays("ml/a", {TRAIN: life}, node)

    assert ("" if why is None else why.reason) == reason
    assert why is None or why.asks is (reason == NOT_CONFIRMED)


def test_one_of_several_pods_is_enough_to_hold() -> None:
    """The agent was asked before the second one came."""
    lives = {TRAIN: Life.GONE, OTHER: Life.GONE}

    why = stays("ml/a", lives, said("t"))

    assert why is not None
    assert "node n1 has not confirmed that nothing of claim ml/a is left" in why.message
    assert stays("ml/a", lives, said("t", "o")) is None
    still = stays("ml/a", {**lives, OTHER: Life.RUNS}, said("t", "o"))
    assert still is not None
    assert still.message == "claim ml/a is used by Pods that run: other"


def test_a_claim_that_nobody_uses_is_asked_of_its_node_too() -> None:
    """Somebody may have emptied the list of its users while they ran."""
    assert stays("ml/a", {}, WATCHED) is not None
    assert stays("ml/a", {}, said()) is None
    assert stays("ml/a", {}, SILENT) is not None, "no Pod tells kubelet's word"
    assert stays("ml/a", {}, ALONE) is None
