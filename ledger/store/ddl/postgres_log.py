"""
Rules on Postgres for the log itself, as `ledger.store.ddl.log` has them on SQLite.

What an INSERT brings in is looked at once it is there, all rows of the statement together, and the
streams are counted then. The table of events is made of partitions by position; whoever inserts
into a partition itself meets the same rules there.
"""

from __future__ import annotations

from typing import Final

from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.store.ddl.postgres_texts import (
    BODY,
    HINT,
    SEARCH_PATH,
    equal,
    event_is,
    fail,
    not_new,
    refuse,
    refuse_truncate,
    rule,
)
from ledger.store.ddl.texts import ASKED, ESCAPED, TYPES

PARTITION_EVENTS: Final = 10_000_000
"""How many positions one partition of the events holds."""
AHEAD_EVENTS: Final = PARTITION_EVENTS // 10
"""How many positions before its first one a partition is made."""

_APPEND_ONLY: Final = "events are append-only"
EVENTS_NO_UPDATE: Final = refuse(
    "ledger_events_no_update",
    "ledger_events",
    "UPDATE",
    f"'tenure ledger: {_APPEND_ONLY}: position ' || OLD.position || ' cannot be changed'",
    _APPEND_ONLY,
)
_NO_DELETE: Final = (
    f"'tenure ledger: {_APPEND_ONLY}: position ' || OLD.position || ' cannot be deleted'"
)
EVENTS_NO_DELETE: Final = rule(
    "ledger_events_no_delete",
    "ledger_events",
    "DELETE",
    f"""
  IF EXISTS (
    SELECT 1 FROM ledger_archived AS a JOIN ledger_segments AS s
    ON a.position BETWEEN s.first AND s.last
    WHERE a.position = OLD.position AND a.idempotency_key = OLD.idempotency_key
  ) THEN
    RETURN OLD;
  END IF;
  {fail(_NO_DELETE, _APPEND_ONLY)}""",
)
"""What a sealed segment holds may go to its archive, and nothing else."""


def _not_next(position: str) -> str:
    return fail(
        f"'tenure ledger: {_APPEND_ONLY}: the next position is ' || next || ', not ' || {position}",
        _APPEND_ONLY,
    )


_BEYOND_HEAD: Final = fail(
    "'tenure ledger: position ' || greatest(first, head + 1) || ' is beyond the head: only the"
    " writer of the current epoch appends'",
    "only the writer of the current epoch appends",
)
_OTHER_VERSION: Final = fail(
    "'tenure ledger: stream ' || wrong.stream || ' is not at version '"
    " || (wrong.stream_version - 1)",
    "stream moved on",
)
_REPEATED: Final = fail("'tenure ledger: already recorded: ' || repeated", "already recorded")
EVENTS_NEXT: Final = rule(
    "ledger_events_next",
    "ledger_events",
    "INSERT",
    f"""
  SELECT coalesce(max(position), 0) + 1 INTO next FROM ledger_events;
  IF NEW.position < next THEN
    {_not_next("NEW.position")}
  END IF;""",
    variables="next bigint;",
    only_if=not_new(),
)
"""Says in our words what the primary key would say in its own."""


EVENTS_KNOWN: Final = rule(
    "ledger_events_known",
    "ledger_events",
    "INSERT",
    "  "
    + fail(
        "'tenure ledger: nobody can read such an event: position ' || NEW.position"
        " || ', event_type=' || NEW.event_type",
        "nobody can read such an event",
    ),
    only_if=f"strpos('{TYPES}', ' ' || NEW.event_type || ' ') = 0"
    " OR strpos(NEW.event_type, ' ') > 0"
    " OR NOT starts_with(NEW.body, '{') OR json_typeof(NEW.body::json) <> 'object'",
)
"""An event is a JSON object of a type that this release knows; no JSON at all the server names."""

_INNER: Final = " UNION ALL ".join(
    f"SELECT e.place, f.name FROM json_array_elements(NEW.body::json->'{name}')"
    " WITH ORDINALITY AS e (value, place), json_object_keys("
    "CASE json_typeof(e.value) WHEN 'object' THEN e.value ELSE '{}' END) AS f (name)"
    f" WHERE json_typeof(NEW.body::json->'{name}') = 'array'"
    for name in ASKED
)
_WORDS: Final = fail(
    "'tenure ledger: an event says each word once, in our form: position ' || NEW.position",
    "an event says each word once, in our form",
)
EVENTS_WORDS: Final = rule(
    "ledger_events_words",
    "ledger_events",
    "INSERT",
    f"""
  IF {ESCAPED} THEN
    {_WORDS}
  END IF;
  IF EXISTS (
      SELECT 1 FROM json_each(NEW.body::json) AS f GROUP BY f.key HAVING count(*) > 1
        OR bool_or(json_typeof(f.value) = 'number' AND (f.value::text ~ '[.eE]'
          OR abs(f.value::text::numeric) > {INTEGER_MAX}))
    ) OR EXISTS (SELECT 1 FROM ({_INNER}) AS i GROUP BY i.place, i.name HAVING count(*) > 1)
  THEN
    {_WORDS}
  END IF;""",
    only_if="NOT starts_with(NEW.event_type, 'pod.')"
    " AND NOT starts_with(NEW.event_type, 'request.')",
)
"""What JSON functions read differently is no event."""


def _recorded(table: str) -> str:
    return f"""(
      SELECT c.idempotency_key FROM changed AS c
      JOIN {table} AS e ON e.idempotency_key = c.idempotency_key AND e.position <> c.position
      LIMIT 1
    )"""


# One query for all that is asked of every statement: each one more takes longer to begin than to
# answer. What follows is asked only of statements of many rows, or of new streams.
_LOOK: Final = """
  SELECT a.*, (
      SELECT coalesce(max(e.position), 0) + 1 FROM ledger_events AS e WHERE e.position < a.first
    ), (SELECT h.position FROM ledger_head AS h), {recorded}
  INTO first, last, rows, begun, next, head, repeated
  FROM (
    SELECT min(position) AS first, max(position), count(*),
      count(*) FILTER (WHERE stream_version = 1)
    FROM changed
  ) AS a;"""
_COUNT: Final = f"""
  left_over := rows;
  IF left_over > 1 THEN
    SELECT c.stream, c.stream_version INTO wrong FROM (
      SELECT position, stream, stream_version,
        lag(stream_version) OVER (PARTITION BY stream ORDER BY position) AS before
      FROM changed
    ) AS c WHERE c.stream_version <= c.before ORDER BY c.position LIMIT 1;
    IF FOUND THEN
      {_OTHER_VERSION}
    END IF;
  END IF;
  IF begun > 0 THEN
    INSERT INTO ledger_streams (stream, version)
    SELECT c.stream, 1 FROM changed AS c WHERE c.stream_version = 1
      AND NOT EXISTS (SELECT 1 FROM ledger_streams AS s WHERE s.stream = c.stream);
    GET DIAGNOSTICS moved = ROW_COUNT;
    left_over := left_over - moved;
  END IF;
  WHILE left_over > 0 LOOP
    UPDATE ledger_streams AS s SET version = c.stream_version
    FROM changed AS c WHERE s.stream = c.stream AND s.version = c.stream_version - 1;
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF moved = 0 THEN
      SELECT c.stream, c.stream_version INTO wrong
      FROM changed AS c LEFT JOIN ledger_streams AS s ON s.stream = c.stream
      ORDER BY c.stream_version > coalesce(s.version, 0) DESC, c.position LIMIT 1;
      {_OTHER_VERSION}
    END IF;
    left_over := left_over - moved;
  END LOOP;"""


def _append(*keys: str) -> tuple[str, ...]:
    """Return the rule of what may be appended; none of these tables may have its key."""
    recorded = f"coalesce({', '.join(map(_recorded, keys))})"
    return rule(
        "ledger_events_append",
        "ledger_events",
        "INSERT",
        f"""{_LOOK.format(recorded=recorded)}
  IF rows = 0 THEN
    RETURN NULL;
  END IF;
  IF first <> next OR last - first + 1 <> rows THEN
    FOR place IN SELECT position FROM changed ORDER BY position LOOP
      IF place <> next THEN
        {_not_next("place")}
      END IF;
      next := next + 1;
    END LOOP;
  END IF;
  IF last > head THEN
    {_BEYOND_HEAD}
  END IF;
  IF repeated IS NOT NULL THEN
    {_REPEATED}
  END IF;{_COUNT}""",
        when="AFTER",
        level="STATEMENT",
        variables="first bigint; last bigint; rows bigint; next bigint; place bigint; head bigint;"
        " repeated text; left_over bigint; begun bigint; moved bigint; wrong record;",
        definer=True,
    )


EVENTS_APPEND: Final = _append("ledger_events", "ledger_archived")
"""
What is appended is next, inside of the head and new, and counts in its stream.

Streams are counted by the statements that find them where the events say, every stream by one at a
time; as many steps as there are events, or somebody's version is wrong.
"""
_STREAM: Final = fail(
    "'tenure ledger: a stream moves by one with each event: ' || NEW.stream",
    "a stream moves by one with each event",
)
STREAMS_INSERT: Final = rule(
    "ledger_streams_insert",
    "ledger_streams",
    "INSERT",
    f"""
  IF NEW.version <> 1 OR EXISTS (SELECT 1 FROM ledger_streams WHERE stream = NEW.stream) THEN
    {_STREAM}
  END IF;""",
)
STREAMS_UPDATE: Final = rule(
    "ledger_streams_update",
    "ledger_streams",
    "UPDATE",
    f"  {_STREAM}",
    only_if="NEW.version <> OLD.version + 1 OR NEW.stream <> OLD.stream",
)

CHANNEL: Final = "tenure_ledger"
"""Where the readers of the feed are told that the head moved; the payload is the position."""

# An expression that calls the function takes less time than a query that does.
_TELL: Final = f"""
  IF pg_notify('{CHANNEL}', NEW.position::text) IS NULL THEN
    hint := '';
  END IF;"""
_FORWARD: Final = fail(
    "'tenure ledger: the head only moves forward: it is at position ' || OLD.position",
    "the head only moves forward",
)
_ORIGIN: Final = fail(
    "'tenure ledger: a ledger keeps its origin: ' || OLD.origin", "a ledger keeps its origin"
)
_EPOCH: Final = fail(
    "'tenure ledger: an epoch is followed by the next one: it is epoch ' || OLD.epoch",
    "an epoch is followed by the next one",
)
_HOLDER: Final = fail(
    "'tenure ledger: the holder changes with the epoch: it is epoch ' || OLD.epoch",
    "the holder changes with the epoch",
)
_FORWARD_RULE: Final = f"""
  IF NEW.id <> OLD.id OR NEW.position < OLD.position OR NEW.at_us < OLD.at_us
    OR NEW.epoch < OLD.epoch
    OR (NEW.position = OLD.position
      AND (NEW.chain_hash, NEW.at_us) IS DISTINCT FROM (OLD.chain_hash, OLD.at_us))
  THEN
    {_FORWARD}
  ELSIF NEW.origin <> OLD.origin AND (OLD.epoch > 0 OR NEW.epoch = OLD.epoch) THEN
    {_ORIGIN}
  ELSIF NEW.epoch > OLD.epoch + 1
    OR (NEW.epoch > OLD.epoch AND NEW.position <> OLD.position)
  THEN
    {_EPOCH}
  ELSIF NEW.holder <> OLD.holder AND NEW.epoch = OLD.epoch THEN
    {_HOLDER}
  END IF;
  IF NEW.position > OLD.position THEN
    hint := set_config('{HINT}', (OLD.position + 1)::text, true);
  END IF;"""


HEAD_FORWARD: Final = rule(
    "ledger_head_forward", "ledger_head", "UPDATE", _FORWARD_RULE + _TELL, variables="hint text;"
)
"""The head only moves forward; once it may, its move is told, whoever appends."""
HEAD_ONE: Final = rule(
    "ledger_head_one",
    "ledger_head",
    "INSERT",
    f"""
  IF EXISTS (SELECT 1 FROM ledger_head) THEN
    {fail("'tenure ledger: there is one head'", "there is one head")}
  END IF;""",
)

_REFUSAL_FIELDS: Final = (
    "pod_uid",
    "namespace",
    "pod_name",
    "stage",
    "message",
    "shape",
    "gpu_core_percent",
    "policy",
)
_SAID: Final = equal(
    [*(f"to_jsonb(NEW.{each})" for each in _REFUSAL_FIELDS), "to_jsonb(NEW.owner)"],
    [*(f"j.b->'{each}'" for each in _REFUSAL_FIELDS), "j.b->'snapshot'->'owner'"],
)
_NO_REFUSAL: Final = fail(
    "'tenure ledger: no event at position ' || NEW.position || ' is a refusal'",
    "no event is a refusal",
)
REFUSALS_INSERT: Final = rule(
    "ledger_refusals_insert",
    "ledger_refusals",
    "INSERT",
    f"""
  IF EXISTS (SELECT 1 FROM ledger_refusals WHERE position = NEW.position)
    OR NOT EXISTS (
      SELECT 1 FROM ledger_events AS e {BODY}
      WHERE e.position = NEW.position AND {event_is("request.refused")}
        AND e.at_us = NEW.at_us AND {_SAID}
    )
  THEN
    {_NO_REFUSAL}
  END IF;""",
)

ADD_PARTITION: Final = (
    f"""CREATE FUNCTION ledger_add_partition(first bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {SEARCH_PATH} AS $rule$
DECLARE
  size CONSTANT bigint := {PARTITION_EVENTS};
  from_position CONSTANT bigint := first / size * size;
  part CONSTANT text := 'ledger_events_' || (first / size);
  doing CONSTANT text := current_setting('tenure.migration', true);
BEGIN
  IF to_regclass('public.' || part) IS NOT NULL THEN
    RETURN;
  END IF;
  PERFORM set_config('tenure.migration', 'on', true);
  EXECUTE 'CREATE TABLE public.' || part
    || ' (LIKE public.ledger_events INCLUDING DEFAULTS INCLUDING CONSTRAINTS)';
  EXECUTE 'ALTER TABLE public.' || part || ' ADD CONSTRAINT uq_' || part || '_idempotency_key'
    || ' UNIQUE (idempotency_key) DEFERRABLE INITIALLY DEFERRED';
  EXECUTE 'ALTER TABLE public.ledger_events ATTACH PARTITION public.' || part
    || ' FOR VALUES FROM (' || from_position || ') TO (' || (from_position + size) || ')';
  EXECUTE 'CREATE TRIGGER ledger_events_no_truncate BEFORE TRUNCATE ON public.' || part
    || ' FOR EACH STATEMENT EXECUTE FUNCTION public.ledger_events_no_truncate()';
  EXECUTE 'ALTER TABLE public.' || part || ' ENABLE ALWAYS TRIGGER ledger_events_no_truncate';
  EXECUTE 'CREATE TRIGGER ledger_events_append AFTER INSERT ON public.' || part
    || ' REFERENCING NEW TABLE AS changed'
    || ' FOR EACH STATEMENT EXECUTE FUNCTION public.ledger_events_append()';
  EXECUTE 'ALTER TABLE public.' || part || ' ENABLE ALWAYS TRIGGER ledger_events_append';
  EXECUTE 'ALTER TABLE public.' || part || ' ENABLE ALWAYS TRIGGER ledger_events_next';
  EXECUTE 'ALTER TABLE public.' || part || ' ENABLE ALWAYS TRIGGER ledger_events_known';
  EXECUTE 'ALTER TABLE public.' || part || ' ENABLE ALWAYS TRIGGER ledger_events_words';
  EXECUTE 'ALTER TABLE public.' || part || ' ENABLE ALWAYS TRIGGER ledger_events_no_delete';
  EXECUTE 'ALTER TABLE public.' || part || ' ENABLE ALWAYS TRIGGER ledger_events_no_update';
  PERFORM set_config('tenure.migration', coalesce(doing, ''), true);
END
$rule$""",
    "REVOKE ALL ON FUNCTION ledger_add_partition(bigint) FROM PUBLIC",
)
"""
Makes the partition that a position belongs to, with its key and its triggers, if it lacks.

It is made by itself and then attached, which locks the log against other changes of its schema
alone: who reads and who appends goes on. `PARTITION OF` would wait for every reader.
"""


def _enters(ahead: int) -> str:
    """Return the condition that the head moves into another partition, seen so far ahead."""
    return (
        f"(OLD.position + {ahead}) / {PARTITION_EVENTS}"
        f" <> (NEW.position + {ahead}) / {PARTITION_EVENTS}"
    )


HEAD_PARTITIONS: Final = rule(
    "ledger_head_partitions",
    "ledger_head",
    'UPDATE OF "position"',
    f"""
  FOR number IN
    OLD.position / {PARTITION_EVENTS} .. (NEW.position + {AHEAD_EVENTS}) / {PARTITION_EVENTS}
  LOOP
    IF to_regclass('public.ledger_events_' || number) IS NULL THEN
      PERFORM ledger_add_partition(number * {PARTITION_EVENTS});
    END IF;
  END LOOP;""",
    when="AFTER",
    definer=True,
    only_if=f"{_enters(AHEAD_EVENTS)} OR {_enters(0)}",
)
"""
A partition is made when a tenth of the one before it is left, and, should it be gone by then, when
the head moves into it, before its events come.
"""

NO_TRUNCATE: Final = refuse_truncate("ledger_events", "events")

ROOM: Final = tuple(
    f"ALTER TABLE {table} SET (fillfactor = {percent})"
    for table, percent in (("ledger_head", 15), ("ledger_streams", 15), ("ledger_devices", 40))
)
"""Rows that every append writes anew: with room beside them no index has to be told."""

RULES: Final = (
    *ROOM,
    *EVENTS_NO_UPDATE,
    *EVENTS_NO_DELETE,
    *EVENTS_NEXT,
    *EVENTS_KNOWN,
    *EVENTS_WORDS,
    *EVENTS_APPEND,
    *NO_TRUNCATE,
    *STREAMS_INSERT,
    *STREAMS_UPDATE,
    *HEAD_FORWARD,
    *HEAD_ONE,
    *REFUSALS_INSERT,
    *ADD_PARTITION,
    *HEAD_PARTITIONS,
)
"""These rules in the order in which they are made."""
