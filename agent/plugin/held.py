"""What a container holds: the ledger's word by its place, and kubelet's word of its name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from agent.decide.node_holdings import GRANTED, LOST, HeldByPod, NodeHoldings
from agent.kubelet.pods import Pod
from agent.kubelet.watch import PodsHere
from agent.report.held import Asked, asked_by
from agent.service.link import HoldingsOfNode
from ledger.domain.annotations.proof import EVERY, ProvenDevice
from ledger.domain.errors import InputError

_log: Final = logging.getLogger("tenure.agent.held")


class HeldHere:
    """The holdings of this node as the device plugin and the report ask for them."""

    def __init__(self, known: HoldingsOfNode, pods: PodsHere) -> None:
        self._known = known
        self._pods = pods
        self._seen: NodeHoldings | None = None
        self._read: Sequence[Pod] | None = None
        self._asked: Asked | None = None

    def pods(self) -> Sequence[HeldByPod] | None:
        """Return what every Pod holds; None before the service said anything."""
        known = self._known.holdings
        return None if known is None else known.pods()

    def asked(self) -> Asked | None:
        """Return what kubelet's Pods ask for; None where it does not tell, or not readably."""
        if self._pods.problem:
            return None
        if self._read is not self._pods.pods:
            self._read, self._asked = self._pods.pods, None
            try:
                self._asked = asked_by(self._read)
            except InputError as error:
                _log.warning("a Pod can't be read", extra={"reason": str(error)})
        return self._asked

    def version(self) -> object:
        """
        Return what differs from before once somebody holds or asks for something else.

        Kubelet is asked once for each Pod that holds something new and that it has not told of.
        """
        known = self._known.holdings
        if known is not None and known is not self._seen:
            before = {} if self._seen is None else self._seen.held
            for pod_uid in {one for one, _ in known.held.keys() - before.keys()}:
                self._pods.words(pod_uid)
            self._seen = known
        return None if known is None else known.held, self.asked()

    def devices_of(self, pod_uid: str, container: str) -> Sequence[ProvenDevice] | None:
        """Return a container's devices; None where they are not known."""
        words, known = self._pods.words(pod_uid), self._known.holdings
        place = None if words is None else words.places.get(container)
        if known is None or place is None:
            return None
        ours = [one for one in known.of_pod(pod_uid) if one.kind == GRANTED and one.phase != LOST]
        if not ours:
            return None
        found = {
            device.device_id: device
            for one in ours[-1].containers
            if one.index in {EVERY, place}
            for device in one.devices
        }
        return tuple(found.values())
