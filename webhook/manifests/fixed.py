"""
What a Pod was placed by stays, and its CPUs are whole: in CEL, for the API server.

Resources can stand in containers, init containers and the Pod as a whole, in requests and limits;
every rule here looks at all of them. Overhead can't change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ledger.domain.request.cpus import OWN_CPUS
from ledger.domain.resources import (
    ANNOTATION_RESOURCE_STATUS,
    CPU,
    LABEL_PRIORITY_CLASS,
    LABEL_QOS_CLASS,
)
from webhook.decide.validating.words import PLACED_ANNOTATIONS, PLACED_LABELS
from webhook.manifests.cel import CONTAINERS, text, texts

_KINDS: Final = ("requests", "limits")
_SOME_CPUS: Final = r"\"cpuset\"\s*:\s*\"[^\"]"


def pins_cpus(pod: str) -> str:
    """Return that a Pod asks for CPUs of its own."""
    label = text(LABEL_QOS_CLASS)
    return (
        f"has({pod}.metadata.labels) && {label} in {pod}.metadata.labels"
        f" && {pod}.metadata.labels[{label}] in {texts(map(str, OWN_CPUS))}"
    )


def holds_cpus(pod: str) -> str:
    """Return that a Pod has CPUs of its own, asked for or given by the policy of its node."""
    there, key = f"{pod}.metadata.annotations", text(ANNOTATION_RESOURCE_STATUS)
    given = f"has({there}) && {key} in {there} && {there}[{key}].matches({text(_SOME_CPUS)})"
    return f"({pins_cpus(pod)}) || ({given})"


def equal_limits(resource: str) -> str:
    """Return that each request of a resource equals its limit; the whole Pod's if it has both."""
    each = f"!has(c.resources) || ({_equal('c.resources', resource)})"
    containers = [
        f"(!has(object.spec.{section}) || object.spec.{section}.all(c, {each}))"
        for section in CONTAINERS
    ]
    limits, requests = (f"object.spec.resources.{kind}" for kind in _KINDS[::-1])
    both = " && ".join(f"has({one}) && {text(resource)} in {one}" for one in (limits, requests))
    same = _equal("object.spec.resources", resource)
    level = f"(!has(object.spec.resources) || !({both}) || ({same}))"
    return " && ".join([*containers, level])


def whole_cpus() -> str:
    """
    Return that the CPUs of what runs together are a whole number, none included.

    What the Pod says as a whole takes the place of the sum. Init containers that end, and
    overhead, are the webhook's.
    """
    cpu = text(CPU)
    whole = f"object.spec.resources.requests[{cpu}]"
    level = "has(object.spec.resources) && has(object.spec.resources.requests)"
    sidecars = "c, has(c.restartPolicy) && c.restartPolicy == 'Always'"
    total = (
        f"{_sum_of('object.spec.containers')} + (has(object.spec.initContainers)"
        f" ? {_sum_of(f'object.spec.initContainers.filter({sidecars})')} : 0)"
    )
    return (
        f"({level} && {cpu} in object.spec.resources.requests)"
        f" ? quantity({whole}).isInteger() : ({total}) % 1000 == 0"
    )


def untouched() -> str:
    """Return that nothing at all changes where resources stand, which is cheap to tell."""
    parts = []
    for section in CONTAINERS:
        now, before = (
            f"(has({pod}.spec.{section}) ? {pod}.spec.{section}.map(c,"
            " has(c.resources) ? [c.resources] : []) : [])"
            for pod in ("object", "oldObject")
        )
        parts.append(f"{now} == {before}")
    now, before = (
        f"(has({pod}.spec.resources) ? [{pod}.spec.resources] : [])"
        for pod in ("object", "oldObject")
    )
    return " && ".join([*parts, f"{now} == {before}"])


def same_amounts(names: Iterable[str]) -> str:
    """
    Return that no amount of these resources changes; containers can't be added or moved.

    Its cost grows with the square of the containers: `untouched` comes before it.
    """
    named = f"k in {texts(names)}"
    return " && ".join(
        _stay(kind, one, other, named)
        for kind in _KINDS
        for one, other in (("object", "oldObject"), ("oldObject", "object"))
    )


def same_label(label: str) -> str:
    """Return that a label stays as it is."""
    name = text(label)
    values = [
        f"({one} != null && has({one}.metadata.labels) && {name} in {one}.metadata.labels"
        f" ? {one}.metadata.labels[{name}] : '')"
        for one in ("object", "oldObject")
    ]
    return " == ".join(values)


def same_words() -> str:
    """Return that nothing changes by which a Pod was placed."""
    parts = []
    for field_name, keys in (
        ("labels", (*PLACED_LABELS, LABEL_PRIORITY_CLASS)),
        ("annotations", PLACED_ANNOTATIONS),
    ):
        one, other = (
            f"(has({pod}.metadata.{field_name}) && k in {pod}.metadata.{field_name}"
            f" ? {pod}.metadata.{field_name}[k] : '')"
            for pod in ("object", "oldObject")
        )
        parts.append(f"{texts(keys)}.all(k, {one} == {other})")
    return " && ".join(parts)


def _equal(place: str, resource: str) -> str:
    name, parts = text(resource), []
    for one, other in (_KINDS, _KINDS[::-1]):
        mine, theirs = f"{place}.{one}", f"{place}.{other}"
        equal = f"quantity({mine}[{name}]).compareTo(quantity({theirs}[{name}])) == 0"
        parts.append(
            f"(!has({mine}) || !({name} in {mine})"
            f" || (has({theirs}) && {name} in {theirs} && {equal}))"
        )
    return " && ".join(parts)


def _sum_of(containers: str) -> str:
    """Return the thousandths of CPU that these containers request together."""
    amounts, cpu = "c.resources.requests", text(CPU)
    asked = f"has(c.resources) && has({amounts}) && {cpu} in {amounts}"
    milli = f"int(quantity({amounts}[{cpu}]).asApproximateFloat() * 1000.0 + 0.5)"
    return f"{containers}.map(c, {asked} ? {milli} : 0).sum()"


def _stay(kind: str, one: str, other: str, named: str) -> str:
    """Return that `other` has as much of each named resource as `one`, place by place."""
    parts = []
    for section in CONTAINERS:
        mine, theirs = f"c.resources.{kind}", f"d.resources.{kind}"
        same = f"d.name == c.name && has(d.resources) && {_has_as_much(mine, theirs)}"
        kept = f"{other}.spec.{section}.exists(d, {same})"
        asked = f"!has(c.resources) || {_all_named(mine, named, kept)}"
        parts.append(f"(!has({one}.spec.{section}) || {one}.spec.{section}.all(c, {asked}))")
    mine, theirs = (f"{pod}.spec.resources" for pod in (one, other))
    kept = f"has({theirs}) && {_has_as_much(f'{mine}.{kind}', f'{theirs}.{kind}')}"
    parts.append(f"(!has({mine}) || {_all_named(f'{mine}.{kind}', named, kept)})")
    return " && ".join(parts)


def _all_named(amounts: str, named: str, condition: str) -> str:
    return f"!has({amounts}) || {amounts}.all(k, !({named}) || ({condition}))"


def _has_as_much(mine: str, theirs: str) -> str:
    equal = f"quantity({theirs}[k]).compareTo(quantity({mine}[k])) == 0"
    return f"has({theirs}) && k in {theirs} && {equal}"
