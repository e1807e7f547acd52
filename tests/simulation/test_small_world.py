"""Small worlds, exhaustively: the ledger's rules keep them right, and each rule is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from ledger.domain.devices import DeviceShare
from ledger.domain.log.events import Ending, NodeCleared, Opening, PodObserved
from ledger.store.ddl.sqlite_triggers import TRIGGERS, named
from ledger.store.projections.inventory import KnownDevice, KnownMachine, KnownMachines, KnownNode
from ledger.store.projections.project import Projection
from tests.oracles.small_world import Cards
from tests.support.campaign import print_figures
from tests.support.small_world import CARD, CPU, HALF, Found, Machines, Scope, Search
from tests.support.stores import SqliteStore

ONE: Final[Cards] = ((0, "g0"),)
LAYOUTS: Final[tuple[Cards, ...]] = (
    (),
    ONE,
    ((1, "g0"),),
    ((0, "g0"), (1, "g1")),
    ((0, "g1"), (1, "g0")),
)
SILENT: Final = ("A", "B", "")
SCOPES: Final = {
    "nodes that come and go": Scope(steps=5, loses=True, boots=(1, 2)),
    "agents": Scope(steps=4, loses=True, by_agent=(False, True), machines=("A",)),
    "nodes that tell nothing": Scope(
        steps=4,
        nodes=("n1", "n2", "n3"),
        machines=SILENT,
        forms=(CARD, HALF, CPU),
        observed=(HALF, CPU),
    ),
    "CPUs": Scope(steps=4, forms=(CPU,), machines=SILENT, observed=(CPU,), loses=True),
    "two cards": Scope(steps=5, nodes=("n1",), layouts=LAYOUTS, machines=("A",), pods=("a", "b")),
    "cards that wander": Scope(steps=4, layouts=((), ONE), forms=(CARD, HALF), voids=True),
    "rows that lie": Scope(
        steps=3, layouts=(ONE, ((0, "g0"), (1, "g1"))), forms=(CARD, CPU), lies=True
    ),
}
"""Every kind of event is in one of them, with those that can go wrong together."""
DEEPER: Final = 2


class Strangers(KnownMachines):
    """Every Node is on a machine of its own, whatever it tells."""

    def of(self, node: KnownNode | None, told: tuple[str, str]) -> KnownMachine:
        """Return the machine of the node alone."""
        if node is not None:
            return node.machine
        machine = KnownMachine(number=1 + max(self.by_number, default=0), identity=told)
        self.by_number[machine.number] = machine
        return machine


class AnyMinor(Projection):
    """Believes a share its minor."""

    def _device(
        self, position: int, node: KnownNode, share: DeviceShare, event: Opening
    ) -> KnownDevice:
        found = node.device(share.device_type, share.minor, share.device_id)
        if found is None or isinstance(event, PodObserved):
            return super()._device(position, node, share, event)
        return found


class AnyEvidence(Projection):
    """Believes whoever says that a machine is cleared."""

    def _check_evidence(self, node: KnownNode, event: NodeCleared) -> None:
        pass


class AnyEnd(Projection):
    """Lets the Pods of a lost Node go when the API server forgets them."""

    def _ended(self, position: int, at_us: int, event: Ending, phase: str) -> None:
        if event.node_uid in self._nodes:
            self._nodes[event.node_uid].lost_open.pop((event.pod_uid, event.attempt), None)
        super()._ended(position, at_us, event, phase)


class AnyNode(Projection):
    """Grants on a lost Node."""

    def _open(self, position: int, node: KnownNode, event: Opening, *, granted: bool) -> None:
        lost, node.lost_position = node.lost_position, None
        super()._open(position, node, event, granted=granted)
        node.lost_position = lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """
    A ledger without one of its rules.

    Attributes:
        without: triggers, a condition of each, and what it becomes; an empty one is all of it.
        index: the one that is missing.
        projection, machines: code that does not ask either.
    """

    scope: Scope
    fault: str
    without: tuple[tuple[str, str, str], ...] = ()
    index: str = ""
    projection: type[Projection] = Projection
    machines: Machines = lambda known: known

    def without_sql(self) -> Mutant:
        """Return the same mutant with every rule of the database in its place."""
        return replace(self, without=(), index="")


STRANGERS: Final = Mutant(
    scope=Scope(steps=4, machines=("A",)),
    fault="exclusive holder|more of a card",
    without=(
        ("ledger_machines_insert", "", ""),
        ("ledger_devices_counters", "WHEN OLD.unique_id = 1 AND", "WHEN 0 AND"),
    ),
    index="uq_ledger_machines_identity",
    machines=lambda known: Strangers(known.by_number.values(), known.last_device),
)
CLEARED: Final = "the account of a Pod that runs is open"
ENDS: Final = "ledger_reservations_update"
OPENS: Final = "ledger_reservations_insert"
GIVES: Final = "ledger_devices_counters"
LOSES: Final = Scope(steps=5, loses=True, machines=("A",), boots=(1, 2), pods=("a",))
MUTANTS: Final = {
    "two accounts of one card": STRANGERS,
    "two accounts of one CPU": replace(
        STRANGERS, scope=Scope(steps=4, machines=("A",), forms=(CPU,)), fault="holders of a CPU"
    ),
    "a lost Pod is released": Mutant(
        scope=LOSES,
        fault=CLEARED,
        without=(
            (
                ENDS,
                "WHEN OLD.lost_position IS NOT NULL",
                "WHEN e.event_type LIKE 'node.cleared.v%'",
            ),
        ),
        projection=AnyEnd,
    ),
    "the same boot": Mutant(
        scope=LOSES,
        fault=CLEARED,
        without=((ENDS, "AND s.boot_id <> OLD.lost_boot_id", ""),),
        projection=AnyEvidence,
    ),
    "an agent that nobody heard": Mutant(
        scope=LOSES,
        fault=CLEARED,
        without=((ENDS, "THEN s.by_agent = 1", "THEN 1"),),
        projection=AnyEvidence,
    ),
    "a witness from before the loss": Mutant(
        scope=LOSES,
        fault=CLEARED,
        without=((ENDS, "AND s.fact_position > OLD.lost_position", ""),),
        projection=AnyEvidence,
    ),
    "a witness on another machine": Mutant(
        scope=replace(LOSES, nodes=("n1",), machines=("A", "B")),
        fault=CLEARED,
        without=((ENDS, "AND OLD.position > coalesce(n.moved_position, 0)", ""),),
        projection=AnyEvidence,
    ),
    "holders from another machine": Mutant(
        scope=Scope(steps=4, forms=(CPU,), observed=(CPU,), machines=("A",)),
        fault="holders of a CPU",
        without=((OPENS, "r.position < m.moved_position", "0"),),
    ),
    "one UUID on two machines": Mutant(
        scope=Scope(steps=3),
        fault="on two live machines",
        without=((GIVES, "WHEN OLD.unique_id = 1 AND", "WHEN 0 AND"),),
    ),
    "minor and UUID of two cards": Mutant(
        scope=Scope(steps=2, nodes=("n1",), machines=("A",), layouts=LAYOUTS),
        fault="minor and UUID",
        without=(
            ("ledger_holdings_take", "AND (NEW.kind <> 'granted' OR NEW.minor = d.minor)", ""),
        ),
        projection=AnyMinor,
    ),
    "grants on a lost Node": Mutant(
        scope=replace(LOSES, forms=(CPU,)),
        fault="Node that is not there",
        without=((OPENS, "WHEN NEW.kind = 'granted' AND n.lost_position IS NOT NULL", "WHEN 0"),),
        projection=AnyNode,
    ),
    "nothing is granted": Mutant(
        scope=Scope(steps=2),
        fault="refused without need",
        without=((GIVES, "WHEN OLD.present <> 1", "WHEN OLD.present <> 2"),),
    ),
}


def test_all_short_histories_keep_the_world_right(tmp_path: Path) -> None:
    """No sequence of so many events has a fault, and nothing is refused without need."""
    for name, scope in SCOPES.items():
        assert _searched(tmp_path, name, scope, scope.steps) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", SCOPES)
def test_all_longer_histories_keep_the_world_right(tmp_path: Path, name: str) -> None:
    """The same with longer ones."""
    scope = SCOPES[name]
    assert _searched(tmp_path, name, scope, scope.steps + DEEPER) is None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_ledger_without_one_of_its_rules_is_found_out(tmp_path: Path, name: str) -> None:
    """Some short history has a fault then; where code asks too, the database alone has none."""
    mutant = MUTANTS[name]
    found = _searched(tmp_path, name, mutant.scope, mutant.scope.steps, mutant)

    assert found is not None
    assert re.search(mutant.fault, found.fault), str(found)
    if mutant.projection is not Projection or mutant.index:
        kept = mutant.without_sql()
        second = _searched(tmp_path, f"{name}, by code", mutant.scope, len(found.moves), kept)
        assert second is None or "refused without need" in second.fault, str(second)


def _searched(
    folder: Path, name: str, scope: Scope, steps: int, mutant: Mutant | None = None
) -> Found | None:
    """Search in a ledger of its own, without what the mutant lacks, and print the figures."""
    store = SqliteStore(path=folder / f"{name}.db")
    store.open("create").close()
    with store.raw() as raw:
        for trigger, old, new in mutant.without if mutant else ():
            (text,) = [each for each in TRIGGERS if named(each) == trigger]
            raw.execute(f"DROP TRIGGER {trigger}")
            if old:
                assert text.count(old) == 1, (old, text.count(old))
                raw.execute(text.replace(old, new))
        if mutant and mutant.index:
            raw.execute(f"DROP INDEX {mutant.index}")
    with store.open() as ledger:
        if mutant is None:
            search = Search(ledger, scope)
            found = search.run(steps)
        else:
            search = Search(ledger, scope, mutant.projection, mutant.machines)
            found = search.shortest(steps)
        search.close()
    print_figures(f"{name}, {steps} events", search.figures)
    return found
