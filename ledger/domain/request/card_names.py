"""
Resources that stand for cards, or for parts of cards, by their names.

Rule: docs/contracts/device-plugins.md, docs/contracts/volcano-vgpu.md.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Final, Literal

from ledger.domain.annotations.volcano_vgpu import VGPU_NAMES
from ledger.domain.annotations.wire import is_number
from ledger.domain.request.requests import MatchExpression
from ledger.domain.resources import LABEL_GPU_VENDOR, NVIDIA_GPU
from ledger.domain.systems import DeviceSystems

SHARED: Final = f"{NVIDIA_GPU}.shared"
"""What replicas are called where they have a name of their own."""
SLICE: Final = re.compile(r"nvidia\.com/mig-([0-9])g\.[0-9]+gb(?:\..*)?")
NEURON: Final = "aws.amazon.com/neuron"
NEURON_CORE: Final = f"{NEURON}core"
PRODUCT: Final = f"{NVIDIA_GPU}.product"
"""The label by which GPU feature discovery says which cards a node has."""
MEMORY_LABEL: Final = f"{NVIDIA_GPU}.memory"
"""The label by which GPU feature discovery says how many MiB each card has."""
MIG_STATE: Final = "nvidia.com/mig.config.state"
"""The label by which NVIDIA's MIG manager says how far it is with cutting a node's cards."""
SLICED_PRODUCT: Final = re.compile(r"-MIG-([0-9])g\.[0-9]+gb.*$")
"""What is behind the product where all of a node's units are slices of one kind."""
CARD: Final = re.compile(
    r"accelerator|ascend\d+[a-z]?\d*|dcu|gaudi\d*|gcu|gpu|i915|ipu|mlu\d*|neuron(?:core|device)?"
    r"|npu|ppu|tpu|xe|xpu",
    re.IGNORECASE,
)
"""The resources of which one unit is one card, by what stands behind the vendor's domain."""
_ACCELERATOR: Final = re.compile(
    r"(?:.*[^a-z])?(?:accelerator|ascend\d|[dt]cu|[gnptx]pu|mlu|v?cuda|grid|tesla|nvidia|gaudi"
    r"|(?:g[a-z]|tu|ad)\d{3}|qaic|rngd|warboy|atom|rebel|[np][13][05]0)|.*[qsv](?:gcu|gpu|npu|xpu|mlu).*",
    re.IGNORECASE,
)
"""How resources that may be parts of cards begin or go on, behind the vendor's domain."""
_NO_PART: Final = re.compile(r".*(?:monitoring|nics?)", re.IGNORECASE)
_PARTITION: Final = re.compile(r"(spx|dpx|tpx|qpx|cpx)(?:_nps\d)?", re.IGNORECASE)
_PARTITIONS: Final = {"dpx": 2, "tpx": 3, "qpx": 4, "cpx": 8}
"""Into how many parts AMD's modes cut a card, as most models have it."""
_FEWER: Final = {"MI300A": 6, "MI308": 4}
"""The same of mode CPX, by what the model's name has."""
_CORES: Final = re.compile(r"ascend(\d+)[a-z]?\d*-(\d+)c.*", re.IGNORECASE)
"""Huawei's virtual cards, by the generation and how many of its cores they have."""
_MOST_ON_A_CARD: Final = {1: 7, 2: 3, 3: 2, 4: 1, 7: 1}
"""A MIG instance's sevenths of a card -> how many such instances one card has at most."""
_COUNT: Final = re.compile(
    r"(?:beta\.)?([^/]+)/(?:.*(?:gpu|accelerator|device|nvidia)[-_.]count"
    r"|(device-id)\..+\.count|gpu\.(product-name|device-id|family|vram|cu-count|simd-count)\..+)"
)
"""Labels that count cards: all that there are, or those of one kind (its group says which)."""
_GKE: Final = "cloud.google.com/gke-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """
    What units of a resource are of cards.

    Attributes:
        most: units on one card at most; 0 = nobody says.
        size: the part of a card that a unit takes at least; 0 = each card has `most` of them.
    """

    mode: Literal["whole", "replicas", "slices"]
    most: int
    size: Fraction = Fraction()

    def cards(self, units: int) -> tuple[int, int]:
        """Return on how many cards so many units are, at least and at most."""
        least = -(-units // (self.most or max(1, units)))
        return least, least if self.most and not self.size else units


WHOLE_CARD: Final = Cut(mode="whole", most=1)

NVIDIA_DOMAIN: Final = NVIDIA_GPU.partition("/")[0]
NVIDIA_CARDS: Final = (
    (MatchExpression(key=LABEL_GPU_VENDOR, operator="DoesNotExist", values=()),),
    (MatchExpression(key=LABEL_GPU_VENDOR, operator="In", values=("", "nvidia")),),
)
"""What labels of a node with NVIDIA's cards say, as affinity terms (Koordinator contract 1.2)."""


def count_in(labels: Mapping[str, str], domain: str) -> tuple[str, int]:
    """
    Return how many cards a node has of a vendor, and the label that says so or is no number.

    A label under the vendor's domain counts before one of a cloud's.
    """
    found: dict[tuple[bool, str, bool], tuple[str, int]] = {}
    broken = ""
    for label in sorted(each for each in labels if "count" in each or "/gpu." in each):
        told = _COUNT.fullmatch(label)
        if told and told[1] == domain and not is_number(labels[label]):
            broken = label
        elif told and number_in(labels, label):
            key = told[1] != domain, told[2] or told[3] or "", label.startswith("beta.")
            if key[0] and (key[1] or domain == told[1]):
                continue
            before = found.get(key, (label, 0))[1] if key[1] else 0
            found[key] = label, before + number_in(labels, label)
    return found[min(found)] if found else (broken, 0)


def cut_of(name: str, labels: Mapping[str, str], units: int = 0) -> Cut | None:
    """
    Return what a node's units of a resource are, None for no cards.

    Rule: docs/contracts/device-plugins.md 2. Fewer cards than units are told: they are parts.
    """
    domain, _, what = name.partition("/")
    is_nvidia = domain == NVIDIA_DOMAIN
    if found := SLICE.fullmatch(name):
        return _instances(int(found[1]), max(1, number_in(labels, f"{name}.replicas")))
    if found := _PARTITION.fullmatch(what):
        return _partitions(found[1], labels)
    if found := _CORES.fullmatch(what):
        cores = 8 if found[1].startswith("310") else 32
        mine = min(cores, max(1, int(found[2])))
        return Cut(mode="slices", most=cores // mine, size=Fraction(mine, cores))
    if name == NEURON_CORE:
        return Cut(mode="slices", most=0)
    if not CARD.fullmatch(what.removesuffix(".shared")):
        return None
    told = number_in(labels, f"{domain}/gpu.replicas")
    gke = {key.removeprefix(_GKE): labels[key] for key in labels if is_nvidia and _GKE in key}
    shared = number_in(gke, "max-shared-clients-per-gpu") or told
    profile = f"{labels.get(PRODUCT, '')}-MIG-{gke.get('gpu-partition-size', '')}"
    if is_nvidia and (found := SLICED_PRODUCT.search(profile)):
        return _instances(int(found[1]), max(1, shared))
    modes = (labels.get(f"amd.com/{each}compute-memory-partition", "") for each in ("gpu.", ""))
    if domain == "amd.com" and (found := _PARTITION.fullmatch(max(modes))):
        return _partitions(found[1], labels)
    count = count_in(labels, domain)[1]
    product = labels.get(f"{domain}/gpu.product", "")
    strategies = {labels.get(f"{domain}/gpu.sharing-strategy"), gke.get("gpu-sharing-strategy")}
    is_shared = product.endswith("-SHARED") or what.endswith(".shared")
    if is_shared or shared > 1 or strategies - {None, "", "none"}:
        return Cut(
            mode="replicas", most=shared if shared > 1 else -(-units // count) if count else 0
        )
    if 0 < count < units and told != 1:
        return Cut(mode="replicas", most=-(-units // count))
    return WHOLE_CARD


def _instances(sevenths: int, replicas: int) -> Cut:
    most = _MOST_ON_A_CARD.get(sevenths, 1) * replicas
    return Cut(mode="slices", most=most, size=Fraction(sevenths, 7 * replicas))


def _partitions(mode: str, labels: Mapping[str, str]) -> Cut:
    if mode.lower() == "spx":
        return WHOLE_CARD
    model = next((one for one in _FEWER if one in str(labels)), "")
    most = _FEWER[model] if model and mode.lower() == "cpx" else _PARTITIONS[mode.lower()]
    return Cut(mode="slices", most=most)


def are_parts(labels: Mapping[str, str], offers: Mapping[str, int]) -> bool:
    """
    Tell whether a node's `nvidia.com/gpu` are parts of cards, or may be, by labels and offers.

    Fewer cards than these and the slices beside them need are told: nobody knows what they are.
    """
    count = count_in(labels, NVIDIA_DOMAIN)[1]
    slices = [
        (cut, number)
        for name, number in offers.items()
        if SLICE.fullmatch(name) and (cut := cut_of(name, labels))
    ]
    needed = offers.get(NVIDIA_GPU, 0) + cards_of(slices)[0]
    return cut_of(NVIDIA_GPU, labels) != WHOLE_CARD or 0 < count < needed


def cards_of(units: Sequence[tuple[Cut, int]]) -> tuple[int, int]:
    """Return on how many cards units of several kinds are together, at least and at most."""
    alone = [cut.cards(number) for cut, number in units if not cut.size]
    pooled = [(cut, number) for cut, number in units if cut.size]
    sizes = ceil(sum((cut.size * number for cut, number in pooled), Fraction()))
    least = max([sizes, *(cut.cards(number)[0] for cut, number in pooled)])
    return (
        least + sum(each[0] for each in alone),
        sum(number for _, number in pooled) + sum(each[1] for each in alone),
    )


def may_be_cards(name: str) -> bool:
    """Tell whether a resource that nobody reads may be cards or parts of some, by its name."""
    what = name.partition("/")[2]
    return bool(_ACCELERATOR.match(what)) and not _NO_PART.fullmatch(what)


def number_in(labels: Mapping[str, str], label: str) -> int:
    """Return a label of GPU feature discovery as a number, 0 where it is none."""
    text = labels.get(label, "")
    return int(text) if is_number(text) else 0


def stands_for_cards(name: str) -> bool:
    """Tell whether a resource is one of cards, or of parts of them, as the audit views know it."""
    of_nvidia = name == SHARED or SLICE.fullmatch(name) is not None
    return of_nvidia or name in VGPU_NAMES or bool(CARD.fullmatch(name.partition("/")[2]))


def product_of(labels: Mapping[str, str], cards: int = 0) -> str:
    """
    Return the model of a node's cards by GPU feature discovery or GKE, however they are cut.

    It is not known where there are more than the label counts: that is of one model.
    """
    told = labels.get(PRODUCT, "") or labels.get(f"{_GKE}accelerator", "")
    is_of_some = 0 < count_in(labels, NVIDIA_DOMAIN)[1] < cards
    return "" if is_of_some else SLICED_PRODUCT.sub("", told.removesuffix("-SHARED"))


def followed(systems: DeviceSystems, device_names: Container[str]) -> DeviceSystems:
    """Return what is said of devices whose holders are followed: others would look free."""

    def known(amounts: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        return tuple(
            each for each in amounts if each[0] in device_names or stands_for_cards(each[0])
        )

    return replace(systems, offers=known(systems.offers), capacity=known(systems.capacity))
