"""Rules for the log itself: events, their streams, the head; and for refusals, its plain copy."""

from __future__ import annotations

from typing import Final

from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.store.ddl.texts import ASKED, ESCAPED, TYPES, fail

EVENTS_NO_UPDATE: Final = f"""
CREATE TRIGGER ledger_events_no_update BEFORE UPDATE ON ledger_events
BEGIN
  SELECT {
    fail(
        "'tenure ledger: events are append-only: position '"
        " || OLD.position || ' cannot be changed'",
        "tenure ledger: events are append-only",
    )
};
END
"""
EVENTS_NO_DELETE: Final = f"""
CREATE TRIGGER ledger_events_no_delete BEFORE DELETE ON ledger_events
WHEN NOT EXISTS (
    SELECT 1 FROM ledger_archived AS a JOIN ledger_segments AS s
    ON a.position BETWEEN s.first AND s.last
    WHERE a.position = OLD.position AND a.idempotency_key = OLD.idempotency_key
  )
BEGIN
  SELECT {
    fail(
        "'tenure ledger: events are append-only: position '"
        " || OLD.position || ' cannot be deleted'",
        "tenure ledger: events are append-only",
    )
};
END
"""
"""What a sealed segment holds may go to its archive, and nothing else."""
EVENTS_APPEND: Final = f"""
CREATE TRIGGER ledger_events_append BEFORE INSERT ON ledger_events
BEGIN
  SELECT CASE
    WHEN NEW.position <> (SELECT coalesce(max(position), 0) + 1 FROM ledger_events)
    THEN {
    fail(
        "'tenure ledger: events are append-only: the next position is '"
        " || (SELECT coalesce(max(position), 0) + 1 FROM ledger_events)"
        " || ', not ' || NEW.position",
        "tenure ledger: events are append-only",
    )
}
    WHEN NEW.position > (SELECT position FROM ledger_head)
    THEN {
    fail(
        "'tenure ledger: position ' || NEW.position || ' is beyond the head: only the writer"
        " of the current epoch appends'",
        "tenure ledger: only the writer of the current epoch appends",
    )
}
    WHEN NEW.stream_version <> coalesce(
      (SELECT version FROM ledger_streams WHERE stream = NEW.stream), 0
    ) + 1
    THEN {
    fail(
        "'tenure ledger: stream ' || NEW.stream || ' is not at version '"
        " || (NEW.stream_version - 1)",
        "tenure ledger: stream moved on",
    )
}
    WHEN (EXISTS (SELECT 1 FROM ledger_events WHERE idempotency_key = NEW.idempotency_key)
      OR EXISTS (SELECT 1 FROM ledger_archived WHERE idempotency_key = NEW.idempotency_key))
    THEN {
    fail(
        "'tenure ledger: already recorded: ' || NEW.idempotency_key",
        "tenure ledger: already recorded",
    )
}
  END;
END
"""

EVENTS_KNOWN: Final = f"""
CREATE TRIGGER ledger_events_known BEFORE INSERT ON ledger_events
WHEN instr('{TYPES}', ' ' || NEW.event_type || ' ') = 0 OR instr(NEW.event_type, ' ') > 0
  OR substr(NEW.body, 1, 1) <> '{{' OR NOT json_valid(NEW.body)
BEGIN
  SELECT {
    fail(
        "'tenure ledger: nobody can read such an event: position ' || NEW.position"
        " || ', event_type=' || NEW.event_type",
        "tenure ledger: nobody can read such an event",
    )
};
END
"""
"""An event is a JSON object of a type that this release knows."""

_INEXACT: Final = f"max(type = 'real' OR type = 'integer' AND abs(value) > {INTEGER_MAX})"
_INNER: Final = " UNION ALL ".join(
    f"SELECT e.key AS place, f.key AS name FROM json_each(NEW.body, '$.{name}') AS e,"
    " json_each(CASE e.type WHEN 'object' THEN e.value ELSE '{}' END) AS f"
    for name in ASKED
)
EVENTS_WORDS: Final = f"""
CREATE TRIGGER ledger_events_words BEFORE INSERT ON ledger_events
WHEN NEW.event_type NOT LIKE 'pod.%' AND NEW.event_type NOT LIKE 'request.%'
BEGIN
  SELECT CASE WHEN
    CASE WHEN NOT json_valid(NEW.body) THEN 0 WHEN json_type(NEW.body) <> 'object' THEN 0
      WHEN {ESCAPED} THEN 1
      WHEN EXISTS (
        SELECT 1 FROM json_each(NEW.body) GROUP BY key HAVING count(*) > 1 OR {_INEXACT}
      ) THEN 1
      ELSE EXISTS (SELECT 1 FROM ({_INNER}) GROUP BY place, name HAVING count(*) > 1)
    END
  THEN {
    fail(
        "'tenure ledger: an event says each word once, in our form: position ' || NEW.position",
        "tenure ledger: an event says each word once, in our form",
    )
} END;
END
"""
"""
What the databases' JSON functions read differently is no event: a view would have two answers.

Of Pods and refusals the views tell what stands in rows of their own; those bodies are for `verify`.
"""
EVENTS_COUNT: Final = """
CREATE TRIGGER ledger_events_count AFTER INSERT ON ledger_events
WHEN NEW.stream_version > 1
BEGIN
  UPDATE ledger_streams SET version = NEW.stream_version WHERE stream = NEW.stream;
END
"""
EVENTS_FIRST: Final = """
CREATE TRIGGER ledger_events_first AFTER INSERT ON ledger_events
WHEN NEW.stream_version = 1
BEGIN
  INSERT INTO ledger_streams (stream, version) VALUES (NEW.stream, 1);
END
"""
_STREAM: Final = fail(
    "'tenure ledger: a stream moves by one with each event: ' || NEW.stream",
    "tenure ledger: a stream moves by one with each event",
)
STREAMS_INSERT: Final = f"""
CREATE TRIGGER ledger_streams_insert BEFORE INSERT ON ledger_streams
WHEN NEW.version <> 1 OR EXISTS (SELECT 1 FROM ledger_streams WHERE stream = NEW.stream)
BEGIN
  SELECT {_STREAM};
END
"""
STREAMS_UPDATE: Final = f"""
CREATE TRIGGER ledger_streams_update BEFORE UPDATE ON ledger_streams
WHEN NEW.version <> OLD.version + 1 OR NEW.stream <> OLD.stream
BEGIN
  SELECT {_STREAM};
END
"""

HEAD_FORWARD: Final = f"""
CREATE TRIGGER ledger_head_forward BEFORE UPDATE ON ledger_head
BEGIN
  SELECT CASE
    WHEN NEW.id <> OLD.id OR NEW.position < OLD.position OR NEW.at_us < OLD.at_us
      OR NEW.epoch < OLD.epoch
      OR (NEW.position = OLD.position
        AND (NEW.chain_hash, NEW.at_us) IS NOT (OLD.chain_hash, OLD.at_us))
    THEN {
    fail(
        "'tenure ledger: the head only moves forward: it is at position ' || OLD.position",
        "tenure ledger: the head only moves forward",
    )
}
    WHEN NEW.origin <> OLD.origin AND (OLD.epoch > 0 OR NEW.epoch = OLD.epoch)
    THEN {
    fail(
        "'tenure ledger: a ledger keeps its origin: ' || OLD.origin",
        "tenure ledger: a ledger keeps its origin",
    )
}
    WHEN NEW.epoch > OLD.epoch + 1 OR (NEW.epoch > OLD.epoch AND NEW.position <> OLD.position)
    THEN {
    fail(
        "'tenure ledger: an epoch is followed by the next one: it is epoch ' || OLD.epoch",
        "tenure ledger: an epoch is followed by the next one",
    )
}
    WHEN NEW.holder <> OLD.holder AND NEW.epoch = OLD.epoch
    THEN {
    fail(
        "'tenure ledger: the holder changes with the epoch: it is epoch ' || OLD.epoch",
        "tenure ledger: the holder changes with the epoch",
    )
}
  END;
END
"""
HEAD_ONE: Final = f"""
CREATE TRIGGER ledger_head_one BEFORE INSERT ON ledger_head
WHEN EXISTS (SELECT 1 FROM ledger_head)
BEGIN
  SELECT {fail("'tenure ledger: there is one head'", "tenure ledger: there is one head")};
END
"""

_REFUSAL_PATHS: Final = (
    "pod_uid",
    "namespace",
    "pod_name",
    "stage",
    "message",
    "shape",
    "gpu_core_percent",
    "policy",
    "snapshot.owner",
)
_SAID: Final = ", ".join(f"json_extract(e.body, '$.{path}')" for path in _REFUSAL_PATHS)
REFUSALS_INSERT: Final = f"""
CREATE TRIGGER ledger_refusals_insert BEFORE INSERT ON ledger_refusals
WHEN EXISTS (SELECT 1 FROM ledger_refusals WHERE position = NEW.position)
  OR NOT EXISTS (
    SELECT 1 FROM ledger_events AS e
    WHERE e.position = NEW.position AND e.event_type LIKE 'request.refused.v%'
      AND e.at_us = NEW.at_us
      AND (NEW.pod_uid, NEW.namespace, NEW.pod_name, NEW.stage, NEW.message, NEW.shape,
    NEW.gpu_core_percent, NEW.policy, NEW.owner) IS ({_SAID})
  )
BEGIN
  SELECT {
    fail(
        "'tenure ledger: no event at position ' || NEW.position || ' is a refusal'",
        "tenure ledger: no event is a refusal",
    )
};
END
"""

RULES: Final = (
    EVENTS_NO_UPDATE,
    EVENTS_NO_DELETE,
    EVENTS_APPEND,
    EVENTS_KNOWN,
    EVENTS_WORDS,
    EVENTS_COUNT,
    EVENTS_FIRST,
    STREAMS_INSERT,
    STREAMS_UPDATE,
    HEAD_FORWARD,
    HEAD_ONE,
    REFUSALS_INSERT,
)
"""These rules in the order in which they are made."""
