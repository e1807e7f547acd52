"""The rows of docs/threat-model.md."""

from __future__ import annotations

import re
from typing import Final

from tests.support.process import ROOT

REAL: Final = "## Beside a real kubelet"
"""Under it are the rows that tests/node plays."""


def rows(*, real: bool) -> dict[tuple[str, str], str]:
    """Return what came by who and what, of the rows that are played on a real node or of others."""
    before, _, after = (ROOT / "docs" / "threat-model.md").read_text("utf-8").partition(REAL)
    found = {}
    for line in (after if real else before).splitlines():
        if re.match(r"\| (?!who |---)", line):
            who, what, came = (cell.strip() for cell in line.strip("|").split("|"))
            assert (who, what) not in found, f"a row stands twice: {who}, {what}"
            found[who, what] = came
    return found
