from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.cpuset import CPU_ID_MAX, cpuset_of, format_cpuset, parse_cpuset

ids = st.frozensets(st.integers(0, CPU_ID_MAX) | st.integers(0, 70), max_size=80)
ranges = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 20)).map(lambda pair: (pair[0], sum(pair))),
    min_size=1,
    max_size=12,
)


@given(cpus=ids)
def test_text_and_set_are_each_others_inverse(cpus: frozenset[int]) -> None:
    """One set has one text, and the text has that set."""
    text = format_cpuset(cpuset_of(cpus))

    assert parse_cpuset(text) == cpuset_of(cpus)
    assert list(parse_cpuset(text)) == sorted(cpus)
    assert format_cpuset(parse_cpuset(text)) == text


@given(cpus=ids)
def test_ranges_are_as_few_as_can_be(cpus: frozenset[int]) -> None:
    """As many parts as there are CPUs whose predecessor is missing."""
    text = format_cpuset(cpuset_of(cpus))
    starts = [cpu for cpu in cpus if cpu - 1 not in cpus]

    assert len(text.split(",")) == max(1, len(starts))


@given(pairs=ranges)
def test_any_list_of_ranges_is_their_union(pairs: list[tuple[int, int]]) -> None:
    """Order and overlap of the parts do not matter."""
    text = ",".join(f"{first}-{last}" for first, last in pairs)
    expected = {cpu for first, last in pairs for cpu in range(first, last + 1)}

    assert set(parse_cpuset(text)) == expected


@given(left=ids, right=ids)
def test_algebra_agrees_with_frozenset(left: frozenset[int], right: frozenset[int]) -> None:
    """Every operation means what it means for Python's own sets."""
    a, b = cpuset_of(left), cpuset_of(right)

    assert set(a | b) == left | right
    assert set(a & b) == left & right
    assert set(a - b) == left - right
    assert (a <= b) is (left <= right)
    assert a.isdisjoint(b) is left.isdisjoint(right)
    assert (a == b) is (left == right)
    assert len(a) == len(left)
    assert bool(a) is bool(left)
    assert all((cpu in a) is (cpu in left) for cpu in right)
