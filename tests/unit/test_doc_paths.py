from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = (
    "agent|benchmarks|certs|docs|examples|ledger|migrations|scheduler|tenure|tests|webhook"
)
NAMED: Final = re.compile(
    rf"(?<![\w./-])(?:{FOLDERS})/(?:[\w./{{}},*<>-]*(?:/|\.(?:py|md|csv|yaml|sql|go))(?![\w/])|adr/\d+)"
)
PAGES: Final = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], key=lambda page: page.relative_to(ROOT)
)


def spelled(path: str) -> list[str]:
    """Return every path that `a/{b,c}.py` stands for."""
    parts = [part.split(",") for part in re.split(r"[{}]", path)]
    plain = re.split(r"\{[^}]*\}", path)
    chosen = [part for number, part in enumerate(parts) if number % 2]
    return [
        "".join(a + b for a, b in zip(plain, (*choice, ""), strict=True))
        for choice in product(*chosen)
    ]


def missing(text: str) -> list[str]:
    """Return the files and folders of ours that a text names and that are not there."""
    named = {path for match in NAMED.findall(text) for path in spelled(match)}
    return sorted(path for path in named if not any(ROOT.glob(pattern(path))))


BARE: Final = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")
"""A module as a page names it beside its folder."""


def nowhere(text: str) -> list[str]:
    """Return the modules that a text names in short, of which no package has one."""
    ours = FOLDERS.split("|")
    return sorted(
        name
        for name in set(BARE.findall(text))
        if not any(any(ROOT.glob(f"{folder}/**/{name}")) for folder in ours)
        and not (ROOT / name).is_file()
    )


ROW: Final = re.compile(r"^\| `([a-z_/]+)`[^|]*\| (.*) \| [^|]*\|$", re.MULTILINE)
"""A package of the code map, and what it is."""
MODULE: Final = re.compile(r"`((?:[a-z_]+/)*[a-z_]+)`")
NO_MODULES: Final = {"audit_capacity", "env", "ledger/_migrations", "tenure/_deploy"}
"""What rows name beside modules: a view, a mode, and folders of a wheel alone."""


def unmapped(code_map: str) -> list[str]:
    """Return the modules and folders that rows of the map name and their packages have not."""
    return sorted(
        f"{package}: {name}"
        for package, text in ROW.findall(code_map)
        for name in {*MODULE.findall(text)} - NO_MODULES
        if not any(
            (ROOT / f"{name}{end}").exists() or any((ROOT / package).glob(f"**/{name}{end}"))
            for end in ("", ".py")
        )
    )


def pattern(path: str) -> str:
    """Return what finds a path; `<name>` is any, and an ADR is named by its number."""
    end = "" if "." in path or path.endswith("/") else "*"
    return re.sub("<[^>]*>", "*", path).rstrip("/") + end


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]
)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    """A reader can open what the text sends to, after every move."""
    assert missing(page.read_text()) == []


def test_every_module_that_the_map_names_in_short_is_there() -> None:
    """`planned_cards.py` beside its folder is as much of a promise as a whole path."""
    assert nowhere((ROOT / "docs/ARCHITECTURE.md").read_text()) == []
    assert nowhere("`no_such_module.py`, `events.py`, `cards/choose.py`") == ["no_such_module.py"]


def test_every_module_that_a_row_of_the_code_map_names_is_in_its_package() -> None:
    """A merge of files changes the row, too."""
    _, _, code_map = (ROOT / "docs/ARCHITECTURE.md").read_text().partition("## Code map")

    assert len(ROW.findall(code_map)) > 20
    assert unmapped(code_map) == []
    row = "| `webhook/manifests` | `cel`, `sight`, `certs/plan`, `certs/none` | read a file |"
    assert unmapped(row) == ["webhook/manifests: certs/none", "webhook/manifests: sight"]


def test_a_path_that_is_not_there_is_found() -> None:
    """In every way in which pages write them."""
    text = "`tenure/{cli,none}.py` docs/adr/0001, `ledger/domain/dialects/<name>/words.py` tests/x/"

    assert missing(text) == ["tenure/none.py", "tests/x/"]
