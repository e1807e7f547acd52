"""
Open a restored ledger again: what the world has seen and the ledger lacks is put back or named.

Rule: design section 8, "Restore". What the database refuses as a grant is recorded as observed, and
as drift. Nothing is believed without a signature that holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select

from ledger.domain.annotations.proof import SignedHolding, decode_proof
from ledger.domain.annotations.signed import Checker
from ledger.domain.annotations.signed_allocation import Allocation, decode_signed_allocation
from ledger.domain.errors import InputError
from ledger.domain.log import events
from ledger.domain.log.standing import (
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
from ledger.domain.log.state import GRANTED, OBSERVED, Folding, Holding, LedgerState
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.store import schema
from ledger.store.archives.archived_proof import archived_past
from ledger.store.mending.recover_plan import Attempt, PastEvents, RecoveryPlan
from ledger.store.open import Ledger
from ledger.store.reading.kept import events_of

EPOCHS_MAX: Final = 10_000
"""A witness may not make a ledger start more epochs than this: such a number is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPod:
    """
    One Pod as the cluster has it now.

    Attributes:
        node_name: empty while it is not bound.
        running: it may hold devices: neither Succeeded nor Failed.
        allocation, proof: the texts of our signed annotations, None without one. A proof tells
            where a reservation was, and not enough to make it again.
    """

    uid: str
    namespace: str
    name: str
    node_name: str
    running: bool = True
    allocation: str | None = None
    proof: str | None = None


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
        incarnation: the one that is open afterwards; `opened` by this recovery.
        recreated: holdings of lost positions, in the order of their reservations.
        disbelieved: Pods whose annotation does not check.
        unconfirmed: open holdings whose Pod was not among the Pods; they stay.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signed:
    """An allocation whose signature holds, and the id of the key that made it."""

    allocation: Allocation
    key: str


Doubt = Callable[[str, int], str]
"""(key id, position of this ledger) -> why that key is not believed there, empty if it is."""


def no_doubt(key: str, moment: int) -> str:
    """Believe a key whenever it signed."""
    del key, moment
    return ""


def recover(
    ledger: Ledger,
    pods: Sequence[SeenPod],
    witnesses: Sequence[Witness],
    *,
    incarnation: str,
    check: Checker,
    doubt: Doubt = no_doubt,
    holder: str,
    version: str,
    wall_us: int = 0,
    all_pods: bool = False,
    api_restored: bool = False,
    dry_run: bool = False,
) -> Recovery:
    """
    Open a ledger again that is behind its witnesses; a ledger that lacks nothing stays as it is.

    Rule: design section 8, "Restore". One transaction: epochs beyond every one that was seen, the
    lost ranges, what is gone, and the holdings of verified annotations of lost positions. What does
    not fit is observed, with drift `OverHeld`. A second call changes nothing.

    Args:
        incarnation: the name of the new one; unused if none has to be opened.
        doubt: why a key that checks is not believed at a position, such as one rotated away.
        all_pods: `pods` are every Pod of the cluster: holdings of others are released.
        api_restored: the API server was set back: a new incarnation is opened also where the ledger
            lacks nothing, and versions count anew from there.
        dry_run: find out everything, record nothing.

    Raises:
        InputError: the ledger has another origin or another history than a witness has seen, or the
            incarnation's name is taken.
        LedgerError: the ledger is corrupt, or can't be written.
    """
    read = {pod.uid: _read(pod, check) for pod in pods if pod.allocation is not None}
    proofs = {pod.uid: proof for pod in pods if (proof := _proven(pod, check)) is not None}
    paths = {pod.uid: f"{pod.namespace}/{pod.name}" for pod in pods}
    of_nodes = (_witness(proof, proof.cluster, paths[uid]) for uid, proof in proofs.items())
    witnesses = [*witnesses, *of_nodes]
    past = _past(ledger, [*witnesses, *_witnesses(read)], {*read, *proofs})
    read = _in_force(ledger, read, past, doubt)
    everyone = [*witnesses, *_witnesses(read)]
    found = standing(past.own, everyone)
    _refuse(found, past.own, ledger.url, incarnation)
    disbelieved, allocations = _judged(pods, read, proofs, past)
    absent = _absent(pods, past)
    plan = RecoveryPlan(
        past=past,
        lost=_recovered(found, past.own, incarnation, api_restored=api_restored),
        gone=absent if all_pods else (),
        allocations=allocations,
        texts={pod.uid: pod.allocation for pod in pods if pod.allocation is not None},
        name=incarnation if isinstance(found, Behind) or api_restored else past.own.incarnation,
        actor=holder,
        wall_us=wall_us,
    )
    attempt = Attempt(
        ledger=ledger,
        plan=plan,
        origin=past.own.origin or next((each.origin for each in everyone), ""),
        version=version,
        above=found.epoch if isinstance(found, Behind) else 0,
    )
    attempt.carry_out(keep=not dry_run)
    head = ledger.head()
    names = {uid: node.name for uid, node in past.nodes.items()}
    gone = tuple(_outcome(held, names[uid], held.kind) for uid, held in absent)
    return Recovery(
        standing=found,
        incarnation=plan.name,
        opened=bool(plan.lost),
        recreated=tuple(
            _made_again(allocation, plan.observed.get(number))
            for number, allocation in enumerate(plan.allocations)
        ),
        disbelieved=disbelieved,
        unconfirmed=() if all_pods else gone,
        released=gone if all_pods else (),
        position=head.position,
        epoch=head.epoch,
    )


def _read(pod: SeenPod, check: Checker) -> _Signed | str:
    keys: list[str] = []

    def noted(key: str, message: bytes, signature: bytes) -> bool:
        keys.append(key)
        return check(key, message, signature)

    try:
        allocation = decode_signed_allocation(pod.allocation or "", check=noted)
    except InputError as error:
        return error.message
    for what, said, seen in (
        ("Pod UID", allocation.pod_uid, pod.uid),
        ("Pod", f"{allocation.namespace}/{allocation.pod_name}", f"{pod.namespace}/{pod.name}"),
        ("node", allocation.node_name, pod.node_name),
    ):
        if said != seen:
            return f"signed for another {what}: {said or 'none'}"
    return _Signed(allocation=allocation, key=keys[-1])


def _proven(pod: SeenPod, check: Checker) -> SignedHolding | None:
    try:
        proof = None if pod.proof is None else decode_proof(pod.proof, check=check)
    except InputError:
        return None  # what it tells besides is in the allocation, which names what is wrong
    return proof if proof is not None and proof.pod_uid == pod.uid else None


def _witness(signed: SignedHolding | Allocation, origin: str, pod: str) -> Witness:
    return Witness(
        origin=origin,
        incarnation=signed.incarnation,
        epoch=signed.epoch,
        position=signed.position,
        seen_by=f"Pod {pod}",
    )


def _in_force(
    ledger: Ledger, read: Mapping[str, _Signed | str], past: PastEvents, doubt: Doubt
) -> dict[str, _Signed | str]:
    """Return the same, less what this ledger can't have signed at that time."""
    found: dict[str, _Signed | str] = {}
    for uid, each in read.items():
        found[uid] = each
        if isinstance(each, _Signed):
            said, cut = each.allocation, past.cut(each.allocation.incarnation)
            fact = doubt(each.key, min(said.position, cut))
            if not fact and said.position > cut and said.epoch < _epoch_at(ledger, cut):
                fact = f"an epoch that had ended: epoch={said.epoch}, position={said.position}"
            found[uid] = fact or each
    return found


def _epoch_at(ledger: Ledger, position: int) -> int:
    """Return the epoch of an event, 0 for none: an event that starts an epoch is never archived."""
    table = schema.ledger_events.c
    with ledger.connection.begin():
        before = table.position <= position
        query = select(table.epoch).where(before).order_by(table.position.desc()).limit(1)
        return ledger.connection.execute(query).scalar() or 0


def _witnesses(read: Mapping[str, _Signed | str]) -> list[Witness]:
    signed = [each.allocation for each in read.values() if isinstance(each, _Signed)]
    return [_witness(each, each.origin, f"{each.namespace}/{each.pod_name}") for each in signed]


def _absent(pods: Sequence[SeenPod], past: PastEvents) -> tuple[tuple[str, Holding], ...]:
    """Return what is held, with its node's UID, for Pods that are not there or have ended."""
    live = {pod.uid for pod in pods if pod.running}
    return tuple(
        (uid, held)
        for uid, node in past.nodes.items()
        for held in node.holdings.values()
        if held.pod_uid not in live
    )


def _past(ledger: Ledger, witnesses: Sequence[Witness], uids: set[str]) -> PastEvents:
    positions = {each.position for each in witnesses}
    with ledger.connection.begin():
        before = archived_past(ledger.connection, positions, uids)
    recovered = _recoveries(ledger, before.last)
    chains = dict(before.chains)
    past = PastEvents(own=Own(origin="", position=0, epoch=0), nodes={}, known=set(before.known))
    folding = Folding(LedgerState(nodes=before.nodes))
    for each in ledger.read_events(after=before.last):
        event, position = each.event, each.envelope.position
        if position in positions:
            chains[position] = each.chain_hash.hex()
        if isinstance(event, events.LedgerRecovered):
            recovered.append(event)
        if isinstance(event, (events.PodReserved, events.PodObserved)) and event.pod_uid in uids:
            past.known.add((event.pod_uid, event.attempt))
        if (
            isinstance(event, (events.PodReserved, events.PodObserved, events.RequestRefused))
            and event.request
        ):
            past.requests[event.pod_uid] = event.request
        folding.add(position, event)
    past.nodes = dict(folding.state.nodes)
    lives, lost = incarnations_of(recovered)
    ends = [
        (each.incarnation, event.began_at - 1) for each, event in zip(lost, recovered, strict=True)
    ]
    past.cuts = dict(reversed(ends))
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


def _recovered(
    found: Standing, own: Own, incarnation: str, *, api_restored: bool
) -> tuple[events.LedgerRecovered, ...]:
    """Return what opens a new incarnation: of an API server that was set back, nothing is lost."""
    end = own.position
    nothing = Lost(incarnation=own.incarnation, first=end + 1, last=end)
    ranges = found.lost if isinstance(found, Behind) else [nothing] * api_restored
    return tuple(
        events.LedgerRecovered(
            lost_from=lost.first,
            lost_to=lost.last,
            incarnation=incarnation,
            lost_incarnation=lost.incarnation,
            began_at=end + 1,
        )
        for lost in ranges
    )


def _judged(
    pods: Sequence[SeenPod],
    read: Mapping[str, _Signed | str],
    proofs: Mapping[str, SignedHolding],
    past: PastEvents,
) -> tuple[tuple[Outcome, ...], tuple[Allocation, ...]]:
    """Return the Pods that are not believed, and the allocations to make again, in their order."""
    by_name = {node.name: uid for uid, node in past.nodes.items()}
    latest: dict[str, int] = {}
    for uid, attempt in past.known:
        latest[uid] = max(attempt, latest.get(uid, 0))
    disbelieved: list[Outcome] = []
    again: list[Allocation] = []
    for pod in pods:
        said = read.get(pod.uid)
        proof = proofs.get(pod.uid)
        if said is None and proof and (proof.pod_uid, proof.attempt) not in past.known:
            said = f"a proof without an allocation: position={proof.position}"
        if said is None or not pod.running:
            continue
        fact = said if isinstance(said, str) else _doubt(said.allocation, past, by_name, latest)
        if fact:
            title = f"{pod.namespace}/{pod.name}"
            disbelieved.append(Outcome(pod=title, pod_uid=pod.uid, node=pod.node_name, fact=fact))
        elif isinstance(said, _Signed) and not past.knows(said.allocation):
            again.append(said.allocation)
    return tuple(disbelieved), tuple(sorted(again, key=lambda a: (a.epoch, a.position)))


def _doubt(
    said: Allocation, past: PastEvents, by_name: dict[str, str], latest: dict[str, int]
) -> str:
    known_node = by_name.get(said.node_name)
    if known_node is not None and known_node != said.node_uid:
        return f"signed for another node of that name: node_uid={said.node_uid}"
    if past.knows(said):
        return ""
    if said.attempt < latest.get(said.pod_uid, 0):
        return f"the ledger knows a later attempt: attempt={latest[said.pod_uid]}"
    if past.own.has(said.incarnation, said.position):
        return f"the ledger has another event at the position: position={said.position}"
    return ""


def _outcome(held: Allocation | Holding, node: str, kind: str, fact: str = "") -> Outcome:
    return Outcome(
        pod=f"{held.namespace}/{held.pod_name}",
        pod_uid=held.pod_uid,
        node=node,
        fact=fact,
        kind=kind,
        attempt=held.attempt,
        cards=len(held.shares),
        cpus=len(held.cpuset),
    )


def _made_again(allocation: Allocation, refused: str | None) -> Outcome:
    kind = GRANTED if refused is None else OBSERVED
    return _outcome(allocation, allocation.node_name, kind, refused or "")


def incarnations(ledger: Ledger) -> tuple[tuple[Incarnation, ...], tuple[Lost, ...]]:
    """Return the ledger's incarnations, the open one last, and the positions it knows as lost."""
    return incarnations_of(_recoveries(ledger))


def own_at(ledger: Ledger, positions: Collection[int]) -> Own:
    """Return what a ledger says of itself, with its chain at these positions as far as at hand."""
    table, wanted = schema.ledger_events.c, sorted(positions)
    lives, lost = incarnations(ledger)
    head = ledger.head()
    with ledger.connection.begin():
        query = select(table.position, table.chain_hash).where(table.position.in_(wanted))
        rows = ledger.connection.execute(query).all() if wanted else ()
    return Own(
        origin=head.origin,
        position=head.position,
        epoch=head.epoch,
        incarnations=lives,
        lost=lost,
        chains={position: bytes(chain).hex() for position, chain in rows},
    )


def _recoveries(ledger: Ledger, last: int = INTEGER_MAX) -> list[events.LedgerRecovered]:
    """Return the recoveries up to `last`, or all; they stay in the log whatever is archived."""
    with ledger.connection.begin():
        return events_of(ledger.connection, events.LedgerRecovered, last)
