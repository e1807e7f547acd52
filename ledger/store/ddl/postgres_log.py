"""
Rules on Postgres for the log itself, as `ledger.store.ddl.log` has them on SQLite.

A stream is counted BEFORE its event is there, so that one INSERT of many rows finds every stream
where the row before it left it. The table of events is made of partitions by position.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.postgres_texts import (
    BODY,
    SEARCH_PATH,
    equal,
    event_is,
    fail,
    refuse,
    refuse_truncate,
    rule,
)

PARTITION_EVENTS: Final = 10_000_000
"""How many positions one partition of the events holds."""

_APPEND_ONLY: Final = "events are append-only"
_NEXT: Final = "(SELECT coalesce(max(position), 0) + 1 FROM ledger_events)"

EVENTS_NO_UPDATE: Final = refuse(
    "ledger_events_no_update",
    "ledger_events",
    "UPDATE",
    f"'tenure ledger: {_APPEND_ONLY}: position ' || OLD.position || ' cannot be changed'",
    _APPEND_ONLY,
)
EVENTS_NO_DELETE: Final = refuse(
    "ledger_events_no_delete",
    "ledger_events",
    "DELETE",
    f"'tenure ledger: {_APPEND_ONLY}: position ' || OLD.position || ' cannot be deleted'",
    _APPEND_ONLY,
)
_NOT_NEXT: Final = fail(
    f"'tenure ledger: {_APPEND_ONLY}: the next position is ' || next || ', not ' || NEW.position",
    _APPEND_ONLY,
)
_BEYOND_HEAD: Final = fail(
    "'tenure ledger: position ' || NEW.position || ' is beyond the head: only the writer"
    " of the current epoch appends'",
    "only the writer of the current epoch appends",
)
_OTHER_VERSION: Final = fail(
    "'tenure ledger: stream ' || NEW.stream || ' is not at version ' || (NEW.stream_version - 1)",
    "stream moved on",
)
_REPEATED: Final = fail(
    "'tenure ledger: already recorded: ' || NEW.idempotency_key", "already recorded"
)
EVENTS_APPEND: Final = rule(
    "ledger_events_append",
    "ledger_events",
    "INSERT",
    f"""
  next := {_NEXT};
  IF NEW.position <> next THEN
    {_NOT_NEXT}
  ELSIF NEW.position > (SELECT position FROM ledger_head) THEN
    {_BEYOND_HEAD}
  ELSIF NEW.stream_version <> coalesce(
    (SELECT version FROM ledger_streams WHERE stream = NEW.stream), 0
  ) + 1 THEN
    {_OTHER_VERSION}
  ELSIF EXISTS (SELECT 1 FROM ledger_events WHERE idempotency_key = NEW.idempotency_key) THEN
    {_REPEATED}
  END IF;""",
    variables="next bigint;",
)
EVENTS_COUNT: Final = rule(
    "ledger_events_count",
    "ledger_events",
    "INSERT",
    """
  IF NEW.stream_version = 1 THEN
    INSERT INTO ledger_streams (stream, version) VALUES (NEW.stream, 1);
  ELSE
    UPDATE ledger_streams SET version = NEW.stream_version WHERE stream = NEW.stream;
  END IF;""",
    definer=True,
)

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
    f"""
  IF NEW.version <> OLD.version + 1 OR NEW.stream <> OLD.stream THEN
    {_STREAM}
  END IF;""",
)

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
HEAD_FORWARD: Final = rule(
    "ledger_head_forward",
    "ledger_head",
    "UPDATE",
    f"""
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
  END IF;""",
)
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
  EXECUTE 'CREATE TABLE public.' || part || ' PARTITION OF public.ledger_events FOR VALUES FROM ('
    || from_position || ') TO (' || (from_position + size) || ')';
  EXECUTE 'CREATE UNIQUE INDEX uq_' || part || '_idempotency_key ON public.' || part
    || ' (idempotency_key)';
  EXECUTE 'CREATE TRIGGER ledger_events_no_truncate BEFORE TRUNCATE ON public.' || part
    || ' FOR EACH STATEMENT EXECUTE FUNCTION public.ledger_events_no_truncate()';
  EXECUTE 'ALTER TABLE public.' || part || ' ENABLE ALWAYS TRIGGER ledger_events_no_truncate';
  EXECUTE 'ALTER TABLE public.' || part || ' ENABLE ALWAYS TRIGGER ledger_events_append';
  EXECUTE 'ALTER TABLE public.' || part || ' ENABLE ALWAYS TRIGGER ledger_events_count';
  EXECUTE 'ALTER TABLE public.' || part || ' ENABLE ALWAYS TRIGGER ledger_events_no_delete';
  EXECUTE 'ALTER TABLE public.' || part || ' ENABLE ALWAYS TRIGGER ledger_events_no_update';
  PERFORM set_config('tenure.migration', coalesce(doing, ''), true);
END
$rule$""",
    "REVOKE ALL ON FUNCTION ledger_add_partition(bigint) FROM PUBLIC",
)
"""Makes the partition that a position belongs to, with its key and its triggers, if it lacks."""

HEAD_PARTITIONS: Final = rule(
    "ledger_head_partitions",
    "ledger_head",
    'UPDATE OF "position"',
    f"""
  FOR number IN OLD.position / {PARTITION_EVENTS} .. NEW.position / {PARTITION_EVENTS} LOOP
    IF to_regclass('public.ledger_events_' || number) IS NULL THEN
      PERFORM ledger_add_partition(number * {PARTITION_EVENTS});
    END IF;
  END LOOP;""",
    when="AFTER",
    definer=True,
)
"""The head moves before its events come: their partition is there in time."""

NO_TRUNCATE: Final = refuse_truncate("ledger_events", "events")

V1: Final = (
    *EVENTS_NO_UPDATE,
    *EVENTS_NO_DELETE,
    *EVENTS_APPEND,
    *EVENTS_COUNT,
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
