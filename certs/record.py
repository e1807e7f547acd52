"""
The Secret that holds the certificates, and how a rotation is written in it.

    kind: Secret
    type: kubernetes.io/tls
    metadata.annotations:
      tenure.sh/rotation: '{"phase":"publishing","published_at":"...","since":"..."}'
      tenure.sh/rotate-requested: "2026-03-02T10:00:00Z"     # set by `tenure certs rotate`
    data:
      tls.crt, tls.key          the leaf that every replica serves
      ca.crt                    what clients must trust: one authority, or two during a rotation
      authority.crt, .key       signs the leaf
      other.crt, other.key      the new authority while publishing, the old one while serving

One write changes all of it, and only if nobody else wrote in between.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from certs.material import CertificateError, KeyPair, belongs_together, facts_of
from certs.plan import Phase, RotationRecord
from certs.ports import Object

ROTATION: Final = "tenure.sh/rotation"
REQUESTED: Final = "tenure.sh/rotate-requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRecord:
    """What the Secret holds, keys included."""

    phase: Phase
    since: datetime
    published_at: datetime | None
    authority: KeyPair
    leaf: KeyPair
    other: KeyPair | None = None
    requested: bool = False

    @property
    def bundle(self) -> bytes:
        """The authorities that clients must trust, the signing one first."""
        both = (self.authority, self.other)
        return b"".join(pair.certificate for pair in both if pair is not None)

    def facts(self) -> RotationRecord:
        """
        Return the record without keys, as the plan reads it.

        Raises:
            CertificateError: a certificate can't be read, or an authority's key is not its own.
        """
        for authority in (self.authority, self.other):
            if authority is not None and not belongs_together(authority):
                raise CertificateError("an authority's key does not belong to its certificate")
        return RotationRecord(
            phase=self.phase,
            since=self.since,
            published_at=self.published_at,
            authority=facts_of(self.authority.certificate),
            leaf=facts_of(self.leaf.certificate),
            other=None if self.other is None else facts_of(self.other.certificate),
            requested=self.requested,
            sound=belongs_together(self.leaf),
        )


def read_record(secret: Object) -> SecretRecord | None:
    """Return a Secret's record, None = it has none yet. Raises CertificateError: with the field."""
    data = secret.get("data") or {}
    if not any(data.get(key) for key in ("tls.crt", "authority.crt")):
        return None
    annotations = secret["metadata"].get("annotations") or {}
    try:
        rotation = json.loads(annotations[ROTATION])
        phase = Phase(rotation["phase"])
        since = _moment(rotation["since"])
        said = rotation["published_at"]
        published_at = _moment(said) if said else None
    except (KeyError, TypeError, ValueError) as error:
        raise CertificateError(
            f"the Secret's rotation can't be read: {_place(secret)}, annotation={ROTATION}"
        ) from error
    other = _pair(secret, "other.crt", "other.key") if data.get("other.crt") else None
    if (other is None) != (phase is Phase.STABLE):
        raise CertificateError(
            f"the Secret contradicts itself: {_place(secret)}, phase={phase},"
            f" other={'absent' if other is None else 'present'}"
        )
    return SecretRecord(
        phase=phase,
        since=since,
        published_at=published_at,
        authority=_pair(secret, "authority.crt", "authority.key"),
        leaf=_pair(secret, "tls.crt", "tls.key"),
        other=other,
        requested=bool(annotations.get(REQUESTED)),
    )


def write_record(record: SecretRecord, secret: Object) -> dict[str, Any]:
    """Return the Secret with this record in it; its name, version and the rest stay."""
    metadata = dict(secret["metadata"])
    annotations = dict(metadata.get("annotations") or {})
    rotation = {
        "phase": str(record.phase),
        "published_at": _time(record.published_at) if record.published_at else "",
        "since": _time(record.since),
    }
    annotations[ROTATION] = json.dumps(rotation, sort_keys=True, separators=(",", ":"))
    if not record.requested:
        annotations.pop(REQUESTED, None)
    metadata["annotations"] = annotations
    pairs = {"tls": record.leaf, "authority": record.authority, "other": record.other}
    data = {"ca.crt": record.bundle}
    for name, pair in pairs.items():
        if pair is not None:
            data |= {f"{name}.crt": pair.certificate, f"{name}.key": pair.key}
    return {
        **secret,
        "metadata": metadata,
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def new_secret(namespace: str, name: str) -> dict[str, Any]:
    """Return a Secret to write the first record into."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"namespace": namespace, "name": name},
    }


def _pair(secret: Object, certificate: str, key: str) -> KeyPair:
    return KeyPair(certificate=_bytes(secret, certificate), key=_bytes(secret, key))


def _bytes(secret: Object, field: str) -> bytes:
    try:
        return base64.b64decode(secret["data"][field], validate=True)
    except (KeyError, TypeError, binascii.Error) as error:
        raise CertificateError(
            f"the Secret lacks a part: {_place(secret)}, field=data.{field}"
        ) from error


def _place(secret: Object) -> str:
    metadata = secret.get("metadata") or {}
    return f"secret={metadata.get('namespace', '')}/{metadata.get('name', '')}"


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    return moment


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
