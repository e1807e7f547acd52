"""Nodes whose objects say the same but for who they are, such as those of a pool, are read once."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from ledger.domain.errors import InputError
from ledger.domain.kube.device_objects import with_id
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.kube.object_fields import name_of
from ledger.domain.nodes import NodeFacts
from ledger.domain.resources import ANNOTATION_POD_CPU_ALLOCS, LABEL_HOSTNAME
from ledger.domain.vocabulary import Vocabulary

KNOWN_MAX: Final = 512
"""Kinds of nodes that are remembered."""

_WHO: Final = ("name", "uid", "creationTimestamp")
_MACHINE: Final = ("systemUUID", "machineID", "bootID")
_NOBODY: Final = ("[]", "null", "")
"""No CPUs that kubelet gave to Pods, as the annotation says it."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Who:
    """
    What is a node's alone.

    Attributes:
        ids: of its devices, in the order of the Device object; empty of one without.
    """

    name: str
    uid: str
    created: str
    hostname: str
    machine: tuple[str, ...]
    ids: tuple[str, ...]

    @property
    def words(self) -> frozenset[str]:
        """Return all of them."""
        one = (self.name, self.uid, self.created, self.hostname, *self.machine, *self.ids)
        return frozenset(filter(None, (*one, *(text.lower() for text in self.machine))))

    def is_in(self, text: str) -> bool:
        """Tell whether a text has any of them in it."""
        return any(word in text for word in self.words)


class NodeReader:
    """
    Reads nodes as `decode_node` does, and what nodes alike are only once.

    What a node says is known by all of its objects without who it is: its names, its machine's and
    its devices' ids. Nothing else of it can tell: a node of which anything else has one of these
    words in it is read by itself, and so is one with CPUs that kubelet gave to Pods or with cards
    that a ConfigMap closes. Objects that can't be read are read anew each time.
    """

    def __init__(self, vocabulary: Vocabulary, cpu_ref_count_max: int) -> None:
        self._vocabulary = vocabulary
        self._cpu_ref_count_max = cpu_ref_count_max
        self._known: dict[bytes, tuple[NodeFacts, tuple[int, ...]]] = {}

    def read(
        self,
        node: Object,
        device: Object | None,
        nrt: Object | None,
        unhealthy_gpus: str | None,
        known_pods: Container[str],
    ) -> NodeFacts:
        """
        Return what deciding needs to know about a node.

        Raises:
            InputError: as `decode_node`.
        """
        found = None if unhealthy_gpus is not None else _kind(node, device, nrt)
        known = None if found is None else self._known.get(found[0])
        if found is not None and known is not None:
            return self._as_of(*known, found[1])
        facts, _ = decode_node(
            node,
            device,
            nrt,
            unhealthy_gpus,
            vocabulary=self._vocabulary,
            cpu_ref_count_max=self._cpu_ref_count_max,
            known_pods=known_pods,
        )
        if found is not None and not any(map(found[1].is_in, facts.faults)):
            kind, who = found
            places = {name: place for place, name in enumerate(who.ids) if name}
            ids = (each.device_id for each in facts.devices)
            self._known[kind] = facts, tuple(places.get(name, -1) for name in ids)
            if len(self._known) > KNOWN_MAX:
                del self._known[next(iter(self._known))]
        return facts

    def _as_of(self, known: NodeFacts, places: tuple[int, ...], who: _Who) -> NodeFacts:
        """Return what is known of one node as another one's, which says the same."""
        labels = dict(known.labels)
        if who.hostname:
            labels[LABEL_HOSTNAME] = who.hostname
        system_uuid, machine_id, boot_id = who.machine
        return replace(
            known,
            uid=who.uid,
            name=who.name,
            created=who.created,
            labels=labels,
            system_uuid=system_uuid.lower(),
            machine_id=machine_id,
            boot_id=boot_id,
            devices=tuple(
                device if place < 0 else with_id(device, who.ids[place], self._vocabulary)
                for device, place in zip(known.devices, places, strict=True)
            ),
        )


def _kind(node: Object, device: Object | None, nrt: Object | None) -> tuple[bytes, _Who] | None:
    """Return what nodes alike have in common, and who this one is; None where that is not told."""
    try:
        who, texts = _told(node, device, nrt)
        said = msgspec.msgpack.encode(texts)  # unlike JSON it tells 1 from "1" as a key too
    except (
        InputError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
    ):
        return None  # not of the usual outline
    ids = [name for name in who.ids if name]
    if not who.uid or len(set(ids)) < len(ids):
        return None
    if any(word.encode() in said for word in who.words):
        return None
    return hashlib.blake2b(said, digest_size=32).digest(), who


def _told(node: Object, device: Object | None, nrt: Object | None) -> tuple[_Who, object]:
    """Return who a node is, and what its objects say without that."""
    metadata, status = node["metadata"], node.get("status") or {}
    labels, info = metadata.get("labels") or {}, status.get("nodeInfo") or {}
    allocs = ((nrt or {}).get("metadata") or {}).get("annotations") or {}
    if allocs.get(ANNOTATION_POD_CPU_ALLOCS, "") not in _NOBODY:
        raise ValueError("CPUs of Pods that may be known or not")
    spec = (device or {}).get("spec") or {}
    devices = spec.get("devices") or ()
    who = _Who(
        name=name_of(metadata),
        uid=_text(metadata, "uid"),
        created=_text(metadata, "creationTimestamp"),
        hostname=_text(labels, LABEL_HOSTNAME),
        machine=tuple(_text(info, key) for key in _MACHINE),
        ids=tuple(_text(each, "id") for each in devices),
    )
    labels = _without(labels, (LABEL_HOSTNAME,)), LABEL_HOSTNAME in labels
    said = (
        _without(node, ("metadata", "status")),
        (_without(metadata, (*_WHO, "labels")), labels),
        (_without(status, ("nodeInfo",)), _without(info, _MACHINE)),
        None if device is None else (_nameless(device, ("spec",)), _without(spec, ("devices",))),
        [{**each, "id": bool(each.get("id"))} for each in devices],
        None if nrt is None else _nameless(nrt, ()),
    )
    return who, said


def _nameless(item: Object, but: tuple[str, ...]) -> tuple[Object, Object]:
    return _without(item, ("metadata", *but)), _without(item["metadata"], _WHO)


def _without(item: Object, keys: tuple[str, ...]) -> Object:
    return {key: value for key, value in item.items() if key not in keys}


def _text(item: Object, key: str) -> str:
    """Return a text, empty without one; raises TypeError for anything else."""
    value = item.get(key)
    if not isinstance(value, str | None):
        raise TypeError(key)
    return value or ""
