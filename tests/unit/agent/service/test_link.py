"""An agent follows the service's own listener, with what goes wrong on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from agent.decide.confirming import Said
from agent.https import NoAnswerError
from agent.service.link import RefusedError, ServiceLink
from agent.service.wire import confirmation
from ledger.domain.annotations.proof import ProvenContainer, ProvenDevice
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import InputError
from tests.support.agent_scene import agent_of
from tests.support.agent_world import Linked

GIVEN = ProvenContainer(
    index="0", devices=(ProvenDevice(device_type="gpu", device_id="GPU-a-0", minor=0),)
)


@pytest.fixture
def world(tmp_path: Path) -> Linked:
    """A service with nodes `a` and `b`."""
    return Linked(tmp_path)


async def until(link: ServiceLink, holds: Callable[[], bool]) -> None:
    """Run a link until something holds."""
    running = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(60):
            while not holds():
                assert not running.done()
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def pods_of(link: ServiceLink) -> set[str]:
    """Return the Pods that are known to hold something."""
    return set() if link.holdings is None else {one.pod_uid for one in link.holdings.pods()}


def test_it_knows_the_holdings_of_its_node_and_then_every_change(world: Linked) -> None:
    """With container, device and amounts, as the ledger has them."""
    world.scene.hold("p")
    world.scene.hold("of-b", "b")

    async def act(link: ServiceLink) -> None:
        await until(link, lambda: link.is_heard)
        assert pods_of(link) == {"pod-p"}
        assert link.holdings is not None
        [one] = link.holdings.pods()
        assert (one.namespace, one.phase, one.kind) == ("ml", "bound", "granted")
        [device] = one.devices
        assert (device.device_id, device.core_percent) == ("GPU-a-0", 50)
        event = world.scene.hold("q")
        await until(link, lambda: pods_of(link) == {"pod-p", "pod-q"})
        world.scene.live.release(event)
        await until(link, lambda: pods_of(link) == {"pod-p"})
        assert link.age_seconds() is not None

    world.run(act)
    paths = [path for path, _ in world.asked]
    assert paths[0] == "/agents/v1/holdings?mode="
    assert all(path.startswith("/agents/v1/changes?after=") for path in paths[1:])


def test_it_knows_the_claims_with_cpus_and_takes_none_for_a_pod(world: Linked) -> None:
    """At first, when one comes and when one ends; by the changes, which it waits for."""

    def cpus(link: ServiceLink) -> list[tuple[str, str]]:
        claims = link.holdings.cpu_claims if link.holdings else None
        return [(one.name, str(one.cpus)) for one in claims or ()]

    async def act(link: ServiceLink) -> None:
        world.scene.claim("c", "2-3")
        await until(link, lambda: cpus(link) == [("c", "2-3")])
        world.scene.claim("d", "6-7")
        await until(link, lambda: cpus(link) == [("c", "2-3"), ("d", "6-7")])
        world.scene.claim_ends("c")
        await until(link, lambda: cpus(link) == [("d", "6-7")])
        assert pods_of(link) == set()

    world.run(act)
    assert len(world.asked) < 20, "it waits in between"


def test_who_asks_seldom_waits_for_the_connection_that_is_there(world: Linked) -> None:
    """Until a question for changes is answered; the next one waits for its answer."""

    def asks() -> list[str]:
        return [path.partition("?")[0].rpartition("/")[2] for path, _ in world.asked]

    async def act(link: ServiceLink) -> None:
        link.again_seconds = 60
        running = asyncio.create_task(link.run())
        async with asyncio.timeout(60):
            while asks() != ["holdings", "changes"]:  # noqa: ASYNC110 - it tells of no change
                await asyncio.sleep(0.01)
            asking = asyncio.create_task(link.checkpoint(""))
            await asyncio.sleep(0.05)
            world.scene.hold("p")
            await asking
            while asks()[-2:] != ["checkpoint", "changes"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        running.cancel()

    world.run(act)
    assert asks()[:3] == ["holdings", "changes", "checkpoint"]
    assert len(world.connections) == 1


def test_the_token_is_read_at_every_question(world: Linked) -> None:
    """Kubelet writes it anew before it expires."""

    async def act(link: ServiceLink) -> None:
        await until(link, lambda: link.is_heard)
        (world.folder / "token").write_text("another")
        world.scene.hold("p")
        await until(link, lambda: pods_of(link) == {"pod-p"})

    world.run(act)
    assert {token for _, token in world.asked} >= {"Bearer secret", "Bearer another"}


def test_a_service_that_does_not_answer_leaves_the_last_word(world: Linked) -> None:
    """It says so, and goes on once there is an answer."""
    world.scene.hold("p")

    async def act(link: ServiceLink) -> None:
        await until(link, lambda: link.is_heard)
        world.scene.why = "it has not the ledger"
        world.scene.hold("q")
        await until(link, lambda: link.state.failures > 0)
        assert (link.is_heard, pods_of(link)) == (False, {"pod-p"})
        assert "it has not the ledger" in link.state.problem
        world.scene.why = ""
        await until(link, lambda: link.is_heard)
        assert pods_of(link) == {"pod-p", "pod-q"}

    world.run(act)


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda world: (world.folder / "token").unlink(), id="no token"),
        pytest.param(lambda world: (world.folder / "ca.crt").unlink(), id="no authority"),
        pytest.param(
            lambda world: setattr(world.scene.known, "caller", agent_of("")), id="of no node"
        ),
    ],
)
def test_what_keeps_it_from_asking_is_said(
    world: Linked, break_it: Callable[[Linked], object]
) -> None:
    """And asked again later; nothing ends."""
    break_it(world)

    async def act(link: ServiceLink) -> None:
        await until(link, lambda: link.state.failures > 0)
        assert (link.is_heard, link.holdings, link.age_seconds()) == (False, None, None)
        assert link.state.problem

    world.run(act)


def test_nobody_listens(world: Linked) -> None:
    """A port without anybody is a failure like any other."""

    async def act() -> None:
        async with aiohttp.ClientSession() as session:
            link = world.link(session, "http://127.0.0.1:1")
            await until(link, lambda: link.state.failures > 0)
            with pytest.raises(NoAnswerError, match="can't be reached"):
                await link.confirm(Said(gone=("pod-p",)))

    asyncio.run(act())


def test_a_confirmation_says_of_a_container_what_was_seen_and_no_more() -> None:
    """Nobody looks at its CPUs, or at how much of a card it uses: the ledger's word is no fact."""
    given = replace(GIVEN, cpus=parse_cpuset("0-3"))
    [said] = json.loads(confirmation(Said(assigned=(("p", 1, (given,)),))))["assigned"]
    [container] = said["containers"]
    assert container.keys() == {"index", "devices"}
    assert [each.keys() for each in container["devices"]] == [{"device_type", "device_id", "minor"}]


def test_what_it_confirms_is_heard(world: Linked) -> None:
    """What a container was given, and that nothing of a Pod is left; a refusal is raised."""
    world.scene.hold("p")

    async def act(link: ServiceLink) -> None:
        said = await link.confirm(
            Said(assigned=(("pod-p", 1, (GIVEN,)), ("pod-z", 1, ())), gone=("pod-p",))
        )
        assert [one.result for one in said.assigned] == ["assigned", "unknown"]
        assert [(one.pod_uid, one.result) for one in said.gone] == [("pod-p", "noted")]
        world.scene.why = "it has not the ledger"
        with pytest.raises(RefusedError, match="503: it has not the ledger"):
            await link.confirm(Said(gone=("pod-p",)))

    world.run(act)


CPUS_THAT_ARE_NO_TEXT = json.dumps(
    {
        "format": 1,
        "node": {"name": "a", "uid": "uid-a"},
        "position": 1,
        "holdings": [{"pod_uid": "p", "attempt": 1, "containers": [{"index": "0", "cpus": 7}]}],
    }
)


@pytest.mark.parametrize(
    "body",
    ["", "[]", '{"format": 2}', '{"format": 1, "node": {}}', CPUS_THAT_ARE_NO_TEXT],
    ids=["nothing", "a list", "another format", "no node", "CPUs that are no text"],
)
def test_an_answer_of_another_kind_is_none(world: Linked, body: str) -> None:
    """Its words are not taken for holdings."""
    app = web.Application()

    async def other(_: web.Request) -> web.Response:
        return web.Response(text=body)

    app.router.add_get("/agents/v1/holdings", other)
    app.router.add_post("/agents/v1/confirmations", other)

    async def act(link: ServiceLink) -> None:
        await until(link, lambda: link.state.failures > 0)
        assert link.holdings is None
        if not body.startswith("{"):
            with pytest.raises(InputError):
                await link.confirm(Said(gone=("p",)))

    world.run_with(app, act)
