"""Cgroups of Pods as values: what was read, what is to be written, what Pods need."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

from agent.decide.container_cpus import KubeQos
from ledger.domain.annotations.cpu import ResourceStatus
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, CpuSet, parse_cpuset
from ledger.domain.errors import InputError

NO_QUOTA: Final = -1


class CgroupVersion(IntEnum):
    """The hierarchy that has the cpuset controller."""

    V1 = 1
    V2 = 2


class CgroupFile(StrEnum):
    """The files that are written; on v1 the CPU controller's are in a hierarchy of its own."""

    CPUS = "cpuset.cpus"
    MEMS = "cpuset.mems"
    EXCLUSIVE = "cpuset.cpus.exclusive"
    PARTITION = "cpuset.cpus.partition"
    QUOTA = "cpu.cfs_quota_us"
    MAX = "cpu.max"


LISTS: Final = {CgroupFile.CPUS, CgroupFile.MEMS, CgroupFile.EXCLUSIVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupNow:
    """
    One cgroup as it was read.

    Attributes:
        path: below kubepods' own cgroup, without a slash at either end; empty = kubepods itself.
        pod_uid: as the API has it, with dashes; empty = kubepods or one of its QoS classes.
        container: its id, also that of a sandbox; empty = the Pod's own cgroup.
        cpus: what `cpuset.cpus` says; on v2 empty = as the parent.
        effective: what tasks may use; on v1 the same as `cpus`.
        mems, effective_mems: the same for memory nodes.
        quota: microseconds of the CFS quota, NO_QUOTA = none.
        period: microseconds that the quota is for.
        exclusive: v2 from kernel 6.7: `cpuset.cpus.exclusive`.
        partition: v2: the text of `cpuset.cpus.partition`, with the kernel's reason if invalid;
            empty = no such file.
        populated: the cgroup has tasks; on v2 also if one below has some.
    """

    path: str
    pod_uid: str = ""
    container: str = ""
    cpus: CpuSet
    effective: CpuSet
    mems: CpuSet = EMPTY
    effective_mems: CpuSet = EMPTY
    quota: int = NO_QUOTA
    period: int = 100_000
    exclusive: CpuSet = EMPTY
    partition: str = ""
    populated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupTree:
    """
    The cgroups of a node's Pods.

    Attributes:
        kernel: major and minor.
        cgroups: kubepods first, each before those below it.
    """

    version: CgroupVersion
    kernel: tuple[int, int] = (0, 0)
    cgroups: tuple[CgroupNow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One value to put into one file; `path` as in CgroupNow."""

    path: str
    file: CgroupFile
    value: str

    def __str__(self) -> str:
        return f"{self.path}/{self.file} = {self.value}"

    def is_read_back(self, text: str) -> bool:
        """Tell whether the text that the file has afterwards says what was written."""
        if self.file in LISTS:
            try:
                return parse_cpuset(text.strip()) == parse_cpuset(self.value)
            except InputError:
                return False
        if self.file is CgroupFile.MAX:
            return text.split()[:1] == self.value.split()[:1]
        return text.strip() == self.value


class UnboundReason(StrEnum):
    """Why something of a Pod is not bound as it should be."""

    NO_CPUS_LEFT = "NoCPUsLeft"  # its pool is empty: it stays where it is
    KUBELET_GAVE = "KubeletGave"  # kubelet gave some of its CPUs to another Pod
    NOT_RECORDED = "NotRecorded"  # its status names CPUs that the ledger does not have
    OUTSIDE = "OutsideKubepods"  # kubepods' own cgroup lacks some of its CPUs
    NO_PARTITION = "NoPartition"  # narrowing alone holds: the kernel is too old, or refuses


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is not as it should be: the UID of a Pod, the path of a file or NRI, and why."""

    about: str
    reason: str
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Writes in their order, none if all is as wanted, and what no write can bring about."""

    writes: tuple[Write, ...] = ()
    unbound: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlanned:
    """
    One container of a Pod.

    Attributes:
        id: as its cgroup has it; empty = not made yet.
        whole_cpus: it asks for whole CPUs.
        limit_milli: its CPU limit, 0 = none.
        given: the CPUs that kubelet's static CPU manager gave to it alone.
    """

    name: str
    id: str = ""
    whole_cpus: bool = False
    limit_milli: int = 0
    given: CpuSet = EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlanned:
    """
    What planning needs of one Pod on the node; with its UID alone, of one that nobody tells.

    Attributes:
        status: of its `resource-status`; CPUs of its own count only as far as the ledger has them.
        stays: nothing is written of its containers. It can't be read, is not believed, or has a
            claim.
        claimed: the CPUs of its claims, whose driver binds it to them.
    """

    uid: str
    qos: QosClass = QosClass.NONE
    kube_qos: KubeQos = KubeQos.GUARANTEED
    status: ResourceStatus = field(default_factory=ResourceStatus)
    containers: tuple[ContainerPlanned, ...] = ()
    stays: bool = False
    claimed: CpuSet = EMPTY
