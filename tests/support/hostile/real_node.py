"""Plays hostile neighbours of a node's agent beside a real kubelet, containerd and runc."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.checkpoint import FILE_NAME
from ledger.domain.resources import ENV_NVIDIA_VISIBLE, SLOT
from tests.support.node.agents import Agent, holder
from tests.support.node.node import SECONDS
from tests.support.node.pods import Pods, container
from tests.support.process import ROOT, environment

NOBODY: Final = 65_534
STRANGER: Final = "a process of the node without rights"
RIVAL: Final = "another device plugin of the node"
NAMESPACE: Final = "a Pod of a hostile namespace"
FILES: Final = "whoever writes the node's files"
PORT: Final = "whoever reaches the agent's probes"
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RealNode:
    """An agent with two slots on a real node, and a namespace of the attacker's."""

    agent: Agent
    pods: Pods

    def start(self, name: str, card: str) -> None:
        """Run a Pod that holds a card."""
        self.agent.hold(self.pods.make(name, [holder()]), main=[card])
        self.pods.running(name)

    def cards(self, name: str, *, runs: int = 1) -> list[list[str]]:
        """Return the cards that each run of a Pod's container saw."""
        return [one["cards"] for one in self.agent.node.seen(self.pods.get(name), runs=runs)]


def touch_everything(node: RealNode) -> str:
    """Connect to each socket, read each record, and make, replace and link files, as nobody."""
    machine = node.agent.node
    own = machine.plugins.glob("*.sock")
    sockets = [machine.room.folder / "containerd.sock", machine.pod_resources, *own]
    files = [machine.plugins / FILE_NAME]
    acts: list[Callable[[], object]] = [
        *(_in(path, _connect) for path in sockets),
        *(_in(path, lambda name: Path(name).read_bytes()) for path in files),
    ]
    assert sum(map(_as_user(0), acts)) == len(acts), "whoever may, can"
    acts += [
        *(_in(path, lambda name: Path(name).unlink()) for path in [*sockets, *files]),
        *(
            _in(folder / name, make)
            for folder, name in (
                (machine.plugins, "rival.sock"),
                (machine.cdi, f"tenure-slot-0000.{'0' * 20}.1.json"),
            )
            for make in (lambda name: Path(name).touch(), lambda name: Path(name).symlink_to("/x"))
        ),
    ]
    return f"{sum(map(_as_user(NOBODY), acts))} of {len(acts)} acts succeed"


def _in(path: Path, act: Callable[[str], object]) -> Callable[[], object]:
    """Return an act on a file's name in its folder, whoever may enter the folders above."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)

    def acting() -> None:
        os.fchdir(folder)
        act(path.name)

    return acting


def _connect(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(name)


def _as_user(uid: int) -> Callable[[Callable[[], object]], bool]:
    """Return what acts in a process of a user, and tells whether the system let it."""

    def acting(act: Callable[[], object]) -> bool:
        child = os.fork()
        if not child:
            code = 1
            with contextlib.suppress(OSError):
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                act()
                code = 0
            os._exit(code)
        return os.waitpid(child, 0)[1] == 0

    return acting


def register_again(node: RealNode) -> str:
    """Take the slots over at kubelet, and end."""
    machine = node.agent.node
    log = node.agent.folder / "rival.log"
    arguments = [str(machine.plugins), *(f"slot-{number:04}" for number in range(2))]
    with log.open("wb") as words, node.agent.registering():
        rival = subprocess.Popen(
            [sys.executable, "-m", "tests.support.node.rival_plugin", *arguments],
            stdout=words,
            stderr=words,
            env=environment(),
            cwd=ROOT,
        )
        try:
            machine.until(lambda: b"registered" in log.read_bytes(), "the rival is not taken")
        finally:
            rival.kill()
            rival.wait(20)
    node.start("after", "GPU-b")
    return f"it registers again, the next Pod sees {node.cards('after')[0]}"


def name_others(node: RealNode) -> str:
    """Name another Pod's card in every way that a Pod may, beside that Pod, without a slot."""
    before = node.agent.specifications().keys()
    node.start("victim", "GPU-a")
    [name] = node.agent.specifications().keys() - before
    name = name.removeprefix("tenure-").removesuffix(".json")
    words = {"cdi.k8s.io/tenure": f"{SLOT}={name}", "cdi.k8s.io/vendor": "vendor.test/card=GPU-a"}
    named = container(environment={ENV_NVIDIA_VISIBLE: "GPU-a"})
    node.pods.make("names", [named], annotations=words)
    node.pods.running("names")
    return f"it sees {node.cards('names')[0]}"


def ask_for_slot(node: RealNode) -> str:
    """Ask kubelet for a slot past admission, without a holding."""
    machine, pod = node.agent.node, node.pods.make("asks", [holder()])
    why = f"nothing is known to be held: container={pod['metadata']['uid']}/main"
    machine.until(lambda: why in node.agent.words(), "it does not wait")
    runs = len(machine.logs(pod, "main"))
    node.agent.hold(pod, main=["GPU-a"])
    node.pods.running("asks")
    return f"{runs} starts before it holds a card"


def replace_record(node: RealNode) -> str:
    """Put a pipe with a writer in the place of kubelet's record while a container ends."""
    node.start("runs", "GPU-c")
    record = node.agent.node.plugins / FILE_NAME
    aside = record.rename(record.with_name("aside"))
    os.mkfifo(record)
    writer = os.open(record, os.O_RDWR)
    try:
        node.pods.kill(node.pods.get("runs"))
        node.agent.node.until(lambda: _is_refused(node), "its start is not refused")
        meanwhile = len(node.cards("runs"))
    finally:
        os.close(writer)
        aside.rename(record)
    node.pods.running("runs", restarts=1, soon=True)
    return f"{meanwhile - 1} starts meanwhile, then it sees {node.cards('runs', runs=2)[1]}"


def _is_refused(node: RealNode) -> bool:
    lines = node.agent.words().splitlines()
    return any("may not start" in one and "not a regular file" in one for one in lines)


def flood_probes(node: RealNode) -> str:
    """Open more connections than there may be, and send a large head and a large body."""
    port, before = node.agent.probes, _resident(node)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4_096, hard), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1_100):
            stack.enter_context(_caller(port))
        large = stack.enter_context(_caller(port))
        head = _said(large, b"GET /livez HTTP/1.1\r\nX: " + b"x" * MIB)
        body = stack.enter_context(_caller(port))
        words = b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (64 * MIB)
        posted = _said(body, words + b"x" * (64 * MIB))
        answers: list[str] = []

        def is_answered() -> bool:
            answers.append(node.agent.probe("livez").strip())
            return bool(answers[-1])

        node.agent.node.until(is_answered, "/livez is not answered")
        more = _resident(node) - before
    assert more < 64, more
    return f"{head}, {posted}, /livez: {answers[-1]}, less than 64 MiB more"


def _caller(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=SECONDS)


def _said(caller: socket.socket, words: bytes) -> str:
    """Send it as far as it is taken, and return the status of the answer."""
    with contextlib.suppress(OSError):
        caller.sendall(words)
    answer = b""
    with contextlib.suppress(OSError):
        answer = caller.recv(1 << 16)
    return answer.split(b" ")[1].decode() if answer else "closed"


def _resident(node: RealNode) -> int:
    """Return the agent's MiB of memory."""
    assert node.agent.process is not None
    words = Path(f"/proc/{node.agent.process.pid}/status").read_text()
    return int(words.partition("VmRSS:")[2].split()[0]) >> 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RealAttack:
    """A row that is played on a real node; as `Attack`."""

    who: str
    what: str
    play: Callable[[RealNode], str]


ATTACKS: Final = (
    RealAttack(
        who=STRANGER,
        what="connects to sockets, reads, deletes, makes, links files of agent, kubelet, runtime",
        play=touch_everything,
    ),
    RealAttack(
        who=RIVAL, what="registers the agent's slots at kubelet, and ends", play=register_again
    ),
    RealAttack(
        who=NAMESPACE,
        what="names another Pod's CDI name, card and variable in annotations and environment",
        play=name_others,
    ),
    RealAttack(who=NAMESPACE, what="asks for a slot past admission", play=ask_for_slot),
    RealAttack(
        who=FILES,
        what="puts a pipe in the place of kubelet's record while a container ends",
        play=replace_record,
    ),
    RealAttack(
        who=PORT,
        what="opens 1,100 connections, sends a head of 1 MiB and a body of 64 MiB",
        play=flood_probes,
    ),
)
