"""
The faults of a machine's cards, kept on its disk: a restart of the agent forgets none.

The file is written beside itself and renamed, so that it is whole or as it was. One that can't be
read is put aside and named: its cards are then as the next look finds them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from agent.discover.faults import Faults
from agent.discover.machine import Fault
from agent.durable import read_regular, write_durably
from ledger.domain.errors import InputError
from ledger.domain.log.codec import encode_value, read_value

FAULTS_FORGOTTEN: Final = "FaultsForgotten"
BYTES_MAX: Final = 4 << 20
"""Whatever is longer breaks off there, and then is none of ours."""
_ASIDE: Final = ".unread"


def read_faults(path: Path) -> tuple[Faults, tuple[Fault, ...]]:
    """
    Return the faults that are kept, none where there is no file, and what is wrong with it.

    A file that can't be read as one of ours is renamed to `<name>.unread`, over an older one.

    Raises:
        OSError: the file is there and can't be opened or put aside.
    """
    try:
        raw = read_regular(path, BYTES_MAX)
    except FileNotFoundError:
        return Faults(), ()
    try:
        faults: Faults = read_value(Faults, raw.decode(), "")
    except (InputError, UnicodeDecodeError) as error:
        aside = path.with_name(path.name + _ASIDE)
        path.replace(aside)
        fact = f"{path}: {error}: put aside as {aside.name}; cards that it closed may be open"
        return Faults(), (Fault(reason=FAULTS_FORGOTTEN, message=fact),)
    return faults, ()


def write_faults(path: Path, faults: Faults) -> None:
    """Write these faults durably. Raises OSError: the file is as it was."""
    write_durably(path, encode_value(faults).encode())
