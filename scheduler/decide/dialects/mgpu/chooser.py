"""mGPU, as its Pods are placed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ledger.domain.annotations.tenure import encode_search_cut
from ledger.domain.devices import GPU, DeviceShare
from ledger.domain.dialects.mgpu.annotations import (
    CardRef,
    MgpuAllocation,
    MgpuPolicy,
    encode_mgpu_allocation,
)
from ledger.domain.dialects.names import Dialect
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.cards.shares import held_by
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.dialects.mgpu.choose import (
    DISABLED,
    LIMIT,
    NODE_INVALID,
    POLICY_MISMATCH,
    SEARCH_CUT,
    choose_beside_partition,
    choose_mgpu,
    misfit,
)
from scheduler.decide.dialects.mgpu.search import STEPS_MAX
from scheduler.decide.dialects.protocol import DialectChooser, Nodes, Own
from scheduler.decide.outcome import CardView, Placement, Unfit
from scheduler.decide.refusal.reasons import Reason
from scheduler.decide.settings import MGPUSettings, SchedulingSettings

ID_MODE: Final = "id"


def alternatives(
    request: PodRequest, nodes: Sequence[NodeFacts]
) -> Iterator[tuple[str, Callable[[PodRequest], PodRequest]]]:
    """Yield every other compute policy that a node has."""
    mine = request.mgpu_policy
    for policy in sorted({node.mgpu_policy for node in nodes} - {mine, ""}):
        text = f"use the mGPU compute policy {policy}" + (f" instead of {mine}" if mine else "")
        yield text, partial(_with_policy, policy)


def conversions(
    _request: PodRequest, nodes: Nodes, settings: SchedulingSettings
) -> Iterator[tuple[str, Nodes, SchedulingSettings]]:
    """Yield the settings that keep mGPU Pods off nodes."""
    mgpu = settings.mgpu
    if not mgpu.enabled:
        yield "set mgpu.enabled", nodes, replace(settings, mgpu=replace(mgpu, enabled=True))
    most = mgpu.max_containers_per_card
    more = replace(settings, mgpu=replace(mgpu, max_containers_per_card=1024))
    yield f"raise mgpu.maxContainersPerCard above {most}", nodes, more


def _with_policy(policy: str, request: PodRequest) -> PodRequest:
    return replace(request, mgpu_policy=policy)


def _choose(
    request: PodRequest,
    demands: Sequence[DeviceDemand],
    cards: Sequence[CardView],
    node: NodeView,
    settings: SchedulingSettings,
    *,
    preferred_card: int | None,  # noqa: ARG001 - the search scores cards itself
) -> Choice | Unfit:
    return choose_mgpu(request, demands, cards, node.facts, settings.mgpu)


def _misfit(
    own: Own, node: NodeFacts, settings: SchedulingSettings, *, whole_cards: bool
) -> Reason | None:
    policy, multi = own["mgpu_policy"], own["mgpu_multi"]
    return misfit(policy, node, settings.mgpu, multi=multi, whole_cards=whole_cards)


def _answer(
    placement: Placement,
    gpus: tuple[DeviceShare, ...],
    _node: NodeFacts,
    _now_ns: int,
    settings: SchedulingSettings,
) -> dict[str, str]:
    by_id = settings.mgpu.schedule_mode == ID_MODE
    cut = _search_cut(placement, settings.mgpu) if placement.search_cut else {}
    return _cards(placement, gpus, by_id=by_id) | cut


def _cards(placement: Placement, gpus: tuple[DeviceShare, ...], *, by_id: bool) -> dict[str, str]:
    """Name each container's cards by index, or by UUID where the mode says so and all have one."""
    by_id = by_id and all(share.device_id for share in gpus)
    cards: list[tuple[str, tuple[CardRef, ...]]] = []
    for need in placement.request.containers:
        held = held_by(need, gpus)
        refs = tuple(share.device_id if by_id else share.minor for share in held)
        cards.append((need.name, refs))
    return encode_mgpu_allocation(MgpuAllocation(assumed=True, cards=tuple(cards)))


def _search_cut(placement: Placement, settings: MGPUSettings) -> dict[str, str]:
    asking = sum(demand.device_type == GPU for demand in placement.request.devices)
    return encode_search_cut(containers=asking, levels=settings.search_levels, steps=STEPS_MAX)


def _policies(request: PodRequest, node: NodeFacts) -> str:
    asked = request.mgpu_policy or MgpuPolicy.FIXED_SHARE
    served = node.mgpu_policy or MgpuPolicy.FIXED_SHARE
    return f"asks for {asked}, the node has {served}"


CHOOSER: Final = DialectChooser(
    dialect=Dialect.MGPU,
    choose=_choose,
    by_links=False,
    packs=True,
    limit=LIMIT,
    choose_beside=choose_beside_partition,
    request_fields=("mgpu_policy", "mgpu_multi"),
    node_fields=("mgpu_policy", "mgpu_invalid"),
    misfit=_misfit,
    answer=_answer,
    node_reasons=(DISABLED, NODE_INVALID, POLICY_MISMATCH),
    search_reasons=(SEARCH_CUT,),
    abouts={POLICY_MISMATCH.text: _policies},
    alternatives=alternatives,
    conversions=conversions,
)
