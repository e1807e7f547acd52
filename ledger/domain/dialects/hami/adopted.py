"""What running Pods of HAMi hold, by its scheduler's annotation (docs/contracts/hami.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from ledger.domain.adopted.cards import Asker, Found, Part, collect, part_share, unreadable
from ledger.domain.devices import WHOLE_PERCENT, DeviceRecord, DeviceShare
from ledger.domain.dialects.hami.annotations import GivenCard, decode_allocated
from ledger.domain.dialects.hami.demands import MIB
from ledger.domain.dialects.hami.words import ALLOCATED, CORES, MEMORY, NODE, SHARE_NAMES
from ledger.domain.errors import InputError
from ledger.domain.kube.pod_spec import APP, INIT, ContainerSpec
from ledger.domain.resources import NVIDIA_GPU, TYPE_GPU

SOURCE: Final = "vgpu-devices-allocated"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """Part of one card, and the container that has it; None where nobody can tell."""

    given: GivenCard
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
    text = asker.spec.annotations.get(ALLOCATED)
    if text is None:
        return None
    try:
        allocated = decode_allocated(text)
    except InputError as error:  # plain text that names no card
        return unreadable(SOURCE, str(error))
    containers, fault = _containers(asker, len(allocated))
    uses: dict[str, list[_Use]] = {}
    for given_to, cards in zip(containers, allocated, strict=True):
        for given in cards:
            use = _Use(given=given, container=given_to)
            uses.setdefault(given.device_id, []).append(use)
    listed = {one.device_id for one in asker.node.devices if one.device_type == TYPE_GPU}
    gone = sorted(uses.keys() - listed) if listed and "" not in listed else []
    parts = [
        (TYPE_GPU, _share(asker, card, of_card) if card else None)
        for device_id, of_card in uses.items()
        if device_id not in gone
        for card in [asker.card(TYPE_GPU, device_id=device_id)]
    ]
    faults = [*fault, *_wrong_node(asker), *_unlike(containers, allocated)]
    faults += [f"{SOURCE} names a card that the node does not list: {one}" for one in gone]
    found = collect(SOURCE, [*parts, *_unnamed(containers, allocated)], faults)
    return replace(found, unlisted_types=frozenset({TYPE_GPU} if gone else ()))


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
        if share.device_type == TYPE_GPU
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
    containers: Sequence[ContainerSpec | None], allocated: Sequence[Sequence[GivenCard]]
) -> Iterator[Part]:
    for container, cards in zip(containers, allocated, strict=True):
        if container is not None and len(cards) < _cards_asked(container):
            yield TYPE_GPU, None


def _unlike(
    containers: Sequence[ContainerSpec | None], allocated: Sequence[Sequence[GivenCard]]
) -> Iterator[str]:
    for container, cards in zip(containers, allocated, strict=True):
        if container is None:
            continue
        asked = _cards_asked(container)
        if len(cards) != asked:
            numbers = f"asked={asked}, named={len(cards)}"
            yield f"container {container.name} has not the cards it asks for: {numbers}"
        memory, core = container.units(MEMORY), container.units(CORES)
        for card in cards:
            if memory and card.memory_mib != memory:
                yield _not_asked(container, MEMORY, memory, card.memory_mib)
            if core and card.core_percent != core:
                yield _not_asked(container, CORES, core, card.core_percent)


def _not_asked(container: ContainerSpec, name: str, asked: int, given: int) -> str:
    return f"container {container.name} asks for {asked} of {name} and has {given}"


def _cards_asked(container: ContainerSpec) -> int:
    names = [name for name in SHARE_NAMES if container.units(name)]
    return container.units(NVIDIA_GPU) or bool(names)


def _wrong_node(asker: Asker) -> Iterator[str]:
    named = asker.spec.annotations.get(NODE, asker.node.name)
    if named != asker.node.name:
        yield f"{NODE} names another node: value={named!r}"
