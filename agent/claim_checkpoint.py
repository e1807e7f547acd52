"""
Kubelet's record of which claims it has prepared for which Pods, read and verified.

Rule: docs/contracts/agents.md, "Claims"; kubelet's `dra_manager_state`. Pure: bytes in, values out.
A claim is there before its drivers are asked for its devices, and until they gave them back after
the Pod's containers ended. Whatever is not what kubelet writes is refused by name, and frees
nothing.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

import msgspec

from agent.checkpoint import CheckpointError, CheckpointFault, decoded

FILE_NAME: Final = "dra_manager_state"
KIND: Final = "DRACheckpoint"
VERSION: Final = "checkpoint.dra.kubelet.k8s.io/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedClaim:
    """A claim that kubelet has prepared, or begun to, for the Pods of these UIDs."""

    claim_uid: str
    namespace: str
    name: str
    pods: frozenset[str]


class _Claim(msgspec.Struct):
    uid: str = msgspec.field(name="ClaimUID")
    name: str = msgspec.field(name="ClaimName")
    namespace: str = msgspec.field(name="Namespace")
    pods: dict[str, msgspec.Raw] | None = msgspec.field(default=None, name="PodUIDs")


class _Data(msgspec.Struct):
    kind: str = ""
    version: str = msgspec.field(default="", name="apiVersion")
    claims: list[_Claim] | None = msgspec.field(default=None, name="ClaimInfoStateList")


class _File(msgspec.Struct):
    data: str = msgspec.field(name="Data")
    checksum: int = msgspec.field(name="Checksum")


_FILE: Final = msgspec.json.Decoder(_File)
_DATA: Final = msgspec.json.Decoder(_Data)


def read_claim_checkpoint(content: bytes) -> tuple[PreparedClaim, ...]:
    """Return the claims of a checkpoint. Raises CheckpointError: unknown, or not kubelet's."""
    file = decoded(_FILE, content, FILE_NAME)
    text = file.data.encode()
    found = zlib.crc32(text)
    if file.checksum != found:
        fact = f"stored={file.checksum}, computed={found}"
        raise _error(CheckpointFault.WRONG_CHECKSUM, fact)
    data = decoded(_DATA, text, FILE_NAME)
    if (data.kind, data.version) != (KIND, VERSION):
        fact = f"kind={data.kind!r}, version={data.version!r}"
        raise _error(CheckpointFault.OTHER_VERSION, fact)
    claims = data.claims or ()
    if any(not one.uid for one in claims):
        raise _error(CheckpointFault.OTHER_SHAPE, "a claim has no ClaimUID")
    return tuple(
        PreparedClaim(
            claim_uid=one.uid,
            namespace=one.namespace,
            name=one.name,
            pods=frozenset(one.pods or ()),
        )
        for one in claims
    )


def _error(fault: CheckpointFault, detail: str) -> CheckpointError:
    return CheckpointError(fault, detail, name=FILE_NAME)
