"""What the process is told at its start, and the clocks of its machine."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.domain.log.clock import Reading
from scheduler.service.api.words import AGENT, WEBHOOK

if TYPE_CHECKING:
    from ledger.domain.dialects.dra.accounts import UntoldDevices


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """
    Where people, agents and webhooks are answered, and what is shown to them.

    Attributes:
        where: host and port to listen on.
        certificates: folder with `tls.crt`, `tls.key` and, if there, `ca.crt`.
        names: DNS names and addresses that callers use.
        agent, webhook: the users whose tokens are those of nodes' agents and of webhooks.
    """

    where: tuple[str, int]
    certificates: Path
    names: tuple[str, ...]
    agent: str = AGENT
    webhook: str = WEBHOOK


@dataclass(frozen=True, slots=True, kw_only=True)
class GateListener:
    """
    Where the API server asks about claims, and of whose devices.

    Attributes:
        where: host and port to listen on.
        drivers: whose devices are guarded.
        names: DNS names and addresses that the API server calls us by.
        clients: the authority whose leaves callers must show; None = anybody may call.
    """

    where: tuple[str, int]
    drivers: tuple[str, ...]
    names: tuple[str, ...]
    clients: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """
    What the process is told at its start.

    Attributes:
        ledger: URL of a ledger that is there.
        extender, probes: host and port to listen on; port 0 takes a free one.
        certificates: folder with `tls.crt`, `tls.key` and `ca.crt`, kept by somebody else.
        clients: the authority whose leaves kube-scheduler shows; None = that of the folder.
        names: DNS names and addresses that kube-scheduler calls us by.
        proof_key, ledger_key: files of signer keys, for the proofs on Pods and for what is said of
            the ledger.
        trusted_proof_keys: verifier keys, or their files, of which Pods still carry proofs.
        replica: what tells this replica from others, in the Lease.
        namespace: of our own objects.
        lease: name of the Lease of who leads.
        pod: the Pod that we run in, to label it as the leader's; empty outside of a cluster.
        drain_seconds: time for the news to spread that we are going, before we stop listening.
        card_metrics: show every card in the metrics, and not sums alone.
        evict_partial_gangs: of a gang that missed its deadline bound members are evicted.
        api: where people, agents and webhooks are answered; None = nowhere.
        gate: where the API server asks about claims; None = nowhere.
        untold: devices of drivers of which neither counters nor UUID can be told are refused with
            that reason, or recorded by name.
    """

    ledger: str
    extender: tuple[str, int]
    probes: tuple[str, int]
    config: Path | None
    kubeconfig: str | None
    certificates: Path
    clients: Path | None
    names: tuple[str, ...]
    proof_key: Path
    ledger_key: Path
    replica: str
    trusted_proof_keys: tuple[str, ...] = ()
    namespace: str = "tenure-system"
    lease: str = "tenure-scheduler"
    pod: str = ""
    drain_seconds: float = 5.0
    api: ApiOptions | None = None
    gate: GateListener | None = None
    untold: UntoldDevices = "refuse"
    card_metrics: bool = False
    evict_partial_gangs: bool = False


class ProcessClock:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        """Return seconds that never run backwards."""
        return time.monotonic()

    def wall_us(self) -> int:
        """Return the wall clock in microseconds since 1970."""
        return time.time_ns() // 1000

    def reading(self) -> Reading:
        """Return both at one moment."""
        return Reading(wall_us=self.wall_us(), monotonic_us=time.monotonic_ns() // 1000)

    async def sleep(self, seconds: float) -> None:
        """Come back after that many seconds."""
        await asyncio.sleep(seconds)
