"""What a claim has is let go of by somebody's act where its node is dark, on either database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Final

import pytest
from aiohttp.test_utils import TestClient, TestServer

from certs.ports import Object
from ledger.domain.log.events import ClaimReleased
from ledger.store.open import Ledger
from ledger.store.proving.verify import verify
from scheduler.service.api.acts import ActRoutes
from scheduler.service.api.callers import Caller
from scheduler.service.api.http import api_app
from scheduler.service.api.words import FORCE, HOLDINGS, ROOT
from scheduler.service.claims import claim_path
from tests.support.agent_scene import Believing, Known
from tests.support.dra import DRIVER, card, resource_claim, resource_slice
from tests.support.dra import result as of
from tests.support.fake_api import ApiClient, ApiServer
from tests.support.reconciled import Cluster, StoreLedger
from tests.support.stores import Store

Json = dict[str, Any]
PATH: Final = claim_path("ml", "gpu")
CONFIRMED: Final = "tenure.sh/confirmed"
ORDER: Final = {"reason": "its node is burnt", "actor": "user/anna"}


class Allowing(ApiClient):
    """An API server by which everybody may do everything."""

    def __init__(self) -> None:
        super().__init__(ApiServer(), asyncio.sleep)

    async def create(self, path: str, body: Object) -> Json:
        """Allow it."""
        assert body["spec"]["resourceAttributes"]["verb"] == FORCE, path
        return {"status": {"allowed": True}}


class Dark:
    """A node with an agent that reads claims, a claim there that a Pod uses, and darkness."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.cluster = Cluster(nodes=1, ledger=StoreLedger(ledger), drivers=(DRIVER,))
        cards = resource_slice([card("gpu-0", "GPU-n0-0"), card("gpu-1", "GPU-n0-1")], node="n0")
        cards["metadata"]["uid"] = "slice"
        self.cluster.server.put("/slices/n0", cards)
        self.put(self.claim())
        self.cluster.settle()
        assert self.writes(self.claim("train"))
        self.put(self.claim("train"))
        self.cluster.put_pod("train", 0, nodeName="n0")
        agents = self.cluster.live.agents
        [uid] = (state.uid for state in self.cluster.live.releasing.states("n0"))
        agents.heard("n0", uid)
        agents.claims.heard(uid, reads=True)
        self.cluster.wait(300, step=30)

    def claim(self, *pods: str) -> Json:
        """Return the claim, allocated if Pods use it."""
        results = [of("gpu-0", node="n0")] if pods else []
        made = resource_claim("gpu", *results, node="n0", pods=pods, namespace="ml")
        return {**made, "metadata": {**made["metadata"], "annotations": {}}}

    def put(self, claim: Json) -> None:
        """Let the API store it."""
        self.cluster.server.put(PATH, claim)
        self.cluster.settle()

    def writes(self, claim: Json) -> bool:
        """Tell whether a write of the claim's status is let through."""
        old = self.cluster.server.read(PATH)
        assert old is not None
        new = {**claim, "metadata": old["metadata"]}
        review = {"request": {"uid": "r", "object": new, "oldObject": old}}
        answer = asyncio.run(self.cluster.live.guard.gate.answer(json.dumps(review).encode()))
        return bool(json.loads(answer)["response"]["allowed"])

    def force(self, name: str = "gpu", uid: str = "") -> dict[str, bool]:
        """Order that a claim is let go of."""
        act = self.cluster.live.guard.gate.force(
            "ml", name, uid, reason=ORDER["reason"], actor=ORDER["actor"]
        )
        return asyncio.run(act)

    def order(self, name: str = "gpu", *, dry_run: bool = False) -> tuple[int, Json]:
        """Order it over the listener, with the right to."""
        live = self.cluster.live
        acts = ActRoutes(live.releasing, live.guard.gate, live.agents, Allowing(), why_not=str)
        known = Known(Caller(user="anna"))
        app = api_app(acts.routes(), known, Believing(), lambda _: nullcontext())
        path = f"{ROOT}/namespaces/ml/{HOLDINGS}/{name}/release"

        async def ordering() -> tuple[int, Json]:
            async with (
                TestClient(TestServer(app)) as client,
                client.post(path, json={"reason": ORDER["reason"], "dryRun": dry_run}) as answer,
            ):
                return answer.status, json.loads(await answer.read())

        return asyncio.run(ordering())

    def ends(self) -> list[tuple[str, str]]:
        """Return by whom and why claims were released; the ledger is sound."""
        assert verify(self.ledger).findings == ()
        return [
            (one.envelope.actor, one.event.reason)
            for one in self.ledger.read_events()
            if isinstance(one.event, ClaimReleased)
        ]

    def held(self) -> int:
        """Return how many claims hold something."""
        [state] = self.cluster.live.releasing.states("n0")
        return len(state.claims)


@pytest.fixture
def dark(store: Store) -> Iterator[Dark]:
    """Return a claim on a dark node."""
    with store.open() as ledger:
        yield Dark(ledger)


def test_a_claim_goes_once_its_controller_takes_it_away(dark: Dark) -> None:
    """Of a Pod that is gone by the API alone; who ordered it, and why, is recorded."""
    assert not dark.writes(dark.claim()), "its Pod runs"
    assert dark.force() == {}, "nothing of it waits"
    dark.cluster.delete_pod("train")
    assert not dark.writes(dark.claim()), "its node has not confirmed it"
    dark.cluster.wait(60, step=20)
    assert dark.force("other") == dark.force(uid="another") == {}

    assert dark.order(dry_run=True) == (200, {"released": [], "let_go": ["uid-gpu"]})
    assert not dark.writes(dark.claim()), "it was only asked"
    assert dark.ends() == []

    assert dark.order() == (200, {"released": [], "let_go": ["uid-gpu"]})

    stored = dark.cluster.server.read(PATH)
    assert stored is not None
    assert CONFIRMED in stored["metadata"]["annotations"], "its controller is woken"
    assert dark.held() == 1
    assert dark.writes(dark.claim())
    dark.put(dark.claim())
    assert dark.ends() == [("user/anna", "forced: its node is burnt")]
    assert dark.held() == 0
    assert dark.writes(dark.claim("next")), "the card is given again"


def test_a_claim_that_is_gone_is_released_at_once(dark: Dark) -> None:
    """Its finalizer was stripped: nobody will ever take its allocation away."""
    dark.cluster.delete_pod("train")
    dark.cluster.server.delete(PATH)
    dark.cluster.wait(60, step=20)
    assert dark.held() == 1

    assert dark.order("other")[0] == dark.order("other", dry_run=True)[0] == 409
    assert dark.order(dry_run=True) == (200, {"released": [], "let_go": ["uid-gpu"]})
    assert dark.held() == 1
    assert dark.order() == (200, {"released": ["uid-gpu"], "let_go": []})

    assert dark.ends() == [("user/anna", "forced: its node is burnt")]
    assert dark.order()[0] == 409


def test_nothing_is_let_go_of_that_a_pod_uses_by_the_api_itself(dark: Dark) -> None:
    """Whatever our watch has told of it."""
    dark.cluster.live.view.pods.drop("uid-train")
    assert not dark.writes(dark.claim())
    dark.cluster.settle()

    assert dark.force() == {}

    assert not dark.writes(dark.claim())
    assert dark.ends() == []


def test_a_word_of_before_its_pod_ran_counts_no_more(dark: Dark) -> None:
    """A Pod that comes to run after it, and goes before anybody looked: it is ordered again."""
    dark.cluster.delete_pod("train")
    assert not dark.writes(dark.claim())
    dark.cluster.settle()
    assert dark.force() == {"uid-gpu": False}

    dark.cluster.put_pod("train", 0, nodeName="n0")
    dark.cluster.delete_pod("train")

    assert not dark.writes(dark.claim())
    dark.cluster.settle()
    agents = dark.cluster.live.agents
    [state] = dark.cluster.live.releasing.states("n0")
    agents.claims.said(state.uid, agents.claims.told(state.uid)[1])
    assert dark.writes(dark.claim())
    dark.put(dark.claim())
    assert dark.ends() == [("scheduler/test", "deallocated")]
