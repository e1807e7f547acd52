"""CEL expressions over the objects of an admission request, written from our lists of names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from ledger.domain import resources
from ledger.domain.dialects.names import FOREIGN_WORDS
from ledger.domain.request.cpus import OWN_CPUS
from webhook.decide.settings import AdmissionSettings

CONTAINERS: Final = ("containers", "initContainers")
PATH: Final = "request.?subResource.orValue('')"
AFTER: Final = "object.metadata.?annotations.orValue({})"
BEFORE: Final = "(oldObject == null ? {} : oldObject.metadata.?annotations.orValue({}))"
RESOURCE_PREFIXES: Final = (
    resources.DOMAIN_KOORDINATOR,
    *(prefix for words in FOREIGN_WORDS for prefix in words.resource_prefixes),
    resources.DOMAIN_TENURE,
)
"""Every resource that starts so reaches us, so that a name that is nearly right is seen too."""
LABEL_NAMES: Final = (
    resources.LABEL_QOS_CLASS,
    resources.LABEL_PRIORITY_CLASS,
    resources.LABEL_PRIORITY,
)
LABEL_PREFIXES: Final = (
    resources.DOMAIN_GPU_GROUP,
    resources.LABEL_POD_GROUP,
    resources.DOMAIN_TENURE,
)
ANNOTATION_PREFIXES: Final = (
    resources.DOMAIN_SCHEDULING,
    resources.DOMAIN_GANG,
    resources.DOMAIN_TENURE,
    *(prefix for words in FOREIGN_WORDS for prefix in words.annotation_prefixes),
)


def text(value: str) -> str:
    """Return a CEL text literal."""
    return json.dumps(value)


def texts(values: Iterable[str]) -> str:
    """Return a CEL list of texts, sorted."""
    return f"[{', '.join(text(value) for value in sorted(set(values)))}]"


def key_matches(names: Iterable[str], prefixes: Iterable[str]) -> str:
    """Return that the key `k` is one of the names or starts with one of the prefixes."""
    parts = [f"k.startsWith({text(prefix)})" for prefix in sorted(set(prefixes))]
    names = set(names)
    if names:
        parts.insert(0, f"k in {texts(names)}")
    return f"({' || '.join(parts) or 'false'})"


def any_key(mapping: str, names: Iterable[str], prefixes: Iterable[str]) -> str:
    """Return that a map that may be absent has such a key; `mapping` is a path of fields."""
    test = key_matches(names, prefixes)
    return f"(has({mapping}) && {mapping}.exists(k, {test}))"


def beginnings(prefixes: Iterable[str]) -> list[str]:
    """Return the first letters of each prefix, in order: a search costs by what it looks for."""
    return [prefix[:6] for prefix in sorted(prefixes)]


def annotated_anew(names: Iterable[str], prefixes: Iterable[str]) -> str:
    """
    Return that annotations differ, and some have or had such a key, or a text that looks like one.

    Going through 9,000 keys takes the API server a hundred times as long as through 900.
    """
    looks = [f"t.contains({text(chr(34) + each)})" for each in beginnings(prefixes)]
    return (
        f"{AFTER} != {BEFORE} && ({texts(names)}.exists(n, n in {AFTER} || n in {BEFORE})"
        f" || ['%s'.format([[{AFTER}, {BEFORE}]])].exists(t, {' || '.join(looks)}))"
    )


def any_container(pod: str, condition: str) -> str:
    """Return that a condition on `c` holds for a container of a Pod, init containers too."""
    return f"{_lists(pod)}.exists(l, l.exists(c, {condition}))"


def each_container(pod: str, expression: str) -> str:
    """Return a list of what an expression on `c` is for each container, init containers last."""
    every = f"{_lists(pod)}.map(l, l.map(c, {expression}))"
    return f"[{every}].map(l, l[0] + l[1])[0]"


def _lists(pod: str) -> str:
    return "[" + ", ".join(f"{pod}.spec.?{field}.orValue([])" for field in CONTAINERS) + "]"


def asks(names: Iterable[str], prefixes: Iterable[str] = ()) -> str:
    """Return that the container `c` names such a resource in its requests or limits."""
    limits = any_key("c.resources.limits", names, prefixes)
    requests = any_key("c.resources.requests", names, prefixes)
    return f"(has(c.resources) && ({limits} || {requests}))"


def _some(amounts: str, names: Iterable[str], prefixes: Iterable[str]) -> str:
    """Return that a map of amounts has some of such a resource; zero asks for nothing."""
    some = f"quantity({amounts}[k]).isGreaterThan(quantity('0'))"
    return f"{amounts}.exists(k, {key_matches(names, prefixes)} && {some})"


def holds(place: str, names: Iterable[str], prefixes: Iterable[str] = ()) -> str:
    """Return that requests or limits, such as those at `c.resources`, have some of a resource."""
    amounts = f"[{place}.?limits.orValue({{}}), {place}.?requests.orValue({{}})]"
    return f"(has({place}) && {amounts}.exists(m, {_some('m', names, prefixes)}))"


def takes(pod: str, names: Iterable[str], prefixes: Iterable[str] = ()) -> str:
    """Return that a Pod asks for some of a resource, at any place where resources can stand."""
    names = {*names}
    parts = (
        any_container(pod, holds("c.resources", names, prefixes)),
        holds(f"{pod}.spec.resources", names, prefixes),
        f"(has({pod}.spec.overhead) && {_some(f'{pod}.spec.overhead', names, prefixes)})",
    )
    return f"({' || '.join(parts)})"


def has_labels(pod: str, labels: Mapping[str, str]) -> str:
    """Return that a Pod has all of these labels; none to have is what every Pod has."""
    if not labels:
        return "true"
    there = f"{pod}.metadata.labels"
    wanted = [
        f"{text(key)} in {there} && {there}[{text(key)}] == {text(value)}"
        for key, value in sorted(labels.items())
    ]
    return f"(has({there}) && {' && '.join(wanted)})"


def needs_us(pod: str, settings: AdmissionSettings) -> str:
    """
    Return that a Pod can't be stored without us.

    It asks for some of a device or for CPUs of its own, or our scheduler is to place it.
    """
    labels, qos = f"{pod}.metadata.labels", text(resources.LABEL_QOS_CLASS)
    own_cpus = f"{qos} in {labels} && {labels}[{qos}] in {texts(map(str, OWN_CPUS))}"
    parts = (
        takes(pod, settings.vocabulary.device_names, (resources.DOMAIN_TENURE,)),
        f"(has({labels}) && {own_cpus})",
        _is_placed_by(pod, settings.scheduler_name),
    )
    return " || ".join(parts)


def _is_placed_by(pod: str, scheduler_name: str) -> str:
    scheduler = f"{pod}.spec.schedulerName"
    return f"(has({scheduler}) && {scheduler} == {text(scheduler_name)})"


def concerns_us(pod: str, settings: AdmissionSettings) -> str:
    """
    Return that a Pod says anything that admission would look at.

    That is a resource of ours, a request label, an annotation of ours, or our scheduler.
    """
    parts = (
        any_container(pod, asks(settings.vocabulary.device_names, RESOURCE_PREFIXES)),
        any_key(f"{pod}.metadata.labels", LABEL_NAMES, LABEL_PREFIXES),
        any_key(f"{pod}.metadata.annotations", (), ANNOTATION_PREFIXES),
        _is_placed_by(pod, settings.scheduler_name),
    )
    return " || ".join(parts)
