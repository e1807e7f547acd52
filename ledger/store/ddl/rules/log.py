"""Rules for the log itself: events, their streams, the head; and for refusals, its plain copy."""

from __future__ import annotations

from typing import Final

from ledger.domain.log.events import EVENT_TYPES, PodReleased, PodReserved
from ledger.domain.log.upcasts import UPCASTS
from ledger.store.ddl.rules.rule import ALWAYS, Case, RefusalWords, event_is, no_event, rule, said

_NO_UPDATE: Final = said("events are append-only: position {OLD.position} cannot be changed")
_NO_DELETE: Final = said("events are append-only: position {OLD.position} cannot be deleted")
# What a sealed segment holds may go to its archive, and nothing else.
_NOT_ARCHIVED: Final = """NOT EXISTS (
    SELECT 1 FROM ledger_archived AS a JOIN ledger_segments AS s
    ON a.position BETWEEN s.first AND s.last
    WHERE a.position = OLD.position AND a.idempotency_key = OLD.idempotency_key
  )"""


def not_next(next_position: str, position: str) -> RefusalWords:
    """Return the words for an event that leaves a gap or takes the place of another."""
    return said(
        f"events are append-only: the next position is {{{next_position}}}, not {{{position}}}"
    )


def beyond_head(position: str) -> RefusalWords:
    """Return the words for an event before which no head was moved."""
    writer = "only the writer of the current epoch appends"
    return said(f"position {{{position}}} is beyond the head: {writer}", writer)


def other_version(row: str) -> RefusalWords:
    """Return the words for an event that is not the next one of its stream."""
    at = f"{{{row}.stream}} is not at version {{({row}.stream_version - 1)}}"
    return said(f"stream {at}", "stream moved on")


def recorded(key: str) -> RefusalWords:
    """Return the words for an event whose key is in the log."""
    return said(f"already recorded: {{{key}}}")


_NEXT: Final = "(SELECT coalesce(max(position), 0) + 1 FROM ledger_events)"
_VERSION: Final = "(SELECT version FROM ledger_streams WHERE stream = NEW.stream)"
_KEY: Final = "WHERE idempotency_key = NEW.idempotency_key"
_APPENDED: Final = (
    Case(f"NEW.position <> {_NEXT}", not_next(_NEXT, "NEW.position")),
    Case("NEW.position > (SELECT position FROM ledger_head)", beyond_head("NEW.position")),
    Case(f"NEW.stream_version <> coalesce({_VERSION}, 0) + 1", other_version("NEW")),
    Case(
        f"EXISTS (SELECT 1 FROM ledger_events {_KEY})"
        f" OR EXISTS (SELECT 1 FROM ledger_archived {_KEY})",
        recorded("NEW.idempotency_key"),
    ),
)
"""What is appended is next, inside of the head, counted in its stream, and new."""

_OFTEN: Final = (PodReserved.event_type, PodReleased.event_type)
"""The types that come most often: known without a look at all others."""
_TYPES: Final = f"' {' '.join(sorted({*EVENT_TYPES, *UPCASTS}))} '"
"""The types of every event that this release reads, between spaces."""
_UNKNOWN: Final = f"""{" AND ".join(f"NEW.event_type <> '{each}'" for each in _OFTEN)}
    AND ($find({_TYPES}, ' ' || NEW.event_type || ' ') = 0 OR $find(NEW.event_type, ' ') > 0)
  OR $no_object(NEW.body)"""
_UNREADABLE: Final = said(
    "nobody can read such an event: position {NEW.position}, event_type={NEW.event_type}"
)

_UNESCAPED: Final = r"replace(replace(replace(NEW.body, '\\', ''), '\u000', ''), '\u001', '')"
"""The body of NEW without backslashes that are said and control characters: they alone need it."""
_ESCAPED: Final = rf"$find({_UNESCAPED}, '\u') > 0"
"""The condition that the body of NEW has an escape of what needs none: a name in other letters."""
_ARRAYS: Final = "devices members"
"""The arrays of objects in a body that views look into."""
_NO_DRIFT: Final = """CASE
    WHEN NEW.event_type <> 'drift.resolved.v1' OR $no_object(NEW.body) THEN false
    ELSE coalesce((
      SELECT e.event_type FROM ledger_events AS e $body(e)
      WHERE (e.event_type = 'drift.found.v1' OR e.event_type = 'drift.resolved.v1')
        AND e.position < NEW.position AND $text(e.body, drift_id) = $json(NEW.body, drift_id)
      ORDER BY e.position DESC LIMIT 1
    ), '') <> 'drift.found.v1' END"""
"""The condition that NEW resolves a drift that was not found, or is over."""
_WORDS: Final = said("an event says each word once, in our form: position {NEW.position}")
# Of Pods and refusals the views tell what stands in rows of their own; `verify` reads those bodies.
_NOT_LOOKED_INTO: Final = "$begins(NEW.event_type, 'pod.') OR $begins(NEW.event_type, 'request.')"

_STREAM: Final = said("a stream moves by one with each event: {NEW.stream}")
_FORWARD: Final = said("the head only moves forward: it is at position {OLD.position}")
_ORIGIN: Final = said("a ledger keeps its origin: {OLD.origin}")
_EPOCH: Final = said("an epoch is followed by the next one: it is epoch {OLD.epoch}")
_HOLDER: Final = said("the holder changes with the epoch: it is epoch {OLD.epoch}")

_COPIED: Final = ("pod_uid", "namespace", "pod_name", "stage", "message", "shape", "policy")
_SAID: Final = " AND ".join(f"$says(e.body, {each}, NEW.{each})" for each in _COPIED)
_REFUSED: Final = f"""EXISTS (
    SELECT 1 FROM ledger_events AS e $body(e)
    WHERE e.position = NEW.position AND {event_is("request.refused")} AND e.at_us = NEW.at_us
      AND {_SAID} AND $says(e.body, gpu_core_percent, NEW.gpu_core_percent)
      AND $says(e.body, snapshot.owner, NEW.owner)
  )"""

RULES: Final = (
    rule("ledger_events_no_update", "ledger_events", "UPDATE", Case(ALWAYS, _NO_UPDATE)),
    rule("ledger_events_no_delete", "ledger_events", "DELETE", Case(_NOT_ARCHIVED, _NO_DELETE)),
    rule("ledger_events_append", "ledger_events", "INSERT", *_APPENDED),
    # An event is a JSON object of a type that this release knows.
    rule("ledger_events_known", "ledger_events", "INSERT", Case(_UNKNOWN, _UNREADABLE)),
    # What the databases' JSON functions read differently is none: a view would have two answers.
    rule(
        "ledger_events_words",
        "ledger_events",
        "INSERT",
        Case(_NOT_LOOKED_INTO, None),
        Case(
            "CASE WHEN $no_object(NEW.body) THEN false"
            f" ELSE {_ESCAPED} OR $unclear(NEW.body, {_ARRAYS}) END",
            _WORDS,
        ),
        Case(_NO_DRIFT, said("no such drift is open: position {NEW.position}")),
    ),
    rule(
        "ledger_streams_insert",
        "ledger_streams",
        "INSERT",
        Case(
            "NEW.version <> 1 OR EXISTS (SELECT 1 FROM ledger_streams WHERE stream = NEW.stream)",
            _STREAM,
        ),
    ),
    rule(
        "ledger_streams_update",
        "ledger_streams",
        "UPDATE",
        Case("NEW.version <> OLD.version + 1 OR NEW.stream <> OLD.stream", _STREAM),
    ),
    rule(
        "ledger_head_forward",
        "ledger_head",
        "UPDATE",
        Case(
            """NEW.id <> OLD.id OR NEW.position < OLD.position OR NEW.at_us < OLD.at_us
      OR NEW.epoch < OLD.epoch OR (NEW.position = OLD.position
        AND $differ((NEW.chain_hash, NEW.at_us), (OLD.chain_hash, OLD.at_us)))""",
            _FORWARD,
        ),
        Case("NEW.origin <> OLD.origin AND (OLD.epoch > 0 OR NEW.epoch = OLD.epoch)", _ORIGIN),
        Case(
            "NEW.epoch > OLD.epoch + 1 OR (NEW.epoch > OLD.epoch AND NEW.position <> OLD.position)",
            _EPOCH,
        ),
        Case("NEW.holder <> OLD.holder AND NEW.epoch = OLD.epoch", _HOLDER),
    ),
    rule(
        "ledger_head_one",
        "ledger_head",
        "INSERT",
        Case("EXISTS (SELECT 1 FROM ledger_head)", said("there is one head")),
    ),
    rule(
        "ledger_refusals_insert",
        "ledger_refusals",
        "INSERT",
        Case(
            "EXISTS (SELECT 1 FROM ledger_refusals WHERE position = NEW.position)"
            f" OR NOT {_REFUSED}",
            no_event("is a refusal"),
        ),
    ),
)
