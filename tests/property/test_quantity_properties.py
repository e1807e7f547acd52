from __future__ import annotations

from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from ledger.domain.quantity import (
    NANO,
    QUANTITY_MAX,
    Quantity,
    QuantityStyle,
    decimal_text,
    format_quantity,
    parse_quantity,
    quantity_of,
)

SCALES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(1000),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
    **{f"e{power}": Fraction(10) ** power for power in range(-12, 22)},
    "E3": Fraction(1000),
    "E-3": Fraction(1, 1000),
    "e+3": Fraction(1000),
}

quantities = st.builds(
    Quantity,
    nanos=st.integers(-QUANTITY_MAX * NANO, QUANTITY_MAX * NANO)
    | st.integers(-(2**63), 2**63).map(lambda units: max(-QUANTITY_MAX, units) // 2 * NANO)
    | st.integers(-(10**6), 10**6).map(lambda milli: milli * 10**6),
    style=st.sampled_from(QuantityStyle),
)


@st.composite
def numerals(draw: st.DrawFn) -> tuple[str, Fraction]:
    """A signed decimal numeral and its exact value, in every spelling the grammar has."""
    sign = draw(st.sampled_from(["", "+", "-"]))
    whole = draw(st.text("0123456789", max_size=22))
    part = draw(st.text("0123456789", min_size=0 if whole else 1, max_size=14))
    point = "." if part or draw(st.booleans()) else ""
    value = Fraction(int(whole + part or "0"), 10 ** len(part))
    return f"{sign}{whole}{point}{part}", -value if sign == "-" else value


def _documented(value: Fraction) -> Fraction:
    """Round up in magnitude to a billionth and cap at 2^63-1, in fractions instead of integers."""
    magnitude = -((-abs(value) * NANO) // 1) / Fraction(NANO)
    magnitude = min(magnitude, Fraction(QUANTITY_MAX))
    return -magnitude if value < 0 else magnitude


@given(numeral=numerals(), suffix=st.sampled_from(sorted(SCALES)))
def test_parsing_agrees_with_exact_fractions(numeral: tuple[str, Fraction], suffix: str) -> None:
    """Whatever the notation, the amount is the exact one, rounded and capped as documented."""
    text, value = numeral

    assert parse_quantity(text + suffix).as_fraction() == _documented(value * SCALES[suffix])


@given(quantity=quantities, style=st.sampled_from(QuantityStyle))
def test_printing_loses_nothing(quantity: Quantity, style: QuantityStyle) -> None:
    """parse(format(q)) == q in every style, and the plain decimal text says the same."""
    styled = Quantity(nanos=quantity.nanos, style=style)
    assert parse_quantity(format_quantity(styled)) == quantity
    assert parse_quantity(decimal_text(quantity)) == quantity


@given(quantity=quantities)
@example(quantity=Quantity(nanos=25_000 * NANO, style=QuantityStyle.BINARY_SI))
def test_canonical_text_is_a_fixed_point(quantity: Quantity) -> None:
    """
    Parsing canonical text and printing it again in the same style changes no character.

    The style must be said: 25000 bytes have no binary suffix, so their text reads as decimal and
    would print as `25k`. Kubernetes does the same.
    """
    text = format_quantity(quantity)

    again = Quantity(nanos=parse_quantity(text).nanos, style=quantity.style)
    assert format_quantity(again) == text
    assert "." not in text


@given(a=quantities, b=quantities)
def test_order_agrees_with_fractions(a: Quantity, b: Quantity) -> None:
    """Style never takes part in a comparison."""
    left, right = a.as_fraction(), b.as_fraction()

    assert (a < b, a <= b, a == b, a > b) == (
        left < right,
        left <= right,
        left == right,
        left > right,
    )
    assert a != b or hash(a) == hash(b)


@given(quantity=quantities)
def test_rounding_never_gives_less_than_asked(quantity: Quantity) -> None:
    """Whole units and thousandths reach the amount and overshoot by less than one."""
    for rounded, exact in (
        (quantity.ceil(), abs(quantity.as_fraction())),
        (quantity.milli(), abs(quantity.as_fraction()) * 1000),
    ):
        assert 0 <= abs(rounded) - exact < 1
        assert rounded * quantity.nanos >= 0


@given(units=st.integers(-QUANTITY_MAX, QUANTITY_MAX))
def test_integers_mean_themselves(units: int) -> None:
    """A JSON number and its text are one quantity."""
    assert quantity_of(units) == parse_quantity(str(units))
    assert quantity_of(units).ceil() == units
