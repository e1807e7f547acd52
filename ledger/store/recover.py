"""
Open a restored ledger again: what the world has seen and the ledger lacks is put back or named.

Rule: design section 8, "Restore". The database judges what fits: what it refuses as a grant is
recorded as a fact, observed, and as drift. Nothing is believed without a signature that holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import or_, select

from ledger.domain.annotations.signed_allocation import (
    Allocation,
    Checker,
    decode_signed_allocation,
)
from ledger.domain.errors import CapacityError, InputError
from ledger.domain.events import (
    DriftFound,
    LedgerEvent,
    LedgerRecovered,
    PodBound,
    PodObserved,
    PodReleased,
    PodReserved,
    PodVoided,
    decode_event,
)
from ledger.domain.recorded import NewEvent
from ledger.domain.resources import ANNOTATION_TENURE_ALLOCATION
from ledger.domain.standing import (
    Behind,
    ForeignOrigin,
    Forked,
    Incarnation,
    Lost,
    Own,
    Standing,
    Witness,
    incarnations_of,
    standing,
)
from ledger.domain.state import GRANTED, OBSERVED, Holding, NodeState, apply, node_uid_of
from ledger.store import schema
from ledger.store.append import start_epoch
from ledger.store.open import Ledger

OVER_HELD: Final = "OverHeld"
SOURCE: Final = "signed-allocation"
_RECOVERED: Final = LedgerRecovered.event_type
EPOCHS_MAX: Final = 10_000
"""A witness may not make a ledger start more epochs than this: such a number is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPod:
    """
    One Pod as the cluster has it now.

    Attributes:
        node_name: empty while it is not bound.
        running: it may hold devices: neither Succeeded nor Failed.
        allocation: the text of our signed annotation, None without one.
    """

    uid: str
    namespace: str
    name: str
    node_name: str
    running: bool = True
    allocation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What recovery does with one Pod or holding, and the fact that made it so."""

    pod: str  # namespace/name
    pod_uid: str
    node: str
    fact: str = ""
    kind: str = ""  # granted or observed, for what is re-created
    attempt: int = 0
    cards: int = 0
    cpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """
    What a recovery found and did.

    Attributes:
        incarnation: the one that is open afterwards.
        opened: whether this recovery opened it.
        recreated: holdings of lost positions, in the order of their reservations.
        disbelieved: Pods whose annotation does not check.
        unconfirmed: open holdings whose Pod was not among the Pods; kept.
        released: the same, given back because all Pods were given.
        position: the head afterwards; in a dry run the head as it is.
    """

    standing: Standing
    incarnation: str
    opened: bool
    recreated: tuple[Outcome, ...] = ()
    disbelieved: tuple[Outcome, ...] = ()
    unconfirmed: tuple[Outcome, ...] = ()
    released: tuple[Outcome, ...] = ()
    position: int = 0
    epoch: int = 0


@dataclass(slots=True, kw_only=True)
class _Past:
    """What one pass over the events tells."""

    own: Own
    nodes: dict[str, NodeState]
    known: set[tuple[str, int]]  # (pod uid, attempt) of every reservation there ever was


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is to be recorded; `observed` are the allocations that the database refused."""

    past: _Past
    lost: tuple[LedgerRecovered, ...]
    gone: tuple[tuple[str, Holding], ...]
    allocations: tuple[Allocation, ...]
    texts: dict[str, str]
    name: str
    actor: str
    wall_us: int
    observed: dict[int, str] = field(default_factory=dict)

    def events(self, first: int) -> list[NewEvent]:
        """Return the events of the plan with only its first so many allocations."""
        words: list[tuple[str, LedgerEvent]] = [
            (f"lost/{event.lost_incarnation}/{event.lost_to}", event) for event in self.lost
        ]
        for node_uid, held in self.gone:
            gone = PodReleased(
                pod_uid=held.pod_uid, attempt=held.attempt, node_uid=node_uid, reason="gone"
            )
            words.append((f"gone/{held.key}@{held.opened_position}", gone))
        for number, allocation in enumerate(self.allocations[:first]):
            words += self._again(allocation, self.observed.get(number))
        return [self._new(key, event) for key, event in words]

    def _new(self, key: str, event: LedgerEvent) -> NewEvent:
        uid = node_uid_of(event)
        return NewEvent(
            stream=f"node/{uid}" if uid else "sys",
            event=event,
            actor=self.actor,
            idempotency_key=f"recover/{self.name}/{key}",
            wall_us=self.wall_us,
        )

    def _again(self, allocation: Allocation, refused: str | None) -> list[tuple[str, LedgerEvent]]:
        """Return what makes one reservation again, after what it took the place of."""
        key = f"{allocation.pod_uid}/{allocation.attempt}"
        found: list[tuple[str, LedgerEvent]] = []
        for node_uid, node in self.past.nodes.items():
            for held in node.holdings.values():
                if held.pod_uid == allocation.pod_uid and held.kind == GRANTED:
                    voided = PodVoided(
                        pod_uid=held.pod_uid,
                        attempt=held.attempt,
                        node_uid=node_uid,
                        reason=f"attempt {allocation.attempt} followed in what was lost",
                    )
                    found.append((f"void/{held.key}@{held.opened_position}", voided))
        if refused is not None:
            drift = _drift(allocation, refused)
            return [*found, (f"hold/{key}", _observed(allocation)), (f"drift/{key}", drift)]
        bound = PodBound(
            pod_uid=allocation.pod_uid, attempt=allocation.attempt, node_uid=allocation.node_uid
        )
        again = _reserved(allocation, self.texts[allocation.pod_uid])
        return [*found, (f"hold/{key}", again), (f"bound/{key}", bound)]


def recover(
    ledger: Ledger,
    pods: Sequence[SeenPod],
    witnesses: Sequence[Witness],
    *,
    incarnation: str,
    check: Checker,
    holder: str,
    version: str,
    wall_us: int = 0,
    all_pods: bool = False,
    dry_run: bool = False,
) -> Recovery:
    """
    Open a ledger again that is behind its witnesses; a ledger that lacks nothing stays as it is.

    Rule: design section 8, "Restore". One transaction: epochs beyond every one that was seen, the
    lost ranges, what is gone, and the holdings of verified annotations of lost positions. What
    does not fit is observed, with drift `OverHeld`. A second call changes nothing.

    Args:
        incarnation: the name of the new one; unused if none has to be opened.
        all_pods: `pods` are every Pod of the cluster: holdings of others are released.
        dry_run: find out everything, record nothing.

    Raises:
        InputError: the ledger has another origin or another history than a witness has seen, or
            the incarnation's name is taken.
        LedgerError: the ledger is corrupt, or can't be written.
    """
    read = {pod.uid: _read(pod, check) for pod in pods if pod.allocation is not None}
    signed = {uid: each for uid, each in read.items() if isinstance(each, Allocation)}
    everyone = [*witnesses, *map(_witness, signed.values())]
    past = _past(ledger, {w.position for w in everyone}, set(signed))
    found = standing(past.own, everyone)
    _refuse(found, past.own, ledger.url, incarnation)
    disbelieved, allocations = _judged(pods, read, past)
    live = {pod.uid for pod in pods if pod.running}
    absent = [
        (uid, held)
        for uid, node in past.nodes.items()
        for held in node.holdings.values()
        if held.pod_uid not in live
    ]
    name = incarnation if isinstance(found, Behind) else past.own.incarnation
    plan = _Plan(
        past=past,
        lost=_recovered(found, past.own, incarnation),
        gone=tuple(absent) if all_pods else (),
        allocations=tuple(sorted(allocations, key=lambda a: (a.epoch, a.position))),
        texts={pod.uid: pod.allocation for pod in pods if pod.allocation is not None},
        name=name,
        actor=holder,
        wall_us=wall_us,
    )
    head = ledger.head()
    if plan.events(len(plan.allocations)):
        origin = head.origin or next((w.origin for w in everyone), "")
        attempt = _Attempt(
            ledger=ledger,
            plan=plan,
            origin=origin,
            version=version,
            above=found.epoch if isinstance(found, Behind) else 0,
        )
        attempt.settle()
        if not dry_run:
            attempt.run(len(plan.allocations), keep=True)
            head = ledger.head()
    names = {uid: node.name for uid, node in past.nodes.items()}
    gone = tuple(_outcome_of(held, names[uid]) for uid, held in absent)
    return Recovery(
        standing=found,
        incarnation=name,
        opened=bool(plan.lost),
        recreated=tuple(
            _outcome(allocation, plan.observed.get(number))
            for number, allocation in enumerate(plan.allocations)
        ),
        disbelieved=disbelieved,
        unconfirmed=() if all_pods else gone,
        released=gone if all_pods else (),
        position=head.position,
        epoch=head.epoch,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """Tries a plan on the database itself, which knows every rule."""

    ledger: Ledger
    plan: _Plan
    origin: str
    version: str
    above: int

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


def _read(pod: SeenPod, check: Checker) -> Allocation | str:
    """Return the Pod's allocation, or why it is not believed."""
    try:
        allocation = decode_signed_allocation(pod.allocation or "", check=check)
    except InputError as error:
        return error.message
    for what, said, seen in (
        ("Pod UID", allocation.pod_uid, pod.uid),
        ("Pod", f"{allocation.namespace}/{allocation.pod_name}", f"{pod.namespace}/{pod.name}"),
        ("node", allocation.node_name, pod.node_name),
    ):
        if said != seen:
            return f"signed for another {what}: {said or 'none'}"
    return allocation


def _witness(allocation: Allocation) -> Witness:
    return Witness(
        origin=allocation.origin,
        incarnation=allocation.incarnation,
        epoch=allocation.epoch,
        position=allocation.position,
        seen_by=f"Pod {allocation.namespace}/{allocation.pod_name}",
    )


def _past(ledger: Ledger, positions: set[int], uids: set[str]) -> _Past:
    """Read every event once: who holds what, what was recovered, the chain where others saw it."""
    recovered: list[LedgerRecovered] = []
    chains: dict[int, str] = {}
    past = _Past(own=Own(origin="", position=0, epoch=0), nodes={}, known=set())
    for each in ledger.read_events():
        event, position = each.event, each.envelope.position
        if position in positions:
            chains[position] = each.chain_hash.hex()
        if isinstance(event, LedgerRecovered):
            recovered.append(event)
        if isinstance(event, (PodReserved, PodObserved)) and event.pod_uid in uids:
            past.known.add((event.pod_uid, event.attempt))
        uid = node_uid_of(event)
        after = apply(past.nodes.get(uid), position, event) if uid else None
        if uid and after is not None:
            past.nodes[uid] = after
    lives, lost = incarnations_of(recovered)
    head = ledger.head()
    past.own = Own(
        origin=head.origin,
        position=head.position,
        epoch=head.epoch,
        incarnations=lives,
        lost=lost,
        chains=chains,
    )
    return past


def _refuse(found: Standing, own: Own, place: str, incarnation: str) -> None:
    match found:
        case ForeignOrigin(witness=witness):
            raise InputError(
                f"the ledger belongs to another origin: origin={own.origin},"
                f" witnessed={witness.origin}, by={witness.seen_by or 'a witness'}",
                place=place,
            )
        case Forked(witness=witness, fact=fact):
            raise InputError(
                f"another history than was seen: {fact}, by={witness.seen_by or 'a witness'}",
                place=place,
            )
        case Behind(lost=lost, epoch=epoch):
            taken = {each.name for each in own.incarnations} | {each.incarnation for each in lost}
            taken |= {each.incarnation for each in own.lost}
            if incarnation in taken:
                raise InputError(f"the incarnation's name is taken: {incarnation}", place=place)
            if epoch - own.epoch > EPOCHS_MAX:
                raise InputError(
                    f"no ledger had so many epochs: seen={epoch}, epoch={own.epoch}", place=place
                )
        case _:
            pass


def _recovered(found: Standing, own: Own, incarnation: str) -> tuple[LedgerRecovered, ...]:
    if not isinstance(found, Behind):
        return ()
    return tuple(
        LedgerRecovered(
            lost_from=lost.first,
            lost_to=lost.last,
            incarnation=incarnation,
            lost_incarnation=lost.incarnation,
            began_at=own.position + 1,
        )
        for lost in found.lost
    )


def _judged(
    pods: Sequence[SeenPod], read: dict[str, Allocation | str], past: _Past
) -> tuple[tuple[Outcome, ...], list[Allocation]]:
    """Return the Pods that are not believed, and the allocations to make again."""
    by_name = {node.name: uid for uid, node in past.nodes.items()}
    latest: dict[str, int] = {}
    for uid, attempt in past.known:
        latest[uid] = max(attempt, latest.get(uid, 0))
    disbelieved: list[Outcome] = []
    again: list[Allocation] = []
    for pod in pods:
        said = read.get(pod.uid)
        if said is None or not pod.running:
            continue
        fact = said if isinstance(said, str) else _doubt(said, past, by_name, latest)
        if fact:
            title = f"{pod.namespace}/{pod.name}"
            disbelieved.append(Outcome(pod=title, pod_uid=pod.uid, node=pod.node_name, fact=fact))
        elif isinstance(said, Allocation) and (said.pod_uid, said.attempt) not in past.known:
            again.append(said)
    return tuple(disbelieved), again


def _doubt(said: Allocation, past: _Past, by_name: dict[str, str], latest: dict[str, int]) -> str:
    """Return why a signed allocation is not believed after all, empty if it is."""
    known_node = by_name.get(said.node_name)
    if known_node is not None and known_node != said.node_uid:
        return f"signed for another node of that name: node_uid={said.node_uid}"
    if (said.pod_uid, said.attempt) in past.known:
        return ""
    if said.attempt < latest.get(said.pod_uid, 0):
        return f"the ledger knows a later attempt: attempt={latest[said.pod_uid]}"
    if past.own.has(said.incarnation, said.position):
        return f"the ledger has another event at the position: position={said.position}"
    return ""


def _reserved(said: Allocation, text: str) -> PodReserved:
    return PodReserved(
        pod_uid=said.pod_uid,
        attempt=said.attempt,
        namespace=said.namespace,
        pod_name=said.pod_name,
        node_uid=said.node_uid,
        node_name=said.node_name,
        cpu_milli=said.cpu_milli,
        memory_bytes=said.memory_bytes,
        shares=said.shares,
        cpuset=said.cpuset,
        annotations={ANNOTATION_TENURE_ALLOCATION: text},
        device_models=said.device_models,
        dialect=said.dialect,
        policy=said.policy,
        settings_hash=said.settings_hash,
        tenure_version=said.tenure_version,
        resource_version=said.resource_version,
        group=said.group,
        snapshot=said.snapshot,
    )


def _observed(said: Allocation) -> PodObserved:
    return PodObserved(
        pod_uid=said.pod_uid,
        attempt=said.attempt,
        namespace=said.namespace,
        pod_name=said.pod_name,
        node_uid=said.node_uid,
        node_name=said.node_name,
        source=SOURCE,
        cpu_milli=said.cpu_milli,
        memory_bytes=said.memory_bytes,
        shares=said.shares,
        cpuset=said.cpuset,
        device_models=said.device_models,
        dialect=said.dialect,
        snapshot=said.snapshot,
    )


def _drift(said: Allocation, fact: str) -> DriftFound:
    alone = said.shares[0] if len(said.shares) == 1 else None
    return DriftFound(
        drift_id=f"{OVER_HELD}/{said.pod_uid}/{said.attempt}",
        kind=OVER_HELD,
        node_uid=said.node_uid,
        detail=fact,
        device_type=alone.device_type if alone else "",
        minor=alone.minor if alone else -1,
        pod_uid=said.pod_uid,
    )


def _outcome(said: Allocation, refused: str | None) -> Outcome:
    return Outcome(
        pod=f"{said.namespace}/{said.pod_name}",
        pod_uid=said.pod_uid,
        node=said.node_name,
        fact=refused or "",
        kind=GRANTED if refused is None else OBSERVED,
        attempt=said.attempt,
        cards=len(said.shares),
        cpus=len(said.cpuset),
    )


def _outcome_of(held: Holding, node: str) -> Outcome:
    return Outcome(
        pod=f"{held.namespace}/{held.pod_name}",
        pod_uid=held.pod_uid,
        node=node,
        kind=held.kind,
        attempt=held.attempt,
        cards=len(held.shares),
        cpus=len(held.cpuset),
    )


def incarnations(ledger: Ledger) -> tuple[tuple[Incarnation, ...], tuple[Lost, ...]]:
    """Return the ledger's incarnations, the open one last, and the positions it knows as lost."""
    table = schema.ledger_events.c
    query = (
        select(table.event_type, table.body)
        .where(or_(table.event_type == "ledger.recovered.v1", table.event_type == _RECOVERED))
        .order_by(table.position)
    )
    with ledger.connection.begin():
        rows = ledger.connection.execute(query).all()
    events = [decode_event(row.event_type, row.body) for row in rows]
    return incarnations_of(event for event in events if isinstance(event, LedgerRecovered))
