"""What a Pod asks for, examined to the end: what can't be read is said and then left aside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ledger.domain.annotations.qos import read_qos_class
from ledger.domain.annotations.wire import annotation_path
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.pod_spec import PodSpec
from ledger.domain.request.cpus import OWN_CPUS
from ledger.domain.request.normalise import examine_spec, read_asked
from ledger.domain.request.requests import PodRequest
from ledger.domain.request.rule_names import Rule
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.answers import unreadable
from webhook.decide.review import readable_pod
from webhook.decide.validating.findings import Json

_PREFIX: Final = "metadata.annotations["


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """
    A Pod's request, and every way it breaks the rules.

    Attributes:
        spec: the Pod as read, None when not even that can be done.
        request: what it comes to; with violations it has no devices, see `examine_pod`.
    """

    spec: PodSpec | None
    request: PodRequest | None
    errors: tuple[FieldError, ...] = ()

    @property
    def asks_devices(self) -> bool:
        """Tell whether any container names an amount of a device."""
        return self.spec is not None and any(
            quantity and name in self.spec.vocabulary.device_names
            for container in self.spec.containers
            for name, quantity in container.requests.items()
        )

    @property
    def asks_own_cpus(self) -> bool:
        """Tell whether the Pod asks for CPUs of its own, rightly or not."""
        return self.spec is not None and read_qos_class(self.spec.labels) in OWN_CPUS


def examine(pod: Json, vocabulary: Vocabulary, namespace: str = "") -> Examined:
    """
    Return a Pod's request with all its violations at once.

    Rule: Koordinator contract 2: an annotation that does not parse is an error, not "absent"; the
    rest of the Pod is judged without it. A quantity or a type that can't be read ends the reading,
    since the API server lets none through.

    Args:
        namespace: the request's, for a Pod that does not carry its own yet.
    """
    errors: list[FieldError] = []
    spec = None
    try:
        spec = read_asked(readable_pod(pod, namespace), vocabulary)
        legible = spec
        while True:
            try:
                request, found = examine_spec(legible)
            except InputError as error:
                key = _annotation_of(error.field, legible.annotations)
                if not key:
                    raise
                errors.append(_syntax(error))
                legible = _without(legible, key)
            else:
                return Examined(spec=spec, request=request, errors=(*errors, *found))
    except InputError as error:
        return Examined(spec=spec, request=None, errors=(*errors, _syntax(error)))


def _without(spec: PodSpec, key: str) -> PodSpec:
    left = {name: text for name, text in spec.annotations.items() if name != key}
    return replace(spec, annotations=left)


def _syntax(error: InputError) -> FieldError:
    return replace(unreadable(error), rule=str(Rule.ANNOTATION_SYNTAX))


def _annotation_of(field: str, annotations: Mapping[str, str]) -> str:
    if not field.startswith(_PREFIX):
        return ""
    inside = (key for key in annotations if field.startswith(annotation_path(key)))
    return max(inside, key=len, default="")
