"""
Which whole devices of one node claims get, where a simulation stands for kube-scheduler.

Rule: Kubernetes' structured allocator: first fit, by drivers, pools, slices and devices in order,
under constraints; what a card has left is the ledger's own word (`scheduler/gate/room`). Selectors
are evaluated as far as they are a chain of plain comparisons, joined by `&&`:

    device.driver == "gpu.nvidia.com"
    device.attributes["gpu.nvidia.com"].productName == "H100"     (also !=, numbers, true, false)
    device.attributes["gpu.nvidia.com"].healthy                   (a truth)
    device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Struct

from ledger.domain.annotations.wire import a_quantity, an_object
from ledger.domain.dialects.dra.accounts import NodeAccounts
from ledger.domain.dialects.dra.objects import Taint
from ledger.domain.dialects.dra.shares import Shares, shares_of
from ledger.domain.errors import InputError
from ledger.domain.log.events import ClaimResult
from ledger.domain.log.state import NodeState
from ledger.domain.request.rules import NOT_DECIDED
from scheduler.gate.exchange import Device, Results
from scheduler.gate.room import no_room

STEPS_MAX: Final = 20_000
RESULTS_MAX: Final = 32
"""The API's limit for a claim."""
NO_DEVICES: Final = "cannot allocate all claims"
"""kube-scheduler's words."""
FAILS: Final = f"{NO_DEVICES}: a selector fails on a device"
TOO_MANY: Final = f"{NO_DEVICES}: more than {RESULTS_MAX} devices in one claim"
TOO_LONG: Final = f"{NO_DEVICES}: the search took too long"


class Toleration(Struct, frozen=True, kw_only=True):
    """Which taints do not count."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """
    One device of a node.

    Attributes:
        taints: those that keep claims off which don't tolerate them.
        beyond: why it is not given here; empty for a card or a part of one, given whole.
    """

    device: Device
    asked: Asked
    taints: tuple[Taint, ...] = ()
    beyond: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAsk:
    """So many devices that all these expressions select; a toleration is what it tolerates."""

    request: str
    count: int
    selectors: tuple[str, ...]
    tolerations: tuple[Toleration, ...] = ()

    def tolerates(self, taint: Taint) -> bool:
        """Tell whether one toleration does. Rule: resource.k8s.io, DeviceToleration."""
        return any(
            one.key in {"", taint.key}
            and one.effect in {"", taint.effect}
            and (one.operator == "Exists" or one.value == taint.value)
            for one in self.tolerations
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Devices of these requests (none = all) have one attribute alike, or all different."""

    attribute: str
    requests: frozenset[str]
    distinct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAsk:
    """A claim that has nothing yet."""

    uid: str
    namespace: str
    name: str
    requests: tuple[DeviceAsk, ...]
    constraints: tuple[Constraint, ...] = ()

    @property
    def full_name(self) -> str:
        """Return namespace and name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One device for each of the claims' requests, by the claim's UID."""

    results: Mapping[str, Results]


def allocate(
    claims: Sequence[ClaimAsk], offers: Sequence[Offer], node: NodeState, accounts: NodeAccounts
) -> Given | str:
    """
    Return the first devices that fit all claims together, or why there are none.

    Args:
        offers: in the order in which they are tried.
        node: with all that is held of it.
    """
    search = _Search(offers, node, accounts)
    for claim in claims:
        if sum(ask.count for ask in claim.requests) > RESULTS_MAX:
            return TOO_MANY
        for ask in claim.requests:
            found = search.candidates(ask)
            if isinstance(found, str):
                return found
            search.slots += [_Slot(claim, ask.request, found, n > 0) for n in range(ask.count)]
    if search.fill(0, -1):
        given: dict[str, list[ClaimResult]] = {claim.uid: [] for claim in claims}
        for slot, result in zip(search.slots, search.results, strict=True):
            given[slot.claim.uid].append(result)
        return Given(results={uid: tuple(some) for uid, some in given.items()})
    if search.steps > STEPS_MAX:
        return TOO_LONG
    beyond = dict.fromkeys(offers[place].beyond for place in sorted(search.beyond))
    return f"{NO_DEVICES}: {NOT_DECIDED}{', '.join(beyond)}" if beyond else NO_DEVICES


@dataclass(frozen=True, slots=True)
class _Slot:
    """One device to be found; one that `follows` comes behind the device of the slot before."""

    claim: ClaimAsk
    request: str
    among: tuple[int, ...]
    follows: bool


@dataclass(slots=True)
class _Search:
    offers: Sequence[Offer]
    node: NodeState
    accounts: NodeAccounts
    slots: list[_Slot] = field(default_factory=list)
    results: list[ClaimResult] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    steps: int = 0
    beyond: set[int] = field(default_factory=set)

    def candidates(self, ask: DeviceAsk) -> tuple[int, ...] | str:
        """Return the places of the devices that a request selects."""
        found = []
        for place, offer in enumerate(self.offers):
            said = [matches(each, offer.asked) for each in ask.selectors]
            if False in said:
                continue
            if None in said:
                return FAILS
            if offer.beyond:
                self.beyond.add(place)
            elif all(map(ask.tolerates, offer.taints)):
                found.append(place)
        return tuple(found)

    def fill(self, number: int, before: int) -> bool:
        """Find devices for the slots from one on; `before` is the place of the last that was."""
        if number == len(self.slots):
            return True
        slot = self.slots[number]
        for place in slot.among:
            if place in self.chosen or (slot.follows and place < before):
                continue
            self.steps += 1
            if self.steps > STEPS_MAX:
                return False
            driver, pool, name = self.offers[place].device
            self.results.append(
                ClaimResult(request=slot.request, driver=driver, pool=pool, device=name)
            )
            self.chosen.append(place)
            if self._fits(slot.claim) and self.fill(number + 1, place):
                return True
            self.results.pop()
            self.chosen.pop()
        return False

    def _fits(self, claim: ClaimAsk) -> bool:
        found = shares_of(self.results, self.accounts)
        if not isinstance(found, Shares) or no_room(self.node, found.shares) is not None:
            return False
        mine = [
            (slot.request, self.offers[place].asked.attributes)
            for slot, place in zip(self.slots, self.chosen, strict=False)
            if slot.claim is claim
        ]
        for rule in claim.constraints:
            said = [
                attributes.get(rule.attribute)
                for request, attributes in mine
                if not rule.requests or request in rule.requests
            ]
            kinds = {(type(each), each) for each in said}
            if None in said or len(kinds) != (len(said) if rule.distinct else min(1, len(said))):
                return False
        return True


class Version(str):
    """A semantic version, which CEL compares with no text."""

    __slots__ = ()


Said = str | int | bool

_TEXT: Final = r"(?:\"(?P<{0}>[^\"\\]*)\"|'(?P<{0}s>[^'\\]*)')"
_LITERAL: Final = rf"(?:{_TEXT.format('text')}|(?P<number>-?[0-9]+)|(?P<truth>true|false))"
_OF: Final = (
    rf"device\.(?P<of>attributes|capacity)\[{_TEXT.format('domain')}\]\.(?P<name>[A-Za-z_]\w*)"
)
_DRIVER: Final = re.compile(rf"device\.driver\s*==\s*{_TEXT.format('text')}")
_ATTRIBUTE: Final = re.compile(rf"{_OF}(?:\s*(?P<how>==|!=)\s*{_LITERAL})?")
_AMOUNT: Final = re.compile(
    rf"{_OF}\.compareTo\(\s*quantity\(\s*{_TEXT.format('text')}\s*\)\s*\)"
    r"\s*(?P<how>==|!=|>=|<=|>|<)\s*(?P<than>-?[0-9]+)"
)
_HOW: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class BeyondError(Exception):
    """An expression is more than is evaluated here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """
    A device as selectors see it.

    Attributes:
        attributes, capacity: by qualified name; a name without a domain is of the driver's.
    """

    driver: str
    attributes: Mapping[str, Said]
    capacity: Mapping[str, int]

    @classmethod
    def read(cls, driver: str, body: Mapping[str, object]) -> Asked:
        """Return a device of a ResourceSlice; what can't be read is an InputError."""
        capacity = an_object(body.get("capacity"), "capacity")
        attributes = an_object(body.get("attributes"), "attributes")
        return cls(
            driver=driver,
            attributes={
                _qualified(name, driver): Version(value) if kind == "version" else value
                for name, item in attributes.items()
                for kind, value in an_object(item, name).items()
                if isinstance(value, Said)
            },
            capacity={
                _qualified(name, driver): a_quantity(an_object(item, name).get("value"), name).nanos
                for name, item in capacity.items()
            },
        )


def _qualified(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def matches(expression: str, device: Asked) -> bool | None:
    """
    Tell whether a device is selected; None where the expression fails on it, as in CEL.

    What is false beside something that fails is false.

    Raises:
        BeyondError: the expression is more than is evaluated here, whatever the device.
    """
    found = [_atom(each.strip(), device) for each in expression.split("&&")]
    if False in found:
        return False
    return None if None in found else True


def _atom(text: str, device: Asked) -> bool | None:
    if match := _DRIVER.fullmatch(text):
        return device.driver == _text(match, "text")
    if match := _AMOUNT.fullmatch(text):
        return _compared(match, device)
    match = _ATTRIBUTE.fullmatch(text)
    if match is None or match["of"] != "attributes":
        raise BeyondError(text)
    said = device.attributes.get(f"{_text(match, 'domain')}/{match['name']}")
    if match["how"] is None:
        return said if isinstance(said, bool) else None
    wanted: Said = _text(match, "text")
    if match["number"] is not None:
        wanted = int(match["number"])
    elif match["truth"] is not None:
        wanted = match["truth"] == "true"
    # of two kinds CEL has no comparison
    return _HOW[match["how"]](said, wanted) if type(said) is type(wanted) else None


def _compared(match: re.Match[str], device: Asked) -> bool | None:
    if match["of"] != "capacity":
        raise BeyondError(match[0])
    there = device.capacity.get(f"{_text(match, 'domain')}/{match['name']}")
    try:
        wanted = a_quantity(_text(match, "text"), "quantity").nanos
    except InputError:
        raise BeyondError(match[0]) from None
    if there is None:
        return None
    return _HOW[match["how"]]((there > wanted) - (there < wanted), int(match["than"]))


def _text(match: re.Match[str], name: str) -> str:
    found: str | None = match[name]
    other: str | None = match[f"{name}s"]
    return found if found is not None else other or ""
