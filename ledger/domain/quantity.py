"""Exact Kubernetes quantities: parse, compare, round and print them without a float in between."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache, total_ordering
from typing import Final

from ledger.domain.errors import InputError

NANO: Final = 10**9
QUANTITY_MAX: Final = 2**63 - 1
"""The largest magnitude in whole units; a larger text is read as this."""

_TEXT_LENGTH_MAX: Final = 256  # bounds the work a hostile text can ask for
_EXPONENT_MAX: Final = 2 * _TEXT_LENGTH_MAX  # beyond it every non-zero number caps or rounds up
_DECIMAL_EXPONENTS: Final = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_BINARY_EXPONENTS: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIXES: Final = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENTS.items()}
_BINARY_SUFFIXES: Final = ("", *_BINARY_EXPONENTS)
_PATTERN: Final = re.compile(
    r"(?P<sign>[+-]?)"
    r"(?:(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]*))?|\.(?P<bare>[0-9]+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)


class QuantityStyle(StrEnum):
    """The three ways of writing a quantity; a parsed one remembers its own."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


@total_ordering
class Quantity:
    """
    One amount of a resource, exact to a billionth of its unit.

    Rule: Kubernetes API, resource.Quantity.

    Equality, order and hash look at the amount alone: `1Gi` equals `1073741824`.
    `style` only says how `format_quantity` writes it.
    """

    __slots__ = ("nanos", "style")  # no dataclass: its text is what is recorded, not its fields

    def __init__(self, *, nanos: int, style: QuantityStyle = QuantityStyle.DECIMAL_SI) -> None:
        self.nanos: Final = nanos
        self.style: Final = style

    def __repr__(self) -> str:
        return f"Quantity(nanos={self.nanos}, style={self.style!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is Quantity and other.nanos == self.nanos

    def __lt__(self, other: Quantity) -> bool:
        return self.nanos < other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __str__(self) -> str:
        return format_quantity(self)

    def __bool__(self) -> bool:
        return self.nanos != 0

    def is_whole(self) -> bool:
        """Tell whether the amount has no fraction, as extended resources require."""
        return self.nanos % NANO == 0

    def ceil(self) -> int:
        """Return whole units, rounded away from zero (resource.Quantity's `Value()`)."""
        return divide_up(self.nanos, NANO)

    def milli(self) -> int:
        """Return thousandths, rounded away from zero (resource.Quantity's `MilliValue()`)."""
        return divide_up(self.nanos, NANO // 1000)

    def rounded(self) -> Quantity:
        """Return the amount as the API server stores it: in thousandths, rounded up."""
        return Quantity(nanos=self.milli() * (NANO // 1000), style=self.style)

    def as_fraction(self) -> Fraction:
        """Return the exact amount in units."""
        return Fraction(self.nanos, NANO)


ZERO: Final = Quantity(nanos=0)


def quantity_from_int(units: int, style: QuantityStyle = QuantityStyle.DECIMAL_SI) -> Quantity:
    """Return the quantity of that many whole units, capped at 2^63-1 in magnitude."""
    return Quantity(nanos=max(-QUANTITY_MAX, min(QUANTITY_MAX, units)) * NANO, style=style)


def quantity_from_milli(milli: int) -> Quantity:
    """Return the quantity of that many thousandths, as CPU amounts are counted."""
    return Quantity(nanos=milli * (NANO // 1000))


@lru_cache(maxsize=65536)
def parse_quantity(text: str) -> Quantity:
    """
    Read a quantity as it stands in a manifest: `2`, `500m`, `1.5Gi`, `1e3`, `-.5`.

    Rule: Kubernetes API, resource.Quantity: what is finer than a billionth is rounded up in
    magnitude, what is beyond 2^63-1 is capped there. `E` alone is exa, before digits an exponent.

    Raises:
        InputError: anything else, with the text. No blanks, no second sign, no second suffix.
    """
    if text.isascii() and text.isdigit() and len(text) < 19:
        return Quantity(nanos=int(text) * NANO)
    match = _PATTERN.fullmatch(text) if len(text) <= _TEXT_LENGTH_MAX else None
    if match is None:
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        raise InputError(f"not a quantity: value={shown!r}")
    part = match["part"] or match["bare"] or ""
    digits = int((match["whole"] or "") + part)
    suffix, exponent = match["suffix"] or "", match["exponent"]
    if exponent is not None:
        style = QuantityStyle.DECIMAL_EXPONENT
        ten_power = max(-_EXPONENT_MAX, min(_EXPONENT_MAX, int(exponent)))
    elif suffix in _BINARY_EXPONENTS:
        style, ten_power = QuantityStyle.BINARY_SI, 0
        digits <<= _BINARY_EXPONENTS[suffix]
    else:
        style, ten_power = QuantityStyle.DECIMAL_SI, _DECIMAL_EXPONENTS[suffix]
    nano_power = ten_power - len(part) + 9
    if nano_power >= 0:
        magnitude = digits * 10**nano_power
    else:
        magnitude = divide_up(digits, 10**-nano_power)
    magnitude = min(magnitude, QUANTITY_MAX * NANO)
    return Quantity(nanos=-magnitude if match["sign"] == "-" else magnitude, style=style)


def quantity_of(value: object) -> Quantity:
    """Read a text, an integer or a finite float as a quantity. Raises InputError for all else."""
    if isinstance(value, str):
        return parse_quantity(value)
    if isinstance(value, bool):
        pass
    elif isinstance(value, int):
        return quantity_from_int(value)
    elif isinstance(value, float) and math.isfinite(value):
        return parse_quantity(repr(value))
    elif isinstance(value, Quantity):
        return value
    raise InputError(f"not a quantity: value={value!r}")


def format_quantity(quantity: Quantity) -> str:
    """
    Write the canonical text: no fraction digits, the largest suffix that keeps the amount exact.

    Rule: Kubernetes API, resource.Quantity, canonical form: binary style gives way to decimal below
    1024 units and for amounts that are not whole.
    """
    if quantity.nanos == 0:
        return "0"
    sign = "-" if quantity.nanos < 0 else ""
    nanos = abs(quantity.nanos)
    style = quantity.style
    if style is QuantityStyle.BINARY_SI and quantity.is_whole() and nanos >= 1024 * NANO:
        number, power = nanos // NANO, 0
        while number % 1024 == 0 and power < len(_BINARY_SUFFIXES) - 1:
            number, power = number // 1024, power + 1
        return f"{sign}{number}{_BINARY_SUFFIXES[power]}"
    number, exponent = nanos, -9
    while number % 1000 == 0 and exponent < 18:
        number, exponent = number // 1000, exponent + 3
    if style is QuantityStyle.DECIMAL_EXPONENT:
        return f"{sign}{number}e{exponent}" if exponent else f"{sign}{number}"
    return f"{sign}{number}{_DECIMAL_SUFFIXES[exponent]}"


def decimal_text(quantity: Quantity) -> str:
    """Write the amount in base units as a plain decimal, such as `17179869184` or `0.5`."""
    whole, part = divmod(abs(quantity.nanos), NANO)
    sign = "-" if quantity.nanos < 0 else ""
    return f"{sign}{whole}.{part:09d}".rstrip("0") if part else f"{sign}{whole}"


def divide_up(number: int, divisor: int) -> int:
    """Return the quotient, rounded away from zero."""
    return -(-number // divisor) if number >= 0 else number // divisor
