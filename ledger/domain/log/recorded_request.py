"""What a Pod asked for, as a ledger keeps it: a value with its own version, named by its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta

from ledger.domain.log.codec import encode_value
from ledger.domain.request.requests import PodRequest, PodSnapshot, RequestTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest(RequestTerms):
    """
    The normalised request of a Pod, without what its event says beside it.

    Rule: design section 8, what can't be asked later. Who the Pod is, its cpu and memory and its
    snapshot stand in the event of its decision, so that Pods of one kind share one value. What is
    at its default is left out.
    """

    newest_version: ClassVar[int] = 1
    version: Annotated[int, Meta(ge=1, le=1)]


_NAMES: Final = tuple(field.name for field in fields(RequestTerms))
_values_of: Final = attrgetter(*_NAMES)


def recorded_request(request: PodRequest) -> RecordedRequest:
    """Return what a ledger keeps of a request."""
    values: Mapping[str, Any] = dict(zip(_NAMES, _values_of(request), strict=True))
    return RecordedRequest(version=RecordedRequest.newest_version, **values)


@lru_cache(maxsize=4096)
def request_digest(request: RecordedRequest) -> str:
    """Return what names a request in a ledger: half the SHA-256 of its canonical JSON, in hex."""
    return hashlib.sha256(encode_value(request).encode()).hexdigest()[:32]


def request_from(
    recorded: RecordedRequest,
    *,
    uid: str,
    namespace: str,
    name: str,
    cpu_milli: int,
    memory_bytes: int,
    snapshot: PodSnapshot,
) -> PodRequest:
    """Return the request again, with what its event says beside it."""
    values: Mapping[str, Any] = dict(zip(_NAMES, _values_of(recorded), strict=True))
    return PodRequest(
        uid=uid,
        namespace=namespace,
        name=name,
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        snapshot=snapshot,
        **values,
    )
