"""YAML streams as JSON values, and the line of a field in them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import yaml

from agent.documents import yaml_fault
from ledger.domain.errors import InputError
from tenure.sources.json_text import line_at
from tenure.sources.paths import child_of, item_of

DEPTH_MAX: Final = 100
VALUES_MAX: Final = 1_000_000
"""Values of one document after its aliases are written out."""

_CORE: Final = "tag:yaml.org,2002:"
_MERGE: Final = f"{_CORE}merge"
_BRACKET: Final = re.compile(r"[\[\]{}]")
_DEEP_HINT: Final = re.compile(rf"^ {{{DEPTH_MAX}}}|(?:- ){{{DEPTH_MAX // 2}}}", re.MULTILINE)
_WHOLE_BELOW: Final = 1e21
"""Whole numbers below it have no exponent in Go's JSON."""
_BOOLEANS: Final = "[yYnN]|[yY]es|YES|[nN]o|NO|[tT]rue|TRUE|[fF]alse|FALSE|[oO]n|ON|[oO]ff|OFF"
_INTEGERS: Final = (  # as go-yaml reads them: underscores go first, except in front
    r"(?:[-+]_*)?(?:[1-9][0-9_]*|0_*(?:(?:[oO]_*)?[0-7][0-7_]*)?"
    r"|0_*[xX]_*[0-9a-fA-F][0-9a-fA-F_]*|0_*[bB]_*[01][01_]*)"
)
_EXPONENT: Final = r"(?:[eE]_*(?:[-+]_*)?[0-9][0-9_]*)?"
_FLOATS: Final = (
    rf"(?:(?:[-+]_*)?[0-9][0-9_]*(?:\.[0-9_]*)?|[-+]_*\._*[0-9][0-9_]*){_EXPONENT}"
    r"|\.[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)


def yaml_documents(name: str, text: str) -> tuple[Any, ...]:
    """Return each document; an empty one is None. Raises InputError: bad YAML; with its line."""
    try:
        _refuse_deep(text)
        return tuple(_constructed(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = name if mark is None else f"{name}:{mark.line + 1}"
        raise InputError(f"broken YAML: {yaml_fault(error, text)}", place=place) from error
    except yaml.reader.ReaderError as error:
        place = f"{name}:{line_at(text, int(error.position))}"
        raise InputError(f"broken YAML: {error.reason}", place=place) from error


def yaml_line(text: str, number: int, field: str) -> int:
    """Return the line of a field of document `number`, or of its nearest parent that exists."""
    node = _node(text, number)
    line = 0 if node is None else int(node.start_mark.line)
    while field:
        if isinstance(node, yaml.MappingNode):
            member = child_of(field, ((str(key.value), (key, value)) for key, value in node.value))
            if member is None:
                break
            (key, node), field = member
            line = int(key.start_mark.line)
        elif isinstance(node, yaml.SequenceNode):
            item = item_of(field, node.value)
            if item is None:
                break
            node, field = item
            line = int(node.start_mark.line)
        else:
            break
    return line + 1


def _node(text: str, number: int) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        for _ in range(number):
            loader.check_node()
            loader.get_node()
        loader.check_node()
        return loader.get_node()
    finally:
        loader.dispose()


def _constructed(text: str) -> Iterator[Any]:
    may_alias = "&" in text and "*" in text
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # check_node said so
            if may_alias:
                _refuse_bombs(node)
            value = loader.construct_document(node)
            yield _written_out(value) if may_alias else value
    finally:
        loader.dispose()


# --- traps ------------------------------------------------------------------------------------


class _TrapError(yaml.MarkedYAMLError):
    """What YAML allows and a manifest must not hold, at the place of a node."""

    def __init__(self, fact: str, mark: Any) -> None:  # noqa: ANN401 - PyYAML has two Mark classes
        super().__init__(problem=fact, problem_mark=mark)


def _refuse_deep(text: str) -> None:
    """
    Refuse a document that is nested deeper than any manifest, before the parser builds it.

    The parser's C code recurses without a bound: 100,000 brackets would end the process.
    """
    depth = deepest = 0
    for bracket in _BRACKET.finditer(text):
        depth = max(0, depth + (1 if bracket[0] in "[{" else -1))
        deepest = max(deepest, depth)
    if deepest <= DEPTH_MAX and not _DEEP_HINT.search(text):
        return
    depth = 0  # brackets may stand in quotes: the parser's events decide
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                raise _TrapError(f"nested deeper than {DEPTH_MAX}", event.start_mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _refuse_bombs(root: yaml.Node) -> None:
    """Refuse aliases that contain themselves, nest too deep, or write out to too many values."""
    sizes: dict[int, tuple[int, int]] = {}  # node -> (values written out, depth)
    unfinished: set[int] = set()
    stack: list[tuple[yaml.Node, bool]] = [(root, False)]
    while stack:
        node, parts_known = stack.pop()
        parts = _parts(node)
        if parts_known:
            unfinished.discard(id(node))
            size = 1 + sum(sizes[id(part)][0] for part in parts)
            depth = 1 + max((sizes[id(part)][1] for part in parts), default=0)
            if size > VALUES_MAX:
                fact = f"aliases write out to more than {VALUES_MAX} values"
                raise _TrapError(fact, node.start_mark)
            if depth > DEPTH_MAX + 1:
                raise _TrapError(f"nested deeper than {DEPTH_MAX}", node.start_mark)
            sizes[id(node)] = (size, depth)
        elif id(node) not in sizes:
            unfinished.add(id(node))
            stack.append((node, True))
            for part in parts:
                if id(part) in unfinished:
                    raise _TrapError("an alias contains itself", part.start_mark)
                stack.append((part, False))


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _written_out(value: Any) -> Any:  # noqa: ANN401 - a JSON value
    if isinstance(value, dict):
        return {key: _written_out(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_written_out(item) for item in value]
    return value


# --- types ------------------------------------------------------------------------------------


class _Loader(yaml.CSafeLoader):
    """Kubernetes' YAML: JSON's types, YAML 1.1 booleans, no dates, no numbers to the base 60."""

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}  # type: ignore[misc] # PyYAML's own way
    yaml_constructors: ClassVar[dict[Any, Any]] = {}


def _construct_object(loader: _Loader, node: yaml.MappingNode) -> Iterator[dict[str, Any]]:
    made: dict[str, Any] = {}
    yield made
    seen: set[str] = set()
    for key, _ in node.value:
        name = _key_of(key)
        if name in seen and key.tag != _MERGE:
            raise _TrapError(f"the key {name!r} stands twice in one mapping", key.start_mark)
        seen.add(name)
    loader.flatten_mapping(node)
    for key, value in node.value:
        made[_key_of(key)] = loader.construct_object(value)


def _construct_array(loader: _Loader, node: yaml.SequenceNode) -> Iterator[list[Any]]:
    made: list[Any] = []
    yield made
    made.extend(loader.construct_object(item) for item in node.value)


def _key_of(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _TrapError("a key must be text (a template is not a manifest)", node.start_mark)
    if node.tag == f"{_CORE}int":
        return str(_construct_int(None, node))
    other = node.tag == f"{_CORE}float" and node.value != f"{_construct_float(None, node):g}"
    if other or node.tag in (f"{_CORE}bool", f"{_CORE}null"):
        fact = f"the key {node.value or '~'} is not text in YAML: put it in quotes"
        raise _TrapError(fact, node.start_mark)
    return str(node.value)


def _construct_int(_: object, node: yaml.ScalarNode) -> int:
    text = str(node.value).lower().replace("_", "")
    digits, base = text.lstrip("+-"), 10
    if digits[:2] in ("0x", "0b", "0o"):
        base, digits = {"x": 16, "b": 2, "o": 8}[digits[1]], digits[2:]
    elif digits.startswith("0") and len(digits) > 1:
        base = 8
    try:
        number = int(digits, base)
    except ValueError as error:
        raise _TrapError(f"not a number: value={text[:80]!r}", node.start_mark) from error
    return -number if text.startswith("-") else number


def _construct_float(_: object, node: yaml.ScalarNode) -> float | str:
    """Return a number as JSON writes it, a whole one without a point; text where it is too big."""
    text = str(node.value)
    try:
        number = float(text.replace("_", ""))
    except ValueError:  # .inf, .nan, or what a tag calls a number
        fact = f"not a number of JSON: value={text[:80]!r}"
        raise _TrapError(fact, node.start_mark) from None
    if math.isinf(number):
        return text
    return int(number) if number.is_integer() and abs(number) < _WHOLE_BELOW else number


def _construct_bool(_: _Loader, node: yaml.ScalarNode) -> bool:
    return str(node.value).lower() in ("y", "true", "yes", "on")


def _construct_text(_: _Loader, node: yaml.ScalarNode) -> str:
    return str(node.value)


def _construct_null(_: _Loader, __: yaml.Node) -> None:
    return None


def _construct_unknown(_: _Loader, node: yaml.Node) -> None:
    raise _TrapError(f"a type that JSON does not have: tag={node.tag[:80]}", node.start_mark)


for _kind, _pattern, _first in (
    ("bool", _BOOLEANS, [*"yYnNtTfFoO"]),
    ("int", _INTEGERS, [*"-+0123456789"]),
    ("float", _FLOATS, [*"-+0123456789."]),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", "<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"{_CORE}{_kind}", re.compile(f"(?:{_pattern})$"), _first)
for _kind, _constructor in (
    ("map", _construct_object),
    ("seq", _construct_array),
    ("str", _construct_text),
    ("int", _construct_int),
    ("float", _construct_float),
    ("bool", _construct_bool),
    ("merge", _construct_text),
    ("null", _construct_null),
):
    _Loader.add_constructor(f"{_CORE}{_kind}", _constructor)
_Loader.add_constructor(None, _construct_unknown)  # any other tag
