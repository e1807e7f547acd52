"""
What nodes' agents are asked about claims that end, and what they have said of them.

Rule: docs/adr/0030; docs/contracts/agents.md, "Claims". An agent is asked of a claim once its end
waits for the node. Its answer counts for the Pods that the question named.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from ledger.domain.bounds import Count, Name, Number
from ledger.domain.log import events
from scheduler.service.wakeups import Wakeups

NONE: Final = "0"
"""The version of nothing that ends."""
NOTED, NOTHING = "noted", "nothing"
READS_SECONDS: Final = 120.0
"""An agent that reads claims asks all the time; one beside it that does not counts after that."""
TOLD_MAX: Final = 256
"""Claims of which a node is asked at once, the oldest first."""
_VERSION_LENGTH: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedClaim:
    """A claim of which nothing is left, beside which Pods that was asked, and by which question."""

    claim_uid: Name
    attempt: Number
    pods: tuple[Name, ...] = ()
    question: Count = 0


class EndingClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim whose end waits for its node; `pods`: UIDs of its last users that had a node."""

    claim_uid: Name
    attempt: Number
    namespace: str = ""
    name: str = ""
    pods: tuple[Name, ...] = ()
    question: Count = 0


class ClaimEnds:
    """
    The claims that end, node by node.

    Args:
        before: a number below those of this epoch's questions, and above those of earlier epochs'.
    """

    def __init__(
        self, now: Callable[[], float], before: Callable[[], int], wakeups: Wakeups
    ) -> None:
        self._now = now
        self._before = before
        self._wakeups = wakeups
        self._ends: dict[str, dict[str, EndingClaim]] = {}  # UID of a node -> by UID of the claim
        self._node: dict[str, str] = {}  # UID of a claim that ends -> of its node
        self._questions = 0
        self._confirmed: dict[str, tuple[int, frozenset[str]]] = {}  # UID of a claim -> beside whom
        self._reads: dict[str, float] = {}  # UID of a node -> when an agent asked that reads claims
        self._blind: set[str] = set()  # UIDs of nodes where one asked that does not
        self.counts: Counter[str] = Counter()
        wakeups.pod_started.subscribe(self.ran)

    # --- what is asked --------------------------------------------------------------------------

    def ask(self, node_uid: str, claim: EndingClaim) -> None:
        """Ask a node's agent whether nothing of a claim is left; the same again is no question."""
        ends = self._ends.setdefault(node_uid, {})
        known = ends.get(claim.claim_uid)
        if known is None or msgspec.structs.replace(claim, question=known.question) != known:
            self._questions = max(self._questions, self._before()) + 1
            ends[claim.claim_uid] = msgspec.structs.replace(claim, question=self._questions)
            self._node[claim.claim_uid] = node_uid
            self._wakeups.claim_end_asked.publish(node_uid)

    def forget(self, claim_uid: str) -> None:
        """Ask no more of a claim: it goes on, or has ended."""
        node_uid = self._node.pop(claim_uid, None)
        if node_uid is not None:
            ends = self._ends[node_uid]
            del ends[claim_uid]
            if not ends:
                del self._ends[node_uid]

    def deny(self, claim_uid: str) -> None:
        """Let no word about a claim count: one of its Pods runs."""
        self._confirmed.pop(claim_uid, None)

    def ran(self, pod_uid: str) -> None:
        """Let no word count that names a Pod of which the API shows only now that it runs."""
        for uid, (_, pods) in list(self._confirmed.items()):
            if pod_uid in pods:
                self.deny(uid)
        for uid, node_uid in list(self._node.items()):
            if pod_uid in self._ends[node_uid][uid].pods:
                self.forget(uid)  # it is asked again where its end waits still

    def waiting(self) -> Collection[str]:
        """Return the UIDs of the claims of which a node is asked."""
        return self._node

    def told(self, node_uid: str) -> tuple[str, list[EndingClaim]]:
        """Return what a node's agent is asked, and the version of that."""
        ends = list(self._ends.get(node_uid, {}).values())[:TOLD_MAX]
        if not ends:
            return NONE, ends
        digest = hashlib.blake2b(msgspec.json.encode(ends), digest_size=_VERSION_LENGTH // 2)
        return digest.hexdigest(), ends

    # --- what is said ---------------------------------------------------------------------------

    def reads(self, node_uid: str) -> bool | None:
        """Tell whether a node's agent reads what kubelet has of claims; None = not known yet."""
        asked, is_blind = self._reads.get(node_uid), node_uid in self._blind
        if asked is not None and (not is_blind or self._now() - asked < READS_SECONDS):
            return True
        return False if is_blind else None

    def heard(self, node_uid: str, *, reads: bool) -> None:
        """Take note of whether a node's agent reads what kubelet has of claims."""
        if reads:
            self._reads[node_uid] = self._now()
        elif node_uid not in self._blind:
            self._blind.add(node_uid)
            self._wakeups.claim_end_answered.publish(node_uid)

    def said(self, node_uid: str, claims: Iterable[EndingClaim | ConfirmedClaim]) -> list[str]:
        """Take the word of a node's agent that nothing is left of claims of which it is asked."""
        answers = []
        for one in claims:
            asked = self._ends.get(node_uid, {}).get(one.claim_uid)
            is_asked = asked is not None and (asked.attempt, asked.question) == (
                one.attempt,
                one.question,
            )
            if is_asked:
                self._confirmed[one.claim_uid] = one.attempt, frozenset(one.pods)
            answers.append(NOTED if is_asked else NOTHING)
        if NOTED in answers:
            self._wakeups.claim_end_answered.publish(node_uid)
        self.counts.update(f"claim {each}" for each in answers)
        return answers

    def is_asked(self, claim_uid: str) -> bool:
        """Tell whether a node is asked about a claim."""
        return claim_uid in self._node

    def vouched(self, claim_uid: str, pods: Collection[str]) -> bool:
        """Take somebody's word for that of the node which is asked; tell whether it is."""
        node_uid = self._node.get(claim_uid)
        if node_uid is None:
            return False
        self._confirmed[claim_uid] = self._ends[node_uid][claim_uid].attempt, frozenset(pods)
        return True

    def confirmed(self, claim_uid: str, attempt: int) -> frozenset[str] | None:
        """Return beside which Pods nothing was left of a claim; None where nobody said so."""
        of, pods = self._confirmed.get(claim_uid, (0, frozenset()))
        return pods if of == attempt else None

    def take(self, event: events.LedgerEvent) -> None:
        """Take note of an event: a word of what was before it counts no more."""
        match event:
            case events.EpochStarted():  # agents have spoken to another replica so far
                self._confirmed.clear()
                self._reads.clear()
                self._blind.clear()
            case events.NodeLost() | events.NodeCleared():
                self._reads.pop(event.node_uid, None)
                self._blind.discard(event.node_uid)
                for uid in list(self._ends.get(event.node_uid, ())):
                    self._confirmed.pop(uid, None)
                    self.forget(uid)
            case events.ClaimConsumed():
                _, pods = self._confirmed.get(event.claim_uid, (0, frozenset()))
                if not pods >= {one.uid for one in event.consumers}:
                    self._confirmed.pop(event.claim_uid, None)
            case events.ClaimBound() | events.ClaimReleased() | events.ClaimVoided():
                self._confirmed.pop(event.claim_uid, None)
                self.forget(event.claim_uid)
            case _:
                pass
