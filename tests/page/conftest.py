"""The page of the demonstration in a real browser, from a file, with no network."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tenure.demo import run_demo
from tests.support.opened_page import SECONDS_MAX, Demo, OpenedPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
INSTALL = "install a browser: apt-get install --no-install-recommends chromium"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests; `make page` brings what drives it."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.fail(f"no browser found: tried={PROGRAMS}; {INSTALL}")
    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # root has none
    with sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=program, args=sandbox, timeout=SECONDS_MAX * 1_000
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The small demonstration, or the one that `TENURE_PAGE_DEMO` names."""
    folder = tmp_path_factory.mktemp("demo")
    run_demo(size=os.environ.get("TENURE_PAGE_DEMO", "small"), directory=folder, seed=42)
    return Demo(folder)


@pytest.fixture
def ask(demo: Demo) -> Iterator[Callable[..., list[tuple[Any, ...]]]]:
    """SQL over the audit views, by nothing but Python's own sqlite3."""
    with closing(sqlite3.connect(f"file:{demo.ledger}?mode=ro", uri=True)) as connection:
        yield lambda sql, *values: connection.execute(sql, values).fetchall()


@pytest.fixture
def opened(browser: Browser, demo: Demo) -> Iterator[Callable[..., OpenedPage]]:
    """Opens the page, or another file, in a window of its own; nothing may fail or be fetched."""
    pages: list[OpenedPage] = []

    def opening(
        *, width: int, scheme: str = "light", path: Path = demo.report, calm: bool = False
    ) -> OpenedPage:
        pages.append(OpenedPage(browser, path, width=width, scheme=scheme, calm=calm))
        return pages[-1]

    yield opening
    for page in pages:
        page.close()
    assert [problem for page in pages for problem in page.problems] == []
