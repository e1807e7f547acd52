"""What is legal and hardly meant: misspelt names, keys in the wrong place, odd units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Final

from ledger.domain import resources
from ledger.domain.annotations.cpu import CpuBindPolicy, CpuExclusivePolicy
from ledger.domain.annotations.guarded import is_allocation
from ledger.domain.annotations.qos import PriorityClass, QosClass
from ledger.domain.annotations.wire import annotation_path, label_path, load
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import annotations_of, labels_of, section
from ledger.domain.kube.pod_spec import PodSpec
from ledger.domain.request.near_names import meant_resource
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.dialects.registry import ADMISSIONS
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating.findings import Advice, Json, Said, say, shown
from webhook.decide.validating.words import POD_ANNOTATIONS, POD_LABELS

_KEYS: Final = tuple(sorted({*POD_LABELS, *POD_ANNOTATIONS}))
_ALIKE: Final = 0.86
_KEYS_MAX: Final = 200
"""More labels, annotations or resources than anyone writes by hand are not looked at."""
_NAME_LENGTH_MAX: Final = 128
"""A longer name is no misspelling of ours, and comparing it would cost time and memory."""

_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    resources.ANNOTATION_RESOURCE_SPEC: frozenset(
        {"requiredCPUBindPolicy", "preferredCPUBindPolicy", "preferredCPUExclusivePolicy"}
    ),
    resources.ANNOTATION_NUMA_TOPOLOGY_SPEC: frozenset(
        {"numaTopologyPolicy", "singleNUMANodeExclusive"}
    ),
    resources.ANNOTATION_DEVICE_JOINT_ALLOCATE: frozenset({"deviceTypes", "requiredScope"}),
    resources.ANNOTATION_GPU_PARTITION_SPEC: frozenset({"allocatePolicy", "ringBusBandwidth"}),
}
_HINT_FIELDS: Final = frozenset(
    {
        "selector",
        "vfSelector",
        "allocateStrategy",
        "requiredTopologyScope",
        "exclusivePolicy",
    }
)
_CLASSES: Final = {
    resources.LABEL_QOS_CLASS: tuple(str(item) for item in QosClass if item),
    resources.LABEL_PRIORITY_CLASS: tuple(str(item) for item in PriorityClass if item),
}
_EXCLUSIVE: Final = frozenset({"", "Default", *map(str, CpuExclusivePolicy)})
_BIND: Final = frozenset({str(policy) for policy in CpuBindPolicy} - {str(CpuBindPolicy.UNKNOWN)})


def near_misses(pod: Json, spec: PodSpec, settings: AdmissionSettings) -> Iterator[Said]:
    """Say everything in a Pod that is legal, means nothing, and was hardly meant to."""
    yield from _resources(spec)
    yield from _units(spec, settings.vocabulary)
    labels, annotations = labels_of(pod), annotations_of(pod)
    yield from _keys(labels, POD_LABELS, POD_ANNOTATIONS, label_path, "an annotation")
    yield from _keys(annotations, POD_ANNOTATIONS, POD_LABELS, annotation_path, "a label")
    yield from _classes(labels)
    yield from _json(annotations, settings.vocabulary)


@lru_cache(maxsize=1024)
def meant_key(key: str) -> str:
    """Return the label or annotation of ours that a key was probably meant to be, or nothing."""
    if key in _KEYS or is_allocation(key):
        return ""
    return next(iter(get_close_matches(key, _KEYS, n=1, cutoff=_ALIKE)), "")


def _resources(spec: PodSpec) -> Iterator[Said]:
    for container in spec.containers:
        for name in _first(container.original):
            meant = meant_resource(name, spec.vocabulary)
            if meant:
                text = f"{container.path}: {shown(name)} asks for nothing of ours; meant {meant}?"
                yield say(Advice.MISSPELT_NAME, text)


def _units(spec: PodSpec, vocabulary: Vocabulary) -> Iterator[Said]:
    for container in spec.containers:
        for admission in ADMISSIONS:
            yield from admission.units(container, vocabulary)


def _keys(
    texts: Mapping[str, str],
    own: frozenset[str],
    others: frozenset[str],
    path: Callable[[str], str],
    place: str,
) -> Iterator[Said]:
    for key in _first(texts):
        if key in own:
            continue
        if key in others:
            yield say(Advice.MISPLACED_KEY, f"{path(key)}: is not read here; make it {place}")
        else:
            meant = meant_key(key)
            if meant:
                yield say(Advice.MISSPELT_NAME, f"{path(key)}: means nothing; meant {meant}?")


def _classes(labels: Mapping[str, str]) -> Iterator[Said]:
    for key, values in _CLASSES.items():
        text = labels.get(key, "")
        if text and text not in values:
            known = ", ".join(values)
            said = f"{label_path(key)}: {shown(text)} counts as none; known: {known}"
            yield say(Advice.UNKNOWN_VALUE, said)


def _json(annotations: Mapping[str, str], vocabulary: Vocabulary) -> Iterator[Said]:
    """Say which fields and policies in the request annotations nobody reads."""
    for key, fields in _FIELDS.items():
        if key in annotations:
            yield from _unknown_fields(annotation_path(key), _object(annotations[key]), fields)
    yield from _hints(
        _object(annotations.get(resources.ANNOTATION_DEVICE_ALLOCATE_HINT, "")), vocabulary
    )
    joint = _object(annotations.get(resources.ANNOTATION_DEVICE_JOINT_ALLOCATE, "")).get(
        "deviceTypes"
    )
    path = f"{annotation_path(resources.ANNOTATION_DEVICE_JOINT_ALLOCATE)}.deviceTypes"
    types = joint if isinstance(joint, list) else []
    yield from _unknown_types(path, [name for name in types if isinstance(name, str)], vocabulary)
    wish = _object(annotations.get(resources.ANNOTATION_RESOURCE_SPEC, ""))
    for field, known in (
        ("requiredCPUBindPolicy", _BIND),
        ("preferredCPUBindPolicy", _BIND),
        ("preferredCPUExclusivePolicy", _EXCLUSIVE),
    ):
        value = wish.get(field)
        if isinstance(value, str) and value not in known:
            names = ", ".join(sorted(filter(None, known)))
            path = f"{annotation_path(resources.ANNOTATION_RESOURCE_SPEC)}.{field}"
            said = f"{path}: {shown(value)} counts as none; known: {names}"
            yield say(Advice.UNKNOWN_VALUE, said)


def _hints(hints: Mapping[str, object], vocabulary: Vocabulary) -> Iterator[Said]:
    """Say what in the hints of device types nobody reads (Koordinator contract 2.1)."""
    whole = annotation_path(resources.ANNOTATION_DEVICE_ALLOCATE_HINT)
    yield from _unknown_types(whole, hints, vocabulary)
    for name in vocabulary.known_types:
        hint = hints.get(name)
        if not isinstance(hint, dict):
            continue
        yield from _unknown_fields(f"{whole}.{name}", hint, _HINT_FIELDS)
        if name != resources.TYPE_GPU and hint.get("requiredTopologyScope"):
            said = f"{whole}.{name}.requiredTopologyScope: is read for GPUs only"
            yield say(Advice.UNKNOWN_VALUE, said)


def _unknown_types(path: str, names: Iterable[str], vocabulary: Vocabulary) -> Iterator[Said]:
    known = ", ".join(vocabulary.known_types)
    for name in _first(names):
        if not vocabulary.is_known_type(name):
            said = f"{path}: {shown(name)} is no device type; known: {known}"
            yield say(Advice.UNKNOWN_VALUE, said)


def _unknown_fields(
    path: str, value: Mapping[str, object], fields: frozenset[str]
) -> Iterator[Said]:
    for name in _first(value):
        if name not in fields:
            meant = next(iter(get_close_matches(name, sorted(fields), n=1)), "")
            ask = f"; meant {meant}?" if meant else ""
            yield say(Advice.UNKNOWN_VALUE, f"{path}: field {shown(name)} is not read{ask}")


def _first(names: Iterable[str]) -> Iterator[str]:
    """Yield the names that somebody may have written by hand."""
    return (name for name in islice(names, _KEYS_MAX) if len(name) <= _NAME_LENGTH_MAX)


def _object(text: str) -> dict[str, object]:
    """Return the JSON object of an annotation; what is none has been refused elsewhere."""
    try:
        return section(load(text, "") if text else {})
    except InputError:
        return {}
