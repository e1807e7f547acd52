import time

import pytest

from ledger.domain.amounts import format_bytes, format_cards, format_cores
from ledger.domain.errors import InputError
from tenure.units import format_duration, format_time, parse_decimal, parse_time

NOW_US = 1_772_463_900_000_000  # 2026-03-02T15:05:00Z
HOUR_US = 3_600_000_000


@pytest.mark.parametrize(
    ("text", "moment_us"),
    [
        pytest.param("2026-03-02T15:05:00Z", NOW_US, id="UTC"),
        pytest.param("2026-03-02T16:05:00+01:00", NOW_US, id="an offset"),
        pytest.param("2026-03-02T15:05:00.000001Z", NOW_US + 1, id="a microsecond"),
        pytest.param("now", NOW_US, id="now"),
        pytest.param("2h ago", NOW_US - 2 * HOUR_US, id="relative"),
        pytest.param("1d12h ago", NOW_US - 36 * HOUR_US, id="relative, two units"),
        pytest.param("30m  ago", NOW_US - HOUR_US // 2, id="relative, blanks"),
    ],
)
def test_a_time_is_read_exactly(text: str, moment_us: int) -> None:
    """Microseconds since the epoch, whatever the local zone is."""
    assert parse_time(text, now_us=NOW_US) == moment_us


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("2026-03-02T15:05:00", id="no zone"),
        pytest.param("yesterday", id="a word"),
        pytest.param("2h", id="a duration"),
        pytest.param("", id="nothing"),
        pytest.param("99999999999999w ago", id="before the epoch"),
        pytest.param("9999-12-31T00:00:00Z", id="beyond what is stored"),
        pytest.param(f"{'9' * 5_000}w ago", id="more digits than Python reads"),
        pytest.param("\uff12h ago", id="a full-width digit"),
        pytest.param("1d\u0661h ago", id="an Arabic digit"),
        pytest.param("\uff12\uff10\uff12\uff16-03-02T15:05:00Z", id="a full-width year"),
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    """A time without a zone would mean something else on every machine."""
    with pytest.raises(InputError):
        parse_time(text, now_us=NOW_US)


@pytest.mark.parametrize(
    ("zone", "moment"),
    [
        ("UTC", "2026-03-29T00:00:00+00:00"),
        ("Europe/Berlin", "2026-03-29T00:00:00+01:00"),
        ("America/New_York", "2026-03-29T00:00:00-04:00"),
        ("Asia/Kathmandu", "2026-03-29T00:00:00+05:45"),
        pytest.param("Asia/Beirut", "2026-03-29T01:00:00+03:00", id="no midnight on that day"),
    ],
)
def test_a_date_is_its_first_moment_where_it_is_read(
    monkeypatch: pytest.MonkeyPatch, zone: str, moment: str
) -> None:
    """Midnight by the zone of that day, also of one on which clocks change."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        read = parse_time(" 2026-03-29 ", now_us=0)
        assert read == parse_time(moment, now_us=0)
        assert format_time(read) == moment
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31", "2026-02-30", "20260302", "2026-W10"])
def test_what_is_no_date_is_refused(text: str) -> None:
    """One of no calendar, beyond what is stored, or in another form."""
    with pytest.raises(InputError):
        parse_time(text, now_us=NOW_US)


def test_a_number_is_read_in_plain_digits_alone() -> None:
    """No exponents, signs, blanks or underscores, and no other script's digits."""
    texts = ("4", "0.25", ".5", "2.")
    assert [str(parse_decimal(text)) for text in texts] == ["4", "0.25", "0.5", "2"]
    for text in ("", ".", "1e1", "1_0", "-1", " 4", "\uff14", "NaN", "Infinity"):
        assert parse_decimal(text) is None


def test_a_time_is_shown_with_its_offset() -> None:
    """What is printed can be pasted back."""
    assert parse_time(format_time(NOW_US), now_us=0) == NOW_US


def test_amounts_read_like_people_write_them() -> None:
    """The largest unit that leaves at least 1, without empty decimals."""
    assert [format_bytes(n) for n in (0, 1023, 1536, 16 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "16 GiB",
    ]
    assert [format_cores(n) for n in (0, 500, 8000, 1250)] == ["0", "0.5", "8", "1.25"]
    assert [format_cards(n) for n in (400, 35, 0)] == ["4", "0.35", "0"]
    assert [format_duration(s * 1_000_000) for s in (61, 86_400 * 2 + 3600 * 3 + 5)] == [
        "1m 1s",
        "2d 3h",
    ]


def test_a_duration_below_a_millisecond_is_none() -> None:
    """Microseconds of a run without a clock say nothing, in no notation."""
    assert [format_duration(us) for us in (0, 11, 999, 1000, 400_000)] == [
        "0s",
        "0s",
        "0s",
        "0.001s",
        "0.4s",
    ]
