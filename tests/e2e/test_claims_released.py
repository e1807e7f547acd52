"""A claim's end on a real control plane: held until its node confirms, and free at once then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pytest

from ledger.domain.log.events import ClaimReleased, ClaimReserved, LedgerEvent
from ledger.store.open import open_ledger
from tests.support.kube.bursts import eventually, remove_pods
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.dra import (
    DRIVER,
    GROUP,
    SCHEDULERS,
    WHOLE,
    add_claim_node,
    add_class,
    add_templates,
    asked,
    bound_in,
    claiming,
    claims_in,
    held,
    request,
    stock_schedulers,
    stored,
)
from tests.support.kube.pods import pods_in
from tests.support.kube.schedulers import Identities, Served, extender
from tests.support.kube.service_api import OURS, Service, agents_token
from tests.support.process import tenure

POLICY: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/tenure-dra"
FINALIZER: Final = "resource.kubernetes.io/delete-protection"

Namespace = Callable[..., str]


@dataclass(slots=True, kw_only=True)
class Agent:
    """An agent that reads what kubelet has of claims, as far as a test lets it."""

    service: Service
    token: str
    position: int = -1
    version: str = "0"
    ends: dict[str, dict[str, Any]] = field(default_factory=dict)

    def ask(self) -> Mapping[str, dict[str, Any]]:
        """Ask once; return of which claims an answer is waited for, by their names."""
        if self.position < 0:
            status, said = self.service.call("/agents/v1/holdings", self.token)
            if status == 200:
                self.position = int(said["position"])
            return {}
        path = f"/agents/v1/changes?after={self.position}&seconds=0&claims={self.version}"
        status, said = self.service.call(path, self.token)
        if status != 200:
            self.position = -1
            return {}
        self.position, self.version = int(said["position"]), said["claims"]["version"]
        self.ends = {one["name"]: one for one in said["claims"]["ends"]}
        return self.ends

    def asked_of(self, name: str) -> dict[str, Any]:
        """Wait until it is asked of a claim."""
        return dict(eventually(lambda: self.ask().get(name)))

    def confirm(self, one: Mapping[str, Any]) -> None:
        """Say that nothing is left of a claim."""
        known = {key: one[key] for key in ("claim_uid", "attempt", "pods", "question")}
        status, said = self.service.call(
            "/agents/v1/confirmations", self.token, {"claims": [known]}
        )
        assert (status, said["claims"][0]["result"]) == (200, "noted"), said


@dataclass(slots=True, kw_only=True)
class World:
    """A control plane whose claims are guarded, and the service that guards them."""

    plane: ControlPlane
    url: str
    served: Served
    service: Service

    @contextmanager
    def node(self, name: str, *, cards: int = 1) -> Iterator[Agent]:
        """Make a node with an agent for as long as the block lasts."""
        add_claim_node(self.plane, name, cards=cards)
        agent = Agent(service=self.service, token=agents_token(self.plane, name))
        eventually(lambda: agent.position >= 0 or agent.ask())
        agent.ask()
        yield agent
        remove_pods(self.plane, pods_in(OURS), ["agent"])
        self.plane.api().delete(f"/api/v1/nodes/{name}")
        for one in self.plane.api().get(f"{GROUP}/resourceslices").body["items"]:
            self.plane.api().delete(f"{GROUP}/resourceslices/{one['metadata']['name']}")

    def bound(self, where: str, name: str) -> str:
        """Wait until a Pod is bound; return its claim's name."""

        def claim() -> str:
            pods = {one["metadata"]["name"]: one for one in bound_in(self.plane.api(), where)}
            [said] = pods[name]["status"]["resourceClaimStatuses"] if name in pods else [{}]
            return str(said.get("resourceClaimName", ""))

        return str(eventually(claim))

    def delete_now(self, where: str, name: str) -> None:
        """Delete a Pod with grace 0: it is gone at once, whatever its node does."""
        api = self.plane.api()
        assert api.delete(f"{pods_in(where)}/{name}").ok
        assert api.get(f"{pods_in(where)}/{name}").status == 404

    def events(self) -> list[tuple[LedgerEvent, int]]:
        """Return what the ledger has, and when that was, in microseconds."""
        with open_ledger(self.url, mode="read") as ledger:
            return [(one.event, one.envelope.wall_us) for one in ledger.read_events()]

    def released(self, claim_uid: str) -> int:
        """Wait until a claim is released; return when that was, in microseconds."""

        def found() -> int:
            return next(
                (
                    at
                    for event, at in self.events()
                    if isinstance(event, ClaimReleased) and event.claim_uid == claim_uid
                ),
                0,
            )

        return int(eventually(found))

    def is_held(self, claim: Mapping[str, Any]) -> bool:
        """Tell whether a claim holds something, by the ledger."""
        return any(uid == claim["claim_uid"] for uid, _ in held(self.url))


@pytest.fixture(scope="module")
def world(
    plane: ControlPlane, identities: Identities, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """One stock kube-scheduler, the controllers of claims and namespaces, and the gate."""
    folder = tmp_path_factory.mktemp("released")
    url = f"sqlite:///{folder / 'live.db'}"
    assert tenure("ledger", "init", "--ledger", url, cwd=folder).returncode == 0
    gate, api = free_port(), free_port()
    add_class(plane)
    add_claim_node(plane, "without-cards", cards=0)
    with ExitStack() as stack:
        others = ("namespace-controller",)
        stack.enter_context(stock_schedulers(plane, SCHEDULERS[:1], controllers=others))
        served = stack.enter_context(
            extender(plane, url, identities, api=api, gate=gate, drivers=[DRIVER], forked=True)
        )
        stack.enter_context(asked(plane, identities, gate))
        service = Service(port=api, authority=identities.server / "ca.crt")
        yield World(plane=plane, url=url, served=served, service=service)
    plane.api().delete("/api/v1/nodes/without-cards")


def test_after_a_delete_with_grace_0_a_card_is_held_until_its_node_confirms(
    world: World, namespace: Namespace
) -> None:
    """The Pod is gone by the API; the next one gets the card with the node's word, and at once."""
    where = namespace(managed=False)
    api, pods = world.plane.api(), pods_in(where)
    add_templates(world.plane, where)
    with world.node("held") as agent:
        assert api.create(pods, claiming("first", template=WHOLE)).ok
        claim = world.bound(where, "first")
        assert api.create(pods, claiming("second", template=WHOLE)).ok
        world.delete_now(where, "first")

        asked_of = agent.asked_of(claim)
        stands = api.get(f"{claims_in(where)}/{claim}").body
        assert "allocation" in stands["status"]
        assert world.is_held(asked_of)
        assert stored(world.plane) == held(world.url)
        unconfirmed = 'tenure_scheduler_view{what="unconfirmed"} 1.0'
        eventually(lambda: unconfirmed in world.served.probe("metrics"))
        assert not [one for one in bound_in(api, where) if one["metadata"]["name"] == "second"]

        confirmed_us = time.time_ns() // 1000
        agent.confirm(asked_of)
        free_us = world.released(asked_of["claim_uid"])
        second = world.bound(where, "second")

        order = [
            (type(event), event.claim_uid)
            for event, at in world.events()
            if at >= confirmed_us and isinstance(event, ClaimReleased | ClaimReserved)
        ]
        uid = api.get(f"{claims_in(where)}/{second}").body["metadata"]["uid"]
        assert order == [(ClaimReleased, asked_of["claim_uid"]), (ClaimReserved, uid)]
        took = (free_us - confirmed_us) / 1e6
        sys.stderr.write(f"free after the confirmation: seconds={took:.3f} (loaded machine)\n")
        world.delete_now(where, "second")
        agent.confirm(agent.asked_of(second))
        eventually(lambda: not held(world.url))


def test_a_claim_that_is_deleted_while_it_is_held_is_gone_once_its_node_confirms(
    world: World, namespace: Namespace
) -> None:
    """A named claim, and all that a namespace has: nothing goes before, and then all of it does."""
    kept, doomed = namespace(managed=False), namespace(managed=False)
    api = world.plane.api()
    add_templates(world.plane, doomed)
    with world.node("doomed", cards=2) as agent:
        body = {"metadata": {"name": "own"}, "spec": request()}
        assert api.create(claims_in(kept), body).ok
        assert api.create(pods_in(kept), claiming("named", claim="own")).ok
        assert api.create(pods_in(doomed), claiming("templated", template=WHOLE)).ok
        eventually(lambda: len(bound_in(api, kept) + bound_in(api, doomed)) == 2)
        other = world.bound(doomed, "templated")

        world.delete_now(kept, "named")
        own = agent.asked_of("own")
        assert api.delete(f"{claims_in(kept)}/own").ok
        assert api.delete(f"/api/v1/namespaces/{doomed}").ok
        world.delete_now(doomed, "templated")
        templated = agent.asked_of(other)

        assert api.get(f"{claims_in(kept)}/own").body["metadata"]["deletionTimestamp"]
        assert api.get(f"/api/v1/namespaces/{doomed}").body["status"]["phase"] == "Terminating"
        assert world.is_held(own)
        assert world.is_held(templated)

        agent.confirm(own)
        world.released(own["claim_uid"])
        eventually(lambda: api.get(f"{claims_in(kept)}/own").status == 404)
        assert world.is_held(templated)
        agent.confirm(templated)
        world.released(templated["claim_uid"])
        eventually(lambda: api.get(f"/api/v1/namespaces/{doomed}").status == 404)


def test_who_strips_the_finalizer_is_refused_and_frees_nothing_where_no_policy_is(
    world: World, namespace: Namespace
) -> None:
    """The claim is gone then, and what it had is held until the node has confirmed."""
    where = namespace(managed=False)
    api, pods = world.plane.api(), pods_in(where)
    add_templates(world.plane, where)
    with world.node("stripped") as agent:
        assert api.create(pods, claiming("first", template=WHOLE)).ok
        claim = f"{claims_in(where)}/{world.bound(where, 'first')}"
        strip = partial(api.patch, claim, {"metadata": {"finalizers": None}})
        assert FINALIZER in api.get(claim).body["metadata"]["finalizers"]
        refused = eventually(lambda: (reply := strip()).status in {403, 422} and reply)
        assert f"may not take {FINALIZER} off" in refused.message
        assert api.patch(claim, {"metadata": {"labels": {"any": "thing"}}}).ok

        binding = api.get(POLICY).body
        assert api.delete(POLICY).ok
        eventually(lambda: strip().ok)
        assert api.delete(claim).ok
        eventually(lambda: api.get(claim).status == 404)
        del binding["metadata"]["resourceVersion"], binding["metadata"]["uid"]
        assert api.create(POLICY.rpartition("/")[0], binding).ok
        assert not agent.ask(), "its Pod runs by the API"
        assert api.create(pods, claiming("second", template=WHOLE)).ok
        refusal = 'tenure_claim_writes_total{what="refused DeviceTaken"}'
        eventually(lambda: refusal in world.served.probe("metrics"))

        world.delete_now(where, "first")
        gone = agent.asked_of(claim.rpartition("/")[2])
        assert world.is_held(gone)
        agent.confirm(gone)
        world.released(gone["claim_uid"])
        second = world.bound(where, "second")
        world.delete_now(where, "second")
        agent.confirm(agent.asked_of(second))
        eventually(lambda: not held(world.url))


def test_who_empties_the_list_of_users_first_frees_no_card_under_a_pod(
    world: World, namespace: Namespace
) -> None:
    """On a node without an agent, too: the ledger has who runs with it."""
    where = namespace(managed=False)
    api, pods = world.plane.api(), pods_in(where)
    add_templates(world.plane, where)
    add_claim_node(world.plane, "emptied", cards=1)
    assert api.create(pods, claiming("first", template=WHOLE)).ok
    path = f"{claims_in(where)}/{world.bound(where, 'first')}"
    eventually(lambda: held(world.url))

    def in_two_steps() -> bool:
        """Its controller puts a Pod that has a node back at once: be quicker than that."""
        now = api.get(path).body
        now["status"].pop("reservedFor", None)
        emptied = api.replace(f"{path}/status", now)
        if not emptied.ok:
            return False
        refused = api.replace(f"{path}/status", {**emptied.body, "status": {}})
        assert refused.status == 409, refused.message
        return "StillUsed" in refused.message

    eventually(in_two_steps)
    assert held(world.url) == stored(world.plane)
    world.delete_now(where, "first")
    eventually(lambda: api.replace(f"{path}/status", {**api.get(path).body, "status": {}}).ok)
    eventually(lambda: not held(world.url))
    world.plane.api().delete("/api/v1/nodes/emptied")
