"""
Which devices of a pool are equal but for what names the single one.

Rule: docs/adr/0027. Two devices are alike that say the same but for their name and the attributes
that tell one piece of metal from the next. A claim that reads none of these can't tell them apart.

Worked example, a pool of gpu.nvidia.com on one node.

    device   says                                      is like
    gpu-0    uuid GPU-a, productName T4, pcieRoot p0   gpu-1
    gpu-1    uuid GPU-b, productName T4, pcieRoot p0   gpu-0
    gpu-2    uuid GPU-c, productName T4, pcieRoot p1   nobody: it hangs elsewhere
    gpu-3    uuid GPU-d, productName T4, pcieRoot p0,  nobody: a claim has to tolerate its taint
             and a taint
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

from ledger.domain.dialects.dra.objects import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, SlicedDevice

_OF_ANY: Final = frozenset({"uuid", "index", "minor", "pciBusID", "pcieBusID", "pciAddress"})
_OF_DRIVER: Final[Mapping[str, frozenset[str]]] = {
    "gpu.amd.com": frozenset({"cardIndex", "pciAddr", "renderIndex"}),
    "gpu.intel.com": frozenset({"uid"}),
}
"""What names the single device, by driver, besides what does so wherever it is said."""

_WHERE: Final = frozenset({PCIE_ROOT, NUMA_NODE})
_WHERE_NAMES: Final = frozenset(name.rpartition("/")[2] for name in _WHERE)

_ALL: Final = _OF_ANY.union(*_OF_DRIVER.values())


def may_name_one(attribute: str) -> bool:
    """Tell whether an attribute, whoever's it is, may name the single device; in doubt it may."""
    return attribute.rpartition("/")[2] in _ALL


def names_one(driver: str, attribute: str) -> bool:
    """Tell whether an attribute of a driver's device, as it is written, names the single one."""
    if attribute == PCI_BUS_ID:
        return True
    domain, _, name = attribute.rpartition("/")
    return domain in {"", driver} and (name in _OF_ANY or name in _OF_DRIVER.get(driver, ()))


def says_where(driver: str, attribute: str) -> bool:
    """Tell whether an attribute says where on its node a device is."""
    domain, _, name = attribute.rpartition("/")
    return attribute in _WHERE or (domain in {"", driver} and name in _WHERE_NAMES)


def likeness(driver: str, device: SlicedDevice, *, anywhere: bool = False) -> Hashable:
    """
    Return what two devices of one pool have in common that differ in their names alone.

    None where a device says of itself what is not known here: it is like nobody.

    Args:
        anywhere: wherever on the node they are, too.
    """
    if not device.traits:
        return None
    shared = frozenset(
        (name, value)
        for name, value in device.attributes.items()
        if not (names_one(driver, name) or (anywhere and says_where(driver, name)))
    )
    return device.traits, device.node, shared
