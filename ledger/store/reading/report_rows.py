"""The rows that the report's and the questions' queries return. Moments are microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderRow:
    """
    One Pod's part of one device, or its whole reservation (`device_type` and `minor` None).

    `position` is the event that gave it, `closed_position` the one that ended it. `unknown_types`
    of a whole reservation: types of devices that nobody can name, comma-separated.
    """

    position: int
    pod_uid: str = ""
    attempt: int = 0
    namespace: str
    pod_name: str
    owner: str = ""
    node_uid: str
    node_name: str
    device_type: str | None = None
    minor: int | None = None
    device_id: str = ""
    model: str = ""
    core_percent: int = 0
    memory_bytes: int = 0
    memory_ratio_percent: int = 0
    exclusive: bool = False
    cpu_milli: int = 0
    cpuset: str = ""
    kind: str
    phase: str
    dialect: str
    policy: str = ""
    opened_at_us: int
    closed_at_us: int | None = None
    closed_position: int | None = None
    end_reason: str | None = None
    counted_until_us: int | None = None  # where usage ends: the end, or the loss of its node
    device_no: int | None = None
    unknown_types: str = ""
    holder: str = "pod"  # or `claim`, which pod_uid and pod_name are of then
    state: str = ""  # of a claim that no Pod tells of, why


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device as it stands now."""

    node_uid: str
    node_name: str
    device_type: str
    minor: int
    device_id: str
    model: str
    core_capacity_percent: int
    memory_capacity_bytes: int
    core_used_percent: int
    memory_used_bytes: int
    tenants: int
    healthy: bool
    closed_reason: str
    device_no: int = 0
    unique_id: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node as last inventoried: 0 CPU or memory = not told, `lost_position` None = not lost."""

    node_uid: str
    node_name: str
    cpu_milli: int
    memory_bytes: int
    machine_no: int = 0
    lost_position: int | None = None
    system_uuid: str = ""
    machine_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRow:
    """
    A device was closed to grants, or opened again.

    Its place is today's, where another device may have been; `device_no` is the device.
    """

    position: int
    at_us: int
    node_uid: str
    device_type: str
    minor: int
    healthy: bool
    reason: str
    device_no: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRow:
    """A Pod was refused; `body` is the event's JSON, with the reasons as values, `actor` whose."""

    position: int
    at_us: int
    pod_uid: str
    namespace: str
    pod_name: str
    owner: str
    stage: str
    message: str
    shape: str
    policy: str
    body: str
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRow:
    """
    A disagreement that is open; `minor` None where it is not about one device.

    Where the ledger knows its Pod or claim: whose it is, and the position that gave that something
    last (`opened_by`); else None.
    """

    position: int
    drift_id: str
    kind: str
    node_uid: str
    node_name: str | None
    device_type: str
    minor: int | None
    pod_uid: str
    namespace: str | None
    pod_name: str | None
    detail: str
    opened_at_us: int
    holder: str | None = None
    opened_by: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSummary:
    """Where one Pod stands: its newest reservation and its newest refusal, 0 for none."""

    pod_uid: str
    namespace: str
    pod_name: str
    owner: str = ""
    reserved_position: int = 0
    refused_position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLifeRow:
    """
    One reservation of a Pod, and where in the log its life is told.

    `bound_position`: of the last event that says bound; None where it is not, or has ended.
    `positions`: of the reservation, the loss of its node and its end; None for what was not.
    """

    pod_uid: str
    attempt: int
    node_uid: str
    bound_position: int | None
    positions: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """Hours of one group over a window; `cpu_hours` None where CPUs have no group (models)."""

    group: str
    pods: int
    gpu_hours: float
    cpu_hours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """
    The counts of a headline, in Pods.

    `refused`: at least once. `waiting`: nothing since the last refusal, unless that was at
    admission (`at_admission`): those objects never were.
    """

    decided: int
    placed: int
    refused: int
    waiting: int
    at_admission: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The first and last moment and position of the ledger; equal moments = a run without clock."""

    first_at_us: int
    last_at_us: int
    last_position: int


class LostRange(NamedTuple):
    """From the last event before a recovery to the recovery: nobody knows what happened."""

    opened_at_us: int
    closed_at_us: int


class HoldingRow(NamedTuple):
    """One holding there ever was, small: a report reads all of them."""

    position: int
    node_uid: str
    device_type: str
    minor: int
    namespace: str
    pod_name: str
    pod_uid: str
    core_percent: int
    memory_bytes: int
    memory_ratio_percent: int
    exclusive: int
    kind: str
    policy: str
    end_reason: str | None
    opened_at_us: int
    closed_at_us: int | None
    closed_position: int | None
    device_no: int = 0
    counted_until_us: int | None = None


class UnplacedRow(NamedTuple):
    """A Pod that held devices which nobody can name; `gpu_count` is how many of these are GPUs."""

    position: int
    node_uid: str
    namespace: str
    pod_name: str
    pod_uid: str
    owner: str
    labels: str
    opened_at_us: int
    closed_at_us: int | None
    closed_position: int | None
    end_reason: str | None
    counted_until_us: int | None
    gpu_count: int


class PlacingRow(NamedTuple):
    """A Pod that was refused at some time got a place."""

    position: int
    pod_uid: str
    node_uid: str
    opened_at_us: int


class UnknownRow(NamedTuple):
    """
    A Pod that somebody else placed.

    `body`: its event's JSON, with the unknown devices; None where that is in an archive. Then
    `unknown_types` are their types, comma-separated, and `gpu_count` counts these GPUs alone.
    """

    position: int
    node_uid: str
    node_name: str
    namespace: str
    pod_name: str
    pod_uid: str
    attempt: int
    gpu_count: int
    body: str | None
    holder: str
    unknown_types: str = ""
