"""
What a claim's selectors and constraints read of devices, told from their text alone.

Rule: docs/adr/0027: in doubt it reads what names the single device. Nothing is evaluated here.

An expression is clear where `device` is only ever asked for its driver, its capacity, whether it
is shared, or for an attribute by a domain and a name that are written out:

    device.attributes["gpu.nvidia.com"].productName == "T4"          reads productName
    "uuid" in device.attributes["gpu.nvidia.com"]                     reads uuid
    device.attributes["gpu.nvidia.com"].exists(k, k == "uuid")        in doubt
    cel.bind(d, device, d.attributes["gpu.nvidia.com"].uuid == "x")   in doubt
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from ledger.domain.annotations.wire import a_text, an_object, each
from ledger.domain.dialects.dra.alike import may_name_one
from ledger.domain.errors import InputError

EXPRESSIONS_MAX: Final = 10_000
"""Expressions that are remembered."""
_TEXT: Final = r"\"[^\"\n]*\"|'[^'\n]*'"
_TOKEN: Final = re.compile(rf"\s*({_TEXT}|[A-Za-z_]\w*|\d[\w.]*|//|.)", re.ASCII)
_WORD: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MANY_QUOTES: Final = re.compile("\"{3}|'{3}")
_OPEN: Final = frozenset({'"', "'", "//"})
_BEGINS: Final = frozenset({"", "(", "&", "|"})
_ENDS: Final = frozenset({"", ")", "&", "|"})
"""What may be around `"name" in device.attributes["domain"]`, so that it is all that is asked."""
_CLEAR: Final = frozenset({"allowMultipleAllocations", "capacity", "driver"})
_REQUEST_FIELDS: Final = frozenset(
    {"allocationMode", "capacity", "count", "deviceClassName", "selectors", "tolerations"}
)
_CONSTRAINT_FIELDS: Final = frozenset({"distinctAttribute", "matchAttribute", "requests"})
_DEVICES_FIELDS: Final = frozenset({"config", "constraints", "requests"})

Selectors = Mapping[str, tuple[str, ...]]
"""The expressions of a DeviceClass by its name."""


def class_selectors(item: Mapping[str, object]) -> tuple[str, ...]:
    """
    Return the expressions by which a DeviceClass selects.

    Raises:
        InputError: it selects by something else, or is not as the API describes it.
    """
    spec = an_object(item.get("spec"), "spec")
    return _expressions(spec.get("selectors"), "spec.selectors")


def exchangeable(
    spec: Mapping[str, object], classes: Selectors, *, is_ours: bool = False
) -> frozenset[str]:
    """
    Return the requests of a claim for which one device is as good as one that is like it.

    Those that are clear, ask for a number of devices, and neither select nor are constrained by
    what names the single device. Alternatives are called `<request>/<alternative>`, as in results.

    Args:
        is_ours: the claim was written for a Pod's request: that its devices differ in what names
            the single one says that they are several, as they are in any exchange.
    """
    try:
        devices = an_object(spec.get("devices"), "spec.devices")
        if not _DEVICES_FIELDS.issuperset(devices):
            return frozenset()
        constrained = frozenset(_constrained(devices, is_ours=is_ours))
        found = [
            (name, parent)
            for name, parent, body in _requests(devices)
            if _is_clear(body, classes, is_whole=not parent)
        ]
    except InputError:
        return frozenset()
    if "" in constrained:
        return frozenset()
    return frozenset(
        name for name, parent in found if not constrained.intersection((name, parent or name))
    )


def _requests(
    devices: Mapping[str, object],
) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """Yield every request as results call it, what it is an alternative of, and what it says."""
    for one in each(devices.get("requests"), "spec.devices.requests", an_object):
        name = a_text(one.get("name"), "name")
        if set(one) == {"name", "exactly"}:
            yield name, "", an_object(one["exactly"], "exactly")
        elif set(one) == {"name", "firstAvailable"}:
            for other in each(one["firstAvailable"], "firstAvailable", an_object):
                yield f"{name}/{a_text(other.get('name'), 'name')}", name, other


def _constrained(devices: Mapping[str, object], *, is_ours: bool) -> Iterator[str]:
    """Yield the requests that are constrained by what may name one device; empty = all of them."""
    for one in each(devices.get("constraints"), "spec.devices.constraints", an_object):
        if is_ours and set(one) == {"distinctAttribute"}:
            continue
        attributes = [one[name] for name in ("distinctAttribute", "matchAttribute") if name in one]
        is_clear = _CONSTRAINT_FIELDS.issuperset(one) and attributes
        if is_clear and not any(may_name_one(a_text(each, "constraint")) for each in attributes):
            continue
        yield from each(one.get("requests"), "requests", a_text) or ("",)


def _is_clear(body: Mapping[str, object], classes: Selectors, *, is_whole: bool) -> bool:
    known = _REQUEST_FIELDS if is_whole else _REQUEST_FIELDS | {"name"}
    if not known.issuperset(body) or body.get("allocationMode", "ExactCount") != "ExactCount":
        return False
    of_class = classes.get(a_text(body.get("deviceClassName"), "deviceClassName"))
    if of_class is None:
        return False
    read = map(attributes_read, (*of_class, *_expressions(body.get("selectors"), "selectors")))
    return not any(names is None or any(map(may_name_one, names)) for names in read)


def _expressions(selectors: object, path: str) -> tuple[str, ...]:
    def expression(item: object, at: str) -> str:
        body = an_object(item, at)
        cel = an_object(body.get("cel"), f"{at}.cel")
        if set(body) != {"cel"} or set(cel) != {"expression"}:
            raise InputError("selects by more than an expression", field=at)
        return a_text(cel["expression"], f"{at}.cel.expression")

    return each(selectors, path, expression)


@lru_cache(maxsize=EXPRESSIONS_MAX)
def attributes_read(expression: str) -> frozenset[str] | None:
    """Return the attributes that a CEL expression may read, None where that is in doubt."""
    tokens = _TOKEN.findall(expression)
    # an escape, a text over several lines or without an end, a comment: read as something else
    if "\\" in expression or _MANY_QUOTES.search(expression) or _OPEN.intersection(tokens):
        return None
    found = set[str]()
    for place, word in enumerate(tokens):
        if word != "device":
            continue
        before, after = tokens[max(0, place - 3) : place], tokens[place + 1 : place + 9]
        if after[:1] != ["."] or before[-1:] == ["."]:
            return None
        if not _CLEAR.intersection(after[1:2]):
            name = _attribute(before, after)
            if name is None:
                return None
            found.add(name)
    return frozenset(found)


def _attribute(before: list[str], after: list[str]) -> str | None:
    """Return the attribute of `.attributes["domain"]...`, with its domain; None in doubt."""
    if after[1:3] != ["attributes", "["] or after[4:5] != ["]"] or not _is_text(after[3]):
        return None
    domain, (how, what, end) = after[3][1:-1], (*after[5:8], "", "", "")[:3]
    if how == "." and _WORD.fullmatch(what) and end != "(":
        return f"{domain}/{what}"
    if how == "[" and _is_text(what) and end == "]":
        return f"{domain}/{what[1:-1]}"
    *first, text, word = ("", "", *before)[-3:]
    is_asked_for = how in _ENDS and word == "in" and _is_text(text) and first[0] in _BEGINS
    return f"{domain}/{text[1:-1]}" if is_asked_for else None


def _is_text(token: str) -> bool:
    return len(token) > 1 and token[0] in "\"'"
