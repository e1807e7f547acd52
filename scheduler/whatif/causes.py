"""Why a Pod waits, in one of few sentences, so that Pods can be counted by it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ledger.domain.devices import GPU
from ledger.domain.log.events import RefusalReason
from ledger.domain.request.requests import PodRequest, Toleration, group_name
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.refusal import reasons
from scheduler.whatif.what_if import WhatIf

FITS: Final = "it would get a place now"
_ANY_TAINT: Final = Toleration(key="", operator="Exists", value="", effect="")
_CPU, _MEMORY = reasons.INSUFFICIENT_CPU.name, reasons.INSUFFICIENT_MEMORY.name
_AFFINITY, _CORDONED = reasons.AFFINITY.name, reasons.UNSCHEDULABLE.name
_STATIC: Final = (_AFFINITY, _CORDONED, reasons.TAINTED)
_FULL: Final = (reasons.insufficient_devices(GPU).name, reasons.fragmented(GPU).name)
_WHERE: Final = re.compile(r'^\S+: (?:Forbidden: |Invalid value: (?:"(?:[^"\\]|\\.)*"|\S+): )?')
"""The field that breaks a rule, and what it says there."""


class Cause(NamedTuple):
    """Why a Pod waits; `about` begins the reason that says so, `takes` = it took others' room."""

    words: str
    about: str = ""
    takes: bool = False


def cause_of(
    request: PodRequest | None, refused: Sequence[RefusalReason], what_if: WhatIf | None
) -> Cause:
    """
    Return why a Pod waits: what keeps it from every node, told from what is merely full.

    It is decided: without what the sentence names the Pod would get a place, which `what_if` keeps
    for it, so that no more Pods are counted there than would fit together. Where nothing can be
    decided, it is the first reason of its newest refusal, `refused`.
    """
    if refused and all(reason.nodes == 0 for reason in refused):
        return Cause(f"a rule refuses it: {_WHERE.sub('', refused[0].detail)}")
    if request is None or what_if is None or group_name(request):
        return Cause(refused[0].reason if refused else "no reason is recorded")
    for key, value in request.placement.node_selector:
        if all(node.labels.get(key) != value for node in what_if.nodes):
            return Cause(f"no node has the label that it selects: {key}={value}", _AFFINITY)
    for words, about, easier in _easier(request):
        answer = what_if.decide(easier)
        if isinstance(answer, Placement):
            what_if.reserve(answer)
            return Cause(words, about, takes=True)
        if answer.never and easier is request:
            return Cause(f"never as it is: {answer.never}")
    answer = what_if.decide(_bare(request))
    assert isinstance(answer, Unplaced), answer
    given = [each.reason for each in answer.reasons] or [answer.message]
    first = next((each for each in given if not each.startswith(_STATIC)), given[0])
    several = sum(each.count for each in request.devices if each.device_type == GPU) > 1
    full = "no node has as many cards left" if several else "no card has as much left"
    return Cause(f"{full} as it asks for" if first in _FULL else first, first)


def _easier(request: PodRequest) -> Iterator[tuple[str, str, PodRequest]]:
    """Yield what may keep a Pod back, as `Cause` has it, and the Pod without that."""
    rules = request.placement
    where = "cards are free only where" if request.devices else "where it may go"
    yield FITS, "", request
    yield f"{where} too little memory is left", _MEMORY, replace(request, memory_bytes=0)
    yield f"{where} too little CPU is left", _CPU, replace(request, cpu_milli=0)
    yield f"{where} too little memory and CPU is left", _CPU, _bare(request)
    tolerant = replace(request, placement=replace(rules, tolerations=(_ANY_TAINT,)))
    yield "there is room only on nodes that are cordoned or tainted", _CORDONED, tolerant
    anywhere = replace(rules, node_selector=(), affinity_terms=None)
    words = "there is room only on nodes that its selector or affinity does not allow"
    yield words, _AFFINITY, replace(request, placement=anywhere)


def _bare(request: PodRequest) -> PodRequest:
    return replace(request, memory_bytes=0, cpu_milli=0)
