"""A writer whose commit was never answered: what it says then, and when it is asked again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.domain.errors import LedgerError, UnknownOutcomeError
from ledger.domain.log.recorded import NewEvent
from ledger.store.open import open_ledger
from ledger.store.proving.verify import verify
from ledger.store.writing.append import Writer
from ledger.store.writing.commands import Command, Recorded
from tests.support.cut_wire import Cut, wire_to
from tests.support.stores import Clock, PostgresStore, node, start

KEY = "the-lost-one"
Ask = Callable[[Writer, NewEvent], int]


def append(writer: Writer, new: NewEvent) -> int:
    """Record one event alone."""
    return writer.append([new], expected={new.stream: writer.stream_version(new.stream)})


def record(writer: Writer, new: NewEvent) -> int:
    """Record one event as a command, and return where it is."""
    (answer,) = writer.record([Command(events=(new,))])
    assert isinstance(answer, Recorded)
    return answer.last


@pytest.mark.parametrize("ask", [append, record], ids=["append", "record"])
@pytest.mark.parametrize("before", [0, 2], ids=["its first commit", "a later commit"])
@pytest.mark.parametrize("cut", [Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT], ids=lambda cut: cut.name)
def test_the_same_writer_settles_an_unknown_outcome_when_asked_again(
    postgres_store: PostgresStore, cut: Cut, before: int, ask: Ask
) -> None:
    """It does not take its own commit for another's, nor count on rows that are not there."""
    clock = Clock()
    with wire_to(postgres_store.url) as wire, open_ledger(wire.url, mode="write") as ledger:
        writer = start(ledger)
        for i in range(before):
            ask(writer, clock.new(node(f"n-{i}", gpus=1)))
        lost = clock.new(node("n-lost", gpus=1), key=KEY)
        wire.cut, wire.key, wire.then_refuse = cut, KEY, True
        with pytest.raises(UnknownOutcomeError):
            ask(writer, lost)
        with pytest.raises(UnknownOutcomeError, match="is still lost"):
            ask(writer, lost)
        wire.refusing = False

        assert record(writer, lost) == before + 2
        assert ask(writer, clock.new(node("n-next", gpus=1))) == before + 3
    with postgres_store.open("read") as ledger:
        assert ledger.head().position == before + 3
        assert verify(ledger).findings == ()


@pytest.mark.parametrize("cut", [Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT], ids=lambda cut: cut.name)
def test_a_writer_that_can_read_again_answers_at_once(
    postgres_store: PostgresStore, cut: Cut
) -> None:
    """Durable is answered as durable; what is not there is told so, and may come again."""
    clock = Clock()
    with wire_to(postgres_store.url) as wire, open_ledger(wire.url, mode="write") as ledger:
        writer = start(ledger)
        lost = clock.new(node("n-lost", gpus=1), key=KEY)
        wire.cut, wire.key = cut, KEY
        if cut is Cut.BEFORE_COMMIT:
            with pytest.raises(LedgerError, match="went away"):
                record(writer, lost)
        assert record(writer, lost) == 2
        assert record(writer, clock.new(node("n-next", gpus=1))) == 3
    with postgres_store.open("read") as ledger:
        assert verify(ledger).findings == ()
