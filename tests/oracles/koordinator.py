"""
Koordinator devices, said again: what fits, partitions, scopes, order, joint allocation, VFs.

Rule: Koordinator contract 4.5, 8.2 to 8.6 and 12 (column "Ours"); DIVERGENCES. A Pod for
`nvidia.com/gpu` goes the same way (4.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import combinations, zip_longest
from typing import Any

from scheduler.decide.settings import DeviceSettings
from tests.oracles import links
from tests.oracles.machine import (
    REFUSED,
    UNFIT,
    Ask,
    Device,
    Function,
    Given,
    Machine,
    Part,
    Parts,
    Uses,
)
from tests.oracles.wanted import JOINT, PARTITION, Want, counted_gpus, kept, wants_of

LEFT_WEIGHTS = {8: 10000, 4: 100, 2: 1}


def expected(machine: Machine, ask: Ask, settings: DeviceSettings) -> Given | str:
    """Return what the Pod gets of each device, and its containers of each GPU; or why nothing."""
    wants = wants_of(ask)
    if wants is None:
        return REFUSED
    chosen = _beside(machine, ask, wants, settings)
    if chosen is None:
        return UNFIT
    parts = {device.name: _part(wants[kind], device) for kind in chosen for device in chosen[kind]}
    return parts, _uses(ask, sorted(minor for kind, minor in parts if kind == "gpu"), parts)


def _uses(ask: Ask, minors: Sequence[int], parts: Parts) -> Uses:
    """Return the GPUs of every container: apps disjoint in spec order, inits the first ones."""
    uses: list[tuple[str, int, int, int]] = []
    first = 0
    for letter, containers in (("c", ask.containers), ("i", ask.inits)):
        for place, limits in enumerate(containers):
            counted = counted_gpus(limits)
            start = first if letter == "c" else 0
            for minor in minors[start : start + counted]:
                part = parts["gpu", minor]
                uses.append((f"{letter}{place}", minor, part.core, part.memory))
            first += counted
    return sorted(uses)


def _part(want: Want, device: Device) -> Part:
    """Return what one device gives, the other memory unit filled in (4.5)."""
    taken = want.bytes_of(device.memory)
    ratio = want.ratio
    if want.memory:
        ratio = max(1, taken * 100 // device.memory)
    names = [item.bus_id for item in _functions(want, device)]
    chosen = min(names, key=_by_bus, default=None)
    return Part(
        core=want.core,
        memory=taken,
        ratio=ratio,
        alone=want.alone,
        functions=() if chosen is None else (chosen,),
    )


def _by_bus(bus_id: str) -> list[int]:
    """Return the numbers of a bus id: `.9` before `.10` (Q15, ours)."""
    return [int(word, 16) for word in bus_id.replace(".", ":").split(":")]


# --- joint allocation (8.6) ---


def _beside(
    machine: Machine, ask: Ask, wants: Mapping[str, Want], settings: DeviceSettings
) -> dict[str, Sequence[Device]] | None:
    """
    Return the devices of every type; `SamePCIe` is tried again on the roots that have all of it.

    Rule: DIVERGENCES, "SamePCIe": on all of these roots together, then on each, by name.
    """
    chosen = _one_after_another(machine, ask, wants, settings)
    joint: Mapping[str, Any] = ask.annotations.get(JOINT) or {}  # type: ignore[assignment]
    kinds = [kind for kind in joint.get("deviceTypes", ()) if kind in wants]
    kinds = [kind for kind in dict.fromkeys(kinds) if not wants[kind].everywhere]
    if chosen is not None or joint.get("requiredScope") != "SamePCIe" or len(kinds) < 2:
        return chosen
    under = {kind: [item.root for item in _fitting(machine, wants[kind])] for kind in kinds}
    roots = sorted({root for found in under.values() for root in found} - {""})
    roots = [
        root
        for root in roots
        if all(under[kind].count(root) >= wants[kind].count for kind in kinds)
    ]
    for allowed in [roots, *([root] for root in roots)] if roots else []:
        held_to = {kind: replace(wants[kind], roots=frozenset(allowed)) for kind in kinds}
        found = _one_after_another(machine, ask, {**wants, **held_to}, settings)
        if found is not None:
            return found
    return None


def _one_after_another(
    machine: Machine, ask: Ask, wants: Mapping[str, Want], settings: DeviceSettings
) -> dict[str, Sequence[Device]] | None:
    """Return the devices of every type: the primary's first, then what joins it, then the rest."""
    joint: Mapping[str, Any] = ask.annotations.get(JOINT) or {}  # type: ignore[assignment]
    strict = joint.get("requiredScope") == "SamePCIe"
    # Types with an `ApplyForAll` hint or no request drop out.
    together = [
        kind
        for kind in joint.get("deviceTypes", ())
        if kind in wants and not wants[kind].everywhere
    ]
    if len(together) < 2:
        together = []
    chosen: dict[str, Sequence[Device]] = {}
    for kind in [*together, *(kind for kind in wants if kind not in together)]:
        want = wants[kind]
        devices: Sequence[Device] | None
        if kind == "gpu":
            devices = _gpus(machine, ask, want, settings)
        else:
            roots: set[str] = set()
            if kind in together[1:]:
                roots = {device.root for device in chosen[together[0]]} - {""}
            devices = _others(machine, want, settings, roots, strict=strict)
        if devices is None:
            return None
        chosen[kind] = devices
    if strict and together:
        roots_of = [{device.root for device in chosen[kind]} for kind in together]
        if any(roots != roots_of[0] or "" in roots for roots in roots_of):
            return None  # Device Joint-Allocate rules violation
    return chosen


def _others(
    machine: Machine, want: Want, settings: DeviceSettings, roots: set[str], *, strict: bool
) -> Sequence[Device] | None:
    """Return the devices of a type that is not gpu (8.3, and 8.6 as a secondary)."""
    fitting = _in_order(_fitting(machine, want), want, settings)
    if want.everywhere:
        matching = [device for device in machine.of_kind(want.kind) if kept(want.hint, device)]
        return fitting if matching and len(fitting) == len(matching) else None
    upper = max(want.count, len(roots))
    lower = upper if strict else want.count
    by_root = [[device for device in fitting if device.root == root] for root in sorted(roots)]
    order = [
        device
        for turn in zip_longest(*by_root)
        for device in _in_order([item for item in turn if item], want, settings)
    ]
    order += [device for device in fitting if device not in order]
    return order[:upper] if len(order) >= lower else None


# --- what fits, and in which order (8.2) ---


def _fitting(machine: Machine, want: Want) -> list[Device]:
    """Return the devices that can give one part and pass every filter, ascending."""
    devices = machine.of_kind(want.kind)
    used_roots = {device.root for device in devices if device.tenants} - {""}
    fitting = []
    for device in devices:
        taken = want.bytes_of(device.memory)
        if device.closed or device.alone or not kept(want.hint, device):
            continue
        if want.roots is not None and device.root not in want.roots:
            continue
        if want.core > 100 - device.core_used or taken > device.memory - device.memory_used:
            continue
        if not device.memory and not want.alone and want.ratio > want.core:
            continue  # DIVERGENCES, "cards without a memory figure": the core must guard it
        if want.alone and device.tenants:
            continue  # 4.5, ours: a card with no tenant at all
        if want.hint.get("exclusivePolicy") == "PCIeLevel" and (
            device.tenants or device.root in used_roots
        ):
            continue  # Q5, ours
        if want.hint.get("vfSelector") is not None and not _functions(want, device):
            continue  # no VF on a PF -> that PF is skipped
        fitting.append(device)
    return fitting


def _functions(want: Want, device: Device) -> list[Function]:
    """Return the free VFs of the groups that the Pod wants (8.6, VF choice)."""
    selector = want.hint.get("vfSelector")
    if selector is None:
        return []
    labels = selector.get("matchLabels", {})
    return [
        item
        for item in device.functions
        if item.bus_id
        and not item.taken
        and all({"use": item.use}.get(k) == v for k, v in labels.items())
    ]


def _score(want: Want, device: Device, settings: DeviceSettings) -> int:
    """Return the integer mean over the weighted keys that the device has (8.2)."""
    most = settings.scoring == "MostAllocated"

    def share(total: int, used: int) -> int:
        return (used if most else total - used) * 100 // total

    if device.kind != "gpu" or not device.memory:
        return share(100, device.core_used + want.core)
    # What Pods have is known in bytes, which came of a ratio by rounding down (4.5).
    used_ratio = -(-device.memory_used * 100 // device.memory)
    ratio = share(100, used_ratio + want.ratio)
    memory = share(device.memory, device.memory_used + want.memory)
    return (ratio + memory) // 2


def _in_order(devices: Sequence[Device], want: Want, settings: DeviceSettings) -> list[Device]:
    return sorted(devices, key=lambda item: (-_score(want, item, settings), item.minor))


# --- GPUs (8.4, 8.5) ---


def _gpus(
    machine: Machine, ask: Ask, want: Want, settings: DeviceSettings
) -> Sequence[Device] | None:
    """Return the GPUs by partition table, measured links, topology tree or plain list."""
    gpus = {device.minor: device for device in machine.of_kind("gpu")}
    fitting = _fitting(machine, want)
    groups = list(combinations([device.minor for device in fitting], want.count))
    scope = want.hint.get("requiredTopologyScope", "") if want.count > 1 else ""
    scope = "" if scope == "Node" else scope  # every GPU of a node is under the node
    spec: Mapping[str, Any] | None = ask.annotations.get(PARTITION)  # type: ignore[assignment]
    if want.whole:
        inside = [group for group in groups if _shares(machine, group, scope)]
        partitions = partitions_of(machine, want.count, inside, spec or {}, settings)
        if partitions:
            return [gpus[minor] for minor in partitions[0]]
        if machine.honors or spec is not None:
            return None  # the table binds
    scopes = _scopes(machine, scope)
    if scope:
        groups = [group for group in groups if any(set(group) <= inner for _, inner in scopes)]
    if not groups:
        return None
    if want.whole and machine.links is not None:
        return [gpus[minor] for minor in links.pick(machine.links, groups, _free(machine))]
    if not want.whole and want.count > 1:
        # Shared over several cards skips the tree, unless a scope is required.
        return None if scope else _in_order(fitting, want, settings)[: want.count]
    devices = _deepest(machine, want, fitting, scopes, settings) if scopes else fitting
    if not want.whole:
        return _in_order(devices, want, settings)[:1]
    # The lowest fitting minors; before that the slowest link of the nominal matrix.
    groups = list(combinations([device.minor for device in devices], want.count))
    nominal = machine.nominal if scopes else None
    if nominal is None:
        return [gpus[minor] for minor in groups[0]]
    fastest = max(links.bottleneck(nominal, group) for group in groups)
    return next(
        [gpus[minor] for minor in group]
        for group in groups
        if links.bottleneck(nominal, group) == fastest
    )


def _free(machine: Machine) -> set[int]:
    """Return the GPUs that the next Pod could have whole."""
    gpus = machine.of_kind("gpu")
    return {device.minor for device in gpus if not device.closed and not device.tenants}


def _shares(machine: Machine, group: Sequence[int], scope: str) -> bool:
    """Tell whether these GPUs are known to be under one scope of that kind."""
    gpus = machine.of_kind("gpu")
    chosen = [device for device in gpus if device.minor in group]
    if scope == "PCIe":
        return len({device.root for device in chosen} | {""}) == 2 and all(d.root for d in chosen)
    if scope == "NUMANode":
        numas = {_numas(machine)[device.minor] for device in chosen}
        return len(numas) == 1 and None not in numas
    return True


def _numas(machine: Machine) -> dict[int, int | None]:
    """
    Return the NUMA node of each GPU, None where it can't be known.

    A PCIe root is on one NUMA node (3.1), so one of its GPUs tells for all. -1 is a node of its
    own only where every GPU says -1 (DIVERGENCES).
    """
    gpus = machine.of_kind("gpu")
    if all(device.numa == -1 for device in gpus):
        return {device.minor: -1 for device in gpus}
    by_root = {device.root: device.numa for device in gpus if device.root and device.numa != -1}
    return {
        device.minor: by_root.get(device.root) if device.numa in {None, -1} else device.numa
        for device in gpus
    }


def _scopes(machine: Machine, required: str) -> list[tuple[int, AbstractSet[int]]]:
    """
    Return the scopes of the tree as (depth, minors), by NUMA id and PCIe id as text.

    Only when every GPU has topology; none that is above the required one.
    """
    gpus = machine.of_kind("gpu")
    if not gpus or any(device.numa is None for device in gpus):
        return []
    numas = _numas(machine)
    scopes: list[tuple[int, AbstractSet[int]]] = [(1, set(numas))]
    for numa in sorted(set(numas.values()), key=lambda numa: -1 if numa is None else numa):
        within = [device for device in gpus if numas[device.minor] == numa]
        if numa is not None:
            scopes.append((2, {device.minor for device in within}))
        scopes.extend(
            (3, {device.minor for device in within if device.root == root})
            for root in sorted({device.root for device in within} - {""})
        )
    least = {"": 1, "PCIe": 3, "NUMANode": 2}[required]
    return [scope for scope in scopes if scope[0] >= least]


def _deepest(
    machine: Machine,
    want: Want,
    fitting: Sequence[Device],
    scopes: Sequence[tuple[int, AbstractSet[int]]],
    settings: DeviceSettings,
) -> list[Device]:
    """Return the fitting GPUs of the best scope: deepest, most used around it, score, first."""
    used = {device.minor for device in machine.of_kind("gpu") if device.tenants}
    best: list[Device] = []
    best_rank: tuple[int, int, int] | None = None
    for depth, minors in scopes:
        inside = [device for device in fitting if device.minor in minors]
        if len(inside) < want.count:
            continue
        around = [other for _, other in _scopes(machine, "") if set(minors) <= set(other)]
        dirty = sum(1 for other in around if used & set(other))
        score = 0 if want.whole else max(_score(want, item, settings) for item in inside)
        if best_rank is None or (depth, dirty, score) > best_rank:
            best, best_rank = inside, (depth, dirty, score)
    return best


def partitions_of(
    machine: Machine,
    count: int,
    groups: Sequence[tuple[int, ...]],
    spec: Mapping[str, Any],
    settings: DeviceSettings,
) -> list[Sequence[int]]:
    """Return the partitions that could be taken, best first (8.5)."""
    table = machine.partitions or {}
    listed = table.get(count, ())
    ring = spec.get("ringBusBandwidth")
    free = _free(machine)

    def left(taken: Sequence[int]) -> int:
        """Sum over the partitions that are still free and at least as large."""
        return sum(
            LEFT_WEIGHTS.get(len(item.minors), 0) * item.score
            for size, items in table.items()
            for item in items
            if size >= count and set(item.minors) <= free - set(taken)
        )

    highest_first = settings.partition_score_order == "highest"  # Q2, ours
    scores = sorted({item.score for item in listed}, reverse=highest_first)
    if spec.get("allocatePolicy") == "Restricted":
        scores = scores[:1]
    feasible = [
        item
        for item in listed
        if tuple(sorted(item.minors)) in groups
        and (ring is None or (item.ring is not None and item.ring >= int(ring)))
    ]
    return [
        item.minors
        for score in scores
        for item in sorted(feasible, key=lambda item: -left(item.minors))
        if item.score == score
    ]
