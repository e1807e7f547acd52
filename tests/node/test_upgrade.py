"""Tenure comes to a node whose cards a plain device plugin gave away."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text

from ledger.domain.resources import NVIDIA_GPU, SLOT
from ledger.store.open import open_ledger
from tests.support.kube.bursts import eventually
from tests.support.node.agents import CARDS, agent, shows
from tests.support.node.clusters import Cluster
from tests.support.node.node import Node
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


def test_a_card_that_a_plain_plugin_gave_is_held_until_its_pod_ends(
    cluster: Cluster, pods: Pods, tmp_path: Path
) -> None:
    """The witness sees it, the ledger has it as observed, and nobody is given that card."""
    machine = cluster.machine
    with plain_plugin(machine, tmp_path / "plain.log"):
        old = pods.make("old", [container(resources={NVIDIA_GPU: 1})])
        old = pods.running("old")
    [card] = seen_by(pods, "old")
    [its] = [one for one in CARDS if shows(one) == card]
    machine.restart_kubelet(old)  # so that it forgets the plugin at once, and not in 5 minutes
    machine.until(lambda: machine.allocatable(NVIDIA_GPU) == 0, "the plugin is not forgotten")
    with (
        cluster.served() as served,
        agent(machine, tmp_path, slots=4, told=cluster.told()),
        cluster.scheduling(served),
    ):
        eventually(lambda: of_pod(cluster, old) == [("observed", its)])
        for number in range(3):
            pods.make(f"new-{number}", [container(resources=WHOLE)], scheduler="tenure")
        names = [f"new-{number}" for number in range(3)]

        def placed() -> list[str]:
            return [name for name in names if pods.get(name)["spec"].get("nodeName")]

        eventually(lambda: len(placed()) == 2)
        [waits] = set(names) - set(placed())
        for name in placed():
            pods.running(name)
        given = {seen for name in placed() for seen in seen_by(pods, name)}
        assert given == {shows(one) for one in CARDS} - {card}
        time.sleep(3)  # kube-scheduler tries again each second
        assert not pods.get(waits)["spec"].get("nodeName")
        assert of_pod(cluster, old) == [("observed", its)]

        pods.remove("old")

        pods.running(waits)
        assert seen_by(pods, waits) == [card]
        assert of_pod(cluster, old) == []
        pods.remove_all()
