"""What a container holds: the ledger's word by its place, and kubelet's word of its name."""

from __future__ import annotations

from collections.abc import Sequence

from agent.decide.node_holdings import GRANTED, LOST
from agent.kubelet.watch import PodsHere
from agent.service.link import HoldingsOfNode
from ledger.domain.annotations.proof import EVERY


class HeldHere:
    """The holdings of this node as the device plugin asks for them."""

    def __init__(self, known: HoldingsOfNode, pods: PodsHere) -> None:
        self._known = known
        self._pods = pods

    def devices_of(self, pod_uid: str, container: str) -> Sequence[str] | None:
        """Return the ids of a container's devices; None where they are not known."""
        words, known = self._pods.words(pod_uid), self._known.holdings
        place = None if words is None else words.places.get(container)
        if known is None or place is None:
            return None
        ours = [one for one in known.of_pod(pod_uid) if one.kind == GRANTED and one.phase != LOST]
        if not ours:
            return None
        found = {
            device.device_id: None
            for one in ours[-1].containers
            if one.index in {EVERY, place}
            for device in one.devices
        }
        return tuple(found)
