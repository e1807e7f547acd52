"""One row of docs/threat-model.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One row; `play` returns what came of it, in the words of the page."""

    who: str
    what: str
    play: Callable[[], str]
