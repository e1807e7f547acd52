"""
Writers that each believe they are the only one, and readers that tail the feed; run as a process.

One process imports everything and forks the others. Every writer takes the ledger over at random
moments, records groups of reservations and releases on the nodes that all of them share, is
deposed, asks again for what was not answered, and so on until all together have the number of
reservations. Some write as a service does, through a lane on a new connection each turn, some on
one connection that they keep. Prints one JSON object: what was acknowledged, what was refused, how
often each was fenced, and which positions each reader saw.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from ledger.domain.errors import CapacityError, FencedError, LedgerError
from ledger.store.open import open_ledger
from ledger.store.reading.feed import follow
from ledger.store.service import open_service
from ledger.store.writing.append import Writer
from ledger.store.writing.commands import Command, Outcome, Recorded
from ledger.store.writing.lane import Lane, Turn, open_lane
from tenure.progress import counting_bar
from tests.support.stores import ORIGIN, Clock, node, released, reserved, share, start

WRITERS: Final = 8
LANES: Final = 2
"""So many of them write as a service does, on a new connection each turn; the others keep one."""
READERS: Final = 4
NODES: Final = 12
CARDS: Final = 8
HELD_MAX: Final = 5
"""Per writer. All of them together could fill many cards, so some decisions are wrong."""
TOGETHER_MAX: Final = 8
PAUSES: Final = 4 * WRITERS
"""How long a deposed writer waits at most, in times of what its taking over took."""
TAKEN_SECONDS: Final = (0.02, 0.05)
"""What of that time counts at least and at most: the rest was waiting for another's lock."""
DOUBLED_MAX: Final = 4
"""How often a pause is doubled at most, while turns end before they have an answer."""
GAP_SECONDS_MAX: Final = 0.01
"""Between two groups, for those who wait for the lock of a file."""
LAST_NODE: Final = "the-end"
LOOK_SECONDS: Final = 0.2


class Tally:
    """How many reservations each writer was told of, in memory that all processes share."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self._counts = memoryview(mmap.mmap(-1, 8 * WRITERS)).cast("q")

    @property
    def made(self) -> int:
        """All of them together."""
        return sum(self._counts)

    def count(self, number: int) -> None:
        """One more of this writer."""
        self._counts[number] += 1


@dataclass(slots=True, kw_only=True)
class Writing:
    """One writer's memory: it outlives its turns, as a scheduler's own would."""

    number: int
    tally: Tally
    rng: random.Random
    clock: Clock = field(default_factory=Clock)
    unanswered: dict[str, Command] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    held: list[tuple[str, str]] = field(default_factory=list)
    placed: dict[str, tuple[str, str]] = field(default_factory=dict)
    made: int = 0
    turns: int = 0
    deposed: int = 0
    fenced: int = 0
    barren: int = 0

    @property
    def done(self) -> bool:
        """Whether there are enough reservations, and an answer to every question of ours."""
        return self.tally.made >= self.tally.wanted and not self.unanswered

    def questions(self) -> list[str]:
        """Return the keys of what to ask now: what was not answered, and some more beside it."""
        if self.tally.made < self.tally.wanted:
            for _ in range(self.rng.randint(1, TOGETHER_MAX) - len(self.unanswered)):
                self.decide()
        return list(self.unanswered)

    def decide(self) -> None:
        """Reserve a share of some card, knowing only our own holders, or end one of them."""
        self.made += 1
        key = f"w{self.number}-{self.made}"
        if self.held and (len(self.held) >= HELD_MAX or self.rng.random() < 0.3):
            pod, name = self.held.pop(self.rng.randrange(len(self.held)))
            event: Any = released(pod, node=name)
            key = f"{key}-release"
        else:
            name, minor = f"n-{self.rng.randrange(NODES)}", self.rng.randrange(CARDS)
            core = self.rng.choice((10, 25, 25, 50, 100))
            event = reserved(key, share(minor, core, node=name), node=name)
            self.placed[key] = (key, name)
        self.unanswered[key] = Command(events=(self.clock.new(event, key=key),))

    def hear(self, key: str, outcome: Outcome) -> None:
        """Take note of an answer."""
        self.barren = 0
        del self.unanswered[key]
        place = self.placed.pop(key, None)
        if isinstance(outcome, Recorded):
            if place is not None:
                self.acknowledged[key] = outcome.first
                self.tally.count(self.number)
                self.held.append(place)
        elif isinstance(outcome.error, CapacityError):
            self.refused.append(key)
        else:
            raise outcome.error

    def pause_seconds(self, taken: float) -> float:
        """
        Return how long to let the others write, after a turn that took so long to get.

        Longer after each turn without an answer: on a machine with much else to do, all would take
        over faster than any of them writes.
        """
        least, most = TAKEN_SECONDS
        self.barren += 1
        times = PAUSES << min(self.barren - 1, DOUBLED_MAX)
        return self.rng.random() * times * min(max(least, taken), most)

    def answer(self) -> dict[str, Any]:
        """Return what became of it."""
        names = ("acknowledged", "refused", "turns", "deposed", "fenced")
        return {name: getattr(self, name) for name in names}


async def write_in_lanes(url: str, writing: Writing) -> dict[str, Any]:
    """Take turns as a service does, until there are enough reservations."""
    turn = Turn(holder=f"writer-{writing.number}", origin=ORIGIN, version="0.1.0")
    async with open_service(url, write=True) as service:
        while not writing.done:
            began, taken = time.monotonic(), 0.1
            with suppress(LedgerError):  # another one holds the file's lock for too long
                async with open_lane(service, turn) as lane:
                    writing.turns += 1
                    taken = time.monotonic() - began
                    try:
                        await use(lane, writing)
                    except FencedError:
                        writing.deposed += 1
            if not writing.done:
                await asyncio.sleep(writing.pause_seconds(taken))
    return writing.answer()


async def use(lane: Lane, writing: Writing) -> None:
    """Ask for several things at a time, until there is nothing to ask or we are deposed."""
    while not writing.done:
        keys = writing.questions()
        answers = await asyncio.gather(
            *(lane.record(writing.unanswered[key]) for key in keys), return_exceptions=True
        )
        errors: list[BaseException] = []
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, BaseException):
                errors.append(answer)
            else:
                writing.hear(key, answer)
        writing.fenced += sum(isinstance(error, FencedError) for error in errors)
        for error in errors:
            raise error
        await asyncio.sleep(writing.rng.random() * GAP_SECONDS_MAX)


async def write_on_one_connection(url: str, writing: Writing) -> dict[str, Any]:
    """Take turns on a connection of our own; try once more with what was deposed."""
    with open_ledger(url, mode="write") as ledger:
        while not writing.done:
            began, taken = time.monotonic(), 0.1
            with suppress(LedgerError):  # another one holds the file's lock for too long
                writer = start(ledger, holder=f"writer-{writing.number}")
                writing.turns += 1
                taken = time.monotonic() - began
                with suppress(FencedError):
                    record(writer, writing)
                if writing.done:
                    break
                writing.deposed += 1
                insist(writer, writing)
            await asyncio.sleep(writing.pause_seconds(taken))
    return writing.answer()


def record(writer: Writer, writing: Writing) -> None:
    """Ask for one group after another, until there is nothing to ask or we are deposed."""
    while not writing.done:
        keys = writing.questions()
        try:
            outcomes = writer.record([writing.unanswered[key] for key in keys])
        except FencedError:
            writing.fenced += len(keys)
            raise
        for key, outcome in zip(keys, outcomes, strict=True):
            writing.hear(key, outcome)
        time.sleep(writing.rng.random() * GAP_SECONDS_MAX)


def insist(writer: Writer, writing: Writing) -> None:
    """A deposed writer does not believe it: it is told again, whatever it asks."""
    keys = writing.questions()
    if keys:
        with suppress(FencedError):
            writer.record([writing.unanswered[key] for key in keys])
            raise AssertionError(f"a deposed writer was answered: turn={writing.turns}")
        writing.fenced += len(keys)


async def read(url: str) -> dict[str, Any]:
    """Tail the feed from its start to the marked end."""
    positions: list[int] = []
    async with (
        open_service(url) as service,
        aclosing(follow(service, page_events=100, poll_seconds=0.1)) as events,
    ):
        async for each in events:
            positions.append(each.envelope.position)
            if getattr(each.event, "node_name", "") == LAST_NODE:
                break
    return {"positions": positions}


def forked(file: Path, work: Callable[[], Awaitable[dict[str, Any]]]) -> int:
    """Run `work` in a process of its own, which leaves its answer in `file`."""
    child = os.fork()
    if child:
        return child
    status = 1
    signal.alarm(0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        file.write_text(json.dumps(asyncio.run(_awaited(work))))
        status = 0
    except BaseException:  # noqa: BLE001 - the edge of a process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


async def _awaited(work: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    return await work()


@dataclass(slots=True, kw_only=True)
class Crowd:
    """Processes of ours, each with the file of its answer; whoever is left is killed at the end."""

    folder: Path
    children: list[int] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    def add(self, work: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Begin one."""
        self.children.append(forked(self.folder / f"{len(self.children)}.json", work))

    def wait(self, until: int, tally: Tally) -> None:
        """Wait for the first so many processes, with a bar of what they made."""
        with counting_bar("reservations", tally.wanted) as bar:
            while not set(self.children[:until]) <= self.statuses.keys():
                for child in {*self.children} - self.statuses.keys():
                    pid, status = os.waitpid(child, os.WNOHANG)
                    if pid:
                        self.statuses[pid] = status
                    if status:
                        raise SystemExit(f"a writer or a reader failed: {status=}")
                if bar is not None:
                    bar(min(tally.made, tally.wanted))
                time.sleep(LOOK_SECONDS)

    def answers(self) -> list[dict[str, Any]]:
        """Return what each of them found."""
        files = (self.folder / f"{number}.json" for number in range(len(self.children)))
        return [json.loads(file.read_text()) for file in files]

    def end(self) -> None:
        """Kill whoever still runs."""
        for child in {*self.children} - self.statuses.keys():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def contend(url: str, reservations: int, seed: int, folder: Path) -> dict[str, Any]:
    """Let writers and readers loose on one ledger."""
    with open_ledger(url, mode="write") as ledger:
        first = [node(f"n-{i}", gpus=CARDS) for i in range(NODES)]
        start(ledger).append(Clock().all(*first))
    began, tally, crowd = time.monotonic(), Tally(reservations), Crowd(folder=folder)
    try:
        for number in range(WRITERS):
            rng = random.Random(seed * WRITERS + number)
            writing = Writing(number=number, tally=tally, rng=rng)
            write = write_in_lanes if number < LANES else write_on_one_connection
            crowd.add(partial(write, url, writing))
        for _ in range(READERS):
            crowd.add(partial(read, url))
        crowd.wait(WRITERS, tally)
        seconds = time.monotonic() - began
        with open_ledger(url, mode="write") as ledger:
            last = start(ledger, holder="the last")
            last.append([Clock().new(node(LAST_NODE), key=LAST_NODE)])
        crowd.wait(WRITERS + READERS, tally)
    finally:
        crowd.end()
    answers = crowd.answers()
    return {
        "epochs": last.head.epoch,
        "seconds": round(seconds, 1),
        "writers": answers[:WRITERS],
        "readers": answers[WRITERS:],
    }


def main(url: str, reservations: int, seed: int, seconds_max: int) -> None:
    """Do that for so long at most; whoever ends us ends all of it."""
    signal.signal(signal.SIGTERM, _give_up)
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(seconds_max)
    with tempfile.TemporaryDirectory() as folder:
        answer = contend(url, reservations, seed, Path(folder))
    sys.stdout.write(json.dumps(answer))


def _give_up(number: int, _: FrameType | None) -> NoReturn:
    """Leave as an exception does: the children are killed on the way out."""
    raise SystemExit(f"ended by a signal: {signal.Signals(number).name}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
