"""The parts of one live scheduler put together over its ports; a simulation puts several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from certs.ports import Object
from ledger.domain.dialects.dra.drivers import LookedAt
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from scheduler.service.agents import Agents
from scheduler.service.announcing import Announcing
from scheduler.service.answering import Extender
from scheduler.service.beginning import Beginning
from scheduler.service.binding import Binder
from scheduler.service.books import LiveBooks
from scheduler.service.evicting import Evicting
from scheduler.service.gangs import Gangs, Lifting
from scheduler.service.groups import LiveGroups
from scheduler.service.guard import Guard, guard_claims
from scheduler.service.holds import Holds
from scheduler.service.inventory import Inventory
from scheduler.service.permits import Permits
from scheduler.service.preempting import Preempting
from scheduler.service.reconciling import Reconciling
from scheduler.service.refusing import Refusing
from scheduler.service.releasing import Releasing, gone_by
from scheduler.service.slices import NodeModes, SliceBook
from scheduler.service.tainting import VERSIONS as RULE_VERSIONS
from scheduler.service.telling import Saying, Telling
from scheduler.service.templates import Templates
from scheduler.service.view import ClusterView
from scheduler.service.wakeups import Wakeups
from scheduler.service.witnesses import ProofBook
from scheduler.service.world import Ports


class Sink(Protocol):
    """Who is told of a collection's objects; see `tenure.kube.reflector.Sink`."""

    def put(self, uid: str, item: Object) -> None:
        """Take an object that came or changed."""

    def drop(self, uid: str) -> None:
        """Forget an object that is gone."""


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
    announcing: Announcing
    agents: Agents
    refusing: Refusing
    groups: LiveGroups
    gangs: Gangs
    permits: Permits
    extender: Extender
    preempting: Preempting
    evicting: Evicting
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
                    self.preempting,
                    self.groups.members,
                    self.books,
                    self.proofs,
                    self.refusing,
                    guard.templates,
                    guard.places,
                )
            ),
            "namespaces": self.announcing.namespaces,
            "poddisruptionbudgets": self.view.disruptions,
            "templates": self.templates,
        }


def giving_way(
    holds: Holds, groups: LiveGroups
) -> Callable[[str, str], AbstractContextManager[Placement | None]]:
    """
    Return what lets soft holds and plans give way to a Pod on a node for the length of a block.

    The value is what is chosen for the Pod there, if that is known. Places of plans are put back
    before soft holds, which may take other cards.
    """

    @contextmanager
    def lifted(pod_uid: str, node_name: str) -> Iterator[Placement | None]:
        with (
            holds.lifted(pod_uid, node_name) as held,
            groups.plans.to_come.lifted(node_name) as has_room,
            groups.plans.lifted(pod_uid, node_name) as is_planned,
        ):
            yield None if has_room or is_planned else held

    return lifted


def assemble(settings: SchedulingSettings, begun: Beginning, ports: Ports) -> Assembly:
    """Put a live scheduler together that begins with what a ledger tells."""
    why_not, clock, wakeups = ports.leading.why_not, ports.clock, Wakeups()
    drivers = LookedAt(frozenset(ports.drivers))
    modes = NodeModes(drivers, SliceBook(drivers, wakeups, untold=ports.untold))
    view = ClusterView(settings, wakeups, modes)
    view.begin(begun.position, begun.state, begun.opened)
    holds = Holds(view.engine, clock.monotonic, view.directory.number, wakeups)
    groups = LiveGroups(view, clock, begun, all_or_nothing=ports.evicts)
    lifted, lifting = giving_way(holds, groups), Lifting(groups)
    books = LiveBooks(view, clock, ports.words, begun, groups, lifted=lifted, why_not=why_not)
    agents = Agents(
        view,
        books,
        ports.recorder,
        clock,
        actor=ports.actor,
        why_not=ports.leading.why_unrecorded,
    )
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
        wakeups=wakeups,
        ready=lifting.ready,
        is_gone=gone_by(view, agents.word),
        is_awaited=groups.starts.is_awaited,
    )
    refusing = Refusing(view, books, binder, groups, told=ports.told, why_not=why_not)
    gangs = Gangs(view, binder, groups, lifting, refusals=refusing, why_not=why_not)
    permits = Permits(groups.starts, binder, clock, wakeups, start=ports.start, why_not=why_not)
    inventory = Inventory(
        view,
        ports.recorder,
        clock,
        begun,
        synced=ports.freshness.synced,
        reported=agents.reported,
    )
    releasing = Releasing(
        view,
        books,
        binder,
        begun,
        why_not=ports.freshness.why_not,
        attempts=ports.attempts,
        word=agents.word,
        seen=agents.seen,
        why_deleted=gangs.why_evicted,
    )
    agents.ending += (releasing.is_ending, binder.is_under_way)
    announcing = Announcing(
        view, ports.api, clock, why_not=ports.freshness.why_not, planned=groups.place_kept
    )
    Saying(view, telling, why_not=why_not)
    templates = Templates(
        view,
        ports.recorder,
        clock,
        ports.words,
        said=begun.settings,
        documents_in=ports.documents_in,
    )
    preempting = Preempting(view, holds, telling, clock, groups=groups, begun=begun.preemptions)
    evicting = Evicting(
        view=view,
        preempting=preempting,
        namespaces=announcing.namespaces,
        binder=binder,
        mode=ports.preemption,
        why_not=why_not,
    )
    guard = guard_claims(begun, ports, view, books, telling, agents=agents)
    assembly = Assembly(
        view=view,
        holds=holds,
        books=books,
        inventory=inventory,
        binder=binder,
        releasing=releasing,
        announcing=announcing,
        agents=agents,
        refusing=refusing,
        groups=groups,
        gangs=gangs,
        permits=permits,
        extender=Extender(
            view,
            permits,
            why_not=why_not,
            groups=groups,
            holds=holds,
            refusals=refusing,
            preempting=preempting,
        ),
        preempting=preempting,
        evicting=evicting,
        telling=telling,
        proofs=ProofBook(ports.origin, begun.state, view.pods.seen),
        reconciling=Reconciling(
            view=view,
            binder=binder,
            inventory=inventory,
            releasing=releasing,
            announcing=announcing,
            agents=agents,
            claims=guard.claims,
            begun=begun,
            trusted=ports.trusted,
            cluster=ports.origin,
            skew=ports.skew,
            why_not=ports.freshness.why_not,
            claims_end=guard.gate.ends.waiting,
        ),
        templates=templates,
        guard=guard,
    )
    wakeups.check()
    return assembly
