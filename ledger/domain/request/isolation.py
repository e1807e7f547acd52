"""
Which nodes keep a Pod and its neighbours on a card to their parts: the provider that it needs.

Rule: Koordinator contract 2.1 and 2.3; design section 8: parts are accounting without a provider.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ledger.domain.annotations.tenure import waives_isolation
from ledger.domain.request.requests import DeviceDemand, PlacementRules
from ledger.domain.resources import LABEL_GPU_ISOLATION_PROVIDER, TYPE_GPU


def provider_needed(
    demands: Iterable[DeviceDemand],
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    meant: str,
) -> str:
    """
    Return the provider that a node must have for a Pod, empty where any node will do.

    A Pod that shares no card needs none. Its own label counts; else what its words mean, unless its
    namespace does without, of which admission leaves a mark on it.

    Args:
        meant: the provider that the Pod's dialect is of; empty where it promises no limits.
    """
    if not any(one.device_type == TYPE_GPU and not one.exclusive for one in demands):
        return ""
    said = labels.get(LABEL_GPU_ISOLATION_PROVIDER, "")
    return said or ("" if waives_isolation(annotations) else meant)


def with_provider(rules: PlacementRules, provider: str) -> PlacementRules:
    """Return the rules of a Pod that needs a provider."""
    if not provider:
        return rules
    pair = (LABEL_GPU_ISOLATION_PROVIDER, provider)
    return replace(rules, node_selector=tuple(sorted({*rules.node_selector, pair})))


def provider_of(rules: PlacementRules) -> str:
    """Return the provider that a node must have, empty where any will do."""
    return dict(rules.node_selector).get(LABEL_GPU_ISOLATION_PROVIDER, "")


def is_limited(rules: PlacementRules, labels: Mapping[str, str]) -> bool:
    """Tell whether a node with these labels has the provider that a Pod needs, if it needs one."""
    needed = provider_of(rules)
    return not needed or labels.get(LABEL_GPU_ISOLATION_PROVIDER) == needed


def whatever_isolates(rules: PlacementRules) -> PlacementRules | None:
    """Return the rules without what they say of a provider; None where they say nothing."""
    left = tuple(one for one in rules.node_selector if one[0] != LABEL_GPU_ISOLATION_PROVIDER)
    return None if left == rules.node_selector else replace(rules, node_selector=left)
