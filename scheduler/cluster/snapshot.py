"""The cluster as a ledger, files, or both know it: nodes, who holds what, what everyone asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import structs

from ledger.domain.adopted.pods import DEVICE_ALLOCATED
from ledger.domain.devices import GPU, DeviceRecord, DeviceShare
from ledger.domain.dialects.registry import READERS
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.node_objects import systems_of_node
from ledger.domain.kube.object_fields import section
from ledger.domain.kube.original import stored_names
from ledger.domain.kube.shared_templates import SharedTemplate
from ledger.domain.log import events
from ledger.domain.log.claims import claim_as_observed
from ledger.domain.log.recorded_node import RecordedNode
from ledger.domain.log.recorded_request import RecordedRequest, request_digest
from ledger.domain.log.state import LOST, Folding, LedgerState
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.extended import by_number
from ledger.domain.request.normalise import examine_pod
from ledger.domain.request.requests import PodRequest, PodSnapshot, group_name
from ledger.domain.resources import (
    ANNOTATION_RESOURCE_STATUS,
    ANNOTATION_TENURE_ADMITTED,
    LABEL_HOSTNAME,
)
from ledger.domain.vocabulary import Vocabulary
from ledger.store.archives.segments import segments_of
from ledger.store.open import Ledger
from ledger.store.reading.kept import events_of
from ledger.store.reading.read import replay
from ledger.store.reading.timetravel import load_state
from scheduler.cluster import model, rebuilt
from scheduler.cluster.documents import Document, Documents
from scheduler.cluster.mending import cluster_as_far_as_read
from scheduler.cluster.objects import by_node
from scheduler.cluster.settings import recorded_settings, with_templates
from scheduler.decide.settings import SchedulingSettings

UNKNOWN: Final = "its request is not known"
PINNED: Final = "its request names one node"
DAEMON: Final = "its DaemonSet puts it there"
_NODE_NAME: Final = "metadata.name"


@dataclass(slots=True)
class _Told:
    """What the events of a ledger tell beside its state."""

    inventories: dict[str, events.NodeInventoried] = field(default_factory=dict)
    holdings: dict[str, events.PodReserved | events.PodObserved] = field(default_factory=dict)
    refusals: dict[str, events.RequestRefused] = field(default_factory=dict)
    requests: dict[str, RecordedRequest] = field(default_factory=dict)  # by digest
    described: dict[str, RecordedNode] = field(default_factory=dict)  # by UID of the node
    is_archived: bool = False

    def add(self, event: events.LedgerEvent) -> None:
        match event:
            case events.NodeInventoried():
                self.inventories[event.node_uid] = event
            case events.PodReserved() | events.PodObserved():
                self.holdings[event.pod_uid] = event
            case events.NodeDescribed():
                self.described[event.node_uid] = event.facts
            case events.RequestDescribed():
                self.requests[request_digest(event.request)] = event.request
            case events.RequestRefused(stage=stage) if stage == events.STAGE_GONE:
                self.refusals.pop(event.pod_uid, None)
            case events.RequestRefused():
                self.refusals[event.pod_uid] = event
            case _:
                pass


_STAYS: Final[tuple[type[events.LedgerEvent], ...]] = (
    events.NodeInventoried,
    events.NodeDescribed,
    events.RequestDescribed,
)
"""Of what is told, what stays in the log when the events around it move to an archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileObjects:
    """What files tell."""

    nodes: tuple[NodeFacts, ...]
    adopted: tuple[events.PodObserved, ...]
    requests: Mapping[str, PodRequest]
    broken: frozenset[str]
    managed: frozenset[str]
    claims: tuple[events.ClaimObserved, ...] = ()
    shared_templates: tuple[SharedTemplate, ...] | None = None
    unreadable: tuple[model.Unreadable, ...] = ()


def read_objects(objects: Documents, settings: SchedulingSettings) -> FileObjects:
    """Return the nodes and Pods of files, as `tenure map` reads them."""
    return objects_of(cluster_as_far_as_read(objects, settings), objects, settings)


def of_files(settings: SchedulingSettings, objects: Documents) -> SchedulingSettings:
    """Return the settings with what the Nodes of files tell; a live cluster goes by its own."""
    nodes = (one.node.body for one in by_node(objects).values() if one.device is None)
    read = (systems_of_node(section(body, "status"), {}, settings.vocabulary) for body in nodes)
    offers = [dict(systems.offers) for systems, _ in read]
    for reader in READERS:
        settings = replace(settings, vocabulary=reader.fitted(settings.vocabulary, offers))
    return settings


def objects_of(
    cluster: model.Cluster, objects: Documents, settings: SchedulingSettings
) -> FileObjects:
    """Return what these objects tell beside the cluster that was read of them."""
    offers = frozenset(name for node in cluster.nodes for name in node.extended)
    requests: dict[str, PodRequest] = {}
    broken: set[str] = set()
    managed: set[str] = set()
    unreadable = list(cluster.unreadable)
    named = {each.object for each in unreadable}
    examined = {request.uid: request for request in cluster.running_requests}
    for document in objects.of_kind("Pod"):
        request = None if document.title in named else examined.get(document.uid)
        errors: tuple[FieldError, ...] = ()
        try:
            if request is None:
                request, errors = examine_pod(document.body, settings.vocabulary)
        except InputError as error:
            broken.add(document.uid)
            if document.title not in named:
                text = ": ".join(filter(None, (error.field, error.message)))
                unreadable.append(model.Unreadable(object=document.title, text=text))
            continue
        if errors:
            broken.add(request.uid)
        else:
            requests[request.uid] = by_number(request, offers)
        if _is_managed(document):
            managed.add(request.uid)
            if not errors:
                stored = stored_as(document, settings.vocabulary)
                requests[request.uid] = replace(requests[request.uid], stored=stored)
    managed |= {pod.pod_uid for pod in cluster.adopted if pod.source == DEVICE_ALLOCATED}
    return FileObjects(
        nodes=cluster.nodes,
        adopted=tuple(pod for pod in cluster.adopted if pod.node_uid),
        requests=requests,
        broken=frozenset(broken),
        managed=frozenset(managed),
        claims=cluster.claims,
        shared_templates=cluster.shared_templates,
        unreadable=tuple(unreadable),
    )


def snapshot_of_objects(
    objects: FileObjects, settings: SchedulingSettings, placed: Sequence[events.PodObserved] = ()
) -> model.ClusterSnapshot:
    """
    Return the cluster as files alone tell.

    Running Pods hold; those that Tenure admitted, or that hold what is written in our words, are
    taken for ours and may be moved.

    Args:
        placed: what Pods that wait would get, of those that come first.
    """
    places = {node.uid: place for place, node in enumerate(objects.nodes)}
    holders = [
        _holder(
            pod,
            places[pod.node_uid],
            objects.requests.get(pod.pod_uid),
            others=pod.pod_uid not in objects.managed,
        )
        for pod in (*objects.adopted, *placed)
    ]
    holders += [
        model.Holder(
            node=places[one.node_uid], held=claim_as_observed(one), fixed=model.HELD_BY_CLAIM
        )
        for one in objects.claims
    ]
    return model.ClusterSnapshot(
        nodes=objects.nodes,
        holders=tuple(holders),
        settings=with_templates(settings, objects.shared_templates),
        requests=objects.requests,
        by_count=True,
    )


def settings_of(source: Ledger) -> SchedulingSettings:
    """
    Return the settings that the ledger's newest decisions were made by; defaults without any.

    What reads objects beside this ledger is given their vocabulary: words mean what they did. Types
    that only older settings have are in it too, for whoever holds or asks for such a device does so
    still; of two that claim one name the newer counts.
    """
    with source.connection.begin():
        changes = events_of(source.connection, events.SettingsChanged)
    told = [recorded_settings(change.settings) for change in reversed(changes)]
    if not told:
        return recorded_settings("")
    newest = told[0].vocabulary
    for older in told[1:]:
        known, names = set(newest.known_types), newest.device_names
        types = tuple(
            kind
            for kind in older.vocabulary.device_types
            if kind.name not in known and names.isdisjoint(kind.resources)
        )
        newest = replace(newest, device_types=(*newest.device_types, *types))
    return replace(told[0], vocabulary=newest)


def snapshot_of_ledger(
    source: Ledger, objects: FileObjects | None, settings: SchedulingSettings
) -> model.ClusterSnapshot:
    """
    Return the cluster as a ledger tells now; files say what it does not record.

    Raises:
        LedgerError: the ledger can't be read.
    """
    state, told = _read_events(source)
    facts = {} if objects is None else {node.uid: node for node in objects.nodes}
    order = dict.fromkeys((*told.inventories, *sorted(state.nodes)))  # that of the input
    nodes = [_node(uid, state, told, facts) for uid in order if uid in state.nodes]
    places = {node.uid: place for place, node in enumerate(nodes)}
    known = dict(objects.requests) if objects else {}
    for uid, event in {**told.refusals, **told.holdings}.items():
        told_by_files = objects is not None and (uid in known or uid in objects.broken)
        request = None if told_by_files else rebuilt.request_of(event, told.requests)
        if request is not None:
            known[uid] = request
    waits = (uid for uid in told.refusals if uid in known and uid not in told.holdings)
    waiting = [uid for uid in waits if not group_name(known[uid])]
    knows_nodes = all(uid in facts or uid in told.described for uid in state.nodes)
    untold = [] if knows_nodes else [rebuilt.UNTOLD_OF_NODES]
    if told.is_archived and any(
        holding.pod_uid not in told.holdings and holding.pod_uid not in known
        for node in state.nodes.values()
        for holding in node.holdings.values()
    ):
        untold.append(rebuilt.UNTOLD_BY_ARCHIVE)
    return model.ClusterSnapshot(
        nodes=tuple(nodes),
        holders=tuple(_holders(state, told, places, known)),
        settings=with_templates(settings, objects.shared_templates if objects else None),
        requests=known,
        untold=tuple(untold),
        knows_nodes=knows_nodes,
        waiting=tuple(sorted(waiting, key=lambda uid: -known[uid].snapshot.priority)),
        by_count=source.is_simulation,
    )


def _read_events(source: Ledger) -> tuple[LedgerState, _Told]:
    with source.connection.begin():
        archived = segments_of(source.connection)
        last = archived[-1].last if archived else 0
        told = _Told(is_archived=bool(archived))
        for kind in _STAYS if archived else ():
            for event in events_of(source.connection, kind, last):
                told.add(event)
    fold = None if archived else Folding(LedgerState())
    for position, event in replay(source.connection, after=last):
        if fold is not None:
            fold.add(position, event)
        told.add(event)
    return load_state(source).state if fold is None else fold.state, told


def _node(uid: str, state: LedgerState, told: _Told, facts: Mapping[str, NodeFacts]) -> NodeFacts:
    node = state.nodes[uid]
    # What is held on a machine that the node has left closes it as a loss does.
    lost = node.lost or any(held.machine for held in node.everyone())
    if uid in facts:
        devices = _with_health(facts[uid].devices, node.devices)
        return replace(facts[uid], devices=devices, lost=lost or facts[uid].lost)
    inventory = told.inventories.get(uid) or events.NodeInventoried(
        node_uid=uid, node_name=node.name, cpus=node.cpus, cpu_ref_count_max=node.cpu_ref_count_max
    )
    facts_told = rebuilt.node_of(inventory, node.devices, told.described.get(uid))
    return replace(facts_told, system_uuid=node.system_uuid, machine_id=node.machine_id, lost=lost)


def _with_health(
    devices: Sequence[DeviceRecord], recorded: Sequence[DeviceRecord]
) -> tuple[DeviceRecord, ...]:
    closed = {device.key for device in recorded if not device.healthy}
    return tuple(
        replace(device, healthy=False) if device.key in closed else device for device in devices
    )


def _holders(
    state: LedgerState,
    told: _Told,
    places: Mapping[str, int],
    known: Mapping[str, PodRequest],
) -> Iterator[model.Holder]:
    seen: set[str] = set()
    for uid, node in state.nodes.items():
        for holding in node.holdings.values():
            event = told.holdings.get(holding.pod_uid)
            pod = rebuilt.held_by(holding, uid, node.name)
            pod = structs.replace(
                pod,
                pod_uid=holding.pod_uid if holding.pod_uid not in seen else f"{holding.key}@{uid}",
                dialect="" if event is None else event.dialect,
                snapshot=PodSnapshot() if event is None else event.snapshot,
                annotations=pod.annotations if event is None else event.annotations,
                group="" if event is None else event.group,
                counted=event.counted if isinstance(event, events.PodObserved) else {},
            )
            seen.add(holding.pod_uid)
            group = event.group if isinstance(event, events.PodReserved) else ""
            others = holding.kind != "granted"
            own = known.get(holding.pod_uid)
            holder = _holder(pod, places[uid], own, others=others, group=group)
            fixed = model.GONE if holding.phase == LOST else holder.fixed
            yield replace(holder, fixed=fixed, since=holding.opened_position)
        for holding in node.claims.values():
            name = f"claim/{holding.key}@{uid}"
            pod = structs.replace(rebuilt.held_by(holding, uid, node.name), pod_uid=name)
            yield model.Holder(node=places[uid], held=pod, fixed=model.HELD_BY_CLAIM)
    yield from _kept(state, places)


def _kept(state: LedgerState, places: Mapping[str, int]) -> Iterator[model.Holder]:
    """Yield the cards that wait for members of planned groups, each as a holder of its own."""
    for place in state.planned_cards:
        if place.node_uid not in places:
            continue
        node = state.nodes[place.node_uid]
        card = next((d for d in node.devices if d.key == (GPU, place.minor)), None)
        if card is None:
            continue
        share = DeviceShare(
            device_type=GPU,
            minor=place.minor,
            device_id=card.device_id,
            core_percent=card.core_percent,
            memory_bytes=card.memory_bytes,
            exclusive=True,
        )
        pod = events.PodObserved(
            pod_uid=f"{model.PLACE}{place.pod_uid}/{place.minor}",
            attempt=1,
            namespace=place.group,
            pod_name=f"place-{place.minor}",
            node_uid=place.node_uid,
            node_name=node.name,
            source="plan",
            shares=(share,),
        )
        why = f"kept for {place.group}"
        yield model.Holder(node=places[place.node_uid], held=pod, fixed=why, group=place.group)


def _holder(
    pod: events.PodObserved,
    place: int,
    request: PodRequest | None,
    *,
    others: bool,
    group: str = "",
) -> model.Holder:
    fixed = ""
    if others:
        fixed = model.OTHERS
    elif request is None:
        fixed = UNKNOWN
    elif pod.snapshot.owner.startswith("daemonset/"):
        fixed = DAEMON
    elif names_a_node(request):
        fixed = PINNED
    if request is not None and not group:
        group = group_name(request)
    own = None if request is None else replace(request, uid=pod.pod_uid)
    return model.Holder(node=place, held=pod, request=own, fixed=fixed, group=group)


def names_a_node(request: PodRequest) -> bool:
    """Tell whether the request itself says on which one node it is to run."""
    rules = request.placement
    if any(key == LABEL_HOSTNAME for key, _ in rules.node_selector):
        return True
    terms = rules.affinity_terms
    return bool(terms) and all(
        any(
            each.operator == "In"
            and len(each.values) == 1
            and (each.key == LABEL_HOSTNAME or (each.is_field and each.key == _NODE_NAME))
            for each in term
        )
        for term in terms or ()
    )


def stored_as(document: Document, vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return by which names of devices nodes have to advertise what a Pod asks for."""
    return stored_names(document.body, vocabulary) if _is_managed(document) else ()


def _is_managed(document: Document) -> bool:
    annotations = section(document.body, "metadata", "annotations")
    return not annotations.keys().isdisjoint(
        {ANNOTATION_TENURE_ADMITTED, ANNOTATION_RESOURCE_STATUS}
    )
