"""
Writers that each believe they are the only one, and readers that tail the feed; run as a process.

One process imports everything and forks the others. Every writer takes the ledger over at random
moments, records reservations and releases on the nodes that all of them share, is deposed, asks
again for what was not answered, and so on until it has its number of reservations. Prints one JSON
object: what was acknowledged, what was refused, and which positions each reader saw.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ledger.domain.errors import CapacityError, FencedError, LedgerError
from ledger.store.commands import Command, Outcome, Recorded
from ledger.store.feed import follow
from ledger.store.lane import Lane, Turn, open_lane
from ledger.store.open import open_ledger
from ledger.store.service import open_service
from tests.support.stores import ORIGIN, Clock, node, released, reserved, share, start

WRITERS: Final = 8
READERS: Final = 4
NODES: Final = 6
CARDS: Final = 8
HELD_MAX: Final = 6
"""Per writer. All of them together could fill the cards, so some decisions are wrong."""
TOGETHER: Final = 6
PAUSES: Final = WRITERS
"""How long a deposed writer waits at most, in times of what its taking over took."""
LAST_NODE: Final = "the-end"


@dataclass(slots=True, kw_only=True)
class Writing:
    """One writer's memory: it outlives its turns, as a scheduler's own would."""

    number: int
    wanted: int
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

    @property
    def done(self) -> bool:
        """Whether it has its reservations, and an answer to every question."""
        return len(self.acknowledged) >= self.wanted and not self.unanswered

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
        del self.unanswered[key]
        place = self.placed.pop(key, None)
        if isinstance(outcome, Recorded):
            if place is not None:
                self.acknowledged[key] = outcome.first
                self.held.append(place)
        elif isinstance(outcome.error, CapacityError):
            self.refused.append(key)
        else:
            raise outcome.error


async def write(url: str, writing: Writing) -> dict[str, Any]:
    """Take turns until everything is acknowledged."""
    async with open_service(url, write=True) as service:
        while not writing.done:
            began = time.monotonic()
            taken = 0.1
            turn = Turn(holder=f"writer-{writing.number}", origin=ORIGIN, version="0.1.0")
            with suppress(LedgerError):  # another one holds the file's lock for too long
                async with open_lane(service, turn) as lane:
                    writing.turns += 1
                    taken = max(0.03, time.monotonic() - began)
                    try:
                        await use(lane, writing)
                    except FencedError:
                        writing.deposed += 1
            if not writing.done:
                await asyncio.sleep(writing.rng.random() * PAUSES * taken)
    return {
        "acknowledged": writing.acknowledged,
        "refused": writing.refused,
        "turns": writing.turns,
        "deposed": writing.deposed,
    }


async def use(lane: Lane, writing: Writing) -> None:
    """Ask for several things at a time, until there is nothing to ask or we are deposed."""
    while not writing.done:
        if len(writing.acknowledged) < writing.wanted:
            for _ in range(TOGETHER - len(writing.unanswered)):
                writing.decide()
        keys = list(writing.unanswered)
        answers = await asyncio.gather(
            *(lane.record(writing.unanswered[key]) for key in keys), return_exceptions=True
        )
        errors: list[BaseException] = []
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, BaseException):
                errors.append(answer)
            else:
                writing.hear(key, answer)
        for error in errors:
            raise error
        await asyncio.sleep(writing.rng.random() * 0.1)


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


def main(url: str, reservations: int, seed: int) -> None:
    """Let writers and readers loose on one ledger."""
    with open_ledger(url, mode="write") as ledger:
        first = [node(f"n-{i}", gpus=CARDS) for i in range(NODES)]
        start(ledger).append(Clock().all(*first))
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{i}.json" for i in range(WRITERS + READERS)]
        readers = [forked(file, lambda: read(url)) for file in files[WRITERS:]]
        writers = []
        for number, file in enumerate(files[:WRITERS]):
            writing = Writing(
                number=number,
                wanted=reservations // WRITERS,
                rng=random.Random(seed * WRITERS + number),
            )
            writers.append(forked(file, lambda writing=writing: write(url, writing)))  # type: ignore[misc]
        statuses = [os.waitpid(child, 0)[1] for child in writers]
        with open_ledger(url, mode="write") as ledger:
            start(ledger, holder="the last").append([Clock().new(node(LAST_NODE), key=LAST_NODE)])
        statuses += [os.waitpid(child, 0)[1] for child in readers]
        answers = [json.loads(file.read_text()) if file.is_file() else None for file in files]
    answer = {
        "statuses": statuses,
        "writers": answers[:WRITERS],
        "readers": answers[WRITERS:],
    }
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
