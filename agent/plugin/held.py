"""
What a container holds: the word that is believed, by its place, and kubelet's of its name.

The word may come from a file that somebody else writes:

    {"format": 1, "holdings": [{"pod_uid": "fa8ef004", "namespace": "ml", "pod_name": "train-0",
      "containers": [{"name": "main", "devices": [{"device_type": "gpu", "minor": 0,
        "device_id": "GPU-5d0f6c1e", "core_percent": 50, "memory_bytes": 42949672960}]}]}]}

It is what the service answers a node's agent (docs/contracts/agents.md), with the containers by
name, for kubelet's record has names and no places; whatever else is in it is not read. A container
without an index is the app container of its place.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from agent.decide.believing import Believed, Believing, Source
from agent.decide.node_holdings import GRANTED, CpuClaim, HeldByPod, NodeHoldings
from agent.documents import json_document
from agent.kubelet.watch import Pod, PodsHere
from agent.plugin.files import read_file
from agent.report.held import Asked, asked_by_living
from agent.service.link import HoldingsOfNode
from ledger.domain.annotations.proof import EVERY, ProvenContainer, ProvenDevice
from ledger.domain.annotations.tenure import cards_in
from ledger.domain.errors import InputError
from ledger.domain.resources import TYPE_GPU
from ledger.domain.vocabulary import DEFAULT_VOCABULARY

FORMAT: Final = 1

_log: Final = logging.getLogger("tenure.agent.held")


class HeldHere:
    """The node's holdings for plugin and report; `used` counts sources, `last` may be None yet."""

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

    def cpu_claims(self) -> Sequence[CpuClaim] | None:
        """Return which claims have CPUs; None where nobody knows."""
        return self._known.holdings.cpu_claims if self._known.holdings else None

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
        return known and (known.held, known.cpu_claims), self.asked()

    def devices_of(self, pod_uid: str, container: str) -> Sequence[ProvenDevice] | None:
        """Return devices, None = unknown. Raises InputError: the Pod's proof can't be believed."""
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

    def shown_to(self, pod_uid: str) -> Sequence[str]:
        """Return the ids of all cards that a Pod's containers see. Raises InputError: as above."""
        believed = self._believed(pod_uid)
        return () if believed is None else cards_in(believed.proof.shown)

    def is_held(self, pod_uid: str) -> bool:
        """Tell whether a Pod holds anything. Raises InputError: its proof can't be believed."""
        return self._believed(pod_uid) is not None

    def _believed(self, pod_uid: str) -> Believed | None:
        words = self._pods.words(pod_uid)
        return self._believing.of_pod(
            pod_uid,
            self._known.holdings,
            is_heard=self._known.is_heard,
            annotations=None if words is None else words.annotations,
        )


class _Device(msgspec.Struct):
    device_id: str
    device_type: str = TYPE_GPU
    minor: int = 0
    core_percent: int = 0
    memory_bytes: int = 0

    def proven(self) -> ProvenDevice:
        """Return it as the ledger's writer says it."""
        return ProvenDevice(
            device_type=self.device_type,
            device_id=self.device_id,
            minor=self.minor,
            core_percent=self.core_percent,
            memory_bytes=self.memory_bytes,
        )


class _Container(msgspec.Struct):
    name: str
    devices: list[_Device]
    index: str | None = None


class _Holding(msgspec.Struct):
    pod_uid: str
    containers: list[_Container]
    namespace: str = ""
    pod_name: str = ""


class _File(msgspec.Struct):
    format: int
    holdings: list[_Holding]


class HoldingsFile:
    """The holdings as the file says them now."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def devices_of(self, pod_uid: str, container: str) -> Sequence[ProvenDevice] | None:
        """Return devices; None = not in the file. Raises InputError: the file can't be read."""
        found = [
            [device.proven() for device in one.devices]
            for holding in self._read().holdings
            for one in holding.containers
            if (holding.pod_uid, one.name) == (pod_uid, container)
        ]
        if len(found) > 1:
            fact = f"said twice: pod_uid={pod_uid}, container={container}"
            raise InputError(fact, place=str(self._path))
        return found[0] if found else None

    def pods(self) -> Sequence[HeldByPod]:
        """Return what every Pod holds. Raises InputError: the file can't be read."""
        return [
            HeldByPod(
                pod_uid=holding.pod_uid,
                namespace=holding.namespace,
                pod_name=holding.pod_name,
                containers=tuple(
                    ProvenContainer(
                        index=str(place) if one.index is None else one.index,
                        devices=tuple(device.proven() for device in one.devices),
                    )
                    for place, one in enumerate(holding.containers)
                ),
                attempt=1,
                kind=GRANTED,
                phase="bound",
                position=0,
            )
            for holding in self._read().holdings
        ]

    def cpu_claims(self) -> None:
        """Return None: the file does not say."""

    def asked(self) -> Asked | None:
        """Return nothing: a file does not know what Pods ask for."""
        return None

    def version(self) -> object:
        """Return what tells the file as it is now from what it was."""
        try:
            now = self._path.stat()
        except OSError:
            return None
        return now.st_ino, now.st_mtime_ns, now.st_size

    def shown_to(self, pod_uid: str) -> Sequence[str]:  # noqa: ARG002 - the port's
        """Return nothing: a file tells of no group, so containers see their own alone."""
        return ()

    def is_held(self, pod_uid: str) -> bool:  # noqa: ARG002 - the port's
        """Tell of no Pod: the file names containers, or says nothing of them."""
        return False

    def _read(self) -> _File:
        try:
            file = msgspec.convert(json_document(read_file(self._path)), type=_File)
        except InputError as error:
            raise error.at(str(self._path)) from error
        except (OSError, msgspec.ValidationError, ValueError, RecursionError) as error:
            raise InputError(f"can't be read: {error}", place=str(self._path)) from error
        if file.format != FORMAT:
            raise InputError(f"unknown format: value={file.format}", place=str(self._path))
        return file
