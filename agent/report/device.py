"""The Device object of this node, out of what the machine has and what the object says now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from agent.decide.node_holdings import HeldByPod
from agent.discover import machine
from agent.discover.faults import PASSING, CardFault
from agent.discover.links import bandwidth_of
from agent.report.settle import is_applied
from ledger.domain import resources as words
from ledger.domain.annotations.gpu_topology import encode_gpu_links
from ledger.domain.annotations.wire import dump, present
from ledger.domain.bounds import NAME_MAX
from ledger.domain.device_types import Unit
from ledger.domain.devices import WHOLE_PERCENT, VirtualFunction
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import items_in, section, text_in
from ledger.domain.quantity import quantity_of
from ledger.domain.request.card_names import SHARED, SLICE
from ledger.domain.vocabulary import Vocabulary

Object = Mapping[str, Any]
"""An API object as JSON."""

API_VERSION: Final = "scheduling.koordinator.sh/v1alpha1"
KIND: Final = "Device"
UNSEEN: Final = "Unseen"
"""A device that was told of, and that nobody can look at now."""
MIG_MIXED: Final = "MIGMixed"
NOT_OWNED: Final = "NotOwned"
"""Somebody else hands the same cards out; passes when that ends."""
MACHINE_DIFFERS: Final = "MachineDiffers"
MODELS_DIFFER: Final = "ModelsDiffer"

_VENDOR: Final = "nvidia"
_MIXED: Final = "mixed"
_HEALTH: Final = "Healthy"
"""The condition that tells whether a device takes holders."""
_HEALTHY: Final = "DeviceHealthy"
_NOT_A_LABEL: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LABEL_MAX: Final = 63
_KIND_OF: Final = {words.TYPE_GPU: machine.Kind.GPU, words.TYPE_RDMA: machine.Kind.RDMA}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """
    What the cluster should read of this machine.

    Attributes:
        labels: of the Node and of the Device object, as Koordinator has them on both.
        device: the Device object without its status; None = there should be none.
        allocations: its status; None = nobody knows who holds what.
        problems: what is wrong with what was found.
    """

    labels: Mapping[str, str]
    device: Object | None
    allocations: Object | None
    problems: tuple[machine.Fault, ...] = ()


def wanted(
    found: machine.Discovery,
    node: Object,
    there: Object | None,
    pods: Iterable[HeldByPod] | None,
    *,
    vocabulary: Vocabulary,
    now: str,
) -> Wanted:
    """
    Return what should be said of a machine.

    Rule: Koordinator contract 1.2, 2.3, 3.1 and 9.1. A device that is known and can't be looked at
    now stays in the object, closed: what it holds is held. Where the vendor's plugin serves MIG
    instances as resources of their own, the node's cards are the plugin's, and the object is not
    made for anything else: without it the scheduler counts by number what the plugin advertises.

    Args:
        node: the Node, whose UID the object has for its owner.
        there: the Device object as it is; None = there is none.
        pods: what the ledger says is held; None = not known.
        now: the time of a change, RFC 3339.
    """
    mixed, found = _is_mixed(node), ours(found, node)
    before, declared = tuple(_entries(there)), recoveries(there)
    kept = _out_of_sight(found, before, declared, machine.MIG_NOT_SERVED if mixed else UNSEEN)
    labels = _gpu_labels(found.cards, found.driver_version)
    if machine.Kind.GPU in found.unknown and not found.cards:
        labels = {
            key: text
            for key, text in section(there, "metadata", "labels").items()
            if key in _GPU_LABELS
        }
    entries = [
        *map(_card_entry, found.cards),
        *(_other_entry(one, vocabulary) for one in found.others),
        *kept,
        *_nic_entries(found.nics, before, kept),
    ]
    device = None
    skips = mixed and not any(entry["type"] == words.TYPE_GPU for entry in kept)
    if not skips and (entries or there is not None):
        listed = [_since(entry, before, now, declared) for entry in sorted(entries, key=_by_minor)]
        device = _device(found, node, labels, listed)
    return Wanted(
        labels=labels,
        device=device,
        allocations=None if pods is None else {"allocations": allocations(pods)},
        problems=(*found.problems, *_other_machine(found.identity, node), *_models(found.cards)),
    )


def _out_of_sight(
    found: machine.Discovery, before: Sequence[Object], declared: Sequence[str], reason: str
) -> list[dict[str, Any]]:
    """
    Return the devices that were told of and that nobody can look at now, closed for this reason.

    What else was said against one stays said until it is declared over. One whose minor is
    another's by now is gone.
    """

    def against(entry: Object) -> tuple[machine.Fault, ...]:
        return () if entry.get("id") in declared else _faults_said(entry)

    known = {(words.TYPE_GPU, card.uuid) for card in found.cards}
    known |= {(words.TYPE_RDMA, nic.place.bus_id) for nic in found.nics}
    known |= {(one.device_type, one.device_id) for one in found.others}
    taken = {(words.TYPE_GPU, card.minor) for card in found.cards}
    taken |= {(one.device_type, one.minor) for one in found.others}
    closed = machine.Fault(reason=reason, message="not to be looked at now")
    return [
        {**entry, "health": False, "conditions": _conditions((closed, *against(entry)))}
        for entry in before
        if _KIND_OF.get(str(entry.get("type")), machine.Kind.OTHER) in found.unknown
        and (entry.get("type"), entry.get("id")) not in known
        and (entry.get("type"), entry.get("minor") or 0) not in taken
    ]


def _device(
    found: machine.Discovery, node: Object, labels: Mapping[str, str], listed: Sequence[Object]
) -> Object:
    links = bandwidth_of(found)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": node["metadata"]["name"],
            "labels": labels,
            "annotations": _annotations(found),
            "ownerReferences": [owner_of(node["metadata"])],
        },
        # Always with a list: a spec that an apply takes the last field of is null.
        "spec": {
            "devices": list(listed),
            **({} if links is None else {"topologies": encode_gpu_links(links)}),
        },
    }


def _models(cards: Sequence[machine.Card]) -> Iterator[machine.Fault]:
    models = sorted({card.model for card in cards})
    if len(models) > 1:
        fact = f"the label says the model of the first: {models}"
        yield machine.Fault(reason=MODELS_DIFFER, message=fact)


def _by_minor(entry: Object) -> tuple[str, int]:
    return str(entry["type"]), entry.get("minor") or 0


def ours(found: machine.Discovery, node: Object) -> machine.Discovery:
    """
    Return what is ours to tell of: the cards are the vendor's plugin's where it is `mixed`.

    Rule: design section 8, "Ownership of the metal": a node is Tenure's or foreign, never both.
    Cards that another plugin advertises take no holders.
    """
    if not _is_mixed(node):
        return _closed_to_two(found, _advertised(node))
    fact = "the MIG strategy of the vendor's plugin is `mixed`: its cards are not told of"
    return replace(
        found,
        unknown=tuple(
            kind for kind in machine.Kind if kind is machine.Kind.GPU or kind in found.unknown
        ),
        cards=(),
        links=(),
        measured=None,
        problems=(*found.problems, machine.Fault(reason=MIG_MIXED, message=fact)),
    )


def _closed_to_two(found: machine.Discovery, names: Sequence[str]) -> machine.Discovery:
    if not names or not found.cards:
        return found
    fact = f"another plugin advertises the cards: resources={','.join(names)}"
    fault = machine.Fault(reason=NOT_OWNED, message=f"{fact}; keep it off nodes of ours")
    return replace(
        found,
        cards=tuple(replace(card, faults=(*card.faults, fault)) for card in found.cards),
        problems=(*found.problems, fault),
    )


def _advertised(node: Object) -> list[str]:
    capacity = (node.get("status") or {}).get("capacity") or {}
    return sorted(
        name
        for name, amount in capacity.items()
        if (name in {words.NVIDIA_GPU, SHARED} or SLICE.fullmatch(name))
        and _is_some(amount)
        and not is_applied(node, ("status", "capacity", name), subresource="status")
    )


def _is_some(amount: object) -> bool:
    try:
        return bool(quantity_of(amount))
    except InputError:
        return True  # nobody knows how many


def _is_mixed(node: Object) -> bool:
    return section(node, "metadata", "labels").get(words.LABEL_MIG_STRATEGY) == _MIXED


def allocations(pods: Iterable[HeldByPod]) -> list[dict[str, object]]:
    """
    Return `status.allocations`: who holds which minors, by type, then namespace and name.

    Rule: Koordinator contract 3.1, ours: filled from the ledger, for people.
    """
    by_type: dict[str, list[dict[str, object]]] = {}
    for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.pod_name, pod.pod_uid)):
        devices = pod.devices
        for name in sorted({one.device_type for one in devices}):
            minors = sorted(one.minor for one in devices if one.device_type == name)
            entry: dict[str, object] = {
                "namespace": pod.namespace,
                "name": pod.pod_name,
                "uuid": pod.pod_uid,
                "minors": minors,
            }
            by_type.setdefault(name, []).append(entry)
    return [{"type": name, "entries": by_type[name]} for name in sorted(by_type)]


def recoveries(there: Object | None) -> tuple[str, ...]:
    """
    Return the ids of the devices that somebody declares whole again, by the object's annotation.

    Rule: design section 8: a card that was closed reopens only by an explicit event. That names the
    device and since when it is closed (`GPU-5d0f6c1e@2026-01-01T00:00:00Z`, commas between), as its
    condition does, so that an annotation that stays there opens nothing that closes later. What is
    written next has another time, even where the card is still closed: a word counts once.
    """
    text = text_in(there, "metadata", "annotations", words.ANNOTATION_TENURE_RECOVERED)
    said = {word.strip() for word in text.split(",")}
    return tuple(
        sorted(
            str(entry.get("id"))
            for entry in _entries(there)
            for condition in items_in(entry, "conditions")
            if condition.get("status") == "False"
            and f"{entry.get('id')}@{condition.get('lastTransitionTime')}" in said
        )
    )


def closed_cards(there: Object | None) -> tuple[CardFault, ...]:
    """
    Return what the object says against cards, but for states that pass by themselves.

    Rule: design section 8: only a word opens a card. Whoever lost what it knew has it from here.
    """
    return tuple(
        CardFault(uuid=entry["id"], reason=fault.reason, message=fault.message)
        for entry in _entries(there)
        if entry["type"] == words.TYPE_GPU
        and isinstance(entry.get("id"), str)
        and 0 < len(entry["id"]) <= NAME_MAX
        for fault in _faults_said(entry)
    )


def _faults_said(entry: Object) -> tuple[machine.Fault, ...]:
    """
    Return what a device's conditions say against it, but for states that pass by themselves.

    The first fault is the reason why it is not healthy, unless such a state is; every other one has
    a condition of its own.
    """
    found: dict[str, machine.Fault] = {}
    for condition in items_in(entry, "conditions"):
        reason, message = condition.get("reason"), condition.get("message", "")
        if not (isinstance(reason, str) and isinstance(message, str)):
            continue
        against = "True"
        if condition.get("type") == _HEALTH:
            first = message.partition("; ")[0]
            against, message = "False", first.removeprefix(reason).removeprefix(": ")
        if (
            condition.get("status") == against
            and 0 < len(reason) <= NAME_MAX
            and reason not in PASSING | {UNSEEN, NOT_OWNED}
        ):
            found.setdefault(reason, machine.Fault(reason=reason, message=message))
    return tuple(found.values())


def model_label(model: str) -> str:
    """Return the label of a card's model: without the vendor, blanks as dashes (contract 2.3)."""
    text = _NOT_A_LABEL.sub("-", model.removeprefix("NVIDIA ").strip())
    return text[:_LABEL_MAX].strip("-._")


_GPU_LABELS: Final = frozenset(
    {words.LABEL_GPU_VENDOR, words.LABEL_GPU_MODEL, words.LABEL_GPU_DRIVER_VERSION}
)


def _gpu_labels(cards: Sequence[machine.Card], driver_version: str) -> dict[str, str]:
    if not cards:
        return {}
    texts = {
        words.LABEL_GPU_VENDOR: _VENDOR,
        words.LABEL_GPU_MODEL: model_label(cards[0].model),
        words.LABEL_GPU_DRIVER_VERSION: model_label(driver_version),
    }
    return {key: text for key, text in texts.items() if text}


def _annotations(found: machine.Discovery) -> dict[str, str]:
    ids = found.identity
    if ids == machine.Identity():
        return {}
    said = {"systemUUID": ids.system_uuid, "machineID": ids.machine_id, "bootID": ids.boot_id}
    return {words.ANNOTATION_TENURE_MACHINE: dump(present(said))}


def _card_entry(card: machine.Card) -> dict[str, Any]:
    resources = {
        words.GPU_CORE: str(WHOLE_PERCENT),
        words.GPU_MEMORY: str(card.memory_bytes),
        words.GPU_MEMORY_RATIO: str(WHOLE_PERCENT),
    }
    return _entry((words.TYPE_GPU, card.uuid, card.minor), resources, card.place, card.faults)


def _nic_entries(
    nics: Sequence[machine.Nic], before: Sequence[Object], kept: Sequence[Object]
) -> Iterator[dict[str, Any]]:
    """Yield the NICs with the minors that they had, so that none moves under its Pods."""
    had = {
        str(one.get("id")): one.get("minor") or 0
        for one in before
        if one["type"] == words.TYPE_RDMA
    }
    known = {nic.place.bus_id for nic in nics}
    taken = {minor for device_id, minor in had.items() if device_id in known}
    taken |= {one.get("minor") or 0 for one in kept if one["type"] == words.TYPE_RDMA}
    for nic in nics:
        minor = had.get(nic.place.bus_id)
        if minor is None:
            minor = next(number for number in range(len(taken) + 1) if number not in taken)
            taken.add(minor)
        labels = {"fabric": nic.fabric} if nic.fabric else {}
        resources = {words.RDMA: str(WHOLE_PERCENT)}
        entry = _entry((words.TYPE_RDMA, nic.place.bus_id, minor), resources, nic.place, nic.faults)
        yield {**entry, **present({"labels": labels, "vfGroups": _groups(nic.vfs)})}


def _other_entry(one: machine.OtherDevice, vocabulary: Vocabulary) -> dict[str, Any]:
    kind = vocabulary.type_named(one.device_type)
    units = 1 if kind.unit is Unit.COUNT else one.percent
    resources = {kind.resource: str(units)}
    if kind.memory and one.memory_bytes:
        resources[kind.memory] = str(one.memory_bytes)
    identity = (one.device_type, one.device_id, one.minor)
    entry = _entry(identity, resources, one.place, one.faults)
    return {**entry, **present({"labels": dict(one.labels), "vfGroups": _groups(one.vfs)})}


def _entry(
    identity: tuple[str, str, int],
    resources: Mapping[str, str],
    place: machine.Place,
    faults: tuple[machine.Fault, ...],
) -> dict[str, Any]:
    device_type, device_id, minor = identity
    topology = {}
    if place != machine.Place():
        topology = {
            "socketID": -1,
            "nodeID": place.numa_node,
            "pcieID": place.root,
            "busID": place.bus_id,
        }
    entry = {
        "type": device_type,
        "id": device_id,
        "minor": minor,
        "health": not faults,
        "resources": dict(resources),
        "conditions": _conditions(faults),
    }
    return {**entry, "topology": topology} if topology else entry


def _groups(functions: Sequence[VirtualFunction]) -> list[dict[str, Any]]:
    groups: dict[tuple[tuple[str, str], ...], list[dict[str, object]]] = {}
    for one in functions:
        key = tuple(sorted(one.labels.items()))
        groups.setdefault(key, []).append({"minor": one.minor, "busID": one.bus_id})
    return [{**present({"labels": dict(key)}), "vfs": vfs} for key, vfs in groups.items()]


def _conditions(faults: Sequence[machine.Fault]) -> list[dict[str, Any]]:
    """
    Return a device's conditions without their times: `Healthy` first, with the first fault's word.

    Every other fault that stays until somebody declares it over has a condition of its own: whoever
    lost what it knew could not tell it from the words for people.
    """
    said = "; ".join(f"{fault.reason}: {fault.message}".rstrip(": ") for fault in faults)
    reason = faults[0].reason if faults else _HEALTHY
    status = "False" if faults else "True"
    rest = {fault.reason: fault.message for fault in faults[1:] if fault.reason not in PASSING}
    return [
        {"type": _HEALTH, "status": status, "reason": reason, "message": said},
        *(
            {"type": word, "status": "True", "reason": word, "message": message}
            for word, message in rest.items()
        ),
    ]


def _since(
    entry: dict[str, Any], before: Sequence[Object], now: str, declared: Sequence[str]
) -> dict[str, Any]:
    """Return an entry whose conditions have the time when they became so, or were declared over."""
    old = {
        said.get("type"): said
        for one in before
        if (one.get("type"), one.get("id")) == (entry["type"], entry["id"])
        for said in items_in(one, "conditions")
    }

    def since(condition: dict[str, Any]) -> str:
        was = old.get(condition["type"], {})
        stays = was.get("status") == condition["status"] and entry["id"] not in declared
        return (was.get("lastTransitionTime") if stays else None) or now

    conditions = entry["conditions"]
    return {
        **entry,
        "conditions": [{**one, "lastTransitionTime": since(one)} for one in conditions],
    }


def _entries(there: Object | None) -> Iterator[Object]:
    return (one for one in items_in(there, "spec", "devices") if isinstance(one.get("type"), str))


def _other_machine(identity: machine.Identity, node: Object) -> Iterator[machine.Fault]:
    """Yield what kubelet says of another machine, or of another start of it."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    for name, ours, theirs in (
        ("systemUUID", identity.system_uuid, str(info.get("systemUUID", "")).lower()),
        ("machineID", identity.machine_id, str(info.get("machineID", ""))),
        ("bootID", identity.boot_id, str(info.get("bootID", ""))),
    ):
        if ours and theirs and ours != theirs:
            fact = f"{name}: the host's files say {ours}, its Node {theirs}"
            yield machine.Fault(reason=MACHINE_DIFFERS, message=fact)


def is_of_another(identity: machine.Identity, node: Object) -> bool:
    """Tell whether a Node is another machine's: no id that outlives a start of it is ours."""
    differs = {fault.message.partition(":")[0] for fault in _other_machine(identity, node)}
    return {"systemUUID", "machineID"} <= differs


def owner_of(metadata: Object) -> dict[str, Any]:
    """Return the reference to a Node as the owner of an object, which goes with it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
