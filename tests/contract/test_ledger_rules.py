"""
Every rule of the table is on both databases, and every refusal of them stops somebody.

A refusal is silenced in one database: then a cheat that it stopped goes through, or is stopped in
other words. So no refusal is without a test, and none can be taken out unseen.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from ledger.store.ddl import postgres, sqlite_triggers
from ledger.store.ddl.postgres_guard import ALLOW
from ledger.store.ddl.rules import table
from ledger.store.ddl.rules.rule import RefusalWords, TableRule
from ledger.store.ddl.sqlite_triggers import named
from ledger.store.failures import words_of
from tests.contract.test_ledger_cheats import BORROWED, REFUSED, borrowed_events, full_events
from tests.contract.test_postgres_rules import CHEATS as REFUSED_THERE
from tests.contract.test_postgres_rules import LOANS, OTHER_WORDS
from tests.support.postgres import Server
from tests.support.rule_cheats import CHEATS, SCENES
from tests.support.stores import Clock, PostgresStore, SqliteStore, Store, start

Refused = tuple[TableRule, RefusalWords]
_SAID: Final = re.compile(r"tenure ledger: (.*?)'?$", re.DOTALL)
_HOLE: Final = re.compile(r"\{.*?\}", re.DOTALL)
_RAISED: Final = re.compile(r"RAISE EXCEPTION USING .*?;", re.DOTALL)
_BLOB: Final = re.compile(r"zeroblob\((\d+)\)")
_FUNCTION: Final = re.compile(r"CREATE FUNCTION (\w+)\(\)")
REFUSALS: Final[tuple[Refused, ...]] = tuple(
    dict.fromkeys(
        (rule, case.refusal)
        for rule in table.RULES
        for case in (*rule.cases, *([rule.besides] if rule.besides else []))
        if case.refusal is not None
    )
)
IDS: Final = [f"{rule.name}: {_HOLE.sub('_', refusal.text)}" for rule, refusal in REFUSALS]


def says(text: str, refusal: RefusalWords) -> bool:
    """Tell whether the text has the words of a refusal in turn, whatever values stand between."""
    place = 0
    for part in _HOLE.split(refusal.text):
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


def is_said_by(answer: str, refusal: RefusalWords) -> bool:
    """Tell whether this is what a refusal says."""
    parts = _HOLE.split(refusal.text)
    whole = answer.startswith(parts[0]) and answer.endswith(parts[-1])
    return (whole and says(answer, refusal)) or answer == refusal.short


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """
    A database with ledgers in which cheats are tried, each in a transaction that is rolled back.

    Attributes:
        cheats: statements of which the last one is refused, by scene and name.
        answers: what was refused, in which words.
    """

    connections: dict[str, Any]
    cheats: dict[tuple[str, str], Sequence[str]]
    answers: dict[tuple[str, str], str]

    def answer(self, scene: str, statements: Sequence[str], silenced: Sequence[str] = ()) -> str:
        """Return in which words the last of the statements is refused; nothing if it is not."""
        raw = self.connections[scene]
        raw.execute("BEGIN")
        try:
            for statement in (*silenced, *statements[:-1]):
                raw.execute(statement)
            try:
                raw.execute(statements[-1])
            except (sqlite3.Error, psycopg.Error) as error:
                found = _SAID.search(words_of(error))
                return found[1].replace("''", "'") if found else words_of(error)
            return ""
        finally:
            raw.execute("ROLLBACK")

    def stopped_by(self, refusal: RefusalWords) -> list[tuple[str, str]]:
        """Return the cheats that a refusal stops."""
        return [key for key, answer in self.answers.items() if is_said_by(answer, refusal)]


def _try(connections: dict[str, Any], cheats: dict[tuple[str, str], Sequence[str]]) -> Tried:
    tried = Tried(connections=connections, cheats=cheats, answers={})
    for (scene, name), statements in cheats.items():
        tried.answers[scene, name] = tried.answer(scene, statements)
    return tried


def _fill(stores: dict[str, Store], folder: Path) -> None:
    events = {"full": full_events, "borrowed": borrowed_events}
    for scene, store in stores.items():
        with store.open() as ledger:
            if scene in SCENES:
                SCENES[scene](ledger, folder / scene)
            else:
                start(ledger).append(Clock().all(*events[scene]()))


OTHER_ORDER: Final = {*OTHER_WORDS, "setting a stream back"}
"""Cheats of which the databases find another row or another fault first."""
SCENE_NAMES: Final = ("full", "borrowed", *SCENES)
_OWN: Final = {(each.scene, name): each.statements for name, each in CHEATS.items()}


@pytest.fixture(scope="module")
def on_sqlite(
    empty_ledger: SqliteStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tried]:
    """Every cheat, tried on SQLite as anyone with the file can."""
    folder = tmp_path_factory.mktemp("scenes")
    stores = {scene: empty_ledger.copy(folder / f"{scene}.db") for scene in SCENE_NAMES}
    for scene in SCENES:
        (folder / scene).mkdir()
    _fill(dict(stores), folder)
    cheats: dict[tuple[str, str], Sequence[str]] = {
        **{("full", name): (sql,) for name, (sql, _) in REFUSED.items()},
        **{("borrowed", name): (sql,) for name, (sql, _) in BORROWED.items()},
        **_OWN,
    }
    opened = {
        scene: sqlite3.connect(store.path, isolation_level=None) for scene, store in stores.items()
    }
    yield _try(dict(opened), cheats)
    for raw in opened.values():
        raw.close()


@pytest.fixture(scope="module")
def on_postgres(
    postgres: Server, empty_postgres: PostgresStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tried]:
    """Every cheat, tried on Postgres as a superuser can."""
    folder = tmp_path_factory.mktemp("scenes")
    stores = {scene: empty_postgres.copy() for scene in SCENE_NAMES}
    for scene in SCENES:
        (folder / scene).mkdir()
    _fill(dict(stores), folder)
    cheats: dict[tuple[str, str], Sequence[str]] = {
        **{("full", name): (sql,) for name, (sql, _) in REFUSED_THERE.items()},
        **{("borrowed", name): (sql,) for name, (sql, _) in LOANS.items()},
        **{
            key: [_BLOB.sub(r"decode(repeat('00', \1), 'hex')", each) for each in statements]
            for key, statements in _OWN.items()
        },
    }
    opened = {scene: psycopg.connect(store.url, autocommit=True) for scene, store in stores.items()}
    yield _try(dict(opened), cheats)
    for raw in opened.values():
        raw.close()
    for store in stores.values():
        postgres.drop(store.database)


def test_the_table_is_what_both_databases_are_given() -> None:
    """A rule is a trigger of its name on SQLite; on Postgres its words are in its function."""
    triggers = {named(text): text for text in sqlite_triggers.TRIGGERS}
    functions = {
        made[1]: text for text in postgres.RULES if (made := _FUNCTION.match(text)) is not None
    }
    for rule, refusal in REFUSALS:
        assert says(triggers[rule.name], refusal), rule
        homes = {rule.name, postgres.TOGETHER.get(rule.name, rule.name), "ledger_devices_sum"}
        assert any(says(functions.get(home, ""), refusal) for home in homes), rule


def test_every_cheat_is_refused_in_the_same_words(on_sqlite: Tried, on_postgres: Tried) -> None:
    """To the letter, but for the few whose checks come in another order there."""
    both = on_sqlite.answers.keys() & on_postgres.answers.keys()
    differ = {
        name
        for key in both
        if on_sqlite.answers[key] != on_postgres.answers[key]
        for _, name in [key]
    }
    assert differ <= OTHER_ORDER
    for tried in (on_sqlite, on_postgres):
        assert all(tried.answers.values()), tried.answers


@pytest.mark.parametrize(("rule", "refusal"), REFUSALS, ids=IDS)
def test_a_refusal_that_is_silent_is_missed(
    on_sqlite: Tried, rule: TableRule, refusal: RefusalWords
) -> None:
    """Of what it stopped on SQLite, something goes through or is stopped in other words."""
    cases = [*rule.cases, *([rule.besides] if rule.besides else [])]
    never = [case._replace(condition="false") if case[1] == refusal else case for case in cases]
    count = len(rule.cases)
    silent = rule._replace(cases=tuple(never[:count]), besides=next(iter(never[count:]), None))
    text = sqlite_triggers.of_rule(silent)
    assert text not in sqlite_triggers.TRIGGERS
    _check(on_sqlite, refusal, (f"DROP TRIGGER {rule.name}", text))


@pytest.mark.parametrize(("rule", "refusal"), REFUSALS, ids=IDS)
def test_a_refusal_that_is_silent_is_missed_on_postgres(
    on_postgres: Tried, rule: TableRule, refusal: RefusalWords
) -> None:
    """The same on Postgres, wherever it is said there."""
    del rule
    silent = []
    for text in filter(_FUNCTION.match, postgres.RULES):
        changed = text
        for raised in _RAISED.findall(text):
            if says(raised, refusal):
                # A loop over rows ends with a refusal or without it.
                leave = "NULL;" if "RETURN NULL;\nEND" not in text else "RETURN NULL;"
                changed = changed.replace(raised, leave)
        if changed != text:
            silent.append(changed.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
    assert silent
    _check(on_postgres, refusal, (ALLOW, *silent))


def _check(tried: Tried, refusal: RefusalWords, silenced: Sequence[str]) -> None:
    stopped = tried.stopped_by(refusal)
    assert stopped, "no cheat is stopped by this refusal"
    assert any(
        tried.answer(scene, tried.cheats[scene, name], silenced) != tried.answers[scene, name]
        for scene, name in stopped
    )
