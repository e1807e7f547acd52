"""Marks of Pods whose share is assigned: once each, and of nobody else's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from agent.decide.gpushare import marking, read_share_pod
from certs.ports import ConflictError
from tenure.serving.agent import Marker
from tests.support.machines_found import card
from tests.support.shares import ShareNode, given, share_pod

PODS = "/api/v1/namespaces/ml/pods"


class Written:
    """An API that takes patches, and refuses those of some Pods."""

    def __init__(self, started: asyncio.Event) -> None:
        self.started = started
        self.patches: list[tuple[str, Sequence[Mapping[str, Any]]]] = []
        self.refused: set[str] = set()

    async def read(self, path: str) -> Mapping[str, Any] | None:
        """Return the Node; a container starts meanwhile, so that the next round comes at once."""
        self.started.set()
        assert path == "/api/v1/nodes/n-17"
        return {"metadata": {"labels": {"cgpu.disable.isolation": "true"}}}

    async def patch(self, path: str, operations: Sequence[Mapping[str, Any]]) -> object:
        """Take a patch."""
        self.patches.append((path, operations))
        if path in self.refused:
            raise ConflictError("a test failed")
        return {}


def test_a_pod_is_marked_once_whatever_the_api_says() -> None:
    """Kubelet tells of it as it was for a while; one that is gone or another is not tried again."""
    node = ShareNode(cards=(card(0),), rng=random.Random(1))
    for name in ("a", "b"):
        pod = share_pod(name, 2)
        node.pods[f"uid-{name}"] = pod
        node.record[f"uid-{name}", "c0"] = given(f"uid-{name}", "c0", [name])
    node.pods["uid-c"] = share_pod("c", 2)  # not recorded
    api = Written(node.agent.started)
    api.refused.add(f"{PODS}/b")
    marker = Marker(api, "n-17", node.agent)

    async def rounds() -> None:
        for _ in range(3):
            await marker.round()

    asyncio.run(rounds())

    read = {name: read_share_pod(node.pods[f"uid-{name}"]) for name in ("a", "b")}
    assert [path for path, _ in api.patches] == [f"{PODS}/a", f"{PODS}/b"]
    for (_, operations), one in zip(api.patches, read.values(), strict=True):
        assert one is not None
        assert operations == marking(one)
    assert node.agent._labels == {"cgpu.disable.isolation": "true"}
