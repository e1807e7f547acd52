"""What a caller may see is the cluster's word, for seconds."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from certs.ports import ApiError
from scheduler.service.api.callers import Caller
from scheduler.service.api.http import RefusedError
from scheduler.service.api.remembered import Remembered, TooManyError
from scheduler.service.api.rights import REMEMBERED_SECONDS, Rights
from tests.support.api_callers import Cluster

ANNA = Caller(user="anna", groups=("ml",), uid="u", extra=(("k", ("v",)),))


def test_the_whole_caller_is_asked_about() -> None:
    """User, groups, UID and extra; verb, resource, question and namespace."""
    cluster = Cluster(may={"anna": {"ml"}})

    asyncio.run(Rights(cluster, lambda: 0.0).expect(ANNA, "who", "ml"))

    assert cluster.reviewed[0]["spec"] == {
        "user": "anna",
        "groups": ["ml"],
        "uid": "u",
        "extra": {"k": ["v"]},
        "resourceAttributes": {
            "verb": "get",
            "group": "audit.tenure.sh",
            "version": "v1alpha1",
            "resource": "answers",
            "name": "who",
            "namespace": "ml",
        },
    }


@pytest.mark.parametrize("namespace", ["", "other"], ids=["everybody's", "another's"])
def test_a_right_in_one_namespace_is_no_right_elsewhere(namespace: str) -> None:
    """All of them is a question of its own, without a namespace."""
    cluster = Cluster(may={"anna": {"ml"}})
    with pytest.raises(RefusedError, match="forbidden") as refused:
        asyncio.run(Rights(cluster, lambda: 0.0).expect(ANNA, "who", namespace))
    assert refused.value.status == 403
    assert cluster.reviewed[0]["spec"]["resourceAttributes"].get("namespace", "") == namespace


def test_a_right_that_is_taken_away_counts_for_seconds_more() -> None:
    """And one that is given, so late at most; each caller and question by itself."""
    cluster, now = Cluster(may={"anna": {"ml"}}), [0.0]

    async def main() -> None:
        rights = Rights(cluster, lambda: now[0])
        await rights.expect(ANNA, "who", "ml")
        cluster.may = {}
        await rights.expect(ANNA, "who", "ml")
        for caller, question in ((Caller(user="anna"), "who"), (ANNA, "why")):
            with pytest.raises(RefusedError):
                await rights.expect(caller, question, "ml")
        now[0] = REMEMBERED_SECONDS
        with pytest.raises(RefusedError):
            await rights.expect(ANNA, "who", "ml")

    asyncio.run(main())


def test_an_api_server_that_is_away_gives_no_rights() -> None:
    """And nothing is remembered of it."""
    cluster = Cluster(may={"anna": {"ml"}}, away=True)

    async def main() -> None:
        rights = Rights(cluster, lambda: 0.0)
        with pytest.raises(ApiError):
            await rights.expect(ANNA, "who", "ml")
        cluster.away = False
        await rights.expect(ANNA, "who", "ml")

    asyncio.run(main())


def test_what_is_remembered_is_bounded_and_so_is_what_is_asked() -> None:
    """The oldest goes first; one question too many is not asked."""

    async def main() -> None:
        known: Remembered[int, int] = Remembered(lambda: 0.0, seconds=1.0, kept_max=2, asked_max=2)
        asked: list[int] = []
        waits = asyncio.Event()

        async def answer(key: int) -> int:
            asked.append(key)
            await waits.wait()
            return key

        both = [asyncio.create_task(known.get(key, partial(answer, key), "anna")) for key in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyError):
            await known.get(3, lambda: answer(3), "anna")
        waits.set()
        assert await asyncio.gather(*both) == [1, 2]
        assert await known.get(3, lambda: answer(3), "anna") == 3
        assert len(known) == 2
        await known.get(2, lambda: answer(2), "anna")
        await known.get(1, lambda: answer(1), "anna")
        assert asked == [1, 2, 3, 1]

    asyncio.run(main())


def test_one_who_asks_without_end_leaves_room_for_others() -> None:
    """And has it again once an answer came, whatever it was."""

    async def main() -> None:
        known: Remembered[int, int] = Remembered(lambda: 0.0, seconds=1.0, share_max=2)
        waits = asyncio.Event()

        async def answer(key: int) -> int:
            await waits.wait()
            if key == 1:
                raise ApiError("away")
            return key

        both = [asyncio.create_task(known.get(key, partial(answer, key), "anna")) for key in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyError, match="your questions"):
            await known.get(3, partial(answer, 3), "anna")
        others = asyncio.create_task(known.get(3, partial(answer, 3), "bob"))
        joined = asyncio.create_task(known.get(2, partial(answer, 2), "anna"))
        waits.set()
        assert await others == 3
        assert await joined == 2
        with pytest.raises(ApiError):
            await both[0]
        assert await known.get(4, partial(answer, 4), "anna") == 4

    asyncio.run(main())
