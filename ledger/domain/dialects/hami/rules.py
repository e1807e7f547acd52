"""What a request in HAMi's words must keep, and what of its wishes is not honoured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ledger.domain.annotations.wire import annotation_path
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.dialects.hami.annotations import CORE_MODE, words_of
from ledger.domain.dialects.hami.words import (
    CARD_POLICY,
    CORES,
    MEMORY,
    MEMORY_PERCENT,
    MODE,
    NOUSE_ID,
    NUMA_BIND,
    USE_ID,
    USE_TYPE,
)
from ledger.domain.errors import FieldError
from ledger.domain.kube.pod_spec import ContainerSpec
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, invalid, of_rule, unsupported
from ledger.domain.resources import NVIDIA_GPU

CARDS_MAX: Final = 1024
MEMORY_MAX_MIB: Final = 2**20
"""1 TiB: no card has more, so a larger number has the wrong unit (GPU-sharing contract A.6)."""

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_ALONE: Final = "mutex"


@of_rule(Rule.HAMI_SHARE)
def check_container(container: ContainerSpec, amounts: Mapping[str, int]) -> Iterator[FieldError]:
    """
    Yield everything that is wrong with what one container asks for.

    Rule: docs/contracts/hami.md 1, facts 6 to 8, 10 and 11, as "ours".
    """
    asked = {name: amount for name, amount in amounts.items() if amount}
    cards = amounts.get(NVIDIA_GPU, 1)
    if not cards:
        fact = f"{min(asked)} is of each card; nearest legal value 1"
        yield invalid(container.field(NVIDIA_GPU), cards, fact)
    elif cards > CARDS_MAX:
        yield invalid(container.field(NVIDIA_GPU), cards, f"no node has more than {CARDS_MAX}")
    for name in (MEMORY_PERCENT, CORES):
        if asked.get(name, 0) > WHOLE_PERCENT:
            fact = f"percent of each card, at most {WHOLE_PERCENT}"
            yield invalid(container.field(name), asked[name], fact)
    if MEMORY in asked and MEMORY_PERCENT in asked:
        fact = f"memory is counted in MiB by {MEMORY} or in percent by {MEMORY_PERCENT}, not both"
        yield forbidden(container.field(MEMORY_PERCENT), fact)
    if asked.get(MEMORY, 0) > MEMORY_MAX_MIB:
        fact = (
            f"more than {MEMORY_MAX_MIB} MiB of one card; the value counts MiB: "
            "write 6144 for 6 GiB, not 6Gi"
        )
        yield invalid(container.field(MEMORY), container.original[MEMORY], fact)


def check_wishes(
    annotations: Mapping[str, str], *, cards: int, each_max: int, alone: bool
) -> Iterator[FieldError]:
    """
    Yield the wishes about cards that no node can fulfil, and those that this release does not.

    Rule: docs/contracts/hami.md 2, as "ours". One that changes nothing passes.

    Args:
        cards: of the whole Pod; `each_max` of the container that has the most.
        alone: the Pod shares no card.
    """
    yield from _check_lists(annotations, cards)
    if annotations.get(NUMA_BIND) in _TRUE and each_max > 1:
        yield unsupported(annotation_path(NUMA_BIND), "several GPUs on one NUMA node")
    mode = annotations.get(MODE)
    if mode is not None and CORE_MODE not in mode:
        yield unsupported(annotation_path(MODE), f"modes of a card other than {CORE_MODE}")
    if _ALONE in words_of(annotations.get(CARD_POLICY, "")) and not alone:
        yield unsupported(annotation_path(CARD_POLICY), "a share that begins on an idle card")


@of_rule(Rule.HAMI_SHARE)
def _check_lists(annotations: Mapping[str, str], cards: int) -> Iterator[FieldError]:
    for key in (USE_TYPE, USE_ID):
        text = annotations.get(key, "")
        if text.strip() and not words_of(text):
            yield invalid(annotation_path(key), text, "names nothing, so no card would do")
    wanted = {*words_of(annotations.get(USE_ID, ""))} - {*words_of(annotations.get(NOUSE_ID, ""))}
    if words_of(annotations.get(USE_ID, "")) and len(wanted) < cards:
        fact = f"leaves {len(wanted)} cards, and the pod asks for {cards} different ones"
        yield invalid(annotation_path(USE_ID), annotations[USE_ID], fact)
