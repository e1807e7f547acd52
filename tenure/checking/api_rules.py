"""What the API server itself does between our two webhooks: defaults, and its rules for amounts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ledger.domain.annotations.wire import a_list, an_object
from ledger.domain.errors import FieldError, InputError
from ledger.domain.object_fields import named
from ledger.domain.quantity import ZERO, Quantity, quantity_of
from ledger.domain.resources import device_type_of, is_extended
from ledger.domain.rules import check_equal_limits, invalid, required

Pod = Mapping[str, Any]
Amounts = Mapping[str, Quantity]

_LISTS: Final = ("initContainers", "containers")
_NO_LIMIT: Final = "Limit must be set for non overcommitable resources"


def with_api_defaults(pod: Pod) -> Pod:
    """
    Return a Pod whose containers' requests are filled in from their limits.

    Rule: Kubernetes API, SetDefaults_Pod.

    Raises:
        InputError: a wrong type on the way there.
    """
    return _with_containers(pod, _defaulted)


def check_amounts(pod: Pod, *, unfinished: bool = False) -> Iterator[FieldError]:
    """
    Yield what the API server refuses about the resources of a Pod's containers.

    Rule: cli.md, tenure check: amounts are not negative; those of extended resources are whole,
    and requests equal limits, which must be there.

    Args:
        unfinished: mutation could not read the Pod, so limits of devices, which it fills in, are
            not missed.

    Raises:
        InputError: a quantity that does not parse: the API server could not even read the Pod.
    """
    spec = an_object(pod.get("spec"), "spec")
    for key in _LISTS:
        for number, item in enumerate(a_list(spec.get(key), f"spec.{key}")):
            path = f"spec.{key}[{number}]"
            container = an_object(item, path)
            yield from _check_container(container, f"{path}.resources", unfinished=unfinished)


def _check_container(
    container: Mapping[str, object], path: str, *, unfinished: bool
) -> Iterator[FieldError]:
    resources = an_object(container.get("resources"), path)
    limits = _amounts(resources, "limits", path)
    requests = _amounts(resources, "requests", path)
    for section, amounts in (("limits", limits), ("requests", requests)):
        for name, quantity in amounts.items():
            yield from _check_amount(f"{path}.{section}[{name}]", name, quantity)
    for name, quantity in requests.items():
        if not is_extended(name):
            continue
        if name in limits:
            field = f"{path}.requests[{name}]"
            yield from check_equal_limits(field, name, quantity, limits[name])
        elif not (unfinished and device_type_of(name)):
            yield required(f"{path}.limits[{name}]", _NO_LIMIT)


def _check_amount(field: str, name: str, quantity: Quantity) -> Iterator[FieldError]:
    if quantity < ZERO:
        yield invalid(field, str(quantity), "must be greater than or equal to 0")
    elif is_extended(name) and not quantity.is_whole():
        yield invalid(field, str(quantity), "must be an integer")


def _amounts(resources: Mapping[str, object], section: str, path: str) -> Amounts:
    items = named(resources.get(section), f"{path}.{section}")
    return {name: _amount(item, f"{path}.{section}[{name}]") for name, item in items.items()}


def _amount(value: object, field: str) -> Quantity:
    try:
        return quantity_of(value)
    except InputError as error:
        raise error.within(field) from error


def _defaulted(container: dict[str, Any]) -> dict[str, Any]:
    resources = an_object(container.get("resources"), "resources")
    limits = an_object(resources.get("limits"), "resources.limits")
    requests = an_object(resources.get("requests"), "resources.requests")
    if limits.keys() <= requests.keys():
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **requests}}}


def _with_containers(pod: Pod, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Pod:
    spec = an_object(pod.get("spec"), "spec")
    lists = {}
    for key in _LISTS:
        if key in spec:
            items = enumerate(a_list(spec[key], f"spec.{key}"))
            lists[key] = [_changed(item, f"spec.{key}[{number}]", change) for number, item in items]
    return {**pod, "spec": {**spec, **lists}}


def _changed(
    item: object, path: str, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    try:
        return change(an_object(item, ""))
    except InputError as error:
        raise error.within(path) from error
