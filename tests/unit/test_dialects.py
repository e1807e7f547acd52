"""A dialect is an object in folders of its own: nobody else names a single one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from ledger.domain.dialects.names import FOREIGN_WORDS, Dialect
from ledger.domain.dialects.registry import READERS
from scheduler.decide.dialects.registry import CHOOSERS
from webhook.decide.dialects.registry import ADMISSIONS

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("agent", "certs", "ledger", "migrations", "scheduler", "tenure", "webhook")
FOLDERS: Final = (
    "ledger/domain/dialects",
    "scheduler/decide/dialects",
    "webhook/decide/dialects",
    "webhook/manifests/dialects",
)

REGISTRIES: Final = frozenset(
    {
        "ledger/domain/dialects/names.py",
        "ledger/domain/dialects/registry.py",
        "scheduler/decide/dialects/registry.py",
        "webhook/decide/dialects/registry.py",
        "webhook/manifests/dialects/registry.py",
    }
)

NAMED_FOR_A_REASON: Final = {
    "agent/decide/gpushare.py": "the device plugin of its proposal, on a node",
    "agent/plugin/sharing.py": "the device plugin of its proposal, on a node",
    "ledger/domain/vocabulary.py": "the mode that serves it",
    "tenure/serving/agent_options.py": "the agent's mode that serves it",
    "tenure/serving/manifests.py": "the agent's mode that serves it",
    "tenure/simulate/trace/week.py": "the demo week has nodes and users of several dialects",
}
"""Modules that name a single dialect outside its folders and the registries."""

MGPU_WORDS: Final = {
    "ledger/domain/nodes.py": "what is recorded of a node, as it is read",
    "ledger/domain/request/requests.py": "what is recorded of a request, as it is read",
    "ledger/domain/request/rule_names.py": "one list of stable names for all rules",
    "ledger/domain/vocabulary.py": "one value holds all settings of reading",
    "scheduler/decide/settings.py": "one value holds all settings of deciding",
    "tenure/simulate/trace/week.py": "the demo week has nodes and users of several dialects",
}
"""Modules whose code says mGPU outside its folders, of 49 before it had any."""

HAMI_WORDS: Final = {
    "agent/decide/isolation.py": "a provider of isolation for every dialect",
    "ledger/domain/request/rule_names.py": "one list of stable names for all rules",
    "ledger/domain/resources.py": "names of other vendors that Koordinator writes",
    "tenure/serving/agent_options.py": "the option that names a provider of isolation",
    "webhook/decide/settings.py": "a provider of isolation for every dialect",
    "webhook/decide/validating/words.py": "a label that Koordinator writes, often misspelt",
}
"""The same of HAMi, which came when every dialect had its folders."""


def _sources() -> list[str]:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def _is_in_a_folder(path: str) -> bool:
    return path.startswith(tuple(f"{folder}/" for folder in FOLDERS))


@cache
def _nodes(path: str) -> list[ast.AST]:
    """Return all that a module is made of."""
    return list(ast.walk(ast.parse((ROOT / path).read_text())))


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Let go of all the modules: the tests behind these would search them for garbage."""
    yield
    _nodes.cache_clear()


def _modules(node: ast.AST) -> Iterator[str]:
    """Yield every module, and everything in one, that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _single_dialects(path: str) -> set[str]:
    """Return the dialects that a module names: as a member, by an import, as a text."""
    found: set[str] = set()
    foreign = {words.name for words in FOREIGN_WORDS}
    for node in _nodes(path):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "Dialect":
            found.add(node.attr)
        if isinstance(node, ast.Constant) and node.value in foreign:
            found.add(str(node.value))
        for module in _modules(node):
            _, folder, inside = module.partition(".dialects.")
            if folder and inside.split(".")[0] in set(Dialect):
                found.add(module)
    return found


def _says(path: str, word: str) -> bool:
    """Tell whether the code of a module, its comments aside, has a word in any name or text."""
    texts = {
        node.body[0].value
        for node in _nodes(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return any(
        word in str(value).lower()
        for node in _nodes(path)
        if node not in texts
        for _, value in ast.iter_fields(node)
        if isinstance(value, str)
    )


def test_no_module_outside_its_folders_names_a_single_dialect() -> None:
    """Whoever has to know what a dialect says calls its object; each exception has its reason."""
    outside = [path for path in _sources() if not _is_in_a_folder(path)]
    naming = {path: names for path in outside if (names := _single_dialects(path))}

    assert len(outside) > len(NAMED_FOR_A_REASON)
    assert naming.keys() == NAMED_FOR_A_REASON.keys(), naming


def test_dialects_do_not_know_each_other() -> None:
    """Beside the registries a folder, or a module, of one dialect names no other."""
    for path in filter(_is_in_a_folder, _sources()):
        if path in REGISTRIES:
            continue
        own = {word for word in set(Dialect) if f"/{word}/" in path or f"/{word}.py" in path}
        others = {
            module
            for module in _single_dialects(path)
            if ".dialects." in module and not own & set(module.split("."))
        }
        assert not others, path


def test_every_layer_lists_every_dialect() -> None:
    """A dialect that one layer forgot would be read and never placed, or placed unread."""
    every = set(Dialect)

    assert {each.dialect for each in READERS} == every
    assert {each.dialect for each in CHOOSERS} == {*every, None}
    assert {each.dialect for each in ADMISSIONS} == every
    assert {words.name for words in FOREIGN_WORDS} <= {str(each) for each in every}
    assert {id(words) for words in FOREIGN_WORDS} <= {id(each.words) for each in READERS}


def test_no_name_is_a_word_of_two_dialects() -> None:
    """Else what a Pod asks for would depend on the order of the registry."""
    names = [name for each in READERS for name in each.words.resources]

    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("word", "modules"), [("mgpu", MGPU_WORDS), ("hami", HAMI_WORDS)], ids=["mGPU", "HAMi"]
)
def test_few_modules_say_its_name(word: str, modules: dict[str, str]) -> None:
    """What is left outside the folders are fields, settings and names that are one list for all."""
    said = {path for path in _sources() if not _is_in_a_folder(path) and _says(path, word)}

    assert said == set(modules)
