"""Answers as Parquet, with typed columns; needs the optional extra `parquet`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.extras import how_to_install
from tenure.output import DataFormat, Record, nested_as_json

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Parquet:
    """Where a Parquet file goes: `path`, or stdout when it is None."""

    path: Path | None

    def write(self, rows: Sequence[Record], keys: Sequence[str]) -> None:
        """
        Write the keys of the records as columns: integers, floats, booleans, bytes or text.

        A column with values of several kinds, or with none at all, is text.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {key: _column([nested_as_json(row.get(key)) for row in rows]) for key in keys}
        table = pa.table(columns)
        if self.path is not None:
            pq.write_table(table, self.path)
            return
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        sys.stdout.flush()
        sys.stdout.buffer.write(sink.getvalue().to_pybytes())


def parquet_target(output: DataFormat, out: Path | None) -> Parquet | None:
    """
    Return where the Parquet file goes, None for every other form of the answer.

    Raises:
        InputError: no pyarrow, a terminal for binary output, or a file for a text form.
    """
    if output is not DataFormat.PARQUET:
        if out is None:
            return None
        error = InputError(f"only parquet is written to a file: output={output}", field="--out")
        raise with_next(error, "give -o parquet too, or send the output to a file: > FILE")
    if find_spec("pyarrow") is None:
        error = InputError("parquet needs pyarrow, which is not installed", field="--output")
        raise with_next(error, f"{how_to_install('parquet')}; or use -o csv")
    if out is None and sys.stdout.isatty():
        error = InputError("parquet is binary and not for a terminal", field="--output")
        raise with_next(error, "name a file: --out FILE, or send the output to one: > FILE")
    return Parquet(path=out)


def _column(values: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    plain = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), bytes: pa.binary()}
    if kinds == {int, float}:
        return pa.array([None if v is None else float(v) for v in values], pa.float64())
    if len(kinds) == 1 and kinds <= plain.keys():
        return pa.array(values, plain[kinds.pop()])
    return pa.array([None if v is None else str(v) for v in values], pa.string())
