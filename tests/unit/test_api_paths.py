"""Paths of the API: one function makes them of names, and refuses a name that is another path."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("agent", "certs", "scheduler", "tenure", "webhook")


def made_otherwise(source: str) -> Iterator[str]:
    """Yield the texts that are paths of the API with something put in that is no constant."""
    for text in ast.walk(ast.parse(source)) if 'f"/api' in source else ():
        if not isinstance(text, ast.JoinedStr) or not ast.unparse(text).startswith("f'/api"):
            continue
        for part in text.values:
            if isinstance(part, ast.Constant) and "?" in str(part.value):
                break  # what is asked of a collection
            value = part.value if isinstance(part, ast.FormattedValue) else None
            name = "" if value is None else ast.unparse(value).rpartition(".")[2]
            if value is not None and not name.isupper():
                yield ast.unparse(text)
                break


def test_no_other_text_is_made_a_path_of_the_api() -> None:
    """A name with a slash or dots would be the path of another object."""
    sources = [path for one in PACKAGES for path in sorted((ROOT / one).rglob("*.py"))]

    assert sources
    assert [each for path in sources for each in made_otherwise(path.read_text())] == []


def test_what_would_be_one_is_found() -> None:
    """What is asked of a collection is no name, and a constant is known."""
    assert list(made_otherwise('f"/api/v1/nodes/{name}"')) == ["f'/api/v1/nodes/{name}'"]
    assert list(made_otherwise('f"/apis/{GROUP}/x/{self.name}"')) != []
    assert list(made_otherwise('f"/api/v1/{NODES}?limit={page}"')) == []
