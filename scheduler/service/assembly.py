"""The parts of one live scheduler put together over its ports; a simulation puts several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from certs.ports import Object
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from scheduler.record.events import DecidedBy
from scheduler.service.agents import Agents
from scheduler.service.answering import Extender
from scheduler.service.beginning import Beginning
from scheduler.service.binding import Binder
from scheduler.service.books import LiveBooks
from scheduler.service.gangs import Gangs
from scheduler.service.groups import LiveGroups
from scheduler.service.guard import Guard, guard_claims
from scheduler.service.holds import ASKED_AGAIN, Holds
from scheduler.service.inventory import Inventory
from scheduler.service.reconciling import Reconciling
from scheduler.service.refusing import Refusing
from scheduler.service.releasing import Releasing
from scheduler.service.tainting import VERSIONS as RULE_VERSIONS
from scheduler.service.telling import Saying, Telling
from scheduler.service.templates import Templates
from scheduler.service.view import ClusterView
from scheduler.service.witnesses import ProofBook
from scheduler.service.world import Ports


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
    guard: Guard

    def sinks(self) -> dict[str, Sink]:
        """Return who is to be told of which collection of the API."""
        nodes, guard = self.view.nodes, self.guard
        return {
            "resourceslices": guard.slices,
            "resourceclaims": guard.claims,
            "deviceclasses": guard.classes,
            **{f"devicetaintrules {version}": guard.rules for version in RULE_VERSIONS},
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
                    guard.templates,
                    guard.places,
                )
            ),
            "namespaces": self.releasing.namespaces,
            "poddisruptionbudgets": self.view.disruptions,
            "templates": self.templates,
        }


def give_way(view: ClusterView, books: LiveBooks, holds: Holds, groups: LiveGroups) -> None:
    """
    Let what is only in memory give way to a Pod that is bound, and go with a node that goes.

    What a plan keeps is put back before soft holds, which may take other cards.
    """

    @contextmanager
    def lifted(pod_uid: str, node_name: str) -> Iterator[Placement | None]:
        with (
            holds.lifted(pod_uid, node_name) as held,
            groups.plans.lifted(pod_uid, node_name) as is_planned,
        ):
            yield None if is_planned else held

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
    telling = Telling(api=ports.api, clock=clock, reporter=ports.actor)
    binder = Binder(
        recorder=ports.recorder,
        api=ports.api,
        clock=clock,
        books=books,
        proofs=ports.proofs(view),
        telling=telling,
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
        attempts=ports.attempts,
        word=agents.word,
        seen=agents.seen,
    )
    inventory.reported = agents.reported
    agents.first = lambda name: view.nodes.note((name,))
    agents.confirmed = agents.ready.changed = releasing.look_at
    holds.freed = groups.plans.freed = releasing.freed
    refusing = Refusing(view, books, binder, ports.words, told=ports.told, why_not=why_not)
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
    guard = guard_claims(begun, ports, view, books, telling, agents=agents)

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
        guard=guard,
    )
