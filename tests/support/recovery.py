"""A cluster beside its ledger: the Pods with their signed annotations, and a ledger set back."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

from ledger.domain.annotations.signed_allocation import Allocation, encode_signed_allocation
from ledger.domain.log.events import PodReserved
from ledger.domain.log.recorded import RecordedEvent
from ledger.domain.log.standing import Witness
from ledger.domain.resources import ANNOTATION_TENURE_ALLOCATION
from ledger.signing import PrivateKey
from ledger.store.mending.recover import Recovery, SeenPod, incarnations, recover
from ledger.store.open import Ledger

KEY = "test+1"
_SECRET = b"nobody else knows"


def sign(message: bytes) -> bytes:
    """Return what stands for a signature where its kind does not matter."""
    return hmac.new(_SECRET, message, hashlib.sha512).digest()


def check(key: str, message: bytes, signature: bytes) -> bool:
    """Tell whether `sign` made it."""
    return key == KEY and hmac.compare_digest(sign(message), signature)


def allocation(ledger: Ledger, recorded: RecordedEvent, **changes: Any) -> Allocation:  # noqa: ANN401
    """Return what the scheduler signs once this reservation is durable."""
    event, envelope = recorded.event, recorded.envelope
    assert isinstance(event, PodReserved)
    lives, _ = incarnations(ledger)
    words: dict[str, Any] = {
        "origin": ledger.head().origin,
        "incarnation": lives[-1].name,
        "epoch": envelope.epoch,
        "position": envelope.position,
        "at_us": envelope.at_us,
    }
    kept = {name for name in Allocation.__dataclass_fields__ if hasattr(event, name)}
    words |= {name: getattr(event, name) for name in kept}
    return Allocation(**words | changes)


def seen_pod(
    signed: Allocation,
    signer: PrivateKey | None = None,
    **changes: Any,  # noqa: ANN401
) -> SeenPod:
    """Return the bound Pod that carries this allocation, signed by a real key if one is given."""
    key = KEY if signer is None else signer.public.key_id
    by = sign if signer is None else signer.sign
    text = encode_signed_allocation(signed, key=key, sign=by)[ANNOTATION_TENURE_ALLOCATION]
    words: dict[str, Any] = {
        "uid": signed.pod_uid,
        "namespace": signed.namespace,
        "name": signed.pod_name,
        "node_name": signed.node_name,
        "allocation": text,
    }
    return SeenPod(**words | changes)


def live_pods(ledger: Ledger, signer: PrivateKey | None = None, *, after: int = 0) -> list[SeenPod]:
    """Return the bound Pods of everything that the ledger grants now, all behind `after`."""
    recorded = {each.envelope.position: each for each in ledger.read_events(after=after)}
    rows = ledger.connection.exec_driver_sql(
        "SELECT position FROM ledger_reservations"
        " WHERE closed_position IS NULL AND kind = 'granted' ORDER BY position"
    ).all()
    ledger.connection.rollback()
    return [seen_pod(allocation(ledger, recorded[row[0]]), signer) for row in rows]


def witness(ledger: Ledger, by: str = "agent n-1", **changes: Any) -> Witness:  # noqa: ANN401
    """Return what an agent that follows the feed has seen: the head as it is."""
    head = ledger.head()
    lives, _ = incarnations(ledger)
    words: dict[str, Any] = {
        "origin": head.origin,
        "incarnation": lives[-1].name,
        "epoch": head.epoch,
        "position": head.position,
        "chain": head.chain_hash.hex(),
        "seen_by": by,
    }
    return Witness(**words | changes)


def recovered(
    ledger: Ledger,
    pods: Sequence[SeenPod],
    witnesses: Sequence[Witness] = (),
    *,
    incarnation: str = "i2",
    **changes: Any,  # noqa: ANN401
) -> Recovery:
    """Recover with the checker of these tests."""
    words: dict[str, Any] = {"check": check, "holder": "recover", "version": "0.1.0"}
    return recover(ledger, pods, witnesses, incarnation=incarnation, **words | changes)


def open_holdings(ledger: Ledger) -> set[tuple[Any, ...]]:
    """Return what is held now, without the positions that a recovery changes."""
    rows = ledger.connection.exec_driver_sql(
        "SELECT r.pod_uid, r.attempt, r.kind, n.node_uid, r.cpu_milli, r.memory_bytes, r.cpuset,"
        " r.dialect, r.labels, h.minor, h.core_percent, h.memory_bytes, h.exclusive"
        " FROM ledger_reservations AS r JOIN ledger_nodes AS n ON n.node_no = r.node_no"
        " LEFT JOIN ledger_holdings AS h ON h.position = r.position"
        " WHERE r.closed_position IS NULL"
    ).all()
    ledger.connection.rollback()
    return {tuple(row) for row in rows}
