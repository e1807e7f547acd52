from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.devices import DeviceShare
from ledger.domain.errors import RefusedError
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.normalise import decode_pod
from ledger.domain.request.requests import PodRequest
from ledger.domain.request.rule_names import Rule
from scheduler.decide.answers import encode
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import POLICIES, MGPUSettings, SchedulingSettings
from tests.support.examples import examples
from tests.support.mixed import (
    CARD_GIB,
    GIB,
    NOW_NS,
    Amounts,
    as_running,
    asked,
    asking,
    node_with_device,
    node_without_device,
)
from tests.support.objects import Object

INSTANCES_MAX: Final = 2
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
CORE: Final = "koordinator.sh/gpu-core"
CAPACITY: Final = {
    CORE: 100,
    "koordinator.sh/gpu-memory": CARD_GIB * GIB,
    "koordinator.sh/rdma": 100,
}

Step = tuple[str, tuple[str, tuple[Amounts, ...]], int]
STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(("arrive", "arrive", "arrive", "leave", "restart")),
        asked(),
        st.integers(0, 99),
    ),
    max_size=25,
)


@dataclass(slots=True)
class Cluster:
    """An engine, and beside it what the answers said, read from their annotations alone."""

    nodes: tuple[NodeFacts, ...]
    policy: str
    engine: Engine = field(init=False)
    bodies: dict[str, Object] = field(default_factory=dict)
    requests: dict[str, PodRequest] = field(default_factory=dict)
    placed: dict[str, tuple[int, Mapping[str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine = self._new()

    def _new(self) -> Engine:
        return Engine(self.nodes, self._settings())

    def _settings(self) -> SchedulingSettings:
        mgpu = MGPUSettings(max_containers_per_card=INSTANCES_MAX)
        return SchedulingSettings(node_policy=self.policy, mgpu=mgpu)

    def arrive(self, number: int, dialect: str, containers: tuple[Amounts, ...]) -> None:
        """Decide a Pod, write its answer, and read the answer back as the holding it is."""
        body = asking(f"p{number}", dialect, *containers)
        request = decode_pod(body)
        answer = self.engine.decide(request, ordinal=number)
        if not isinstance(answer, Placement):
            return
        self.engine.reserve(answer)
        facts = self.nodes[answer.node]
        annotations = encode(answer, node=facts, now_ns=NOW_NS, settings=self._settings())
        seen = as_running(body, facts, annotations)
        assert [_held(share) for share in seen.shares] == [_held(share) for share in answer.shares]
        self.bodies[request.uid] = body
        self.requests[request.uid] = request
        self.placed[request.uid] = (answer.node, annotations)

    def leave(self, choice: int) -> None:
        """Release one of the Pods."""
        if self.placed:
            uid = sorted(self.placed)[choice % len(self.placed)]
            self.engine.release(uid)
            del self.placed[uid]

    def restart(self) -> None:
        """Forget everything and adopt the running Pods from what is written on them."""
        self.engine = self._new()
        for uid, (node, written) in self.placed.items():
            seen = as_running(self.bodies[uid], self.nodes[node], written)
            assert self.engine.adopt(node, seen) == []

    def check(self) -> None:
        """Add up, card by card, what all annotations together give away."""
        given_away: dict[tuple[int, str, int, str], int] = defaultdict(int)
        tenants: dict[tuple[int, str, int], list[tuple[str, int]]] = defaultdict(list)
        for uid, (node, written) in self.placed.items():
            for kind, entries in json.loads(written[ALLOCATED]).items():
                for entry in entries:
                    core = int(entry["resources"].get(CORE, 0))
                    tenants[node, kind, entry["minor"]].append((uid, core))
                    for name, amount in entry["resources"].items():
                        given_away[node, kind, entry["minor"], name] += int(amount)
        for (node, kind, minor, name), amount in given_away.items():
            assert amount <= CAPACITY.get(name, amount), (node, kind, minor, name)
        for (node, kind, minor), holders in tenants.items():
            if len(holders) > 1:
                alone = [uid for uid, core in holders if self._alone(uid, kind, core)]
                assert not alone, (node, kind, minor, holders)

    def _alone(self, uid: str, kind: str, core: int) -> bool:
        """Tell whether a Pod must be alone on a device; of GPUs it may share another one."""
        demands = [one for one in self.requests[uid].devices if one.device_type == kind]
        return any(one.exclusive and one.core_percent in {core, 0} for one in demands)


def _held(share: DeviceShare) -> tuple[object, ...]:
    return (
        share.key,
        share.device_id,
        share.core_percent,
        share.memory_bytes,
        share.memory_ratio_percent,
        share.exclusive,
        share.instances,
    )


NODES: Final = (node_with_device("with"), node_without_device("without"))


def _play(steps: list[Step], policy: str, first: int) -> None:
    cluster = Cluster(nodes=NODES[first:] + NODES[:first], policy=policy)
    for number, (kind, (dialect, containers), choice) in enumerate(steps):
        if kind == "arrive":
            cluster.arrive(number, dialect, containers)
        elif kind == "leave":
            cluster.leave(choice)
        else:
            cluster.restart()
        cluster.check()


@settings(max_examples=examples(150), deadline=None)
@given(steps=STEPS, policy=st.sampled_from(POLICIES), first=st.integers(0, 1))
def test_cards_shared_by_every_dialect_are_never_promised_beyond_what_they_are(
    steps: list[Step], policy: str, first: int
) -> None:
    """
    One card's capacity is one row, whoever asks, with a Device object and without.

    Also after a restart that adopts every running Pod from its annotations: core, bytes and
    exclusivity hold over all Pods, and each answer is read back as the holding it stands for.
    """
    _play(steps, policy, first)


@pytest.mark.slow
@settings(max_examples=4000, deadline=None)
@given(steps=STEPS, policy=st.sampled_from(POLICIES), first=st.integers(0, 1))
def test_shared_cards_hold_over_thousands_of_histories(
    steps: list[Step], policy: str, first: int
) -> None:
    """The same over more histories."""
    _play(steps, policy, first)


WORDS: Final = {
    "nvidia": {"nvidia.com/gpu": "1"},
    "koordinator": {"koordinator.sh/gpu": "50"},
    "mgpu": {"vke.volcengine.com/mgpu-core": "20", "vke.volcengine.com/mgpu-memory": "1024"},
    "gpushare": {"aliyun.com/gpu-mem": "1024"},
    "hami": {"nvidia.com/gpumem": "1024"},
}
BORROWED: Final = {"hami", "nvidia"}
"""Here the words of one are said beside those of the other."""


@pytest.mark.parametrize(
    ("one", "other"),
    [(a, b) for a in WORDS for b in WORDS if a != b and {a, b} != BORROWED],
    ids="-".join,
)
@pytest.mark.parametrize("together", [True, False], ids=["one container", "two containers"])
def test_a_pod_that_mixes_dialects_is_refused(one: str, other: str, *, together: bool) -> None:
    """In one container or in two: a Pod asks for GPUs in one dialect only."""
    containers = [WORDS[one] | WORDS[other]] if together else [WORDS[one], WORDS[other]]
    with pytest.raises(RefusedError) as caught:
        decode_pod(asking("p", one, *containers))
    assert str(Rule.ONE_DIALECT) in {error.rule for error in caught.value.errors}
