"""What is kept of the API's objects: as little as deciding reads, as bytes, by who it is about."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from sys import intern
from threading import Lock
from typing import Any, Final

import msgspec
from zstandard import (
    DICT_TYPE_RAWCONTENT,
    ZstdCompressionDict,
    ZstdCompressionParameters,
    ZstdCompressor,
    ZstdDecompressor,
)

from certs.ports import Object
from ledger.domain import resources as res
from ledger.domain.annotations.guarded import given
from ledger.domain.annotations.wire import TRUE
from ledger.domain.kube.object_fields import found_in
from ledger.domain.request.card_names import stands_for_cards
from ledger.domain.request.cpus import OWN_CPUS
from scheduler.cluster.documents import Document
from scheduler.cluster.one_node import NodeDocuments
from scheduler.service.ending import PodLife, life_words
from scheduler.service.wakeups import Wakeups

NODE: Final = "Node"
DEVICE: Final = "Device"
TOPOLOGY: Final = "NodeResourceTopology"
UNHEALTHY: Final = "ConfigMap"
_METADATA: Final = ("name", "uid", "labels", "annotations", "creationTimestamp")
_STATUS: Final = ("capacity", "allocatable", "nodeInfo")
_FAST: Final = -1
"""A level of zstd's: a fifth of the time that zlib's fastest takes, and as small."""
_TEXT_BYTES: Final = 4096
"""What most texts are no longer than."""
_UNREAD: Final = frozenset(
    {"kubectl.kubernetes.io/last-applied-configuration", res.ANNOTATION_TENURE_RELEASED_AT}
)
"""A copy of the object that kubectl leaves in it, and what we write for kube-scheduler."""


class NodeBook:
    """
    The objects that describe nodes, by the node's name.

    Rule: design section 6, "one comparison with the API's Nodes, Devices". What only says that a
    node is alive is not kept, so that a heartbeat changes nothing.

    Attributes:
        nodes, devices, topologies, unhealthy: sinks; the last takes ConfigMaps of one namespace.
        changed: names of the nodes of which something changed since somebody took them.
    """

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self.changed: dict[str, None] = {}
        self.nodes = Kept(_node, self.note_one)
        self.devices = Kept(_inventory, self.note_one)
        self.topologies = Kept(_inventory, self.note_one)
        self.unhealthy = Kept(_unhealthy, self.note_one)
        wakeups.agent_appeared.subscribe(self.note_one)
        wakeups.pools_changed.subscribe(self.note)

    def take_changed(self) -> list[str]:
        """Return the names of the nodes that changed, and take them for seen."""
        names = list(self.changed)
        self.changed.clear()
        return names

    def note(self, names: Iterable[str]) -> None:
        """Let these nodes be looked at again."""
        for name in names:
            self.note_one(name)

    def note_one(self, name: str) -> None:
        """Let a node be looked at again."""
        self.changed[name] = None
        self._wakeups.node_changed.publish(name)

    def uid(self, name: str) -> str | None:
        """Return the UID of the Node of this name, None where there is none."""
        return self.nodes.uid(name)

    def uids(self) -> frozenset[str]:
        """Return the UIDs of the Nodes that are there."""
        return self.nodes.uids()

    def documents(self, name: str) -> NodeDocuments | None:
        """Return what describes a node, None where there is no such Node."""
        node = self.nodes.document(NODE, name)
        if node is None:
            return None
        return NodeDocuments(
            node=node,
            device=self.devices.document(DEVICE, name),
            topology=self.topologies.document(TOPOLOGY, name),
            unhealthy=self.unhealthy.document(UNHEALTHY, name),
        )


class Packer:
    """Packs texts as differences from the first one."""

    def __init__(self) -> None:
        self._packing: tuple[ZstdCompressor, ZstdDecompressor] | None = None
        self._one_by_one = Lock()  # threads of the ledger's pack too

    def packed(self, text: bytes) -> bytes:
        """Return a text packed; the same text, the same bytes."""
        with self._one_by_one:
            self._packing = self._packing or _packing(text)
            packed = self._packing[0].compress(text)
        return bytes(memoryview(packed))  # it was made as long as the text, and cut

    def text(self, packed: bytes) -> bytes:
        """Return a text that was packed."""
        assert self._packing is not None, "nothing was packed"
        with self._one_by_one:
            return self._packing[1].decompress(packed)


def _packing(words: bytes) -> tuple[ZstdCompressor, ZstdDecompressor]:
    """Return what packs and unpacks texts that have these words, and takes little for itself."""
    like = ZstdCompressionDict(words, dict_type=DICT_TYPE_RAWCONTENT)
    small = ZstdCompressionParameters.from_level(
        _FAST, source_size=_TEXT_BYTES, dict_size=len(words), write_dict_id=False
    )
    packer = ZstdCompressor(compression_params=small, dict_data=like)
    return packer, ZstdDecompressor(dict_data=like)


class PackedTexts(Mapping[str, str]):
    """Texts by name that are read seldom, packed."""

    __slots__ = ("_packed",)
    _packer = Packer()

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._packed = self._packer.packed(msgspec.json.encode(texts)) if texts else b""

    def unpacked(self) -> dict[str, str]:
        """Return them as they were."""
        text = self._packer.text(self._packed) if self._packed else b"{}"
        texts: dict[str, str] = msgspec.json.decode(text)
        return texts

    def __getitem__(self, name: str) -> str:
        return self.unpacked()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.unpacked())

    def __len__(self) -> int:
        return len(self.unpacked())


class Kept:
    """
    A sink that keeps a part of each object, by the name of what it is about.

    Args:
        keep: an object -> the name that it is about and what is kept of it; None = nothing.
        changed: called with the name where what is kept changed.
    """

    def __init__(
        self,
        keep: Callable[[Object], tuple[str, Object] | None],
        changed: Callable[[str], None],
    ) -> None:
        self._keep = keep
        self._changed = changed
        self._texts: dict[str, bytes] = {}  # packed: nodes of a kind say nearly the same
        self._packer = Packer()
        self._uids: dict[str, str] = {}  # name -> UID of the object that is kept
        self._names: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def put(self, uid: str, item: Object) -> None:
        """Take an object that came or changed."""
        kept = self._keep(item)
        if kept is None:
            self.drop(uid)
            return
        name, part = intern(kept[0]), kept[1]
        text = self._packer.packed(_encoded(part))
        if self._texts.get(name) == text:
            return
        self._texts[name], self._uids[name], self._names[uid] = text, uid, name
        self._changed(name)

    def drop(self, uid: str) -> None:
        """Forget an object that is gone."""
        name = self._names.pop(uid, None)
        if name is None or self._uids.get(name) != uid:
            return
        del self._texts[name], self._uids[name]
        self._changed(name)

    def uid(self, name: str) -> str | None:
        """Return the UID of the object about this name."""
        return self._uids.get(name)

    def uids(self) -> frozenset[str]:
        """Return the UIDs of the objects that are kept."""
        return frozenset(self._uids.values())

    def body(self, name: str) -> dict[str, Any] | None:
        """Return what is kept about a name."""
        text = self._texts.get(name)
        if text is None:
            return None
        whole = self._packer.text(text)
        is_json = whole.startswith(b"{")  # no map of MessagePack does
        body: dict[str, Any] = (msgspec.json if is_json else msgspec.msgpack).decode(whole)
        return body

    def document(self, kind: str, name: str) -> Document | None:
        """Return what is kept about a name as decoding takes it."""
        body = self.body(name)
        if body is None:
            return None
        metadata = body["metadata"]
        return Document(
            kind=kind,
            ours=True,
            namespace=metadata.get("namespace", ""),
            name=metadata["name"],
            uid=self._uids[name],
            body=body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen(PodLife):
    """
    A Pod as the API last told of it.

    Attributes:
        version: its resourceVersion.
        holds: it asks for devices or for CPUs of its own, or was given CPUs or NUMA nodes.
        is_ours: it is of our profile, so that we alone may bind it.
        given: of one with a node, a digest of what its annotations say that it has, if anything.
        proof: likewise, a digest of its proof.
        labels: as JSON, of one that is bound and has not ended; empty without any.
        leaving: its deletionTimestamp, by when it is to have ended; empty where it has none.
    """

    priority: int
    version: str
    holds: bool
    is_ours: bool = False
    given: bytes = b""
    proof: bytes = b""
    labels: str = ""
    leaving: str = ""


class PodBook:
    """
    Every Pod in short, and those without a node whole: they are asked about again.

    Attributes:
        seen: by UID.
        gone: name of a node -> Pods that are gone from it, as they were last, until `forget_gone`.
        proofs: by UID, the proofs of Pods with a node that were not taken yet, packed.
    """

    def __init__(self, device_names: AbstractSet[str], wakeups: Wakeups) -> None:
        self._device_names = device_names
        self._wakeups = wakeups
        self.seen: dict[str, PodSeen] = {}
        self.gone: dict[str, dict[str, PodSeen]] = {}
        self.proofs: dict[str, bytes] = {}
        self._packer = Packer()
        self._on: dict[str, dict[str, None]] = {}
        self._pending: dict[str, bytes] = {}

    def put(self, uid: str, item: Object) -> None:
        """Take a Pod that came or changed."""
        before = self._forget(uid)
        pod = self.seen[uid] = pod_seen(item, self._device_names)
        if pod.node and not pod.ended:
            self._on.setdefault(pod.node, {})[uid] = None
        self._tell(before, pod)
        if before is None or _life(before) != _life(pod):
            if pod.node and not pod.ended:
                self._wakeups.pod_started.publish(uid)
            for node in {pod.node, "" if before is None else before.node} - {""}:
                self._wakeups.pod_moved.publish(node)
        if pod.proof and (before is None or before.proof != pod.proof):
            text = item["metadata"]["annotations"][res.ANNOTATION_TENURE_PROOF]
            self.proofs[uid] = self._packer.packed(text.encode())
        if pod.ended or not pod.proof:
            self.proofs.pop(uid, None)
        if pod.node and (before is None or (before.given, before.proof) != (pod.given, pod.proof)):
            self._wakeups.pod_annotations_changed.publish(pod.node)
        # Not `pod.node`: what another system names there has no Pod yet.
        if not found_in(item, "spec", "nodeName") and not pod.ended:
            metadata = item["metadata"]
            metadata = {key: value for key, value in metadata.items() if key != "managedFields"}
            self._pending[uid] = msgspec.json.encode({**item, "metadata": metadata})

    def drop(self, uid: str) -> None:
        """Forget a Pod that is gone."""
        before = self._forget(uid)
        self.proofs.pop(uid, None)
        self._tell(before, None)
        if before is not None and before.node:
            self.gone.setdefault(before.node, {})[uid] = before
            self._wakeups.pod_moved.publish(before.node)

    def take_proof(self, uid: str) -> str:
        """Return a proof of `proofs`, and take it out."""
        return self._packer.text(self.proofs.pop(uid)).decode()

    def forget_gone(self, node: str, but: AbstractSet[str]) -> None:
        """Forget the Pods that are gone from a node, but these."""
        gone = self.gone.pop(node, {})
        kept = {uid: gone[uid] for uid in gone.keys() & but}
        if kept:
            self.gone[node] = kept

    def _tell(self, before: PodSeen | None, now: PodSeen | None) -> None:
        nodes = [
            pod.node if pod is not None and pod.holds and not pod.ended else ""
            for pod in (before, now)
        ]
        if nodes[0] != nodes[1]:
            for node in filter(None, nodes):
                self._wakeups.pod_holders_changed.publish(node)

    def _forget(self, uid: str) -> PodSeen | None:
        pod = self.seen.pop(uid, None)
        self._pending.pop(uid, None)
        if pod is not None and pod.node in self._on:
            there = self._on[pod.node]
            there.pop(uid, None)
            if not there:
                del self._on[pod.node]
        return pod

    def holding_on(self, node: str) -> list[str]:
        """Return the UIDs of the Pods that run on a node and hold something of it alone."""
        return [uid for uid in self._on.get(node, ()) if self.seen[uid].holds]

    def running_on(self, node: str) -> frozenset[str]:
        """Return the UIDs of the Pods that are bound to a node and have not ended."""
        return frozenset(self._on.get(node, ()))

    def waiting(self) -> int:
        """Return how many Pods have no node."""
        return len(self._pending)

    def pending(self, uid: str) -> Mapping[str, Any] | None:
        """Return a Pod that has no node, None for any other."""
        text = self._pending.get(uid)
        if text is None:
            return None
        body: dict[str, Any] = msgspec.json.decode(text)
        return body


class Namespaces:
    """A sink of Namespaces; tells by name which have the labels of holders, and of preemption."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self.labelled: dict[str, bool] = {}
        self.preempt: dict[str, bool] = {}

    def put(self, uid: str, item: Object) -> None:
        """Take a Namespace that came or changed."""
        name = self._names[uid] = str(item["metadata"]["name"])
        labels = item["metadata"].get("labels") or {}
        self.labelled[name] = res.LABEL_TENURE_HOLDING in labels
        self.preempt[name] = labels.get(res.LABEL_TENURE_PREEMPT) == TRUE

    def drop(self, uid: str) -> None:
        """Forget a Namespace that is gone."""
        name = self._names.pop(uid, "")
        self.labelled.pop(name, None)
        self.preempt.pop(name, None)


def pod_seen(item: Object, device_names: AbstractSet[str]) -> PodSeen:
    """Return what is kept of a Pod object."""
    metadata, spec = item["metadata"], item.get("spec") or {}
    life = life_words(item)
    words: Mapping[str, str] = (metadata.get("annotations") or {}) if life["node"] else {}
    return PodSeen(
        **life,
        priority=int(spec.get("priority") or 0),
        version=str(metadata.get("resourceVersion") or ""),
        holds=res.ANNOTATION_RESOURCE_STATUS in words or _holds(item, device_names),
        is_ours=spec.get("schedulerName") == res.SCHEDULER_NAME,
        given=given_digest(words),
        proof=_digest(words.get(res.ANNOTATION_TENURE_PROOF, "").encode()),
        labels=_labels(metadata) if life["node"] and not life["ended"] else "",
        leaving=str(metadata.get("deletionTimestamp") or ""),
    )


def _labels(metadata: Mapping[str, Any]) -> str:
    """Return labels as JSON; Pods of one workload, which mostly have the same, share the text."""
    labels = metadata.get("labels")
    return intern(msgspec.json.encode(labels, order="sorted").decode()) if labels else ""


def given_digest(annotations: Mapping[str, str]) -> bytes:
    """Return a digest of what annotations say of devices and CPUs; empty where they say nothing."""
    words = given(annotations)
    return _digest(msgspec.json.encode(words, order="sorted") if words else b"")


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8).digest() if text else b""


def _life(pod: PodSeen) -> tuple[str, str, bool]:
    return pod.node, pod.ended, pod.terminated


def _holds(item: Object, device_names: AbstractSet[str]) -> bool:
    """Tell whether a Pod asks for devices, of whichever vendor, or for CPUs of its own."""
    labels = item["metadata"].get("labels") or {}
    if labels.get(res.LABEL_QOS_CLASS) in OWN_CPUS:
        return True
    return any(
        not device_names.isdisjoint(amounts) or any(map(stands_for_cards, amounts))
        for amounts in amounts_of(item)
    )


def amounts_of(item: Object) -> Iterator[Object]:
    """Yield the limits and the requests of a Pod's containers, where there are some."""
    spec = item.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        yield from filter(None, (resources.get("limits"), resources.get("requests")))


def _encoded(part: Object) -> bytes:
    """Return a part as MessagePack, that a text with quotes is no work for; else as JSON."""
    try:
        return msgspec.msgpack.encode(part)
    except OverflowError:  # a number of more than 64 bits, which JSON has
        return msgspec.json.encode(part)


def _metadata(item: Object) -> dict[str, Any]:
    metadata = item["metadata"]
    kept = {key: metadata[key] for key in _METADATA if metadata.get(key) is not None}
    annotations = kept.get("annotations")
    if isinstance(annotations, dict) and not _UNREAD.isdisjoint(annotations):
        kept["annotations"] = {k: v for k, v in annotations.items() if k not in _UNREAD}
    return kept


def _node(item: Object) -> tuple[str, Object]:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    body = {
        "metadata": _metadata(item),
        "spec": {key: spec[key] for key in ("taints", "unschedulable") if key in spec},
        "status": {key: status[key] for key in _STATUS if key in status},
    }
    return str(item["metadata"]["name"]), body


def _inventory(item: Object) -> tuple[str, Object]:
    parts = {key: value for key, value in item.items() if key not in ("metadata", "managedFields")}
    return str(item["metadata"]["name"]), {"metadata": _metadata(item), **parts}


def _unhealthy(item: Object) -> tuple[str, Object] | None:
    name = str(item["metadata"]["name"])
    if not name.startswith(res.UNHEALTHY_GPU_PREFIX):
        return None
    body = {"metadata": _metadata(item), "data": item.get("data") or {}}
    return name.removeprefix(res.UNHEALTHY_GPU_PREFIX), body
