from __future__ import annotations

import pytest

from ledger.domain.annotations.gang import (
    DURATION_MAX_NS,
    SECOND_NS,
    Gang,
    GangMatchPolicy,
    GangMode,
    parse_duration,
    read_gang,
)
from ledger.domain.errors import InputError
from tests.support.wishes import encode_gang, format_duration

PREFIX = "gang.scheduling.koordinator.sh/"

DURATIONS = [
    ("0", 0),
    ("+0", 0),
    ("0s", 0),
    ("600s", 600 * SECOND_NS),
    ("10m", 600 * SECOND_NS),
    ("1h30m", 5400 * SECOND_NS),
    ("1h15m30.918s", 4530 * SECOND_NS + 918_000_000),
    ("1.5h", 5400 * SECOND_NS),
    (".5s", SECOND_NS // 2),
    ("5.s", 5 * SECOND_NS),
    ("-2ms", -2_000_000),
    ("+2ms", 2_000_000),
    ("3us", 3000),
    ("3\u00b5s", 3000),
    ("3\u03bcs", 3000),
    ("7ns", 7),
    ("0.9ns", 0),
    ("100ms", 100_000_000),
    ("1s1s", 2 * SECOND_NS),
    ("9223372036854775807ns", DURATION_MAX_NS),
]


@pytest.mark.parametrize(("text", "nanoseconds"), DURATIONS, ids=[text for text, _ in DURATIONS])
def test_go_durations_are_read(text: str, nanoseconds: int) -> None:
    """As Go's time.ParseDuration; parts of a nanosecond are cut off."""
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "600",
        "s",
        ".s",
        "-",
        "1 s",
        "1s ",
        "1d",
        "--1s",
        "1s-1s",
        "1e3s",
        "10m0",
        "9223372036854775808ns",
        "3000000h",
        "9" * 40 + "s",
    ],
    ids=[
        "empty",
        "no unit",
        "a unit alone",
        "a point alone",
        "a sign alone",
        "a blank inside",
        "a blank after",
        "days",
        "two signs",
        "a sign inside",
        "an exponent",
        "a last number without unit",
        "one too many",
        "342 years",
        "absurd",
    ],
)
def test_other_texts_are_no_durations(text: str) -> None:
    """The message shows the text."""
    with pytest.raises(InputError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (7, "7ns"),
        (1500, "1.5\u00b5s"),
        (2_000_000, "2ms"),
        (2_000_001, "2.000001ms"),
        (SECOND_NS, "1s"),
        (SECOND_NS * 3 // 2, "1.5s"),
        (60 * SECOND_NS, "1m0s"),
        (600 * SECOND_NS, "10m0s"),
        (5400 * SECOND_NS, "1h30m0s"),
        (3600 * SECOND_NS + 1, "1h0m0.000000001s"),
        (-90 * SECOND_NS, "-1m30s"),
        (999_999_999, "999.999999ms"),
    ],
)
def test_durations_are_written_as_go_prints_them(nanoseconds: int, text: str) -> None:
    """Hours, minutes, seconds; the largest of ms, us, ns below a second."""
    assert format_duration(nanoseconds) == text
    assert parse_duration(text) == nanoseconds


def test_a_full_gang_round_trips() -> None:
    """Koordinator contract 10."""
    annotations = {
        f"{PREFIX}name": "job-7",
        f"{PREFIX}min-available": "3",
        f"{PREFIX}total-number": "4",
        f"{PREFIX}waiting-time": "1m30s",
        f"{PREFIX}mode": "NonStrict",
        f"{PREFIX}match-policy": "only-waiting",
        f"{PREFIX}groups": '["ns/gang-a","ns/gang-b"]',
    }
    gang = Gang(
        name="job-7",
        min_available=3,
        total_number=4,
        waiting_time_ns=90 * SECOND_NS,
        mode=GangMode.NON_STRICT,
        match_policy=GangMatchPolicy.ONLY_WAITING,
        groups=("ns/gang-a", "ns/gang-b"),
    )

    assert read_gang({}, annotations) == gang
    assert encode_gang(gang) == annotations


def test_defaults_are_the_contracts() -> None:
    """Total = minimum, 600 s, Strict, once-satisfied, no groups."""
    gang = read_gang({}, {f"{PREFIX}name": "g", f"{PREFIX}min-available": "2"})

    assert gang == Gang(name="g", min_available=2, total_number=2)
    assert gang is not None
    assert gang.waiting_time_ns == 600 * SECOND_NS
    assert read_gang({}, encode_gang(gang)) == gang


def test_a_minimum_may_come_from_elsewhere() -> None:
    """A Pod that only names its gang leaves the numbers to a PodGroup object."""
    gang = read_gang({}, {f"{PREFIX}name": "g"})

    assert gang == Gang(name="g")
    assert gang is not None
    assert read_gang({}, encode_gang(gang)) == gang


def test_a_total_below_the_minimum_is_the_minimum() -> None:
    """A gang can't have fewer members than it needs."""
    gang = read_gang(
        {},
        {
            f"{PREFIX}name": "g",
            f"{PREFIX}min-available": "5",
            f"{PREFIX}total-number": "4",
        },
    )

    assert gang is not None
    assert gang.total_number == 5


def test_the_name_is_looked_up_in_the_contracts_order() -> None:
    """First the short label, then the long one, then the annotation; empty texts are skipped."""
    short, long = "pod-group.scheduling.sigs.k8s.io", "pod-group.scheduling.sigs.k8s.io/name"
    annotation = {f"{PREFIX}name": "c"}

    def name(labels: dict[str, str], annotations: dict[str, str]) -> str | None:
        gang = read_gang(labels, annotations)
        return None if gang is None else gang.name

    assert name({short: "a", long: "b"}, annotation) == "a"
    assert name({long: "b"}, annotation) == "b"
    assert name({short: ""}, annotation) == "c"
    assert name({}, {}) is None


def test_the_match_policy_has_an_alias_key() -> None:
    """The gang's own key wins over the alias."""
    alias = {
        f"{PREFIX}name": "g",
        "pod-group.scheduling.sigs.k8s.io/match-policy": "waiting-and-running",
    }
    both = {**alias, f"{PREFIX}match-policy": "only-waiting"}

    first, second = read_gang({}, alias), read_gang({}, both)
    assert first is not None
    assert second is not None
    assert first.match_policy is GangMatchPolicy.WAITING_AND_RUNNING
    assert second.match_policy is GangMatchPolicy.ONLY_WAITING


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("min-available", "three"),
        ("min-available", "0"),
        ("min-available", "-1"),
        ("min-available", ""),
        ("total-number", "4.5"),
        ("waiting-time", "600"),
        ("waiting-time", "0s"),
        ("waiting-time", "-1s"),
        ("mode", "strict"),
        ("match-policy", "never"),
        ("groups", "ns/gang-a"),
        ("groups", "[1]"),
        ("groups", "{}"),
    ],
    ids=lambda value: value or "empty",
)
def test_broken_gang_values_are_errors(key: str, text: str) -> None:
    """A gang that can't be read is not a Pod without a gang."""
    with pytest.raises(InputError) as caught:
        read_gang({}, {f"{PREFIX}name": "g", f"{PREFIX}{key}": text})

    assert caught.value.field.startswith(f"metadata.annotations[{PREFIX}{key}]")
