"""HAMi, as Pods and Nodes are read in it."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from ledger.domain import resources, systems
from ledger.domain.adopted.cards import Asker, Found, Part, collect, part_share, unreadable
from ledger.domain.annotations.volcano_vgpu import decode_vgpu_given
from ledger.domain.annotations.wire import annotation_path
from ledger.domain.devices import WHOLE_PERCENT, DeviceRecord, DeviceShare
from ledger.domain.dialects.hami import annotations as written
from ledger.domain.dialects.hami import words
from ledger.domain.dialects.hami.demands import MIB, card_filter, hami_demands, part_of, policies_of
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import DialectReader, GpuAsked, Listed, Quantities
from ledger.domain.errors import InputError
from ledger.domain.kube.pod_spec import APP, INIT, ContainerSpec, PodSpec
from ledger.domain.request import card_names

SOURCE: Final = "vgpu-devices-allocated"
_CORDON: Final = annotation_path(words.CORDON)
_MINOR_MAX: Final = 1023
_OTHER_REGISTER: Final = re.compile(r"hami\.io/node-(?:register-(.+)|(.+)-register)")
_OTHER_GIVEN: Final = re.compile(r"hami\.io/.+-allocated")
_WORDS: Final = words.WORDS.resources | words.WORDS.borrowed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """Part of one card, and the container that has it; None where nobody can tell."""

    given: written.GivenCard
    container: ContainerSpec | None

    @property
    def is_first(self) -> bool:
        """Tell whether an init container has it, which has ended when the others begin."""
        return self.container is not None and self.container.kind == INIT


def from_hami(asker: Asker) -> Found | None:
    """
    Return what a Pod that HAMi's scheduler placed holds.

    Rule: 1, fact 13, and 3: of each card the larger of the sum of the containers and the largest
    init container.
    """
    text = asker.spec.annotations.get(words.ALLOCATED)
    if text is None:
        return None
    try:
        allocated = written.decode_allocated(text)
    except InputError as error:  # plain text that names no card
        return unreadable(SOURCE, str(error))
    containers, fault = _containers(asker, len(allocated))
    uses: dict[str, list[_Use]] = {}
    for given_to, cards in zip(containers, allocated, strict=True):
        for given in cards:
            use = _Use(given=given, container=given_to)
            uses.setdefault(given.device_id, []).append(use)
    listed = {one.device_id for one in asker.node.devices if one.device_type == resources.TYPE_GPU}
    gone = sorted(uses.keys() - listed) if listed and "" not in listed else []
    parts = [
        (resources.TYPE_GPU, _share(asker, card, of_card) if card else None)
        for device_id, of_card in uses.items()
        if device_id not in gone
        for card in [asker.card(resources.TYPE_GPU, device_id=device_id)]
    ]
    faults = [*fault, *_wrong_node(asker), *_unlike(containers, allocated)]
    faults += [f"{SOURCE} names a card that the node does not list: {one}" for one in gone]
    found = collect(SOURCE, [*parts, *_unnamed(containers, allocated)], faults)
    return replace(found, unlisted_types=frozenset({resources.TYPE_GPU} if gone else ()))


def with_containers(found: Found, asker: Asker) -> Found:
    """
    Return the shares of a source that knows amounts only, with who is alone on a card.

    Rule: docs/contracts/hami.md 1, fact 3: whoever has all of the compute, whatever the memory.
    Where HAMi's annotation says other amounts of a card the source's count, which is named.
    """
    given = from_hami(asker)
    by_key = {share.key: share for share in given.shares} if given else {}
    faults = tuple(
        f"{found.source} gives {_amounts(share)} of gpu {share.minor},"
        f" {SOURCE} gives {_amounts(by_key[share.key])}"
        for share in found.shares
        if share.key in by_key and _amounts(share) != _amounts(by_key[share.key])
    )
    shares = tuple(
        structs.replace(share, exclusive=share.core_percent >= WHOLE_PERCENT)
        if share.device_type == resources.TYPE_GPU
        else share
        for share in found.shares
    )
    return replace(found, shares=shares, faults=(*found.faults, *faults))


def _amounts(share: DeviceShare) -> str:
    return f"{share.core_percent} % and {share.memory_bytes // MIB} MiB"


def _containers(
    asker: Asker, entries: int
) -> tuple[Sequence[ContainerSpec | None], tuple[str, ...]]:
    """Return whose each entry is: init containers' first, before v2.9.0 none of theirs (3)."""
    apps = asker.apps()
    first = sorted(
        (one for one in asker.spec.containers if one.kind != APP),
        key=lambda one: int(one.index.removeprefix("init-")),
    )
    if entries == len(first) + len(apps):
        return [*first, *apps], ()
    if entries == len(apps):
        return apps, ()
    numbers = f"entries={entries}, containers={len(first) + len(apps)}"
    return [None] * entries, (f"{SOURCE} has not one entry per container: {numbers}",)


def _share(asker: Asker, card: DeviceRecord, uses: Sequence[_Use]) -> DeviceShare:
    beside = [use for use in uses if not use.is_first]
    is_scaled = asker.node.systems.excess(card)[0] > 0
    core = sum(use.given.core_percent for use in beside)
    memory = sum(use.given.memory_mib for use in beside)
    core = max([core, *(use.given.core_percent for use in uses)])
    memory = max([memory, *(use.given.memory_mib for use in uses)])
    named = [
        named
        for use in uses
        if use.container is not None
        for named in part_share(
            card, use.given.core_percent, use.given.memory_mib * MIB, (use.container,)
        ).containers
    ]
    return structs.replace(
        part_share(card, core, memory * MIB, ()),
        exclusive=not is_scaled and any(use.given.core_percent >= WHOLE_PERCENT for use in uses),
        instances=max(1, len(beside)),
        containers=tuple(named),
    )


def _unnamed(
    containers: Sequence[ContainerSpec | None], allocated: Sequence[Sequence[written.GivenCard]]
) -> Iterator[Part]:
    for container, cards in zip(containers, allocated, strict=True):
        if container is not None and len(cards) < _cards_asked(container):
            yield resources.TYPE_GPU, None


def _unlike(
    containers: Sequence[ContainerSpec | None], allocated: Sequence[Sequence[written.GivenCard]]
) -> Iterator[str]:
    for container, cards in zip(containers, allocated, strict=True):
        if container is None:
            continue
        asked = _cards_asked(container)
        if len(cards) != asked:
            numbers = f"asked={asked}, named={len(cards)}"
            yield f"container {container.name} has not the cards it asks for: {numbers}"
        memory, core = container.units(words.MEMORY), container.units(words.CORES)
        for card in cards:
            if memory and card.memory_mib != memory:
                yield _not_asked(container, words.MEMORY, memory, card.memory_mib)
            if core and card.core_percent != core:
                yield _not_asked(container, words.CORES, core, card.core_percent)


def _not_asked(container: ContainerSpec, name: str, asked: int, given: int) -> str:
    return f"container {container.name} asks for {asked} of {name} and has {given}"


def _cards_asked(container: ContainerSpec) -> int:
    names = [name for name in words.SHARE_NAMES if container.units(name)]
    return container.units(resources.NVIDIA_GPU) or bool(names)


def _wrong_node(asker: Asker) -> Iterator[str]:
    named = asker.spec.annotations.get(words.NODE, asker.node.name)
    if named != asker.node.name:
        yield f"{words.NODE} names another node: value={named!r}"


def registered(
    annotations: Mapping[str, str], labels: Mapping[str, str], quantities: Quantities
) -> Listed | None:
    """
    Return the cards that a Node's annotation lists, None without one.

    Rule: docs/contracts/hami.md 4, as "ours". A card that is not healthy, in MIG mode or cordoned
    is closed, and all of them once the plugin is gone. A text that can't be read lists none: it is
    another system's, and stops nobody.
    """
    text = annotations.get(words.REGISTER)
    if text is None:
        return None
    path, is_gone = annotation_path(words.REGISTER), _is_gone(annotations, quantities)
    label, count = card_names.count_in(labels, card_names.NVIDIA_DOMAIN)
    unread: tuple[tuple[str, str], ...] = ((str(Dialect.HAMI), words.CARDS),)
    cordoned = _cordoned(annotations)
    cards: tuple[written.RegisteredCard, ...] = ()
    try:
        cards = written.decode_register(text)
        unsized = (card.device_id for card in cards if not card.memory_mib)
        warnings = [f"{path}: no memory is told of {one}; it takes no Pods" for one in unsized]
        known = {card.device_id for card in cards}
        if cards and count and count != len(cards):
            warnings.append(f"{path}: lists {len(cards)} cards, {label} is {count}")
        warnings += [f"{_CORDON}: no such card: {one}" for one in sorted(cordoned - known)]
        if is_gone:
            warnings.append(f"{path}: HAMi's device plugin is gone; its cards take no Pods")
        if cards or is_gone or not quantities.get(words.CARDS):
            unread = ()
        else:
            warnings.append(f"{path}: lists no card; no {words.CARDS} is offered")
    except InputError as error:
        warnings = [f"{error}; no card of it is offered"]
    size = _size_mib(cards, labels)
    records = [
        DeviceRecord(
            device_type=resources.TYPE_GPU,
            minor=minor,
            device_id=card.device_id,
            model=card.model,
            memory_bytes=min(card.memory_mib, size) * MIB,
            healthy=not (is_gone or _closed(card, cordoned)),
            labels={words.MODE: card.mode or written.CORE_MODE},
            unique_id=True,
        )
        for minor, card in _numbered(cards)
    ]
    return Listed(
        name=annotation_path(words.REGISTER),
        cards=tuple(sorted(records, key=lambda record: record.minor)),
        serves=frozenset({Dialect.HAMI, Dialect.NVIDIA}),
        instead_of=frozenset({words.CARDS}),
        scheduler="" if is_gone else words.SCHEDULER,
        scaled=tuple(
            (card.device_id, card.core_percent, card.memory_mib * MIB)
            for card in cards
            if card.core_percent > WHOLE_PERCENT or card.memory_mib > size
        ),
        closed=tuple(
            (card.device_id, _closed(card, cordoned) or "plugin gone")
            for card in cards
            if card.healthy and (is_gone or _closed(card, cordoned))
        ),
        unread=unread,
        warnings=tuple(warnings),
    )


def others_registered(annotations: Mapping[str, str]) -> systems.DeviceSystems:
    """
    Return the cards of other vendors that a Node's annotations list.

    Rule: docs/contracts/hami.md 4, Other vendors.
    """
    cards: list[systems.SystemCard] = []
    unread = []
    for key in sorted(annotations):
        told = _OTHER_REGISTER.fullmatch(key)
        if not told or key == words.REGISTER:
            continue
        vendor = told[1] or told[2]
        try:
            found = written.decode_register(annotations[key], key)
        except InputError:
            unread.append((str(Dialect.HAMI), vendor))
            continue
        cordoned = _cordoned(annotations)
        cards += (
            systems.SystemCard(
                system=str(Dialect.HAMI),
                key=card.device_id,
                driver=vendor,
                id=card.device_id,
                minor=minor,
                model=card.model,
                memory_mib=card.memory_mib,
                mode="shares" if card.core_percent in {0, WHOLE_PERCENT} else "slices",
                closed=_closed(card, cordoned),
            )
            for minor, card in _numbered(found)
        )
    return systems.DeviceSystems(cards=tuple(cards), unread=tuple(unread))


def given_of_others(
    annotations: Mapping[str, str], listed: systems.DeviceSystems
) -> tuple[systems.SystemPart, ...]:
    """Return the parts of cards that a Pod's annotations name, of such as no inventory has."""
    hami = str(Dialect.HAMI)
    in_cores = {card.key: card.mode == "slices" for card in listed.cards if card.system == hami}
    unread = [name for system, name in listed.unread if system == hami]
    found: list[systems.SystemPart] = []
    for key in sorted(annotations) if in_cores or unread else ():
        if not _OTHER_GIVEN.fullmatch(key):
            continue
        word = words.CARDS if key == words.ALLOCATED else key.lower()
        of = next((one for one in unread if one.lower() in word), "")
        found += (
            replace(part, core_percent=0, whole=False) if in_cores.get(part.card) else part
            for part in decode_vgpu_given(annotations[key], hami, of) or ()
            if part.card in in_cores or of
        )
    return tuple(found)


def beside_device(
    annotations: Mapping[str, str], devices: Sequence[DeviceRecord]
) -> tuple[Mapping[str, str], Sequence[str]]:
    """
    Return the cards of a Device object that HAMi closes, and where the two tell of other cards.

    Rule: docs/contracts/hami.md 4, as "ours": whoever says that a card takes no Pods is believed.
    """
    known = {one.device_id for one in devices if one.device_type == resources.TYPE_GPU}
    cordoned = _cordoned(annotations)
    closed = dict.fromkeys(cordoned, (_CORDON, systems.CORDONED))
    warnings = [f"{_CORDON}: no such card: {one}" for one in sorted(cordoned - known)]
    path = annotation_path(words.REGISTER)
    try:
        cards = written.decode_register(annotations.get(words.REGISTER, ""))
    except InputError as error:
        cards, warnings = (), [*warnings, f"{error}; the Device object counts"]
    for card in cards:
        if card.device_id not in known:
            warnings.append(f"{path}: not in the Device object, which counts: {card.device_id}")
        elif card.memory_mib and (reason := _closed(card, ())):
            closed[card.device_id] = path, reason
    at_hand = sorted(closed.keys() & known)
    warnings += [f"{closed[one][0]}: takes no Pods: {one}" for one in at_hand]
    return {one: closed[one][1] for one in at_hand}, warnings


def _size_mib(cards: Sequence[written.RegisteredCard], labels: Mapping[str, str]) -> int:
    """Return how large each card is by a node's label, which is of one model; else no bound."""
    is_told = len({card.model for card in cards}) == 1
    return (is_told and card_names.number_in(labels, card_names.MEMORY_LABEL)) or written.NUMBER_MAX


def _is_gone(annotations: Mapping[str, str], quantities: Quantities) -> bool:
    """
    Tell whether HAMi's device plugin is gone, and its register is left over.

    Rule: docs/contracts/hami.md 4, as "ours": the handshake says so, or kubelet by offering none.
    """
    offered = quantities.get(words.CARDS)
    return annotations.get(words.HANDSHAKE, "").startswith(words.DELETED) or (
        offered is not None and not offered
    )


def _cordoned(annotations: Mapping[str, str]) -> frozenset[str]:
    return frozenset(written.words_of(annotations.get(words.CORDON, "")))


def _closed(card: written.RegisteredCard, cordoned: Container[str]) -> str:
    """Return why a card takes no Pods, empty where it does."""
    if not card.healthy:
        return systems.UNHEALTHY
    if card.device_id in cordoned:
        return systems.CORDONED
    if card.mode == written.MIG_MODE:
        return "MIG mode"
    return "" if card.memory_mib else "no memory told"


def _numbered(
    cards: Sequence[written.RegisteredCard],
) -> Sequence[tuple[int, written.RegisteredCard]]:
    """Return the cards with minors: their indexes, else their places in the order of the ids."""
    indexes = [card.index for card in cards if card.index is not None]
    if len(set(indexes)) == len(cards) and max(indexes, default=0) <= _MINOR_MAX:
        return list(zip(indexes, cards, strict=True))
    return list(enumerate(sorted(cards, key=lambda card: card.device_id)))


def _demands(spec: PodSpec) -> GpuAsked:
    asked = hami_demands(spec)
    vendors = card_names.NVIDIA_CARDS if asked.demands else ()
    own = {"card_filter": card_filter(spec.annotations), **policies_of(spec.annotations)}
    return GpuAsked(
        dialect=Dialect.HAMI, asked=asked, own=own, vendors=vendors, isolation=resources.HAMI_CORE
    )


def _rewritten(amounts: Mapping[str, int]) -> dict[str, int]:
    """
    Return what is asked of each card as a sum over the cards, as Koordinator counts.

    Rule: docs/contracts/hami.md 1, fact 1; Koordinator contract 4.4.
    """
    cards, part = amounts.get(words.CARDS, 1), part_of(amounts)
    each = {
        resources.GPU_CORE: part.core_percent,
        resources.GPU_MEMORY: part.memory_bytes,
        resources.GPU_MEMORY_RATIO: part.memory_ratio_percent,
    }
    kept = {name: amount for name, amount in amounts.items() if name not in _WORDS}
    sums = {name: amount * cards for name, amount in each.items() if amount}
    return {**kept, **sums, resources.GPU_SHARED: cards}


READER: Final = DialectReader(
    dialect=Dialect.HAMI,
    words=words.WORDS,
    demands=_demands,
    rewritten=_rewritten,
    sums={
        words.MEMORY: (resources.GPU_MEMORY, MIB),
        words.MEMORY_PERCENT: (resources.GPU_MEMORY_RATIO, 1),
        words.CORES: (resources.GPU_CORE, 1),
    },
    takes_wishes=False,
    adopted=from_hami,
    with_containers=with_containers,
    listed=registered,
    beside_device=beside_device,
    registered=others_registered,
    given=given_of_others,
)
