"""Every card of the demonstration, clicked and tapped, against the audit views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.opened_page import DESK, PHONE, OpenedPage

pytestmark = pytest.mark.page

Ask = Callable[..., list[tuple[Any, ...]]]
Opened = Callable[..., OpenedPage]

NAME = (
    "node_name || CASE device_type WHEN 'gpu' THEN '/' ELSE '/' || device_type || '/' END || minor"
)
HELD = f"""
  SELECT namespace || '/' || pod_name, core_percent, memory_bytes, memory_ratio_percent, exclusive,
    opened_at_us
  FROM audit_holdings
  WHERE {NAME} = ? AND opened_at_us <= ? AND (closed_at_us IS NULL OR closed_at_us > ?)
  ORDER BY 1, 6
"""
EVER = f"SELECT count(*) FROM audit_holdings WHERE {NAME} = ?"
CARDS = f"SELECT {NAME} FROM ledger_devices JOIN ledger_nodes USING (node_no)"


def share_words(core: int, memory: int, ratio: int, exclusive: int) -> str:
    """What the page says of a share."""
    words = [f"{core} % core"] if core else []
    if memory >= 1 << 30:
        words.append(f"{round(memory / (1 << 30) + 1e-9, 1):g} GiB")
    elif memory:
        words.append(f"{round(memory / (1 << 20))} MiB")
    if exclusive:
        words.append("exclusive")
    return " · ".join(words) if words else f"{ratio} %"


def holders(ask: Ask, card: str, at_us: int) -> list[list[Any]]:
    """Who holds a card at a moment, by the view."""
    return [
        [pod, share_words(core, memory, ratio, exclusive), opened]
        for pod, core, memory, ratio, exclusive, opened in ask(HELD, card, at_us, at_us)
    ]


@pytest.mark.parametrize("share", [0.35, 1.0])
@pytest.mark.parametrize(
    ("width", "scheme"), [(DESK, "light"), (PHONE, "dark")], ids=["clicked", "tapped"]
)
def test_every_card_opens_itself_with_who_held_it_then(
    opened: Opened, ask: Ask, width: int, scheme: str, share: float
) -> None:
    """Name, holders, shares and beginnings are those of `audit_holdings` at the slider's moment."""
    page = opened(width=width, scheme=scheme)
    at_us = page.move_to(share)
    places = page.cards()
    assert {place.name for place in places} == {name for (name,) in ask(CARDS)}
    held = 0
    for place in places:
        x, y = page.bring(place)
        before = page.card()

        page.touch(x, y)

        said = page.card()
        assert said["title"] == place.name
        assert sorted(said["holders"]) == holders(ask, place.name, at_us), place.name
        ((ever,),) = ask(EVER, place.name)
        assert len(said["holders"]) + said["others"] == min(ever, 200 + len(said["holders"]))
        assert (said["scroll"], said["top"]) == (before["scroll"], before["top"]), place.name
        held += len(said["holders"])
    assert held > 20


def test_the_map_stands_still_while_time_moves(opened: Opened, ask: Ask) -> None:
    """The tip has one height, and tells the card under the pointer at each moment."""
    page = opened(width=DESK)
    crowded = max(page.cards(), key=lambda card: ask(EVER, card.name))
    page.page.mouse.move(*page.bring(crowded))
    tops, tips = set(), set()
    for step in range(21):
        at_us = page.move_to(step / 20)
        tops.add(
            (page.card()["top"], page.run("() => document.getElementById('tip').offsetHeight"))
        )
        tip = page.text("#tip")
        tips.add(tip)
        assert tip.startswith(crowded.name)
        named = [pod for pod, _, _ in holders(ask, crowded.name, at_us)]
        assert any(pod in tip for pod in named) == bool(named)
    assert len(tops) == 1
    assert len(tips) > 3


def test_a_second_tap_opens_what_it_is_aimed_at(opened: Opened) -> None:
    """Aimed before the first one, in the same sight: nothing moved meanwhile."""
    page = opened(width=PHONE)
    places, tapped = page.cards(), 0
    for first, second in zip(places[8::9], places[::9], strict=False):
        x, y = page.bring(first)
        aimed = second.x, second.y - (first.y - y)
        page.touch(x, y)
        if not 160 < aimed[1] < 350:  # under the sheet or behind the time by then
            continue
        page.touch(*aimed)
        assert page.card()["title"] == second.name
        tapped += 1
    assert tapped > 3


def test_holders_stand_beside_the_map(opened: Opened) -> None:
    """At one height with it on a desk, over the foot of the window on a phone."""
    for width in (DESK, PHONE):
        page = opened(width=width)
        place = page.cards()[0]
        page.touch(*page.bring(place))
        box = page.page.locator("#panel").bounding_box()
        assert box is not None
        assert 0 <= box["y"] < page.run("innerHeight")
        assert box["x"] + box["width"] <= width
        if width == DESK:
            map_box = page.page.locator("#groups").bounding_box()
            assert map_box is not None
            assert box["x"] >= map_box["x"] + map_box["width"]
