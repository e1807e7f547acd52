"""mGPU, as Pods and Nodes are read in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs

from ledger.domain.adopted.cards import (
    Asker,
    Found,
    Part,
    collect,
    part_share,
    unreadable,
    whole_share,
)
from ledger.domain.annotations.wire import TRUE, annotation_path
from ledger.domain.devices import WHOLE_PERCENT, DeviceRecord, DeviceShare
from ledger.domain.dialects.mgpu import annotations as given
from ledger.domain.dialects.mgpu import words
from ledger.domain.dialects.mgpu.demands import MIB, mgpu_demands
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import Adverts, DialectReader, GpuAsked, Uncounted
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.pod_spec import ContainerSpec, PodSpec
from ledger.domain.nodes import NodeFacts
from ledger.domain.quantity import ZERO, Quantity, divide_up
from ledger.domain.request.requests import PodRequest
from ledger.domain.request.rules import unsupported
from ledger.domain.resources import LABEL_TENURE_OWNED, TYPE_GPU
from ledger.domain.vocabulary import Vocabulary

GPU_INDEX_CONTAINER: Final = "gpu-index-container"


def from_gpu_index(asker: Asker) -> Found | None:
    """
    Return what the containers of an mGPU Pod hold.

    Rule: GPU-sharing contract A.1, A.5 and A.6: the annotation names the cards, the container's
    request what it takes of each. A container that asks and has no cards is on unknown ones.
    """
    names = [container.name for container in asker.apps()]
    try:
        allocation = given.read_mgpu_allocation(asker.spec.annotations, names)
    except InputError as error:  # plain text that names no card
        return unreadable(GPU_INDEX_CONTAINER, str(error))
    if allocation is None:
        return None
    faults = [*_mgpu_faults(asker, allocation)]
    return collect(GPU_INDEX_CONTAINER, _mgpu_parts(asker, allocation), faults)


def unread_words(asker: Asker) -> tuple[str, ...]:
    """Return what the annotations say although they name no card."""
    if asker.spec.annotations.get(words.ANNOTATION_MGPU_ASSUMED) != TRUE:
        return ()
    path = annotation_path(words.ANNOTATION_MGPU_ASSUMED)
    return (f"{path}: no annotation names a card of any container: value={TRUE!r}",)


def with_containers(found: Found, asker: Asker) -> Found:
    """
    Return the shares of a source that knows only Pods, with the containers that are on each card.

    Rule: GPU-sharing contract A.5: the instances on a card are limited, one per container, and a
    whole card is held alone. The amounts stay those of the source.
    """
    detail = from_gpu_index(asker)
    if detail is None:
        return found
    by_key = {share.key: share for share in detail.shares}
    return replace(
        found,
        shares=tuple(_with_detail(share, by_key.get(share.key)) for share in found.shares),
    )


def _with_detail(share: DeviceShare, detail: DeviceShare | None) -> DeviceShare:
    if detail is None:
        return share
    return structs.replace(
        share,
        exclusive=detail.exclusive,
        instances=detail.instances,
        containers=detail.containers,
    )


def _mgpu_parts(asker: Asker, allocation: given.MgpuAllocation) -> Iterator[Part]:
    cards_of = dict(allocation.cards)
    for container in asker.apps():
        if container.name not in cards_of:
            if _asks_mgpu(container):
                yield TYPE_GPU, None
            continue
        refs = cards_of[container.name]
        for ref in refs:
            card = _card_of_ref(asker, ref)
            yield TYPE_GPU, _mgpu_share(card, container, len(refs)) if card else None


def _asks_mgpu(container: ContainerSpec) -> bool:
    return bool(container.units(words.MGPU_CORE) or container.units(words.MGPU_MEMORY))


def _card_of_ref(asker: Asker, ref: given.CardRef) -> DeviceRecord | None:
    if isinstance(ref, int):
        return asker.card(TYPE_GPU, minor=ref)
    return asker.card(TYPE_GPU, device_id=ref)


def _mgpu_share(card: DeviceRecord, container: ContainerSpec, cards: int) -> DeviceShare:
    """Return the container's part of one of its cards; a request beyond a card is all of it."""
    core = divide_up(container.units(words.MGPU_CORE), cards)
    memory = divide_up(container.units(words.MGPU_MEMORY) * MIB, cards)
    if core >= WHOLE_PERCENT:
        return whole_share(card, (container,))
    return part_share(card, core, memory, (container,))


def _mgpu_faults(asker: Asker, allocation: given.MgpuAllocation) -> Iterator[str]:
    cards_of = dict(allocation.cards)
    counts, fault = _counts(asker)
    if fault:
        yield fault
    for number, container in enumerate(asker.apps()):
        refs = cards_of.get(container.name)
        core = container.units(words.MGPU_CORE)
        if refs is None:
            if _asks_mgpu(container):
                yield f"container {container.name} asks for mGPU, and no annotation names its cards"
            continue
        if not _asks_mgpu(container):
            yield f"container {container.name} has cards and asks for no mGPU"
            continue
        due = max(1, core // WHOLE_PERCENT) if counts is None else counts.get(number, 0)
        if len(refs) != due:
            numbers = f"asked={due}, named={len(refs)}"
            yield f"container {container.name} has not the cards it asks for: {numbers}"
        for ref in refs:
            if _card_of_ref(asker, ref) is None:
                yield f"container {container.name} has card {ref}, which the node does not have"


def _counts(asker: Asker) -> tuple[Mapping[int, int] | None, str]:
    """Return the cards that the list gives each container, None without one, and what is wrong."""
    text = asker.spec.annotations.get(words.ANNOTATION_MGPU_CONTAINER_MULTIPLE)
    if text is None:
        return None, ""
    try:
        counts = given.decode_card_counts(text)
    except InputError as error:
        return None, str(error)
    return dict(enumerate(counts)), ""


def adverts(units: Callable[[str], int], _vocabulary: Vocabulary) -> Adverts | None:
    """Return the cards that a Node's quantities mean; memory counts MiB of all of them."""
    count = units(words.MGPU_CORE) // WHOLE_PERCENT
    memory_bytes = units(words.MGPU_MEMORY) // max(1, count) * MIB
    return Adverts(name=words.MGPU_CORE, count=count, memory_bytes=memory_bytes)


def on_node(node: NodeFacts) -> NodeFacts:
    """Return a Node with its compute policy, and whether its labels close it to mGPU Pods."""
    policy = given.read_node_compute_policy(node.labels)
    return replace(
        node,
        mgpu_policy="" if policy is None else str(policy),
        mgpu_invalid=policy is None or not _may_serve(node.labels),
    )


def node_warnings(
    labels: Mapping[str, str],
    quantities: Mapping[str, Quantity],
    devices: Sequence[DeviceRecord] | None,
) -> Iterator[str]:
    """Say why a Node that offers mGPU gets no mGPU Pod, and where its objects disagree."""
    label, policy = words.LABEL_MGPU_NODE, words.LABEL_MGPU_COMPUTE_POLICY
    if quantities.get(words.MGPU_CORE) and not _may_serve(labels):
        yield f"serves no mGPU Pod, because its label {label} is {labels[label]!r}, not 'mgpu'"
    if given.read_node_compute_policy(labels) is None:
        yield f"serves no mGPU Pod, because {policy} is no policy: {labels[policy]!r}"
    if labels.get(LABEL_TENURE_OWNED) != TRUE:
        yield from _drift(quantities, devices or ())


def _may_serve(labels: Mapping[str, str]) -> bool:
    """
    Tell whether the node's labels leave it open to mGPU Pods.

    Rule: GPU-sharing contract A.1: `nvidia` and unknown values close it. Without the label it is
    open, since cli.md lets what a node advertises (or a Device object) say what its cards serve.
    """
    return (
        words.LABEL_MGPU_NODE not in labels
        or given.read_mgpu_node_kind(labels) is given.MgpuNodeKind.MGPU
    )


def _drift(quantities: Mapping[str, Quantity], devices: Sequence[DeviceRecord]) -> Iterator[str]:
    """
    Say where mGPU's quantities and the Device object describe other cards; the Device counts.

    Rule: GPU-sharing contract A.1, ours. Per card floor(memory / cards), in MiB. On a node of ours
    its agent writes both, and lowers the quantities as cards fill (design section 8).
    """
    cards = quantities.get(words.MGPU_CORE, ZERO).ceil() // WHOLE_PERCENT
    found = [record.memory_bytes // MIB for record in devices if record.device_type == TYPE_GPU]
    if not cards or not devices:
        return
    each = quantities.get(words.MGPU_MEMORY, ZERO).ceil() // cards
    if len(found) != cards or any(size != each for size in found):
        listed = ", ".join(map(str, found)) or "none"
        yield (
            f"mGPU's quantities mean {cards} cards of {each} MiB, the Device object lists cards of "
            f"{listed} MiB; the Device object counts"
        )


def _demands(spec: PodSpec) -> GpuAsked:
    mgpu = mgpu_demands(spec)
    own = {"mgpu_policy": str(mgpu.policy), "mgpu_multi": mgpu.multi}
    return GpuAsked(dialect=Dialect.MGPU, asked=mgpu.asked, own=own)


def _unclaimable(request: PodRequest) -> Iterator[FieldError]:
    """Yield a policy by which a node would have to share compute out, and shares over cards."""
    if request.mgpu_policy not in {"", given.MgpuPolicy.FIXED_SHARE}:
        field = annotation_path(words.ANNOTATION_MGPU_COMPUTE_POLICY)
        yield unsupported(field, f"compute policy {request.mgpu_policy} by a claim")
    if request.mgpu_multi:
        field = annotation_path(words.ANNOTATION_MGPU_CONTAINER_MULTIPLE)
        yield unsupported(field, "a container's share of several cards by a claim")


READER: Final = DialectReader(
    dialect=Dialect.MGPU,
    words=words.WORDS,
    demands=_demands,
    takes_wishes=False,
    bounded_search=True,
    adopted=from_gpu_index,
    unread=unread_words,
    with_containers=with_containers,
    adverts=adverts,
    offers=lambda card, _: {
        words.MGPU_CORE: card.core_percent,
        words.MGPU_MEMORY: card.memory_bytes // MIB,
    },
    uncounted=(Uncounted(memory=words.MGPU_MEMORY, cards=words.MGPU_CORE, least=WHOLE_PERCENT),),
    on_node=on_node,
    node_warnings=node_warnings,
    unclaimable=_unclaimable,
)
