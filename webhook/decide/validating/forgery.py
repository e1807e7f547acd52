"""Who may say what is held: allocation annotations, checkpoints, visible devices, pinned Pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ledger.domain import resources
from ledger.domain.annotations import guarded
from ledger.domain.annotations.wire import an_object, annotation_path, label_path
from ledger.domain.errors import FieldError
from ledger.domain.kube.object_fields import annotations_of, labels_of
from ledger.domain.kube.pod_spec import PodSpec
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, of_rule
from webhook.decide.review import CREATE, AdmissionRequest, User
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating.findings import Json, shown

NODES_GROUP: Final = "system:nodes"
ANNOTATION_MIRROR: Final = "kubernetes.io/config.mirror"


def is_ours(user: User, settings: AdmissionSettings) -> bool:
    """Tell whether a request comes from one of our own service accounts."""
    return user.name in settings.service_accounts


@of_rule(Rule.FORGED_ALLOCATION)
def check_allocations(
    request: AdmissionRequest, settings: AdmissionSettings
) -> Iterator[FieldError]:
    """
    Yield every allocation annotation of a Pod or a Binding that is not its writer's to write.

    Rule: Koordinator contract 5.4; GPU-sharing contract A.3, ours; design section 5.1.

    A value that stays as it was is nobody's doing. On CREATE the marks that our own mutating
    webhook has just put there are taken; later they stay as they are.
    """
    if is_ours(request.user, settings):
        return
    fresh = guarded.ADMISSION_ANNOTATIONS if request.operation == CREATE else frozenset[str]()
    yield from _changed(
        request,
        lambda key: guarded.is_allocation(key) and key not in fresh,
        "says which devices and CPUs a pod holds",
    )


@of_rule(Rule.FORGED_DEVICE)
def check_checkpoints(
    request: AdmissionRequest, settings: AdmissionSettings
) -> Iterator[FieldError]:
    """
    Yield every checkpoint and allocation of a Device that is not its writer's to write.

    Rule: Koordinator contract 2.7 and 3.1, ours: the agent reports both.
    """
    if is_ours(request.user, settings):
        return
    yield from _changed(request, guarded.is_checkpoint, "says what kubelet handed out")
    before, after = _status_allocations(request.old), _status_allocations(request.obj)
    if before != after:
        fact = "only Tenure's service accounts may change it: it says which pods hold the devices"
        yield forbidden("status.allocations", fact)


@of_rule(Rule.FORGED_TOPOLOGY)
def check_pinned_cpus(
    request: AdmissionRequest, settings: AdmissionSettings
) -> Iterator[FieldError]:
    """
    Yield every set of pinned CPUs on a NodeResourceTopology that somebody else writes.

    Rule: cli.md, Running Pods: adoption believes them.
    """
    if not is_ours(request.user, settings):
        yield from _changed(request, guarded.is_pinned_cpus, "says which CPUs kubelet pinned")


@of_rule(Rule.FORGED_NODE)
def check_node_marks(
    request: AdmissionRequest, settings: AdmissionSettings
) -> Iterator[FieldError]:
    """
    Yield every annotation in our own domain, and the agent's label, that others write on a Node.

    Rule: design section 5: a release wakes waiting Pods by its annotation. Anybody takes the label
    off, as where the agent is gone.
    """
    if not is_ours(request.user, settings):
        new = labels_of(request.obj).get(resources.LABEL_TENURE_CPU_MANAGED)
        if new not in {None, labels_of(request.old).get(resources.LABEL_TENURE_CPU_MANAGED)}:
            fact = "only Tenure's agent may set it: it says that CPUs are bound there"
            yield forbidden(label_path(resources.LABEL_TENURE_CPU_MANAGED), fact)
        yield from _changed(
            request, lambda key: key.startswith(resources.DOMAIN_TENURE), "is Tenure's own"
        )


@of_rule(Rule.RESERVE_POD)
def check_reserve_pod(
    request: AdmissionRequest, settings: AdmissionSettings
) -> Iterator[FieldError]:
    """
    Yield the violation when a user's Pod passes itself off as a reservation.

    Rule: Koordinator contract 5.3.
    """
    if not is_ours(request.user, settings):
        yield from _changed(
            request,
            lambda key: key == resources.ANNOTATION_RESERVE_POD,
            "marks a reservation, which is no pod of a user",
        )


@of_rule(Rule.PINNED_NODE)
def check_pinned(spec: PodSpec, *, managed: bool, cpuset: bool) -> Iterator[FieldError]:
    """
    Yield the violation when a new Pod that asks for something of ours already has a node.

    Rule: cli.md, tenure check; design section 8: it would take a card that nobody gave it.

    Args:
        managed: where it is not, the device plugins' own names (`nvidia.com/gpu`) are not ours.
        cpuset: the Pod gets CPUs of its own.
    """
    if spec.node_name:
        what = asked_of_us(spec, managed=managed, cpuset=cpuset)
        if what:
            fact = f"a pod that asks for {what} gets its node from the scheduler"
            yield forbidden("spec.nodeName", f"{fact}; leave {shown(spec.node_name)} out")


def asked_of_us(spec: PodSpec, *, managed: bool, cpuset: bool) -> str:
    """Return the first thing of ours that a Pod asks for, in its own spelling, or nothing."""
    devices = spec.vocabulary.device_names
    for container in spec.containers:
        for name, quantity in container.requests.items():
            if quantity and name in devices and (managed or name not in resources.SHARED_GPU_NAMES):
                return container.written.get(name, name)
    return "CPUs of its own" if managed and cpuset else ""


def is_mirror(request: AdmissionRequest) -> bool:
    """
    Tell whether kubelet shows a static Pod, which runs whatever we answer.

    Refusing it would only hide it: it is said, and reported as drift.
    """
    return NODES_GROUP in request.user.groups and ANNOTATION_MIRROR in annotations_of(request.obj)


def _changed(
    request: AdmissionRequest, ours: Callable[[str], bool], why: str
) -> Iterator[FieldError]:
    before, after = annotations_of(request.old), annotations_of(request.obj)
    for key in dict.fromkeys((*after, *before)):
        old, new = before.get(key), after.get(key)
        if old != new and ours(key):
            fact = f"only Tenure's service accounts may {_act(old, new)}: it {why}"
            yield forbidden(annotation_path(key), fact)


def _act(old: str | None, new: str | None) -> str:
    if old is None:
        return f"set it (here {shown(new or '')})"
    if new is None:
        return f"remove it (it is {shown(old)})"
    return f"change it (here from {shown(old)} to {shown(new)})"


def _status_allocations(obj: Json | None) -> object:
    status = {} if obj is None else an_object(obj.get("status"), "status")
    return status.get("allocations") or None
