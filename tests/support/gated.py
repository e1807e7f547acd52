"""A node's cards, claims as the API server writes them, and what a gate knows of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.devices import GPU, DeviceRecord, DeviceShare
from ledger.domain.dialects.dra.cpus import AMOUNT, CPU_DRIVER, MACHINE
from ledger.domain.log.events import ClaimResult, LedgerEvent
from ledger.domain.log.state import Folding, NodeState
from ledger.domain.nodes import NodeFacts
from ledger.domain.systems import Claimant
from ledger.domain.topology import Cpu, cpu_topology_of
from scheduler.decide.claims import choose_claim_cpus
from scheduler.decide.settings import SchedulingSettings
from scheduler.gate.claims import Allocated, ClaimSeen, claim_seen
from scheduler.gate.cpus import CPUS_UNTOLD, CpusBarred
from scheduler.gate.decide import Accounted, Standing, Unaccounted, Write
from scheduler.gate.exchange import Alike, Device
from scheduler.gate.leaving import Life, NodeOfClaim, Stays, stays
from scheduler.service.claim_ends import ClaimEnds, EndingClaim
from scheduler.service.wakeups import Wakeups

DRIVER: Final = "gpu.example.com"
DRIVERS: Final = frozenset({DRIVER, CPU_DRIVER})
NODE: Final = "n1"
GIB: Final = 1 << 30
CARD_BYTES: Final = 16 * GIB
CARDS: Final = 4
CPUS: Final = tuple(Cpu(id=n, core=n // 2, socket=0, numa=n // 8) for n in range(16))
"""Two NUMA nodes of four cores with two threads; CPU 0 is kept back."""
KEPT_BACK: Final = cpuset_of([0])


def card(minor: int, **what: Any) -> DeviceRecord:  # noqa: ANN401 - any attribute
    """Return a card that claims alone give."""
    return DeviceRecord(
        device_type=GPU,
        minor=minor,
        device_id=f"GPU-{minor}",
        model="T4",
        memory_bytes=CARD_BYTES,
        unique_id=True,
        by_claims=True,
        **what,
    )


def result(
    number: int, *, memory: str = "", share_id: str = "", driver: str = DRIVER, **more: object
) -> dict[str, Any]:
    """Return one result of an allocation: a card, or so much of it."""
    found: dict[str, Any] = {
        "request": "g",
        "driver": driver,
        "pool": NODE,
        "device": f"gpu-{number}",
        **more,
    }
    if memory:
        found |= {"shareID": share_id or f"share-{number}", "consumedCapacity": {"memory": memory}}
    return found


def cpus(
    count: int | str, *, request: str = "g", device: str = MACHINE, **more: object
) -> dict[str, Any]:
    """Return one result of an allocation: so many CPUs of the machine's."""
    return {
        "request": request,
        "driver": CPU_DRIVER,
        "pool": NODE,
        "device": device,
        "shareID": f"share-{request}",
        "consumedCapacity": {AMOUNT: str(count)},
        **more,
    }


def claim(
    name: str,
    version: int,
    *results: Mapping[str, Any],
    pods: Iterable[str] = (),
    node: str = NODE,
    config: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a claim object with these results; without any it is not allocated."""
    status: dict[str, Any] = {}
    if results:
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        status["allocation"] = {
            "devices": {"results": list(results)},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        }
    if config:
        status["allocation"]["devices"]["config"] = list(config)
    if pods:
        status["reservedFor"] = [
            {"resource": "pods", "name": each, "uid": f"uid-{each}"} for each in pods
        ]
    exactly = {"deviceClassName": DRIVER, "count": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"claim-{name}",
            "resourceVersion": str(version),
            "ownerReferences": [{"kind": "Pod", "name": f"pod-{name}", "controller": True}],
        },
        "spec": {"devices": {"requests": [{"name": "g", "exactly": exactly}]}},
        "status": status,
    }


def seen(*args: Any, **kwargs: Any) -> ClaimSeen:  # noqa: ANN401 - those of `claim`
    """Return a claim as it is read."""
    return claim_seen(claim(*args, **kwargs), DRIVERS)


def appears(
    name: str,
    version: int,
    *results: Mapping[str, Any],
    **kwargs: Any,  # noqa: ANN401 - as `claim`
) -> Write:
    """Return the write by which an allocation appears on top of a version."""
    return Write(old=seen(name, version), new=seen(name, version, *results, **kwargs))


def goes(name: str, version: int, *results: Mapping[str, Any], pods: Iterable[str] = ()) -> Write:
    """Return the write by which an allocation goes."""
    return Write(old=seen(name, version, *results, pods=pods), new=seen(name, version))


@dataclass(slots=True, kw_only=True)
class Leaving:
    """
    Who says that what claims have may go.

    Attributes:
        lives: UID of a Pod -> what the API says of it; without a word it is gone.
        witness: what is known of the node.
        asks: what the node is asked.
    """

    lives: dict[str, Life] = field(default_factory=dict)
    witness: NodeOfClaim = field(default_factory=lambda: NodeOfClaim(name=NODE))
    asks: ClaimEnds = field(default_factory=lambda: ClaimEnds(float, int, Wakeups()))

    @property
    def asked(self) -> dict[str, set[str]]:
        """Return the Pods that the node is asked about a claim with, by the claim's UID."""
        return {one.claim_uid: set(one.pods) for one in self.asks.told("node-1")[1]}

    def runs(self, pod_uid: str) -> bool:
        """Tell whether a Pod runs."""
        return self.lives.get(pod_uid) is Life.RUNS

    def kept(
        self, name: str, _standing: Standing | None, consumers: Sequence[Claimant]
    ) -> Stays | None:
        """Return why what a claim has stays."""
        lives = {one: self.lives.get(one.uid, Life.GONE) for one in consumers}
        return stays(name, lives, self.witness)

    def ask(self, standing: Standing, consumers: Sequence[Claimant]) -> None:
        """Ask the node of a claim."""
        there = [one.uid for one in consumers if self.lives.get(one.uid) is not Life.UNBOUND]
        opening = standing.opening
        claim = EndingClaim(claim_uid=opening.claim_uid, attempt=opening.attempt, pods=tuple(there))
        self.asks.ask("node-1", claim)


@dataclass(slots=True, kw_only=True)
class FoldedAccounts:
    """
    One node's cards, with what events made of them.

    Attributes:
        gone: names of devices that no whole pool in its newest generation has.
        is_known: the ledger has the node.
    """

    devices: tuple[DeviceRecord, ...] = tuple(card(minor) for minor in range(CARDS))
    gone: frozenset[str] = frozenset()
    is_known: bool = True
    events: list[LedgerEvent] = field(default_factory=list)

    def node(self, name: str) -> NodeState | None:
        """Return the node, folded."""
        if name != NODE or not self.is_known:
            return None
        folding = Folding()
        for position, event in enumerate(self.events, 1):
            folding.add(position, event)
        state = folding.node("node-1") or NodeState(uid="node-1", name=NODE)
        return NodeState(
            uid="node-1",
            name=NODE,
            devices=self.devices,
            cpus=CPUS,
            holdings=dict(state.holdings),
            claims=dict(state.claims),
        )

    def account(self, allocated: Allocated) -> Accounted | Unaccounted:
        """Return what results are of, by the device's number; results of one card are summed."""
        shares: dict[int, DeviceShare] = {}
        for one in allocated.results:
            if one.device in self.gone:
                return Unaccounted(
                    reason="DeviceUnknown", message=f"no whole pool has {one.pool}/{one.device}"
                )
            if one.admin or one.driver == CPU_DRIVER:
                continue
            minor = int(one.device.rpartition("-")[2])
            memory = one.consumed.get("memory")
            amount = int(memory.removesuffix("Gi")) * GIB if memory else CARD_BYTES
            before = shares.get(minor)
            amount += before.memory_bytes if before else 0
            shares[minor] = DeviceShare(
                device_type=GPU,
                minor=minor,
                device_id=f"GPU-{minor}",
                core_percent=(before.core_percent if before else 0) + (0 if memory else 100),
                memory_bytes=amount,
                memory_ratio_percent=amount * 100 // CARD_BYTES,
                exclusive=not memory,
            )
        ordered = tuple(shares[minor] for minor in sorted(shares))
        return Accounted(shares=ordered, models=("T4",) * len(ordered))

    def alike(self, node: str, device: Device, *, anywhere: bool = False) -> tuple[Alike, ...]:
        """Return all cards of the node: they are like one another, wherever they are."""
        assert node == NODE, anywhere
        minors = [each.minor for each in self.devices]
        found = [Alike(name=f"gpu-{each}", minor=each) for each in minors]
        kept = tuple(each for each in found if each.name not in self.gone)
        return kept if device[2] in {each.name for each in kept} else ()


@dataclass(frozen=True, slots=True)
class MachineCpus:
    """
    The node's CPUs, all of which its driver may give but the one that is kept back.

    Attributes:
        untold: why it can't be told which CPUs the device is.
    """

    untold: str = ""

    def offered(self, node: NodeState, result: ClaimResult) -> CpuSet | CpusBarred:
        """Return the node's CPUs."""
        assert result.device == MACHINE
        if self.untold:
            return CpusBarred(reason=CPUS_UNTOLD, message=self.untold)
        return cpuset_of(cpu.id for cpu in node.cpus) - KEPT_BACK

    def choose(self, node: NodeState, count: int, closed: CpuSet) -> CpuSet | str:
        """Choose as the service does."""
        facts = NodeFacts(
            uid=node.uid,
            name=node.name,
            cpu_topology=cpu_topology_of(node.cpus),
            reserved_cpus=KEPT_BACK,
        )
        return choose_claim_cpus(count, closed, facts, SchedulingSettings())
