"""How the containers of a node are shown their cards: what the agent is told at its start."""

from __future__ import annotations

from enum import StrEnum


class AgentMode(StrEnum):
    """The words of the setting `slotMode` (docs/admission.md)."""

    PLUGIN = "plugin"
    """By slots of a device plugin, and CDI."""
    ENV = "env"
    """By their environment, which admission writes: the agent answers kubelet nothing."""
    GPUSHARE = "gpushare"
    """As the GPU share proposal's device plugin does."""


class ShareUnit(StrEnum):
    """What `aliyun.com/gpu-mem` counts on this node: the setting `gpushare.unit`."""

    MIB = "MiB"
    GIB = "GiB"
