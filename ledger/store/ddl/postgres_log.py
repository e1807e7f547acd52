"""
What Postgres does for the log beside the rules of the table: rows are looked at together.

The rows of an INSERT are checked once they are there, all of a statement together, and streams are
counted then. Events lie in partitions by position; an INSERT into a partition meets the same rules.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.postgres_text import HINT, NOT_NEW, SEARCH_PATH, Tuned, fail, fires, follows
from ledger.store.ddl.rules import log

PARTITION_EVENTS: Final = 10_000_000
"""How many positions one partition of the events holds."""
AHEAD_EVENTS: Final = PARTITION_EVENTS // 10
"""How many positions before its first one a partition is made."""

# Says in our words what the primary key would say in its own.
_EVENTS_NEXT: Final = fires(
    "ledger_events_next",
    "ledger_events",
    "INSERT",
    f"""
  SELECT coalesce(max(position), 0) + 1 INTO next FROM ledger_events;
  IF NEW.position < next THEN
    {fail(log.not_next("next", "NEW.position"))}
  END IF;""",
    variables="next bigint;",
    only_if=NOT_NEW,
)
_BEYOND_HEAD: Final = fail(log.beyond_head("greatest(first, head + 1)"))
_OTHER_VERSION: Final = fail(log.other_version("wrong"))


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
    return follows(
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
        {fail(log.not_next("next", "place"))}
      END IF;
      next := next + 1;
    END LOOP;
  END IF;
  IF last > head THEN
    {_BEYOND_HEAD}
  END IF;
  IF repeated IS NOT NULL THEN
    {fail(log.recorded("repeated"))}
  END IF;{_COUNT}""",
        variables="first bigint; last bigint; rows bigint; next bigint; place bigint; head bigint;"
        " repeated text; left_over bigint; begun bigint; moved bigint; wrong record;",
        definer=True,
    )


_EVENTS_APPEND: Final = _append("ledger_events", "ledger_archived")
"""
What is appended is next, inside of the head and new, and counts in its stream.

Streams are counted one statement per event of the same stream; a rest has a wrong version.
"""
CHANNEL: Final = "tenure_ledger"
"""Where the readers of the feed are told that the head moved; the payload is the position."""

# An expression that calls the function takes less time than a query that does.
HEAD_FORWARD: Final = Tuned(
    variables="hint text;",
    last=f"""  IF NEW.position > OLD.position THEN
    hint := set_config('{HINT}', (OLD.position + 1)::text, true);
  END IF;
  IF pg_notify('{CHANNEL}', NEW.position::text) IS NULL THEN
    hint := '';
  END IF;""",
)
"""Once the head may move, its move is told, whoever appends."""

_ADD_PARTITION: Final = (
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
Makes the partition of a position, with its key and its triggers, if it lacks.

It is made alone and then attached, which locks out only other changes of the log's schema.
`PARTITION OF` would wait for every reader.
"""


def _enters(ahead: int) -> str:
    """Return the condition that the head moves into another partition, seen so far ahead."""
    return (
        f"(OLD.position + {ahead}) / {PARTITION_EVENTS}"
        f" <> (NEW.position + {ahead}) / {PARTITION_EVENTS}"
    )


_HEAD_PARTITIONS: Final = fires(
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
"""Makes a partition when a tenth of the one before is left, or at the latest as the head enters."""

_ROOM: Final = tuple(
    f"ALTER TABLE {table} SET (fillfactor = {percent})"
    for table, percent in (("ledger_head", 15), ("ledger_streams", 15), ("ledger_devices", 40))
)
"""Rows that every append writes anew: with room beside them no index has to be told."""

RULES: Final = (*_ROOM, *_EVENTS_NEXT, *_EVENTS_APPEND, *_ADD_PARTITION, *_HEAD_PARTITIONS)
"""These rules in the order in which they are made."""
