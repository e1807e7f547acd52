"""The report's page in a browser, and what a reader sees on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BERLIN = "Europe/Berlin"
PHONE = 400
DESK = 1400
SECONDS_MAX = 300

LOOK = Path(__file__).with_suffix(".js")


@dataclass(frozen=True, slots=True)
class Demo:
    """What `tenure demo` left in a folder."""

    folder: Path

    @property
    def ledger(self) -> Path:
        """Its ledger."""
        return self.folder / "ledger.db"

    @property
    def report(self) -> Path:
        """Its page."""
        return self.folder / "report.html"


@dataclass(frozen=True, slots=True)
class CardPlace:
    """A card on the page: the middle of it, in pixels from the page's corner."""

    name: str
    x: float
    y: float


class OpenedPage:
    """One window. What went wrong in it, or was asked of a network, is in `problems`."""

    def __init__(
        self, browser: Browser, path: Path, *, width: int, scheme: str, calm: bool = False
    ) -> None:
        is_phone = width < 800
        colours: Literal["light", "dark"] = "dark" if scheme == "dark" else "light"
        self._context = browser.new_context(
            viewport={"width": width, "height": 800 if is_phone else 900},
            color_scheme=colours,
            reduced_motion="reduce" if calm else "no-preference",
            has_touch=is_phone,
            is_mobile=is_phone,
            timezone_id=BERLIN,
        )
        self.width = width
        self.problems: list[str] = []
        self._context.add_init_script(path=LOOK)
        self._context.set_default_timeout(SECONDS_MAX * 1_000)
        self.page = self._context.new_page()
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.on("request", lambda request: self._noted(request.url))
        self.page.on(
            "console",
            lambda said: self.problems.append(said.text) if said.type == "error" else None,
        )
        self.page.goto(path.as_uri())

    def _noted(self, url: str) -> None:
        if not url.startswith("file:"):
            self.problems.append(f"asked for {url}")

    def close(self) -> None:
        """Close the window."""
        self._context.close()

    def run(self, script: str) -> Any:  # noqa: ANN401 - whatever the script says
        """Return what a script says; `look` is `opened_page.js`."""
        return self.page.evaluate(script)

    def go(self, address: str) -> None:
        """Open a view of the panel: the text after #."""
        self.run(f"look.go({json.dumps(address)})")

    def cards(self) -> list[CardPlace]:
        """Return all cards in the order of the arrow keys."""
        return [CardPlace(name, x, y) for name, x, y in self.run("look.walk()")]

    def move_to(self, share: float) -> int:
        """Put the slider at a share of its way; return the moment in microseconds."""
        return int(self.run(f"look.moveTo({share})"))

    def bring(self, place: CardPlace) -> tuple[float, float]:
        """Scroll so that a card is in sight; return where it is in the window."""
        top = self.run(f"scrollTo(0, {place.y} - 330), scrollY")
        return place.x, place.y - float(top)

    def touch(self, x: float, y: float) -> None:
        """Tap with a finger, or click with a mouse where there is one."""
        if self.width < 800:
            self.page.touchscreen.tap(x, y)
        else:
            self.page.mouse.click(x, y)

    def card(self) -> dict[str, Any]:
        """Return what the panel says of the card that is open."""
        said: dict[str, Any] = self.run("look.card()")
        return said

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return self.page.locator(selector).inner_text()
