"""The answer of every dialect: demands on one device type, or what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ledger.domain.dialects.names import REFUSED_RESOURCES
from ledger.domain.errors import FieldError
from ledger.domain.kube.pod_spec import PENDING, ContainerSpec, PodSpec
from ledger.domain.request.requests import DeviceDemand
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import check_equal_limits, forbidden, of_rule, under, unsupported
from ledger.domain.resources import MIG_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRequest:
    """
    What a Pod asks of one device type.

    Attributes:
        demands: empty when there are errors.
        counts: container place -> number of devices it uses.
    """

    demands: tuple[DeviceDemand, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    errors: tuple[FieldError, ...] = ()


NOTHING = TypeRequest()


def check_device_resources(spec: PodSpec) -> Iterator[FieldError]:
    """
    Yield what every dialect forbids: requests that differ from limits, devices as overhead.

    Rule: Koordinator contract 1.1, ours; the API server demands the same of extended resources.
    """
    devices = spec.vocabulary.device_names
    for container in spec.containers:
        for name in container.limits:
            if name in devices:
                yield from under(
                    Rule.REQUESTS_EQUAL_LIMITS,
                    check_equal_limits(
                        container.field(name),
                        container.written.get(name, name),
                        container.requests.get(name),
                        container.limits[name],
                    ),
                )
    yield from _check_overhead(spec)


@of_rule(Rule.DEVICE_OVERHEAD)
def _check_overhead(spec: PodSpec) -> Iterator[FieldError]:
    for name in spec.overhead:
        if name in spec.vocabulary.device_names:
            yield forbidden(f"spec.overhead[{name}]", "a device can't be overhead")


def check_known_words(spec: PodSpec, *, own_cpus: bool) -> Iterator[FieldError]:
    """
    Yield the words of dialects that are not built, in a Pod that asks for something of ours.

    Rule: ours (DIVERGENCES.md). HAMi's say what part of a card is meant: without them a share would
    become a whole card. A MIG instance would be hidden from its container, as cards are that the
    Pod does not hold. A Pod that has a node is what it is.
    """
    names = spec.vocabulary.device_names
    devices = own_cpus or any(
        quantity and name in names
        for container in spec.containers
        for name, quantity in container.requests.items()
    )
    for container in spec.containers if devices and spec.stage == PENDING else ():
        for name, quantity in container.requests.items():
            if quantity and name in REFUSED_RESOURCES:
                yield unsupported(container.field(name), REFUSED_RESOURCES[name])
            elif quantity and name.startswith(MIG_PREFIX):
                what = "a MIG instance in a pod with devices or CPUs that we give"
                yield unsupported(container.field(name), what)


def asking(spec: PodSpec, names: Iterable[str]) -> list[tuple[ContainerSpec, dict[str, int]]]:
    """Return containers that name any of these, in starting order, in whole units, zeros too."""
    wanted = frozenset(names)
    result = []
    for container in spec.containers:
        amounts = {
            name: quantity.ceil() for name, quantity in container.requests.items() if name in wanted
        }
        if amounts:
            result.append((container, amounts))
    return result


def first_fields(asks: Iterable[tuple[ContainerSpec, Mapping[str, int]]]) -> dict[str, str]:
    """Return released name -> field path in the first container that asks for it."""
    fields: dict[str, str] = {}
    for container, amounts in asks:
        for name in amounts:
            fields.setdefault(name, container.field(name))
    return fields
