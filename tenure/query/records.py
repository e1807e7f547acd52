"""Holders as records: what JSON carries and the tables show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ledger.domain.amounts import format_bytes, format_cores
from tenure.names import card_text
from tenure.output import Column
from tenure.times import iso_or_none, iso_time
from tenure.units import format_duration

if TYPE_CHECKING:
    from ledger.store.reading.report_rows import PodSummary, RefusalRow

WAITING: Final = "waiting"
PLACED: Final = "placed"
ENDED: Final = "ended"
REFUSED: Final = "refused"
"""At admission: the object never was, so nothing of it waits. Out of files: it is not decided."""
FITS: Final = "fits"
"""Out of files alone: it waits there, and would get a place."""


def state_of(pod: PodSummary, refusal: RefusalRow | None, *, held: bool) -> str:
    """Return where a Pod stands; `held`: its newest reservation is open, `refusal`: its newest."""
    from ledger.domain.log.events import STAGE_GONE
    from scheduler.service.api.words import WEBHOOK_ACTOR

    if held:
        return PLACED
    if pod.refused_position <= pod.reserved_position:
        return ENDED
    if refusal is not None and refusal.stage == STAGE_GONE:
        return ENDED
    return REFUSED if refusal is not None and refusal.actor == WEBHOOK_ACTOR else WAITING


if TYPE_CHECKING:
    from ledger.store.reading.report_rows import HolderRow


def holder_record(holder: HolderRow, *, now_us: int) -> dict[str, Any]:
    """Return a holder with base units, ISO times, and why it holds what it holds."""
    ended = now_us if holder.closed_at_us is None else holder.closed_at_us
    told = {
        "held": held_text(holder),
        "pod": holder.pod_name,
        "node": holder.node_name,
        "since": iso_time(holder.opened_at_us),
        "until": iso_or_none(holder.closed_at_us),
        "seconds": max(0, ended - holder.opened_at_us) / 1_000_000,
        "counted_until": iso_or_none(holder.counted_until_us),
        "end_reason": holder.end_reason or "",
        "event": holder.position,
    }
    keys = (*HOLDER_KEYS, "node_uid")
    record = {key: told[key] if key in told else getattr(holder, key) for key in keys}
    return record | ({"state": holder.state} if holder.state else {})


def held_text(holder: HolderRow) -> str:
    """Return the name of what is held: a card, cards nobody can name, CPUs, or a node alone."""
    if holder.device_type is not None and holder.minor is not None:
        return card_text(holder.node_name, holder.device_type, holder.minor)
    if holder.unknown_types:
        return f"{holder.node_name}/{holder.unknown_types}/?"
    return f"{holder.node_name}/cpu/{holder.cpuset}" if holder.cpuset else holder.node_name


def core_text(record: dict[str, Any]) -> str:
    """Return the share of a device: core percent, or - where no core was asked."""
    if record["device_type"] is None:
        return f"{format_cores(record['cpu_milli'])} cpu"
    return f"{record['core_percent']}%" if record["core_percent"] else "-"


def memory_text(record: dict[str, Any]) -> str:
    """Return the memory held, of the device where there is one."""
    return format_bytes(record["memory_bytes"]) if record["memory_bytes"] else "-"


def why_text(record: dict[str, Any]) -> str:
    """Return the event that gave it, by which policy, whether it was lost, and how it ended."""
    given = "given by others" if record["kind"] == "observed" else record["policy"]
    if "state" in record:
        given = f"a claim, {record['state']}"
    parts = [f"event {record['event']}", given, lost_text(record), record["end_reason"]]
    return ", ".join(part for part in parts if part)


def lost_text(record: dict[str, Any]) -> str:
    """Return that its node was lost, which ends what usage counts and frees nothing."""
    until = record["counted_until"]
    if until is None or until == record["until"]:
        return ""
    return f"lost with its node, counted to {until[:19] + until[-6:]}"


def shown(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with the texts of the tables beside its values."""
    namespace, pod = record["namespace"], record["pod"]
    return {
        **record,
        "pod_path": f"{namespace}/{pod}" if pod else "",
        "share": core_text(record),
        "memory": memory_text(record),
        "alone": "yes" if record["exclusive"] else "",
        "since_text": record["since"][:19] + record["since"][-6:],
        "until_text": record["until"][:19] + record["until"][-6:] if record["until"] else "",
        "lasted": format_duration(round(record["seconds"] * 1_000_000))
        if record["seconds"] >= 0.01  # a run without a clock takes microseconds
        else "",
        "why": why_text(record),
    }


HOLDER_COLUMNS: Final = (
    Column(key="held", title="HELD"),
    Column(key="pod_path", title="POD"),
    Column(key="share", title="CORE", right=True),
    Column(key="memory", title="MEMORY", right=True),
    Column(key="alone", title="EXCLUSIVE"),
    Column(key="since_text", title="SINCE"),
    Column(key="until_text", title="UNTIL"),
    Column(key="lasted", title="FOR", right=True),
    Column(key="why", title="WHY"),
    Column(key="owner", title="OWNER", wide=True),
    Column(key="model", title="MODEL", wide=True),
    Column(key="device_id", title="DEVICE", wide=True),
    Column(key="dialect", title="DIALECT", wide=True),
    Column(key="phase", title="PHASE", wide=True),
    Column(key="pod_uid", title="POD UID", wide=True),
)

HOLDER_KEYS: Final = (
    "held",
    "namespace",
    "pod",
    "pod_uid",
    "owner",
    "node",
    "device_type",
    "minor",
    "device_id",
    "model",
    "core_percent",
    "memory_bytes",
    "memory_ratio_percent",
    "exclusive",
    "cpu_milli",
    "cpuset",
    "unknown_types",
    "since",
    "until",
    "seconds",
    "end_reason",
    "event",
    "policy",
    "kind",
    "phase",
    "dialect",
    "attempt",
    "counted_until",
)
"""The columns of `-o csv`."""
