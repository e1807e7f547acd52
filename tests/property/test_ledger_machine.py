"""Any commands in any order, with crashes between them: the ledger says what the model says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import structs

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.errors import CapacityError, FencedError, IdempotencyError
from ledger.domain.log.events import (
    LedgerEvent,
    NodeCleared,
    NodeInventoried,
    NodeLost,
    PlanDropped,
    PodAssigned,
    PodVoided,
)
from ledger.domain.log.recorded import NewEvent
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from tenure.progress import counting_bar
from tests.support.campaign import print_figures
from tests.support.examples import examples
from tests.support.ledger_model import QUERIES, Model
from tests.support.stores import (
    GIB,
    Clock,
    SqliteStore,
    Store,
    bound,
    gpu,
    health,
    node,
    observed,
    planned,
    refused,
    released,
    reserved,
    share,
    start,
)

STEPS: Final = 100_000
NewStore = Callable[[], Iterator[Store]]
MACHINES: Final = {"n-1": "m-1", "n-2": "m-2", "n-3": "m-1"}
"""Nodes, and the machines that they stand on."""
WORLD: Final = "GPU-world"
"""The id of a card that both machines may list; there is one of it."""
NODES = st.sampled_from(sorted(MACHINES))
PODS = st.sampled_from([f"p{i}" for i in range(6)])
ATTEMPTS = st.sampled_from([1, 1, 1, 2])
GROUPS = st.sampled_from(["g", "h"])
CPUS = st.sets(st.integers(0, 4), max_size=2).map(lambda cpus: tuple(sorted(cpus)))
OTHER = st.sampled_from(["", "", "", "", "-b"])


@st.composite
def shares(draw: st.DrawFn, name: str) -> list[DeviceShare]:
    """Return parts of cards of one node, some of which it never had."""
    minors = draw(st.lists(st.integers(0, 3), max_size=2, unique=True).map(sorted))
    return [
        share(
            minor,
            draw(st.sampled_from([0, 10, 50, 60, 100])),
            gib=draw(st.sampled_from([0, 8, 40, 80])),
            device_id=WORLD
            if draw(st.integers(0, 7)) == 0
            else f"GPU-{MACHINES[name]}-{minor}{draw(OTHER)}",
            exclusive=draw(st.booleans()),
        )
        for minor in minors
    ]


@st.composite
def reservations(draw: st.DrawFn) -> LedgerEvent:
    """Return a reservation that may or may not fit."""
    name = draw(NODES)
    parts = draw(shares(name))
    return reserved(draw(PODS), *parts, node=name, attempt=draw(ATTEMPTS), cpus=draw(CPUS))


@st.composite
def observations(draw: st.DrawFn) -> LedgerEvent:
    """Return what others hold, now and then of a card that nobody can name."""
    name = draw(NODES)
    unknown = draw(st.sampled_from([(), (), (), ("gpu",)]))
    return observed(
        draw(PODS),
        *draw(shares(name)),
        node=name,
        attempt=draw(ATTEMPTS),
        cpus=draw(CPUS),
        unknown_types=unknown,
    )


def on_machine(name: str, **changes: Any) -> NodeInventoried:  # noqa: ANN401 - any field
    """Return the inventory of a Node with three cards and four CPUs of its machine."""
    cards = tuple(gpu(minor, node=MACHINES[name]) for minor in range(3))
    told = {"system_uuid": MACHINES[name], "machine_id": MACHINES[name], "boot_id": "boot-1"}
    return node(name, **{"cpus": 4, "devices": cards, **told, **changes})


@st.composite
def clearings(draw: st.DrawFn) -> LedgerEvent:
    """Return that a lost Node's Pods are gone, by evidence that may not be true."""
    name = draw(NODES)
    return NodeCleared(
        node_uid=f"uid-{name}",
        node_name=name,
        evidence=draw(st.sampled_from(["act", "agent", "boot"])),
        witness_uid=draw(st.sampled_from(["", *(f"uid-{each}" for each in MACHINES)])),
    )


@st.composite
def inventories(draw: st.DrawFn) -> LedgerEvent:
    """Return an inventory with cards that shrank, died, left or were replaced."""
    name = draw(NODES)
    cards: list[DeviceRecord] = []
    for minor in range(3):
        kind = draw(
            st.sampled_from(["same", "same", "same", "smaller", "sick", "gone", "other", "world"])
        )
        changes: dict[str, dict[str, Any]] = {
            "smaller": {"core_percent": 50, "memory_bytes": 40 * GIB},
            "sick": {"healthy": False},
            "other": {"device_id": f"GPU-{MACHINES[name]}-{minor}-b"},
            "world": {"device_id": WORLD, "unique_id": True} if minor == 0 else {},
        }
        if kind != "gone":
            cards.append(gpu(minor, node=MACHINES[name], **changes.get(kind, {})))
    count, refs = draw(st.sampled_from([4, 4, 2])), draw(st.sampled_from([1, 1, 2]))
    boot, agent = draw(st.sampled_from(["boot-1", "boot-2", ""])), draw(st.integers(0, 5)) == 0
    told: dict[str, Any] = {"cpus": count, "refs": refs, "boot_id": boot, "by_agent": agent}
    event = on_machine(name, devices=tuple(cards), **told)
    twice = draw(st.sampled_from([False] * 7 + [True]))
    return structs.replace(event, cpus=(*event.cpus, event.cpus[0])) if twice else event


@st.composite
def plans(draw: st.DrawFn) -> LedgerEvent:
    """Return a plan of one or two members, whose cards may be anything but free."""
    minors = st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True).map(tuple)
    pods = draw(st.lists(PODS, min_size=1, max_size=2, unique=True))
    members = [(pod, draw(minors)) for pod in pods]
    return planned(draw(GROUPS), *members, node=draw(NODES))


@st.composite
def deaths(draw: st.DrawFn) -> LedgerEvent:
    """Return a card that dies or comes back, perhaps one that is not there."""
    name, minor = draw(NODES), draw(st.integers(0, 2))
    event = health(minor, healthy=draw(st.booleans()), node=name)
    event = structs.replace(event, device_id=f"GPU-{MACHINES[name]}-{minor}")
    return structs.replace(event, device_id=event.device_id + draw(OTHER))


def about(make: Callable[[str, str, int], LedgerEvent]) -> st.SearchStrategy[LedgerEvent]:
    """Return an event about a Pod's attempt on a node, whether it is there or not."""
    return st.builds(make, PODS, NODES, ATTEMPTS)


def _assigned(pod: str, name: str, attempt: int) -> LedgerEvent:
    return PodAssigned(pod_uid=f"uid-{pod}", attempt=attempt, node_uid=f"uid-{name}")


def _voided(pod: str, name: str, attempt: int) -> LedgerEvent:
    words = {"pod_uid": f"uid-{pod}", "node_uid": f"uid-{name}", "reason": "fenced"}
    return PodVoided(attempt=attempt, **words)


BINDINGS = about(lambda pod, name, attempt: bound(pod, node=name, attempt=attempt))
ASSIGNMENTS = about(_assigned)
RELEASES = about(lambda pod, name, attempt: released(pod, node=name, attempt=attempt))
VOIDS = about(_voided)
DROPS = st.builds(lambda group: PlanDropped(group=group, reason="changed"), GROUPS)
LOSSES = NODES.map(lambda name: NodeLost(node_uid=f"uid-{name}", node_name=name, reason="deleted"))
REFUSALS = st.builds(refused, PODS)
ANY = st.one_of(
    *(reservations(), reservations(), reservations(), RELEASES, RELEASES, plans(), observations()),
    *(LOSSES, clearings()),
    *(inventories(), deaths(), BINDINGS, ASSIGNMENTS, VOIDS, DROPS, REFUSALS),
)


class LedgerMachine(RuleBasedStateMachine):
    """A ledger and the model beside it; every rule is one command of a writer."""

    def __init__(self, new_store: NewStore) -> None:
        super().__init__()
        self._stores = new_store()
        self.store = next(self._stores)
        self.ledger = self.store.open()
        self.writer = start(self.ledger)
        self.clock = Clock()
        self.model = Model()
        self.last: list[NewEvent] = []

    @initialize()
    def two_machines(self) -> None:
        """Begin with the inventory of both machines, one of which registered twice."""
        self.record(*map(on_machine, MACHINES))

    def record(self, *events: LedgerEvent) -> None:
        """Append a batch: it is taken whole where the model takes it, refused where not."""
        batch = self.clock.all(*events)
        before = self.writer.head.position
        if self.model.append(list(events)):
            assert self.writer.append(batch) == before + len(batch)
            self.last = batch
        else:
            with pytest.raises(CapacityError):
                self.writer.append(batch)
            assert self.writer.head.position == before
        self.compare()

    def compare(self) -> None:
        """The tables are the model's, to the last counter."""
        with self.ledger.connection.begin():
            run = self.ledger.connection.exec_driver_sql
            found = {name: sorted(map(tuple, run(sql))) for name, sql in QUERIES.items()}
        assert found == self.model.tables()

    @rule(event=reservations())
    def reserve(self, event: LedgerEvent) -> None:
        """Grant shares, CPUs or nothing at all."""
        self.record(event)

    @rule(event=BINDINGS)
    def bind(self, event: LedgerEvent) -> None:
        """The API server took a Binding."""
        self.record(event)

    @rule(event=ASSIGNMENTS)
    def assign(self, event: LedgerEvent) -> None:
        """The node confirmed what runs."""
        self.record(event)

    @rule(event=RELEASES)
    def release(self, event: LedgerEvent) -> None:
        """A holder is gone."""
        self.record(event)

    @rule(event=VOIDS)
    def void(self, event: LedgerEvent) -> None:
        """A reservation is taken back."""
        self.record(event)

    @rule(event=observations())
    def observe(self, event: LedgerEvent) -> None:
        """Others hold something."""
        self.record(event)

    @rule(event=inventories())
    def inventory(self, event: LedgerEvent) -> None:
        """A node tells what it has."""
        self.record(event)

    @rule(event=LOSSES)
    def lose(self, event: LedgerEvent) -> None:
        """A Node is deleted or out of service."""
        self.record(event)

    @rule(event=clearings())
    def clear(self, event: LedgerEvent) -> None:
        """What a lost Node's Pods held is said to be free."""
        self.record(event)

    @rule(event=deaths())
    def change_health(self, event: LedgerEvent) -> None:
        """A card dies or comes back."""
        self.record(event)

    @rule(event=plans())
    def plan(self, event: LedgerEvent) -> None:
        """A group is given whole cards before its members."""
        self.record(event)

    @rule(event=DROPS)
    def drop_plan(self, event: LedgerEvent) -> None:
        """A plan is no longer valid."""
        self.record(event)

    @rule(event=REFUSALS)
    def refuse(self, event: LedgerEvent) -> None:
        """A Pod is told no."""
        self.record(event)

    @rule(events=st.lists(ANY, min_size=2, max_size=4))
    def batch(self, events: list[LedgerEvent]) -> None:
        """Several commands in one commit: all or none."""
        self.record(*events)

    @precondition(lambda self: self.last)
    @rule(fresh=st.booleans())
    def repeat(self, *, fresh: bool) -> None:
        """The same command again changes nothing; what comes beside it for the first time does."""
        before = self.writer.head.position
        new = self.clock.all(refused("w")) if fresh else []
        assert self.writer.append([*self.last, *new]) == before + len(new)
        self.compare()

    @precondition(lambda self: self.last)
    @rule()
    def reuse_a_key(self) -> None:
        """A key stands for one command."""
        stolen = structs.replace(self.last[0], event=refused("w", "another command"))
        before = self.writer.head
        with pytest.raises(IdempotencyError):
            self.writer.append([stolen])
        assert self.writer.head == before
        self.compare()

    @rule()
    def take_over(self) -> None:
        """Another writer begins; the one before it changes nothing any more."""
        old, self.writer = self.writer, start(self.ledger)
        with pytest.raises(FencedError):
            old.append(self.clock.all(released("p0")))
        self.compare()

    @rule()
    def crash(self) -> None:
        """The process dies between two commands; the next one reads what is there."""
        self.ledger.close()
        self.ledger = self.store.open()
        self.writer = start(self.ledger)
        self.compare()

    @rule()
    def rebuild_projections(self) -> None:
        """The tables follow from the events alone."""
        report = rebuild(self.ledger)
        assert report.equal, report.differences

    def teardown(self) -> None:
        """At the end all of it proves itself."""
        try:
            report = verify(self.ledger)
            assert report.ok, report.findings
        finally:
            self.ledger.close()
            next(self._stores, None)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A migrated ledger without events."""
    store = SqliteStore(path=tmp_path_factory.mktemp("machine") / "empty.db")
    store.open("create").close()
    return store


@pytest.fixture
def new_store(request: pytest.FixtureRequest, tmp_path: Path, empty: SqliteStore) -> NewStore:
    """How each database makes a ledger without events, and what becomes of it after."""

    def sqlite() -> Iterator[Store]:
        store = empty.copy(tmp_path / "ledger.db")
        yield store
        for left in tmp_path.iterdir():
            left.unlink()

    def postgres() -> Iterator[Store]:
        server = request.getfixturevalue("postgres")
        store = request.getfixturevalue("empty_postgres").copy()
        yield store
        server.drop(store.database)

    return {"sqlite": sqlite, "postgres": postgres}[request.param]


def run(new_store: NewStore, steps: int = 0, **words: Any) -> int:  # noqa: ANN401 - settings
    """Run the machine on one database, with a bar where steps are told; return its steps."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    done = count(1)

    with counting_bar("steps", steps) if steps else nullcontext() as bar:

        class Machine(LedgerMachine):
            """The machine on this database."""

            def __init__(self) -> None:
                super().__init__(new_store)

            @invariant()
            def count_this_step(self) -> None:
                """Every step is counted, refused commands too."""
                made = next(done)
                if bar is not None:
                    bar(made)

        words["suppress_health_check"] = checks
        run_state_machine_as_test(Machine, settings=settings(**words))
    return next(done) - 1


@pytest.mark.parametrize(
    ("new_store", "examples", "steps"),
    [
        pytest.param("sqlite", examples(30), 40, id="sqlite"),
        pytest.param("postgres", 5, 20, id="postgres", marks=pytest.mark.integration),
    ],
    indirect=["new_store"],
)
def test_the_ledger_is_the_model(new_store: NewStore, examples: int, steps: int) -> None:
    """Every command has the model's outcome and leaves the model's tables; the end is proved."""
    run(new_store, max_examples=examples, stateful_step_count=steps)


@pytest.mark.slow
@pytest.mark.parametrize("new_store", ["sqlite"], indirect=True)
def test_the_ledger_is_the_model_over_a_hundred_thousand_commands(new_store: NewStore) -> None:
    """The same with fresh seeds."""
    began = time.monotonic()
    steps = run(new_store, STEPS, max_examples=1_250, stateful_step_count=100, derandomize=False)

    print_figures(
        "the ledger and its model",
        {"seconds": round(time.monotonic() - began, 1), "steps": steps, "differences": 0},
    )
    assert steps >= STEPS
