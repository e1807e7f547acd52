"""
Policies in the API server itself: what must hold while our Pods are down.

They see what CEL can see: the object, the one before it and who asks. Whose Pod a Binding is for
they can't see; that takes a look-up, and is the webhook's (`hooks`).
"""

from __future__ import annotations

from typing import Any, Final

from ledger.domain.annotations.guarded import (
    ADMISSION_ANNOTATIONS,
    ALLOCATION_ANNOTATIONS,
    ALLOCATION_PREFIXES,
    CHECKPOINT_ANNOTATIONS,
)
from ledger.domain.resources import (
    ANNOTATION_TENURE_ADMITTED,
    ANNOTATION_TENURE_VISIBLE_PREFIX,
    CPU,
    DOMAIN_TENURE,
    ENV_NVIDIA_VISIBLE,
    GPU,
    GPU_CORE,
    GPU_MEMORY_RATIO,
    LABEL_PRIORITY,
    LABEL_PRIORITY_CLASS,
    LABEL_QOS_CLASS,
    LABEL_TENURE_MANAGED,
    SLOT,
    device_names,
    proposal_name,
)
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating.forgery import ANNOTATION_MIRROR, NODES_GROUP
from webhook.decide.validating.words import PLACED_ANNOTATIONS, PLACED_LABELS
from webhook.manifests.cel import (
    CONTAINERS,
    any_container,
    asks_devices,
    holds_devices,
    key_matches,
    text,
    texts,
)
from webhook.manifests.owned_nodes import owned_nodes
from webhook.manifests.policy import Policy, PolicyOptions, objects, rule

_PINNED_CPUS: Final = ("LSE", "LSR")
_BLIND: Final = ("none", "void")
_PERCENT_NAMES: Final = (GPU, GPU_CORE, GPU_MEMORY_RATIO)


def policies(options: PolicyOptions) -> list[dict[str, Any]]:
    """
    Return every ValidatingAdmissionPolicy with its binding.

    Rule: design section 8, "what must hold on UPDATE, status, resize, ephemeral containers and
    Bindings is a policy in the API server"; Koordinator contract 5.4.
    """
    made: list[dict[str, Any]] = []
    for policy in _policies(options.settings):
        made += objects(policy, options)
    return made


def _policies(settings: AdmissionSettings) -> list[Policy]:
    accounts = texts(settings.service_accounts)
    others = {"by-others": f"!(request.userInfo.username in {accounts})"}
    is_ours = (
        f"has(object.spec.schedulerName) && object.spec.schedulerName == "
        f"{text(settings.scheduler_name)}"
    )
    shown_only = {"not-shown-by-kubelet": f"!({_is_mirror()})"}
    foreign = texts(settings.takeover.foreign_schedulers)
    ours_to_judge = {
        "not-of-a-foreign-scheduler": (
            f"!(has(object.spec.schedulerName) && object.spec.schedulerName in {foreign})"
        )
    }
    if not settings.takeover.foreign_schedulers:
        ours_to_judge = {}
    pods = ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]
    return [
        Policy(
            name="allocations",
            rules=[
                rule(["CREATE", "UPDATE"], pods),
                rule(["CREATE"], ["pods/binding", "bindings"]),
            ],
            conditions=others,
            variables=_before_and_after(),
            validations={
                "allocation annotations are written by Tenure alone": _unchanged(
                    _guarded(), admitted=True
                )
            },
        ),
        Policy(
            name="checkpoints",
            rules=[
                rule(
                    ["CREATE", "UPDATE"],
                    ["devices", "devices/status"],
                    group="scheduling.koordinator.sh",
                    versions=["v1alpha1"],
                    scope="Cluster",
                )
            ],
            conditions=others,
            variables=_before_and_after(),
            validations={
                "device checkpoints are written by Tenure alone": _unchanged(
                    key_matches("k", CHECKPOINT_ANNOTATIONS, (DOMAIN_TENURE,))
                )
            },
        ),
        Policy(
            name="marked",
            managed_only=True,
            rules=[rule(["CREATE"], ["pods"])],
            conditions={"asks-devices": asks_devices("object"), **shown_only},
            validations={
                "a Pod that asks for devices must pass Tenure's admission, which marks it: is the"
                " webhook registered and running?": (
                    "has(object.metadata.annotations)"
                    f" && {text(ANNOTATION_TENURE_ADMITTED)} in object.metadata.annotations"
                ),
                "a Pod that asks for devices can't choose its node: leave spec.nodeName empty": (
                    f"(request.userInfo.username in {accounts}) || !has(object.spec.nodeName)"
                    " || object.spec.nodeName == ''"
                ),
                "every container of a Pod that Tenure places is told which cards it sees: is the"
                " webhook registered and running?": (
                    f"!({is_ours}) || ({_every_container(_told())})"
                ),
            },
        ),
        Policy(
            name="requests",
            managed_only=True,
            rules=[rule(["CREATE"], ["pods"])],
            conditions={"asks-devices": asks_devices("object"), **shown_only, **ours_to_judge},
            validations={
                "requests and limits of devices must be equal": _every_container(_equal_devices()),
                "a percentage of a card above 100 must be a multiple of 100": _every_container(
                    _percents()
                ),
                f"{ENV_NVIDIA_VISIBLE} of a container that holds devices is set by Tenure alone": (
                    _every_container(f"!{holds_devices()} || !({_sets_visible()})")
                ),
            },
        ),
        Policy(
            name="cpus",
            managed_only=True,
            rules=[rule(["CREATE"], ["pods"])],
            conditions={"pins-cpus": _pins_cpus("object"), **shown_only, **ours_to_judge},
            validations={
                "LSE and LSR Pods ask for whole CPUs, with requests equal to limits": (
                    f"object.spec.containers.all(c, {_whole_cpus()})"
                ),
            },
        ),
        Policy(
            name="ephemeral",
            rules=[rule(["UPDATE"], ["pods/ephemeralcontainers"])],
            conditions={"ours": is_ours, "asks-devices": asks_devices("object")},
            validations={
                "an ephemeral container sees no cards: give it the environment"
                f" {ENV_NVIDIA_VISIBLE}=void, as Tenure's webhook does while it is running": (
                    _blind_ephemeral()
                ),
            },
        ),
        Policy(
            name="fixed",
            managed_only=True,
            rules=[rule(["UPDATE"], ["pods", "pods/resize", "pods/status"])],
            conditions={"not-reported-by-kubelet": f"!({_is_report()})", **ours_to_judge},
            validations={
                "the QoS class of a Pod never changes": _same_label(LABEL_QOS_CLASS),
                "devices of a Pod never change": _same_devices(),
                "the CPUs of an LSE or LSR Pod never change": (
                    f"!({_pins_cpus('oldObject')}) || {_same_cpus()}"
                ),
                "the sub-priority of a Pod never changes": _same_label(LABEL_PRIORITY),
                "what a Pod asks for in labels and annotations stays once it has a node": (
                    f"(request.userInfo.username in {accounts}) || !has(oldObject.spec.nodeName)"
                    f" || ({_same_words()})"
                ),
            },
        ),
        Policy(
            name="own",
            rules=[rule(["CREATE"], ["pods"])],
            conditions={
                "ours": is_ours,
                "takes-what-is-ours": (
                    f"{asks_devices('object')} || {any_container('object', _takes_slots())}"
                ),
                **shown_only,
            },
            validations={
                f"the scheduler {settings.scheduler_name} gives devices to Pods of managed"
                f" namespaces alone: label the namespace {LABEL_TENURE_MANAGED}=true": (
                    _in_managed()
                ),
                f"{SLOT} is given by Tenure: one to each container with devices": (
                    _every_container(f"!{_takes_slots()} || ({_own_slot()})")
                ),
            },
        ),
        Policy(
            name="owned",
            everywhere=True,
            rules=[rule(["CREATE", "UPDATE"], ["pods"])],
            conditions={"not-of-our-scheduler": f"!({is_ours})", **shown_only},
            variables={"devices": asks_devices("object")},
            validations=owned_nodes(settings),
        ),
        Policy(
            name="unasked",
            managed_only=True,
            warns=True,
            rules=[rule(["CREATE"], ["pods"])],
            conditions={
                "asks-no-devices": f"!{asks_devices('object')}",
                **shown_only,
                **ours_to_judge,
            },
            validations={
                f"{ENV_NVIDIA_VISIBLE} is set though the Pod asks for no GPU: it may see cards"
                " that others hold": _every_container(f"!({_sets_visible()})"),
            },
        ),
    ]


def _before_and_after() -> dict[str, str]:
    return {
        "after": "has(object.metadata.annotations) ? object.metadata.annotations : {}",
        "before": (
            "oldObject != null && has(oldObject.metadata.annotations)"
            " ? oldObject.metadata.annotations : {}"
        ),
    }


def _guarded() -> str:
    return key_matches("k", ALLOCATION_ANNOTATIONS, ALLOCATION_PREFIXES)


def _unchanged(guarded: str, *, admitted: bool = False) -> str:
    """Return that no guarded annotation is new, other or gone; a new Pod may carry our marks."""
    marks = (
        "(request.operation == 'CREATE' && request.kind.kind == 'Pod' && k in"
        f" {texts(ADMISSION_ANNOTATIONS)}) || "
        if admitted
        else ""
    )
    return (
        f"variables.after.all(k, !{guarded} || {marks}"
        "(k in variables.before && variables.before[k] == variables.after[k]))"
        f" && variables.before.all(k, !{guarded} || k in variables.after)"
    )


def _every_container(condition: str) -> str:
    parts = [
        f"(!has(object.spec.{name}) || object.spec.{name}.all(c, {condition}))"
        for name in CONTAINERS
    ]
    return " && ".join(parts)


def _amounts(kind: str, condition: str) -> str:
    """Return that a condition on `k` holds for every resource that `c` names under `kind`."""
    return (
        f"(!has(c.resources) || !has(c.resources.{kind}) || c.resources.{kind}.all(k, {condition}))"
    )


def _equal_devices() -> str:
    named = f"!(k in {texts(device_names())})"
    equal = (
        "has(c.resources.{other}) && k in c.resources.{other}"
        " && quantity(c.resources.limits[k]).compareTo(quantity(c.resources.requests[k])) == 0"
    )
    both = [
        _amounts(kind, f"{named} || ({equal.format(other=other)})")
        for kind, other in (("limits", "requests"), ("requests", "limits"))
    ]
    return " && ".join(both)


def _percents() -> str:
    names = [*_PERCENT_NAMES, *(proposal_name(name) for name in _PERCENT_NAMES)]
    amount = "quantity(c.resources.requests[k])"
    whole = f"{amount}.isInteger() && ({amount}.asInteger() <= 100"
    condition = f"!(k in {texts(names)}) || ({whole} || {amount}.asInteger() % 100 == 0))"
    return _amounts("requests", condition)


def _sets_visible() -> str:
    return (
        f"has(c.env) && c.env.exists(e, e.name == {text(ENV_NVIDIA_VISIBLE)}"
        f" && ((has(e.value) && e.value != '' && !(e.value in {texts(_BLIND)}))"
        f" || (has(e.valueFrom) && !({_refers_to_ours()}))))"
    )


def _refers_to_ours() -> str:
    """Return that the entry `e` of an environment reads what our scheduler wrote."""
    ours = f"metadata.annotations['{ANNOTATION_TENURE_VISIBLE_PREFIX}"
    return (
        "has(e.valueFrom) && has(e.valueFrom.fieldRef)"
        f" && e.valueFrom.fieldRef.fieldPath.startsWith({text(ours)})"
    )


def _told() -> str:
    """Return that the environment of `c` says what it sees, and nobody but us wrote that."""
    good = f"((has(e.value) && e.value in {texts(_BLIND)}) || ({_refers_to_ours()}))"
    name = f"e.name == {text(ENV_NVIDIA_VISIBLE)}"
    return f"(has(c.env) && c.env.exists(e, {name}) && c.env.all(e, !({name}) || {good}))"


def _blind_ephemeral() -> str:
    name = f"e.name == {text(ENV_NVIDIA_VISIBLE)}"
    blind = (
        f"has(c.env) && c.env.exists(e, {name})"
        f" && c.env.all(e, !({name}) || (has(e.value) && e.value in {texts(_BLIND)}))"
    )
    known = (
        "(has(oldObject.spec.ephemeralContainers)"
        " && oldObject.spec.ephemeralContainers.exists(d, d.name == c.name))"
    )
    return (
        "!has(object.spec.ephemeralContainers)"
        f" || object.spec.ephemeralContainers.all(c, {known} || ({blind}))"
    )


def _is_mirror() -> str:
    """Return that kubelet shows a static Pod: it runs whatever is answered."""
    key = text(ANNOTATION_MIRROR)
    return (
        f"{text(NODES_GROUP)} in request.userInfo.groups"
        f" && has(object.metadata.annotations) && {key} in object.metadata.annotations"
    )


def _is_report() -> str:
    """Return that kubelet writes a status; others can change labels and annotations by it."""
    return f"request.subResource == 'status' && {text(NODES_GROUP)} in request.userInfo.groups"


def _in_managed() -> str:
    labels, managed = "namespaceObject.metadata.labels", text(LABEL_TENURE_MANAGED)
    return f"has({labels}) && {managed} in {labels} && {labels}[{managed}] == 'true'"


def _takes_slots() -> str:
    """Return that the container `c` asks for a slot by which the device plugin knows it."""
    limits, slot = "c.resources.limits", text(SLOT)
    return (
        f"(has(c.resources) && has({limits}) && {slot} in {limits}"
        f" && quantity({limits}[{slot}]).isGreaterThan(quantity('0')))"
    )


def _own_slot() -> str:
    slot = f"quantity(c.resources.limits[{text(SLOT)}])"
    return f"{holds_devices()} && {slot}.compareTo(quantity('1')) == 0"


def _same_words() -> str:
    """Return that nothing changes by which a Pod was placed."""
    parts = []
    for field_name, keys in (
        ("labels", (*PLACED_LABELS, LABEL_PRIORITY_CLASS)),
        ("annotations", PLACED_ANNOTATIONS),
    ):
        one, other = (
            f"(has({pod}.metadata.{field_name}) && k in {pod}.metadata.{field_name}"
            f" ? {pod}.metadata.{field_name}[k] : '')"
            for pod in ("object", "oldObject")
        )
        parts.append(f"{texts(keys)}.all(k, {one} == {other})")
    return " && ".join(parts)


def _pins_cpus(pod: str) -> str:
    label = text(LABEL_QOS_CLASS)
    return (
        f"has({pod}.metadata.labels) && {label} in {pod}.metadata.labels"
        f" && {pod}.metadata.labels[{label}] in {texts(_PINNED_CPUS)}"
    )


def _whole_cpus() -> str:
    request, limit = f"c.resources.requests[{text(CPU)}]", f"c.resources.limits[{text(CPU)}]"
    absent = f"!has(c.resources) || !has(c.resources.requests) || !({text(CPU)} in"
    return (
        f"({absent} c.resources.requests)) || (quantity({request}).isInteger()"
        f" && has(c.resources.limits) && {text(CPU)} in c.resources.limits"
        f" && quantity({limit}).compareTo(quantity({request})) == 0)"
    )


def _same_label(label: str) -> str:
    name = text(label)
    values = [
        f"(has({one}.metadata.labels) && {name} in {one}.metadata.labels"
        f" ? {one}.metadata.labels[{name}] : '')"
        for one in ("object", "oldObject")
    ]
    return " == ".join(values)


def _same_devices() -> str:
    """Return that no container's devices change; containers can't be added or moved."""
    named = f"k in {texts(device_names())}"
    parts = []
    for one, other in (("object", "oldObject"), ("oldObject", "object")):
        for section in CONTAINERS:
            same = _has_same(f"{other}.spec.{section}", "k")
            condition = _amounts("requests", f"!({named}) || {same}")
            parts.append(_all_of(f"{one}.spec.{section}", condition))
    return " && ".join(parts)


def _has_same(containers: str, resource: str) -> str:
    """Return that the container called as `c` among these asks for as much of a resource as `c`."""
    return (
        f"{containers}.exists(d, d.name == c.name && has(d.resources)"
        f" && has(d.resources.requests) && {resource} in d.resources.requests"
        f" && quantity(d.resources.requests[{resource}])"
        f".compareTo(quantity(c.resources.requests[{resource}])) == 0)"
    )


def _all_of(containers: str, condition: str) -> str:
    """Return that a condition on `c` holds for all of these containers, if there are any."""
    return f"(!has({containers}) || {containers}.all(c, {condition}))"


def _same_cpus() -> str:
    cpu = text(CPU)
    asked = f"has(c.resources) && has(c.resources.requests) && {cpu} in c.resources.requests"
    return " && ".join(
        _all_of(
            f"object.spec.{section}", f"!({asked}) || {_has_same(f'oldObject.spec.{section}', cpu)}"
        )
        for section in CONTAINERS
    )
