"""
Whether a container runtime shows containers the CDI devices that kubelet names.

One that does not know the field leaves it out and starts the container without its cards, so this
has to be known before kubelet is told of slots. Pure: what the runtime says in, a reason out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
_CONTAINERD: Final = "containerd"
_FIRST: Final = {_CONTAINERD: (1, 7), "cri-o": (1, 23)}
"""Which version of each is the first that knows CDI in CRI."""
_ALWAYS: Final = (2, 0)
"""Containerd from here on has CDI unless it is turned off, and 1.7 if it is turned on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSaid:
    """What a runtime says of itself; `config` is JSON of a verbose Status, empty = none."""

    name: str
    version: str
    config: str = ""


class _Config(msgspec.Struct):
    enabled: bool | None = msgspec.field(default=None, name="enableCDI")


def why_no_cdi(said: RuntimeSaid) -> str:
    """Return why cards can't be shown by CDI, and what to do; nothing where they can."""
    what, else_env = f"{said.name} {said.version}", "or set slotMode and --mode to env"
    found = _VERSION.match(said.version)
    if said.name not in _FIRST or found is None:
        return f"nobody knows whether this runtime has CDI: {what}; take containerd, {else_env}"
    version, first = (int(found[1]), int(found[2])), _FIRST[said.name]
    if version < first:
        needed = ".".join(map(str, first))
        return f"the runtime has no CDI: {what}; take {said.name} {needed} or newer, {else_env}"
    if said.name != _CONTAINERD:
        return ""
    try:
        enabled = msgspec.json.decode(said.config or "{}", type=_Config).enabled
    except msgspec.DecodeError as error:
        return f"the runtime's configuration can't be read: {what}: {error}"
    if enabled or (enabled is None and version >= _ALWAYS):
        return ""
    return f"CDI is turned off: {what}; write enable_cdi = true into its configuration, {else_env}"
