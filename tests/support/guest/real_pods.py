"""
Random steps of real Pods: of kubelet, containerd and runc, with `tenure serve cpus` beside them.

Runs in the guest, as root. Pods are files of kubelet's; the service and the API server are played.
With an odd seed kubelet has its static policy, and pins some Pods itself. The runtime binds by NRI;
our process is killed and started again among the steps.

    python -m tests.support.guest.real_pods FORM RELEASE SEED STEPS CLAIMS PROGRAMS BUSYBOX
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from agent.manager_state import CPU_FILE
from tests.support.cgroup_trees import uid_of
from tests.support.cpus_world import Cluster, CpusWorld, cpus_world, pod
from tests.support.guest.cpu_steps import EVERY, KUBE_QOS, Granted, World, run
from tests.support.guest.kubelet_tree import (
    CGROUPS,
    SANDBOX,
    KubeletTree,
    MadePod,
    OnStart,
    cpus_of,
)
from tests.support.guest.switches import COMM
from tests.support.kube.control_plane import free_port
from tests.support.node.images import image
from tests.support.node.node import PAUSE, Inside, kubelet_settings, load, runtime
from tests.support.node.room import Room

SECONDS: Final = 300.0
LOOK_SECONDS: Final = 2.0
"""The emulated machine is slow: who asks all the time leaves nothing for others."""
PODS_MAX: Final = 6
RESERVED: Final = "0"
LEDGERS: Final = frozenset(range(4, 8))
"""CPUs that the ledger gives, beside kubelet's policy: kubelet fills the first socket first."""
PINNED: Final = ("kubelet", 2)
"""A third Pod of this kind is none."""
IMAGE: Final = "node.test/work:1"
_WORK: Final = (
    f"/busybox mkfifo /nobody; echo -n {COMM} >/proc/self/comm; exec 3<>/nobody; while :; do n=0;"
    " while [ $n -lt 20 ]; do n=$((n + 1)); done; read -t 0.5 _ <&3; done"
)
"""`read` waits for a pipe into which nobody writes: no process is started for it."""
_PRELOADED: Final = ["tenure.cli", "tenure.serving.cpus", "tests.support.forked"]
_PATIENT: Final = "import agent.cpus.nri as nri; nri.ANSWER_SECONDS *= 40"
"""The emulator's CPUs take turns of 100 ms, so that a right answer may take longer than 50."""
_WRITES: Final = re.compile(r'^tenure_cpus_writes_total\{result="done"\} ([0-9.]+)$', re.MULTILINE)


class Kubelet:
    """The guest's kubelet, with no API server; its Pods are files."""

    def __init__(self, room: Room, programs: Path, certificates: Path, *, static: bool) -> None:
        self.files = room.folder / "manifests"
        self.port = free_port()
        for folder in (self.files, room.folder / "pod-logs", Path("/var/lib/kubelet")):
            folder.mkdir(parents=True, exist_ok=True)
        settings = kubelet_settings(room, self.port) | {
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cpuManagerPolicy": "static" if static else "none",
            "fileCheckFrequency": "1s",
            "localStorageCapacityIsolation": False,
            "reservedSystemCPUs": RESERVED,
            "staticPodPath": str(self.files),
            "tlsCertFile": str(certificates / "tls.crt"),
            "tlsPrivateKeyFile": str(certificates / "tls.key"),
        }
        (room.folder / "kubelet.yaml").write_text(yaml.safe_dump(settings))
        self.state = room.folder / "kubelet" / CPU_FILE
        self.process = Inside(
            command=[
                *(str(programs / "kubelet"), "--config", str(room.folder / "kubelet.yaml")),
                *("--root-dir", str(room.folder / "kubelet"), "--hostname-override", "a"),
            ],
            log=room.folder / "kubelet.log",
            room=room,
            path=str(programs),
        )

    def pinned(self, uid: str) -> frozenset[int]:
        """Return the CPUs that its static policy gave to the containers of a Pod."""
        entries = json.loads(self.state.read_text()).get("entries", {})
        return frozenset().union(*map(cpus_of, entries.get(uid, {}).values()))

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        end = time.monotonic() + SECONDS
        while not holds():
            assert self.process.runs(), self.process.words()
            assert time.monotonic() < end, f"{what}\n{self.process.words()}"
            time.sleep(0.1)


class RealTree(KubeletTree):
    """The cgroups of those Pods, which kubelet and runc make."""

    def __init__(self, form: str, on_start: OnStart, *, kubelet: Kubelet) -> None:  # makes none
        self.form = form
        self.pods: dict[str, MadePod] = {}
        self.processes: dict[str, int] = {}
        self.tops = [CGROUPS / "cpuset", CGROUPS / "cpu,cpuacct"] if form == "v1" else [CGROUPS]
        self._systemd = False
        self._on_start = on_start
        self._kubelet = kubelet

    def write_pod(self, told: dict[str, Any], kube_qos: str) -> None:
        """Give kubelet the file of a Pod."""
        uid = told["metadata"]["uid"]
        self.pods[uid] = MadePod(uid=uid, kube_qos=kube_qos)
        new = self._kubelet.files / f".{uid}"
        new.write_text(json.dumps(told))
        new.rename(self._kubelet.files / f"{uid}.json")

    def start(self, uid: str, name: str, cpus: str = "") -> str:
        """Wait until kubelet runs a container that it did not run before, and return its id."""
        assert not cpus, "kubelet picks them"
        made, works = self.pods[uid].containers, dict[str, tuple[str, int]]()

        def runs() -> bool:
            works.update(self._working(uid))
            return name in works and works[name][0] not in self.processes

        self._kubelet.until(runs, f"it does not start {name} of {uid}")
        made[name], process = works[name]
        self.processes[made[name]] = process
        self._on_start(process, str(self.tops[0] / self.container_path(uid, name)))
        return made[name]

    def note_sandbox(self, uid: str) -> None:
        """Take note of the one cgroup of a Pod, all of whose containers run, that is of none."""
        made = self.pods[uid].containers
        folder = self.tops[0] / self.pod_path(uid)
        ids = {each.name for each in folder.iterdir() if each.is_dir()}
        (made[SANDBOX],) = ids - set(made.values())

    def stop(self, uid: str, name: str) -> None:
        """Kill a container, which kubelet starts again."""
        os.kill(self.processes[self.pods[uid].containers[name]], signal.SIGKILL)
        del self.pods[uid].containers[name]

    def end_pod(self, uid: str) -> None:
        """Take a Pod's file away, and wait until nothing is left of it."""
        folder = self.tops[0] / self.pod_path(uid)
        (self._kubelet.files / f"{uid}.json").unlink()
        self._kubelet.until(lambda: not folder.exists(), f"it does not end {uid}")
        del self.pods[uid]

    def end(self) -> None:
        """End all Pods."""
        for uid in list(self.pods):
            self.end_pod(uid)

    def _working(self, uid: str) -> Iterator[tuple[str, tuple[str, int]]]:
        """Yield a Pod's containers that are at their work, by name: the id, and the process."""
        for file in (self.tops[0] / self.pod_path(uid)).glob("*/cgroup.procs"):
            with contextlib.suppress(OSError):  # one of them may just end
                for process in file.read_text().split():
                    if Path("/proc", process, "comm").read_text() == f"{COMM}\n":
                        words = Path("/proc", process, "cmdline").read_text().split("\0")
                        yield words[-2], (file.parent.name, int(process))


class RealWorld(World):
    """Pods that come, go and restart; our process that is killed and started."""

    def __init__(
        self,
        form: str,
        kernel: tuple[int, int],
        seed: int,
        claims: Path,
        tree: Callable[[str, OnStart], KubeletTree],
        *,
        node: CpusWorld,
        nri: Path,
        kubelet: Kubelet,
    ) -> None:
        super().__init__(form, kernel, seed, claims, tree)
        self.all_listed = self.static  # kubelet writes its pool
        self.rides = True  # best effort Pods may, as long as nobody measures the load
        self.node_world = node
        self.nri = nri
        self._kubelet = kubelet
        self._told: dict[str, dict[str, Any]] = {}
        self._written = 0

    def step(self) -> str:
        """Let one thing happen, and return what."""
        if self._first:
            return self._make(self._first.pop(), 1)
        choices = ["make"] * 2 * (len(self.pods) < PODS_MAX) + ["agent"]
        if self.pods:
            choices += ["restart", "end"]
        act = self._rng.choice(choices)
        if act == "make":
            return self._make(self._rng.choice(self._kinds), self._rng.choice([1, 2, 2]))
        if act == "agent":
            self._written = self.writes()
            self.node_world.kill()
            self.start()
            return act
        picked = self.pods[self._rng.choice(sorted(self.pods))]
        return self._restart(picked) if act == "restart" else self._end(picked)

    def _make(self, kind: str, cpus_wanted: int) -> str:
        pinned = [pod for pod in self.pods.values() if pod.kind == "kubelet"]
        free = LEDGERS - self.own() if self.static else EVERY - self.own()
        wanted = min(cpus_wanted, 2) if kind in {"LSE", "LSR"} else 0
        if len(free) - wanted < 1 + (not self.static) or (kind, len(pinned)) == PINNED:
            kind, wanted = "LS", 0
        cpus = frozenset(self._rng.sample(sorted(free), wanted))
        self.add(kind, cpus, containers=1 if kind == "kubelet" else self._rng.choice([1, 1, 2]))
        return f"make {kind}"

    def start(self) -> None:
        """Start our process, and wait until the runtime has taken it."""
        log = self.node_world.folder / "log"
        log.touch()
        began = log.stat().st_size
        self.node_world.start(nri=self.nri, **{"look-seconds": LOOK_SECONDS})
        self.until(
            lambda: '"standing":"on"' in log.read_text()[began:], "the runtime does not take it"
        )

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        node, end = self.node_world, time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < end, f"{what}\n{node.ready()}\n{node.log()}"
            time.sleep(0.1)

    def writes(self) -> int:
        """Return how many writes of our processes were done."""
        found = _WRITES.search(self.node_world.ready("metrics"))
        return self._written + (int(float(found[1])) if found else 0)

    def add(self, kind: str, cpus: frozenset[int], *, containers: int) -> list[int]:
        """Let a Pod come: the ledger knows it before kubelet does."""
        self.claim(without=self._ridden(kind))
        self._made += 1
        made = Granted(
            uid=uid_of(self._made),
            kind=kind,
            cpus=cpus,
            containers=[f"c{number}" for number in range(containers)],
        )
        told = pod(
            self._made,
            qos=kind if kind in {"LSE", "LSR", "LS", "BE"} else "",
            cpus=",".join(map(str, sorted(cpus))),
            milli=self.limit_milli(made),
            limit=KUBE_QOS[kind] == "Guaranteed",
        )
        del told["status"]
        resources = told["spec"]["containers"][0]["resources"]
        told |= {"apiVersion": "v1", "kind": "Pod"}
        told["spec"] = {
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": name,
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["/busybox", "sh", "-c", _WORK, name],
                    "resources": resources,
                }
                for name in made.containers
            ],
        }
        self.pods[made.uid] = made
        self._told[made.uid] = told
        self._tell()
        assert isinstance(self.tree, RealTree)
        self.tree.write_pod(told, KUBE_QOS[kind])
        for name in made.containers:
            self._start(made, name)
        self.tree.note_sandbox(made.uid)
        if kind == "kubelet":
            made.cpus = self._kubelet.pinned(made.uid)
            assert made.cpus.isdisjoint(LEDGERS), made.cpus
        ids = self.tree.pods[made.uid].containers
        return [self.tree.processes[ids[name]] for name in made.containers]

    def limit_milli(self, pod: Granted) -> int:
        """Return what each container of a Pod asks for, and if it has a limit is limited to."""
        if KUBE_QOS[pod.kind] == "BestEffort":
            return 0
        if pod.kind == "kubelet":
            return 1000
        # Kubelet's policy pins a container that asks for whole CPUs.
        return len(pod.cpus) * 450 // len(pod.containers) or 100

    def _start(self, pod: Granted, name: str) -> None:
        self.tree.start(pod.uid, name)

    def _kubelet_writes(self) -> None:
        """Let kubelet do it."""

    def _restart(self, pod: Granted) -> str:
        name = self._rng.choice(pod.containers)
        self.claim(without={pod.uid, *self._ridden(pod.kind)})
        self.tree.stop(pod.uid, name)
        self._start(pod, name)
        return f"restart {pod.kind}"

    def _ridden(self, kind: str) -> set[str]:
        """Return the Pods on whose CPUs a newborn of this kind may be, which no claim says yet."""
        if KUBE_QOS[kind] != "BestEffort":
            return set()
        return {uid for uid, pod in self.pods.items() if pod.kind == "LSR"}

    def _end(self, pod: Granted) -> str:
        came = super()._end(pod)
        del self._told[pod.uid]
        self._tell()
        return came

    def _tell(self) -> None:
        self.node_world.runs(*self._told.values())


class Process:
    """What binds here is the process; it is only waited for."""

    writes = 0
    rounds = 0

    def __init__(self, world: RealWorld) -> None:
        self._world = world

    def settle(self, *, whole: bool) -> None:
        """Wait until everything is as it should be; `run` says what is not, if it never is."""
        assert not whole
        end = time.monotonic() + SECONDS
        while any(self._world.wrong()) and time.monotonic() < end:
            time.sleep(0.1)
        self.writes = self._world.writes()
        sys.stderr.write(f"{time.monotonic():.0f} s: {len(self._world.pods)} Pods\n")

    def give_back(self) -> None:
        """Take the Node's label off."""
        node, until = self._world.node_world, self._world.until
        until(lambda: node.condition().get("reason") == "Bound", "the Node does not say so")
        until(lambda: node.label() == "true", "the Node does not say so")
        node.allow(bind=False)
        until(lambda: not any(self._world.left()), "not all is given back")
        until(lambda: node.label() is None, "the Node still says that it binds")


@contextlib.contextmanager
def real_world(
    form: str,
    kernel: tuple[int, int],
    seed: int,
    claims: Path,
    *,
    programs: Path,
    busybox: Path,
) -> Iterator[RealWorld]:
    """Run a node until the block ends."""
    folder = Path("/run/tmp/node")
    folder.mkdir()
    certificates = folder / "world"
    certificates.mkdir()
    room = Room(folder=folder, pid=1, cgroup="", lib=Path("/var/lib"))
    top = CGROUPS / "cpuset" if form == "v1" else CGROUPS
    cpu = CGROUPS / "cpu,cpuacct" / "kubepods" if form == "v1" else None
    # The emulator has one thread for all CPUs: programs on more than one only wait for each other.
    os.sched_setaffinity(0, {0})
    os.environ["GOMAXPROCS"] = "1"
    # What starts there is our process alone: nothing else is read from this slow disk.
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    with cpus_world(certificates, top / "kubepods", cpu) as played:
        kubelet = Kubelet(room, programs, certificates, static=bool(seed % 2))
        made = partial(RealTree, kubelet=kubelet)
        with runtime(room, programs, images=(PAUSE,), patience=60) as containerd:
            work = image(
                folder / "work.tar",
                name=IMAGE,
                program=busybox,
                arguments=[],
                more={"busybox": busybox},
            )
            load(room, programs, work)
            kubelet.process.start()
            world = RealWorld(
                *(form, kernel, seed, claims, made),
                node=played,
                nri=folder / "nri.sock",
                kubelet=kubelet,
            )
            Cluster.waits = LOOK_SECONDS
            played.options |= {
                "host": _host(folder / "host"),
                "kubelet": f"https://127.0.0.1:{kubelet.port}",
                "pod-resources": folder / "kubelet/pod-resources/kubelet.sock",
            }
            played.first = _PATIENT
            played.allow(bind=True)
            try:
                burstable = top / "kubepods" / "burstable"
                kubelet.until(burstable.exists, "it makes no cgroups")
                kubelet.until(kubelet.state.exists, "it says no policy")
                world.start()
                yield world
                assert containerd.runs(), containerd.words()
            finally:
                played.kill()
                kubelet.process.end()


def _host(folder: Path) -> Path:
    """Return a root with this machine's CPUs, and without its ids, which no proof of ours names."""
    devices = folder / "sys/devices/system"
    devices.mkdir(parents=True)
    subprocess.run(["mount", "--bind", "/sys/devices/system", devices], check=True)
    return folder


if __name__ == "__main__":
    of_form, release, of_seed, many, claims_file, programs_folder, box = sys.argv[1:]
    major, minor = map(int, release.split("."))
    with real_world(
        of_form,
        (major, minor),
        int(of_seed),
        Path(claims_file),
        programs=Path(programs_folder),
        busybox=Path(box),
    ) as made_world:
        came = run(made_world, Process(made_world), int(of_seed), int(many))
    json.dump(came, sys.stdout)
