"""When to rotate, as a table over what is recorded, published and served."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from certs.material import CertificateFacts
from certs.plan import (
    Begin,
    Create,
    Finish,
    Phase,
    Publish,
    Renew,
    Replica,
    RotationRecord,
    Settings,
    Step,
    Switch,
    Target,
    Wait,
    next_step,
)
from tests.support.certs import START

NAMES = ("tenure-webhook.tenure-system.svc",)
SETTINGS = Settings(names=NAMES)


def authority(name: str, *, days: int = 3650) -> CertificateFacts:
    """Return an authority that signed itself."""
    return CertificateFacts(
        fingerprint=name,
        subject_key=f"key of {name}",
        authority_key=f"key of {name}",
        names=(),
        not_before=START,
        not_after=START + timedelta(days=days),
    )


def leaf(
    name: str, signer: str, *, names: tuple[str, ...] = NAMES, days: int = 90
) -> CertificateFacts:
    """Return a leaf that `signer` signed."""
    return CertificateFacts(
        fingerprint=name,
        subject_key=f"key of {name}",
        authority_key=f"key of {signer}",
        names=names,
        not_before=START,
        not_after=START + timedelta(days=days),
    )


STABLE = RotationRecord(
    phase=Phase.STABLE,
    since=START,
    published_at=START,
    authority=authority("old"),
    leaf=leaf("leaf 1", "old"),
)
PUBLISHING = replace(STABLE, phase=Phase.PUBLISHING, other=authority("new"))
SERVING = replace(
    PUBLISHING,
    phase=Phase.SERVING,
    authority=authority("new"),
    other=authority("old"),
    leaf=leaf("leaf 2", "new"),
)
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)


def step(
    recorded: RotationRecord | None,
    *,
    at: datetime = START,
    trusted: frozenset[str] | None = None,
    replicas: tuple[Replica, ...] = (),
) -> Step:
    """Plan with one configuration, which trusts what is recorded unless told otherwise."""
    if trusted is None:
        trusted = frozenset() if recorded is None else recorded.trusted
    targets = [Target(name="hooks", trusted=trusted)]
    return next_step(recorded, targets, replicas, SETTINGS, now=at)


def test_the_first_step_makes_an_authority_and_a_leaf() -> None:
    """Without a record nothing else can be done."""
    assert step(None) == Create()


@pytest.mark.parametrize("recorded", [STABLE, PUBLISHING, SERVING], ids=lambda one: one.phase)
def test_a_configuration_that_trusts_other_authorities_is_mended_first(
    recorded: RotationRecord,
) -> None:
    """In every phase, also when somebody put an old configuration back."""
    assert step(recorded, trusted=frozenset({"strange"})) == Publish(targets=("hooks",))
    assert step(recorded, trusted=frozenset()) == Publish(targets=("hooks",))


@pytest.mark.parametrize("recorded", [STABLE, PUBLISHING, SERVING], ids=lambda one: one.phase)
def test_what_was_never_seen_published_is_published_again(recorded: RotationRecord) -> None:
    """A crash between publishing and recording it does not shorten the wait."""
    assert step(replace(recorded, published_at=None)) == Publish(targets=())


@pytest.mark.parametrize(
    ("recorded", "at", "expected"),
    [
        pytest.param(STABLE, START, Wait, id="nothing is due"),
        pytest.param(STABLE, START + 60 * DAY - SECOND, Wait, id="just before the leaf is due"),
        pytest.param(STABLE, START + 60 * DAY, Renew, id="a leaf with 30 days left"),
        pytest.param(
            replace(STABLE, leaf=leaf("x", "stranger")), START, Renew, id="another one's leaf"
        ),
        pytest.param(
            replace(STABLE, leaf=leaf("x", "old", names=("other.svc",))),
            START,
            Renew,
            id="a leaf for other names",
        ),
        pytest.param(
            replace(STABLE, authority=authority("old", days=366)),
            START + DAY - SECOND,
            Wait,
            id="just before the authority is due",
        ),
        pytest.param(
            replace(STABLE, authority=authority("old", days=366)),
            START + DAY,
            Begin,
            id="an authority with a year left",
        ),
        pytest.param(replace(STABLE, requested=True), START, Begin, id="somebody asked for it"),
        pytest.param(replace(STABLE, sound=False), START, Renew, id="a key that is another's"),
        pytest.param(replace(SERVING, sound=False), START, Renew, id="the same while serving"),
        pytest.param(PUBLISHING, START + 29 * SECOND, Wait, id="the bundle is still on its way"),
        pytest.param(PUBLISHING, START + 30 * SECOND, Switch, id="every server has the bundle"),
        pytest.param(replace(PUBLISHING, requested=True), START, Wait, id="one rotation at a time"),
        pytest.param(SERVING, START, Finish, id="no replica is on another leaf"),
    ],
)
def test_each_phase_ends_when_its_condition_holds(
    recorded: RotationRecord, at: datetime, expected: type[Step]
) -> None:
    """One second earlier it waits."""
    assert type(step(recorded, at=at)) is expected


@pytest.mark.parametrize(
    ("serves", "silent_for", "expected"),
    [
        pytest.param("leaf 2", timedelta(0), Finish, id="on the new leaf"),
        pytest.param("leaf 1", timedelta(0), Wait, id="on the old leaf"),
        pytest.param("leaf 1", timedelta(minutes=10) - SECOND, Wait, id="silent, not for long"),
        pytest.param("leaf 1", timedelta(minutes=10), Finish, id="silent for ten minutes"),
        pytest.param("", timedelta(0), Wait, id="serves nothing that is known"),
    ],
)
def test_the_old_authority_stays_while_a_replica_serves_its_leaf(
    serves: str, silent_for: timedelta, expected: type[Step]
) -> None:
    """And no longer than a replica without a sign of life may hold it."""
    replicas = (
        Replica(name="a", leaf="leaf 2", at=START),
        Replica(name="b", leaf=serves, at=START),
    )
    found = step(SERVING, at=START + silent_for, replicas=replicas)
    assert type(found) is expected
    if isinstance(found, Wait):
        assert "b" in found.reason


def test_a_leader_whose_clock_is_ahead_gives_no_replica_up_too_soon() -> None:
    """All reports look old to it, so it counts from the switch."""
    said = Replica(name="b", leaf="leaf 1", at=START - timedelta(hours=1))
    found = step(SERVING, at=START + timedelta(minutes=10) - SECOND, replicas=(said,))
    assert isinstance(found, Wait)
    later = step(SERVING, at=START + timedelta(minutes=10), replicas=(said,))
    assert later == Finish()
