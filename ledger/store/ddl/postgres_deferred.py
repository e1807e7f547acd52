"""
Rules on Postgres that wait for the end of a transaction: the head stops where the events stop.

The head moves before its events come, so that nobody can tell earlier. SQLite has no such rule:
there the end of a transaction asks nobody, and `verify` names what was left behind.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.postgres_texts import BODY, event_is, fail, function

_NAME: Final = "ledger_head_settled"
_NO_EVENT: Final = fail(
    "'tenure ledger: the head is where the events end: position ' || NEW.position"
    " || ' is not the last event'",
    "the head is where the events end",
)
_NO_EPOCH: Final = fail(
    "'tenure ledger: an epoch begins with its event: no event starts epoch ' || NEW.epoch",
    "an epoch begins with its event",
)
# One row by its key, and no query for what did not move. Of several moves in one transaction each
# leaves an event behind; none is beyond the last one, for the rules of the log refuse events in
# front of the head.
_SETTLED: Final = f"""
  IF NEW.position <> OLD.position THEN
    PERFORM FROM ledger_events
    WHERE position = NEW.position AND chain_hash = NEW.chain_hash AND at_us = NEW.at_us;
    IF NOT FOUND THEN
      {_NO_EVENT}
    END IF;
  END IF;
  IF NEW.epoch <> OLD.epoch THEN
    PERFORM FROM ledger_events AS e {BODY}
    WHERE e.position = NEW.position + 1 AND {event_is("epoch.started")} AND e.epoch = NEW.epoch
      AND (j.b->'epoch', j.b->'holder', j.b->'origin')
        = (to_jsonb(NEW.epoch), to_jsonb(NEW.holder), to_jsonb(NEW.origin));
    IF NOT FOUND THEN
      {_NO_EPOCH}
    END IF;
  END IF;
  RETURN NULL;"""

HEAD_SETTLED: Final = (
    function(_NAME, _SETTLED),
    f"REVOKE ALL ON FUNCTION {_NAME}() FROM PUBLIC",
    (
        f'CREATE CONSTRAINT TRIGGER {_NAME} AFTER UPDATE OF "position", epoch ON ledger_head'
        f" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {_NAME}()"
    ),
    f"ALTER TABLE ledger_head ENABLE ALWAYS TRIGGER {_NAME}",
)
"""A head that moved stands on an event of its values, an epoch that moved has its own event."""
