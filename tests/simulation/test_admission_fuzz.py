"""Whatever arrives: an answer or a refusal to read it, never a fault of our own."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping

import aiohttp
import pytest
from aiohttp import web

from ledger.domain.errors import InputError
from tests.support.reviews import broken, corpus
from webhook.decide.facts import QuotaFact
from webhook.decide.review import DEFAULT_LIMITS, decode_review
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings
from webhook.server.app import Admission, ServerLimits, hooks_app
from webhook.server.metrics import Metrics
from webhook.server.ports import RefusalRecord
from webhook.server.reading import read_review

BATCH = 500
SLOWEST_SECONDS = 2.0


class Managed:
    """Every namespace is managed; refusals are dropped."""

    current: AdmissionSettings = DEFAULT_ADMISSION

    async def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        """Return that the namespace is managed."""
        return {"tenure.sh/managed": "true", "name": namespace[:63]}

    async def quotas(self, namespace: str) -> tuple[QuotaFact, ...]:
        """Return no quotas."""
        del namespace
        return ()

    async def pod(self, namespace: str, name: str) -> Mapping[str, object] | None:
        """Return no Pod."""
        del namespace, name
        return None

    def put(self, record: RefusalRecord) -> None:
        """Drop a refusal."""


def is_readable(body: bytes) -> bool:
    """Tell whether the careful reader takes a request."""
    try:
        decode_review(body, DEFAULT_LIMITS)
    except InputError:
        return False
    return True


async def _fuzz(seed: int, count: int) -> Counter[str]:
    fake, seen, base = Managed(), Counter[str](), corpus()
    admission = Admission(
        settings=fake,
        lookups=fake,
        take_refusal=fake.put,
        metrics=Metrics(),
        limits=ServerLimits(seconds_max=600.0),
    )
    runner = web.AppRunner(hooks_app(admission), access_log=None, auto_decompress=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    rng = random.Random(seed)
    headers = {"Content-Type": "application/json"}
    try:
        async with aiohttp.ClientSession(headers=headers) as session:
            for number in range(count):
                body = broken(rng, base)
                hook = ("mutate", "validate")[number % 2]
                started = time.process_time()  # not what else the machine does
                async with session.post(f"{url}/{hook}?timeout=1h", data=body) as answer:
                    text = await answer.text()
                spent = time.process_time() - started
                where = (seed, number, hook, answer.status, body[:2_000])
                assert answer.status in (200, 400, 413), where
                assert (answer.status == 200) == is_readable(body), where
                assert "Traceback" not in text, where
                assert spent < SLOWEST_SECONDS, (spent, *where)
                seen[str(answer.status)] += 1
                seen["allowed" if '"allowed":true' in text else "not allowed"] += 1
    finally:
        await runner.cleanup()
    return seen


@pytest.mark.campaign_sample
def test_two_thousand_broken_requests_are_answered_or_not_read() -> None:
    """A bounded sample of the campaign below."""
    seen = asyncio.run(_fuzz(seed=1, count=2_000))
    assert min(seen["200"], seen["400"], seen["allowed"], seen["not allowed"]) > 100, seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_two_hundred_thousand_broken_requests_are_answered_or_not_read(seed: int) -> None:
    """Ten thousand for each seed."""
    seen = asyncio.run(_fuzz(seed=seed, count=10_000))
    assert min(seen["200"], seen["400"]) > 500, seen


def test_both_readers_read_the_same() -> None:
    """The quick reader says no when the careful one does, and the same when it says yes."""
    rng, base = random.Random(7), corpus()
    for _ in range(3_000):
        body = broken(rng, base)
        try:
            expected: object = decode_review(body, DEFAULT_LIMITS)
        except InputError:
            expected = None
        try:
            found: object = read_review(body, DEFAULT_LIMITS)
        except InputError:
            found = None
        assert found == expected, body[:2_000]
