"""When calls should come to a replica: it serves what clients trust, and knows that it does."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from certs.material import issue_authority, issue_leaf
from certs.plan import Settings
from certs.serving import Serving
from tenure.serving.webhook import STALE, Keeper, Readiness
from tests.support.certs import Clock

DAY = timedelta(days=1)


async def _nothing() -> None:
    """Look at nothing."""


def ready(*, asks: bool = True) -> tuple[Readiness, Clock]:
    """Return a replica that has just confirmed its leaf; or one whose leaf comes from files."""
    clock, serving = Clock(), Serving()
    authority = issue_authority("test", now=clock(), lifetime=DAY)
    leaf = issue_leaf(authority, ["a.svc"], now=clock(), lifetime=DAY)
    serving.swap(leaf, authority.certificate, ["a.svc"], now=clock())
    at = clock()
    keeper = Keeper(look=_nothing, keeps_one=asyncio.Event())
    if asks:
        keeper.confirmed_at = lambda: at
    return Readiness(serving, keeper, asyncio.Event(), clock, listens=True), clock


@pytest.mark.parametrize("asks", [True, False])
def test_it_is_ready_with_a_leaf_until_it_is_told_to_stop(*, asks: bool) -> None:
    """Stopping comes before every other reason."""
    readiness, clock = ready(asks=asks)
    assert readiness.why_not() == ""
    readiness.stopping.set()
    clock.pass_by(days=2)
    assert readiness.why_not() == "stopping"


def test_without_a_leaf_or_with_one_that_has_ended_it_is_not() -> None:
    """An API server would refuse the connection."""
    readiness, clock = ready(asks=False)
    clock.pass_by(days=1)
    assert readiness.why_not() == "the certificate has ended"
    readiness.serving = Serving()
    assert readiness.why_not() == "no certificate yet"


def test_with_a_leaf_but_no_port_it_is_not() -> None:
    """The leaf is published to the API server before the hooks are listened for."""
    readiness, _ = ready()
    readiness.listens = False
    assert readiness.why_not() == "not listening yet"


def test_one_that_can_not_read_its_secret_stops_before_the_rotation_gives_it_up() -> None:
    """Else it would serve a leaf that nobody trusts any more."""
    readiness, clock = ready()
    clock.pass_by(seconds=STALE.total_seconds())
    assert readiness.why_not() == ""
    clock.pass_by(seconds=1)
    assert "could not be read" in readiness.why_not()
    assert Settings(names=("a.svc",)).silent > STALE
