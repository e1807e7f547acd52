"""The shortest JSON Patch from one JSON value to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from webhook.decide.answers import PatchOperation


def diff(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[PatchOperation, ...]:
    """
    Return the operations that turn `before` into `after`, which both stay as they are.

    Rule: RFC 6902; notes on conventions, admission: `test` before what is replaced or removed, so
    that a patch made from an older object fails instead of undoing someone's change.

    A missing parent is added whole. Null and absent are the same, as for the API server.
    Parts that both share by identity are not looked into.
    """
    found: list[PatchOperation] = []
    _objects("", before, after, found)
    return tuple(found)


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _values(path: str, before: object, after: object, found: list[PatchOperation]) -> None:
    if before is after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        _objects(path, before, after, found)
    elif isinstance(before, list) and isinstance(after, list):
        _lists(path, before, after, found)
    elif not _same(before, after):
        found.append(PatchOperation(op="test", path=path, value=before))
        found.append(PatchOperation(op="replace", path=path, value=after))


def _objects(
    path: str,
    before: Mapping[str, object],
    after: Mapping[str, object],
    found: list[PatchOperation],
) -> None:
    if not before.keys() <= after.keys() or None in after.values():
        for key, value in before.items():
            if value is not None and after.get(key) is None:
                _remove(f"{path}/{_escaped(key)}", value, found)
    for key, value in after.items():
        old = before.get(key)
        if value is old or value is None:
            continue
        place = f"{path}/{_escaped(key)}"
        if old is None:
            found.append(PatchOperation(op="add", path=place, value=value))
        else:
            _values(place, old, value, found)


def _lists(
    path: str, before: list[object], after: list[object], found: list[PatchOperation]
) -> None:
    """Keep the common start and end; replace what lies between, then add or remove the rest."""
    start = end = 0
    if len(before) != len(after):
        start = _common(before, after)
        end = _common(before[start:][::-1], after[start:][::-1])
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    both = min(len(old), len(new))
    for number in range(both):
        _values(f"{path}/{start + number}", old[number], new[number], found)
    for number in range(len(old) - 1, both - 1, -1):
        _remove(f"{path}/{start + number}", old[number], found)
    for number in range(both, len(new)):
        place = f"{path}/{start + number}"
        found.append(PatchOperation(op="add", path=place, value=new[number]))


def _common(before: Sequence[object], after: Sequence[object]) -> int:
    pairs = zip(before, after, strict=False)
    length = min(len(before), len(after))
    return next((n for n, (old, new) in enumerate(pairs) if not _same(old, new)), length)


def _remove(path: str, value: object, found: list[PatchOperation]) -> None:
    found.append(PatchOperation(op="test", path=path, value=value))
    found.append(PatchOperation(op="remove", path=path))


def _same(before: object, after: object) -> bool:
    """Compare as JSON does: true is not 1."""
    if before is after:
        return True
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return before.keys() == after.keys() and all(
            _same(value, after[key]) for key, value in before.items()
        )
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(_same, before, after))
    return type(before) is type(after) and before == after
