"""
What a Koordinator or NVIDIA Pod asks for, said again: keys, units, counts, hints.

Rule: Koordinator contract 4.1 to 4.4, 5.1 step 4, 8.3; DIVERGENCES ("uneven shared split",
"different shares in one Pod", "features of later releases", `exclusivePolicy: DeviceLevel`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.oracles.machine import Ask, Device

HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION = "scheduling.koordinator.sh/gpu-partition-spec"
NVIDIA = "nvidia.com/gpu"
GPU = "koordinator.sh/gpu"
SHARED = "koordinator.sh/gpu.shared"
CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
UNITS = {"rdma": "koordinator.sh/rdma", "fpga": "koordinator.sh/fpga"}
GPU_KEYS = {NVIDIA, GPU, SHARED, CORE, MEMORY, RATIO}
OTHER_KEYS = {"vke.volcengine.com/mgpu-core", "aliyun.com/gpu-mem"}
COMBINATIONS = (
    {NVIDIA}, {GPU}, {MEMORY}, {RATIO}, {CORE, MEMORY}, {CORE, RATIO},
    {SHARED, MEMORY}, {SHARED, RATIO}, {SHARED, CORE, MEMORY}, {SHARED, CORE, RATIO},
)  # fmt: skip
"""Contract 4.2, without the vendors' that nobody here asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """
    So many devices of one type, each giving the same.

    Attributes:
        whole: exclusive by the memory ratio of 100 %: what partitions and links are for.
        alone: no other tenant before or after, by `whole` or by `DeviceLevel`.
        everywhere: every device that the selector keeps, instead of `count`.
        roots: the PCIe roots that the devices have to be under; None = any.
    """

    kind: str
    count: int
    core: int = 0
    ratio: int = 0
    memory: int = 0
    whole: bool = False
    alone: bool = False
    everywhere: bool = False
    hint: Mapping[str, Any] = field(default_factory=dict)
    roots: frozenset[str] | None = None

    def bytes_of(self, total: int) -> int:
        """Return the bytes taken of a card: floor(ratio x total / 100) if by ratio (4.5)."""
        return self.ratio * total // 100 if self.ratio else self.memory


def is_selected(ask: Ask, device: Device) -> bool:
    """Tell whether the selector for the device's type keeps it (2.1), in every dialect."""
    hints: Mapping[str, Any] = ask.annotations.get(HINT) or {}  # type: ignore[assignment]
    return kept(hints.get(device.kind, {}), device)


def kept(hint: Mapping[str, Any], device: Device) -> bool:
    """Tell whether the hint's selector keeps the device; absent and empty keep all."""
    labels = (hint.get("selector") or {}).get("matchLabels", {})
    return all({"tier": device.tier}.get(key) == value for key, value in labels.items())


def wants_of(ask: Ask) -> dict[str, Want] | None:
    """Return what is wanted of each type, None when a rule refuses the Pod."""
    hints: Mapping[str, Any] = ask.annotations.get(HINT) or {}  # type: ignore[assignment]
    wants: dict[str, Want] = {}
    gpu = _gpu(ask, hints.get("gpu", {}))
    if gpu is None:
        return None
    if gpu.count:
        wants["gpu"] = gpu
    for kind, key in UNITS.items():
        units = _pod_sum(ask, key)
        if units > 100 and units % 100:
            return None  # the percent rule
        if units:
            wants[kind] = _secondary(kind, units, hints.get(kind, {}))
    return wants


def _pod_sum(ask: Ask, key: str) -> int:
    """Return max(sum of containers, each init container): the standard Pod request (4.1)."""
    apps = sum(limits.get(key, 0) for limits in ask.containers)
    return max(apps, max((limits.get(key, 0) for limits in ask.inits), default=0))


def _gpu(ask: Ask, hint: Mapping[str, Any]) -> Want | None:
    """Return the GPUs wanted, count 0 for none; None when a rule refuses the Pod."""
    apps = [limits for limits in ask.containers if GPU_KEYS & limits.keys()]
    inits = [limits for limits in ask.inits if GPU_KEYS & limits.keys()]
    if not apps and not inits:
        return Want(kind="gpu", count=0)
    dialects = {NVIDIA in limits for limits in (*apps, *inits)}
    if len(dialects) > 1 or any(OTHER_KEYS & limits.keys() for limits in ask.containers):
        return None  # two dialects in one Pod
    counts = []
    shares = set()
    for limits in (*apps, *inits):
        if (counted := _counted(limits)) is None:
            return None
        counts.append(counted[0])
        shares.add(counted[1:])
    if len(shares) > 1:
        return None  # different shares in one Pod
    if hint.get("vfSelector") is not None or hint.get("allocateStrategy"):
        return None  # VFs and strategies of GPUs are not supported
    count = max(sum(counts[: len(apps)]), max(counts[len(apps) :], default=0))
    if hint.get("requiredTopologyScope") == "Device" and count > 1:
        return None  # Q16
    core, ratio, memory = shares.pop()
    whole = ratio == 100
    alone = whole or hint.get("exclusivePolicy") == "DeviceLevel"
    return Want(
        kind="gpu", count=count, core=core, ratio=ratio, memory=memory, whole=whole, alone=alone,
        hint=hint,
    )  # fmt: skip


def counted_gpus(limits: Mapping[str, int]) -> int:
    """Return how many GPUs one container takes."""
    counted = _counted(limits) if GPU_KEYS & limits.keys() else None
    return 0 if counted is None else counted[0]


def _counted(limits: Mapping[str, int]) -> tuple[int, int, int, int] | None:
    """Return one container's cards and core, ratio and bytes of each, None when not allowed."""
    asked = {key: value for key, value in limits.items() if key in GPU_KEYS}
    if set(asked) not in COMBINATIONS:
        return None  # 4.2
    if NVIDIA in asked:
        return (asked[NVIDIA], 100, 100, 0)
    if GPU in asked:
        asked = {CORE: asked[GPU], RATIO: asked[GPU]}  # 4.3; the percent rule is that of the parts
    core, ratio, memory = (asked.get(key, 0) for key in (CORE, RATIO, MEMORY))
    if SHARED not in asked:
        if any(value > 100 and value % 100 for value in (core, ratio)):
            return None  # the percent rule
        leading = ratio if RATIO in asked else core
        asked[SHARED] = leading // 100 if leading > 100 else 1  # 5.1, step 4
    count = asked[SHARED]
    if core % count or ratio % count or memory % count:
        return None  # the share rule; Q13: a remainder of memory is refused too
    if core // count > 100 or ratio // count > 100:
        return None
    return (count, core // count, ratio // count, memory // count)


def _secondary(kind: str, units: int, hint: Mapping[str, Any]) -> Want:
    """Return how many devices and how much of each (8.3, the table)."""
    strategy = hint.get("allocateStrategy", "")
    level = hint.get("exclusivePolicy") == "DeviceLevel"
    if units > 100:
        return Want(kind=kind, count=units // 100, core=100, alone=level, hint=hint)
    if strategy == "RequestsAsCount":
        each = 100 if level else 1
        return Want(kind=kind, count=units, core=each, alone=level, hint=hint)
    everywhere = strategy == "ApplyForAll"
    return Want(kind=kind, count=1, core=units, alone=level, everywhere=everywhere, hint=hint)
