"""The priority that the API server gives a Pod before it asks any webhook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ledger.domain.annotations.qos import PriorityClass
from ledger.domain.annotations.wire import an_object
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import text_at
from ledger.domain.kube.priority_classes import PriorityClassObject
from ledger.domain.request.rules import forbidden
from tenure.manifests import Manifests

Pod = Mapping[str, Any]

_BUILT_IN: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Priorities:
    """PriorityClasses: number by name, None where the name alone means it; default class."""

    values: Mapping[str, int | None]
    default: str

    def fill(self, pod: Pod) -> Pod:
        """Return the Pod with its priority; a class that the input lacks gives 0."""
        spec = an_object(pod.get("spec"), "spec")
        name = text_at(spec, "priorityClassName", "spec") or self.default
        named = {"priorityClassName": name} if name else {}
        return {**pod, "spec": {"priority": self.values.get(name, 0), **spec, **named}}

    def check(self, filled: Pod) -> Iterator[FieldError]:
        """Yield what the API server refuses: another number than the Pod's class gives."""
        name, number = (filled["spec"].get(key) for key in ("priorityClassName", "priority"))
        computed = self.values.get(name, number) if name else 0
        if computed is not None and number != computed:
            yield forbidden("spec.priority", f"{number} is not what its class gives, {computed}")


def priorities_of(manifests: Manifests) -> Priorities:
    """
    Return what the PriorityClasses of the input give; of several defaults the least counts.

    Raises:
        InputError: one of them can't be read, with file and line.
    """
    values: dict[str, int | None] = {**dict.fromkeys(filter(None, PriorityClass)), **_BUILT_IN}
    defaults = []
    for document in manifests.documents:
        if document.kind == "PriorityClass":
            try:
                found = msgspec.convert(document.body, PriorityClassObject)
            except msgspec.ValidationError as error:
                raise document.blame(InputError(str(error))) from None
            values[document.name] = found.value
            defaults += [(found.value, document.name)] if found.global_default else []
    return Priorities(values=values, default=min(defaults, default=(0, ""))[1])
