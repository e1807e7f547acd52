from __future__ import annotations

import pytest

from ledger.domain.cpuset import CPU_ID_MAX, EMPTY, CpuSet, cpuset_of, format_cpuset, parse_cpuset
from ledger.domain.errors import InputError

LISTS = {
    "the empty text": ("", []),
    "one CPU": ("7", [7]),
    "a range and a CPU": ("0-3,8", [0, 1, 2, 3, 8]),
    "a range of one": ("5-5", [5]),
    "unsorted parts": ("8-9,0-1", [0, 1, 8, 9]),
    "overlapping parts": ("0-3,2-5,4", [0, 1, 2, 3, 4, 5]),
    "leading zeros": ("007", [7]),
    "the largest id": ("4096", [4096]),
    "joined share pools": ("2-5,14-17,8-11", [2, 3, 4, 5, 8, 9, 10, 11, 14, 15, 16, 17]),
}

REFUSED = {
    "a blank alone": " ",
    "a blank after a comma": "0, 1",
    "a line end": "0-3\n",
    "a trailing comma": "0-3,",
    "a leading comma": ",0",
    "two commas": "0,,1",
    "a negative number": "-1",
    "an open range": "1-",
    "three numbers": "1-2-3",
    "a reversed range, which upstream takes as empty": "5-3",
    "a single id above the limit, which upstream takes": "4097",
    "a plus sign, which upstream takes": "+7",
    "a range end above the limit": "0-4097",
    "a number of absurd length": "9" * 100,
    "a word": "all",
    "a stride": "0-7:2/4",
    "digits of another script": "\u0661",
}


@pytest.mark.parametrize(("text", "ids"), LISTS.values(), ids=LISTS)
def test_linux_lists_are_read(text: str, ids: list[int]) -> None:
    """The set iterates in ascending order."""
    cpus = parse_cpuset(text)

    assert list(cpus) == ids
    assert len(cpus) == len(ids)
    assert bool(cpus) is bool(ids)


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_other_texts_are_refused_by_name(text: str) -> None:
    """Koordinator contract 6.7: what upstream takes too leniently is refused as well."""
    with pytest.raises(InputError) as caught:
        parse_cpuset(text)

    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([0, 1], "0-1"),
        ([8, 3, 2, 1, 0], "0-3,8"),
        ([0, 2, 4], "0,2,4"),
        ([0, 1, 12, 13], "0-1,12-13"),
        ([4096], "4096"),
    ],
    ids=["none", "one", "two neighbours", "unsorted", "gaps", "two cores", "the largest"],
)
def test_ranges_are_sorted_and_merged(ids: list[int], text: str) -> None:
    """One set has one text."""
    assert format_cpuset(cpuset_of(ids)) == text == str(cpuset_of(ids))


@pytest.mark.parametrize("cpu_id", [-1, CPU_ID_MAX + 1])
def test_ids_outside_the_limits_are_refused(cpu_id: int) -> None:
    """The same bounds hold for ids that came as numbers."""
    with pytest.raises(InputError, match="not a CPU id"):
        cpuset_of([0, cpu_id])


def test_set_algebra() -> None:
    """Union, intersection, difference, subset and disjointness."""
    low, high = parse_cpuset("0-3"), parse_cpuset("2-5")

    assert str(low | high) == "0-5"
    assert str(low & high) == "2-3"
    assert str(low - high) == "0-1"
    assert parse_cpuset("1-2") <= low
    assert not high <= low
    assert low.isdisjoint(parse_cpuset("8"))
    assert not low.isdisjoint(high)
    assert cpuset_of([]) <= low
    assert CpuSet() == cpuset_of([]) == EMPTY


def test_membership() -> None:
    """No id below zero is in any set."""
    cpus = parse_cpuset("0-3")

    assert 3 in cpus
    assert 4 not in cpus
    assert -1 not in cpus


def test_equal_sets_are_one_key() -> None:
    """Sets from different texts are equal and hash alike."""
    assert {parse_cpuset("0-1,2"): "x"}[cpuset_of([2, 1, 0])] == "x"
