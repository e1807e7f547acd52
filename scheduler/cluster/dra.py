"""Devices and claims of Kubernetes' dynamic resource allocation, as their objects tell them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ledger.domain.annotations.wire import a_quantity
from ledger.domain.errors import InputError
from ledger.domain.quantity import NANO
from ledger.domain.resources import CLAIMED_BY_CLASS
from scheduler.cluster.claims import NO_DRA, Dra, DraClaim, DraDevice, DraPart
from scheduler.cluster.documents import Document, Documents, is_ended, items_in, section

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
    selector = section(section(rule.body, "spec"), "deviceSelector")
    return any(
        name not in _SELECTED or not isinstance(value, str)
        for name, value in selector.items()
        if value is not None
    )


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
    key = (_text(spec, "driver"), _text(section(spec, "pool"), "name"))
    devices = spec.get("devices")
    if not isinstance(devices, list):
        return document
    told: list[object] = []
    for item in devices:
        if isinstance(item, dict):
            names = dict(zip(_SELECTED, (*key, _text(item, "name")), strict=True))
            taints = [
                {name: _text(taint, name) for name in ("key", "value", "effect")}
                for selector, taint in rules
                if all(_text(selector, name) in {"", names[name]} for name in _SELECTED)
            ]
            own = items_in({**section(item, "basic"), **item}.get("taints"))
            told.append({**item, "taints": [*own, *taints]} if taints else item)
        else:
            told.append(item)
    return replace(document, body={**document.body, "spec": {**spec, "devices": told}})


def dra_of(objects: Documents) -> Dra:
    """
    Return what the objects tell; one that can't be read as the API describes it tells nothing.

    Rule: docs/contracts/dra.md.
    """
    found: dict[str, list[Document]] = {}
    for document in objects.documents:
        if is_of_dra(document):
            found.setdefault(document.kind.partition(".")[0], []).append(document)
    claims = tuple(_claims(found.get("ResourceClaim", ())))
    served, claimed = _by_pods(objects, {f"{each.namespace}/{each.name}" for each in claims})
    if not (found or served):
        return NO_DRA
    slices = found.get("ResourceSlice", [])
    names = (
        section(each.body, "spec").get("extendedResourceName")
        for each in found.get("DeviceClass", ())
    )
    devices = tuple(_devices(with_rules(slices, objects)))
    return Dra(
        devices=devices,
        claims=claims,
        names=frozenset(name for name in names if isinstance(name, str) and name),
        served=served,
        claimed=claimed,
        nodes=frozenset(device.node for device in devices),
        has_slices=bool(slices),
    )


def _devices(slices: Sequence[Document]) -> Iterator[DraDevice]:
    newest: dict[tuple[str, str], int] = {}
    told = []
    for document in slices:
        spec = section(document.body, "spec")
        pool = section(spec, "pool")
        key = (_text(spec, "driver"), _text(pool, "name"))
        generation = pool.get("generation")
        generation = generation if isinstance(generation, int) else 0
        newest[key] = max(newest.get(key, 0), generation)
        told.append((spec, key, generation))
    for spec, key, generation in told:
        if generation == newest[key]:
            for item in items_in(spec.get("devices")):
                yield from _device(item, spec, *key)


def _device(
    item: Mapping[str, Any], spec: Mapping[str, Any], driver: str, pool: str
) -> Iterator[DraDevice]:
    body = {**section(item, "basic"), **item}  # v1beta1 has all but the name inside
    node = _text(body, "nodeName") or _text(spec, "nodeName")
    name = _text(body, "name")
    if not (node and name):
        return
    said = {
        key.rpartition("/")[2]: next(iter(value.values()))
        for key, value in section(body, "attributes").items()
        if isinstance(value, dict) and value
    }
    number = _NUMBER.search(name)
    sets = [_text(each, "counterSet") for each in items_in(body.get("consumesCounters"))]
    yield DraDevice(
        node=node,
        driver=driver,
        pool=pool,
        name=name,
        card=f"{pool}/{sets[0] if sets else name}",
        kind=_text(said, "type"),
        id=_text(said, "uuid"),
        parent=_text(said, "parentUUID"),
        minor=int(number[1]) if number and not _text(said, "parentUUID") else None,
        model=_text(said, "productName") or _text(said, "model"),
        memory_mib=_mib(section(section(body, "capacity"), "memory").get("value")),
        closed=_taint(body),
        is_shared=body.get("allowMultipleAllocations") is True,
    )


def _taint(device: Mapping[str, Any]) -> str | None:
    for taint in items_in(device.get("taints")):
        if taint.get("effect") in _CLOSING:
            value = f"={_text(taint, 'value')}" if _text(taint, "value") else ""
            return f"taint {_text(taint, 'key')}{value}:{taint['effect']}"
    return None


def _claims(claims: Sequence[Document]) -> Iterator[DraClaim]:
    for document in claims:
        status = section(document.body, "status")
        allocation = section(status, "allocation")
        results = items_in(section(allocation, "devices").get("results"))
        parts = tuple(_part(each) for each in results if each.get("adminAccess") is not True)
        if not parts:
            continue
        yield DraClaim(
            namespace=document.namespace,
            name=document.name,
            node=_node_of(section(allocation, "nodeSelector")),
            parts=parts,
            pods=tuple(
                (_text(each, "name"), _text(each, "uid"))
                for each in items_in(status.get("reservedFor"))
                if each.get("resource") == "pods"
            ),
        )


def _part(result: Mapping[str, Any]) -> DraPart:
    consumed = section(result, "consumedCapacity")
    return DraPart(
        driver=_text(result, "driver"),
        pool=_text(result, "pool"),
        device=_text(result, "device"),
        core_percent=_units(consumed.get("cores")),
        memory_mib=_mib(consumed.get("memory")),
        is_part=bool(consumed),
    )


def _node_of(selector: Mapping[str, Any]) -> str:
    """Return the node that an allocation is tied to by its name; empty where it is to none."""
    for term in items_in(selector.get("nodeSelectorTerms")):
        for each in items_in(term.get("matchFields")):
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
        status = section(section(pod.body, "status"), "extendedResourceClaimStatus")
        node = section(pod.body, "spec").get("nodeName")
        if not status or not isinstance(node, str) or is_ended(pod.body):
            continue
        names = {_text(each, "resourceName") for each in items_in(status.get("requestMappings"))}
        plain = {name for name in names if name and not name.startswith(CLAIMED_BY_CLASS)}
        served[node] = served.get(node, frozenset()) | plain
        if f"{pod.namespace}/{_text(status, 'resourceClaimName')}" in claims:
            claimed.add(pod.uid)
    return served, frozenset(claimed)


def _text(parent: Mapping[str, Any], key: str) -> str:
    value = parent.get(key)
    return value if isinstance(value, str) else ""


def _mib(value: object) -> int | None:
    units = _units(value)
    return None if units is None else units // _MIB


def _units(value: object) -> int | None:
    if value is None:
        return None
    try:
        return max(0, a_quantity(value, "").nanos // NANO)
    except InputError:
        return None
