"""The quick way to read a review: the same answer as the careful one, whenever it gives one."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import orjson

from webhook.decide.review import (
    AdmissionRequest,
    LimitError,
    ReviewLimits,
    decode_review,
    request_of,
    request_within,
)

_LEVELS_MAX: Final = 1000


def read_review(body: bytes, limits: ReviewLimits) -> AdmissionRequest:
    """
    Decode an AdmissionReview.

    A parser in C reads it first. If what it read is written back byte for byte, nothing was lost
    on the way, such as a key that is there twice; then only the rest of the checks are needed.
    Everything else goes through the careful reader, which finds the words for what is wrong.

    The writer refuses what is nested deeper than it likes. Wrapped in as many lists as it likes
    more than the limit, a body that it writes is known not to be nested too deep.

    Raises:
        InputError: as `decode_review`.
    """
    if len(body) > limits.bytes_max:
        raise LimitError(f"too large: bytes_max={limits.bytes_max}")
    values = len(body) - len(body.translate(None, b",[{"))  # those in texts count, too
    if values > limits.values_max:
        raise LimitError(f"too many values: values_max={limits.values_max}")
    levels = levels_written()
    wraps = max(0, (levels or 0) - limits.depth_max)
    try:
        value = orjson.loads(body)
        same = _written(value, wraps) == body.rstrip()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        same = False
    if not same or len(body) > limits.text_length_max:
        return decode_review(body, limits)
    return request_of(value, limits) if levels is None else request_within(value)


@lru_cache(maxsize=1)
def levels_written() -> int | None:
    """Return the most levels of nesting that the writer takes; None when that is not known."""
    value: object = []
    for levels in range(1, _LEVELS_MAX):
        try:
            orjson.dumps(value)
        except orjson.JSONEncodeError:
            return levels - 1
        value = [value]
    return None


def _written(value: object, wraps: int) -> bytes:
    """Write a value within that many lists, and return its own text."""
    if not wraps:
        return orjson.dumps(value)
    outer, inner = _lists(wraps)
    inner[0] = value
    try:
        return orjson.dumps(outer)[wraps:-wraps]
    finally:
        inner[0] = None


@lru_cache(maxsize=4)
def _lists(wraps: int) -> tuple[list[object], list[object]]:
    """
    Return that many lists within one another, the outermost and the innermost.

    They are used again and again. Should two threads get into one another's way, what is written is
    not what was read, and the careful reader takes over.
    """
    inner: list[object] = [None]
    outer = inner
    for _ in range(wraps - 1):
        outer = [outer]
    return outer, inner
