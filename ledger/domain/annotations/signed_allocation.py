"""
Our signed copy of a reservation on its own Pod: enough to make the reservation again.

Rule: design section 8, "Restore". The signature covers the canonical JSON of the allocation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from msgspec import UNSET

from ledger.domain.annotations.signed import Checker, Signer, decode_signed, encode_signed
from ledger.domain.annotations.tenure import Shown
from ledger.domain.annotations.wire import annotation_path
from ledger.domain.bounds import Count, Exact, Milli, Number
from ledger.domain.cpuset import EMPTY, CpuSet
from ledger.domain.devices import DeviceShare
from ledger.domain.log.codec import decode_value, plain_value
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.resources import ANNOTATION_TENURE_ALLOCATION

FORMAT: Final = 1
_WORD: Final = "allocation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """
    What one Pod was given, and where the ledger says so.

    Attributes:
        format: version of these words.
        origin, incarnation, epoch, position: the reservation's event, of which ledger.
        at_us: when it was recorded, microseconds since the epoch.
        shares, device_models: as in `PodReserved`, same order.
        shown: the cards that its containers are shown.
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
    cpuset: CpuSet = EMPTY
    dialect: str = ""
    policy: str = ""
    settings_hash: str = ""
    group: str = ""
    resource_version: str = ""
    tenure_version: str = ""
    shown: Shown = UNSET
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


def encode_signed_allocation(allocation: Allocation, *, key: str, sign: Signer) -> dict[str, str]:
    """Write the annotation, signed with the key of that id."""
    words: dict[str, object] = plain_value(allocation)
    return encode_signed(ANNOTATION_TENURE_ALLOCATION, _WORD, words, key=key, sign=sign)


def decode_signed_allocation(text: str, *, check: Checker) -> Allocation:
    """Read the annotation of a Pod. Raises InputError as `decode_signed` does."""
    name = ANNOTATION_TENURE_ALLOCATION
    words = decode_signed(name, _WORD, text, check=check, version=FORMAT)
    allocation: Allocation = decode_value(Allocation, words, f"{annotation_path(name)}.{_WORD}")
    return allocation
