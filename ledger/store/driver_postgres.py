"""What the driver of Postgres is told; whoever opens a file imports neither."""

from __future__ import annotations

import logging

from psycopg import errors
from psycopg.abc import Buffer
from psycopg.adapt import Loader


def is_news(record: logging.LogRecord) -> bool:
    """
    Tell whether a word of the driver says anything that no error does.

    Many rows go as a pipeline. Where one is refused, which is raised, the driver warns as well that
    those behind it were not written.
    """
    words = record.args if isinstance(record.args, tuple) else ()
    return not any(isinstance(each, errors.PipelineAborted) for each in words)


class Number(Loader):
    """Reads a numeric as SQLite gives it: a whole number, or one with a fraction."""

    def load(self, data: Buffer) -> int | float:
        """Return the number of a text."""
        text = bytes(data).decode()
        return int(text) if text.removeprefix("-").isdecimal() else float(text)
