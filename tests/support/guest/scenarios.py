"""
Steps on cgroups whose answers differ by the form of the hierarchy and by the kernel.

They are a table, `tests/samples/cgroups/answers.txt`. Columns are the step, the answer of v1, of v2
on 6.1, and of v2 on 6.12. A column that is missing is as the one before it, and a step without any
answers nothing. The answers are the kernels' own: `make guest` asks each of them again, and the
model that planning is tested with is held to the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KINDS: Final = ("v1", "v2 6.1", "v2 6.12")
"""What a column is about. Debian's 6.12 is built without the CPU sets of v1."""
_TABLE: Final = Path(__file__).parents[2] / "samples/cgroups/answers.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """
    One course of steps.

    Attributes:
        answers: kind -> what each step answers.
        modelled: the model of the kernel is held to it; a name with `*` is beyond it.
    """

    name: str
    modelled: bool
    steps: tuple[str, ...]
    answers: Mapping[str, tuple[str, ...]]


def kind(form: str, release: str) -> str:
    """Return which column is about a machine."""
    return form if form == "v1" else f"{form} {release}"


def scenarios() -> list[Scenario]:
    """Return all scenarios, in the order of the text."""
    return [_read(block) for block in _TABLE.read_text().strip().split("\n\n")]


def _read(block: str) -> Scenario:
    name, *lines = block.splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    padded = [row + [row[-1] if len(row) > 1 else ""] * (4 - len(row)) for row in cells]
    columns = [tuple(column) for column in zip(*padded, strict=True)]
    return Scenario(
        name=name.removesuffix(" *"),
        modelled=not name.endswith("*"),
        steps=columns[0],
        answers=dict(zip(KINDS, columns[1:], strict=True)),
    )
