"""Questions to a service are bounded in number, time and rows; one that fails harms no other."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ledger.domain.errors import InputError, TenureError
from ledger.store.open import Ledger
from scheduler.service.api.http import RefusedError
from tenure.asking import Answer, Sight
from tenure.query import questions
from tenure.query.questions import Kind
from tenure.query.top import TopQuestion
from tenure.serving.scheduling.api import WAITING_MAX, Answering
from tests.support.ledgers import morning, write_ledger

pytestmark = pytest.mark.integration

WHO = [("name", "gpu-a/0")]


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """The ledger of one morning."""
    return str(write_ledger(tmp_path / "morning.db", morning()))


def test_one_question_too_many_is_refused_and_those_before_are_answered(ledger: str) -> None:
    """They wait for one thread, in order."""
    thread, free = ThreadPoolExecutor(1), threading.Event()
    thread.submit(free.wait)
    answering = Answering(ledger, thread=thread)

    async def main() -> None:
        waiting = [
            asyncio.create_task(answering.answer("who", WHO, "")) for _ in range(WAITING_MAX)
        ]
        await asyncio.sleep(0)
        with pytest.raises(RefusedError) as refused:
            await answering.answer("who", WHO, "")
        assert (refused.value.status, refused.value.retry) == (429, True)
        free.set()
        assert all(said.text.startswith("gpu-a/0") for said in await asyncio.gather(*waiting))

    asyncio.run(main())
    answering.close()


def test_a_question_that_is_not_answered_in_time_is_refused_and_forgotten(ledger: str) -> None:
    """Whoever comes after it is answered."""
    thread, free = ThreadPoolExecutor(1), threading.Event()
    thread.submit(free.wait)
    late = Answering(ledger, thread=thread, seconds=0.01)

    async def main() -> None:
        for _ in range(WAITING_MAX + 1):  # each gives its place back
            with pytest.raises(RefusedError) as refused:
                await late.answer("who", WHO, "")
            assert refused.value.status == 504
            await asyncio.sleep(0)
        free.set()
        assert (await Answering(ledger, thread=thread).answer("who", WHO, "")).text

    asyncio.run(main())
    late.close()


def test_the_query_of_a_question_that_is_late_is_ended(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one thread is free for whoever asks next, however long the query would have taken."""
    begun = threading.Event()

    def endless(source: Ledger, _question: object, _sight: Sight) -> Answer:
        begun.set()
        with source.connection.begin():
            source.connection.exec_driver_sql(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
                " SELECT count(*) FROM n"
            )
        raise AssertionError("it has no end")

    monkeypatch.setitem(questions.QUESTIONS, "top", Kind(question=TopQuestion, answers=endless))
    thread = ThreadPoolExecutor(1)
    late, patient = Answering(ledger, thread=thread, seconds=0.5), Answering(ledger, thread=thread)

    async def main() -> None:
        while not begun.is_set():  # it may be late before it begins
            with pytest.raises(RefusedError) as refused:
                await late.answer("top", [], "")
            assert refused.value.status == 504
        assert (await patient.answer("who", WHO, "")).text

    try:
        asyncio.run(main())
    finally:
        late.close()


def test_too_many_rows_are_refused_with_what_to_ask_instead(ledger: str) -> None:
    """The morning had more than one holder."""
    answering = Answering(ledger, rows_max=1)
    with pytest.raises(InputError, match="too many rows") as refused:
        asyncio.run(answering.answer("who", [("name", "gpu-a"), ("history", "true")], ""))
    assert "a shorter window" in refused.value.__notes__[0]
    answering.close()


def test_a_ledger_that_is_away_fails_one_question_and_not_the_next(
    ledger: str, tmp_path: Path
) -> None:
    """It is opened for each of them."""
    answering = Answering(ledger)

    Path(ledger).rename(tmp_path / "away.db")
    with pytest.raises(TenureError):
        asyncio.run(answering.answer("who", WHO, ""))
    (tmp_path / "away.db").rename(ledger)
    assert asyncio.run(answering.answer("who", WHO, "")).text
    answering.close()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ([], "missing required field `name`"),
        ([("name", "a"), ("name", "b")], "name: said twice"),
        ([("name", "a"), ("ledger", "/etc/passwd")], "ledger: unknown parameter"),
        ([("name", "a"), ("history", "perhaps")], "history: "),
        ([("name", "a"), ("output", "parquet")], "output: "),
    ],
    ids=["none", "twice", "unknown", "no truth value", "a form that is no text"],
)
def test_a_question_that_can_not_be_read_says_which_parameter(
    params: list[tuple[str, str]], words: str, ledger: str
) -> None:
    """Nothing is guessed."""
    answering = Answering(ledger)
    with pytest.raises(InputError, match=words):
        asyncio.run(answering.answer("who", params, ""))
    answering.close()


HELD = "held: 3 of 4 members have come, until 12:03:05 UTC"


@pytest.mark.parametrize(
    ("name", "uid"), [("ml/w-0", "new"), ("ml/big-1", "uid-big-1"), ("ml/nb-7", "again")]
)
@pytest.mark.parametrize("output", [[], [("output", "json")], [("output", "csv")]])
def test_a_pod_whose_bind_waits_for_its_gang_is_explained_by_that(
    name: str, uid: str, output: list[tuple[str, str]], ledger: str
) -> None:
    """One that no ledger knows, that was refused before, or whose name another Pod had."""

    def sight(namespace: str) -> Sight:
        return Sight(namespace=namespace, binding={name: (uid, HELD)})

    answering = Answering(ledger, sight)
    text = asyncio.run(answering.answer("why", [("name", name), *output], "ml")).text
    hidden = [("name", name), *output]
    with pytest.raises(InputError, match="knows no Pod"):
        asyncio.run(answering.answer("why", hidden, "other"))
    answering.close()
    assert HELD in text
    assert "Insufficient" not in text, "it has a place now"
    if not output:
        assert text == f"{name} waits to be bound, {HELD}\n"
    if ("output", "json") in output:
        record = json.loads(text)
        assert (record["pod_uid"], record["state"], record["message"]) == (uid, "waiting", HELD)
        assert (record["since"], record["reasons"]) == ("", [])


def test_what_the_ledger_has_of_a_pod_comes_after_what_waits_in_memory(ledger: str) -> None:
    """It was reserved for between the question and the answer; a gang in part is a note."""

    def sight(namespace: str) -> Sight:
        binding = {"ml/train-0": ("uid-train-0", HELD)}
        return Sight(namespace=namespace, binding=binding, in_part={"ml/big-1": "in part"})

    answering = Answering(ledger, sight)
    placed = asyncio.run(answering.answer("why", [("name", "ml/train-0")], ""))
    waits = asyncio.run(answering.answer("why", [("name", "ml/big-1")], ""))
    answering.close()
    assert "ml/train-0 has its place" in placed.text
    assert "Insufficient gpu devices" in waits.text
    assert "ml/big-1: in part" in waits.notes
