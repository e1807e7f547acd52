"""
Event bodies and leaf texts without the generic encoder: the fast path of the append.

Each text here is byte for byte what `ledger.domain` makes of the same value; a test holds them
against each other and fails when an event grows a field that this module does not write.
"""

from __future__ import annotations

import hashlib
import json.encoder
from collections.abc import Callable, Mapping, Sequence

from ledger.domain.bounds import bounds_of
from ledger.domain.cpuset import format_cpuset
from ledger.domain.devices import ContainerShare, DeviceShare
from ledger.domain.log.events import (
    LedgerEvent,
    PodAssigned,
    PodBound,
    PodReleased,
    PodReserved,
    PodVoided,
    encode_event,
)
from ledger.domain.request.requests import PodSnapshot

_quote = json.encoder.encode_basestring  # one string as JSON, non-ASCII as it is


def body_of(event: LedgerEvent) -> str:
    """Return the canonical JSON body of `event`, the same text as `encode_event`."""
    if type(event) is PodReserved:
        return _reserved(event)
    if isinstance(event, (PodReleased, PodVoided)):
        return (
            f'{{"attempt":{_attempt(event.attempt)},"node_uid":{_quote(event.node_uid)},'
            f'"pod_uid":{_quote(event.pod_uid)},"reason":{_quote(event.reason)}}}'
        )
    if isinstance(event, (PodBound, PodAssigned)):
        return (
            f'{{"attempt":{_attempt(event.attempt)},"node_uid":{_quote(event.node_uid)},'
            f'"pod_uid":{_quote(event.pod_uid)}}}'
        )
    return encode_event(event)


def _number_of(field: str) -> Callable[[int], int]:
    low, high = bounds_of(field)

    def number(value: int) -> int:
        """Return an integer that the field may hold; another one is said before it is recorded."""
        assert type(value) is int, value
        assert low <= value <= high, value
        return value

    return number


_attempt, _milli, _minor = _number_of("attempt"), _number_of("cpu_milli"), _number_of("minor")
_bytes, _percent = _number_of("memory_bytes"), _number_of("core_percent")
_ratio, _instances = _number_of("memory_ratio_percent"), _number_of("instances")
_moment, _priority = _number_of("created_at_us"), _number_of("priority")


def text_map(values: Mapping[str, str]) -> str:
    """Return a mapping of text to text as canonical JSON."""
    if not values:
        return "{}"
    pairs = [f"{_quote(key)}:{_quote(value)}" for key, value in sorted(values.items())]
    return "{" + ",".join(pairs) + "}"


def _texts(values: Sequence[str]) -> str:
    if not values:
        return "[]"
    return "[" + ",".join([_quote(value) for value in values]) + "]"


def _reserved(event: PodReserved) -> str:
    cpuset = format_cpuset(event.cpuset) if event.cpuset else ""
    return (
        f'{{"annotations":{text_map(event.annotations)},"attempt":{_attempt(event.attempt)},'
        f'"cpu_milli":{_milli(event.cpu_milli)},"cpuset":"{cpuset}",'
        f'"device_models":{_texts(event.device_models)},"dialect":{_quote(event.dialect)},'
        f'"group":{_quote(event.group)},"memory_bytes":{_bytes(event.memory_bytes)},'
        f'"namespace":{_quote(event.namespace)},"node_name":{_quote(event.node_name)},'
        f'"node_uid":{_quote(event.node_uid)},"pod_name":{_quote(event.pod_name)},'
        f'"pod_uid":{_quote(event.pod_uid)},"policy":{_quote(event.policy)},'
        f'"request":{_quote(event.request)},'
        f'"resource_version":{_quote(event.resource_version)},'
        f'"settings_hash":{_quote(event.settings_hash)},'
        f'"shares":[{",".join([_share(share) for share in event.shares])}],'
        f'"snapshot":{_snapshot(event.snapshot)},'
        f'"tenure_version":{_quote(event.tenure_version)}}}'
    )


def _share(share: DeviceShare) -> str:
    containers = share.containers
    inside = ",".join([_container(each) for each in containers]) if containers else ""
    return (
        f'{{"containers":[{inside}],'
        f'"core_percent":{_percent(share.core_percent)},"device_id":{_quote(share.device_id)},'
        f'"device_type":{_quote(share.device_type)},'
        f'"exclusive":{"true" if share.exclusive else "false"},'
        f'"instances":{_instances(share.instances)},'
        f'"memory_bytes":{_bytes(share.memory_bytes)},'
        f'"memory_ratio_percent":{_ratio(share.memory_ratio_percent)},'
        f'"minor":{_minor(share.minor)},'
        f'"vf_bus_ids":{_texts(share.vf_bus_ids)}}}'
    )


def _container(share: ContainerShare) -> str:
    return (
        f'{{"container":{_quote(share.container)},"core_percent":{_percent(share.core_percent)},'
        f'"memory_bytes":{_bytes(share.memory_bytes)},"place":{_quote(share.place)}}}'
    )


def _snapshot(snapshot: PodSnapshot) -> str:
    return (
        f'{{"annotations":{text_map(snapshot.annotations)},'
        f'"created_at_us":{_moment(snapshot.created_at_us)},'
        f'"init_containers":{_texts(snapshot.init_containers)},"labels":{text_map(snapshot.labels)},'
        f'"original":{text_map(snapshot.original)},"owner":{_quote(snapshot.owner)},'
        f'"priority":{_priority(snapshot.priority)},"qos":{_quote(snapshot.qos)}}}'
    )


def leaf_of(
    *,
    position: int,
    stream: str,
    stream_version: int,
    event_type: str,
    body_sha256: str,
    actor: str,
    epoch: int,
    causation_position: int | None,
    correlation_id: str,
    idempotency_key: str,
    args_hash: str,
    at_us: int,
    wall_us: int,
) -> bytes:
    """Return the same bytes as `ledger.domain.proofs.hashing.leaf_hash`, hashes given in hex."""
    causation = "null" if causation_position is None else causation_position
    return hashlib.sha256(
        (
            f'\x00{{"actor":{_quote(actor)},"args_hash":"{args_hash}","at_us":{at_us},'
            f'"body_sha256":"{body_sha256}","causation_position":{causation},'
            f'"correlation_id":{_quote(correlation_id)},"epoch":{epoch},'
            f'"event_type":{_quote(event_type)},"idempotency_key":{_quote(idempotency_key)},'
            f'"position":{position},"stream":{_quote(stream)},'
            f'"stream_version":{stream_version},"wall_us":{wall_us}}}'
        ).encode()
    ).digest()
