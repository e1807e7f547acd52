"""A cluster whose service gives the cards of the real node, with the agent's own Pod and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from agent.discover.machine import Card, Discovery
from ledger.signing import PrivateKey, published
from scheduler.service.api.words import CPUS_ACCOUNT
from tests.support.forked import forked
from tests.support.kube.agents import agent_token
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.pods import pod as plain_pod
from tests.support.kube.pods import pods_in
from tests.support.kube.schedulers import HasPort, Identities, asking, extender, issue
from tests.support.kube.webhooks import apply, remove
from tests.support.machines_found import write_machine
from tests.support.manifests import AGENT_ACCOUNT, printed_agent, printed_cpus
from tests.support.node.agents import CARDS
from tests.support.node.node import NODE_NAME, Node
from tests.support.node.room import CGROUPS

OURS: Final = "tenure-system"
CARD_BYTES: Final = 16 << 30


class Cluster:
    """The service, the kube-scheduler that asks it, and the agent's own Pod and files."""

    def __init__(self, plane: ControlPlane, machine: Node, folder: Path) -> None:
        self.plane, self.machine, self.folder = plane, machine, folder
        self.identities: Identities = issue(folder / "identities")
        self.port = free_port()
        plane.api().create("/api/v1/namespaces", {"metadata": {"name": OURS}})
        self.url = f"sqlite:///{folder / 'ledger.db'}"
        made = forked("ledger", "init", "--ledger", self.url, cwd=folder)
        assert made.returncode == 0, made.stderr

    def told(
        self, *, probe: str = "", runtime: str = "", boots: bool = False, topology: bool = False
    ) -> tuple[str, ...]:
        """
        Return the agent's options, once its account and token are there.

        Args:
            probe: the image by which it proves the mode `env`; empty = another mode.
            runtime: the RuntimeClass of that, and of Pods that hold cards.
            boots: the machine's own files are those of `host`.
            topology: it reports the node's CPUs, of the machine and kubelet themselves.
        """
        ledger = PrivateKey.parse((self.identities.keys / "ledger.key").read_text())
        options = ["--namespace", OURS]
        if probe:
            options += ["--env", "--probe-runtime-class", runtime]
        if topology:
            options.append("--topology")
        things = printed_agent(*options, image=probe or "none")
        rights = [one for one in things if one["kind"] != "DaemonSet"]
        if topology:  # a test before may have left narrower ones
            narrower = {"ClusterRole", "ValidatingAdmissionPolicy"}
            remove(self.plane, [one for one in rights if one["kind"] in narrower])
        apply(self.plane, rights)
        cards = tuple(
            Card(uuid=one, minor=minor, memory_bytes=CARD_BYTES, processes=())
            for minor, one in enumerate(CARDS)
        )
        machine = write_machine(self.folder / "machine.json", Discovery(cards=cards))
        return (
            *self._process("agent", AGENT_ACCOUNT, self.folder),
            *("--node", NODE_NAME, "--report-seconds", "1", "--machine", str(machine)),
            *("--ledger-key", str(ledger.public)),
            *(("--host", str(self.host())) if boots else ()),
            *(("--topology", "configz") if topology else ()),
            *(("--mode", "env", "--probe-image", probe) if probe else ()),
            *(("--probe-runtime-class", runtime) if runtime else ()),
        )

    def binds_cpus(self) -> tuple[str, ...]:
        """Return the options of what binds CPUs, once its account and token are there."""
        things = printed_cpus("--namespace", OURS, "--bind")
        apply(self.plane, [one for one in things if one["kind"] != "DaemonSet"])
        (self.folder / "cpus").mkdir()
        kubepods = Path(self.machine.room.cgroup) / "kubepods"
        return (
            *self._process("cpus", CPUS_ACCOUNT, self.folder / "cpus"),
            *("--kubepods", str(CGROUPS / "cpuset" / kubepods)),
            *("--kubepods-cpu", str(CGROUPS / "cpu" / kubepods)),
            *("--pod-resources", str(self.machine.pod_resources), "--look-seconds", "0.2"),
        )

    def _process(self, name: str, account: str, folder: Path) -> tuple[str, ...]:
        """Return the options of each process of the node; its Pod has that name."""
        for each in ("state", "keys"):
            (folder / each).mkdir()
        key = PrivateKey.parse((self.identities.keys / "proof.key").read_text())
        for each, text in published([key.public]).items():
            (folder / "keys" / each).write_text(text)
        token = folder / "token"
        words = plain_pod(name, {}, nodeName=NODE_NAME, serviceAccountName=account)
        reply = self.plane.api().create(pods_in(OURS), words)
        assert reply.ok, reply.message
        token.write_text(agent_token(self.plane, OURS, reply.body, account=account))
        kubelet = self.machine.room.folder / "kubelet-certs" / "kubelet.crt"
        return (
            *("--service", f"https://127.0.0.1:{self.port}"),
            *("--ca", str(self.identities.server / "ca.crt")),
            *("--token", str(token), "--state", str(folder / "state")),
            *("--proof-keys", str(folder / "keys")),
            *("--kubelet", f"https://127.0.0.1:{self.machine.port}"),
            *("--kubelet-ca", str(kubelet), "--kubeconfig", str(self._kubeconfig(token))),
        )

    def host(self) -> Path:
        """Bring what the agent takes for the machine's own files to what they are in the room."""
        host = self.folder / "host"
        boot_id = host / "proc/sys/kernel/random/boot_id"
        for of_machine in ("etc/machine-id", "sys/class/dmi/id/product_uuid"):
            there = Path("/", of_machine)
            if there.exists():
                (host / of_machine).parent.mkdir(parents=True, exist_ok=True)
                (host / of_machine).write_text(there.read_text())
        boot_id.parent.mkdir(parents=True, exist_ok=True)
        boot_id.write_text(self.machine.room.boot_id.read_text())
        return host

    def _kubeconfig(self, token: Path) -> Path:
        """Let a process reach the API by its own token, with the rights that are printed."""
        cluster = {"server": self.plane.url, "certificate-authority": str(self.plane.ca_file)}
        made = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"tokenFile": str(token)}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path = token.parent / "kubeconfig"
        path.write_text(json.dumps(made))
        return path

    def served(self, *, mode: str = "plugin", **more: Any) -> Any:  # noqa: ANN401 - a context of Served
        """Run the service for agents of a mode until the block ends; with more, as `extender`."""
        config = self.folder / "scheduling.yaml"
        kind = "apiVersion: tenure.sh/v1alpha1\nkind: SchedulerConfiguration\n"
        config.write_text(f"{kind}slotMode: {mode}\n")
        more = {"config": config, "api": self.port, "forked": True, **more}
        return extender(self.plane, self.url, self.identities, **more)

    def scheduling(self, served: HasPort) -> Any:  # noqa: ANN401 - a context of Program
        """Run a kube-scheduler that asks it, until the block ends."""
        config = asking(self.plane, served, self.identities, impatient=True)
        return self.plane.scheduler(config, name="asking")

    def end(self) -> None:
        """Take the processes' own Pods away."""
        for name in ("agent", "cpus"):
            self.plane.api().delete(f"{pods_in(OURS)}/{name}?gracePeriodSeconds=0")
