"""What every test shares: one profile for property tests, the same on a laptop and in CI."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import examples
from tests.support.memory import memory, unlock_what_dead_runs_left

if TYPE_CHECKING:
    from tests.support.postgres import Server
    from tests.support.stores import PostgresStore

# No deadline: the machine is shared, and a slow example is not a wrong one. Derandomised, so that
# a commit that passes here passes everywhere; `make slow` explores with fresh seeds.
settings.register_profile(
    "tenure",
    deadline=None,
    derandomize=True,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("tenure")

LONG_FIRST: Final = ("simulation", "property", "integration", "contract", "unit")
"""Folders by what one of their tests takes."""
QUICK: Final = "not slow and not e2e"
LOOPBACK: Final = "127.0.0.1,localhost"
TEMPORARY: Final = "PYTEST_DEBUG_TEMPROOT"
"""Where pytest makes its temporary folders."""


def pytest_configure(config: pytest.Config) -> None:
    """
    Keep the files of `make test` in memory; clusters and campaigns leave gigabytes of them.

    Servers of tests are on this machine, whatever proxy it reaches others by.
    """
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    os.environ["no_proxy"] = f"{given},{LOOPBACK}" if given else LOOPBACK
    place = memory() if QUICK in config.option.markexpr else None
    if place is not None and TEMPORARY not in os.environ:
        unlock_what_dead_runs_left(place)
        os.environ[TEMPORARY] = str(place)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Begin with the long tests: workers that are left with short ones end together.

    The width of the terminal that readline, once imported, wrote down here is not that of a test.
    """
    os.environ.pop("COLUMNS", None)
    places = {name: place for place, name in enumerate(LONG_FIRST)}
    root = Path(__file__).parent
    items.sort(key=lambda item: places.get(item.path.relative_to(root).parts[0], -1))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among what stays to the end: it is half of the time of collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A real Postgres server; it starts with the first test that asks for it."""
    from tests.support.postgres import running

    with running() as server:
        yield server


@pytest.fixture(scope="session")
def empty_postgres(postgres: Server) -> Iterator[PostgresStore]:
    """A migrated ledger without events, made once, to be copied by each test that needs one."""
    from tests.support.stores import PostgresStore

    store = PostgresStore(server=postgres, database=postgres.new_database())
    store.open("create").close()
    yield store
    postgres.drop(store.database)
