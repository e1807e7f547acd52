"""
What is physically so in a small world of machines, in plain words: no code and no rule of `ledger`.

A Pod runs until it is released from a live Node, until its lost Node's machine was booted again,
or until the machine's agent or somebody answers for it. Nothing that the ledger says ends a Pod.

Conventions, which are what the world does not cover. A Node tells its machine truly, or nothing: it
then has a machine of its own. A boot is told by the first inventory behind it, a Node tells it
before it takes a Pod, and no machine takes an old boot id again. The Nodes of one machine do not
tell two cards at one minor. What is due is silent about Pods whose Node was on another machine
since, though it came back: the ledger remembers that a Node moved, not from where.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

Cards = tuple[tuple[int, str], ...]
"""What is in a machine: (minor, UUID)."""
WHOLE: Final = 100
CPUS: Final = (-1, "cpus")
"""The CPUs of a machine, told like a card."""


@dataclass(frozen=True, slots=True)
class Tell:
    """A Node's inventory. An empty machine is not told."""

    node: str
    machine: str
    cards: Cards
    boot: int
    by_agent: bool


@dataclass(frozen=True, slots=True)
class Lose:
    """A Node was deleted."""

    node: str


@dataclass(frozen=True, slots=True)
class Clear:
    """Somebody says that nothing of a lost Node runs any more."""

    node: str
    evidence: str
    witness: str = ""


@dataclass(frozen=True, slots=True)
class Take:
    """
    A Pod gets a part of a card, or a CPU where the card is empty.

    `observed` ones were given by someone else: they are facts, and no fault of the ledger.
    """

    pod: str
    node: str
    card: str = ""
    minor: int = 0
    percent: int = 0
    alone: bool = False
    cpu: int = -1
    observed: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """The API server says that a Pod is gone."""

    pod: str
    node: str
    voided: bool = False


Move = Tell | Lose | Clear | Take | Leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """
    A Pod that holds something.

    Attributes:
        origin: the machine of its grant; it runs there, or on that of its Node now: `places`.
        born: the machine's boot at the grant.
        lost_at: the machine's boot, whoever told it, when its Node was lost.
        moved: its Node told another machine since.
        heard: the Nodes that told something since the loss.
        over: it runs no more, though nobody has said so yet.
    """

    took: Take
    origin: str
    places: frozenset[str]
    moved: bool = False
    born: int = 0
    lost_at: int | None = None
    heard: frozenset[str] = frozenset()
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a Node told last; `by_agent` whether its machine's agent ever spoke through it."""

    machine: str
    named: bool = False
    live: bool = True
    cards: Cards = ()
    boot: int = 0
    by_agent: bool = False


@dataclass(slots=True)
class Truth:
    """
    The world. `fault` names what a move that the ledger took makes wrong.

    Attributes:
        at: (machine, UUID) -> the minor and the Node that told it last; not after it was withdrawn.
        inside: (machine, minor) -> the UUID that was told last.
        boots: the last boot of each machine.
        agents: (machine, Node) where the machine's agent has reported through the Node.
    """

    nodes: dict[str, Said] = field(default_factory=dict)
    pods: dict[str, Running] = field(default_factory=dict)
    at: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    inside: dict[tuple[str, int], str] = field(default_factory=dict)
    boots: dict[str, int] = field(default_factory=dict)
    agents: set[tuple[str, str]] = field(default_factory=set)

    def after(self, move: Move) -> Truth:
        """Return the world after a move that was taken."""
        world = Truth(
            dict(self.nodes),
            dict(self.pods),
            dict(self.at),
            dict(self.inside),
            dict(self.boots),
            set(self.agents),
        )
        match move:
            case Tell():
                world._tell(move)
            case Lose():
                world._lose(move.node)
            case Clear():
                world._clear(move)
            case Take():
                machine = world.nodes.setdefault(move.node, Said(machine=own(move.node))).machine
                world.pods[move.pod] = Running(
                    took=move,
                    origin=machine,
                    places=frozenset({machine}),
                    born=self.boots.get(machine, 0),
                )
            case Leave():
                if world.pods[move.pod].lost_at is None:
                    del world.pods[move.pod]
        return world

    def running(self) -> set[str]:
        """Return the Pods that run."""
        return {pod for pod, each in self.pods.items() if not each.over}

    def fault(self, move: Move) -> str:
        """Return what is wrong with taking this move here; empty for nothing."""
        if not isinstance(move, Take) or move.observed:
            return ""
        node = self.nodes.get(move.node)
        if node is None or not node.live:
            return "a grant on a Node that is not there"
        others = [each for each in self.pods.values() if not each.over]
        if move.cpu >= 0:
            same = [e for e in others if e.took.cpu == move.cpu and node.machine in e.places]
            return "two holders of a CPU" if same else ""
        holders = [each.took for each in others if each.took.card == move.card]
        if sum(each.percent for each in holders) + move.percent > WHOLE:
            return "more of a card than there is"
        if holders and (move.alone or any(each.alone for each in holders)):
            return "an exclusive holder has company"
        if any(card == move.card and machine != node.machine for machine, card in self.at):
            return "a card on two live machines is granted"
        if not self._one_card(node.machine, move):
            return "minor and UUID are of two cards"
        return ""

    def due(self, move: Move) -> bool:
        """Tell whether the ledger has no reason to refuse this."""
        match move:
            case Take() if not move.observed:
                return self._free(move)
            case Clear():
                return self._borne_out(move)
            case Leave():
                return self.pods[move.pod].lost_at is None
            case _:
                return True

    def _tell(self, move: Tell) -> None:
        said = self.nodes.setdefault(move.node, Said(machine=own(move.node)))
        machine = move.machine or said.machine
        for pod, each in self.pods.items():
            heard = each.heard if each.lost_at is None else each.heard | {move.node}
            places, moved = each.places, each.moved
            if each.took.node == move.node:
                places = frozenset({each.origin, machine})
                moved = moved or len(places) > 1
            self.pods[pod] = replace(each, places=places, moved=moved, heard=heard)
        self._withdraw(move.node)
        for minor, card in (*move.cards, CPUS):
            self.at[machine, card] = (minor, move.node)
            self.inside[machine, minor] = card
        self.boots[machine] = move.boot
        self._booted()
        if move.by_agent:
            self.agents.add((machine, move.node))
        self.nodes[move.node] = Said(
            machine=machine,
            named=said.named or bool(move.machine),
            cards=move.cards,
            boot=move.boot,
            by_agent=(machine, move.node) in self.agents,
        )

    def _withdraw(self, node: str) -> None:
        for (machine, card), (minor, by) in list(self.at.items()):
            if by == node:
                del self.at[machine, card]
                if self.inside.get((machine, minor)) == card:
                    del self.inside[machine, minor]

    def _booted(self) -> None:
        """Kubelet starts Pods again behind a boot, but none of a Node that was lost before it."""
        for pod, each in self.pods.items():
            if each.lost_at is not None and len(each.places) == 1:
                (machine,) = each.places
                if self.boots.get(machine, 0) > max(each.lost_at, each.born):
                    self.pods[pod] = replace(each, over=True)

    def _lose(self, node: str) -> None:
        self._withdraw(node)
        self.nodes[node] = replace(self.nodes[node], live=False)
        boot = self.boots.get(self.nodes[node].machine, 0)
        for pod, each in self.pods.items():
            if each.took.node == node and each.lost_at is None:
                self.pods[pod] = replace(each, lost_at=boot)
        self._booted()

    def _lost_of(self, node: str) -> dict[str, Running]:
        found = self.pods.items()
        return {p: e for p, e in found if e.took.node == node and e.lost_at is not None}

    def _clear(self, move: Clear) -> None:
        """Believe an act, and the agent of a machine for that machine; a boot was seen before."""
        witness = self.nodes.get(move.witness)
        for pod, each in self._lost_of(move.node).items():
            by_agent = (
                move.evidence == "agent"
                and witness is not None
                and witness.live
                and witness.by_agent
                and each.places == {witness.machine}
            )
            if move.evidence == "act" or by_agent or each.over:
                del self.pods[pod]

    def _borne_out(self, move: Clear) -> bool:
        lost = self._lost_of(move.node)
        witness = self.nodes.get(move.witness)
        if not lost or move.evidence == "act":
            return bool(lost)
        if witness is None or not witness.live:
            return False
        for each in lost.values():
            if each.places != {witness.machine} or each.moved or move.witness not in each.heard:
                return False
        if self.nodes[move.node].machine != witness.machine:
            return False
        if move.evidence == "agent":
            return witness.by_agent
        new = all(each.over and each.lost_at not in {0, witness.boot} for each in lost.values())
        return new and not any(machine == witness.machine for machine, _ in self.agents)

    def _one_card(self, machine: str, move: Take) -> bool:
        minor, _ = self.at.get((machine, move.card), (-1, ""))
        return minor == move.minor and self.inside.get((machine, minor)) == move.card

    def _free(self, move: Take) -> bool:
        node = self.nodes.get(move.node)
        if node is None or not node.live or not node.named:
            return False
        if any(each.moved for each in self.pods.values()):
            return False
        if move.cpu >= 0:
            free = not any(each.took.cpu == move.cpu for each in self.pods.values())
            return free and (node.machine, "cpus") in self.at
        if self.fault(move) or not any(card == move.card for _, card in node.cards):
            return False
        if any(e.places != {node.machine} for e in self.pods.values() if e.took.card == move.card):
            return False
        holders = [each.took for each in self.pods.values() if each.took.card == move.card]
        shared = move.percent + sum(each.percent for each in holders) <= WHOLE
        return not holders or (shared and not move.alone and not any(h.alone for h in holders))


def own(node: str) -> str:
    """Return the machine of a Node that tells none."""
    return f"of {node}"
