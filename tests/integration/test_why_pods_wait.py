"""The page's answer to "so many Pods wait while so many cards are free, why?"."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.objects import Object
from tests.support.waits import CAUSES, GPU, cluster, waiting, waits

pytestmark = pytest.mark.integration

FOUR = {"nvidia.com/gpu": 4}


class Rows(HTMLParser):
    """The cells of the table of causes, row by row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._in, self._cell = False, False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where the table, a row or a cell begins."""
        if tag == "table":
            self._in = "causes" in (dict(attrs).get("class") or "")
        if self._in and tag == "tr":
            self.rows.append([])
        self._cell = self._in and tag in {"th", "td"}
        if self._cell:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        """Note where the table ends."""
        self._in = self._in and tag != "table"

    def handle_data(self, data: str) -> None:
        """Note a cell's text."""
        if self._in and self.rows and self.rows[-1]:
            self.rows[-1][-1] += f" {data.strip()}" if self.rows[-1][-1] else data.strip()


@pytest.fixture
def line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """Return a command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENURE_LEDGER", raising=False)
    return CommandLine(tmp_path / "run.db", capsys)


def dumped(line: CommandLine, *objects: Object) -> str:
    """Return a file of these objects, as kubectl prints them."""
    path = line.ledger.with_name("dump.json")
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return str(path)


def causes_of(line: CommandLine, *where: str) -> dict[str, tuple[str, str]]:
    """Return example -> number of Pods and cause, as the page of a dump or a ledger has them."""
    answer = line.run("report", *where, "-o", "page.html", "--no-verify")
    assert answer.code == 0, answer.err
    _, *found = Rows((line.ledger.parent / "page.html").read_text("utf-8")).rows
    return {row[3].split(" ")[0]: (row[1], row[0]) for row in found}


def expect_causes(found: dict[str, tuple[str, str]], expected: dict[str, tuple[str, str]]) -> None:
    """Each cause once, in these words, with its number of Pods."""
    assert found.keys() == expected.keys(), found
    for path, (number, words) in expected.items():
        assert found[path][0] == number, (path, found[path])
        assert found[path][1].startswith(words), (path, found[path])


def test_a_page_of_objects_says_why_pods_wait(line: CommandLine) -> None:
    """One row for each cause, with one example, whatever else was said of a Pod."""
    expect_causes(causes_of(line, dumped(line, *cluster(), *waiting())), CAUSES)


def test_a_page_of_a_ledger_says_the_same(line: CommandLine) -> None:
    """By the same function, out of the ledger of a simulation."""
    told = line.run("simulate", dumped(line, *cluster(), *waiting()), "--ledger", str(line.ledger))
    assert told.code == 0, told.err

    expect_causes(causes_of(line, "--ledger", str(line.ledger)), CAUSES)


def test_what_would_help_is_about_the_cause(line: CommandLine) -> None:
    """Of several reasons of one Pod the one that the row names."""
    line.run("report", dumped(line, *cluster(), *waiting()), "-o", "page.html")

    found = {
        row[3].split(" ")[0]: row[4].strip() for row in Rows(Path("page.html").read_text()).rows[1:]
    }

    assert found["ml/cpu-0"] == "release 2 cpu on small"
    assert found["ml/cpu-3"] == "release 1 whole GPU on large"
    assert found["ml/cordoned"] == "uncordon the node"
    assert found["ml/never"] == "ask for at most 4 GPU"


def test_a_full_card_is_the_cause_where_nothing_else_helps(line: CommandLine) -> None:
    """Whoever would fit without cards waits for one; what fits now says so."""
    pods = [waits("first", FOUR), waits("card", GPU)]
    there = [each for each in cluster() if each["metadata"]["name"] != "away"]

    found = causes_of(line, dumped(line, *there, *pods))

    assert found["ml/card"] == ("1", "no card has as much left as it asks for")
    assert found["ml/first"] == ("1", "it would get a place now")


def test_free_cards_that_are_too_few_on_each_node_are_not_called_full(line: CommandLine) -> None:
    """A Pod for several cards waits for a node; each card that is free has enough."""
    pods = [waits("one", GPU), waits("four", FOUR)]
    there = [each for each in cluster() if each["metadata"]["name"] != "away"]

    found = causes_of(line, dumped(line, *there, *pods))

    assert found["ml/four"] == ("1", "no node has as many cards left as it asks for")


def test_who_waited_before_and_has_a_place_is_in_no_row(line: CommandLine) -> None:
    """The table is of those that wait now; nobody waits is said."""
    answer = line.run("report", dumped(line, *cluster()), "-o", "page.html")

    assert answer.code == 0, answer.err
    assert "No Pod waits." in (line.ledger.parent / "page.html").read_text("utf-8")


def test_a_page_of_objects_is_of_one_moment(line: CommandLine) -> None:
    """It claims no proof, no history and no capacity over time: nobody knows who ended before."""
    line.run("report", dumped(line, *cluster(), *waiting()), "-o", "page.html")

    page = (line.ledger.parent / "page.html").read_text("utf-8")

    assert "1 Pod with cards, 11 waiting" in page
    assert "Capacity over" not in page
    assert "not verified" not in page
    assert "dump.json" in page
