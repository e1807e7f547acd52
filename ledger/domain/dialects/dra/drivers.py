"""Whose devices are looked at: those of drivers of cards by their name, and of listed ones."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from ledger.domain.dialects.dra.cpus import CPU_DRIVER

_CARD: Final = re.compile(r"accel|dcu|gaudi|gcu|gpu|mig|mlu|neuron|npu|tpu|xpu")


def names_a_card(word: str) -> bool:
    """Tell whether a device's type, or the first label of a driver's name, names an accelerator."""
    return bool(_CARD.search(word))


@dataclass(frozen=True, slots=True)
class LookedAt(Container[str]):
    """
    Drivers that are listed, and those whose first label names an accelerator.

    Rule: docs/contracts/dra.md, 1 and 8. All but that of CPUs are drivers of cards.
    """

    listed: frozenset[str] = frozenset()

    @property
    def of_cards(self) -> frozenset[str]:
        """Return those that are listed and give cards."""
        return self.listed - {CPU_DRIVER}

    def __contains__(self, driver: object) -> bool:
        """Tell whether a driver's devices are looked at."""
        return isinstance(driver, str) and (
            driver in self.listed or names_a_card(driver.partition(".")[0])
        )
