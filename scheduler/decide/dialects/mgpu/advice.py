"""What would make an mGPU Pod fit beside smaller amounts: other policies, other settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.decide.dialects.protocol import Nodes
from scheduler.decide.settings import SchedulingSettings


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
