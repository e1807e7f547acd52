"""What the webhook configuration of the gate is called, and the drivers that it may list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ledger.domain.errors import InputError

WEBHOOK: Final = "claims.dra.tenure.sh"
OPEN: Final = "the gate is open: whoever reaches its port may ask it, and have cards reserved"
DRIVERS_MAX: Final = 32
_NAME_MAX: Final = 63
"""The API server's own bound on the name of a driver."""


def listed(drivers: Iterable[str]) -> list[str]:
    """
    Return the drivers whose devices are guarded, each once and in order.

    Raises:
        InputError: a driver's name is none, or there is none.
    """
    names = sorted(set(drivers))
    if not names or len(names) > DRIVERS_MAX:
        raise InputError(f"expected 1 to {DRIVERS_MAX} drivers", field="drivers")
    for name in names:
        plain = name.replace("-", "").replace(".", "")
        if not (plain.isascii() and plain.isalnum() and name == name.lower()) or (
            len(name) > _NAME_MAX
        ):
            raise InputError(f"not the name of a driver: value={name!r}", field="drivers")
    return names
