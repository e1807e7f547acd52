"""A replica and the rotation around it, one API call after the other."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from certs.following import Follower
from certs.material import CertificateError, facts_of
from certs.plan import Phase, Settings
from certs.record import REQUESTED, SecretRecord, read_record
from certs.reports import Reports
from certs.rotator import RotationObjects, Rotator
from certs.serving import Serving
from tests.support.certs import Clock, MemoryObjects

PLACE = RotationObjects(namespace="n", secret="s", configurations=())
SETTINGS = Settings(names=("a.svc",), settle=timedelta(seconds=30))


class Cluster:
    """Objects in memory with a rotator and one replica."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.objects = MemoryObjects()
        self.reports = Reports(self.objects, "n", "s")
        self.rotator = Rotator(self.objects, self.reports, PLACE, SETTINGS, self.clock)
        self.serving = Serving()
        self.follower = Follower(
            self.objects,
            self.reports,
            PLACE.secret_path,
            self.serving,
            replica="one",
            names=SETTINGS.names,
            clock=self.clock,
        )

    @property
    def record(self) -> SecretRecord:
        """What the Secret holds now."""
        record = read_record(self.objects.objects[PLACE.secret_path])
        assert record is not None
        return record

    async def rotate(self) -> None:
        """Rotate authority and leaf to the end."""
        secret = self.objects.objects[PLACE.secret_path]
        secret["metadata"]["annotations"][REQUESTED] = "now"
        before = self.record.authority
        for _ in range(50):
            await self.rotator.advance()
            self.clock.pass_by(seconds=10)
            if self.record.phase is Phase.STABLE and self.record.authority != before:
                return
        raise AssertionError("the rotation did not end")


def test_nothing_is_served_before_there_is_a_secret() -> None:
    """And that is no error: the rotation is about to make it."""

    async def run() -> None:
        cluster = Cluster()
        assert not await cluster.follower.look()
        assert cluster.serving.leaf is None
        assert cluster.follower.confirmed_at is None

    asyncio.run(run())


def test_a_leaf_that_changes_while_it_is_reported_is_not_served() -> None:
    """The Secret is read again after the report: a whole rotation may have passed in between."""

    async def run() -> None:
        cluster = Cluster()
        await cluster.rotator.advance()
        old = facts_of(cluster.record.leaf.certificate)
        rotated = False

        async def rotate_first(method: str, path: str) -> None:
            nonlocal rotated
            if method == "create" and "leases" in path and not rotated:
                rotated = True
                await cluster.rotate()

        cluster.objects.before = rotate_first
        assert await cluster.follower.look()
        assert rotated
        assert cluster.serving.leaf == facts_of(cluster.record.leaf.certificate) != old

    asyncio.run(run())


def test_a_rotation_waits_for_a_replica_and_ends_when_it_has_changed() -> None:
    """The replica serves the new leaf before it says so."""

    async def run() -> None:
        cluster = Cluster()
        await cluster.rotator.advance()
        await cluster.follower.look()
        with pytest.raises(AssertionError, match="did not end"):
            await cluster.rotate()
        assert cluster.record.other is not None  # the old authority, still trusted
        await cluster.follower.look()
        await cluster.rotator.advance()
        assert cluster.record.other is None
        assert cluster.serving.leaf == facts_of(cluster.record.leaf.certificate)

    asyncio.run(run())


def test_a_leaf_that_can_not_be_served_leaves_the_one_before() -> None:
    """Somebody put another Secret's key there."""

    async def run() -> None:
        cluster, other = Cluster(), Cluster()
        await cluster.rotator.advance()
        await other.rotator.advance()
        await cluster.follower.look()
        before = cluster.serving.leaf
        mine = cluster.objects.objects[PLACE.secret_path]["data"]
        theirs = other.objects.objects[PLACE.secret_path]["data"]
        mine["tls.crt"] = theirs["tls.crt"]
        with pytest.raises(CertificateError, match="does not belong"):
            await cluster.follower.look()
        assert cluster.serving.leaf == before

    asyncio.run(run())


def test_a_replica_says_again_that_it_lives_and_signs_off() -> None:
    """Its report is renewed every minute, and gone when it leaves."""

    async def run() -> None:
        cluster = Cluster()
        await cluster.rotator.advance()
        await cluster.follower.look()
        first = (await cluster.reports.all())[0].at
        cluster.clock.pass_by(seconds=30)
        await cluster.follower.look()
        assert (await cluster.reports.all())[0].at == first
        cluster.clock.pass_by(seconds=31)
        await cluster.follower.look()
        assert (await cluster.reports.all())[0].at > first
        await cluster.follower.leave()
        assert await cluster.reports.all() == ()

    asyncio.run(run())


def test_a_leaf_for_some_of_our_names_is_better_than_none() -> None:
    """In the middle of a roll-out the old release leads, and knows nothing of a new name."""

    async def run() -> None:
        cluster = Cluster()
        await cluster.rotator.advance()
        serving = Serving()
        newer = Follower(
            cluster.objects,
            cluster.reports,
            PLACE.secret_path,
            serving,
            replica="newer",
            names=("a.svc", "b.svc"),
            clock=cluster.clock,
        )
        assert await newer.look()
        assert serving.leaf == facts_of(cluster.record.leaf.certificate)

    asyncio.run(run())


def test_a_key_that_somebody_replaced_by_hand_is_mended() -> None:
    """The leaf before is served on; the leading replica issues another one."""

    async def run() -> None:
        cluster = Cluster()
        await cluster.rotator.advance()
        await cluster.follower.look()
        served = cluster.serving.leaf
        data = cluster.objects.objects[PLACE.secret_path]["data"]
        data["tls.key"] = data["authority.key"]
        data["tls.crt"] = data["authority.crt"]
        with pytest.raises(CertificateError):
            await cluster.follower.look()
        assert cluster.serving.leaf == served
        await cluster.rotator.advance()
        assert await cluster.follower.look()
        assert cluster.serving.leaf == facts_of(cluster.record.leaf.certificate) != served

    asyncio.run(run())


def test_an_authority_that_somebody_replaced_by_hand_is_left_to_people() -> None:
    """Signing with it would only make leaves that nobody trusts."""

    async def run() -> None:
        cluster = Cluster()
        await cluster.rotator.advance()
        secret = cluster.objects.objects[PLACE.secret_path]
        secret["data"]["authority.key"] = secret["data"]["tls.key"]
        before = dict(secret)
        with pytest.raises(CertificateError, match="authority's key"):
            await cluster.rotator.advance()
        assert cluster.objects.objects[PLACE.secret_path] == before

    asyncio.run(run())


def test_what_the_dead_said_is_cleared_away() -> None:
    """Pods have new names at every roll-out; those that were killed leave a Lease each."""

    async def run() -> None:
        cluster = Cluster()
        await cluster.rotator.advance()
        await cluster.reports.say("killed", "old leaf", cluster.clock())
        cluster.clock.pass_by(days=2)
        await cluster.follower.look()

        async def follow() -> None:
            await cluster.follower.look()

        secret = cluster.objects.objects[PLACE.secret_path]
        secret["metadata"]["annotations"][REQUESTED] = "now"
        for _ in range(100):
            await cluster.rotator.advance()
            await follow()
            cluster.clock.pass_by(seconds=10)
        assert cluster.record.phase is Phase.STABLE
        assert [one.name for one in await cluster.reports.all()] == ["one"]

    asyncio.run(run())
