"""
What a Node says of devices that others hand out: numbers of device plugins, Volcano's register.

Rule: docs/contracts/device-plugins.md, docs/contracts/volcano-vgpu.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledger.domain.annotations.volcano_vgpu import VGPU_REGISTER, decode_vgpu_register
from ledger.domain.annotations.wire import a_quantity, annotation_path
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import named
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.domain.quantity import NANO
from ledger.domain.request.extended import is_device
from ledger.domain.systems import DeviceSystems
from ledger.domain.vocabulary import Vocabulary


def systems_of_node(
    status: Mapping[str, object], annotations: Mapping[str, str], vocabulary: Vocabulary
) -> tuple[DeviceSystems, list[str]]:
    """
    Return what a Node's quantities, which were read already, and annotations tell, and warnings.

    What of its capacity can't be read is not told. Amounts that change without a device, such as
    batch cpu, are no part of it.
    """
    there = _units(status.get("capacity"), vocabulary)
    offers = _units(status.get("allocatable") or status.get("capacity"), vocabulary)
    text = annotations.get(VGPU_REGISTER)
    cards = () if text is None else decode_vgpu_register(text)
    fault = f"{annotation_path(VGPU_REGISTER)} can't be read: not as the plugin writes it"
    return DeviceSystems(
        offers=tuple(sorted(offers.items())),
        capacity=tuple(
            (name, amount) for name, amount in sorted(there.items()) if offers.get(name) != amount
        ),
        cards=cards or (),
    ), [fault] if cards is None else []


def _units(amounts: object, vocabulary: Vocabulary) -> dict[str, int]:
    try:
        items = named(amounts, "")
        return {
            name: min(INTEGER_MAX, max(0, a_quantity(amount, name).nanos // NANO))
            for name, amount in items.items()
            if "/" in name and is_device(name, vocabulary)
        }
    except InputError:
        return {}
