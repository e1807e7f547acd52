"""
Policies in the API server itself: what must hold while our Pods are down.

They see what CEL can see: the object, the one before it and who asks. Whose Pod a Binding is for
they can't see; that takes a look-up, and is the webhook's (`hooks`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from ledger.domain import resources as res
from ledger.domain.annotations.guarded import (
    ADMISSION_ANNOTATIONS,
    ALLOCATION_ANNOTATIONS,
    ALLOCATION_PREFIXES,
    CHECKPOINT_ANNOTATIONS,
    TOPOLOGY_ANNOTATIONS,
)
from ledger.domain.vocabulary import DEFAULT_VOCABULARY
from webhook.decide.validating.forgery import ANNOTATION_MIRROR, NODES_GROUP
from webhook.manifests import cel, fixed, hooks
from webhook.manifests.dialects.registry import POLICIES
from webhook.manifests.policy import Policy, PolicyOptions, combined, objects, rule

_EVERY_KEY: Final = "variables.after.map(k, k) + variables.before.map(k, k)"
_PERCENT_NAMES: Final = (res.GPU, res.GPU_CORE, res.GPU_MEMORY_RATIO)
_WHOLE_CPUS: Final = "LSE and LSR Pods ask for whole CPUs"


def policies(options: PolicyOptions) -> list[dict[str, Any]]:
    """
    Return every ValidatingAdmissionPolicy with its binding.

    Rule: design section 8, "what must hold on UPDATE, status, resize, ephemeral containers and
    Bindings is a policy in the API server"; Koordinator contract 5.4.
    """
    return [each for policy in _policies(options) for each in objects(policy, options)]


def _policies(options: PolicyOptions) -> list[Policy]:
    settings = options.settings
    devices = settings.vocabulary.device_names
    accounts = cel.texts(settings.service_accounts)
    others = {"by-others": f"!(request.userInfo.username in {accounts})"}
    is_ours = (
        f"has(object.spec.schedulerName) && object.spec.schedulerName == "
        f"{cel.text(settings.scheduler_name)}"
    )
    shown_only = {"not-shown-by-kubelet": f"!({_is_mirror()})"}
    foreign = cel.texts(settings.takeover.foreign_schedulers)
    ours_to_judge = {
        "not-of-a-foreign-scheduler": (
            f"!(has(object.spec.schedulerName) && object.spec.schedulerName in {foreign})"
        )
    }
    if not settings.takeover.foreign_schedulers:
        ours_to_judge = {}
    was_marked = f"(oldObject != null && {_marked('oldObject')})"
    of_managed = {
        "of-managed": f"{_in_managed()} || {is_ours} || {_marked('object')} || {was_marked}"
    }
    pods = ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]
    unpinned = {
        "a Pod that asks for devices or CPUs of its own can't choose its node: leave spec.nodeName"
        " empty": f"request.userInfo.username in {accounts} || !has(object.spec.nodeName)"
        " || object.spec.nodeName == ''"
    }
    asks = f"{cel.takes('object', devices)} || ({fixed.pins_cpus('object')}) || {fixed.CLAIMS}"
    allocations = Policy(
        name="allocations",
        rules=[rule(["CREATE", "UPDATE"], pods)],
        conditions=others,
        gate=cel.annotated_anew(
            ALLOCATION_ANNOTATIONS | ADMISSION_ANNOTATIONS, ALLOCATION_PREFIXES
        ),
        variables=_before_and_after(_of_many_keys(ALLOCATION_ANNOTATIONS, ALLOCATION_PREFIXES)),
        validations={
            "allocation annotations are written by Tenure alone": _unchanged(
                cel.key_matches(ALLOCATION_ANNOTATIONS, ALLOCATION_PREFIXES), admitted=True
            )
        },
    )
    bound = [rule(["CREATE"], ["pods/binding", "bindings"])]
    agents_label = (
        f"!{cel.any_key('object.metadata.labels', (res.LABEL_TENURE_CPU_MANAGED,), ())}"
        f" || ({fixed.same_label(res.LABEL_TENURE_CPU_MANAGED)})"
    )
    of_others = [
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
                    cel.key_matches(CHECKPOINT_ANNOTATIONS, (res.DOMAIN_TENURE,))
                ),
                "who holds a device is said in its status by Tenure alone": (
                    f"{_allocations('object')} == {_allocations('oldObject')}"
                ),
            },
        ),
        Policy(
            name="topologies",
            rules=[
                rule(
                    ["CREATE", "UPDATE"],
                    ["noderesourcetopologies"],
                    group="topology.node.k8s.io",
                    versions=["v1alpha1", "v1alpha2"],
                    scope="Cluster",
                )
            ],
            conditions=others,
            variables=_before_and_after(),
            validations={
                "the CPUs that kubelet pinned are written by Tenure alone": _unchanged(
                    cel.key_matches(TOPOLOGY_ANNOTATIONS, (res.DOMAIN_TENURE,))
                )
            },
        ),
        Policy(
            name="nodes",
            rules=[rule(["CREATE", "UPDATE"], ["nodes", "nodes/status"], scope="Cluster")],
            conditions=others,
            gate=f"({cel.annotated_anew((), (res.DOMAIN_TENURE,))}) || !({agents_label})",
            variables=_before_and_after(),
            validations={
                f"annotations of a Node in {res.DOMAIN_TENURE} are written by Tenure"
                " alone": _unchanged(cel.key_matches((), (res.DOMAIN_TENURE,))),
                f"the label {res.LABEL_TENURE_CPU_MANAGED} of a Node is set by Tenure's agent"
                " alone": (agents_label),
            },
        ),
        Policy(
            name="holding",
            everywhere=True,
            rules=[
                rule(
                    ["CREATE", "UPDATE"],
                    ["namespaces", "namespaces/status", "namespaces/finalize"],
                    scope="Cluster",
                )
            ],
            gate=f"!({fixed.same_label(res.LABEL_TENURE_HOLDING)}) || {_is_holding('oldObject')}",
            validations={
                f"the label {res.LABEL_TENURE_HOLDING} is written by Tenure alone": (
                    f"request.userInfo.username in {accounts}"
                    f" || {fixed.same_label(res.LABEL_TENURE_HOLDING)}"
                ),
                f"a namespace stays managed while the label {res.LABEL_TENURE_HOLDING} says that"
                " Pods there hold something: end them first": (
                    f"!({_is_managed('oldObject')} && {_is_holding('oldObject')})"
                    f" || {_is_managed('object')}"
                ),
            },
        ),
    ]
    shows_none = hooks.every_new_ephemeral(f"!({hooks.chooses_devices(may_read=False)})")
    of_pods = [
        Policy(
            name="marked",
            rules=[rule(["CREATE"], ["pods"])],
            conditions={"asks-devices": cel.takes("object", devices), **shown_only},
            within={"in-managed": _in_managed()},
            variables={"sights": hooks.sights()},
            validations={
                "a Pod that asks for devices must pass Tenure's admission, which marks it: is the"
                " webhook registered and running?": (_marked("object")),
                "every container of a Pod that Tenure places is told which cards it sees: is the"
                " webhook registered and running?": (
                    f"!({is_ours}) || variables.sights.all(n, n % 10 == 1 || n >= 10)"
                ),
            },
        ),
        Policy(
            name="requests",
            rules=[rule(["CREATE"], ["pods"])],
            conditions={
                "asks-devices": cel.takes("object", devices),
                **shown_only,
                **ours_to_judge,
            },
            within=of_managed,
            variables={"sights": hooks.sights()},
            validations={
                "requests and limits of devices must be equal": _every_container(
                    _equal_devices(devices)
                ),
                "a percentage of a card above 100 must be a multiple of 100": (
                    _every_container(_percents())
                ),
                "what a container that holds devices sees is set by Tenure alone:"
                f" {res.ENV_NVIDIA_VISIBLE}, or a volume mount below {res.NVIDIA_DEVICE_MOUNTS}": (
                    "!variables.sights.exists(n, n % 10 == 2)"
                    f" && {_every_container(f'!{hooks.mounts_devices()}')}"
                ),
                f"the CDI devices of a Pod that holds devices are given by Tenure alone:"
                f" no annotation in {res.DOMAIN_CDI}": f"!({hooks.names_cdi('variables.noted')})",
                **unpinned,
            },
        ),
        Policy(
            name="cpus",
            rules=[rule(["CREATE"], ["pods"])],
            conditions={"pins-cpus": fixed.pins_cpus("object"), **shown_only, **ours_to_judge},
            within=of_managed,
            variables=fixed.cpu_variables(),
            validations={
                "LSE and LSR Pods ask for CPUs with requests equal to limits": (
                    fixed.equal_limits(res.CPU)
                ),
                "LSE and LSR Pods ask for memory with requests equal to limits": (
                    fixed.equal_limits(res.MEMORY)
                ),
                _WHOLE_CPUS: fixed.whole_cpus(),
                **unpinned,
            },
            messages={_WHOLE_CPUS: fixed.whole_cpus_words(_WHOLE_CPUS)},
        ),
        *(policy for made in POLICIES for policy in made(settings, shown_only)),
        Policy(
            name="ephemeral",
            rules=[rule(["UPDATE"], ["pods/ephemeralcontainers"])],
            conditions=ours_to_judge,
            gate=f"({is_ours}) || !({shows_none})",
            within=of_managed,
            validations={
                "an ephemeral container sees no cards: give it the environment"
                f" {res.ENV_NVIDIA_VISIBLE}=void, as Tenure's webhook does while it is running": (
                    f"!({is_ours} && variables.asks_devices)"
                    f" || ({hooks.every_new_ephemeral(hooks.told_of_none())})"
                ),
                f"an ephemeral container gets no cards by {res.ENV_NVIDIA_VISIBLE}, nor by a volume"
                f" mount below {res.NVIDIA_DEVICE_MOUNTS}": shows_none,
            },
        ),
        Policy(
            name="fixed",
            rules=[rule(["UPDATE"], ["pods", "pods/resize", "pods/status"])],
            conditions={"not-reported-by-kubelet": f"!({_is_report()})", **ours_to_judge},
            gate=fixed.changes_what_stays(),
            within=of_managed,
            variables={"untouched": fixed.untouched()},
            validations={
                "the QoS class of a Pod never changes": fixed.same_label(res.LABEL_QOS_CLASS),
                "devices of a Pod never change": (
                    f"variables.untouched || ({fixed.same_amounts(devices)})"
                ),
                "the CPUs of a Pod that has some of its own never change": (
                    f"variables.untouched || !({fixed.holds_cpus('oldObject')})"
                    f" || ({fixed.same_amounts((res.CPU,))})"
                ),
                "the sub-priority of a Pod never changes": fixed.same_label(res.LABEL_PRIORITY),
                "the priority class of a Pod never changes": fixed.same_class(),
                "what a Pod asks for in labels and annotations stays once it has a node": (
                    f"(request.userInfo.username in {accounts})"
                    f" || !has(oldObject.spec.nodeName) || ({fixed.same_words()})"
                ),
                f"no Pod gains CDI devices by an annotation in {res.DOMAIN_CDI}": (
                    f"request.userInfo.username in {accounts}"
                    f" || !({hooks.names_cdi('variables.noted')})"
                ),
            },
        ),
        Policy(
            name="own",
            rules=[rule(["CREATE"], ["pods"])],
            conditions={
                "ours": is_ours,
                "takes-what-is-ours": f"{asks} || {cel.any_container('object', _takes_slots())}",
                **shown_only,
            },
            validations={
                f"the scheduler {settings.scheduler_name} gives devices and CPUs to Pods of managed"
                f" namespaces alone: label the namespace {res.LABEL_TENURE_MANAGED}=true": (
                    f"{_in_managed()} || !({asks})"
                ),
                f"{res.SLOT} is given by Tenure: one to each container with devices": (
                    _every_container(f"!{_takes_slots()} || ({_own_slot(devices)})")
                ),
            },
        ),
        Policy(
            name="owned",
            everywhere=True,
            rules=[rule(["CREATE", "UPDATE"], ["pods"])],
            conditions={"not-of-our-scheduler": f"!({is_ours})", **shown_only},
            gate=fixed.may_meet_owned_nodes(settings),
            validations=fixed.owned_nodes(settings),
        ),
    ]
    return [
        combined("pods", [*of_pods, allocations], options),
        replace(
            allocations, name="bindings", rules=bound, gate="true", variables=_before_and_after()
        ),
        *of_others,
    ]


def _marked(pod: str) -> str:
    there, key = f"{pod}.metadata.annotations", cel.text(res.ANNOTATION_TENURE_ADMITTED)
    return f"(has({there}) && {key} in {there} && {there}[{key}] == 'true')"


def _before_and_after(keys: str = _EVERY_KEY) -> dict[str, str]:
    noted = "'%s'.format([[variables.after, variables.before]])"
    return {"after": cel.AFTER, "before": cel.BEFORE, "noted": noted, "keys": keys}


def _of_many_keys(names: Iterable[str], prefixes: Iterable[str]) -> str:
    """
    Return such keys of a Pod's annotations, and what else looks so, by calls that do not loop.

    The API server itself takes no key of a Pod with a quotation mark in it. The price of one
    search is 1,000,000 at most, so that the first letters do. One value can have
    37,000 texts that look so: all keys, where those are fewer.
    """
    looks = [cel.text(re.escape(each) + '[^"]*') for each in cel.beginnings(prefixes)]
    found = " + ".join([cel.texts(names), *(f"variables.noted.findAll({each})" for each in looks)])
    fewer = "l.size() < variables.after.size() + variables.before.size()"
    return f"[{found}].map(l, {fewer} ? l : {_EVERY_KEY})[0]"


def _unchanged(guarded: str, *, admitted: bool = False) -> str:
    marks = (
        "(request.operation == 'CREATE' && request.kind.kind == 'Pod' && k in"
        f" {cel.texts(ADMISSION_ANNOTATIONS)}) || "
        if admitted
        else ""
    )
    same = "k in variables.before && variables.before[k] == variables.after[k]"
    stays = f"k in variables.after ? ({marks}({same})) : !(k in variables.before)"
    return f"variables.keys.all(k, !{guarded} || ({stays}))"


def _every_container(condition: str) -> str:
    parts = [
        f"(!has(object.spec.{name}) || object.spec.{name}.all(c, {condition}))"
        for name in cel.CONTAINERS
    ]
    return " && ".join(parts)


def _amounts(kind: str, condition: str) -> str:
    """Return that a condition on `k` holds for every resource that `c` names under `kind`."""
    return (
        f"(!has(c.resources) || !has(c.resources.{kind}) || c.resources.{kind}.all(k, {condition}))"
    )


def _equal_devices(devices: frozenset[str]) -> str:
    named = f"!(k in {cel.texts(devices)})"
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
    names = [*_PERCENT_NAMES, *map(DEFAULT_VOCABULARY.proposal_name, _PERCENT_NAMES)]
    amount, asked = "quantity(c.resources.requests[k])", "c.resources.requests"
    units, cards = (
        f"{amount}.asInteger()",
        f"quantity({asked}[{cel.text(res.GPU_SHARED)}]).asInteger()",
    )
    share = f"{cards} > 0 && {units} % {cards} == 0 && {units} / {cards} <= 100"
    alone = f"{units} <= 100 || {units} % 100 == 0"
    whole = (
        f"{amount}.isInteger() && ({cel.text(res.GPU_SHARED)} in {asked} ? ({share}) : ({alone}))"
    )
    condition = f"!(k in {cel.texts(names)}) || ({whole})"
    return _amounts("requests", condition)


def _is_mirror() -> str:
    """Return that kubelet shows a static Pod: it runs whatever is answered."""
    key = cel.text(ANNOTATION_MIRROR)
    return (
        f"{cel.text(NODES_GROUP)} in request.userInfo.groups"
        f" && has(object.metadata.annotations) && {key} in object.metadata.annotations"
    )


def _is_report() -> str:
    """Return that kubelet writes a status; others can change labels and annotations by it."""
    return f"{cel.PATH} == 'status' && {cel.text(NODES_GROUP)} in request.userInfo.groups"


def _in_managed() -> str:
    return _is_managed("namespaceObject")


def _is_managed(namespace: str) -> str:
    labels, managed = f"{namespace}.metadata.labels", cel.text(res.LABEL_TENURE_MANAGED)
    opted = f"has({labels}) && {managed} in {labels} && {labels}[{managed}] == 'true'"
    return f"({namespace} != null && {opted})"


def _is_holding(namespace: str) -> str:
    """Return that our scheduler keeps a Namespace's label, since Pods there hold something."""
    labels = f"{namespace}.metadata.labels"
    holding = cel.text(res.LABEL_TENURE_HOLDING)
    return f"({namespace} != null && has({labels}) && {holding} in {labels})"


def _allocations(device: str) -> str:
    there = f"{device} != null && has({device}.status) && has({device}.status.allocations)"
    return f"({there} ? {device}.status.allocations : [])"


def _takes_slots() -> str:
    """Return that the container `c` asks for a slot by which the device plugin knows it."""
    limits, slot = "c.resources.limits", cel.text(res.SLOT)
    return (
        f"(has(c.resources) && has({limits}) && {slot} in {limits}"
        f" && quantity({limits}[{slot}]).isGreaterThan(quantity('0')))"
    )


def _own_slot(devices: frozenset[str]) -> str:
    slot = f"quantity(c.resources.limits[{cel.text(res.SLOT)}])"
    return f"{cel.holds('c.resources', devices)} && {slot}.compareTo(quantity('1')) == 0"
