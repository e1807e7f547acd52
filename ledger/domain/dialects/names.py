"""
The dialects that there are, by name, and the words of those that are not our own.

Koordinator's names and those of whole cards are in `ledger.domain.resources`: every answer is
written in them, whatever dialect a Pod spoke.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from ledger.domain.dialects.gpushare.words import WORDS as GPUSHARE_WORDS
from ledger.domain.dialects.hami.words import WORDS as HAMI_WORDS
from ledger.domain.dialects.mgpu.words import WORDS as MGPU_WORDS
from ledger.domain.dialects.words import DialectWords


class Dialect(StrEnum):
    """The ways a Pod asks for GPUs. A Pod that mixes two of them is refused."""

    NVIDIA = "nvidia"
    """Whole cards of a vendor's device plugin; `amd.com/gpu` and `dcu.com/gpu` count alike."""
    KOORDINATOR = "koordinator"
    MGPU = "mgpu"
    GPUSHARE = "gpushare"
    HAMI = "hami"


OUR_DIALECT: Final = Dialect.KOORDINATOR
"""What answers are written in, and what is meant where nobody names a dialect."""

FOREIGN_WORDS: Final[tuple[DialectWords, ...]] = (MGPU_WORDS, GPUSHARE_WORDS, HAMI_WORDS)
"""In the order in which a running Pod's annotations are asked (cli.md, Running Pods)."""

REFUSED_RESOURCES: Final[Mapping[str, str]] = {
    "nvidia.com/priority": "HAMi's order of the Pods on one card",
}
"""
Resources of dialects that are not read -> what they would mean. They stand beside names of ours,
which without them would mean something else: so they are refused.
"""
