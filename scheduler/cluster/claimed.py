"""
Cards that a node lists itself and that claims have: one account each, with the claim as its holder.

Rule: docs/contracts/dra.md, 4; docs/adr/0025. What of claims is of no such card stays with the Pods
that use them, as slices tell it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from ledger.domain.dialects.dra.accounts import Listed, NodeAccounts, accounts_of
from ledger.domain.dialects.dra.drivers import LookedAt
from ledger.domain.dialects.dra.objects import pools_of, read_slice
from ledger.domain.dialects.dra.shares import Shares, shares_of
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import default_uid, section
from ledger.domain.log.events import ClaimObserved
from ledger.domain.log.state import NodeState
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.card_names import NVIDIA_DOMAIN, count_in
from scheduler.cluster.claims import Dra
from scheduler.cluster.documents import Document, Documents, is_ended
from scheduler.cluster.dra import is_of_dra
from scheduler.gate.claims import Allocated, ClaimSeen, claim_seen
from scheduler.gate.decide import Accounted, Unaccounted
from scheduler.gate.exchange import Alike, Device, device_of
from scheduler.gate.follow import observed_of

READ: Final = frozenset({"resource.k8s.io/v1", "resource.k8s.io/v1beta2"})
DRIVERS: Final = LookedAt()
LISTED: Final = "also listed by"


def holders_of_own(
    nodes: Mapping[str, NodeFacts], dra: Dra, objects: Documents
) -> tuple[tuple[ClaimObserved, ...], Dra]:
    """
    Return what claims have of cards that nodes list themselves, and the rest of what is told.

    What can't be read as the API describes it, or in an older version of it, is all in the rest.

    Args:
        nodes: by name.
    """
    told = {node.name: accounts for node, accounts in _accounts(nodes, objects)}
    own = {key: name for name, accounts in told.items() for key in accounts.devices}
    if not own:
        return (), dra
    held = list[ClaimObserved]()
    split = set[str]()
    ended = {pod.uid: is_ended(pod.body) for pod in objects.of_kind("Pod")}
    for document in _of_kind(objects, "ResourceClaim"):
        event = _held(document, nodes, told, own)
        if event is not None:
            users = tuple(one for one in event.consumers if not ended.get(one.uid, True))
            held.append(structs.replace(event, consumers=users))
            split.add(f"{event.namespace}/{event.claim_name}")
    claims = (
        replace(one, parts=tuple(part for part in one.parts if part.key not in own))
        if f"{one.namespace}/{one.name}" in split
        else one
        for one in dra.claims
    )
    rest = replace(
        dra,
        devices=tuple(one for one in dra.devices if one.key not in own),
        claims=tuple(one for one in claims if one.parts),
    )
    return tuple(held), rest


def closed_where_shared(node: NodeFacts, *, is_used: bool) -> NodeFacts:
    """Return a node without room on cards that are, or may be, in another system's accounts."""
    systems, devices = node.systems, node.devices
    ids = Counter([*(one.device_id for one in devices), *(card.id for card in systems.cards)])
    whys = {one.id: f"{LISTED} {one.system}" for one in systems.cards if one.id and ids[one.id] > 1}
    cards = tuple(replace(one, closed=one.closed or whys.get(one.id, "")) for one in systems.cards)
    named = [c for c in cards if (is_used or systems.claims) and c.id.startswith("GPU-")]
    if named and ids[""] + len(named) > count_in(node.labels, NVIDIA_DOMAIN)[1]:
        whys[""] = f"may be {named[0].system}'s"
    good = {one.device_id for one in devices if one.healthy}
    closed = {key: why for key, why in whys.items() if key in good} | dict(systems.closed)
    devices = tuple(replace(o, healthy=o.healthy and o.device_id not in whys) for o in devices)
    systems = replace(systems, cards=cards, closed=tuple(sorted(closed.items())))
    return replace(node, devices=devices, systems=systems) if whys else node


def _of_kind(objects: Documents, kind: str) -> Iterator[Document]:
    for one in filter(is_of_dra, objects.documents):
        if one.body.get("apiVersion") in READ and one.kind.partition(".")[0] == kind:
            yield one


def _accounts(
    nodes: Mapping[str, NodeFacts], objects: Documents
) -> Iterator[tuple[NodeFacts, NodeAccounts]]:
    """Yield nodes with the accounts of what is one of their own cards, or a part of it."""
    slices = []
    for document in _of_kind(objects, "ResourceSlice"):
        try:
            slices.append(read_slice(document.body))
        except InputError:
            continue
    pools = pools_of(slices)
    for node in nodes.values() if pools else ():
        found = accounts_of(node.name, pools, node.devices, Listed(drivers=DRIVERS))
        own = {
            key: accounts
            for key, accounts in found.devices.items()
            if accounts.parts and not any(part.card.by_claims for part in accounts.parts)
        }
        if own:
            yield node, replace(found, devices=own)


def seen_in(document: Document) -> ClaimSeen:
    """Read a claim of files. Raises InputError where it is not as the API describes it."""
    metadata = section(document.body, "metadata")
    filled = {
        "uid": document.uid or default_uid("ResourceClaim", document.namespace, document.name),
        "namespace": document.namespace,
        "resourceVersion": metadata.get("resourceVersion") or "0",
    }
    return claim_seen({**document.body, "metadata": {**metadata, **filled}}, DRIVERS)


def _held(
    document: Document,
    nodes: Mapping[str, NodeFacts],
    told: Mapping[str, NodeAccounts],
    own: Mapping[Device, str],
) -> ClaimObserved | None:
    """
    Return what a claim has of a node's own cards; None where that is nothing.

    The node is that of the cards: an allocation may name none, or in other words than by name.
    """
    try:
        seen = seen_in(document)
    except InputError:
        return None
    of_drivers = () if seen.allocated is None else seen.allocated.results
    name = next((own[key] for key in map(device_of, of_drivers) if key in own), None)
    if seen.allocated is None or name is None:
        return None
    node, accounts = nodes[name], told[name]
    results = tuple(one for one in of_drivers if own.get(device_of(one)) == name)
    mine = replace(seen, allocated=replace(seen.allocated, node_name=name, results=results))
    event = observed_of(mine, _Own(of=node, accounts=accounts), 1)
    return event if event is not None and event.shares else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """The accounts of one node's own cards."""

    of: NodeFacts
    accounts: NodeAccounts

    def node(self, name: str) -> NodeState | None:
        assert name == self.of.name, name
        return NodeState(uid=self.of.uid, name=name, devices=self.of.devices)

    def account(self, allocated: Allocated) -> Accounted | Unaccounted:
        """Return what results are of the cards; of counters nobody here keeps account."""
        found = shares_of(allocated.results, self.accounts)
        assert isinstance(found, Shares), "each is of an own card"
        cards = {(each.device_type, each.device_id) for each in self.of.devices}
        pairs = [
            (share, model)
            for share, model in zip(found.shares, found.models, strict=True)
            if (share.device_type, share.device_id) in cards
        ]
        return Accounted(
            shares=tuple(share for share, _ in pairs), models=tuple(model for _, model in pairs)
        )

    def alike(self, node: str, device: Device, *, anywhere: bool = False) -> tuple[Alike, ...]:
        """Return that no device is given in another one's place."""
        assert node or device or anywhere
        return ()
