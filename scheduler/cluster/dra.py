"""Devices and claims of Kubernetes' dynamic resource allocation, as their objects tell them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ledger.domain.annotations.wire import a_quantity
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import found_in, items_in, section, text_in
from ledger.domain.quantity import NANO
from ledger.domain.resources import CLAIMED_BY_CLASS
from scheduler.cluster.claims import NO_DRA, Dra, DraClaim, DraDevice, DraPart
from scheduler.cluster.documents import Document, Documents, is_ended

GROUP: Final = "resource.k8s.io"
_KINDS: Final = ("ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass")
_TAINT_RULE: Final = "DeviceTaintRule"
_SELECTED: Final = ("driver", "pool", "device")
_MIB: Final = 1 << 20
_NUMBER: Final = re.compile(r"-([0-9]{1,4})$")
_CLOSING: Final = frozenset({"NoSchedule", "NoExecute"})


def is_of_dra(document: Document) -> bool:
    """Tell whether an object is one of dynamic resource allocation."""
    kind, _, group = document.kind.partition(".")
    return kind in _KINDS and group in {"", GROUP}


def is_taint_rule(document: Document) -> bool:
    """Tell whether an object is a DeviceTaintRule."""
    kind, _, group = document.kind.partition(".")
    return kind == _TAINT_RULE and group in {"", GROUP}


def selects_otherwise(rule: Document) -> bool:
    """Tell whether a DeviceTaintRule selects by more than is looked at here."""
    return bool(_otherwise(section(rule.body, "spec", "deviceSelector")))


def _otherwise(selector: Mapping[str, Any]) -> set[str]:
    words = {name for name in _SELECTED if isinstance(selector.get(name), str)}
    return {name for name, value in selector.items() if value is not None} - words


def with_rules(slices: Sequence[Document], objects: Documents) -> Sequence[Document]:
    """
    Return slices whose devices have the taints of DeviceTaintRules as their own.

    Rule: resource.k8s.io, DeviceTaintRule: a selector without a word selects all devices, and
    without a selector none is. By more than driver, pool and device none is told apart.
    """
    rules = [
        (section(spec, "deviceSelector"), section(spec, "taint"))
        for document in objects.documents
        if is_taint_rule(document)
        for spec in [section(document.body, "spec")]
        if isinstance(spec.get("deviceSelector"), dict)
    ]
    return [_tainted(each, rules) for each in slices] if rules else slices


def _tainted(
    document: Document, rules: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> Document:
    spec = section(document.body, "spec")
    key = (text_in(spec, "driver"), text_in(spec, "pool", "name"))
    devices = spec.get("devices")
    if not isinstance(devices, list):
        return document
    told: list[object] = []
    for item in devices:
        if isinstance(item, dict):
            names = dict(zip(_SELECTED, (*key, text_in(item, "name")), strict=True))
            some = [
                (selector, {name: text_in(taint, name) for name in ("key", "value", "effect")})
                for selector, taint in rules
                if all(text_in(selector, name) in {"", names[name]} for name in _SELECTED)
            ]
            own = items_in({**section(item, "basic"), **item}.get("taints"))
            fields = (name for selector, _ in some for name in _otherwise(selector))
            more = {f"deviceSelector.{name}": True for name in fields}  # no claim is given it
            told.append({**item, **more, "taints": [*own, *(t for _, t in some)]} if some else item)
        else:
            told.append(item)
    return replace(document, body={**document.body, "spec": {**spec, "devices": told}})


def dra_of(objects: Documents) -> Dra:
    """
    Return what the objects tell; one that can't be read as the API describes it tells nothing.

    Rule: docs/contracts/dra.md.
    """
    found: dict[str, list[Document]] = {}
    for document in filter(is_of_dra, objects.documents):
        found.setdefault(document.kind.partition(".")[0], []).append(document)
    claims = tuple(_claims(found.get("ResourceClaim", ())))
    served, claimed = _by_pods(objects, {f"{each.namespace}/{each.name}" for each in claims})
    if not (found or served):
        return NO_DRA
    slices = found.get("ResourceSlice", [])
    names = (
        text_in(each.body, "spec", "extendedResourceName") for each in found.get("DeviceClass", ())
    )
    devices = tuple(_devices(with_rules(slices, objects)))
    return Dra(
        devices=devices,
        claims=claims,
        names=frozenset(filter(None, names)),
        served=served,
        claimed=claimed,
        nodes=frozenset(device.node for device in devices),
        has_slices=bool(slices),
    )


def _devices(slices: Sequence[Document]) -> Iterator[DraDevice]:
    newest: dict[tuple[str, str], int] = {}
    told = []
    for spec in (section(document.body, "spec") for document in slices):
        pool = section(spec, "pool")
        key = (text_in(spec, "driver"), text_in(pool, "name"))
        generation = number if isinstance(number := pool.get("generation"), int) else 0
        newest[key] = max(newest.get(key, 0), generation)
        told.append((spec, key, generation))
    for spec, key, generation in told:
        for item in items_in(spec, "devices") if generation == newest[key] else ():
            yield from _device(item, spec, *key)


def _device(
    item: Mapping[str, Any], spec: Mapping[str, Any], driver: str, pool: str
) -> Iterator[DraDevice]:
    body = {**section(item, "basic"), **item}  # v1beta1 has all but the name inside
    node = text_in(body, "nodeName") or text_in(spec, "nodeName")
    name = text_in(body, "name")
    if not (node and name):
        return
    said = {
        key.rpartition("/")[2]: next(iter(value.values()))
        for key, value in section(body, "attributes").items()
        if isinstance(value, dict) and value
    }
    number = _NUMBER.search(name)
    sets = [text_in(each, "counterSet") for each in items_in(body, "consumesCounters")]
    yield DraDevice(
        node=node,
        driver=driver,
        pool=pool,
        name=name,
        card=f"{pool}/{sets[0] if sets else name}",
        kind=text_in(said, "type"),
        id=text_in(said, "uuid"),
        parent=text_in(said, "parentUUID"),
        minor=int(number[1]) if number and not text_in(said, "parentUUID") else None,
        model=text_in(said, "productName") or text_in(said, "model"),
        memory_mib=_mib(found_in(body, "capacity", "memory", "value")),
        closed=_taint(body),
        is_shared=body.get("allowMultipleAllocations") is True,
    )


def _taint(device: Mapping[str, Any]) -> str | None:
    for taint in items_in(device, "taints"):
        if taint.get("effect") in _CLOSING:
            value = f"={text_in(taint, 'value')}" if text_in(taint, "value") else ""
            return f"taint {text_in(taint, 'key')}{value}:{taint['effect']}"
    return None


def _claims(claims: Sequence[Document]) -> Iterator[DraClaim]:
    for document in claims:
        status = section(document.body, "status")
        allocation = section(status, "allocation")
        results = items_in(allocation, "devices", "results")
        parts = tuple(_part(each) for each in results if each.get("adminAccess") is not True)
        if not parts:
            continue
        yield DraClaim(
            namespace=document.namespace,
            name=document.name,
            node=_node_of(allocation),
            parts=parts,
            pods=tuple(
                (text_in(each, "name"), text_in(each, "uid"))
                for each in items_in(status, "reservedFor")
                if each.get("resource") == "pods"
            ),
            others=tuple(
                f"{text_in(each, 'resource')}/{text_in(each, 'name')}"
                for each in items_in(status, "reservedFor")
                if each.get("resource") != "pods"
            ),
            is_deleted=bool(found_in(document.body, "metadata", "deletionTimestamp")),
        )


def _part(result: Mapping[str, Any]) -> DraPart:
    consumed = section(result, "consumedCapacity")
    return DraPart(
        driver=text_in(result, "driver"),
        pool=text_in(result, "pool"),
        device=text_in(result, "device"),
        core_percent=_units(consumed.get("cores")),
        memory_mib=_mib(consumed.get("memory")),
        is_part=bool(consumed),
    )


def _node_of(allocation: Mapping[str, Any]) -> str:
    """Return the node that an allocation is tied to by its name; empty where it is to none."""
    for term in items_in(allocation, "nodeSelector", "nodeSelectorTerms"):
        for each in items_in(term, "matchFields"):
            values = each.get("values")
            if each.get("key") == "metadata.name" and isinstance(values, list) and values:
                return str(values[0])
    return ""


def _by_pods(
    objects: Documents, claims: set[str]
) -> tuple[dict[str, frozenset[str]], frozenset[str]]:
    """Return what Pods were given by claims under plain names, by node, and whose claim is told."""
    served: dict[str, frozenset[str]] = {}
    claimed = set()
    for pod in objects.of_kind("Pod"):
        status = section(pod.body, "status", "extendedResourceClaimStatus")
        node = text_in(pod.body, "spec", "nodeName")
        if not status or not node or is_ended(pod.body):
            continue
        names = {text_in(each, "resourceName") for each in items_in(status, "requestMappings")}
        plain = {name for name in names if name and not name.startswith(CLAIMED_BY_CLASS)}
        served[node] = served.get(node, frozenset()) | plain
        if f"{pod.namespace}/{text_in(status, 'resourceClaimName')}" in claims:
            claimed.add(pod.uid)
    return served, frozenset(claimed)


def _mib(value: object) -> int | None:
    return None if (units := _units(value)) is None else units // _MIB


def _units(value: object) -> int | None:
    if value is None:
        return None
    try:
        return max(0, a_quantity(value, "").nanos // NANO)
    except InputError:
        return None
