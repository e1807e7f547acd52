"""Logs as one JSON object per line, on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from datetime import UTC, datetime
from time import monotonic
from typing import Final

import orjson

from scheduler.service.budgets import Budgets

ROOT: Final = "tenure"
OF_CALLERS: Final = {"tenure.listening", "tenure.scheduler.http", "tenure.scheduler.api"}
"""Loggers of which callers choose how much they say."""
LINES_MAX: Final = 100.0
AGAIN_SECONDS: Final = 1.0
"""So many lines of one event that callers cause at once, one more after each so many seconds."""

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


class _Seldom(logging.Filter):
    """Leaves out what callers cause too often; the next line says how many times that was."""

    def __init__(self) -> None:
        super().__init__()
        self._budgets = Budgets(monotonic, burst=LINES_MAX, seconds=AGAIN_SECONDS)
        self._left_out = Counter[tuple[str, str]]()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name not in OF_CALLERS or record.levelno < logging.WARNING:
            return True
        event = record.name, str(record.msg)
        if not self._budgets.take(event):
            self._left_out[event] += 1
            return False
        if left_out := self._left_out.pop(event, 0):
            record.left_out = left_out
        return True


def set_up_logs(*, debug: bool = False) -> None:
    """Send what `tenure` loggers say to stderr, one line each."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # never shown
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(_Seldom())
    logging.lastResort = handler  # for what libraries say
    logger = logging.getLogger(ROOT)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
