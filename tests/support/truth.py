"""What is claimed of an answer, compared with what it says: by the claimed fields alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Json = Any
KEYS = {"nodes": ("node",), "holders": ("namespace", "name"), "unplaced": ("namespace", "name")}
"""By what the entries of a list are told apart."""

READINGS = {"any_of", "none_of", "includes", "contains"}
"""What may stand instead of a value."""


def differences(claim: Json, told: Json, where: str = "") -> Iterator[str]:
    """
    Yield every way in which an answer is not as claimed, with its place.

    A mapping claims its own keys. A list claims all its entries, in any order; of nodes those
    alone. Instead of a value there may stand `{"any_of": [claim]}` where several readings
    are right, `{"none_of": [claim]}` of wrong ones, `{"includes": [claim]}` for a list that
    may have more, and `{"contains": text}`.
    """
    if isinstance(claim, Mapping) and claim.keys() & READINGS:
        yield from _reading(claim, told, where)
    elif _is_range(claim) or _is_range(told):
        if _ends(claim) != _ends(told):
            yield f"{where}: {_words(claim)} is right, told is {_words(told)}"
    elif isinstance(claim, Mapping):
        if not isinstance(told, Mapping):
            yield f"{where}: {_words(claim)} is right, told is {_words(told)}"
            return
        for key, value in claim.items():
            if key == "groups":
                yield from _groups(value, told.get(key, ()), f"{where}/{key}")
            elif key not in told:
                yield f"{where}/{key}: {_words(value)} is right, nothing is told"
            elif key == "not_looked_at":
                yield from _others(value, told[key], f"{where}/{key}")
            elif isinstance(value, list):
                yield from _entries(key, value, told[key], f"{where}/{key}")
            else:
                yield from differences(value, told[key], f"{where}/{key}")
    elif claim != told:
        yield f"{where}: {_words(claim)} is right, told is {_words(told)}"


def _others(claim: Mapping[str, Json], told: Mapping[str, Json], where: str) -> Iterator[str]:
    """Yield how the resources that are not looked at differ; all of them are claimed."""
    yield from differences(claim, told, where)
    for name in sorted(told.keys() - claim.keys()):
        yield f"{where}/{name}: {_words(told[name])} is told and not so"


def _reading(claim: Mapping[str, Json], told: Json, where: str) -> Iterator[str]:
    """Yield what none of several readings allows."""
    if "any_of" in claim:
        if all(any(differences(each, told, where)) for each in claim["any_of"]):
            words = " or ".join(_words(each) for each in claim["any_of"])
            yield f"{where}: {words} is right, told is {_words(told)}"
    elif "none_of" in claim:
        for each in claim["none_of"]:
            if not any(differences(each, told, where)):
                yield f"{where}: {_words(each)} is wrong, told is {_words(told)}"
    elif "contains" in claim:
        if claim["contains"] not in str(told):
            yield f"{where}: {claim['contains']!r} is to be named, told is {_words(told)}"
    else:
        for each in claim["includes"]:
            if all(any(differences(each, other)) for other in told or ()):
                yield f"{where}: {_words(each)} is right, told are {_words(told)}"


def _entries(key: str, claimed: list[Json], told: Json, where: str) -> Iterator[str]:
    """Yield what a list lacks, has too much, or tells otherwise."""
    left = list(told or ())
    for each in claimed:
        named = [other for other in left if _same(key, each, other)]
        if not named:
            yield f"{where}: {_words(each)} is right, nothing is told of it"
            continue
        left.remove(named[0])
        yield from differences(each, named[0], f"{where}/{_name(key, each)}")
    if key != "nodes":
        for other in left:
            yield f"{where}: {_words(other)} is told and not so"


def _same(key: str, claim: Json, told: Json) -> bool:
    """Whether two entries are about one thing."""
    if not isinstance(claim, Mapping):
        return bool(claim == told)
    names = KEYS.get(key) or tuple(name for name in ("id", "minor") if name in claim)
    if not names:
        return not any(differences(claim, told))
    return all(told.get(name) == claim.get(name) for name in names[:2])


def _name(key: str, claim: Json) -> str:
    if not isinstance(claim, Mapping):
        return str(claim)
    names = KEYS.get(key, ("id", "minor"))
    return "/".join(str(claim[name]) for name in names if claim.get(name) not in (None, ""))


def _groups(claimed: list[Json], told: Sequence[Json], where: str) -> Iterator[str]:
    """Yield how groups differ; one that is told in several parts is put together first."""
    if not claimed:
        for other in told:
            yield f"{where}: {_words(other)} is told and not so"
    for claim in claimed:
        named = claim.get("system") or "+".join(claim.get("units", ())) or "cards"
        parts = [other for other in told if _is_part(claim, other)]
        if not parts:
            yield f"{where}: {_words(claim)} is right, nothing is told of it"
        else:
            yield from differences(claim, _together(parts), f"{where}/{named}")


def _is_part(claim: Json, told: Json) -> bool:
    """Whether a group that is told is the claimed one or a part of it."""
    if units := claim.get("units"):
        return any(unit in told.get("units", ()) for unit in units)
    if "system" in claim:
        return bool(claim["system"] == told.get("system"))
    return True


def _together(parts: Sequence[Json]) -> Json:
    """Return parts of a group as one."""
    whole = dict(parts[0])
    for part in parts[1:]:
        for key in {"cards", "free", "gettable"} & part.keys():
            whole[key] = _sum(whole[key], part[key])
        whole["units"] = {**whole.get("units", {}), **part.get("units", {})}
        for key in ("devices", "unplaced"):
            whole[key] = [*whole.get(key, ()), *part.get(key, ())]
    return whole


def _sum(one: Json, other: Json) -> Json:
    (low, high), (more_low, more_high) = _ends(one), _ends(other)
    most = None if high is None or more_high is None else high + more_high
    return {"min": low + more_low, "max": most}


def _is_range(value: Json) -> bool:
    return isinstance(value, Mapping) and value.keys() == {"min", "max"}


def _ends(value: Json) -> tuple[Json, Json]:
    return (value["min"], value["max"]) if _is_range(value) else (value, value)


def _words(value: Json) -> str:
    if _is_range(value):
        return f"{value['min']} to {'?' if value['max'] is None else value['max']}"
    text = str(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


LONGEST = 300
