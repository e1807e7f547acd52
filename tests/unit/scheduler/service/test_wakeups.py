"""The topics between the parts of the live scheduler, as declared, as wired and as documented."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest

from scheduler.service.wakeups import Topic, Wakeups
from tests.support.reconciled import Cluster

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "ARCHITECTURE.md"
SERVICE = ROOT / "scheduler" / "service"
LOOPS = ("tenure/serving/scheduling", "tenure/serving/scheduler.py")
PROCESSES = ("scheduler", "agent", "webhook", "tenure", "certs")
THEIRS = ("sni_callback",)
"""Callbacks that the standard library wants set."""


def test_a_scheduler_that_is_put_together_has_every_subscription_and_no_other() -> None:
    """In the declared order, on one bus."""
    wakeups = Cluster().live.view.wakeups
    assert {name: topic.subscribed for name, topic in wakeups.topics().items()} == {
        name: topic.subscribers for name, topic in Wakeups().topics().items()
    }


def test_a_missing_subscription_and_one_that_is_not_declared_end_the_start() -> None:
    """The message names the topic, and what is subscribed there."""
    wakeups = Cluster().live.view.wakeups
    wakeups.check()
    heard: list[str] = []
    wakeups.pod_moved.subscribe(heard.append)
    with pytest.raises(AssertionError, match=r"'pod_moved': \(.*, 'list.append'\)"):
        wakeups.check()
    with pytest.raises(AssertionError, match=r"'room_freed': \(\)"):
        Wakeups().check()


def test_each_topic_is_published_by_the_classes_that_it_declares() -> None:
    """And by no function outside of a class."""
    found: dict[str, set[str]] = {name: set() for name in Wakeups().topics()}
    for path in SERVICE.rglob("*.py"):
        for owner, topic in _publications(ast.parse(path.read_text())):
            found[topic].add(owner)
    assert found == {name: set(topic.publishers) for name, topic in Wakeups().topics().items()}


def _publications(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            if node.func.attr == "publish" and isinstance(of, ast.Attribute):
                yield owner, of.attr
        yield from _publications(node, node.name if isinstance(node, ast.ClassDef) else owner)


def test_subscribers_are_called_in_the_declared_order_before_publish_returns() -> None:
    """Whoever subscribed first; what one raises is raised, and nobody after it is called."""
    topic: Topic[str] = Topic("", "", publishers=(), subscribers=("First.take", "Second.take"))
    heard: list[tuple[str, str]] = []

    class Second:
        fails = False

        def take(self, name: str) -> None:
            if self.fails:
                raise KeyError(name)
            heard.append(("second", name))

    class First:
        def take(self, name: str) -> None:
            heard.append(("first", name))

    First.take.__qualname__, Second.take.__qualname__ = topic.subscribers
    second = Second()
    topic.subscribe(lambda name: heard.append(("last", name)))
    topic.subscribe(second.take)
    topic.subscribe(First().take)

    topic.publish("a")
    assert heard == [("first", "a"), ("second", "a"), ("last", "a")]
    heard.clear()
    second.fails = True
    with pytest.raises(KeyError):
        topic.publish("b")
    assert heard == [("first", "b")]


def test_the_page_has_the_topics_as_they_are_declared() -> None:
    """When, what, who publishes, who is called."""
    rows = [
        f"| `{name}` | {topic.when} | {topic.carries} | {_code(topic.publishers)} | "
        f"{_code(topic.subscribers)} |"
        for name, topic in Wakeups().topics().items()
    ]
    assert _rows("### Topics") == rows


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _rows(heading: str) -> list[str]:
    section = PAGE.read_text().split(f"\n{heading}\n")[1].split("\n#")[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


def test_the_page_has_the_loops_as_the_process_starts_them() -> None:
    """Each by its name in metrics and logs, how often it turns and what it calls."""
    found = {
        row
        for part in LOOPS
        for path in [ROOT / part, *(ROOT / part).rglob("*.py")]
        if path.suffix == ".py"
        for row in _loops(path)
    }
    cells = (line.strip("| ").split(" | ")[:3] for line in _rows("### Loops"))
    assert {(name, seconds, act) for name, seconds, act in cells} == found


def _loops(path: Path) -> Iterator[tuple[str, str, str]]:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    for call in calls:
        if ast.unparse(call.func) not in {"process.repeat", "every"}:
            continue
        seconds, what, act = call.args[:3]
        if not isinstance(seconds, ast.Name) or not seconds.id.isupper():
            continue  # `Process.repeat` itself
        name = str(what.value) if isinstance(what, ast.Constant) else ast.unparse(what)
        does = ast.unparse(act).replace("process.live.", "").replace("process.", "")
        yield f"`{name}`", f"{getattr(import_module(module), seconds.id):g}", f"`{does}`"


def test_no_callback_is_set_from_outside_and_none_is_born_without_an_effect() -> None:
    """What a part calls it is given when it is made, or it publishes."""
    files = {
        path.relative_to(ROOT): _statements(ast.parse(path.read_text()))
        for part in PROCESSES
        for path in (ROOT / part).rglob("*.py")
    }
    methods, others = _attributes(files.values())
    found = [
        f"{path}:{line}: {words}"
        for path, statements in files.items()
        for line, words in _callbacks(statements, methods - others)
    ]
    assert not found, "\n".join(found)


def _statements(tree: ast.AST) -> list[ast.stmt]:
    """Return what names attributes, methods and functions."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Assign, ast.AnnAssign)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def _attributes(files: Iterable[Sequence[ast.stmt]]) -> tuple[set[str], set[str]]:
    """Return the names of methods, and those of properties and of values."""
    methods: set[str] = set()
    others: set[str] = set()
    for node in (each for statements in files for each in statements):
        if isinstance(node, ast.ClassDef):
            own = _methods(node)
            methods |= own
            others |= {each.name for each in node.body if hasattr(each, "name")} - own
            fields = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
            others |= set(map(ast.unparse, fields))
        others |= {target.attr for target, _ in _assigned(node)}
    return methods, others


def _methods(of: ast.ClassDef) -> set[str]:
    return {
        each.name
        for each in of.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any("property" in ast.unparse(one) for one in each.decorator_list)
    }


def _assigned(node: ast.stmt) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    """Yield the attributes that a statement sets, with their values."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))
        yield from ((one, of) for one, of in pairs if isinstance(one, ast.Attribute))


def _callbacks(statements: Sequence[ast.stmt], methods: set[str]) -> Iterator[tuple[int, str]]:
    functions = {
        node.name for node in statements if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    bound = {
        id(value)
        for owner in statements
        if isinstance(owner, ast.ClassDef)
        for each in ast.walk(owner)
        if isinstance(each, ast.Assign)
        for _, value in _assigned(each)
        if isinstance(value, ast.Attribute)
        and ast.unparse(value.value) == "self"
        and value.attr in _methods(owner)
    }
    for target, value in (pair for node in statements for pair in _assigned(node)):
        is_own = isinstance(target.value, ast.Name) and target.value.id in {"self", "cls"}
        is_function = (
            isinstance(value, ast.Lambda)
            or id(value) in bound
            or (isinstance(value, ast.Name) and value.id in functions)
            or (isinstance(value, ast.Attribute) and value.attr in methods)
        )
        is_wire = is_function and (not is_own or isinstance(value, ast.Lambda))
        if is_wire and target.attr not in THEIRS:
            yield target.lineno, f"{ast.unparse(target)} = {ast.unparse(value)}"
