"""One guest at a time for all tests of its kernel and its form of cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.guest.machine import CgroupForm, Guest, guest
from tests.support.kube.binaries import MissingProgramError

MACHINES = [
    pytest.param((release, form), id=f"kernel {release}, cgroup {form}")
    for release, form in (
        ("6.1", CgroupForm.V1),
        ("6.1", CgroupForm.V2),
        ("6.12", CgroupForm.V2),  # it is built without the CPU sets of v1
    )
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this folder, so that it is left to `make guest`."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("guest")


@pytest.fixture(scope="session", params=MACHINES)
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guest]:
    """
    A guest; pytest orders tests by it, so that one is gone when the next one boots.

    A test that is about one of them only is parametrised by it, `indirect`.
    """
    release, form = request.param
    try:
        with guest(tmp_path_factory.mktemp("guest"), release, form) as running:
            yield running
    except MissingProgramError as error:
        pytest.fail(str(error), pytrace=False)
