"""
Whether what a claim has may go: who of its Pods runs by the API, and what its node says.

Rule: docs/adr/0030; design section 8, "When parts are down". Hold early, release late: a word that
is missing holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ledger.domain.systems import Claimant

STILL_USED: Final = "StillUsed"
NOT_CONFIRMED: Final = "ReleaseNotConfirmed"
ON_LOST_NODE: Final = "HeldOnLostNode"


class Life(StrEnum):
    """
    What the API says of a Pod.

    UNBOUND has no node. RUNS has one, and has not ended. OVER has ended or is gone, and its kubelet
    said that no container is left. GONE has ended or is gone, and nobody said so.
    """

    UNBOUND = "unbound"
    RUNS = "runs"
    OVER = "over"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOfClaim:
    """
    What is known of the node of a claim.

    Attributes:
        name: of the node, for people.
        has_witness: an agent reports there what kubelet has of claims, or may yet.
        agent_ready: it reports now.
        kubelet_ready: its Node is Ready.
        confirmed: UIDs of the Pods beside which the agent said that nothing of the claim is left;
            None = it did not.
        is_lost: it was lost with the claim's devices: they open with their machine alone.
    """

    name: str = ""
    has_witness: bool = False
    agent_ready: bool = False
    kubelet_ready: bool = False
    confirmed: frozenset[str] | None = None
    is_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stays:
    """
    Why what a claim has may not go.

    Attributes:
        asks: the node is asked: it goes as soon as that says so.
    """

    reason: str
    message: str
    asks: bool = False


def stays(name: str, lives: Mapping[Claimant, Life], node: NodeOfClaim) -> Stays | None:
    """
    Return why what a claim has stays; None where nothing of it is left.

    A Pod that runs by the API holds it, whatever the node says. Where an agent has reported what
    kubelet has of claims, that is asked; while it is silent and kubelet is ready, kubelet's word of
    each Pod counts. Elsewhere it is whoever lets the claim go who says so.

    Args:
        name: the claim's, with its namespace.
        lives: of whoever uses it, or did so last. Without a node none of it is theirs yet.
    """
    there = {one: life for one, life in lives.items() if life is not Life.UNBOUND}
    running = [one.name for one, life in there.items() if life is Life.RUNS]
    if running:
        names = ", ".join(running)
        return Stays(reason=STILL_USED, message=f"claim {name} is used by Pods that run: {names}")
    if node.is_lost:
        fact = f"claim {name} is held through node {node.name}, which was lost"
        return Stays(reason=ON_LOST_NODE, message=fact)
    if not node.has_witness:
        return None
    if node.confirmed is not None and node.confirmed >= {one.uid for one in there}:
        return None
    is_told = bool(there) and all(life is Life.OVER for life in there.values())
    if not node.agent_ready and node.kubelet_ready and is_told:
        return None
    fact = f"node {node.name} has not confirmed that nothing of claim {name} is left"
    return Stays(reason=NOT_CONFIRMED, message=fact, asks=True)
