"""The settings that change what a request means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class NormaliseSettings:
    """
    The settings that change what a request means (cli.md, Settings of scheduling).

    Attributes:
        gpushare_unit: what `aliyun.com/gpu-mem` counts, `MiB` or `GiB`.
        mgpu_multi_min_memory_mib: least memory on each card of a multi-card mGPU container.
        mgpu_max_memory_mib: most mGPU memory on one card; more is a wrong unit.
        default_bind_policy, default_exclusive_policy: for LSE and LSR Pods that name none.
    """

    gpushare_unit: str = "MiB"
    mgpu_multi_min_memory_mib: int = 256
    mgpu_max_memory_mib: int = 1048576
    default_bind_policy: str = "FullPCPUs"
    default_exclusive_policy: str = "None"


DEFAULT_SETTINGS: Final = NormaliseSettings()
