"""Several policies over the same arrivals, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TextIO

from tenure.output import Column, OutputFormat, write_answer
from tenure.simulate.results import Result


def _percent(value: float) -> str:
    return f"{value:.2f}%"


_COLUMNS: Final = (
    Column(key="policy", title="POLICY"),
    Column(key="placed", title="PLACED", right=True),
    Column(key="failed", title="FAILED", right=True),
    Column(key="allocated_percent", title="GPU ALLOCATED", show=_percent, right=True),
    Column(key="fragmentation_percent", title="FRAGMENTED", show=_percent, right=True),
    Column(key="nodes_untouched", title="NODES UNTOUCHED", right=True),
    Column(key="cards_untouched", title="CARDS UNTOUCHED", right=True),
    Column(key="seconds", title="SECONDS", show="{:.2f}".format, right=True),
    Column(key="decisions_per_second", title="DECISIONS/S", show="{:,.0f}".format, right=True),
)


def row_of(result: Result) -> dict[str, Any]:
    """Return the figures of one policy. Untouched: held no Pod at any time of the run."""
    tally = result.tally
    row: dict[str, Any] = {
        "policy": result.policy,
        "placed": tally.placed,
        "failed": tally.failed,
        "allocated_percent": round(result.allocated_percent, 4),
        "fragmentation_percent": round(result.fragmentation_percent, 4),
        "nodes_untouched": len(result.nodes) - len(tally.nodes_used),
        "cards_untouched": result.cards_untouched,
        "seconds": round(result.seconds, 3),
        "decisions_per_second": round(tally.decisions / result.seconds, 1) if result.seconds else 0,
    }
    if result.source == "openb":
        series = result.allocated_at_arrived_percent()
        row["allocated_at_arrived_percent"] = {str(step): value for step, value in series.items()}
    return row


def write_comparison(rows: Sequence[dict[str, Any]], output: OutputFormat, out: TextIO) -> None:
    """Write one line per policy."""
    steps = [
        key for key in ("100", "130") if key in rows[0].get("allocated_at_arrived_percent", {})
    ]
    at_arrived = tuple(
        Column(key=f"at {step}% arrived", title=f"AT {step}% ARRIVED", show=_percent, right=True)
        for step in steps
    )
    shown = rows
    if output not in (OutputFormat.JSON, OutputFormat.YAML):
        shown = [
            row
            | {
                f"at {step}% arrived": row["allocated_at_arrived_percent"].get(step)
                for step in steps
            }
            for row in rows
        ]
    columns = (*_COLUMNS[:4], *at_arrived, *_COLUMNS[4:])
    write_answer(output, shown, columns, out=out)
