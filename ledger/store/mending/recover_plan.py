"""What a recovery records (`recover`): one transaction, of which the database judges what fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ledger.domain.annotations.signed_allocation import Allocation
from ledger.domain.annotations.tenure import encode_shown
from ledger.domain.errors import CapacityError
from ledger.domain.log import events as log
from ledger.domain.log.codec import common_fields
from ledger.domain.log.drift import OVER_HELD
from ledger.domain.log.recorded import RECOVERY, NewEvent
from ledger.domain.log.standing import Own
from ledger.domain.log.state import GRANTED, Holding, NodeState, node_uid_of
from ledger.domain.resources import ANNOTATION_TENURE_ALLOCATION
from ledger.store.open import Ledger
from ledger.store.writing.append import start_epoch

SOURCE: Final = "signed-allocation"


@dataclass(slots=True, kw_only=True)
class PastEvents:
    """What one pass over the events tells."""

    own: Own
    nodes: dict[str, NodeState]
    known: set[tuple[str, int]]  # (pod uid, attempt) of every reservation there ever was
    requests: dict[str, str] = field(default_factory=dict)  # pod uid -> digest of what it asked for
    cuts: Mapping[str, int] = field(default_factory=dict)  # incarnation -> where it was lost

    def knows(self, allocation: Allocation) -> bool:
        """Tell whether the ledger ever had that reservation."""
        return (allocation.pod_uid, allocation.attempt) in self.known

    def cut(self, incarnation: str) -> int:
        """Return the last position before what was lost of an incarnation; else its last one."""
        kept = self.own.kept_to(incarnation)
        return self.cuts.get(incarnation, self.own.position) if kept is None else kept


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """What is to be recorded; `observed` are the allocations that the database refused."""

    past: PastEvents
    lost: tuple[log.LedgerRecovered, ...]
    gone: tuple[tuple[str, Holding], ...]
    allocations: tuple[Allocation, ...]
    texts: dict[str, str]
    name: str
    actor: str
    wall_us: int
    observed: dict[int, str] = field(default_factory=dict)

    def events(self, first: int) -> list[NewEvent]:
        """Return the events of the plan with only its first so many allocations."""
        words: list[tuple[str, log.LedgerEvent]] = [
            (f"lost/{event.lost_incarnation}/{event.lost_to}", event) for event in self.lost
        ]
        for node_uid, held in self.gone:
            gone = log.PodReleased(
                pod_uid=held.pod_uid, attempt=held.attempt, node_uid=node_uid, reason="gone"
            )
            words.append((f"gone/{held.key}@{held.opened_position}", gone))
        for allocation in self.allocations:  # of all first: one may hold what another one takes
            words += self._followed(allocation)
        for number, allocation in enumerate(self.allocations[:first]):
            words += self._again(allocation, self.observed.get(number))
        return [self._new(key, event) for key, event in words]

    def _new(self, key: str, event: log.LedgerEvent) -> NewEvent:
        uid = node_uid_of(event)
        return NewEvent(
            stream=f"node/{uid}" if uid else "sys",
            event=event,
            actor=self.actor,
            idempotency_key=f"{RECOVERY}{self.name}/{key}",
            wall_us=self.wall_us,
        )

    def _followed(self, allocation: Allocation) -> list[tuple[str, log.LedgerEvent]]:
        """Return what ends the earlier reservation that one took the place of."""
        found: list[tuple[str, log.LedgerEvent]] = []
        for node_uid, node in self.past.nodes.items():
            for held in node.holdings.values():
                if held.pod_uid == allocation.pod_uid and held.kind == GRANTED:
                    voided = log.PodVoided(
                        pod_uid=held.pod_uid,
                        attempt=held.attempt,
                        node_uid=node_uid,
                        reason=f"attempt {allocation.attempt} followed in what was lost",
                    )
                    found.append((f"void/{held.key}@{held.opened_position}", voided))
        return found

    def _again(
        self, allocation: Allocation, refused: str | None
    ) -> list[tuple[str, log.LedgerEvent]]:
        key = f"{allocation.pod_uid}/{allocation.attempt}"
        if refused is not None:
            drift = _drift(allocation, refused)
            asked = self.past.requests.get(allocation.pod_uid)
            return [(f"hold/{key}", _observed(allocation, asked)), (f"drift/{key}", drift)]
        bound = log.PodBound(
            pod_uid=allocation.pod_uid, attempt=allocation.attempt, node_uid=allocation.node_uid
        )
        again = _reserved(
            allocation,
            self.texts[allocation.pod_uid],
            self.past.requests.get(allocation.pod_uid),
        )
        return [(f"hold/{key}", again), (f"bound/{key}", bound)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Tries a plan on the database itself, which knows every rule."""

    ledger: Ledger
    plan: RecoveryPlan
    origin: str
    version: str
    above: int

    def carry_out(self, *, keep: bool) -> None:
        """Find out what fits, then record all of it if it is to be kept and if it is anything."""
        everything = len(self.plan.allocations)
        if not self.plan.events(everything):
            return
        self.settle()
        if keep:
            self.run(everything, keep=True)

    def run(self, first: int, *, keep: bool) -> str:
        """Record the plan's first so many allocations, or only try; return what was refused."""
        try:
            start_epoch(
                self.ledger.connection,
                holder=self.plan.actor,
                origin=self.origin,
                version=self.version,
                wall_us=self.plan.wall_us,
                place=self.ledger.url,
                above=self.above,
                then=self.plan.events(first),
                keep=keep,
            )
        except CapacityError as error:
            if keep:
                raise
            return str(error)
        return ""

    def settle(self) -> None:
        """Find the allocations that the database refuses to grant; each becomes observed."""
        fits, end = 0, len(self.plan.allocations)
        while fact := self.run(end, keep=False):
            low, high = fits, end  # the first `low` fit, the first `high` don't
            while high - low > 1:
                middle = (low + high) // 2
                refused = self.run(middle, keep=False)
                if refused:
                    high, fact = middle, refused
                else:
                    low = middle
            if high == 0 or high - 1 in self.plan.observed:
                raise CapacityError(fact)
            self.plan.observed[high - 1] = fact
            fits = low


def _reserved(said: Allocation, text: str, asked: str | None) -> log.PodReserved:
    annotations = {ANNOTATION_TENURE_ALLOCATION: text, **encode_shown(said.shown)}
    return log.PodReserved(
        **common_fields(said, log.PodReserved), annotations=annotations, request=asked
    )


def _observed(said: Allocation, asked: str | None) -> log.PodObserved:
    shown = encode_shown(said.shown)
    return log.PodObserved(
        **common_fields(said, log.PodObserved), source=SOURCE, annotations=shown, request=asked
    )


def _drift(said: Allocation, fact: str) -> log.DriftFound:
    alone = said.shares[0] if len(said.shares) == 1 else None
    return log.DriftFound(
        drift_id=f"{OVER_HELD}/{said.node_uid}/{said.pod_uid}/{said.attempt}",
        kind=OVER_HELD,
        node_uid=said.node_uid,
        detail=fact,
        device_type=alone.device_type if alone else "",
        minor=alone.minor if alone else -1,
        pod_uid=said.pod_uid,
    )
