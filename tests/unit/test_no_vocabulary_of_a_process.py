"""Nothing in a process decides for all of it what a name means: read off the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("agent", "certs", "ledger", "scheduler", "tenure", "webhook")
MODULES: Final = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
CHANGING: Final = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "setdefault",
        "update",
    ]
)
REMEMBERED: Final = {"ledger/store/proving/damage_postgres_scratch.py": {"_known", "_same"}}
"""What a server of one version says of our words: nobody sets it, and no other answer exists."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a module's source as a tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Return all that a tree is made of."""
    return list(ast.walk(tree))


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Let go of all the trees: the tests behind these would search them for garbage."""
    yield
    tree_of.cache_clear()
    nodes_of.cache_clear()


def functions_of(tree: ast.AST) -> Iterator[Function]:
    """Yield every function of a module, methods and inner ones too."""
    return (node for node in nodes_of(tree) if isinstance(node, Function))


def bound_in(node: ast.AST) -> set[str]:
    """Return every name that is bound somewhere below a node."""
    below = nodes_of(node)
    names = {one.id for one in below if isinstance(one, ast.Name) and is_store(one)}
    return names | {one.arg for one in below if isinstance(one, ast.arg)}


def is_store(name: ast.Name) -> bool:
    """Tell whether a name is bound where it stands."""
    return isinstance(name.ctx, ast.Store)


def names_of_module(tree: ast.Module) -> set[str]:
    """Return the names that a module itself binds to values."""
    targets: list[ast.expr] = []
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AnnAssign):
            targets.append(node.target)
    return {one.id for one in targets if isinstance(one, ast.Name)}


def changed_in(function: Function) -> Iterator[tuple[str, int]]:
    """Yield (name, line) of what a function rebinds as a global, or changes in place."""
    for node in nodes_of(function):
        if isinstance(node, ast.Global):
            yield from ((name, node.lineno) for name in node.names)
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.value, ast.Name):
            if isinstance(node.ctx, ast.Store | ast.Del):
                yield node.value.id, node.lineno
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in CHANGING
            and isinstance(node.func.value, ast.Name)
        ):
            yield node.func.value.id, node.lineno


def test_no_function_changes_what_a_module_holds() -> None:
    """No registry to install into, in any package: what differs is passed as a value."""
    found = []
    for path in MODULES:
        tree = tree_of(path)
        held = names_of_module(tree) - REMEMBERED.get(str(path.relative_to(ROOT)), set())
        for function in functions_of(tree):
            found += [
                f"{path.relative_to(ROOT)}:{line}: {name}"
                for name, line in changed_in(function)
                if name in held and name not in bound_in(function)
            ]
    assert found == []


@pytest.mark.parametrize(
    "body",
    ["global _current\n    _current = {}", "_current['npu'] = 1", "_current.update(npu=1)"],
    ids=["rebound", "changed", "added to"],
)
def test_a_registry_would_be_found(body: str) -> None:
    """The rule above is not empty: the three ways to install something."""
    tree = ast.parse(f"_current: dict = {{}}\ndef install():\n    {body}\n")
    (function,) = functions_of(tree)

    assert {name for name, _ in changed_in(function)} == {"_current"} == names_of_module(tree)


def defaulted() -> dict[str, tuple[int, str]]:
    """Return function name -> place and name of its vocabulary, where it has a default."""
    found = {}
    for path in MODULES:
        for function in functions_of(tree_of(path)):
            arguments = [*function.args.posonlyargs, *function.args.args]
            for place, argument in enumerate([*arguments, *function.args.kwonlyargs]):
                is_one = argument.annotation and ast.unparse(argument.annotation) == "Vocabulary"
                needed = len(arguments) - len(function.args.defaults)
                if is_one and place >= needed:
                    found[function.name] = place, argument.arg
    return found


def test_what_reads_objects_is_always_told_by_which_words() -> None:
    """The default is for tests and prompts: no code of ours reads by the built-in words alone."""
    readers = defaulted()
    missing = []
    for path in MODULES:
        for node in nodes_of(tree_of(path)):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in readers:
                    place, keyword = readers[name]
                    given = len(node.args) > place or keyword in {one.arg for one in node.keywords}
                    missing += [] if given else [f"{path.relative_to(ROOT)}:{node.lineno}: {name}"]
    assert {"decode_pod", "adopt", "decode_node", "read_pod"} <= readers.keys()
    assert missing == []
