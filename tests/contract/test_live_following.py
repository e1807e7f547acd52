"""A standby that follows knows what a process knows that begins, out of either database."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from ledger.domain.errors import FencedError
from ledger.domain.log.events import PodVoided, SettingsChanged
from ledger.store.open import Ledger
from scheduler.decide.settings import SchedulingSettings
from scheduler.record.refusing import Told
from scheduler.service.assembly import Assembly, assemble
from scheduler.service.beginning import Beginning, begin
from scheduler.service.freshness import Freshness
from scheduler.service.leading import Leading
from scheduler.service.replica import Replica
from scheduler.service.world import Ports
from tenure.sources.yaml_text import yaml_documents
from tests.support.binding import Tasks, Unsigned
from tests.support.fake_api import ApiClient, ApiServer
from tests.support.live import WORDS, MemoryLedger, StillClock
from tests.support.stores import (
    ORIGIN,
    Clock,
    Store,
    bound,
    node,
    observed,
    released,
    reserved,
    share,
    start,
)

PODS = ("bound", "ended", "voided", "other", "late")


class Standby:
    """A replica that began with what a ledger told."""

    def __init__(self, begun: Beginning) -> None:
        clock, freshness = StillClock(), Freshness()
        self.leading = Leading(
            now=clock.monotonic, lease_until=lambda: 1e9, skewed=lambda: False, fresh=str
        )
        ports = Ports(
            origin=ORIGIN,
            recorder=MemoryLedger(),
            api=ApiClient(ApiServer(), clock.sleep),
            clock=clock,
            freshness=freshness,
            leading=self.leading,
            words=WORDS,
            proofs=lambda _: Unsigned(),
            told=_nothing_told,
            documents_in=yaml_documents,
            start=Tasks().start,
            actor="scheduler/test",
        )
        self.live: Assembly = assemble(SchedulingSettings(node_policy="binpack"), begun, ports)
        self.replica = Replica(self.live, self.leading)

    def follow(self, ledger: Ledger) -> None:
        """Follow to the end."""
        for one in ledger.read_events(after=self.live.view.position):
            self.replica.follow(one)


async def _nothing_told(_: Sequence[str] | None) -> Mapping[str, Told]:
    return {}


def test_who_followed_knows_what_who_begins_is_told(store: Store) -> None:
    """Begun after every event of a life, all of them end alike."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        standbys = [Standby(begin(ledger))]
        for event in (
            SettingsChanged(settings_hash="1", settings="{}", tenure_version="0.1.0"),
            node(gpus=4),
            reserved("bound", share(0, 50)),
            bound("bound"),
            reserved("ended", share(1, 50)),
            released("ended"),
            reserved("voided", share(1, 50)),
            PodVoided(pod_uid="uid-voided", attempt=1, node_uid="uid-n-1", reason="test"),
            reserved("voided", share(1, 50), attempt=2),
            observed("other", share(2, 100)),
            reserved("late", share(3, 100)),
        ):
            writer.append([clock.new(event)])
            standbys.append(Standby(begin(ledger)))
        start(ledger)  # the next leader's epoch
        last = Standby(begin(ledger))
        for one in standbys:
            one.follow(ledger)
            assert one.live.view.position == last.live.view.position
            assert one.live.templates.said == last.live.templates.said == "{}"
            assert one.live.view.recorded("uid-n-1") == last.live.view.recorded("uid-n-1")
            assert one.live.view.holders() == last.live.view.holders()
            for name in PODS:
                uid = f"uid-{name}"
                assert one.live.books.standing(uid) == last.live.books.standing(uid), name
    assert last.live.books.attempts("uid-voided") == 2
    assert all(one.live.books.attempts("uid-voided") == 2 for one in standbys)


def test_a_takeover_waits_for_the_feed_and_then_leads(store: Store) -> None:
    """What the last leader recorded is known before the first answer; it is not folded again."""

    async def main(ledger: Ledger) -> None:
        standby, recorded = Standby(begin(ledger)), []
        start(ledger).append([Clock().new(node(gpus=1))])
        writer = start(ledger)

        async def record() -> None:
            recorded.append(standby.live.view.position)

        taking = asyncio.create_task(standby.replica.take_over(writer.head.epoch, 4, record))
        await asyncio.sleep(0)
        assert standby.leading.why_not(), "the feed is behind"
        standby.follow(ledger)
        await taking
        assert standby.leading.why_not() == ""
        assert recorded == [standby.live.view.position] == [writer.head.position] == [4]
        start(ledger)
        with pytest.raises(FencedError):
            standby.follow(ledger)

    with store.open() as ledger:
        start(ledger)
        asyncio.run(main(ledger))
