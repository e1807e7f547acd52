"""What a container holds: the word that is believed, by its place, and kubelet's of its name."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from agent.decide.believing import Believed, Believing, Source
from agent.decide.node_holdings import HeldByPod, NodeHoldings
from agent.kubelet.pods import Pod
from agent.kubelet.watch import PodsHere
from agent.report.held import Asked, asked_by_living
from agent.service.link import HoldingsOfNode
from ledger.domain.annotations.proof import EVERY, ProvenDevice
from ledger.domain.errors import InputError
from ledger.domain.vocabulary import DEFAULT_VOCABULARY

_log: Final = logging.getLogger("tenure.agent.held")


class HeldHere:
    """
    The holdings of this node as the device plugin and the report ask for them.

    Attributes:
        used: how often whose word was taken.
        last: whose word was taken last; None = none yet.
    """

    def __init__(self, known: HoldingsOfNode, pods: PodsHere, believing: Believing) -> None:
        self._known = known
        self._pods = pods
        self._believing = believing
        self.used: Counter[Source] = Counter()
        self.last: Source | None = None
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
                self._asked = asked_by_living(self._read, DEFAULT_VOCABULARY)
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
        """
        Return a container's devices; None where they are not known.

        Raises:
            InputError: what is said of the Pod can't be believed.
        """
        words = self._pods.words(pod_uid)
        place = None if words is None else words.places.get(container)
        if words is None or place is None:
            return None
        believed = self._believed(pod_uid)
        if believed is None:
            return None
        self.used[believed.source] += 1
        self.last = believed.source
        found = {
            device.device_id: device
            for one in believed.proof.containers
            if one.index in {EVERY, place}
            for device in one.devices
        }
        return tuple(found.values())

    def is_held(self, pod_uid: str) -> bool:
        """
        Tell whether a Pod is believed to hold something, whatever its containers are called.

        Raises:
            InputError: what is said of the Pod can't be believed.
        """
        return self._believed(pod_uid) is not None

    def _believed(self, pod_uid: str) -> Believed | None:
        words = self._pods.words(pod_uid)
        return self._believing.of_pod(
            pod_uid,
            self._known.holdings,
            is_heard=self._known.is_heard,
            annotations=None if words is None else words.annotations,
        )
