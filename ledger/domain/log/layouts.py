"""
What nodes have alike in canonical JSON, such as CPUs: the same text, which shares its value.

A large cluster's ledger says the same hundred CPUs of every node: read one by one they would take
most of a start, and of what it keeps in memory.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Final

from msgspec import defstruct, structs

from ledger.domain.errors import InputError, UnknownEventError
from ledger.domain.log.codec import Declared, read_value
from ledger.domain.log.recorded_node import RecordedNode
from ledger.domain.topology import Cpu, cpu_topology_of

_CPUS: Final = b'"cpus":['
"""No text has it within: its quotes would be escaped there."""

_FACTS: Final = '{"facts":'
_NEXT: Final = ',"node_name":"'
_CREATED: Final = re.compile(r'"created":"([0-9A-Za-z:.+-]+)"')
_ANY_TIME: Final = "at-any-time"

Cpus = tuple[Cpu, ...]


def read_with_cpus(kind: Declared, text: str | bytes, path: str) -> tuple[Any, list[Cpus]] | None:
    """
    Return the `kind` that `text` is the canonical JSON of, read without its CPUs, and these.

    They are in the order of the text. None where it is not of that form, for whatever reason: then
    `read_value` says why.
    """
    try:
        rest, found = _apart(text.encode() if isinstance(text, str) else text)
        return read_value(kind, rest, path), [_shared(each) for each in found]
    except (InputError, UnicodeEncodeError):
        return None


def read_with_facts(kind: Declared, text: str, path: str) -> Any | None:  # noqa: ANN401 - a `kind`
    """Return the `kind` that `text` records, its facts read apart; None as of `read_with_cpus`."""
    end = text.rfind(_NEXT)  # it is in no text, and behind any field of the facts
    if end < 0 or not text.startswith(_FACTS):
        return None
    try:
        rest = read_value(_without_facts(kind), "{" + text[end + 1 :], path)
        return kind(facts=_facts(text[len(_FACTS) : end]), **structs.asdict(rest))
    except (InputError, UnknownEventError):
        return None


@cache
def _without_facts(kind: Declared) -> Declared:
    rest = [
        (each.name, each.type) if each.required else (each.name, each.type, each.default)
        for each in structs.fields(kind)
        if each.name != "facts"
    ]
    return defstruct(kind.__name__, rest, frozen=True, kw_only=True)


def _facts(text: str) -> RecordedNode:
    """Return the facts of a node: those of others of its kind, but for when it was made."""
    said = _CREATED.search(text)
    if said is None:
        return _facts_alike(text)
    alike = _facts_alike(text[: said.start(1)] + _ANY_TIME + text[said.end(1) :])
    if alike.created != _ANY_TIME:
        raise InputError("not the field that was looked for", field="facts")
    return replace(alike, created=said[1])


@lru_cache(maxsize=256)
def _facts_alike(text: str) -> RecordedNode:
    if text.count(_ANY_TIME) > 1:
        raise InputError("nobody can tell which is the field", field="facts")
    facts: RecordedNode = read_value(RecordedNode, text, "facts")
    return facts


def _apart(text: bytes) -> tuple[bytes, list[bytes]]:
    """Return a text with empty lists of CPUs, and the lists that were there; none has another."""
    rest, found, done = [], [], 0
    at = text.find(_CPUS)
    while at >= 0:
        opened = at + len(_CPUS) - 1
        end = text.find(b"]", opened) + 1
        if end and text.find(b"[", opened + 1, end) < 0:
            rest += [text[done:opened], b"[]"]
            found.append(text[opened:end])
            done = end
        at = text.find(_CPUS, max(done, opened))
    return b"".join([*rest, text[done:]]), found


@lru_cache(maxsize=256)
def _shared(text: bytes) -> Cpus:
    """Return CPUs, the very ones that a topology of the same CPUs has."""
    cpus: Cpus = read_value(Cpus, text, "cpus")
    try:
        known = cpu_topology_of(cpus).cpus
    except InputError:  # what was recorded is read, whatever it says
        return cpus
    return known if known == cpus else cpus
