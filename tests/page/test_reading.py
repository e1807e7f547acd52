"""What a reader can do with the page: by key, finger and ear, in either light and size."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.log.events import RefusalReason
from scheduler.usage.model import NodeInfo
from tenure.report.build import read_report, write_report
from tenure.report.page import render
from tenure.report.waiting import Wait
from tenure.simulate.dump import ledger_of_files
from tests.support.histories import report, week
from tests.support.opened_page import DESK, PHONE, OpenedPage
from tests.support.waits import CAUSES, cluster, waiting

pytestmark = pytest.mark.page

Ask = Callable[..., list[tuple[Any, ...]]]
Opened = Callable[..., OpenedPage]
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
SIZES = [
    pytest.param(width, scheme, id=f"{width} px, {scheme}")
    for width in (DESK, PHONE)
    for scheme in ("light", "dark")
]


def everything_open(page: OpenedPage, pod: str) -> list[str]:
    """Return the addresses of the panel's views: the moment, a card, a Pod."""
    first = "#card=" + page.cards()[0].name.replace("/", "%2F")
    return ["", first, f"#pod={pod.replace('/', '%2F')}"]


@pytest.fixture
def waited(ask: Ask) -> str:
    """The Pod that was refused most often before it got a place."""
    sql = """
      SELECT f.namespace || '/' || f.pod_name FROM audit_refusals AS f
      JOIN audit_holdings AS h ON h.pod_uid = f.pod_uid
      GROUP BY 1 ORDER BY count(DISTINCT f.position) DESC, 1 LIMIT 1
    """
    ((path,),) = ask(sql)
    return str(path)


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_everything_is_whole_and_can_be_read(
    opened: Opened, waited: str, width: int, scheme: str
) -> None:
    """No column and no text beyond the edge, no text or colour too faint, in any view."""
    page = opened(width=width, scheme=scheme)
    for view in everything_open(page, waited):
        page.go(view)
        assert page.run("look.wide()") == []
        assert page.run("look.faint()") == []
    assert page.run("look.pale()") == []


def test_everything_is_large_enough_for_a_finger(opened: Opened, waited: str) -> None:
    """Controls are 44 px or more; cards are 44 px apart from middle to middle."""
    page = opened(width=PHONE)
    for view in everything_open(page, waited):
        page.go(view)
        assert page.run("look.small()") == []
    places = page.cards()
    near = [
        (one.name, other.name)
        for one, other in pairwise(places)
        if max(abs(one.x - other.x), abs(one.y - other.y)) < 44
    ]
    assert near == []


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_a_screen_reader_has_a_name_for_everything(opened: Opened, waited: str, width: int) -> None:
    """For each control and region of the accessibility tree, in every view."""
    page = opened(width=width)
    session = page.page.context.new_cdp_session(page.page)
    roles = {"button", "slider", "searchbox", "combobox", "radio", "link", "table", "complementary"}
    for view in everything_open(page, waited):
        page.go(view)
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        told = [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]
        nameless = [role for role, name in told if role in roles - {"table"} and not name.strip()]
        assert nameless == []
        assert {"slider", "searchbox", "combobox", "radio", "button", "table"} <= {
            role for role, _ in told
        }
        assert {"rowheader", "columnheader", "cell"} <= {role for role, _ in told}
        assert "2026" in str(page.page.locator("#moment").get_attribute("aria-valuetext"))


def test_everything_works_by_key(opened: Opened) -> None:
    """One stop for the whole map, arrows in it, Enter opens, Escape closes and comes back."""
    page = opened(width=DESK)
    places = page.cards()
    page.page.locator("#search").focus()
    stops = []
    for _ in range(8):
        page.page.keyboard.press("Tab")
        stops.append(page.run("document.activeElement.id || document.activeElement.value"))
    assert stops.count("cursor") == 1
    page.page.locator("#cursor").focus()
    page.page.keyboard.press("Home")
    page.page.keyboard.press("ArrowRight")
    assert page.text("#said").startswith(places[1].name)
    page.page.keyboard.press("ArrowDown")
    below = page.text("#said").split(" · ")[0]
    (place,) = (place for place in places if place.name == below)
    assert place.y > places[1].y
    page.page.keyboard.press("Enter")
    assert page.card()["title"] == below
    assert page.run("document.activeElement.id") == "panel"
    page.page.keyboard.press("Escape")
    assert page.card()["title"] == "At this moment"
    assert page.run("document.activeElement.id") == "cursor"
    page.page.keyboard.press("PageDown")
    assert page.text("#said").split("/")[0] != below.split("/")[0]


def test_whoever_wants_no_motion_gets_none(opened: Opened) -> None:
    """Nothing is animated, and time that plays goes on once a second."""
    page = opened(width=DESK, calm=True)
    page.page.clock.install(time=NOON)
    page.page.clock.pause_at(NOON + timedelta(hours=1))  # from here on time goes by our word alone
    page.move_to(0)
    page.page.locator("#play").click()
    assert page.run("document.getAnimations().length") == 0
    page.page.clock.run_for(900)
    assert page.page.locator("#moment").input_value() == "0"
    page.page.clock.run_for(200)
    assert page.page.locator("#moment").input_value() != "0"
    assert page.text("#play") == "Pause"


def test_times_are_the_readers_own_and_say_so_or_utc(opened: Opened) -> None:
    """Everywhere at once: the clock, the period, lists and both axes."""
    page = opened(width=DESK)
    page.move_to(0.5)
    zone = page.page.locator("#zone")
    assert zone.locator("option").all_inner_texts() == ["Europe/Berlin", "UTC"]
    here, period = page.text("#clock"), page.text(".kicker")
    marks = page.text("#capacity .x-axis")
    assert here.endswith("+01:00")
    assert "+01:00" in period

    zone.select_option("utc")

    assert page.text("#clock").endswith("+00:00")
    assert page.text("#clock")[:20] != here[:20]
    assert "+01:00" not in page.text(".kicker")
    assert page.text("#capacity .x-axis") != marks  # the last midnight is not within it
    assert page.run("document.querySelector('.kicker time').dateTime").endswith("Z")


def test_what_is_shown_is_what_sql_counts(opened: Opened, ask: Ask) -> None:
    """Held and free cards, and Pods that wait, at the end of the week."""
    page = opened(width=DESK)
    page.move_to(1)
    ((held,),) = ask(
        "SELECT count(DISTINCT device_no) FROM audit_holdings"
        " WHERE closed_at_us IS NULL AND device_type = 'gpu'"
    )
    ((closed,),) = ask(
        "SELECT count(*) FROM ledger_devices"
        " WHERE (healthy = 0 OR present = 0) AND device_type = 'gpu'"
    )
    ((idle,),) = ask(
        "SELECT count(*) FROM ledger_devices WHERE healthy = 1 AND present = 1 AND device_type ="
        " 'gpu' AND device_no NOT IN"
        " (SELECT device_no FROM audit_holdings WHERE closed_at_us IS NULL)"
    )

    ((part,),) = ask(
        "SELECT count(*) FROM (SELECT device_no FROM audit_holdings WHERE closed_at_us IS NULL AND"
        " device_type = 'gpu' GROUP BY device_no HAVING sum(CASE WHEN core_percent > 0 THEN"
        " core_percent ELSE memory_ratio_percent END) < 100) AS s"
        " JOIN ledger_devices AS d USING (device_no) WHERE d.healthy = 1 AND d.present = 1"
    )

    assert page.text("#count-stranded") == str(part)
    assert page.text("#count-held") == str(held)
    assert page.text("#count-closed") == str(closed)
    assert page.text("#count-free") == str(idle)
    headline = page.page.locator(".figures div", has_text="Pods waiting").locator("dd")
    assert headline.inner_text().split()[0] == page.text("#count-waiting")
    page.page.locator("input[value=waiting]").check()
    assert page.page.locator("#waiting li").count() == int(page.text("#count-waiting"))


def test_a_pod_is_found_by_a_part_of_its_name(opened: Opened, waited: str) -> None:
    """And opened from what was found; nothing found is said too."""
    page = opened(width=DESK)
    page.page.locator("#search").fill(waited[3:].upper())

    assert page.text("#found-pods a") == waited
    page.page.locator("#found-pods a").click()
    page.page.locator("#stays").wait_for()
    assert page.card()["title"] == waited
    page.page.locator("#search").fill("no such thing")
    assert "0 cards, 0 nodes and 0 Pods match" in page.text("#panel-body")


def test_colours_tell_namespaces_and_models_apart(opened: Opened, ask: Ask) -> None:
    """Each has a colour in the legend, the one with most first."""
    page = opened(width=DESK)
    namespaces = {name for (name,) in ask("SELECT DISTINCT namespace FROM audit_holdings")}
    models = {
        name
        for (name,) in ask(
            "SELECT CASE model WHEN '' THEN device_type ELSE model END FROM ledger_devices"
        )
    }
    for by, names in (("namespace", namespaces), ("model", models)):
        page.page.locator("#colour").select_option(by)
        assert set(page.page.locator("#hues li").all_inner_texts()) == names
        swatches = page.page.locator("#hues .swatch").evaluate_all(
            "(all) => all.map((swatch) => getComputedStyle(swatch).backgroundColor)"
        )
        assert len(set(swatches)) == len(names)


def test_a_pods_page_tells_where_it_ran_and_why_it_waited(opened: Opened, ask: Ask) -> None:
    """As the audit views do, for every Pod that was ever refused and fifty that never were."""
    page = opened(width=DESK)
    refused = ask("SELECT namespace, pod_name, count(*) FROM audit_refusals GROUP BY 1, 2")
    others = ask("SELECT DISTINCT namespace, pod_name, 0 FROM audit_holdings ORDER BY 2 LIMIT 50")
    stays = """
      SELECT count(DISTINCT position) FROM audit_holdings WHERE namespace = ? AND pod_name = ?
    """
    cards = "SELECT count(*) FROM audit_holdings WHERE namespace = ? AND pod_name = ?"
    for namespace, name, times in [*refused, *others]:
        page.go(f"#pod={namespace}%2F{name}")
        said = page.run("look.pod()")
        assert said["title"] == f"{namespace}/{name}"
        assert said["stays"] == ask(stays, namespace, name)[0][0]
        assert said["cards"] == ask(cards, namespace, name)[0][0]
        if times:
            assert said["refusals"] == times
        assert (said["waits"] > 0) == (said["reasons"] > 0) == (said["refusals"] > 0)
        advised = page.page.locator("#panel .remedy", has_text="Would fit: release ")
        told = page.page.locator("#panel .means", has_text="release: what is short of that alone")
        assert (told.count() > 0) == (advised.count() > 0)


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_a_page_of_objects_says_why_pods_wait(
    opened: Opened, tmp_path: Path, width: int, scheme: str
) -> None:
    """One row for each cause, nothing beyond the edge; an example is opened by a click."""
    dump, path = tmp_path / "dump.json", tmp_path / "page.html"
    dump.write_text(json.dumps({"kind": "List", "items": [*cluster(), *waiting()]}))
    with ledger_of_files([str(dump)], decide=True) as ledger:
        report = read_report(ledger, proof=None, command="tenure report dump.json")
        write_report(report, path)

    page = opened(width=width, scheme=scheme, path=path)
    found = page.page.locator(".causes tbody tr")

    assert found.locator("a").all_inner_texts() != []
    for each in found.all():
        number, words = CAUSES[each.locator("a").inner_text()]
        assert each.locator("th").inner_text().startswith(words)
        assert each.locator("td.num").inner_text() == number
    assert found.count() == len(CAUSES)
    assert not page.page.locator("#time").is_visible()
    for view in ("", "#pod=ml%2Fcpu-0"):
        page.go(view)
        assert page.run("look.wide()") == []
        assert page.run("look.faint()") == []
    found.locator("a", has_text="ml/never").click()
    assert page.run("look.pod()")["title"] == "ml/never"


def test_a_name_of_the_cluster_is_text_and_nothing_else(opened: Opened, tmp_path: Path) -> None:
    """A Pod called `</script>` runs nothing, in any view."""
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    history = week(nodes=1, pods=30)
    history = replace(
        history,
        nodes=(NodeInfo(name=evil, cards=history.nodes[0].cards),),
        pods=tuple((evil, f"{evil}{i}") for i, _ in enumerate(history.pods)),
    )
    wait = Wait(
        namespace=evil,
        name=f"{evil}0",
        opened=history.start,
        closed=None,
        node=evil,
        admission=False,
        shape=evil,
        refusals=((history.start, evil),),
        reasons=(RefusalReason(reason=evil, nodes=1, nearest_node=evil, detail=evil, remedy=evil),),
    )
    path = tmp_path / "evil.html"
    path.write_text(render(replace(report(history), waits=(wait,))), encoding="utf-8")

    page = opened(width=DESK, path=path)

    assert page.cards()[0].name == f"{evil}/0"
    page.page.locator("input[value=waiting]").check()
    page.page.locator("#waiting a").click()
    page.page.locator("#waits").wait_for()
    assert page.card()["title"] == f"{evil}/{evil}0"
    page.page.locator("#search").fill(evil)
    page.touch(*page.bring(page.cards()[0]))
    assert page.card()["title"] == f"{evil}/0"
    assert page.run("document.images.length") == 0


def test_a_share_that_counts_as_nothing_holds_its_card(opened: Opened, tmp_path: Path) -> None:
    """As on the map: somebody has a part of it, of which no amount is known, and it is not free."""
    history = week(nodes=4, pods=40)
    unknown = replace(history.shares[0], core_percent=0, memory_bytes=0, memory_ratio_percent=0)
    gpus = [n for n, card in enumerate(history.cards) if card.device_type == "gpu"]
    hold = replace(history.holds[0], card=gpus[0], share=0, opened=history.start, closed=None)
    history = replace(history, shares=(unknown,), holds=(hold,), outages=())
    path = tmp_path / "unknown.html"
    path.write_text(render(report(history)), encoding="utf-8")

    page = opened(width=DESK, path=path)
    page.move_to(1)

    assert page.text("#count-held") == page.text("#count-stranded") == "1"
    assert page.text("#count-free") == str(len(gpus) - 1)


def test_a_run_without_a_clock_is_walked_by_its_events(opened: Opened, tmp_path: Path) -> None:
    """No zone, no hours: positions everywhere."""
    history = week(nodes=4, pods=40)
    history = replace(
        history,
        axis="position",
        start=0,
        end=100,
        holds=tuple(replace(hold, opened=i, closed=None) for i, hold in enumerate(history.holds)),
        outages=(),
    )
    path = tmp_path / "positions.html"
    path.write_text(render(report(history)), encoding="utf-8")

    page = opened(width=DESK, path=path)
    page.move_to(0.5)
    first = history.holds[0]
    page.go(
        f"#card={history.nodes[history.cards[first.card].node].name}%2F{history.cards[first.card].minor}"
    )

    assert page.text("#clock") == "after event 50"
    assert page.page.locator("#zone").count() == 0
    said = page.page.locator("#holders .facts-line").nth(1).inner_text()
    assert said.startswith("event 0 ")
    assert "--history" in page.text(".ask code")


def test_ten_thousand_cards_open_too(opened: Opened, tmp_path: Path) -> None:
    """A week of them is below 3 MB; each card is found by key, and opens by a click."""
    path = tmp_path / "large.html"
    path.write_text(render(report(week(nodes=1_430, pods=2_000))), encoding="utf-8")
    assert path.stat().st_size < 3_000_000

    page = opened(width=DESK, path=path)

    page.page.locator("#cursor").focus()
    page.page.keyboard.press("End")
    last = page.text("#said").split(" · ")[0]
    page.page.keyboard.press("Enter")
    assert page.card()["title"] == last
