"""Nodes whose objects say the same but for who they are, such as those of a pool, are read once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter, is_
from typing import Any, Final

import msgspec

from ledger.domain.devices import DeviceRecord
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

_RUN: Final = re.compile(rb"[\w.:/+-]+")
_but_for_its_id: Final = attrgetter(
    *(item.name for item in fields(DeviceRecord) if item.name not in ("device_id", "unique_id"))
)

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Who:
    """What is a node's alone; `ids` are its devices', as the Device object lists them, or empty."""

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


class _Kind:
    """
    What is known of nodes that say the same.

    Attributes:
        facts: one of them.
        places: of each of its devices, the place of its id in the Device object; -1 of one without.
        runs: every run of the characters that names are made of in what they say, each once.
    """

    def __init__(self, facts: NodeFacts, who: _Who, said: bytes) -> None:
        places = {name: place for place, name in enumerate(who.ids) if name}
        self.facts = facts
        self.places = tuple(places.get(each.device_id, -1) for each in facts.devices)
        self.runs = b" ".join(set(_RUN.findall(said)))
        self._fields = {item.name: getattr(facts, item.name) for item in fields(NodeFacts)}
        self._devices = tuple(map(_but_for_its_id, facts.devices))

    def says_nothing_of(self, who: _Who) -> bool:
        """Tell whether no word of a node is in what its kind says; one of several runs may be."""
        words = {word.encode() for word in who.words}
        is_plain = words == set(_RUN.findall(b" ".join(words)))
        return is_plain and not any(word in self.runs for word in words)

    def of(
        self, who: _Who, vocabulary: Vocabulary, recorded: tuple[DeviceRecord, ...]
    ) -> NodeFacts:
        """Return another node of the kind, with the devices that were recorded if it says these."""
        labels = dict(self.facts.labels)
        if who.hostname:
            labels[LABEL_HOSTNAME] = who.hostname
        system_uuid, machine_id, boot_id = who.machine
        own = {
            "uid": who.uid,
            "name": who.name,
            "created": who.created,
            "labels": labels,
            "system_uuid": system_uuid.lower(),
            "machine_id": machine_id,
            "boot_id": boot_id,
            "devices": self._devices_of(who, vocabulary, recorded),
        }
        return NodeFacts(**{**self._fields, **own})

    def _devices_of(
        self, who: _Who, vocabulary: Vocabulary, recorded: tuple[DeviceRecord, ...]
    ) -> tuple[DeviceRecord, ...]:
        known = self.facts.devices
        there = recorded if len(recorded) == len(known) else known
        devices = tuple(
            device if place < 0 else _with_id(device, who.ids[place], vocabulary, other, words)
            for device, place, other, words in zip(
                known, self.places, there, self._devices, strict=True
            )
        )
        return recorded if there is recorded and all(map(is_, devices, there)) else devices


def _with_id(
    device: DeviceRecord,
    device_id: str,
    vocabulary: Vocabulary,
    recorded: DeviceRecord,
    words: object,
) -> DeviceRecord:
    """Return a device with another id: the recorded one, if it is that; `words` are all others."""
    unique_id = vocabulary.is_unique_id(device.device_type, device_id)
    if (
        recorded.device_id == device_id
        and recorded.unique_id == unique_id
        and _but_for_its_id(recorded) == words
    ):
        return recorded
    return with_id(device, device_id, vocabulary)


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
        self._known: dict[bytes, _Kind] = {}

    def read(
        self,
        node: Object,
        device: Object | None,
        nrt: Object | None,
        unhealthy_gpus: str | None,
        known_pods: Container[str],
        *,
        recorded: tuple[DeviceRecord, ...] = (),
    ) -> NodeFacts:
        """
        Return what deciding needs to know about a node. Raises InputError as `decode_node`.

        Args:
            recorded: its devices as they are in memory already, which are returned if it has these.
        """
        found = None if unhealthy_gpus is not None else _told(node, device, nrt)
        known = None
        if found is not None:
            who, said = found
            kind = hashlib.blake2b(said, digest_size=32).digest()
            known = self._known.get(kind)
            if known is None and any(word.encode() in said for word in who.words):
                found = None
            elif known is not None and known.says_nothing_of(who):
                return known.of(who, self._vocabulary, recorded)
        facts, _ = decode_node(
            node,
            device,
            nrt,
            unhealthy_gpus,
            vocabulary=self._vocabulary,
            cpu_ref_count_max=self._cpu_ref_count_max,
            known_pods=known_pods,
        )
        if facts.devices == recorded:
            facts = replace(facts, devices=recorded)
        if found is not None and known is None and not any(map(who.is_in, facts.faults)):
            self._known[kind] = _Kind(facts, who, said)
            if len(self._known) > KNOWN_MAX:
                del self._known[next(iter(self._known))]
        return facts


def _told(node: Object, device: Object | None, nrt: Object | None) -> tuple[_Who, bytes] | None:
    """Return who a node is, and what nodes alike have in common; None where that is not told."""
    try:
        who, texts = _apart(node, device, nrt)
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
    return None if not who.uid or len(set(ids)) < len(ids) else (who, said)


def _apart(node: Object, device: Object | None, nrt: Object | None) -> tuple[_Who, object]:
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
