"""More Pods at once than the cards can take: nobody has a card twice, and nobody waits in vain."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.domain.log.events import PodBound, PodVoided
from ledger.store.open import open_ledger
from scheduler.bind.protocol import MOVED
from tests.support.kube.at_rest import placed_by_simulation
from tests.support.kube.bursts import DIALECTS, GROUPED, GROUPED_SIZE, eventually, remove_pods
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    CARD_GIB,
    GIB,
    Identities,
    Served,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.process import tenure
from tests.support.recount import differences, held_by_pods, most

SHAPES: Final[dict[str, dict[str, Any]]] = {
    **DIALECTS,
    "nvidia": {"amounts": {"nvidia.com/gpu": "4"}},
}
QUIET_SECONDS: Final = 12.0
"""Longer than kube-scheduler's longest back-off."""


def burst(plane: ControlPlane, where: str, count: int) -> list[str]:
    """Submit Pods of every dialect, mixed, and a group and a gang among them."""
    api, names = plane.api(), []
    kinds = list(SHAPES.items())
    wanted = [(f"{kinds[n % len(kinds)][0]}-{n}", kinds[n % len(kinds)][1]) for n in range(count)]
    for place, (kind, asked) in enumerate(GROUPED.items()):
        wanted[20 * place : 20 * place] = [
            (f"{kind}-{number}", asked) for number in range(GROUPED_SIZE)
        ]
    for name, asked in wanted:
        made = api.create(where, pod(name, schedulerName="tenure", **asked))
        assert made.ok, made.message
        names.append(name)
    return names


def settled(plane: ControlPlane, where: str, seconds: float) -> list[dict[str, Any]]:
    """Return the Pods once none was bound for a while, and every other was refused."""
    until, bound, since = time.monotonic() + seconds, -1, time.monotonic()
    while time.monotonic() < until:
        pods: list[dict[str, Any]] = plane.api().get(where).body["items"]
        waiting = [one for one in pods if not one["spec"].get("nodeName")]
        if len(pods) - len(waiting) != bound:
            bound, since = len(pods) - len(waiting), time.monotonic()
        if all(map(is_refused, waiting)) and time.monotonic() - since > QUIET_SECONDS:
            return pods
        time.sleep(1.0)
    raise AssertionError(f"it does not come to rest: bound={bound} of {len(pods)}")


def is_refused(one: dict[str, Any]) -> bool:
    """Tell whether kube-scheduler says of a Pod that no node takes it."""
    conditions = one["status"].get("conditions") or ()
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def check(
    plane: ControlPlane, served: Served, url: str, pods: list[dict[str, Any]], folder: Path
) -> None:
    """Compare ledger, annotations and raw objects, and decide the final state again."""
    assert differences(pods, url) == []
    held = held_by_pods(pods)
    assert most(held, "memory") <= CARD_GIB * GIB
    assert most(held, "cpu") == 1
    with open_ledger(url, mode="read") as ledger:
        events = [one.event for one in ledger.read_events()]
    binds = Counter(event.pod_uid for event in events if isinstance(event, PodBound))
    assert binds == Counter(one["metadata"]["uid"] for one in pods if one["spec"].get("nodeName"))
    moved = sum(isinstance(event, PodVoided) and event.reason == MOVED for event in events)
    lines = [
        json.loads(line) for line in served.log.read_text().splitlines() if '"a Pod was ' in line
    ]
    failed = Counter(line["error"] for line in lines if line["error"])
    assert len(lines) - failed.total() == binds.total(), "each bind has its line"
    taken = sum(count for error, count in failed.items() if error.startswith("Insufficient"))
    bound = f"bound={binds.total()} of {len(pods)}"
    sys.stdout.write(f"{bound} version_moved={moved} card_taken={taken} failed={dict(failed)}\n")
    assert moved * 100 <= binds.total(), "Bindings that failed on the version"
    assert taken * 100 <= binds.total(), "Bindings that failed because another Pod had the card"
    assert not placed_by_simulation(plane, pods, folder)
    for question in ("verify", "ledger replay"):
        answer = tenure(*question.split(), "--ledger", url, cwd=folder)
        assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.fixture(
    params=[
        pytest.param((20, 200), id="20 nodes"),
        pytest.param((100, 1_000), id="100 nodes", marks=pytest.mark.slow),
    ]
)
def asked(
    request: pytest.FixtureRequest, plane: ControlPlane, namespace: Callable[..., str]
) -> Iterator[tuple[str, int]]:
    """Nodes of eight cards; where Pods are to be submitted, and how many."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    nodes, count = request.param
    names = [f"burst-{number}" for number in range(nodes)]
    for name in names:
        add_gpu_node(plane, name)
    yield pods_in(namespace(managed=False)), count
    for name in names:
        remove_node(plane, name)


def test_a_burst_that_is_too_large_comes_to_rest_with_nobody_waiting_in_vain(
    plane: ControlPlane,
    ledger: str,
    identities: Identities,
    asked: tuple[str, int],
    tmp_path: Path,
) -> None:
    """Ledger, annotations and raw objects say the same; failed binds are fewer than one in 100."""
    where, count = asked
    with (
        extender(plane, ledger, identities) as served,
        plane.scheduler(asking(plane, served, identities)),
    ):
        made = burst(plane, where, count)
        pods = settled(plane, where, 120.0 + count)
        eventually(partial(is_caught_up, ledger, pods))
        check(plane, served, ledger, pods, tmp_path)
    remove_pods(plane, where, made)


def is_caught_up(url: str, pods: list[dict[str, Any]]) -> bool:
    """Tell whether the ledger has every Pod as bound that is."""
    with open_ledger(url, mode="read") as ledger:
        bound = sum(isinstance(one.event, PodBound) for one in ledger.read_events())
    return bound >= sum(bool(one["spec"].get("nodeName")) for one in pods)
