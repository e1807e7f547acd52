"""
The CPUs of nodes in canonical JSON: machines of one model have the same text, and share its value.

A large cluster's ledger says the same hundred CPUs of every node: read one by one they would take
most of a start, and of what it keeps in memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from ledger.domain.errors import InputError
from ledger.domain.log.codec import Declared, read_value
from ledger.domain.topology import Cpu, cpu_topology_of

_CPUS: Final = '"cpus":['
"""No text has it within: its quotes would be escaped there."""

Cpus = tuple[Cpu, ...]


def read_with_cpus(kind: Declared, text: str, path: str) -> tuple[Any, list[Cpus]] | None:
    """
    Return the `kind` that `text` is the canonical JSON of, read without its CPUs, and these.

    They are in the order of the text. None where it is not of that form, for whatever reason: then
    `read_value` says why.
    """
    try:
        rest, found = _apart(text)
        return read_value(kind, rest, path), [_shared(each) for each in found]
    except InputError:
        return None


def _apart(text: str) -> tuple[str, list[str]]:
    """Return a text with empty lists of CPUs, and the lists that were there; none has another."""
    rest, found, done = [], [], 0
    at = text.find(_CPUS)
    while at >= 0:
        opened = at + len(_CPUS) - 1
        end = text.find("]", opened) + 1
        if end and text.find("[", opened + 1, end) < 0:
            rest += [text[done:opened], "[]"]
            found.append(text[opened:end])
            done = end
        at = text.find(_CPUS, max(done, opened))
    return "".join([*rest, text[done:]]), found


@lru_cache(maxsize=256)
def _shared(text: str) -> Cpus:
    """Return CPUs, the very ones that a topology of the same CPUs has."""
    cpus: Cpus = read_value(Cpus, text, "cpus")
    try:
        known = cpu_topology_of(cpus).cpus
    except InputError:  # what was recorded is read, whatever it says
        return cpus
    return known if known == cpus else cpus
