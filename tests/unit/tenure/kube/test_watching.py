"""A collection that is watched: never less than was told, never more than is sane."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from certs.ports import ApiError, Object
from tenure.kube import lookups, reflector
from tenure.kube.lookups import Watched
from tests.support.loops import run_in_virtual_time
from tests.support.watches import ScriptedWatch

PATH = "/api/v1/things"
Act = Callable[["Watched[str]", ScriptedWatch, "asyncio.Task[None]"], Awaitable[None]]


def thing(name: str, says: str, version: int = 1, namespace: str = "a") -> Object:
    """Return an object as a watch tells it."""
    metadata = {"name": name, "namespace": namespace, "resourceVersion": str(version)}
    return {"metadata": metadata, "says": says}


def follow(act: Act, *there: Object) -> None:
    """Follow a collection with these objects in it, and act on it."""

    async def main() -> None:
        source = ScriptedWatch(listed={PATH: list(there)})
        watched: Watched[str] = Watched(source, PATH, lambda item: str(item["says"]), lambda: 0.0)
        task = asyncio.create_task(watched.reflector.follow())
        await source.told()
        try:
            await act(watched, source, task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(main())


def test_every_page_is_listed_and_every_change_is_taken() -> None:
    """Added, changed and gone; a bookmark moves the version alone."""

    async def act(watched: Watched[str], source: ScriptedWatch, _: asyncio.Task[None]) -> None:
        assert watched.of("a") == {"x": "1", "y": "2", "z": "3"}
        assert watched.reflector.open
        source.tell(PATH, "ADDED", thing("n", "4", 101))
        source.tell(PATH, "MODIFIED", thing("x", "5", 102))
        source.tell(PATH, "DELETED", thing("y", "2", 103))
        source.tell(PATH, "BOOKMARK", {"metadata": {"resourceVersion": "110"}})
        source.tell(PATH, "END", {})
        await source.told()
        assert watched.of("a") == {"x": "5", "z": "3", "n": "4"}
        assert [one.partition("?")[2][:8] for one in source.opened] == [
            "limit=50",
            "limit=50",
            "watch=1&",
            "watch=1&",
        ]
        assert source.opened[-1].endswith("resourceVersion=110")

    follow(act, thing("x", "1"), thing("y", "2"), thing("z", "3"))


def test_a_version_that_is_too_old_is_listed_anew() -> None:
    """What went meanwhile was told to nobody: only a list shows it."""

    async def act(watched: Watched[str], source: ScriptedWatch, task: asyncio.Task[None]) -> None:
        source.listed[PATH] = [thing("z", "3")]
        source.tell(PATH, "ERROR", {"code": 410, "message": "too old resource version"})
        with pytest.raises(ApiError, match="too old"):
            await task
        again = asyncio.create_task(watched.follow())
        await source.told()
        assert watched.of("a") == {"z": "3"}
        assert watched.reflector.open
        again.cancel()

    follow(act, thing("x", "1"))


@pytest.mark.parametrize(
    ("kind", "item"),
    [
        pytest.param("ERROR", {"code": 500, "message": "etcd"}, id="a failure"),
        pytest.param("ADDED", {}, id="no version"),
        pytest.param(None, {}, id="no event"),
        pytest.param("ADDED", {"metadata": {"resourceVersion": "1"}}, id="no name"),
    ],
)
def test_what_is_no_event_ends_the_watch(
    kind: str, item: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never taken for a change; what was known is then old, and followed again."""
    monkeypatch.setattr(reflector, "PAUSE_SECONDS", 0.0)

    async def act(watched: Watched[str], source: ScriptedWatch, task: asyncio.Task[None]) -> None:
        source.tell(PATH, kind, item)
        with pytest.raises(ApiError):
            await task
        assert (watched.reflector.open, watched.reflector.age()) == (False, 0.0)
        assert watched.of("a") == {"x": "1"}
        again = asyncio.create_task(watched.reflector.follow())
        await source.told()
        assert not again.done()
        again.cancel()

    follow(act, thing("x", "1"))


def test_more_than_is_kept_is_told_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is bounded, and nobody takes a part for the whole."""
    monkeypatch.setattr(reflector, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(lookups, "OBJECTS_MAX", 2)

    async def act(watched: Watched[str], source: ScriptedWatch, task: asyncio.Task[None]) -> None:
        source.tell(PATH, "ADDED", thing("y", "2"))
        source.tell(PATH, "ADDED", thing("z", "3"))
        with pytest.raises(ApiError, match="too many to keep"):
            await task
        assert (watched.reflector.open, watched.reflector.age()) == (False, 0.0)

    follow(act, thing("x", "1"))
