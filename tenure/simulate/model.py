"""What a run of the simulation is made of, and what comes out of it: plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ledger.domain.request.requests import PodRequest
from ledger.domain.vocabulary import Vocabulary
from scheduler.cluster.claim_asks import ClaimWorld
from scheduler.cluster.constraints import Unread
from scheduler.cluster.model import Clearing, Cluster, HealthChange, NodeChange, Pod
from tenure.simulate.vgpus import VgpuAsk


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """
    One Pod that asks for a place.

    Attributes:
        at_us: virtual time, microseconds since the epoch; carried by the events of the decision.
        lifetime_us: how long it holds its place once placed, in a timed run; None = forever.
        end_reason: what its release is recorded with.
    """

    at_us: int
    pod: Pod
    lifetime_us: int | None = None
    end_reason: str = "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodChange:
    """A Pod gets other labels under its UID or, with `pod` None, ends. `arrival` is an index."""

    at_us: int
    arrival: int
    pod: Pod | None
    reason: str = ""


Change = HealthChange | NodeChange | Clearing | PodChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Cluster):
    """
    Everything a simulation is fed with; the same run gives the same ledger, byte for byte.

    Attributes:
        source: what the inputs were: `manifests`, `openb` or `trace`.
        arrivals: in the order of decision; a timed run needs `at_us` ascending.
        changes: ascending by `at_us`; only a timed run has any.
        typical: the workload whose shapes the fragmentation measure weighs; empty = the arrivals.
        rank: tie-break order per node, 0 first; None = the order of `nodes`.
        start_us: virtual time of inventory, settings and adoption.
        inputs_hash: hex SHA-256 over all that may change a decision, settings and seed aside.
        timed: Pods leave, devices die, pending Pods are tried again.
        unread: what restricts where Pods may go and is not looked at, Pod by Pod.
        claims_there: what there is for claims, and who asks for it by them.
        vocabulary: what words mean there, where the inputs tell it.
        vgpus: UID of a Pod -> what it asks for in Volcano's words, of those that are decided.
        end_us: a timed run stops here, with what is held still held; None = when all have left.
    """

    source: str
    arrivals: Sequence[Arrival]
    start_us: int
    inputs_hash: str
    changes: tuple[Change, ...] = ()
    typical: Sequence[PodRequest] = ()
    rank: tuple[int, ...] | None = None
    timed: bool = False
    end_us: int | None = None
    unread: Sequence[Unread] = ()
    vocabulary: Vocabulary | None = None
    claims_there: ClaimWorld = field(default_factory=ClaimWorld)
    vgpus: Mapping[str, tuple[VgpuAsk, ...]] = field(default_factory=dict)
