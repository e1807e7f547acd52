"""Who answers: the Lease for liveness, the epoch for safety, a clock that is right for both."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import pytest

from ledger.domain.errors import FencedError
from scheduler.service.leading import CLOCK_SKEW, NOT_LEADER, Leading


@dataclass(slots=True)
class Moment:
    """What a replica goes by."""

    now: float = 0.0
    until: float = 10.0
    skewed: bool = False
    stale: str = ""
    quarantined: str = ""
    leading: Leading = field(init=False)

    def __post_init__(self) -> None:
        self.leading = Leading(
            now=lambda: self.now,
            lease_until=lambda: self.until,
            skewed=lambda: self.skewed,
            fresh=lambda: self.stale,
            quarantined=lambda: self.quarantined,
        )


def test_the_lease_alone_is_not_enough() -> None:
    """Only whoever took the ledger over may give something out."""
    moment = Moment()
    assert moment.leading.why_not() == NOT_LEADER
    moment.leading.took(3)
    assert moment.leading.why_not() == ""


def test_the_epoch_alone_is_not_enough_and_the_lease_ends_by_our_own_clock() -> None:
    """Nobody has to tell: a process that was paused finds its Lease over when it wakes up."""
    moment = Moment()
    moment.leading.took(3)
    moment.now = 10.0
    assert moment.leading.why_not() == NOT_LEADER
    assert moment.leading.is_silent()
    moment.until = 25.0
    assert moment.leading.why_not() == "", "nobody took it meanwhile"


def test_a_clock_that_is_off_gives_nothing_and_says_so() -> None:
    """Before everything else that could be wrong: whoever leads is asked, and tells why not."""
    moment = Moment(skewed=True)
    assert moment.leading.why_not() == NOT_LEADER, "a standby is no leader, whatever its clock"
    moment.leading.took(3)
    moment.now = 99.0
    assert moment.leading.why_not() == CLOCK_SKEW
    assert not moment.leading.is_silent(), "no other replica knows better"
    moment.skewed, moment.now = False, 0.0
    assert moment.leading.why_not() == ""


@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("heard", [0, 4])
@pytest.mark.parametrize("now", [0.0, 99.0])
@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("stale", ["", "ClusterViewStale: pods"])
def test_callers_are_sent_away_by_whoever_says_that_it_does_not_lead(
    *, epoch: int, heard: int, now: float, skewed: bool, stale: str
) -> None:
    """And by nobody else, in whatever state."""
    moment = Moment(now=now, skewed=skewed, stale=stale)
    if epoch:
        moment.leading.took(epoch)
    with contextlib.suppress(FencedError):
        moment.leading.heard(heard)
    assert moment.leading.is_silent() == (moment.leading.why_not() == NOT_LEADER)


def test_whoever_has_the_epoch_records_what_ends_though_it_gives_nothing() -> None:
    """So it hears agents too, whose word releases wait for: the Lease and the clock are nothing."""
    moment = Moment()
    assert moment.leading.why_unrecorded() == NOT_LEADER
    moment.leading.took(3)
    moment.now, moment.skewed = 99.0, True
    assert moment.leading.why_unrecorded() == ""
    moment.stale = "ClusterViewStale: pods"
    assert moment.leading.why_unrecorded() == moment.stale
    with pytest.raises(FencedError):
        moment.leading.heard(4)
    assert moment.leading.why_unrecorded() == NOT_LEADER


def test_what_is_not_known_is_said_before_who_leads() -> None:
    """A ledger that is away makes the Lease go: whoever was the leader says which of both it is."""
    moment = Moment(stale="LedgerUnavailable")
    moment.leading.took(3)
    moment.now = 99.0
    assert moment.leading.why_not() == "LedgerUnavailable"


def test_a_newer_epoch_ends_it_for_good() -> None:
    """Whatever the Lease says."""
    moment = Moment()
    moment.leading.heard(2)
    moment.leading.took(3)
    moment.leading.heard(3)
    assert moment.leading.why_not() == ""
    with pytest.raises(FencedError, match="epoch=4"):
        moment.leading.heard(4)
    assert moment.leading.is_deposed
    assert moment.leading.why_not() == NOT_LEADER


def test_an_epoch_that_another_one_overtook_is_not_begun() -> None:
    """Both were started while one still read what came before."""
    moment = Moment()
    moment.leading.heard(4)
    with pytest.raises(FencedError, match="epoch=4"):
        moment.leading.took(3)
    assert moment.leading.why_not() == NOT_LEADER


def test_agents_are_shown_the_ledger_by_its_writer_and_in_quarantine() -> None:
    """Whoever waits in quarantine since its start has no epoch, and is who a node has to ask."""
    moment = Moment()
    assert moment.leading.why_unshown() == NOT_LEADER
    moment.quarantined = "LedgerRecovering: the ledger lacks positions"
    assert moment.leading.why_unshown() == ""
    moment.leading.took(3)
    moment.now = 99.0
    assert moment.leading.why_unshown() == "", "with the Lease or without"
    with pytest.raises(FencedError):
        moment.leading.heard(4)
    assert moment.leading.why_unshown() == NOT_LEADER
