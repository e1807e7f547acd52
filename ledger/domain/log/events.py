"""
The events of the ledger: what happened, in past participles, in words that never change.

A recorded type is never edited. A new meaning is a `.vN` beside the old one, with an upcaster in
`upcasts.py` and a stored sample of every version under `tests/samples/events`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from msgspec import field, structs

from ledger.domain import bounds
from ledger.domain.cpuset import EMPTY, CpuSet
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.errors import UnknownEventError
from ledger.domain.log import codec
from ledger.domain.log.layouts import read_with_cpus, read_with_facts
from ledger.domain.log.recorded_node import RecordedNode
from ledger.domain.log.recorded_request import RecordedRequest
from ledger.domain.log.upcasts import UPCASTS, Step, latest, upcast
from ledger.domain.log.workload import Workload
from ledger.domain.proofs.canonical import Recorded, canonical_json
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.systems import Claimant, SystemPart
from ledger.domain.topology import Cpu

POD: Final = "pod"
CLAIM: Final = "claim"
"""Who holds: a Pod, or a claim that Pods use."""


class EpochStarted(Recorded, frozen=True, kw_only=True, gc=False):
    """A writer took the ledger over. Older writers are fenced from here on."""

    event_type: ClassVar[str] = "epoch.started.v1"
    epoch: bounds.Count
    holder: str
    origin: str
    tenure_version: str


class SettingsChanged(Recorded, frozen=True, kw_only=True, gc=False):
    """The settings of deciding from here on. `settings_hash` is what reservations quote."""

    event_type: ClassVar[str] = "settings.changed.v1"
    settings_hash: str
    settings: str  # canonical JSON of the settings in force
    tenure_version: str


class WorkloadDescribed(Recorded, frozen=True, kw_only=True, gc=False):
    """
    The usual Pods that nodes are rated by from here on, where the node policy asks for them.

    Rule: docs/adr/0011, 0009. Replaces what was said before.
    """

    event_type: ClassVar[str] = "workload.described.v1"
    workload: Workload


class NodeInventoried(Recorded, frozen=True, kw_only=True, gc=False):
    """
    What a node has, from here on. Replaces the node's earlier inventory; holders stay.

    Rule: design section 4, "One account per physical device". A lost node is live again with it.

    Attributes:
        system_uuid, machine_id: the machine is both of them; where one is empty, it is the Node's
            own machine, equal to no other.
        boot_id: another one means that nothing runs any more that ran before.
        by_agent: the machine's own agent said so, which from then on also says what runs there.
    """

    event_type: ClassVar[str] = "node.inventoried.v1"
    node_uid: bounds.Name
    node_name: bounds.Name
    machine_id: bounds.Name = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    cpu_milli: bounds.Milli = 0
    memory_bytes: bounds.Count = 0
    devices: tuple[DeviceRecord, ...] = ()  # ordered by (device_type, minor)
    cpus: tuple[Cpu, ...] = ()
    cpu_ref_count_max: bounds.Units = 1
    system_uuid: bounds.Name = ""
    boot_id: bounds.Name = ""
    by_agent: bool = False


class NodeDescribed(Recorded, frozen=True, kw_only=True, gc=False):
    """
    What deciding reads of a node beside its inventory, from here on; replaces what was said before.

    Rule: docs/adr/0011. A decision was made on the newest description before it.

    Attributes:
        number: which of the nodes it is, in the order in which they are looked at, from 0.
        rank: of nodes that are rated alike the one with the lowest is taken.
    """

    event_type: ClassVar[str] = "node.described.v1"
    node_uid: bounds.Name
    node_name: bounds.Name
    facts: RecordedNode
    number: bounds.Count = 0
    rank: bounds.Count = 0


class NodeLost(Recorded, frozen=True, kw_only=True, gc=False):
    """
    A Node was deleted, or is out of service: what it held is counted to here, and stays held.

    Rule: design section 4, "One account per physical device". Its Pods may still run; no grants
    until the node is inventoried again. `reason` is `deleted`, `out-of-service` or an act's words.
    """

    event_type: ClassVar[str] = "node.lost.v1"
    node_uid: bounds.Name
    node_name: bounds.Name
    reason: str


AGENT: Final = "agent"
BOOT: Final = "boot"
ACT: Final = "act"


class NodeCleared(Recorded, frozen=True, kw_only=True, gc=False):
    """
    Nothing that a lost Node's Pods held runs any more: their accounts are open again.

    Rule: design section 4, "One account per physical device".

    Attributes:
        node_uid: the Node that was lost. What was granted to it after it came back is no part.
        evidence: `agent` (the machine's agent says that nothing runs), `boot` (the machine has
            another boot id than at the loss, and no agent ever reported from it) or `act`.
        witness_uid: the Node by which the machine is registered now; empty for an act.
    """

    event_type: ClassVar[str] = "node.cleared.v1"
    node_uid: bounds.Name
    node_name: bounds.Name
    evidence: str
    witness_uid: bounds.Name = ""
    reason: str = ""


class DeviceHealthChanged(Recorded, frozen=True, kw_only=True, gc=False):
    """A device was closed to grants or opened again. Holders stay (design section 8)."""

    event_type: ClassVar[str] = "device.health_changed.v1"
    node_uid: bounds.Name
    device_type: bounds.Name
    minor: bounds.Index
    device_id: bounds.Name
    healthy: bool
    reason: str


class RequestDescribed(Recorded, frozen=True, kw_only=True, gc=False):
    """
    What Pods of one kind ask for beside cpu and memory, recorded before the first that does.

    Rule: docs/adr/0011. Its digest is its name: decisions on such Pods say that alone.
    """

    event_type: ClassVar[str] = "request.described.v1"
    request: RecordedRequest


class PodReserved(Recorded, frozen=True, kw_only=True, gc=False):
    """
    The scheduler promised these shares to one Pod. Appended before Bind is sent.

    Attributes:
        attempt: 1 for the first reservation of this Pod UID; a voided one is followed by the next.
        resource_version: the Pod's, as read before deciding; empty in a simulation.
        shares: ordered by (device_type, minor).
        annotations: exactly the Binding's.
        request: the digest of what it asked for beside cpu and memory, as `RequestDescribed` has
            it; None where that is not known, as of a reservation read off a Pod after a restore.
        arrival: its number among those who arrived, which `random` draws by.
        score: what the node was rated, by the node policy or in the order of links; None where a
            draw or a group's plan chose it.
        runner_up, runner_up_score: the same of the best node but this one, empty and None without.
        decided_on: the position of the ledger on whose state alone its cards and CPUs were chosen,
            on the node that kube-scheduler named, with what `beside` and `dropped` say. None where
            nobody named the node, as in a simulation: all of the decision was made on the state
            before its commit; and of what was read off a Pod.
        beside: `<Pod UID>/<attempt>` of the reservations that counted as well and were on their
            way into the ledger; of its own command the one before it, which names the one before
            that. None = not told: all that were recorded on its node in between.
        dropped: groups whose recorded plans kept no places any more; their ends were on their way.
    """

    event_type: ClassVar[str] = "pod.reserved.v1"
    holder: ClassVar[str] = POD
    pod_uid: bounds.Name
    attempt: bounds.Number
    namespace: bounds.Name
    pod_name: bounds.Name
    node_uid: bounds.Name
    node_name: bounds.Name
    cpu_milli: bounds.Milli
    memory_bytes: bounds.Count
    shares: tuple[DeviceShare, ...] = ()
    cpuset: CpuSet = EMPTY
    annotations: Mapping[str, str] = field(default_factory=dict)
    device_models: tuple[str, ...] = ()  # one per share, same order
    dialect: str = ""
    policy: str = ""
    settings_hash: str = ""
    tenure_version: str = ""
    resource_version: str = ""
    group: str = ""
    snapshot: PodSnapshot = field(default_factory=PodSnapshot)
    request: str | None = None
    arrival: bounds.Count = 0
    score: bounds.Number | None = None
    runner_up: str = ""
    runner_up_score: bounds.Number | None = None
    decided_on: bounds.Position | None = None
    beside: tuple[bounds.Name, ...] | None = None
    dropped: tuple[bounds.Name, ...] = ()


class _OfReservation(Recorded, frozen=True, kw_only=True, gc=False):
    holder: ClassVar[str] = POD
    pod_uid: bounds.Name
    attempt: bounds.Number
    node_uid: bounds.Name


class PodBound(_OfReservation, frozen=True, kw_only=True, gc=False):
    """The API server accepted the Binding of this reservation."""

    event_type: ClassVar[str] = "pod.bound.v1"


class PodAssigned(_OfReservation, frozen=True, kw_only=True, gc=False):
    """The node confirmed that the Pod runs on what was reserved."""

    event_type: ClassVar[str] = "pod.assigned.v1"


class PodReleased(_OfReservation, frozen=True, kw_only=True, gc=False):
    """The holder is gone: every share and CPU of this reservation is free again."""

    event_type: ClassVar[str] = "pod.released.v1"
    reason: str


class PodVoided(_OfReservation, frozen=True, kw_only=True, gc=False):
    """A reservation that never became a bound Pod was taken back, behind a fence."""

    event_type: ClassVar[str] = "pod.voided.v1"
    reason: str


class ClaimResult(Recorded, frozen=True, kw_only=True, gc=False):
    """
    One device of a claim's allocation, in the words of the claim: what it was given by.

    Rule: docs/contracts/dra.md, 4.

    Attributes:
        request: the claim's, `<request>/<alternative>` of a prioritized list.
        share_id: empty where the device is given to one claim at a time.
        consumed: capacity by name, as written; empty where all of the device was given.
        admin: access that holds nothing.
        cpus: those that its driver is told to give; none of any driver but that of CPUs.
    """

    request: bounds.Name
    driver: bounds.Name
    pool: bounds.Name
    device: bounds.Name
    share_id: bounds.Name = ""
    consumed: Mapping[str, str] = field(default_factory=dict)
    admin: bool = False
    cpus: CpuSet = EMPTY


class _OfClaim(Recorded, frozen=True, kw_only=True, gc=False):
    """
    What every event of a claim's holding says; the claim is the holder, as else a Pod is.

    Attributes:
        attempt: 1 for the first holding of this claim UID; what ended is followed by the next.
    """

    holder: ClassVar[str] = CLAIM
    claim_uid: bounds.Name
    attempt: bounds.Number
    node_uid: bounds.Name

    @property
    def pod_uid(self) -> str:
        """Return the holder's UID, by the name that the tables have for it."""
        return self.claim_uid


class _OpensClaim(_OfClaim, frozen=True, kw_only=True, gc=False):
    """
    What opens a holding of a claim.

    Attributes:
        results: as allocated, in the claim's order; of two writes whose outcome is not known those
            of both.
        shares: what that is of physical devices and of counters, one share of each, ordered by
            (device_type, minor, device_id): the sum of the results, of two open writes the greater.
        device_models: one per share, same order.
        consumers: the Pods that the claim is reserved for, in the claim's order.
        cpuset: CPUs that the claim was given.
        resource_version: of the claim as it was before this write; of an observed one, as it was
            seen.
    """

    cpu_milli: ClassVar[int] = 0
    memory_bytes: ClassVar[int] = 0
    dialect: ClassVar[str] = "dra"
    namespace: bounds.Name
    claim_name: bounds.Name
    node_name: bounds.Name
    results: tuple[ClaimResult, ...] = ()
    shares: tuple[DeviceShare, ...] = ()
    device_models: tuple[str, ...] = ()
    consumers: tuple[Claimant, ...] = ()
    cpuset: CpuSet = EMPTY
    resource_version: str = ""
    snapshot: PodSnapshot = field(default_factory=PodSnapshot)

    @property
    def pod_name(self) -> str:
        """Return the holder's name, by the name that the tables have for it."""
        return self.claim_name


class ClaimReserved(_OpensClaim, frozen=True, kw_only=True, gc=False):
    """
    The gate let an allocation be written: these shares are the claim's. Appended before it answers.

    Rule: docs/adr/0025. A claim has one reservation at a time; while the outcome of two writes is
    open it is of the greater of both, so that no claim is counted against itself.
    """

    event_type: ClassVar[str] = "claim.reserved.v1"
    policy: ClassVar[str] = ""
    decided_on: ClassVar[int | None] = None
    settings_hash: str = ""
    tenure_version: str = ""


class ClaimObserved(_OpensClaim, frozen=True, kw_only=True, gc=False):
    """
    An allocation is stored that no gate let through: outside the capacity constraint, and counted.

    Attributes:
        source: where it was read, `resourceclaim`; `rewritten` where it is held beside what the
            gate let through, or what a Pod still runs with.
        unknown_types: device types that it holds of devices which nobody can name.
    """

    event_type: ClassVar[str] = "claim.observed.v1"
    source: str
    unknown_types: tuple[bounds.Name, ...] = ()


class ClaimBound(_OfClaim, frozen=True, kw_only=True, gc=False):
    """The allocation is stored in the claim's status."""

    event_type: ClassVar[str] = "claim.bound.v1"


class ClaimConsumed(_OfClaim, frozen=True, kw_only=True, gc=False):
    """Other Pods than before use the claim: these. Without any it is held all the same."""

    event_type: ClassVar[str] = "claim.consumed.v1"
    consumers: tuple[Claimant, ...] = ()


class ClaimReleased(_OfClaim, frozen=True, kw_only=True, gc=False):
    """The allocation is gone and the devices are free again."""

    event_type: ClassVar[str] = "claim.released.v1"
    reason: str


class ClaimVoided(_OfClaim, frozen=True, kw_only=True, gc=False):
    """A reservation whose allocation was never stored was taken back, behind a fence."""

    event_type: ClassVar[str] = "claim.voided.v1"
    reason: str


BY_CLAIM: Final = "resourceclaim"
"""The source of what a claim holds, however its status came to say so."""
BY_COUNT: Final = "count"
"""The source of what we placed ourselves, on cards that kubelet chooses."""


class PodObserved(Recorded, frozen=True, kw_only=True, gc=False):
    """
    Someone else gave this Pod its devices: kubelet, another scheduler, an earlier system.

    Lives outside the capacity constraint; a card it fills or over-fills is closed to grants.

    Attributes:
        source: where the holding was read, such as `device-allocated` or `checkpoint`; empty
            where nobody wrote it down.
        shares: ordered by (device_type, minor).
        unknown_types: device types it holds on cards that nobody can name; the node is closed
            for them, where they are not counted.
        counted: how many whole devices it holds on such cards, by type; a type is missing where
            that is not known either.
        annotations: what the Pod says beside numbers of what it holds: its `resource-status`, and
            its `device-allocated` where that names templates or AI cores.
        request: as of a reservation; None where its own object was not read, or breaks rules.
        group: the name of its group or gang, empty without one.
        arrival: as of a reservation, of a Pod that was placed here by count.
        parts: what others gave it of cards that no inventory has, by claims or annotations.
        faults: what its words say that can't be read or be so.
    """

    event_type: ClassVar[str] = "pod.observed.v1"
    holder: ClassVar[str] = POD
    pod_uid: bounds.Name
    attempt: bounds.Number
    namespace: bounds.Name
    pod_name: bounds.Name
    node_uid: bounds.Name
    node_name: bounds.Name
    source: str
    cpu_milli: bounds.Milli = 0
    memory_bytes: bounds.Count = 0
    shares: tuple[DeviceShare, ...] = ()
    cpuset: CpuSet = EMPTY
    device_models: tuple[str, ...] = ()
    unknown_types: tuple[bounds.Name, ...] = ()
    dialect: str = ""
    snapshot: PodSnapshot = field(default_factory=PodSnapshot)
    annotations: Mapping[str, str] = field(default_factory=dict)
    request: str | None = None
    group: str = ""
    counted: Mapping[str, bounds.Count] = field(default_factory=dict)
    arrival: bounds.Count = 0
    parts: tuple[SystemPart, ...] = ()
    faults: tuple[str, ...] = ()


class RefusalReason(Recorded, frozen=True, kw_only=True, gc=False):
    """
    One reason of a refusal, with the number of nodes it holds for and what would have helped.

    Attributes:
        nodes: how many nodes gave this as their first reason; 0 for a refusal by rule.
        nearest_node: the node that came closest, empty if none is close in numbers.
        detail: numbers at that node, such as `asks 4 cards, 2 free`.
        remedy: what would have made the Pod fit.
    """

    reason: str
    nodes: bounds.Count
    nearest_node: str = ""
    detail: str = ""
    remedy: str = ""


STAGE_GONE: Final = "gone"
"""The stage that ends a wait: the Pod was deleted before it had a place."""


class RequestRefused(Recorded, frozen=True, kw_only=True, gc=False):
    """
    A Pod was refused. Recorded when the set of reasons changes, prunable apart from holdings.

    Attributes:
        stage: `admission`, `takeover` or `scheduling`; `gone` ends the wait of a deleted Pod.
        shape: the request in short, such as `4 nvidia.com/gpu, 8 cpu, 32 GiB`.
        request: as of a reservation; None for one that breaks rules of ours.
        arrival: as of a reservation.
    """

    event_type: ClassVar[str] = "request.refused.v1"
    pod_uid: bounds.Name
    namespace: bounds.Name
    pod_name: bounds.Name
    stage: str
    message: str
    reasons: tuple[RefusalReason, ...] = ()
    shape: str = ""
    gpu_core_percent: bounds.CoreSum = 0
    policy: str = ""
    snapshot: PodSnapshot = field(default_factory=PodSnapshot)
    cpu_milli: bounds.Milli = 0
    memory_bytes: bounds.Count = 0
    request: str | None = None
    arrival: bounds.Count = 0


class GroupMember(Recorded, frozen=True, kw_only=True, gc=False):
    """One member of a group that a plan was made for; `request` as of a reservation."""

    pod_uid: bounds.Name
    namespace: bounds.Name
    pod_name: bounds.Name
    cpu_milli: bounds.Milli
    memory_bytes: bounds.Count
    qos: str
    request: str


class PlannedMember(Recorded, frozen=True, kw_only=True, gc=False):
    """
    One member of a group plan: its node and the GPUs that it is to get there.

    Attributes:
        minors: every GPU that it is to get, whole or a part of.
        whole: those of `minors` that it is to get alone. They are its places: until its reservation
            on that node, nobody else is granted anything of them. A part of a card is no place,
            for members may share one; a body from before there were places has none.
    """

    pod_uid: bounds.Name
    namespace: bounds.Name
    pod_name: bounds.Name
    node_uid: bounds.Name
    minors: tuple[bounds.Number, ...] = ()
    whole: tuple[bounds.Number, ...] = ()


class GroupPlanned(Recorded, frozen=True, kw_only=True, gc=False):
    """
    A whole group or gang was given nodes and devices before its members are bound.

    Replaces the group's plan before it: the places that are still open of that one are closed. A
    plan that gives nobody a place is recorded before the refusals that it is the reason of.

    Attributes:
        members: who got a place.
        waiting: whom it was made for, of those who are there, in their order.
        to_come: likewise, of members that arrive later.
        running: how many members run that were not decided here.
    """

    event_type: ClassVar[str] = "group.planned.v1"
    group: str
    members: tuple[PlannedMember, ...]
    waiting: tuple[GroupMember, ...] = ()
    to_come: tuple[GroupMember, ...] = ()
    running: bounds.Count = 0


class PlanDropped(Recorded, frozen=True, kw_only=True, gc=False):
    """
    A group plan stopped being valid; what it pre-occupied is free again.

    Attributes:
        pod_uid: the first member, in the order of the plan, whose place can't stand; empty where
            the time of a gang is over.
    """

    event_type: ClassVar[str] = "group.plan_dropped.v1"
    group: str
    reason: str
    pod_uid: bounds.Name = ""


class PreemptionDecided(Recorded, frozen=True, kw_only=True, gc=False):
    """
    Pods end for one that waits. Appended before the first is asked to, and again once it is over.

    Attributes:
        victims: their UIDs; what comes free of the node by their ends is for the Pod.
        until_us: so long no others end for it.
        over: why no more of them are asked to end; empty where that begins.
    """

    event_type: ClassVar[str] = "preemption.decided.v1"
    pod_uid: bounds.Name
    namespace: bounds.Name
    pod_name: bounds.Name
    node_uid: bounds.Name
    node_name: bounds.Name
    victims: tuple[bounds.Name, ...]
    until_us: bounds.Count
    over: str = ""


class DriftFound(Recorded, frozen=True, kw_only=True, gc=False):
    """
    The witnesses disagree. `kind` is the name of the disagreement, such as `OverHeld`.

    Attributes:
        pod_uid: of the holder that it is about, a Pod or a claim.
        cpus: what the kernel gives, where it is about that.
    """

    event_type: ClassVar[str] = "drift.found.v1"
    drift_id: str
    kind: str
    node_uid: bounds.Name
    detail: str
    device_type: bounds.Name = ""
    minor: bounds.Index = -1
    pod_uid: bounds.Name = ""
    cpus: CpuSet = EMPTY


class DriftResolved(Recorded, frozen=True, kw_only=True, gc=False):
    """A disagreement is over."""

    event_type: ClassVar[str] = "drift.resolved.v1"
    drift_id: str
    how: str


class SnapshotTaken(Recorded, frozen=True, kw_only=True, gc=False):
    """A snapshot of the folded state was stored; its digest is proved by the chain."""

    event_type: ClassVar[str] = "snapshot.taken.v1"
    at_position: bounds.Count
    digest: str


class SegmentArchived(Recorded, frozen=True, kw_only=True, gc=False):
    """
    Events `first`..`last` moved to an archive file.

    Attributes:
        digest: SHA-256 of the file, in hex like the other hashes.
        root: of the Merkle tree over the events 1..`last`.
        chain_hash: the chain value at `last`.
        state_digest: SHA-256 over what a reader that starts behind `last` must know.
        rows: by table, SHA-256 over its rows that ended in these events. A segment without them
            has rows that nobody can compare without its file.
    """

    event_type: ClassVar[str] = "segment.archived.v1"
    first: bounds.Count
    last: bounds.Count
    digest: str
    root: str
    chain_hash: str
    state_digest: str
    rows: Mapping[str, str] = field(default_factory=dict)


class LedgerRecovered(Recorded, frozen=True, kw_only=True, gc=False):
    """
    A ledger that was behind its witnesses was opened again; the range is unknown, not idle.

    Rule: design section 8, "Restore". Several incarnations that lost positions are several events.

    Attributes:
        lost_from, lost_to: positions of `lost_incarnation` that others saw and this ledger lacks.
        incarnation: the one that is open from here on.
        lost_incarnation: whose positions these are.
        began_at: the first position of the new incarnation in this ledger.
    """

    event_type: ClassVar[str] = "ledger.recovered.v1"
    lost_from: bounds.Count
    lost_to: bounds.Count
    incarnation: str
    lost_incarnation: str
    began_at: bounds.Count


class KeyRotated(Recorded, frozen=True, kw_only=True, gc=False):
    """
    Checkpoints are signed by another key from here on. Both keys signed that it follows.

    Attributes:
        old_key, new_key: verifier keys, `name+hash+base64`.
        note: the signed note of both (C2SP signed-note), which alone hands the trust on.
    """

    event_type: ClassVar[str] = "key.rotated.v1"
    old_key: str
    new_key: str
    note: str


class PositionVoided(Recorded, frozen=True, kw_only=True, gc=False):
    """
    The event at an earlier position counts for nothing: it should never have been let in.

    It stays in the log and in every hash. Readers take a void event in its place.

    Attributes:
        position: of the void event.
        leaf_hash: of the same, hex; what is void is these words and no others.
        reason: who found it, and why it can't be.
    """

    event_type: ClassVar[str] = "position.voided.v1"
    position: bounds.Exact
    leaf_hash: str
    reason: str


class CheckpointStored(Recorded, frozen=True, kw_only=True, gc=False):
    """The ledger keeps a signed checkpoint of itself: the note, and the size of its tree."""

    event_type: ClassVar[str] = "checkpoint.stored.v1"
    size: bounds.Count
    note: str


class CheckpointWithdrawn(Recorded, frozen=True, kw_only=True, gc=False):
    """
    A checkpoint that the ledger keeps counts for nothing: the events do not bear it out.

    It stays in its table. Counts only where none of the keys that are trusted signed it.

    Attributes:
        size: of the checkpoint, one of each size.
        note_hash: SHA-256 of its note, hex.
        keys: the verifier keys that were tried, in order of their text; none of them signed it.
        reason: who found it, and why it is false.
    """

    event_type: ClassVar[str] = "checkpoint.withdrawn.v1"
    size: bounds.Count
    note_hash: str
    keys: tuple[str, ...]
    reason: str


class TimeCorrected(Recorded, frozen=True, kw_only=True, gc=False):
    """
    Earlier positions were recorded by a clock that was off. Their recorded times stay.

    The true time of `first` to `last` is what the clock said, moved by `shift_seconds`; the newest
    correction of a position wins. Behind `first` nothing is later than its own clock said, and no
    event is before the one before it. The audit views tell true times.

    Attributes:
        reason: who found it, and how far the clock was off.
    """

    event_type: ClassVar[str] = "time.corrected.v1"
    first: bounds.Count
    last: bounds.Count
    shift_seconds: bounds.Seconds
    reason: str


LedgerEvent = (
    EpochStarted
    | SettingsChanged
    | WorkloadDescribed
    | NodeInventoried
    | NodeDescribed
    | NodeLost
    | NodeCleared
    | DeviceHealthChanged
    | RequestDescribed
    | PodReserved
    | PodBound
    | PodAssigned
    | PodReleased
    | PodVoided
    | PodObserved
    | ClaimReserved
    | ClaimObserved
    | ClaimBound
    | ClaimConsumed
    | ClaimReleased
    | ClaimVoided
    | RequestRefused
    | GroupPlanned
    | PlanDropped
    | PreemptionDecided
    | DriftFound
    | DriftResolved
    | SnapshotTaken
    | SegmentArchived
    | LedgerRecovered
    | KeyRotated
    | PositionVoided
    | CheckpointStored
    | CheckpointWithdrawn
    | TimeCorrected
)

ClaimEvent = (
    ClaimReserved | ClaimObserved | ClaimBound | ClaimConsumed | ClaimReleased | ClaimVoided
)
"""What happened to a claim's holding."""
Opening = PodReserved | PodObserved | ClaimReserved | ClaimObserved
"""What opens a holding, of a Pod or of a claim."""
GRANTS: Final = frozenset({PodReserved, ClaimReserved})
"""What takes of a device, inside the constraints."""
Ending = PodReleased | PodVoided | ClaimReleased | ClaimVoided

EVENT_TYPES: Final[Mapping[str, type[LedgerEvent]]] = {
    kind.event_type: kind for kind in LedgerEvent.__args__
}


def encode_event(event: LedgerEvent) -> str:
    """Return the canonical JSON body of `event`, as `encode_value`."""
    return codec.encode_value(event)


def decode_event(event_type: str, body: str, steps: Mapping[str, Step] = UPCASTS) -> LedgerEvent:
    """
    Return the event that `body` records; an older version is read in today's words, by `steps`.

    Raises:
        UnknownEventError: a type or version this release doesn't know; readers stop here.
        InputError: the body doesn't have the type's fields, or isn't canonical.
    """
    kind: codec.Declared = EVENT_TYPES.get(latest(event_type, steps) if steps else event_type)
    if kind is None:
        raise UnknownEventError(f"event of a newer version: event_type={event_type}")
    if event_type in steps:
        value = codec.canonical_object(body, event_type)
        body = canonical_json(upcast(event_type, value, steps))
    if kind is NodeInventoried:
        read = read_with_cpus(kind, body, event_type)
        if read is not None and len(read[1]) == 1:
            inventory: NodeInventoried = structs.replace(read[0], cpus=read[1][0])
            return inventory
    if kind is NodeDescribed:
        described: NodeDescribed | None = read_with_facts(kind, body, event_type)
        if described is not None:
            return described
    event: LedgerEvent = codec.read_value(kind, body, event_type)
    return event


def skim_event(event_type: str, body: str) -> LedgerEvent:
    """
    Return what `decode_event` returns, faster, of a body that is read by that elsewhere.

    Raises as `decode_event`, but not for a body that is another text of its event.
    """
    kind: codec.Declared = EVENT_TYPES.get(event_type)
    if kind is not None and kind is not NodeInventoried and event_type not in UPCASTS:
        try:
            event: LedgerEvent = codec.read_unchecked(kind, body)
        except (ValueError, RecursionError):
            pass  # what is wrong with it is said below
        else:
            return event
    return decode_event(event_type, body)
