"""What a container sees is decided by the scheduler, not by its author: variables and slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ledger.domain.annotations.tenure import container_index, visible_key
from ledger.domain.annotations.wire import a_list, an_object, annotation_path
from ledger.domain.errors import FieldError
from ledger.domain.kube.object_fields import annotations_of, found_in, spec_of, text_at
from ledger.domain.kube.pod_spec import PodSpec
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, invalid, of_rule
from ledger.domain.resources import DOMAIN_CDI, ENV_NVIDIA_VISIBLE, NVIDIA_DEVICE_MOUNTS, SLOT
from webhook.decide.validating.findings import Advice, Json, Said, say, shown

NO_DEVICES: Final = ("void", "none")
_MOUNTS: Final = NVIDIA_DEVICE_MOUNTS.rpartition("/")[2]


@of_rule(Rule.VISIBLE_DEVICES)
def check_visible(pod: Json) -> Iterator[FieldError]:
    """
    Yield every container of a Pod with GPUs that says by hand which ones it sees.

    Rule: design section 5.1 and 8. Taken are `void`, `none`, and the reference to the container's
    own annotation, which exists only once the scheduler has bound the Pod.
    """
    for path, place, container in _containers(pod):
        own = f"metadata.annotations['{visible_key(place)}']"
        for field, entry in _entries(path, container):
            if not _is_none(entry) and _field_path(entry) != own:
                fact = "the scheduler decides what a container sees; nearest legal value void"
                yield invalid(field, _text(entry), fact)
        yield from _mounted(path, container)
    yield from check_cdi(pod, None)


@of_rule(Rule.VISIBLE_DEVICES)
def check_ephemeral(pod: Json, old: Json | None) -> Iterator[FieldError]:
    """
    Yield every new ephemeral container of a managed Pod that would see devices.

    Rule: design section 5.1: ephemeral containers hold nothing.
    """
    names = {text_at(item, "name", path) for path, item in _ephemeral(old)}
    for path, container in _ephemeral(pod):
        if text_at(container, "name", path) in names:
            continue
        for field, entry in _entries(path, container):
            if not _is_none(entry):
                fact = "an ephemeral container holds no devices; nearest legal value void"
                yield invalid(field, _text(entry), fact)
        yield from _mounted(path, container)


@of_rule(Rule.VISIBLE_DEVICES)
def check_cdi(pod: Json, old: Json | None) -> Iterator[FieldError]:
    """
    Yield every annotation that names CDI devices, and did not say so before.

    Rule: design section 8: CDI names of a Pod's devices are given by our device plugin.
    """
    before = annotations_of(old)
    for key, value in annotations_of(pod).items():
        if DOMAIN_CDI in key and before.get(key) != value:
            fact = "the scheduler decides what a container sees; leave the annotation out"
            yield forbidden(annotation_path(key), fact)


@of_rule(Rule.SLOT_BY_HAND)
def check_slots(spec: PodSpec) -> Iterator[FieldError]:
    """
    Yield every container that takes slots which are not its own.

    Rule: design section 8: one opaque slot for each container with devices, given by our webhook.
    A Pod that took more would leave the next one's container without.
    """
    devices = spec.vocabulary.device_names
    for container in spec.containers:
        slots = container.units(SLOT)
        holds = any(q and name in devices for name, q in container.requests.items())
        if slots > 1 or (slots and not holds):
            fact = "each container with devices is given one slot, others none"
            yield invalid(container.field(SLOT), slots, f"{fact}; nearest legal value {int(holds)}")


def unasked(pod: Json) -> Iterator[Said]:
    """Say which containers of a Pod without GPUs would see some all the same."""
    for path, _, container in _containers(pod):
        for field, entry in _entries(path, container):
            if not _is_none(entry):
                yield say(
                    Advice.UNASKED_DEVICES,
                    f"{field}: {ENV_NVIDIA_VISIBLE} is {shown(_text(entry))} though the pod "
                    "asks for no GPU: it may see cards that others hold",
                )
        for error in _mounted(path, container):
            text = f"{error.field}: it may see cards that others hold though it asks for no GPU"
            yield say(Advice.UNASKED_DEVICES, text)
    for error in check_cdi(pod, None):
        text = f"{error.field}: the pod may see cards that others hold though it asks for no GPU"
        yield say(Advice.UNASKED_DEVICES, text)


def _mounted(path: str, container: Json) -> Iterator[FieldError]:
    section = f"{path}.volumeMounts"
    for number, item in enumerate(a_list(container.get("volumeMounts"), section)):
        mount = text_at(an_object(item, f"{section}[{number}]"), "mountPath", section)
        if _MOUNTS in mount:
            fact = "the scheduler decides what a container sees; leave the mount out"
            yield forbidden(f"{section}[{number}].mountPath", fact)


def _containers(pod: Json) -> Iterator[tuple[str, str, Json]]:
    """Yield (path, place, container) of every container that the Pod starts with."""
    spec = spec_of(pod)
    for section, init in (("initContainers", True), ("containers", False)):
        for number, item in enumerate(a_list(spec.get(section), f"spec.{section}")):
            path = f"spec.{section}[{number}]"
            yield path, container_index(number, init=init), an_object(item, path)


def _ephemeral(pod: Json | None) -> Iterator[tuple[str, Json]]:
    section = "spec.ephemeralContainers"
    for number, item in enumerate(a_list(spec_of(pod).get("ephemeralContainers"), section)):
        path = f"{section}[{number}]"
        yield path, an_object(item, path)


def _entries(path: str, container: Json) -> Iterator[tuple[str, Json]]:
    """Yield (field, entry) of every entry for the variable: of two the runtime takes the last."""
    for number, item in enumerate(a_list(container.get("env"), f"{path}.env")):
        entry = an_object(item, f"{path}.env[{number}]")
        if entry.get("name") == ENV_NVIDIA_VISIBLE:
            yield f"{path}.env[{number}].value{'From' if entry.get('valueFrom') else ''}", entry


def _is_none(entry: Json) -> bool:
    return entry.get("value") in NO_DEVICES and not entry.get("valueFrom")


def _field_path(entry: Json) -> object:
    return found_in(entry, "valueFrom", "fieldRef", "fieldPath")


def _text(entry: Json) -> str:
    source = entry.get("valueFrom")
    if not source:
        return str(entry.get("value") or "")
    path = _field_path(entry)
    return str(path) if path else ", ".join(source) if isinstance(source, Mapping) else "?"
