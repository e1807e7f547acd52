"""What Pods ask for, read once for each version of a Pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from ledger.domain.annotations.tenure import is_admitted
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube import object_fields
from ledger.domain.kube.original import stored_names
from ledger.domain.request.normalise import examine_pod
from ledger.domain.request.requests import PodRequest
from ledger.domain.request.rules import forbidden
from ledger.domain.resources import SLOT, TENURE_WHOLE_CARDS
from ledger.domain.vocabulary import Vocabulary
from scheduler.cluster.model import RefusedPod, asking
from scheduler.service.budgets import put_newest
from scheduler.service.kept import PodBook

UNKNOWN_POD: Final = "the Pod is not known here: it was not filtered, and no watch told of it"
ASKED_MAX: Final = 10_000
"""Requests that are remembered, of the Pods that were asked about last."""
KNOWN_MAX: Final = 512
KEY_BYTES_MAX: Final = 8 << 10
"""A longer Pod is read anew each time. With `KNOWN_MAX` it bounds the memory."""

_WHO: Final = ("uid", "name", "creationTimestamp")
_METADATA: Final = ("namespace", "labels", "annotations", "ownerReferences")
_SPEC: Final = (
    "overhead",
    "resources",
    "nodeName",
    "priority",
    "priorityClassName",
    "nodeSelector",
    "affinity",
    "tolerations",
)
_LISTS: Final = ("initContainers", "containers")
_CONTAINER: Final = ("name", "resources", "restartPolicy")
_STATUS: Final = ("phase", "qosClass")

Object = dict[str, object]


class PodReader:
    """
    Reads Pods as `examine_pod` does, and what Pods alike ask for only once.

    A Pod is read without what no decision looks at (names of volumes, which are random, images,
    conditions). What is left, but for who the Pod is, is the key of what it asks for: nothing that
    is not in the key was there to be read. Pods that break rules are read anew each time.

    The requests of Pods alike have their parts in common, so that deciding knows them by identity.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._known: dict[bytes, PodRequest] = {}

    def examine(self, pod: Mapping[str, object]) -> tuple[PodRequest, tuple[FieldError, ...]]:
        """Return a Pod's request and its violations. Raises InputError as `examine_pod`."""
        read = _what_is_read(pod)
        key = None if read is None else _key(read)
        if read is None or key is None:
            return examine_pod(pod, self._vocabulary)
        metadata: Mapping[str, object] = pod["metadata"]  # type: ignore[assignment]  # seen above
        known = self._known.pop(key, None)
        if known is None:
            read["metadata"] |= _those(metadata, _WHO)
            request, errors = examine_pod(read, self._vocabulary)
            if errors:
                return request, errors
            known = request
        else:
            request = _as_of(known, metadata)
        self._known[key] = known
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        return request, ()


def _what_is_read(pod: Mapping[str, object]) -> dict[str, Object] | None:
    """Return what is read of a Pod but who it is; None where it is not of a Pod's outline."""
    metadata, spec, status = pod.get("metadata"), pod.get("spec"), pod.get("status", {})
    if not (isinstance(metadata, dict) and isinstance(spec, dict) and isinstance(status, dict)):
        return None
    asked = _those(spec, _SPEC)
    for key in _LISTS:
        if key in spec:
            containers = spec[key]
            if not isinstance(containers, list):
                return None
            if not all(isinstance(each, dict) for each in containers):
                return None
            asked[key] = [_those(each, _CONTAINER) for each in containers]
    return {
        "metadata": _those(metadata, _METADATA),
        "spec": asked,
        "status": _those(status, _STATUS),
    }


def _those(value: Mapping[str, object], keys: tuple[str, ...]) -> Object:
    return {key: value[key] for key in keys if key in value}


def _key(read: Mapping[str, Object]) -> bytes | None:
    try:
        key = msgspec.msgpack.encode(read)  # unlike JSON it tells 1 from "1" as a key too
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return key if len(key) <= KEY_BYTES_MAX else None


def _as_of(known: PodRequest, metadata: Mapping[str, object]) -> PodRequest:
    """Return a known request as that of another Pod. Raises InputError: who that is."""
    name = object_fields.name_of(metadata)
    uid = object_fields.text_at(metadata, "uid", "metadata") or object_fields.default_uid(
        "Pod", known.namespace, name
    )
    created = object_fields.time_us(metadata.get("creationTimestamp"), "metadata.creationTimestamp")
    snapshot = msgspec.structs.replace(known.snapshot, created_at_us=created)
    return replace(known, uid=uid, name=name, snapshot=snapshot)


class PodRequests:
    """What Pods ask for that kube-scheduler has asked about, or that wait."""

    def __init__(self, pods: PodBook, vocabulary: Vocabulary) -> None:
        self._pods = pods
        self._vocabulary = vocabulary
        self._reader = PodReader(vocabulary)
        self._asked: dict[str, tuple[str, PodRequest | RefusedPod]] = {}  # Pod UID -> version, it

    def read(self, pod: Mapping[str, Any]) -> PodRequest | RefusedPod:
        """Return what a Pod asks for, or the rules it breaks. Raises InputError: unreadable."""
        version = object_fields.found_in(pod, "metadata", "resourceVersion")
        known = self._asked.get(object_fields.text_in(pod, "metadata", "uid")) if version else None
        if known is not None and known[0] == version:
            return known[1]
        asked = asking(*self._compared(pod, *self._reader.examine(pod)))
        put_newest(self._asked, asked.uid, (str(version), asked), ASKED_MAX)
        return asked

    def _compared(
        self, pod: Mapping[str, Any], request: PodRequest, errors: tuple[FieldError, ...]
    ) -> tuple[PodRequest, tuple[FieldError, ...]]:
        """Refuse a Pod that admission stored by other settings than ours."""
        words, annotations = self._vocabulary, pod["metadata"].get("annotations") or {}
        if errors or not is_admitted(annotations) or request.dialect is None:
            return request, errors
        if request.by_plugin:
            if TENURE_WHOLE_CARDS in annotations:
                return request, errors
            fact = "wholeCards of admission is ours, that of the scheduler nvidia"
            return request, (forbidden("spec.containers", f"{fact}: give both one value"),)
        has_slot = SLOT in stored_names(pod, words)
        if has_slot == words.by_slots:
            return request, errors
        told = "a slot, as in plugin" if has_slot else "no slot, as in env"
        fact = f"slotMode of admission is another: the Pod has {told}; ours is {words.slot_mode}"
        return request, (forbidden("spec.containers", f"{fact}: give both one value"),)

    def by_uid(self, pod_uid: str) -> PodRequest | str:
        """Return what a Pod that was asked about asks for, or why it is not known."""
        known = self._asked.get(pod_uid)
        if known is None:
            pod = self._pods.pending(pod_uid)
            if pod is None:
                return UNKNOWN_POD
            try:
                asked = self.read(pod)
            except InputError as error:
                return str(error)
        else:
            asked = known[1]
        if isinstance(asked, RefusedPod):
            return asked.message
        return asked

    def stored(self, pod_uid: str) -> tuple[str, ...]:
        """Return the names of devices that a Pod that waits is stored with; none of another."""
        return stored_names(self._pods.pending(pod_uid) or {}, self._vocabulary)
