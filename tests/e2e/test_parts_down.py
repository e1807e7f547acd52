"""Parts are killed, or can't reach each other, while Pods come: nothing is given twice or leaks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from sqlalchemy import make_url

from tests.support.kube.at_rest import check_at_rest, listed, live, prove, wait
from tests.support.kube.bursts import burst, remove_pods
from tests.support.kube.control_plane import SCHEDULER_ACCOUNT, ControlPlane, Program
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.meddler import Meddler, meddling
from tests.support.kube.pods import pods_in
from tests.support.kube.schedulers import (
    KUBE_SCHEDULER,
    Identities,
    Served,
    add_gpu_node,
    asking,
    extender,
    issue,
    remove_node,
)
from tests.support.postgres import OwnServer, own_server
from tests.support.recount import held_by_ledger
from tests.support.relay import Relay, relay_to, through
from tests.support.stores import PostgresStore

NODES: Final = ("down-1", "down-2", "down-3")
DOWN_SECONDS: Final = 1.0
SHORT_SECONDS: Final = 1.0
LONG_SECONDS: Final = 25.0
"""Longer than a Lease lasts, and than any call waits."""
LINKS: Final = ("service-api", "service-ledger", "kube_scheduler-service", "kube_scheduler-api")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All parts, with a relay on every link between two of them."""

    plane: ControlPlane
    postgres: OwnServer
    kube_scheduler: Program
    served: Served
    links: dict[str, Relay]
    meddler: Meddler
    ledger: str
    folder: Path

    @contextlib.contextmanager
    def meddled(self, what: str, how: object) -> Iterator[None]:
        """Let the service be told of the API server's objects, or its clock, in another way."""
        before = getattr(self.meddler, what)
        setattr(self.meddler, what, how)
        try:
            yield
        finally:
            setattr(self.meddler, what, before)

    @contextlib.contextmanager
    def killed(self, what: str) -> Iterator[None]:
        """Kill a part; it is started again when the block ends, and then there."""
        plane = self.plane
        if what == "postgres":
            self.postgres.kill()
        else:
            self.program(what).kill()
        try:
            yield
        finally:
            if what == "postgres":
                self.postgres.start()
            else:
                self.program(what).start()
            plane.wait_ready()

    def program(self, what: str) -> Program:
        """Return a process by its name."""
        plane = self.plane
        return {
            "etcd": plane.etcd,
            "kube-apiserver": plane.server,
            "kube-scheduler": self.kube_scheduler,
        }[what]

    def words(self) -> str:
        """Return the ends of what service and kube-scheduler logged."""
        return f"{self.served.words()}\n{self.kube_scheduler.words()}"


@pytest.fixture(scope="module")
def world(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three nodes of eight cards, a ledger on a Postgres of its own, one service that goes on."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    folder = tmp_path_factory.mktemp("parts")
    identities: Identities = issue(folder / "identities")
    api = urlsplit(plane.url).port
    assert api is not None
    with ExitStack() as stack:
        for name in NODES:
            add_gpu_node(plane, name)
            stack.callback(remove_node, plane, name)
        postgres = stack.enter_context(own_server(durable=False))
        store = PostgresStore(server=postgres.server, database=postgres.server.new_database())
        store.open("create").close()
        meddler = stack.enter_context(meddling(plane))
        to_api, to_ledger, from_api = (
            stack.enter_context(relay_to(where))
            for where in (meddler.port, make_url(store.url), api)
        )
        reached = f"http://127.0.0.1:{to_api.port}"
        served = stack.enter_context(
            extender(
                plane,
                through(store.url, to_ledger.port),
                identities,
                kubeconfig=plane.kubeconfig(SCHEDULER_ACCOUNT, reached),
                forked=True,
            )
        )
        to_service = stack.enter_context(relay_to(served.port))
        seen = plane.kubeconfig(KUBE_SCHEDULER, f"https://127.0.0.1:{from_api.port}")
        config = asking(plane, to_service, identities, kubeconfig=seen, impatient=True)
        scheduler = stack.enter_context(plane.scheduler(config))
        links = dict(zip(LINKS, (to_api, to_ledger, to_service, from_api), strict=True))
        yield World(
            plane=plane,
            postgres=postgres,
            kube_scheduler=scheduler,
            served=served,
            links=links,
            meddler=meddler,
            ledger=store.url,
            folder=folder,
        )
        prove(store.url, folder)


def go_through(
    world: World,
    where: str,
    fault: Callable[[], AbstractContextManager[None]],
    seconds: float,
    *,
    more: int = 1,
) -> None:
    """Let something fail while Pods come and end; all are bound, and the service goes on."""
    plane = world.plane
    there = set(burst(plane, where, 2, prefix="before-"))
    wait(lambda: len(live(listed(plane, where))) > len(there) // 4, world.words)
    ended = live(listed(plane, where))[0]["metadata"]["name"]
    remove_pods(plane, where, [ended])
    with fault():
        if more:
            there.update(burst(plane, where, more, prefix="within-"))
        time.sleep(seconds)
    there.update(burst(plane, where, 1, prefix="after-"))
    wait(lambda: len(live(listed(plane, where))) == len(there) - 1, world.words)
    pods = check_at_rest(plane, where, world.ledger, world.words)
    assert world.served.process.poll() is None, world.served.words()
    remove_pods(plane, where, [one["metadata"]["name"] for one in pods])
    wait(lambda: not held_by_ledger(world.ledger), world.words)


@pytest.mark.parametrize("what", ["kube-apiserver", "etcd", "postgres", "kube-scheduler"])
def test_a_part_is_killed_and_started_again_under_load(
    world: World, namespace: Callable[..., str], what: str
) -> None:
    """SIGKILL, and a second of nothing: whoever is left goes on by itself, nobody has to act."""
    where = pods_in(namespace(managed=False))
    go_through(world, where, partial(world.killed, what), DOWN_SECONDS, more=0)


@pytest.mark.parametrize("how", ["fallen_silent", "cut"])
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(SHORT_SECONDS, id="for a moment"),
        pytest.param(LONG_SECONDS, id="for long", marks=pytest.mark.slow),
    ],
)
def test_two_parts_can_not_reach_each_other_for_a_while(
    world: World, namespace: Callable[..., str], link: str, how: str, seconds: float
) -> None:
    """With connections that end and with some that only fall silent, as networks do."""
    where = pods_in(namespace(managed=False))
    go_through(world, where, getattr(world.links[link], how), seconds)


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("mixed_up", id="events twice, late, in another order"),
        pytest.param("gone", id="a storm of 410"),
    ],
)
def test_watches_that_tell_what_no_api_server_does_change_nothing(
    world: World, namespace: Callable[..., str], what: str
) -> None:
    """What is not believed is listed anew; nothing is decided by what is not so."""
    where = pods_in(namespace(managed=False))
    go_through(world, where, partial(world.meddled, what, 15), SHORT_SECONDS)
    assert world.meddler.counts[what] > 0


@pytest.mark.parametrize("hours", [1, -1], ids=["behind", "ahead"])
def test_a_clock_that_jumps_grants_nothing_until_it_is_right_again(
    world: World, namespace: Callable[..., str], hours: int
) -> None:
    """Ours, by the API server's; the Lease is let go, and is had again by itself."""

    @contextlib.contextmanager
    def jumped() -> Iterator[None]:
        with world.meddled("ahead", timedelta(hours=hours)):
            wait(lambda: not world.served.leads(), world.words)
            yield

    go_through(world, pods_in(namespace(managed=False)), jumped, 0.0)
