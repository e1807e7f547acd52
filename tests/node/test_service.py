"""From a Pod's object to its cards on a real node: the service decides, and the agent follows."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from ledger.domain.resources import SLOT
from tenure.serving.agent_witness import AWAY_CONDITION
from tests.support.kube.bursts import eventually
from tests.support.node.agents import agent
from tests.support.node.clusters import Cluster
from tests.support.node.node import Node
from tests.support.node.pods import Pods, container

WHOLE: Final = {"koordinator.sh/gpu": 100, SLOT: 1}


def make(pods: Pods, name: str) -> dict[str, Any]:
    """Create a Pod that asks the service for a whole card."""
    return pods.make(name, [container(resources=WHOLE)], scheduler="tenure")


def card_of(pods: Pods, name: str, *, runs: int = 1) -> str:
    """Return the one card that each run of a Pod saw."""
    seen = [one["cards"] for one in pods.node.seen(pods.get(name), runs=runs)]
    [card] = seen[0]
    assert seen == [[card]] * len(seen)
    return str(card)


def test_a_pod_has_the_card_that_the_service_gave_it_also_after_a_reboot(
    cluster: Cluster, pods: Pods, tmp_path: Path
) -> None:
    """
    Decided by the service, known by its API, shown by the agent; then nothing of ours is up.

    The node starts again with no container and no meaning of any name, with kubelet's checkpoint
    and the agent's copy. One Pod was bound while the node was down: of it, its own proof tells.
    """
    machine, plane = cluster.machine, cluster.plane
    with cluster.served() as served, agent(machine, tmp_path, slots=3, told=cluster.told()) as own:
        eventually(lambda: "by service" in own.whose_word())
        with cluster.scheduling(served):
            for name in ("first", "second"):
                make(pods, name)
                pods.running(name)
            before = {name: card_of(pods, name) for name in ("first", "second")}
            assert len(set(before.values())) == 2

            own.kill()
            machine.kubelet.end()
            make(pods, "third")
            eventually(lambda: pods.get("third")["spec"].get("nodeName"))
        served.kill()
        for name in before:
            for pid in machine.processes(pods.get(name)):
                os.kill(pid, signal.SIGKILL)
        for name in own.specifications():
            (machine.cdi / name).unlink()

        registered = own.words().count("registered with kubelet")
        with plane.server.frozen():
            machine.kubelet.start()
            own.begin()
            end = time.monotonic() + 120
            while own.words().count("registered with kubelet") == registered:
                assert time.monotonic() < end, own.words()
                time.sleep(0.05)

        for name in before:
            pods.running(name, restarts=1)
        pods.running("third")
        after = {name: card_of(pods, name, runs=2) for name in before}
        assert after == before
        assert card_of(pods, "third") not in before.values()
        assert "by copy" in own.whose_word()


def condition(machine: Node, kind: str = "TenureLedger") -> str:
    """Return what the Node says of the ledger, or in another condition; empty = nothing."""
    conditions = machine.status().get("conditions", ())
    found = [one["status"] for one in conditions if one["type"] == kind]
    return str(found[0]) if found else ""


def test_a_ledger_that_was_put_back_is_told_by_its_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """The agent's metric and the Node's condition say so; what it knew of the ledger stays."""
    machine, note = cluster.machine, tmp_path / "state" / "ledger.checkpoint"

    def size() -> int:
        return int(note.read_text().splitlines()[1]) if note.exists() else 0

    with contextlib.ExitStack() as before:
        served = before.enter_context(cluster.served())
        own = before.enter_context(agent(machine, tmp_path, slots=1, told=cluster.told()))
        eventually(
            lambda: own.verdicts() in (["first"], ["grown"]) and condition(machine) == "True"
        )
        old = size()
        assert condition(machine, AWAY_CONDITION) == ""
        served.kill()
        eventually(lambda: condition(machine, AWAY_CONDITION) == "True")
        files = [tmp_path / f"ledger.db{end}" for end in ("", "-wal", "-shm")]
        copies = {file: file.read_bytes() for file in files if file.exists()}
        with cluster.served(remembered=True) as served:
            eventually(lambda: size() > old)
            assert own.verdicts() == ["grown"]
            eventually(lambda: condition(machine, AWAY_CONDITION) == "")
            served.kill()
        for file in files:
            file.unlink(missing_ok=True)
        for file, content in copies.items():
            file.write_bytes(content)

        began = time.monotonic()
        with cluster.served(remembered=True, ready=False):
            eventually(lambda: own.verdicts() in (["restored"], ["rewritten"]))
            eventually(lambda: condition(machine) == "False")
            seconds = time.monotonic() - began
        sys.stdout.write(f"\na ledger put back was told {seconds:.1f} s after its service began\n")
        assert size() > old
