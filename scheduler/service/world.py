"""What one live scheduler works with, handed in as one; a simulation hands in virtual parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from certs.ports import Objects
from ledger.domain.annotations.signed import Checker
from ledger.domain.dialects.dra.accounts import UntoldDevices
from scheduler.cluster.settings import InText
from scheduler.record.events import DecidedBy
from scheduler.service.binding import Proofs
from scheduler.service.evicting import Mode
from scheduler.service.freshness import Freshness
from scheduler.service.leading import Leading
from scheduler.service.ports import Attempts, Clock, Recorder, Start
from scheduler.service.refusing import History
from scheduler.service.view import ClusterView


async def _no_attempts(_: Sequence[str]) -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """
    What a live scheduler works with.

    Attributes:
        origin: whose ledger it is: `ledger/<cluster uid>`.
        leading: only who leads gives anything out; ends are recorded without the lead.
        documents_in: the YAML documents of a text.
        proofs: made once the view is there, which knows machines.
        trusted: tells whether nodes trust the key of a proof; None = Pods carry no proofs.
        skew: seconds that our clock is ahead of the API server's.
        evicts: of a gang that missed its deadline nobody stays.
        preemption: who ends for a Pod that waits for what sums do not show.
        drivers: whose devices pass the gate; claims of every other driver of cards are observed.
        untold: what becomes of devices of which no metal can be told.
    """

    origin: str
    recorder: Recorder
    api: Objects
    clock: Clock
    freshness: Freshness
    leading: Leading
    words: DecidedBy
    proofs: Callable[[ClusterView], Proofs]
    told: History
    documents_in: InText
    start: Start
    actor: str
    trusted: Checker | None = None
    skew: Callable[[], float] = float
    evicts: bool = False
    preemption: Mode = "off"
    drivers: tuple[str, ...] = ()
    untold: UntoldDevices = "refuse"
    attempts: Attempts = _no_attempts
