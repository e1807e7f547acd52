"""Answers on stdout: a table, JSON, YAML or CSV."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from textwrap import wrap
from typing import Any, Final, TextIO

Record = Mapping[str, Any]

WIDTH_MIN: Final = 80
WIDTH_MAX: Final = 1000
"""The longest line that a service breaks lines for; a wider screen gets lines as long as that."""
LINE_WIDTH: ContextVar[int | None] = ContextVar("LINE_WIDTH", default=None)
"""How long lines for people may be; None = as long as they are. The process edge sets it."""

NOTE_LINES_MAX: Final = 3
"""Lines that a table has for one sentence; `-o wide` has all of it."""
_GAP: Final = "  "
_BELOW: Final = "    "


class OutputFormat(StrEnum):
    """The forms of an answer (cli.md, Commands)."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"

    @property
    def is_table(self) -> bool:
        """The answer is for people."""
        return self in (OutputFormat.TABLE, OutputFormat.WIDE)


class CheckFormat(StrEnum):
    """The forms of what becomes of objects: those of `OutputFormat`, and a diff."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    DIFF = "diff"


class DataFormat(StrEnum):
    """The forms of an answer that is data: those of `OutputFormat`, and Parquet."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    PARQUET = "parquet"

    @property
    def text_form(self) -> OutputFormat:
        """The same form as text; a table stands for Parquet, which is written elsewhere."""
        return OutputFormat.TABLE if self is DataFormat.PARQUET else OutputFormat(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """
    One column of a table: which value of the record, and how people read it.

    Attributes:
        key: the value's name in the record; JSON, YAML and CSV use it as it is.
        show: the value as text in a table; None and "" are shown as `-`.
        wide: only with `-o wide`.
    """

    key: str
    title: str
    show: Callable[[Any], str] = str
    right: bool = False
    wide: bool = False


def one_line(text: str) -> str:
    """
    Return the text with line breaks and control characters as visible escapes.

    Names in a ledger or a manifest are anyone's, and a terminal obeys what it is sent.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def fitted(text: str) -> str:
    """
    Return lines for people, longer ones broken between words where the width is known.

    A word is never broken, but the path of a field that has no room; nor a line that draws in
    colours.
    """
    width = LINE_WIDTH.get()
    if width is None or all(len(line) <= width for line in text.splitlines()):
        return text
    return "".join(_fitted_line(line, width) for line in text.splitlines(keepends=True))


def _fitted_line(line: str, width: int) -> str:
    if len(line.rstrip("\n")) <= width or "\x1b" in line:
        return line
    body = line.strip()
    indent = " " * (len(line) - len(line.lstrip()))
    return "\n".join(_wrapped(body, width, indent, f"{indent}{_GAP}")) + "\n"


def _wrapped(text: str, width: int, first: str, then: str) -> list[str]:
    return wrap(
        " ".join(_in_parts(word, width - len(then)) for word in text.split(" ")),
        width,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _in_parts(word: str, room: int) -> str:
    """Return a path that no line has room for with spaces where it may be broken."""
    parts = []
    while len(word) > room:
        end = max(word.rfind("].", 0, room) + 1, word.rfind("[", 1, room))
        if end <= 0:
            break
        parts.append(word[:end])
        word = word[end:]
    return " ".join([*parts, word])


def write_table(
    rows: Sequence[Record], columns: Sequence[Column], out: TextIO, *, wide: bool = False
) -> None:
    """
    Write aligned columns with a heading, two spaces apart.

    Where the width is known and `wide` is not asked for, what has no room stands below its row:
    whole columns, and of the last one the values that are too long. No value is cut but a sentence
    of many lines.
    """
    cells = [[_cell(column, row) for column in columns] for row in rows]
    titles = [column.title for column in columns]
    widths = [max(map(len, values)) for values in zip(titles, *cells, strict=True)]
    limit = None if wide else LINE_WIDTH.get()
    kept = [*range(len(columns))] if limit is None else _kept(titles, cells, widths, limit)
    if limit is not None and kept:
        before = sum(widths[i] + len(_GAP) for i in kept[:-1])
        widths[kept[-1]] = min(widths[kept[-1]], max(len(titles[kept[-1]]), limit - before))
    for line in (titles, *cells):
        inside = [i for i in kept if len(line[i]) <= widths[i]] or kept[:1]
        padded = (
            text.rjust(widths[i]) if columns[i].right else text.ljust(widths[i])
            for i in kept
            for text in (line[i] if i in inside else "",)
        )
        out.write(_GAP.join(padded).rstrip() + "\n")
        if limit is not None and line is not titles:
            named = (
                f"{title.lower()}: {text}"
                for i, (title, text) in enumerate(zip(titles, line, strict=True))
                if i not in inside and text != "-"
            )
            out.writelines(f"{each}\n" for each in _below(named, limit))


def _kept(
    titles: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], limit: int
) -> list[int]:
    """
    Return the columns that stand beside each other: from the left, whatever still fits.

    The last one does where half of its values fit.
    """
    kept, used = [0], widths[0]
    for i in range(1, len(titles)):
        left = limit - used - len(_GAP)
        fits = sum(1 for line in cells if len(line[i]) <= left)
        last = i == len(titles) - 1 and len(titles[i]) <= left and 2 * fits >= len(cells)
        if widths[i] <= left or last:
            kept.append(i)
            used += len(_GAP) + widths[i]
    return kept


def _below(named: Iterable[str], limit: int) -> list[str]:
    """Return the lines below a row: values after each other while they fit, long ones wrapped."""
    lines: list[str] = []
    for each in named:
        if lines and len(lines[-1]) + len(_GAP) + len(each) <= limit:
            lines[-1] += _GAP + each
            continue
        wrapped = _wrapped(each, limit, _BELOW, _BELOW)
        if len(wrapped) > NOTE_LINES_MAX:
            wrapped[NOTE_LINES_MAX - 1 :] = [f"{_BELOW}... (-o wide has all of it)"]
        lines += wrapped
    return lines


def write_csv(rows: Sequence[Record], keys: Sequence[str], out: TextIO) -> None:
    """Write a heading and one line per record; nested values as JSON."""
    import csv

    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(keys)
    writer.writerows([_csv_value(row.get(key)) for key in keys] for row in rows)


def write_json(document: object, out: TextIO) -> None:
    """Write one JSON document, indented."""
    import json

    json.dump(document, out, indent=2, ensure_ascii=False)
    out.write("\n")


def write_yaml(document: object, out: TextIO) -> None:
    """Write one YAML document, keys in the order of the records."""
    import yaml

    yaml.safe_dump(document, out, sort_keys=False, allow_unicode=True)


def write_answer(
    output: OutputFormat,
    rows: Sequence[Record],
    columns: Sequence[Column],
    *,
    document: object | None = None,
    out: TextIO | None = None,
) -> None:
    """
    Write an answer made of records.

    JSON and YAML write `document`, or the list of whole records without one; CSV every key of
    the columns; a table the columns that are not wide, `wide` all of them.
    """
    out = out or sys.stdout
    match output:
        case OutputFormat.JSON:
            write_json(list(rows) if document is None else document, out)
        case OutputFormat.YAML:
            write_yaml(list(rows) if document is None else document, out)
        case OutputFormat.CSV:
            write_csv(rows, [column.key for column in columns], out)
        case OutputFormat.TABLE:
            write_table(rows, [column for column in columns if not column.wide], out)
        case OutputFormat.WIDE:
            write_table(rows, columns, out, wide=True)


def _cell(column: Column, row: Record) -> str:
    value = row.get(column.key)
    return "-" if value is None or value == "" else one_line(column.show(value)) or "-"


def _csv_value(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return nested_as_json(value)


def nested_as_json(value: object) -> object:
    """Return lists and mappings as JSON text, every other value as it is."""
    if isinstance(value, (Mapping, list, tuple)):
        import json

        return json.dumps(value, ensure_ascii=False)
    return value
