"""What must hold of a cluster and its ledger, at every moment and once nothing happens any more."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ledger.domain.log.events import (
    DriftFound,
    LedgerEvent,
    PodBound,
    PodObserved,
    PodReserved,
    RequestRefused,
)
from ledger.store.open import open_ledger
from tests.support.forked import forked
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES
from tests.support.kube.schedulers import CARD_GIB, GIB
from tests.support.process import tenure
from tests.support.recount import ENDED, differences, held_by_pods, most

PATIENCE_SECONDS: Final = 180.0
"""Nothing is measured by it: calls that hang for ten seconds, on a machine that others use."""
Pods = Sequence[Mapping[str, Any]]


def wait(claim: Callable[[], object], words: Callable[[], object] = str) -> None:
    """Wait until a claim holds; else fail with these words."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not claim():
        assert time.monotonic() < until, words() or claim
        time.sleep(0.1)


def listed(plane: ControlPlane, where: str) -> list[dict[str, Any]]:
    """Return the Pods of a namespace."""
    found: list[dict[str, Any]] = plane.api().get(where).body["items"]
    return found


def live(pods: Pods) -> list[Mapping[str, Any]]:
    """Return the Pods that have a node and have not ended."""
    return [
        one
        for one in pods
        if one["spec"].get("nodeName") and one["status"].get("phase") not in ENDED
    ]


def given_twice(pods: Pods) -> list[str]:
    """Return what more Pods hold than there is, by their own annotations."""
    held = held_by_pods(pods)
    most_of = {"memory": CARD_GIB * GIB, "core": 100, "cpu": 1}
    return [
        f"given twice: {what}, most={most(held, what)}, there={there}"
        for what, there in most_of.items()
        if most(held, what) > there
    ]


def must_not_be(log: Iterable[LedgerEvent]) -> list[str]:
    """Return what no ledger may say, whatever failed: nobody else bound a Pod of ours."""
    events = list(log)
    times = Counter(one.pod_uid for one in events if isinstance(one, PodBound))
    return [
        *(f"bound {count} times: {uid}" for uid, count in times.items() if count > 1),
        *(f"adopted: {one.pod_uid}" for one in events if isinstance(one, PodObserved)),
        *(f"drift: {one}" for one in events if isinstance(one, DriftFound)),
    ]


def unsettled(pods: Pods, url: str, log: Sequence[LedgerEvent]) -> list[str]:
    """Return what is not as it must be once nothing happens any more."""
    reserved = {one.pod_uid: one for one in log if isinstance(one, PodReserved)}
    refused = {one.pod_uid for one in log if isinstance(one, RequestRefused)}
    bound = {one.pod_uid for one in log if isinstance(one, PodBound)}
    wrong = differences(pods, url)
    for one in live(pods):
        uid, name = one["metadata"]["uid"], one["metadata"]["name"]
        event, said = reserved.get(uid), one["metadata"].get("annotations") or {}
        if event is None or uid not in bound:
            wrong.append(f"has a node, and is not recorded as bound: {name}")
        elif event.node_name != one["spec"]["nodeName"]:
            wrong.append(f"is on another node than the ledger says: {name}")
        elif not event.annotations.items() <= said.items():
            wrong.append(f"has other words than the ledger: {name}")
        elif not (event.shares or event.cpuset):
            wrong.append(f"holds nothing: {name}")
    for one in pods:
        uid, spec, status = one["metadata"]["uid"], one["spec"], one["status"]
        waits = not spec.get("nodeName") and not _ended(one)
        if waits and not (spec.get("schedulingGates") or (uid in refused and _says_why(status))):
            wrong.append(f"waits without a reason: {one['metadata']['name']}")
    return wrong


def _ended(one: Mapping[str, Any]) -> bool:
    return one["status"].get("phase") in ENDED


def _says_why(status: Mapping[str, Any]) -> bool:
    return any(
        each["type"] == "PodScheduled" and each["status"] == "False" and each.get("message")
        for each in status.get("conditions") or ()
    )


def events_of(url: str) -> list[LedgerEvent]:
    """Return what a ledger has recorded."""
    with open_ledger(url, mode="read") as ledger:
        return [one.event for one in ledger.read_events()]


def check_at_rest(
    plane: ControlPlane, where: str, url: str, words: Callable[[], str] = str
) -> list[dict[str, Any]]:
    """Wait until all is settled; return the Pods."""
    pods: list[dict[str, Any]] = []
    wrong: list[str] = []

    def rests() -> bool:
        pods[:], log = listed(plane, where), events_of(url)
        assert not (never := given_twice(pods) + must_not_be(log)), f"{never}\n{words()}"
        wrong[:] = unsettled(pods, url, log)
        return not wrong

    wait(rests, lambda: f"{wrong}\n{words()}")
    return pods


def prove(url: str, folder: Path) -> None:
    """Prove a ledger from its beginning on, as its users do."""
    verified = tenure("verify", "--ledger", url, cwd=folder)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def placed_by_simulation(
    plane: ControlPlane, pods: list[dict[str, Any]], folder: Path
) -> list[str]:
    """Return the Pods that wait, and that `tenure simulate` places beside those that run."""
    items = list(pods)
    for path, kind in (
        ("/api/v1/nodes", "Node"),
        (DEVICES, "Device"),
        (TOPOLOGIES, "NodeResourceTopology"),
    ):
        listed = plane.api().get(path).body
        items += [
            {**each, "apiVersion": listed["apiVersion"], "kind": kind} for each in listed["items"]
        ]
    objects = [{"apiVersion": "v1", "kind": "Pod", **each} for each in items]
    final = folder / "final.json"
    final.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    answer = forked("simulate", final, "-o", "json", cwd=folder)
    assert answer.returncode in (0, 1), answer.stderr
    waiting = {one["metadata"]["name"] for one in pods if not one["spec"].get("nodeName")}
    decided = json.loads(answer.stdout)["placements"]
    assert waiting <= {one["name"] for one in decided}
    return [one["name"] for one in decided if one["name"] in waiting and one["node"]]
