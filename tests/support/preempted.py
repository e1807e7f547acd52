"""kube-scheduler's preemption in a world of two services: by sums, at once, and again and again."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from ledger.domain.log.events import PreemptionDecided
from ledger.store.open import open_ledger
from tests.support import fake_api
from tests.support.fake_api import Json
from tests.support.two_services import CARDS, NAMESPACE, NODES, World, node_for, to_bind

HIGH: Final = "p8"
"""Its name is one that the world knows."""
LOW: Final = tuple(f"p{number}" for number in range(8))
HALF, WHOLE = 50, 100
CALM_SECONDS: Final = 20.0
PREEMPTING_SECONDS: Final = 120.0
AGAIN_SECONDS: Final = (0.01, 0.01, 0.01, 0.3, 1.0)


async def preempt(world: World, percent: int) -> tuple[set[str], str]:
    """
    Fill a world with halves of cards, and let a Pod of a higher priority come.

    The seed lets watches tell late, twice and in another order, Pods end at once or after a while,
    and one service be killed and started.

    Returns:
        UIDs of the Pods that were told to end, and the node of the one that came.
    """
    world.faults.calm = True
    world.start()
    agents = [asyncio.ensure_future(each.report()) for each in world.machines.values()]
    await asyncio.sleep(2.5)
    world.server.delete(f"{NAMESPACE}/pods/older")
    asking = asyncio.ensure_future(world.kube_scheduler())
    await asyncio.sleep(5.0)
    for name in LOW:
        world.put_pod(name, HALF, priority=1)
    await asyncio.sleep(CALM_SECONDS)
    asking.cancel()
    world.faults.calm = False
    world.put_pod(HIGH, percent, priority=9)
    ended: set[str] = set()
    loop = asyncio.get_running_loop()
    until, killed = loop.time() + PREEMPTING_SECONDS, world.rng.randrange(2)
    world.later(PREEMPTING_SECONDS / 2, lambda: _set_right(world))
    while loop.time() < until and not (node := await _try(world, ended)):
        if ended and not killed and world.leader is not None:
            killed = 1
            world.leader.crash()
            await asyncio.sleep(0.5)
            world.start()
        await asyncio.sleep(world.rng.choice(AGAIN_SECONDS))
    for task in agents:
        task.cancel()
    world.end()
    return ended, node


def _set_right(world: World) -> None:
    """Let watches be in order: no real one tells of a Pod after its end, for ever."""
    world.faults.calm = True
    if world.leader is not None:
        world.leader.relist()


async def _try(world: World, ended: set[str], *, may_end: bool = True) -> str:
    """Try to schedule the Pod that came, as kube-scheduler does; return its node."""
    service = world.leader
    pod = world.server.read(f"{NAMESPACE}/pods/{HIGH}")
    if service is None or pod is None or not service.ready:
        return ""
    node = node_for(service.extender, pod)
    if node:
        await service.extender.bind(to_bind(pod, node))
        after = world.server.read(f"{NAMESPACE}/pods/{HIGH}")
        return "" if after is None else str(after["spec"].get("nodeName") or "")
    wanted = {name: victims for name in NODES if (victims := _by_sums(world, pod, name))}
    nominated = (pod.get("status") or {}).get("nominatedNodeName")
    if any("deletionTimestamp" in one for one in _metadata(world, nominated or "", ended)):
        return ""  # not eligible
    entries = {name: {"Pods": [{"UID": uid} for uid in uids]} for name, uids in wanted.items()}
    if not (entries and may_end):
        return ""  # "expected at least one victim pod"
    body = json.dumps({"Pod": pod, "NodeNameToMetaVictims": entries}).encode()
    found = json.loads(service.extender.preempt(body))["NodeNameToMetaVictims"]
    if found:
        name = min(found, key=lambda each: (len(found[each]["Pods"]), each))
        uids = {one["UID"] for one in found[name]["Pods"]}
        ended |= uids
        path = f"{NAMESPACE}/pods/{HIGH}"
        if world.rng.randrange(4):  # else it is lost, as where a filter fails
            world.server.change(path, lambda it: it["status"].update(nominatedNodeName=name))
        for one in _on(world, name):
            if one["metadata"]["uid"] in uids:
                _end(world, one)
    return ""


def _metadata(world: World, name: str, uids: set[str]) -> list[Json]:
    """Return the metadata of these Pods on a node; others end by other hands."""
    found = [one["metadata"] for one in _on(world, name)]
    return [one for one in found if one["uid"] in uids]


def _end(world: World, pod: Json) -> None:
    path = fake_api.path_of(pod)
    if world.rng.randrange(2):
        world.server.delete(path)
    else:
        left = {"deletionTimestamp": fake_api.LEFT_AT}
        world.server.change(path, lambda it: it["metadata"].update(left))
        world.later(2.0, lambda: world.server.delete(path))


def _on(world: World, name: str) -> list[Json]:
    return [one for one in world.pods() if one["spec"].get("nodeName") == name]


def _by_sums(world: World, pod: Json, name: str) -> list[str]:
    """Return whom kube-scheduler wants to end on a node, nobody where the sums have room."""
    need, there = _percent(pod), _on(world, name)
    free = CARDS * WHOLE - sum(map(_percent, there))
    victims = []
    for one in sorted(there, key=lambda each: str(each["metadata"]["uid"])):
        if free < need:
            free += _percent(one)
            victims.append(str(one["metadata"]["uid"]))
    return victims


def _percent(pod: Json) -> int:
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    return int(limits["koordinator.sh/gpu"])


async def make_room(world: World) -> tuple[int, set[str], str]:
    """
    Let a Pod come that has room by sums alone, on one node or on both, beside both preemptors.

    Two cards with a low Pod of 60 % each; one node has Pods of 40 % beside them, where the seed
    says so, so that kube-scheduler ends Pods there; late, where the seed says so.

    Returns:
        How many sets of Pods were to end, the UIDs of those that ended, and the node of the Pod.
    """
    rng = world.rng
    world.faults.calm = True
    world.start()
    agents = [asyncio.ensure_future(each.report()) for each in world.machines.values()]
    await asyncio.sleep(2.5)
    world.server.delete(f"{NAMESPACE}/pods/older")
    asking = asyncio.ensure_future(world.kube_scheduler())
    await asyncio.sleep(5.0)
    full = rng.randrange(3)
    for name, percent in [*((name, 60) for name in LOW[:4]), *((name, 40) for name in LOW[4:])]:
        if percent == 60 or int(name[1:]) < 4 + full:
            world.put_pod(name, percent, priority=1)
            await asyncio.sleep(2.0)
    await asyncio.sleep(CALM_SECONDS)
    asking.cancel()
    world.faults.calm = False
    there = {str(one["metadata"]["uid"]) for one in world.pods()}
    world.put_pod(HIGH, 70, priority=9)
    world.server.ends = lambda path: _end(world, world.server.objects[path])
    loop, sets, node = asyncio.get_running_loop(), 0, ""
    ended: set[str] = set()
    until, killed = loop.time() + PREEMPTING_SECONDS, rng.randrange(2)
    kube_from = loop.time() + rng.choice((0.0, 0.0, 1.0, 3.0, 5.0, 12.0))
    world.later(PREEMPTING_SECONDS / 2, lambda: _set_right(world))
    while loop.time() < until and not node:
        before = len(ended)
        node = await _try(world, ended, may_end=loop.time() >= kube_from)
        sets += len(ended) > before
        gone = there - {str(one["metadata"]["uid"]) for one in world.pods()}
        if gone and not killed and world.leader is not None:
            killed = 1
            world.leader.crash()
            await asyncio.sleep(0.5)
            world.start()
        await asyncio.sleep(rng.choice((*AGAIN_SECONDS, 3.0)))
    gone = there - {str(one["metadata"]["uid"]) for one in world.pods()}
    for task in agents:
        task.cancel()
    world.end()
    with open_ledger(world.url, mode="read") as ledger:
        events = [one.event for one in ledger.read_events(after=0)]
    own = [one for one in events if isinstance(one, PreemptionDecided) and not one.over]
    return sets + len(own), gone, node
