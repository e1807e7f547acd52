"""Whose devices are cards: told by the driver's name, or listed."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Final

_CARD: Final = re.compile(r"accel|dcu|gaudi|gcu|gpu|mig|mlu|neuron|npu|tpu|xpu")


def names_a_card(word: str) -> bool:
    """Tell whether a device's type, or the first label of a driver's name, names an accelerator."""
    return bool(_CARD.search(word))


@dataclass(frozen=True, slots=True)
class CardDrivers(Container[str]):
    """
    Drivers of cards: those that are listed, and those whose first label names an accelerator.

    Rule: docs/contracts/dra.md, 1.
    """

    listed: frozenset[str] = frozenset()

    def __contains__(self, driver: object) -> bool:
        """Tell whether a driver's devices are cards."""
        return isinstance(driver, str) and (
            driver in self.listed or names_a_card(driver.partition(".")[0])
        )
