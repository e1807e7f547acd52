"""Old events move to a file that proves itself, and the ledger goes on as if they were there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.domain.errors import IdempotencyError, InputError
from ledger.domain.log.events import SegmentArchived, encode_event
from ledger.store.archives.segments import Segment
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from ledger.store.reading.timetravel import load_state, position_at, state_at
from ledger.store.writing.commands import Command, Recorded, Refused
from tests.support.archives import afterwards, archive_up_to, changed, history, move
from tests.support.stores import (
    MONDAY_US,
    Clock,
    Store,
    released,
    reserved,
    share,
    start,
)


def test_the_event_of_a_segment_has_these_values_in_its_body() -> None:
    """Written and expected by the same code, so this is the one copy by hand."""
    segment = Segment(
        first=257,
        last=512,
        position=515,
        file_name="segment-000000000257-000000000512.jsonl.gz",
        digest=b"\x0a" * 32,
        root=b"\x0b" * 32,
        chain_hash=b"\x0c" * 32,
        state_digest=b"\x0d" * 32,
        state=b"packed",
        at_us=MONDAY_US,
    )

    assert encode_event(segment.event({"ledger_holdings": "0e" * 32})) == (
        '{"chain_hash":"0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c",'
        '"digest":"0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a",'
        '"first":257,"last":512,'
        '"root":"0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b",'
        '"rows":{"ledger_holdings":'
        '"0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e"},'
        '"state_digest":"0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d0d"}'
    )


def test_archived_events_are_gone_from_the_log_and_all_is_proved(
    store: Store, tmp_path: Path
) -> None:
    """Without the files from the segment's end on, with them from the first event."""
    with store.open() as ledger:
        history(ledger, Clock())
        moved = move(ledger, tmp_path)
        assert (moved.first, moved.last, moved.position) == (1, 512, ledger.head().position)
        last = [each.event for each in ledger.read_events(after=moved.position - 1)]
        assert isinstance(last[0], SegmentArchived)
        assert (last[0].first, last[0].last) == (1, 512)
        short = verify(ledger)
        assert (short.findings, short.unread) == ((), 512)
        whole = verify(ledger, segments=tmp_path)
        assert (whole.findings, whole.unread, whole.events) == ((), 0, moved.position)
    with store.raw() as raw:
        query = "SELECT count(*) FROM ledger_events WHERE position <= 512"
        assert raw.execute(query).fetchone() == (moved.kept,)
        assert moved.kept < 10


def test_what_was_open_across_the_cut_is_released_and_taken_again(
    store: Store, tmp_path: Path
) -> None:
    """Holders, an observed one, CPUs, slots, a plan's place, health and inventories."""
    clock = Clock()
    with store.open() as ledger:
        history(ledger, clock)
        move(ledger, tmp_path)
        writer = start(ledger, "next")
        writer.append(afterwards(clock))
        assert verify(ledger).findings == ()
        assert verify(ledger, segments=tmp_path).findings == ()
        report = rebuild(ledger, segments=tmp_path)
        assert (report.equal, report.differences) == (True, ())
        assert verify(ledger).findings == ()


def test_one_segment_follows_another(store: Store, tmp_path: Path) -> None:
    """Each goes on where the last one ended, and all of them are read together."""
    clock = Clock()
    with store.open() as ledger:
        history(ledger, clock, events=300)
        first = move(ledger, tmp_path)
        writer = start(ledger, "next")
        writer.append(afterwards(clock))
        for number in range(300):
            writer.append(clock.all(reserved(f"q{number}", share(2, 10)), released(f"q{number}")))
        second = move(ledger, tmp_path)
        assert (first.last + 1, second.last) == (second.first, 768)
        assert verify(ledger).findings == ()
        assert verify(ledger, segments=tmp_path).findings == ()
        assert rebuild(ledger, segments=tmp_path).equal
        assert archive_up_to(ledger, tmp_path, 1023) is None


def test_a_repeat_of_an_archived_command_is_known(store: Store, tmp_path: Path) -> None:
    """Its answer is the old position; with other arguments it is refused; nothing happens twice."""
    clock = Clock()
    repeat = Clock().new(reserved("once", share(3, 10)), key="the-key")
    with store.open() as ledger:
        history(ledger, clock, events=100)
        writer = start(ledger, "w")
        at = writer.append([repeat])
        writer.append(clock.all(released("once")))
        for number in range(200):
            writer.append(clock.all(reserved(f"q{number}", share(2, 10)), released(f"q{number}")))
        move(ledger, tmp_path)
        writer = start(ledger, "w")
        head = writer.head.position
        assert writer.append([repeat]) == head
        assert writer.record([Command(events=(repeat,))]) == [Recorded(first=at, last=at)]
        other = Clock().new(reserved("other", share(3, 10)), key="the-key")
        with pytest.raises(IdempotencyError, match="the key was used for another command"):
            writer.append([other])
        answer = writer.record([Command(events=(other,))])[0]
        assert isinstance(answer, Refused)
        assert isinstance(answer.error, IdempotencyError)
        assert ledger.head().position == head
        assert verify(ledger, segments=tmp_path).findings == ()


def test_the_state_inside_a_segment_needs_its_file(store: Store, tmp_path: Path) -> None:
    """Behind the segment it does not; every state is the one from before the move."""
    with store.open() as ledger:
        history(ledger, Clock(), events=300)
        positions = (0, 1, 5, 100, 255, 256, 257, 300)
        before = [state_at(ledger, position).state for position in positions]
        times = [each.envelope.at_us for each in ledger.read_events(limit=300)]
        move(ledger, tmp_path)
        states = [state_at(ledger, each, segments=tmp_path).state for each in positions]
        assert states == before
        assert state_at(ledger, 256).state == before[5]
        assert load_state(ledger).findings == ()
        with pytest.raises(InputError, match=r"in an archive: position=100.*file=segment-0"):
            state_at(ledger, 100)
        asked = (1, 2, 100, 255, 256, 257, 258, 299, 300)
        assert [position_at(ledger, times[each - 1]) for each in asked] == list(asked)
        assert position_at(ledger, MONDAY_US - 1) == 0
        with pytest.raises(InputError, match=r"position=1, archived=1-256, file=segment-0"):
            next(ledger.read_events())


def test_a_rebuild_without_the_files_is_refused(store: Store, tmp_path: Path) -> None:
    """History of what ended in the archive would be lost; nothing is changed."""
    with store.open() as ledger:
        history(ledger, Clock(), events=300)
        move(ledger, tmp_path)
        with pytest.raises(InputError, match="events are in an archive: positions=1-256"):
            rebuild(ledger)
        assert verify(ledger).findings == ()


def test_a_rebuild_with_the_files_repairs_old_history(store: Store, tmp_path: Path) -> None:
    """A row that an archived event explains is made again; the archived events go again."""
    with store.open() as ledger:
        history(ledger, Clock(), events=300)
        move(ledger, tmp_path)
    ended = "SELECT max(position) FROM ledger_reservations WHERE closed_position < 200"
    with store.raw() as raw:
        ((at,),) = raw.execute(ended).fetchall()
    changed(store, f"UPDATE ledger_reservations SET namespace = 'forged' WHERE position = {at}")
    with store.open() as ledger:
        assert [each.position for each in verify(ledger).findings] == [None]
        found = verify(ledger, segments=tmp_path).findings
        assert [finding.position for finding in found] == [at, None]
        report = rebuild(ledger, segments=tmp_path)
        assert [f"key=({at},)" in each for each in report.differences] == [True]
        assert verify(ledger, segments=tmp_path).findings == ()
        assert rebuild(ledger, segments=tmp_path).equal
