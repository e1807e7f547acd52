"""Rules that stand in Python and in CEL: random Pods, and no verdict that differs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import jsonpatch
import pytest

from tenure.check.api_rules import with_api_defaults
from tests.support.kube.api import Api
from tests.support.kube.bursts import remove_pods
from tests.support.kube.control_plane import MALLORY, ControlPlane
from tests.support.kube.pods import pods_in
from tests.support.kube.policies import wait_in_force
from tests.support.kube.webhooks import apply, expect_taken, remove
from tests.support.requests_to_admit import MANAGED, UNMANAGED, change, creation
from tests.support.twins import (
    BYPASSED,
    NODE,
    OVERHEADS,
    TWINS,
    by_policies,
    by_rules,
    random_change,
    random_pod,
    stored_pod,
)
from webhook.decide.mutating.pod import mutate_pod
from webhook.decide.settings import DEFAULT_ADMISSION
from webhook.decide.validating.validate import validate
from webhook.manifests.policies import policies
from webhook.manifests.policy import PolicyOptions

Json = dict[str, Any]
THREADS: Final = 4
STRATEGIC: Final = "application/strategic-merge-patch+json"
CHANGING: Final = frozenset(
    {"QosImmutable", "PriorityImmutable", "RequestImmutable", "CpusetResize"}
)
"""Of changes alone; that devices stay is the API server's rule, too."""
CREATING: Final = frozenset({"WholeCpus", "CpuLimits", "RequestsEqualLimits", "Percent"})
"""Of new Pods alone, for policies: a change that breaks them breaks one of the others too."""
CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """
    The families of rules that a Pod breaks.

    Attributes:
        rules: in Python, for the Pod as the API server would store it.
        checked: in Python, for the Pod as its file has it, by `tenure check`'s defaults.
        policies: in CEL.
    """

    pod: Json
    managed: bool
    rules: frozenset[str]
    checked: frozenset[str]
    policies: frozenset[str]


@pytest.fixture(scope="module")
def namespaces(plane: ControlPlane) -> Iterator[dict[bool, str]]:
    """Every policy warns instead of refusing; managed or not -> a namespace's Pods."""
    names = {True: "twins-managed", False: "twins-elsewhere"}
    for managed, name in names.items():
        labels = {"tenure.sh/managed": "true"} if managed else {}
        made = plane.api().create(
            "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}}
        )
        assert made.ok, made.message
    assert plane.api().create("/api/v1/nodes", {"metadata": {"name": NODE}}).ok
    room = {"cpu": "64", "memory": "256Gi", "pods": "100"}
    able = {"declaredFeatures": ["InPlacePodLevelResourcesVerticalScaling"]}
    status = {"status": {"capacity": room, "allocatable": room, **able}}
    assert plane.api().patch(f"/api/v1/nodes/{NODE}/status", status).ok
    for name, overhead in OVERHEADS.items():
        body = {"metadata": {"name": name}, "handler": "x", "overhead": {"podFixed": overhead}}
        made = plane.api().create(CLASSES, body)
        assert made.ok, made.message
    warning = policies(PolicyOptions(name="twins", actions=("Warn",)))
    apply(plane, warning)
    try:
        wait_in_force(plane)
        expect_taken(plane, [one for one in warning if one["kind"].endswith("Policy")])
        yield {managed: pods_in(name) for managed, name in names.items()}
    finally:
        remove(plane, warning)
        plane.api().delete(f"/api/v1/nodes/{NODE}")
        for name in OVERHEADS:
            plane.api().delete(f"{CLASSES}/{name}")


def verdict_of(plane: ControlPlane, namespaces: dict[bool, str], seed: str) -> Verdict | None:
    """Return what both say of one random Pod; None where the API server itself refuses it."""
    rng = random.Random(seed)
    managed = rng.random() < 0.7
    facts = MANAGED if managed else UNMANAGED
    body = random_pod(rng, "twin")
    completed = managed and rng.random() < 0.7
    if completed:
        operations = mutate_pod(creation(body), DEFAULT_ADMISSION, facts).patch
        body = jsonpatch.apply_patch(deepcopy(body), [one.as_json() for one in operations])
    reply = plane.api(MALLORY).create(namespaces[managed], body, dry_run=True)
    if not reply.ok:
        return None
    overhead = OVERHEADS.get(body["spec"].get("runtimeClassName", ""))
    written = {**body, "spec": body["spec"] | ({"overhead": overhead} if overhead else {})}
    answers = [
        validate(creation(pod), DEFAULT_ADMISSION, facts)
        for pod in (reply.body, with_api_defaults(written))
    ]
    found, passing = by_policies(reply.warnings), set[str]()
    if not (completed and answers[0].allowed):
        found -= {BYPASSED}
    if body["spec"].get("schedulerName") != "tenure":  # there a slot is OwnedNode for policies
        passing.add("SlotByHand")
    rules, checked = (by_rules(answer) - passing for answer in answers)
    if not answers[0].allowed:  # policies see percentages of one container, rules the whole Pod's
        rules, checked = (one - {"Percent"} | found & {"Percent"} for one in (rules, checked))
    return Verdict(
        pod=body, managed=managed, rules=rules, checked=checked, policies=found - passing
    )


@pytest.mark.parametrize(
    "count", [300, pytest.param(5_000, marks=pytest.mark.slow, id="5000 Pods")]
)
def test_both_say_the_same_of_every_new_pod(
    plane: ControlPlane, namespaces: dict[bool, str], count: int
) -> None:
    """Each family is broken by some Pods and kept by most, else the comparison says nothing."""
    with ThreadPoolExecutor(THREADS) as threads:
        made = threads.map(
            lambda number: verdict_of(plane, namespaces, f"{count}/{number}"), range(count)
        )
        verdicts = [verdict for verdict in made if verdict is not None]
    expect_equal(verdicts, count, frozenset(TWINS) - CHANGING)


def expect_equal(verdicts: list[Verdict], count: int, families: frozenset[str]) -> None:
    """Expect no difference, and that some break each family."""
    different = [one for one in verdicts if not one.rules == one.checked == one.policies]
    kinds = {(one.rules ^ one.policies, one.rules ^ one.checked): one for one in different}
    assert not different, "\n".join([str(len(different)), *map(repr, kinds.values())])
    assert len(verdicts) > count * 3 // 4
    broken = Counter(name for one in verdicts for name in one.policies)
    assert all(broken[name] >= count // 100 for name in families), broken


def change_of(caller: Api, where: str, stored: Json, seed: str, *, managed: bool) -> Verdict | None:
    """Return what both say of one random change; None where the API server itself refuses it."""
    way, patch = random_change(random.Random(seed), stored)
    path = f"{where}/{stored['metadata']['name']}" + (f"/{way}" if way else "")
    reply = caller.call("PATCH", f"{path}?dryRun=All", patch, STRATEGIC)
    if not reply.ok:
        return None
    facts = MANAGED if managed else UNMANAGED
    request = change(stored, reply.body, subresource=way)
    rules = by_rules(validate(request, DEFAULT_ADMISSION, facts)) - CREATING
    found = by_policies(reply.warnings) - {BYPASSED}
    if way == "status":  # by it the webhook guards allocations alone
        found &= {"ForgedAllocation"}
    return Verdict(
        pod={"way": way, "patch": patch, "stored": stored},
        managed=managed,
        rules=rules,
        checked=rules,
        policies=found,
    )


@pytest.mark.parametrize(
    "count", [150, pytest.param(5_000, marks=pytest.mark.slow, id="5000 changes")]
)
def test_both_say_the_same_of_every_change(
    plane: ControlPlane, namespaces: dict[bool, str], count: int
) -> None:
    """Ten changes are tried of each Pod, by every path that changes one."""
    caller, rng = plane.api(MALLORY), random.Random(count)
    stored: list[tuple[bool, Json]] = []
    for number in range(count // 10):
        managed = rng.random() < 0.7
        reply = caller.create(namespaces[managed], stored_pod(rng, f"stored-{number}"))
        if reply.ok:
            stored.append((managed, reply.body))

    def tried(number: int) -> Verdict | None:
        managed, pod = stored[number % len(stored)]
        return change_of(caller, namespaces[managed], pod, f"{count}/{number}", managed=managed)

    with ThreadPoolExecutor(THREADS) as threads:
        verdicts = [one for one in threads.map(tried, range(count)) if one is not None]
    for managed, where in namespaces.items():
        names = [one["metadata"]["name"] for theirs, one in stored if theirs is managed]
        remove_pods(plane, where, names)
    expect_equal(verdicts, count, CHANGING)
