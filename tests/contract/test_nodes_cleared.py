"""What lost Pods hold of a node ends by somebody's act through the live service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Final

import pytest
from aiohttp.test_utils import TestClient, TestServer

from ledger.domain.log.events import NodeCleared
from ledger.store.open import Ledger
from ledger.store.proving.verify import verify
from scheduler.service.api.acts import ActRoutes
from scheduler.service.api.callers import Caller
from scheduler.service.api.http import api_app
from scheduler.service.api.words import HOLDINGS, ROOT
from tests.contract.test_claims_let_go import Allowing
from tests.support.agent_scene import Believing, Known
from tests.support.reconciled import Cluster, StoreLedger
from tests.support.stores import Store

REASON: Final = "powered off, ticket 12"


class Lost:
    """A service, and a node that went while a Pod of ours ran there."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.cluster = Cluster(nodes=2, ledger=StoreLedger(ledger)).bound_pods()
        self.why_not = ""
        self.cluster.server.delete("/api/v1/nodes/n0")
        self.cluster.settle()

    def order(self, node: str, **more: object) -> tuple[int, dict[str, Any]]:
        """Order that a node is cleared, with the right to."""
        live = self.cluster.live
        acts = ActRoutes(
            live.releasing, live.guard.gate, live.agents, Allowing(), why_not=lambda: self.why_not
        )
        known = Known(Caller(user="anna"))
        app = api_app(acts.routes(), known, Believing(), lambda _: nullcontext())
        path = f"{ROOT}/{HOLDINGS}/{node}/clear"

        async def ordering() -> tuple[int, dict[str, Any]]:
            async with (
                TestClient(TestServer(app)) as client,
                client.post(path, json={"reason": REASON} | more) as answer,
            ):
                return answer.status, json.loads(await answer.read())

        return asyncio.run(ordering())

    def acts(self) -> list[tuple[str, str, str]]:
        """Return by whom and why which nodes were cleared; the ledger is sound."""
        assert verify(self.ledger).findings == ()
        return [
            (one.envelope.actor, one.event.node_name, one.event.reason)
            for one in self.ledger.read_events()
            if isinstance(one.event, NodeCleared)
        ]


@pytest.fixture
def lost(store: Store) -> Iterator[Lost]:
    """Return a node that was lost under its holder."""
    with store.open() as ledger:
        yield Lost(ledger)


def test_the_service_clears_a_lost_node_and_goes_on(lost: Lost) -> None:
    """By name or UID; who ordered it, and why, is recorded, and no other writer took over."""
    epoch = lost.ledger.head().epoch
    ended = {"node": "n0", "node_uid": "uid-n0-0", "pod": "ml/p", "pod_uid": "uid-p"}
    assert lost.order("n0", dryRun=True) == (200, {"ended": [ended]})
    assert lost.acts() == []
    assert lost.order("uid-n0-0") == (200, {"ended": [ended]})
    assert lost.acts() == [("user/anna", "n0", REASON)]
    assert lost.order("n0")[0] == 409
    assert lost.ledger.head().epoch == epoch
    lost.cluster.put_pod("next")
    lost.cluster.bind("next", "n1")


@pytest.mark.parametrize(
    ("node", "more", "status"),
    [
        ("n9", {}, 409),
        ("n1", {}, 409),
        ("n0", {"uid": "uid-p"}, 400),
        ("n0", {"reason": " "}, 400),
    ],
    ids=["a node nobody knows", "a live node", "a holder's UID", "no reason"],
)
def test_what_is_not_lost_or_not_whole_is_not_cleared(
    lost: Lost, node: str, more: dict[str, object], status: int
) -> None:
    """Nothing is recorded."""
    assert lost.order(node, **more)[0] == status
    assert lost.acts() == []


def test_a_service_that_can_record_nothing_refuses(lost: Lost) -> None:
    """It is asked again later, or another replica is."""
    lost.why_not = "NotLeader"
    assert lost.order("n0")[0] == 503
    assert lost.acts() == []
