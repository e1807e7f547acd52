"""
What a Pod was placed by stays, its CPUs are whole, our nodes are kept: in CEL, for the API server.

Resources can stand in containers, init containers and the Pod as a whole, in requests and limits;
every rule here looks at all of them. Overhead can't change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ledger.domain import resources as res
from ledger.domain.annotations.qos import PRIORITY_RANGES
from ledger.domain.kube.pod_spec import CPUS_MAX
from ledger.domain.request.cpus import OWN_CPUS
from ledger.domain.request.rules import WHOLE_CPUS
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating.words import PLACED_ANNOTATIONS, PLACED_LABELS
from webhook.manifests.cel import AFTER, BEFORE, CONTAINERS, takes, text, texts

CLAIMS: Final = "(has(object.spec.resourceClaims) && object.spec.resourceClaims.size() > 0)"
_BY_NAME: Final = f"has(t.key) && t.key == {text(res.TAINT_TENURE_OWNED)}"
_EVERYTHING: Final = "(!has(t.key) || t.key == '') && has(t.operator) && t.operator == 'Exists'"
_TERMS: Final = (
    "object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    ".nodeSelectorTerms"
)


def owned_nodes(settings: AdmissionSettings) -> Mapping[str, str]:
    """
    Return the validations of a Pod that our scheduler does not place.

    Rule: design section 5.1, In all namespaces, by policy. A Pod can gain tolerations after it was
    created; one that had them before may still change otherwise. `variables.asks_devices` is there.
    """
    ours = settings.scheduler_name
    words = settings.vocabulary
    offered = words.advertised_names()
    ours_alone = words.device_names - res.SHARED_GPU_NAMES
    return {
        f"a Pod that asks for a device tolerates {res.TAINT_TENURE_OWNED} by the scheduler {ours}"
        " alone": f"!{_gains(_BY_NAME)} || !(variables.asks_devices || {CLAIMS})",
        "a Pod that asks for a device that nodes of Tenure's advertise and tolerates everything is"
        f" kept off them: node affinity {res.LABEL_TENURE_OWNED} DoesNotExist, or node selector"
        f" {res.LABEL_TENURE_OWNED}=false": (
            f"!{_gains(_EVERYTHING)} || {_kept_off()} || !{takes('object', offered)}"
        ),
        "a Pod that asks for a device of Tenure's can't choose its node: leave spec.nodeName out": (
            "request.operation != 'CREATE' || !has(object.spec.nodeName)"
            f" || object.spec.nodeName == '' || !{takes('object', ours_alone)}"
        ),
        f"what is in {res.DOMAIN_TENURE} is given to Pods of the scheduler {ours} alone": (
            f"request.operation != 'CREATE' || !{takes('object', (), (res.DOMAIN_TENURE,))}"
        ),
    }


def may_meet_owned_nodes(settings: AdmissionSettings) -> str:
    """Return what is true of every Pod that `owned_nodes` refuses, without variables."""
    words = settings.vocabulary
    some = takes("object", words.device_names | words.advertised_names(), (res.DOMAIN_TENURE,))
    gains = f"({_gains(_BY_NAME)} || {_gains(_EVERYTHING)})"
    return f"(request.operation == 'CREATE' || {gains}) && ({some} || ({CLAIMS} && {gains}))"


def _gains(toleration: str) -> str:
    now, before = (
        f"(has({pod}.spec.tolerations) && {pod}.spec.tolerations.exists(t, {toleration}))"
        for pod in ("object", "oldObject")
    )
    return f"({now} && (oldObject == null || !{before}))"


def _kept_off() -> str:
    label = text(res.LABEL_TENURE_OWNED)
    selected = (
        f"(has(object.spec.nodeSelector) && {label} in object.spec.nodeSelector"
        f" && object.spec.nodeSelector[{label}] != 'true')"
    )
    excluded = (
        f"e.key == {label} && (e.operator == 'DoesNotExist'"
        " || (e.operator == 'NotIn' && 'true' in e.values)"
        " || (e.operator == 'In' && !('true' in e.values)))"
    )
    nowhere = "!has(t.matchExpressions) && !has(t.matchFields)"
    term = f"({nowhere}) || (has(t.matchExpressions) && t.matchExpressions.exists(e, {excluded}))"
    required = _TERMS.rpartition(".")[0]
    there = f"has(object.spec.affinity) && has({required.rpartition('.')[0]}) && has({required})"
    return f"({selected} || ({there} && {_TERMS}.all(t, {term})))"


_KINDS: Final = ("requests", "limits")
_SOME_CPUS: Final = r"\"cpuset\"\s*:\s*\"[^\"]"


def pins_cpus(pod: str) -> str:
    """Return that a Pod asks for CPUs of its own."""
    label = text(res.LABEL_QOS_CLASS)
    return (
        f"has({pod}.metadata.labels) && {label} in {pod}.metadata.labels"
        f" && {pod}.metadata.labels[{label}] in {texts(map(str, OWN_CPUS))}"
    )


def holds_cpus(pod: str) -> str:
    """Return that a Pod has CPUs of its own, asked for or given by the policy of its node."""
    there, key = f"{pod}.metadata.annotations", text(res.ANNOTATION_RESOURCE_STATUS)
    given = f"has({there}) && {key} in {there} && {there}[{key}].matches({text(_SOME_CPUS)})"
    return f"({pins_cpus(pod)}) || ({given})"


def equal_limits(resource: str) -> str:
    """Return that each request of a resource equals its limit; the whole Pod's if it has both."""
    each = f"!has(c.resources) || ({_equal('c.resources', resource)})"
    containers = [
        f"(!has(object.spec.{section}) || object.spec.{section}.all(c, {each}))"
        for section in CONTAINERS
    ]
    limits, requests = (f"object.spec.resources.{kind}" for kind in _KINDS[::-1])
    both = " && ".join(f"has({one}) && {text(resource)} in {one}" for one in (limits, requests))
    same = _equal("object.spec.resources", resource)
    level = f"(!has(object.spec.resources) || !({both}) || ({same}))"
    return " && ".join([*containers, level])


def cpu_variables() -> Mapping[str, str]:
    """
    Return the thousandths of CPU that a Pod requests, as `pod_spec.pod_total` counts them.

    `sidecars` are pairs: the place among the init containers, and the amount.
    """
    inits, level = "object.spec.initContainers", "object.spec.resources"
    always = "has(c.restartPolicy) && c.restartPolicy == 'Always'"
    amount = f"(has(c.resources) ? {_milli('c.resources.requests')} : 0)"
    pairs = f"map(c, [variables.starts.indexOf(c.name), {amount}])"
    before = "variables.sidecars.map(s, s[0] < i[0] ? s[1] : 0).sum()"
    runs = f"object.spec.containers.map(c, {amount}).sum() + variables.sidecars.map(s, s[1]).sum()"
    return {
        "starts": f"has({inits}) ? {inits}.map(c, c.name) : []",
        "sidecars": f"has({inits}) ? {inits}.filter(c, {always}).{pairs} : []",
        "peaks": (
            f"has({inits}) ? {inits}.filter(c, !({always})).{pairs}.map(i, i[1] + {before}) : []"
        ),
        "cpu_milli": (
            f"(has({level}) && has({level}.requests) && {text(res.CPU)} in {level}.requests"
            f" ? {_milli(f'{level}.requests')} : ([{runs}] + variables.peaks).max())"
            f" + {_milli('object.spec.overhead')}"
        ),
    }


def whole_cpus() -> str:
    """Return that the CPUs of a Pod are a whole number above 0; `cpu_variables` are there."""
    total = "variables.cpu_milli"
    return f"{total} > 0 && ({total} % 1000 == 0 || {total} > {CPUS_MAX}000)"


def whole_cpus_words(start: str) -> Mapping[str, str]:
    """Return the text of a refusal for CPUs that are not whole, in the webhook's own words."""
    total, field = "variables.cpu_milli", f"spec.containers[0].resources.requests[{res.CPU}]"
    both = f"'values ' + string({total} / 1000) + ' and ' + string({total} / 1000 + 1)"
    near = f"({total} < 1000 ? 'value 1' : {both})"
    part = f"string({total}) + 'm\": {WHOLE_CPUS} (nearest legal ' + {near} + ')'"
    facts = f"({total} == 0 ? '0\": {WHOLE_CPUS} and more than 0' : {part})"
    return {"messageExpression": f"'{start}: {field}: Invalid value: \"' + {facts}"}


def untouched() -> str:
    """Return that nothing at all changes where resources stand, which is cheap to tell."""
    parts = []
    for section in CONTAINERS:
        now, before = (
            f"(has({pod}.spec.{section}) ? {pod}.spec.{section}.map(c,"
            " has(c.resources) ? [c.resources] : []) : [])"
            for pod in ("object", "oldObject")
        )
        parts.append(f"{now} == {before}")
    now, before = (
        f"(has({pod}.spec.resources) ? [{pod}.spec.resources] : [])"
        for pod in ("object", "oldObject")
    )
    return " && ".join([*parts, f"{now} == {before}"])


def changes_what_stays() -> str:
    """Return that an update changes anything at all of what may have to stay."""
    cdi = f"'%s'.format([{AFTER}]).contains({text(res.DOMAIN_CDI)})"
    stay = [same_label(res.LABEL_QOS_CLASS), same_label(res.LABEL_PRIORITY), same_class()]
    words = f"!has(oldObject.spec.nodeName) || ({same_words()})"
    same = " && ".join(f"({one})" for one in (*stay, untouched(), words))
    return f"!({same}) || ({AFTER} != {BEFORE} && {cdi})"


def same_amounts(names: Iterable[str]) -> str:
    """
    Return that no amount of these resources changes; containers can't be added or moved.

    Its cost grows with the square of the containers: `untouched` comes before it.
    """
    named = f"k in {texts(names)}"
    return " && ".join(
        _stay(kind, one, other, named)
        for kind in _KINDS
        for one, other in (("object", "oldObject"), ("oldObject", "object"))
    )


def same_label(label: str) -> str:
    """Return that a label stays as it is."""
    return (
        f"{_entry('object', 'labels', text(label))} == {_entry('oldObject', 'labels', text(label))}"
    )


def same_class() -> str:
    """Return that the priority class stays, as `read_priority_class` reads it."""
    known = texts(PRIORITY_RANGES)
    ranges = [f"{one.start // 1000}: {text(name)}" for name, one in PRIORITY_RANGES.items()]
    label, by_number, values = text(res.LABEL_PRIORITY_CLASS), f"{{{', '.join(ranges)}}}", []
    for pod in ("object", "oldObject"):
        labels, thousands = f"{pod}.metadata.labels", f"{pod}.spec.priority / 1000"
        named = f"has({labels}) && {label} in {labels} && {labels}[{label}] in {known}"
        counted = f"has({pod}.spec.priority) && {thousands} in {by_number}"
        number = f"{counted} ? {by_number}[{thousands}] : ''"
        values.append(f"({named} ? {labels}[{label}] : {number})")
    return " == ".join(values)


def same_words() -> str:
    """Return that nothing changes by which a Pod was placed."""
    return " && ".join(
        f"{texts(keys)}.all(k, {_entry('object', name, 'k')} == {_entry('oldObject', name, 'k')})"
        for name, keys in (("labels", PLACED_LABELS), ("annotations", PLACED_ANNOTATIONS))
    )


def _entry(thing: str, field_name: str, key: str) -> str:
    """Return the value of a label or an annotation as a list, empty without one."""
    there = f"{thing}.metadata.{field_name}"
    return f"({thing} != null && has({there}) && {key} in {there} ? [{there}[{key}]] : [])"


def _equal(place: str, resource: str) -> str:
    name, parts = text(resource), []
    for one, other in (_KINDS, _KINDS[::-1]):
        mine, theirs = f"{place}.{one}", f"{place}.{other}"
        equal = f"quantity({mine}[{name}]).compareTo(quantity({theirs}[{name}])) == 0"
        parts.append(
            f"(!has({mine}) || !({name} in {mine})"
            f" || (has({theirs}) && {name} in {theirs} && {equal}))"
        )
    return " && ".join(parts)


def _milli(amounts: str) -> str:
    """Return the thousandths of CPU that a map of amounts has, at most what is counted."""
    cpu = f"quantity({amounts}[{text(res.CPU)}])"
    most = f"{cpu}.isGreaterThan(quantity('{CPUS_MAX}')) ? {CPUS_MAX}000"
    exact = f"int({cpu}.asApproximateFloat() * 1000.0 + 0.5)"
    return f"(has({amounts}) && {text(res.CPU)} in {amounts} ? ({most} : {exact}) : 0)"


def _stay(kind: str, one: str, other: str, named: str) -> str:
    """Return that `other` has as much of each named resource as `one`, place by place."""
    parts = []
    for section in CONTAINERS:
        mine, theirs = f"c.resources.{kind}", f"d.resources.{kind}"
        same = f"d.name == c.name && has(d.resources) && {_has_as_much(mine, theirs)}"
        kept = f"{other}.spec.{section}.exists(d, {same})"
        asked = f"!has(c.resources) || {_all_named(mine, named, kept)}"
        parts.append(f"(!has({one}.spec.{section}) || {one}.spec.{section}.all(c, {asked}))")
    mine, theirs = (f"{pod}.spec.resources" for pod in (one, other))
    kept = f"has({theirs}) && {_has_as_much(f'{mine}.{kind}', f'{theirs}.{kind}')}"
    parts.append(f"(!has({mine}) || {_all_named(f'{mine}.{kind}', named, kept)})")
    return " && ".join(parts)


def _all_named(amounts: str, named: str, condition: str) -> str:
    return f"!has({amounts}) || {amounts}.all(k, !({named}) || ({condition}))"


def _has_as_much(mine: str, theirs: str) -> str:
    equal = f"quantity({theirs}[k]).compareTo(quantity({mine}[k])) == 0"
    return f"has({theirs}) && k in {theirs} && {equal}"
