"""A Pod taken apart for changing: every step copies what it changes and shares the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ledger.domain.annotations.tenure import container_index
from ledger.domain.annotations.wire import a_list, an_object
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import annotations_of, labels_of, metadata_of, spec_of

Pod = Mapping[str, object]
Container = Mapping[str, object]
Change = Callable[[Container, str], Container]
"""A container and its place in the spec (`2`, `init-0`) to the container as it shall be."""

_LISTS: Final = ("initContainers", "containers")


def with_labels(pod: Pod, labels: Mapping[str, str]) -> Pod:
    """Return the Pod with these labels beside its own, whose keys they take over."""
    return _with_texts(pod, "labels", labels_of(pod), labels)


def with_annotations(pod: Pod, annotations: Mapping[str, str]) -> Pod:
    """Return the Pod with these annotations beside its own, whose keys they take over."""
    return _with_texts(pod, "annotations", annotations_of(pod), annotations)


def without_annotation(pod: Pod, key: str) -> Pod:
    """Return the Pod without an annotation."""
    annotations = annotations_of(pod)
    if key not in annotations:
        return pod
    left = {name: text for name, text in annotations.items() if name != key}
    return {**pod, "metadata": {**metadata_of(pod), "annotations": left}}


def with_spec(pod: Pod, fields: dict[str, object]) -> Pod:
    """Return the Pod with these fields of its spec."""
    return {**pod, "spec": spec_of(pod) | fields} if fields else pod


def with_containers(pod: Pod, change: Change) -> Pod:
    """Return the Pod with each container changed. Raises InputError: no list, or no object."""
    spec = spec_of(pod)
    fields: dict[str, object] = {}
    for key in _LISTS:
        before = a_list(spec.get(key), f"spec.{key}")
        after = [_changed(item, key, number, change) for number, item in enumerate(before)]
        if any(new is not old for new, old in zip(after, before, strict=True)):
            fields[key] = after
    return with_spec(pod, fields)


def _changed(item: object, key: str, number: int, change: Change) -> object:
    path = f"spec.{key}[{number}]"
    place = container_index(number, init=key == "initContainers")
    try:
        return change(an_object(item, ""), place)
    except InputError as error:
        raise error.within(path) from error


def _with_texts(pod: Pod, key: str, before: Mapping[str, str], texts: Mapping[str, str]) -> Pod:
    if all(before.get(name) == text for name, text in texts.items()):
        return pod
    return {**pod, "metadata": {**metadata_of(pod), key: {**before, **texts}}}
