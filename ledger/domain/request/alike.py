"""Pods that ask for the same, such as those of one ReplicaSet, are read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec

from ledger.domain.errors import FieldError
from ledger.domain.kube.object_fields import default_uid, name_of, text_at, time_us
from ledger.domain.request.normalise import examine_pod
from ledger.domain.request.requests import PodRequest
from ledger.domain.vocabulary import Vocabulary

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
    name = name_of(metadata)
    uid = text_at(metadata, "uid", "metadata") or default_uid("Pod", known.namespace, name)
    created = time_us(metadata.get("creationTimestamp"), "metadata.creationTimestamp")
    snapshot = msgspec.structs.replace(known.snapshot, created_at_us=created)
    return replace(known, uid=uid, name=name, snapshot=snapshot)
