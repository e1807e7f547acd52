"""
Sends Pods whose request is a claim to the node that the policy would choose, and lets them go.

Rule: docs/adr/0031. One patch a Pod: the node is preferred, and our gate is off. Whoever fits
nowhere goes without a wish, so that kube-scheduler says why it waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from certs.ports import ApiError, ConflictError, Object, Objects
from ledger.domain.errors import InputError, RefusedError
from ledger.domain.log.state import NodeState
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.claimed import as_asked, is_claimed
from ledger.domain.request.normalise import decode_pod
from ledger.domain.resources import GATE_TENURE_PLACE
from scheduler.decide.claimed_nodes import Planned, node_for
from scheduler.decide.settings import SchedulingSettings
from scheduler.service.binding import pod_path
from scheduler.service.ports import Clock, PendingPod, WhyNot

TOGETHER: Final = 20
"""Pods that are sent without a pause."""
NODES_MAX: Final = 500
"""Nodes that are looked at for one Pod; the next Pod looks at those behind them."""
PLANNED_SECONDS: Final = 30.0
"""For so long a Pod that was sent counts where it was sent to, until the ledger has its claim."""
WEIGHT: Final = 100
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"

_log: Final = logging.getLogger("tenure.scheduler.claim_places")


@dataclass(slots=True, kw_only=True)
class ClaimPlaces:
    """
    A sink of Pods that lets those go that wait for their place.

    Args:
        names: of the nodes that give by claims.
        node: what is known of the node of a name; None where it is not decided on.
        users: UIDs of the Pods whose claims the ledger has.
    """

    api: Objects
    clock: Clock
    pod: PendingPod
    names: Callable[[], Sequence[str]]
    node: Callable[[str], tuple[NodeFacts, NodeState] | None]
    users: Callable[[], frozenset[str]]
    why_not: WhyNot
    settings: SchedulingSettings
    _gated: dict[str, None] = field(default_factory=dict)
    _sent: dict[str, tuple[float, Planned]] = field(default_factory=dict)
    _begin: int = 0

    def put(self, uid: str, item: Object) -> None:
        """Take a Pod that came or changed."""
        gates = [one.get("name") for one in item["spec"].get("schedulingGates") or ()]
        if GATE_TENURE_PLACE in gates and not item["metadata"].get("deletionTimestamp"):
            self._gated[uid] = None
        else:
            self._gated.pop(uid, None)

    def drop(self, uid: str) -> None:
        """Forget a Pod that is gone."""
        self._gated.pop(uid, None)
        self._sent.pop(uid, None)

    async def send(self) -> None:
        """Send the Pods that wait, oldest first. Raises ApiError: the API server is away."""
        if not self._gated or self.why_not():
            return
        now, users = self.clock.monotonic(), self.users()
        self._sent = {
            uid: (at, planned)
            for uid, (at, planned) in self._sent.items()
            if now - at < PLANNED_SECONDS and uid not in users
        }
        for uid in list(islice(self._gated, TOGETHER)):
            pod = self.pod(uid)
            if pod is None:
                self._gated.pop(uid, None)
                continue
            planned = self._planned(pod)
            name = "" if planned is None else planned.node
            metadata = pod["metadata"]
            try:
                path = pod_path(metadata["namespace"], metadata["name"])
                await self.api.patch(path, sent_to(pod, name))
            except ConflictError:
                self._gated[uid] = self._gated.pop(uid, None)  # it changed: looked at again
                continue
            except ApiError:
                self._gated[uid] = self._gated.pop(uid, None)  # perhaps of this Pod alone
                raise
            self._gated.pop(uid, None)
            if planned is not None:
                self._sent[uid] = now, planned
            _log.info("sent", extra={"pod_uid": uid, "node_name": name})

    def _planned(self, pod: Mapping[str, Any]) -> Planned | None:
        if not is_claimed(pod):
            return None
        try:
            request = decode_pod(as_asked(pod), self.settings.vocabulary)
        except (InputError, RefusedError):
            return None  # whoever wrote it: it goes without a wish
        names = self.names()
        begin = self._begin % len(names) if len(names) > NODES_MAX else 0
        self._begin = begin + NODES_MAX
        turn = (*names[begin:], *names[:begin])[:NODES_MAX]
        nodes = (found for name in turn if (found := self.node(name)) is not None)
        planned = {uid: one for uid, (_, one) in self._sent.items()}
        return node_for(request, nodes, planned, self.settings)


def sent_to(pod: Mapping[str, Any], node: str) -> list[Object]:
    """Return the patch that takes our gate off a Pod, and prefers a node if one is named."""
    metadata, spec = pod["metadata"], pod["spec"]
    gates = [one for one in spec["schedulingGates"] if one.get("name") != GATE_TENURE_PLACE]
    path = "/spec/schedulingGates"
    patch: list[Object] = [
        {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        {"op": "replace", "path": path, "value": gates}
        if gates
        else {"op": "remove", "path": path},
    ]
    if not node:
        return patch
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    wish = {"weight": WEIGHT, "preference": {"matchFields": [field]}}
    affinity = spec.get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    wishes = [*(of_nodes.get(_PREFERRED) or ()), wish]
    after = {**affinity, "nodeAffinity": {**of_nodes, _PREFERRED: wishes}}
    return [*patch, {"op": "add", "path": "/spec/affinity", "value": after}]
