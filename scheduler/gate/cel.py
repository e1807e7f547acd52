"""
Selectors of devices, evaluated as far as they are a chain of plain comparisons.

Rule: Kubernetes' CEL environment of devices. What is read, joined by `&&`:

    device.driver == "gpu.nvidia.com"
    device.attributes["gpu.nvidia.com"].productName == "H100"     (also !=, numbers, true, false)
    device.attributes["gpu.nvidia.com"].healthy                   (a truth)
    device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledger.domain.annotations.wire import a_quantity, an_object
from ledger.domain.errors import InputError


class Version(str):
    """A semantic version, which CEL compares with no text."""

    __slots__ = ()


Said = str | int | bool

_TEXT: Final = r"(?:\"(?P<{0}>[^\"\\]*)\"|'(?P<{0}s>[^'\\]*)')"
_LITERAL: Final = rf"(?:{_TEXT.format('text')}|(?P<number>-?[0-9]+)|(?P<truth>true|false))"
_OF: Final = (
    rf"device\.(?P<of>attributes|capacity)\[{_TEXT.format('domain')}\]\.(?P<name>[A-Za-z_]\w*)"
)
_DRIVER: Final = re.compile(rf"device\.driver\s*==\s*{_TEXT.format('text')}")
_ATTRIBUTE: Final = re.compile(rf"{_OF}(?:\s*(?P<how>==|!=)\s*{_LITERAL})?")
_AMOUNT: Final = re.compile(
    rf"{_OF}\.compareTo\(\s*quantity\(\s*{_TEXT.format('text')}\s*\)\s*\)"
    r"\s*(?P<how>==|!=|>=|<=|>|<)\s*(?P<than>-?[0-9]+)"
)
_HOW: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class BeyondError(Exception):
    """An expression is more than is evaluated here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """
    A device as selectors see it.

    Attributes:
        attributes, capacity: by qualified name; a name without a domain is of the driver's.
    """

    driver: str
    attributes: Mapping[str, Said]
    capacity: Mapping[str, int]

    @classmethod
    def read(cls, driver: str, body: Mapping[str, object]) -> Asked:
        """Return a device of a ResourceSlice; what can't be read is an InputError."""
        capacity = an_object(body.get("capacity"), "capacity")
        attributes = an_object(body.get("attributes"), "attributes")
        return cls(
            driver=driver,
            attributes={
                _qualified(name, driver): Version(value) if kind == "version" else value
                for name, item in attributes.items()
                for kind, value in an_object(item, name).items()
                if isinstance(value, Said)
            },
            capacity={
                _qualified(name, driver): a_quantity(an_object(item, name).get("value"), name).nanos
                for name, item in capacity.items()
            },
        )


def _qualified(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def matches(expression: str, device: Asked) -> bool | None:
    """
    Tell whether a device is selected; None where the expression fails on it, as in CEL.

    What is false beside something that fails is false.

    Raises:
        BeyondError: the expression is more than is evaluated here, whatever the device.
    """
    found = [_atom(each.strip(), device) for each in expression.split("&&")]
    if False in found:
        return False
    return None if None in found else True


def _atom(text: str, device: Asked) -> bool | None:
    if match := _DRIVER.fullmatch(text):
        return device.driver == _text(match, "text")
    if match := _AMOUNT.fullmatch(text):
        return _compared(match, device)
    match = _ATTRIBUTE.fullmatch(text)
    if match is None or match["of"] != "attributes":
        raise BeyondError(text)
    said = device.attributes.get(f"{_text(match, 'domain')}/{match['name']}")
    if match["how"] is None:
        return said if isinstance(said, bool) else None
    wanted: Said = _text(match, "text")
    if match["number"] is not None:
        wanted = int(match["number"])
    elif match["truth"] is not None:
        wanted = match["truth"] == "true"
    # of two kinds CEL has no comparison
    return _HOW[match["how"]](said, wanted) if type(said) is type(wanted) else None


def _compared(match: re.Match[str], device: Asked) -> bool | None:
    if match["of"] != "capacity":
        raise BeyondError(match[0])
    there = device.capacity.get(f"{_text(match, 'domain')}/{match['name']}")
    try:
        wanted = a_quantity(_text(match, "text"), "quantity").nanos
    except InputError:
        raise BeyondError(match[0]) from None
    if there is None:
        return None
    return _HOW[match["how"]]((there > wanted) - (there < wanted), int(match["than"]))


def _text(match: re.Match[str], name: str) -> str:
    found: str | None = match[name]
    other: str | None = match[f"{name}s"]
    return found if found is not None else other or ""
