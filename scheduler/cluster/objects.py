"""The cluster that API objects describe: nodes, running Pods adopted, and what the others ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

from msgspec import structs

from ledger.domain.adopted.cards import Found
from ledger.domain.adopted.pods import adopt
from ledger.domain.annotations.checkpoints import DeviceCheckpoint
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.node_objects import NO_WITNESSES, KubeletReports
from ledger.domain.kube.pod_spec import decode_quota, read_pod
from ledger.domain.kube.shared_templates import SharedTemplate
from ledger.domain.log.events import PodObserved
from ledger.domain.log.recorded_request import recorded_request, request_digest
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.normalise import examine_pod
from ledger.domain.request.requests import PodRequest, group_name
from ledger.domain.resources import TYPE_GPU, UNHEALTHY_GPU_NAMESPACE, UNHEALTHY_GPU_PREFIX
from ledger.domain.vocabulary import Vocabulary
from scheduler.cluster.claimed import closed_where_shared, holders_of_own
from scheduler.cluster.claims import Dra, Given, given_by_claims, with_claims
from scheduler.cluster.constraints import gate_errors
from scheduler.cluster.documents import Document, Documents, is_ended, node_of
from scheduler.cluster.dra import dra_of, is_of_dra, is_taint_rule, selects_otherwise
from scheduler.cluster.kai import held_by_kai
from scheduler.cluster.model import Cluster, Pod, asking
from scheduler.cluster.one_node import NodeDocuments, read_node, read_witnesses
from scheduler.cluster.settings import is_of_templates, templates_in
from scheduler.decide.settings import SchedulingSettings

SEEN_BY_AGENT: Final = "agent"
"""The source of what a node's agent sees a Pod have."""
ALONE: Final = "by the node alone"
"""In place of a namespace, of a Pod that the API does not have: no namespace is called so."""
_NOWHERE: Final = "unknown"
"""The namespace of a Pod of which kubelet's file is the only word."""


def _placed(objects: Documents) -> list[tuple[Document, str]]:
    """
    Return the Pods that hold something, each with its node; one that is being deleted holds on.

    Raises:
        InputError: a node that is no text; with its place and field.
    """
    placed = []
    for document in objects.of_kind("Pod"):
        try:
            node = "" if is_ended(document.body) else node_of(document.body)
        except InputError as error:
            raise document.blame(error) from None
        if node:
            placed.append((document, node))
    return placed


def _running_on(placed: Sequence[tuple[Document, str]]) -> dict[str, frozenset[str]]:
    uids: dict[str, set[str]] = {}
    for document, node in placed:
        uids.setdefault(node, set()).add(document.uid)
    return {name: frozenset(found) for name, found in uids.items()}


def cluster_of(objects: Documents, settings: SchedulingSettings) -> Cluster:
    """
    Return the cluster that these objects describe.

    Rule: cli.md, `tenure simulate`, Input and Running Pods.

    Raises:
        InputError: an object that can't be read; with its place and field.
    """
    vocabulary = settings.vocabulary
    _check_unused(objects, vocabulary)
    placed = _placed(objects)
    documents = by_node(objects)
    nodes: dict[str, NodeFacts] = {}
    witnesses: dict[str, KubeletReports] = {}
    running_on = _running_on(placed)
    warnings = list(_warnings(objects, documents, Counter(node for _, node in placed)))
    for name, about in documents.items():
        nodes[name], found = read_node(about, settings, running_on.get(name, frozenset()))
        witnesses[name] = read_witnesses(about)
        warnings += found
    dra = dra_of(objects)
    claims, rest = holders_of_own(nodes, dra, objects)
    ended = {pod.uid: is_ended(pod.body) for pod in objects.of_kind("Pod")}
    given = given_by_claims(rest, {document.uid: node for document, node in placed}, ended)
    twice, left = dict[str, list[str]](), {one.key for one in rest.devices}
    for one in (one for one in dra.devices if one.key not in left):
        twice.setdefault(one.node, []).append(f"a register and dra offer one card: {one.id}")
    nodes = {
        name: replace(
            facts,
            faults=(*facts.faults, *twice.get(name, ())) if facts.dialects else facts.faults,
            by_claims=dra.by_claims(name, dict(facts.systems.offers)),
            systems=with_claims(facts.systems, given, name),
        )
        for name, facts in nodes.items()
    }
    nodes, by_kai = held_by_kai(nodes, placed)
    asked = [_examined(document, vocabulary) for document, _ in placed]
    adopted = [
        _adopt(
            document,
            request,
            nodes.get(node) or NodeFacts(uid="", name=node),
            witnesses.get(node, NO_WITNESSES),
            vocabulary,
            broken=bool(errors),
        )
        for (document, node), (request, errors) in zip(placed, asked, strict=True)
    ]
    adopted = [
        _by_claims(_by_kai(event, by_kai.get(event.pod_uid), nodes), dra, given)
        for event in adopted
    ]
    used = {event.node_name for event in adopted if event.parts}
    nodes = {n: closed_where_shared(facts, is_used=n in used) for n, facts in nodes.items()}
    known = {document.uid for document in objects.of_kind("Pod")}
    strangers = list(_strangers(nodes, witnesses, known, vocabulary))
    warnings += [warning for _, warning in strangers]
    return Cluster(
        nodes=tuple(nodes.values()),
        adopted=(*adopted, *(pod for pod, _ in strangers)),
        running_requests=tuple(request for request, errors in asked if not errors),
        claims=claims,
        shared_templates=_shared_templates(objects),
        warnings=tuple(warnings),
    )


def _by_kai(event: PodObserved, found: Found | None, nodes: Mapping[str, NodeFacts]) -> PodObserved:
    if found is None:
        return event
    models = {device.key: device.model for device in nodes[event.node_name].devices}
    others = [share for share in event.shares if share.device_type != TYPE_GPU]
    shares = tuple(sorted((*found.shares, *others), key=lambda share: share.key))
    return structs.replace(
        event,
        source=found.source,
        shares=shares,
        device_models=tuple(models.get(share.key, "") for share in shares),
        unknown_types=tuple(sorted({*event.unknown_types} - {TYPE_GPU} | found.lost_types)),
        counted={name: event.counted[name] for name in event.counted if name != TYPE_GPU},
    )


def _by_claims(event: PodObserved, dra: Dra, given: Given) -> PodObserved:
    parts = (*event.parts, *given.parts.get(event.pod_uid, ()))
    if event.pod_uid in dra.claimed and not event.shares:
        return structs.replace(event, parts=parts, unknown_types=(), counted={})
    return structs.replace(event, parts=parts) if parts != event.parts else event


def pending_of(objects: Documents) -> list[Document]:
    """
    Return the Pods that nobody has given a node yet and that have not ended, in their order.

    One whose node can't be read is none of them: it is somewhere.
    """
    return [pod for pod in objects.of_kind("Pod") if not is_ended(pod.body) and _is_nowhere(pod)]


def _is_nowhere(pod: Document) -> bool:
    try:
        return not node_of(pod.body)
    except InputError:
        return False


def asked_by(
    document: Document, vocabulary: Vocabulary, body: Mapping[str, Any] | None = None
) -> Pod:
    """
    Return what a Pod asks for, or the rules that it breaks and the gates that keep it.

    Args:
        body: the Pod where it is another one by now.

    Raises:
        InputError: it can't be read; with its place and field.
    """
    request, errors = _examined(document, vocabulary, body)
    errors = (*document.errors, *errors)
    return asking(request, (*errors, *gate_errors(document.body if body is None else body)))


def observed_on(
    pod: Document,
    node: NodeFacts,
    about: NodeDocuments,
    vocabulary: Vocabulary,
    seen: tuple[DeviceCheckpoint, ...] = (),
) -> tuple[PodObserved, PodRequest | None]:
    """
    Return what a running Pod holds on its node, and what it asks for unless that breaks rules.

    Args:
        seen: what the node's agent sees the Pod have, which counts more than kubelet's file.

    Raises:
        InputError: the Pod, or what the node says of it, can't be read; with place and field.
    """
    request, errors = _examined(pod, vocabulary)
    witnesses = read_witnesses(about)
    if seen:
        witnesses = replace(witnesses, checkpoints={pod.uid: seen})
    event = _adopt(pod, request, node, witnesses, vocabulary, broken=bool(errors))
    if seen:
        event = _with_seen(event, node, witnesses, vocabulary)
    return event, None if errors else request


def _with_seen(
    event: PodObserved, node: NodeFacts, witnesses: KubeletReports, vocabulary: Vocabulary
) -> PodObserved:
    """Return what a Pod holds with what the node's agent sees besides, whatever its words say."""
    alone = adopt(stranger(event.pod_uid, node.name), node, vocabulary, witnesses)
    known = {share.key for share in event.shares}
    more = [share for share in alone.shares if share.key not in known]
    shares = sorted((*event.shares, *more), key=lambda share: share.key)
    models = {device.key: device.model for device in node.devices}
    named = {share.device_type for share in alone.shares} - set(alone.unknown_types)
    return structs.replace(
        event,
        source=SEEN_BY_AGENT,
        shares=tuple(shares),
        device_models=tuple(models.get(share.key, "") for share in shares),
        unknown_types=tuple(each for each in event.unknown_types if each not in named),
        counted={key: count for key, count in event.counted.items() if key not in named},
    )


def node_reader(
    objects: Documents, settings: SchedulingSettings
) -> Callable[[str, Callable[[dict[str, Any]], dict[str, Any]]], NodeFacts]:
    """Return what reads one of the nodes by name, as its Node would be after a change."""
    documents, running = by_node(objects), _running_on(_placed(objects))

    def read(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> NodeFacts:
        about = documents[name]
        body = change(about.node.body)
        pods = running.get(name, frozenset())
        return closed_where_shared(read_node(about, settings, pods, body)[0], is_used=True)

    return read


def _check_unused(objects: Documents, vocabulary: Vocabulary) -> None:
    """Refuse bad quantities also where nothing is decided by them (cli.md, exit code 2)."""
    ended = [document for document in objects.of_kind("Pod") if is_ended(document.body)]
    for documents, read in (
        (ended, lambda pod: read_pod(pod, vocabulary)),
        (objects.of_kind("ResourceQuota"), decode_quota),
    ):
        for document in documents:
            try:
                read(document.body)
            except InputError as error:
                raise document.blame(error) from None


# --- nodes ------------------------------------------------------------------------------------


def by_node(objects: Documents) -> dict[str, NodeDocuments]:
    """Return node name -> its objects, in the order of the Nodes."""
    devices = {document.name: document for document in objects.of_kind("Device")}
    topologies = {document.name: document for document in objects.of_kind("NodeResourceTopology")}
    unhealthy = _unhealthy(objects)
    return {
        document.name: NodeDocuments(
            node=document,
            device=devices.get(document.name),
            topology=topologies.get(document.name),
            unhealthy=unhealthy.get(document.name),
        )
        for document in objects.of_kind("Node")
    }


def _unhealthy(objects: Documents) -> dict[str, Document]:
    """
    Return node name -> the ConfigMap of its unhealthy cards.

    Rule: GPU-sharing contract B.1.
    """
    return {
        document.name.removeprefix(UNHEALTHY_GPU_PREFIX): document
        for document in objects.of_kind("ConfigMap")
        if document.name.startswith(UNHEALTHY_GPU_PREFIX)
        and document.namespace == UNHEALTHY_GPU_NAMESPACE
    }


def _shared_templates(objects: Documents) -> tuple[SharedTemplate, ...] | None:
    for document in objects.of_kind("ConfigMap"):
        if is_of_templates(document):
            return templates_in(document, objects.documents_in)
    return None


def _warnings(
    objects: Documents, documents: Mapping[str, NodeDocuments], away: Mapping[str, int]
) -> Iterator[str]:
    others = (
        each
        for each in objects.documents
        if not (each.ours or is_of_dra(each) or is_taint_rule(each))
    )
    kinds = Counter(document.kind for document in others)
    for kind, count in sorted(kinds.items()):
        yield f"not used by a simulation, ignored: kind={kind}, objects={count}"
    for document in filter(is_taint_rule, objects.documents):
        if selects_otherwise(document):
            fact = "selects by more than driver, pool and device: counted for all that these select"
            yield f"{document.place()}: {document.title}: {fact}"
    for kind in ("Device", "NodeResourceTopology"):
        for document in objects.of_kind(kind):
            if document.name not in documents:
                yield f"{document.place()}: {document.title}: there is no such Node, ignored"
    for document in objects.of_kind("ConfigMap"):
        named = document.name.startswith(UNHEALTHY_GPU_PREFIX)
        if named and document.namespace != UNHEALTHY_GPU_NAMESPACE:
            fact = f"only those of namespace {UNHEALTHY_GPU_NAMESPACE} count, ignored"
            yield f"{document.place()}: {document.title}: {fact}"
    for node, document in _unhealthy(objects).items():
        if node not in documents:
            yield f"{document.place()}: {document.title}: there is no Node {node}, ignored"
    if not documents:
        yield "the input has no Node, so nothing can be placed: kubectl get nodes,pods -A -o json"
    for node, count in away.items():
        if node not in documents:
            fact = "running Pods on a Node that is not in the input"
            known = "what they hold is not known"
            yield f"{fact}: {known}: node={node}, pods={count}"


# --- Pods -------------------------------------------------------------------------------------


def _adopt(
    document: Document,
    request: PodRequest,
    node: NodeFacts,
    witnesses: KubeletReports,
    vocabulary: Vocabulary,
    *,
    broken: bool,
) -> PodObserved:
    """
    Return what a running Pod holds, with what is wrong in the words that say so.

    `broken`: its request breaks rules, so that only its group is told of it.
    """
    try:
        held = adopt(document.body, node, vocabulary, witnesses)
    except InputError as error:
        raise document.blame(error) from None
    faults = held.faults if node.uid else ()
    digest = None if broken else request_digest(recorded_request(request))
    return structs.replace(held, group=group_name(request), faults=faults, request=digest)


def stranger(uid: str, node_name: str, *, namespace: str = "", name: str = "") -> dict[str, Any]:
    """Return a Pod of which the API has no object."""
    metadata = {"uid": uid, "name": name or uid, "namespace": namespace or _NOWHERE}
    spec = {"nodeName": node_name, "containers": [{"name": _NOWHERE}]}
    return {"metadata": metadata, "spec": spec}


def _strangers(
    nodes: Mapping[str, NodeFacts],
    witnesses: Mapping[str, KubeletReports],
    known: AbstractSet[str],
    vocabulary: Vocabulary,
) -> Iterator[tuple[PodObserved, str]]:
    """
    Yield what Pods that are not in the input hold by kubelet's word, each with a warning.

    Rule: Koordinator contract 2.7; the UID is that of the entry, with the node where it is known
    already: one Pod is on one node.
    """
    seen = set(known)
    for node_name, node in nodes.items():
        for uid in witnesses[node_name].checkpoints:
            if uid in known:
                continue
            pod = stranger(uid, node_name)
            held = adopt(pod, node, vocabulary, witnesses[node_name])
            if not (held.shares or held.unknown_types):
                continue
            own = uid if uid not in seen else f"{uid}@{node_name}"
            seen.add(own)
            fact = "devices-checkpoints names a Pod that is not in the input"
            warning = f"node {node_name}: {fact}, it holds as an unknown one: pod_uid={uid}"
            yield structs.replace(held, pod_uid=own, faults=()), warning


def _examined(
    document: Document, vocabulary: Vocabulary, body: Mapping[str, Any] | None = None
) -> tuple[PodRequest, tuple[FieldError, ...]]:
    try:
        return examine_pod(document.body if body is None else body, vocabulary)
    except InputError as error:
        raise document.blame(error) from None
