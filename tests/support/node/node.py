"""A real kubelet with containerd and runc in a room of its own, joined to a control plane."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from agent.checkpoint import FILE_NAME
from agent.manager_state import CPU_FILE, MEMORY_FILE
from tests.support.kube.control_plane import KUBELET, ControlPlane, free_port
from tests.support.node.images import image
from tests.support.node.programs import RUNTIME, SHOW
from tests.support.node.room import Room, only_child

NODE_NAME: Final = KUBELET.rpartition(":")[2]
PAUSE: Final = "node.test/pause:1"
SHOWS: Final = "node.test/show:1"
"""Says what it sees, and waits."""
SHOWS_AND_ENDS: Final = "node.test/show-and-end:1"
_IMAGES: Final = {PAUSE: "pause", SHOWS: "show", SHOWS_AND_ENDS: "show-and-end"}
SECONDS: Final = 120.0

_CONTAINERD: Final = """\
version = {version}
root = "{folder}/containerd"
state = "{folder}/containerd-state"
disabled_plugins = ["io.containerd.tracing.processor.v1.otlp"{disabled}]
[grpc]
address = "{folder}/containerd.sock"
[ttrpc]
address = "{folder}/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
{pinned}
{nri}
[plugins."{cri}"]
restrict_oom_score_adj = true
disable_apparmor = true
{more}
[plugins."{cri}".cni]
{networks}
conf_dir = "{folder}/cni"
[plugins."{cri}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."{cri}".containerd.runtimes.runc.options]
BinaryName = "{programs}/{runtime}"
SystemdCgroup = false
[plugins."{cri}".containerd.runtimes.{by_environment}]
runtime_type = "io.containerd.runc.v2"
[plugins."{cri}".containerd.runtimes.{by_environment}.options]
BinaryName = "{folder}/{by_environment}"
SystemdCgroup = false
"""
_NEWER_WORDS: Final = {
    "version": "3",
    "cri": "io.containerd.cri.v1.runtime",
    "pinned": '[plugins."io.containerd.cri.v1.images".pinned_images]\nsandbox = "{pause}"',
    "more": 'enable_cdi = true\ncdi_spec_dirs = ["{cdi}"]',
    "networks": 'bin_dirs = ["{folder}"]',
    "disabled": "",
    "nri": (
        '[plugins."io.containerd.nri.v1.nri"]\nsocket_path = "{folder}/nri.sock"\n'
        'plugin_path = "{folder}/nri"\nplugin_config_path = "{folder}/nri"\n'
        'plugin_request_timeout = "{patience}s"\nplugin_registration_timeout = "{registering}s"'
    ),
}
_OLDER_WORDS: Final = {
    "version": "2",
    "cri": "io.containerd.grpc.v1.cri",
    "pinned": "",
    "more": 'sandbox_image = "{pause}"',
    "networks": 'bin_dir = "{folder}"',
    "disabled": ', "io.containerd.nri.v1.nri"',
    "nri": "",
}
"""Of containerd 1.6."""
BY_ENVIRONMENT: Final = "by-environment"
"""A handler that shows the cards which NVIDIA_VISIBLE_DEVICES names, as NVIDIA's runtime does."""
BLIND: Final = "blind"
"""A file in the room's folder, with which that handler reads no variable."""
_SHOWS_BY_ENVIRONMENT: Final = """\
#!{python} -IS
import json, os, sys
if "--bundle" in sys.argv and not os.path.exists({blind!r}):
    bundle = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(bundle) as file:
        config = json.load(file)
    said = [one.partition("=")[2] for one in config["process"].get("env", ())
            if one.startswith("NVIDIA_VISIBLE_DEVICES=")]
    for card in (said or [""])[-1].split(","):
        if card.startswith("GPU-"):
            name = card.rpartition("-")[2]
            for path in ("/dev/card-" + name, "/dev/nvidia%d" % "abc".index(name)):
                node = {{"path": path, "type": "c", "major": 1, "minor": 3}}
                config["linux"].setdefault("devices", []).append(node)
    with open(bundle, "w") as file:
        json.dump(config, file)
os.execv({runc!r}, [{runc!r}, *sys.argv[1:]])
"""


@dataclass(slots=True, kw_only=True)
class Inside:
    """A program in the room, with its words in a file; it can be started again as it was."""

    room: Room
    command: list[str]
    log: Path
    path: str
    outside: subprocess.Popen[bytes] | None = None
    pid: int = 0

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as words:
            self.outside = subprocess.Popen(
                self.room.within(*self.command),
                stdout=words,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}"},
            )
        self.pid = only_child(self.outside.pid)

    def runs(self) -> bool:
        """Tell whether it runs."""
        return self.outside is not None and self.outside.poll() is None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it stand still until the block ends."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """End it without a word."""
        assert self.outside is not None
        if self.runs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        # Who entered the room for it stands still with it, and would not see its end.
        os.kill(self.outside.pid, signal.SIGCONT)
        self.outside.wait(SECONDS)

    def words(self) -> str:
        """Return the end of what it logged."""
        return self.log.read_text(errors="replace")[-4_000:]

    def words_after(self, place: int) -> str:
        """Return what it logged after a number of bytes."""
        with self.log.open("rb") as log:
            log.seek(place)
            return log.read().decode(errors="replace")


@dataclass(slots=True, kw_only=True)
class Node:
    """
    A running node.

    Attributes:
        plugins: kubelet's folder of device plugins, as it is outside of the room.
        cdi: the folder whose CDI specs containerd reads.
        port: of kubelet's own listener.
    """

    room: Room
    plane: ControlPlane
    programs: Path
    kubelet: Inside
    containerd: Inside
    plugins: Path
    cdi: Path
    port: int

    @property
    def nri(self) -> Path:
        """The socket on which the runtime takes plugins of NRI; containerd 1.6 has none."""
        return self.room.folder / "nri.sock"

    @property
    def pod_resources(self) -> Path:
        """The socket on which kubelet tells what it gave, and what it would give."""
        return self.room.folder / "kubelet" / "pod-resources" / "kubelet.sock"

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        until = time.monotonic() + SECONDS
        while not holds():
            assert self.kubelet.runs(), self.kubelet.words()
            assert time.monotonic() < until, f"{what}\n{self.kubelet.words()}"
            time.sleep(0.05)

    def load(self, image_file: Path) -> None:
        """Let containers be made of an image."""
        load(self.room, self.programs, image_file)

    def run(self, *command: str | Path) -> None:
        """Run a command in the room to its end."""
        _run(self.room, *command)

    @contextlib.contextmanager
    def configured(self, **settings: object) -> Iterator[None]:
        """Let kubelet have these settings, too, until the block ends; there is no Pod meanwhile."""
        file = self.room.folder / "kubelet.yaml"
        before = yaml.safe_load(file.read_text())
        self.restart_kubelet(settings={**before, **settings})
        try:
            yield
        finally:
            self.restart_kubelet(settings=before)

    def restart_kubelet(
        self,
        *pods: Mapping[str, Any],
        forgets: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """
        End kubelet without a word, start it again, and wait until it has admitted these Pods.

        A Pod that it finds without a running container before its plugins are back is rejected,
        and so is one that it hears of with the first Pods of the API: what ended Pods had counts as
        taken until then. Kubelet's own races.

        Args:
            forgets: it knows no plugin and no device any more, as on a new machine.
            settings: its configuration from now on; what its managers gave by another is forgotten.
        """
        self.kubelet.end()
        if forgets:
            (self.plugins / FILE_NAME).unlink(missing_ok=True)
        if settings is not None:
            (self.room.folder / "kubelet.yaml").write_text(yaml.safe_dump(dict(settings)))
            for name in (CPU_FILE, MEMORY_FILE):
                (self.room.folder / "kubelet" / name).unlink(missing_ok=True)
        said = self.kubelet.log.stat().st_size
        self.kubelet.start()
        metas = [pod["metadata"] for pod in pods]
        wanted = [f'"SyncPod enter" pod="{one["namespace"]}/{one["name"]}"' for one in metas]
        wanted.append('"SyncLoop ADD" source="api"')

        def admitted() -> bool:
            words = self.kubelet.words_after(said)
            return all(one in words for one in wanted)

        self.until(admitted, "kubelet does not know its Pods")

    def restart_containerd(self) -> None:
        """End containerd without a word, and start it again; containers run on."""
        self.containerd.end()
        self.containerd.start()

    def is_ready(self) -> bool:
        """Tell whether the API server knows it to be ready."""
        conditions = self.status().get("conditions", ())
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def status(self) -> dict[str, Any]:
        """Return the status of the Node object; empty before there is one."""
        found = self.plane.api().get(f"/api/v1/nodes/{NODE_NAME}")
        return dict(found.body.get("status", {})) if found.ok else {}

    def allocatable(self, resource: str) -> int:
        """Return how many of a resource the scheduler may give."""
        return int(self.status().get("allocatable", {}).get(resource, 0))

    def logs(self, pod: Mapping[str, Any], container: str) -> list[str]:
        """Return what each run of a container printed, the first one first."""
        found = self._logs(pod, container)
        return [found[number] for number in sorted(found)]

    def said(self, pod: Mapping[str, Any], container: str) -> dict[int, dict[str, Any]]:
        """Return what those runs of a container saw that said so by now, by their numbers."""
        found = self._logs(pod, container)
        return {run: json.loads(words) for run, words in found.items() if words.endswith("\n")}

    def _logs(self, pod: Mapping[str, Any], container: str) -> dict[int, str]:
        meta = pod["metadata"]
        name = f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        found = {}
        for path in (self.room.folder / "pod-logs" / name / container).glob("*.log"):
            with contextlib.suppress(FileNotFoundError):  # kubelet takes logs away
                found[int(path.stem)] = _printed(path.read_text())
        return found

    def seen(
        self, pod: Mapping[str, Any], container: str = "main", *, runs: int = 1
    ) -> list[dict[str, Any]]:
        """Wait until so many runs of a container said what they saw; return it, in order."""

        def said() -> list[str]:
            return [words for words in self.logs(pod, container) if words.endswith("\n")]

        self.until(lambda: len(said()) >= runs, f"it says nothing: {container}")
        return [json.loads(words) for words in said()]

    def processes(self, pod: Mapping[str, Any], container: str = "*") -> list[int]:
        """Return the processes of a Pod, or of one of its containers by its id."""
        below, name = Path("/sys/fs/cgroup/pids", self.room.cgroup), f"pod{pod['metadata']['uid']}"
        found: list[int] = []
        for folder, _, _ in os.walk(below):  # which passes over what goes meanwhile
            path = Path(folder)
            if path.parent.name == name and container in ("*", path.name):
                with contextlib.suppress(OSError):
                    found += map(int, (path / "cgroup.procs").read_text().split())
        return found


@contextlib.contextmanager
def node(made: Room, plane: ControlPlane, programs: Path, *, older: bool = False) -> Iterator[Node]:
    """
    Run containerd and kubelet in a room until the block ends.

    Args:
        older: the programs are those with containerd 1.6.

    Raises:
        AssertionError: one of them did not get ready; with the end of its log.
    """
    folder, port = made.folder, free_port()
    cdi, plugins = folder / "cdi", made.lib / "kubelet" / "device-plugins"
    for path in (plugins, folder / "pod-logs", folder / "manifests"):
        path.mkdir(parents=True, exist_ok=True)
    kubelet = Inside(
        command=[str(programs / "kubelet"), *_kubelet(made, plane, port)],
        log=folder / "kubelet.log",
        room=made,
        path=str(programs),
    )
    with runtime(made, programs, older=older) as containerd:
        running = Node(
            room=made,
            plane=plane,
            programs=programs,
            kubelet=kubelet,
            containerd=containerd,
            plugins=plugins,
            cdi=cdi,
            port=port,
        )
        kubelet.start()
        try:
            running.until(running.is_ready, "the node did not get ready")
            yield running
        finally:
            kubelet.end()


@contextlib.contextmanager
def runtime(
    made: Room,
    programs: Path,
    *,
    older: bool = False,
    images: Collection[str] = tuple(_IMAGES),
    patience: int = 2,
) -> Iterator[Inside]:
    """
    Run containerd in a room, with the images, until the block ends.

    Args:
        patience: seconds for which it waits for an answer of a plugin.

    Raises:
        AssertionError: it did not get ready; with the end of its log.
    """
    folder = made.folder
    for path in (folder / "cdi", folder / "cni"):
        path.mkdir(exist_ok=True)
    containerd = Inside(
        command=[
            str(programs / "containerd"),
            *("--config", str(_containerd(folder, programs, older=older, patience=patience))),
        ],
        log=folder / "containerd.log",
        room=made,
        path=str(programs),
    )
    containerd.start()
    try:
        _images(containerd, programs, images)
        yield containerd
    finally:
        containerd.end()


def _images(containerd: Inside, programs: Path, images: Collection[str]) -> None:
    folder = containerd.room.folder
    until = time.monotonic() + SECONDS
    while not (folder / "containerd.sock").exists():
        assert containerd.runs(), containerd.words()
        assert time.monotonic() < until, containerd.words()
        time.sleep(0.05)
    for number, name in enumerate(images):
        file = folder / f"{number}.tar"
        made = image(file, name=name, program=programs / SHOW, arguments=[_IMAGES[name]])
        load(containerd.room, programs, made)


def load(room: Room, programs: Path, image_file: Path) -> None:
    """Let containers of a room be made of an image."""
    socket = room.folder / "containerd.sock"
    _run(room, programs / "ctr", "-a", socket, "-n", "k8s.io", "images", "import", image_file)


def _run(room: Room, *command: str | Path) -> None:
    done = subprocess.run(
        room.within(*command), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr


def _containerd(folder: Path, programs: Path, *, older: bool, patience: int) -> Path:
    """Write containerd's configuration, and a network that Pods on the machine's own never use."""
    network = {"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "loopback"}]}
    (folder / "cni" / "none.conflist").write_text(json.dumps(network))
    wrapper = folder / BY_ENVIRONMENT
    runc = str(programs / RUNTIME)
    wrapper.write_text(
        _SHOWS_BY_ENVIRONMENT.format(python=sys.executable, runc=runc, blind=str(folder / BLIND))
    )
    wrapper.chmod(0o755)
    path = folder / "containerd.toml"
    words = {
        name: word.format(
            folder=folder,
            pause=PAUSE,
            cdi=folder / "cdi",
            patience=patience,
            registering=max(5, patience),
        )
        for name, word in (_OLDER_WORDS if older else _NEWER_WORDS).items()
    }
    path.write_text(
        _CONTAINERD.format(
            folder=folder,
            programs=programs,
            runtime=RUNTIME,
            by_environment=BY_ENVIRONMENT,
            **words,
        )
    )
    return path


def kubelet_settings(made: Room, port: int) -> dict[str, Any]:
    """Return kubelet's configuration in a room, whose callers the API server knows."""
    folder = made.folder
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}},
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{made.cgroup}",
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "failCgroupV1": False,
        "failSwapOn": False,
        "featureGates": {"KubeletCrashLoopBackOffMax": True},
        "healthzPort": 0,
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "2s",
        "podLogsDir": str(folder / "pod-logs"),
        "port": port,
        "readOnlyPort": 0,
        "resolvConf": "",
    }


def _kubelet(made: Room, plane: ControlPlane, port: int) -> list[str]:
    folder = made.folder
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet_settings(made, port)))
    return [
        *("--config", str(folder / "kubelet.yaml")),
        *("--kubeconfig", str(plane.kubeconfig(KUBELET))),
        *("--root-dir", str(folder / "kubelet"), "--cert-dir", str(folder / "kubelet-certs")),
        *("--hostname-override", NODE_NAME, "--v", "4"),
    ]


def _printed(log: str) -> str:
    """Return what a container wrote, without the runtime's time, stream and mark on each line."""
    return "".join(line.split(" ", 3)[-1] for line in log.splitlines(keepends=True))
