"""Whom the API server takes the service for, as its answers say it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tenure.kube.objects import KubeObjects
from tenure.serving.scheduling.cluster import why_not_expected

ANSWERS = {
    "the expected user": ({"status": {"userInfo": {"username": "us"}}}, ""),
    "another user": ({"status": {"userInfo": {"username": "them"}}}, "WrongIdentity"),
    "no status": ({}, ""),
    "a name that is no text": ({"status": {"userInfo": {"username": 3}}}, ""),
    "no object": ([], ""),
}


class AnsweringApi:
    """An API server that answers every review alike."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    async def create(self, path: str, body: dict[str, Any]) -> object:
        """Answer what was given."""
        assert path.endswith(body["kind"].lower() + "s")
        return self._answer


@pytest.mark.parametrize(("answer", "why"), ANSWERS.values(), ids=ANSWERS)
def test_only_another_user_is_a_wrong_identity(answer: object, why: str) -> None:
    """docs/scheduler.md, Its identity: an API server that does not tell ends no start."""
    api = cast("KubeObjects", AnsweringApi(answer))

    found = asyncio.run(why_not_expected(api, frozenset({"us"})))

    assert found.startswith(why)
    assert bool(found) == bool(why)
