from __future__ import annotations

from typing import Final

import pytest

from tests.support.objects import container, gpu_pod, pod
from tests.support.requests_to_admit import creation
from webhook.server.reading import Needs, needs_of

CARDS: Final = (
    "nvidia.com/gpu",
    "koordinator.sh/gpu",
    "koordinator.sh/gpu-core",
    "koordinator.sh/gpu-memory",
    "kubernetes.io/gpu",
    "kubernetes.io/gpu-mem-ratio",
    "vke.volcengine.com/mgpu-core",
    "vke.volcengine.com/mgpu-memory",
    "aliyun.com/gpu-mem",
)


@pytest.mark.parametrize("section", ["limits", "requests"])
@pytest.mark.parametrize("name", CARDS)
def test_quotas_are_looked_up_for_cards_in_every_dialect(name: str, section: str) -> None:
    """A quota on one dialect counts the cards of all, so each of them asks for it."""
    for body in (
        pod(container("a", **{section: {name: 1}})),
        pod(container("a"), init=[container("i", **{section: {name: 1}})]),
    ):
        needs = needs_of(creation(body))
        assert needs == Needs(namespace=needs.namespace, quotas=True)


def test_other_pods_need_no_quotas() -> None:
    """Most Pods of a cluster ask for no card."""
    assert not needs_of(creation(gpu_pod({"cpu": 1}))).quotas
