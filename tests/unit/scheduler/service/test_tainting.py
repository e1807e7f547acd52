"""Devices that schedulers are told to pass over, and when they are told so no longer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from certs.ports import ApiError, Object
from ledger.domain.cpuset import EMPTY
from ledger.domain.devices import GPU, DeviceShare
from ledger.domain.log.events import CLAIM, POD
from ledger.domain.log.state import GRANTED, OBSERVED, Holding, NodeState
from scheduler.gate.claims import Allocated, claim_seen
from scheduler.gate.exchange import Device
from scheduler.gate.taints import read_rule, rule_name, rule_of
from scheduler.service.slices import LiveAccounts, SliceBook
from scheduler.service.tainting import ABSENT_SECONDS, RuleBook, Tainting, rules_path
from scheduler.service.wakeups import Wakeups
from tests.support.dra import DRIVER, card, resource_claim, resource_slice
from tests.support.dra import result as of
from tests.support.fake_api import ApiClient, ApiServer, Json
from tests.support.live import StillClock

NODE = "n-1"
FIRST: Device = (DRIVER, NODE, "gpu-0")
GIB = 1 << 30


class Rules(ApiServer):
    """An API server that serves rules in these versions, and tells a book of them."""

    def __init__(self, book: RuleBook, *versions: str) -> None:
        super().__init__()
        self.book = book
        self.served = {rules_path(each) for each in versions}
        self.forbids = ""

    def create(self, path: str, body: Object) -> Json:
        """Create a rule where its version is served."""
        if path not in self.served:
            raise ApiError(f"there is nothing to create it in: path={path}", status=404)
        self._check("create")
        super().create(path, body)
        self.book.put(body["metadata"]["name"], body)
        return {}

    def delete(self, path: str) -> None:
        """Delete a rule."""
        self._check("remove")
        super().delete(path)
        self.book.drop(path.rpartition("/")[2])

    def _check(self, verb: str) -> None:
        if self.forbids == verb:
            raise ApiError(f"forbidden: {verb}", status=403)


class World:
    """Two cards of one driver's, holders of them, and who tells schedulers of those."""

    def __init__(self, *versions: str) -> None:
        self.book = RuleBook()
        self.server = Rules(self.book, *versions)
        self.api = ApiClient(self.server, StillClock().sleep)
        self.clock = StillClock()
        self.held: list[Holding] = []
        self.shown: set[str] = set()
        self.why = ""
        self.slices = SliceBook([DRIVER], Wakeups())
        devices = [card(f"gpu-{each}", f"GPU-{each}") for each in range(2)]
        self.slices.put("s", resource_slice(devices, node=NODE))
        self.accounts = LiveAccounts(self.slices, self._node, self.book.bars)
        self.start()

    def start(self) -> None:
        """Let a process begin that remembers nothing."""
        self.tainting = Tainting(
            self.book,
            self.accounts,
            self.api,
            self.clock,
            Wakeups(),
            node_of=self.slices.node_of,
            is_shown=self.shown.__contains__,
            why_not=lambda: self.why,
        )

    def _node(self, name: str) -> NodeState | None:
        if name != NODE:
            return None
        return NodeState(
            uid="u-1",
            name=NODE,
            devices=self.slices.records(NODE, (), ()),
            holdings={each.key: each for each in self.held if each.holder == POD},
            claims={each.key: each for each in self.held if each.holder == CLAIM},
        )

    def hold(self, name: str, *, holder: str = POD, kind: str = OBSERVED, gib: int = 80) -> None:
        """Let somebody have so much of the first card."""
        share = DeviceShare(
            device_type=GPU,
            minor=0,
            device_id="GPU-0",
            core_percent=100 if gib == 80 else 0,
            memory_bytes=gib * GIB,
            exclusive=gib == 80,
        )
        self.held.append(
            Holding(
                pod_uid=name,
                attempt=1,
                namespace="ml",
                pod_name=name,
                kind=kind,
                phase="bound",
                opened_position=1,
                shares=(share,),
                cpuset=EMPTY,
                holder=holder,
            )
        )

    def refuse(self) -> None:
        """Refuse a claim that was given both cards, and let a moment pass."""
        seen = claim_seen(resource_claim("a", of("gpu-0"), of("gpu-1")), {DRIVER})
        assert isinstance(seen.allocated, Allocated)
        self.tainting.refused(seen.allocated)
        self.settle()

    def settle(self) -> None:
        """Let a moment pass."""
        asyncio.run(self.tainting.settle())

    def rules(self) -> list[Any]:
        """Return the devices that rules of the API are about."""
        return [each["spec"]["deviceSelector"] for each in self.server.objects.values()]


ABOUT_FIRST = {"driver": DRIVER, "pool": NODE, "device": "gpu-0"}


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
def test_a_device_with_a_holder_whom_claims_do_not_show_is_passed_over(version: str) -> None:
    """Until he ends; whatever else of the refused allocation is free is not."""
    world = World(version)
    world.hold("process")

    world.refuse()

    [(path, rule)] = world.server.objects.items()
    assert path.startswith(rules_path(version))
    assert rule["apiVersion"] == f"resource.k8s.io/{version}"
    assert rule["spec"]["deviceSelector"] == ABOUT_FIRST
    assert rule["spec"]["taint"]["effect"] == "NoSchedule"
    world.settle()
    assert world.rules() == [ABOUT_FIRST]

    world.held.clear()
    world.settle()
    assert world.rules() == []


def test_who_is_shown_by_a_claim_is_seen_by_every_scheduler() -> None:
    """A claim that the API shows allocated; one that it does not is nobody's business but ours."""
    world = World("v1")
    world.hold("claim", holder=CLAIM, kind=GRANTED)
    world.shown.add("claim")
    world.refuse()
    assert world.rules() == []

    world.shown.clear()
    world.refuse()
    assert world.rules() == [ABOUT_FIRST]


def test_a_part_of_a_card_bars_while_what_was_refused_has_no_room_beside_it() -> None:
    """A whole card was asked for: a holder of a part is enough, and none but him."""
    world = World("v1")
    world.hold("process", gib=10)
    world.hold("claim", holder=CLAIM, kind=GRANTED, gib=20)
    world.shown.add("claim")
    world.refuse()
    assert world.rules() == [ABOUT_FIRST]

    world.held = [each for each in world.held if each.holder == CLAIM]
    world.settle()
    assert world.rules() == []


def test_a_rule_that_another_replica_made_is_taken_away_too() -> None:
    """It is known by its label and name; what was refused is not, so all of the card counts."""
    world = World("v1beta2")
    world.hold("process")
    world.refuse()
    world.start()

    world.settle()
    assert world.rules() == [ABOUT_FIRST]
    world.held.clear()
    world.settle()
    assert world.rules() == []


def test_a_rule_about_a_device_that_is_gone_is_taken_away() -> None:
    """Its slice went, or it has another name now."""
    world = World("v1")
    world.hold("process")
    world.refuse()

    world.slices.drop("s")
    world.settle()

    assert world.rules() == []


def test_rules_of_others_are_left_alone() -> None:
    """Also such as have our label: the name is made of what it is about."""
    world = World("v1")
    mine = rule_of(FIRST, "v1")
    forged = {**mine, "metadata": {**mine["metadata"], "name": "mine-too"}}
    everything = {**mine, "spec": {**mine["spec"], "deviceSelector": {"driver": DRIVER}}}
    for item in (forged, everything):
        world.server.create(rules_path("v1"), item)

    world.settle()

    assert len(world.rules()) == 2
    assert not any(each.is_ours for each in world.book.rules.values())


def test_where_no_rules_are_served_nothing_happens() -> None:
    """The refusal is repeated; the API is asked again after a while."""
    world = World()
    world.hold("process")
    for _ in range(3):
        world.refuse()
    asked = [path for verb, path in world.api.calls if verb == "create"]
    assert asked == [rules_path("v1"), rules_path("v1beta2")]

    world.clock.now += ABSENT_SECONDS
    world.server.served.add(rules_path("v1beta2"))
    world.settle()
    assert world.rules() == [ABOUT_FIRST]


def tries(world: World, verb: str, seconds: int) -> int:
    """Return how often something is tried in so many seconds, two looks a second."""
    before = len(world.api.calls)
    for _ in range(2 * seconds):
        world.settle()
        world.clock.now += 0.5
    return sum(each[0] == verb for each in world.api.calls[before:])


@pytest.mark.parametrize("verb", ["create", "remove"])
def test_what_the_api_forbids_is_tried_ever_later(verb: str) -> None:
    """After 1, 2, 4 seconds and so on, at last once a minute; and done once it may be."""
    world = World("v1")
    world.hold("process")
    if verb == "remove":
        world.refuse()
        world.held.clear()
    world.server.forbids = verb
    if verb == "create":
        world.refuse()

    assert 5 <= tries(world, verb, 60) <= 7
    assert 9 <= tries(world, verb, 600) <= 11

    world.server.forbids = ""
    tries(world, verb, 60)
    assert world.rules() == ([ABOUT_FIRST] if verb == "create" else [])


def test_a_rule_of_that_name_that_is_not_ours_is_tried_ever_later() -> None:
    """It may go; and what is wanted no more is forgotten, so that it begins anew."""
    world = World("v1")
    foreign = rule_of(FIRST, "v1")
    foreign["metadata"] = {"name": foreign["metadata"]["name"]}
    world.server.create(rules_path("v1"), foreign)
    world.hold("process")
    world.refuse()
    assert 5 <= tries(world, "create", 60) <= 7

    world.held.clear()
    world.settle()
    world.server.delete(f"{rules_path('v1')}/{rule_name(FIRST)}")
    world.hold("process")
    world.refuse()
    assert world.rules() == [ABOUT_FIRST]


def test_who_stands_by_changes_nothing() -> None:
    """The leader does."""
    world = World("v1")
    world.hold("process")
    world.why = "NotLeader"
    world.refuse()
    assert world.rules() == []


def test_a_device_that_others_bar_is_nothing_to_exchange_for() -> None:
    """Whoever tolerates the taint is left on it, and nobody is put there."""
    world = World("v1")
    both = world.accounts.alike(NODE, FIRST)
    assert [each.name for each in both] == ["gpu-0", "gpu-1"]

    for selector, left in (
        ({"driver": DRIVER, "pool": NODE, "device": "gpu-1"}, ["gpu-0"]),
        ({"driver": DRIVER}, ["gpu-0"]),
        ({"driver": "another.example"}, ["gpu-0", "gpu-1"]),
        ({"pool": "elsewhere"}, ["gpu-0", "gpu-1"]),
        ({}, ["gpu-0"]),
    ):
        taint = {"key": "a", "effect": "NoExecute"}
        spec = {"deviceSelector": selector, "taint": taint}
        world.book.put("r", {"metadata": {"name": "r"}, "spec": spec})
        assert [each.name for each in world.accounts.alike(NODE, FIRST)] == left
    world.book.drop("r")
    assert len(world.accounts.alike(NODE, FIRST)) == 2


def test_our_rule_is_read_as_ours() -> None:
    """And bars its device alone."""
    rule = read_rule(rule_of(FIRST, "v1"))

    assert (rule.is_ours, rule.name) == (True, rule_name(FIRST))
    assert rule.selects(FIRST)
    assert not rule.selects((DRIVER, NODE, "gpu-1"))
