"""
A claim that a Pod has by our template: whether the Pod's request gives it, and is given by it.

Rule: docs/adr/0031, docs/contracts/dra.md, 7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from ledger.domain.annotations.wire import an_object, each
from ledger.domain.devices import GPU, DeviceShare
from ledger.domain.dialects.dra.asking import (
    CLAIM,
    Asking,
    CardsAsked,
    Giver,
    claim_spec,
    says_the_same,
    sizes_in,
)
from ledger.domain.dialects.dra.objects import CORES, MEMORY
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import is_name
from ledger.domain.log.events import ClaimResult
from ledger.domain.log.state import NodeState
from ledger.domain.request.claimed import asked_by_claim, is_claimed
from ledger.domain.vocabulary import Vocabulary
from scheduler.gate.claims import Allocated
from scheduler.gate.decide import Accounted, Accounts, Unaccounted
from scheduler.gate.exchange import Alike, Device

TEMPLATE_NOT_OURS: Final = "TemplateNotOurs"
LESS_THAN_ASKED: Final = "LessThanAsked"

_ENTRY: Final = "resource.kubernetes.io/pod-claim-name"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerPod:
    """The Pod whose entry for a claim of ours a claim was made for."""

    uid: str
    name: str


def owner_of(claim: Mapping[str, object]) -> OwnerPod | None:
    """Return whose claim of ours this is, None of any other claim. Raises InputError: no Pod's."""
    metadata = an_object(claim.get("metadata"), "metadata")
    annotations = an_object(metadata.get("annotations"), "metadata.annotations")
    if annotations.get(_ENTRY) != CLAIM:
        return None
    for one in each(metadata.get("ownerReferences"), "metadata.ownerReferences", an_object):
        if one.get("kind") == "Pod" and one.get("controller") is True:
            owner = OwnerPod(uid=str(one.get("uid")), name=str(one.get("name")))
            if not is_name(owner.name):
                raise InputError("no Pod is called so", field="metadata.ownerReferences.name")
            return owner
    return None


def asked_of(
    claim: Mapping[str, object], pod: Mapping[str, object], giver: Giver, vocabulary: Vocabulary
) -> Asking | str | None:
    """
    Return what a Pod asks for by this claim, or in words why its request does not give it.

    None where admission wrote no claim for the Pod. Of which sizes of cards a ratio is, is the
    template's own word; the rest follows from it.
    """
    if not is_claimed(pod):
        return None
    try:
        asking = asked_by_claim(pod, vocabulary)
    except InputError as error:
        return str(error)
    if asking is None:
        return "its Pod names another template than its request has"
    spec = an_object(claim.get("spec"), "spec")
    wanted = claim_spec(asking, replace(giver, sizes=sizes_in(spec)))
    if wanted is None or not says_the_same(spec, wanted):
        return "its spec is not what its Pod's request gives"
    return asking


def miscounted(asking: Asking, results: Sequence[ClaimResult]) -> tuple[str, str] | None:
    """Return by a word and in words for which request there are not as many cards as it asks."""
    given = Counter(result.request.partition("/")[0] for result in results)
    asked = {one.name: one.count for one in asking.requests}
    for name, has in sorted(given.items()):
        if has > asked.get(name, 0):
            fact = f"request {name} has {has} cards, and its Pod asks for {asked.get(name, 0)}"
            return TEMPLATE_NOT_OURS, fact
    for name, wants in asked.items():
        if given[name] < wants:
            return LESS_THAN_ASKED, f"request {name} has {given[name]} cards of {wants}"
    return None


def may_be_none(asking: Asking) -> Callable[[ClaimResult, str], bool]:
    """Return what tells whether a share of none of a capacity is what its request asks for."""

    def asks_for_none(result: ClaimResult, name: str) -> bool:
        asked = _of(asking, result)
        if asked is None:
            return False
        memory = asked.memory_bytes or asked.memory_ratio_percent
        return (name == CORES and not asked.core_percent and bool(memory)) or (
            name == MEMORY and not memory and bool(asked.core_percent)
        )

    return asks_for_none


@dataclass(frozen=True, slots=True)
class OwnAccounts:
    """The accounts of a claim of ours: what its request asks for alone is held alone."""

    accounts: Accounts
    asking: Asking

    def node(self, name: str) -> NodeState | None:
        """Return what the ledger has of the Node of this name."""
        return self.accounts.node(name)

    def alike(self, node: str, device: Device, *, anywhere: bool = True) -> tuple[Alike, ...]:
        """Return the devices like one of a node's: nothing of ours says where they have to be."""
        return self.accounts.alike(node, device, anywhere=anywhere)

    def account(self, allocated: Allocated) -> Accounted | Unaccounted:
        """Return what these results are of; less than was asked for is nothing."""
        found = self.accounts.account(allocated)
        if isinstance(found, Unaccounted):
            return found
        cards, alone = set[str](), set[str]()
        for result in allocated.results:
            asked = _of(self.asking, result)
            if asked is None:
                fact = f"no request of its Pod is called {result.request}"
                return Unaccounted(reason=TEMPLATE_NOT_OURS, message=fact)
            one = self.accounts.account(replace(allocated, results=(result,)))
            if isinstance(one, Unaccounted):
                return one
            for share in one.shares:
                if share.device_type == GPU:
                    if _is_less(share, asked):
                        fact = f"{result.device} gives less than request {asked.name} asks for"
                        return Unaccounted(reason=LESS_THAN_ASKED, message=fact)
                    if share.device_id in cards:
                        fact = f"{result.device} is of a card that another result is of"
                        return Unaccounted(reason=LESS_THAN_ASKED, message=fact)
                    cards.add(share.device_id)
                    if asked.exclusive:
                        alone.add(share.device_id)
        shares = tuple(
            structs.replace(one, exclusive=True)
            if one.device_type == GPU and one.device_id in alone
            else one
            for one in found.shares
        )
        return replace(found, shares=shares)


def _is_less(share: DeviceShare, asked: CardsAsked) -> bool:
    if share.core_percent < asked.core_percent or share.memory_bytes < asked.memory_bytes:
        return True
    # a part by ratio is rounded down twice: to bytes of its card, and to percent of that again
    ratio = asked.memory_ratio_percent - (0 if asked.all_memory else 1)
    return share.memory_ratio_percent < ratio


def _of(asking: Asking, result: ClaimResult) -> CardsAsked | None:
    name = result.request.partition("/")[0]
    return next((one for one in asking.requests if one.name == name), None)
