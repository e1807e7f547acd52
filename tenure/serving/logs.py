"""Logs as one JSON object per line, on stderr."""

from __future__ import annotations

import logging
import sys
from typing import Final

import structlog

ROOT: Final = "tenure"


def set_up_logs(*, debug: bool = False) -> None:
    """
    Send what is logged to stderr: time, level, event, the record's own fields.

    What libraries say is told from warnings up, in the same form.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.getLogger().handlers = [handler]
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(logging.DEBUG if debug else logging.INFO)
