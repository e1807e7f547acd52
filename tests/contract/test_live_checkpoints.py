"""What agents keep of the ledger, and what they and the service see when it is another one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from agent.witness.history import BAD, Judged, Shown, Verdict, judged
from ledger.domain.errors import InputError, LedgerError
from ledger.signing import Note, PrivateKey, sign_note
from tenure.serving.scheduling.agents import (
    LOOK_SECONDS,
    LOOKS_BURST,
    SIGN_SECONDS,
    Checkpoints,
    Tree,
    tree_of,
)
from tests.support.recovery import recovered, witness
from tests.support.stores import Clock, SqliteStore, Store, node, reserved, share
from tests.support.stores import start as writer_of

KEY = PrivateKey.new("live")
OTHER = PrivateKey.new("other")


class Scene:
    """A service and one agent, over whichever ledger there is now."""

    def __init__(self, store: Store) -> None:
        self.now = 0.0
        self.kept = ""
        self.why: list[str] = []
        self.checkpoints = Checkpoints(
            store.url, KEY, now=lambda: self.now, disproved=self.why.append
        )

    def swap(self, store: Store) -> None:
        """Let another ledger be where this one was."""
        self.checkpoints.url = store.url
        self.now += SIGN_SECONDS

    def ask(self, *, key: PrivateKey = KEY) -> Judged:
        """Let the agent ask, and judge."""
        self.now += SIGN_SECONDS
        answer = asyncio.run(self.checkpoints.answer(self.kept, "the agent of n-1"))
        shown = Shown(checkpoint=answer["checkpoint"], consistency=answer["consistency"])
        found = judged(self.kept, shown, [key.public])
        self.kept = found.keep
        return found


def grow(store: Store, *pods: str) -> None:
    """Reserve a little of a card for each Pod."""
    with store.open() as ledger:
        clock = Clock(ledger.head().at_us + 1_000_000) if ledger.head().epoch else Clock()
        new = [] if ledger.head().epoch else [node(gpus=2)]
        writer = writer_of(ledger)
        events = clock.all(*new, *(reserved(pod, share(0, 1)) for pod in pods))
        writer.append(
            [replace(each, idempotency_key=f"{pods} {n}") for n, each in enumerate(events)]
        )


@pytest.fixture
def spare(store: Store, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Another ledger on the same database, without events."""
    if isinstance(store, SqliteStore):
        empty: SqliteStore = request.getfixturevalue("empty_ledger")
        yield empty.copy(store.path.with_name("spare.db"))
        return
    copy = request.getfixturevalue("empty_postgres").copy()
    yield copy
    request.getfixturevalue("postgres").drop(copy.database)


def test_a_ledger_that_grows_is_followed(store: Store) -> None:
    """Every checkpoint is shown to have grown out of the one before, also within two seconds."""
    grow(store, "a", "b")
    scene = Scene(store)
    assert scene.ask().verdict == Verdict.FIRST
    for number in range(5):
        grow(store, f"p{number}")
        assert scene.ask().verdict == Verdict.GROWN
    first, scene.kept = scene.kept, ""
    scene.now -= SIGN_SECONDS
    assert scene.ask().verdict == Verdict.FIRST
    scene.kept = first
    scene.now -= SIGN_SECONDS
    assert (scene.ask().verdict, scene.why) == (Verdict.GROWN, [])


def test_agents_that_kept_other_checkpoints_cost_one_look_at_the_ledger(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6,000 of them keep those of the last minute, and each new one is proved to all of them."""
    scene, kept, looks = Scene(sqlite_store), list[str](), list[object]()

    def counted(*words: Any) -> Tree:  # noqa: ANN401 - those of `tree_of`
        looks.append(words)
        return tree_of(*words)

    monkeypatch.setattr("tenure.serving.scheduling.agents.tree_of", counted)
    for number in range(12):
        grow(sqlite_store, f"p{number}")
        scene.ask()
        kept.append(scene.kept)
    looks.clear()
    grow(sqlite_store, "last")
    for scene.kept in reversed(kept):
        assert scene.ask().verdict == Verdict.GROWN
        scene.now -= SIGN_SECONDS
    assert len(looks) == 1


def test_what_a_service_has_no_proof_of_makes_no_checkpoint_and_few_looks(
    sqlite_store: Store,
) -> None:
    """After a start agents keep older ones. A new one for each is more than proofs are for."""
    scene, kept = Scene(sqlite_store), list[str]()
    for number in range(LOOKS_BURST + 1):
        grow(sqlite_store, f"p{number}")
        scene.ask()
        kept.append(scene.kept)
    grow(sqlite_store, "last")
    scene = Scene(sqlite_store)
    scene.ask()
    signed = scene.kept
    for number, scene.kept in enumerate(kept[:-1]):
        grow(sqlite_store, f"q{number}")
        scene.now -= SIGN_SECONDS
        assert (scene.ask().verdict, scene.kept) == (Verdict.GROWN, signed)
    scene.kept = kept[-1]
    with pytest.raises(LedgerError, match="asked about too many"):
        scene.ask()
    scene.now += LOOK_SECONDS
    assert scene.ask().verdict == Verdict.GROWN


def test_an_older_copy_is_noticed_by_the_agent_and_by_the_service(
    store: Store, spare: Store
) -> None:
    """Each by itself: a service that starts on the copy has signed nothing before."""
    for each in (store, spare):
        grow(each, "a", "b")
    scene = Scene(store)
    grow(store, "c", "d")
    scene.ask()
    scene.swap(spare)
    fresh = Scene(spare)
    fresh.kept = scene.kept
    assert scene.ask().verdict == fresh.ask().verdict == Verdict.RESTORED
    for one in (scene, fresh):
        assert "LedgerRecovering: the ledger lacks positions" in one.why[0]
        assert one.ask().verdict == Verdict.RESTORED
    assert "seen by this service" in scene.why[0]
    assert "seen by the agent of n-1" in fresh.why[0]


def test_an_empty_ledger_in_its_place_is_noticed_too(store: Store, spare: Store) -> None:
    """By the service that signed the other one; there is nothing to sign any more."""
    grow(store, "a")
    scene = Scene(store)
    scene.ask()
    scene.swap(spare)
    with pytest.raises(LedgerError):
        scene.ask()
    assert "LedgerRecovering: the ledger lacks positions 1 to" in scene.why[0]


def test_a_history_that_was_written_anew_is_noticed(store: Store, spare: Store) -> None:
    """All hashes fit in themselves; it is longer, and one event is another."""
    grow(store, "a", "b", "c")
    grow(spare, "a", "x", "c", "d", "e", "f")
    scene = Scene(store)
    scene.ask()
    scene.swap(spare)
    fresh = Scene(spare)
    fresh.kept = scene.kept
    assert scene.ask().verdict == fresh.ask().verdict == Verdict.REWRITTEN
    for one in (scene, fresh):
        assert "another history than was seen" in one.why[0]


def test_what_a_recovery_names_as_lost_is_believed_of_who_has_the_key(
    store: Store, spare: Store
) -> None:
    """Loudly, once; and no service goes into quarantine over it again."""
    for each in (store, spare):
        grow(each, "a", "b")
    scene = Scene(store)
    grow(store, "c", "d")
    scene.ask()
    with store.open() as ledger:
        seen = witness(ledger)
    with spare.open() as ledger:
        recovered(ledger, (), witnesses=(seen,))
    after = Scene(spare)
    after.kept = scene.kept
    assert (after.ask().verdict, after.why) == (Verdict.RECOVERED, [])
    assert (after.ask().verdict, after.why) == (Verdict.GROWN, [])


def test_a_checkpoint_that_nobody_trusted_signed_says_nothing(store: Store) -> None:
    """The agent keeps what it has; and the service believes no note but its own."""
    grow(store, "a")
    scene = Scene(store)
    scene.ask()
    kept = scene.kept
    assert scene.ask(key=OTHER).verdict == Verdict.UNSIGNED
    assert scene.kept == kept
    forged = Note.parse(kept).text.replace("\n4\n", "\n9\n").replace("\n3\n", "\n9\n")
    scene.kept = sign_note(forged, OTHER)
    assert scene.ask().verdict in BAD
    assert scene.why == []
    with pytest.raises(InputError, match="kept"):
        asyncio.run(scene.checkpoints.answer("no note", "x"))
