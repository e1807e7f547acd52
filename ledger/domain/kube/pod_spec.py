"""What a Pod says, and where it may go, read strictly and in the API server's own defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Final

import msgspec

from ledger.domain.annotations.tenure import container_index
from ledger.domain.annotations.wire import a_list, a_quantity, an_integer, an_object, each
from ledger.domain.bounds import bounds_of
from ledger.domain.errors import InputError
from ledger.domain.kube import object_fields
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.domain.quantity import NANO, Quantity
from ledger.domain.request.requests import MatchExpression, PlacementRules, Toleration
from ledger.domain.resources import CPU, MEMORY, is_extended
from ledger.domain.typed import read
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary

_AFFINITY: Final = "spec.affinity"
_NODE_AFFINITY: Final = f"{_AFFINITY}.nodeAffinity"
_REQUIRED: Final = f"{_NODE_AFFINITY}.requiredDuringSchedulingIgnoredDuringExecution"
_FIELD_NAME: Final = "metadata.name"

_SET_OPERATORS: Final = frozenset({"In", "NotIn"})
_PRESENCE_OPERATORS: Final = frozenset({"Exists", "DoesNotExist"})
_ORDER_OPERATORS: Final = frozenset({"Gt", "Lt"})
_TOLERATION_OPERATORS: Final = frozenset({"Equal", "Exists"})
_TOLERATION_EFFECTS: Final = frozenset({"", "NoSchedule", "PreferNoSchedule", "NoExecute"})

ANYWHERE: Final = PlacementRules()

APP: Final = "app"
SIDECAR: Final = "sidecar"
INIT: Final = "init"

PENDING: Final = "pending"
RUNNING: Final = "running"
ENDED: Final = "ended"

DEFAULT_NAMESPACE: Final = "default"

ENDED_PHASES: Final = frozenset({"Succeeded", "Failed"})
_CLAIMED_VOLUMES: Final = frozenset({"persistentVolumeClaim", "ephemeral"})
_POD_LEVEL_NAMES: Final = (CPU, MEMORY)
CPUS_MAX: Final = bounds_of("cpu_milli")[1] // 1000
"""The most whole CPUs that are counted."""

Amounts = Mapping[str, Quantity]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """
    One container's resources under released names, requests and limits filled from one another.

    Attributes:
        index: `<i>` in `spec.containers`, `init-<i>` in `spec.initContainers`.
        kind: `app`, `sidecar` (an init container that keeps running) or `init`.
        path: `spec.containers[0]`, where field errors point.
        written: released name -> the name the user wrote, where the two differ.
        original: the requests as written, resource -> quantity text.
    """

    name: str
    index: str
    kind: str
    path: str
    requests: Amounts
    limits: Amounts
    written: Mapping[str, str]
    original: Mapping[str, str]

    def field(self, resource: str, section: str = "requests") -> str:
        """Return the path of one resource of this container, in the user's own spelling."""
        return f"{self.path}.resources.{section}[{self.written.get(resource, resource)}]"

    def units(self, resource: str) -> int:
        """Return the requested amount in whole units, 0 when it is not asked for."""
        quantity = self.requests.get(resource)
        return 0 if quantity is None else quantity.ceil()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """
    The parts of a Pod that deciding and recording need.

    Attributes:
        vocabulary: what it was read by, and what its names mean from here on.
        containers: in the order they start: init containers and sidecars, then app containers.
        pod_requests, pod_limits: what `spec.resources` says for the Pod as a whole, if anything.
        cpu_milli, memory_bytes: the whole Pod's request (see `pod_total`), overhead included.
        priority: `spec.priority`, None when absent.
        owner: the controller as `<kind>/<name>`, kind in lower case; a ReplicaSet stays one,
            for its Deployment's name would be a guess.
        created_at_us: microseconds since the epoch, 0 when unknown.
        stage: `pending`, `running` (it has a node and has not ended) or `ended`.
    """

    vocabulary: Vocabulary
    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    containers: tuple[ContainerSpec, ...]
    overhead: Amounts
    pod_requests: Amounts
    pod_limits: Amounts
    cpu_milli: int
    memory_bytes: int
    priority: int | None
    priority_class_name: str
    placement: PlacementRules
    owner: str
    created_at_us: int
    node_name: str
    stage: str
    kube_qos: str


def pod_total(parts: Iterable[tuple[str, Mapping[str, int]]]) -> dict[str, int]:
    """
    Return a Pod's request out of its containers' (kind, amounts), given in starting order.

    Rule: design section 3: max(sum of app containers and sidecars, max over init containers of
    that one plus the sidecars before it), for each resource by itself. Overhead is the caller's.
    """
    sidecars: dict[str, int] = {}
    apps: dict[str, int] = {}
    peaks: dict[str, int] = {}
    for kind, amounts in parts:
        if kind == INIT:
            for name, amount in amounts.items():
                peak = sidecars.get(name, 0) + amount
                peaks[name] = max(peaks.get(name, 0), peak)
        else:
            sums = sidecars if kind == SIDECAR else apps
            for name, amount in amounts.items():
                sums[name] = sums.get(name, 0) + amount
    return {
        name: max(sidecars.get(name, 0) + apps.get(name, 0), peaks.get(name, 0))
        for name in {**peaks, **sidecars, **apps}
    }


def read_pod(pod: Mapping[str, object], vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> PodSpec:
    """
    Read a Pod object; namespace, UID, requests and limits are filled in where it has none.

    Rule: cli.md, Defaults; design section 3.

    Raises:
        InputError: a wrong type, a missing name, a bad or negative quantity, with its field path.
    """
    metadata, spec = object_fields.metadata_of(pod), object_fields.spec_of(pod)
    status = an_object(pod.get("status"), "status")
    namespace = object_fields.text_at(metadata, "namespace", "metadata") or DEFAULT_NAMESPACE
    name = object_fields.name_of(metadata)
    containers = _containers(spec, vocabulary)
    overhead = _amounts(spec.get("overhead"), "spec.overhead", vocabulary)[0]
    pod_requests, pod_limits = _pod_level(spec, vocabulary)
    cpu_milli, memory_bytes = _cpu_and_memory(
        containers, overhead, requests=pod_requests, limits=pod_limits
    )
    each(spec.get("resourceClaims"), "spec.resourceClaims", _claim_entry)
    node_name = object_fields.text_at(spec, "nodeName", "spec")
    priority = spec.get("priority")
    return PodSpec(
        vocabulary=vocabulary,
        uid=object_fields.text_at(metadata, "uid", "metadata")
        or object_fields.default_uid("Pod", namespace, name),
        namespace=namespace,
        name=name,
        labels=object_fields.text_map(metadata.get("labels"), "metadata.labels"),
        annotations=object_fields.text_map(metadata.get("annotations"), "metadata.annotations"),
        containers=containers,
        overhead=overhead,
        pod_requests=pod_requests,
        pod_limits=pod_limits,
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        priority=None if priority is None else an_integer(priority, "spec.priority"),
        priority_class_name=object_fields.text_at(spec, "priorityClassName", "spec"),
        placement=placement_rules(spec),
        owner=object_fields.owner_of(metadata),
        created_at_us=object_fields.time_us(
            metadata.get("creationTimestamp"), "metadata.creationTimestamp"
        ),
        node_name=node_name,
        stage=_stage(node_name, object_fields.text_at(status, "phase", "status")),
        kube_qos=object_fields.text_at(status, "qosClass", "status"),
    )


def _claim_entry(entry: object, path: str) -> None:
    said = an_object(entry, path)
    for name in ("name", "resourceClaimName", "resourceClaimTemplateName"):
        object_fields.text_at(said, name, path)


class PriorityClassObject(msgspec.Struct, frozen=True, rename="camel"):
    """What a PriorityClass gives to Pods that name it, or to all that name none."""

    PREEMPTS: ClassVar[str] = "PreemptLowerPriority"
    value: int
    global_default: bool = False
    preemption_policy: str = PREEMPTS


class ReviewedUser(msgspec.Struct, frozen=True):
    """Whom the API server takes the caller for."""

    username: str


class ReviewStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What a SelfSubjectReview answers."""

    user_info: ReviewedUser


class SelfSubjectReviewObject(msgspec.Struct, frozen=True):
    """An answered SelfSubjectReview."""

    status: ReviewStatus


def decode_quota(quota: Mapping[str, object]) -> Amounts:
    """Return what a ResourceQuota allows, by name. Raises InputError, with its field path."""
    items = object_fields.named(object_fields.spec_of(quota).get("hard"), "spec.hard")
    return {name: a_quantity(value, f"spec.hard[{name}]") for name, value in items.items()}


def _stage(node_name: str, phase: str) -> str:
    """cli.md, Running Pods: a deletionTimestamp does not end a Pod, its phase does."""
    if phase in ENDED_PHASES:
        return ENDED
    return RUNNING if node_name else PENDING


def _containers(spec: Mapping[str, object], vocabulary: Vocabulary) -> tuple[ContainerSpec, ...]:
    started = _section(spec, "initContainers", vocabulary, init=True)
    apps = _section(spec, "containers", vocabulary, init=False)
    if not apps:
        raise InputError("missing; expected at least one container", field="spec.containers")
    seen = set[str]()
    for container in (*started, *apps):
        if container.name in seen:
            raise InputError(
                f"two containers have one name: value={container.name!r}",
                field=f"{container.path}.name",
            )
        seen.add(container.name)
    return (*started, *apps)


def _section(
    spec: Mapping[str, object], key: str, vocabulary: Vocabulary, *, init: bool
) -> tuple[ContainerSpec, ...]:
    path = f"spec.{key}"
    return tuple(
        _container(item, number, f"{path}[{number}]", vocabulary, init=init)
        for number, item in enumerate(a_list(spec.get(key), path))
    )


def _container(
    value: object, number: int, path: str, vocabulary: Vocabulary, *, init: bool
) -> ContainerSpec:
    container = an_object(value, path)
    name = object_fields.text_at(container, "name", path)
    if not name:
        raise InputError("missing; expected a container name", field=f"{path}.name")
    resources = an_object(container.get("resources"), f"{path}.resources")
    requests, names, original = _amounts(
        resources.get("requests"), f"{path}.resources.requests", vocabulary
    )
    limits, limit_names, limit_texts = _amounts(
        resources.get("limits"), f"{path}.resources.limits", vocabulary
    )
    devices = vocabulary.device_names
    restarts = init and object_fields.text_at(container, "restartPolicy", path) == "Always"
    return ContainerSpec(
        name=name,
        index=container_index(number, init=init),
        kind=SIDECAR if restarts else INIT if init else APP,
        path=path,
        requests={**limits, **requests},
        limits={
            **{key: q for key, q in requests.items() if key in devices or is_extended(key)},
            **limits,
        },
        written={**limit_names, **names} if names or limit_names else names,
        original={
            **{key: text for key, text in limit_texts.items() if key not in original},
            **original,
        },
    )


def _amounts(
    value: object, path: str, vocabulary: Vocabulary
) -> tuple[dict[str, Quantity], dict[str, str], dict[str, str]]:
    """Return quantities by released name, the user's spelling where it differs, and the texts."""
    items = object_fields.named(value, path)
    amounts = {name: _amount(name, item, path, vocabulary) for name, item in items.items()}
    texts = {name: str(item) for name, item in items.items()}
    released = vocabulary.released
    aliases = [name for name in amounts if name in released]
    if not aliases:
        return amounts, {}, texts
    written = {
        released[name]: name
        for name in sorted(aliases, reverse=True)  # the first in text order counts
        if released[name] not in amounts
    }
    return vocabulary.canonical_resources(amounts), written, texts


def _amount(name: str, value: object, path: str, vocabulary: Vocabulary) -> Quantity:
    """
    Return one quantity, at most what can be counted exactly.

    Rule: design section 3, base units. A legal amount beyond 2^53-1 units (of CPU, thousandths)
    counts as the most there is, which no node has: the Pod does not fit, the input is no error.
    Device units become bytes or percent later, so there is a most of them, too.
    """
    most = vocabulary.units_max.get(name)
    known = _known_amount(name, value, most) if type(value) is str else None
    return _read_amount(name, value, most, f"{path}[{name}]") if known is None else known


@lru_cache(maxsize=4096)
def _known_amount(name: str, text: str, most: int | None) -> Quantity | None:
    try:
        return _read_amount(name, text, most, "")
    except InputError:
        return None


def _read_amount(name: str, value: object, most: int | None, field: str) -> Quantity:
    """Read one quantity; `most` is that of a device, None for any other resource."""
    quantity = a_quantity(value, field).rounded()
    if (most is not None or is_extended(name)) and not quantity.is_whole():
        raise InputError(f"must be a whole number: value={value!r}", field=field)
    if most is None:
        most = CPUS_MAX if name == CPU else INTEGER_MAX
    return min(quantity, Quantity(nanos=most * NANO, style=quantity.style))


def _pod_level(spec: Mapping[str, object], vocabulary: Vocabulary) -> tuple[Amounts, Amounts]:
    """Return requests and limits of the Pod as a whole, mostly none."""
    path = "spec.resources"
    level = an_object(spec.get("resources"), path)
    if not level:
        return {}, {}
    limits = _amounts(level.get("limits"), f"{path}.limits", vocabulary)[0]
    return _amounts(level.get("requests"), f"{path}.requests", vocabulary)[0], limits


def _cpu_and_memory(
    containers: tuple[ContainerSpec, ...],
    overhead: Amounts,
    *,
    requests: Amounts,
    limits: Amounts,
) -> tuple[int, int]:
    """Sum CPU and memory, capped; what `spec.resources` says for the Pod takes their place."""
    totals = pod_total(
        (container.kind, {name: q.nanos for name, q in container.requests.items()})
        for container in containers
    )
    for name in _POD_LEVEL_NAMES if requests or limits else ():
        if name in requests:
            totals[name] = requests[name].nanos
        elif name in limits and name not in totals:
            totals[name] = limits[name].nanos
    for name, quantity in overhead.items():
        totals[name] = totals.get(name, 0) + quantity.nanos
    cpu = Quantity(nanos=totals.get(CPU, 0)).milli()
    memory = Quantity(nanos=totals.get(MEMORY, 0)).ceil()
    return min(cpu, CPUS_MAX * 1000), min(memory, INTEGER_MAX)


def has_volume_claims(spec: Mapping[str, object]) -> bool:
    """Tell whether a Pod has volumes that may have to be bound before it is."""
    kinds = (kind for volume in object_fields.items_in(spec, "volumes") for kind in volume)
    return not _CLAIMED_VOLUMES.isdisjoint(kinds)


def why_in_part(spec: Mapping[str, object]) -> tuple[str, ...]:
    """Return why a gang with this member may start in part. Rule: docs/adr/0043."""
    given = {"resourceClaims": spec.get("resourceClaims"), "volumes": has_volume_claims(spec)}
    why = "kube-scheduler gives them before it binds the pod, so its gang may start in part"
    return tuple(f"spec.{field}: {why}" for field, is_there in given.items() if is_there)


def placement_rules(spec: Mapping[str, object]) -> PlacementRules:
    """
    Read node selector, required node affinity and tolerations of a Pod's `spec`.

    Rule: cli.md, Predicates; as kube-scheduler: terms are ORed, a term without expressions
    matches no node, and required affinity without such a term matches none at all.

    Raises:
        InputError: a wrong type, an unknown operator, or values that the operator does not take.
    """
    selector = spec.get("nodeSelector")
    affinity = spec.get("affinity")
    tolerations = spec.get("tolerations")
    if selector is None and affinity is None and tolerations is None:
        return ANYWHERE
    return PlacementRules(
        node_selector=tuple(sorted(object_fields.text_map(selector, "spec.nodeSelector").items())),
        affinity_terms=_affinity_terms(an_object(affinity, _AFFINITY)),
        tolerations=each(tolerations, "spec.tolerations", _toleration),
    )


def _affinity_terms(
    affinity: Mapping[str, object],
) -> tuple[tuple[MatchExpression, ...], ...] | None:
    node_affinity = an_object(affinity.get("nodeAffinity"), _NODE_AFFINITY)
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return None
    terms = an_object(required, _REQUIRED).get("nodeSelectorTerms")
    read = each(terms, f"{_REQUIRED}.nodeSelectorTerms", _term)
    return tuple(term for term in read if term)


def _term(value: object, path: str) -> tuple[MatchExpression, ...]:
    term = an_object(value, path)
    return (
        *each(term.get("matchExpressions"), f"{path}.matchExpressions", _expression),
        *each(term.get("matchFields"), f"{path}.matchFields", _field_expression),
    )


def _field_expression(value: object, path: str) -> MatchExpression:
    expression = _expression(value, path, is_field=True)
    if expression.key != _FIELD_NAME or expression.operator not in _SET_OPERATORS:
        raise InputError(f"only {_FIELD_NAME} with In or NotIn is a node field", field=path)
    return expression


def _expression(value: object, path: str, *, is_field: bool = False) -> MatchExpression:
    item = read(MatchExpression, value, path)
    operator, values = item.operator, item.values
    if not item.key:
        raise InputError("missing; expected a label key", field=f"{path}.key")
    if operator in _SET_OPERATORS:
        proper = bool(values)
    elif operator in _PRESENCE_OPERATORS:
        proper = not values
    elif operator in _ORDER_OPERATORS:
        digits = values[0].removeprefix("-") if len(values) == 1 else ""
        proper = digits.isascii() and digits.isdigit() and len(values[0]) < 20
    else:
        raise InputError(
            f"not one of In, NotIn, Exists, DoesNotExist, Gt, Lt: value={operator!r}",
            field=f"{path}.operator",
        )
    if not proper:
        raise InputError(
            f"operator {operator} does not take these: value={list(values)}", field=f"{path}.values"
        )
    return replace(item, is_field=True) if is_field else item


def _toleration(value: object, path: str) -> Toleration:
    toleration = read(Toleration, value, path)
    operator, effect = toleration.operator or "Equal", toleration.effect
    if operator not in _TOLERATION_OPERATORS:
        raise InputError(f"not one of Equal, Exists: value={operator!r}", field=f"{path}.operator")
    if effect not in _TOLERATION_EFFECTS:
        raise InputError(
            f"not one of NoSchedule, PreferNoSchedule, NoExecute: value={effect!r}",
            field=f"{path}.effect",
        )
    if not toleration.key and operator != "Exists":
        raise InputError("operator Equal needs a key", field=f"{path}.key")
    if operator == "Exists" and toleration.value:
        fact = f"operator Exists takes no value: value={toleration.value!r}"
        raise InputError(fact, field=f"{path}.value")
    return toleration if toleration.operator else replace(toleration, operator=operator)
