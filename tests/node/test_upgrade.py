"""Tenure comes to a node whose cards a plain device plugin gave away."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text

from ledger.domain.resources import ANNOTATION_DEVICES_CHECKPOINTS, NVIDIA_GPU, SLOT
from ledger.store.open import open_ledger
from tests.support.kube.bursts import eventually
from tests.support.kube.inventory import DEVICES
from tests.support.node.agents import CARDS, agent, shows
from tests.support.node.clusters import Cluster
from tests.support.node.node import NODE_NAME, Node
from tests.support.node.pods import Pods, container
from tests.support.process import ROOT, environment

WHOLE: Final = {"koordinator.sh/gpu": 100, SLOT: 1}


@contextmanager
def plain_plugin(machine: Node, log: Path) -> Iterator[None]:
    """Let the node's cards be given as a vendor's plugin gives them, until the block ends."""
    command = [sys.executable, "-m", "tests.support.node.plain_plugin", str(machine.plugins)]
    with log.open("wb") as words:
        process = subprocess.Popen(
            [*command, *CARDS], stdout=words, stderr=words, env=environment(), cwd=ROOT
        )
    try:
        machine.until(lambda: machine.allocatable(NVIDIA_GPU) == len(CARDS), "it gives no cards")
        yield
    finally:
        process.kill()
        process.wait(20)


def of_pod(cluster: Cluster, pod: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what the ledger has open of a Pod: the kind of holding, and the card."""
    query = (
        "SELECT kind, device_id FROM audit_holdings WHERE pod_uid = :uid AND closed_at_us IS NULL"
    )
    with open_ledger(cluster.url, mode="read") as ledger, ledger.connection.begin():
        rows = ledger.connection.execute(text(query), {"uid": pod["metadata"]["uid"]})
        return [(kind, card) for kind, card in rows]


def seen_by(pods: Pods, name: str) -> list[str]:
    """Return the cards that a Pod's only run saw."""
    (seen,) = pods.node.seen(pods.get(name))
    return list(seen["cards"])


def given_by_others(machine: Node) -> list[tuple[str, str, list[str]]]:
    """Return the Pod's UID, resource and cards of each entry on the Device object."""
    found = machine.plane.api().get(f"{DEVICES}/{NODE_NAME}").body["metadata"]
    entries = json.loads(found["annotations"][ANNOTATION_DEVICES_CHECKPOINTS])
    return [(one["podUID"], one["resourceName"], one["deviceIDs"]) for one in entries]


def test_a_card_that_a_plain_plugin_gave_is_held_until_its_pod_ends(
    cluster: Cluster, pods: Pods, tmp_path: Path
) -> None:
    """
    The witness sees it, the ledger has it as observed, and nobody is given that card.

    So it is with a card that a container's environment names and no allocation. The Device object
    has what the plugin gave, and nothing of the Pods that the service gave cards.
    """
    machine = cluster.machine
    with plain_plugin(machine, tmp_path / "plain.log"):
        pods.make("old", [container(resources={NVIDIA_GPU: 1})])
        old = pods.running("old")
    [card] = seen_by(pods, "old")
    [its] = [one for one in CARDS if shows(one) == card]
    free, named = (one for one in CARDS if one != its)
    marked = pods.make("marked", [container(environment={"NVIDIA_VISIBLE_DEVICES": named})])
    pods.running("marked")
    machine.restart_kubelet(old)  # so that it forgets the plugin at once, and not in 5 minutes
    machine.until(lambda: machine.allocatable(NVIDIA_GPU) == 0, "the plugin is not forgotten")
    with (
        cluster.served() as served,
        agent(machine, tmp_path, slots=4, told=cluster.told()),
        cluster.scheduling(served),
    ):
        eventually(lambda: of_pod(cluster, old) == [("observed", its)])
        eventually(lambda: of_pod(cluster, marked) == [("observed", named)])
        names = ["new-0", "new-1"]
        for name in names:
            pods.make(name, [container(resources=WHOLE)], scheduler="tenure")

        def placed() -> list[str]:
            return [name for name in names if pods.get(name)["spec"].get("nodeName")]

        [first] = eventually(placed)
        [waits] = set(names) - {first}
        pods.running(first)
        assert seen_by(pods, first) == [shows(free)]
        time.sleep(3)  # kube-scheduler tries again each second
        assert not pods.get(waits)["spec"].get("nodeName")
        assert of_pod(cluster, old) == [("observed", its)]
        assert of_pod(cluster, marked) == [("observed", named)]
        assert given_by_others(machine) == [(old["metadata"]["uid"], NVIDIA_GPU, [its])]

        pods.remove("old")

        pods.running(waits)
        assert seen_by(pods, waits) == [card]
        assert of_pod(cluster, old) == []
        eventually(lambda: given_by_others(machine) == [])  # two that we gave cards run
        pods.remove_all()
