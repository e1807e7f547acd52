"""Which resource a name was probably meant to be, of those that nodes offer or Pods are read by."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

from ledger.domain import resources as res
from ledger.domain.annotations.volcano_vgpu import VGPU_NAMES, VGPU_NUMBER
from ledger.domain.devices import GPU
from ledger.domain.dialects.names import FOREIGN_WORDS, Dialect
from ledger.domain.dialects.registry import READERS, gpu_dialect_of
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.card_names import CARD, PRODUCT, SHARED, cut_of
from ledger.domain.request.extended import PLAIN_CARDS
from ledger.domain.vocabulary import Vocabulary

NOBODY: Final = ": nobody offers it"
_ALIKE: Final = 0.86
_SHARED: Final = SHARED.removeprefix(res.NVIDIA_GPU)
_MIG: Final = "nvidia.com/mig-"
_PROFILE: Final = re.compile(r"(.*/mig-[0-9]g\.)[0-9]+gb.*")


def near_names(
    asked: Collection[str],
    nodes: Sequence[NodeFacts],
    free: Callable[[int, str], int | None],
    vocabulary: Vocabulary,
    times: Sequence[int] = (),
) -> Iterator[str]:
    """
    Yield which of these names nobody offers, each with what it was probably meant to be.

    Args:
        free: how many of a resource are free on the node of this number; None = not counted.
        times: how many nodes each of these stands for; one by default.
    """
    times, offered = times or [1] * len(nodes), Counter[str]()
    for node, number in zip(nodes, times, strict=True):
        offered.update(dict.fromkeys(offers_of(node), number))
    products = [node.labels.get(PRODUCT, "") for node in nodes]
    for name in sorted(asked):
        known = name in vocabulary.device_names and gpu_dialect_of(name) is None
        if offered[name] or known:
            continue
        meant = _meant(name, offered.keys() - asked, vocabulary)
        if any(each.endswith(f"-MIG-{name.removeprefix(_MIG)}") for each in products):
            meant = res.NVIDIA_GPU  # all units of a node are slices of this kind
        if meant:
            left = [free(number, meant) for number in range(len(nodes))]
            numbers = [max(0, each) for each in left if each is not None]
            there = f"{offered[meant]} of {sum(times)} nodes offer it"
            amount = f", {sum(numbers)} free" if numbers else ""
            yield f"{name}{NOBODY}; meant {meant}? {there}{amount}"
        elif any(name in words.resources for words in FOREIGN_WORDS):
            yield f"{name}{NOBODY}"


def offers_of(node: NodeFacts) -> frozenset[str]:
    """Return the resources that a node offers, and those by which its cards may be asked for."""
    amounts = (*node.extended.items(), *node.systems.offers)
    names = {name for name, amount in amounts if amount}
    if any(device.device_type == GPU for device in node.devices):
        spoken = Dialect if node.dialects is None else node.dialects
        words = {n for each in READERS if each.dialect in spoken for n in each.words.resources}
        names |= words - (frozenset() if res.LABEL_GPU_VENDOR in node.labels else PLAIN_CARDS)
    return frozenset({*names, *(VGPU_NAMES if VGPU_NUMBER in names else ())})


def _meant(name: str, offered: Collection[str], vocabulary: Vocabulary) -> str:
    slices, (domain, _, last) = _PROFILE.fullmatch(name), name.lower().rpartition("/")
    cards = sorted((each for each in offered if cut_of(each, {})), reverse=True)  # large ones first
    likely = [
        *(other for other in (name.removesuffix(_SHARED), name + _SHARED) if other in offered),
        *(other for other in sorted(offered) if slices and other.startswith(slices[1])),
        *(o for o in sorted(offered) if o.startswith(domain) and o.endswith(f"/{last}")),
        *(other for other in [meant_resource(name, vocabulary)] if other in offered),
        *get_close_matches(name, [] if slices else sorted(offered), n=1, cutoff=_ALIKE),
        *(o for o in cards if CARD.fullmatch(last) and o.startswith(f"{domain}/")),
    ]
    return next(iter(likely), "")


@lru_cache(maxsize=1024)
def meant_resource(name: str, vocabulary: Vocabulary) -> str:
    """Return the resource of ours that a name was probably meant to be, or nothing."""
    words = _words(vocabulary)
    if name in words.read:
        return ""
    if "/" not in name:
        return words.by_last_word.get(name, "")
    return next(iter(get_close_matches(name, words.names, n=1, cutoff=_ALIKE)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """The resources that are read; `names` are the canonical spellings, to suggest."""

    read: frozenset[str]
    names: tuple[str, ...]
    by_last_word: Mapping[str, str]


@lru_cache(maxsize=4)
def _words(vocabulary: Vocabulary) -> _Words:
    canonical, proposal_name = vocabulary.canonical, vocabulary.proposal_name
    read = frozenset(
        {*vocabulary.device_names, res.BATCH_CPU, res.BATCH_MEMORY, res.MID_CPU, res.MID_MEMORY}
    )
    names = tuple(
        sorted(name for name in read if name in {canonical(name), proposal_name(canonical(name))})
    )
    last = {name.rpartition("/")[2]: name for name in reversed(names)}
    return _Words(read=read, names=names, by_last_word={**last, "gpu": res.NVIDIA_GPU})
