from __future__ import annotations

import pytest

from ledger.domain.annotations.guarded import (
    ADMISSION_ANNOTATIONS,
    ALLOCATION_ANNOTATIONS,
    is_allocation,
    is_checkpoint,
)


@pytest.mark.parametrize(
    "key",
    [
        *sorted(ALLOCATION_ANNOTATIONS),
        *sorted(ADMISSION_ANNOTATIONS),
        "vke.volcengine.com/gpu-index-container-0",
        "tenure.sh/visible.12",
        "tenure.sh/allocated.init-3",
        "tenure.sh/allocation",
    ],
)
def test_what_says_who_holds_what_is_guarded(key: str) -> None:
    """Koordinator contract 5.4, GPU-sharing contract A.1 and B.1, design section 3."""
    assert is_allocation(key)


@pytest.mark.parametrize(
    "key",
    [
        "vke.volcengine.com/container-multiple-gpu",
        "vke.volcengine.com/mgpu-compute-policy",
        "scheduling.koordinator.sh/device-allocate-hint",
        "scheduling.koordinator.sh/resource-spec",
        "gang.scheduling.koordinator.sh/name",
        "Tenure.sh/visible.0",
        "x-tenure.sh/visible.0",
        "",
    ],
)
def test_what_users_ask_for_is_theirs(key: str) -> None:
    """A wish is no allocation, and another domain is another domain."""
    assert not is_allocation(key)


def test_both_spellings_of_checkpoints_are_guarded() -> None:
    """Koordinator contract 2.7."""
    assert is_checkpoint("node.koordinator.sh/devices-checkpoints")
    assert is_checkpoint("node.koordinator.sh/gpu-checkpoints")
    assert not is_checkpoint("scheduling.koordinator.sh/gpu-partitions")
