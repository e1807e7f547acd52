"""A collection that is followed: what the sink knows is what the API server has, or had."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from certs.ports import ApiError, Object
from scheduler.service.freshness import STALE, Freshness
from tenure.kube.reflector import (
    ABSENT_SECONDS,
    AT_ONCE_SECONDS,
    BRIEF_MAX,
    HEALTHY_SECONDS,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    RETRY_AFTER_SECONDS_MAX,
    WATCH_SECONDS,
    Reflector,
    SetBackError,
)
from tests.support.loops import run_in_virtual_time, until
from tests.support.watches import ScriptedWatch

PATH = "/api/v1/things"


def thing(name: str, version: int = 1, *, uid: str = "", namespace: str = "a") -> Object:
    """Return an object as the API server tells it."""
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
        }
    }


@dataclass(slots=True)
class Told:
    """A sink that remembers every word, and refuses what can't be."""

    known: dict[str, str] = field(default_factory=dict)  # UID -> name
    words: list[str] = field(default_factory=list)

    def put(self, uid: str, item: Object) -> None:
        """Take an object; no two have one name."""
        name = item["metadata"]["name"]
        others = {key for key, known in self.known.items() if known == name} - {uid}
        assert not others, (name, others)
        self.known[uid] = name
        self.words.append(f"+{uid}:{item['metadata']['resourceVersion']}")

    def drop(self, uid: str) -> None:
        """Forget an object that was told."""
        del self.known[uid]
        self.words.append(f"-{uid}")


Act = Callable[[Reflector, ScriptedWatch, Told], Awaitable[None]]


def followed(act: Act, *there: Object) -> None:
    """Follow a collection with these objects in it, in virtual time, and act on it."""

    async def main() -> None:
        source, told = ScriptedWatch(listed={PATH: list(there)}), Told()
        loop = asyncio.get_running_loop()
        reflector = Reflector(source, PATH, told, monotonic=loop.time, jitter=lambda: 0.5)
        task = asyncio.create_task(again_and_again(reflector))
        await source.told()
        try:
            await act(reflector, source, told)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(main())


async def opened_again(source: ScriptedWatch) -> None:
    """Wait until something is read or watched again."""
    count = len(source.opened)
    await until(lambda: len(source.opened) > count)


async def again_and_again(reflector: Reflector) -> None:
    """Follow as a service does: after every failure again."""
    while True:
        try:
            await reflector.follow()
        except ApiError:
            continue


def test_after_a_list_only_what_differs_is_told() -> None:
    """410: gone objects are dropped, changed ones put, the others not mentioned."""

    async def act(reflector: Reflector, source: ScriptedWatch, told: Told) -> None:
        assert told.words == ["+uid-x:1", "+uid-y:1", "+uid-z:1"]
        told.words.clear()
        source.listed[PATH] = [thing("x"), thing("z", 7), thing("n")]
        source.tell(PATH, "ERROR", {"code": 410, "message": "too old resource version"})
        await asyncio.sleep(PAUSE_SECONDS)
        await source.told()
        assert told.words == ["+uid-z:7", "+uid-n:1", "-uid-y"]
        assert dict(reflector.relists) == {"first": 1, "gone": 1}
        assert reflector.synced
        assert reflector.open

    followed(act, thing("x"), thing("y"), thing("z"))


def test_one_object_alone_is_asked_for_by_its_name() -> None:
    """So that a right can be for that one: list and watch alike."""

    async def main() -> None:
        source, told = ScriptedWatch(listed={PATH: [thing("x")]}), Told()
        loop = asyncio.get_running_loop()
        reflector = Reflector(source, PATH, told, monotonic=loop.time, name="x")
        task = asyncio.create_task(reflector.follow())
        await until(lambda: len(source.opened) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert all("&fieldSelector=metadata.name%3Dx" in path for path in source.opened)

    run_in_virtual_time(main())


@pytest.mark.parametrize("by_list", [False, True], ids=["by the watch", "by a list"])
def test_an_object_made_anew_under_its_name_is_another_one(*, by_list: bool) -> None:
    """The old one is dropped first, even where its end was told to nobody."""

    async def act(_: Reflector, source: ScriptedWatch, told: Told) -> None:
        told.words.clear()
        anew = thing("x", 5, uid="uid-2")
        if by_list:
            source.listed[PATH] = [anew]
            source.tell(PATH, "ERROR", {"code": 410})
        else:
            source.tell(PATH, "ADDED", anew)
        await asyncio.sleep(PAUSE_SECONDS)
        await source.told()
        assert told.words == ["-uid-x", "+uid-2:5"]
        if not by_list:
            source.tell(PATH, "DELETED", thing("x", 6))  # of the first one, late
            await source.told()
        assert told.known == {"uid-2": "x"}

    followed(act, thing("x"))


@pytest.mark.parametrize(
    "why", [ApiError("gone", status=410), ApiError("504: Too large resource version: 150")]
)
@pytest.mark.parametrize("may_be", [True, False])
def test_what_an_api_server_that_was_set_back_lists_is_told_only_where_that_may_be(
    why: ApiError, *, may_be: bool
) -> None:
    """A Pod that is missing there may run; who releases by that must not hear of it."""

    async def main() -> None:
        source, told = ScriptedWatch(listed={PATH: [thing("x")]}), Told()
        loop = asyncio.get_running_loop()
        reflector = Reflector(
            source, PATH, told, monotonic=loop.time, jitter=lambda: 0.5, may_be_set_back=may_be
        )
        task = asyncio.create_task(again_and_again(reflector))
        await source.told()
        source.tell(PATH, "ADDED", thing("late", 150))
        await source.told()
        source.failures.append(why)
        source.tell(PATH, "END", {})
        await asyncio.sleep(2 * PAUSE_SECONDS)
        await source.told()
        if may_be:
            assert told.known == {"uid-x": "x"}
            task.cancel()
        else:
            with pytest.raises(SetBackError, match="resourceVersion=1, told=150"):
                await task
            assert told.known == {"uid-x": "x", "uid-late": "late"}

    run_in_virtual_time(main())


def test_the_same_word_twice_is_told_once() -> None:
    """An object at the version that was told already is not told again."""

    async def act(_: Reflector, source: ScriptedWatch, told: Told) -> None:
        source.tell(PATH, "ADDED", thing("x"))
        source.tell(PATH, "MODIFIED", thing("x", 2))
        source.tell(PATH, "MODIFIED", thing("x", 2))
        source.tell(PATH, "DELETED", thing("y", 3))
        await source.told()
        assert told.words == ["+uid-x:1", "+uid-x:2"]

    followed(act, thing("x"))


def test_a_version_that_is_gone_before_the_watch_opens_is_listed_anew() -> None:
    """Some API servers say 410 as a status; watching from the same version again is no way on."""

    async def act(reflector: Reflector, source: ScriptedWatch, told: Told) -> None:
        source.failures.append(ApiError("refused", status=410))
        source.tell(PATH, "END", {})
        await asyncio.sleep(2 * PAUSE_SECONDS)
        await source.told()
        assert dict(reflector.relists) == {"first": 1, "gone": 1}
        assert told.words == ["+uid-x:1"]
        assert reflector.open

    followed(act, thing("x"))


def test_a_failure_keeps_what_is_known_and_waits_longer_each_time() -> None:
    """Half of a bound that doubles, here; the bound is bounded, and a long watch resets it."""

    async def act(reflector: Reflector, source: ScriptedWatch, told: Told) -> None:
        loop, pauses = asyncio.get_running_loop(), []
        for _ in range(9):
            source.fail()
            began = loop.time()
            await opened_again(source)
            pauses.append(round(loop.time() - began, 1))
            await source.told()
        assert pauses[:4] == [pytest.approx(PAUSE_SECONDS * 2**n / 2, abs=0.1) for n in range(4)]
        assert max(pauses) == pytest.approx(PAUSE_SECONDS_MAX / 2, abs=0.1)
        assert told.words == ["+uid-x:1"]
        assert dict(reflector.relists) == {"first": 1}
        await asyncio.sleep(HEALTHY_SECONDS)
        source.fail()
        began = loop.time()
        await opened_again(source)
        assert loop.time() - began == pytest.approx(PAUSE_SECONDS / 2, abs=0.1)

    followed(act, thing("x"))


@pytest.mark.parametrize(
    ("told_seconds", "waited"),
    [(7.0, 7.0), (10_000.0, RETRY_AFTER_SECONDS_MAX), (0.0, PAUSE_SECONDS / 2)],
)
def test_an_api_server_that_wants_to_be_left_alone_is(told_seconds: float, waited: float) -> None:
    """`Retry-After`, within reason."""

    async def act(_: Reflector, source: ScriptedWatch, __: Told) -> None:
        loop = asyncio.get_running_loop()
        source.failures.append(ApiError("busy", status=429, retry_after_seconds=told_seconds))
        source.tell(PATH, "BOOKMARK", {"metadata": {"resourceVersion": "2"}})
        source.tell(PATH, "END", {})
        await source.told()
        began = loop.time()
        await opened_again(source)
        assert loop.time() - began == pytest.approx(waited, abs=0.1)

    followed(act, thing("x"))


def test_what_is_old_is_told_by_bookmarks_too() -> None:
    """Nothing changes for a minute, and the view is none the older."""

    async def act(reflector: Reflector, source: ScriptedWatch, _: Told) -> None:
        await asyncio.sleep(60)
        assert reflector.staleness() == pytest.approx(60, abs=0.1)
        source.tell(PATH, "BOOKMARK", {"metadata": {"resourceVersion": "110"}})
        await source.told()
        assert reflector.staleness() == pytest.approx(0, abs=0.1)
        assert len(reflector) == 1

    followed(act, thing("x"))


@pytest.mark.parametrize(
    ("seconds", "ends", "is_known"),
    [
        pytest.param(WATCH_SECONDS, True, True, id="watches that end in order at their timeout"),
        pytest.param(WATCH_SECONDS + 10, False, False, id="watches that hang"),
        pytest.param(WATCH_SECONDS / 2, True, False, id="watches that end before their time"),
    ],
)
def test_the_view_of_a_quiet_cluster_is_known(
    seconds: float, *, ends: bool, is_known: bool
) -> None:
    """Six minutes without an event or a bookmark: the API server says so, or nothing does."""

    async def act(reflector: Reflector, source: ScriptedWatch, __: Told) -> None:
        freshness, why = Freshness(), set()
        freshness.followed, freshness.settled = {"things": reflector}, True
        for _ in range(int(360 / seconds)):
            await asyncio.sleep(seconds)
            why.add(freshness.why_not())
            if ends:
                source.tell(PATH, "END", {})
            else:
                source.fail()
            await opened_again(source)
        assert why == ({""} if is_known else {"", f"{STALE}: things"})

    followed(act, thing("x"))


@pytest.mark.parametrize("storm", ["gone", "over"])
def test_a_storm_of_watches_that_end_is_not_answered_with_a_storm_of_calls(storm: str) -> None:
    """410 within every watch, or a balancer that closes each: it calls less and less often."""

    async def act(reflector: Reflector, source: ScriptedWatch, _: Told) -> None:
        source.opened.clear()
        end = asyncio.get_running_loop().time() + 120
        while asyncio.get_running_loop().time() < end:
            ended = ("ERROR", {"code": 410}) if storm == "gone" else ("END", {})
            source.tell(PATH, *ended)
            await asyncio.sleep(0.5)
        assert 5 < len(source.opened) < 40
        await asyncio.sleep(PAUSE_SECONDS_MAX)
        assert reflector.open

    followed(act, thing("x"))


def test_watches_that_end_as_soon_as_they_told_something_are_opened_once_a_second() -> None:
    """A few in a row at once; what they tell is taken all the while, and nothing is listed anew."""

    async def act(reflector: Reflector, source: ScriptedWatch, told: Told) -> None:
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        for number in range(2, 2 + 60):
            source.tell(PATH, "MODIFIED", thing("x", number))
            source.tell(PATH, "END", {})
            await opened_again(source)
        seconds = loop.time() - began
        assert 60 - BRIEF_MAX - 1 <= seconds <= 60
        assert told.words[-1] == "+uid-x:61"
        assert dict(reflector.relists) == {"first": 1}
        await asyncio.sleep(2 * AT_ONCE_SECONDS)  # one that lasts
        for number in (62, 63):
            source.tell(PATH, "MODIFIED", thing("x", number))
            source.tell(PATH, "END", {})
            await opened_again(source)
        assert loop.time() - began - seconds <= 3 * AT_ONCE_SECONDS

    followed(act, thing("x"))


def test_a_watch_that_goes_backwards_brings_nobody_back() -> None:
    """What ended does not come again by a word from before; only a list says what is there."""

    async def act(reflector: Reflector, source: ScriptedWatch, told: Told) -> None:
        source.tell(PATH, "ADDED", thing("y", 5))
        source.tell(PATH, "DELETED", thing("y", 9))
        source.tell(PATH, "DELETED", thing("y", 9))
        source.tell(PATH, "MODIFIED", thing("y", 8))
        await source.told()
        assert told.known == {"uid-x": "x"}
        assert not reflector.synced
        source.version = 10
        await asyncio.sleep(PAUSE_SECONDS)
        await source.told()
        assert dict(reflector.relists) == {"first": 1, "broken": 1}
        assert told.known == {"uid-x": "x"}
        assert reflector.open

    followed(act, thing("x"))


class Server:
    """
    A collection with a history: lists in pages, watches from a version, faults as drawn.

    Args:
        mixed_up: events come twice, late, or in another order.
    """

    def __init__(self, seed: int, *, mixed_up: bool) -> None:
        self.draw = random.Random(seed)
        self.mixed_up = mixed_up
        self.version = 10
        self.objects: dict[str, Object] = {}
        self.history: list[tuple[int, str, Object]] = []
        self.oldest = 0
        self.numbers = 0

    def change(self) -> None:
        """Create, change, delete or make anew one of a few names."""
        self.version += 1
        name = self.draw.choice("abcde")
        there = self.objects.get(name)
        if there is None or self.draw.random() < 0.2:
            if there is not None:
                gone = thing(name, self.version, uid=there["metadata"]["uid"])
                self.history.append((self.version, "DELETED", gone))
                self.version += 1
            self.numbers += 1
            self._store("ADDED", thing(name, self.version, uid=f"uid-{self.numbers}"))
        elif self.draw.random() < 0.4:
            del self.objects[name]
            gone = thing(name, self.version, uid=there["metadata"]["uid"])
            self.history.append((self.version, "DELETED", gone))
        else:
            self._store("MODIFIED", thing(name, self.version, uid=there["metadata"]["uid"]))

    def _store(self, kind: str, item: Object) -> None:
        self.objects[item["metadata"]["name"]] = item
        self.history.append((self.version, kind, item))

    async def read(self, path: str) -> Object | None:
        """Return a page of two; what is listed may change between two pages, as of no snapshot."""
        if self.draw.random() < 0.15:
            raise ApiError("busy", status=self.draw.choice([429, 500, 410]))
        token = path.rpartition("continue=")[2]
        version, _, start = token.partition("-")
        if not token or int(version) not in self._lists:
            self._lists = {self.version: sorted(self.objects.values(), key=str)}
            version, start = str(self.version), "0"
        items = self._lists[int(version)]
        end = int(start) + 2
        following = f"{version}-{end}" if end < len(items) else ""
        for _ in range(self.draw.randrange(3)):
            self.change()
        metadata = {"resourceVersion": version, "continue": following}
        return {"metadata": metadata, "items": items[int(start) : end]}

    _lists: dict[int, list[Object]] = {}  # noqa: RUF012 - replaced whole, never changed

    async def watch(self, path: str, seconds: int) -> AsyncGenerator[Object, None]:
        """Yield what came after a version, in order, until it ends, fails or is too old."""
        assert seconds > 0
        since = int(path.rpartition("resourceVersion=")[2])
        for _ in range(self.draw.randrange(12)):
            await asyncio.sleep(0.1)
            if self.draw.random() < 0.1:
                self.oldest = self.version
            if since < self.oldest:
                yield {"type": "ERROR", "object": {"code": 410}}
                return
            if self.draw.random() < 0.1:
                raise ApiError("cut")
            if self.draw.random() < 0.6:
                self.change()
            for version, kind, item in self._mixed(since):
                since = max(since, version)
                yield {"type": kind, "object": item}
                if self.draw.random() < 0.1:
                    raise ApiError("cut within")
            if self.draw.random() < 0.3:
                since = max(since, self.version)
                item = {"metadata": {"resourceVersion": str(since)}}
                yield {"type": "BOOKMARK", "object": item}

    def _mixed(self, since: int) -> list[tuple[int, str, Object]]:
        """Return what came after a version."""
        told = [each for each in self.history if each[0] > since]
        if told and self.mixed_up and self.draw.random() < 0.3:
            told += self.draw.choices(self.history, k=2)
            self.draw.shuffle(told)
        return told


@pytest.mark.parametrize("mixed_up", [False, True], ids=["in order", "mixed up"])
@pytest.mark.parametrize("seed", range(40))
def test_whatever_fails_the_sink_ends_with_what_is_there(seed: int, *, mixed_up: bool) -> None:
    """Cuts, 410 in every form, lists that change between pages; two of one name never."""

    async def main() -> None:
        server, told = Server(seed, mixed_up=mixed_up), Told()
        loop = asyncio.get_running_loop()
        reflector = Reflector(
            server, PATH, told, monotonic=loop.time, jitter=random.Random(seed).random
        )
        task = asyncio.create_task(again_and_again(reflector))
        await asyncio.sleep(600)
        server.change = lambda: None  # type: ignore[method-assign]
        await asyncio.sleep(120)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        there = {one["metadata"]["uid"]: one["metadata"]["name"] for one in server.objects.values()}
        assert told.known == there
        assert len(told.words) > 20

    run_in_virtual_time(main())


def test_a_kind_that_is_not_served_has_no_objects_until_it_is() -> None:
    """A cluster without our kinds is no fault; once they are there, their objects are told."""

    async def main() -> None:
        source, told = ScriptedWatch(absent={PATH}, listed={PATH: [thing("x")]}), Told()
        loop = asyncio.get_running_loop()
        reflector = Reflector(source, PATH, told, monotonic=loop.time, may_be_absent=True)
        task = asyncio.create_task(again_and_again(reflector))
        await source.told()
        assert reflector.synced
        assert not told.known
        source.absent.clear()
        await asyncio.sleep(ABSENT_SECONDS + 1)
        assert told.known == {"uid-x": "x"}
        assert reflector.open
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_in_virtual_time(main())
