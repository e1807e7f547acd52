"""
The one way from a Pod object to a request, used by admission, simulation and the live scheduler.

The dialects have a module each; here they are told apart, put together and refused as a whole.
What a Pod says of its GPU group and its gang is read here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from ledger.domain import resources
from ledger.domain.annotations.gang import SECOND_NS, Gang, GangMode, read_gang
from ledger.domain.annotations.gpu_topology import read_gpu_group
from ledger.domain.annotations.qos import read_qos_class
from ledger.domain.annotations.tenure import read_original, whole_cards_by
from ledger.domain.annotations.wire import annotation_path, label_path
from ledger.domain.bounds import NAME_MAX
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import GpuAsked
from ledger.domain.dialects.registry import READERS, gpu_dialect_of, reader_of
from ledger.domain.errors import FieldError, InputError, RefusedError
from ledger.domain.kube.original import as_written
from ledger.domain.kube.pod_spec import APP, PodSpec, read_pod
from ledger.domain.request import extended, requests
from ledger.domain.request import rules as checks
from ledger.domain.request.asked import (
    TypeRequest,
    check_device_resources,
    check_known_words,
    unit_demands,
)
from ledger.domain.request.cpus import OWN_CPUS, CpusAsked, cpu_demand
from ledger.domain.request.isolation import provider_needed, with_provider
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.wishes import Wishes, check_wishes, hinted, read_wishes, with_wishes
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary

Word = tuple[Dialect, str, str, bool]
"""Dialect, resource, field path, and whether it asks for something (0 does not)."""

BY_PLUGIN: Final = "nvidia"
"""The word of `wholeCards` that leaves them to NVIDIA's device plugin; the other is `ours`."""

_ZEROS_ASK: Final = frozenset(name for reader in READERS for name in reader.words.zeros_ask)


def decode_pod(
    pod: Mapping[str, object], vocabulary: Vocabulary = DEFAULT_VOCABULARY
) -> requests.PodRequest:
    """
    Return a Pod's request, decoded and normalised (design section 3).

    Raises:
        InputError: the object can't be read: a wrong type, a bad or negative quantity, JSON that
            does not parse in an annotation of ours. With its field path.
        RefusedError: it can, and breaks rules of ours. With every violation.
    """
    request, errors = examine_pod(pod, vocabulary)
    if errors:
        raise RefusedError(errors)
    return request


def examine_pod(
    pod: Mapping[str, object], vocabulary: Vocabulary = DEFAULT_VOCABULARY
) -> tuple[requests.PodRequest, tuple[FieldError, ...]]:
    """
    Return a Pod's request and its violations, for callers that record a refusal.

    With violations the request has identity, CPU, memory, placement rules and snapshot, but no
    devices, CPU set, group or gang. Raises InputError as `decode_pod`.
    """
    return examine_spec(read_asked(pod, vocabulary))


def read_asked(pod: Mapping[str, object], vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> PodSpec:
    """Read a Pod as its user wrote it, before admission. Raises InputError as `decode_pod`."""
    return read_pod(as_written(pod, vocabulary), vocabulary)


def examine_spec(spec: PodSpec) -> tuple[requests.PodRequest, tuple[FieldError, ...]]:
    """Return what `examine_pod` does, for a Pod that has been read. Raises InputError likewise."""
    wishes = read_wishes(spec.annotations)
    cpus = cpu_demand(spec)
    groups = groups_of(spec)
    gpu = gpu_demands(spec)
    units = dict(unit_demands(spec, wishes.hints))
    demands = _demands(gpu, units, wishes)
    broken = [
        name for name, asked in {resources.TYPE_GPU: gpu.asked, **units}.items() if asked.errors
    ]
    errors = checks.one_of_each(
        [
            *check_device_resources(spec),
            *_check_word(spec),
            *check_known_words(spec, own_cpus=read_qos_class(spec.labels) in OWN_CPUS),
            *gpu.asked.errors,
            *(error for asked in units.values() for error in asked.errors),
            *check_wishes(wishes, demands, spec.vocabulary, broken, gpu.dialect),
            *cpus.errors,
            *groups.errors,
        ]
    )
    bare = _bare_request(spec, cpus)
    if errors:
        return bare, errors
    request = _with_demands(bare, spec, gpu=gpu, units=units, cpus=cpus, groups=groups)
    return with_wishes(replace(request, devices=demands), wishes), ()


def gpu_demands(spec: PodSpec) -> GpuAsked:
    """
    Return what a Pod asks of GPUs in the dialect it speaks.

    Rule: design section 3; a Pod that mixes GPU dialects is refused. Zero asks for nothing, except
    in words where it breaks a rule (GPU-sharing contract A.3, N1). Where nothing else is asked a
    zero still names the dialect, which may refuse it (Koordinator contract 5.2).
    """
    words = [*_gpu_words(spec)]
    words = [word for word in words if word[3]] or words
    dialects = dict.fromkeys(dialect for dialect, *_ in words)
    if len(dialects) > 1:
        words = _without_borrowed(words, dialects)
        dialects = dict.fromkeys(dialect for dialect, *_ in words)
    if len(dialects) > 1:
        each = (reader_of(dialect).demands(spec).asked.errors for dialect in dialects)
        return GpuAsked(asked=TypeRequest(errors=(*chain.from_iterable(each), *_mixed(words))))
    dialect = _claimed(spec, words) or next(iter(dialects), None)
    return GpuAsked() if dialect is None else reader_of(dialect).demands(spec)


def snapshot_of(spec: PodSpec, *, qos: str, priority: int) -> requests.PodSnapshot:
    """
    Return what can never be asked later about a Pod; the slot is ours, nobody asked for it.

    Rule: design section 8. Without a Koordinator QoS label the QoS class is Kubernetes' own.
    """
    return requests.PodSnapshot(
        owner=spec.owner,
        labels={key: value for key, value in spec.labels.items() if resources.is_kept_label(key)},
        priority=priority,
        qos=qos or spec.kube_qos,
        original={
            f"{container.name}.{name}": text
            for container in spec.containers
            for name, text in container.original.items()
            if name != resources.SLOT
        },
        created_at_us=spec.created_at_us,
        annotations={
            key: text for key, text in spec.annotations.items() if key in resources.KEPT_ANNOTATIONS
        },
        init_containers=tuple(
            f"{container.kind}/{container.name}"
            for container in spec.containers
            if container.kind != APP and container.original
        ),
    )


def _gpu_words(spec: PodSpec) -> Iterator[Word]:
    for container in spec.containers:
        for name, quantity in container.requests.items():
            dialect = gpu_dialect_of(name)
            if dialect is not None:
                strong = bool(quantity) or name in _ZEROS_ASK
                yield dialect, name, container.field(name), strong


def _without_borrowed(words: Sequence[Word], dialects: Iterable[Dialect]) -> list[Word]:
    borrowed = {name for dialect in dialects for name in reader_of(dialect).words.borrowed}
    return [word for word in words if word[1] not in borrowed]


def _claimed(spec: PodSpec, words: Sequence[Word]) -> Dialect | None:
    """Return the dialect whose annotations come with words that it has borrowed, None without."""
    names = {name for _, name, *_ in words}
    for reader in READERS:
        claims = (spec.annotations.get(key, "") for key in reader.words.claims)
        if names and names <= reader.words.borrowed and any(text.strip() for text in claims):
            return reader.dialect
    return None


@checks.of_rule(Rule.ONE_DIALECT)
def _mixed(words: Sequence[Word]) -> Iterator[FieldError]:
    first, first_name, first_field, _ = words[0]
    for dialect, _, field, _ in words:
        if dialect is not first:
            yield checks.forbidden(
                field, f"a pod asks for GPUs in one dialect only: {first_name} at {first_field}"
            )


def _demands(
    gpu: GpuAsked, units: Mapping[str, TypeRequest], wishes: Wishes
) -> tuple[requests.DeviceDemand, ...]:
    others = (demand for asked in units.values() for demand in asked.demands)
    return hinted((*gpu.asked.demands, *others), wishes)


def _bare_request(spec: PodSpec, cpus: CpusAsked) -> requests.PodRequest:
    return requests.PodRequest(
        uid=spec.uid,
        namespace=spec.namespace,
        name=spec.name,
        cpu_milli=spec.cpu_milli,
        memory_bytes=spec.memory_bytes,
        placement=spec.placement,
        extended=extended.asked(spec),
        snapshot=snapshot_of(spec, qos=str(cpus.qos), priority=cpus.priority),
    )


def _with_demands(
    bare: requests.PodRequest,
    spec: PodSpec,
    *,
    gpu: GpuAsked,
    units: Mapping[str, TypeRequest],
    cpus: CpusAsked,
    groups: GroupsAsked,
) -> requests.PodRequest:
    by_type = {resources.TYPE_GPU: gpu.asked, **units}
    return replace(
        bare,
        dialect=gpu.dialect if gpu.asked.demands else None,
        by_plugin=is_by_plugin(spec, gpu),
        containers=tuple(_needs(spec, by_type)),
        cpuset=cpus.demand,
        burst_milli=cpus.burst_milli,
        bound_cpus=cpus.bound_cpus,
        kubelet_cpus=cpus.kubelet_cpus,
        placement=_placement(spec, gpu),
        group=groups.group,
        gang=groups.gang,
        **gpu.own,
    )


def is_by_plugin(spec: PodSpec, gpu: GpuAsked) -> bool:
    """
    Tell whether whole cards are left to the device plugin whose name asks for them.

    Rule: docs/adr/0033. What admission has rewritten is given by us, whatever is said now.
    """
    if gpu.dialect is None or not gpu.asked.demands or not reader_of(gpu.dialect).by_plugin:
        return False
    word = whole_cards_by(spec.annotations, spec.vocabulary.whole_cards)
    return word == BY_PLUGIN and not read_original(spec.annotations).containers


@checks.of_rule(Rule.WHOLE_CARDS)
def _check_word(spec: PodSpec) -> Iterator[FieldError]:
    word = whole_cards_by(spec.annotations, BY_PLUGIN)
    if word not in {BY_PLUGIN, "ours"}:
        label = resources.TENURE_WHOLE_CARDS
        fact = f"must be ours or nvidia, as the label {label} of its namespace"
        yield checks.invalid(annotation_path(label), word, fact)


def _needs(spec: PodSpec, by_type: Mapping[str, TypeRequest]) -> Iterator[requests.ContainerNeed]:
    for container in spec.containers:
        counts = tuple(
            (device_type, asked.counts[container.index])
            for device_type, asked in by_type.items()
            if container.index in asked.counts
        )
        if counts:
            yield requests.ContainerNeed(
                name=container.name,
                index=container.index,
                kind=container.kind,
                device_counts=counts,
            )


def _placement(spec: PodSpec, gpu: GpuAsked) -> requests.PlacementRules:
    """
    Return the Pod's rules, with what its GPU request adds to them.

    Rule: Koordinator contract 2.1 (a Pod with an isolation provider shares cards only on nodes with
    the same one) and 1.2 (vendors).
    """
    needed = provider_needed(gpu.asked.demands, spec.labels, spec.annotations, gpu.isolation)
    rules = with_provider(spec.placement, needed)
    if gpu.vendors:
        terms = ((),) if rules.affinity_terms is None else rules.affinity_terms
        both = tuple((*term, *vendor) for term in terms for vendor in gpu.vendors)
        rules = replace(rules, affinity_terms=both)
    return rules


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsAsked:
    """The Pod's group and gang, both None when there are errors."""

    group: requests.GroupRef | None = None
    gang: requests.GangRef | None = None
    errors: tuple[FieldError, ...] = ()


def groups_of(spec: PodSpec) -> GroupsAsked:
    """
    Return the group and the gang of a Pod.

    Rule: Koordinator GPU-topology proposal, "How to identify pods are in the same group" and
    "Works with the Gang plugin"; Koordinator contract 10.

    Raises:
        InputError: a list of gang groups that is no JSON. Plain text that breaks a rule (a replica
            that is no number) is a violation instead.
    """
    group, group_errors = _group(spec)
    gang, gang_errors = _gang(spec)
    errors = [*group_errors, *gang_errors]
    if group and gang and gang.min_available is not None:
        errors += checks.check_same_group(
            label_path(resources.LABEL_GPU_GROUP_NAME),
            label_path(resources.LABEL_GPU_GROUP_REPLICA),
            group=(group.name, group.replica),
            gang=(gang.name, gang.min_available),
        )
    if errors:
        return GroupsAsked(errors=tuple(errors))
    return GroupsAsked(group=group, gang=_gang_ref(gang) if gang else None)


def _group(spec: PodSpec) -> tuple[requests.GroupRef | None, list[FieldError]]:
    try:
        return read_gpu_group(spec.labels), []
    except InputError as error:
        return None, [_violation(error, Rule.TOPOLOGY_GROUP)]


def _gang(spec: PodSpec) -> tuple[Gang | None, list[FieldError]]:
    try:
        gang = read_gang(spec.labels, spec.annotations)
    except InputError as error:
        if error.field.startswith(annotation_path(resources.ANNOTATION_GANG_GROUPS)):
            raise
        return None, [_violation(error, Rule.GANG)]
    return gang, [] if gang is None else [*_check_gang(spec, gang)]


@checks.of_rule(Rule.GANG)
def _check_gang(spec: PodSpec, gang: Gang) -> Iterator[FieldError]:
    if len(gang.name) > NAME_MAX:
        field = annotation_path(resources.ANNOTATION_GANG_NAME)
        yield checks.too_long(field, len(gang.name), NAME_MAX, "no name of a PodGroup is longer")
    if gang.min_available is None:
        yield checks.required(
            annotation_path(resources.ANNOTATION_GANG_MIN_AVAILABLE),
            f"gang {gang.name} needs its minimum here; PodGroup objects are not read",
        )
    if gang.mode is GangMode.NON_STRICT:
        yield checks.unsupported(
            annotation_path(resources.ANNOTATION_GANG_MODE), "gang mode NonStrict"
        )
    own = {f"{spec.namespace}/{gang.name}"}
    if set(gang.groups) - own:
        yield checks.unsupported(
            annotation_path(resources.ANNOTATION_GANG_GROUPS), "gangs that start together"
        )
    if resources.ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC in spec.annotations:
        field = annotation_path(resources.ANNOTATION_GANG_NETWORK_TOPOLOGY_SPEC)
        yield checks.unsupported(field, "network topology of a gang")


def _gang_ref(gang: Gang) -> requests.GangRef:
    assert gang.min_available is not None
    return requests.GangRef(
        name=gang.name,
        min_available=gang.min_available,
        waiting_seconds=-(-gang.waiting_time_ns // SECOND_NS),
    )


def _violation(error: InputError, rule: Rule) -> FieldError:
    return FieldError(
        field=error.field, reason="FieldValueInvalid", message=error.message, rule=str(rule)
    )
