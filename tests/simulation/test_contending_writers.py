"""Eight processes believe that they are the writer: no card is given twice, no event is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.campaign import print_figures, run_campaign
from tests.support.contending import READERS, WRITERS
from tests.support.stores import GIB, PostgresStore, SqliteStore, Store

SECONDS_MAX: Final = 1_800

FULLEST: Final = """
SELECT max(core), max(memory) FROM (
  SELECT sum(core) OVER held AS core, sum(memory) OVER held AS memory
  FROM (
    SELECT device_no, position, core_percent AS core, memory_bytes AS memory FROM ledger_holdings
    UNION ALL
    SELECT device_no, closed_position, -core_percent, -memory_bytes FROM ledger_holdings
    WHERE closed_position IS NOT NULL
  ) AS moves
  WINDOW held AS (PARTITION BY device_no ORDER BY position)
) AS sums
"""
"""What any card ever held at once, from the intervals alone: not from the counters."""

RESERVED: Final = """
SELECT idempotency_key, position FROM ledger_events WHERE event_type = 'pod.reserved.v1'
"""
HELD: Final = "SELECT count(*), count(DISTINCT position) FROM ledger_holdings"
DENSE: Final = "SELECT count(*), min(position), max(position) FROM ledger_events"


@pytest.fixture(params=["sqlite", "postgres"])
def contended(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A ledger without events for the writers to fight over, on each database."""
    if request.param == "sqlite":
        file = SqliteStore(path=tmp_path / "ledger.db")
        file.open("create").close()
        yield file
        return
    empty: PostgresStore = request.getfixturevalue("empty_postgres")
    store = empty.copy()
    yield store
    store.server.drop(store.database)


def rows(store: Store, query: str) -> list[tuple[Any, ...]]:
    """Return what the database itself says, past our own code."""
    with store.raw() as raw:
        return [tuple(row) for row in raw.execute(query).fetchall()]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("reservations", "seed"),
    [
        pytest.param(100, 1, id="100 reservations", marks=pytest.mark.campaign_sample),
        pytest.param(1_000, 1, id="1000 reservations", marks=pytest.mark.slow),
        pytest.param(20_000, 2, id="20000 reservations", marks=pytest.mark.slow),
    ],
)
def test_contending_writers_give_no_card_twice(
    contended: Store, reservations: int, seed: int
) -> None:
    """
    Zero double allocations, zero lost or invented reservations, zero gaps for the readers.

    Every writer took over and was deposed, or the campaign would show nothing.
    """
    answer = run_campaign(
        "tests.support.contending", contended.url, reservations, seed, SECONDS_MAX
    )
    writers, readers = answer["writers"], answer["readers"]
    assert (len(writers), len(readers)) == (WRITERS, READERS)

    ((core, memory),) = rows(contended, FULLEST)
    assert 0 < core <= 100
    assert 0 < memory <= 80 * GIB

    acknowledged = Counter(
        (key, position) for each in writers for key, position in each["acknowledged"].items()
    )
    assert acknowledged == Counter((key, position) for key, position in rows(contended, RESERVED))
    assert acknowledged.total() >= reservations
    assert rows(contended, HELD) == [(acknowledged.total(), acknowledged.total())]
    refused = {key for each in writers for key in each["refused"]}
    assert not refused & {key for key, _ in acknowledged}

    ((events, first, last),) = rows(contended, DENSE)
    assert (first, last) == (1, events)
    gaps = sum(each["positions"] != [*range(1, events + 1)] for each in readers)
    assert gaps == 0

    deposed = sum(each["deposed"] for each in writers)
    assert deposed > WRITERS // 2
    assert refused, "no wrong decision: the writers did not overlap"
    figures = {
        "seconds": answer["seconds"],
        "events": events,
        "epochs": answer["epochs"],
        "reservations": acknowledged.total(),
        "refusals": len(refused),
        "times deposed": deposed,
        "fenced commands": sum(each["fenced"] for each in writers),
        "percent of the fullest card": core,
        "readers with a gap": gaps,
    }
    print_figures(f"{WRITERS} writers, {READERS} readers", figures)
