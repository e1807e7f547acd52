"""Why a node can't take an mGPU Pod."""

from __future__ import annotations

from typing import Final

from scheduler.decide.refusal.reasons import Reason

DISABLED: Final = Reason(text="MGPUDisabled", remedy="set mgpu.enabled")
NODE_INVALID: Final = Reason(
    text="MGPUNodeInvalid", remedy="correct the node's mGPU schedule label"
)
POLICY_MISMATCH: Final = Reason(
    text="MGPUPolicyMismatch", remedy="give Pod and node the same mGPU compute policy"
)
SEARCH_CUT: Final = Reason(
    text="MGPUSearchCut",
    remedy="end Pods on the node, or split the Pod: the search for a combination was cut short",
)
