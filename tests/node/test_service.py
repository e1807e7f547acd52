"""From a Pod's object to its cards on a real node: the service decides, and the agent follows."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.domain.resources import SLOT
from tenure.serving.agent_witness import AWAY_CONDITION
from tests.support.forked import forked
from tests.support.kube.bursts import eventually
from tests.support.kube.schedulers import Served
from tests.support.node.agents import CARDS, Agent, agent, shows
from tests.support.node.clusters import Cluster
from tests.support.node.node import Node
from tests.support.node.pods import Pods, container
from tests.support.recount import held_by_ledger

WHOLE: Final = {"koordinator.sh/gpu": 100, SLOT: 1}
UNCONFIRMED: Final = 'tenure_scheduler_view{what="unconfirmed"} 1.0'


def make(pods: Pods, name: str) -> dict[str, Any]:
    """Create a Pod that asks the service for a whole card."""
    return pods.make(name, [container(resources=WHOLE)], scheduler="tenure")


def card_of(pods: Pods, name: str, *, runs: int = 1) -> str:
    """Return the one card that each run of a Pod saw."""
    seen = [one["cards"] for one in pods.node.seen(pods.get(name), runs=runs)]
    [card] = seen[0]
    assert seen == [[card]] * len(seen)
    return str(card)


def reboot(cluster: Cluster, own: Agent, pods: Pods) -> None:
    """
    Let the node be as after a start of the machine, with neither kubelet nor an agent yet.

    Another boot id for both, no container and no meaning of a name; kubelet's checkpoint and the
    agent's copy are left. The API server goes on, and nobody tells it anything.
    """
    machine = cluster.machine
    own.kill()
    machine.kubelet.end()
    for pod in pods.all():
        for pid in machine.processes(pod):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for name in own.specifications():
        (machine.cdi / name).unlink()
    machine.room.boot()
    cluster.host()


def begin_and_register(own: Agent) -> None:
    """Start the agent, and wait until kubelet knows it; the API server is not asked."""
    registered = own.words().count("registered with kubelet")
    own.begin()
    end = time.monotonic() + 120
    while own.words().count("registered with kubelet") == registered:
        assert time.monotonic() < end, own.words()
        time.sleep(0.05)


def holders(cluster: Cluster) -> set[str]:
    """Return the UIDs of the Pods that hold something by the ledger."""
    return {uid for uid, _, _ in held_by_ledger(cluster.url)}


def test_a_pod_has_the_card_that_the_service_gave_it_also_after_a_reboot(
    cluster: Cluster, pods: Pods, tmp_path: Path
) -> None:
    """
    Decided by the service, known by its API, shown by the agent; then nothing of ours is up.

    Where the agent is there before kubelet knows its Pods, each has its own cards: by the agent's
    copy, or by its own proof, if it was bound while the node was down. Where kubelet is first it
    rejects them all, and none starts. What they hold is free once the service is back and the node
    has confirmed it; those that are made in their place have the cards. Of one whose deletion is
    forced while the agent is down nothing is free before the agent is back.
    """
    machine, plane = cluster.machine, cluster.plane
    names = ["first", "second", "third"]
    with contextlib.ExitStack() as until_the_end:
        with cluster.served() as served:
            own = until_the_end.enter_context(
                agent(machine, tmp_path, slots=3, told=cluster.told(boots=True))
            )
            eventually(lambda: "by service" in own.whose_word())
            with cluster.scheduling(served):
                for name in names[:2]:
                    make(pods, name)
                    pods.running(name)
                before = {name: card_of(pods, name) for name in names[:2]}
                assert len(set(before.values())) == 2

                reboot(cluster, own, pods)
                make(pods, "third")
                eventually(lambda: pods.get("third")["spec"].get("nodeName"))
            served.kill()

        with plane.server.frozen():  # so that kubelet has its Pods once the agent is there
            machine.kubelet.start()
            begin_and_register(own)

        for name in names[:2]:
            pods.running(name, restarts=1)
        pods.running("third")
        after = {name: card_of(pods, name, runs=2) for name in names[:2]}
        assert after == before
        assert card_of(pods, "third") not in before.values()
        assert "by copy" in own.whose_word()
        assert '"boot":"an earlier one"' in own.words()

        runs = {name: len(machine.logs(pods.get(name), "main")) for name in names}
        reboot(cluster, own, pods)
        machine.kubelet.start()
        rejected = [("Failed", "UnexpectedAdmissionError")] * 3

        def became() -> list[tuple[str, str]]:
            found = [pods.get(name)["status"] for name in names]
            return [(one.get("phase", ""), one.get("reason", "")) for one in found]

        machine.until(lambda: became() == rejected, f"not rejected: {became()}")
        begin_and_register(own)
        for name, before_that in runs.items():
            assert len(machine.logs(pods.get(name), "main")) <= before_that
            assert not machine.processes(pods.get(name))
        rejects = {pods.get(name)["metadata"]["uid"] for name in names}
        assert holders(cluster) == rejects
        boot_id = machine.room.boot_id.read_text().strip()
        machine.until(lambda: machine.status()["nodeInfo"]["bootID"] == boot_id, "no other boot")

        with cluster.served(remembered=True) as served, cluster.scheduling(served):
            for name in names:
                make(pods, f"{name}-again")
            for name in names:
                pods.running(f"{name}-again")
            cards = {card_of(pods, f"{name}-again") for name in names}
            assert cards == {shows(one) for one in CARDS}
            assert not holders(cluster) & rejects
            drift = forked("drift", "--ledger", cluster.url, cwd=tmp_path)
            assert drift.returncode == 0, drift.stdout
            check_force(cluster, served, pods, own)
            pods.remove_all()


def check_force(cluster: Cluster, served: Served, pods: Pods, own: Agent) -> None:
    """Force a Pod's deletion without the agent; what it holds is free once that is back."""
    uid = gone_without_agent(pods, own, "first-again")
    eventually(lambda: UNCONFIRMED in served.probe("metrics"))
    assert uid in holders(cluster)

    begin_and_register(own)

    eventually(lambda: uid not in holders(cluster))
    assert UNCONFIRMED not in served.probe("metrics")


def gone_without_agent(pods: Pods, own: Agent, name: str) -> str:
    """End the agent, then force a Pod's deletion; return its UID."""
    own.kill()
    uid = pods.get(name)["metadata"]["uid"]
    pods.force(name)
    return str(uid)


@pytest.mark.slow
def test_a_release_that_its_node_does_not_confirm_becomes_drift(
    cluster: Cluster, pods: Pods, tmp_path: Path
) -> None:
    """Of a Pod whose deletion was forced: named after ten minutes, over once the agent is up."""

    def drift() -> str:
        return str(forked("drift", "--ledger", cluster.url, cwd=tmp_path).stdout)

    with (
        cluster.served() as served,
        agent(cluster.machine, tmp_path, slots=1, told=cluster.told()) as own,
        cluster.scheduling(served),
    ):
        make(pods, "forced")
        pods.running("forced")
        uid = gone_without_agent(pods, own, "forced")
        eventually(lambda: UNCONFIRMED in served.probe("metrics"))
        end = time.monotonic() + 900
        while "ReleaseUnconfirmed" not in (found := drift()):
            assert uid in holders(cluster)
            assert time.monotonic() < end, found
            time.sleep(5)
        assert f"{pods.namespace}/forced" in found
        assert uid in holders(cluster)

        begin_and_register(own)

        eventually(lambda: uid not in holders(cluster))
        eventually(lambda: "ReleaseUnconfirmed" not in drift())


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
