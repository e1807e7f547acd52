"""
What `tenure manifests` prints: the files of `deploy/` with values in them, and objects as YAML.

Rule: ADR 0040. The values of a file are the options of the command that prints it, by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

_INSTALLED: Final = "_deploy"
_LONG: Final = 80
_SHORT: Final = 60
_SCALAR: Final = re.compile(r"^( *(?:- )?)(?:([\w./-]+): )?(.*\0.*)$", re.MULTILINE)
"""A line with a value in it. A line without a key or a dash is one of a block of text."""
_VALUE: Final = re.compile(r"\0([^\0]*)\0")


class _Dumper(yaml.SafeDumper):
    """Writes YAML as people do: no anchors, lists indented, long text in a block."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's own
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - likewise
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    is_block = "\n" in text[:-1] and not text.endswith("\n\n")
    is_long = len(text) > _LONG and " " in text and "\n" not in text
    style = "|" if is_block else ">" if is_long else None if text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    is_short = all(isinstance(one, str | int) for one in items) and len(str(items)) < _SHORT
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=is_short)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)


def folder() -> Path:
    """Return the folder of the files: inside an installed `tenure`, or in the checkout."""
    package = Path(str(files("tenure")))
    installed = package / _INSTALLED
    return installed if installed.is_dir() else package.parent / "deploy"


def render(name: str, values: Mapping[str, Any]) -> str:
    """Return the file `name`.yaml of `deploy/` with these values, each written as YAML."""
    environment = Environment(
        loader=FileSystemLoader(folder()),
        undefined=StrictUndefined,
        finalize=lambda value: f"\0{json.dumps(value, default=str)}\0",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - YAML, whose scalars are escaped below
    )
    return _SCALAR.sub(_written, environment.get_template(f"{name}.yaml").render(values))


def dump(things: Iterable[Mapping[str, Any]]) -> str:
    """Return objects as documents of YAML."""
    return "".join(f"---\n{_dumped(thing)}" for thing in things)


def _written(line: re.Match[str]) -> str:
    """Return a line with its values, as the YAML library writes the scalar that they are in."""
    before, key, text = line.groups()
    whole = _VALUE.fullmatch(text)
    value = json.loads(whole[1]) if whole else _VALUE.sub(lambda one: str(json.loads(one[1])), text)
    if key or before.endswith("- "):
        value = _dumped({key or "_": value}).removeprefix("_: ").removesuffix("\n")
    return before + str(value).replace("\n", "\n" + " " * len(before))


def _dumped(thing: object) -> str:
    return yaml.dump(thing, Dumper=_Dumper, sort_keys=False, width=90, allow_unicode=True)
