"""The cluster as far as its objects can be read: one that is broken hides nothing of the others."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import structs

from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import section, text_in
from ledger.domain.nodes import NodeFacts
from ledger.domain.resources import TYPE_GPU
from ledger.domain.vocabulary import Vocabulary
from scheduler.cluster.documents import Document, Documents, is_ended, node_of
from scheduler.cluster.model import Cluster, Pod, RefusedPod, Unreadable
from scheduler.cluster.objects import asked_by, by_node, cluster_of, observed_on
from scheduler.cluster.one_node import NodeDocuments, read_node, read_witnesses
from scheduler.decide.settings import SchedulingSettings

_TRIES_MAX: Final = 16
"""So many annotations of one object are left out one by one; then all of it is."""

_ANNOTATION: Final = re.compile(r"metadata\.annotations\[([^\]]+)\]")
_NOBODY: Final[frozenset[str]] = frozenset()


def cluster_as_far_as_read(objects: Documents, settings: SchedulingSettings) -> Cluster:
    """
    Return the cluster that these objects describe, with what of them can't be read beside it.

    Rule: cli.md, exit code 2: commands that only look name the object, count it as unknown and go
    on. An annotation that can't be read is left out, so that what it said is not known; a Pod whose
    request can't be read is on cards that nobody can name; a Node or Device that can't be read has
    none, and takes nobody.
    """
    try:
        return cluster_of(objects, settings)
    except InputError:
        mending = _Mending(objects, settings)
        return mending.cluster()


def asked_as_far_as_read(document: Document, vocabulary: Vocabulary) -> Pod:
    """Return what a Pod asks for; one that can't be read is refused for that, and others go on."""
    try:
        return asked_by(document, vocabulary)
    except InputError as error:
        return RefusedPod(
            uid=document.uid,
            namespace=document.namespace,
            name=document.name,
            errors=(
                FieldError(field=error.field, reason="FieldValueInvalid", message=error.message),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mended:
    """Objects with those that can't be read left out, or put in as far as they can be."""

    documents: tuple[Document, ...]
    whole: Documents

    def of_kind(self, kind: str) -> Sequence[Document]:
        return tuple(each for each in self.documents if each.ours and each.kind == kind)

    def documents_in(self, name: str, text: str) -> tuple[Any, ...]:
        return self.whole.documents_in(name, text)


class _Mending:
    """Reads every object by itself, and keeps what of it can be read."""

    def __init__(self, objects: Documents, settings: SchedulingSettings) -> None:
        self._objects = objects
        self._settings = settings
        self._instead: dict[tuple[str, str, str], Document | None] = {}
        self._unreadable: list[Unreadable] = []
        self._strangers: set[str] = set()

    def cluster(self) -> Cluster:
        """Return what can be read; an object of another kind than Node and Pod is left out."""
        nodes = {name: self._node(name, about) for name, about in by_node(self._objects).items()}
        for pod in self._objects.of_kind("Pod"):
            self._pod(pod, nodes)
        documents = tuple(self._now(each) for each in self._objects.documents)
        mended = _Mended(documents=tuple(filter(None, documents)), whole=self._objects)
        cluster = self._without_the_rest(mended)
        adopted = [
            structs.replace(event, unknown_types=(TYPE_GPU,), counted={})
            if event.pod_uid in self._strangers
            else event
            for event in cluster.adopted
        ]
        return dataclasses.replace(
            cluster, adopted=tuple(adopted), unreadable=tuple(self._unreadable)
        )

    def _without_the_rest(self, mended: _Mended) -> Cluster:
        """Return the cluster without quotas, templates and other objects that can't be read."""
        for _ in range(len(mended.documents) + 1):
            try:
                return cluster_of(mended, self._settings)
            except InputError as error:
                culprit = next(
                    (each for each in mended.documents if error.place.endswith(each.title)), None
                )
                if culprit is None:
                    raise
                self._say(culprit, error)
                kept = tuple(each for each in mended.documents if each is not culprit)
                mended = dataclasses.replace(mended, documents=kept)
        raise AssertionError("each try leaves an object out")

    def _node(self, name: str, about: NodeDocuments) -> tuple[NodeDocuments, NodeFacts]:
        for number in range(_TRIES_MAX):
            try:
                read_witnesses(about)
                return about, read_node(about, self._settings, _NOBODY)[0]
            except InputError as error:
                about = self._mend_node(about, error, last=number == _TRIES_MAX - 2)
        raise AssertionError(f"a bare Node can be read: {name}")

    def _mend_node(self, about: NodeDocuments, error: InputError, *, last: bool) -> NodeDocuments:
        parts = {
            field.name: part
            for field in dataclasses.fields(NodeDocuments)
            if (part := getattr(about, field.name)) is not None
        }
        which = next(
            (key for key, part in parts.items() if error.place.endswith(part.title)), "node"
        )
        culprit: Document = parts[which]
        self._say(culprit, error)
        key = _ANNOTATION.search(error.field)
        if key is not None and not last:
            mended = _without_annotation(culprit, key[1])
            if mended is not culprit:
                self._put(culprit, mended)
                return dataclasses.replace(about, **{which: mended})
        if which in {"topology", "unhealthy"} and not last:
            self._put(culprit, None)
            kept = about.topology if which == "unhealthy" else None
            gone = about.unhealthy if which == "topology" else None
            return dataclasses.replace(about, topology=kept, unhealthy=gone)
        for part in parts.values():
            self._put(part, None)
        metadata = section(about.node.body, "metadata")
        who = {key: metadata[key] for key in ("name", "uid") if key in metadata}
        body = {"kind": "Node", "metadata": who, "spec": {"unschedulable": True}}
        bare = dataclasses.replace(about.node, body=body)  # it takes nobody and has no cards
        self._put(about.node, bare)
        return NodeDocuments(node=bare, device=None, topology=None, unhealthy=None)

    def _pod(
        self, document: Document, nodes: Mapping[str, tuple[NodeDocuments, NodeFacts]]
    ) -> None:
        """Keep what can be read of a Pod; who runs nowhere is left as he is."""
        pod = document
        for number in range(_TRIES_MAX):
            try:
                name = "" if is_ended(pod.body) else node_of(pod.body)
                if name:
                    about, facts = nodes.get(name) or _nowhere(name, pod)
                    observed_on(pod, facts, about, self._settings.vocabulary)
            except InputError as error:
                self._say(document, error)
                key = _ANNOTATION.search(error.field)
                mended = pod if key is None else _without_annotation(pod, key[1])
                if mended is pod or number == _TRIES_MAX - 2:
                    mended = _bare_pod(pod)
                    self._strangers.add(pod.uid)
                pod = mended
                self._put(document, pod)
            else:
                return
        raise AssertionError(f"a bare Pod can be read: {document.title}")

    def _say(self, document: Document, error: InputError) -> None:
        text = ": ".join(filter(None, (error.field, error.message)))
        self._unreadable.append(Unreadable(object=document.title, text=text))

    def _put(self, document: Document, instead: Document | None) -> None:
        self._instead[document.kind, document.namespace, document.name] = instead

    def _now(self, document: Document) -> Document | None:
        return self._instead.get((document.kind, document.namespace, document.name), document)


def _nowhere(name: str, pod: Document) -> tuple[NodeDocuments, NodeFacts]:
    about = NodeDocuments(node=pod, device=None, topology=None, unhealthy=None)
    return about, NodeFacts(uid="", name=name)


def _without_annotation(document: Document, key: str) -> Document:
    metadata = section(document.body, "metadata")
    annotations = dict(section(metadata, "annotations"))
    if key not in annotations:
        return document
    del annotations[key]
    body = {**document.body, "metadata": {**metadata, "annotations": annotations}}
    return dataclasses.replace(document, body=body)


def _bare_pod(document: Document) -> Document:
    metadata = section(document.body, "metadata")
    who = {key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata}
    on = text_in(document.body, "spec", "nodeName")
    spec = {"containers": [{"name": "unknown"}], **({"nodeName": on} if on else {})}
    return dataclasses.replace(document, body={"kind": "Pod", "metadata": who, "spec": spec})
