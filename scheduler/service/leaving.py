"""What ends what a claim has: Pods by the API, the claim's node by its agent."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.domain.log.state import LOST
from ledger.domain.systems import Claimant
from scheduler.gate.decide import Standing
from scheduler.gate.leaving import Life, NodeOfClaim, Stays, stays
from scheduler.service.agents import Agents
from scheduler.service.claim_ends import EndingClaim
from scheduler.service.view import ClusterView


class Leaving:
    """
    Tells why claims may not go, and asks their nodes.

    Attributes:
        asks: what agents are asked.
    """

    def __init__(self, view: ClusterView, agents: Agents) -> None:
        self._view = view
        self._agents = agents
        self.asks = agents.claims

    def runs(self, pod_uid: str) -> bool:
        """Tell whether a Pod has a node and has not ended."""
        seen = self._view.pods.seen.get(pod_uid)
        return seen is not None and bool(seen.node) and not seen.ended

    def kept(
        self, name: str, standing: Standing | None, consumers: Sequence[Claimant]
    ) -> Stays | None:
        """Return why what a claim has stays, given who uses it or did so last."""
        node = NodeOfClaim() if standing is None else self._node(standing)
        lives = {one: self._life(one.uid, node.name) for one in consumers}
        return stays(name, lives, node)

    def ask(self, standing: Standing, consumers: Sequence[Claimant]) -> None:
        """Ask the node of a claim whether nothing of it is left."""
        opening = standing.opening
        lives = ((one.uid, self._life(one.uid, opening.node_name)) for one in consumers)
        self.asks.ask(
            opening.node_uid,
            EndingClaim(
                claim_uid=opening.claim_uid,
                attempt=opening.attempt,
                namespace=opening.namespace,
                name=opening.claim_name,
                pods=tuple(uid for uid, life in lives if life is not Life.UNBOUND),
            ),
        )

    def is_asked(self, claim_uid: str) -> bool:
        """Tell whether the node of a claim is asked whether nothing of it is left."""
        return self.asks.is_asked(claim_uid)

    def vouch(self, claim_uid: str, consumers: Sequence[Claimant]) -> bool:
        """Take somebody's word that nothing is left of a claim whose node is asked; tell if so."""
        return self.asks.vouched(claim_uid, [one.uid for one in consumers])

    def deny(self, claim_uid: str) -> None:
        """Let no word about a claim count: one of its Pods runs."""
        self.asks.deny(claim_uid)

    def forget(self, claim_uid: str) -> None:
        """Ask no more of a claim."""
        self.asks.forget(claim_uid)

    def _node(self, standing: Standing) -> NodeOfClaim:
        opening = standing.opening
        state = self._view.recorded(opening.node_uid)
        if state is None:
            return NodeOfClaim(name=opening.node_name)
        held = state.claims.get(f"{opening.claim_uid}/{opening.attempt}")
        word = self._agents.word(state)
        return NodeOfClaim(
            name=state.name,
            has_witness=word.has_agent and self.asks.reads(state.uid) is not False,
            agent_ready=word.agent_ready,
            kubelet_ready=word.kubelet_ready,
            confirmed=self.asks.confirmed(opening.claim_uid, opening.attempt),
            is_lost=held is not None and (held.phase == LOST or bool(held.machine)),
        )

    def _life(self, pod_uid: str, node_name: str) -> Life:
        pods = self._view.pods
        seen = pods.seen.get(pod_uid)
        if seen is not None and not seen.node:
            return Life.UNBOUND
        if seen is not None and not seen.ended:
            return Life.RUNS
        last = seen or pods.gone.get(node_name, {}).get(pod_uid)
        return Life.OVER if last is not None and last.terminated else Life.GONE
