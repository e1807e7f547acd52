from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.annotations import (
    checkpoints,
    cpu,
    device_allocated,
    device_hints,
    gang,
    gpu_topology,
    node_cpu,
    partitions,
    pods,
    tenure,
)
from ledger.domain.cpuset import cpuset_of
from ledger.domain.dialects.gpushare import annotations as gpushare
from ledger.domain.dialects.mgpu import annotations as mgpu
from ledger.domain.errors import InputError
from ledger.domain.kube.node_objects import decode_unhealthy_cards
from ledger.domain.quantity import NANO, QUANTITY_MAX, Quantity
from ledger.domain.request.requests import GroupRef
from ledger.domain.resources import FPGA, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from ledger.domain.topology import Cpu, LinkMatrix, cpu_topology_of
from tests.support import wishes

# Any text a JSON document in UTF-8 can hold; names are the texts without separators.
texts = st.text(st.characters(codec="utf-8"), max_size=12)
names = st.text("abcdefghij-0123456789", min_size=1, max_size=12).map(lambda text: f"n{text}")
minors = st.integers(0, 15)
quantities = st.builds(
    Quantity,
    nanos=st.integers(0, QUANTITY_MAX).map(lambda units: units * NANO)
    | st.integers(0, 10**12).map(lambda milli: milli * 10**6),
)
cpusets = st.frozensets(st.integers(0, 127), max_size=20).map(cpuset_of)


def amounts(*known: str) -> st.SearchStrategy[tuple[tuple[str, Quantity], ...]]:
    """Resource lists as the codecs keep them: sorted by name."""
    return st.dictionaries(st.sampled_from(known), quantities).map(
        lambda items: tuple(sorted(items.items()))
    )


def distinct(count: int, of: st.SearchStrategy[int] = minors) -> st.SearchStrategy[tuple[int, ...]]:
    """Exactly `count` different integers, ascending."""
    return st.sets(of, min_size=count, max_size=count).map(lambda items: tuple(sorted(items)))


allocations = st.dictionaries(
    st.sampled_from(["gpu", "rdma", "fpga"]),
    st.lists(
        st.builds(
            device_allocated.DeviceAllocation,
            minor=minors,
            id=texts,
            resources=amounts(GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA, FPGA, "cpu"),
            vfs=st.lists(
                st.builds(device_allocated.VfAllocation, minor=st.integers(-1, 63), bus_id=texts),
                max_size=3,
            ).map(tuple),
            template=texts,
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda entry: entry.minor,
    ).map(lambda entries: tuple(sorted(entries, key=lambda entry: entry.minor))),
)


@given(value=allocations, proposal_domain=st.booleans())
def test_device_allocations_round_trip(
    *, value: dict[str, tuple[device_allocated.DeviceAllocation, ...]], proposal_domain: bool
) -> None:
    """Every allocation survives its annotation, in either domain, and has one text."""
    text = device_allocated.encode_device_allocated(value, proposal_domain=proposal_domain)

    assert device_allocated.decode_device_allocated(text) == value
    assert text == json.dumps(
        json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )


pools = st.builds(cpu.CpuSharedPool, socket=st.integers(0, 3), node=st.integers(0, 7), cpus=cpusets)


@given(
    value=st.builds(
        cpu.ResourceStatus,
        cpuset=cpusets,
        cpu_shared_pools=st.lists(pools, max_size=3).map(tuple),
        numa_node_resources=st.lists(
            st.builds(
                cpu.NumaNodeResources, node=st.integers(0, 7), resources=amounts("cpu", "memory")
            ),
            max_size=3,
        ).map(tuple),
    )
)
def test_resource_statuses_round_trip(value: cpu.ResourceStatus) -> None:
    """CPU sets, pools and NUMA shares survive together."""
    assert cpu.decode_resource_status(cpu.encode_resource_status(value)) == value


@given(
    value=st.builds(
        cpu.ResourceSpec,
        required_bind_policy=st.sampled_from(cpu.CpuBindPolicy),
        preferred_bind_policy=st.sampled_from(cpu.CpuBindPolicy),
        preferred_exclusive_policy=st.sampled_from(cpu.CpuExclusivePolicy),
    )
)
def test_resource_specs_round_trip(value: cpu.ResourceSpec) -> None:
    """Every combination of policies survives; an unknown one stays unknown."""
    text = wishes.encode_resource_spec(value)

    assert cpu.decode_resource_spec(text) == value
    assert cpu.decode_resource_spec(cpu.rewrite_resource_spec(text)) == value


@given(
    value=st.lists(
        st.builds(
            Cpu,
            id=st.integers(0, 4096),
            core=st.integers(0, 63),
            socket=st.integers(-1, 3),
            numa=st.integers(-1, 7),
        ),
        max_size=16,
        unique_by=lambda item: item.id,
    )
)
def test_cpu_topologies_round_trip(value: list[Cpu]) -> None:
    """Whatever order the CPUs are listed in, the topology is one value."""
    topology = cpu_topology_of(value)

    assert node_cpu.decode_cpu_topology(node_cpu.encode_cpu_topology(topology)) == topology
    assert sum(len(topology.cpus_in_core(core)) for core in topology.cores) == len(value)


@given(
    value=st.lists(
        st.builds(
            node_cpu.PodCpuAlloc,
            namespace=texts,
            name=texts,
            uid=texts,
            cpus=cpusets,
            managed_by_kubelet=st.booleans(),
        ),
        max_size=4,
    ).map(tuple),
    shared=st.lists(pools, max_size=4).map(tuple),
)
def test_node_cpu_lists_round_trip(
    value: tuple[node_cpu.PodCpuAlloc, ...], shared: tuple[cpu.CpuSharedPool, ...]
) -> None:
    """Allocations and pools keep their order."""
    assert node_cpu.decode_pod_cpu_allocs(node_cpu.encode_pod_cpu_allocs(value)) == value
    assert node_cpu.decode_cpu_shared_pools(node_cpu.encode_cpu_shared_pools(shared)) == shared


@given(
    reservation=st.builds(
        node_cpu.NodeReservation,
        resources=amounts("cpu", "memory"),
        reserved_cpus=cpusets,
        apply_policy=st.sampled_from(node_cpu.ReservationApplyPolicy),
    ),
    system=st.builds(node_cpu.SystemQosResource, cpus=cpusets, exclusive=st.booleans()),
    kubelet=st.builds(
        node_cpu.KubeletCpuPolicy,
        policy=texts,
        options=st.dictionaries(texts, texts, max_size=3).map(
            lambda items: tuple(sorted(items.items()))
        ),
        reserved_cpus=cpusets,
    ),
)
def test_node_cpu_settings_round_trip(
    reservation: node_cpu.NodeReservation,
    system: node_cpu.SystemQosResource,
    kubelet: node_cpu.KubeletCpuPolicy,
) -> None:
    """What a node keeps for itself survives."""
    assert (
        node_cpu.decode_node_reservation(wishes.encode_node_reservation(reservation)) == reservation
    )
    assert node_cpu.decode_system_qos_resource(wishes.encode_system_qos_resource(system)) == system
    assert (
        node_cpu.decode_kubelet_cpu_policy(node_cpu.encode_kubelet_cpu_policy(kubelet)) == kubelet
    )


@given(
    hundredths=st.dictionaries(names, st.integers(101, 10_000), max_size=3),
    raw=amounts("cpu", "memory"),
)
def test_amplification_round_trips(
    hundredths: dict[str, int], raw: tuple[tuple[str, Quantity], ...]
) -> None:
    """Ratios of whole hundredths are exact on the wire."""
    ratios = {name: Fraction(number, 100) for name, number in hundredths.items()}

    text = wishes.encode_amplification_ratios(ratios)
    assert node_cpu.decode_amplification_ratios(text) == ratios
    assert json.loads(text) == {name: float(ratio) for name, ratio in ratios.items()}
    assert node_cpu.decode_raw_allocatable(wishes.encode_raw_allocatable(raw)) == raw


@given(
    counts=st.lists(st.integers(-5, 16), min_size=1, max_size=6).map(tuple),
    cards=st.dictionaries(
        names,
        st.lists(minors | names.map(lambda name: f"GPU-{name}"), min_size=1, unique=True).map(
            tuple
        ),
        min_size=1,
        max_size=4,
    ),
    assumed=st.booleans(),
)
def test_mgpu_values_round_trip(
    *, counts: tuple[int, ...], cards: dict[str, tuple[mgpu.CardRef, ...]], assumed: bool
) -> None:
    """Indexes and UUIDs are told apart again, per container."""
    allocation = mgpu.MgpuAllocation(assumed=assumed, cards=tuple(cards.items()))

    annotations = mgpu.encode_mgpu_allocation(allocation)
    assert mgpu.read_mgpu_allocation(annotations, list(cards)) == allocation
    assert mgpu.decode_card_counts(wishes.encode_card_counts(counts)) == counts


@given(
    answer=st.builds(
        gpushare.GpuShareAnswer,
        card=minors,
        pod_units=st.integers(0, 10**6),
        card_units=st.integers(0, 10**6),
        assume_time_ns=st.integers(0, 2**62),
        assigned=st.booleans(),
    ),
    shares=st.lists(
        st.builds(gpushare.CardUnits, container=minors, card=minors, units=st.integers(0, 10**6)),
        max_size=6,
        unique_by=lambda share: (share.container, share.card),
    ).map(lambda items: tuple(sorted(items, key=lambda share: (share.container, share.card)))),
    closed=st.frozensets(minors),
)
def test_gpushare_values_round_trip(
    answer: gpushare.GpuShareAnswer,
    shares: tuple[gpushare.CardUnits, ...],
    closed: frozenset[int],
) -> None:
    """Both generations survive, and the reader finds the card that the writer wrote."""
    annotations = gpushare.encode_gpushare_answer(answer)
    allocation = gpushare.read_gpushare_allocation(annotations)

    assert allocation is not None
    assert (allocation.card, allocation.assigned) == (answer.card, answer.assigned)
    assert allocation.assume_time_ns == answer.assume_time_ns
    assert annotations["ALIYUN_COM_GPU_MEM_POD"] == str(answer.pod_units)
    assert annotations["ALIYUN_COM_GPU_MEM_DEV"] == str(answer.card_units)
    assert gpushare.decode_card_units(wishes.encode_card_units(shares)) == shares
    assert decode_unhealthy_cards(wishes.encode_unhealthy_cards(closed)) == (
        closed,
        (),
    )


@given(
    value=st.builds(
        gpu_topology.GpuTopologyAllocation,
        allocated=st.dictionaries(minors, st.lists(minors, unique=True).map(tuple)).map(
            lambda items: tuple(sorted(items.items()))
        ),
        visible=st.lists(minors, unique=True).map(tuple),
    ),
    group=st.builds(GroupRef, name=names, replica=st.integers(1, 10_000)),
    rows=st.integers(0, 5).flatmap(
        lambda size: st.lists(
            st.lists(
                st.floats(0, 1000) | st.integers(0, 1000).map(float), min_size=size, max_size=size
            ).map(tuple),
            min_size=size,
            max_size=size,
        ).map(tuple)
    ),
)
def test_gpu_topology_values_round_trip(
    value: gpu_topology.GpuTopologyAllocation,
    group: GroupRef,
    rows: tuple[tuple[float, ...], ...],
) -> None:
    """Group, answer and matrix survive; a float's shortest text is exact."""
    matrix = LinkMatrix(rows=rows)

    assert gpu_topology.decode_gpu_topology(gpu_topology.encode_gpu_topology(value)) == value
    assert gpu_topology.read_gpu_group(wishes.encode_gpu_group(group)) == group
    assert gpu_topology.decode_gpu_links(gpu_topology.encode_gpu_links(matrix)) == matrix


@given(nanoseconds=st.integers(-gang.DURATION_MAX_NS, gang.DURATION_MAX_NS))
def test_durations_round_trip(nanoseconds: int) -> None:
    """Go's way of printing loses nothing."""
    assert gang.parse_duration(wishes.format_duration(nanoseconds)) == nanoseconds


@given(
    name=names,
    least=st.integers(1, 500) | st.none(),
    more=st.integers(0, 500),
    waiting_time_ns=st.integers(1, gang.DURATION_MAX_NS),
    mode=st.sampled_from(gang.GangMode),
    match_policy=st.sampled_from(gang.GangMatchPolicy),
    groups=st.lists(texts, max_size=3).map(tuple),
)
def test_gangs_round_trip(
    *,
    name: str,
    least: int | None,
    more: int,
    waiting_time_ns: int,
    mode: gang.GangMode,
    match_policy: gang.GangMatchPolicy,
    groups: tuple[str, ...],
) -> None:
    """Every gang survives its annotations."""
    value = gang.Gang(
        name=name,
        min_available=least,
        total_number=None if least is None else least + more,
        waiting_time_ns=waiting_time_ns,
        mode=mode,
        match_policy=match_policy,
        groups=groups,
    )

    assert gang.read_gang({}, wishes.encode_gang(value)) == value


@given(
    entries=st.lists(
        st.builds(
            checkpoints.DeviceCheckpoint,
            pod_uid=texts.filter(bool),
            container_name=texts,
            resource_name=texts,
            device_ids=st.lists(texts, max_size=3).map(tuple),
            alloc_resp=st.text(max_size=20),
        ),
        max_size=3,
    ).map(tuple),
    table=st.dictionaries(
        st.integers(1, 8).map(lambda count: count), st.just(None), max_size=4
    ).flatmap(
        lambda keys: st.fixed_dictionaries(
            {
                count: st.lists(
                    st.builds(
                        partitions.GpuPartition,
                        minors=distinct(count),
                        link_type=texts,
                        ring_bus_bandwidth=quantities | st.none(),
                        allocation_score=st.integers(-5, 5),
                    ),
                    max_size=3,
                ).map(tuple)
                for count in sorted(keys)
            }
        )
    ),
)
def test_device_object_values_round_trip(
    entries: tuple[checkpoints.DeviceCheckpoint, ...],
    table: dict[int, tuple[partitions.GpuPartition, ...]],
) -> None:
    """Checkpoints and partition tables survive."""
    text = checkpoints.encode_devices_checkpoints(entries)

    assert checkpoints.decode_devices_checkpoints(text) == entries
    assert partitions.decode_gpu_partitions(wishes.encode_gpu_partitions(table)) == table


requirements = st.sampled_from(device_hints.SelectorOperator).flatmap(
    lambda operator: st.builds(
        device_hints.SelectorRequirement,
        key=names,
        operator=st.just(operator),
        values=(
            st.lists(texts, min_size=1, max_size=3).map(tuple)
            if operator in {device_hints.SelectorOperator.IN, device_hints.SelectorOperator.NOT_IN}
            else st.just(())
        ),
    )
)
selectors = st.none() | st.builds(
    device_hints.LabelSelector,
    match_labels=st.dictionaries(names, texts, max_size=3).map(
        lambda items: tuple(sorted(items.items()))
    ),
    match_expressions=st.lists(requirements, max_size=3).map(tuple),
)


@given(
    hints=st.dictionaries(
        st.sampled_from(["gpu", "rdma", "fpga"]),
        st.builds(
            device_hints.DeviceHint,
            selector=selectors,
            vf_selector=selectors,
            allocate_strategy=st.sampled_from(device_hints.AllocateStrategy),
            required_topology_scope=st.sampled_from(device_hints.TopologyScope),
            exclusive_policy=st.sampled_from(device_hints.DeviceExclusivePolicy),
        ),
    ),
    joint=st.builds(
        device_hints.JointAllocation,
        device_types=st.lists(names, max_size=3).map(tuple),
        required_scope=st.sampled_from(device_hints.JointScope),
    ),
    spec=st.builds(
        device_hints.PartitionSpec,
        allocate_policy=st.sampled_from(device_hints.PartitionPolicy),
        ring_bus_bandwidth=quantities | st.none(),
    ),
)
def test_device_wishes_round_trip(
    hints: dict[str, device_hints.DeviceHint],
    joint: device_hints.JointAllocation,
    spec: device_hints.PartitionSpec,
) -> None:
    """An absent selector stays absent and an empty one empty."""
    assert device_hints.decode_device_hints(wishes.encode_device_hints(hints)) == hints
    assert device_hints.decode_joint_allocation(wishes.encode_joint_allocation(joint)) == joint
    assert device_hints.decode_partition_spec(wishes.encode_partition_spec(spec)) == spec


@given(
    hint=st.builds(
        pods.SchedulingHint,
        node_names=st.lists(texts, max_size=3).map(tuple),
        preferred_node_names=st.lists(texts, max_size=3).map(tuple),
        extensions=st.sets(texts, max_size=3).map(lambda items: tuple(sorted(items))),
    ),
    replacements=st.lists(st.tuples(names, names | st.just("")), max_size=3).map(tuple),
)
def test_other_pod_values_round_trip(
    hint: pods.SchedulingHint,
    replacements: tuple[tuple[str, str], ...],
) -> None:
    """Hints and replacements survive."""
    assert pods.decode_scheduling_hint(wishes.encode_scheduling_hint(hint)) == hint
    assert (
        pods.decode_replace_resources(wishes.encode_replace_resources(replacements)) == replacements
    )


uuids = st.lists(names, min_size=1, max_size=4, unique=True).map(tuple)


@given(
    shown=st.dictionaries(st.tuples(st.booleans(), st.integers(0, 30)), st.tuples(uuids, uuids)),
    moment=st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001 - zone below
)
def test_our_own_annotations_round_trip(
    shown: dict[tuple[bool, int], tuple[tuple[str, ...], tuple[str, ...]]], moment: datetime
) -> None:
    """Containers and their devices come back in order, times to the microsecond."""
    containers = tuple(
        tenure.ContainerDevices(
            index=tenure.container_index(index, init=init), visible=visible, allocated=allocated
        )
        for (init, index), (visible, allocated) in sorted(shown.items())
    )
    aware = moment.replace(tzinfo=UTC)

    annotations = tenure.encode_container_devices(containers)
    for read, key in (("visible", tenure.visible_key), ("allocated", tenure.allocated_key)):
        told = {one.index: annotations.pop(key(one.index), "") for one in containers}
        assert told == {one.index: ",".join(getattr(one, read)) for one in containers}
    assert not annotations
    assert datetime.fromisoformat(tenure.encode_released_at(aware)) == aware


DECODERS: dict[str, Callable[[str], object]] = {
    "device-allocated": device_allocated.decode_device_allocated,
    "resource-spec": cpu.decode_resource_spec,
    "resource-status": cpu.decode_resource_status,
    "numa-topology-spec": cpu.decode_numa_topology_spec,
    "cpu-topology": node_cpu.decode_cpu_topology,
    "pod-cpu-allocs": node_cpu.decode_pod_cpu_allocs,
    "cpu-shared-pools": node_cpu.decode_cpu_shared_pools,
    "cpu-manager-policy": node_cpu.decode_kubelet_cpu_policy,
    "reservation": node_cpu.decode_node_reservation,
    "system-qos-resource": node_cpu.decode_system_qos_resource,
    "amplification": node_cpu.decode_amplification_ratios,
    "raw-allocatable": node_cpu.decode_raw_allocatable,
    "gpu-topology": gpu_topology.decode_gpu_topology,
    "gpushare v2": gpushare.decode_card_units,
    "checkpoints": checkpoints.decode_devices_checkpoints,
    "partitions": partitions.decode_gpu_partitions,
    "hints": device_hints.decode_device_hints,
    "joint": device_hints.decode_joint_allocation,
    "partition-spec": device_hints.decode_partition_spec,
    "scheduling-hint": pods.decode_scheduling_hint,
}

WIRE_WORDS = [
    *("gpu", "0", "minor", "id", "resources", "resouurces", "extension", "vfs", "busID"),
    *("cpuset", "cpuSharedPools", "numaNodeResources", "socket", "node", "detail", "core"),
    *("koordinator.sh/gpu-core", "selector", "matchLabels", "matchExpressions", "operator"),
    *("minors", "ringBusBandwidth", "podUID", "deviceIDs", "containers", "requests", "options"),
    *("allocatedGPUs", "visibleGPUs", "deviceTypes", "nodeNames", "cpu", "managedByKubelet"),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WIRE_WORDS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=8,
)


def _place_of_error(decode: Callable[[str], object], text: str) -> str:
    """Return the field an InputError names, the annotation itself when the text decodes."""
    try:
        decode(text)
    except InputError as error:
        return error.field
    return "metadata.annotations["


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
@given(value=json_values)
def test_any_json_is_a_value_or_an_input_error(
    decode: Callable[[str], object], value: object
) -> None:
    """Whatever JSON a user writes, the answer is a value or one message that names its place."""
    assert _place_of_error(decode, json.dumps(value)).startswith("metadata.annotations[")


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
@given(text=st.text(max_size=30))
def test_any_text_is_a_value_or_an_input_error(decode: Callable[[str], object], text: str) -> None:
    """Whatever text a user writes, there is no other exception."""
    assert _place_of_error(decode, text).startswith("metadata.annotations[")
