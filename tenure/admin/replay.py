"""
`tenure ledger replay`: what was decided, decided again from the events of the ledger alone.

Rule: docs/adr/0011. In a simulation's ledger the whole decision; of a cluster at work the cards and
CPUs on the node that was named.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ledger.domain.errors import InputError
from tenure.admin.verify import FINDINGS_SHOWN
from tenure.exits import AnswerIsNo, warn, with_next
from tenure.opening import opened
from tenure.options import LedgerUrl, Output
from tenure.output import Column, OutputFormat, fitted, write_answer
from tenure.progress import progress_bar

if TYPE_CHECKING:
    from ledger.domain.log.recorded import RecordedEvent
    from ledger.store.open import Ledger
    from scheduler.record.ahead import Ahead
    from scheduler.record.replay import Again, Replay
    from scheduler.record.so_far import InForce


BY_RULES: Final = "a refusal by rules, which the Pod's manifest decides"
BY_GATE: Final = "an answer of the gate: kube-scheduler chooses what claims are allocated"
WITH_CLAIMS: Final = "with claims of the files"
RECOVERED: Final = "a reservation that a recovery read off its Pod"
ON_ANOTHER: Final = "no choice of cards and CPUs, and this ledger is of a cluster at work"
NOT_SAID: Final = "a reservation that does not say on which position it was decided"
_PROGRESS_EVENTS: Final = 200
_COLUMNS: Final = (
    Column(key="position", title="POSITION", right=True),
    Column(key="name", title="POD"),
    Column(key="what", title="WHAT"),
    Column(key="recorded", title="RECORDED"),
    Column(key="decided", title="DECIDED NOW"),
)
_TOLD_WHOLE: Final = (
    "only a ledger that has every description of what was decided on can be replayed"
)


def replay(
    position: Annotated[
        int | None,
        typer.Argument(
            metavar="[POSITION]",
            help="Decide only this event again. Default: every decision.",
            min=1,
            show_default=False,
        ),
    ] = None,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Decide by these settings. Default: by those that the ledger recorded.",
            show_default=False,
        ),
    ] = None,
    ledger: LedgerUrl = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Decide again, from the events alone, and say what comes out otherwise. Exit 1 if anything does.

    Example: tenure ledger replay 1042 --ledger run.db
    """
    from scheduler.record.replay import Replay

    with opened(ledger) as source:
        head = source.head().position
        _refuse_unreadable(source, position, head)
        given = None if config is None else _settings(source, config)
        try:
            ahead = None if source.is_simulation else _ahead(source, position)
            seen = _walk(source, Replay(ahead=ahead, by=given), position, head)
        except InputError as error:
            placed = error.at(source.url)
            if not hasattr(placed, "__notes__"):
                with_next(placed, _TOLD_WHOLE)
            raise placed from None
    _write(seen, output)
    if seen.different:
        raise AnswerIsNo


@dataclass(slots=True)
class _Seen:
    """What came of the decisions so far."""

    first: int = 0
    last: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    different: list[Again] = field(default_factory=list)

    def add(self, again: Again) -> None:
        self.first = self.first or again.position
        self.last = again.position
        self.kinds[again.kind] += 1
        if again.differences:
            self.different.append(again)


def _refuse_unreadable(source: Ledger, position: int | None, head: int) -> None:
    from ledger.store.archives.segments import archived_up_to

    if position is not None and position > head:
        error = InputError(f"no such position: position={position}, head={head}", place=source.url)
        raise with_next(error, "`tenure status` shows the last position")
    with source.connection.begin():
        archived, _ = archived_up_to(source.connection)
    if archived:
        error = InputError(
            f"events 1 to {archived} are in an archive, and with them what was decided on",
            place=source.url,
        )
        raise with_next(error, "replay a copy from before they were archived")


def _settings(source: Ledger, config: Path) -> InForce:
    """Return these settings with the recorded seed; say where they are not those recorded."""
    from ledger.domain.log.events import SettingsChanged
    from scheduler.cluster.settings import settings_hash, settings_json, simulated
    from scheduler.record.so_far import InForce
    from tenure.settings import read_settings

    settings = read_settings(config)
    settings = simulated(settings) if source.is_simulation else settings
    recorded: dict[str, Any] = next(
        (
            json.loads(each.event.settings)
            for each in source.read_events()
            if isinstance(each.event, SettingsChanged)
        ),
        {},
    )
    seed = recorded.get("seed", 0)
    other = list(_other("", recorded, json.loads(settings_json(settings, seed=seed))))
    if other:
        warn(f"the ledger was decided by other settings than --config: {'; '.join(other)}")
    return InForce(settings=settings, settings_hash=settings_hash(settings, seed=seed), seed=seed)


def _other(path: str, recorded: Any, given: Any) -> Iterator[str]:  # noqa: ANN401 - JSON values
    if isinstance(recorded, dict) and isinstance(given, dict):
        for key in sorted(recorded.keys() | given.keys()):
            below = f"{path}.{key}" if path else key
            yield from _other(below, recorded.get(key), given.get(key))
    elif recorded != given:
        yield f"{path}: recorded {json.dumps(recorded)}, given {json.dumps(given)}"


def _ahead(source: Ledger, position: int | None) -> Ahead:
    from scheduler.record.ahead import Ahead

    def event_at(at: int) -> RecordedEvent:
        return next(source.read_events(after=at - 1, limit=1))

    ahead = Ahead(event_at=event_at)
    for recorded in source.read_events():  # of a gang's members one counts that is said last
        ahead.add(recorded)
    if position is not None:
        ahead.only(position)
    return ahead


def _walk(source: Ledger, replay: Replay, position: int | None, head: int) -> _Seen:
    seen = _Seen()
    with progress_bar("deciding again", total=position or head) as progress:
        for recorded in source.read_events(limit=position):
            at = recorded.envelope.position
            chosen = position is None or at == position
            again = replay.take(recorded, decide=chosen)
            if again is not None:
                seen.add(again)
            elif chosen and (why := _why_not(recorded, simulated=source.is_simulation)):
                seen.left_out[why] += 1
            if progress is not None and at % _PROGRESS_EVENTS == 0:
                progress(at, 0)
    if position is not None and not seen.kinds:
        raise _no_decision(recorded, seen)
    return seen


def _why_not(recorded: RecordedEvent, *, simulated: bool) -> str:
    """Return why what looks like a decision is not decided again, empty for other events."""
    from ledger.domain.log.events import (
        ClaimReserved,
        GroupPlanned,
        PlanDropped,
        PodObserved,
        PodReserved,
        RequestRefused,
    )
    from ledger.domain.log.recorded import is_recovered
    from scheduler.record.events import BY_CLAIMS, CLAIMS_STAGE, STAGE

    match recorded.event:
        case PodReserved() if is_recovered(recorded.envelope):
            return RECOVERED
        case PodReserved():
            return NOT_SAID
        case PodObserved(source=source) if source == BY_CLAIMS:
            return WITH_CLAIMS
        case RequestRefused(stage=stage) if stage == CLAIMS_STAGE:
            return WITH_CLAIMS
        case ClaimReserved() if simulated:
            return ""  # with its Pod
        case ClaimReserved() | RequestRefused(stage="claim"):
            return BY_GATE
        case RequestRefused(stage=stage) if stage != STAGE:
            return BY_RULES
        case RequestRefused() | GroupPlanned() | PlanDropped() if not simulated:
            return ON_ANOTHER
        case _:
            return ""


def _no_decision(recorded: RecordedEvent, seen: _Seen) -> InputError:
    event_type = recorded.envelope.event_type
    why = next(iter(seen.left_out), "no decision")
    position = recorded.envelope.position
    error = InputError(f"nothing to decide again: position={position}, {event_type} is {why}")
    return with_next(error, "name the position of a reservation, a refusal or a plan")


def _write(seen: _Seen, output: OutputFormat) -> None:
    from scheduler.record.replay import ENDED, PLACED, PLANNED, REFUSED

    differences = [
        {
            "position": again.position,
            "kind": again.kind,
            "name": again.name,
            "what": each.what,
            "recorded": each.recorded,
            "decided": each.decided,
        }
        for again in seen.different
        for each in again.differences
    ]
    document = {
        "equal": not seen.different,
        "decisions": seen.kinds.total(),
        PLACED: seen.kinds[PLACED],
        REFUSED: seen.kinds[REFUSED],
        PLANNED: seen.kinds[PLANNED],
        ENDED: seen.kinds[ENDED],
        "first": seen.first,
        "last": seen.last,
        "not_decided_again": dict(sorted(seen.left_out.items())),
        "differences": differences,
    }
    if not output.is_table:
        write_answer(output, differences, _COLUMNS, document=document)
        return
    if differences:
        write_answer(output, differences[:FINDINGS_SHOWN], _COLUMNS)
        if len(differences) > FINDINGS_SHOWN:
            sys.stdout.write(f"and {len(differences) - FINDINGS_SHOWN} more\n")
    sys.stdout.write(fitted(_summary(seen) + "\n"))
    for why, count in sorted(seen.left_out.items()):
        sys.stdout.write(fitted(f"not decided again: {count:,} times {why}\n"))


def _summary(seen: _Seen) -> str:
    from scheduler.record.replay import ENDED, PLACED, PLANNED, REFUSED

    parts = [f"{seen.kinds[PLACED]:,} placed", f"{seen.kinds[REFUSED]:,} refused"]
    if seen.kinds[PLANNED]:
        parts.append(f"{seen.kinds[PLANNED]:,} groups planned")
    if seen.kinds[ENDED]:
        parts.append(f"{seen.kinds[ENDED]:,} plans ended")
    total = seen.kinds.total()
    what = f"{total:,} decision{'' if total == 1 else 's'} ({', '.join(parts)})"
    where = f" from position {seen.first} to {seen.last}" if total else ""
    if not seen.different:
        return f"equal: {what}{where}"
    return f"not equal: {len(seen.different):,} of {what}{where}"
