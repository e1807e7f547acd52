"""
Which requests the webhooks of `deploy/webhook.yaml` are called for, in CEL from our names.

What a container sees of devices too: the NVIDIA runtime takes a list from the environment, or from
mounts below one path; CDI takes names from annotations. What an image says by itself is not seen.
"""

from __future__ import annotations

from typing import Final

from ledger.domain import resources
from webhook.decide.dialects.registry import ADMISSIONS
from webhook.decide.settings import AdmissionSettings
from webhook.manifests import cel

_BLIND: Final = ("none", "void")
_NAMED: Final = f"e.name == {cel.text(resources.ENV_NVIDIA_VISIBLE)}"
_TOLD_NONE: Final = f"(has(e.value) && e.value in {cel.texts(_BLIND)})"
_OURS: Final = f"metadata.annotations['{resources.ANNOTATION_TENURE_VISIBLE_PREFIX}"
_GOOD: Final = (
    f"({_TOLD_NONE} || (has(e.valueFrom) && has(e.valueFrom.fieldRef)"
    f" && e.valueFrom.fieldRef.fieldPath.startsWith({cel.text(_OURS)})))"
)
"""The entry `e` says that nothing is seen, or reads what our scheduler wrote."""
_MOUNTS: Final = resources.NVIDIA_DEVICE_MOUNTS.rpartition("/")[2]
"""Enough of the path: the runtime takes it with any dots and slashes in between."""


def chooses_devices(*, may_read: bool = True) -> str:
    """Return that `c` says by hand which devices it sees; it may read what our scheduler wrote."""
    good = _GOOD if may_read else _TOLD_NONE
    return f"(has(c.env) && c.env.exists(e, {_NAMED} && !({good}))) || {mounts_devices()}"


def mounts_devices() -> str:
    """Return that `c` has a volume mount by which the NVIDIA runtime takes a list of devices."""
    found = f"c.volumeMounts.exists(m, m.mountPath.contains({cel.text(_MOUNTS)}))"
    return f"(has(c.volumeMounts) && {found})"


def sights() -> str:
    """
    Return a number for each container: 0 its environment names no devices, 1 by us, 2 by hand.

    A container with whole cards of NVIDIA's device plugin has 10 more. The rules for new Pods read
    this variable, so that the API server goes through each environment once.
    """
    named = f"[c.?env.orValue([]).filter(e, {_NAMED})]"
    number = f"{named}.map(l, l.size() == 0 ? 0 : (l.all(e, {_GOOD}) ? 1 : 2))[0]"
    plugin = f"({cel.holds('c.resources', {resources.NVIDIA_GPU})} ? 10 : 0)"
    return cel.each_container("object", f"{number} + {plugin}")


def names_cdi(annotations: str = f"'%s'.format([{cel.AFTER}])") -> str:
    """
    Return that a Pod's annotations name CDI devices, and did not say so before.

    `annotations` is their text: without the name in it no key is looked at.
    """
    name, same = (
        cel.text(resources.DOMAIN_CDI),
        f"k in {cel.BEFORE} && {cel.BEFORE}[k] == {cel.AFTER}[k]",
    )
    named = f"{cel.AFTER}.exists(k, k.contains({name}) && !({same}))"
    return f"({annotations}.contains({name}) && {named})"


def told_of_none() -> str:
    """Return that the environment of `c` says that it sees nothing."""
    return f"(has(c.env) && c.env.exists(e, {_NAMED}) && c.env.all(e, !({_NAMED}) || {_TOLD_NONE}))"


def every_new_ephemeral(condition: str) -> str:
    """Return that a condition on `c` holds for every ephemeral container that was added."""
    before, now = (f"{pod}.spec.ephemeralContainers" for pod in ("oldObject", "object"))
    known = f"(has({before}) && {before}.exists(d, d.name == c.name))"
    return f"!has({now}) || {now}.all(c, {known} || ({condition}))"


OWN_NAMESPACE: Final = "tenure-system"
EXCLUDED_NAMESPACES: Final = ("kube-system", "kube-node-lease")
"""Whoever writes there may break the cluster anyway, and it must start without us."""


def never_sent(namespace: str) -> list[str]:
    """Return the namespaces that are never sent to us, our own among them."""
    return sorted({*EXCLUDED_NAMESPACES, namespace})


def expressions(settings: AdmissionSettings) -> dict[str, str]:
    """
    Return the expressions of the webhooks by the names that the file has for them.

    Rule: design section 8, "Fail-closed only on CREATE of matching Pods".
    """
    profiles = [cel.has_labels("object", one.pod_labels) for one in settings.profiles]
    needs, concerns = cel.needs_us("object", settings), cel.concerns_us("object", settings)
    sees = f"{cel.any_container('object', chooses_devices())} || {names_cdi()}"
    return {
        "needs_us": needs,
        "is_changed": " || ".join([needs, *profiles]),
        "is_ours": f"object.spec.schedulerName == {cel.text(settings.scheduler_name)}",
        "concerns_us": f"{concerns} || {sees}",
        "concerned_us": f"{concerns} || {cel.concerns_us('oldObject', settings)}",
        "by_others": f"!(request.userInfo.username in {cel.texts(settings.service_accounts)})",
        "labels_change": _node_labels_change(),
    }


def _node_labels_change() -> str:
    names = [label for each in ADMISSIONS for label in each.node_labels]
    prefixes = (resources.DOMAIN_NODE, resources.DOMAIN_TENURE)
    ours = cel.key_matches(names, prefixes)
    differs = (
        "oldObject == null || !has(oldObject.metadata.{field})"
        " || !(k in oldObject.metadata.{field})"
        " || oldObject.metadata.{field}[k] != object.metadata.{field}[k]"
    )
    parts = [
        f"(has(object.metadata.{field}) && object.metadata.{field}.exists(k, {ours}"
        f" && ({differs.format(field=field)})))"
        for field in ("labels", "annotations")
    ]
    gone = (
        f"(oldObject != null && has(oldObject.metadata.annotations)"
        f" && oldObject.metadata.annotations.exists(k, {ours}"
        " && !(has(object.metadata.annotations) && k in object.metadata.annotations)))"
    )
    return " || ".join([*parts, gone])
