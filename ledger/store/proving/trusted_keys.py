"""Which keys may have signed what: those that are given, and those that rotations join to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from ledger.domain.errors import InputError
from ledger.domain.log.events import KeyRotated, decode_event
from ledger.signing import PublicKey, is_rotation
from ledger.store import schema
from ledger.store.open import Ledger

_events = schema.ledger_events.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Behind which position of the ledger a key signs, and up to which; None for no end."""

    after: int = 0
    until: int | None = None

    def covers(self, moment: int) -> bool:
        """Tell whether what was signed when the ledger stood there is of this period."""
        return self.after <= moment and (self.until is None or moment < self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKeys:
    """Keys by their id `name+hash`, each with the periods in which it is believed."""

    keys: Mapping[str, PublicKey]
    periods: Mapping[str, Sequence[Period]]

    def check(self, key_id: str, message: bytes, signature: bytes) -> bool:
        """Tell whether a trusted key of that id made the signature, whenever that was."""
        key = self.keys.get(key_id)
        return key is not None and key.accepts(message, signature)

    def doubt(self, key_id: str, moment: int) -> str:
        """Return why a key is not believed at a position of the ledger, empty if it is."""
        if any(period.covers(moment) for period in self.periods.get(key_id, ())):
            return ""
        return f"the key did not sign any more, or not yet: key={key_id}, position={moment}"


def trusted_keys(ledger: Ledger, given: Sequence[PublicKey]) -> TrustedKeys:
    """
    Return the keys that someone believes who was given these, with the ledger's rotations.

    A given key hands its trust on to the one that follows it, and has none from there on. The key
    before a trusted one is believed for the time before, for the later key signed that too; it
    hands nothing on. Rotations that do not check change nothing: whoever can write the ledger can
    record them.
    """
    rotations = _rotations(ledger)
    keys = {key.key_id: key for key in given}
    signing = dict.fromkeys(keys, 0)  # key id -> behind which position
    periods: dict[str, list[Period]] = {}
    for position, old, new in rotations:
        after = signing.pop(old.key_id, None)
        if after is not None:
            periods.setdefault(old.key_id, []).append(Period(after=after, until=position))
            keys[new.key_id] = new
            signing.setdefault(new.key_id, position)
    for key_id, after in signing.items():
        periods.setdefault(key_id, []).append(Period(after=after))
    for position, old, new in reversed(rotations):
        if new.key_id in keys and old.key_id not in keys:
            keys[old.key_id] = old
            periods[old.key_id] = [Period(until=position)]
    return TrustedKeys(keys=keys, periods=periods)


def _rotations(ledger: Ledger) -> list[tuple[int, PublicKey, PublicKey]]:
    """Return position, old key and new key of every rotation that both keys signed."""
    query = (
        select(_events.position, _events.event_type, _events.body)
        .where(_events.event_type == KeyRotated.event_type)
        .order_by(_events.position)
    )
    origin = ledger.head().origin
    with ledger.connection.begin():
        rows = ledger.connection.execute(query).all()
    found: list[tuple[int, PublicKey, PublicKey]] = []
    for position, event_type, body in rows:
        try:
            event = decode_event(event_type, body)
        except InputError:
            continue  # `verify` names it; it hands no trust on
        if isinstance(event, KeyRotated) and is_rotation(
            event.note, origin=origin, old_key=event.old_key, new_key=event.new_key
        ):
            found.append((position, PublicKey.parse(event.old_key), PublicKey.parse(event.new_key)))
    return found
