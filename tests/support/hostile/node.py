"""Plays a node's agent that says what it likes, over a live scheduler in memory."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import nullcontext, suppress
from typing import Any, Final

from aiohttp.test_utils import TestClient, TestServer

from ledger.domain.annotations.checkpoints import DeviceCheckpoint
from ledger.domain.log.events import PodObserved
from scheduler.cluster.objects import ALONE
from scheduler.service.agents import CONFIRMED_MAX, SeenPod
from scheduler.service.api.agents import AgentRoutes
from scheduler.service.api.http import api_app
from scheduler.service.proofs import Signing
from tests.support.agent_scene import AGENT, CPUS, Believing, Known, agent_of
from tests.support.hostile.attack import Attack
from tests.support.reconciled import CLUSTER, LEDGER_KEY, PROOF_KEY, Cluster

Json = dict[str, Any]
NODE: Final = "a node's agent with a token of its own node"


class HostileNode:
    """
    Two nodes with a Pod of ours each, and the agent of the second one, which says what it likes.

    Attributes:
        cluster: `p` holds a card of `n0`, `q` one of `n1`.
    """

    def __init__(self) -> None:
        self.cluster = Cluster()
        for name in self.cluster.names:
            self.write_ids(name, f"board-{name}")
        self.cluster.bound_pods()

    def write_ids(self, name: str, board: str) -> None:
        """Write the ids of a machine into a Node, as its kubelet may."""
        ids = {"systemUUID": board, "machineID": board}
        self.cluster.server.change(
            f"/api/v1/nodes/{name}", lambda node: node["status"].update(nodeInfo=ids)
        )
        self.cluster.settle()

    def confirm(self, *messages: Json, node: str = "n1") -> list[Json]:
        """Confirm by the door of agents, and return the answers."""
        live = self.cluster.live

        async def checkpoint(_kept: str, _by: str) -> Json:
            return {}

        signing = Signing(
            cluster=CLUSTER,
            incarnation=lambda: "first",
            proof_key=PROOF_KEY,
            ledger_key=LEDGER_KEY,
            machine_of=lambda _: ("", ""),
        )
        routes = AgentRoutes(
            live.agents,
            live.view,
            proofs=signing,
            user=AGENT,
            reader=CPUS,
            why_not=str,
            checkpoint=checkpoint,
        )
        app = api_app(routes.routes(), Known(agent_of(node)), Believing(), lambda _: nullcontext())

        async def call() -> list[Json]:
            answers = []
            async with TestClient(TestServer(app)) as client:
                for message in messages:
                    path = "/agents/v1/confirmations"
                    async with client.post(path, json=message) as answer:
                        answers.append(json.loads(await answer.read()))
            return answers

        answers = asyncio.run(call())
        self.cluster.settle()
        return answers

    def is_held(self, pod: str) -> str:
        """Say whether a Pod holds its card still."""
        states = map(self.cluster.live.view.recorded, self.cluster.live.view.holding_nodes())
        held = {one.pod_uid for state in states if state for one in state.holdings.values()}
        return "held" if f"uid-{pod}" in held else "free"


def take_ids() -> str:
    """Write the ids of a lost machine into the own Node, and say that nothing runs."""
    node = HostileNode()
    node.cluster.server.delete("/api/v1/nodes/n0")
    node.cluster.settle()
    node.write_ids("n1", "board-n0")
    [answer] = node.confirm({"runs": []})
    node.cluster.wait(100)
    named = sorted(kind for kind in node.cluster.kinds if kind == "MachineIdsTaken")
    return f"{len(answer['cleared'])} Nodes cleared, its card is {node.is_held('p')}; {named[0]}"


def invent_pods() -> str:
    """Name Pods of another team on one card, as many as a message has, twelve times."""
    node = HostileNode()
    entry = {"container": "c", "resource": "nvidia.com/gpu", "ids": ["GPU-n1-0"]}

    def pod(number: int) -> Json:
        return {
            "pod_uid": f"x{number}",
            "namespace": "payments",
            "pod_name": f"x{number}" if number % 2 else "../../nodes",
            "devices": [entry],
        }

    numbers = range(0, 12 * CONFIRMED_MAX, CONFIRMED_MAX)
    node.confirm(
        *({"observed": [pod(first + each) for each in range(CONFIRMED_MAX)]} for first in numbers)
    )
    node.cluster.wait(60)
    events = [one for one in node.cluster.ledger.log if isinstance(one, PodObserved)]
    alone = sum(one.namespace == ALONE for one in events)
    billed = sum(one.namespace == "payments" for one in events)
    assert not any("payments" in path or ".." in path for _, path in node.cluster.api.calls)
    [kind] = set(node.cluster.kinds)
    assert not node.cluster.live.releasing.faults
    return f"{alone} held {ALONE}, {billed} by that team; {kind}"


def name_again() -> str:
    """Name one invented Pod and end it, more often than a node may at once."""
    node = HostileNode()
    live = node.cluster.live
    uid = live.view.nodes.uid("n1")
    assert uid is not None
    live.agents.heard("n1", uid)
    given = DeviceCheckpoint(
        pod_uid="x", container_name="c", resource_name="nvidia.com/gpu", device_ids=("GPU-n1-0",)
    )
    pod = SeenPod(pod_uid="x", namespace="payments", pod_name="x", entries=(given,))

    async def saying() -> None:
        for _ in range(600):
            live.agents.observed(uid, pod)
            await live.releasing.settle()
            live.agents.gone(uid, [pod.pod_uid])
            await live.releasing.settle()

    asyncio.run(saying())
    node.cluster.wait(60)
    events = [one.pod_uid for one in node.cluster.ledger.log if isinstance(one, PodObserved)]
    [kind] = set(node.cluster.kinds)
    return f"{events.count('x')} times recorded; {kind}"


def come_back() -> str:
    """Register anew by the name of a lost Node, with its ids, and say that nothing runs."""
    node = HostileNode()
    cluster = node.cluster
    cluster.server.delete("/api/v1/nodes/n0")
    cluster.settle()
    cluster.put_node("n0")
    node.write_ids("n0", "board-n0")
    [answer] = node.confirm({"runs": []}, node="n0")
    for name in ("r", "s"):
        cluster.put_pod(name, percent=100)
        with suppress(AssertionError):
            cluster.bind(name, "n0")
    states = map(cluster.live.view.recorded, cluster.live.view.holding_nodes())
    holders = [one for state in states if state for one in state.everyone()]
    cards = Counter(share.device_id for one in holders for share in one.shares)
    assert "GPU-n0-1" in cards, "the other card is given"
    twice = sum(number > 1 for number in cards.values())
    return (
        f"{len(answer['cleared'])} Nodes cleared, its card is {node.is_held('p')},"
        f" {twice} cards are given twice"
    )


def end_others() -> str:
    """Say that Pods of another node are gone."""
    node = HostileNode()
    node.confirm({}, node="n0")
    node.cluster.delete_pod("p")
    [answer] = node.confirm({"gone": ["uid-p"]})
    node.cluster.wait(10)
    return f"{answer['gone'][0]['result']}, its card is {node.is_held('p')}"


def end_running() -> str:
    """Say that a Pod of the own node is gone while it runs by the API."""
    node = HostileNode()
    [answer] = node.confirm({"gone": ["uid-q"]})
    node.cluster.wait(10)
    return f"{answer['gone'][0]['result']}, its card is {node.is_held('q')}"


ATTACKS: Final = (
    Attack(
        who=NODE,
        what="writes the ids of a lost machine into its own Node, and says that nothing runs there",
        play=take_ids,
    ),
    Attack(who=NODE, what="names 6,144 Pods of another team on one card", play=invent_pods),
    Attack(who=NODE, what="names a Pod that nobody has and ends it, 600 times", play=name_again),
    Attack(
        who=NODE,
        what="takes the name and the ids of a lost Node, and says that its living Pod does not run",
        play=come_back,
    ),
    Attack(who=NODE, what="says that a deleted Pod of another node is gone", play=end_others),
    Attack(who=NODE, what="says that a Pod is gone that runs by the API", play=end_running),
)
