"""
What an event says is what is committed: every value of every row, past our own code.

Rule: design section 4, "Append-only by the database, not by habit". The variants come out of the
schema, so a new column of a table is tried by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log.events import (
    ClaimVoided,
    LedgerEvent,
    NodeCleared,
    NodeLost,
    PlanDropped,
    PodAssigned,
    PodVoided,
    encode_event,
)
from ledger.domain.request.requests import PodSnapshot
from tests.contract.test_postgres_head import acting_as, give_roles
from tests.support.examples import examples
from tests.support.forged_rows import Forger, Variant, changes_of, tables_of, variants
from tests.support.stores import (
    MONDAY_US,
    Clock,
    PostgresStore,
    Store,
    bound,
    claim,
    claim_bound,
    claim_ended,
    gpu,
    health,
    node,
    observed,
    planned,
    refused,
    released,
    reserved,
    seen_claim,
    share,
    start,
)

NIC: Final = DeviceRecord(device_type="rdma", minor=0, device_id="0000:3b:00.0")
SNAPSHOT: Final = PodSnapshot(
    owner="job/train", labels={"team": "a"}, priority=7, qos="LSR", created_at_us=MONDAY_US
)
MACHINE: Final = (*map(gpu, range(12)), NIC)


def parts(first: int) -> tuple[DeviceShare, ...]:
    """Return a whole card, a part of the next one, and a function of the network card."""
    return (
        share(first, 100, exclusive=True),
        share(first + 1, 0, gib=20, memory_ratio_percent=25, instances=2),
        share(
            *(0, 1),
            gib=0,
            device_type="rdma",
            device_id=NIC.device_id,
            vf_bus_ids=(f"0000:3b:00.{first}",),
        ),
    )


WORLD: Final[tuple[LedgerEvent, ...]] = (
    node(devices=MACHINE, cpus=8, refs=3),
    node("n-2", gpus=2, cpus=2, refs=2),
    reserved("h", share(11, 50), cpus=(2,)),
    reserved("i", share(11, 10), cpus=(2,)),
    claim("d", share(11, 10), cpus=(5,)),
    planned("g", ("p", (10,)), ("q", (9,))),
)
OPERATIONS: Final = Path(__file__).parents[2] / "docs/operations.md"
EVERY: Final = 100 // examples(100)
"""Which variants are tried, beside the first one of every table and column."""
DATABASES: Final = ("sqlite", "postgres")
CHANGED: Final = (*MACHINE[1:4], gpu(4, memory_bytes=1 << 30), *MACHINE[5:], gpu(12))
SCENES: Final[Mapping[str, LedgerEvent]] = {
    "a reservation": reserved(
        "a", *parts(0), cpus=(0, 1, 3), snapshot=SNAPSHOT, decided_on=3, group="g"
    ),
    "a claim": claim("c", *parts(2), cpus=(0, 1), snapshot=SNAPSHOT),
    "a holder that was seen": observed(
        "x", *parts(4), cpus=(0, 1), snapshot=SNAPSHOT, cpu_milli=7, memory_bytes=9
    ),
    "a claim that was seen": seen_claim("s", *parts(6), cpus=(0, 1), snapshot=SNAPSHOT),
    "a holder of unknown cards": observed(
        *("u", share(0, 50, node="n-2")),
        node="n-2",
        unknown_types=("gpu",),
        counted={"gpu": 3},
        snapshot=SNAPSHOT,
    ),
    "a holder of nobody knows how many cards": observed(
        "v", node="n-2", unknown_types=("gpu", "fpga")
    ),
    "a holder on a node that nobody told of": observed("w", share(0, 50), cpus=(0,), node="n-4"),
    "a refusal": refused("r"),
    "a card that died": health(8, healthy=False),
    "a reservation in its place": reserved("p", share(10, 100)),
    "a plan that is dropped": PlanDropped(group="g", reason="late"),
    "a plan": planned("g2", ("q", (9,))),
    "a Pod that is bound": bound("h"),
    "a Pod that runs": PodAssigned(pod_uid="uid-h", attempt=1, node_uid="uid-n-1"),
    "a Pod that ended": released("h"),
    "a Pod that was taken back": PodVoided(
        pod_uid="uid-i", attempt=1, node_uid="uid-n-1", reason="late"
    ),
    "a claim that is stored": claim_bound("d"),
    "a claim that ended": claim_ended("d"),
    "a claim that was taken back": claim_ended("c", kind=ClaimVoided, reason="late"),
    "a new node": node("n-3", gpus=2, cpus=2),
    "a node that changed": node(devices=CHANGED, cpus=7, boot_id="b"),
    "a node that is lost": NodeLost(node_uid="uid-n-1", node_name="n-1", reason="deleted"),
    "a machine that is cleared": NodeCleared(
        node_uid="uid-n-1", node_name="n-1", evidence="act", reason="x"
    ),
}
"""What is recorded behind the world, one after the other."""
Answers = Mapping[str, Mapping[Variant, str]]
"""What a database says of every variant of what is recorded, by scene."""


def answers_of(store: Store, ahead: Store) -> Answers:
    """Try every scene in a ledger that follows another one; what is recorded itself must do."""
    answers: dict[str, dict[Variant, str]] = {}
    tried: set[str] = set()
    with ExitStack() as stack:
        ledgers = [stack.enter_context(each.open()) for each in (store, ahead)]
        writers, clocks = [start(each) for each in ledgers], [Clock(), Clock()]
        for writer, clock in zip(writers, clocks, strict=True):
            writer.append(clock.all(*WORLD))
        if isinstance(store, PostgresStore):
            give_roles(store)
        raw: Any = stack.enter_context(
            acting_as(store, "ledger_writer") if isinstance(store, PostgresStore) else store.raw()
        )
        forger = Forger(store, raw)
        for scene, event in SCENES.items():
            before = tables_of(ahead)
            writers[1].append([clocks[1].new(event)])
            changes = changes_of(before, tables_of(ahead))
            assert forger.refusal(changes) == "", scene
            answers[scene] = {
                each: forger.refusal(each.changes)
                for number, each in enumerate(variants(changes, before))
                if each.about not in tried or number % EVERY == 0
            }
            tried |= {each.about for each in answers[scene]}
            writers[0].append([clocks[0].new(event)])
    return answers


def let_through(database: str) -> set[str]:
    """Return what the document says that a database lets through: columns, and rows lacking."""
    section = OPERATIONS.read_text().split("## What a commit is not asked")[1].split("\n## ")[0]
    found = set()
    for line in section.splitlines():
        if line.startswith("| `"):
            table, *cells = (each.strip() for each in line.split("|")[1:-1])
            cell = cells[DATABASES.index(database)]
            found |= {f"{table[1:-1]}.{name}" for name in re.findall(r"`(\w+)`", cell)}
            found |= {table[1:-1]} if "lacking" in cell else set()
    return found


@pytest.fixture(scope="module", params=DATABASES)
def tried(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Answers]]:
    """A database, and what it says at the latest at the commit, to who has the writer's rights."""
    folder = tmp_path_factory.mktemp("rows")
    empty = request.getfixturevalue({"sqlite": "empty_ledger"}.get(request.param, "empty_postgres"))
    stores = [empty.copy(folder / f"{name}.db") for name in ("behind", "ahead")]
    yield request.param, answers_of(*stores)
    for store in stores:
        if isinstance(store, PostgresStore):
            store.server.drop(store.database)


@pytest.mark.parametrize("scene", SCENES)
def test_no_other_row_is_committed(tried: tuple[str, Answers], scene: str) -> None:
    """Whatever value of whichever row is another one, or a row lacks or is there twice."""
    database, answers = tried
    known = let_through(database)
    passed = [each for each, words in answers[scene].items() if not words]
    assert [each.name for each in passed if each.about not in known] == []


def test_the_document_names_no_more_than_is_let_through(tried: tuple[str, Answers]) -> None:
    """What a database compares by now is no longer in the list."""
    database, answers = tried
    passed = {each.about for said in answers.values() for each, words in said.items() if not words}
    assert let_through(database) == passed or (EVERY > 1 and passed < let_through(database))


NAMED: Final = ("owner", "labels", "pod_name", "policy", "cpu_count", "gpu_count", "decided_on")


def test_a_refusal_names_position_table_and_column(tried: tuple[str, Answers]) -> None:
    """Who reads it knows which value is not as the event says."""
    database, answers = tried
    for each, words in answers["a reservation"].items():
        table, _, column = each.about.partition(".")
        if database == "postgres" and each.name.endswith("lacks"):
            assert "tenure ledger: " in words or "violates" in words, each.name
        if database == "postgres" and table == "ledger_reservations" and column in NAMED:
            assert f"an event that grants has its rows: position 8, {each.about}" in words


def test_a_card_named_twice_has_no_single_row(
    empty_postgres: PostgresStore, tmp_path: Path
) -> None:
    """Half of a card twice is no half of it, whatever the reservation's own row says."""
    once, twice = (reserved("a", *[share(0, 50)] * times) for times in (1, 2))
    behind, ahead = (empty_postgres.copy(tmp_path) for _ in range(2))
    for store, events in ((behind, [node()]), (ahead, [node(), once])):
        with store.open() as ledger:
            start(ledger).append(Clock().all(*events))
    honest = changes_of(tables_of(behind), tables_of(ahead))
    other: dict[str, dict[str, Any]] = {
        "ledger_events": {"body": encode_event(twice)},
        "ledger_reservations": {"device_count": 2, "gpu_count": 2, "gpu_core_percent": 100},
    }
    forged = [replace(each, values={**each.values, **other.get(each.table, {})}) for each in honest]
    with behind.raw() as raw:
        forger = Forger(behind, raw)
        assert forger.refusal(honest) == ""
        words = forger.refusal(forged)
    assert "an event that grants has its rows: position 3, ledger_holdings" in words
    for store in (behind, ahead):
        store.server.drop(store.database)
