"""`tenure serve agent` on the real node, with cards and holdings in files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent.discover.machine import Card, Discovery
from ledger.domain.dialects.gpushare.words import GPUSHARE_MEMORY
from ledger.domain.resources import SLOT
from tests.support.forked import Forked
from tests.support.kube.control_plane import KUBELET, free_port
from tests.support.machines_found import write_machine
from tests.support.node.node import NODE_NAME, Node
from tests.support.node.pods import container
from tests.support.process import ROOT, environment

_REGISTERED: Final = "registered with kubelet"
_UPDATED: Final = "Processed device updates for resource"
CARDS: Final = ("GPU-a", "GPU-b", "GPU-c")


def shows(card: str) -> str:
    """Return the device node that a container with the card sees."""
    return f"card-{card.rpartition('-')[2]}"


def holder(name: str = "main", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - as `container`
    """Return a container with a slot, as admission writes one that holds devices."""
    return container(name, resources={SLOT: 1}, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated:
    """A node's provider of isolation: its library, and the bytes of each of the cards."""

    library: Path
    card_bytes: int


@dataclass(slots=True, kw_only=True)
class Agent:
    """
    A running agent, which can be ended and started again.

    Attributes:
        told: the options by which it is told the holdings; none = its file.
    """

    node: Node
    folder: Path
    slots: int
    naive: bool = False
    shares: int = 0
    in_mib: bool = False
    isolated: Isolated | None = None
    told: tuple[str, ...] = ()
    held: dict[str, dict[str, list[tuple[str, int, int]]]] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | Forked | None = None
    probes: int = 0

    def hold(self, pod: Mapping[str, Any], **containers: list[str]) -> None:
        """Let the ledger say which cards the containers of a Pod hold."""
        parts = {name: [(card, 100, 0) for card in cards] for name, cards in containers.items()}
        self.hold_parts(pod, **parts)

    def hold_parts(self, pod: Mapping[str, Any], **containers: list[tuple[str, int, int]]) -> None:
        """Let it say which parts of cards: card, percent of compute, bytes."""
        self.held[pod["metadata"]["uid"]] = containers
        holdings = [
            {
                "pod_uid": uid,
                "containers": [
                    {"name": name, "devices": [_device(*part) for part in parts]}
                    for name, parts in of.items()
                ],
            }
            for uid, of in self.held.items()
        ]
        written = self.folder / "holdings.new"
        written.write_text(json.dumps({"format": 1, "holdings": holdings}))
        written.rename(self.holdings)

    @property
    def holdings(self) -> Path:
        """The file of the holdings."""
        return self.folder / "holdings.json"

    @property
    def log(self) -> Path:
        """What it said."""
        return self.folder / "agent.log"

    def start(self) -> None:
        """Start it, and wait until kubelet may call it."""
        with self.registering():
            self.begin()

    def begin(self) -> None:
        """Start it."""
        self.probes = free_port()
        arguments = [
            *("serve", "agent", *(self.told or ("--holdings", str(self.holdings)))),
            *(() if "--mode" in self.told else ("--mode", "plugin")),
            *("--cards", str(self.folder / "vendor.json")),
            *("--slots", str(self.slots)),
            *("--plugins", str(self.node.plugins), "--cdi", str(self.node.cdi)),
            *("--runtime", str(self.node.room.folder / "containerd.sock")),
            *("--pod-resources", str(self.node.pod_resources)),
            *("--probes", f"127.0.0.1:{self.probes}"),
        ]
        if self.isolated is not None:
            arguments += self._isolating(self.isolated)
        if self.shares or self.in_mib:
            arguments += self._sharing()
        self.process = self._naive() if self.naive else Forked(arguments, self.log, cwd=ROOT)

    def _naive(self) -> subprocess.Popen[bytes]:
        folders = map(str, (self.folder, self.node.plugins, self.node.cdi))
        with self.log.open("ab") as words:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.support.node.naive_agent", *folders],
                stdout=words,
                stderr=words,
                env=environment(),
                cwd=ROOT,
            )

    def _isolating(self, provider: Isolated) -> list[str]:
        """Return the options of a node whose machine is known, and keeps parts of cards apart."""
        state = self.folder / "state"
        state.mkdir(exist_ok=True)
        cards = tuple(
            Card(uuid=card, minor=minor, memory_bytes=provider.card_bytes)
            for minor, card in enumerate(CARDS)
        )
        machine = write_machine(self.folder / "machine.json", Discovery(cards=cards))
        return [
            *("--isolation", "hami-core", "--isolation-library", str(provider.library)),
            *("--node", NODE_NAME, "--kubeconfig", str(self.node.plane.kubeconfig(KUBELET))),
            *("--machine", str(machine), "--state", str(state)),
        ]

    @contextmanager
    def registering(self) -> Iterator[None]:
        """
        Wait after the block until it has registered anew, and kubelet and scheduler know all slots.

        The Node's own number is no sign of it: it may be that of kubelet's life before.
        """
        before = self.words().count(_REGISTERED)
        said = self.node.kubelet.log.stat().st_size
        yield
        self.node.until(
            lambda: self.words().count(_REGISTERED) > before,
            f"the agent does not register\n{self.words()}",
        )
        resource, count = (GPUSHARE_MEMORY, self.shares) if self.shares else (SLOT, self.slots)

        def knows() -> bool:
            lines = self.node.kubelet.words_after(said).splitlines()
            updates = [line for line in lines if _UPDATED in line and f'"{resource}"' in line]
            return any(f"healthyCount={count}" in line for line in updates)

        self.node.until(knows, "kubelet does not take the ids")
        self.node.until(
            lambda: self.node.allocatable(resource) == count, "kubelet does not tell the ids"
        )

    def _sharing(self) -> list[str]:
        """Return the options of the mode `gpushare`, with a machine in a file."""
        admin = self.node.plane.kubeconfig("admin")
        (self.folder / "token").write_text(self.node.plane.tokens["admin"])
        authority = self.node.room.folder / "kubelet-certs" / "kubelet.crt"
        return [
            *("--mode", "gpushare", "--gpushare-unit", "MiB" if self.in_mib else "GiB"),
            *("--node", NODE_NAME),
            *("--machine", str(self.folder / "machine.json"), "--state", str(self.folder)),
            *("--kubeconfig", str(admin), "--report-seconds", "1"),
            *("--kubelet", f"https://127.0.0.1:{self.node.port}"),
            *("--kubelet-ca", str(authority), "--token", str(self.folder / "token")),
        ]

    def find(self, *, closed: str = "") -> None:
        """Let the machine have its cards, of 16276 MiB each, one of them closed."""
        cards = [
            {
                "uuid": card,
                "minor": minor,
                "memory_bytes": 16276 << 20,
                "faults": [{"reason": "Xid79"}] if card == closed else [],
            }
            for minor, card in enumerate(CARDS)
        ]
        written = self.folder / "machine.new"
        written.write_text(json.dumps({"cards": cards}))
        written.rename(self.folder / "machine.json")

    def is_ready(self) -> bool:
        """Tell whether it says that kubelet may call it."""
        return self.probe("readyz").startswith("ok\n")

    def whose_word(self) -> str:
        """Return what it says of whose word counts."""
        return self.probe("readyz")

    def probe(self, what: str) -> str:
        """Return what a probe says; nothing while it is not ready."""
        try:
            url = f"http://127.0.0.1:{self.probes}/{what}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def verdicts(self) -> list[str]:
        """Return what it says that the ledger is beside the one it knew."""
        found = re.findall(
            r'^tenure_agent_ledger\{verdict="(.*)"\} 1.0$', self.probe("metrics"), re.MULTILINE
        )
        return list(found)

    def runs(self) -> bool:
        """Tell whether it runs."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """End it without a word."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(20)

    def words(self) -> str:
        """Return the end of what it logged."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def specifications(self) -> dict[str, str]:
        """Return the names that mean something now, and what."""
        return {path.name: path.read_text() for path in self.node.cdi.glob("tenure-*.json")}


def _device(card: str, core_percent: int, memory_bytes: int) -> dict[str, Any]:
    return {
        "device_id": card,
        "minor": CARDS.index(card),
        "core_percent": core_percent,
        "memory_bytes": memory_bytes,
    }


def vendors() -> str:
    """Return the vendor's CDI specification of the cards."""
    devices = [
        {
            "name": card,
            "containerEdits": {
                "deviceNodes": [{"path": f"/dev/{shows(card)}", "hostPath": "/dev/null"}]
            },
        }
        for card in CARDS
    ]
    vendor = {
        "cdiVersion": "0.6.0",
        "kind": "vendor.test/card",
        "containerEdits": {"env": ["SHOWN_BY=vendor"]},
        "devices": devices,
    }
    return json.dumps(vendor)


@contextmanager
def agent(
    node: Node,
    folder: Path,
    *,
    slots: int = 1,
    naive: bool = False,
    isolated: Isolated | None = None,
    shares: int = 0,
    in_mib: bool = False,
    told: tuple[str, ...] = (),
    registers: bool = True,
) -> Iterator[Agent]:
    """
    Run an agent until the block ends, or a plugin that gives its names again.

    Args:
        shares: so many GiB of GPU share, in place of slots; `in_mib`: its MiB, by slots.
        registers: kubelet is to know it; else it is started and not waited for.
    """
    (folder / "vendor.json").write_text(vendors())
    (folder / "holdings.json").write_text('{"format": 1, "holdings": []}')
    running = Agent(
        node=node,
        folder=folder,
        slots=slots,
        naive=naive,
        isolated=isolated,
        shares=shares,
        in_mib=in_mib,
        told=told,
    )
    if shares or in_mib:
        running.find()
    if registers:
        running.start()
    else:
        running.begin()
    try:
        yield running
    finally:
        running.kill()
