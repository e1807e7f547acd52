"""
Which devices a container sees: through its environment, or through a slot of the device plugin.

Rule: design section 5, 1 and section 8, Ownership of the metal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ledger.domain.annotations.tenure import allocated_key, visible_key
from ledger.domain.annotations.wire import a_list, an_object
from ledger.domain.quantity import quantity_of
from ledger.domain.resources import (
    AMD_GPU,
    DCU_GPU,
    DOMAIN_TENURE,
    ENV_CUDA_VISIBLE,
    ENV_NVIDIA_VISIBLE,
    SLOT,
    TYPE_GPU,
)
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary
from webhook.decide.mutating.parts import Container

VOID: Final = "void"
"""What the NVIDIA runtime takes for "not mine": no card, no driver libraries."""
NONE: Final = "none"
"""Driver libraries, no card."""

_GPUS: Final = DEFAULT_VOCABULARY  # what names GPUs is the same in every vocabulary
_FOREIGN: Final = frozenset({AMD_GPU, DCU_GPU})
_OURS: Final = f"metadata.annotations['{DOMAIN_TENURE}"


def field_ref(key: str) -> dict[str, object]:
    """Return the `valueFrom` that reads an annotation, with the API server's default filled in."""
    path = f"metadata.annotations['{key}']"
    return {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}


def holds_devices(container: Container, vocabulary: Vocabulary) -> bool:
    """Tell whether a container asks for a device of any type."""
    return any(True for _ in _asked(container, vocabulary))


def holds_gpus(container: Container) -> bool:
    """Tell whether a container asks for GPUs that the NVIDIA runtime could show it."""
    return any(
        _GPUS.device_type_of(name) == TYPE_GPU and name not in _FOREIGN
        for name in _asked(container, _GPUS)
    )


def _asked(container: Container, vocabulary: Vocabulary) -> Iterator[str]:
    """Yield the device resources that a container asks for more than 0 of."""
    resources = an_object(container.get("resources"), "resources")
    for section in ("requests", "limits"):
        for name, value in an_object(resources.get(section), f"resources.{section}").items():
            if name in vocabulary.device_names and quantity_of(value):
                yield name


def with_environment(container: Container, place: str, *, by_slots: bool) -> Container:
    """
    Return a container of our Pod that sees its own cards and no others.

    A holder's NVIDIA_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES read annotations that exist once the
    Pod is bound, and count over what a device plugin answers; with slots the device plugin shows it
    its cards, and the runtime none. Whatever
    holds no card gets `void`. What a user wrote into a holder's environment stays: validation
    refuses it where it could show a card.
    """
    if not holds_gpus(container):
        return with_void(container)
    cuda: dict[str, object] = {
        "name": ENV_CUDA_VISIBLE,
        "valueFrom": field_ref(allocated_key(place)),
    }
    nvidia: dict[str, object] = {"name": ENV_NVIDIA_VISIBLE, "value": VOID}
    if not by_slots:
        nvidia = {"name": ENV_NVIDIA_VISIBLE, "valueFrom": field_ref(visible_key(place))}
    return _with_own(_with_own(container, nvidia), cuda)


def with_void(container: Container) -> Container:
    """Return a container that sees no card, whatever its image or its author says."""
    before = _entries(container)
    if any(entry.get("name") == ENV_NVIDIA_VISIBLE for entry in before):
        after = [_voided(entry) for entry in before]
    else:
        after = [*before, {"name": ENV_NVIDIA_VISIBLE, "value": VOID}]
    return _with_entries(container, before, after)


def with_slot(container: Container, vocabulary: Vocabulary) -> Container:
    """
    Return a container with the slot by which the device plugin knows it, if it holds devices.

    Rule: design section 8: one opaque slot for each container with devices.
    """
    if not holds_devices(container, vocabulary):
        return container
    resources = an_object(container.get("resources"), "resources")
    after = {
        section: {**an_object(resources.get(section), section), SLOT: "1"}
        for section in ("requests", "limits")
    }
    if all(resources.get(section) == amounts for section, amounts in after.items()):
        return container
    return {**container, "resources": resources | after}


def is_ours(entry: Mapping[str, object]) -> bool:
    """Tell whether an entry of an environment reads an annotation of ours."""
    source = entry.get("valueFrom")
    reference = source.get("fieldRef") if isinstance(source, dict) else None
    path = reference.get("fieldPath") if isinstance(reference, dict) else None
    return isinstance(path, str) and path.startswith(_OURS)


def _with_own(container: Container, wanted: dict[str, object]) -> Container:
    """Add an entry, or correct ours where the container has moved; a user's own entry stays."""
    before = _entries(container)
    same = [entry for entry in before if entry.get("name") == wanted["name"]]
    if not same:
        return _with_entries(container, before, [*before, wanted])
    after = [
        wanted if entry.get("name") == wanted["name"] and is_ours(entry) else entry
        for entry in before
    ]
    return _with_entries(container, before, after)


def _voided(entry: dict[str, object]) -> dict[str, object]:
    blind = entry.get("value") in (VOID, NONE) and not entry.get("valueFrom")
    if entry.get("name") != ENV_NVIDIA_VISIBLE or blind:
        return entry
    return {"name": ENV_NVIDIA_VISIBLE, "value": VOID}


def _entries(container: Container) -> list[dict[str, object]]:
    items = a_list(container.get("env"), "env")
    return [an_object(entry, f"env[{number}]") for number, entry in enumerate(items)]


def _with_entries(
    container: Container, before: list[dict[str, object]], after: list[dict[str, object]]
) -> Container:
    return container if before == after else {**container, "env": after}
