from datetime import UTC, datetime

import pytest

from ledger.domain.errors import InputError
from tenure.times import LedgerTime, is_relative, iso_or_none, iso_time, ledger_time, read_moment
from tenure.units import format_time

NOON = int(datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()) * 1_000_000
HOUR = 3_600_000_000


def test_a_simulation_lives_in_its_own_time() -> None:
    """Two hours ago means before its last event, a real ledger's before the clock."""
    simulated = ledger_time(origin="simulation/ab12", head_at_us=NOON, clock_us=NOON + 99 * HOUR)
    real = ledger_time(origin="cluster/77", head_at_us=NOON - HOUR, clock_us=NOON)

    assert read_moment("2h ago", simulated, option="--at") == NOON - 2 * HOUR
    assert read_moment("2h ago", real, option="--at") == NOON - 2 * HOUR
    assert "head" in simulated.source
    assert "head" not in real.source


def test_a_moment_with_a_zone_is_the_same_everywhere() -> None:
    """Now plays no part in it."""
    time = LedgerTime(now_us=0, virtual=False)

    assert read_moment("2026-03-02T13:00:00+01:00", time, option="--at") == NOON


@pytest.mark.parametrize("text", ["2026-03-02T10:00:00", "yesterday", "", "2h"])
def test_a_time_that_cannot_be_read_names_its_option_and_shows_both_forms(text: str) -> None:
    """No zone is no moment."""
    with pytest.raises(InputError) as caught:
        read_moment(text, LedgerTime(now_us=NOON, virtual=False), option="--since")

    assert "--since" in str(caught.value)
    assert "2h ago" in caught.value.__notes__[0]


def test_only_relative_times_depend_on_now() -> None:
    """The note about what `ago` counts from is for these alone."""
    assert is_relative("2h ago")
    assert is_relative("now")
    assert not is_relative("2026-03-02T10:00:00Z")


def test_what_is_shown_reads_back() -> None:
    """A time can be copied from one answer into the next question, in any local zone."""
    time = LedgerTime(now_us=0, virtual=False)

    assert read_moment(iso_time(NOON + 7), time, option="--at") == NOON + 7
    assert read_moment(format_time(NOON), time, option="--at") == NOON
    assert iso_or_none(None) is None
