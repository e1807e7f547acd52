"""How long a request may take, by the API server's own timeout parameter."""

from __future__ import annotations

import pytest

from webhook.server.app import ServerLimits, budget_seconds

LIMITS = ServerLimits(seconds_max=4.5, seconds_min=0.25)


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [
        pytest.param("5s", 4.5, id="what the API server sends by default for ours"),
        pytest.param("30s", 4.5, id="more than we ever take"),
        pytest.param("2s", 1.5, id="less than we take: half a second is left for the answer"),
        pytest.param("1m30s", 4.5, id="minutes and seconds"),
        pytest.param("1500ms", 1.0, id="milliseconds"),
        pytest.param("1.25s", 0.75, id="a fraction"),
        pytest.param("100ms", 0.25, id="hardly any time: something is tried"),
        pytest.param("0s", 0.25, id="none at all"),
        pytest.param(None, 4.5, id="no parameter"),
        pytest.param("", 4.5, id="an empty parameter"),
        pytest.param("soon", 4.5, id="no duration"),
        pytest.param("5", 4.5, id="no unit"),
        pytest.param("5s!", 4.5, id="more than a duration"),
        pytest.param("-5s", 4.5, id="a negative duration"),
        pytest.param("9" * 1_000 + "s", 4.5, id="a very long number"),
    ],
)
def test_the_budget_ends_before_the_caller_gives_up(timeout: str | None, expected: float) -> None:
    """A parameter that means nothing counts as none."""
    assert budget_seconds(timeout, LIMITS) == pytest.approx(expected)
