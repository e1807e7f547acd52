"""Pods with a claim of ours are let go one by one, with the node that is preferred."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from certs.ports import ApiError
from ledger.domain.log.state import NodeState
from ledger.domain.nodes import NodeFacts
from scheduler.decide.settings import SchedulingSettings
from scheduler.service.claim_places import ClaimPlaces, sent_to
from tests.support.fake_api import ApiClient, ApiServer, path_of
from tests.support.gated import card
from tests.support.live import StillClock
from tests.support.owning import by_claim

WHOLE = {"nvidia.com/gpu": "1"}


class World:
    """An API server with Pods, and who sends them."""

    def __init__(self, *nodes: str) -> None:
        self.server, self.clock = ApiServer(), StillClock()
        self.api = ApiClient(self.server, self.clock.sleep)
        self.why = ""
        self.users: set[str] = set()
        states = {
            name: (
                NodeFacts(uid=name, name=name),
                NodeState(uid=name, name=name, devices=(card(0),)),
            )
            for name in nodes
        }
        self.places = ClaimPlaces(
            api=self.api,
            clock=self.clock,
            pod=self._pod,
            names=lambda: sorted(states),
            node=states.get,
            users=lambda: frozenset(self.users),
            why_not=lambda: self.why,
            settings=SchedulingSettings(),
        )
        self.server.watchers.append(self._tell)

    def _pod(self, uid: str) -> dict[str, Any] | None:
        found = self.server.objects.values()
        return next((one for one in found if one["metadata"]["uid"] == uid), None)

    def _tell(self, kind: str, item: dict[str, Any]) -> None:
        uid = item["metadata"]["uid"]
        if kind == "DELETED":
            self.places.drop(uid)
        else:
            self.places.put(uid, item)

    def come(self, name: str) -> None:
        """Let a Pod come."""
        made = by_claim(name, WHOLE)
        self.server.put(path_of(made), made)

    def send(self) -> None:
        """Let it look once."""
        asyncio.run(self.places.send())

    def wish(self, name: str) -> str | None:
        """Return the node that a Pod prefers; None while it is held back."""
        spec = self.server.objects[f"/api/v1/namespaces/ml/pods/{name}"]["spec"]
        if spec.get("schedulingGates"):
            return None
        if "affinity" not in spec:
            return ""
        [wish] = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        return str(wish["preference"]["matchFields"][0]["values"][0])


def test_pods_are_sent_where_there_is_room_and_else_go_without_a_wish() -> None:
    """Each card once, also before the ledger has their claims."""
    world = World("a", "b")
    for name in ("p", "q", "r"):
        world.come(name)
    world.why = "another replica leads"
    world.send()
    assert world.wish("p") is None

    world.why = ""
    world.send()
    assert [world.wish(name) for name in ("p", "q", "r")] == ["a", "b", ""]


def test_who_went_counts_until_the_ledger_has_its_claim_or_it_is_gone() -> None:
    """And no longer than half a minute."""
    world = World("a")
    world.come("p")
    world.send()
    world.come("q")
    world.send()
    assert world.wish("q") == ""

    world.clock.now += 60.0
    world.come("r")
    world.send()
    assert world.wish("r") == "a"
    world.server.delete("/api/v1/namespaces/ml/pods/r")
    world.come("s")
    world.send()
    assert world.wish("s") == "a"


def test_a_pod_that_changed_is_looked_at_again() -> None:
    """And one that the API server refuses holds up nobody."""
    world = World("a")
    world.come("p")
    fates = iter([500])
    world.api.fate = lambda _: next(fates, "answered")
    with pytest.raises(ApiError):
        world.send()
    assert world.wish("p") is None
    world.send()
    assert world.wish("p") == "a"


@pytest.mark.parametrize(
    "said",
    ['{"containers":{"main":{"limits":{"nvidia.com/gpu":"0.5"}}}}', "{", '{"containers":[]}'],
)
def test_a_pod_whose_request_is_none_goes_without_a_wish(said: str) -> None:
    """Anybody may write our annotation where nobody opted in."""
    world = World("a")
    made = by_claim("p", WHOLE)
    made["metadata"]["annotations"]["tenure.sh/claimed-request"] = said
    world.server.put(path_of(made), made)
    world.come("q")
    world.send()

    assert (world.wish("p"), world.wish("q")) == ("", "a")


def test_what_a_pod_wishes_itself_stays() -> None:
    """Ours is one more; other gates stay."""
    made = by_claim("p", WHOLE)
    made["metadata"]["resourceVersion"] = "7"
    made["spec"]["schedulingGates"].append({"name": "example.com/other"})
    own = {"weight": 1, "preference": {"matchExpressions": []}}
    wishes = {"preferredDuringSchedulingIgnoredDuringExecution": [own]}
    made["spec"]["affinity"] = {"podAffinity": {}, "nodeAffinity": wishes}
    *_, gates, affinity = sent_to(made, "a")

    assert gates["value"] == [{"name": "example.com/other"}]
    found = affinity["value"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert found[0] == own
    assert affinity["value"]["podAffinity"] == {}
    assert found[1]["weight"] == 100
