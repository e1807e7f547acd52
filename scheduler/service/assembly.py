"""The parts of one live scheduler put together over its ports; a simulation puts several."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from certs.ports import Object, Objects
from ledger.domain.annotations.signed import Checker
from ledger.domain.dialects.dra.accounts import UntoldDevices
from ledger.domain.dialects.dra.asking import Giver
from ledger.domain.dialects.dra.drivers import CardDrivers
from ledger.domain.log.state import NodeState
from ledger.domain.nodes import NodeFacts
from scheduler.cluster.templates import InText
from scheduler.decide.claims import place_claim
from scheduler.decide.settings import SchedulingSettings
from scheduler.gate.exchange import Device as ClaimedDevice
from scheduler.gate.exchange import Unit
from scheduler.gate.modes import Mode, closed_to_pods, mode_of
from scheduler.record.events import DecidedBy
from scheduler.service.agents import Agents
from scheduler.service.answering import Extender
from scheduler.service.beginning import Beginning
from scheduler.service.binding import Binder, Proofs
from scheduler.service.books import LiveBooks
from scheduler.service.claim_places import ClaimPlaces, PlaceWorks
from scheduler.service.claim_templates import ClaimTemplates, TemplateWorks
from scheduler.service.claims import ClaimBook
from scheduler.service.freshness import Freshness
from scheduler.service.gangs import Gangs
from scheduler.service.gate import Gate, GateWorks
from scheduler.service.groups import LiveGroups
from scheduler.service.holds import ASKED_AGAIN, Holds
from scheduler.service.inventory import Inventory
from scheduler.service.leading import Leading
from scheduler.service.leaving import Leaving
from scheduler.service.ports import Clock, Recorder, Start
from scheduler.service.reconciling import Reconciling
from scheduler.service.refusing import History, Refusing
from scheduler.service.releasing import Releasing
from scheduler.service.saying import Saying
from scheduler.service.slices import ClassBook, LiveAccounts, SliceBook
from scheduler.service.tainting import VERSIONS as RULE_VERSIONS
from scheduler.service.tainting import RuleBook, Tainting
from scheduler.service.telling import Telling
from scheduler.service.templates import Templates
from scheduler.service.view import ClusterView
from scheduler.service.waking import Waking
from scheduler.service.witnesses import ProofBook


class Sink(Protocol):
    """Who is told of a collection's objects; see `tenure.kube.reflector.Sink`."""

    def put(self, uid: str, item: Object) -> None:
        """Take an object that came or changed."""
        ...

    def drop(self, uid: str) -> None:
        """Forget an object that is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Each:
    """A sink that tells several others, in order."""

    sinks: tuple[Sink, ...]

    def put(self, uid: str, item: Object) -> None:
        """Tell of an object that came or changed."""
        for sink in self.sinks:
            sink.put(uid, item)

    def drop(self, uid: str) -> None:
        """Tell of an object that is gone."""
        for sink in self.sinks:
            sink.drop(uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """One live scheduler. Made by `assemble`."""

    view: ClusterView
    holds: Holds
    books: LiveBooks
    inventory: Inventory
    binder: Binder
    releasing: Releasing
    agents: Agents
    refusing: Refusing
    groups: LiveGroups
    gangs: Gangs
    extender: Extender
    telling: Telling
    proofs: ProofBook
    reconciling: Reconciling
    templates: Templates
    slices: SliceBook
    claims: ClaimBook
    classes: ClassBook
    rules: RuleBook
    tainting: Tainting
    waking: Waking
    gate: Gate
    claim_templates: ClaimTemplates
    claim_places: ClaimPlaces

    def sinks(self) -> dict[str, Sink]:
        """Return who is to be told of which collection of the API."""
        nodes = self.view.nodes
        return {
            "resourceslices": self.slices,
            "resourceclaims": self.claims,
            "deviceclasses": self.classes,
            **{f"devicetaintrules {version}": self.rules for version in RULE_VERSIONS},
            "nodes": Each((nodes.nodes, self.agents.ready)),
            "devices": nodes.devices,
            "noderesourcetopologies": nodes.topologies,
            "configmaps": nodes.unhealthy,
            "pods": Each(
                (
                    self.view.pods,
                    self.holds,
                    self.groups.members,
                    self.books,
                    self.proofs,
                    self.refusing,
                    self.claim_templates,
                    self.claim_places,
                )
            ),
            "namespaces": self.releasing.namespaces,
            "poddisruptionbudgets": self.view.disruptions,
            "templates": self.templates,
        }


async def _no_attempts(_: Sequence[str]) -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """
    What a live scheduler works with.

    Attributes:
        origin: whose ledger it is: `ledger/<cluster uid>`.
        leading: nothing is given out but by who leads; ends are recorded whoever does.
        words: what every reservation repeats.
        told: what the ledger says of why Pods waited.
        documents_in: the YAML documents of a text.
        proofs: made once the view is there, which knows machines.
        wake: told whenever a node changed.
        actor: whose doing the events are.
        trusted: tells whether nodes trust the key of a proof; None = Pods carry no proofs.
        skew: seconds that our clock is ahead of the API server's.
        evicts: of a gang that missed its deadline nobody stays.
        drivers: whose devices pass the gate; claims of every other driver of cards are observed.
        untold: what becomes of devices of which no metal can be told.
        attempts: asks the ledger for the newest holdings of claims, ended or not.
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
    wake: Callable[[], None]
    actor: str
    trusted: Checker | None = None
    skew: Callable[[], float] = float
    evicts: bool = False
    drivers: tuple[str, ...] = ()
    untold: UntoldDevices = "refuse"
    attempts: Callable[[Sequence[str]], Awaitable[Mapping[str, int]]] = _no_attempts


def give_way(view: ClusterView, books: LiveBooks, holds: Holds, groups: LiveGroups) -> None:
    """
    Let what is only in memory give way to a Pod that is bound, and go with a node that goes.

    What a plan keeps is put back before soft holds, which may take other cards.
    """

    @contextmanager
    def lifted(pod_uid: str, node_name: str) -> Iterator[None]:
        with holds.lifted(pod_uid, node_name), groups.plans.lifted(pod_uid, node_name):
            yield

    def given_back(pod_uids: Sequence[str]) -> None:
        holds.dropped(pod_uids)
        groups.node_gone(pod_uids)

    books.lifted, view.given_back = lifted, given_back
    groups.plans.planned = lambda uid: holds.end(uid, ASKED_AGAIN)


def assemble(settings: SchedulingSettings, begun: Beginning, ports: Ports) -> Assembly:
    """Put a live scheduler together that begins with what a ledger tells."""
    why_not, clock = ports.leading.why_not, ports.clock
    view = ClusterView(settings, wake=ports.wake)
    view.begin(begun.position, begun.state, begun.opened)
    holds = Holds(view.engine, clock.monotonic, view.directory.number)
    groups = LiveGroups(view, clock, begun, all_or_nothing=ports.evicts)
    books = LiveBooks(view, clock, ports.words, begun, groups, why_not=why_not)
    give_way(view, books, holds, groups)
    binder = Binder(
        recorder=ports.recorder,
        api=ports.api,
        clock=clock,
        books=books,
        proofs=ports.proofs(view),
        actor=ports.actor,
        start=ports.start,
    )
    agents = Agents(
        view,
        books,
        ports.recorder,
        clock,
        actor=ports.actor,
        why_not=ports.leading.why_unrecorded,
    )
    inventory = Inventory(view, ports.recorder, clock, begun, synced=ports.freshness.synced)
    releasing = Releasing(
        view,
        books,
        binder,
        begun,
        why_not=ports.freshness.why_not,
        word=agents.word,
        seen=agents.seen,
    )
    inventory.reported = agents.reported
    agents.first = lambda name: view.nodes.note((name,))
    agents.confirmed = agents.ready.changed = releasing.look_at
    holds.freed = groups.plans.freed = releasing.freed
    refusing = Refusing(view, books, binder, ports.words, told=ports.told, why_not=why_not)
    telling = Telling(api=ports.api, clock=clock, reporter=ports.actor)
    Saying(view, telling, why_not=why_not)
    gangs = Gangs(view, books, binder, groups, why_not=why_not)
    templates = Templates(
        view,
        ports.recorder,
        clock,
        ports.words,
        said=begun.settings,
        documents_in=ports.documents_in,
    )

    guard = _guarding(begun, ports, view, books, telling, agents=agents, settings=settings)

    def decides(words: DecidedBy) -> None:
        books.words = refusing.words = words

    templates.decides, templates.freed = decides, releasing.freed
    releasing.why_deleted = gangs.why_evicted
    return Assembly(
        view=view,
        holds=holds,
        books=books,
        inventory=inventory,
        binder=binder,
        releasing=releasing,
        agents=agents,
        refusing=refusing,
        groups=groups,
        gangs=gangs,
        extender=Extender(
            view, binder, why_not=why_not, groups=groups, holds=holds, refusals=refusing
        ),
        telling=telling,
        proofs=ProofBook(ports.origin, begun.state, view.pods.seen),
        reconciling=Reconciling(
            view=view,
            books=books,
            binder=binder,
            inventory=inventory,
            releasing=releasing,
            telling=telling,
            agents=agents,
            begun=begun,
            trusted=ports.trusted,
            cluster=ports.origin,
            skew=ports.skew,
            why_not=ports.freshness.why_not,
            past_gate=guard.claims.past_gate,
            claims_end=guard.gate.waiting,
            is_claim_gone=guard.claims.is_gone,
        ),
        templates=templates,
        **guard._asdict(),
    )


class _Guard(NamedTuple):
    slices: SliceBook
    claims: ClaimBook
    classes: ClassBook
    rules: RuleBook
    tainting: Tainting
    waking: Waking
    gate: Gate
    claim_templates: ClaimTemplates
    claim_places: ClaimPlaces


def _guarding(
    begun: Beginning,
    ports: Ports,
    view: ClusterView,
    books: LiveBooks,
    telling: Telling,
    *,
    agents: Agents,
    settings: SchedulingSettings,
) -> _Guard:
    """Return what looks at claims, and guards those of listed drivers."""
    drivers = CardDrivers(frozenset(ports.drivers))

    def giver() -> Giver:
        return slices.giver(next(iter(ports.drivers), ""))

    def node(name: str) -> NodeState | None:
        uid = view.uid(name)
        return None if uid is None else view.recorded(uid)

    def changed(names: Collection[str]) -> None:
        view.nodes.note(names)
        view.modes_changed(names)

    def mode(facts: NodeFacts | None) -> Mode:
        if facts is None:
            return Mode.EXTENDER
        return mode_of(facts.taints, has_pool=slices.has_pool(facts.name, drivers.listed))

    slices = SliceBook(drivers, changed, untold=ports.untold)
    claims = ClaimBook(drivers, begun.claims, guarded=drivers.listed)
    classes, rules = ClassBook(), RuleBook()
    accounts = LiveAccounts(slices, node, rules.bars)
    tainting = Tainting(
        rules,
        accounts,
        ports.api,
        ports.clock,
        node_of=slices.node_of,
        is_shown=claims.is_shown,
        why_not=ports.leading.why_not,
    )

    waking = Waking(
        ports.api, ports.clock, waiting=view.pods.waiting, why_not=ports.leading.why_not
    )

    def place(
        on: NodeState, units: Sequence[Unit], kept: Collection[int]
    ) -> Iterator[Mapping[ClaimedDevice, str]]:
        return place_claim(on, units, kept, facts=view.facts(on.name), settings=view.settings)

    view.listed = slices.records
    view.mode_fault = lambda facts: closed_to_pods(mode(facts))
    view.tellers.append(lambda _position, event, _holding: claims.take(event))
    works = GateWorks(
        book=claims,
        slices=slices,
        accounts=accounts,
        recorded=books.recorded,
        recorder=ports.recorder,
        api=ports.api,
        clock=ports.clock,
        telling=telling,
        attempts=ports.attempts,
        leaving=Leaving(view, agents),
        why_not=ports.leading.why_not,
        actor=ports.actor,
        classes=classes.selectors,
        place=place,
        refused=tainting.refused,
        exchanged=waking.exchanged,
        pod=view.pods.pending,
        giver=giver,
        mode=lambda name: mode(view.facts(name)),
        vocabulary=settings.vocabulary,
    )
    keeping = TemplateWorks(
        api=ports.api,
        clock=ports.clock,
        pod=view.pods.pending,
        giver=giver,
        why_not=ports.leading.why_not,
        vocabulary=settings.vocabulary,
    )

    def giving() -> list[str]:
        return [name for name in slices.nodes() if mode(view.facts(name)) is Mode.CLAIMS]

    def known(name: str) -> tuple[NodeFacts, NodeState] | None:
        facts, state = view.facts(name), node(name)
        return None if facts is None or state is None else (facts, state)

    places = PlaceWorks(
        api=ports.api,
        clock=ports.clock,
        pod=view.pods.pending,
        names=giving,
        node=known,
        users=claims.users,
        why_not=ports.leading.why_not,
        settings=settings,
    )
    gate = Gate(works, drivers=drivers, words=lambda: books.words)

    def answered(node_uid: str) -> None:
        state = view.recorded(node_uid)
        if state is not None:
            gate.look_again(state.name)

    agents.claims.answered = answered
    view.pods.ran = agents.claims.ran
    view.pods.moved = _both(view.pods.moved, gate.look_again)
    agents.ready.changed = _both(agents.ready.changed, gate.look_again)
    return _Guard(
        slices=slices,
        claims=claims,
        classes=classes,
        rules=rules,
        tainting=tainting,
        waking=waking,
        gate=gate,
        claim_templates=ClaimTemplates(keeping),
        claim_places=ClaimPlaces(places),
    )


def _both(one: Callable[[str], None], other: Callable[[str], None]) -> Callable[[str], None]:
    def told(name: str) -> None:
        one(name)
        other(name)

    return told
