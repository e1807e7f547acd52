"""Logs as one JSON object per line, on stderr."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

import orjson

ROOT: Final = "tenure"

_OF_EVERY_RECORD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """Writes event, level, logger, fields and time; a field that is no plain value by its repr."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        said: dict[str, object] = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
            **{key: value for key, value in record.__dict__.items() if key not in _OF_EVERY_RECORD},
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        said["timestamp"] = f"{moment[:-6]}Z"
        try:
            return orjson.dumps(said).decode()
        except orjson.JSONEncodeError:
            return json.dumps({key: _shown(value) for key, value in said.items()})


def _shown(value: object) -> object:
    if isinstance(value, str | int):
        return value
    try:
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except orjson.JSONEncodeError:
        pass
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - of somebody's class
        return f"<{type(value).__name__}: {type(error).__name__}>"


def set_up_logs(*, debug: bool = False) -> None:
    """Send what `tenure` loggers say to stderr, one line each."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # never shown
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.lastResort = handler  # for what libraries say
    logger = logging.getLogger(ROOT)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
