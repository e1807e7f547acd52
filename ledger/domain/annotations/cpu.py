"""
CPU annotations of Pods: what they ask for and what they got (Koordinator contract 2.1, 2.2).

Every `decode_` raises InputError, with its path, for JSON, a type or a text that is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final

from ledger.domain.annotations import wire
from ledger.domain.cpuset import EMPTY, CpuSet, format_cpuset
from ledger.domain.resources import (
    ANNOTATION_NUMA_TOPOLOGY_SPEC,
    ANNOTATION_RESOURCE_SPEC,
    ANNOTATION_RESOURCE_STATUS,
)
from ledger.domain.typed import read_json, released

_SPEC_PATH: Final = wire.annotation_path(ANNOTATION_RESOURCE_SPEC)


class CpuBindPolicy(StrEnum):
    """How a Pod wants its CPUs picked. UNKNOWN is any other text: it binds nothing."""

    UNSET = ""
    DEFAULT = "Default"
    FULL_PCPUS = "FullPCPUs"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"
    CONSTRAINED_BURST = "ConstrainedBurst"
    UNKNOWN = "Unknown"


class CpuExclusivePolicy(StrEnum):
    """What a Pod does not want to share with Pods of the same wish."""

    NONE = "None"
    PCPU_LEVEL = "PCPULevel"
    NUMA_NODE_LEVEL = "NUMANodeLevel"


class NumaPolicy(StrEnum):
    """How strictly resources must come from the same NUMA nodes."""

    NONE = ""
    BEST_EFFORT = "BestEffort"
    RESTRICTED = "Restricted"
    SINGLE_NUMA_NODE = "SingleNUMANode"


class NumaExclusive(StrEnum):
    """Whether one-node and many-node Pods may meet on a NUMA node."""

    UNSET = ""
    PREFERRED = "Preferred"
    REQUIRED = "Required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSpec:
    """A Pod's wishes about its CPUs."""

    required_bind_policy: Annotated[CpuBindPolicy, "requiredCPUBindPolicy", _bind_policy] = (
        CpuBindPolicy.UNSET
    )
    preferred_bind_policy: Annotated[CpuBindPolicy, "preferredCPUBindPolicy", _bind_policy] = (
        CpuBindPolicy.UNSET
    )
    preferred_exclusive_policy: Annotated[
        CpuExclusivePolicy, "preferredCPUExclusivePolicy", _exclusive_policy
    ] = CpuExclusivePolicy.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaTopologySpec:
    """A Pod's own NUMA policy (release only)."""

    policy: Annotated[NumaPolicy, "numaTopologyPolicy"] = NumaPolicy.NONE
    exclusive: Annotated[NumaExclusive, "singleNUMANodeExclusive"] = NumaExclusive.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSharedPool:
    """The shared pool of one NUMA node; a Pod's status names it without its CPUs."""

    socket: int
    node: int
    cpus: Annotated[CpuSet, "cpuset"] = EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNodeResources:
    """What a Pod takes of one NUMA node, in raw (not amplified) quantities."""

    node: Annotated[int, wire.at_least(0)]
    resources: Annotated[wire.Amounts, released] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceStatus:
    """The CPUs a Pod got: its own set, the pools it may use, its shares of NUMA nodes."""

    cpuset: CpuSet = EMPTY
    cpu_shared_pools: tuple[CpuSharedPool, ...] = ()
    numa_node_resources: tuple[NumaNodeResources, ...] = ()


# {"requiredCPUBindPolicy": "FullPCPUs", "preferredCPUBindPolicy": "SpreadByPCPUs",
#  "preferredCPUExclusivePolicy": "PCPULevel"}


def decode_resource_spec(text: str) -> ResourceSpec:
    """
    Read a Pod's CPU policies (contract 2.1, 6.1).

    A bind policy of any other text is UNKNOWN. An exclusive policy that is absent, `Default`
    (proposal) or any other text is NONE.
    """
    return read_json(ResourceSpec, text, ANNOTATION_RESOURCE_SPEC)


def rewrite_resource_spec(
    text: str,
    *,
    required: CpuBindPolicy | None = None,
    preferred: CpuBindPolicy | None = None,
) -> str:
    """Return the user's own text with the effective policies put in (contract 2.2; 14, item 1)."""
    spec = dict(wire.an_object(wire.load(text, _SPEC_PATH), _SPEC_PATH))
    if required is not None:
        spec["requiredCPUBindPolicy"] = str(required)
    if preferred is not None:
        spec["preferredCPUBindPolicy"] = str(preferred)
    return wire.dump(spec)


def effective_resource_spec(text: str, policy: CpuBindPolicy, *, by_node: bool) -> str | None:
    """
    Return the user's own text with the policy that counted, None where it says so already.

    `text` is `{}` where the Pod has no annotation; `by_node` makes the policy mandatory.
    """
    spec = decode_resource_spec(text)
    unset = {CpuBindPolicy.UNSET, CpuBindPolicy.DEFAULT}
    names_none = not spec.required_bind_policy and not spec.preferred_bind_policy
    required = by_node and spec.required_bind_policy in unset
    preferred = spec.preferred_bind_policy is CpuBindPolicy.DEFAULT or names_none
    if not required and not preferred:
        return None
    return rewrite_resource_spec(
        text, required=policy if required else None, preferred=policy if preferred else None
    )


# {"numaTopologyPolicy": "SingleNUMANode", "singleNUMANodeExclusive": "Required"}


def decode_numa_topology_spec(text: str) -> NumaTopologySpec:
    """Read a Pod's own NUMA policy; one without exclusivity means `Required` (contract 2.1, 7)."""
    spec = read_json(NumaTopologySpec, text, ANNOTATION_NUMA_TOPOLOGY_SPEC)
    if spec.policy is not NumaPolicy.NONE and spec.exclusive is NumaExclusive.UNSET:
        return replace(spec, exclusive=NumaExclusive.REQUIRED)
    return spec


# {"cpuset": "4-7,28-31",
#  "numaNodeResources": [{"node": 0, "resources": {"cpu": "8", "memory": "16Gi"}}],
#  "cpuSharedPools": [{"socket": 0, "node": 0}]}


def decode_resource_status(text: str) -> ResourceStatus:
    """Read the CPUs a Pod got, in the release's fields and the proposal's (contract 2.2)."""
    return read_json(ResourceStatus, text, ANNOTATION_RESOURCE_STATUS)


def encode_resource_status(status: ResourceStatus) -> str:
    """Write the CPUs a Pod got: no empty field, canonical quantities (contract 2.2, "OURS")."""
    fields = {
        "cpuset": format_cpuset(status.cpuset),
        "cpuSharedPools": [encode_pool(pool) for pool in status.cpu_shared_pools],
        "numaNodeResources": [
            {"node": item.node, **wire.present({"resources": wire.amounts_json(item.resources)})}
            for item in status.numa_node_resources
        ],
    }
    return wire.dump(wire.present(fields))


def encode_pool(pool: CpuSharedPool) -> dict[str, object]:
    """Return the JSON object of one shared pool; no CPUs, no `cpuset`."""
    cpus = wire.present({"cpuset": format_cpuset(pool.cpus)})
    return {"socket": pool.socket, "node": pool.node, **cpus}


def _bind_policy(value: object, path: str) -> CpuBindPolicy:
    text = wire.a_text(value, path)
    return CpuBindPolicy(text) if text in set(CpuBindPolicy) else CpuBindPolicy.UNKNOWN


def _exclusive_policy(value: object, path: str) -> CpuExclusivePolicy:
    text = wire.a_text(value, path)
    known = text in set(CpuExclusivePolicy)
    return CpuExclusivePolicy(text) if known else CpuExclusivePolicy.NONE
