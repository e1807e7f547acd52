"""What whoever serves a resource tells kubelet, whichever resource it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledger.domain.errors import TenureError

MESSAGE_MAX: Final = 4 * 2**20
"""Kubelet takes no longer message, such as the list of all ids."""


class NotYetError(TenureError):
    """What is needed is not known yet; kubelet's record or the ledger's may still come. Retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """
    The answer to one container.

    Attributes:
        answer: the fields of a ContainerAllocateResponse.
        told: what is logged of it.
    """

    answer: Mapping[str, Any]
    told: Mapping[str, object]
