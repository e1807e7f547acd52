"""Random small nodes and Pods, a function of the seed alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

from ledger.domain.kube.derived_links import derive_links
from ledger.domain.topology import LinkMatrix
from tests.oracles import gpushare, hami, mgpu, wanted
from tests.oracles.allocator import view_of
from tests.oracles.machine import (
    GIB,
    MIB,
    Ask,
    Device,
    Function,
    Machine,
    Partition,
)

PLACES = ((0, "a0"), (0, "a0"), (0, "a1"), (1, "b0"), (1, "b0"), (1, "b1"))
SPEEDS = (4.64, 9.0, 12.0, 16.9, 24.0, 48.38, 50.0, 96.4)
PERCENTS = (13, 35, 40, 60, 65, 87)
LIMITS = list[dict[str, int]]


def gpus(rng: Random, *, most: int = 6) -> list[Device]:
    """Return GPUs in any state: idle, shared, held alone, full, closed."""
    sizes = rng.choice([[24 * GIB], [24 * GIB], [16276 * MIB], [16 * GIB, 24 * GIB, 24 * GIB + 1]])
    busy = rng.choice([0.0, 0.0, 0.2, 0.2, 0.5, 0.8])
    count = max(rng.randint(1, most), rng.randint(1, most))
    return [_gpu(rng, minor, rng.choice(sizes), busy) for minor in range(count)]


def _gpu(rng: Random, minor: int, memory: int, busy: float) -> Device:
    idle = Device(kind="gpu", minor=minor, memory=memory, closed=rng.random() < 0.06)
    if rng.random() >= busy:
        return idle
    if rng.random() < 0.05:
        return replace(idle, tenants=1)  # a tenant that is told without what it has
    core = rng.choice([0, 10, 30, 50, 50, 90, 100])
    percent = rng.choice(PERCENTS)
    by_ratio = memory * percent // 100
    if rng.random() < 0.15:  # what is left is a ratio exactly
        return replace(
            idle, core_used=100 - percent, memory_used=memory - by_ratio, tenants=1, instances=1
        )
    used = rng.choice([1, memory // 4, memory // 2, by_ratio, 7 * GIB, memory - GIB, memory])
    tenants = rng.randint(1, 3)
    alone = rng.random() < 0.15
    return replace(
        idle,
        core_used=core,
        memory_used=min(memory, used),
        tenants=1 if alone else tenants,
        alone=alone,
        instances=rng.choice([tenants, tenants, 0]),  # 0: they are of other dialects
    )


def placed(rng: Random, devices: Sequence[Device]) -> list[Device]:
    """Return the devices with their places: all told, none, or some unknown."""
    how = rng.choice(["all", "all", "all", "all", "none", "some", "no numa", "mixed", "no roots"])
    result = []
    for device in devices:
        numa, root = rng.choice(PLACES)
        if how == "none" or (how == "some" and rng.random() < 0.3):
            result.append(device)
        elif how == "no numa" or (how == "mixed" and rng.random() < 0.3):
            result.append(replace(device, numa=-1, root=root))
        elif how == "no roots" and rng.random() < 0.5:
            result.append(replace(device, numa=numa))
        else:
            result.append(replace(device, numa=numa, root=root))
    return result


def labelled(rng: Random, device: Device) -> Device:
    """Return the device with a tier."""
    return replace(device, tier=rng.choice(["gold", "gold", "tin"]))


def others(rng: Random, kind: str, first: int, most: int) -> list[Device]:
    """Return NICs or FPGAs in any state; NICs with up to three VFs."""
    devices = []
    for minor in range(first, first + rng.choice([0, 1, 1, *range(2, most + 1)])):
        used = rng.choice([0, 0, 0, 1, 40, 60, 100])
        names = ["01.0", "01.1", "01.2", "01.9", "01.10", "02.0", "1f.7", ""]
        functions = tuple(
            Function(
                bus_id=f"0000:{minor:02x}:{name}" if name else "",
                use=rng.choice(["train", "train", "serve"]),
                taken=bool(used and name) and rng.random() < 0.5,
            )
            for name in rng.sample(names, rng.choice([0, 1, 2, 3]))
        )
        devices.append(
            Device(
                kind=kind,
                minor=minor,
                core_used=used,
                tenants=int(used > 0),
                closed=rng.random() < 0.08,
                functions=functions if kind == "rdma" else (),
            )
        )
    return devices


def matrix(rng: Random, size: int) -> LinkMatrix:
    """Return a matrix of few or many speeds, not symmetric, with a wild diagonal."""
    kinds = rng.sample(SPEEDS, rng.randint(1, 4))
    noise = rng.choice([0.0, 0.0, 0.02, 0.2])
    return LinkMatrix(
        rows=tuple(
            tuple(rng.choice(kinds) * (1 - noise * rng.random()) for _ in range(size))
            for _ in range(size)
        )
    )


def table(rng: Random, cards: int) -> dict[int, list[Partition]]:
    """Return groups of one, two or four GPUs, some of GPUs that there are not."""
    sizes = rng.choice([[1, 2], [1, 2, 4], [2], [1, 2, 3]])
    groups = [
        g for size in sizes for g in combinations(range(min(6, cards + rng.randint(0, 1))), size)
    ]
    picked = rng.sample(groups, rng.randint(0, min(10, len(groups))))
    result: dict[int, list[Partition]] = {}
    for minors in picked:
        item = Partition(minors=minors, score=rng.randint(0, 2), ring=rng.choice([None, 100, 300]))
        result.setdefault(len(minors), []).append(item)
    return result


def machine(rng: Random, *, most: int = 6, links: float = 0.0, tables: float = 0.3) -> Machine:
    """Return a node with GPUs, NICs and FPGAs."""
    cards = gpus(rng, most=most)
    if rng.random() < 0.06:  # an inventory that counts cards and knows no memory
        cards = [replace(card, memory=0, memory_used=0) for card in cards]
    rest = [*others(rng, "fpga", 0, 2), *others(rng, "rdma", 10, 4)]
    devices = placed(rng, [labelled(rng, device) for device in (*cards, *rest)])
    devices.sort(key=lambda device: device.name)
    with_table = rng.random() < tables
    result = Machine(
        devices=tuple(devices),
        links=matrix(rng, len(cards)) if rng.random() < links else None,
        partitions=table(rng, len(cards)) if with_table else None,
        honors=rng.random() < (0.3 if with_table else 0.02),
    )
    return with_nominal(result)


def with_nominal(machine: Machine) -> Machine:
    """Return the node with the matrix that its places and partitions suggest."""
    facts = view_of(machine).facts
    return replace(machine, nominal=derive_links(facts.devices, facts.partitions))


def _gpu_limits(rng: Random) -> dict[str, int]:
    """Return what one container asks of Koordinator GPUs, mostly allowed."""
    core = rng.choice([1, 10, 30, 50, 50, 90, 100])
    ratio = rng.choice([1, 13, 25, 40, 50, 50, 60, 65, 87, 99, 100])
    memory = rng.choice([1, GIB, 7 * GIB, 8138 * MIB, 12 * GIB, 24 * GIB])
    cards = rng.choice([1, 1, 2, 2, 3, 4])
    shape = rng.randrange(12)
    if shape == 0:
        return {wanted.GPU: rng.choice([1, 50, 99, *PERCENTS])}
    if shape in (1, 2):
        return {wanted.GPU: 100 * cards}
    if shape == 3:
        return {wanted.RATIO: rng.choice([ratio, 100 * cards])}
    if shape == 4:
        return {wanted.MEMORY: memory}
    if shape in (5, 6):
        return {wanted.CORE: core, wanted.MEMORY: memory}
    if shape in (7, 8):
        return {wanted.CORE: core, wanted.RATIO: ratio}
    if shape == 9:
        return {wanted.SHARED: cards, wanted.CORE: core * cards, wanted.RATIO: ratio * cards}
    if shape == 10:
        return {wanted.SHARED: cards, wanted.CORE: core * cards, wanted.MEMORY: memory * cards}
    keys = rng.sample(sorted(wanted.GPU_KEYS), rng.randint(1, 3))
    return {key: rng.choice([1, 2, 50, 100, 150, 200, 250, 300, 330]) for key in keys}


def _gpu_hint(rng: Random) -> dict[str, Any]:
    hint: dict[str, Any] = {}
    if rng.random() < 0.2:
        hint["selector"] = rng.choice([{}, {"matchLabels": {"tier": "gold"}}])
    if rng.random() < 0.3:
        hint["requiredTopologyScope"] = rng.choice(
            ["Node", "NUMANode", "NUMANode", "PCIe", "PCIe", "Device"]
        )
    if rng.random() < 0.2:
        hint["exclusivePolicy"] = rng.choice(["DeviceLevel", "PCIeLevel"])
    if rng.random() < 0.02:
        hint["vfSelector"] = {}
    return hint


def _unit_hint(rng: Random) -> dict[str, Any]:
    hint: dict[str, Any] = {}
    if rng.random() < 0.3:
        hint["selector"] = rng.choice([{}, {"matchLabels": {"tier": "gold"}}])
    if rng.random() < 0.4:
        hint["vfSelector"] = rng.choice([{}, {"matchLabels": {"use": "train"}}])
    if rng.random() < 0.4:
        hint["allocateStrategy"] = rng.choice(["ApplyForAll", "RequestsAsCount"])
    if rng.random() < 0.3:
        hint["exclusivePolicy"] = rng.choice(["DeviceLevel", "PCIeLevel"])
    return hint


def _units(rng: Random) -> int:
    return rng.choice([1, 1, 1, 1, 2, 2, 3, 5, 40, 60, 60, 100, 100, 200, 300, 150])


KINDS = (
    ("gpu",), ("gpu",), ("gpu", "rdma"), ("gpu", "rdma"), ("gpu", "rdma", "fpga"),
    ("rdma",), ("rdma", "fpga"), ("fpga",),
)  # fmt: skip


def koordinator_ask(rng: Random) -> Ask:
    """Return a Pod for GPUs, NICs and FPGAs, with any wishes."""
    hints: dict[str, Any] = {}
    annotations: dict[str, object] = {}
    first: dict[str, int] = {}
    kinds = rng.choice(KINDS)
    if "gpu" in kinds:
        first |= {wanted.NVIDIA: rng.randint(1, 4)} if rng.random() < 0.25 else _gpu_limits(rng)
        hints["gpu"] = _gpu_hint(rng)
        if rng.random() < 0.1:
            annotations[wanted.PARTITION] = _partition_spec(rng)
    for kind in ("rdma", "fpga"):
        if kind in kinds:
            first[wanted.UNITS[kind]] = _units(rng)
            hints[kind] = _unit_hint(rng)
    if any(hints.values()):
        annotations[wanted.HINT] = {kind: hint for kind, hint in hints.items() if hint}
    if len(kinds) > 1 and rng.random() < 0.7:
        types = rng.sample(kinds, len(kinds)) if rng.random() < 0.3 else list(kinds)
        joint: dict[str, object] = {"deviceTypes": types}
        if rng.random() < 0.4:
            joint["requiredScope"] = "SamePCIe"
        annotations[wanted.JOINT] = joint
    return _with_more(rng, first, annotations)


def _partition_spec(rng: Random) -> dict[str, object]:
    spec: dict[str, object] = {}
    if rng.random() < 0.5:
        spec["allocatePolicy"] = rng.choice(["Restricted", "BestEffort"])
    if rng.random() < 0.4:
        spec["ringBusBandwidth"] = rng.choice(["100", "200", "300"])
    return spec


def joint_machine(rng: Random) -> Machine:
    """Return a node whose NICs and FPGAs sit beside its GPUs, most of them idle."""
    devices = [
        *(_gpu(rng, minor, 24 * GIB, 0.2) for minor in range(rng.randint(2, 6))),
        *others(rng, "fpga", 0, 2),
        *others(rng, "rdma", 10, 3),
        *others(rng, "rdma", 20, 3),
    ]
    devices = placed(rng, [labelled(rng, device) for device in devices])
    devices.sort(key=lambda device: device.name)
    return with_nominal(Machine(devices=tuple(devices)))


def joint_ask(rng: Random) -> Ask:
    """Return a Pod for whole GPUs with NICs or FPGAs beside them."""
    others_too = rng.choice([["rdma"], ["rdma"], ["rdma"], ["rdma"], ["fpga"], ["rdma", "fpga"]])
    limits = {wanted.NVIDIA: rng.choice([1, 1, 2, 2, 3, 4])}
    hints: dict[str, Any] = {"gpu": _gpu_hint(rng)} if rng.random() < 0.2 else {}
    for kind in others_too:
        limits[wanted.UNITS[kind]] = rng.choice([1, 1, 1, 2, 40, 100, 200])
        if rng.random() < 0.3:
            hints[kind] = _unit_hint(rng)
    joint: dict[str, object] = {"deviceTypes": ["gpu", *others_too]}
    if rng.random() < 0.5:
        joint["requiredScope"] = "SamePCIe"
    annotations = {wanted.JOINT: joint, wanted.HINT: hints}
    return Ask(containers=(limits,), annotations=annotations)


def partitions_ask(rng: Random) -> Ask:
    """Return a Pod for whole GPUs by a node's partition table."""
    hint = _gpu_hint(rng) if rng.random() < 0.3 else {}
    annotations: dict[str, object] = {wanted.HINT: {"gpu": hint}} if hint else {}
    if rng.random() < 0.5:
        annotations[wanted.PARTITION] = _partition_spec(rng)
    return Ask(
        containers=({wanted.NVIDIA: rng.choice([1, 1, 2, 2, 3, 4])},), annotations=annotations
    )


def _with_more(rng: Random, first: dict[str, int], annotations: Mapping[str, object]) -> Ask:
    """Return the Pod, sometimes with a second container or an init container."""
    containers: LIMITS = [first]
    inits: LIMITS = []
    only_gpus = {key: value for key, value in first.items() if key in wanted.GPU_KEYS}
    draw = rng.random()
    if draw < 0.1:
        containers.append(only_gpus)
    elif draw < 0.15:
        inits.append(only_gpus)
    elif draw < 0.2:
        containers.append(_gpu_limits(rng))
    elif draw < 0.25:
        containers.insert(0, {})
    return Ask(containers=tuple(containers), inits=tuple(inits), annotations=annotations)


def nvidia_ask(rng: Random) -> Ask:
    """Return a Pod for whole GPUs in one to three containers."""
    containers: LIMITS = [
        {wanted.NVIDIA: rng.choice([1, 1, 2, 2, 3, 4])} for _ in range(rng.choice([1, 1, 1, 2, 3]))
    ]
    inits: LIMITS = [{wanted.NVIDIA: rng.randint(1, 3)}] if rng.random() < 0.2 else []
    if rng.random() < 0.05:
        containers.append(rng.choice([{wanted.GPU: 100}, {mgpu.CORE: 100}, {gpushare.MEMORY: 5}]))
    return Ask(containers=tuple(containers), inits=tuple(inits))


def links_ask(rng: Random) -> Ask:
    """Return a Pod for whole GPUs, sometimes under a scope or by label."""
    hint = {key: value for key, value in _gpu_hint(rng).items() if key != "vfSelector"}
    annotations: dict[str, object] = {wanted.HINT: {"gpu": hint}} if hint else {}
    if rng.random() < 0.1:
        annotations[wanted.PARTITION] = {}
    key, each = rng.choice([(wanted.NVIDIA, 1), (wanted.GPU, 100)])
    return Ask(containers=({key: each * rng.randint(1, 5)},), annotations=annotations)


def mgpu_machine(rng: Random) -> Machine:
    """Return a node of up to five cards with an mGPU policy, some with a binding table."""
    cards = [labelled(rng, card) for card in gpus(rng, most=rng.choice([3, 4, 4, 5]))]
    honors = rng.random() < 0.15
    return Machine(
        devices=tuple(cards),
        mgpu_policy=rng.choice(["fixed-share", mgpu.BURST, mgpu.BURST]),
        honors=honors,
        partitions=table(rng, len(cards)) if honors and rng.random() < 0.9 else None,
    )


def _gold(rng: Random) -> dict[str, object]:
    """Return, now and then, the annotation for GPUs by label."""
    if rng.random() < 0.9:
        return {}
    return {wanted.HINT: {"gpu": {"selector": {"matchLabels": {"tier": "gold"}}}}}


def mgpu_ask(rng: Random) -> Ask:
    """Return a Pod of one to three mGPU containers, normal or multi, mostly allowed."""
    count = rng.choice([1, 1, 2, 2, 3])
    multi = rng.random() < 0.4
    policy = rng.choice([None, *[mgpu.BURST] * 6, "guaranteed-burst-share"])
    annotations = _gold(rng) | ({} if policy is None else {mgpu.POLICY: policy})
    containers, counts = [], []
    for _ in range(count):
        limits, cards = _mgpu_limits(rng, multi=multi)
        containers.append(limits)
        counts.append(cards)
    if multi:
        if rng.random() < 0.04:
            counts.append(1)
        annotations[mgpu.COUNTS] = ",".join(map(str, counts))
        if rng.random() < 0.02:
            annotations[mgpu.COUNTS] = rng.choice(["", "1.5", "a", "-1", "1,,2"])
    inits = ({mgpu.CORE: 10, mgpu.MEMORY: 300},) if rng.random() < 0.03 else ()
    return Ask(containers=tuple(containers), inits=inits, annotations=annotations)


def _mgpu_limits(rng: Random, *, multi: bool) -> tuple[dict[str, int], int]:
    memory = rng.choice([256, 1024, 2048, 5000, 8138, 12288])
    odd = rng.random()
    if odd < 0.06:
        core = rng.choice([1, 20, 99, 100, 101, 120, 130, 200, 300])
        limits = {mgpu.CORE: core, mgpu.MEMORY: rng.choice([0, 128, 255, 256, 6 * 2**30])}
        keys = rng.sample(sorted(limits), rng.randint(0, 2))
        return {key: limits[key] for key in keys}, rng.randint(0, 3)
    cards = rng.choice([1, 1, 2, 2, 3]) if multi else 1
    if odd < 0.25:
        cards = rng.choice([1, 1, 2, 3])
        return {mgpu.CORE: 100 * cards}, cards
    if odd < 0.3 and multi:
        return {}, 0
    core = rng.choice([1, 10, 20, 20, 50, 50, 70, 99])
    return {mgpu.CORE: core * cards, mgpu.MEMORY: memory * cards}, cards


def gpushare_machine(rng: Random) -> Machine:
    """Return a node with GPUs alone."""
    return Machine(devices=tuple(labelled(rng, card) for card in gpus(rng)))


def gpushare_ask(rng: Random, unit: str) -> Ask:
    """Return a Pod of one to three GPU share containers."""
    sizes = [1, 256, 2048, 4069, 8138, 8192, 12207, 16276, 24576]
    each = rng.choice(sizes) if unit == "MiB" else rng.choice([1, 2, 4, 7, 8, 12, 15, 16, 24])
    count = rng.choice([1, 1, 1, 2, 3])
    containers = tuple({gpushare.MEMORY: max(1, each // count)} for _ in range(count))
    inits = ({gpushare.MEMORY: rng.choice([1, each, each + 1])},) if rng.random() < 0.2 else ()
    return Ask(containers=containers, inits=inits, annotations=_gold(rng))


def hami_ask(rng: Random) -> Ask:
    """Return a Pod of one to three containers in HAMi's words, mostly allowed, some by UUID."""
    by_percent = rng.random() < 0.4
    count = rng.choice([1, 1, 2, 2, 3])
    containers = [_hami_limits(rng, by_percent=by_percent) for _ in range(count)]
    inits = [_hami_limits(rng, by_percent=by_percent)] if rng.random() < 0.25 else []
    if not any(limits.keys() & hami.SHARES for limits in (*containers, *inits)):
        containers.append({hami.GPU: 1, hami.CORES: 30})  # else it is NVIDIA's dialect
    annotations = _gold(rng)
    if rng.random() < 0.15:
        names = [f"gpu-{minor}" for minor in range(6)]
        key = rng.choice([hami.USE_ID, hami.NOUSE_ID])
        annotations[key] = ",".join(rng.sample(names, rng.randint(1, 5)))
    return Ask(containers=tuple(containers), inits=tuple(inits), annotations=annotations)


def _hami_limits(rng: Random, *, by_percent: bool) -> dict[str, int]:
    odd = rng.random()
    if odd < 0.05:
        keys = (hami.GPU, *sorted(hami.SHARES))
        return {key: rng.choice([0, 1, 100, 101]) for key in rng.sample(keys, rng.randint(0, 4))}
    limits = {hami.GPU: rng.choice([1, 1, 1, 2, 3])}
    if odd < 0.15:
        return limits
    if odd < 0.2:
        del limits[hami.GPU]
    if rng.random() < 0.8:
        limits[hami.CORES] = rng.choice([10, 30, 50, 50, 90, 100])
    if by_percent ^ (rng.random() < 0.03):
        limits[hami.PERCENT] = rng.choice([*PERCENTS, 100])
    elif rng.random() < 0.9:
        limits[hami.MEMORY] = rng.choice([1, 2048, 8138, 12288, 16276, 24576])
    return limits
