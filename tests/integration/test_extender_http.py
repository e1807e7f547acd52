"""The extender over HTTP: what is no answer is no 200."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import pytest

from scheduler.service.answering import Extender
from scheduler.service.http import extender_app
from scheduler.service.leading import NOT_LEADER
from scheduler.service.metrics import Metrics
from scheduler.service.ports import BindCall
from tenure.serving.listening import Connections, listening
from tests.support.live import Live
from tests.support.objects import container, pod

pytestmark = pytest.mark.integration

Ask = Callable[[str, bytes], Coroutine[Any, Any, tuple[int, bytes]]]


class Binds:
    """Binds nothing, and says how."""

    async def bind(self, call: BindCall) -> str:
        """Answer with the call's own words."""
        await asyncio.sleep(0)
        return f"{call.namespace}/{call.pod_name} on {call.node_name}"


def served(act: Callable[[Ask, Metrics], Coroutine[Any, Any, None]], why: str = "") -> None:
    """Serve an extender over one node, and act on it."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    extender, metrics = (
        Extender(live.view, Binds(), why_not=lambda: why, groups=live.groups),
        Metrics(),
    )

    async def main() -> None:
        connections = Connections()
        app = extender_app(extender, metrics, connections.answering)
        async with (
            listening(app, ("127.0.0.1", 0), connections, finish_seconds=5.0) as port,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        ):

            async def ask(verb: str, body: bytes) -> tuple[int, bytes]:
                async with session.post(f"/{verb}", data=body) as answer:
                    return answer.status, await answer.read()

            await act(ask, metrics)

    asyncio.run(main())


def question(**more: object) -> bytes:
    """Return a question about one Pod."""
    body = pod(container(limits={"koordinator.sh/gpu": 100}), name="p", uid="pod-p")
    return json.dumps({"Pod": body, "NodeNames": ["a"], **more}).encode()


def test_every_verb_answers_in_json() -> None:
    """Status 200 and the message of the contract."""

    async def act(ask: Ask, _: Metrics) -> None:
        status, body = await ask("filter", question())
        assert (status, json.loads(body)["NodeNames"]) == (200, ["a"])
        status, body = await ask("prioritize", question())
        assert (status, json.loads(body)) == (200, [{"Host": "a", "Score": 1000}])
        status, body = await ask("preempt", question(NodeNameToMetaVictims={}))
        assert (status, json.loads(body)) == (200, {"NodeNameToMetaVictims": {}})
        call = {"PodName": "p", "PodNamespace": "ml", "PodUID": "pod-p", "Node": "a"}
        status, body = await ask("bind", json.dumps(call).encode())
        assert (status, json.loads(body)) == (200, {"Error": "ml/p on a"})

    served(act)


def test_what_can_not_be_read_is_a_400_and_counted() -> None:
    """The words say the field."""

    async def act(ask: Ask, metrics: Metrics) -> None:
        status, body = await ask("filter", b'{"Pod":{}}')
        assert status == 400
        assert b"NodeNames" in body
        broken = metrics.registry.get_sample_value(
            "tenure_extender_broken_calls_total", {"verb": "filter", "reason": "unreadable"}
        )
        assert broken == 1

    served(act)


def test_a_view_that_is_behind_is_a_503_where_the_answer_has_no_place_for_it() -> None:
    """Filter says it in its answer."""

    async def act(ask: Ask, _: Metrics) -> None:
        status, body = await ask("filter", question())
        assert (status, json.loads(body)) == (200, {"Error": "ClusterViewStale: nodes"})
        for verb in ("prioritize", "preempt"):
            status, body = await ask(verb, question(NodeNameToMetaVictims={}))
            assert (status, body) == (503, b"ClusterViewStale: nodes\n")

    served(act, why="ClusterViewStale: nodes")


def test_a_path_of_its_own_for_each_verb_and_no_other() -> None:
    """kube-scheduler posts; whatever else comes is refused by the router."""

    async def act(ask: Ask, _: Metrics) -> None:
        status, _body = await ask("reserve", b"{}")
        assert status == 404

    served(act)


def test_who_does_not_lead_says_so_and_closes_the_connection() -> None:
    """The next one goes to whoever leads; while it leads, connections stay."""

    async def main(why: str) -> tuple[str, str | None]:
        live = Live()
        extender = Extender(live.view, Binds(), why_not=lambda: why, groups=live.groups)
        connections, metrics = Connections(), Metrics()
        silent = why == NOT_LEADER
        app = extender_app(extender, metrics, connections.answering, lambda: silent)
        async with (
            listening(app, ("127.0.0.1", 0), connections, finish_seconds=5.0) as port,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
            session.post("/filter", data=question()) as answer,
        ):
            body = await answer.json()
            return body["Error"], answer.headers.get("Connection")

    assert asyncio.run(main(NOT_LEADER)) == (NOT_LEADER, "close")
    assert asyncio.run(main("ClockSkew")) == ("ClockSkew", None)
