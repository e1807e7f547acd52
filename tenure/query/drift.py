"""`tenure drift`: what ledger, API and machines say differently now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ledger.domain.log.drift import repair_of
from ledger.domain.log.events import CLAIM
from tenure.asking import Answer, Sight
from tenure.live.place import Place, asks
from tenure.options import Output
from tenure.output import Column, OutputFormat, one_line, write_answer
from tenure.times import iso_time

if TYPE_CHECKING:
    from ledger.domain.systems import Claimant
    from ledger.store.open import Ledger
    from ledger.store.reading.report_rows import DriftRow

_COLUMNS: Final = (
    Column(key="kind", title="KIND"),
    Column(key="since", title="SINCE"),
    Column(key="node", title="NODE"),
    Column(key="pod", title="POD"),
    Column(key="words", title="WORDS", show=one_line),
    Column(key="repair", title="REPAIR"),
    Column(key="device", title="DEVICE", wide=True),
    Column(key="node_uid", title="NODE UID", wide=True),
    Column(key="pod_uid", title="POD UID", wide=True),
    Column(key="position", title="POSITION", right=True, wide=True),
)


@asks()
def drift(
    *,
    place: Place,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    What ledger, API and machines say differently now, and what is done about it.

    Exit 1 while there is any. What each kind means, and how it is mended: docs/drift.md.

    Example: tenure drift -o json
    """
    place.print("drift", answer_drift, DriftQuestion(output=output))


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftQuestion:
    """What is said differently now."""

    output: OutputFormat = OutputFormat.TABLE


def answer_drift(source: Ledger, question: DriftQuestion, sight: Sight) -> Answer:
    """Answer what differs now, for whoever sees all Pods. Raises InputError: the asker does not."""
    from ledger.store.reading.kept import consumers_of
    from ledger.store.reading.report_queries import open_drifts, span

    sight.expect_whole("drift")
    with source.connection.begin():
        rows = open_drifts(source.connection)
        claims = [one.opened_by for one in rows if one.opened_by and one.holder == CLAIM]
        records = drift_records(rows, consumers_of(source.connection, claims))
        position = span(source.connection).last_position
    answer = Answer(is_no=bool(records))
    if records or not question.output.is_table:
        shown = map(_shown, records) if question.output.is_table else records
        write_answer(question.output, list(shown), _COLUMNS, out=answer.out)
    else:
        answer.out.write(f"no drift is open, of what was recorded up to position {position:,}\n")
    return answer


def drift_records(
    rows: Iterable[DriftRow], consumers: Mapping[int, Sequence[Claimant]]
) -> list[dict[str, Any]]:
    """Return open drift as records; `consumers` use claims, by the giving event's position."""
    return [
        {
            "kind": one_line(row.kind),
            "since": iso_time(row.opened_at_us),
            "node": one_line(row.node_name or row.node_uid),
            "pod": one_line(_path(row)),
            "holder": row.holder,
            "consumers": [one.name for one in users],
            "words": row.detail,
            "repair": repair_of(row.kind),
            "device": f"{row.device_type}/{row.minor}" if row.device_type else "",
            "node_uid": row.node_uid,
            "pod_uid": row.pod_uid,
            "drift_id": row.drift_id,
            "position": row.position,
        }
        for row in rows
        for users in (consumers.get(row.opened_by or 0, ()),)
    ]


def _path(row: DriftRow) -> str:
    return f"{row.namespace}/{row.pod_name}" if row.pod_name else row.pod_uid


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table: a claim with the Pods that use it."""
    if record["holder"] != CLAIM:
        return record
    users = ", ".join(record["consumers"]) or "no Pod"
    return {**record, "pod": one_line(f"claim {record['pod']} ({users})")}
