"""
Resources that stand for cards, or for parts of cards, by their names.

Rule: docs/contracts/device-plugins.md, docs/contracts/volcano-vgpu.md.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Final

from ledger.domain.annotations.volcano_vgpu import VGPU_NAMES
from ledger.domain.annotations.wire import is_number
from ledger.domain.request.requests import MatchExpression
from ledger.domain.resources import LABEL_GPU_VENDOR, NVIDIA_GPU
from ledger.domain.systems import DeviceSystems

SHARED: Final = f"{NVIDIA_GPU}.shared"
"""What replicas are called where they have a name of their own."""
SLICE: Final = re.compile(r"nvidia\.com/mig-([0-9])g\.[0-9]+gb(?:\..*)?")
PRODUCT: Final = f"{NVIDIA_GPU}.product"
"""The label by which GPU feature discovery says which cards a node has."""
SLICED_PRODUCT: Final = re.compile(r"-MIG-([0-9])g\.[0-9]+gb.*$")
"""What is behind the product where all of a node's units are slices of one kind."""
CARD: Final = re.compile(
    r"accelerator|ascend\d+[a-z]?\d*|dcu|gaudi\d*|gcu|gpu|i915|ipu|mlu\d*|neuron|neurondevice"
    r"|npu|ppu|tpu|xe|xpu",
    re.IGNORECASE,
)
"""The resources of which one unit is one card, by what stands behind the vendor's domain."""


NVIDIA_CARDS: Final = (
    (MatchExpression(key=LABEL_GPU_VENDOR, operator="DoesNotExist", values=()),),
    (MatchExpression(key=LABEL_GPU_VENDOR, operator="In", values=("", "nvidia")),),
)
"""What labels of a node with NVIDIA's cards say, as affinity terms (Koordinator contract 1.2)."""


def are_parts(labels: Mapping[str, str], units: int) -> bool:
    """Tell whether units of `nvidia.com/gpu` are replicas or MIG instances, by a node's labels."""
    product, count = labels.get(PRODUCT, ""), number_in(labels, f"{NVIDIA_GPU}.count")
    return (
        number_in(labels, f"{NVIDIA_GPU}.replicas") > 1
        or labels.get(f"{NVIDIA_GPU}.sharing-strategy", "none") not in {"none", ""}
        or product.endswith("-SHARED")
        or bool(SLICED_PRODUCT.search(product))
        or 0 < count < units
    )


def number_in(labels: Mapping[str, str], label: str) -> int:
    """Return a label of GPU feature discovery as a number, 0 where it is none."""
    text = labels.get(label, "")
    return int(text) if is_number(text) else 0


def stands_for_cards(name: str) -> bool:
    """Tell whether a resource is one of cards, or of parts of them."""
    of_nvidia = name == SHARED or SLICE.fullmatch(name) is not None
    return of_nvidia or name in VGPU_NAMES or bool(CARD.fullmatch(name.partition("/")[2]))


def product_of(labels: Mapping[str, str]) -> str:
    """Return the model of a node's cards by GPU feature discovery, however they are cut."""
    return SLICED_PRODUCT.sub("", labels.get(PRODUCT, "").removesuffix("-SHARED"))


def followed(systems: DeviceSystems, device_names: Container[str]) -> DeviceSystems:
    """Return what is said of devices whose holders are followed: others would look free."""

    def known(amounts: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        return tuple(
            each for each in amounts if each[0] in device_names or stands_for_cards(each[0])
        )

    return replace(systems, offers=known(systems.offers), capacity=known(systems.capacity))
