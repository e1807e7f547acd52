"""
What a container sees of devices, in CEL: who may say so, and by which ways it can be said.

The NVIDIA runtime takes a list from the environment, or from mounts below one path; CDI takes
names from annotations. What an image says by itself nobody sees here.
"""

from __future__ import annotations

from typing import Final

from ledger.domain.resources import (
    ANNOTATION_TENURE_VISIBLE_PREFIX,
    DOMAIN_CDI,
    ENV_NVIDIA_VISIBLE,
    NVIDIA_DEVICE_MOUNTS,
)
from webhook.manifests.cel import AFTER, BEFORE, text, texts

_BLIND: Final = ("none", "void")
_NAMED: Final = f"e.name == {text(ENV_NVIDIA_VISIBLE)}"
_TOLD_NONE: Final = f"(has(e.value) && e.value in {texts(_BLIND)})"
_MOUNTS: Final = NVIDIA_DEVICE_MOUNTS.rpartition("/")[2]
"""Enough of the path: the runtime takes it with any dots and slashes in between."""


def chooses_devices(*, may_read: bool = True) -> str:
    """Return that `c` says by hand which devices it sees; it may read what our scheduler wrote."""
    good = f"{_TOLD_NONE} || ({_refers_to_ours()})" if may_read else _TOLD_NONE
    mounts = f"c.volumeMounts.exists(m, m.mountPath.contains({text(_MOUNTS)}))"
    named = f"has(c.env) && c.env.exists(e, {_NAMED} && !({good}))"
    return f"({named}) || (has(c.volumeMounts) && {mounts})"


def names_cdi(annotations: str = f"'%s'.format([{AFTER}])") -> str:
    """
    Return that a Pod's annotations name CDI devices, and did not say so before.

    Args:
        annotations: at least all of them as one text; without the name in it no key is looked at.
    """
    name, same = text(DOMAIN_CDI), f"k in {BEFORE} && {BEFORE}[k] == {AFTER}[k]"
    named = f"{AFTER}.exists(k, k.contains({name}) && !({same}))"
    return f"({annotations}.contains({name}) && {named})"


def told() -> str:
    """Return that the environment of `c` says what it sees, and nobody but us wrote that."""
    return _all_entries(f"({_TOLD_NONE} || ({_refers_to_ours()}))")


def told_of_none() -> str:
    """Return that the environment of `c` says that it sees nothing."""
    return _all_entries(_TOLD_NONE)


def every_new_ephemeral(condition: str) -> str:
    """Return that a condition on `c` holds for every ephemeral container that was added."""
    before, now = (f"{pod}.spec.ephemeralContainers" for pod in ("oldObject", "object"))
    known = f"(has({before}) && {before}.exists(d, d.name == c.name))"
    return f"!has({now}) || {now}.all(c, {known} || ({condition}))"


def _all_entries(good: str) -> str:
    return f"(has(c.env) && c.env.exists(e, {_NAMED}) && c.env.all(e, !({_NAMED}) || {good}))"


def _refers_to_ours() -> str:
    """Return that the entry `e` of an environment reads what our scheduler wrote."""
    ours = f"metadata.annotations['{ANNOTATION_TENURE_VISIBLE_PREFIX}"
    return (
        "has(e.valueFrom) && has(e.valueFrom.fieldRef)"
        f" && e.valueFrom.fieldRef.fieldPath.startsWith({text(ours)})"
    )
