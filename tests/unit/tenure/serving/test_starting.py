"""What a service that starts waits for, and what ends it."""

from __future__ import annotations

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from certs.ports import ApiError
from tenure.serving.scheduler import _asked
from tests.support.loops import run_in_virtual_time

UNVERIFIED = aiohttp.ClientConnectorCertificateError(
    cast("Any", SimpleNamespace(host="h", port=6443, is_ssl=True)),
    ssl.SSLCertVerificationError("self-signed certificate"),
)


def answers_after(failure: ApiError, cause: Exception | None = None) -> str:
    """Return what a start finds where the API server fails twice before it answers."""
    failure.__cause__ = cause
    left = [failure, failure]

    async def ask() -> str:
        await asyncio.sleep(0)
        if left:
            raise left.pop()
        return "found"

    return run_in_virtual_time(_asked(ask))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        pytest.param(None, "the API server does not answer: waiting", id="away"),
        (403, "the API server refuses with status 403: waiting"),
        (429, "the API server refuses with status 429: waiting"),
        (503, "the API server refuses with status 503: waiting"),
    ],
)
def test_a_start_waits_for_what_passes(
    status: int | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says it once."""
    assert answers_after(ApiError("no", status=status)) == "found"
    assert [record.getMessage() for record in caplog.records] == [words]


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_that_stays_ends_a_start(status: int) -> None:
    """Waiting changes neither the address nor the credentials."""
    with pytest.raises(ApiError, match="no"):
        answers_after(ApiError("no", status=status))


def test_a_certificate_that_does_not_verify_ends_a_start() -> None:
    """The kubeconfig names another authority, or another cluster."""
    with pytest.raises(ApiError, match="no"):
        answers_after(ApiError("no"), UNVERIFIED)
