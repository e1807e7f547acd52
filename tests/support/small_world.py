"""
Every sequence of events of a small world, up to a length, through the ledger's own code and rules.

A depth-first search in one transaction of a real SQLite ledger, a savepoint for each step: what a
step writes is what `ledger.store.projections` writes, and the triggers take or refuse it. A state
is what the tables and the physical world (`tests.oracles.small_world`) say, without positions and
times; one that was met with as many steps left is not entered again. Names that are alike (Nodes,
machines, Pods) come in one order. A `Scope` says what can happen and for how long.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import CapacityError, LedgerError
from ledger.domain.log.events import LedgerEvent, NodeCleared, NodeInventoried, NodeLost, PodVoided
from ledger.store import schema
from ledger.store.failures import fact_of, refused_by_rule
from ledger.store.open import Ledger
from ledger.store.profile import driver_connection
from ledger.store.projections.inventory import KnownMachines
from ledger.store.projections.known import FACTS, OPEN, PlannedCardRows, columns_of, known
from ledger.store.projections.project import Projection
from ledger.store.writing import statements
from ledger.store.writing.append import Writer
from ledger.store.writing.outbox import Outbox
from ledger.store.writing.statements import Row, Statement
from tests.oracles.small_world import (
    Cards,
    Clear,
    Leave,
    Lose,
    Move,
    Running,
    Take,
    Tell,
    Truth,
    own,
)
from tests.support.stores import Clock, gpu, node, observed, released, reserved, share, start

CARD: Final = Take(pod="", node="", card="g0", percent=100, alone=True)
HALF: Final = Take(pod="", node="", card="g0", percent=50)
CPU: Final = Take(pod="", node="", cpu=0)
WITNESSES: Final = (("act", False), ("agent", True), ("boot", True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """
    What can happen, and how many events long.

    Attributes:
        machines: what a Node may tell; empty for nothing.
        forms: what a Pod may ask; of each card and minor that is in `layouts`.
        observed: what someone else may give.
        lies: whether each grant is also tried with rows that say something else than its event.
    """

    steps: int
    nodes: tuple[str, ...] = ("n1", "n2")
    machines: tuple[str, ...] = ("A", "B")
    layouts: tuple[Cards, ...] = (((0, "g0"),),)
    boots: tuple[int, ...] = (1,)
    by_agent: tuple[bool, ...] = (False,)
    forms: tuple[Take, ...] = (CARD,)
    observed: tuple[Take, ...] = ()
    pods: tuple[str, ...] = ("a", "b")
    loses: bool = False
    voids: bool = False
    lies: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """A fault, with the moves that lead to it."""

    fault: str
    moves: tuple[Move, ...]

    def __str__(self) -> str:
        return "\n".join([self.fault, *map(str, self.moves)])


Machines = Callable[[KnownMachines], KnownMachines]
Twist = Callable[[Statement, Row], Row]


class Trial(Writer):
    """A writer that tries events inside of the transaction that is open, and takes them back."""

    def attempt(self, event: LedgerEvent, clock: Clock, rows: Callable[[int, int], None]) -> str:
        """Write an event and what `rows` sends; return why it was refused, empty if it was not."""
        batch, before = self._batch([clock.new(event)]), self._head
        head = batch.head
        moved = (head.position, head.at_us, head.chain_hash, before.epoch, before.position)
        outbox = self._outbox = Outbox(self._connection)
        outbox.add(statements.MOVE_HEAD, [moved], dropped)
        outbox.add(statements.EVENT, batch.rows, dropped)
        try:
            rows(head.position, head.at_us)
            outbox.send()
        except CapacityError as error:
            return str(error)
        except DBAPIError as error:
            if not refused_by_rule(error):
                raise
            return fact_of(error)
        self._stand_behind(batch)
        return ""

    def add(self, statement: Statement, rows: list[Row]) -> None:
        """Let rows of the event wait."""
        self._outbox.add(statement, rows, dropped)

    def mark(self) -> tuple[Any, ...]:
        """Return what `back` needs to stand here again."""
        return self._head, dict(self._stream_versions())

    def back(self, mark: tuple[Any, ...]) -> None:
        """Forget what was tried."""
        self._head, self._versions = mark


def dropped() -> LedgerError:
    """Return the error for a row that touched nothing."""
    return LedgerError("a row touched nothing")


class Search:
    """One search. `figures` counts states, moves and refusals."""

    def __init__(
        self,
        ledger: Ledger,
        scope: Scope,
        projection: type[Projection] = Projection,
        machines: Machines = lambda known: known,
    ) -> None:
        start(ledger)
        self.writer = Trial(ledger.connection, ledger.head())
        self.scope, self.figures = scope, Counter[str]()
        self._projection, self._machines = projection, machines
        self._clock, self._seen = Clock(), dict[bytes, int]()
        self._transaction = ledger.connection.begin()
        self._driver: Any = driver_connection(ledger.connection)

    def close(self) -> None:
        """Leave the ledger as it was."""
        self._transaction.rollback()

    def shortest(self, steps: int) -> Found | None:
        """Return one of the shortest ways to a fault; None if there is none."""
        for bound in range(1, steps + 1):
            found = self.run(bound)
            if found is not None:
                return found
        return None

    def run(self, steps: int) -> Found | None:
        """Return a way to a fault; None if no sequence of this many events has one."""
        self._seen.clear()
        return self._from(Truth(), steps, ())

    def _from(self, truth: Truth, steps: int, path: tuple[Move, ...]) -> Found | None:
        rows = self._rows()
        key = _key(truth, rows)
        if self._seen.get(key, 0) >= steps:
            return None
        self.figures["states"] += key not in self._seen
        self._seen[key] = steps
        held = {row["pod_uid"].removeprefix("uid-") for row in rows["open"]}
        for move in moves(self.scope, truth, held):
            if fault := self._lied(truth, move, rows):
                return Found(fault, (*path, move))
            if found := self._step(truth, steps, (*path, move), rows):
                return found
        return None

    def _step(
        self, truth: Truth, steps: int, path: tuple[Move, ...], rows: dict[str, Any]
    ) -> Found | None:
        move, mark = path[-1], self.writer.mark()
        self._driver.execute("SAVEPOINT step")
        try:
            refusal = self._tried(move, rows)
            self.figures["moves"] += 1
            if refusal:
                self.figures["refusals"] += 1
                due = truth.due(move)
                return Found(f"refused without need: {refusal}", path) if due else None
            if fault := truth.fault(move):
                return Found(fault, path)
            after = truth.after(move)
            if after.running() - self._open():
                return Found("the account of a Pod that runs is open", path)
            return self._from(after, steps - 1, path) if steps > 1 else None
        finally:
            self._driver.execute("ROLLBACK TO step").close()
            self._driver.execute("RELEASE step").close()
            self.writer.back(mark)

    def _lied(self, truth: Truth, move: Move, rows: dict[str, Any]) -> str:
        """Try rows that say something else than their event; return which of them were taken."""
        if not self.scope.lies or not isinstance(move, Take | Tell) or truth.fault(move):
            return ""
        for name, twist in twists(rows):
            mark = self.writer.mark()
            self._driver.execute("SAVEPOINT lie")
            self._twisted = False
            refusal = self._tried(move, rows, twist)
            self._driver.execute("ROLLBACK TO lie").close()
            self._driver.execute("RELEASE lie").close()
            self.writer.back(mark)
            self.figures["lies"] += self._twisted
            if self._twisted and not refusal:
                return f"rows were taken that say something else: {name}"
        return ""

    def _tried(self, move: Move, rows: dict[str, Any], twist: Twist | None = None) -> str:
        def send() -> None:
            for statement, of in projection.taken():
                told = [twist(statement, row) for row in of] if twist else of
                self._twisted = self._twisted or told != of
                self.writer.add(statement, told)

        self._twisted = False
        facts = {each.name: columns_of(each, FACTS[each], rows[each.name]) for each in FACTS}
        held = [tuple(of[name] for name in OPEN) for of in rows["open"]]
        nodes, machines = known(facts, held)
        projection = self._projection(nodes, send, PlannedCardRows(), self._machines(machines))
        event = event_of(move, self.scope)

        def project(position: int, at_us: int) -> None:
            projection.add(position, at_us, event)
            send()

        return self.writer.attempt(event, self._clock, project)

    def _rows(self) -> dict[str, Any]:
        rows: dict[str, Any] = {
            table.name: self._driver.execute(f"SELECT * FROM {table.name} ORDER BY 1, 2").fetchall()
            for table in FACTS
        }
        names = (*OPEN, "phase")
        found = self._driver.execute(
            f"SELECT {', '.join(names)} FROM ledger_reservations"
            " WHERE closed_position IS NULL ORDER BY position"
        )
        rows["open"] = [dict(zip(names, row, strict=True)) for row in found]
        rows["holdings"] = self._driver.execute(
            "SELECT position, device_no, minor FROM ledger_holdings"
            " WHERE closed_position IS NULL UNION ALL"
            " SELECT position, -1 - machine_no, cpu FROM ledger_cpu_holdings"
            " WHERE closed_position IS NULL ORDER BY 1, 2"
        ).fetchall()
        return rows

    def _open(self) -> set[str]:
        query = "SELECT pod_uid FROM ledger_reservations WHERE closed_position IS NULL"
        return {uid.removeprefix("uid-") for (uid,) in self._driver.execute(query)}


def moves(scope: Scope, truth: Truth, held: set[str]) -> Iterator[Move]:
    """Yield what can happen now; of names that are alike, one that was not used yet."""
    new = next((name for name in scope.nodes if name not in truth.nodes), None)
    nodes = [*truth.nodes, *([new] if new else [])]
    unnamed = next((name for name in scope.machines if name and name not in truth.boots), None)
    for name, machine, cards in product(nodes, scope.machines, scope.layouts):
        if machine in truth.boots or machine in {"", unnamed}:
            yield from _tellings(scope, truth, name, machine, cards)
    if scope.loses:
        yield from (Lose(name) for name, said in truth.nodes.items() if said.live)
        for name, (evidence, seen) in product(truth.nodes, WITNESSES):
            for witness in truth.nodes if seen else [""]:
                yield Clear(name, evidence, witness)
    pod = next((pod for pod in scope.pods if pod not in held), None)
    if pod is not None:
        for name, form in product(truth.nodes, scope.forms):
            said = truth.nodes[name]
            if said.boot == truth.boots.get(said.machine, 0):
                yield from _takings(scope, pod, name, form, given=False)
        for name, form in product(nodes, scope.observed):
            yield from _takings(scope, pod, name, form, given=True)
    for pod in sorted(held & truth.pods.keys()):
        for voided in (False, True)[: 1 + scope.voids]:
            yield Leave(pod, truth.pods[pod].took.node, voided)


def _tellings(scope: Scope, truth: Truth, name: str, machine: str, cards: Cards) -> Iterator[Move]:
    said = truth.nodes.get(name)
    before = said.machine if said else own(name)
    board = machine or before
    least = truth.boots.get(board, 0)
    if before == own(name):
        least = max(least, truth.boots.get(before, 0))
    for boot, by_agent in product(scope.boots, scope.by_agent):
        if boot >= least:
            yield Tell(name, machine, cards, boot, by_agent)


def _takings(scope: Scope, pod: str, name: str, form: Take, *, given: bool) -> Iterator[Move]:
    if form.cpu >= 0:
        yield Take(pod, name, cpu=form.cpu, observed=given)
        return
    cards = sorted({card for layout in scope.layouts for _, card in layout})
    minors = sorted({minor for layout in scope.layouts for minor, _ in layout})
    for card, minor in product(cards, minors):
        yield Take(pod, name, card, minor, form.percent, form.alone, observed=given)


def event_of(move: Move, scope: Scope) -> LedgerEvent:
    """Return what the ledger is told of a move."""
    match move:
        case Tell():
            return _inventory(move, scope)
        case Lose():
            return NodeLost(node_uid=f"uid-{move.node}", node_name=move.node, reason="deleted")
        case Clear():
            return NodeCleared(
                node_uid=f"uid-{move.node}",
                node_name=move.node,
                evidence=move.evidence,
                witness_uid=f"uid-{move.witness}" if move.witness else "",
            )
        case Leave():
            if not move.voided:
                return released(move.pod, node=move.node)
            uid = f"uid-{move.pod}"
            return PodVoided(pod_uid=uid, attempt=1, node_uid=f"uid-{move.node}", reason="gone")
        case Take():
            part = share(move.minor, move.percent, device_id=move.card, exclusive=move.alone)
            shares = (part,) if move.card else ()
            cpus = (move.cpu,) if move.cpu >= 0 else ()
            give = observed if move.observed else reserved
            return give(move.pod, *shares, node=move.node, cpus=cpus)


def _inventory(move: Tell, scope: Scope) -> NodeInventoried:
    cards = tuple(gpu(minor, device_id=card, unique_id=True) for minor, card in move.cards)
    return node(
        move.node,
        devices=cards,
        cpus=int(any(form.cpu >= 0 for form in scope.forms)),
        system_uuid=f"system-{move.machine}" if move.machine else "",
        machine_id=f"id-{move.machine}" if move.machine else "",
        boot_id=f"boot-{move.boot}",
        by_agent=move.by_agent,
    )


def twists(rows: dict[str, Any]) -> Iterator[tuple[str, Twist]]:
    """Yield ways to write rows that are not what the event says."""

    def changed(statement: Statement, column: int, value: object) -> Twist:
        def twist(of: Statement, row: Row) -> Row:
            return (*row[:column], value, *row[column + 1 :]) if of is statement else row

        return twist

    for minor in (0, 1):
        yield f"minor {minor}", changed(statements.HOLDING, 2, minor)
    for number, *_ in rows["ledger_devices"]:
        yield f"device {number}", changed(statements.HOLDING, 1, number)
    for number, *_ in rows["ledger_machines"]:
        yield f"a CPU of machine {number}", changed(statements.CPU_HOLDING, 2, number)
        yield f"a device of machine {number}", changed(statements.DEVICE, 1, number)
        yield f"a node of machine {number}", changed(statements.NODE, 3, number)
        yield f"what was told of machine {number}", changed(statements.STAND, 1, number)


def _key(truth: Truth, rows: dict[str, Any]) -> bytes:
    """Return a state's name: what tables and world say, in the order of the tables' numbers."""
    machines = {number: (a, b) for number, a, b, _ in rows["ledger_machines"]}
    nodes = {row[0]: row for row in rows["ledger_nodes"]}
    stands = sorted(rows["ledger_stands"], key=lambda row: (row[1], row[-1]))
    at = {each["position"]: number for number, each in enumerate(rows["open"])}
    open_ = [
        (
            each["pod_uid"],
            each["node_no"],
            each["phase"],
            each["kind"],
            each["lost_boot_id"],
            each["position"] < (nodes[each["node_no"]][MOVED] or 0),
            [row[-1] > (each["lost_position"] or row[-1]) for row in stands],
        )
        for each in rows["open"]
    ]
    said = (
        machines,
        [(*row[:MOVED], row[LOST_AT] is None) for row in nodes.values()],
        [row[:-1] for row in stands],
        [row[:-1] for row in rows["ledger_devices"]],
        [row[:-1] for row in rows["ledger_cpus"]],
        open_,
        [(at[position], *rest) for position, *rest in rows["holdings"]],
        sorted((name, str(of)) for name, of in truth.nodes.items()),
        sorted(_running(pod, each) for pod, each in truth.pods.items()),
        sorted(truth.at.items()),
        sorted(truth.inside.items()),
        sorted(truth.boots.items()),
        sorted(truth.agents),
    )
    return hashlib.blake2b(repr(said).encode(), digest_size=16).digest()


def _running(pod: str, of: Running) -> tuple[Any, ...]:
    places, heard = sorted(of.places), sorted(of.heard)
    told = (places, of.moved, heard)
    return pod, str(of.took), of.origin, *told, of.born, of.lost_at, of.over


_NODE_COLUMNS: Final = schema.ledger_nodes.columns.keys()
MOVED: Final = _NODE_COLUMNS.index("moved_position")
LOST_AT: Final = _NODE_COLUMNS.index("lost_position")
