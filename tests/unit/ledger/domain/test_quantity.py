from __future__ import annotations

from fractions import Fraction

import pytest

from ledger.domain.errors import InputError
from ledger.domain.quantity import (
    NANO,
    QUANTITY_MAX,
    ZERO,
    Quantity,
    QuantityStyle,
    decimal_text,
    format_quantity,
    parse_quantity,
    quantity_from_int,
    quantity_from_milli,
    quantity_of,
)

AMOUNTS = [
    ("0", Fraction(0)),
    ("2", Fraction(2)),
    ("+2", Fraction(2)),
    ("-2", Fraction(-2)),
    ("007", Fraction(7)),
    ("0.5", Fraction(1, 2)),
    (".5", Fraction(1, 2)),
    ("5.", Fraction(5)),
    ("-.5", Fraction(-1, 2)),
    ("1n", Fraction(1, 10**9)),
    ("1u", Fraction(1, 10**6)),
    ("1m", Fraction(1, 1000)),
    ("1k", Fraction(1000)),
    ("1M", Fraction(10**6)),
    ("1G", Fraction(10**9)),
    ("1T", Fraction(10**12)),
    ("1P", Fraction(10**15)),
    ("1E", Fraction(10**18)),
    ("1Ki", Fraction(2**10)),
    ("1Mi", Fraction(2**20)),
    ("1Gi", Fraction(2**30)),
    ("1Ti", Fraction(2**40)),
    ("1Pi", Fraction(2**50)),
    ("1Ei", Fraction(2**60)),
    ("1.5Gi", Fraction(3 * 2**29)),
    ("0.1Gi", Fraction(2**30, 10)),
    ("1e3", Fraction(1000)),
    ("1E3", Fraction(1000)),
    ("1e+3", Fraction(1000)),
    ("1e-3", Fraction(1, 1000)),
    ("1.25e2", Fraction(125)),
    ("1e0", Fraction(1)),
    ("15472384Ki", Fraction(15472384 * 1024)),
    ("9019431321", Fraction(9019431321)),
]

REFUSED = {
    "two suffixes": "1.5Gi2",
    "nothing": "",
    "a blank alone": " ",
    "a blank before": " 1",
    "a blank after": "1 ",
    "a blank inside": "1 Gi",
    "a line end": "1\n",
    "two signs": "--1",
    "a sign alone": "-",
    "a point alone": ".",
    "a signed point": "-.",
    "two points": "1.2.3",
    "a suffix in the wrong case": "1ki",
    "upper K without i": "1K",
    "a unit": "32GB",
    "an exponent without digits": "1e",
    "an exponent and a suffix": "1e3Ki",
    "a suffix and a sign": "1Gi-",
    "a suffix alone": "Gi",
    "a thousands separator": "1,000",
    "an underscore": "1_000",
    "hexadecimal": "0x10",
    "digits of another script": "\u0661\u0662",
    "a superscript": "1\u00b2",
    "not a number": "NaN",
    "infinity": "inf",
    "more text than any number needs": "1" * 300,
}


@pytest.mark.parametrize(("text", "amount"), AMOUNTS, ids=[text for text, _ in AMOUNTS])
def test_every_notation_is_read_exactly(text: str, amount: Fraction) -> None:
    """No notation passes through a float."""
    assert parse_quantity(text).as_fraction() == amount


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_what_is_no_quantity_is_refused_by_name(text: str) -> None:
    """The error shows the offending text, shortened when long."""
    with pytest.raises(InputError) as caught:
        parse_quantity(text)

    assert repr(text)[:20] in str(caught.value)
    assert len(str(caught.value)) < 200


def test_1E_is_exa_and_1E3_is_a_thousand() -> None:  # noqa: N802 - the letter's case is the point
    """`E` is a suffix unless digits follow it."""
    assert parse_quantity("1E").ceil() == 10**18
    assert parse_quantity("1E3").ceil() == 1000


def test_finer_than_a_billionth_rounds_up() -> None:
    """Who asks for something gets something: magnitudes round away from zero."""
    assert parse_quantity("0.1n").nanos == 1
    assert parse_quantity("-0.1n").nanos == -1
    assert parse_quantity("1.0000000001").nanos == NANO + 1
    assert parse_quantity("1e-999999999999").nanos == 1
    assert parse_quantity("0e-999999999999").nanos == 0


def test_beyond_int64_is_capped() -> None:
    """No quantity exceeds 2^63-1 whole units in magnitude, in any notation."""
    for text in ("9223372036854775808", "10E", "8Ei", "1e19", "1e999999999999"):
        assert parse_quantity(text).ceil() == QUANTITY_MAX, text
        assert parse_quantity(f"-{text}").ceil() == -QUANTITY_MAX, text
    assert parse_quantity("9223372036854775807").ceil() == QUANTITY_MAX


@pytest.mark.parametrize(
    ("text", "units", "thousandths"),
    [
        ("0", 0, 0),
        ("1", 1, 1000),
        ("500m", 1, 500),
        ("1500m", 2, 1500),
        ("100u", 1, 1),
        ("1.0005", 2, 1001),
        ("-1500m", -2, -1500),
        ("-100u", -1, -1),
        ("6k", 6000, 6_000_000),
        ("6Ki", 6144, 6_144_000),
        ("6Gi", 6442450944, 6442450944000),
    ],
)
def test_whole_units_and_thousandths_round_away_from_zero(
    text: str, units: int, thousandths: int
) -> None:
    """The two roundings that Kubernetes calls Value and MilliValue."""
    assert parse_quantity(text).ceil() == units
    assert parse_quantity(text).milli() == thousandths


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("0.000", "0"),
        ("0Gi", "0"),
        ("-0", "0"),
        ("1.5Gi", "1536Mi"),
        ("0.1Gi", "107374182400m"),
        ("1023Mi", "1023Mi"),
        ("1024Mi", "1Gi"),
        ("1000Ki", "1000Ki"),
        ("0.5Ki", "512"),
        ("1Ei", "1Ei"),
        ("-2048Ki", "-2Mi"),
        ("0.5", "500m"),
        ("1500m", "1500m"),
        ("2000m", "2"),
        ("1000", "1k"),
        ("1234", "1234"),
        ("1000000000000000000", "1E"),
        ("0.1n", "1n"),
        ("1e3", "1e3"),
        ("1e2", "100"),
        ("1e5", "100e3"),
        ("1e-3", "1e-3"),
        ("0e3", "0"),
        ("9Ei", "9223372036854775807"),
    ],
)
def test_canonical_text_keeps_the_style_and_the_amount(text: str, canonical: str) -> None:
    """No fraction digits, the largest suffix that is exact; binary gives way below 1024."""
    quantity = parse_quantity(text)

    assert format_quantity(quantity) == canonical == str(quantity)
    assert parse_quantity(canonical) == quantity


def test_a_binary_amount_without_a_suffix_reads_back_as_decimal() -> None:
    """Text is all that is kept, as in Kubernetes: 25000 bytes, read again, print as 25k."""
    written = format_quantity(quantity_from_int(25_000, QuantityStyle.BINARY_SI))

    assert written == "25000"
    assert format_quantity(parse_quantity(written)) == "25k"


def test_the_style_can_be_chosen() -> None:
    """A caller that knows bytes from CPUs may say how to write."""
    assert format_quantity(quantity_from_int(2**34, QuantityStyle.BINARY_SI)) == "16Gi"
    assert format_quantity(quantity_from_int(2**34, QuantityStyle.DECIMAL_SI)) == "17179869184"
    assert format_quantity(quantity_from_int(16_000, QuantityStyle.DECIMAL_EXPONENT)) == "16e3"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("16Gi", "17179869184"),
        ("0", "0"),
        ("500m", "0.5"),
        ("-1.25", "-1.25"),
        ("1n", "0.000000001"),
        ("1e3", "1000"),
    ],
)
def test_decimal_text_has_no_suffix(text: str, plain: str) -> None:
    """Base units as a plain decimal string, as placements print them."""
    assert decimal_text(parse_quantity(text)) == plain


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (100, Fraction(100)),
        (0, Fraction(0)),
        (-3, Fraction(-3)),
        (0.5, Fraction(1, 2)),
        (1e20, Fraction(QUANTITY_MAX)),
        (2**70, Fraction(QUANTITY_MAX)),
        (1e-12, Fraction(1, NANO)),
        (0.1, Fraction(1, 10)),
        ("16Gi", Fraction(2**34)),
    ],
)
def test_json_and_yaml_scalars_are_read(value: object, amount: Fraction) -> None:
    """A number means what its shortest text means: 0.1 is a tenth, not a binary neighbour."""
    assert quantity_of(value).as_fraction() == amount


@pytest.mark.parametrize(
    "value",
    [True, False, None, [], {}, float("nan"), float("inf"), b"1"],
    ids=["true", "false", "null", "a list", "a map", "NaN", "infinity", "bytes"],
)
def test_other_values_are_no_quantities(value: object) -> None:
    """A boolean is an integer to Python, not to us."""
    with pytest.raises(InputError, match="not a quantity"):
        quantity_of(value)


def test_a_quantity_passes_through() -> None:
    """Reading twice is reading once."""
    quantity = parse_quantity("2Gi")

    assert quantity_of(quantity) is quantity


def test_equality_and_hash_look_at_the_amount() -> None:
    """Spelling does not matter for comparing."""
    assert parse_quantity("1Gi") == parse_quantity("1073741824")
    assert hash(parse_quantity("1Gi")) == hash(parse_quantity("1073741824"))
    assert parse_quantity("1500m") < parse_quantity("2")
    assert sorted(map(parse_quantity, ["1Gi", "1G", "-1"])) == [
        parse_quantity("-1"),
        parse_quantity("1G"),
        parse_quantity("1Gi"),
    ]


def test_truth_and_wholeness() -> None:
    """Zero is false; a fraction is not whole."""
    assert not ZERO
    assert parse_quantity("1n")
    assert parse_quantity("2000m").is_whole()
    assert not parse_quantity("2001m").is_whole()
    assert quantity_from_milli(1500) == parse_quantity("1.5")
    assert quantity_from_int(3, QuantityStyle.BINARY_SI) == Quantity(nanos=3 * NANO)
