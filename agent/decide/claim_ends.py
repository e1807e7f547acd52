"""
Of which claims that end nothing is left on this node.

Rule: docs/contracts/agents.md, "Claims"; docs/adr/0030. Pure: what the service asks and what was
read in, claims out.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from agent.claim_checkpoint import PreparedClaim

NONE: Final = "0"
"""The version of nothing that is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingClaim:
    """
    A claim whose end waits for this node.

    Attributes:
        pods: UIDs of the Pods that used it last.
        question: the number of the question, which an answer repeats.
    """

    claim_uid: str
    attempt: int
    namespace: str
    name: str
    pods: tuple[str, ...] = ()
    question: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedClaims:
    """What the service asks, and its version of that."""

    version: str = NONE
    ends: tuple[EndingClaim, ...] = ()


NOTHING_ASKED: Final = AskedClaims()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsHere:
    """What kubelet has of claims: by its record, and by its answer as (namespace, name)."""

    prepared: tuple[PreparedClaim, ...]
    listed: AbstractSet[tuple[str, str]] = frozenset()


def ended(
    asked: Collection[EndingClaim], here: ClaimsHere | None, there: AbstractSet[str]
) -> tuple[EndingClaim, ...]:
    """
    Return the claims of which nothing is left.

    Kubelet's answer names no UID: a name that its record has of another claim is that one's.

    Args:
        asked: before any of this was read.
        here: None = nobody could look.
        there: UIDs of the Pods that run here, or that kubelet may start.
    """
    if here is None:
        return ()
    uids = {one.claim_uid for one in here.prepared}
    names = {(one.namespace, one.name) for one in here.prepared}
    listed = here.listed - names
    return tuple(
        one
        for one in asked
        if one.claim_uid not in uids
        and (one.namespace, one.name) not in listed
        and there.isdisjoint(one.pods)
    )
