"""
A writer that is killed, or whose Postgres is, again and again; run as a process of its own.

One process imports everything, runs a server of its own and forks a writer for every cycle. A
writer says which commands it is about to ask for, and where each is recorded once it was told so;
what was not answered is asked for again by the writer after it. Prints one JSON object: how many
writers and servers were killed, how much was acknowledged and repeated, and what was found wrong.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, NoReturn

from ledger.domain.errors import LedgerError
from ledger.domain.log.events import LedgerEvent
from ledger.store.open import open_ledger
from ledger.store.proving.verify import verify
from ledger.store.writing.append import Writer
from tenure.progress import counting_bar
from tests.support.postgres import OwnServer, own_server
from tests.support.stores import Clock, PostgresStore, node, released, reserved, share, start

NODES: Final = 4
CARDS: Final = 8
CYCLES_PER_LEDGER: Final = 10
ALIVE_SECONDS: Final = 0.25
"""How long a cycle lasts at most, from the moment that was chosen for it to begin at."""
WORDS_MAX: Final = 12
"""Behind fewer words of its writer a cycle begins, if not when it is forked."""
END_SECONDS: Final = 120.0
"""How long a writer may take to notice that its server is gone."""
GONE: Final = 7
"""The status of a writer that was told so by the store: the only way to end by itself."""

Command = tuple[str, str, str]
"""The idempotency key, the Pod and its node; the Pod's name ends in its card's minor."""

HELD: Final = "SELECT pod_name, node_name FROM audit_reservations WHERE closed_position IS NULL"
RECORDED: Final = """
SELECT 'events', idempotency_key, position FROM ledger_events
UNION ALL SELECT 'reservations', pod_name, position FROM audit_reservations
UNION ALL SELECT 'releases', pod_name, closed_position FROM audit_reservations
  WHERE closed_position IS NOT NULL
"""
"""One statement, so one moment: a dead writer's last commit may still be under way."""


@dataclass(slots=True, kw_only=True)
class Heard:
    """What the writers of one ledger said."""

    asked: list[list[Command]] = field(default_factory=list)
    unanswered: list[Command] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    repeated: int = 0
    recorded_after_all: int = 0

    def hear(self, line: bytes) -> None:
        """Take note of one line of a writer."""
        what, value = json.loads(line)
        if what == "asks":
            commands = [(key, pod, name) for key, pod, name in value]
            self.repeated += commands == self.unanswered
            self.unanswered = commands
            if commands not in self.asked[-1:]:
                self.asked.append(commands)
        elif what == "recorded":
            self.acknowledged |= value
            self.unanswered = []
        else:  # it was recorded before: nobody was told where
            self.settled |= {key for key, _, _ in self.unanswered}
            self.recorded_after_all += 1
            self.unanswered = []


def event_of(command: Command) -> LedgerEvent:
    """Return what a command asks for."""
    key, pod, name = command
    if key != pod:
        return released(pod, node=name)
    return reserved(pod, share(_minor(pod), 100, node=name), node=name)


def _minor(pod: str) -> int:
    return int(pod.rpartition("@")[2])


def write_until_killed(
    url: str, cycle: int, unanswered: Sequence[Command], told: int, rng: random.Random
) -> None:
    """Repeat what was not answered; then reserve and release for ever, and say so."""
    with open_ledger(url, mode="write") as ledger:
        writer = start(ledger, holder=f"writer-{cycle}")
        clock = Clock(now_us=ledger.head().at_us)
        if unanswered:
            ask(writer, clock, unanswered, told)
        held = [(row[0], row[1]) for row in ledger.connection.exec_driver_sql(HELD)]
        ledger.connection.rollback()
        made = 0
        while True:
            commands: list[Command] = []
            for _ in range(rng.choice((1, 1, 1, 5, 20))):
                made += 1
                if len(held) == NODES * CARDS or (held and rng.random() < 0.4):
                    pod, name = held.pop(rng.randrange(len(held)))
                    commands.append((f"{pod}-release", pod, name))
                    continue
                name, minor = f"n-{rng.randrange(NODES)}", rng.randrange(CARDS)
                if any((_minor(pod), there) == (minor, name) for pod, there in held):
                    continue
                pod = f"p{cycle}-{made}@{minor}"
                held.append((pod, name))
                commands.append((pod, pod, name))
            if commands:
                ask(writer, clock, commands, told)


def ask(writer: Writer, clock: Clock, commands: Sequence[Command], told: int) -> None:
    """Append one batch; tell before that we ask, and after it where everything is."""
    before = writer.head.position
    _tell(told, "asks", commands)
    last = writer.append([clock.new(event_of(each), key=each[0]) for each in commands])
    if last == before:
        _tell(told, "recorded before", None)
    else:
        keys = [key for key, _, _ in commands]
        _tell(told, "recorded", dict(zip(keys, range(before + 1, last + 1), strict=True)))


def _tell(told: int, what: str, value: object) -> None:
    line = json.dumps([what, value]).encode() + b"\n"
    while line:
        line = line[os.write(told, line) :]


@dataclass(slots=True, kw_only=True)
class Cycle:
    """One writer's life, and the end of it or of its server."""

    own: OwnServer
    url: str
    number: int
    heard: Heard
    rng: random.Random
    findings: list[str] = field(default_factory=list)

    def run(self, *, kill_server: bool) -> None:
        """Fork a writer, end one side at a random moment, and hear all that the writer said."""
        read_end, write_end = os.pipe()
        seed, from_fork = self.rng.random(), self.rng.random() < 0.25
        words = self.rng.randrange(1, WORDS_MAX)
        moment = self.rng.random() * ALIVE_SECONDS
        child = os.fork()
        if child == 0:
            os.close(read_end)
            self._be_writer(write_end, random.Random(seed))
        os.close(write_end)
        status = None
        try:
            said = b"" if from_fork else _hear(read_end, words)
            said += _listen(read_end, moment)
            if kill_server:
                self.own.stop(signal.SIGQUIT)
                said += _listen(read_end, END_SECONDS)
            else:
                os.kill(child, signal.SIGKILL)
                said += _listen(read_end, END_SECONDS)
            status = _ended(child)
        finally:
            os.close(read_end)
            if status is None:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        expected = GONE if kill_server else -signal.SIGKILL
        if status != expected:
            self.findings.append(f"the writer ended otherwise: {status=}, {expected=}")
        *lines, half = said.split(b"\n")
        if half and kill_server:
            self.findings.append(f"the writer ended within a word: {half!r}")
        for line in lines:
            self.heard.hear(line)
        if kill_server:
            self.own.start()

    def _be_writer(self, told: int, rng: random.Random) -> NoReturn:
        status = 3
        try:
            write_until_killed(self.url, self.number, self.heard.unanswered, told, rng)
        except LedgerError:
            status = GONE
        except BaseException:  # noqa: BLE001 - the edge of a process
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def check(self, store: PostgresStore) -> None:
        """All of it proves itself, everything acknowledged is there, and nothing is twice."""
        with open_ledger(store.url, mode="read") as ledger:
            self.findings += [str(finding) for finding in verify(ledger).findings]
        with store.raw() as raw:
            rows: list[tuple[Any, ...]] = raw.execute(RECORDED).fetchall()
        self.findings += wrong(rows, self.heard)


def _hear(source: int, words: int) -> bytes:
    """Return what is said until it is so many words, however long a busy machine takes for them."""
    said = b""
    while said.count(b"\n") < words and (more := os.read(source, 65_536)):
        said += more
    return said


def _listen(source: int, seconds: float) -> bytes:
    """Return what is said within so many seconds, or until there is nobody to say more."""
    said, end = b"", time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([source], [], [], left)[0]:
            more = os.read(source, 65_536)
            if not more:
                break
            said += more
    return said


def _ended(child: int) -> int | None:
    """Return how a process ended that said its last word; None if it did not end."""
    end = time.monotonic() + END_SECONDS
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def wrong(rows: Sequence[tuple[Any, ...]], heard: Heard) -> list[str]:
    """Return what the database's own words contradict."""
    found = []
    events = [(key, position) for what, key, position in rows if what == "events"]
    places = dict(events)
    keys = Counter(key for key, _ in events)
    for key, position in heard.acknowledged.items():
        if places.get(key) != position:
            found.append(f"acknowledged, but not there: {key=}, {position=}, is={places.get(key)}")
    found += [f"settled, but not there: {key=}" for key in heard.settled - places.keys()]
    found += [f"a key is there twice: {key=}" for key, times in keys.items() if times > 1]
    if sorted(position for _, position in events) != [*range(1, len(events) + 1)]:
        found.append("the positions are not dense")
    for batch in heard.asked:
        there = [key for key, _, _ in batch if key in places]
        if there and len(there) != len(batch):
            found.append(f"half a batch is there: asked={len(batch)}, there={len(there)}")
    asked = {key: pod for batch in heard.asked for key, pod, _ in batch}
    for what, released_too in (("reservations", False), ("releases", True)):
        tables = Counter((pod, position) for kind, pod, position in rows if kind == what)
        log = Counter(
            (asked[key], position)
            for key, position in events
            if key in asked and (key != asked[key]) is released_too
        )
        if tables != log:
            found.append(f"the {what} are not the events': {tables - log}, {log - tables}")
    return found


def main(cycles: int, seed: int, seconds_max: int) -> None:
    """Crash so many times over a few ledgers of one server, which is stopped in the end."""
    signal.signal(signal.SIGTERM, _give_up)
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(seconds_max)
    rng = random.Random(seed)
    kills = [i % 2 == 0 for i in range(cycles)]
    rng.shuffle(kills)
    findings: list[str] = []
    counts: Counter[str] = Counter(servers=sum(kills), clients=cycles - sum(kills))
    began = time.monotonic()
    with own_server() as own, counting_bar("crashes", cycles) as bar:
        for first in range(0, cycles, CYCLES_PER_LEDGER):
            store = PostgresStore(server=own.server, database=own.server.new_database())
            with store.open("create") as ledger:
                start(ledger).append(Clock().all(*(node(f"n-{i}") for i in range(NODES))))
            heard = Heard()
            for number, kill_server in enumerate(kills[first : first + CYCLES_PER_LEDGER], first):
                cycle = Cycle(own=own, url=store.url, number=number, heard=heard, rng=rng)
                cycle.run(kill_server=kill_server)
                cycle.check(store)
                findings += [f"cycle {number}: {finding}" for finding in cycle.findings]
                if bar is not None:
                    bar(number + 1)
            counts["acknowledged"] += len(heard.acknowledged)
            counts["repeated"] += heard.repeated
            counts["recorded_after_all"] += heard.recorded_after_all
            own.server.drop(store.database)
    seconds = round(time.monotonic() - began, 1)
    sys.stdout.write(json.dumps({**counts, "seconds": seconds, "findings": findings}))


def _give_up(number: int, _: FrameType | None) -> NoReturn:
    """Leave as an exception does: the server is stopped on the way out."""
    raise SystemExit(f"ended by a signal: {signal.Signals(number).name}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
