"""The answer of `tenure check` in its forms; the JSON is an interface (cli.md, tenure check)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TextIO

from tenure.check.checker import Checked
from tenure.exits import printable
from tenure.output import Column, OutputFormat, fitted, write_answer

_COLUMNS: Final = (
    Column(key="namespace", title="NAMESPACE"),
    Column(key="kind", title="KIND"),
    Column(key="name", title="NAME"),
    Column(key="allowed", title="ALLOWED", show=lambda allowed: "yes" if allowed else "no"),
    Column(key="changes", title="CHANGES", right=True),
    Column(key="message", title="MESSAGE", wide=True),
)
_CSV: Final = tuple(
    Column(key=key, title=key)
    for key in ("namespace", "kind", "name", "allowed", "message", "warnings")
)


def write_checked(results: Sequence[Checked], output: OutputFormat, out: TextIO) -> None:
    """Write the answer: an array of objects, or a table with every violation below it."""
    rows = [row_of(result) for result in results]
    match output:
        case OutputFormat.JSON | OutputFormat.YAML:
            write_answer(output, rows, _COLUMNS, out=out)
        case OutputFormat.CSV:
            write_answer(output, rows, _CSV, out=out)
        case OutputFormat.TABLE | OutputFormat.WIDE:
            shown = [
                {**row, "changes": _changes(result) or None}
                for row, result in zip(rows, results, strict=True)
            ]
            write_answer(output, shown, _COLUMNS, out=out)
            _write_details(results, out, wide=output is OutputFormat.WIDE)


def row_of(result: Checked) -> dict[str, Any]:
    """Return one entry of the array."""
    return {
        "kind": result.kind,
        "namespace": result.namespace,
        "name": result.name,
        "allowed": result.allowed,
        "message": result.message,
        "causes": [
            {"field": cause.field, "reason": cause.reason, "message": cause.message}
            for cause in result.causes
        ],
        "warnings": list(result.warnings),
        "patch": [operation.as_json() for operation in result.patch],
        "object": dict(result.body),
    }


def _changes(result: Checked) -> int:
    return sum(operation.op != "test" for operation in result.patch)


def _write_details(results: Sequence[Checked], out: TextIO, *, wide: bool) -> None:
    """Write, for each object that has any, its violations and warnings, one a line."""
    for result in results:
        lines = [f"  {cause}" for cause in result.causes]
        lines += [f"  warning: {text}" for text in result.warnings]
        if lines:
            name = f"{result.namespace}/{result.name}" if result.namespace else result.name
            verdict = "allowed" if result.allowed else "refused"
            title = f"{result.kind} {name} is {verdict}"
            text = "\n" + "\n".join(map(_line, (f"{title}:", *lines))) + "\n"
            out.write(text if wide else fitted(text))


def _line(text: str) -> str:
    return printable(text.replace("\n", " "))
