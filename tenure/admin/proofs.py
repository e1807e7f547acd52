"""A proof that `tenure ledger prove` printed, checked offline against what was signed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from ledger.domain.errors import InputError
from ledger.domain.log.recorded import Envelope
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.domain.proofs.hashing import Leaf, hash_of
from ledger.domain.proofs.merkle import includes, is_prefix
from tenure.admin.checkpoint import parsed_checkpoint
from tenure.exits import AnswerIsNo, with_next
from tenure.keys import public_key as read_key
from tenure.output import Column, OutputFormat, fitted, one_line, write_answer
from tenure.units import format_time

if TYPE_CHECKING:
    from ledger.signing import Checkpoint, PublicKey

_HASH: Final = r"^[0-9a-f]{64}\Z"
_PATH_MAX: Final = 64
"""No tree of up to `INTEGER_MAX` leaves has as long a path."""
_COLUMNS: Final = (Column(key="finding", title="FINDING"),)
Hash = Annotated[str, Meta(pattern=_HASH)]
Size = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Position = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
Hashes = Annotated[tuple[Hash, ...], Meta(max_length=_PATH_MAX)]


class Inclusion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """That a leaf is in the tree."""

    position: Position
    leaf_index: Size
    leaf_hash: Hash
    proof: Hashes


class Consistency(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """That a smaller tree is the beginning."""

    size: Size
    root: Hash
    proof: Hashes


class Words(Envelope, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The event's envelope, with its body."""

    def leaf_hash(self) -> str:
        """Return the leaf hash that these words give, in hex."""
        named = msgspec.structs.asdict(self)
        body = named.pop("body")
        return hash_of(Leaf(**named, body_sha256=sha256(body.encode()).hexdigest())).hex()


class Proof(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What `tenure ledger prove` prints.

    Rule: docs/proof.md, "Proofs". `event` is missing where its words are in an archive.
    """

    origin: str
    size: Position
    root: Hash
    inclusion: Inclusion
    consistency: Consistency | None = None
    event: Words | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A proof, why it shows nothing (empty: it holds), and the sizes that were signed."""

    proof: Proof
    faults: tuple[str, ...]
    signed: frozenset[int]


def answer_proof(
    path: Path, checkpoints: Sequence[Path], public_key: str, output: OutputFormat
) -> None:
    """
    Say which event a proof shows to be in the ledger that was signed; nothing else is read.

    Raises:
        InputError: no proof, no checkpoint or no key.
        AnswerIsNo: it does not show that.
    """
    key = read_key(public_key)
    proof = read_proof(path)
    found = checked(proof, [(str(each), each.read_text("utf-8")) for each in checkpoints], key)
    if output.is_table:
        sys.stdout.write("".join(map(fitted, _lines(found, key))))
    else:
        rows = [{"finding": each} for each in found.faults]
        write_answer(output, rows, _COLUMNS, document=_document(found))
    if found.faults:
        raise AnswerIsNo


def read_proof(path: Path) -> Proof:
    """Read a proof strictly: no key twice, none unknown. Raises InputError: it is none."""
    from tenure.sources.json_text import NotJsonError, json_documents

    try:
        (document,) = json_documents(path.read_text("utf-8"))
        proof = msgspec.convert(document, Proof, strict=True)
        if proof.event is not None:
            proof.event.leaf_hash()  # half a surrogate pair, or more than an integer holds
    except NotJsonError as error:
        found = InputError(f"not a proof: {error.fact}", place=f"{path}:{error.line}")
    except (
        ValueError,
        RecursionError,
        OverflowError,
    ) as error:  # several values or none, and msgspec's
        found = InputError(f"not a proof: {error}", place=str(path))
    else:
        return proof
    raise with_next(found, "`tenure ledger prove POSITION` prints one") from None


def checked(proof: Proof, notes: Sequence[tuple[str, str]], key: PublicKey) -> Checked:
    """Check a proof against checkpoints, each with its place. Raises InputError: one is none."""
    from ledger.signing import Note

    faults, signed = [], frozenset[int]()
    for place, text in notes:
        checkpoint = parsed_checkpoint(text, place=place)
        if not Note.parse(text).is_signed_by(key):
            faults.append(f"{place}: the checkpoint is not signed by this key: key={key}")
            continue
        fault = _differs(proof, checkpoint)
        if fault:
            faults.append(f"{place}: {fault}")
        else:
            signed |= {checkpoint.size}
    if proof.size not in signed and not faults:
        sizes = f"proof={proof.size}, checkpoint={', '.join(map(str, sorted(signed)))}"
        faults.append(f"no checkpoint is of the tree that is proved: {sizes}")
    faults += _broken(proof)
    return Checked(proof=proof, faults=tuple(faults), signed=signed)


def _differs(proof: Proof, checkpoint: Checkpoint) -> str:
    """Return what a checkpoint says otherwise than the proof, or that it is of neither tree."""
    if checkpoint.origin != proof.origin:
        return (
            f"the proof is of another ledger: proof={proof.origin!r},"
            f" checkpoint={checkpoint.origin!r}"
        )
    roots = {proof.size: proof.root}
    if proof.consistency is not None:
        roots.setdefault(proof.consistency.size, proof.consistency.root)
    if checkpoint.size not in roots:
        trees = " and ".join(str(size) for size in sorted(roots))
        return f"the checkpoint is of another size: checkpoint={checkpoint.size}, proof={trees}"
    if checkpoint.root.hex() != roots[checkpoint.size]:
        return (
            f"the root is another than the one that was signed: size={checkpoint.size},"
            f" proof={roots[checkpoint.size]}, checkpoint={checkpoint.root.hex()}"
        )
    return ""


def _broken(proof: Proof) -> Iterator[str]:
    there, event, older = proof.inclusion, proof.event, proof.consistency
    if there.leaf_index != there.position - 1:
        yield f"not the leaf of this position: position={there.position}, leaf={there.leaf_index}"
    if event is not None and event.position != there.position:
        yield f"the event is of another position: {event.position}, proved={there.position}"
    if event is not None and event.leaf_hash() != there.leaf_hash:
        yield f"the event's words give another leaf hash: {event.leaf_hash()}"
    if not includes(
        leaf=bytes.fromhex(there.leaf_hash),
        index=there.leaf_index,
        size=proof.size,
        root=bytes.fromhex(proof.root),
        proof=[bytes.fromhex(each) for each in there.proof],
    ):
        yield "the path does not lead from the leaf to the root in a tree of this size"
    if older is not None and not is_prefix(
        first=older.size,
        first_root=bytes.fromhex(older.root),
        second=proof.size,
        second_root=bytes.fromhex(proof.root),
        proof=[bytes.fromhex(each) for each in older.proof],
    ):
        yield f"the tree of {older.size} events is not shown to be the beginning of this one"


def _lines(found: Checked, key: PublicKey) -> Iterator[str]:
    proof, position = found.proof, found.proof.inclusion.position
    if found.faults:
        yield f"position {position:,}: NOT PROVED\n"
        yield from (f"{one_line(each)}\n" for each in found.faults)
        return
    tree = f"the first {proof.size:,} events of {one_line(proof.origin)}, signed by {key}"
    event, older = proof.event, proof.consistency
    if event is None:
        leaf = proof.inclusion.leaf_hash
        yield (
            f"position {position:,}: an event with leaf hash {leaf} is among {tree};"
            " its words are not in the proof\n"
        )
    else:
        at, by = format_time(event.at_us, timespec="auto"), one_line(event.actor)
        kind, stream = one_line(event.event_type), one_line(event.stream)
        yield f"position {position:,}: {kind} of {stream}, at {at} by {by}, is among {tree}\n"
    if older is not None:
        what = "signed too" if older.size in found.signed else f"root {older.root}"
        yield f"the first {older.size:,} events, {what}, are their beginning\n"


def _document(found: Checked) -> dict[str, Any]:
    proof = found.proof
    older = None if proof.consistency is None else proof.consistency.size
    return {
        "ok": not found.faults,
        "position": proof.inclusion.position,
        "leaf_hash": proof.inclusion.leaf_hash,
        "event": None if proof.event is None else msgspec.structs.asdict(proof.event),
        "origin": proof.origin,
        "size": proof.size,
        "root": proof.root,
        "begins_with": older,
        "signed": sorted(found.signed),
        "findings": list(found.faults),
    }
