"""
Devices that schedulers are told to pass over: those with holders whom claims do not show.

Rule: docs/adr/0027. A DeviceTaintRule of ours bars one device, while what was refused there would
be refused for those holders alone. Those that claims show every scheduler sees by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from ledger.domain.annotations.wire import TRUE, a_text, an_object
from ledger.domain.resources import LABEL_TENURE_PASSED_OVER, TAINT_TENURE_HELD
from scheduler.gate.claims import Allocated
from scheduler.gate.decide import Accounts, Unaccounted
from scheduler.gate.exchange import Device
from scheduler.gate.room import no_room

_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintRule:
    """
    A DeviceTaintRule: what it selects by, empty where that does not matter.

    Attributes:
        is_ours: made by a gate, which may take it away.
        bars: newcomers stay off.
    """

    name: str
    driver: str
    pool: str
    device: str
    is_ours: bool
    bars: bool

    def selects(self, device: Device) -> bool:
        """Tell whether it is about this device."""
        wanted = zip((self.driver, self.pool, self.device), device, strict=True)
        return all(one in {"", other} for one, other in wanted)


def read_rule(item: Mapping[str, object]) -> TaintRule:
    """
    Read a DeviceTaintRule; one that selects by more than is known here selects more devices.

    Raises:
        InputError: it is not as the API describes it.
    """
    metadata = an_object(item.get("metadata"), "metadata")
    spec = an_object(item.get("spec"), "spec")
    selector = an_object(spec.get("deviceSelector"), "spec.deviceSelector")
    taint = an_object(spec.get("taint"), "spec.taint")
    words = [
        a_text(selector.get(key), f"spec.deviceSelector.{key}")
        for key in ("driver", "pool", "device")
    ]
    name = a_text(metadata.get("name"), "metadata.name")
    labels = an_object(metadata.get("labels"), "metadata.labels")
    return TaintRule(
        name=name,
        driver=words[0],
        pool=words[1],
        device=words[2],
        is_ours=labels.get(LABEL_TENURE_PASSED_OVER) == TRUE
        and all(words)
        and name == rule_name((words[0], words[1], words[2])),
        bars=taint.get("effect") != "None",
    )


def rule_name(device: Device) -> str:
    """Return what our rule about a device is called."""
    return f"tenure-{sha256('/'.join(device).encode()).hexdigest()[:_DIGITS]}"


def rule_of(device: Device, version: str) -> dict[str, Any]:
    """Return our rule about a device: newcomers stay off, whoever has it keeps it."""
    driver, pool, name = device
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {"name": rule_name(device), "labels": {LABEL_TENURE_PASSED_OVER: TRUE}},
        "spec": {
            "deviceSelector": {"driver": driver, "pool": pool, "device": name},
            "taint": {"key": TAINT_TENURE_HELD, "value": TRUE, "effect": "NoSchedule"},
        },
    }


def is_barred(allocated: Allocated, accounts: Accounts, is_shown: Callable[[str], bool]) -> bool:
    """
    Tell whether one device would be refused for holders alone whom claims do not show.

    Args:
        allocated: of that device alone.
        is_shown: tells of a claim's UID whether the API shows it allocated.
    """
    node = accounts.node(allocated.node_name)
    if node is None or node.lost:
        return False
    found = accounts.account(allocated)
    if isinstance(found, Unaccounted):
        return False
    claims = {key: one for key, one in node.claims.items() if not is_shown(one.pod_uid)}
    return no_room(replace(node, claims=claims), found.shares) is not None
