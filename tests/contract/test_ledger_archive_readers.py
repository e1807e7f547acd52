"""Whoever reads the ledger goes on after its beginning moved to a file, or is told where it is."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from ledger.domain.cpuset import CpuSet
from ledger.domain.errors import InputError
from ledger.domain.log.events import (
    DriftFound,
    KeyRotated,
    NodeDescribed,
    SettingsChanged,
)
from ledger.domain.log.recorded_node import RecordedNode
from ledger.domain.proofs.merkle import includes, is_prefix
from ledger.signing import PrivateKey, rotation_text, sign_note
from ledger.store.proving.checkpoints import (
    checkpoint_at,
    key_at,
    prove_consistency,
    prove_inclusion,
    store_checkpoint,
)
from ledger.store.proving.tree_proof import KeptCheckpoint as Kept
from ledger.store.proving.verify import verify
from ledger.store.reading.feed import follow
from ledger.store.reading.kept import events_of
from ledger.store.reading.query import run_sql
from ledger.store.reading.snapshots import take_snapshot
from ledger.store.reading.timetravel import load_state
from ledger.store.service import open_service
from tests.support.archives import afterwards, history, move
from tests.support.recovery import live_pods, recovered, witness
from tests.support.stores import ORIGIN, Clock, Store, released, start


def test_the_feed_goes_on_behind_the_archive(store: Store, tmp_path: Path) -> None:
    """A reader that was there before goes on; one that begins anew is told of the file."""
    with store.open() as ledger:
        history(ledger, Clock(), events=300)
        before = list(ledger.read_events(after=256))
        move(ledger, tmp_path)

    async def run() -> None:
        async with open_service(store.url) as service:
            async with aclosing(follow(service, after=256)) as events:
                assert [await anext(events) for _ in before] == before
            for after in (0, 255):
                async with aclosing(follow(service, after=after)) as events:
                    with pytest.raises(InputError, match="the event is in an archive: position="):
                        await anext(events)

    asyncio.run(run())


def test_proofs_about_archived_events_still_work(store: Store, tmp_path: Path) -> None:
    """Inclusion of every one of them, and consistency with every older tree: tiles stay."""
    with store.open() as ledger:
        history(ledger, Clock(), events=300)
        leaves = [each.leaf_hash for each in ledger.read_events()]
        older = {size: checkpoint_at(ledger, size) for size in (1, 100, 255, 256, 257)}
        move(ledger, tmp_path)
        tree = checkpoint_at(ledger)
        for position in (1, 2, 128, 255, 256, 257, 300):
            proved = prove_inclusion(ledger, position, tree.size)
            assert proved.leaf_hash == leaves[position - 1]
            assert includes(
                leaf=proved.leaf_hash,
                index=position - 1,
                size=tree.size,
                proof=proved.proof,
                root=tree.root,
            )
        for size, checkpoint in older.items():
            [grown] = prove_consistency(ledger, [size], tree.size)
            assert grown.root == checkpoint.root
            assert is_prefix(
                first=size,
                first_root=checkpoint.root,
                second=tree.size,
                second_root=tree.root,
                proof=grown.proof,
            )
        kept = Kept(checkpoints=tuple(older.values()), leaves=leaves)
        assert verify(ledger, witness=kept).findings == ()


def test_trust_is_handed_on_by_an_archived_rotation(store: Store, tmp_path: Path) -> None:
    """Rotations stay in the log: who trusts the old key follows to the new one."""
    old, new = PrivateKey.new("old"), PrivateKey.new("new")
    clock = Clock()
    with store.open() as ledger:
        writer = history(ledger, clock, events=100)
        text = rotation_text(ORIGIN, old.public, new.public)
        event = KeyRotated(
            old_key=str(old.public), new_key=str(new.public), note=sign_note(text, old, new)
        )
        at = writer.append([clock.new(event)])
        history_on = Clock(now_us=clock.now_us)
        history_on.made = 5_000
        for number in range(200):
            writer.append(history_on.all(released(f"none-{number}")))
        move(ledger, tmp_path)
        assert str(key_at(ledger, old.public, ORIGIN, at)) == str(new.public)


def test_a_snapshot_is_taken_and_used_behind_the_archive(store: Store, tmp_path: Path) -> None:
    """Older ones went with the events that commit to them."""
    clock = Clock()
    with store.open() as ledger:
        writer = history(ledger, clock, events=100)
        take_snapshot(ledger, writer, wall_us=clock.now_us)
        for number in range(200):
            writer.append(clock.all(released(f"none-{number}")))
        expected = load_state(ledger).state
        move(ledger, tmp_path)
        loaded = load_state(ledger)
        assert (loaded.state, loaded.snapshot_position, loaded.findings) == (expected, 256, ())
        writer = start(ledger, "next")
        taken = take_snapshot(ledger, writer, wall_us=0)
        assert load_state(ledger).snapshot_position == taken.at_position
        assert verify(ledger, segments=tmp_path).findings == ()


def test_what_nodes_are_stays_in_the_log(store: Store, tmp_path: Path) -> None:
    """What was told once holds until it is told anew: the CPUs that a node keeps back, too."""
    clock = Clock()
    facts = RecordedNode(version=RecordedNode.newest_version, reserved_cpus=CpuSet(mask=0b11))
    told = NodeDescribed(node_uid="uid-n-1", node_name="n-1", facts=facts)
    with store.open() as ledger:
        start(ledger).append(clock.all(told))
        history(ledger, clock, events=300)
        move(ledger, tmp_path)
        last = ledger.head().position
        with ledger.connection.begin():
            kept = events_of(ledger.connection, NodeDescribed, last)

        assert kept == [told]
        assert verify(ledger, segments=tmp_path).findings == ()


def test_recovery_reads_what_is_left(store: Store, tmp_path: Path) -> None:
    """A ledger that was restored after it was archived holds again what the world holds."""
    clock = Clock()
    with store.open() as ledger:
        history(ledger, clock, events=300)
        move(ledger, tmp_path)
    backup = store.copy(tmp_path / "backup.db")
    with store.open() as ledger:
        seen_before = witness(ledger)
        start(ledger, "next").append(afterwards(clock))
        pods, seen = live_pods(ledger, after=256), witness(ledger)
    with backup.open() as ledger:
        assert recovered(ledger, [], [seen_before]).opened is False
        result = recovered(ledger, pods, [seen])
        assert result.opened
        assert {outcome.pod for outcome in result.recreated} == {
            *("team-a/member", "team-a/again", "team-a/next")
        }
        assert verify(ledger, segments=tmp_path).findings == ()


VIEWS = (
    "audit_holdings",
    "audit_cpu_holdings",
    "audit_intervals",
    "audit_reservations",
    "audit_device_health",
    "audit_device_timeline",
    "audit_refusals",
    "audit_takeovers",
    "audit_usage_days",
    "audit_usage_labels_days",
    "audit_capacity",
    "audit_unknown_ranges",
    "audit_drift",
    "audit_settings",
    "audit_plans",
    "audit_checkpoints",
)


def test_every_audit_view_but_the_log_says_the_same(store: Store, tmp_path: Path) -> None:
    """Only `audit_events` is shorter: its rows of the moved range are those that readers need."""
    clock = Clock()
    with store.open() as ledger:
        writer = history(ledger, clock, events=200)
        drift = DriftFound(
            drift_id="d",
            kind="OverHeld",
            node_uid="uid-n-1",
            device_type="gpu",
            minor=1,
            pod_uid="uid-seen",
            detail="x",
        )
        settings = SettingsChanged(settings_hash="s", settings="{}", tenure_version="1")
        writer.append(clock.all(drift, settings))
        tree = checkpoint_at(ledger, 100)
        note = sign_note(tree.text(), PrivateKey.new("k"))
        store_checkpoint(writer, tree, note, wall_us=0)
        for number in range(60):
            writer.append(clock.all(released(f"none-{number}")))

        def rows(view: str) -> list[str]:
            return sorted(map(repr, run_sql(ledger, f"SELECT * FROM {view}")[1]))

        still = {"audit_reservations", "audit_intervals", "audit_holdings"}
        before = {view: rows(view) for view in VIEWS}
        assert still <= {view for view, found in before.items() if found}
        events = rows("audit_events")
        move(ledger, tmp_path)
        for view in VIEWS:
            if "usage" not in view:  # what is open is counted up to the head
                assert rows(view) == before[view], view
            assert len(rows(view)) == len(before[view])
        assert len(rows("audit_events")) < len(events) - 240
