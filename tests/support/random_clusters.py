"""
Random clusters of all systems of the corpus, as kubectl prints them, and the truth about them.

It shares nothing with the readers: no import, no constant, no rule but what the vendors' formats
say (tests/corpus/*/README.md has their sources). Every node is of one kind, so that what is told
wrongly of it has a name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

Json = Any
Object = dict[str, Json]
Number = int | dict[str, int | None]

STARTED: Final = "2026-11-23T06:00:00Z"
HEARD: Final = "2026-11-23T08:00:00Z"
HOURS: Final = 2
GPU: Final = "nvidia.com/gpu"
BASE: Final = {"cpu": "64", "memory": "512Gi"}
PLACES: Final = 110
HOLDING: Final = ("Running", "Running", "Running", "Bound", "Deleting")
ENDED: Final = ("Succeeded", "Failed")


@dataclass(kw_only=True)
class Made:
    """A node's devices and who holds them: objects, and the truth before the node is closed."""

    cards: Number
    free: Number
    takeable: int | None
    """Cards that a Pod could get whole; None where no source says."""

    capacity: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    """What of the capacity is not allocatable."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    objects: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    who: dict[str, list[str]] = field(default_factory=dict)
    """Holders by card, by id, else minor; "" on a card that nobody knows, "?" on any."""

    asks: str = ""
    """The resource by which a Pod asks for whole cards."""

    hours: float | None = None
    """GPU-hours of its Pods from STARTED to HEARD; None where shares have no hours of their own."""

    listed: int = 0
    """So many cards the node has, open or closed: no request up to it is one for never."""


@dataclass(frozen=True, kw_only=True)
class NodeTruth:
    """What every command has to tell of a node."""

    name: str
    kind: str
    map: Object
    who: dict[str, list[str]]
    hours: float | None


@dataclass(frozen=True, kw_only=True)
class Question:
    """A Pod that waits for whole cards of one node, and the right answer."""

    pod: Object
    kind: str
    node: str | None
    never: bool | None
    """Whether no state of the cluster gives it; None where this is not claimed."""

    @property
    def name(self) -> str:
        """Return `namespace/name`."""
        return f"{self.pod['metadata']['namespace']}/{self.pod['metadata']['name']}"


@dataclass(frozen=True, kw_only=True)
class RandomCluster:
    """Objects, and the truth of each node and of each Pod that waits."""

    items: list[Object]
    nodes: tuple[NodeTruth, ...]
    questions: tuple[Question, ...]


def uid_of(*parts: object) -> str:
    """Return an id that is the same in every run."""
    return str(uuid5(NAMESPACE_URL, "random/" + "/".join(map(str, parts))))


def card_of(node: str, number: int) -> str:
    """Return the UUID of a card."""
    return "GPU-" + uid_of("card", node, number)


def between(low: int, high: int) -> Number:
    """Return a range, or the one number that it is."""
    return low if low == high else {"min": low, "max": high}


def pod_of(
    name: str,
    on: str,
    asked: dict[str, int],
    rng: Random | None = None,
    *,
    phase: str = "",
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Json,
) -> Object:
    """Return a Pod that is bound to a node; it holds what it asks for unless it has ended."""
    phase = phase or (rng.choice(HOLDING) if rng else "Running")
    amounts = {"cpu": "1", "memory": "1Gi"} | {key: str(each) for key, each in asked.items()}
    metadata: Object = {
        "name": name,
        "namespace": "team",
        "uid": uid_of("pod", name),
        "creationTimestamp": STARTED,
        "annotations": annotations or {},
        "labels": labels or {},
    }
    if phase == "Deleting":
        metadata |= {"deletionTimestamp": HEARD, "deletionGracePeriodSeconds": 30}
    main: Object = {"name": "main", "image": "registry.example.com/app:1"}
    main |= {"resources": {"limits": amounts, "requests": dict(amounts)}}
    told = {"Bound": "Pending", "Deleting": "Running"}.get(phase, phase)
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": STARTED}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": on, "containers": [main], **spec},
        "status": {"phase": told, "startTime": STARTED, "conditions": [bound]},
    }


def by_number(node: str, resource: str, amounts: list[int], rng: Random) -> list[Object]:
    """Return Pods that hold so much each of a resource, and perhaps one that has ended."""
    pods = [
        pod_of(f"{node}-p{place}", node, {resource: amount}, rng)
        for place, amount in enumerate(amounts)
    ]
    if rng.random() < 0.3:
        pods.append(pod_of(f"{node}-ended", node, {resource: 1}, phase=rng.choice(ENDED)))
    return pods


def names_of(pods: list[Object]) -> list[str]:
    """Return the Pods that have not ended, by `namespace/name`."""
    return sorted(
        f"team/{each['metadata']['name']}" for each in pods if each["status"]["phase"] not in ENDED
    )


def parted(total: int, most: int, rng: Random) -> list[int]:
    """Return a number as a sum of parts."""
    parts = []
    while total:
        parts.append(rng.randint(1, min(most, total)))
        total -= parts[-1]
    return parts


# --- cards by number ----------------------------------------------------------------------------


def gfd(product: str, count: int, mib: int, replicas: int = 1) -> dict[str, str]:
    """Return the labels of GPU feature discovery."""
    return {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.memory": str(mib),
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.present": "true",
    }


def whole(node: str, resource: str, labels: dict[str, str], rng: Random, cards: int) -> Made:
    """Return cards that a plugin offers one by one, of which one may be ill."""
    ill = int(cards > 1 and rng.random() < 0.08)
    held = rng.choice((0, 0, rng.randint(0, cards - ill), cards - ill))
    pods = by_number(node, resource, parted(held, 4, rng), rng)
    overlap = (max(0, ill + held - cards), min(ill, held))
    low, high = (cards - ill - held + each for each in overlap)
    return Made(
        cards=cards,
        free=between(low, high),
        takeable=cards - ill - held,
        capacity={resource: cards},
        lost={resource: ill},
        labels=labels,
        pods=pods,
        who={"": names_of(pods)} if held else {},
        asks=resource,
        hours=float(HOURS * held),
        listed=cards,
    )


def plain_nvidia(node: str, rng: Random) -> Made:
    """NVIDIA's plugin, with GPU feature discovery or without."""
    cards = rng.choice((1, 2, 4, 8))
    labels = gfd("NVIDIA-L40S", cards, 46068) if rng.random() < 0.7 else {}
    return whole(node, GPU, labels, rng, cards)


def plain_amd(node: str, rng: Random) -> Made:
    """AMD's plugin with its labeller."""
    cards = rng.choice((1, 4, 8))
    product = "AMD_Instinct_MI210"
    beta = f"beta.amd.com/gpu.product-name.{product}"
    labels = {"amd.com/gpu.product-name": product, beta: str(cards)}
    return whole(node, "amd.com/gpu", labels, rng, cards)


def plain_intel(node: str, rng: Random) -> Made:
    """Intel's plugin, one container a card."""
    cards = rng.choice((1, 2, 4))
    labels = {"gpu.intel.com/device.count": str(cards), "gpu.intel.com/product": "Flex_170"}
    return whole(node, "gpu.intel.com/i915", labels, rng, cards)


def plain_ascend(node: str, rng: Random) -> Made:
    """Huawei's plugin."""
    return whole(node, "huawei.com/Ascend910", {}, rng, 8)


def plain_gaudi(node: str, rng: Random) -> Made:
    """Habana's plugin."""
    return whole(node, "habana.ai/gaudi", {"habana.ai/hpu_type": "gaudi2"}, rng, 8)


def parts(
    node: str, resource: str, labels: dict[str, str], rng: Random, *, cards: int, each: int
) -> Made:
    """Return cards of which a plugin offers parts alike; nobody gets one whole."""
    full = rng.randint(each * (cards - 1) + 1, each * cards)
    held = rng.choice((0, 1, full, 1))
    if rng.random() < 0.06:
        held = rng.randint(0, each * cards)
    pods = by_number(node, resource, [1] * held, rng)
    return Made(
        cards=cards,
        free=between(cards - min(held, cards), cards - -(-held // each)),
        takeable=0,
        capacity={resource: cards * each},
        labels=labels,
        pods=pods,
        who={"?": names_of(pods)},
        hours=HOURS * held / each,
    )


def nvidia_replicas(node: str, rng: Random) -> Made:
    """Time-slicing and MPS, with the labels of GPU feature discovery."""
    cards, each = rng.choice((1, 2, 4)), rng.choice((2, 4, 8))
    labels = gfd("Tesla-T4-SHARED", cards, 15360, each)
    labels["nvidia.com/gpu.sharing-strategy"] = rng.choice(("time-slicing", "mps"))
    return parts(node, GPU, labels, rng, cards=cards, each=each)


def gke_sharing(node: str, rng: Random) -> Made:
    """GKE's time-sharing and MPS."""
    cards, each = rng.choice((1, 2, 4)), rng.choice((2, 4, 8))
    labels = {
        "cloud.google.com/gke-accelerator": "nvidia-tesla-t4",
        "cloud.google.com/gke-gpu-sharing-strategy": rng.choice(("time-sharing", "mps")),
        "cloud.google.com/gke-max-shared-clients-per-gpu": str(each),
    }
    return parts(node, GPU, labels, rng, cards=cards, each=each)


def intel_shared(node: str, rng: Random) -> Made:
    """Intel's plugin with shared-dev-num."""
    cards, each = rng.choice((1, 2)), rng.choice((5, 10))
    labels = {"gpu.intel.com/device.count": str(cards), "gpu.intel.com/product": "Max_1550"}
    return parts(node, "gpu.intel.com/xe", labels, rng, cards=cards, each=each)


def amd_cut(node: str, rng: Random) -> Made:
    """AMD's cards in a compute partition, naming strategy single."""
    cards, (mode, each) = rng.choice((1, 4, 8)), rng.choice((("dpx_nps1", 2), ("cpx_nps4", 8)))
    product = "AMD_Instinct_MI300X_OAM"
    labels = {
        "amd.com/gpu.product-name": product,
        "amd.com/gpu.compute-memory-partition": mode,
        "beta.amd.com/gpu.product-name": product,
        f"beta.amd.com/gpu.product-name.{product}": str(cards),
    }
    return parts(node, "amd.com/gpu", labels, rng, cards=cards, each=each)


def mig_mixed(node: str, rng: Random) -> Made:
    """MIG, strategy mixed: some cards whole, the others in seven."""
    entire, cut = rng.randint(1, 4), rng.randint(1, 3)
    slice_, held = "nvidia.com/mig-1g.5gb", rng.randint(0, entire)
    of_cut = rng.choice((0, 1, 7 * cut))
    pods = by_number(node, GPU, parted(held, 2, rng), rng)
    pods += [pod_of(f"{node}-s{place}", node, {slice_: 1}, rng) for place in range(of_cut)]
    busy = min(of_cut, 1) if of_cut < 7 * cut else cut
    labels = gfd("NVIDIA-A100-SXM4-40GB", entire + cut, 40536)
    labels |= {"nvidia.com/mig.strategy": "mixed", f"{slice_}.count": str(7 * cut)}
    return Made(
        cards=entire + cut,
        free=entire - held + cut - busy,
        takeable=entire - held,
        capacity={GPU: entire, slice_: 7 * cut},
        labels=labels,
        pods=pods,
        who={"": names_of(pods)} if pods else {},
        asks=GPU,
        listed=entire,
    )


def mig_single(node: str, rng: Random) -> Made:
    """MIG, strategy single: nobody counts cards."""
    held = rng.randint(0, 1)
    pods = by_number(node, GPU, [1] * held, rng)
    return Made(
        cards={"min": 2, "max": 14},
        free=between(2 - held, 14 - held),
        takeable=0,
        capacity={GPU: 14},
        labels=gfd("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", 14, 4864),
        pods=pods,
        who={"?": names_of(pods)},
    )


# --- cards that a register lists ----------------------------------------------------------------


@dataclass(kw_only=True)
class Card:
    """A card of a register, as it is shared."""

    id: str
    mib: int = 81920
    healthy: bool = True
    cordoned: bool = False
    mode: str = "hami-core"
    holders: list[str] = field(default_factory=list)
    left: int = 100

    @property
    def is_open(self) -> bool:
        """Whether its scheduler gives of it, as a Pod of ours could have it."""
        return self.healthy and not self.cordoned and self.mode == "hami-core"


def shared_cards(node: str, rng: Random, *, odd: float) -> list[Card]:
    """Return cards of which some are ill, cordoned or in MIG mode."""
    cards = [Card(id=card_of(node, number)) for number in range(rng.randint(1, 4))]
    for card in cards:
        if rng.random() < odd:
            card.healthy, card.cordoned, card.mode = rng.choice(
                ((False, False, "hami-core"), (True, True, "hami-core"), (True, False, "mig"))
            )
    return cards


def given_shares(cards: list[Card], node: str, rng: Random) -> Iterator[tuple[str, Card, int]]:
    """Yield names of Pods with a card and a percentage of it."""
    for place in range(rng.randint(0, 4)):
        card, percent = rng.choice(cards), rng.choice((10, 25, 50, 100))
        if card.mode != "mig" and card.left >= percent:
            card.left -= percent
            card.holders.append(f"team/{node}-p{place}")
            yield f"{node}-p{place}", card, percent


def made_of(cards: list[Card], **more: Json) -> Made:
    """Return what is true of cards that are known one by one."""
    return Made(
        cards=len(cards),
        free=sum(card.healthy and not card.holders for card in cards),
        takeable=sum(card.is_open and not card.holders for card in cards),
        who={card.id: card.holders for card in cards},
        listed=len(cards),
        **more,
    )


def hami_register(cards: list[Card], rng: Random) -> str:
    """Return HAMi's register, as JSON or as the text of before."""
    if rng.random() < 0.3:
        return "".join(
            f"{card.id},10,{card.mib},100,NVIDIA-NVIDIA A100,0,{str(card.healthy).lower()},"
            f"{place},{card.mode}:"
            for place, card in enumerate(cards)
        )
    return json.dumps(
        [
            {
                "id": card.id,
                **({"index": place} if place else {}),
                "count": 10,
                "devmem": card.mib,
                "devcore": 100,
                "type": "NVIDIA A100-SXM4-80GB",
                "mode": card.mode,
                **({"health": True} if card.healthy else {}),
            }
            for place, card in enumerate(cards)
        ]
    )


def hami_pod(given: tuple[str, Card, int], node: str, rng: Random) -> Object:
    """Return a Pod on a part of a card by HAMi's annotation."""
    name, card, percent = given
    mib = card.mib * percent // 100
    told = {
        "hami.io/vgpu-node": node,
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-devices-allocated": f"{card.id},NVIDIA,{mib},0:;",
    }
    asked = {GPU: 1, "nvidia.com/gpumem": mib}
    return pod_of(name, node, asked, rng, annotations=told, schedulerName="hami-scheduler")


def hami(node: str, rng: Random) -> Made:
    """HAMi, with cards that are closed each in its way."""
    cards = shared_cards(node, rng, odd=0.2)
    pods = [hami_pod(given, node, rng) for given in given_shares(cards, node, rng)]
    told = {"hami.io/node-nvidia-register": hami_register(cards, rng)}
    if cordoned := [card.id for card in cards if card.cordoned]:
        told["hami.io/device-cordon"] = ",".join(cordoned)
    return made_of(cards, capacity={GPU: 10 * len(cards)}, annotations=told, pods=pods, asks=GPU)


def hami_cut(node: str, rng: Random) -> Made:
    """HAMi with a register that was cut off, and a label that counts the cards."""
    cards = [Card(id=card_of(node, number)) for number in range(rng.randint(2, 4))]
    pods = [hami_pod(given, node, rng) for given in given_shares(cards, node, rng)]
    register = hami_register(cards, Random(0))[: -rng.randint(10, 60)]
    made = made_of(
        cards,
        capacity={GPU: 10 * len(cards)},
        annotations={"hami.io/node-nvidia-register": register},
        labels=gfd("NVIDIA-A100-SXM4-80GB", len(cards), 81920),
        pods=pods,
    )
    made.takeable, made.who = None, {"?": names_of(pods)}
    return made


def hami_dcu(node: str, rng: Random) -> Made:
    """HAMi's register of another vendor's cards."""
    cards = [Card(id=f"DCU-{node}-{number}", mib=65520) for number in range(rng.randint(1, 4))]
    told = "".join(
        f"{card.id},4,65520,100,DCU-K100_AI,0,true,{place},hami-core:"
        for place, card in enumerate(cards)
    )
    pods = []
    if rng.random() < 0.6:
        card = rng.choice(cards)
        card.holders.append(f"team/{node}-p0")
        given = {"hami.io/vgpu-node": node}
        given["hami.io/dcu-devices-allocated"] = f"{card.id},DCU,16380,25:;"
        asked = {"hygon.com/dcunum": 1, "hygon.com/dcumem": 16380}
        pods.append(pod_of(f"{node}-p0", node, asked, rng, annotations=given))
    made = made_of(
        cards,
        capacity={"hygon.com/dcunum": 4 * len(cards)},
        annotations={"hami.io/node-dcu-register": told},
        pods=pods,
    )
    made.takeable, made.who = None, {"?": names_of(pods)}
    return made


def volcano(node: str, rng: Random) -> Made:
    """Volcano's vGPUs."""
    cards = [Card(id=card_of(node, number), mib=24000) for number in range(rng.randint(1, 4))]
    for card in cards:
        card.healthy = rng.random() < 0.9
    pods = []
    for name, card, percent in given_shares(cards, node, rng):
        mib = 240 * percent
        given = {"volcano.sh/vgpu-node": node, "volcano.sh/bind-phase": "success"}
        given["volcano.sh/vgpu-ids-new"] = f"{card.id},NVIDIA,{mib},0:"
        given["volcano.sh/devices-to-allocate"] = f"{card.id},NVIDIA,{mib},0:"
        asked = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": mib}
        pods.append(pod_of(name, node, asked, rng, annotations=given, schedulerName="volcano"))
    register = "".join(
        f"{card.id},10,24000,NVIDIA-NVIDIA A10,{str(card.healthy).lower()},hami-core:"
        for card in cards
    )
    number = len(cards)
    return made_of(
        cards,
        capacity={
            "volcano.sh/vgpu-number": 10 * number,
            "volcano.sh/vgpu-memory": 24000 * number,
            "volcano.sh/vgpu-cores": 100 * number,
        },
        annotations={"volcano.sh/node-vgpu-register": register},
        pods=pods,
    )


def koordinator(node: str, rng: Random) -> Made:
    """Koordinator's Device objects and annotations."""
    cards = [Card(id=card_of(node, number)) for number in range(rng.randint(1, 4))]
    for card in cards:
        card.healthy = rng.random() < 0.9
    core, memory, ratio = (
        f"koordinator.sh/gpu-{each}" for each in ("core", "memory", "memory-ratio")
    )
    pods = []
    for name, card, percent in given_shares(cards, node, rng):
        amounts = {
            core: str(percent),
            memory: str((80 * percent << 30) // 100),
            ratio: str(percent),
        }
        entry = {"minor": cards.index(card), "id": card.id, "resources": amounts}
        given = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [entry]})}
        asked = {core: percent, ratio: percent, "koordinator.sh/gpu.shared": 1}
        pods.append(
            pod_of(name, node, asked, rng, annotations=given, schedulerName="koord-scheduler")
        )
    entries = [
        {
            "type": "gpu",
            "id": card.id,
            "minor": place,
            "health": card.healthy,
            "resources": {core: "100", memory: "80Gi", ratio: "100"},
        }
        for place, card in enumerate(cards)
    ]
    device: Object = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": node, "uid": uid_of("device", node)},
        "spec": {"devices": entries},
    }
    healthy = sum(card.healthy for card in cards)
    return made_of(
        cards,
        capacity={core: 100 * healthy, ratio: 100 * healthy, "koordinator.sh/gpu": 100 * healthy},
        objects=[device],
        pods=pods,
        asks=GPU,
    )


def gpushare(node: str, rng: Random) -> Made:
    """Alibaba's GPU share, in GiB or in MiB."""
    number, size = rng.choice((1, 2, 4)), rng.choice((15, 15360, 79))
    cards = [Card(id=str(minor), mib=size) for minor in range(number)]
    pods = []
    for name, card, percent in given_shares(cards, node, rng):
        units = size * percent // 100
        given = {
            "ALIYUN_COM_GPU_MEM_IDX": card.id,
            "ALIYUN_COM_GPU_MEM_POD": str(units),
            "ALIYUN_COM_GPU_MEM_DEV": str(size),
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1763870400000000000",
        }
        pods.append(pod_of(name, node, {"aliyun.com/gpu-mem": units}, rng, annotations=given))
    offered = {"aliyun.com/gpu-mem": size * number, "aliyun.com/gpu-count": number}
    return made_of(cards, capacity=offered, pods=pods)


# --- claims, fractions --------------------------------------------------------------------------


def dra(node: str, rng: Random) -> Made:
    """Cards of dynamic resource allocation, with claims whose Pods run, wait or are gone."""
    cards = [Card(id=card_of(node, number)) for number in range(rng.randint(1, 4))]
    devices = [
        {
            "name": f"gpu-{place}",
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": card.id}},
            "capacity": {"memory": {"value": "81920Mi"}},
        }
        for place, card in enumerate(cards)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": devices}
    objects: list[Object] = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-gpus", "uid": uid_of("slice", node)},
            "spec": spec,
        }
    ]
    pods = []
    for place, card in enumerate(cards):
        state = rng.choice(("none", "none", "runs", "runs", "gone"))
        if state == "none":
            continue
        user, claim = f"{node}-p{place}", f"{node}-c{place}"
        card.holders.append(f"team/{user if state == 'runs' else claim}")
        objects.append(claim_of(claim, node, f"gpu-{place}", user))
        if state == "runs":
            named = [{"name": "gpu", "resourceClaimName": claim}]
            pods.append(pod_of(user, node, {}, rng, resourceClaims=named))
    return made_of(cards, objects=objects, pods=pods)


def claim_of(name: str, node: str, device: str, user: str) -> Object:
    """Return a claim that has a device, reserved for a Pod."""
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1}
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": device}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    reserved = {"resource": "pods", "name": user, "uid": uid_of("pod", user)}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team", "uid": uid_of("claim", name)},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {"allocation": allocation, "reservedFor": [reserved]},
    }


def kai(node: str, rng: Random) -> Made:
    """KAI's fractions: reservation Pods keep cards, those who use them hold these."""
    number = rng.choice((2, 4, 8))
    reserved, entire = rng.randint(1, number), 0
    if reserved < number:
        entire = rng.randint(0, number - reserved)
    pods: list[Object] = []
    keepers: list[Object] = []
    who: dict[str, list[str]] = {}
    for place in range(reserved):
        group, card = f"{node}-g{place}", card_of(node, place)
        keeper = pod_of(
            f"gpu-reservation-{group}",
            node,
            {GPU: 1},
            labels={"app": "kai-resource-reservation", "runai-gpu-group": group},
            annotations={"run.ai/reserve_for_gpu_index": card},
        )
        keeper["metadata"]["namespace"] = "kai-resource-reservation"
        keepers.append(keeper)
        users = [f"{group}-u{each}" for each in range(rng.randint(1, 2))]
        for user in users:
            told = {"gpu-fraction": "0.5", "received-resource-type": "Fraction"}
            marks = {"runai-gpu-group": group, "kai.scheduler/queue": "q"}
            pods.append(pod_of(user, node, {}, rng, annotations=told, labels=marks))
        who[card] = [f"team/{user}" for user in users]
    wholes = [pod_of(f"{node}-w{each}", node, {GPU: 1}, rng) for each in range(entire)]
    if wholes:
        who["?"] = names_of(wholes)
    left = number - reserved - entire
    return Made(
        cards=number,
        free=left,
        takeable=left,
        capacity={GPU: number},
        labels=gfd("NVIDIA-A100-SXM4-80GB", number, 81920),
        pods=[*keepers, *pods, *wholes],
        who=who,
        asks=GPU,
        listed=number,
    )


def no_cards(node: str, rng: Random) -> Made:
    """Return a node with CPUs alone."""
    pods = [pod_of(f"{node}-p{each}", node, {}, rng) for each in range(rng.randint(0, 3))]
    return Made(cards=0, free=0, takeable=0, pods=pods, hours=0.0)


KINDS: Final[dict[str, tuple[Callable[[str, Random], Made], int]]] = {
    "plain-nvidia": (plain_nvidia, 14),
    "plain-amd": (plain_amd, 6),
    "plain-intel": (plain_intel, 6),
    "plain-ascend": (plain_ascend, 4),
    "plain-gaudi": (plain_gaudi, 4),
    "nvidia-replicas": (nvidia_replicas, 6),
    "gke-sharing": (gke_sharing, 6),
    "intel-shared": (intel_shared, 4),
    "amd-cut": (amd_cut, 6),
    "mig-mixed": (mig_mixed, 6),
    "mig-single": (mig_single, 1),
    "hami": (hami, 12),
    "hami-cut": (hami_cut, 3),
    "hami-dcu": (hami_dcu, 4),
    "volcano": (volcano, 8),
    "koordinator": (koordinator, 8),
    "gpushare": (gpushare, 8),
    "dra": (dra, 10),
    "kai": (kai, 8),
    "no-cards": (no_cards, 4),
}
"""Each kind of node, and how often it is met."""

# --- nodes and clusters -------------------------------------------------------------------------


CLOSED: Final = {
    "cordoned": {"unschedulable": True},
    "taint": {"taints": [{"key": "dedicated", "value": "infra", "effect": "NoSchedule"}]},
    "evicting": {"taints": [{"key": "maintenance", "value": "soon", "effect": "NoExecute"}]},
    "not-ready": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
    "not-ready-bare": {},
}
FEW_PLACES: Final = "places"
"""Of whatever kind, a node on which few Pods more may run is called that."""

ROOM: Final = ("open",) * 14 + ("soft", "soft", FEW_PLACES, FEW_PLACES, *CLOSED)


def node_of(name: str, kind: str, rng: Random) -> tuple[list[Object], NodeTruth, Made, str]:
    """Return a node with its objects, the truth of it, and in which way it is closed."""
    made = KINDS[kind][0](name, rng)
    room = rng.choice(ROOM)
    bound = sum(each["status"]["phase"] not in ENDED for each in made.pods)
    places = rng.randint(0, 2) if room == FEW_PLACES else PLACES
    spec = CLOSED.get(room, {})
    if room == "soft":
        spec = {"taints": [{"key": "busy", "effect": "PreferNoSchedule"}]}
    ready = "False" if room.startswith("not-ready") else "True"
    offered = {**BASE, "pods": str(places + bound if room == FEW_PLACES else PLACES)}
    capacity = {key: str(each) for key, each in made.capacity.items()}
    allocatable = {key: str(each - made.lost.get(key, 0)) for key, each in made.capacity.items()}
    body: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": uid_of("node", name),
            "creationTimestamp": "2026-11-20T08:00:00Z",
            "labels": {"kubernetes.io/hostname": name, **made.labels},
            "annotations": made.annotations,
        },
        "spec": spec,
        "status": {
            "capacity": {**offered, **capacity},
            "allocatable": {**offered, **allocatable},
            "conditions": [
                {"type": "Ready", "status": ready, "lastHeartbeatTime": HEARD},
            ],
        },
    }
    for each in made.pods:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid_of("job", name)}
        each["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    told: Object = {"node": name, "open": room not in CLOSED}
    sums = {"cards": made.cards, "free": made.free}
    if made.takeable is not None:
        sums["gettable"] = 0 if room in CLOSED else min(made.takeable, places)
    called = room if room == FEW_PLACES else kind
    truth = NodeTruth(name=name, kind=called, map={**told, **sums}, who=made.who, hours=made.hours)
    return [body, *made.objects, *made.pods], truth, made, room


def question_of(truth: NodeTruth, made: Made, room: str, rng: Random) -> Question | None:
    """Return a Pod that asks for whole cards of this node, where it is known who gives them."""
    gettable = truth.map.get("gettable")
    if not made.asks or gettable is None or room == "not-ready-bare":
        return None
    most = made.takeable if gettable and made.takeable else 0  # one Pod takes one place
    number = rng.choice((1, max(1, most), most + 1, made.listed, 99))
    name = f"{truth.name}-wants"
    pod = pod_of(name, "", {made.asks: number}, nodeSelector={"kubernetes.io/hostname": truth.name})
    del pod["spec"]["nodeName"]
    pod["status"] = {"phase": "Pending"}
    fits = number <= most
    never = number > 64 if number <= made.listed or number > 64 else None
    return Question(pod=pod, kind=truth.kind, node=truth.name if fits else None, never=never)


def random_cluster(seed: int, kinds: tuple[str, ...] = ()) -> RandomCluster:
    """Return a cluster of some nodes, or of these kinds."""
    rng = Random(seed)
    chosen = list(kinds) or rng.choices(
        list(KINDS), [weight for _, weight in KINDS.values()], k=rng.randint(2, 5)
    )
    items: list[Object] = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "gpu.nvidia.com"},
            "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
        }
    ]
    nodes: list[NodeTruth] = []
    questions: list[Question] = []
    for place, kind in enumerate(chosen):
        objects, truth, made, room = node_of(f"s{seed}n{place}-{kind}", kind, rng)
        items += objects
        nodes.append(truth)
        question = question_of(truth, made, room, rng)
        if question and len(questions) < 2:
            questions.append(question)
    if any(each.kind == "hami-cut" for each in nodes):  # who can't read a register is careful
        questions = [replace(each, never=each.never and None) for each in questions]
    items += (each.pod for each in questions)
    return RandomCluster(items=items, nodes=tuple(nodes), questions=tuple(questions))


def is_exact(truth: NodeTruth) -> bool:
    """Whether the input decides every number of the node."""
    return not any(isinstance(each, dict) for each in truth.map.values())
