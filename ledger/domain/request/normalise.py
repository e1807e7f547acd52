"""
The one way from a Pod object to a request, used by admission, simulation and the live scheduler.

The dialects have a module each; here they are told apart, put together and refused as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ledger.domain.annotations.qos import read_qos_class
from ledger.domain.errors import FieldError, RefusedError
from ledger.domain.kube.original import as_written
from ledger.domain.kube.pod_spec import APP, PodSpec, read_pod
from ledger.domain.request.asked import NOTHING, Asked, check_device_resources, check_known_words
from ledger.domain.request.cpus import OWN_CPUS, CpusAsked, cpu_demand
from ledger.domain.request.gpushare import gpushare_demands
from ledger.domain.request.groups import GroupsAsked, groups_of
from ledger.domain.request.koordinator import koordinator_demands
from ledger.domain.request.mgpu import MgpuLimits, mgpu_demands
from ledger.domain.request.requests import (
    ContainerNeed,
    DeviceDemand,
    MatchExpression,
    PlacementRules,
    PodRequest,
    PodSnapshot,
)
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, of_rule, one_of_each
from ledger.domain.request.units import unit_demands
from ledger.domain.request.whole_cards import whole_card_demands
from ledger.domain.request.wishes import Wishes, check_wishes, hinted, read_wishes, with_wishes
from ledger.domain.resources import (
    AMD_GPU,
    DCU_GPU,
    KEPT_ANNOTATIONS,
    LABEL_GPU_ISOLATION_PROVIDER,
    LABEL_GPU_VENDOR,
    MGPU_NAMES,
    SLOT,
    TYPE_GPU,
    Dialect,
    canonical,
    gpu_dialect_of,
    is_kept_label,
)

_FOREIGN_CARDS: Final = frozenset({AMD_GPU, DCU_GPU})
_VENDORS: Final = ("baidu", "cambricon", "huawei", "metax", "nvidia")
"""Vendor labels of Koordinator contract 1.2; cards of amd.com and dcu.com carry none of them."""
_NVIDIA: Final = (
    (MatchExpression(key=LABEL_GPU_VENDOR, operator="DoesNotExist", values=()),),
    (MatchExpression(key=LABEL_GPU_VENDOR, operator="In", values=("", "nvidia")),),
)
_OTHER_VENDOR: Final = (
    (
        MatchExpression(key=LABEL_GPU_VENDOR, operator="Exists", values=()),
        MatchExpression(key=LABEL_GPU_VENDOR, operator="NotIn", values=("", *_VENDORS)),
    ),
)
"""What a node's labels must say for `nvidia.com/gpu`, and for the cards of other vendors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormaliseSettings:
    """
    The settings that change what a request means (cli.md, Settings of scheduling).

    Attributes:
        gpushare_unit: what `aliyun.com/gpu-mem` counts, `MiB` or `GiB`.
        mgpu_multi_min_memory_mib: least memory on each card of a multi-card mGPU container.
        mgpu_max_memory_mib: most mGPU memory on one card; more is a wrong unit.
        default_bind_policy, default_exclusive_policy: for LSE and LSR Pods that name none.
    """

    gpushare_unit: str = "MiB"
    mgpu_multi_min_memory_mib: int = 256
    mgpu_max_memory_mib: int = 1048576
    default_bind_policy: str = "FullPCPUs"
    default_exclusive_policy: str = "None"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAsked:
    """What a Pod asks of GPUs, in whichever dialect, with what only that dialect knows."""

    dialect: Dialect | None = None
    asked: Asked = NOTHING
    mgpu_policy: str = ""
    mgpu_multi: bool = False
    gpushare_units: int = 0
    foreign_cards: bool = False


Word = tuple[Dialect, str, str, bool]
"""Dialect, resource, field path, and whether it asks for something (0 does not)."""

DEFAULT_SETTINGS: Final = NormaliseSettings()


def decode_pod(
    pod: Mapping[str, object], settings: NormaliseSettings = DEFAULT_SETTINGS
) -> PodRequest:
    """
    Return a Pod's request, decoded and normalised.

    Rule: design section 3.

    Raises:
        InputError: the object can't be read: a wrong type, a bad or negative quantity, JSON that
            does not parse in an annotation of ours. With its field path.
        RefusedError: it can, and breaks rules of ours. With every violation.
    """
    request, errors = examine_pod(pod, settings)
    if errors:
        raise RefusedError(errors)
    return request


def examine_pod(
    pod: Mapping[str, object], settings: NormaliseSettings = DEFAULT_SETTINGS
) -> tuple[PodRequest, tuple[FieldError, ...]]:
    """
    Return a Pod's request and its violations, for callers that record a refusal.

    With violations the request has identity, CPU, memory, placement rules and snapshot, but no
    devices, CPU set, group or gang.

    Raises:
        InputError: as `decode_pod`.
    """
    return examine_spec(read_asked(pod), settings)


def read_asked(pod: Mapping[str, object]) -> PodSpec:
    """
    Read a Pod as its user wrote it, whatever admission has rewritten since.

    Raises:
        InputError: as `decode_pod`.
    """
    return read_pod(as_written(pod))


def examine_spec(
    spec: PodSpec, settings: NormaliseSettings = DEFAULT_SETTINGS
) -> tuple[PodRequest, tuple[FieldError, ...]]:
    """
    Return what `examine_pod` does, for a Pod that has been read.

    Raises:
        InputError: JSON that does not parse in an annotation of ours.
    """
    wishes = read_wishes(spec.annotations)
    cpus = cpu_demand(
        spec,
        bind_policy=settings.default_bind_policy,
        exclusive_policy=settings.default_exclusive_policy,
    )
    groups = groups_of(spec)
    gpu = gpu_demands(spec, settings)
    units = dict(unit_demands(spec, wishes.hints))
    demands = _demands(gpu, units, wishes)
    broken = [name for name, asked in {TYPE_GPU: gpu.asked, **units}.items() if asked.errors]
    errors = one_of_each(
        [
            *check_device_resources(spec),
            *check_known_words(spec, own_cpus=read_qos_class(spec.labels) in OWN_CPUS),
            *gpu.asked.errors,
            *(error for asked in units.values() for error in asked.errors),
            *check_wishes(wishes, demands, broken, gpu.dialect),
            *cpus.errors,
            *groups.errors,
        ]
    )
    bare = _bare_request(spec, cpus)
    if errors:
        return bare, errors
    request = _with_demands(bare, spec, gpu=gpu, units=units, cpus=cpus, groups=groups)
    return with_wishes(replace(request, devices=demands), wishes), ()


def gpu_demands(spec: PodSpec, settings: NormaliseSettings) -> GpuAsked:
    """
    Return what a Pod asks of GPUs in the dialect it speaks.

    Rule: design section 3; a Pod that mixes GPU dialects is refused. Zero asks for nothing, except
    in mGPU's words, where it breaks a rule (GPU-sharing contract A.3, N1). Where nothing else is
    asked a zero still names the dialect, which may refuse it (Koordinator contract 5.2).
    """
    words = [*_gpu_words(spec)]
    words = [word for word in words if word[3]] or words
    dialects = dict.fromkeys(dialect for dialect, *_ in words)
    if len(dialects) > 1:
        return GpuAsked(asked=Asked(errors=tuple(_mixed(words))))
    match next(iter(dialects), None):
        case None:
            return GpuAsked()
        case Dialect.NVIDIA:
            foreign = any(canonical(name) in _FOREIGN_CARDS for _, name, *_ in words)
            dialect = Dialect.KOORDINATOR if foreign else Dialect.NVIDIA
            asked = whole_card_demands(spec)
            return GpuAsked(dialect=dialect, asked=asked, foreign_cards=foreign)
        case Dialect.KOORDINATOR:
            return GpuAsked(dialect=Dialect.KOORDINATOR, asked=koordinator_demands(spec))
        case Dialect.MGPU:
            limits = MgpuLimits(
                multi_memory_min_mib=settings.mgpu_multi_min_memory_mib,
                memory_max_mib=settings.mgpu_max_memory_mib,
            )
            mgpu = mgpu_demands(spec, limits)
            return GpuAsked(
                dialect=Dialect.MGPU,
                asked=mgpu.asked,
                mgpu_policy=str(mgpu.policy),
                mgpu_multi=mgpu.multi,
            )
        case Dialect.GPUSHARE:
            share = gpushare_demands(spec, settings.gpushare_unit)
            return GpuAsked(dialect=Dialect.GPUSHARE, asked=share.asked, gpushare_units=share.units)


def snapshot_of(spec: PodSpec, *, qos: str, priority: int) -> PodSnapshot:
    """
    Return what can never be asked later about a Pod; the slot is ours, nobody asked for it.

    Rule: design section 8. Without a Koordinator QoS label the QoS class is Kubernetes' own.
    """
    return PodSnapshot(
        owner=spec.owner,
        labels={key: value for key, value in spec.labels.items() if is_kept_label(key)},
        priority=priority,
        qos=qos or spec.kube_qos,
        original={
            f"{container.name}.{name}": text
            for container in spec.containers
            for name, text in container.original.items()
            if name != SLOT
        },
        created_at_us=spec.created_at_us,
        annotations={
            key: text for key, text in spec.annotations.items() if key in KEPT_ANNOTATIONS
        },
        init_containers=tuple(
            f"{container.kind}/{container.name}"
            for container in spec.containers
            if container.kind != APP and container.original
        ),
    )


def _gpu_words(spec: PodSpec) -> Iterator[Word]:
    """Yield every GPU resource that says something, mGPU's zeros included."""
    for container in spec.containers:
        for name, quantity in container.requests.items():
            dialect = gpu_dialect_of(name)
            if dialect is not None:
                strong = bool(quantity) or name in MGPU_NAMES
                yield dialect, name, container.field(name), strong


@of_rule(Rule.ONE_DIALECT)
def _mixed(words: Sequence[Word]) -> Iterator[FieldError]:
    first, first_name, first_field, _ = words[0]
    for dialect, _, field, _ in words:
        if dialect is not first:
            yield forbidden(
                field, f"a pod asks for GPUs in one dialect only: {first_name} at {first_field}"
            )


def _demands(gpu: GpuAsked, units: Mapping[str, Asked], wishes: Wishes) -> tuple[DeviceDemand, ...]:
    others = (demand for asked in units.values() for demand in asked.demands)
    return hinted((*gpu.asked.demands, *others), wishes)


def _bare_request(spec: PodSpec, cpus: CpusAsked) -> PodRequest:
    return PodRequest(
        uid=spec.uid,
        namespace=spec.namespace,
        name=spec.name,
        cpu_milli=spec.cpu_milli,
        memory_bytes=spec.memory_bytes,
        placement=spec.placement,
        snapshot=snapshot_of(spec, qos=str(cpus.qos), priority=cpus.priority),
    )


def _with_demands(
    bare: PodRequest,
    spec: PodSpec,
    *,
    gpu: GpuAsked,
    units: Mapping[str, Asked],
    cpus: CpusAsked,
    groups: GroupsAsked,
) -> PodRequest:
    by_type = {TYPE_GPU: gpu.asked, **units}
    return replace(
        bare,
        dialect=gpu.dialect if gpu.asked.demands else None,
        containers=tuple(_needs(spec, by_type)),
        cpuset=cpus.demand,
        burst_milli=cpus.burst_milli,
        bound_cpus=cpus.bound_cpus,
        kubelet_cpus=cpus.kubelet_cpus,
        placement=_placement(spec, gpu),
        group=groups.group,
        gang=groups.gang,
        mgpu_policy=gpu.mgpu_policy,
        mgpu_multi=gpu.mgpu_multi,
        gpushare_units=gpu.gpushare_units,
    )


def _needs(spec: PodSpec, by_type: Mapping[str, Asked]) -> Iterator[ContainerNeed]:
    for container in spec.containers:
        counts = tuple(
            (device_type, asked.counts[container.place])
            for device_type, asked in by_type.items()
            if container.place in asked.counts
        )
        if counts:
            yield ContainerNeed(
                name=container.name,
                place=container.place,
                kind=container.kind,
                device_counts=counts,
            )


def _placement(spec: PodSpec, gpu: GpuAsked) -> PlacementRules:
    """
    Return the Pod's rules, with what its GPU request adds to them.

    Rule: Koordinator contract 2.1 (a Pod with an isolation provider shares cards only on nodes with
    the same one) and 1.2 (vendors: no label and an empty one are NVIDIA's; no card is known to be
    AMD's or Hygon's, but many not to be).
    """
    rules = spec.placement
    provider = spec.labels.get(LABEL_GPU_ISOLATION_PROVIDER)
    if provider and any(not demand.exclusive for demand in gpu.asked.demands):
        pair = (LABEL_GPU_ISOLATION_PROVIDER, provider)
        rules = replace(rules, node_selector=tuple(sorted({*rules.node_selector, pair})))
    vendors: tuple[tuple[MatchExpression, ...], ...] = ()
    if gpu.foreign_cards:
        vendors = _OTHER_VENDOR
    elif gpu.dialect is Dialect.NVIDIA and gpu.asked.demands:
        vendors = _NVIDIA
    if vendors:
        terms = ((),) if rules.affinity_terms is None else rules.affinity_terms
        both = tuple((*term, *vendor) for term in terms for vendor in vendors)
        rules = replace(rules, affinity_terms=both)
    return rules
