"""Whether an object has to be written, given what it says and who wrote that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import found_in
from ledger.domain.quantity import quantity_of

Object = Mapping[str, Any]
"""An API object as JSON."""
Path = tuple[str, ...]
"""The keys from an object's root to one of its fields."""

MANAGER: Final = "tenure-agent"
KUBELET: Final = "kubelet"
REPAIRS_MAX: Final = 3
"""Who takes a field back more often than that keeps it: two that repair each other never end."""

_APPLY: Final = "Apply"
_LISTS: Final = ("topologyPolicies", "attributes", "zones")
"""The parts of a NodeResourceTopology, which has no spec and no status."""
_MAPS: Final = frozenset({("metadata", "labels"), ("metadata", "annotations")})
_QUANTITIES: Final = frozenset({("status", "capacity"), ("status", "allocatable")})
_CAPACITY: Final = ("status", "capacity")


class Step(StrEnum):
    """What is to be done about an object."""

    NOTHING = "nothing"
    APPLY = "apply"
    REPAIR = "repair"
    """Take fields back that somebody edited."""
    STOP = "stop"
    """Somebody else keeps them: write nothing, and say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """
    The decision about one object.

    Attributes:
        paths: fields that say something else than they should, or are ours without need.
        managers: who else wrote them, by name; kubelet's copies are nobody's.
    """

    step: Step
    paths: tuple[Path, ...] = ()
    managers: tuple[str, ...] = ()


def settle(
    want: Object,
    there: Object | None,
    *,
    subresource: str = "",
    repairs: int = 0,
    wrote: bool = False,
    whole: bool = False,
) -> Settled:
    """
    Decide what to do about the fields of `want` in the object that is there.

    Rule: design section 8, "Guests in the cluster": a foreign field manager means to stop and
    report, not to fight. Whoever applies a field keeps it; so does whoever had it before we ever
    wrote to the object. What somebody edits of ours is taken back, `REPAIRS_MAX` times. kubelet
    copies capacity to allocatable and sets to 0 what no plugin advertises to it: that is not its
    own; a capacity of its own is another plugin's.

    Args:
        subresource: the part of the object that is written, `status` or none.
        repairs: how often these fields were taken back of late.
        wrote: we have written to this part of the object, whatever it says of that.
        whole: nothing is put beside others' fields, also where these say the same.
    """
    if there is None:
        return Settled(step=Step.APPLY, paths=tuple(leaves(want)))
    managed = _managed(there, subresource)
    ours = managed.pop((MANAGER, _APPLY), None)
    wanted = tuple(leaves(want))
    if whole and ours is None:
        owners = ((name, of) for (name, _), of in managed.items())
        others = {name for name, of in owners if any(_owns(of, path) for path in wanted)}
        if others:
            return Settled(step=Step.STOP, managers=tuple(sorted(others)))
    differing = [
        path for path in wanted if not _same(path, found_in(want, *path), found_in(there, *path))
    ]
    dropped = [path for path in leaves(there) if path not in wanted and _owns(ours, path)]
    paths = tuple(sorted({*differing, *dropped}))
    if not paths:
        return Settled(step=Step.NOTHING)
    rivals: set[str] = set()
    keepers: set[str] = set()
    forced = False
    for (manager, operation), fields in managed.items():
        held = [path for path in differing if _owns(fields, path)]
        forced = forced or bool(held)
        if manager == KUBELET:
            held = [path for path in held if _is_kubelets(path, found_in(there, *path))]
        if held:
            rivals.add(manager)
            before_us = ours is None and not wrote
            if manager == KUBELET or operation == _APPLY or before_us or repairs >= REPAIRS_MAX:
                keepers.add(manager)
    if keepers:
        return Settled(step=Step.STOP, paths=paths, managers=tuple(sorted(keepers)))
    step = Step.REPAIR if forced else Step.APPLY
    return Settled(step=step, paths=paths, managers=tuple(sorted(rivals)))


def is_applied(there: Object, path: Path, *, subresource: str = "") -> bool:
    """Tell whether a field of an object is of our own applying."""
    return _owns(_managed(there, subresource).get((MANAGER, _APPLY)), path)


def leaves(thing: Object) -> Iterator[Path]:
    """Yield the fields of an object that are compared each by itself, in order of their names."""
    for top in ("metadata", "spec", "status"):
        for name, value in sorted((thing.get(top) or {}).items()):
            path = (top, name)
            if path in _MAPS or path in _QUANTITIES:
                yield from ((*path, key) for key in sorted(value or {}))
            elif top != "metadata":
                yield path
    yield from ((name,) for name in _LISTS if name in thing)


def _same(path: Path, want: Any, there: Any) -> bool:  # noqa: ANN401 - JSON
    if path[:2] not in _QUANTITIES or there is None:
        return bool(want == there)
    try:
        return quantity_of(want) == quantity_of(there)
    except InputError:
        return False


def _managed(there: Object, subresource: str) -> dict[tuple[str, str], Object]:
    found: dict[tuple[str, str], Object] = {}
    entries: Sequence[Any] = (there.get("metadata") or {}).get("managedFields") or ()
    for entry in entries:
        if (entry.get("subresource") or "") == subresource:
            key = (str(entry.get("manager")), str(entry.get("operation")))
            found[key] = entry.get("fieldsV1") or {}
    return found


def _owns(fields: Object | None, path: Path) -> bool:
    if not fields:
        return False
    here: Any = fields
    for key in path:
        if f"f:{key}" not in here:
            return False
        here = here[f"f:{key}"]
        if not here:
            return True
    return True


def _is_kubelets(path: Path, value: Any) -> bool:  # noqa: ANN401 - JSON
    """Tell whether kubelet has a number of its own here, from a plugin that registered with it."""
    if path[:2] != _CAPACITY:
        return False
    try:
        return bool(quantity_of(value))
    except InputError:
        return False
