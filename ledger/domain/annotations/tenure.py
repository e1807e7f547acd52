"""Our own annotations: the devices each container sees, and the marks on Pods and Nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from msgspec import UNSET, UnsetType

from ledger.domain import resources
from ledger.domain.annotations import wire
from ledger.domain.errors import InputError
from ledger.domain.quantity import format_quantity, parse_quantity
from ledger.domain.typed import read

_NO_ISOLATION: Final = "none"
_BY_CLAIMS: Final = "dra"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDevices:
    """
    The GPUs of one container, as device UUIDs; as indexes where one has no known UUID.

    Attributes:
        index: the container's index in the spec, `2`, or `init-0` for init containers.
        visible: what NVIDIA_VISIBLE_DEVICES shows.
        allocated: what CUDA_VISIBLE_DEVICES shows, the container's own; as indexes these are
            places in `visible`, from 0.
    """

    index: str
    visible: tuple[str, ...] = ()
    allocated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalContainer:
    """Device resources of one container as the user wrote them, name -> quantity text."""

    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalRequest:
    """
    What admission has replaced in a Pod.

    Attributes:
        scheduler_name: the scheduler the user named; empty when that was Kubernetes' default.
        containers: container name -> its device resources; only containers that were changed.
    """

    scheduler_name: str = ""
    containers: Mapping[str, OriginalContainer] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.scheduler_name or self.containers)


def container_index(index: int, *, init: bool = False) -> str:
    """Return a container's index: its name would break the limit of 63 (design section 3)."""
    return f"init-{index}" if init else str(index)


def visible_key(index: str) -> str:
    """Return the annotation that NVIDIA_VISIBLE_DEVICES refers to."""
    return f"{resources.ANNOTATION_TENURE_VISIBLE_PREFIX}{index}"


def allocated_key(index: str) -> str:
    """Return the annotation that CUDA_VISIBLE_DEVICES refers to."""
    return f"{resources.ANNOTATION_TENURE_ALLOCATED_PREFIX}{index}"


# tenure.sh/visible.0: "GPU-5d0f6c1e-...,GPU-7f6410b9-..."
# tenure.sh/allocated.0: "GPU-5d0f6c1e-..."
# tenure.sh/visible.init-0: "GPU-5d0f6c1e-..."
# Without UUIDs: tenure.sh/visible.0: "2,3", tenure.sh/allocated.0: "1"


def encode_container_devices(containers: Sequence[ContainerDevices]) -> dict[str, str]:
    """Write both annotations of containers with GPUs; none reads as "no GPU" (design section 3)."""
    result = {}
    for container in containers:
        if container.visible:
            result[visible_key(container.index)] = ",".join(container.visible)
        if container.allocated:
            result[allocated_key(container.index)] = ",".join(container.allocated)
    return result


# tenure.sh/shown: "GPU-5d0f6c1e-...,GPU-7f6410b9-..."


Shown = tuple[str, ...] | UnsetType
"""Ids of all cards that a Pod's containers are shown; unset, and not written: their own alone."""


def encode_shown(shown: Shown) -> dict[str, str]:
    """Write the ids of all cards that a Pod's containers are shown; nothing for none."""
    ids = cards_in(shown)
    return {resources.ANNOTATION_TENURE_SHOWN: ",".join(ids)} if ids else {}


def read_shown(annotations: Mapping[str, str]) -> Shown:
    """Return the ids of all cards that a Pod's containers are shown."""
    text = annotations.get(resources.ANNOTATION_TENURE_SHOWN)
    return tuple(text.split(",")) if text else UNSET


def read_visible(annotations: Mapping[str, str]) -> dict[str, None]:
    """Return what `tenure.sh/visible.*` shows a Pod's containers, ids or indexes."""
    keys = [
        key for key in annotations if key.startswith(resources.ANNOTATION_TENURE_VISIBLE_PREFIX)
    ]
    return dict.fromkeys(each for key in keys for each in annotations[key].split(","))


def cards_in(shown: Shown) -> tuple[str, ...]:
    """Return the ids, none where the containers see their own cards alone."""
    return () if isinstance(shown, UnsetType) else shown


# tenure.sh/admitted: "true"


def encode_admitted() -> dict[str, str]:
    """Write the mark of a Pod that our webhook has seen."""
    return {resources.ANNOTATION_TENURE_ADMITTED: wire.TRUE}


def is_admitted(annotations: Mapping[str, str]) -> bool:
    """Tell whether a Pod carries the mark."""
    return annotations.get(resources.ANNOTATION_TENURE_ADMITTED) == wire.TRUE


# tenure.sh/original-request:
#   {"containers":{"main":{"limits":{"nvidia.com/gpu":"2"},"requests":{"nvidia.com/gpu":"2"}}},
#    "schedulerName":"volcano"}


def encode_original(
    original: OriginalRequest, key: str = resources.ANNOTATION_TENURE_ORIGINAL
) -> dict[str, str]:
    """Write what admission has replaced, if anything; amounts as the API server writes them."""
    if not original:
        return {}
    containers = {
        name: wire.present({"requests": _stored(part.requests), "limits": _stored(part.limits)})
        for name, part in original.containers.items()
    }
    fields = {"containers": containers, "schedulerName": original.scheduler_name}
    return {key: wire.dump(wire.present(fields))}


def _stored(amounts: Mapping[str, str]) -> dict[str, str]:
    written = {}
    for name, text in amounts.items():
        with suppress(InputError):
            text = format_quantity(parse_quantity(text))  # noqa: PLW2901 - or as it is
        written[name] = text
    return written


def read_original(
    annotations: Mapping[str, str], key: str = resources.ANNOTATION_TENURE_ORIGINAL
) -> OriginalRequest:
    """Return what admission has replaced in a Pod. Raises InputError: it can't be read."""
    text = annotations.get(key)
    if text is None:
        return OriginalRequest()
    path = wire.annotation_path(key)
    value = wire.an_object(wire.load(text, path), path)
    containers = wire.an_object(value.get("containers"), f"{path}.containers")
    return OriginalRequest(
        scheduler_name=wire.a_text(value.get("schedulerName"), f"{path}.schedulerName"),
        containers={
            name: read(OriginalContainer, item, f"{path}.containers.{name}")
            for name, item in containers.items()
        },
    )


def is_managed_namespace(labels: Mapping[str, str]) -> bool:
    """Tell whether a Namespace has opted in."""
    return labels.get(resources.LABEL_TENURE_MANAGED) == wire.TRUE


# tenure.sh/isolation: "none", a label of a Namespace, and an annotation of its Pods


def waives_isolation(texts: Mapping[str, str]) -> bool:
    """Tell whether a Namespace does without isolation, by its labels, or a Pod of it."""
    return texts.get(resources.TENURE_ISOLATION) == _NO_ISOLATION


# tenure.sh/whole-cards: "nvidia", likewise; "ours" is the other word


def whole_cards_by(texts: Mapping[str, str], setting: str) -> str:
    """Return who gives whole cards, by a Namespace's labels or its Pod's annotations."""
    return texts.get(resources.TENURE_WHOLE_CARDS, setting)


def as_namespace_says(
    annotations: Mapping[str, str], namespace_labels: Mapping[str, str]
) -> Mapping[str, str]:
    """Return a Pod's annotations with its namespace's words on how cards are given, no others."""
    words = {resources.TENURE_ISOLATION, resources.TENURE_WHOLE_CARDS}
    said = {key: namespace_labels[key] for key in sorted(words & namespace_labels.keys())}
    if not waives_isolation(namespace_labels):
        said.pop(resources.TENURE_ISOLATION, None)
    return {key: text for key, text in annotations.items() if key not in words} | said


# tenure.sh/mode: "dra", a label of a Namespace


def gives_claims(namespace_labels: Mapping[str, str]) -> bool:
    """Tell whether Pods of a Namespace are given claims in place of their devices' resources."""
    return namespace_labels.get(resources.LABEL_TENURE_MODE) == _BY_CLAIMS


# tenure.sh/released-at: "2026-01-05T14:05:09.250000Z"


def encode_released_at(moment: datetime) -> str:
    """Write the time of a release on its Node, UTC to the microsecond, so that each differs."""
    assert moment.tzinfo is not None, moment
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


# tenure.sh/search-cut: "first found: containers=6, searched=5"
# tenure.sh/search-cut: "best so far: steps=10000"


def encode_search_cut(*, containers: int, levels: int, steps: int) -> dict[str, str]:
    """
    Write why the cards of a placed Pod may not be the best ones (GPU-sharing contract A.5).

    Args:
        containers: how many of the Pod's containers ask for cards.
        levels: up to how many the search looks for the best (setting `mgpu.searchLevels`).
        steps: after how many steps it ends with the best so far.
    """
    first_found = containers > levels
    text = (
        f"first found: containers={containers}, searched={levels}"
        if first_found
        else f"best so far: steps={steps}"
    )
    return {resources.ANNOTATION_TENURE_SEARCH_CUT: text}


def read_search_cut(annotations: Mapping[str, str]) -> str:
    """Return why the cards of a placed Pod may not be the best ones, empty where they are."""
    return annotations.get(resources.ANNOTATION_TENURE_SEARCH_CUT, "")
