"""
Every resource, label, annotation, taint and ConfigMap name, and what the resource names mean.

Names are grouped by owner; those of foreign dialects are in `dialects/<name>/words.py`. A name of a
proposal that the release replaced ends in `_PROPOSAL`; readers take both, writers the one without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.domain.dialects.names import FOREIGN_WORDS

# --- Domains (Koordinator contract 2) ---------------------------------------------------------

DOMAIN_KUBERNETES: Final = "kubernetes.io/"
DOMAIN_KOORDINATOR: Final = "koordinator.sh/"
DOMAIN_SCHEDULING: Final = "scheduling.koordinator.sh/"
DOMAIN_NODE: Final = "node.koordinator.sh/"
DOMAIN_GANG: Final = "gang.scheduling.koordinator.sh/"
DOMAIN_GPU_GROUP: Final = "gputopology.scheduling.koordinator.sh/"
DOMAIN_TENURE: Final = "tenure.sh/"

# --- Resources --------------------------------------------------------------------------------

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"

GPU: Final = "koordinator.sh/gpu"
GPU_SHARED: Final = "koordinator.sh/gpu.shared"
GPU_CORE: Final = "koordinator.sh/gpu-core"
GPU_MEMORY: Final = "koordinator.sh/gpu-memory"
GPU_MEMORY_RATIO: Final = "koordinator.sh/gpu-memory-ratio"
RDMA: Final = "koordinator.sh/rdma"
FPGA: Final = "koordinator.sh/fpga"

GPU_PROPOSAL: Final = "kubernetes.io/gpu"
RDMA_PROPOSAL: Final = "kubernetes.io/rdma"
FPGA_PROPOSAL: Final = "kubernetes.io/fpga"

NVIDIA_GPU: Final = "nvidia.com/gpu"
AMD_GPU: Final = "amd.com/gpu"
DCU_GPU: Final = "dcu.com/gpu"
MIG_PREFIX: Final = "nvidia.com/mig-"  # followed by a profile, such as 1g.5gb
HUAWEI_NPU_CORE: Final = "huawei.com/npu-core"
HUAWEI_NPU_CPU: Final = "huawei.com/npu-cpu"
HUAWEI_NPU_DVPP: Final = "huawei.com/npu-dvpp"

BATCH_CPU: Final = "kubernetes.io/batch-cpu"
BATCH_MEMORY: Final = "kubernetes.io/batch-memory"
MID_CPU: Final = "kubernetes.io/mid-cpu"
MID_MEMORY: Final = "kubernetes.io/mid-memory"

SLOT: Final = "tenure.sh/slot"

SCHEDULER_NAME: Final = "tenure"
"""Our `spec.schedulerName`, where settings name no other."""

# --- Labels on Pods ---------------------------------------------------------------------------

LABEL_QOS_CLASS: Final = "koordinator.sh/qosClass"
LABEL_PRIORITY_CLASS: Final = "koordinator.sh/priority-class"
LABEL_PRIORITY: Final = "koordinator.sh/priority"
LABEL_GPU_ISOLATION_PROVIDER: Final = "koordinator.sh/gpu-isolation-provider"  # on Nodes too
HAMI_CORE: Final = "HAMi-core"  # a value of it
LABEL_BINDING_ADMISSION_BYPASS: Final = "koordinator.sh/binding-admission-bypass"
LABEL_SCHEDULER_NAME: Final = "scheduling.koordinator.sh/scheduler-name"
LABEL_POD_GROUP: Final = "pod-group.scheduling.sigs.k8s.io"
LABEL_POD_GROUP_NAME: Final = "pod-group.scheduling.sigs.k8s.io/name"
LABEL_HAMI_VGPU_NODE: Final = "hami.io/vgpu-node"
LABEL_GPU_GROUP_NAME: Final = "gputopology.scheduling.koordinator.sh/name"
LABEL_GPU_GROUP_REPLICA: Final = "gputopology.scheduling.koordinator.sh/replica"

KEPT_LABEL_PREFIX: Final = "app.kubernetes.io/"
KEPT_LABELS: Final = frozenset(
    {
        "team",
        "app",
        "project",
        "queue",
        "kueue.x-k8s.io/queue-name",
        "quota.scheduling.koordinator.sh/name",
        "volcano.sh/queue-name",
    }
)
"""
The Pod labels that the ledger keeps for ever, beside those of `KEPT_LABEL_PREFIX`: who used the
cards, and for what, is asked long after the Pod is gone. A list, because labels may hold secrets
or change with every rollout, and an append-only ledger can't forget.
"""

# --- Labels on Nodes, Devices and NodeResourceTopologies --------------------------------------

LABEL_CPU_BIND_POLICY: Final = "node.koordinator.sh/cpu-bind-policy"
LABEL_NUMA_ALLOCATE_STRATEGY: Final = "node.koordinator.sh/numa-allocate-strategy"
LABEL_NUMA_TOPOLOGY_POLICY: Final = "node.koordinator.sh/numa-topology-policy"
LABEL_NUMA_TOPOLOGY_POLICY_PROPOSAL: Final = "node.koordinator.sh/numa-topology-alignment-policy"
LABEL_GPU_PARTITION_POLICY: Final = "node.koordinator.sh/gpu-partition-policy"
LABEL_GPU_VENDOR: Final = "node.koordinator.sh/gpu-vendor"
LABEL_GPU_MODEL: Final = "node.koordinator.sh/gpu-model"
LABEL_GPU_DRIVER_VERSION: Final = "node.koordinator.sh/gpu-driver-version"
LABEL_SECONDARY_DEVICE_WELL_PLANNED: Final = "node.koordinator.sh/secondary-device-well-planned"
LABEL_ENABLE_NUMA_RESERVATION: Final = "node.koordinator.sh/enable-numa-reservation"
LABEL_MIG_STRATEGY: Final = "nvidia.com/mig.strategy"
LABEL_HOSTNAME: Final = "kubernetes.io/hostname"
LABEL_ARCH: Final = "kubernetes.io/arch"
LABEL_ARCH_BETA: Final = "beta.kubernetes.io/arch"

# --- Annotations on Pods: Koordinator ---------------------------------------------------------

ANNOTATION_DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
ANNOTATION_DEVICE_ALLOCATE_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
ANNOTATION_DEVICE_JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
ANNOTATION_GPU_PARTITION_SPEC: Final = "scheduling.koordinator.sh/gpu-partition-spec"
ANNOTATION_RESOURCE_SPEC: Final = "scheduling.koordinator.sh/resource-spec"
ANNOTATION_RESOURCE_STATUS: Final = "scheduling.koordinator.sh/resource-status"
ANNOTATION_NUMA_TOPOLOGY_SPEC: Final = "scheduling.koordinator.sh/numa-topology-spec"
ANNOTATION_BIND_TIMESTAMP: Final = "scheduling.koordinator.sh/bind-timestamp"
ANNOTATION_GPU_MINORS: Final = "scheduling.koordinator.sh/gpu-minors"
ANNOTATION_ORIGINAL_SCHEDULER_NAME: Final = (
    "internal.scheduling.koordinator.sh/original-scheduler-name"
)
ANNOTATION_SCHEDULING_HINT: Final = "internal.scheduling.koordinator.sh/scheduling-hint"
ANNOTATION_SCHEDULING_HINT_DEPRECATED: Final = "scheduling.koordinator.sh/scheduling-hint"
ANNOTATION_EXTENDED_RESOURCE_SPEC: Final = "node.koordinator.sh/extended-resource-spec"
ANNOTATION_REPLACE_RESOURCES: Final = "pod.koordinator.sh/replace-resources"
ANNOTATION_SKIP_UPDATE_RESOURCES: Final = "config.koordinator.sh/skip-update-resources"
ANNOTATION_RESERVE_POD: Final = "scheduling.koordinator.sh/reserve-pod"
ANNOTATION_GPU_TOPOLOGY: Final = "topology.scheduling.koordinator.sh/gpu"

ANNOTATION_GANG_NAME: Final = "gang.scheduling.koordinator.sh/name"
ANNOTATION_GANG_MIN_AVAILABLE: Final = "gang.scheduling.koordinator.sh/min-available"
ANNOTATION_GANG_TOTAL_NUMBER: Final = "gang.scheduling.koordinator.sh/total-number"
ANNOTATION_GANG_WAITING_TIME: Final = "gang.scheduling.koordinator.sh/waiting-time"
ANNOTATION_GANG_MODE: Final = "gang.scheduling.koordinator.sh/mode"
ANNOTATION_GANG_GROUPS: Final = "gang.scheduling.koordinator.sh/groups"
ANNOTATION_GANG_MATCH_POLICY: Final = "gang.scheduling.koordinator.sh/match-policy"
ANNOTATION_GANG_MATCH_POLICY_ALIAS: Final = "pod-group.scheduling.sigs.k8s.io/match-policy"
ANNOTATION_GANG_TIMEOUT: Final = "gang.scheduling.koordinator.sh/timeout"
ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC: Final = (
    "gang.scheduling.koordinator.sh/network-topology-spec"
)
ANNOTATION_GANG_NETWORK_TOPOLOGY_INDEX: Final = (
    "gang.scheduling.koordinator.sh/network-topology-index"
)
ANNOTATION_BIND_GANG_GROUP_ID: Final = "internal.scheduling.koordinator.sh/bind-gang-group-id"
ANNOTATION_BIND_GANG_MEMBER_COUNT: Final = (
    "internal.scheduling.koordinator.sh/bind-gang-member-count"
)

KEPT_ANNOTATIONS: Final = frozenset({ANNOTATION_RESOURCE_SPEC, ANNOTATION_NUMA_TOPOLOGY_SPEC})
"""The Pod annotations that the ledger keeps for ever: what its CPUs were chosen by."""

# --- Annotations on Nodes, Devices and NodeResourceTopologies: Koordinator --------------------

ANNOTATION_NODE_RESERVATION: Final = "node.koordinator.sh/reservation"
ANNOTATION_SYSTEM_QOS_RESOURCE: Final = "node.koordinator.sh/system-qos-resource"
ANNOTATION_AMPLIFICATION_RATIO: Final = "node.koordinator.sh/resource-amplification-ratio"
ANNOTATION_RAW_ALLOCATABLE: Final = "node.koordinator.sh/raw-allocatable"
ANNOTATION_CPU_TOPOLOGY: Final = "node.koordinator.sh/cpu-topology"
ANNOTATION_POD_CPU_ALLOCS: Final = "node.koordinator.sh/pod-cpu-allocs"
ANNOTATION_CPU_SHARED_POOLS: Final = "node.koordinator.sh/cpu-shared-pools"
ANNOTATION_BE_CPU_SHARED_POOLS: Final = "node.koordinator.sh/be-cpu-shared-pools"
ANNOTATION_KUBELET_CPU_MANAGER_POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
ANNOTATION_GPU_PARTITIONS: Final = "scheduling.koordinator.sh/gpu-partitions"
ANNOTATION_DEVICES_CHECKPOINTS: Final = "node.koordinator.sh/devices-checkpoints"
ANNOTATION_DEVICES_CHECKPOINTS_PROPOSAL: Final = "node.koordinator.sh/gpu-checkpoints"

# --- What the API server says of a caller whose token is bound to a Pod (`userInfo.extra`) --------

CALLER_NODE_NAME: Final = "authentication.kubernetes.io/node-name"
CALLER_NODE_UID: Final = "authentication.kubernetes.io/node-uid"
CALLER_POD_UID: Final = "authentication.kubernetes.io/pod-uid"
CALLER_CREDENTIAL_ID: Final = "authentication.kubernetes.io/credential-id"

AGENT_PROTOCOL: Final = "tenure-agent"  # that agents offer by ALPN: such handshakes give way

# --- Our own names (design section 3) ---------------------------------------------------------

LABEL_TENURE_MANAGED: Final = "tenure.sh/managed"  # on Namespaces, value "true"
LABEL_TENURE_HOLDING: Final = "tenure.sh/holding"  # on Namespaces, while some Pod there holds
LABEL_TENURE_PREEMPT: Final = "tenure.sh/preempt"  # on Namespaces, "true": ends, and is ended for
LABEL_TENURE_LEADER: Final = "tenure.sh/leader"  # on the Pod of the scheduler that leads
LABEL_TENURE_TAKEOVER: Final = "tenure.sh/takeover"  # on Namespaces and Pods, "true" or "false"
LABEL_TENURE_MODE: Final = "tenure.sh/mode"  # on Namespaces, "dra": their Pods get claims
ANNOTATION_TENURE_CLAIMED: Final = "tenure.sh/claimed-request"  # on Pods that have such a claim
TENURE_ISOLATION: Final = "tenure.sh/isolation"  # label of Namespaces, annotation of their Pods
TENURE_WHOLE_CARDS: Final = "tenure.sh/whole-cards"  # the same, who gives `nvidia.com/gpu`
ANNOTATION_TENURE_ADMITTED: Final = "tenure.sh/admitted"
ANNOTATION_TENURE_VOCABULARY: Final = "tenure.sh/vocabulary"  # on policies and webhooks
ANNOTATION_TENURE_ORIGINAL: Final = "tenure.sh/original-request"
ANNOTATION_TENURE_VISIBLE_PREFIX: Final = "tenure.sh/visible."
ANNOTATION_TENURE_ALLOCATED_PREFIX: Final = "tenure.sh/allocated."
ANNOTATION_TENURE_SHOWN: Final = "tenure.sh/shown"  # on bound Pods, cards of others of its group
ANNOTATION_TENURE_ALLOCATION: Final = "tenure.sh/allocation"  # signed, on bound Pods
ANNOTATION_TENURE_PROOF: Final = "tenure.sh/proof"  # signed, on bound Pods, for the node's agent
ANNOTATION_TENURE_FENCE: Final = "tenure.sh/fence"  # on Pods whose Binding got no answer
GATE_TENURE_GANG: Final = "tenure.sh/gang"  # on Pods of a gang, until enough of them are there
GATES_KUEUE: Final = "kueue.x-k8s.io/"  # begins the names of those of Pods that wait for a quota
GATE_TENURE_PLACE: Final = "tenure.sh/place"  # on Pods with a claim of ours, until they are sent
ANNOTATION_TENURE_MACHINE: Final = "tenure.sh/machine"  # on Devices, the host's ids by its agent
ANNOTATION_TENURE_RECOVERED: Final = "tenure.sh/recovered"  # on Devices, cards that are whole again
ANNOTATION_TENURE_RELEASED_AT: Final = "tenure.sh/released-at"  # on Nodes
ANNOTATION_TENURE_FENCED: Final = "tenure.sh/fenced"
ANNOTATION_TENURE_CONFIRMED: Final = "tenure.sh/confirmed"
ANNOTATION_TENURE_SEARCH_CUT: Final = "tenure.sh/search-cut"  # on Pods, why there may be better
TAINT_TENURE_OWNED: Final = "tenure.sh/owned"
TAINT_TENURE_HELD: Final = "tenure.sh/held"  # of devices, by a DeviceTaintRule
ANNOTATION_TENURE_EXCHANGED: Final = "tenure.sh/exchanged"  # on the DeviceClass of that name
WAKING_CLASS: Final = "tenure-exchanged"
LABEL_TENURE_PASSED_OVER: Final = "tenure.sh/passed-over"  # on DeviceTaintRules of ours
LABEL_TENURE_OWNED: Final = TAINT_TENURE_OWNED  # the same key, value "true", for selectors
LABEL_TENURE_CPUS: Final = "tenure.sh/cpus"  # on Namespaces, "true": Pods without devices, too
LABEL_TENURE_CPU_MANAGED: Final = "tenure.sh/cpu-managed"  # on Nodes, "true" by their agent
LABEL_TENURE_BIND_CPUS: Final = "tenure.sh/bind-cpus"  # on Nodes, "true" by administrators
CONDITION_TENURE_CPUS: Final = "TenureCPUs"  # on Nodes, by their CPU process

ENV_NVIDIA_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
ENV_CUDA_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"

DOMAIN_CDI: Final = "cdi.k8s.io/"
NVIDIA_DEVICE_MOUNTS: Final = "/var/run/nvidia-container-devices"
"""Where a mount of nothing tells the NVIDIA runtime to show a container the device of that name."""

TAINT_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
TAINT_NOT_READY: Final = "node.kubernetes.io/not-ready"
TAINT_UNREACHABLE: Final = "node.kubernetes.io/unreachable"
TAINT_OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"

# --- ConfigMaps -------------------------------------------------------------------------------

UNHEALTHY_GPU_NAMESPACE: Final = "kube-system"
UNHEALTHY_GPU_PREFIX: Final = "unhealthy-gpu-"  # followed by the node's name
UNHEALTHY_GPU_KEY: Final = "gpus"
GPU_TEMPLATES_NAMESPACE: Final = "koordinator-system"
GPU_TEMPLATES_NAME: Final = "gpu-shared-resource-templates"
GPU_TEMPLATES_KEY: Final = "data.yaml"

# --- What the names mean ----------------------------------------------------------------------

TYPE_GPU: Final = "gpu"
TYPE_RDMA: Final = "rdma"
TYPE_FPGA: Final = "fpga"

WHOLE_CARD_NAMES: Final = frozenset({NVIDIA_GPU, AMD_GPU, DCU_GPU})
"""Vendor names whose quantity is a number of whole cards."""

KOORDINATOR_GPU_NAMES: Final = frozenset(
    {
        GPU,
        GPU_SHARED,
        GPU_CORE,
        GPU_MEMORY,
        GPU_MEMORY_RATIO,
        HUAWEI_NPU_CORE,
        HUAWEI_NPU_CPU,
        HUAWEI_NPU_DVPP,
    }
)
CARD_AMOUNT_NAMES: Final = (HUAWEI_NPU_CORE, HUAWEI_NPU_CPU, HUAWEI_NPU_DVPP)
"""What a card may have beside core percent and memory; by these a share needs a template."""

SHARED_GPU_NAMES: Final = WHOLE_CARD_NAMES | frozenset(
    name for words in FOREIGN_WORDS if words.borrowed for name in words.resources
)
"""Names of device plugins, by which Pods that are none of ours ask for cards, too."""

GPU_NAMES: Final = frozenset(
    {
        *WHOLE_CARD_NAMES,
        *KOORDINATOR_GPU_NAMES,
        *(name for words in FOREIGN_WORDS for name in words.resources),
    }
)
"""Every released resource name that asks for GPUs."""

RELEASED_BY_PROPOSAL: Final[Mapping[str, str]] = {
    GPU_PROPOSAL: GPU,
    "kubernetes.io/gpu-core": GPU_CORE,
    "kubernetes.io/gpu-memory": GPU_MEMORY,
    "kubernetes.io/gpu-memory-ratio": GPU_MEMORY_RATIO,
}

ALIASES: Final[Mapping[str, str]] = {
    **RELEASED_BY_PROPOSAL,
    "kubernetes.io/gpu-mem": GPU_MEMORY,  # typos of the proposal's examples
    "kubernetes.io/gpu-mem-ratio": GPU_MEMORY_RATIO,
    "koordinator.sh/batch-cpu": BATCH_CPU,  # here the koordinator.sh name is the old one
    "koordinator.sh/batch-memory": BATCH_MEMORY,
}
"""Other spellings -> the released name, of what is no device type of the settings."""

GPU_SPELLINGS: Final = GPU_NAMES | {alias for alias, name in ALIASES.items() if name in GPU_NAMES}
"""Every name that asks for GPUs, in all spellings that are read."""


CLAIMED_BY_CLASS: Final = "deviceclass.resource.kubernetes.io/"
"""Resources that begin so are given by a claim for the device class of the rest of the name."""


def is_native(name: str) -> bool:
    """Tell whether the API server takes the name for one of Kubernetes' own resources."""
    return "/" not in name or DOMAIN_KUBERNETES in name


def is_extended(name: str) -> bool:
    """
    Tell whether the API server demands whole numbers and requests equal to limits.

    Rule: Koordinator contract 1.1: names under `kubernetes.io/` are native, whatever they mean.
    """
    return not is_native(name) and not name.startswith("requests.")


def unhealthy_gpu_config_map(node_name: str) -> str:
    """Return the name of the ConfigMap that lists a node's unhealthy cards."""
    return f"{UNHEALTHY_GPU_PREFIX}{node_name}"


def is_kept_label(key: str) -> bool:
    """Tell whether a Pod's label is stored with its reservation (design section 8)."""
    return key in KEPT_LABELS or key.startswith(KEPT_LABEL_PREFIX)
