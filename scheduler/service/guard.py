"""What looks at claims of devices, and guards those of listed drivers, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.dialects.dra.asking import Giver
from ledger.domain.dialects.dra.cpus import AMOUNT, MACHINE
from ledger.domain.dialects.dra.shares import UNLISTED
from ledger.domain.log.events import POD, ClaimResult
from ledger.domain.log.state import LOST, NodeState
from ledger.domain.nodes import NodeFacts
from ledger.domain.resources import ANNOTATION_NODE_RESERVATION
from ledger.domain.systems import Claimant
from scheduler.decide.claimed_nodes import COMING
from scheduler.decide.claims import choose_claim_cpus, place_claim
from scheduler.gate.cpus import CPUS_UNTOLD, CpusBarred
from scheduler.gate.decide import Standing
from scheduler.gate.exchange import device_of
from scheduler.gate.leaving import Life, NodeOfClaim, Stays, stays
from scheduler.gate.modes import Mode
from scheduler.service.agents import Agents
from scheduler.service.beginning import Beginning
from scheduler.service.books import LiveBooks
from scheduler.service.claim_ends import EndingClaim
from scheduler.service.claim_places import ClaimPlaces
from scheduler.service.claim_templates import ClaimTemplates
from scheduler.service.claims import ClaimBook
from scheduler.service.gate import Gate, GateWorks
from scheduler.service.slices import ClassBook, LiveAccounts, SliceBook
from scheduler.service.tainting import RuleBook, Tainting
from scheduler.service.telling import Telling
from scheduler.service.view import ClusterView
from scheduler.service.waking import Waking
from scheduler.service.world import Ports

NO_TOPOLOGY: Final = "the ledger knows no CPU of it: its NodeResourceTopology tells them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Claims of devices, as watch and ledger have them. Made by `guard_claims`."""

    slices: SliceBook
    claims: ClaimBook
    classes: ClassBook
    rules: RuleBook
    tainting: Tainting
    waking: Waking
    gate: Gate
    templates: ClaimTemplates
    places: ClaimPlaces


def node_with_seeing(view: ClusterView, name: str) -> NodeState | None:
    """Return what the ledger has of a node, with who sees cards of its machine (ADR 0046)."""
    uid, number = view.uid(name), view.number(name)
    state = None if uid is None else view.recorded(uid)
    seeing = {} if number is None else view.engine.seeing(number)
    if state is None or not seeing:
        return state
    there = {
        uid: structs.replace(COMING, holder=POD, namespace=space, pod_name=pod, shown=ids)
        for uid, (space, pod, ids) in seeing.items()
    }
    return replace(state, holdings={**there, **state.holdings})


@dataclass(frozen=True, slots=True)
class _Nodes:
    view: ClusterView

    def state(self, name: str) -> NodeState | None:
        return node_with_seeing(self.view, name)

    def known(self, name: str) -> tuple[NodeFacts, NodeState] | None:
        facts, state = self.view.facts(name), self.state(name)
        return None if facts is None or state is None else (facts, state)

    def name(self, uid: str) -> str:
        state = self.view.recorded(uid)
        return "" if state is None else state.name

    def mode(self, name: str) -> Mode:
        return self.view.modes.mode(self.view.facts(name))

    def giving(self) -> list[str]:
        names = self.view.modes.slices.nodes()
        return [name for name in names if self.mode(name) is Mode.CLAIMS]


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
    api, clock, why_not = ports.api, ports.clock, ports.leading.why_not
    settings, wakeups = view.settings, view.wakeups
    drivers, slices = view.modes.drivers, view.modes.slices
    nodes = _Nodes(view)
    claims = ClaimBook(drivers, wakeups, begun.claims, guarded=drivers.listed)
    classes, rules = ClassBook(), RuleBook()
    accounts = LiveAccounts(slices, nodes.state, rules.bars)
    tainting = Tainting(
        rules,
        accounts,
        api,
        clock,
        wakeups,
        node_of=slices.node_of,
        is_shown=claims.is_shown,
        why_not=why_not,
    )
    waking = Waking(api, clock, wakeups, waiting=view.pods.waiting, why_not=why_not)

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
        place=lambda on, units, kept: place_claim(
            on, units, kept, facts=view.facts(on.name), settings=view.settings
        ),
        cpus=LiveCpus(slices, view),
        pod=view.pods.pending,
        giver=giver,
        mode=nodes.mode,
        node_name=nodes.name,
        wakeups=wakeups,
        vocabulary=settings.vocabulary,
    )
    return Guard(
        slices=slices,
        claims=claims,
        classes=classes,
        rules=rules,
        tainting=tainting,
        waking=waking,
        gate=Gate(works, drivers=drivers, words=lambda: books.words),
        templates=ClaimTemplates(
            api=api,
            clock=clock,
            pod=view.pods.pending,
            giver=giver,
            why_not=why_not,
            vocabulary=settings.vocabulary,
        ),
        places=ClaimPlaces(
            api=api,
            clock=clock,
            pod=view.pods.pending,
            names=nodes.giving,
            node=nodes.known,
            users=claims.users,
            why_not=why_not,
            settings=settings,
        ),
    )


class LiveCpus:
    """The machines' CPUs, as slices, the nodes' own objects and the ledger tell of them."""

    def __init__(self, slices: SliceBook, view: ClusterView) -> None:
        self._slices = slices
        self._view = view

    def offered(self, node: NodeState, result: ClaimResult) -> CpuSet | CpusBarred:
        """Return all CPUs of which a result's device is some, held or not."""
        key = device_of(result)
        device, name = self._slices.device(key), "/".join(key)
        if device is None or device.node != node.name or not self._slices.is_whole(*key[:2]):
            fact = f"{name} is in no whole pool of node {node.name}"
            return CpusBarred(reason=UNLISTED, message=fact)
        if device.name != MACHINE or not device.is_shared or AMOUNT not in device.capacity:
            fact = f"{name}: its driver chooses the CPUs by itself, unless it groups by machine"
            return CpusBarred(reason=CPUS_UNTOLD, message=fact)
        facts = self._view.facts(node.name)
        if facts is None or not node.cpus:
            return CpusBarred(reason=CPUS_UNTOLD, message=f"node {node.name}: {NO_TOPOLOGY}")
        offered = cpuset_of(cpu.id for cpu in node.cpus) - facts.reserved_cpus
        gives = device.capacity[AMOUNT]
        if gives < len(offered):
            fact = f"its driver gives {gives} of CPUs {offered} and does not tell which it keeps"
            fact += f": node {node.name} is to name them in {ANNOTATION_NODE_RESERVATION}"
            return CpusBarred(reason=CPUS_UNTOLD, message=fact)
        return offered

    def choose(self, node: NodeState, count: int, closed: CpuSet) -> CpuSet | str:
        """Return so many CPUs, if it can be none that somebody is about to get."""
        facts, number = self._view.facts(node.name), self._view.number(node.name)
        assert facts is not None, "it offers CPUs"
        assert number is not None, "it is decided on"
        settings = self._view.settings
        coming = self._view.engine.held_cpus(number)
        found = choose_claim_cpus(count, closed | coming, facts, settings)
        if isinstance(found, CpuSet):
            return found
        return choose_claim_cpus(count, closed, facts, settings)


class Leaving:
    """Tells why claims may not go, and asks their nodes."""

    def __init__(self, view: ClusterView, agents: Agents) -> None:
        self._view = view
        self._agents = agents
        self.asks = agents.claims

    def runs(self, pod_uid: str) -> bool:
        """Tell whether a Pod has a node and has not ended."""
        seen = self._view.pods.seen.get(pod_uid)
        return seen is not None and bool(seen.node) and not seen.ended

    def kept(
        self, name: str, standing: Standing | None, consumers: Sequence[Claimant]
    ) -> Stays | None:
        """Return why what a claim has stays, given who uses it or did so last."""
        node = NodeOfClaim() if standing is None else self._node(standing)
        lives = {one: self._life(one.uid, node.name) for one in consumers}
        return stays(name, lives, node)

    def ask(self, standing: Standing, consumers: Sequence[Claimant]) -> None:
        """Ask the node of a claim whether nothing of it is left."""
        opening = standing.opening
        lives = ((one.uid, self._life(one.uid, opening.node_name)) for one in consumers)
        self.asks.ask(
            opening.node_uid,
            EndingClaim(
                claim_uid=opening.claim_uid,
                attempt=opening.attempt,
                namespace=opening.namespace,
                name=opening.claim_name,
                pods=tuple(uid for uid, life in lives if life is not Life.UNBOUND),
            ),
        )

    def _node(self, standing: Standing) -> NodeOfClaim:
        opening = standing.opening
        state = self._view.recorded(opening.node_uid)
        if state is None:
            return NodeOfClaim(name=opening.node_name)
        held = state.claims.get(f"{opening.claim_uid}/{opening.attempt}")
        word = self._agents.word(state)
        return NodeOfClaim(
            name=state.name,
            has_witness=word.has_agent and self.asks.reads(state.uid) is not False,
            agent_ready=word.agent_ready,
            kubelet_ready=word.kubelet_ready,
            confirmed=self.asks.confirmed(opening.claim_uid, opening.attempt),
            is_lost=held is not None and (held.phase == LOST or bool(held.machine)),
        )

    def _life(self, pod_uid: str, node_name: str) -> Life:
        pods = self._view.pods
        seen = pods.seen.get(pod_uid)
        if seen is not None and not seen.node:
            return Life.UNBOUND
        if seen is not None and not seen.ended:
            return Life.RUNS
        last = seen or pods.gone.get(node_name, {}).get(pod_uid)
        return Life.OVER if last is not None and last.terminated else Life.GONE
