"""`tenure check -o diff`: what admission would change, as a unified diff of the manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from typing import TYPE_CHECKING, Any, Final, TextIO

from tenure.check.facts import written
from tenure.exits import note, printable
from tenure.output import one_line

if TYPE_CHECKING:
    from tenure.check.checker import Checked
    from tenure.manifests import Document

_WIDTH: Final = 1_000_000
"""No value is folded: a change of it is one line."""


def write_diff(documents: Sequence[Document], results: Sequence[Checked], out: TextIO) -> None:
    """
    Write the diff of each object that changes; say on stderr what is refused, and every warning.

    Both sides are YAML of the whole object in the order of its keys, without its comments.
    """
    for document, result in zip(documents, results, strict=True):
        out.writelines(_diff(document, result))
        about = f"{result.kind} {one_line(f'{result.namespace}/{result.name}'.strip('/'))}"
        for text in _said(result):
            note(f"{about}: {text}".replace("\n", " "))


def _diff(document: Document, result: Checked) -> Iterator[str]:
    name = f"{document.namespace}/{document.name}".strip("/")
    about = one_line(f"{document.place()} {document.kind} {name}")
    for line in unified_diff(
        _lines(written(document)), _lines(result.body), about, f"{about}, as admitted", lineterm=""
    ):
        yield f"{printable(line)}\n"


def _lines(body: Mapping[str, Any]) -> Sequence[str]:
    import yaml

    text = yaml.safe_dump(dict(body), sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text.splitlines()


def _said(result: Checked) -> Iterable[str]:
    yield from (f"refused: {cause}" for cause in result.causes)
    yield from (f"warning: {text}" for text in result.warnings)
