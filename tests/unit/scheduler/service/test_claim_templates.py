"""Templates are made for Pods that wait for them, and taken away when nobody has named them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from certs.ports import ApiError
from ledger.domain.dialects.dra.asking import Giver
from scheduler.service.claim_templates import (
    ALL_TEMPLATES,
    UNUSED_SECONDS,
    ClaimTemplates,
    templates_in,
)
from tests.support.fake_api import ApiClient, ApiServer
from tests.support.gated import DRIVER
from tests.support.live import StillClock
from tests.support.owning import by_claim

SIZES = (16 << 30,)


class World:
    """An API server, and the service that keeps templates in it."""

    def __init__(self) -> None:
        self.server, self.clock = ApiServer(), StillClock()
        self.api = ApiClient(self.server, self.clock.sleep)
        self.giver = Giver(driver=DRIVER, device_class=DRIVER, sizes=SIZES)
        self.pods: dict[str, Any] = {}
        self.why = ""
        self.kept = ClaimTemplates(
            api=self.api,
            clock=self.clock,
            pod=self.pods.get,
            giver=lambda: self.giver,
            why_not=lambda: self.why,
        )

    def put(self, name: str, limits: dict[str, str], **status: object) -> str:
        """Let a Pod come, and return the path of its template."""
        body = by_claim(name, limits)
        body["status"] = status
        uid = body["metadata"]["uid"]
        self.pods[uid] = body
        self.kept.put(uid, body)
        return (
            f"{templates_in('ml')}/{body['spec']['resourceClaims'][0]['resourceClaimTemplateName']}"
        )

    def make(self) -> None:
        """Let it look once."""
        asyncio.run(self.kept.make())

    def clean(self) -> None:
        """Let it clean once."""
        items = [one for path, one in self.server.objects.items() if path != ALL_TEMPLATES]
        self.server.objects[ALL_TEMPLATES] = {"metadata": {}, "items": items}
        asyncio.run(self.kept.clean())
        del self.server.objects[ALL_TEMPLATES]


@pytest.fixture
def world() -> World:
    """A world."""
    return World()


def test_pods_of_one_request_have_one_template(world: World) -> None:
    """It is made once, and looked at no more once their claims are there."""
    path = world.put("a", {"nvidia.com/gpu": "1"})
    assert world.put("b", {"nvidia.com/gpu": "1"}) == path
    world.make()
    world.make()

    assert [verb for verb, _ in world.api.calls] == ["read", "create"]
    spec = world.server.objects[path]["spec"]["spec"]
    assert spec["devices"]["requests"][0]["exactly"]["deviceClassName"] == DRIVER


def test_a_template_that_somebody_deleted_is_made_again_while_a_pod_waits(world: World) -> None:
    """And one with another spec is put right; a Pod that has its claim waits for none."""
    path = world.put("a", {"nvidia.com/gpu": "1"})
    world.make()
    del world.server.objects[path]
    world.clock.now += 10.0
    world.make()
    assert path in world.server.objects

    world.server.objects[path]["spec"]["spec"] = {}
    world.clock.now += 10.0
    world.make()
    assert world.server.objects[path]["spec"]["spec"]

    del world.server.objects[path]
    claim = {"name": "tenure", "resourceClaimName": "a-tenure-x"}
    world.put("a", {"nvidia.com/gpu": "1"}, resourceClaimStatuses=[claim])
    world.clock.now += 10.0
    world.make()
    assert path not in world.server.objects


def test_a_template_that_the_api_server_refuses_holds_up_no_other(world: World) -> None:
    """Its namespace may be going."""
    refused = world.put("a", {"nvidia.com/gpu": "1"})
    other = world.put("b", {"nvidia.com/gpu": "2"})
    fates: Iterator[str | int] = iter(["answered", 403])
    world.api.fate = lambda _: next(fates, "answered")
    with pytest.raises(ApiError):
        world.make()
    world.make()

    assert other in world.server.objects
    assert refused not in world.server.objects
    world.clock.now += 10.0
    world.make()
    assert refused in world.server.objects


def test_a_ratio_waits_for_a_card(world: World) -> None:
    """Of which it is; a standby makes none at all."""
    ratio = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
    giver, world.giver = world.giver, Giver(driver=DRIVER, device_class=DRIVER)
    path = world.put("a", ratio)
    world.make()
    assert path not in world.server.objects

    world.giver, world.why = giver, "another replica leads"
    world.clock.now += 10.0
    world.make()
    assert path not in world.server.objects

    world.why = ""
    world.make()
    assert path in world.server.objects


def test_a_part_waits_until_a_card_that_is_given_in_parts_is_told_of(world: World) -> None:
    """A claim keeps its template's spec: written too early it would lack cores for good."""
    giver, world.giver = world.giver, Giver(driver=DRIVER, device_class=DRIVER, has_cores=False)
    part = world.put("a", {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"})
    whole = world.put("b", {"nvidia.com/gpu": "1"})
    world.make()
    assert whole in world.server.objects, "it says no amounts"
    assert part not in world.server.objects

    world.giver = giver
    world.clock.now += 10.0
    world.make()
    [request] = world.server.objects[part]["spec"]["spec"]["devices"]["requests"]
    assert "cores" in request["exactly"]["capacity"]["requests"]


def test_a_pod_that_can_have_no_template_yet_is_read_again_after_a_while(world: World) -> None:
    """Ten times a second would be all that a service with a thousand of them does."""
    giver, world.giver = world.giver, Giver(driver=DRIVER, device_class=DRIVER, has_cores=False)
    path = world.put("a", {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"})
    world.make()
    world.giver = giver
    world.make()
    assert path not in world.server.objects

    world.put("b", {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"})
    world.make()
    assert path in world.server.objects, "who comes then waits for nobody else"


def test_a_template_of_somebody_elses_is_not_taken_away(world: World) -> None:
    """By its name, and whatever label it has: a chart may be called as we are."""
    path = f"{templates_in('ml')}/theirs"
    labels = {"app.kubernetes.io/managed-by": "tenure"}
    metadata = {"name": "theirs", "namespace": "ml", "uid": "theirs", "labels": labels}
    world.server.put(path, {"metadata": metadata, "spec": {}})
    world.clean()
    world.clock.now += 2 * UNUSED_SECONDS
    world.clean()

    assert path in world.server.objects


def test_a_template_goes_a_day_after_its_last_pod(world: World) -> None:
    """Not while one names it; a Pod that comes again begins the day anew."""
    path = world.put("a", {"nvidia.com/gpu": "1"})
    world.make()
    world.clean()
    world.clock.now += 2 * UNUSED_SECONDS
    world.clean()
    assert path in world.server.objects, "it is named"

    world.kept.drop("uid-a")
    world.clean()
    world.clock.now += UNUSED_SECONDS - 1.0
    world.put("b", {"nvidia.com/gpu": "1"})
    world.clean()
    world.kept.drop("uid-b")
    world.clock.now += 2.0
    world.clean()
    assert path in world.server.objects, "it was named since"

    world.clock.now += UNUSED_SECONDS
    world.clean()
    assert path not in world.server.objects
