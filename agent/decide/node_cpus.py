"""A node's CPUs as one look found them, what kubelet does with them, and who has which alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agent.decide.node_holdings import GRANTED, CpuClaim, HeldByPod
from agent.decide.pools import PodCpus
from ledger.domain.annotations.cpu import decode_resource_status
from ledger.domain.annotations.node_cpu import KubeletCpuPolicy, PodCpuAlloc
from ledger.domain.annotations.qos import QosClass, read_qos_class
from ledger.domain.cpuset import EMPTY, CpuSet, union
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import annotations_of, items_in, labels_of, text_in
from ledger.domain.resources import ANNOTATION_RESOURCE_STATUS
from ledger.domain.topology import CpuTopology

_NO_POLICY: Final = KubeletCpuPolicy(policy="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """
    A NUMA node; it may have memory and no CPU.

    Attributes:
        memory_bytes: huge pages included.
        huge_pages: bytes of one page -> bytes of all pages of that size.
        distances: NUMA node -> the kernel's distance to it.
    """

    id: int
    memory_bytes: int
    huge_pages: Mapping[int, int]
    distances: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCpus:
    """
    The CPUs that are online, and what lies around them.

    Attributes:
        caches: the CPUs of each last-level cache, by the lowest of them; none where not known.
        numa: by id.
    """

    topology: CpuTopology
    caches: tuple[CpuSet, ...] = ()
    numa: tuple[NumaNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletManagers:
    """The policies of kubelet's managers, in kubelet's spelling; its defaults."""

    cpu: KubeletCpuPolicy = _NO_POLICY
    memory_policy: str = "None"
    topology_policy: str = "none"
    topology_scope: str = "container"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCpus:
    """
    What one look found of a node's CPUs.

    Attributes:
        managers: with the CPUs that kubelet keeps for the system, also where it picked them itself.
        pinned: UID of a Pod -> container -> the CPUs that kubelet's static policy gave.
        memory: NUMA node -> `memory`, `hugepages-2Mi` -> bytes that kubelet's memory manager can
            give; empty = it has none, or nobody looked.
        pods: kubelet's Pods, as it tells them.
        told: which claims have CPUs by the ledger; None = not known.
    """

    machine: MachineCpus
    managers: KubeletManagers
    pinned: Mapping[str, Mapping[str, CpuSet]]
    memory: Mapping[int, Mapping[str, int]]
    pods: Sequence[Mapping[str, Any]]
    told: Sequence[CpuClaim] | None = None

    @property
    def claims(self) -> Sequence[CpuClaim]:
        """Return those with CPUs. Raises InputError: a Pod uses a claim, and which is not known."""
        if self.told is None and any(map(claim_names, self.pods)):
            raise InputError("a Pod uses a claim, and the service does not say which have CPUs")
        return self.told or ()


def find_cpu_holders(
    found: FoundCpus, held: Iterable[HeldByPod]
) -> tuple[tuple[PodCpuAlloc, PodCpus], ...]:
    """
    Return who has CPUs alone, by namespace, name and UID.

    Rule: CPU proposal, "Create/Update NodeResourceTopology": what the scheduler gave replaces what
    kubelet's record says. What the ledger has only observed is kubelet's own word come back, unless
    the Pod's `resource-status` names CPUs, or kubelet has none for the Pod any more. Of a Pod that
    kubelet does not know yet nobody shares the CPUs.
    """
    pods = {text_in(pod, "metadata", "uid"): pod for pod in found.pods}
    allocs: dict[str, PodCpuAlloc] = {}
    for uid, given in found.pinned.items():
        namespace, name = (text_in(pods.get(uid), "metadata", key) for key in ("namespace", "name"))
        cpus = union(given.values())
        allocs[uid] = PodCpuAlloc(
            namespace=namespace, name=name, uid=uid, cpus=cpus, managed_by_kubelet=True
        )
    for one in held:
        cpus = union(container.cpus for container in one.containers)
        uid, before = one.pod_uid, allocs.get(one.pod_uid)
        is_kubelets = before is not None and before.managed_by_kubelet
        if not cpus or (is_kubelets and one.kind != GRANTED and not _named_cpus(pods.get(uid))):
            continue
        if before is not None and not is_kubelets:
            cpus |= before.cpus  # while it is moved to another reservation it has both
        allocs[uid] = PodCpuAlloc(namespace=one.namespace, name=one.pod_name, uid=uid, cpus=cpus)
    ordered = sorted(allocs.values(), key=lambda one: (one.namespace, one.name, one.uid))
    return tuple((one, _own(one, pods.get(one.uid))) for one in ordered)


def claim_names(pod: Mapping[str, Any]) -> set[str]:
    """Return the names of the claims that a Pod uses, as far as they are made."""
    by_name = items_in(pod, "spec", "resourceClaims")
    of_templates = items_in(pod, "status", "resourceClaimStatuses")
    return {text_in(one, "resourceClaimName") for one in (*by_name, *of_templates)} - {""}


def _own(alloc: PodCpuAlloc, pod: Mapping[str, Any] | None) -> PodCpus:
    qos = QosClass.LSE if pod is None else read_qos_class(labels_of(pod))
    return PodCpus(cpus=alloc.cpus, qos=qos, by_kubelet=alloc.managed_by_kubelet)


def _named_cpus(pod: Mapping[str, Any] | None) -> CpuSet:
    text = annotations_of(pod).get(ANNOTATION_RESOURCE_STATUS)
    return EMPTY if text is None else decode_resource_status(text).cpuset
