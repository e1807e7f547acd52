"""Logs as one JSON object per line, on stderr."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Final

import orjson
import structlog

ROOT: Final = "tenure"

_OF_EVERY_RECORD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """
    Writes event, level, logger, the record's own fields and the time.

    A record with a traceback, or with a field that is no plain value, is left to structlog; the
    others, of which the webhook writes one per decision, are written at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._careful = _structlog_formatter()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        if record.exc_info or record.stack_info:
            return self._careful.format(record)
        said: dict[str, object] = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
            **{key: value for key, value in record.__dict__.items() if key not in _OF_EVERY_RECORD},
        }
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        said["timestamp"] = f"{moment[:-6]}Z"
        try:
            return orjson.dumps(said).decode()
        except orjson.JSONEncodeError:
            return self._careful.format(record)


def set_up_logs(*, debug: bool = False) -> None:
    """Send what `tenure` loggers say to stderr, one line each."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # never shown
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger(ROOT)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if debug else logging.INFO)


def _structlog_formatter() -> logging.Formatter:
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
