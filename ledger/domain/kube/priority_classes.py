"""PriorityClasses of Kubernetes."""

from __future__ import annotations

import msgspec


class PriorityClassObject(msgspec.Struct, frozen=True, rename="camel"):
    """What a PriorityClass gives to Pods that name it, or to all that name none."""

    value: int
    global_default: bool = False
