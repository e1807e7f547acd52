"""`docs/questions.md`: every place is in the code, and the architecture's map leads to it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "questions.md").read_text()
MAP: Final = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
QUESTIONS: Final = [part.partition("\n") for part in PAGE.split("\n## ")[1:]]
PLACES: Final = re.findall(r"^- `([^:`]+): (.+)`$", PAGE, re.MULTILINE)
LINKS: Final = re.findall(r"\(ARCHITECTURE\.md#([\w-]+)\)", PAGE)
WORDS_MAX: Final = 25


@cache
def defined(path: str) -> frozenset[str]:
    """Return what a module defines, the members of its classes as `Class.member`."""
    return frozenset(_names(ast.parse((ROOT / path).read_text()).body))


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.ClassDef():
                yield node.name
                yield from (f"{node.name}.{name}" for name in _names(node.body))
                yield from (f"{node.name}.{name}" for name in _attributes(node))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.AnnAssign() | ast.Assign():
                targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                yield from (one.id for one in targets if isinstance(one, ast.Name))
            case _:
                pass


def _attributes(of: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(of):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def is_there(path: str, name: str) -> bool:
    """Tell whether a module defines a name, or another file has it as text."""
    if not (ROOT / path).is_file():
        return False
    return name in (defined(path) if path.endswith(".py") else (ROOT / path).read_text())


def is_mapped(path: str) -> bool:
    """Tell whether a section of the map names a module, and the folder that it is in."""
    file = Path(path)
    sections = (part for part in MAP.split("\n## ") if str(file.parent) in part)
    spans = (span for part in sections for span in re.findall(r"`([^`\n]+)`", part))
    return any(file.stem in re.findall(r"[\w-]+", span) for span in spans)


def section_ids(text: str) -> set[str]:
    """Return what the headings of a page are linked by."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}


def test_every_place_is_in_the_code() -> None:
    """Whoever moves or renames what an answer names writes the answer anew."""
    assert [place for place in PLACES if not is_there(*place)] == []


def test_the_map_leads_to_every_file() -> None:
    """And so does no section that has only the folder, or a module of that name elsewhere."""
    assert sorted({path for path, _ in PLACES if not is_mapped(path)}) == []
    assert not is_mapped("scheduler/service/no_such_module.py")
    assert not is_mapped("scheduler/no_such_folder/releasing.py")


def test_each_of_ten_questions_has_a_short_answer_places_and_sections_of_the_map() -> None:
    """Two to five sentences of plain length, and nothing that leads nowhere."""
    assert len(QUESTIONS) == 10
    for question, _, rest in QUESTIONS:
        answer = " ".join(rest.partition("\n- ")[0].split())
        sentences = re.split(r"(?<=[.?]) ", answer)
        assert 2 <= len(sentences) <= 5, question
        assert [one for one in sentences if len(one.split()) > WORDS_MAX] == []
        assert "\n- `" in rest, question
        assert "](ARCHITECTURE.md#" in rest, question
    assert set(LINKS) <= section_ids(MAP)


def test_a_name_that_is_not_there_is_found() -> None:
    """Of a module, of a class and of its instances, and of a file that is no module."""
    path = "scheduler/service/wakeups.py"
    names = ("Topic", "Topic.publish", "Topic.when", "Wakeups.pod_moved", "Payload")
    assert all(is_there(path, name) for name in names)
    assert not any(is_there(path, name) for name in ("publish", "Topic.pod_moved", "Topics"))
    assert is_there("pyproject.toml", "import-mode")
    assert not is_there("pyproject.toml", "no such words")
    assert not is_there("scheduler/service/no_such_module.py", "Topic")
