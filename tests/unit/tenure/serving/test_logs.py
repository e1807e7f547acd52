"""What a service says on stderr: one JSON object a line, whatever is in it."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tenure.serving import logs
from tenure.serving.logs import JsonLines, set_up_logs


def said(**more: object) -> dict[str, Any]:
    """Return the line of a record with these fields."""
    record = logging.makeLogRecord({"name": "tenure.x", "msg": "done", "levelname": "INFO", **more})
    [line] = JsonLines().format(record).splitlines()
    read: dict[str, Any] = json.loads(line, parse_constant=pytest.fail)  # JSON has no NaN
    return read


def test_a_record_is_a_line_with_its_own_fields() -> None:
    """With the time of the record."""
    assert said(created=0.5, pod_uid="p", ids=["a", 1]) == {
        "event": "done",
        "level": "info",
        "logger": "tenure.x",
        "pod_uid": "p",
        "ids": ["a", 1],
        "timestamp": "1970-01-01T00:00:00.500000Z",
    }


def test_a_traceback_is_in_its_line() -> None:
    """As Python prints it."""
    try:
        int("torn")
    except ValueError:
        line = said(exc_info=sys.exc_info())
    assert line["exception"].startswith("Traceback (most recent call last):")
    assert "ValueError: invalid literal" in line["exception"]


class Broken:
    """Can't be shown."""

    def __repr__(self) -> str:
        raise ValueError("torn")


CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "value",
    [
        *(object(), 2**70, {("a", 1): "b"}, "\ud800", {1: "a"}, b"x", {"x": {2**70: object()}}),
        *(CIRCLE, Broken(), [math.nan, b"x"]),
    ],
    ids=[
        "an object",
        "a huge number",
        "a key of two",
        "no text",
        "a number as key",
        "bytes",
        "all",
        "a circle",
        "what can't be shown",
        "no number",
    ],
)
def test_no_value_of_a_field_loses_the_line(value: object) -> None:
    """Whatever somebody logs."""
    line = said(odd=value)
    assert (line["event"], "odd" in line) == ("done", True)


@pytest.fixture
def _own_loggers() -> Iterator[None]:
    """Put loggers back as they were."""
    ours = logging.getLogger("tenure")
    before = (ours.handlers, ours.propagate, ours.level, logging.lastResort)
    yield
    ours.handlers, ours.propagate, ours.level, logging.lastResort = before


@pytest.mark.usefixtures("_own_loggers")
def test_no_caller_fills_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred lines of one event, then one each second; it says how many were left out."""
    now = [0.0]
    monkeypatch.setattr(logs, "monotonic", lambda: now[0])
    set_up_logs()
    for name in ("listening", "scheduler.http", "scheduler.api", "scheduler"):
        for _ in range(150):
            logging.getLogger(f"tenure.{name}").warning("%s refused", name)
    logging.getLogger("tenure.listening").warning("another event")
    now[0] = 1.0
    logging.getLogger("tenure.listening").warning("%s refused", "listening")

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert Counter(line["logger"] for line in lines) == {
        "tenure.listening": 102,
        "tenure.scheduler.http": 100,
        "tenure.scheduler.api": 100,
        "tenure.scheduler": 150,
    }
    assert lines[-1]["left_out"] == 50
    assert sum("left_out" in line for line in lines) == 1
