"""Claims of the files in a run without time: who may go where with them, and what they get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs

from ledger.domain.devices import COUNTER, DeviceShare
from ledger.domain.dialects.dra.shares import Shares, shares_of
from ledger.domain.log.events import ClaimConsumed, ClaimObserved, ClaimReserved, PodObserved
from ledger.domain.log.state import OBSERVED, Holding
from ledger.domain.request.requests import PodRequest, is_member
from ledger.domain.systems import Claimant, SystemPart
from scheduler.cluster.claim_asks import ClaimWorld, NodeOffers
from scheduler.cluster.claims import Dra, DraClaim, DraPart, given_by_claims
from scheduler.cluster.model import Pod
from scheduler.decide.engine import Limits
from scheduler.decide.outcome import Placement
from scheduler.gate.allocate import NO_DEVICES, ClaimAsk, Given, allocate
from scheduler.gate.exchange import Results, device_of
from scheduler.gate.room import expecting
from scheduler.record.core import ByClaims
from scheduler.record.events import DecidedBy

NOT_ALONE: Final = "in a group, or beside devices or CPUs of its own"
ELSEWHERE: Final = "node(s) don't have what a claim of the Pod has"


def alone_in(pods: Iterable[Pod]) -> frozenset[str]:
    """Return who gets no devices and no CPUs of its own here, and is in no group."""
    asked = [pod for pod in pods if isinstance(pod, PodRequest)]
    return frozenset(pod.uid for pod in asked if not (pod.devices or pod.cpuset or is_member(pod)))


def decided_in(world: ClaimWorld, pods: Iterable[Pod]) -> ClaimWorld:
    """Return who of these Pods is decided with its claims, and of all others why not."""
    alone = alone_in(pods)
    asked = {uid: found for uid, found in world.asked.items() if uid in alone}
    others = dict.fromkeys(world.asked.keys() - alone, NOT_ALONE)
    return replace(world, asked=asked, beyond={**world.beyond, **others})


class Claiming:
    """
    Keeps what claims have, Pod by Pod.

    Args:
        names: of the nodes, by number.
        observed: what claims of the files have of cards that nodes list themselves.
    """

    def __init__(
        self,
        world: ClaimWorld,
        names: Sequence[str],
        observed: Iterable[ClaimObserved],
        words: DecidedBy,
    ) -> None:
        self._world, self._names, self._words = world, names, words
        self._nodes = dict(world.nodes)
        self._allocated = dict(world.allocated)
        self._open: dict[str, ClaimObserved | ClaimReserved] = {
            each.claim_uid: each for each in observed
        }
        self._found: dict[str, Given] = {}  # by node, of the Pod that is decided

    def note(self, number: int, holding: Holding) -> None:
        """Take what a Pod holds of the cards that a node lists itself."""
        node = self._nodes.get(self._names[number])
        if node is not None and (holding.shares or holding.unknown_types):
            held = {**node.state.holdings, holding.key: holding}
            state = replace(node.state, holdings=held)
            self._nodes[node.state.name] = replace(node, state=state)

    def limits(self, claims: Sequence[ClaimAsk]) -> Limits:
        """Return the nodes where these claims find nothing, and why."""
        self._found = {}
        closed = {}
        for number, name in enumerate(self._names):
            found = self._on(self._nodes[name], claims)
            if isinstance(found, str):
                closed[number] = found
            else:
                self._found[name] = found
        return Limits(closed=closed)

    def _on(self, node: NodeOffers, claims: Sequence[ClaimAsk]) -> Given | str:
        had = [self._allocated.get(one.full_name) for one in claims]
        if any(one is not None and one[0] != node.state.name for one in had):
            return ELSEWHERE
        new = [one for one, before in zip(claims, had, strict=True) if before is None]
        if not new:
            return Given(results={})
        if node.barred:
            return f"{NO_DEVICES}: {node.barred}"
        return allocate(new, node.offers, node.state, node.accounts)

    def take(self, claims: Sequence[ClaimAsk], placement: Placement) -> ByClaims:
        """Let claims have what was found on the node that was chosen, and the Pod use them."""
        user = Claimant(name=placement.request.name, uid=placement.request.uid)
        found = self._found[placement.node_name].results
        opened, used = list[ClaimReserved](), list[ClaimConsumed]()
        parts, shares = list[SystemPart](), list[DeviceShare]()
        for claim in claims:
            if claim.uid in found:
                self._allocated[claim.full_name] = (placement.node_name, found[claim.uid])
                opening = self._opened(claim, found[claim.uid], placement, user)
                if opening is not None:
                    opened.append(opening)
                    self._open[claim.uid] = opening
            elif claim.uid in self._open:
                used.append(self._used(claim, user))
            results = self._allocated[claim.full_name][1]
            parts += self._parts(claim, results, placement, user)
            of = shares_of(results, self._nodes[placement.node_name].accounts)
            shares += of.shares if isinstance(of, Shares) else ()
        return ByClaims(
            opened=tuple(opened),
            used=tuple(used),
            parts=tuple(parts),
            shares=tuple(one for one in shares if one.device_type != COUNTER),
        )

    def _opened(
        self, claim: ClaimAsk, results: Results, placement: Placement, user: Claimant
    ) -> ClaimReserved | None:
        """Hold what a claim gets; return what of it is of cards that the node lists itself."""
        node = self._nodes[placement.node_name]
        of = shares_of(results, node.accounts)
        assert isinstance(of, Shares), "they were found among the accounts"
        whole = ClaimReserved(
            claim_uid=claim.uid,
            attempt=1,
            node_uid=placement.node_uid,
            namespace=claim.namespace,
            claim_name=claim.name,
            node_name=placement.node_name,
            results=results,
            shares=of.shares,
            device_models=of.models,
            consumers=(user,),
            resource_version="0",
            settings_hash=self._words.settings_hash,
            tenure_version=self._words.tenure_version,
        )
        state = expecting(node.state, [whole], without="")
        self._nodes[placement.node_name] = replace(node, state=state)
        apart = {each.key for each in self._world.dra.devices}
        own = {each.key for each in node.state.devices if not each.by_claims}
        pairs = [
            (share, model)
            for share, model in zip(of.shares, of.models, strict=True)
            if share.key in own
        ]
        if not pairs:
            return None
        return structs.replace(
            whole,
            results=tuple(one for one in results if device_of(one) not in apart),
            shares=tuple(share for share, _ in pairs),
            device_models=tuple(model for _, model in pairs),
        )

    def _used(self, claim: ClaimAsk, user: Claimant) -> ClaimConsumed:
        before = self._open[claim.uid]
        consumers = tuple(dict.fromkeys((*before.consumers, user)))
        self._open[claim.uid] = structs.replace(before, consumers=consumers)
        return ClaimConsumed(
            claim_uid=before.claim_uid,
            attempt=before.attempt,
            node_uid=before.node_uid,
            consumers=consumers,
        )

    def _parts(
        self, claim: ClaimAsk, results: Results, placement: Placement, user: Claimant
    ) -> Sequence[SystemPart]:
        """Return what a Pod has by a claim of cards that slices alone list."""
        node = placement.node_name
        devices = tuple(one for one in self._world.dra.devices if one.node == node)
        keys = {one.key for one in devices}
        had = tuple(
            DraPart(driver=one.driver, pool=one.pool, device=one.device)
            for one in results
            if device_of(one) in keys
        )
        if not had:
            return ()
        of_claim = DraClaim(
            namespace=claim.namespace,
            name=claim.name,
            node=node,
            parts=had,
            pods=((user.name, user.uid),),
        )
        given = given_by_claims(Dra(devices=devices, claims=(of_claim,)), {user.uid: node})
        return given.parts.get(user.uid, ())


def holding_of(pod: PodObserved) -> Holding:
    """Return what a Pod holds of its node, as the ledger would have it."""
    return Holding(
        pod_uid=pod.pod_uid,
        attempt=pod.attempt,
        namespace=pod.namespace,
        pod_name=pod.pod_name,
        kind=OBSERVED,
        phase=OBSERVED,
        opened_position=0,
        shares=pod.shares,
        cpuset=pod.cpuset,
        unknown_types=pod.unknown_types,
    )
