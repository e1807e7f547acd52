"""The cards of a cluster now: out of a ledger's rows, or out of the objects of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ledger.domain import resources as res
from ledger.domain.devices import WHOLE_PERCENT, DeviceRecord, DeviceShare, level_percent
from ledger.domain.dialects.names import OUR_DIALECT, Dialect
from ledger.domain.dialects.registry import READERS, gpu_dialect_of, reader_of
from ledger.domain.log.claims import claim_as_observed
from ledger.domain.log.events import ClaimObserved, PodObserved
from ledger.domain.log.machines import (
    contradictions,
    granting_nodes,
    machine_of,
    same_device,
)
from ledger.domain.log.recorded_node import RecordedNode
from ledger.domain.log.unnamed import unnamed_cards
from ledger.domain.nodes import NodeFacts, NodeTerms
from ledger.domain.request import extended
from ledger.domain.request.card_names import NVIDIA_DOMAIN, are_parts
from ledger.domain.systems import CORDONED, NO_SYSTEMS, UNHEALTHY, Claimant, DeviceSystems
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary
from ledger.store.reading.report_rows import Device, HealthRow, HolderRow, Node
from scheduler.usage import picture
from scheduler.usage.claims import dra_groups, dra_not_looked_at, is_of_register, register_groups
from scheduler.usage.machines import GONE, once_per_machine
from scheduler.usage.once import once, open_ended
from scheduler.usage.plugins import not_offered, plugged, plugin_groups

_INVENTORY: Final = "inventory"
"""The reason that a ledger has for that."""
MIB: Final = 2**20
DeviceId = tuple[str, str]
"""The type of a device, and its id."""

_CLOSING: Final = frozenset({"NoSchedule", "NoExecute"})
_TAINTS_IN_WORDS: Final = {
    res.TAINT_UNSCHEDULABLE: CORDONED,
    res.TAINT_NOT_READY: "not ready",
    res.TAINT_UNREACHABLE: "not ready",
    res.TAINT_OUT_OF_SERVICE: "out of service",
}
_NOT_DESCRIBED: Final = RecordedNode(version=RecordedNode.newest_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grant:
    """One Pod's part of one device, in the figures that tell whether the device has as much."""

    holder: picture.HolderNow
    core_percent: int
    memory_bytes: int


@dataclass(slots=True, kw_only=True)
class _NodeParts:
    """
    One node before it is put together, in what it says of its machine a `machines.Registered`.

    Attributes:
        machine: what its devices and those of its other Nodes are claimed by.
        terms: what was said of it last; `_NOT_DESCRIBED` where that is nothing.
        devices: each of the machine's is listed by one Node.
        closed: (type, minor) of devices that take no grants -> the reason.
        twice: ids that another machine claims too.
        lost_holders, unlisted: of devices that the node does not list, and the ids of these.
        is_cut, hides_cards: nobody can say what some Pods hold there, which may be cards.
        places: how many Pods are there, whatever they hold.
        told: where its labels and what it offers contradict each other.
    """

    uid: str
    name: str
    system_uuid: str
    machine_id: str
    lost: bool
    machine: Hashable
    terms: NodeTerms
    dialects: frozenset[Dialect] | None
    devices: tuple[DeviceRecord, ...]
    closed: Mapping[tuple[str, int], str]
    systems: DeviceSystems
    labels: Mapping[str, str]
    twice: Container[DeviceId] = ()
    held: dict[tuple[str, int], list[_Grant]] = field(default_factory=dict)
    pods: list[PodObserved] = field(default_factory=list)
    lost_holders: list[picture.HolderNow] = field(default_factory=list)
    unlisted: set[DeviceId] = field(default_factory=set)
    asked: Counter[str] = field(default_factory=Counter)
    is_cut: bool = False
    hides_cards: bool = False
    told: list[str] = field(default_factory=list)
    places: int = 0

    def __post_init__(self) -> None:
        """Add the cards that a node's plugin knows and does not offer."""
        known, offered = (of.get(res.NVIDIA_GPU, 0) for of in (self.systems.there(), self.offers))
        sick = known - offered
        if not self.is_plugged or sick <= 0:
            return
        first = max((each.minor for each in self.devices), default=-1) + 1
        model, memory = next(((each.model, each.memory_bytes) for each in self.devices), ("", 0))
        cards = [
            DeviceRecord(
                device_type=res.TYPE_GPU,
                minor=minor,
                device_id="",
                model=model,
                memory_bytes=memory,
            )
            for minor in range(first, first + sick)
        ]
        self.devices = (*self.devices, *cards)
        why = UNHEALTHY if offered else "plugin gone"
        self.closed = {**self.closed, **{card.key: why for card in cards}}

    @property
    def offers(self) -> Mapping[str, int]:
        """Return what its Node offers, by resource name."""
        return dict(self.systems.offers)

    @property
    def is_plugged(self) -> bool:
        """Tell whether its cards are those of device plugins alone."""
        if self.dialects is None:
            return False
        return all(reader_of(dialect).by_plugin for dialect in self.dialects)

    @property
    def closed_because(self) -> tuple[str, ...]:
        """Return why no Pod that tolerates nothing gets there; empty where one may."""
        words = dict.fromkeys([picture.LOST] if self.lost else [])
        if self.terms.unschedulable:
            words[CORDONED] = None
        for taint in self.terms.taints:
            if taint.effect in _CLOSING or taint.key in _TAINTS_IN_WORDS:
                value = f"={taint.value}" if taint.value else ""
                word = f"taint {taint.key}{value}:{taint.effect}"
                words[_TAINTS_IN_WORDS.get(taint.key, word)] = None
        return tuple(words)

    def add_holder(
        self, holder: picture.HolderNow, share: DeviceShare | HolderRow, key: tuple[str, int] | None
    ) -> None:
        """Add who holds a share of the device with this key; None = of one that is not listed."""
        if key is None:
            self.lost_holders.append(holder)
            self.unlisted.add((share.device_type or "", share.device_id))
        else:
            grant = _Grant(
                holder=holder, core_percent=share.core_percent, memory_bytes=share.memory_bytes
            )
            self.held.setdefault(key, []).append(grant)


def cluster_now_of_objects(
    nodes: Sequence[NodeFacts],
    observed: Iterable[PodObserved],
    claims: Sequence[ClaimObserved] = (),
    *,
    unreadable: Iterable[tuple[str, str]] = (),
    vocabulary: Vocabulary = DEFAULT_VOCABULARY,
) -> picture.Picture:
    """
    Return the cards of a cluster with what its running Pods hold, nodes in input order.

    Args:
        claims: what claims have of cards that nodes list.
        unreadable: object and text of what was left out of it.
    """
    users = {one.claim_uid: names_of(one.consumers) for one in claims}
    observed = list(observed)
    places = Counter(event.node_uid for event in observed)
    observed = [*observed, *map(claim_as_observed, claims)]
    accounts = granting_nodes(nodes)
    parts = [
        _NodeParts(
            uid=node.uid,
            name=node.name,
            system_uuid=node.system_uuid,
            machine_id=node.machine_id,
            lost=node.lost,
            machine=machine_of(node),
            terms=node,
            dialects=node.dialects,
            devices=_there(node) if accounts[number] == number else (),
            closed=_closed_of(node),
            systems=node.systems if accounts[number] == number else NO_SYSTEMS,
            labels=node.labels if accounts[number] == number else {},
            places=places[node.uid],
        )
        for number, node in enumerate(nodes)
    ]
    account_of = {node.uid: parts[accounts[number]] for number, node in enumerate(nodes)}
    lost = {node.uid for node in nodes if node.lost}
    for event in observed:
        if event.node_uid not in account_of:
            continue
        part = account_of[event.node_uid]
        for share in event.shares:
            device = same_device(share, part.devices)
            holder = _holder(event, share, users, lost=event.node_uid in lost)
            part.add_holder(holder, share, device.key if device else None)
    left_out = (
        picture.Contradicted(object=about, text=f"can't be read: {text}")
        for about, text in unreadable
    )
    return _picture(parts, account_of, observed, vocabulary, left_out)


def cluster_now_of_ledger(
    nodes: Iterable[Node],
    devices: Iterable[Device],
    holders: Iterable[HolderRow],
    closed: Mapping[int, str],
    pods: Iterable[PodObserved],
    *,
    described: Mapping[str, RecordedNode],
    labels: Mapping[str, Mapping[str, str]],
    cut: Mapping[str, bool] | None = None,
    taken: Mapping[str, int] | None = None,
    users: Mapping[str, tuple[str, ...]] | None = None,
    at_us: int | None = None,
) -> picture.Picture:
    """
    Return the cards of a ledger at the moment that `holders` and `pods` were asked for.

    Args:
        closed: by number the devices that take no grants then, with the reason.
        pods: who was seen to run there, and of those who were granted something what they ask for.
        described: node UID -> what was said of the node last, as far as it was.
        labels: likewise its labels, of nodes that offer devices by number.
        cut: UIDs of the nodes with Pods of which nobody can say what they hold by number or claim,
            and whether that may be cards.
        taken: UID of a node -> how many Pods are there.
        users: UID of a claim -> the names of the Pods that use it.
        at_us: that moment; None = now.
    """
    nodes = list(nodes)
    created = {uid: facts.created for uid, facts in described.items()}
    # The view of a lost node says of each card that it is lost, also of one that left before.
    devices = [
        replace(each, closed_reason=GONE) if closed.get(each.device_no) == GONE else each
        for each in devices
    ]
    once, places = once_per_machine(nodes, devices, created)
    by_node: dict[str, list[Device]] = {}
    for device in once:
        if device.closed_reason != GONE:
            by_node.setdefault(device.node_uid, []).append(device)
    machines = {node.node_uid: node.machine_no or node.node_uid for node in nodes}
    granting = {
        machines[node.node_uid]: node.node_uid
        for node in sorted(
            nodes,
            key=lambda n: (n.node_uid in by_node, not n.lost_position, created.get(n.node_uid, "")),
        )
    }  # the last of a machine's Nodes is the one that grants
    parts: dict[str, _NodeParts] = {}
    for node in nodes:
        uid, listed = node.node_uid, by_node.get(node.node_uid, ())
        terms = described.get(uid, _NOT_DESCRIBED)
        parts[uid] = _NodeParts(
            uid=uid,
            name=node.node_name,
            system_uuid=node.system_uuid,
            machine_id=node.machine_id,
            lost=node.lost_position is not None,
            machine=machines[uid],
            terms=terms,
            dialects=None if terms.dialects is None else frozenset(terms.dialects),
            devices=tuple(map(_record_of, listed)),
            closed={
                (device.device_type, device.minor): closed[device.device_no]
                for device in listed
                if device.device_no in closed
            },
            systems=terms.systems if granting[machines[uid]] == uid else NO_SYSTEMS,
            labels=labels.get(uid, {}) if granting[machines[uid]] == uid else {},
        )
    account_of = {uid: parts[granting[machine]] for uid, machine in machines.items()}
    for row in sorted(holders, key=lambda row: row.position):
        if row.device_type is None or row.minor is None or row.node_uid not in parts:
            continue
        key = (row.node_uid, row.device_type, row.minor)
        place = places.get(row.device_no or 0, key if not row.device_no else None)
        ended = row.counted_until_us
        lost = ended is not None and (at_us is None or ended <= at_us)
        holder = _holder(row, row, users or {}, lost=lost)
        if place is None or place[0] not in parts:
            account_of[row.node_uid].add_holder(holder, row, None)
        else:
            parts[place[0]].add_holder(holder, row, place[1:])
    for uid, has_cards in (cut or {}).items():
        if uid in account_of:
            part = account_of[uid]
            part.is_cut, part.hides_cards = True, part.hides_cards or has_cards
    for uid, part in parts.items():
        part.places = (taken or {}).get(uid, 0)
    return _picture(list(parts.values()), account_of, list(pods), DEFAULT_VOCABULARY)


def _close_claimed(parts: Sequence[_NodeParts]) -> None:
    """
    Set of each node which ids another machine lists too, or where somebody holds such a device.

    Rule: design section 4, "One account per physical device": whoever holds on a lost node, or on
    one that lists the device no more, holds; what a lost node lists alone claims nothing.
    """
    claims: dict[DeviceId, set[Hashable]] = {}
    for part in parts:
        listed = {
            (device.device_type, device.device_id)
            for device in part.devices
            if not part.lost or part.held.get(device.key)
        }
        for key in listed | part.unlisted:
            if key[1]:
                claims.setdefault(key, set()).add(part.machine)
    for part in parts:
        part.twice = {key for key, owners in claims.items() if owners - {part.machine}}


def closed_at(changes: Iterable[HealthRow], at_us: int | None) -> dict[int, str]:
    """Return by number the devices that were closed at a moment (None = now), with the reason."""
    closed: dict[int, str] = {}
    for change in changes:
        if at_us is not None and change.at_us > at_us:
            continue
        if change.healthy:
            closed.pop(change.device_no, None)
        else:
            closed[change.device_no] = change.reason
    return closed


def unplaced_of(event: PodObserved, device_type: str = res.TYPE_GPU) -> picture.Unplaced | None:
    """Return what a Pod holds of a type on devices that nobody can name; None for nothing."""
    if device_type not in event.unknown_types:
        return None
    asked = _gpus_asked(event)
    counted = event.counted.get(device_type, 0)
    cards = unnamed_cards(event) if device_type == res.TYPE_GPU else max(1, counted)
    wholes = sorted(name for name in asked if name in res.WHOLE_CARD_NAMES)
    amount, unit = cards, device_type
    if device_type == res.TYPE_GPU and wholes:
        unit = wholes[0]
    elif device_type == res.TYPE_GPU and asked and not counted:
        unit = min(asked)
        amount = asked[unit]
    return picture.Unplaced(
        namespace=event.namespace,
        name=event.pod_name,
        uid=event.pod_uid,
        amount=amount,
        unit=unit,
        cards=cards,
        is_counted=bool(counted),
    )


# --- what is known of a node ------------------------------------------------------------------


def _there(node: NodeFacts) -> tuple[DeviceRecord, ...]:
    """Return what a node lists; where it is lost, without what nobody gives there any more."""
    if not node.lost:
        return node.devices
    return tuple(replace(each, core_percent=0, memory_bytes=0) for each in node.devices)


def _closed_of(node: NodeFacts) -> dict[tuple[str, int], str]:
    """Return why devices that a node lists take no grants, as the views of a ledger say it."""
    if node.lost:
        return {device.key: picture.LOST for device in node.devices}
    return {device.key: UNHEALTHY for device in node.devices if not device.healthy}


def _record_of(device: Device) -> DeviceRecord:
    return DeviceRecord(
        device_type=device.device_type,
        minor=device.minor,
        device_id=device.device_id,
        unique_id=device.unique_id,
        model=device.model,
        core_percent=device.core_capacity_percent,
        memory_bytes=device.memory_capacity_bytes,
    )


def names_of(consumers: Iterable[Claimant]) -> tuple[str, ...]:
    """Return the names of the Pods that use a claim."""
    return tuple(one.name for one in consumers)


def _holder(
    pod: PodObserved | HolderRow,
    share: DeviceShare | HolderRow,
    users: Mapping[str, tuple[str, ...]],
    *,
    lost: bool,
) -> picture.HolderNow:
    return picture.HolderNow(
        namespace=pod.namespace,
        name=pod.pod_name,
        uid=pod.pod_uid,
        core_percent=share.core_percent or None,
        memory_mib=share.memory_bytes // MIB or None,
        whole=share.exclusive,
        level_percent=level_percent(share.core_percent, share.memory_ratio_percent),
        lost=lost,
        users=users.get(pod.pod_uid),
        state=picture.UNUSED if users.get(pod.pod_uid) == () else "",
    )


def _gpus_asked(event: PodObserved) -> dict[str, int]:
    asked = extended.held(event.snapshot).items()
    return {name: amount for name, amount in asked if amount and name in res.GPU_NAMES}


# --- the picture ------------------------------------------------------------------------------


def _picture(
    parts: Sequence[_NodeParts],
    account_of: Mapping[str, _NodeParts],
    pods: Sequence[PodObserved],
    vocabulary: Vocabulary,
    left_out: Iterable[picture.Contradicted] = (),
) -> picture.Picture:
    """
    Return the picture of nodes to which all holders of named devices were added.

    Rule: design section 4, "One account per physical device": a machine with two Node objects has
    its cards once, on the Node that grants.

    Args:
        account_of: UID of a node -> the Node of its machine that grants.
    """
    for pod in pods:
        if pod.node_uid in account_of:
            part = account_of[pod.node_uid]
            part.pods.append(pod)
            part.asked.update(extended.held(pod.snapshot))
    _close_claimed(parts)
    registered = sorted(parts, key=lambda part: part.terms.created)
    nodes = tuple(_node(part, vocabulary) for part in parts)
    return picture.Picture(
        nodes=nodes,
        double=tuple(d for pair in zip(parts, nodes, strict=True) for d in _doubles(*pair)),
        contradictions=(
            *_faults(pods, parts),
            *left_out,
            *(
                picture.Contradicted(
                    object=f"Node {each.node_name}", text=f"{each.kind}: {each.detail}"
                )
                for each in contradictions(registered)
            ),
            *(each for part in parts for each in _contradicted(part)),
        ),
    )


def _node(part: _NodeParts, vocabulary: Vocabulary) -> picture.NodeNow:
    unplaced: dict[str, list[picture.Unplaced]] = {}
    is_unread = is_of_register(res.NVIDIA_GPU, part.systems.unread)
    for event in part.pods:
        for device_type in event.unknown_types:
            if device_type == res.TYPE_GPU and (
                is_unread or (part.is_plugged and _is_of_others(event))
            ):
                continue
            found = unplaced_of(event, device_type)
            if found is not None:
                unplaced.setdefault(device_type, []).append(found)
    likes: dict[tuple[str, str, int], list[DeviceRecord]] = {}
    for device in sorted(
        part.devices, key=lambda each: (each.device_type != res.TYPE_GPU, each.key)
    ):
        like = (device.device_type, device.model, device.memory_bytes)
        likes.setdefault(like, []).append(device)
    for device_type in unplaced:
        if not any(like[0] == device_type for like in likes):
            likes[device_type, "", 0] = []
    is_open = not part.closed_because
    clouded = {each for each in {like[0] for like in likes} if _is_clouded(part, each, unplaced)}
    system, mode = _system_of(part)
    units = _units(part, vocabulary)
    groups = tuple(
        picture.group_of(
            device_type=device_type,
            system=system if device_type == res.TYPE_GPU else device_type,
            model=model,
            memory_mib=memory_bytes // MIB or None,
            mode=mode if device_type == res.TYPE_GPU else "shares",
            is_open=is_open and device_type not in clouded,
            devices=[_device(part, device) for device in devices],
            unplaced=unplaced.get(device_type, ()),
            units=units.get(device_type, {}),
        )
        for (device_type, model, memory_bytes), devices in likes.items()
    )
    if part.dialects is not None:
        groups = _plugged(part, groups, is_open=is_open)
    groups = (
        *groups,
        *dra_groups(part.systems, part.pods, is_open=is_open),
        *register_groups(part.systems, part.pods, part.labels, is_open=is_open),
    )
    if part.is_cut:
        groups = tuple(_at_least(group, part) for group in groups)
    if part.is_plugged and not any(each.device_type == res.TYPE_GPU for each in groups):
        groups = (*not_offered(part.labels), *groups)
    looked_at = {name for group in groups for name in group.units}
    not_looked_at = {
        name: picture.Units(allocatable=amount, held=part.asked[name], is_least=part.is_cut)
        for name, amount in sorted(part.offers.items())
        if name not in looked_at
        and extended.is_device(name, vocabulary)
        and (amount or part.asked[name])
    }
    cards, sums, told = once([g for g in groups if g.device_type == res.TYPE_GPU], part.labels)
    if part.terms.pods_max is not None:
        left = max(0, part.terms.pods_max - part.places)
        cards = [replace(each, gettable=each.gettable.cut(left)) for each in cards]
        sums = replace(sums, gettable=sums.gettable.cut(left))
    part.told += told
    return picture.NodeNow(
        name=part.name,
        uid=part.uid,
        closed_because=part.closed_because,
        groups=(*cards, *(group for group in groups if group.device_type != res.TYPE_GPU)),
        not_looked_at=not_looked_at | dict(dra_not_looked_at(part.systems, part.pods)),
        sums=open_ended(sums, not_looked_at, part.labels, cards),
    )


def _is_clouded(
    part: _NodeParts, device_type: str, unplaced: Mapping[str, Sequence[picture.Unplaced]]
) -> bool:
    """
    Tell whether nobody gets a device of a type whole, since it is not known which are held.

    Rule: docs/DIVERGENCES.md, Placing by count: cards that are held by number are given by number
    to a plain request of the device plugin's, where the node serves that and aligns nothing.
    """
    pods = unplaced.get(device_type, ())
    if any(each == device_type for each, _ in part.unlisted):
        return True
    serves = part.dialects is None or any(reader_of(each).by_plugin for each in part.dialects)
    aligns = bool(part.terms.numa_policy or part.terms.honors_partitions)
    by_number = device_type == res.TYPE_GPU and serves and not aligns
    return bool(pods) and not (by_number and all(pod.is_counted for pod in pods))


def _at_least(group: picture.CardGroup, part: _NodeParts) -> picture.CardGroup:
    """Return a group of which more may be held than anybody can say; an inventory's is known."""
    units = {name: replace(each, is_least=True) for name, each in group.units.items()}
    if group.is_inventoried or not part.hides_cards:
        return replace(group, units=units)
    held = group.held or picture.exactly(sum(1 for card in group.devices if card.holders))
    return replace(
        group,
        units=units,
        free=replace(group.free, least=0),
        gettable=replace(group.gettable, least=0),
        held=picture.Many(least=held.least, most=group.cards.most),
    )


def _is_of_others(event: PodObserved) -> bool:
    """Tell whether a Pod asks for GPUs of a vendor whose plugin counts them, and for no others."""
    asked = _gpus_asked(event)
    return bool(asked) and asked.keys() <= extended.PLAIN_CARDS


def _plugged(
    part: _NodeParts, groups: Sequence[picture.CardGroup], *, is_open: bool
) -> tuple[picture.CardGroup, ...]:
    """Return the groups with cards told from replicas and slices, and those of other vendors."""
    assert part.dialects is not None, part.name
    node = plugged(part.systems, part.labels, part.dialects, is_open=is_open, pods=part.pods)
    whole = [group for group in groups if group.device_type == res.TYPE_GPU]
    found = [] if node.is_alone else whole
    domains = {name.partition("/")[0] for name in node.names}
    domains |= {NVIDIA_DOMAIN} if node.is_alone else set()
    for domain in sorted(domains, key=lambda each: (each != NVIDIA_DOMAIN, each)):
        some, told = plugin_groups(node, domain, whole if domain == NVIDIA_DOMAIN else ())
        found += some
        part.told += told
    return (*found, *(group for group in groups if group.device_type != res.TYPE_GPU))


def _device(part: _NodeParts, device: DeviceRecord) -> picture.DeviceNow:
    closed = part.closed.get(device.key)
    closed = UNHEALTHY if closed == _INVENTORY else closed
    others = dict(part.systems.closed).get(device.device_id) if closed == UNHEALTHY else None
    is_twice = device.unique_id and (device.device_type, device.device_id) in part.twice
    return picture.DeviceNow(
        id=device.device_id,
        minor=device.minor,
        healthy=closed is None or others is not None,
        closed=others
        or closed
        or (
            picture.CLAIMED_TWICE
            if is_twice
            else picture.OVER_HELD
            if _is_over_held(part, device)
            else None
        ),
        holders=tuple(held.holder for held in part.held.get(device.key, ())),
        capacity_percent=device.core_percent,
    )


def _system_of(part: _NodeParts) -> tuple[str, picture.Mode]:
    """
    Return who hands out a node's GPUs, and how.

    A Device object is our dialect's, whatever else the Node offers; of several dialects that serve
    the cards it is the first in the order of the readers. Where nothing serves any, the Pods speak.
    """
    if part.dialects is None:
        return str(OUR_DIALECT), "shares"
    spoken = {event.dialect for event in part.pods if event.dialect}
    withheld = {one.dialect for one in READERS if one.by_plugin and res.NVIDIA_GPU in part.offers}
    for served in (part.dialects, spoken, withheld):
        for reader in READERS:
            if reader.dialect in served:
                return str(reader.dialect), "whole" if reader.by_plugin else "shares"
    return str(OUR_DIALECT), "shares"


def _units(part: _NodeParts, vocabulary: Vocabulary) -> dict[str, dict[str, picture.Units]]:
    found: dict[str, dict[str, picture.Units]] = {}
    types = {device.device_type for device in part.devices}
    for name, amount in sorted(part.offers.items()):
        device_type = vocabulary.device_type_of(name)
        if device_type not in types or not _is_served(part, name):
            continue
        found.setdefault(device_type, {})[name] = picture.Units(
            allocatable=amount, held=part.asked[name]
        )
    return found


def _is_served(part: _NodeParts, name: str) -> bool:
    dialect = gpu_dialect_of(name)
    if dialect is None or part.dialects is None:
        return True
    return dialect in part.dialects and name not in extended.PLAIN_CARDS


def _doubles(part: _NodeParts, node: picture.NodeNow) -> Iterator[picture.Double]:
    """Yield what has more than it can, or a holder that has it whole beside others."""
    over = {(each.device_type, each.minor) for each in part.devices if _is_over_held(part, each)}
    for group in node.groups:
        for card in group.devices:
            users = {(each.uid, each.path): each.whole for each in card.holders if not each.lost}
            is_over = group.is_inventoried and (group.device_type, card.minor) in over
            if is_over or (len(users) > 1 and any(users.values())):
                who = tuple(each.path for each in card.holders)
                yield picture.Double(node=node.name, id=card.id, minor=card.minor, holders=who)


def _is_over_held(part: _NodeParts, device: DeviceRecord) -> bool:
    held = part.held.get(device.key, ())
    core = sum(each.core_percent for each in held)
    memory = sum(each.memory_bytes for each in held)
    alone = any(each.holder.whole for each in held)
    levels = 0 if core else sum(each.holder.level_percent for each in held)
    more_core, more_memory = part.systems.excess(device)
    return bool(
        (alone and len(held) > 1)
        or core > (device.core_percent or WHOLE_PERCENT) + more_core
        or (memory > device.memory_bytes + more_memory if device.memory_bytes else levels > 100)
    )


def _contradicted(part: _NodeParts) -> Iterator[picture.Contradicted]:
    for holder in part.lost_holders:
        text = f"holds a device that node {part.name} does not list"
        yield picture.Contradicted(object=f"Pod {holder.path}", text=text)
    yield from (picture.Contradicted(object=f"Node {part.name}", text=text) for text in part.told)
    cards = [device for device in part.devices if device.device_type == res.TYPE_GPU]
    counted = sum(event.counted.get(res.TYPE_GPU, 0) for event in part.pods)
    idle = sum(1 for device in cards if not part.held.get(device.key))
    in_parts = part.is_plugged and are_parts(part.labels, part.offers)
    if counted > idle and not in_parts:
        text = f"more cards are held than there are: cards={len(cards)}, held={counted}"
        named = len(cards) - idle
        yield picture.Contradicted(
            object=f"Node {part.name}", text=f"{text} and {named} named" if named else text
        )


def _faults(
    pods: Iterable[PodObserved], parts: Iterable[_NodeParts]
) -> Iterator[picture.Contradicted]:
    for pod in pods:
        for fault in pod.faults:
            yield picture.Contradicted(object=f"Pod {pod.namespace}/{pod.pod_name}", text=fault)
    described = [part for part in parts if part.terms is not _NOT_DESCRIBED]
    for name, faults in {part.name: part.terms.faults for part in described}.items():
        for fault in faults:
            yield picture.Contradicted(object=f"Node {name}", text=fault)
