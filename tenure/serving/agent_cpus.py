"""What `tenure serve agent --topology` reads: the machine's CPUs, and kubelet's word on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agent.decide.node_cpus import FoundCpus, KubeletManagers
from agent.discover.cpus import read_cpus
from agent.discover.host_files import HostFiles
from agent.discover.machine import Fault
from agent.kubelet.managers import ask_managers, read_configuration
from agent.kubelet.watch import KubeletPods, PodSource
from agent.manager_state import CPU_FILE, MEMORY_FILE, read_cpu_state, read_memory_state
from agent.plugin.files import read_file
from agent.report.reporter import CPUS_UNKNOWN
from agent.witness.asking import PodResources
from ledger.domain.cpuset import CpuSet
from ledger.domain.errors import InputError, TenureError
from ledger.domain.kube.object_fields import text_in
from tenure.serving.agent_options import AgentOptions
from tenure.serving.cpus_options import CpusOptions


def make_cpu_reader(
    options: AgentOptions | CpusOptions, kubelet: KubeletPods, root: Path | None = None
) -> CpuReader:
    """Return what reads the CPUs; `root` as CpuReader has it."""
    managers = partial(ask_managers, kubelet.caller)
    if options.topology != "configz":
        managers = partial(asyncio.to_thread, read_configuration, Path(options.topology))
    return CpuReader(
        host=HostFiles(root=options.host),
        managers=managers,
        pods=kubelet,
        resources=PodResources(options.pod_resources),
        root=root,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuReader:
    """Reads the CPUs of this node; `root`: kubelet's folder of records, None = it is asked."""

    host: HostFiles
    managers: Callable[[], Awaitable[KubeletManagers]]
    pods: PodSource
    resources: PodResources
    root: Path | None

    def version(self) -> object:
        """Return what differs from before once kubelet gave CPUs otherwise, as far as is known."""
        with suppress(OSError):
            if self.root is not None:
                now = (self.root / CPU_FILE).stat()
                return now.st_ino, now.st_mtime_ns
        return None

    async def read(self) -> tuple[FoundCpus | None, tuple[Fault, ...]]:
        """Return what there is; where one source is silent nothing, and why."""
        try:
            return await self._read(), ()
        except (TenureError, OSError) as error:
            return None, (Fault(reason=CPUS_UNKNOWN, message=str(error)),)

    async def _read(self) -> FoundCpus:
        machine = await asyncio.to_thread(read_cpus, self.host)
        managers = await self.managers()
        cpu = managers.cpu
        if cpu.is_static and not cpu.reserved_cpus:
            picked = machine.topology.cpuset - await self.resources.offered_cpus()
            managers = replace(managers, cpu=replace(cpu, reserved_cpus=picked))
        # Pods are asked for last, so that every holder is among them.
        if self.root is not None:
            pinned, memory = await asyncio.to_thread(_recorded, self.root, managers)
            pods = await self.pods.pods()
        else:
            by_name = (await self.resources.answer()).cpus
            pods = await self.pods.pods()
            pinned, memory = _by_uid(by_name, pods), {}
        if pinned and not cpu.is_static:
            raise InputError(f"kubelet gave CPUs, and its policy is {cpu.policy}")
        return FoundCpus(
            machine=machine, managers=managers, pinned=pinned, memory=memory, pods=pods
        )


def _recorded(
    root: Path, managers: KubeletManagers
) -> tuple[Mapping[str, Mapping[str, CpuSet]], dict[int, dict[str, int]]]:
    policy, pinned = read_cpu_state(read_file(root / CPU_FILE))
    if policy != managers.cpu.policy:
        fact = f"kubelet's record is of another policy: value={policy}"
        raise InputError(f"{fact}, configured={managers.cpu.policy}", place=CPU_FILE)
    has_memory = managers.memory_policy == "Static"
    return pinned, read_memory_state(read_file(root / MEMORY_FILE)) if has_memory else {}


def _by_uid(
    by_name: Mapping[tuple[str, str], Mapping[str, CpuSet]], pods: Sequence[Mapping[str, Any]]
) -> dict[str, Mapping[str, CpuSet]]:
    """Return CPUs by UID. Raises InputError: kubelet gave some to a Pod that it does not tell."""
    named = [pod["metadata"] for pod in pods]
    uids = {(text_in(one, "namespace"), text_in(one, "name")): one["uid"] for one in named}
    if missing := sorted(by_name.keys() - uids.keys()):
        raise InputError(f"kubelet tells no such Pod: {'/'.join(missing[0])}")
    return {uids[pod]: cpus for pod, cpus in by_name.items()}
