"""A policy looks away from nothing that it would refuse: with its conditions and without them."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final

import pytest

from tests.support.examples import seeds
from tests.support.kube.api import Reply
from tests.support.kube.control_plane import MALLORY, SCHEDULER_ACCOUNT, ControlPlane
from tests.support.kube.pods import HALF, pod, pods_in
from tests.support.kube.policies import in_force, let_schedule
from tests.support.kube.random_pods import random_change, random_pod
from tests.support.kube.webhooks import apply, remove
from webhook.manifests.policies import policies
from webhook.manifests.policy import PolicyOptions

Namespace = Callable[..., str]
Json = dict[str, Any]
STRATEGIC: Final = "application/strategic-merge-patch+json"
PODS: Final = 12
CHANGES: Final = 3
_MESSAGE: Final = re.compile(r"Policy '(\w+)-[\w-]+' with binding '[\w-]+': (.{40})")


def looking_at_all(made: list[Json]) -> list[Json]:
    """Return the policies without the conditions that keep objects away from their rules."""
    found = deepcopy(made)
    for spec in (one["spec"] for one in found if "validations" in one["spec"]):
        kept = [
            each
            for each in spec.get("matchConditions", ())
            if each["name"] not in {"can-refuse", "concerns-us"}
        ]
        spec["matchConditions"] = kept
    return found


@pytest.fixture(scope="module", autouse=True)
def policed(plane: ControlPlane) -> Iterator[None]:
    """Both sets of policies say what they would refuse."""
    let_schedule(plane)
    every = looking_at_all(policies(PolicyOptions(name="all", actions=("Warn",))))
    apply(plane, every)
    with in_force(plane, PolicyOptions(name="gated", actions=("Warn",))):
        yield
    remove(plane, every)


def messages(reply: Reply, name: str) -> Counter[str]:
    """Return how each message of one set of policies begins."""
    found = [_MESSAGE.search(each) for each in reply.warnings]
    return Counter(each[2] for each in found if each and each[1] == name)


@pytest.mark.parametrize("seed", seeds(4, 120))
def test_no_condition_keeps_a_rule_from_what_it_refuses(
    plane: ControlPlane, namespace: Namespace, seed: int
) -> None:
    """On every path, by whoever asks, in managed namespaces and others."""
    rng, refused = random.Random(seed), 0
    places = [pods_in(name) for name in (namespace(), namespace(managed=False), "kube-system")]
    for number in range(PODS):
        where, body = rng.choice(places), random_pod(rng, f"p{seed}-{number}")
        caller = plane.api(rng.choice((MALLORY, MALLORY, MALLORY, SCHEDULER_ACCOUNT)))
        replies = [("", body, caller.create(where, body))]
        if replies[0][2].ok:
            path = f"{where}/{body['metadata']['name']}"
            for _ in range(CHANGES):
                way, patch = random_change(rng, body)
                caller = plane.api(rng.choice((MALLORY, SCHEDULER_ACCOUNT)))
                replies.append((way, patch, caller.patch(f"{path}{way}", patch, STRATEGIC)))
            plane.api().delete(path)
        for way, asked, reply in replies:
            assert messages(reply, "gated") == messages(reply, "all"), (way, asked, reply.warnings)
            refused += bool(messages(reply, "all"))
    assert refused > PODS // 3


def test_all_the_annotations_there_can_be_are_looked_at(
    plane: ControlPlane, namespace: Namespace
) -> None:
    """A quotation mark counts double where annotations are one text; no rule costs too much."""
    where, mallory = pods_in(namespace()), plane.api(MALLORY)
    notes = {"a": 'x"' * 65_000, "b": 'x"' * 65_000, "tenure.sh/admitted": "true"}
    body = pod("large", HALF, annotations=notes, env={"NVIDIA_VISIBLE_DEVICES": "void"})
    made = mallory.create(where, body)
    assert made.ok, made.message
    for key, facts in (
        ("note", []),
        ("tenure.sh/x", ["allocation annotations are written by Ten"]),
        ("cdi.k8s.io/x", ["no Pod gains CDI devices by an annotatio"]),
    ):
        annotations = {"metadata": {"annotations": {key: "y"}}}
        found = messages(mallory.patch(f"{where}/large?dryRun=All", annotations), "gated")
        assert [*found] == [fact[:40] for fact in facts], key
    plane.api().delete(f"{where}/large")
