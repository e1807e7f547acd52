"""A Pod as its user wrote it, out of the Pod as admission left it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ledger.domain.annotations.tenure import OriginalContainer, container_index, read_original
from ledger.domain.annotations.wire import a_list, a_quantity, an_object
from ledger.domain.dialects.registry import rewritten
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import annotations_of, metadata_of, spec_of
from ledger.domain.resources import ANNOTATION_TENURE_ORIGINAL, SLOT
from ledger.domain.vocabulary import Vocabulary

_SECTIONS: Final = ("requests", "limits")
_LISTS: Final = ("initContainers", "containers")

Change = Callable[[dict[str, object], str], Mapping[str, object]]
"""A container and its place in the spec (`2`, `init-0`) to the container as it shall be."""


def as_written(pod: Mapping[str, object], vocabulary: Vocabulary) -> Mapping[str, object]:
    """
    Return the Pod with the device resources that its user wrote, where admission replaced them.

    Rule: design section 3, decode(mutate(p)) == decode(p). A container whose recorded original
    would not have become what it asks for now is taken as it is: the annotation grants nothing.

    Raises:
        InputError: the annotation does not parse, or a container is no object.
    """
    annotations = an_object(metadata_of(pod).get("annotations"), "metadata.annotations")
    if ANNOTATION_TENURE_ORIGINAL not in annotations:
        return pod
    original = read_original(annotations_of(pod)).containers
    return with_containers(pod, lambda item, _: _restored(item, original, vocabulary))


def with_containers(pod: Mapping[str, object], change: Change) -> Mapping[str, object]:
    """Return the Pod with each container changed. Raises InputError: no list, or no object."""
    spec = spec_of(pod)
    fields: dict[str, object] = {}
    for key in _LISTS:
        before = a_list(spec.get(key), f"spec.{key}")
        after = [_changed(item, key, number, change) for number, item in enumerate(before)]
        if any(new is not old for new, old in zip(after, before, strict=True)):
            fields[key] = after
    return {**pod, "spec": spec | fields} if fields else pod


def _changed(item: object, key: str, number: int, change: Change) -> object:
    path = f"spec.{key}[{number}]"
    place = container_index(number, init=key == "initContainers")
    try:
        return change(an_object(item, ""), place)
    except InputError as error:
        raise error.within(path) from error


def device_units(resources: Mapping[str, object], vocabulary: Vocabulary) -> dict[str, int]:
    """
    Return a container's device amounts in whole units, under released names, without zeros.

    Raises:
        InputError: a wrong type, a bad or negative quantity.
    """
    limits, requests = (an_object(resources.get(key), key) for key in ("limits", "requests"))
    amounts = {
        key: value
        for key, value in {**limits, **requests}.items()
        if key in vocabulary.device_names
    }
    units = {
        name: a_quantity(value, name).ceil()
        for name, value in vocabulary.canonical_resources(amounts).items()
    }
    return {name: amount for name, amount in units.items() if amount}


def stored_names(pod: Mapping[str, object], vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return the names of devices that a Pod asks for as it is, and of our slot; sorted."""
    names = {*vocabulary.device_names, SLOT}
    spec = spec_of(pod)
    containers = [
        an_object(one, key) for key in _LISTS for one in a_list(spec.get(key), f"spec.{key}")
    ]
    resources = [an_object(one.get("resources"), "resources") for one in containers]
    amounts = [an_object(one.get(key), key) for one in resources for key in _SECTIONS]
    asked = {name for some in amounts for name, value in some.items() if a_quantity(value, name)}
    return tuple(sorted(names & asked))


def is_original_of(
    original: OriginalContainer, container: Mapping[str, object], vocabulary: Vocabulary
) -> bool:
    """Tell whether a container asks for what admission makes of its recorded original."""
    resources = container.get("resources")
    if not isinstance(resources, dict):
        return False
    try:
        before = device_units(
            {"requests": original.requests, "limits": original.limits}, vocabulary
        )
        now = device_units(resources, vocabulary)
    except InputError:
        return False
    return now in (before, rewritten(before))


def _restored(
    item: dict[str, Any], originals: Mapping[str, OriginalContainer], vocabulary: Vocabulary
) -> dict[str, Any]:
    """Return one container with its original resources."""
    name = item.get("name")
    original = originals.get(name) if isinstance(name, str) else None
    if original is None or not is_original_of(original, item, vocabulary):
        return item
    resources = item["resources"]
    kept = {
        section: {
            key: value
            for key, value in an_object(resources.get(section), section).items()
            if key not in vocabulary.device_names
        }
        for section in _SECTIONS
    }
    restored = {
        "requests": {**kept["requests"], **original.requests},
        "limits": {**kept["limits"], **original.limits},
    }
    return {**item, "resources": {**resources, **restored}}
