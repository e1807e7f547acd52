"""The gate as the API server asks it: bytes in, bytes out, and what the ledger has then."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ledger.domain.errors import InputError, LedgerError
from ledger.domain.log import drift
from ledger.domain.log.events import (
    ClaimBound,
    ClaimObserved,
    ClaimReleased,
    ClaimReserved,
    NodeCleared,
    NodeLost,
    RequestRefused,
)
from ledger.domain.log.recorded import NewEvent
from ledger.domain.systems import Claimant
from scheduler.decide.bounded import NESTED_MAX, VALUES_MAX, decode_bounded
from scheduler.decide.claims import place_claim
from scheduler.decide.settings import SchedulingSettings
from scheduler.gate.decide import Accounted
from scheduler.gate.leaving import Life, NodeOfClaim
from scheduler.gate.modes import Mode
from scheduler.service.answering import NotNowError
from scheduler.service.binding import pod_path
from scheduler.service.budgets import FIRST_SECONDS, LONGEST_SECONDS
from scheduler.service.claims import CLAIMS, ClaimBook, claim_path
from scheduler.service.confirming import (
    CALLS_BURST,
    CALLS_SECONDS,
    GRANTS_BURST,
    GRANTS_SECONDS,
)
from scheduler.service.gate import OPEN_SECONDS, Gate, GateWorks
from scheduler.service.http import ASIDE_BYTES, DEPTH_MAX
from scheduler.service.slices import SLICES, SliceBook
from scheduler.service.telling import Telling
from scheduler.service.wakeups import Wakeups
from tests.support.dra import card, resource_slice
from tests.support.fake_api import ApiClient, ApiServer
from tests.support.gated import (
    DRIVER,
    DRIVERS,
    FoldedAccounts,
    Leaving,
    MachineCpus,
    claim,
    cpus,
    result,
    seen,
)
from tests.support.live import WORDS, MemoryLedger, StillClock
from tests.support.owning import GIVER, by_claim, own_claim


class World:
    """A gate, an API server with claims, and a ledger that outlives the gate."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger()
        self.server = Losing()
        self.clock = StillClock()
        self.accounts = FoldedAccounts()
        self.why = ""
        self.mode = Mode.CLAIMS
        self.leaving = Leaving()
        self.classes: dict[str, tuple[str, ...]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.listed = 0
        self.start()

    def start(self, opened: Sequence[Any] = ()) -> None:
        """Let a process begin, which has heard of no claim."""
        wakeups = Wakeups()
        self.book = ClaimBook(DRIVERS, wakeups, opened, guarded=DRIVERS)
        self.slices = SliceBook(DRIVERS, wakeups)
        self.api = ApiClient(self.server, self.clock.sleep)
        self.telling = Telling(api=self.api, clock=self.clock, reporter="test")
        works = GateWorks(
            book=self.book,
            slices=self.slices,
            accounts=self.accounts,
            recorded=self._recorded,
            recorder=self.ledger,
            api=self.api,
            clock=self.clock,
            telling=self.telling,
            attempts=self._attempts,
            leaving=self.leaving,
            why_not=lambda: self.why,
            actor="scheduler/test",
            classes=self.classes,
            place=partial(place_claim, facts=None, settings=SchedulingSettings()),
            cpus=MachineCpus(),
            pod=self.pods.get,
            giver=lambda: GIVER,
            mode=lambda _: self.mode,
            node_name=str,
            wakeups=wakeups,
        )
        self.gate = Gate(works, drivers=DRIVERS, words=lambda: WORDS)
        self.gate.confirming.knows_callers = True

    def _recorded(self, new: Sequence[NewEvent], _first: int) -> None:
        for each in new:
            self.accounts.events.append(each.event)
            self.book.take(each.event)

    async def _attempts(self, uids: Sequence[str]) -> Mapping[str, int]:
        self.listed += 1
        held = [one for one in self.ledger.log if isinstance(one, ClaimReserved | ClaimObserved)]
        return {one.claim_uid: one.attempt for one in held if one.claim_uid in uids}

    def store(self, item: dict[str, Any]) -> dict[str, Any]:
        """Store a claim, and return it as it is then; nobody is told of it yet."""
        path = claim_path("ml", item["metadata"]["name"])
        stored = self.server.put(path, item)
        self._list()
        return stored

    def _list(self) -> None:
        items = [
            each for place, each in self.server.objects.items() if place not in {CLAIMS, SLICES}
        ]
        self.server.objects[CLAIMS] = {"metadata": {"resourceVersion": "0"}, "items": items}

    def show(self, item: dict[str, Any]) -> None:
        """Let the watch tell of a claim, and record what there is."""
        self.book.put(item["metadata"]["uid"], item)
        asyncio.run(self.gate.settle())

    def delete(self, name: str) -> None:
        """Delete a claim, of which the watch tells."""
        del self.server.objects[claim_path("ml", name)]
        self._list()
        self.book.drop(f"claim-{name}")

    def asked(
        self, old: dict[str, Any], new: dict[str, Any], *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Return what the gate answers to one write."""
        request = {"uid": "r", "oldObject": old, "object": new, "dryRun": dry_run}
        body = json.dumps({"request": request}).encode()
        response: dict[str, Any] = json.loads(asyncio.run(self.gate.answer(body)))["response"]
        return response

    def write(
        self, name: str, *results: dict[str, Any], pods: Sequence[str] = (), dry_run: bool = False
    ) -> dict[str, Any]:
        """Ask for an allocation on top of the claim as it is stored, which it is then if it may."""
        path = claim_path("ml", name)
        old = self.server.objects.get(path) or self.store(claim(name, 0))
        version = int(old["metadata"]["resourceVersion"])
        new = claim(name, version, *results, pods=pods)
        response = self.asked(old, new, dry_run=dry_run)
        if response["allowed"] and not dry_run:
            patched(new, response)
            self.store(new)
        return response

    def now(self, name: str) -> dict[str, Any]:
        """Return a claim as it is stored."""
        return self.server.objects[claim_path("ml", name)]


class Losing(ApiServer):
    """An API server of which one object goes as soon as it was read."""

    lost = ""

    def read(self, path: str) -> dict[str, Any] | None:
        """Return an object as it is now."""
        found = super().read(path)
        if path == self.lost:
            self.objects.pop(path, None)
        return found


def look(world: World, seconds: float = 0.0) -> None:
    """Let the gate look at its claims now, and again once that time has passed."""
    for wait in (0.0, seconds, 0.0):
        world.clock.now += wait
        world.gate.look_again()
        asyncio.run(world.gate.settle())


async def look_for_minutes(world: World) -> None:
    """Let the gate look at its claims each second."""
    for _ in range(600):
        world.gate.look_again()
        await world.gate.settle()
        world.clock.now += 1


def patched(item: dict[str, Any], response: Mapping[str, Any]) -> None:
    """Change devices of an object as an answer's patch says, and tell their drivers."""
    for one in json.loads(base64.b64decode(response.get("patch", "W10="))):
        if one["op"] == "add":
            there = item["status"]["allocation"]["devices"]
            config = "/status/allocation/devices/config"
            if one["path"] == config:
                there["config"] = one["value"]
            else:
                assert one["path"] == f"{config}/-"
                there["config"].append(one["value"])
            continue
        assert one["op"] == "replace"
        *path, last = one["path"].removeprefix("/status/allocation/devices/results/").split("/")
        assert (len(path), last) == (1, "device")
        item["status"]["allocation"]["devices"]["results"][int(path[0])]["device"] = one["value"]


def devices(item: Mapping[str, Any]) -> list[str]:
    """Return the devices of a claim."""
    return [each["device"] for each in item["status"]["allocation"]["devices"]["results"]]


@pytest.fixture
def world() -> World:
    """A world with a gate."""
    return World()


def kinds(world: World) -> list[str]:
    """Return what was recorded, in short."""
    return [event.event_type.rpartition(".")[0] for event in world.ledger.log]


def test_what_is_let_through_is_recorded_before_the_answer(world: World) -> None:
    """And bound, released as the watch shows it."""
    assert world.write("a", result(0), pods=["train"])["allowed"]
    assert kinds(world) == ["claim.reserved"]

    world.show(world.now("a"))
    gone = world.store(claim("a", 0))
    world.show(gone)

    assert kinds(world) == ["claim.reserved", "claim.bound", "claim.released"]
    assert world.write("b", result(0))["allowed"]


def test_cpus_are_stored_as_they_are_recorded_and_end_with_the_claim(world: World) -> None:
    """The watch shows what was patched: that is bound, and no other device."""
    assert world.write("a", cpus(2), pods=["train"])["allowed"]
    [told] = world.now("a")["status"]["allocation"]["devices"]["config"]
    world.show(world.now("a"))
    refused = world.write("b", cpus(14))
    world.show(world.store(claim("a", 0)))

    assert told["opaque"]["parameters"]["cpuConfig"] == {"cpuset": "8-9"}
    assert (
        "14 asked, 13 left; CPUs are held by claim ml/a of Pod train"
        in (refused["status"]["message"])
    )
    assert world.write("b", cpus(14))["allowed"]
    assert kinds(world) == [
        *("claim.reserved", "claim.bound", "request.refused", "claim.released", "claim.reserved")
    ]
    assert world.gate.counts["granted on another device"] == 0


def test_a_refusal_is_a_conflict_that_names_the_holder(world: World) -> None:
    """It is recorded once, however often the scheduler tries, and told to the Pod."""
    world.write("a", result(0), pods=["train"])

    for _ in range(3):
        response = world.write("b", result(0), pods=["late"])

    assert response["status"]["code"] == 409
    assert response["status"]["message"].startswith("DeviceTaken: gpu GPU-0 of node n1")
    assert "held by claim ml/a of Pod train" in response["status"]["message"]
    refused = [each for each in world.ledger.log if isinstance(each, RequestRefused)]
    assert [(each.pod_name, each.stage) for each in refused] == [("late", "claim")]
    assert world.gate.refusals.times["claim-b"] == 3
    assert world.gate.counts["refused DeviceTaken"] == 3
    asyncio.run(world.telling.send())
    [event] = [
        each for path, each in world.server.objects.items() if "/namespaces/ml/events/" in path
    ]
    assert event["regarding"]["name"] == "late"
    assert "held by claim ml/a" in event["note"]


def test_refusals_are_counted_claim_by_claim_while_it_waits(world: World) -> None:
    """One that gets a card, or that nobody has seen, is not shown any more."""
    world.write("a", result(0))
    for _ in range(2):
        world.write("b", result(0), pods=["late"])
    world.write("c", result(0), pods=["later"])
    for name in ("b", "c"):
        world.show(world.now(name))

    assert world.gate.refusals.most() == {"ml/b": 2, "ml/c": 1}
    world.write("b", result(1), pods=["late"])
    world.delete("c")
    assert world.gate.refusals.most() == {}


@pytest.mark.parametrize(
    ("selects", "words"),
    [
        ((), "once its holder ends, or another one like it is free (refused 1 times)"),
        (('device.attributes["x"].uuid == "y"',), "the claim may name this very device"),
    ],
)
def test_a_refused_pod_is_told_what_would_free_it(
    world: World, selects: tuple[str, ...], words: str
) -> None:
    """And whether the claim itself keeps it from another card."""
    world.classes[DRIVER] = selects
    for number in range(4):
        assert world.write(f"a-{number}", result(number))["allowed"]

    assert not world.write("b", result(0), pods=["late"])["allowed"]

    asyncio.run(world.telling.send())
    [note] = [
        each["note"]
        for path, each in world.server.objects.items()
        if "/namespaces/ml/events/" in path
    ]
    assert "held by claim ml/a-0" in note
    assert words in note


def test_a_dry_run_is_answered_and_leaves_nothing(world: World) -> None:
    """Neither where it may be, nor where it may not."""
    assert world.write("a", result(0), dry_run=True)["allowed"]
    world.write("a", result(0))
    before = len(world.ledger.log)

    assert not world.write("b", result(0), dry_run=True)["allowed"]

    assert len(world.ledger.log) == before
    assert not world.gate.refusals.times


def test_two_writes_at_once_get_one_card_once(world: World) -> None:
    """The second is decided while the first is on its way into the ledger."""
    old = {name: world.store(claim(name, 0)) for name in ("a", "b")}

    async def both() -> list[bytes]:
        bodies = []
        for name, item in old.items():
            new = claim(name, int(item["metadata"]["resourceVersion"]), result(0))
            request = {"uid": name, "oldObject": item, "object": new}
            bodies.append(json.dumps({"request": request}).encode())
        return list(await asyncio.gather(*map(world.gate.answer, bodies)))

    answers = [json.loads(each)["response"]["allowed"] for each in asyncio.run(both())]

    assert sorted(answers) == [False, True]


def test_a_card_that_is_taken_is_exchanged_for_one_like_it(world: World) -> None:
    """kube-scheduler takes what is stored for its own; the ledger has what is stored."""
    world.classes[DRIVER] = ()
    world.write("a", result(0))

    response = world.write("b", result(0), pods=["late"])

    assert response["allowed"]
    assert devices(world.now("b")) == ["gpu-1"]
    opening = world.ledger.log[-1]
    assert isinstance(opening, ClaimReserved)
    assert [each.device for each in opening.results] == ["gpu-1"]
    world.show(world.now("b"))
    assert kinds(world)[-1] == "claim.bound"
    assert world.gate.counts["granted on another device"] == 1


def test_only_devices_of_listed_drivers_are_changed_where_they_stand(world: World) -> None:
    """Others' results are counted along, and untouched; so is everything else of a result."""
    world.classes[DRIVER] = ()
    world.write("a", result(0))
    nic = result(0, driver="nic.example.com")

    world.write("b", nic, result(0, memory="16Gi", share_id="s-1"))

    found = world.now("b")["status"]["allocation"]["devices"]["results"]
    assert found == [nic, {**result(0, memory="16Gi", share_id="s-1"), "device": "gpu-1"}]


def test_the_same_write_again_is_stored_as_the_first_was(world: World) -> None:
    """Whether the first was stored or not: both say the same device, and nothing is recorded."""
    world.classes[DRIVER] = ()
    world.write("x", result(0))
    old = world.store(claim("a", 0))
    version = int(old["metadata"]["resourceVersion"])
    new = claim("a", version, result(0))
    first = world.asked(old, new)
    before = len(world.ledger.log)

    again = world.asked(old, new)
    other = world.asked(old, claim("a", version, result(2)))
    stored = claim("a", version, result(0))
    patched(stored, first)
    by_another_hook = world.asked(old, stored)

    assert (again["patch"], again["allowed"]) == (first["patch"], True)
    assert devices(stored) == ["gpu-1"]
    elsewhere = claim("a", version, result(2))
    patched(elsewhere, other)
    assert devices(elsewhere) == ["gpu-1"]
    assert by_another_hook["allowed"]
    assert "patch" not in by_another_hook
    assert len(world.ledger.log) == before


def test_a_claim_of_a_class_that_is_not_known_gets_what_was_written(world: World) -> None:
    """Or nothing: it may select by what names the single device."""
    world.write("a", result(0))

    assert not world.write("b", result(0))["allowed"]
    world.classes[DRIVER] = ('device.attributes["x"].uuid == "GPU-0"',)
    assert not world.write("b", result(0))["allowed"]


def test_what_the_watch_showed_is_free_at_once(world: World) -> None:
    """kube-scheduler hears of it as soon as we do, and gives the card to the next."""
    world.write("a", result(0), pods=["train"])
    world.show(world.now("a"))
    world.book.put("claim-a", world.store(claim("a", 0)))

    assert world.write("b", result(0))["allowed"]

    assert kinds(world)[-2:] == ["claim.released", "claim.reserved"]


def test_who_may_not_give_anything_out_answers_nobody(world: World) -> None:
    """A standby, or a leader whose ledger is away: it never answers from memory."""
    world.why = "NotLeader"

    with pytest.raises(NotNowError, match="NotLeader"):
        world.write("a", result(0))

    assert world.ledger.log == []


def test_a_ledger_that_is_away_is_no_answer(world: World) -> None:
    """The API server goes by the hook's failurePolicy."""
    world.write("x", result(3))
    world.ledger.away = LedgerError("away")

    with pytest.raises(LedgerError):
        world.write("a", result(0))


def test_the_constraint_of_the_ledger_has_the_last_word(world: World) -> None:
    """What it refuses is refused, whatever was decided from memory."""
    world.ledger.refuses["node-1"] = "capacity"

    response = world.write("a", result(0))

    assert not response["allowed"]
    assert "LedgerRefused: capacity" in response["status"]["message"]


def test_what_was_allocated_before_the_first_call_is_observed_first(world: World) -> None:
    """The list is read after that call: whoever is called knows that its configuration counts."""
    world.store(claim("before", 0, result(0), pods=["old"]))

    response = world.write("a", result(0))

    assert not response["allowed"]
    assert "claim ml/before of Pod old" in response["status"]["message"]
    assert isinstance(world.ledger.log[0], ClaimObserved)


@pytest.mark.parametrize("answers", [[500], ["answered", 500]], ids=["no slices", "no claims"])
def test_nothing_is_granted_while_slices_and_claims_can_not_be_listed(
    world: World, answers: list[str | int]
) -> None:
    """An API server that does not answer is asked again by the next call."""
    world.api.fate = lambda _: answers.pop(0)

    with pytest.raises(NotNowError, match="ClaimsNotListed"):
        world.write("a", result(0))

    world.api.fate = lambda _: "answered"
    assert world.write("a", result(0))["allowed"]


def test_what_is_listed_counts_before_a_watch_told_it(world: World) -> None:
    """The slices, too: who is refused by what a watch is late with is refused for nothing."""
    assert not world.slices.is_whole(DRIVER, "n-1")
    item = resource_slice([card("gpu-0", "GPU-0")], driver=DRIVER)
    item["metadata"] = {"uid": "s", "resourceVersion": "1"}
    world.server.objects[SLICES] = {"metadata": {"resourceVersion": "1"}, "items": [item]}
    world.write("a", result(0))
    assert world.slices.is_whole(DRIVER, "n-1")


def test_a_claim_that_went_while_all_were_listed_holds_nothing(world: World) -> None:
    """The watch tells that it is gone before the list that has it yet is read."""
    listed = {"items": [claim("a", 3, result(0))]}
    with world.book.readings.one() as went:
        world.book.drop("claim-a")
    world.book.take_list(listed, went)
    assert not world.book.seen


def test_what_no_gate_had_to_let_through_is_no_drift(world: World) -> None:
    """Claims of drivers that are not guarded are observed, and that is all."""
    world.show(claim("a", 7, result(0)))
    assert world.book.past_gate("claim-a") == drift.UNGATED

    world.book = ClaimBook(DRIVERS, Wakeups())
    for event in world.accounts.events:
        world.book.take(event)
    assert world.book.past_gate("claim-a") == ""


def test_what_was_rewritten_behind_the_gate_is_drift_of_its_own(world: World) -> None:
    """Both are held, so that neither is given to anybody else."""
    world.write("a", result(0))
    world.show(claim("a", 20, result(1)))
    assert world.book.past_gate("claim-a") == drift.REWRITTEN_AFTER_GATE
    for number in (0, 1):
        assert not world.write(f"b{number}", result(number))["allowed"]
    assert world.write("c", result(2))["allowed"]


def test_what_got_past_the_gate_is_observed(world: World) -> None:
    """Where the configuration was removed for a while, or another server had not read it."""
    world.write("a", result(1))
    world.show(world.store(claim("forged", 0, result(0))))

    assert isinstance(world.ledger.log[-1], ClaimObserved)
    assert not world.write("b", result(0))["allowed"]


def test_another_device_on_the_same_version_moves_the_claim(world: World) -> None:
    """Once it has moved, the scheduler's next try tells that the first was not stored."""
    old = world.store(claim("a", 0))
    version = int(old["metadata"]["resourceVersion"])
    world.asked(old, claim("a", version, result(0)))

    refused = world.asked(old, claim("a", version, result(1)))

    assert "OutcomeOpen" in refused["status"]["message"]
    assert int(world.now("a")["metadata"]["resourceVersion"]) > version
    assert world.now("a")["metadata"]["annotations"] == {"tenure.sh/fenced": str(version)}
    assert world.write("a", result(1))["allowed"]
    assert kinds(world)[-2:] == ["claim.voided", "claim.reserved"]


def test_a_claim_that_is_deleted_frees_its_card_once_no_pod_runs_with_it(world: World) -> None:
    """Its finalizer was stripped: what the API says of its Pods is what is left to go by."""
    world.write("a", result(0), pods=["train"])
    world.show(world.now("a"))
    world.leaving.lives["uid-train"] = Life.RUNS
    world.delete("a")
    asyncio.run(world.gate.settle())
    assert kinds(world)[-1] == "claim.bound"
    assert not world.book.changed, "it is looked at again once its Pod ended"

    world.leaving.lives.clear()
    world.gate.look_again("n1")
    asyncio.run(world.gate.settle())

    assert isinstance(world.ledger.log[-1], ClaimReleased)


WATCHED = NodeOfClaim(name="n1", has_witness=True, agent_ready=True, kubelet_ready=True)


def confirmed(world: World, *uids: str) -> None:
    """Let the node's agent say that nothing is left beside these Pods."""
    world.leaving.witness = replace(WATCHED, confirmed=frozenset(uids))
    world.gate.look_again("n1")
    asyncio.run(world.gate.settle())


def used(world: World) -> dict[str, Any]:
    """Return claim a, which Pod train uses on a node with an agent; the Pod is gone."""
    world.leaving.witness = WATCHED
    world.write("a", result(0), pods=["train"])
    world.show(world.now("a"))
    return world.now("a")


def goes(world: World) -> dict[str, Any]:
    """Ask to take claim a's allocation away; it is stored if it may."""
    old = world.now("a")
    new = claim("a", int(old["metadata"]["resourceVersion"]))
    response = world.asked(old, new)
    if response["allowed"]:
        world.show(world.store(new))
    return response


def test_a_release_waits_for_the_node_and_then_for_nobody(world: World) -> None:
    """The claim's controller retries at doubling delays: one annotation wakes it."""
    before = used(world)["metadata"]["resourceVersion"]

    refused = goes(world)
    asyncio.run(world.gate.settle())

    assert refused["status"]["message"].startswith("ReleaseNotConfirmed: node n1 has not confirmed")
    assert world.leaving.asked == {"claim-a": {"uid-train"}}
    assert list(world.gate.ends.waiting("n1")) == ["claim-a/1"]
    assert not world.write("b", result(0))["allowed"]
    assert world.now("a")["metadata"]["resourceVersion"] == before

    confirmed(world, "uid-train")

    woken = world.now("a")["metadata"]
    assert woken["annotations"] == {"tenure.sh/confirmed": before}
    assert int(woken["resourceVersion"]) > int(before)
    assert world.leaving.asked == {}
    confirmed(world, "uid-train")
    assert world.now("a")["metadata"] == woken, "it is woken once"
    assert goes(world)["allowed"]
    assert kinds(world)[-1] == "claim.released"
    assert not world.gate.ends.waiting()
    assert world.write("b", result(0))["allowed"]


def test_a_wake_that_got_no_answer_is_tried_again(world: World) -> None:
    """The API server was away for a moment: nobody waits for a backoff."""
    used(world)
    goes(world)
    world.api.fate = lambda _: 500
    confirmed(world, "uid-train")
    assert "annotations" not in world.now("a")["metadata"]

    world.api.fate = lambda _: "answered"
    world.clock.now += FIRST_SECONDS
    world.gate.look_again()
    asyncio.run(world.gate.settle())

    assert "tenure.sh/confirmed" in world.now("a")["metadata"]["annotations"]


def test_a_word_beside_other_pods_frees_nothing(world: World) -> None:
    """Another Pod used the claim since the node was asked."""
    used(world)
    goes(world)
    path = claim_path("ml", "a")
    more = claim("a", 0, result(0), pods=["train", "late"])
    world.show(world.store(more))
    confirmed(world, "uid-train")

    assert "annotations" not in world.server.objects[path]["metadata"]
    assert world.leaving.asked == {"claim-a": {"uid-train", "uid-late"}}
    assert not goes(world)["allowed"]


def test_whose_pod_runs_again_by_the_api_is_asked_of_no_node(world: World) -> None:
    """An administrator wrote it: the Pod's own end will let the controller try."""
    used(world)
    world.leaving.lives["uid-train"] = Life.RUNS

    assert "StillUsed" in goes(world)["status"]["message"]
    confirmed(world, "uid-train")

    assert world.leaving.asked == {}
    assert "annotations" not in world.now("a")["metadata"]


def test_a_claim_that_is_gone_is_held_until_its_node_has_confirmed(world: World) -> None:
    """Its finalizer was stripped, or etcd put back, and no Pod runs by the API."""
    used(world)
    world.delete("a")
    asyncio.run(world.gate.settle())
    assert kinds(world)[-1] == "claim.bound"
    assert world.book.is_gone("claim-a")
    assert world.leaving.asked == {"claim-a": {"uid-train"}}
    assert not world.write("b", result(0))["allowed"]

    confirmed(world, "uid-train")

    assert kinds(world)[-1] == "claim.released"
    assert not world.book.is_gone("claim-a")
    assert world.write("b", result(0))["allowed"]


def test_what_was_taken_away_past_the_gate_is_held_until_its_node_has_confirmed(
    world: World,
) -> None:
    """The configuration was removed for a while; the same claim gets nothing else meanwhile."""
    used(world)
    world.show(world.store(claim("a", 0)))
    assert world.book.is_gone("claim-a")
    assert "ReleaseNotConfirmed" in world.write("a", result(1))["status"]["message"]

    confirmed(world, "uid-train")

    assert kinds(world)[-1] == "claim.released"
    assert world.write("a", result(1))["allowed"]


def test_of_a_claim_that_no_watch_shows_yet_nobody_is_asked(world: World) -> None:
    """Its Pod may start yet; once the API itself has no such claim, its node is asked."""
    world.leaving.witness = WATCHED
    assert world.write("b", result(1))["allowed"], "claims are listed before it"
    assert world.write("a", result(0), pods=["train"])["allowed"]
    assert not world.book.is_shown("claim-a")
    world.gate.look_again()
    asyncio.run(world.gate.settle())
    assert "claim-a" not in world.leaving.asked

    world.delete("a")
    world.gate.look_again()
    asyncio.run(world.gate.settle())

    assert world.leaving.asked == {"claim-a": {"uid-train"}}
    confirmed(world, "uid-train")
    assert kinds(world)[-1] == "claim.voided"


def test_what_waited_before_a_start_is_asked_again_and_woken(world: World) -> None:
    """The release was refused by a process that is gone: its controller may wait for minutes."""
    stored = used(world)
    goes(world)
    state = world.accounts.node("n1")
    assert state is not None
    opening = world.ledger.log[0]
    world.start([(opening, state.claims["claim-a/1"])])
    world.leaving.asks.forget("claim-a")

    world.show(stored)

    assert world.leaving.asked == {"claim-a": {"uid-train"}}
    confirmed(world, "uid-train")
    assert "tenure.sh/confirmed" in world.now("a")["metadata"]["annotations"]


def test_a_claim_in_use_is_asked_of_nobody(world: World) -> None:
    """Only what ends is."""
    used(world)
    world.leaving.lives["uid-train"] = Life.RUNS
    world.show(world.store(claim("a", 0, result(0), pods=["train", "more"])))

    assert world.leaving.asked == {}
    assert not world.gate.ends.waiting()


def test_what_a_lost_node_holds_stays_while_its_claim_goes(world: World) -> None:
    """The API forgets it; the ledger frees it with the machine, and not before."""
    used(world)
    world.leaving.witness = replace(WATCHED, is_lost=True)
    world.accounts.events.append(NodeLost(node_uid="node-1", node_name="n1", reason="deleted"))
    world.book.take(world.accounts.events[-1])

    assert goes(world)["allowed"]
    assert kinds(world)[-1] == "claim.bound"
    assert "HeldOnLostNode" in world.write("a", result(1))["status"]["message"]

    cleared = NodeCleared(node_uid="node-1", node_name="n1", evidence="agent")
    world.accounts.events.append(cleared)
    world.book.take(cleared)
    world.leaving.witness = WATCHED

    assert world.write("a", result(0))["allowed"]
    assert kinds(world)[-1] == "claim.reserved"


def test_a_pod_that_runs_keeps_its_claim_though_it_is_off_its_list(world: World) -> None:
    """Who empties `reservedFor` and then deallocates frees nothing, with an agent or without."""
    world.leaving.lives["uid-train"] = Life.RUNS
    world.write("a", result(0), pods=["train"])
    world.show(world.now("a"))
    world.show(world.store(claim("a", 0, result(0))))

    assert "StillUsed" in goes(world)["status"]["message"]

    world.leaving.lives.clear()
    world.gate.look_again("n1")
    assert goes(world)["allowed"]
    assert kinds(world)[-1] == "claim.released"


def test_a_reservation_that_is_stored_nowhere_does_not_stay_for_good(world: World) -> None:
    """The answer came too late, its Pod is gone, and nobody writes the claim any more."""
    old = world.store(claim("a", 0))
    version = int(old["metadata"]["resourceVersion"])
    assert world.asked(old, claim("a", version, result(0), pods=["train"]))["allowed"]
    world.gate.look_again()
    asyncio.run(world.gate.settle())
    assert "annotations" not in world.now("a")["metadata"], "it may be stored any moment"

    world.clock.now += OPEN_SECONDS
    world.gate.look_again()
    asyncio.run(world.gate.settle())
    assert world.now("a")["metadata"]["annotations"] == {"tenure.sh/fenced": str(version)}
    world.show(world.now("a"))

    assert kinds(world) == ["claim.reserved", "claim.voided"]
    assert world.write("b", result(0))["allowed"]


def test_a_claim_that_was_gone_before_its_reservation_was_recorded_holds_nothing(
    world: World,
) -> None:
    """It went while it was read, of which the watch told before: nothing tells of it again."""
    assert world.write("b", result(1))["allowed"], "claims are listed before it"
    old = world.store(claim("a", 0))
    world.server.lost = claim_path("ml", "a")
    version = int(old["metadata"]["resourceVersion"])

    assert world.asked(old, claim("a", version, result(0)))["allowed"]
    look(world, OPEN_SECONDS)

    assert sorted(kinds(world)) == [
        *("claim.bound", "claim.reserved", "claim.reserved", "claim.voided")
    ]
    assert world.book.standing("claim-a") is None


def test_a_reservation_of_a_claim_that_no_watch_showed_yet_stays(world: World) -> None:
    """The API server asked before its watch told: it is asked whether there is such a claim."""
    world.write("x", result(1))
    world.write("a", result(0))
    world.book.seen.clear()
    world.book.changed.clear()

    asyncio.run(world.gate.settle())
    world.start([])
    asyncio.run(world.gate.settle())

    assert "claim.voided" not in kinds(world)
    assert "claim.released" not in kinds(world)


def test_what_was_deleted_while_nobody_led_is_released_at_the_start(world: World) -> None:
    """No watch tells of it: the list lacks it, and the API server says so."""
    world.write("a", result(0), pods=["train"])
    state = world.accounts.node("n1")
    assert state is not None
    opened = [(one, state.claims["claim-a/1"]) for one in world.ledger.log]
    world.delete("a")

    world.start(opened)
    asyncio.run(world.gate.settle())

    assert kinds(world)[-1] == "claim.voided"


@pytest.mark.parametrize("is_shown", [True, False])
def test_nobody_frees_a_card_by_saying_that_its_claim_moved_on(
    world: World, *, is_shown: bool
) -> None:
    """Whoever can reach us can send a review: the API server is asked before anything ends."""
    world.write("a", result(0), pods=["train"])
    if is_shown:
        world.show(world.now("a"))
    before = kinds(world)

    forged = world.asked(claim("a", 10**9), claim("a", 10**9, result(1)))

    assert "StaleWrite" in forged["status"]["message"]
    assert kinds(world) == before
    assert not world.write("b", result(0))["allowed"]


def test_what_was_shown_and_is_not_recorded_yet_counts(world: World) -> None:
    """It got past the gate a moment ago: nobody gets its card beside it."""
    world.write("x", result(3))
    world.book.put("claim-forged", world.store(claim("forged", 0, result(0))))

    assert not world.write("b", result(0))["allowed"]


def test_a_claim_of_a_node_that_is_not_known_yet_is_observed_once_it_is(world: World) -> None:
    """Nothing of the claim itself changes then, and its card was never free."""
    world.accounts.is_known = False
    world.show(world.store(claim("before", 0, result(0))))
    assert kinds(world) == []

    world.accounts.is_known = True

    assert not world.write("b", result(0))["allowed"]
    assert kinds(world)[0] == "claim.observed"


def test_a_release_that_the_ledger_refused_is_tried_again(world: World) -> None:
    """Whatever it was: no card stays held by a claim that has none."""
    world.write("a", result(0))
    world.show(world.now("a"))
    world.ledger.refuses["node-1"] = "not now"
    world.show(world.store(claim("a", 0)))
    assert kinds(world)[-1] == "claim.bound"

    world.ledger.refuses.clear()
    world.gate.look_again()
    asyncio.run(world.gate.settle())

    assert kinds(world)[-1] == "claim.released"


def test_what_was_taken_away_past_the_gate_is_released_once_its_pod_ended(world: World) -> None:
    """The Pod's end changes nothing of the claim: it is looked at again."""
    world.write("a", result(0), pods=["train"])
    world.show(world.now("a"))
    world.leaving.lives["uid-train"] = Life.RUNS
    world.show(world.store(claim("a", 0)))
    assert kinds(world)[-1] == "claim.bound"
    assert not world.write("b", result(0))["allowed"]

    world.leaving.lives.clear()

    assert world.write("b", result(0))["allowed"]


def test_a_process_that_starts_again_goes_on_where_the_ledger_is(world: World) -> None:
    """An attempt has its number once, also where the last one ended before the start."""
    world.write("a", result(0), pods=["train"])
    stored = world.now("a")
    state = world.accounts.node("n1")
    assert state is not None
    opened = [
        (event, state.claims[f"{event.claim_uid}/{event.attempt}"])
        for event in world.ledger.log
        if isinstance(event, ClaimReserved)
    ]
    world.start(opened)
    world.show(stored)
    assert isinstance(world.ledger.log[-1], ClaimBound)

    world.show(world.store(claim("a", 0)))
    world.start()
    world.write("a", result(0))

    assert [event.attempt for event in world.ledger.log if isinstance(event, ClaimReserved)] == [
        1,
        2,
    ]


_DEEP = b'{"request": {"uid": "a", "object": ' + b'{"a":' * 100_000


@pytest.mark.parametrize("body", [b"", b"{}", b'{"request": {"uid": 1}}', _DEEP], ids=len)
def test_what_is_no_review_is_an_error(world: World, body: bytes) -> None:
    """It is never taken for a yes."""
    with pytest.raises(InputError):
        asyncio.run(world.gate.answer(body))


NAMELESS: dict[str, dict[str, object]] = {
    "a name that is escaped": {"name": "UPPER_CASE%zz"},
    "a name that is another path": {"name": "../../../../../../api/v1/nodes/n-1"},
    "a name that is no name": {"name": ".."},
    "a name that is too long": {"name": "a" * 254},
    "a namespace of two words": {"namespace": "ml.team"},
    "a namespace that is another path": {"namespace": "ml/pods"},
    "no namespace": {"namespace": ""},
    "a UID that is no UID": {"uid": "x y"},
    "a UID that is too long": {"uid": "a" * 64},
    "a version of 5,000 digits": {"resourceVersion": "9" * 5_000},
    "a version of 20 digits": {"resourceVersion": "9" * 20},
}


@pytest.mark.parametrize("words", NAMELESS.values(), ids=NAMELESS)
def test_a_claim_that_no_api_server_has_is_no_review(
    world: World, words: dict[str, object]
) -> None:
    """Its names are asked for nowhere, and nothing is recorded."""
    old, new = claim("a", 1), claim("a", 1, result(0))
    for each in (old, new):
        each["metadata"] |= words
    calls = len(world.api.calls)

    with pytest.raises(InputError):
        world.asked(old, new)

    assert world.ledger.log == []
    assert world.api.calls[calls:] == []


@pytest.mark.parametrize(
    "words", [{"name": "b"}, {"namespace": "other"}, {"uid": "claim-b"}], ids=str
)
def test_a_write_is_of_one_claim(world: World, words: dict[str, object]) -> None:
    """What one claim is, says nothing of another one."""
    new = claim("a", 1, result(0))
    new["metadata"] |= words

    with pytest.raises(InputError, match="another claim"):
        world.asked(world.store(claim("a", 0)), new)


@pytest.mark.parametrize("user", [{"name": "../pods"}, {"uid": "/"}], ids=str)
def test_who_uses_a_claim_has_a_pods_name(world: World, user: dict[str, object]) -> None:
    """By it the API server is asked whether it runs."""
    old = world.store(claim("a", 0))
    new = claim("a", 1, result(0), pods=["train"])
    new["status"]["reservedFor"][0] |= user

    with pytest.raises(InputError, match="reservedFor"):
        world.asked(old, new)


def test_whose_claim_it_is_has_a_pods_name(world: World) -> None:
    """Of a claim of ours the Pod is read by it."""
    old = world.store(own_claim("a", 0, HALF))
    new = own_claim("a", 1, HALF, result(0))
    new["metadata"]["ownerReferences"][0]["name"] = "../../nodes/n1"

    with pytest.raises(InputError, match="ownerReferences"):
        world.asked(old, new)


@pytest.mark.parametrize("version", [1, 2, 10**15], ids=str)
@pytest.mark.parametrize("is_there", [True, False], ids=["the real one waits", "no such claim"])
def test_nobody_takes_a_card_with_an_invented_claim(
    world: World, version: int, *, is_there: bool
) -> None:
    """The API server is asked; what it does not confirm is recorded nowhere, and bars nobody."""
    other = world.store(claim("a" if is_there else "b", 0))
    uid = {"uid": "claim-a"} if version > 1 else {"uid": "invented"}
    old, new = claim("a", version), claim("a", version, result(0), pods=["train"])
    for each in (old, new):
        each["metadata"] |= uid

    assert "StaleWrite" in world.asked(old, new)["status"]["message"]
    asyncio.run(world.telling.send())

    assert world.ledger.log == []
    assert not [path for path in world.server.objects if "/events/" in path]
    assert world.write(other["metadata"]["name"], result(0))["allowed"]


def test_a_write_that_the_watch_shows_a_moment_later_costs_no_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kube-scheduler writes a claim twice in a row; what no watch shows is read."""
    assert world.write("b", result(1))["allowed"]  # all claims are listed
    item = world.store(claim("a", 0))
    sleep = StillClock.sleep

    async def show_meanwhile(clock: StillClock, seconds: float) -> None:
        await sleep(clock, seconds)
        world.book.put("claim-a", item)

    monkeypatch.setattr(StillClock, "sleep", show_meanwhile)
    before = len(world.api.calls)
    assert world.write("a", result(0))["allowed"]
    assert len(world.api.calls) == before
    assert world.clock.now < FIRST_SECONDS


def test_a_write_is_on_the_version_that_it_says(world: World) -> None:
    """The API server refuses any other one: nothing is reserved for it."""
    old = world.store(claim("a", 0))

    answer = world.asked(old, claim("a", 10**15, result(0)))

    assert "StaleWrite" in answer["status"]["message"]
    assert world.ledger.log == []


def held_before(world: World, *, name: str = "a") -> str:
    """Let a ledger of before have a claim's grant that nobody checked; return its UID."""
    allocated = seen("a", 1, result(0)).allocated
    assert allocated is not None
    account = world.accounts.account(allocated)
    assert isinstance(account, Accounted)
    event = ClaimReserved(
        claim_uid="claim-a",
        attempt=1,
        node_uid="node-1",
        namespace="ml",
        claim_name=name,
        node_name="n1",
        results=allocated.results,
        shares=account.shares,
        device_models=account.models,
        consumers=(Claimant(name="train", uid="uid-train"),),
        resource_version=str(10**15),
    )
    world.ledger.log.append(event)
    world.accounts.events.append(event)
    state = world.accounts.node("n1")
    assert state is not None
    world.start([(event, state.claims["claim-a/1"])])
    return event.claim_uid


@pytest.mark.parametrize(
    "name", ["UPPER_CASE%zz", "../../../../../../api/v1/nodes/n-1", "x/status", ""], ids=str
)
def test_what_was_granted_to_a_name_that_no_claim_has_ends_at_the_start(
    world: World, name: str
) -> None:
    """Also where it says that a Pod which runs uses it, and the node is silent."""
    world.leaving.lives["uid-train"] = Life.RUNS
    world.leaving.witness = WATCHED
    held_before(world, name=name)
    calls = len(world.api.calls)

    look(world)

    assert kinds(world) == ["claim.reserved", "claim.voided"]
    assert world.api.calls[calls:] == [], "no path is made of it"


@pytest.mark.parametrize("status", [400, 403, 500], ids=str)
def test_the_api_server_is_asked_ever_less_often_for_a_claim_that_may_be_gone(
    world: World, status: int
) -> None:
    """Nothing ends before it has answered; then it ends."""
    held_before(world)
    world.api.fate = lambda _: status
    calls = len(world.api.calls)
    asyncio.run(look_for_minutes(world))

    assert kinds(world) == ["claim.reserved"]
    assert len(world.api.calls) - calls <= 600 / LONGEST_SECONDS + 7
    world.api.fate = lambda _: "answered"
    look(world, LONGEST_SECONDS)
    assert kinds(world)[-1] == "claim.voided"


def test_a_version_that_the_api_server_has_not_come_to_holds_nothing(world: World) -> None:
    """The real claim gets its card at once; and where nobody writes it, it is void soon."""
    held_before(world)
    stored = world.store(claim("a", 0))
    world.book.put("claim-a", stored)

    assert world.write("a", result(1))["allowed"]
    assert kinds(world) == ["claim.reserved", "claim.voided", "claim.reserved"]

    world = World()
    held_before(world)
    world.show(world.store(claim("a", 0)))
    look(world, OPEN_SECONDS)
    assert kinds(world) == ["claim.reserved", "claim.voided"]
    assert world.server.written == [], "nothing is written for it"


def test_what_a_claim_has_past_the_gate_counts_beside_an_invented_version(world: World) -> None:
    """It had its card before; the ledger learns of it as soon as it doubts the version."""
    held_before(world)
    world.show(world.store(claim("a", 0, result(1))))
    look(world, OPEN_SECONDS)

    assert kinds(world) == ["claim.reserved", "claim.voided", "claim.observed"]


def test_a_claim_that_can_not_be_fenced_is_patched_ever_less_often(world: World) -> None:
    """Whatever the API server refuses it for."""
    old = world.store(claim("a", 0))
    version = int(old["metadata"]["resourceVersion"])
    assert world.asked(old, claim("a", version, result(0), pods=["train"]))["allowed"]
    world.api.fate = lambda verb: 403 if verb == "patch" else "answered"
    calls = len(world.api.calls)
    asyncio.run(look_for_minutes(world))

    assert kinds(world) == ["claim.reserved"]
    patches = [path for verb, path in world.api.calls[calls:] if verb == "patch"]
    assert 5 < len(patches) <= 600 / LONGEST_SECONDS + 7


@pytest.mark.parametrize("is_named", [True, False], ids=["it uses it", "it has no claim"])
def test_one_act_takes_back_what_no_claim_has(world: World, *, is_named: bool) -> None:
    """Though it says that a Pod uses it which runs, unless that Pod says so itself."""
    world.leaving.lives["uid-train"] = Life.RUNS
    uid = held_before(world)
    pod: dict[str, Any] = {
        "metadata": {"name": "train", "namespace": "ml", "uid": "uid-train"},
        "spec": {"nodeName": "n1", "resourceClaims": [{"name": "g", "resourceClaimName": "b"}]},
        "status": {"phase": "Running"},
    }
    if is_named:
        pod["status"]["resourceClaimStatuses"] = [{"name": "g", "resourceClaimName": "a"}]
    world.server.put(pod_path("ml", "train"), pod)
    look(world, 600)
    assert kinds(world) == ["claim.reserved"]

    def force(*, dry_run: bool) -> dict[str, bool]:
        act = world.gate.force("ml", "a", "", reason="forged", actor="user/anna", dry_run=dry_run)
        return asyncio.run(act)

    assert force(dry_run=True) == ({} if is_named else {uid: False})
    assert kinds(world) == ["claim.reserved"]
    assert force(dry_run=False) == ({} if is_named else {uid: True})
    assert kinds(world)[1:] == ([] if is_named else ["claim.voided"])
    if not is_named:
        assert world.ledger.actors == ["user/anna"]


def test_an_act_waits_for_no_claim_of_another_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody keeps a release waiting by a claim of which the API server is being asked."""
    for name, number in (("a", 0), ("b", 1)):
        assert world.write(name, result(number))["allowed"]
    world.delete("b")
    blocked, read = asyncio.Event(), ApiClient.read

    async def read_late(api: ApiClient, path: str) -> Any:  # noqa: ANN401 - an object
        if path == claim_path("ml", "a"):
            await blocked.wait()
        return await read(api, path)

    monkeypatch.setattr(ApiClient, "read", read_late)
    moved = world.store({**world.now("a"), "status": {}})  # no watch has shown it

    async def both() -> dict[str, bool]:
        version = int(moved["metadata"]["resourceVersion"])
        review = {"uid": "r", "oldObject": moved, "object": claim("a", version, result(2))}
        body = json.dumps({"request": review}).encode()
        answering = asyncio.create_task(world.gate.answer(body))
        act = world.gate.force("ml", "b", "", reason="mine", actor="user/anna", dry_run=True)
        forced = asyncio.create_task(act)
        for _ in range(100):
            await asyncio.sleep(0)
        is_done = forced.done()
        blocked.set()
        await answering
        return await forced if is_done else {}

    assert asyncio.run(both()) == {"claim-b": False}


def test_no_act_takes_back_what_a_claim_has(world: World) -> None:
    """Only what no claim has, or what waits for its node."""
    world.write("a", result(0), pods=["train"])
    world.show(world.now("a"))

    act = world.gate.force("ml", "a", "", reason="mine", actor="user/anna")

    assert asyncio.run(act) == {}
    assert kinds(world)[-1] == "claim.bound"


def test_an_open_gate_writes_no_words_of_its_callers_under_a_teams_name(world: World) -> None:
    """What is refused is answered and counted; of a grant only Pods are named that wait."""
    world.gate.confirming.knows_callers = False
    world.pods["uid-train"] = {"metadata": {"namespace": "ml", "name": "train"}}

    assert world.write("a", result(0), pods=["train", "invented"])["allowed"]
    for _ in range(2):
        refused = world.write("b", result(0), pods=["train"])
        assert refused["status"]["message"].startswith("DeviceTaken")
    asyncio.run(world.telling.send())

    assert kinds(world) == ["claim.reserved"]
    [granted] = world.ledger.log
    assert isinstance(granted, ClaimReserved)
    assert [one.name for one in granted.consumers] == ["train"]
    assert not [path for path in world.server.objects if "/events/" in path]
    assert world.gate.counts["refused DeviceTaken"] == 2


def invented(world: World, name: str) -> bool:
    """Forge a review of a claim that nobody has; tell whether it was answered."""
    old = claim(name, 0)  # for no version is waited, so the clock hardly moves
    try:
        answer = world.asked(old, claim(name, 0, result(0)))
    except NotNowError:
        return False
    assert not answer["allowed"]
    return True


def test_invented_claims_cost_an_open_gates_api_server_so_much_and_bar_nobody(world: World) -> None:
    """Each is asked of once, within a budget; what the watch shows needs none of it."""
    world.gate.confirming.knows_callers = False
    world.book.put("claim-a", world.store(claim("a", 0)))
    for number in range(2 * int(CALLS_BURST)):
        invented(world, f"b-{number}")

    asked = [path for _, path in world.api.calls if "/b-" in path]
    assert len(asked) <= CALLS_BURST + world.clock.now / CALLS_SECONDS
    assert not invented(world, "b")
    assert world.write("a", result(0))["allowed"]


def forged_and_fenced(world: World, name: str) -> bool:
    """Let an open gate grant a claim that is there, and end that; tell whether it was granted."""
    now = world.now(name)
    version = int(now["metadata"]["resourceVersion"])
    is_granted = bool(world.asked(now, claim(name, version, result(0)))["allowed"])
    world.asked(now, claim(name, version, result(1)))  # its version is moved
    world.show(world.now(name))
    return is_granted


def test_grants_that_nobody_stores_have_a_budget_at_an_open_gate(world: World) -> None:
    """Of each claim; a claim's first one, and what is stored, cost nothing of it."""
    world.gate.confirming.knows_callers = False
    for name in "ab":
        world.show(world.store(claim(name, 0)))
    granted = [forged_and_fenced(world, "a") for _ in range(3 * int(GRANTS_BURST))]

    assert sum(granted) <= 1 + GRANTS_BURST + world.clock.now / GRANTS_SECONDS
    refused = world.write("a", result(0))["status"]["message"]
    assert refused.startswith("NotStored")
    for _ in range(2 * int(GRANTS_BURST)):
        assert world.write("b", result(0))["allowed"]
        world.show(world.now("b"))
        assert world.write("b")["allowed"]
        world.show(world.now("b"))


def test_a_gate_that_knows_its_callers_grants_whatever_is_not_stored(world: World) -> None:
    """Each of them may write the claim's status."""
    world.show(world.store(claim("a", 0)))

    assert all(forged_and_fenced(world, "a") for _ in range(2 * int(GRANTS_BURST)))


def test_a_write_of_a_status_says_nothing_of_what_its_claim_asks_for(world: World) -> None:
    """That is recorded as the API server has it, whoever calls."""
    old = world.store(claim("a", 0))
    new = claim("a", int(old["metadata"]["resourceVersion"]), result(0))
    new["spec"]["devices"]["requests"].append({"name": "invented", "exactly": {"count": 9}})

    assert world.asked(old, new)["allowed"]

    [granted] = world.ledger.log
    assert isinstance(granted, ClaimReserved)
    assert "invented" not in str(granted.snapshot)


@pytest.mark.parametrize(
    ("results", "pods", "field"),
    [
        ([result(0)] * 33, [], "results"),
        ([result(0)], [f"p-{number}" for number in range(257)], "reservedFor"),
        ([result(0) | {"consumedCapacity": {f"c-{n}": "1" for n in range(33)}}], [], "consumed"),
        ([result(0) | {"consumedCapacity": {"c" * 321: "1"}}], [], "consumed"),
    ],
    ids=["results", "users", "capacities", "a capacity's name"],
)
def test_a_status_has_no_more_than_the_api_allows(
    world: World, results: list[dict[str, Any]], pods: list[str], field: str
) -> None:
    """So an event has a largest size."""
    with pytest.raises(InputError, match=field):
        world.write("a", *results, pods=pods)

    assert world.ledger.log == []


def test_a_claim_that_goes_while_it_is_read_is_not_taken_for_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch shows that it is gone before the answer comes, and shows it no more."""
    assert world.write("a", result(0), pods=["train"])["allowed"]
    world.show(world.now("a"))
    labels = {**world.now("a")["metadata"], "labels": {"x": "y"}}
    now = world.store({**world.now("a"), "metadata": labels})  # not shown yet
    read = world.server.read

    def read_late(path: str) -> Any:  # noqa: ANN401 - an object
        found = read(path)
        if path == claim_path("ml", "a") and found is not None:
            world.delete("a")
        return found

    monkeypatch.setattr(world.server, "read", read_late)
    assert not world.asked(now, {**now, "status": {}})["allowed"]
    look(world, 600)
    assert world.book.standing("claim-a") is None
    assert world.write("b", result(0))["allowed"]


def test_a_dry_run_of_a_release_signs_nothing(world: World) -> None:
    """The claim's own end is recorded as that."""
    assert world.write("a", result(0), pods=["train"])["allowed"]
    world.show(world.now("a"))
    world.delete("a")
    act = world.gate.force("ml", "a", "", reason="a look", actor="user/anna", dry_run=True)
    asyncio.run(act)
    look(world, 600)
    [released] = [one for one in world.ledger.log if isinstance(one, ClaimReleased)]
    assert "a look" not in released.reason


def nested(levels: int) -> str:
    """Return a list in lists."""
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("value", "words"),
    [
        pytest.param("[" + "[]," * NESTED_MAX + "[]]", "body: too many values", id="many lists"),
        pytest.param("[" + "1," * VALUES_MAX + "1]", "body: too many values", id="many numbers"),
        pytest.param(nested(DEPTH_MAX), "request.object: too deep", id="deep"),
        pytest.param(nested(100_000), "body: maximum recursion", id="deeper than is decoded"),
        pytest.param("9" * 5_000, "body: Integer value out of range", id="a long number"),
    ],
)
def test_a_review_has_bounds_wherever_it_is_large(world: World, value: str, words: str) -> None:
    """Nothing of it is looked at then, nor asked of the API server."""
    review = f'{{"request": {{"uid": "r", "oldObject": {{}}, "object": {{"x": {value}}}}}}}'

    with pytest.raises(InputError, match=words):
        asyncio.run(world.gate.answer(review.encode()))

    assert world.listed == 0


def test_a_large_review_is_read_outside_of_the_loops_thread(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is read after another, so that other calls are answered in between; it counts as any."""
    threads: dict[bool, str] = {}

    def decode(body: bytes, kind: type[Any]) -> object:
        threads[len(body) > ASIDE_BYTES] = threading.current_thread().name
        return decode_bounded(body, kind)

    monkeypatch.setattr("scheduler.service.gate.decode_bounded", decode)
    assert world.write("a", result(0))["allowed"]
    large = claim("b", 0)
    large["metadata"]["annotations"] = {"x": "y" * ASIDE_BYTES}
    world.store(large)

    assert world.write("b", result(1))["allowed"]

    assert threads[False] == threading.main_thread().name
    assert threads[True].startswith("bodies")


HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"}


def own(
    world: World, name: str, limits: Mapping[str, str], *results: dict[str, Any], **spec: object
) -> dict[str, Any]:
    """Ask for what a Pod's claim of ours is given, of which the spec may be another one."""
    world.pods[f"uid-{name}"] = by_claim(name, limits)
    old = own_claim(name, 0, limits)
    old["spec"] |= spec
    old = world.store(old)
    new = own_claim(name, int(old["metadata"]["resourceVersion"]), limits, *results)
    new["spec"] |= spec
    return world.asked(old, new)


def test_a_claim_of_ours_holds_what_its_request_asks_for(world: World) -> None:
    """A whole card is held alone, as by every other way to ask for it."""
    assert own(world, "a", {"nvidia.com/gpu": "1"}, result(0, request="g0"))["allowed"]

    [reserved] = [one for one in world.ledger.log if isinstance(one, ClaimReserved)]
    assert [share.exclusive for share in reserved.shares] == [True]


@pytest.mark.parametrize(
    ("results", "spec", "reason"),
    [
        ([result(0, memory="8Gi", request="g0")], {"devices": {}}, "TemplateNotOurs"),
        ([result(0, memory="4Gi", request="g0")], {}, "LessThanAsked"),
        ([result(0, memory="8Gi", request="other")], {}, "TemplateNotOurs"),
        ([result(each, memory="8Gi", request="g0") for each in (0, 1)], {}, "TemplateNotOurs"),
    ],
    ids=["another spec", "less than asked", "a request that there is not", "two cards of one"],
)
def test_what_a_pods_request_does_not_give_is_refused(
    world: World, results: list[dict[str, Any]], spec: dict[str, Any], reason: str
) -> None:
    """Whoever wrote the template, and whoever wrote the status."""
    limits = {"aliyun.com/gpu-mem": "8192"}
    response = own(world, "a", limits, *results, **spec)

    assert response["status"]["message"].startswith(reason)
    assert not [one for one in world.ledger.log if isinstance(one, ClaimReserved)]


PARTS = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4096"}
RATIO = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}
OF_16 = f"g0/m{16 << 30}"


@pytest.mark.parametrize(
    ("limits", "results"),
    [
        ({"nvidia.com/gpu": "2"}, [result(0, request="g0")]),
        (PARTS, [result(0, memory="4Gi", share_id=each, request="g0") for each in ("a", "b")]),
        (RATIO, [result(0, memory="7Gi", request=OF_16)]),
    ],
    ids=["one card of two", "two parts of one card", "less than its ratio"],
)
def test_cards_that_are_not_as_many_or_as_large_as_asked_for_are_refused(
    world: World, limits: dict[str, str], results: list[dict[str, Any]]
) -> None:
    """No scheduler writes that; whoever may write a status may."""
    response = own(world, "a", limits, *results)

    assert response["status"]["message"].startswith("LessThanAsked")
    assert not [one for one in world.ledger.log if isinstance(one, ClaimReserved)]


def test_cards_that_are_as_asked_for_are_let_through(world: World) -> None:
    """Parts of two cards, and a ratio of the size that its alternative is for."""
    parts = [result(each, memory="4Gi", request="g0") for each in (0, 1)]
    assert own(world, "a", PARTS, *parts)["allowed"]
    assert own(world, "b", RATIO, result(2, memory="8Gi", request=OF_16))["allowed"]


def test_a_claim_of_ours_without_its_pod_is_refused(world: World) -> None:
    """Nobody knows what it may have; the API server is asked for a Pod that is not known."""
    limits = {"nvidia.com/gpu": "1"}
    old = world.store(own_claim("a", 0, limits))
    version = int(old["metadata"]["resourceVersion"])
    new = own_claim("a", version, limits, result(0, request="g0"))
    assert world.asked(old, new)["status"]["message"].startswith("TemplateNotOurs")

    world.server.objects["/api/v1/namespaces/ml/pods/a"] = by_claim("a", limits)
    assert world.asked(old, new)["allowed"]


def test_a_claim_of_ours_whose_pod_says_nothing_legible_is_refused(world: World) -> None:
    """In words, and not as a review that is none."""
    limits = {"nvidia.com/gpu": "1"}
    old = world.store(own_claim("a", 0, limits))
    made = by_claim("a", limits)
    made["metadata"]["annotations"]["tenure.sh/claimed-request"] = "{"
    world.server.objects["/api/v1/namespaces/ml/pods/a"] = made
    new = own_claim("a", int(old["metadata"]["resourceVersion"]), limits, result(0, request="g0"))

    assert world.asked(old, new)["status"]["message"].startswith("TemplateNotOurs")


def test_none_of_what_nobody_asked_for_is_no_share_of_nothing(world: World) -> None:
    """Memory without compute is asked for in some dialects; of a claim of others it is refused."""
    limits = {"aliyun.com/gpu-mem": "8192"}
    consumed = {"memory": "8Gi", "cores": "0"}
    part = {**result(0, memory="8Gi", request="g0"), "consumedCapacity": consumed}

    assert own(world, "a", limits, part)["allowed"]
    refused = world.write("b", {**result(1, memory="8Gi"), "consumedCapacity": consumed})
    assert refused["status"]["message"].startswith("ZeroShare")


def test_a_claim_that_kube_scheduler_makes_for_an_extended_resource_passes_like_any(
    world: World,
) -> None:
    """Its Pod names nothing of ours."""
    old = world.store(claim("a", 0))
    old["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    new = claim("a", int(old["metadata"]["resourceVersion"]), result(0), pods=["a"])

    assert world.asked(old, new)["allowed"]


def test_a_node_of_two_modes_gives_nothing_new_and_takes_back(world: World) -> None:
    """What is held is released as ever."""
    assert world.write("a", result(0))["allowed"]
    world.show(world.now("a"))
    world.mode = Mode.BOTH

    assert world.write("b", result(1))["status"]["message"].startswith("TwoModes")
    assert world.write("a")["allowed"], "it is given back"
    world.mode = Mode.CLAIMS
    assert world.write("b", result(1))["allowed"]
