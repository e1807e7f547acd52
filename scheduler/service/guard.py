"""What looks at claims of devices, and guards those of listed drivers, put together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ledger.domain.dialects.dra.asking import Giver
from ledger.domain.dialects.dra.drivers import LookedAt
from ledger.domain.log.state import NodeState
from ledger.domain.nodes import NodeFacts
from scheduler.decide.claims import place_claim
from scheduler.gate.exchange import Device, Place, Unit
from scheduler.gate.modes import Mode, closed_to_pods, mode_of
from scheduler.service.agents import Agents
from scheduler.service.beginning import Beginning
from scheduler.service.books import LiveBooks
from scheduler.service.claim_cpus import LiveCpus
from scheduler.service.claim_places import ClaimPlaces, PlaceWorks
from scheduler.service.claim_templates import ClaimTemplates, TemplateWorks
from scheduler.service.claims import ClaimBook
from scheduler.service.gate import Gate, GateWorks
from scheduler.service.leaving import Leaving
from scheduler.service.slices import ClassBook, LiveAccounts, SliceBook
from scheduler.service.tainting import RuleBook, Tainting
from scheduler.service.telling import Telling
from scheduler.service.view import ClusterView
from scheduler.service.waking import Waking
from scheduler.service.world import Ports


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """
    Claims of devices, as the watch shows them and the ledger has them. Made by `guard_claims`.

    Attributes:
        rules: DeviceTaintRules; `tainting` writes ours.
        templates: of claims that Pods of ours name.
        places: nodes for Pods that wait for one.
    """

    slices: SliceBook
    claims: ClaimBook
    classes: ClassBook
    rules: RuleBook
    tainting: Tainting
    waking: Waking
    gate: Gate
    templates: ClaimTemplates
    places: ClaimPlaces


@dataclass(frozen=True, slots=True)
class _Nodes:
    """What is known of nodes, and who gives their devices."""

    view: ClusterView
    slices: SliceBook
    drivers: LookedAt

    def state(self, name: str) -> NodeState | None:
        uid = self.view.uid(name)
        return None if uid is None else self.view.recorded(uid)

    def known(self, name: str) -> tuple[NodeFacts, NodeState] | None:
        facts, state = self.view.facts(name), self.state(name)
        return None if facts is None or state is None else (facts, state)

    def mode(self, facts: NodeFacts | None) -> Mode:
        if facts is None:
            return Mode.EXTENDER
        return mode_of(
            facts.taints, has_pool=self.slices.has_pool(facts.name, self.drivers.of_cards)
        )

    def mode_by_name(self, name: str) -> Mode:
        return self.mode(self.view.facts(name))

    def giving(self) -> list[str]:
        return [name for name in self.slices.nodes() if self.mode_by_name(name) is Mode.CLAIMS]


def guard_claims(
    begun: Beginning,
    ports: Ports,
    view: ClusterView,
    books: LiveBooks,
    telling: Telling,
    *,
    agents: Agents,
) -> Guard:
    """Put together what looks at claims, and guards those of listed drivers."""
    drivers = LookedAt(frozenset(ports.drivers))
    api, clock, why_not = ports.api, ports.clock, ports.leading.why_not
    settings = view.settings

    def changed(names: Collection[str]) -> None:
        view.nodes.note(names)
        view.modes_changed(names)

    slices = SliceBook(drivers, changed, untold=ports.untold)
    nodes = _Nodes(view, slices, drivers)
    claims = ClaimBook(drivers, begun.claims, guarded=drivers.listed)
    classes, rules = ClassBook(), RuleBook()
    accounts = LiveAccounts(slices, nodes.state, rules.bars)
    tainting = Tainting(
        rules,
        accounts,
        api,
        clock,
        node_of=slices.node_of,
        is_shown=claims.is_shown,
        why_not=why_not,
    )
    waking = Waking(api, clock, waiting=view.pods.waiting, why_not=why_not)

    def giver() -> Giver:
        cards = (one for one in ports.drivers if one in drivers.of_cards)
        return slices.giver(next(cards, ""))

    works = GateWorks(
        book=claims,
        slices=slices,
        accounts=accounts,
        recorded=books.recorded,
        recorder=ports.recorder,
        api=api,
        clock=clock,
        telling=telling,
        attempts=ports.attempts,
        leaving=Leaving(view, agents),
        why_not=why_not,
        actor=ports.actor,
        classes=classes.selectors,
        place=_place(view),
        cpus=LiveCpus(slices, view),
        refused=tainting.refused,
        exchanged=waking.exchanged,
        pod=view.pods.pending,
        giver=giver,
        mode=nodes.mode_by_name,
        vocabulary=settings.vocabulary,
    )
    templates = TemplateWorks(
        api=api,
        clock=clock,
        pod=view.pods.pending,
        giver=giver,
        why_not=why_not,
        vocabulary=settings.vocabulary,
    )
    places = PlaceWorks(
        api=api,
        clock=clock,
        pod=view.pods.pending,
        names=nodes.giving,
        node=nodes.known,
        users=claims.users,
        why_not=why_not,
        settings=settings,
    )
    guard = Guard(
        slices=slices,
        claims=claims,
        classes=classes,
        rules=rules,
        tainting=tainting,
        waking=waking,
        gate=Gate(works, drivers=drivers, words=lambda: books.words),
        templates=ClaimTemplates(templates),
        places=ClaimPlaces(places),
    )
    _tell(guard, nodes, agents)
    return guard


def _place(view: ClusterView) -> Place:
    """Return who chooses among devices that are alike: our policy, as for Pods."""

    def place(
        on: NodeState, units: Sequence[Unit], kept: Collection[int]
    ) -> Iterator[Mapping[Device, str]]:
        return place_claim(on, units, kept, facts=view.facts(on.name), settings=view.settings)

    return place


def _tell(guard: Guard, nodes: _Nodes, agents: Agents) -> None:
    """Let the parts hear what lets them go on."""
    view, gate = nodes.view, guard.gate

    def answered(node_uid: str) -> None:
        state = view.recorded(node_uid)
        if state is not None:
            gate.look_again(state.name)

    view.listed = guard.slices.records
    view.mode_fault = lambda facts: closed_to_pods(nodes.mode(facts))
    view.tellers.append(lambda _position, event, _holding: guard.claims.take(event))
    view.pods.ran = agents.claims.ran
    view.pods.moved = _both(view.pods.moved, gate.look_again)
    agents.claims.answered = answered
    agents.ready.changed = _both(agents.ready.changed, gate.look_again)


def _both(one: Callable[[str], None], other: Callable[[str], None]) -> Callable[[str], None]:
    def told(name: str) -> None:
        one(name)
        other(name)

    return told
