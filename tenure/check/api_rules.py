"""What the API server itself does between our two webhooks: defaults, and its rules for amounts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledger.domain.annotations.wire import a_list, an_object
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import named, spec_of, text_at
from ledger.domain.kube.original import with_containers
from ledger.domain.kube.pod_spec import APP, INIT, SIDECAR, PriorityClassObject, pod_total
from ledger.domain.quantity import ZERO, Quantity, QuantityStyle, quantity_of
from ledger.domain.request.rules import check_equal_limits, forbidden, invalid, required
from ledger.domain.resources import CPU, MEMORY, is_extended
from webhook.decide.mutating.parts import Container

Pod = Mapping[str, Any]
Amounts = Mapping[str, Quantity]

_LISTS: Final = ("initContainers", "containers")
_HUGEPAGES: Final = "hugepages-"
_WHOLE: Final = "spec.resources"
_OF_WHOLE: Final = (CPU, MEMORY)
_STORAGE: Final = "ephemeral-storage"
_NO_LIMIT: Final = "Limit must be set for non overcommitable resources"


@dataclass(frozen=True, slots=True, kw_only=True)
class Priorities:
    """
    What PriorityClasses give, by their names, and the class of Pods that name none.

    Attributes:
        values: numbers, None where a name alone says it.
        policies: whether their Pods preempt; of classes that the input lacks nothing.
    """

    values: Mapping[str, int | None]
    policies: Mapping[str, str]
    default: str

    def fill(self, pod: Pod) -> Pod:
        """Return the Pod with its priority; a class that the input lacks gives 0."""
        spec = spec_of(pod)
        name = text_at(spec, "priorityClassName", "spec") or self.default
        given = spec.get("priority")
        filled = {"priority": self.values.get(name, 0) if given is None else given}
        filled |= {"priorityClassName": name} if name else {}
        return {**pod, "spec": spec | filled}

    def check(self, filled: Pod) -> Iterator[FieldError]:
        """Yield what the API server refuses: another number or policy than the class gives."""
        name, number = (filled["spec"].get(key) for key in ("priorityClassName", "priority"))
        computed = self.values.get(name, number) if name else 0
        if computed is not None and number != computed:
            yield forbidden("spec.priority", f"{number} is not what its class gives, {computed}")
        policy = filled["spec"].get("preemptionPolicy")
        given = self.policies.get(name, policy) if name else PriorityClassObject.PREEMPTS
        if policy is not None and policy != given:
            fact = f"{policy} is not what its class gives, {given}"
            yield forbidden("spec.preemptionPolicy", fact)


def with_api_defaults(pod: Pod) -> Pod:
    """
    Return a Pod whose requests are filled in: containers' from their limits, then the Pod's own.

    Rule: Kubernetes API, SetDefaults_Pod.

    Raises:
        InputError: a wrong type on the way there, or a quantity that a sum needs and is none.
    """
    return _with_pod_level(with_containers(pod, _defaulted))


def check_amounts(pod: Pod, *, filled_in: Collection[str] = ()) -> Iterator[FieldError]:
    """
    Yield what the API server refuses about the resources of a Pod, after its defaults.

    Rule: cli.md, tenure check; Kubernetes API, ValidateContainerResourceRequirements and
    validatePodResources.

    Args:
        filled_in: resources whose limits are not missed: mutation, which could not read the Pod,
            would have filled them in.

    Raises:
        InputError: a quantity that does not parse: the API server could not even read the Pod.
    """
    spec = spec_of(pod)
    whole = an_object(spec.get("resources"), _WHOLE)
    most = _amounts(whole, "limits", _WHOLE)
    yield from _check_resources(whole, _WHOLE, ())
    for section in ("limits", "requests"):
        totals = _container_totals(spec, section)
        for name, quantity in _amounts(whole, section, _WHOLE).items():
            field, total = f"{_WHOLE}.{section}[{name}]", totals.get(name, ZERO)
            if not _is_of_whole(name):
                yield invalid(field, name, "no resource of a whole pod")
            elif quantity < total and (section == "requests" or name not in _OF_WHOLE):
                fact = f"must be greater than or equal to containers' {section} of {total}"
                yield invalid(field, str(quantity), fact)
    for kind, path, resources in _resources(spec):
        yield from _check_resources(resources, path, filled_in)
        for name, limit in _amounts(resources, "limits", path).items():
            if kind == APP and limit > most.get(name, limit):
                fact = f"must be less than or equal to pod limits of {most[name]}"
                yield invalid(f"{path}.limits[{name}]", str(limit), fact)


def _check_resources(
    resources: Mapping[str, object], path: str, filled_in: Collection[str]
) -> Iterator[FieldError]:
    limits = _amounts(resources, "limits", path)
    requests = _amounts(resources, "requests", path)
    for section, amounts in (("limits", limits), ("requests", requests)):
        for name, quantity in amounts.items():
            yield from _check_amount(f"{path}.{section}[{name}]", name, quantity)
    for name, quantity in requests.items():
        field, limit = f"{path}.requests[{name}]", limits.get(name)
        fixed = is_extended(name) or name.startswith(_HUGEPAGES)
        if limit is not None and fixed:
            yield from check_equal_limits(field, name, quantity, limit)
        elif limit is not None and quantity > limit:
            fact = f"must be less than or equal to {name} limit of {limit}"
            yield invalid(field, str(quantity), fact)
        elif limit is None and fixed and name not in filled_in:
            yield required(f"{path}.limits[{name}]", _NO_LIMIT)
    names = {*limits, *requests}
    if not names & {CPU, MEMORY} and any(name.startswith(_HUGEPAGES) for name in names):
        yield forbidden(path, "huge pages require cpu or memory")


def _check_amount(field: str, name: str, quantity: Quantity) -> Iterator[FieldError]:
    if quantity < ZERO:
        yield invalid(field, str(quantity), "must be greater than or equal to 0")
    elif is_extended(name) and not quantity.is_whole():
        yield invalid(field, str(quantity), "must be an integer")
    elif "/" not in name and name != _STORAGE and not _is_of_whole(name):
        yield invalid(field, name, "must be a standard resource for containers")


def _is_of_whole(name: str) -> bool:
    """Tell whether the API server knows this resource of a Pod as a whole."""
    return name in _OF_WHOLE or name.startswith(_HUGEPAGES)


def _amounts(resources: Mapping[str, object], section: str, path: str) -> Amounts:
    items = named(resources.get(section), f"{path}.{section}")
    return {name: _amount(item, f"{path}.{section}[{name}]") for name, item in items.items()}


def _amount(value: object, field: str) -> Quantity:
    try:
        return quantity_of(value).rounded()
    except InputError as error:
        raise error.within(field) from error


def _defaulted(container: Container, _: str) -> Container:
    resources = an_object(container.get("resources"), "resources")
    limits = an_object(resources.get("limits"), "resources.limits")
    requests = an_object(resources.get("requests"), "resources.requests")
    if limits.keys() <= requests.keys():
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **requests}}}


def _with_pod_level(pod: Pod) -> Pod:
    """
    Return a Pod whose `spec.resources`, where it has any, says what its containers make of it.

    Rule: Kubernetes API, defaultHugePagePodLimits and defaultPodRequests: huge pages are limited to
    what containers are; CPU and memory request the containers' sum, and without one the limit.
    """
    spec = spec_of(pod)
    resources = an_object(spec.get("resources"), _WHOLE)
    requests, limits = (
        dict(an_object(resources.get(key), f"{_WHOLE}.{key}")) for key in ("requests", "limits")
    )
    if not requests and not limits:
        return pod
    for name, sum_of_limits in _container_totals(spec, "limits").items():
        if name.startswith(_HUGEPAGES) and name not in requests:
            limits.setdefault(name, str(sum_of_limits))
    if limits:
        sums = _container_totals(spec, "requests")
        of_containers = {str(name): str(sums[name]) for name in _OF_WHOLE if name in sums}
        levels = {key: limits[key] for key in limits if _is_of_whole(key)}
        requests = {**levels, **of_containers, **requests}
    filled = {"requests": requests, "limits": limits}
    present = {key: amounts for key, amounts in filled.items() if amounts}
    return {**pod, "spec": {**spec, "resources": {**resources, **present}}}


def _container_totals(spec: Mapping[str, object], section: str) -> dict[str, Quantity]:
    """Return what the containers' requests or limits come to, each written as the first is."""
    styles: dict[str, QuantityStyle] = {}
    parts = []
    for kind, path, resources in _resources(spec):
        amounts = _amounts(resources, section, path)
        parts.append((kind, {name: quantity.nanos for name, quantity in amounts.items()}))
        for name, quantity in amounts.items():
            styles.setdefault(name, quantity.style)
    totals = pod_total(parts)
    return {name: Quantity(nanos=nanos, style=styles[name]) for name, nanos in totals.items()}


def _resources(spec: Mapping[str, object]) -> Iterator[tuple[str, str, dict[str, object]]]:
    for key in _LISTS:
        for number, item in enumerate(a_list(spec.get(key), f"spec.{key}")):
            path = f"spec.{key}[{number}]"
            container = an_object(item, path)
            restarts = container.get("restartPolicy") == "Always"
            kind = APP if key == "containers" else SIDECAR if restarts else INIT
            path = f"{path}.resources"
            yield kind, path, an_object(container.get("resources"), path)
