"""JSON and YAML that somebody else writes: a key that stands twice is refused, with its place."""

from __future__ import annotations

import json
from typing import Any, Final, Never

import yaml

from ledger.domain.errors import InputError

_KEY_MAX: Final = 80
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Libyaml's own where there is one: ten times as fast, and as safe."""


class _Pairs(list[tuple[str, object]]):
    """An object of JSON, before it is known that no key of it stands twice."""


def json_document(raw: bytes) -> object:
    """
    Return the value of a JSON text.

    Raises:
        InputError: a key twice in one object, with its path; ValueError, RecursionError: no JSON.
    """
    return _once(json.loads(raw, object_pairs_hook=_Pairs, parse_constant=_no_constant), "")


def yaml_document(text: str) -> object:
    """
    Return the one document of a YAML text, None where there is none.

    Raises:
        InputError: it is no YAML, or a key stands twice in one mapping; with its line.
        yaml.YAMLError, ValueError, RecursionError: it has characters that YAML has not.
    """
    loader = _LOADER(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _refuse_keys_twice(root)
        value: object = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"not YAML: {yaml_fault(error, text)}: line={line}") from error
    else:
        return value
    finally:
        loader.dispose()


def yaml_fault(error: yaml.MarkedYAMLError, text: str) -> str:
    """Return why a text is no YAML; of a tab in an indentation that it is one, and its column."""
    fact, mark = str(error.problem or error.context), error.problem_mark
    if mark is None:
        return fact
    line = "".join(text.splitlines()[mark.line :][:1])
    if line[mark.column :][:1] == "\t":
        return f"a tab in column {mark.column + 1}, where YAML takes spaces alone"
    tab = line.find("\t", 0, len(line) - len(line.lstrip()))
    return fact if tab < 0 else f"{fact}, behind a tab in column {tab + 1}"


def _once(value: object, path: str) -> object:
    if isinstance(value, _Pairs):
        made: dict[str, object] = {}
        for key, item in value:
            here = f"{path}.{key[:_KEY_MAX]}" if path else key[:_KEY_MAX]
            if key in made:
                raise InputError("the key stands twice in one object", field=here)
            made[key] = _once(item, here)
        return made
    if isinstance(value, list):
        return [_once(item, f"{path}[{number}]") for number, item in enumerate(value)]
    return value


def _no_constant(text: str) -> Never:
    raise ValueError(f"{text} is not JSON")


def _refuse_keys_twice(root: yaml.Node) -> None:
    """Refuse a key that stands twice in one mapping, of which YAML takes the last in silence."""
    todo, known = [root], {id(root)}
    while todo:
        node = todo.pop()
        parts = list(node.value) if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, _ in node.value:
                name = str(key.value)
                if name in seen:
                    mark = key.start_mark
                    place = f"line={mark.line + 1}, column={mark.column + 1}"
                    fact = f"the key {name[:_KEY_MAX]!r} stands twice in one mapping: {place}"
                    raise InputError(fact)
                seen.add(name)
            parts = [part for pair in node.value for part in pair]
        fresh = [part for part in parts if id(part) not in known]  # an alias is one node
        known.update(map(id, fresh))
        todo += fresh
