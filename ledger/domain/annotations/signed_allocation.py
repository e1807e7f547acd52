"""
Our signed copy of a reservation on its own Pod: enough to make the reservation again.

Rule: design section 8, "Restore". The signature covers the canonical JSON of the allocation; making
and checking it is the caller's, so that no key and no cryptography is in here.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ledger.domain.annotations.wire import annotation_path, dump, load
from ledger.domain.bounds import Count, Exact, Milli, Number
from ledger.domain.cpuset import CpuSet
from ledger.domain.devices import DeviceShare
from ledger.domain.errors import InputError
from ledger.domain.log.codec import decode_value, plain_value
from ledger.domain.proofs.canonical import canonical_json
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.resources import ANNOTATION_TENURE_ALLOCATION

FORMAT: Final = 1
BYTES_MAX: Final = 256 * 1024
"""The API server's limit for all annotations of an object together."""

Signer = Callable[[bytes], bytes]
Checker = Callable[[str, bytes, bytes], bool]
"""(key id, message, signature) -> the signature is that key's, and the key is one we trust."""

_CONTEXT: Final = f"{ANNOTATION_TENURE_ALLOCATION}\n".encode()
"""Before the signed text, so that no other signed text of ours can be taken for an allocation."""
_PATH: Final = annotation_path(ANNOTATION_TENURE_ALLOCATION)
_NO_CPUS: Final = CpuSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """
    What one Pod was given, and where the ledger says so.

    Attributes:
        format: version of these words.
        origin, incarnation, epoch, position: the reservation's event, of which ledger.
        at_us: when it was recorded, microseconds since the epoch.
        shares, device_models: as in `PodReserved`, same order.
    """

    format: Exact = FORMAT
    origin: str
    incarnation: str
    epoch: Count
    position: Exact
    at_us: Exact
    pod_uid: str
    attempt: Number
    namespace: str
    pod_name: str
    node_uid: str
    node_name: str
    cpu_milli: Milli
    memory_bytes: Count
    shares: tuple[DeviceShare, ...] = ()
    device_models: tuple[str, ...] = ()
    cpuset: CpuSet = _NO_CPUS
    dialect: str = ""
    policy: str = ""
    settings_hash: str = ""
    group: str = ""
    resource_version: str = ""
    tenure_version: str = ""
    snapshot: PodSnapshot = field(default_factory=PodSnapshot)


# tenure.sh/allocation: {"allocation":{"at_us":1772409601000000,"attempt":1,"cpu_milli":4000,
#   "cpuset":"0-3","device_models":["A100"],"dialect":"koordinator","epoch":3,"format":1,"group":"",
#   "incarnation":"first","memory_bytes":17179869184,"namespace":"ml","node_name":"gpu-a",
#   "node_uid":"...","origin":"ledger/<cluster uid>","pod_name":"train-0","pod_uid":"...",
#   "policy":"binpack","position":1017,"resource_version":"8123","settings_hash":"9c56cc51",
#   "shares":[{"containers":[],"core_percent":50,"device_id":"GPU-...","device_type":"gpu",
#   "exclusive":false,"instances":1,"memory_bytes":42949672960,"memory_ratio_percent":50,"minor":0,
#   "vf_bus_ids":[]}],"snapshot":{...},"tenure_version":"0.1.0"},
#   "key":"tenure.example+9c56cc51","signature":"<base64, 64 bytes of Ed25519>"}


def signed_bytes(allocation: Mapping[str, object]) -> bytes:
    """Return the bytes under the signature: a context line, then canonical JSON."""
    return _CONTEXT + canonical_json(allocation).encode()


def encode_signed_allocation(allocation: Allocation, *, key: str, sign: Signer) -> dict[str, str]:
    """Write the annotation, signed with the key of that id."""
    words: dict[str, object] = plain_value(allocation)
    signature = base64.b64encode(sign(signed_bytes(words))).decode()
    text = dump({"allocation": words, "key": key, "signature": signature})
    return {ANNOTATION_TENURE_ALLOCATION: text}


def decode_signed_allocation(text: str, *, check: Checker) -> Allocation:
    """
    Read the annotation of a Pod; nothing of it is looked at before its signature holds.

    Raises:
        InputError: not JSON, longer than an annotation can be, a signature that does not hold or
            is of no key we trust, or a format of a newer release.
    """
    if len(text) > BYTES_MAX:
        raise InputError(f"longer than an annotation can be: {len(text)}", field=_PATH)
    envelope = load(text, _PATH)
    if not isinstance(envelope, dict) or envelope.keys() != {"allocation", "key", "signature"}:
        raise InputError("must be an object of allocation, key and signature", field=_PATH)
    words, key, written = envelope["allocation"], envelope["key"], envelope["signature"]
    if not isinstance(words, dict) or not isinstance(key, str) or not isinstance(written, str):
        raise InputError("must be an object, a key id and a signature", field=_PATH)
    try:
        signature = base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError("not base64", field=f"{_PATH}.signature") from error
    try:
        message = signed_bytes(words)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}", field=_PATH) from error
    if not check(key, message, signature):
        raise InputError(f"the signature does not hold: key={key}", field=_PATH)
    if words.get("format") != FORMAT:
        fact = f"a format that this release does not know: format={words.get('format')}"
        raise InputError(fact, field=f"{_PATH}.allocation")
    allocation: Allocation = decode_value(Allocation, words, f"{_PATH}.allocation")
    return allocation
