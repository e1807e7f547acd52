"""A Pod taken apart for changing: every step copies what it changes and shares the rest."""

from __future__ import annotations

from collections.abc import Mapping

from ledger.domain.kube.object_fields import annotations_of, labels_of, metadata_of, spec_of

Pod = Mapping[str, object]
Container = Mapping[str, object]


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


def _with_texts(pod: Pod, key: str, before: Mapping[str, str], texts: Mapping[str, str]) -> Pod:
    if all(before.get(name) == text for name, text in texts.items()):
        return pod
    return {**pod, "metadata": {**metadata_of(pod), key: {**before, **texts}}}
