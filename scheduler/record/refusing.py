"""When a refusal is news: who waits for other reasons than before, and how often that was said."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

REFUSALS_PER_POD_MAX: Final = 16
"""Changes of the reasons that are recorded for one Pod (design section 8, bounded)."""


@dataclass(slots=True)
class Told:
    """
    How often a Pod's refusal was recorded, and the reasons of the last; None = any is news.

    Attributes:
        waiting: namespace and name, where the ledger's last word is that the Pod waits.
    """

    number: int = 0
    reasons: AbstractSet[str] | None = None
    waiting: tuple[str, str] | None = None


@dataclass(slots=True)
class ToldRefusals:
    """
    What is recorded of every Pod that waits.

    Rule: design section 8, "Refusals are recorded when the set of reasons changes, bounded".
    """

    pods: dict[str, Told] = field(default_factory=dict)

    def is_news(self, pod_uid: str, reasons: AbstractSet[str]) -> bool:
        """Tell whether these reasons are to be recorded for a Pod."""
        told = self.pods.get(pod_uid, Told())
        return told.number < REFUSALS_PER_POD_MAX and told.reasons != reasons

    def next_number(self, pod_uid: str, reasons: AbstractSet[str]) -> int:
        """Take note of a refusal that is recorded, and return its number for the Pod, from 1."""
        told = self.pods.setdefault(pod_uid, Told())
        told.number += 1
        told.reasons = reasons
        return told.number

    def ask_anew(self, pod_uid: str) -> None:
        """Let any reasons be news for a Pod: it is another one now, or has had a place."""
        told = self.pods.get(pod_uid)
        if told is not None:
            told.reasons = None
