"""A machine as a file describes it: for tests, and for nodes whose devices nobody else tells of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from agent.discover.machine import Discovery, checked
from agent.documents import yaml_document
from ledger.domain.errors import InputError
from ledger.domain.log.codec import decode_value

BYTES_MAX: Final = 4 << 20
"""A machine is described in thousands of bytes; whatever is larger is another file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProbe:
    """Reads the file anew at every look, so that a test changes the machine by writing it."""

    path: Path

    def look(self) -> Discovery:
        """
        Return the machine of the file.

        Raises:
            InputError: it can't be read, or says something else than a machine; with its place.
        """
        return read_machine(self.path)


def read_machine(path: Path) -> Discovery:
    """
    Read a machine from YAML or JSON: the fields of `Discovery`; what is left out is at its default.

    Raises:
        InputError: an unknown field, another type, a number that no machine has, two devices with
            one id; with file and field.
    """
    try:
        value = read_document(path)
        found: Discovery = checked(decode_value(Discovery, {} if value is None else value, ""))
    except InputError as error:
        raise error.at(str(path)) from error
    return found


def read_document(path: Path) -> object:
    """
    Return the one document of a small YAML or JSON file.

    Raises:
        InputError: it can't be read, is too large, is no such document, or has a key twice.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(BYTES_MAX + 1)
        if len(raw) > BYTES_MAX:
            raise InputError(f"too large: bytes_max={BYTES_MAX}")
        return yaml_document(raw.decode())
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"not YAML: {' '.join(str(error).split())[:200]}") from error
