"""
Whether this node's runtime shows a container the cards that its annotation names: the mode `env`.

Rule: ADR 0028. A Pod of our own, bound by a Binding with the annotation, says what its containers
see; nothing is granted here before. Pure: objects and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from ledger.domain.annotations.tenure import visible_key
from ledger.domain.kube.pod_spec import ENDED_PHASES
from ledger.domain.resources import ENV_NVIDIA_VISIBLE

NAME: Final = "tenure-agent-probe-"
"""What its Pod is called, before the UID of the agent's own Pod."""
SECONDS_MAX: Final = 120
"""Kubelet ends it then, whoever should have deleted it; its agent waits for less."""
COMMAND: Final = ("tenure", "serve", "inside")
SCHEDULER: Final = "tenure-agent"
"""No scheduler has this name: the agent binds its Pod itself, as the service binds others."""
SHOWN: Final = "shown"
BLANK: Final = "blank"
MEMORY: Final = "256Mi"
_PLACES: Final = {SHOWN: "0", BLANK: "1"}

Object = Mapping[str, Any]


class Reason(StrEnum):
    """What is known of this node's runtime."""

    PROVED = "Proved"
    NOT_YET = "NotProvedYet"
    NOT_MADE = "ProbeNotMade"
    """The API takes no Pod or Binding of ours."""
    NOT_RUN = "ProbeNotRun"
    """Its containers did not run to their end, or did not say what they saw."""
    VARIABLE_DIFFERS = "VariableDiffers"
    """The variable is another one than the annotation, or there without one."""
    CARD_NOT_SHOWN = "CardNotShown"
    """The runtime does not read the variable."""
    OTHERS_SHOWN = "OtherCardsShown"
    """A container sees cards that its variable does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found, with words for people; `reason` is `PROVED` or why nothing is granted."""

    reason: Reason
    message: str = ""

    @property
    def holds(self) -> bool:
        """Tell whether containers here see the cards that their annotations name."""
        return self.reason is Reason.PROVED


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePod:
    """
    The Pod that is asked.

    Attributes:
        image: has the command `tenure`.
        runtime_class: of Pods that hold cards; empty = the node's own runtime.
        owner: name and UID of the agent's own Pod, with which it goes; empty = we run in none.
    """

    node: str
    namespace: str
    image: str
    runtime_class: str = ""
    owner: tuple[str, str] = ("", "")

    @property
    def name(self) -> str:
        """Return what it is called: one for each agent, for at an upgrade a node has two."""
        return NAME + (self.owner[1] or self.node)

    def made(self) -> Object:
        """
        Return its object: a container that is shown a card, and one whose annotation is missing.

        On the machine's own network, so that it waits for no other; without a volume, a token or
        any right, with every toleration: it is bound to this node whatever that takes.
        """
        spec: dict[str, Any] = {
            "containers": [self._container(name) for name in _PLACES],
            "schedulerName": SCHEDULER,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": SECONDS_MAX,
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
        }
        if self.runtime_class:
            spec["runtimeClassName"] = self.runtime_class
        metadata: dict[str, Any] = {"name": self.name, "namespace": self.namespace}
        name, uid = self.owner
        if uid:
            metadata["ownerReferences"] = [
                {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
            ]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _container(self, name: str) -> Object:
        path = f"metadata.annotations['{visible_key(_PLACES[name])}']"
        return {
            "name": name,
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": list(COMMAND),
            "env": [
                {"name": ENV_NVIDIA_VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": path}}},
            ],
            "resources": {"limits": {"memory": MEMORY}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }

    def bound(self, uid: str, card: str) -> Object:
        """Return the Binding that names the card, as those of Pods that hold one do."""
        return {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "uid": uid,
                "annotations": {visible_key(_PLACES[SHOWN]): card},
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.node},
        }


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a container says of itself, as it ends.

    Attributes:
        visible: its variable; None = it has none.
        cards: paths of the cards' device nodes, in order.
    """

    visible: str | None
    cards: list[str]


def judged(pod: Object, *, card: str, minor: int) -> Proof | None:
    """
    Return what its Pod proves, as kubelet tells of it; None while it has not ended.

    The value comes before the cards: a runtime can't show what it was not told.

    Args:
        card: the UUID that its annotation names; `minor`: of that card's device node.
    """
    status = pod.get("status") or {}
    if status.get("phase") not in ENDED_PHASES:
        return None
    found = {}
    for name in _PLACES:
        seen = _said(status.get("containerStatuses") or (), name)
        if seen is None:
            return Proof(reason=Reason.NOT_RUN, message=why_not_run(pod))
        found[name] = seen
    wanted = {SHOWN: (card, [f"/dev/nvidia{minor}"]), BLANK: ("", [])}
    for name, (value, _) in wanted.items():
        if found[name].visible != value:
            words = f"{ENV_NVIDIA_VISIBLE}={found[name].visible!r}, its annotation says {value!r}"
            return Proof(reason=Reason.VARIABLE_DIFFERS, message=words)
    for name, (value, nodes) in wanted.items():
        if found[name].cards != nodes:
            is_missing = not set(nodes) <= set(found[name].cards)
            words = f"{ENV_NVIDIA_VISIBLE}={value!r} shows {found[name].cards}, not {nodes}"
            reason = Reason.CARD_NOT_SHOWN if is_missing else Reason.OTHERS_SHOWN
            return Proof(reason=reason, message=words)
    return Proof(reason=Reason.PROVED, message="its containers see the cards of their annotations")


def why_not_run(pod: Object | None) -> str:
    """Return what kubelet says of a Pod that did not run to its end."""
    if pod is None:
        return "kubelet does not tell of it"
    status = pod.get("status") or {}
    words = [str(status.get(key) or "") for key in ("reason", "message")]
    for one in status.get("containerStatuses") or ():
        for state in (one.get("state") or {}).values():
            said = (state.get("reason"), state.get("message"))
            words += [f"{one.get('name')}:", *(str(word) for word in said if word)]
    return " ".join(word for word in words if word)[:300] or "it does not end"


def _said(statuses: Sequence[Object], name: str) -> Seen | None:
    for one in statuses:
        ended = (one.get("state") or {}).get("terminated")
        if one.get("name") == name and ended and ended.get("exitCode") == 0:
            try:
                return msgspec.json.decode(ended.get("message") or "", type=Seen)
            except (msgspec.DecodeError, RecursionError):
                return None
    return None
