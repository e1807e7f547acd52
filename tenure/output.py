"""Answers on stdout: a table, JSON, YAML or CSV."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TextIO

Record = Mapping[str, Any]


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


def write_table(rows: Sequence[Record], columns: Sequence[Column], out: TextIO) -> None:
    """Write aligned columns with a heading, two spaces apart, never wrapped or cut."""
    cells = [[column.title for column in columns]]
    cells += [[_cell(column, row) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        padded = (
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        )
        out.write("  ".join(padded).rstrip() + "\n")


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
            write_table(rows, columns, out)


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
