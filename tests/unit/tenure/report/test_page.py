import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.log.events import RefusalReason
from ledger.store.reading.report_rows import UsageRecord
from scheduler.usage.model import History, NodeInfo
from tenure.report.model import Report
from tenure.report.page import headline, render
from tenure.report.waiting import CauseRow, Wait
from tests.support.histories import report, week
from tests.support.packing import unpack

VOID = frozenset({"meta", "link", "input", "br", "img", "hr"})
SVG_LEAVES = frozenset({"rect", "path", "line", "use"})
SIZE_MAX = 3_000_000


class Page(HTMLParser):
    """Reads a page strictly: every element that opens closes, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element that is closed at once."""
        assert tag in SVG_LEAVES, tag
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element, which must be this one."""
        assert self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data: str) -> None:
        """Note a text with the element it stands in."""
        if self.open:
            self.texts.append((self.open[-1], data))

    def text_in(self, tag: str) -> str:
        """The text directly inside all elements of one name."""
        return "".join(text for inside, text in self.texts if inside == tag)

    def document(self) -> dict[str, Any]:
        """The packed history."""
        document: dict[str, Any] = json.loads(
            next(t for tag, t in self.texts if tag == "script" and t.startswith("{"))
        )
        return document


@pytest.fixture(scope="module")
def page() -> Page:
    """The page of a made-up week."""
    return Page(render(report(week())))


def test_the_page_opens_with_what_was_decided_placed_and_proved(page: Page) -> None:
    """One sentence, first on the page and in the title."""
    assert page.text_in("h1") == (
        "800 Pods decided, 400 placed, 0 cards ever above 100 %, proved at every position"
    )


def test_proof_is_claimed_only_where_it_was_made() -> None:
    """Without `verify`, or when it failed, the sentence says that."""
    totals = report(week()).totals

    assert "proved at every position" in headline(totals)
    assert headline(replace(totals, over=None, verified_seconds=None)).endswith("not verified")
    assert headline(replace(totals, unread=512)).endswith("at every position from 513 on")
    broken = headline(replace(totals, over=None, findings=("position 7: altered",)))
    assert "does not prove itself" in broken
    assert "proved" not in broken


def test_findings_stand_above_everything_else() -> None:
    """A page over a broken ledger says so before it says anything else."""
    broken = report(week())
    broken = replace(broken, totals=replace(broken.totals, over=None, findings=("position 7: x",)))

    html = render(broken)

    assert html.index("position 7: x") < html.index("<main>")
    assert 'role="alert"' in html


def test_nothing_is_fetched(page: Page) -> None:
    """No source, link, font or image from anywhere; the policy forbids it as well."""
    for tag, attributes in page.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
        assert "src" not in attributes
        assert not (attributes.get("href") or "#").strip().startswith(("http", "//"))
    assert "http://" not in page.html
    assert "https://" not in page.html
    assert "@import" not in page.html
    policy = next(
        a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_the_policy_allows_the_script_of_the_page_and_no_other(page: Page) -> None:
    """By its hash, so that a script smuggled in by a name would not run."""
    script = next(t for tag, t in page.texts if tag == "script" and not t.startswith("{"))

    digest = b64encode(sha256(script.encode()).digest()).decode()

    assert f"script-src 'sha256-{digest}'" in page.html


REASONS = (Path(__file__).parents[4] / "docs" / "reasons.md").read_text("utf-8")
CODES = {
    code
    for line in REASONS.splitlines()
    if line.startswith("| `")
    for code in re.findall(r"`([A-Za-z]+)`", line.split("|")[1])
    if not code.islower()
}


@pytest.mark.parametrize("code", sorted({*CODES, "GPUFragmented", "GPUClosed"}))
def test_a_cause_that_is_a_code_is_put_in_words(code: str) -> None:
    """Of every code that a node may be refused with, by the table of the documents."""
    row = CauseRow(words=code, pods=1, example="ml/p")

    page = render(replace(report(week(nodes=1, pods=3)), causes=(row,)))

    cell = r"rowheader.>([^<]*)</th><td[^>]*>1</td><td[^>]*bar-cell"
    (cause,) = re.findall(cell, page[page.index("Why Pods wait") :])[:1]
    assert "1 Pod waits, counted once." in page
    assert " " in cause
    assert code not in cause


@pytest.mark.parametrize(
    ("remedy", "is_told"), [("release 2 cpu on n-1", True), ("ask for at most 2 cpu", False)]
)
def test_what_release_means_is_said_where_it_is_advised(remedy: str, *, is_told: bool) -> None:
    """In the words that `why` has for it."""
    row = CauseRow(words="where it may go too little CPU is left", pods=1, example="ml/p")

    row = replace(row, detail="asks 4 cpu, 2 free", remedy=remedy)
    page = render(replace(report(week(nodes=1, pods=3)), causes=(row,)))

    words = "what is short of that alone; once it is empty the node takes the Pod"
    assert (words in page) is is_told


def test_causes_are_counted_in_sum_and_the_most_frequent_are_listed() -> None:
    """Each with its example; how many are left out is said."""
    rows = tuple(CauseRow(words=f"cause {n}", pods=100 - n, example=f"ml/p{n}") for n in range(70))

    page = render(replace(report(week(nodes=1, pods=3)), causes=rows))

    assert "4,585 Pods wait, each counted once." in page
    assert "The 60 most frequent of 70 causes are listed." in page
    assert ("cause 59" in page, "cause 60" in page) == (True, False)


def test_every_text_of_the_ledger_is_escaped() -> None:
    """Pods, nodes, namespaces, reasons and the command are anyone's words."""
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    history = week(nodes=1, pods=3)
    history = replace(
        history,
        nodes=(NodeInfo(name=evil, cards=history.nodes[0].cards),),
        pods=tuple((evil, evil) for _ in history.pods),
    )
    spoiled = replace(
        report(history),
        causes=(CauseRow(words=evil, pods=1, example=evil, detail=evil, remedy=evil),),
        usage=(UsageRecord(group=evil, pods=1, gpu_hours=1, cpu_hours=1),),
        notes=(evil,),
        waits=(
            Wait(
                namespace=evil,
                name=evil,
                opened=history.start,
                closed=None,
                node=evil,
                admission=False,
                shape=evil,
                refusals=((history.start, evil),),
                reasons=(
                    RefusalReason(
                        reason=evil, nodes=1, nearest_node=evil, detail=evil, remedy=evil
                    ),
                ),
            ),
        ),
        source=replace(report(history).source, command=evil, origin=evil),
    )

    page = Page(render(spoiled))

    assert sum(tag == "script" for tag, _ in page.tags) == 2
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert unpack(page.document()).nodes[0].name == evil
    assert page.document()["waits"]["texts"] == [evil, ""]


def test_the_map_carries_the_whole_history(page: Page) -> None:
    """What the script draws is what was recorded."""
    history, shown = week(), unpack(page.document())

    assert shown.holds == history.holds
    assert shown.pods == history.pods
    assert shown.outages == history.outages


def test_without_a_script_the_tables_speak(page: Page) -> None:
    """Headline, models, reasons and hours are in the HTML; a note names the commands."""
    cells = page.text_in("th") + page.text_in("td")

    assert "A100-SXM4-80GB" in cells
    assert "no card has as much left as it asks for" in cells
    assert "release 2 cards on gpu-a100-004" in cells
    assert "ml-research" in cells
    assert "tenure who NODE/CARD --at TIME" in page.text_in("code")


def test_what_moves_can_be_reached_by_keyboard_and_has_a_name(page: Page) -> None:
    """Buttons and slider are real ones, labelled; tables have headings; one h1."""
    for tag, attributes in page.tags:
        if tag == "input":
            assert attributes["type"] in {"range", "search", "radio"}
            assert attributes["aria-label"]
        if tag == "th":
            assert attributes["scope"] in {"col", "row"}
        assert not any(name.startswith("on") for name in attributes)
    assert sum(tag == "h1" for tag, _ in page.tags) == 1
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert ("html", {"lang": "en"}) in page.tags


def test_dark_and_paper_have_styles_of_their_own(page: Page) -> None:
    """By the reader's own settings, never by a switch."""
    style = page.text_in("style")

    assert "@media (prefers-color-scheme: dark)" in style
    assert "@media print" in style


def test_the_footer_says_where_it_comes_from(page: Page) -> None:
    """Command, seed and chain head: enough to make it again and compare."""
    codes = page.text_in("code")

    assert "tenure report -o report.html" in codes
    assert "42" in codes
    assert "5f3c9a01" * 8 in codes


def test_ten_thousand_pods_on_a_thousand_cards_fit_in_a_tenth_of_the_bound() -> None:
    """Nothing is left out of a week of a large cluster."""
    history = week(nodes=143, pods=10_000)
    assert len(history.cards) > 1000

    html = render(report(history))

    assert len(html.encode()) < SIZE_MAX / 5
    assert len(unpack(Page(html).document()).holds) == len(history.holds)


def test_a_page_stays_below_the_bound_whatever_it_is_given() -> None:
    """Too many holdings are thinned, and the page says what is left out."""
    html = render(report(week(nodes=40, pods=3000)), budget_bytes=30_000)

    assert len(html.encode()) < 30_000 + 120_000
    assert "The slider has" in html


def test_a_run_without_a_clock_is_told_by_its_events() -> None:
    """The slider walks positions, and no hours are claimed."""
    history = replace(week(), axis="position", start=0, end=500)
    history = replace(
        history,
        holds=tuple(replace(hold, opened=i, closed=None) for i, hold in enumerate(history.holds)),
        outages=(),
    )

    page = Page(render(report(history)))

    assert 'aria-label="Position in the ledger"' in page.html
    assert "nothing lasted for hours" in page.html
    assert page.document()["axis"] == "position"


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(History(axis="time", start=0, end=0, nodes=(), cards=()), id="nothing at all"),
        pytest.param(week(nodes=2, pods=0), id="cards that nobody ever held"),
    ],
)
def test_an_idle_ledger_has_a_page_too(history: History) -> None:
    """Without cards there is no map and no chart, and that is said."""
    empty = replace(report(history), causes=(), usage=(), capacity=())

    html = Page(render(empty)).html

    assert "No Pod waits." in html
    assert ("The ledger knows no cards" in html) == (not history.cards)


def test_the_slider_begins_at_the_busiest_moment_when_all_is_over() -> None:
    """A map that opens empty tells nothing."""
    history = week(nodes=4, pods=60)
    over = replace(
        history,
        holds=tuple(
            replace(hold, closed=min(hold.closed or history.end, history.end - 1))
            for hold in history.holds
        ),
    )

    first = Page(render(report(over))).document()["first"]

    assert 0 < first < 2000
    running: Report = report(week())
    assert Page(render(running)).document()["first"] == 2000
