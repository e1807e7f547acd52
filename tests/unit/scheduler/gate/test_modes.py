"""A node has one mode: ours by its taint, or a driver's by its pool."""

from __future__ import annotations

import pytest

from ledger.domain.nodes import Taint
from scheduler.gate.modes import Mode, closed_to_pods, mode_of

OWNED = (Taint(key="tenure.sh/owned", value="", effect="NoSchedule"),)
OTHER = (Taint(key="nvidia.com/gpu", value="", effect="NoSchedule"),)


@pytest.mark.parametrize(
    ("taints", "has_pool", "mode", "closed"),
    [
        ((), False, Mode.EXTENDER, ""),
        (OWNED, False, Mode.EXTENDER, ""),
        ((), True, Mode.CLAIMS, "NodeGivesByClaims"),
        (OTHER, True, Mode.CLAIMS, "NodeGivesByClaims"),
        ((*OTHER, *OWNED), True, Mode.BOTH, "TwoModes"),
    ],
)
def test_the_taint_and_the_pool_say_which(
    taints: tuple[Taint, ...], *, has_pool: bool, mode: Mode, closed: str
) -> None:
    """Only a node without a listed driver's pool is the extender's."""
    assert mode_of(taints, has_pool=has_pool) is mode
    assert closed_to_pods(mode) == closed
