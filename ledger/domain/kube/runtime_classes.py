"""What the API server's admission makes of a Pod by the RuntimeClass that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledger.domain.annotations.wire import a_list, a_quantity, an_object
from ledger.domain.errors import FieldError
from ledger.domain.kube.object_fields import named, spec_of, text_at, text_map
from ledger.domain.request.rules import forbidden


def with_runtime_class(
    pod: Mapping[str, Any], classes: Mapping[str, Mapping[str, Any]]
) -> tuple[Mapping[str, Any], tuple[FieldError, ...]]:
    """
    Return a Pod with what its RuntimeClass gives, and what the API server refuses about that.

    Rule: Kubernetes, Admission Controllers, RuntimeClass. One that is not known gives nothing, and
    nothing is refused because of it.

    Raises:
        InputError: what is needed of Pod or class can't be read.
    """
    spec = spec_of(pod)
    name, own = text_at(spec, "runtimeClassName", "spec"), spec.get("overhead")
    if name not in classes and (name or not own):
        return pod, ()
    found, at = classes.get(name, {}), f"RuntimeClass[{name}]"
    overhead = an_object(found.get("overhead"), f"{at}.overhead")
    scheduling = an_object(found.get("scheduling"), f"{at}.scheduling")
    fixed, errors = _amounts(overhead.get("podFixed"), f"{at}.overhead.podFixed"), []
    if _amounts(own, "spec.overhead") not in ({}, fixed):
        shown = ", ".join(f"{key}: {amount}" for key, amount in fixed.items()) or "none"
        errors.append(forbidden("spec.overhead", f"not what the runtime class gives: {shown}"))
    selector = text_map(spec.get("nodeSelector"), "spec.nodeSelector")
    given = text_map(scheduling.get("nodeSelector"), f"{at}.scheduling.nodeSelector")
    for key, value in given.items():
        if selector.get(key, value) != value:
            fact = f"{selector[key]} is not what the runtime class gives: {value}"
            errors.append(forbidden(f"spec.nodeSelector[{key}]", fact))
    tolerations = a_list(spec.get("tolerations"), "spec.tolerations")
    more = a_list(scheduling.get("tolerations"), f"{at}.scheduling.tolerations")
    filled = {
        "overhead": overhead.get("podFixed") or own,
        "nodeSelector": {**given, **selector},
        "tolerations": [*tolerations, *(one for one in more if one not in tolerations)],
    }
    return {**pod, "spec": spec | {k: v for k, v in filled.items() if v}}, tuple(errors)


def _amounts(value: object, path: str) -> dict[str, Any]:
    return {name: a_quantity(item, f"{path}[{name}]") for name, item in named(value, path).items()}
