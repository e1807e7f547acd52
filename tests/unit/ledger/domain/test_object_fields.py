"""The fields that every Kubernetes object has, read as what they are."""

from __future__ import annotations

import pytest

from ledger.domain.kube.object_fields import version_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("4711", 4711),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("x9", None),
        ("٣", None),
        ("²", None),
    ],
)
def test_a_resource_version_is_a_number_or_tells_nothing(text: str, number: int | None) -> None:
    """Digits of ASCII alone are; what others write them with is not guessed at."""
    assert version_number(text) == number
