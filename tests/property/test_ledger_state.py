"""The folded state as text and back, and from any snapshot on: always the same as the full fold."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.domain.errors import CapacityError, InputError
from ledger.domain.log import state_codec
from ledger.domain.log.events import LedgerEvent
from ledger.domain.log.state import Folding, LedgerState, NodeState
from ledger.domain.log.state_codec import decode_state, encode_state
from ledger.store.proving.verify import verify
from ledger.store.reading.snapshots import take_snapshot
from ledger.store.reading.timetravel import load_state, position_at, state_at
from tests.property.test_ledger_histories import BATCHES, EVENTS
from tests.support.examples import examples
from tests.support.stores import Clock, SqliteStore, node, planned, start

PLANS = st.builds(
    lambda group, pod, minors: planned(group, (pod, tuple(sorted(minors)))),
    st.sampled_from(["g-1", "g-2"]),
    st.sampled_from(["p0", "p1", "p2"]),
    st.sets(st.integers(0, 2), max_size=2),
)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A migrated ledger without events."""
    store = SqliteStore(path=tmp_path_factory.mktemp("states") / "empty.db")
    store.open("create").close()
    return store


@given(events=st.lists(st.one_of(EVENTS, PLANS), max_size=30))
def test_a_state_is_one_text_and_comes_back(events: list[LedgerEvent]) -> None:
    """Any fold, in whatever order its mappings were filled: the same text, and the state again."""
    folded = Folding(LedgerState())
    for position, event in enumerate((node("n-1", cpus=4, gpus=3), *events), 1):
        folded.add(position, event)
    state = folded.state
    text = encode_state(state)
    turned = LedgerState(
        nodes=dict(reversed(list(state.nodes.items()))), planned_cards=state.planned_cards
    )

    assert decode_state(text) == state
    assert encode_state(decode_state(text)) == text
    assert encode_state(turned) == text


def test_the_text_has_every_field_of_a_node() -> None:
    """A field that a node's state grows is missing here until the codec writes it too."""
    wire = {each.name for each in fields(state_codec._Node)}
    assert wire == {each.name for each in fields(NodeState)}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"nodes":[]}', '{"nodes":[{}],"planned_cards":[]}', "[" * 9999]
)
def test_what_is_no_state_is_said_so(text: str) -> None:
    """Whatever the text is, it is a state or an error."""
    with pytest.raises(InputError):
        decode_state(text)


@settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batches=BATCHES, every=st.integers(1, 4))
def test_a_start_from_a_snapshot_is_the_full_fold(
    empty: SqliteStore, tmp_path: Path, batches: list[list[LedgerEvent]], every: int
) -> None:
    """Whatever happened and whenever snapshots were taken, the state is the one of all events."""
    for old in tmp_path.iterdir():
        old.unlink()
    path = Path(shutil.copy(empty.path, tmp_path / "ledger.db"))
    clock = Clock()
    with SqliteStore(path=path).open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node("n-1", cpus=4, gpus=3), node("n-2", cpus=4, gpus=3)))
        for number, batch in enumerate(batches):
            with suppress(CapacityError):
                writer.append(clock.all(*batch))
            if number % every == 0:
                take_snapshot(ledger, writer, wall_us=clock.now_us)

        full = Folding(LedgerState())
        for recorded in ledger.read_events():
            position = recorded.envelope.position
            full.add(position, recorded.event)
            assert state_at(ledger, position).state == full.state
            assert position_at(ledger, recorded.envelope.at_us) == position
        loaded = load_state(ledger)
        assert (loaded.state, loaded.findings) == (full.state, ())
        assert (loaded.snapshot_position > 0) == bool(batches)
        assert verify(ledger).findings == ()
