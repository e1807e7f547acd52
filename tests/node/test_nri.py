"""Containers bound by the real containerd through NRI, and what becomes of them without us."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent.cpus.nri_messages import Bound, adjusted, message
from ledger.domain.cpuset import parse_cpuset
from tests.support.node.node import Node
from tests.support.node.nri_plugin import STUCK, our_plugin
from tests.support.node.pods import Pods, container
from tests.support.node.room import CGROUPS
from tests.support.nri_plugins import other_plugin

_CREATE: Final = 1 << 3
_START: Final = 1 << 5
OURS: Final = "1"
"""The CPU that ours gives; this machine has two at least."""
THEIRS: Final = "0"
_CLOSED: Final = "closing plugin 99-tenure"
_REFUSED: Final = "failed to get NRI adjustment"


def cpus_of(machine: Node, identity: str) -> str:
    """Return the CPUs of a container's cgroup."""
    (found,) = (CGROUPS / "cpuset" / machine.room.cgroup).rglob(identity)
    return (found / "cpuset.cpus").read_text().strip()


def identity_of(pods: Pods, name: str, container_name: str = "main") -> str:
    """Return the id of a container that runs."""
    states = pods.statuses(name)
    return str(states[container_name]["containerID"]).rpartition("/")[2]


def every_cpu(machine: Node) -> str:
    """Return the CPUs of a container that nobody binds."""
    return (CGROUPS / "cpuset" / machine.room.cgroup / "cpuset.cpus").read_text().strip()


def looking(machine: Node, seen: dict[str, str]) -> Callable[[str, bytes], bytes]:
    """Return a plugin that reads each container's CPUs just before its process runs."""

    def answer(method: str, payload: bytes) -> bytes:
        if method == "StartContainer":
            read = message("Call").FromString(payload)
            seen[read.container.name] = cpus_of(machine, read.container.id)
        return b""

    return answer


def setting(cpus: str) -> Callable[[str, bytes], bytes]:
    """Return a plugin that binds every new container."""
    return lambda method, _: (
        adjusted(Bound(cpus=parse_cpuset(cpus))) if method == "CreateContainer" else b""
    )


def test_a_container_has_our_cpus_before_its_process_runs(
    machine: Node, pods: Pods, tmp_path: Path
) -> None:
    """Read by another plugin while the runtime waits to start it; the neighbour is left alone."""
    seen: dict[str, str] = {}
    with (
        our_plugin(tmp_path, machine.nri, main=OURS) as ours,
        other_plugin(machine.nri, "00", _START, looking(machine, seen)),
    ):
        ours.until("on")
        pods.make("bound", [container(), container("plain")])
        pods.running("bound")

    assert seen == {"main": OURS, "plain": every_cpu(machine)}
    (pid, *_) = machine.processes(pods.get("bound"), identity_of(pods, "bound"))
    allowed = Path(f"/proc/{pid}/status").read_text().split("Cpus_allowed_list:")[1].split()[0]
    assert allowed == OURS
    happened = {one["happening"] for one in ours.words() if "happening" in one}
    assert {"RUN_POD_SANDBOX", "CREATE_CONTAINER", "POST_START_CONTAINER"} <= happened


def test_an_update_by_kubelet_leaves_the_cpus(machine: Node, pods: Pods, tmp_path: Path) -> None:
    """A Pod whose CPU request is changed while it runs."""
    asks = {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}}
    with our_plugin(tmp_path, machine.nri, main=OURS) as ours:
        ours.until("on")
        pods.make("resized", [{**container(), "resources": asks}])
        pods.running("resized")
        place = "/spec/containers/0/resources/limits/cpu"
        path = f"/api/v1/namespaces/{pods.namespace}/pods/resized/resize"
        more = [{"op": "replace", "path": place, "value": "300m"}]
        assert machine.plane.api().patch(path, more, "application/json-patch+json").ok

        def updated() -> bool:
            return any(one.get("happening") == "UPDATE_CONTAINER" for one in ours.words())

        machine.until(updated, "kubelet does not resize it")
        machine.until(
            lambda: quota_of(machine, identity_of(pods, "resized")) == 30_000, "no new quota"
        )
        assert cpus_of(machine, identity_of(pods, "resized")) == OURS


def quota_of(machine: Node, identity: str) -> int:
    """Return the CFS quota of a container."""
    (found,) = (CGROUPS / "cpu" / machine.room.cgroup).rglob(identity)
    return int((found / "cpu.cfs_quota_us").read_text())


def test_killed_in_a_call_it_fails_no_container(machine: Node, pods: Pods, tmp_path: Path) -> None:
    """The container starts unbound at once; the next start of ours binds again."""
    with our_plugin(tmp_path, machine.nri, main=STUCK) as ours:
        ours.until("on")
        pods.make("first", [container()])
        machine.until(lambda: any("stuck" in one for one in ours.words()), "no call came")
        ours.signal(signal.SIGKILL)
        pods.running("first")
    assert cpus_of(machine, identity_of(pods, "first")) == every_cpu(machine)

    with our_plugin(tmp_path, machine.nri, main=OURS) as ours:
        ours.until("on")
        pods.make("second", [container()])
        pods.running("second")
    assert cpus_of(machine, identity_of(pods, "second")) == OURS


def test_stopped_it_delays_others_once_and_three_times_turns_it_off(
    machine: Node, pods: Pods, tmp_path: Path
) -> None:
    """The runtime closes it after one request; two times it comes back, the third it stays away."""
    log = machine.containerd.log
    with our_plugin(tmp_path, machine.nri, main=OURS) as ours:
        for time in (1, 2, 3):
            ours.until("on", times=time)
            place = log.stat().st_size
            ours.signal(signal.SIGSTOP)
            for name in (f"{time}-a", f"{time}-b"):
                pods.make(name, [container()])
                pods.running(name)
            assert machine.containerd.words_after(place).count(_CLOSED) == 1
            ours.signal(signal.SIGCONT)
            if time < 3:
                ours.until("NRIAway", times=time)
        ours.until("NRIOff")
        assert ours.states()[-1] == "NRIOff"


def test_a_runtime_that_starts_again_is_joined_again(
    machine: Node, pods: Pods, tmp_path: Path
) -> None:
    """Without a restart of ours."""
    with our_plugin(tmp_path, machine.nri, main=OURS) as ours:
        ours.until("on")
        machine.restart_containerd()
        ours.until("on", times=2)
        pods.make("after", [container()])
        pods.running("after")
        assert cpus_of(machine, identity_of(pods, "after")) == OURS
        assert "NRIOff" not in ours.states()


def test_beside_a_plugin_that_is_called_before_ours_no_container_fails(
    machine: Node, pods: Pods, tmp_path: Path
) -> None:
    """Ours sees what it set, asks for nothing, and withdraws."""
    place = machine.containerd.log.stat().st_size
    with (
        our_plugin(tmp_path, machine.nri, main=OURS) as ours,
        other_plugin(machine.nri, "50", _CREATE, setting(THEIRS)),
    ):
        ours.until("on")
        pods.make("theirs", [container()])
        pods.running("theirs")
        ours.until("AnotherPlugin")
    assert cpus_of(machine, identity_of(pods, "theirs")) == THEIRS
    assert _REFUSED not in machine.containerd.words_after(place)


def test_beside_a_plugin_that_is_called_after_ours_one_try_is_refused(
    machine: Node, pods: Pods, tmp_path: Path
) -> None:
    """The runtime refuses what both set; the next try is theirs, and ours withdraws."""
    place = machine.containerd.log.stat().st_size
    with our_plugin(tmp_path, machine.nri, main=OURS) as ours:
        ours.until("on")
        with other_plugin(machine.nri, "99", _CREATE, setting(THEIRS)):
            pods.make("theirs", [container()])
            pods.running("theirs", soon=True)
            ours.until("AnotherPlugin")
    assert machine.containerd.words_after(place).count(_REFUSED) == 1
    assert cpus_of(machine, identity_of(pods, "theirs")) == THEIRS
