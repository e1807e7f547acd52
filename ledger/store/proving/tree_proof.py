"""The tree, its tiles and the checkpoints, computed again from the events and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sqlalchemy import Connection

from ledger.domain.errors import CorruptLedgerError, InputError
from ledger.domain.proofs.merkle import CompactRange
from ledger.signing import Checkpoint, Note, PublicKey
from ledger.store import schema
from ledger.store.failures import DAMAGE, fact_of
from ledger.store.mending.acts import NO_WITHDRAWALS, Withdrawal, Withdrawals, kept_notes, note_hash
from ledger.store.proving.tree import TILE_LEVELS, TileGrower, stored_range
from ledger.store.reading import tables

OWN: Final = "the ledger's own checkpoint"
"""What a finding about a checkpoint that the ledger keeps calls it."""
NOT_WITHDRAWN: Final = "the event withdraws a checkpoint"
"""How the finding about a withdrawal begins that does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoint:
    """
    What someone stored outside of the ledger, with signatures that hold; checkpoints in any order.

    `leaves` are leaf hashes of an export, from position `first` on; they name the first position
    that differs. No event withdraws what one of the `keys` signed.
    """

    checkpoints: Sequence[Checkpoint] = ()
    leaves: Sequence[bytes] = ()
    first: int = 1
    keys: Sequence[PublicKey] = ()


NO_WITNESS: Final = KeptCheckpoint()


class TreeProof:
    """Grows a tree of its own beside the events that `verify` reads, and compares on the way."""

    def __init__(
        self,
        connection: Connection,
        report: tables.Report,
        witness: KeptCheckpoint,
        withdrawals: Withdrawals = NO_WITHDRAWALS,
        stored: Mapping[int, tuple[int, bytes]] = MappingProxyType({}),
    ) -> None:
        self._connection = connection
        self._report = report
        self._witness = witness
        self._edge = TileGrower()
        self._tiles: dict[tuple[int, int], bytes] = {}
        self._stored = self._stored_range()
        self._signed: dict[int, list[tuple[str, Checkpoint]]] = {}
        self._unused = dict(withdrawals)
        self._lacking = dict(stored)  # what events store and no row says so far
        self._withdrawn: dict[int, tuple[Withdrawal, Checkpoint | None]] = {}  # by size
        self._borne_out: set[int] = set()  # of these, whose root is the one over the events
        self._kept = self._kept_checkpoints()
        for name, checkpoint in [
            *(("the checkpoint", each) for each in witness.checkpoints),
            *((OWN, each) for each in self._kept),
        ]:
            self._signed.setdefault(checkpoint.size, []).append((name, checkpoint))
        self._told = {*self._signed, *self._withdrawn}  # sizes of which a root is told
        if self._stored is not None:
            self._told.add(self._stored.size)
        self._agreed = 0  # the largest size at which a signed root was met
        self._differs = False  # once the first position is named, the rest follows from it
        self._compare_at(0)

    def add(self, leaf: bytes) -> None:
        """Add the leaf hash of the next position, computed from the words."""
        edge = self._edge
        for level, number, hashes in edge.append(leaf):
            self._tiles[level, number] = hashlib.sha256(hashes).digest()
        size = edge.tree.size
        leaves = self._witness.leaves
        at = size - self._witness.first
        if leaves and not self._differs and 0 <= at < len(leaves) and leaves[at] != leaf:
            self._differs = True
            self._report(size, "the event is another than the one that was exported")
        if size in self._told:
            self._compare_at(size)

    def extend(self, leaves: Sequence[bytes]) -> None:
        """Add the leaf hashes of the next positions."""
        size = self._edge.tree.size
        if self._witness.leaves or any(size < told <= size + len(leaves) for told in self._told):
            for leaf in leaves:
                self.add(leaf)
            return
        for level, number, hashes in self._edge.extend(leaves):
            self._tiles[level, number] = hashlib.sha256(hashes).digest()

    def root(self) -> bytes:
        """Return the root over what was added so far."""
        return self._edge.tree.root()

    @property
    def withdrawn(self) -> tuple[Withdrawal, ...]:
        """The withdrawals that count, by the size of their checkpoints."""
        return tuple(withdrawal for _, (withdrawal, _) in sorted(self._withdrawn.items()))

    def finish(self, origin: str) -> None:
        """Compare what is left at the last event: sizes never reached, origins, tiles."""
        last = self._edge.tree.size
        self._judge_withdrawals(origin)
        for size, (position, _) in self._lacking.items():
            text = f"ledger_checkpoints lacks the row of this event: key=({size},)"
            self._report(position, text)
        for size, signed in sorted(self._signed.items()):
            for name, checkpoint in signed:
                if size > last:
                    self._report(
                        last + 1,
                        f"the ledger ends at position {last}, before {name}'s {size}:"
                        " its tail was cut off, or it is an older copy",
                    )
                if checkpoint.origin != origin:
                    self._report(
                        None,
                        f"{name} is of another ledger: origin={checkpoint.origin},"
                        f" expected={origin}",
                    )
        exported = self._witness.first + len(self._witness.leaves) - 1
        if self._witness.leaves and exported > last:
            self._report(
                last + 1, f"the ledger ends at position {last}, before the export's {exported}"
            )
        if self._stored is not None and self._stored.size > last:
            self._report(
                last + 1, f"the tree is larger than the log: size={self._stored.size}, last={last}"
            )
        self._compare_tiles()

    def _compare_at(self, size: int) -> None:
        """Compare the root at this size with what was stored and signed for it."""
        tree = self._edge.tree
        if (
            self._stored is not None
            and self._stored.size == size
            and self._stored.to_bytes() != tree.to_bytes()
        ):
            self._report(None, f"the tree is not the one over the events: size={size}")
        if size in self._withdrawn:
            _, withdrawn = self._withdrawn[size]
            if withdrawn is not None and withdrawn.root == tree.root():
                self._borne_out.add(size)
        for name, checkpoint in self._signed.get(size, []):
            if checkpoint.root == tree.root():
                self._agreed = size
            elif not self._differs:
                self._differs = True
                self._report(self._agreed + 1, self._differing(name, size))

    def _judge_withdrawals(self, origin: str) -> None:
        for size in sorted(self._borne_out):
            withdrawal, checkpoint = self._withdrawn[size]
            if checkpoint is not None and checkpoint.origin == origin:
                del self._withdrawn[size]
                self._refuse(withdrawal, "that the events bear out")
        for withdrawal in self._unused.values():
            self._refuse(withdrawal, "that the ledger does not keep")

    def _refuse(self, withdrawal: Withdrawal, fact: str) -> None:
        text = f"{NOT_WITHDRAWN} {fact}: size={withdrawal.event.size}"
        self._report(withdrawal.position, text)

    def _differing(self, name: str, size: int) -> str:
        between = f"{self._agreed + 1} to {size}"
        return (
            f"the events are not those that {name} of size {size} signed:"
            f" the first that differs is one of the positions {between}"
        )

    def _compare_tiles(self) -> None:
        size = self._stored.size if self._stored is not None else 0
        expected = {
            key: digest
            for key, digest in self._tiles.items()
            if (key[1] + 1) << TILE_LEVELS * (key[0] + 1) <= size
        }
        try:
            for level, number, hashes in self._typed_tiles():
                digest = expected.pop((level, number), None)
                if digest != hashlib.sha256(hashes).digest():
                    text = f"a tile is not the one over the events: level={level}, number={number}"
                    self._report(_first_of(level, number), text)
        except tables.UnreadableError as error:
            self._report(None, f"the tiles are unreadable: {error}")
            return
        for level, number in sorted(expected):
            text = f"a tile is missing: level={level}, number={number}"
            self._report(_first_of(level, number), text)

    def _typed_tiles(self) -> Iterable[tuple[int, int, bytes]]:
        for row in tables.rows_of(self._connection, tables.in_key_order(schema.ledger_tiles)):
            if not tables.is_typed(schema.ledger_tiles, row):
                self._report(None, tables.other_types(schema.ledger_tiles, row))
                continue
            yield row[0], row[1], row[2]

    def _stored_range(self) -> CompactRange | None:
        try:
            return stored_range(self._connection)
        except CorruptLedgerError as error:
            self._report(None, str(error).removesuffix(": position=0"))
        except TypeError:
            self._report(None, "the tree has columns of another type")
        except DAMAGE as error:
            self._report(None, f"the tree is unreadable: {fact_of(error)}")
        return None

    def _kept_checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that the ledger keeps; what can't be read is a finding."""
        found: list[Checkpoint] = []
        try:
            for size, raw in kept_notes(self._connection):
                if type(size) is not int or type(raw) is not bytes:
                    self._report(
                        None, tables.other_types(schema.ledger_checkpoints, (size, str(raw)))
                    )
                    continue
                found.extend(self._kept_checkpoint(size, raw))
        except tables.UnreadableError as error:
            self._report(None, f"the checkpoints are unreadable: {error}")
        return found

    def _kept_checkpoint(self, size: int, raw: bytes) -> Iterator[Checkpoint]:
        """
        Yield the checkpoint in one row, if it is to be compared; report what is wrong with the row.

        A withdrawal hides nothing that a trusted key signed, only that it is in the wrong row.
        """
        withdrawal = self._unused.pop((size, note_hash(raw)), None)
        signer, checkpoint, fact = None, None, ""
        position, stored = self._lacking.pop(size, (None, None))
        if stored != raw and (stored is not None or withdrawal is None):
            text = f"{OWN} is of no event: ledger_checkpoints: key=({size},), note"
            self._report(position, text)
        try:
            note = Note.parse(raw.decode())
            checkpoint = Checkpoint.parse(note.text)
            signer = withdrawal and self._signer(withdrawal, note)
            fact = "" if checkpoint.size == size else "of another size"
        except UnicodeDecodeError:
            fact = "unreadable: it is no text"
        except InputError as error:
            fact = f"unreadable: {error}"
        if withdrawal is not None and signer and not fact:
            self._refuse(withdrawal, f"that a trusted key signed, {signer}")
        elif withdrawal is not None:
            self._withdrawn[size] = withdrawal, None if fact else checkpoint
        elif fact:
            self._report(None, f"{OWN} of size {size} is {fact}")
        if checkpoint is not None and (withdrawal is None or signer):
            yield checkpoint

    def _signer(self, withdrawal: Withdrawal, note: Note) -> PublicKey | None:
        for key in (*self._witness.keys, *_keys(withdrawal.event.keys)):
            if note.has_signature_of(key):
                return key
        return None


def _keys(texts: Iterable[str]) -> Iterator[PublicKey]:
    for text in texts:
        with suppress(InputError):  # whoever wrote it tried no key
            yield PublicKey.parse(text)


def _first_of(level: int, number: int) -> int:
    return (number << TILE_LEVELS * (level + 1)) + 1
