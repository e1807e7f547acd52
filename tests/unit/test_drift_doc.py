"""docs/drift.md lists every kind of drift as the code has it."""

from __future__ import annotations

from pathlib import Path

from ledger.domain.log.drift import DRIFT_KINDS

DOC = Path(__file__).parents[2] / "docs" / "drift.md"
NO_REPAIR = "none: it would not be safe"


def test_the_table_is_the_list_of_kinds() -> None:
    """Name, meaning, repair and what people do, in order."""
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in DOC.read_text().splitlines()
        if line.startswith("| `")
    ]
    assert rows == [
        (f"`{kind.name}`", kind.meaning, kind.repair or NO_REPAIR, kind.mend)
        for kind in DRIFT_KINDS.values()
    ]
