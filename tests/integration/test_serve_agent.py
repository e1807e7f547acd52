"""`tenure serve agent` as a process, called by a kubelet over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.decide.isolation import Provider
from agent.plugin.held import HoldingsFile
from agent.witness import said
from ledger.domain.errors import InputError
from ledger.domain.resources import SLOT
from tenure.serving.agent import serve_agent
from tenure.serving.agent_options import AgentMode, AgentOptions
from tenure.serving.options import Address
from tests.support.forked import Forked
from tests.support.kube.control_plane import free_port
from tests.support.kubelets import FakeKubelet
from tests.support.nvml.driver import TABLE, shim
from tests.support.sockets import serving

pytestmark = pytest.mark.integration

SECONDS = 60.0


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def keeps_waiting(world: World, words: str) -> None:
    """Let kubelet ask for a start and give up, until the agent has said why it waits."""

    def said() -> bool:
        with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
            world.kubelet.start("slot-0001", seconds=1)
        return words in (world.folder / "agent.log").read_text()

    until(said, words)


@dataclass(kw_only=True)
class World:
    """A node's folders, with a kubelet that does not run yet."""

    folder: Path
    kubelet: FakeKubelet
    cdi: Path
    runtime: str = ""

    def hold(self, pod_uid: str, *cards: str) -> None:
        """Let the container `main` of a Pod hold these."""
        devices = [{"device_id": card} for card in cards]
        holding = {"pod_uid": pod_uid, "containers": [{"name": "main", "devices": devices}]}
        written = self.folder / "new.json"
        written.write_text(json.dumps({"format": 1, "holdings": [holding]}))
        written.rename(self.folder / "holdings.json")

    def options(self) -> list[str]:
        """Return the command line's options."""
        said = {
            "holdings": self.folder / "holdings.json",
            "cards": self.folder / "vendor.json",
            "plugins": self.kubelet.folder,
            "cdi": self.cdi,
            "slots": 3,
            "runtime": self.runtime,
            "probes": f"127.0.0.1:{free_port()}",
        }
        return [word for name, value in said.items() for word in (f"--{name}", str(value))]

    def shown(self, name: str) -> Any:  # noqa: ANN401 - JSON
        """Return the edits that a name means."""
        path = self.cdi / f"tenure-{name.removeprefix(f'{SLOT}=')}.json"
        return json.loads(path.read_text())["devices"][0]["containerEdits"]


@pytest.fixture
def world(tmp_path: Path, sockets: Path) -> World:
    """Return folders with a vendor's specification of one card."""
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    devices = [{"name": "GPU-a", "containerEdits": {"env": ["CARD=a"]}}]
    vendor = {"cdiVersion": "0.6.0", "kind": "vendor.test/card", "devices": devices}
    (tmp_path / "vendor.json").write_text(json.dumps(vendor))
    made = World(folder=tmp_path, kubelet=FakeKubelet(sockets), cdi=cdi)
    made.hold("nobody", "GPU-a")
    return made


def begin(
    world: World,
    words: Path,
    *more: str,
    execs: bool = False,
    env: Mapping[str, str] | None = None,
) -> Forked:
    """Start an agent."""
    command = ["serve", "agent", "--mode", "plugin", *world.options(), *more]
    return Forked(command, words, cwd=world.folder, more=env, execs=execs)


@pytest.fixture
def agent(world: World) -> Iterator[Forked]:
    """Run the agent, with its words in `agent.log`."""
    process = begin(world, world.folder / "agent.log")
    yield process
    process.kill()
    process.wait()


def test_a_container_starts_with_what_its_pod_holds(world: World, agent: Forked) -> None:
    """Registered once kubelet is there, and again after its restart; told to stop, it goes."""
    kubelet = world.kubelet
    with kubelet.running():
        until(lambda: len(kubelet.registered) == 1, "it does not register")
        request = kubelet.registered[0]
        assert (request.version, request.resource_name) == ("v1beta1", SLOT)
        assert request.options.pre_start_required
        assert not request.options.get_preferred_allocation_available
        assert kubelet.slots() == [(f"slot-000{each}", "Healthy") for each in range(3)]

        first = kubelet.admit("p", "main", "slot-0000")
        world.hold("p", "GPU-a")
        kubelet.start("slot-0000")
        assert world.shown(first) == {"env": ["CARD=a"]}

        second = kubelet.admit("q", "main", "slot-0000")
        assert second != first
        world.hold("q", "GPU-z")
        with pytest.raises(grpc.RpcError, match="no CDI specification shows it: device=GPU-z"):
            kubelet.start("slot-0000")

    with kubelet.running():
        until(lambda: len(kubelet.registered) == 2, "it does not register again")
        world.hold("q", "GPU-a")
        kubelet.start("slot-0000")
        assert world.shown(second) == {"env": ["CARD=a"]}
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(SECONDS) == 0


def test_the_agent_registers_again_when_its_socket_is_gone(world: World, agent: Forked) -> None:
    """And takes away what an agent that was killed left, but nothing that is listened on."""
    assert agent.poll() is None
    kubelet = world.kubelet
    with kubelet.running(), socket.socket(socket.AF_UNIX) as other:
        until(lambda: len(kubelet.registered) == 1, "it does not register")
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(kubelet.folder / "tenure-killed-1.sock"))
        other.bind(str(kubelet.folder / "tenure-other-1.sock"))
        other.listen()

        (kubelet.folder / kubelet.registered[0].endpoint).unlink()

        until(lambda: len(kubelet.registered) == 2, "it does not register again")
        ours = {kubelet.registered[1].endpoint, "tenure-other-1.sock"}
        assert {path.name for path in kubelet.folder.glob("tenure-*.sock")} == ours


def test_the_agent_registers_again_when_kubelet_drops_its_stream(
    world: World, agent: Forked
) -> None:
    """Kubelet calls no plugin of which it has lost the list."""
    assert agent.poll() is None
    kubelet = world.kubelet
    with kubelet.running():
        until(lambda: len(kubelet.registered) == 1, "it does not register")
        assert kubelet.slots()
        kubelet.drop()
        until(lambda: len(kubelet.registered) == 2, "it does not register again")


def test_of_two_agents_the_one_that_stays_registers_again(world: World, agent: Forked) -> None:
    """
    As at an upgrade: kubelet takes the end of the old one for that of the new.

    Beside one another they leave each other alone, though kubelet drops the old one's stream.
    """
    kubelet = world.kubelet
    with kubelet.running():
        until(lambda: len(kubelet.registered) == 1, "it does not register")
        assert kubelet.slots()
        second = begin(world, world.folder / "second.log")
        try:
            until(lambda: len(kubelet.registered) == 2, "the second does not register")
            kubelet.drop()
            time.sleep(3)
            assert len(kubelet.registered) == 2
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(SECONDS) == 0
            until(lambda: len(kubelet.registered) == 3, "who stays does not register again")
            assert kubelet.registered[2].endpoint.startswith(kubelet.registered[1].endpoint[:15])
        finally:
            second.kill()
            second.wait(20)


def test_a_start_waits_for_a_holding_that_comes_late(world: World, agent: Forked) -> None:
    """Kubelet's call is kept meanwhile; a torn checkpoint is not believed, and waited out too."""
    assert agent.poll() is None
    kubelet = world.kubelet
    with kubelet.running():
        until(lambda: len(kubelet.registered) == 1, "it does not register")
        name = kubelet.admit("p", "main", "slot-0001")
        checkpoint = kubelet.folder / "kubelet_internal_checkpoint"
        checkpoint.write_bytes(checkpoint.read_bytes()[:-40])

        keeps_waiting(world, "not JSON")
        kubelet.keep()
        keeps_waiting(world, "nothing is known to be held")
        world.hold("p", "GPU-a")
        kubelet.start("slot-0001")

    assert world.shown(name) == {"env": ["CARD=a"]}


def test_a_runtime_without_cdi_keeps_kubelet_from_knowing_the_slots(world: World) -> None:
    """It would start containers without their cards; one that is replaced is found, too."""
    world.runtime = str(world.folder / "runtime.sock")
    version = said.VersionResponse(runtime_name="containerd", runtime_version="1.6.20~ds1")
    answers = {"Version": version, "Status": said.StatusResponse()}
    calls = {name: lambda *_, name=name: answers[name].SerializeToString() for name in answers}
    words = world.folder / "agent.log"
    with (
        world.kubelet.running(),
        serving(Path(world.runtime), "runtime.v1.RuntimeService", calls),
    ):
        words.touch()
        process = begin(world, words)
        try:
            until(lambda: "the runtime has no CDI: containerd 1.6.20~ds1" in words.read_text(), "")
            assert not world.kubelet.registered
        finally:
            process.kill()
            process.wait(20)

        version.runtime_version = "2.4.2"
        process = begin(world, words)
        try:
            until(lambda: len(world.kubelet.registered) == 1, words.read_text())
        finally:
            process.kill()
            process.wait(20)


def test_an_agent_whose_driver_hangs_ends_when_it_is_told_to(world: World) -> None:
    """Whatever it waits for: here the driver's answers are a file that nobody ever ends."""
    answers = world.folder / "answers"
    os.mkfifo(answers)
    kubeconfig = world.folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    made = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}]}
    kubeconfig.write_text(json.dumps({**made, "current-context": "c"}))
    reports = {"node": "n", "state": world.folder, "kubeconfig": kubeconfig}
    more = [word for name, value in reports.items() for word in (f"--{name}", str(value))]
    driver = {TABLE: str(answers), "LD_LIBRARY_PATH": str(shim().parent)}
    process = begin(world, world.folder / "agent.log", *more, execs=True, env=driver)
    try:
        writer: list[int] = []

        def is_read() -> bool:
            with suppress(OSError):  # nobody reads it yet
                writer.append(os.open(answers, os.O_WRONLY | os.O_NONBLOCK))
            return bool(writer)

        until(is_read, "it does not look")
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        os.close(writer[0])
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"slots": 300_000}, "--slots: kubelet takes no list of so many slots: count=300000"),
        ({"plugins": Path("/nowhere")}, "--plugins: no such folder: /nowhere"),
        ({"cdi": Path("/nowhere")}, "--cdi: no such folder: /nowhere"),
        ({"cards": (Path("/nowhere.json"),)}, "/nowhere.json: can't be read"),
        ({"isolation": Provider.HAMI_CORE}, "--isolation: nobody tells how large"),
        (
            {"isolation": Provider.HAMI_CORE, "mode": AgentMode.ENV},
            "--isolation: the mode env can't bring a library into containers",
        ),
        (
            {"mode": AgentMode.ENV, "node": "n"},
            "--probe-image: the mode env is proved by a Pod of our own",
        ),
        (
            {"mode": AgentMode.ENV, "node": "n", "probe_image": "i"},
            "--runtime: a proof of the mode env ends with the runtime that gave it",
        ),
    ],
    ids=[
        "too many slots",
        "no folder of kubelet's",
        "no folder of the runtime's",
        "no cards",
        "parts of cards whose size nobody tells",
        "a mode without mounts",
        "nothing that proves the mode",
        "a proof that no other runtime ends",
    ],
)
def test_what_cannot_work_is_said_at_the_start(
    world: World, other: dict[str, Any], said: str
) -> None:
    """With the option or the file."""
    options = AgentOptions(
        mode=AgentMode.PLUGIN,
        probes=Address("127.0.0.1", 0),
        plugins=world.kubelet.folder,
        cdi=world.cdi,
        cards=(world.folder / "vendor.json",),
        holdings=world.folder / "holdings.json",
        slots=3,
        runtime=None,
    )

    with pytest.raises(InputError) as refusal:
        asyncio.run(serve_agent(replace(options, **other)))

    assert str(refusal.value).startswith(said)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "can't be read"),
        ('{"format": 2, "holdings": []}', "unknown format"),
        ('{"format": 1, "holdings": [{"pod_uid": "p", "containers": [{"name": "c"}]}]}', "devices"),
        (
            (
                '{"format": 1, "holdings": [{"pod_uid": "p", "containers":'
                ' [{"name": "c", "devices": []}, {"name": "c", "devices": []}]}]}'
            ),
            "said twice",
        ),
        (
            '{"format": 1, "holdings": [{"pod_uid": "p", "pod_uid": "q", "containers": []}]}',
            r"holdings\[0\].pod_uid: the key stands twice",
        ),
    ],
)
def test_a_file_of_holdings_that_cannot_be_read_starts_nothing(
    tmp_path: Path, content: str, why: str
) -> None:
    """It is named; nobody is taken to hold nothing."""
    path = tmp_path / "holdings.json"
    path.write_text(content)

    with pytest.raises(InputError, match=why):
        HoldingsFile(path).devices_of("p", "c")
