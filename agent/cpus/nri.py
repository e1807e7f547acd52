"""
CPUs of containers set by the runtime itself before their processes run: the plugin of NRI.

The runtime holds one lock while it calls a plugin. So calls are answered in a thread of their own
out of one value in memory, within 50 ms or with nothing, and never with an error, which would fail
the container. What else there is to do goes to the process's loop as an event.

A plugin whose answer the runtime does not wait for is closed by it; `LOST_MAX` such ends within
`LOST_SECONDS` turn us off. We are no validator: the runtime fails a container whose validator dies.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

from agent.cpus import nri_messages, ttrpc
from agent.cpus.nri_messages import Bound, Call, Happening
from agent.decide.cgroups import Problem
from agent.decide.wanted_cpus import Wanted
from ledger.domain.cpuset import parse_cpuset
from ledger.domain.errors import TenureError

SOCKET: Final = Path("/var/run/nri/nri.sock")
NAME: Final = "tenure"
INDEX: Final = "99"  # called last: what others set of a new container is there to be read
ANSWER_SECONDS: Final = 0.05
REGISTER_SECONDS: Final = 5.0  # for each answer of the runtime, until it is synchronized
SEND_SECONDS: Final = 1
PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 30.0
STEADY_SECONDS: Final = 10.0
LOST_MAX: Final = 3
LOST_SECONDS: Final = 600.0
REFUSED_MAX: Final = 2  # within LOST_SECONDS, made without our CPUs alone: another plugin
_RECEIVED: Final = 65_536
_log: Final = logging.getLogger("tenure.agent.nri")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """
    What containers are to be bound to, by Pod UID and name; without a name those of no known name.

    A container's CPUs have to be among those of its Pod's cgroup: widen that one first, and publish
    then.

    Attributes:
        kubelet_binds: kubelet's static policies set CPUs or memory nodes of containers themselves.
    """

    bound: Mapping[tuple[str, str], Bound] = field(default_factory=dict)
    kubelet_binds: bool = False


def snapshot_of(wanted: Wanted, *, kubelet_binds: bool, v1: bool) -> Snapshot:
    """
    Return what cgroups are planned by, for the runtime; with CPUs of its own goes no quota.

    On v1 a container of a pool is not named: the runtime copies the Pod's CPUs, and is refused
    those that a round has taken from it since.
    """
    bound = {
        (uid, name): Bound(cpus=cpus, mems=pod.mems, quota=not pod.own)
        for uid, pod in wanted.pods.items()
        for name, cpus in (*pod.containers.items(), *([("", pod.own)] if pod.own else ()))
        if not pod.stays and (pod.own or not v1)
    }
    return Snapshot(bound=bound, kubelet_binds=kubelet_binds)


class Standing(StrEnum):
    """Whether new containers are bound as they are made."""

    AWAY = "NRIAway"  # the runtime has no NRI, or is not there; it is tried again
    ON = "on"
    OFF = "NRIOff"  # it gave us up too often: until the process starts again
    WITHDRAWN = "AnotherPlugin"  # another one sets CPUs: until the process starts again


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    """
    A container that is being made, and has not run yet.

    Attributes:
        bound: whether it got our CPUs.
        sets: its CPUs and memory nodes as they were before us.
        refused: the one before it, with our CPUs, was not even made.
    """

    bound: bool
    sets: tuple[str, str]
    refused: bool
    made: bool = False


class Answering:
    """
    Calls in, answers and events out; no I/O.

    A container that did not come to run with our CPUs is made without them the next time. One that
    the runtime makes only so shows another plugin: the runtime refuses what two of them set.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.conflict = ""
        """Who else sets CPUs; empty = nobody."""
        self._clock = clock
        self._tries: dict[tuple[str, str], _Try] = {}
        self._refused: tuple[float, ...] = ()

    def answer(
        self, snapshot: Snapshot, method: str, payload: bytes
    ) -> tuple[bytes, Call | None, Bound | None]:
        """
        Return the answer, the call if it is of interest, and what it gave its container.

        An empty answer asks for nothing.

        Raises:
            InputError: the payload is no message of NRI.
        """
        until = self._clock() + ANSWER_SECONDS
        if method == "Configure":
            return nri_messages.CONFIGURED, None, None
        if method == "Synchronize":
            return nri_messages.synchronized(payload), None, None
        call = nri_messages.call_of(method, payload)
        if call is None:
            return b"", None, None
        bound, answer = None, b""
        if call.happening is Happening.CREATE_CONTAINER:
            if bound := self._bound(snapshot, call):
                answer = nri_messages.adjusted(bound)
        elif call.happening is Happening.UPDATE_CONTAINER:
            if bound := _wanted(snapshot, call):
                answer = nri_messages.updated(call.container_id, bound)
        else:
            self._follow(snapshot, call)
        if bound and self._clock() > until:
            self._tries.pop(_key(call), None)
            return b"", call, None
        return answer, call, bound

    def _bound(self, snapshot: Snapshot, call: Call) -> Bound | None:
        """Return what a new container gets, and note it until it runs."""
        bound, sets = _wanted(snapshot, call), (call.cpus, call.mems)
        if bound is None:
            return None
        if any(sets) and not snapshot.kubelet_binds:
            self.conflict = f"another NRI plugin set cpus={call.cpus!r} mems={call.mems!r}"
            return None
        before = self._tries.pop(_key(call), None)
        gets = before is None or not before.bound
        self._tries[_key(call)] = _Try(
            bound=gets, sets=sets, refused=before is not None and before.bound and not before.made
        )
        return bound if gets else None

    def _follow(self, snapshot: Snapshot, call: Call) -> None:
        made = self._tries.get(_key(call))
        if call.happening is Happening.STOP_POD_SANDBOX:
            for key in [key for key in self._tries if key[0] == call.pod_uid]:
                del self._tries[key]
        elif made is None:
            return
        elif call.happening is Happening.POST_START_CONTAINER:
            del self._tries[_key(call)]
        elif call.happening is Happening.POST_CREATE_CONTAINER:
            self._tries[_key(call)] = replace(made, made=True)
            if made.refused:
                self._judge(snapshot, call, made)

    def _judge(self, snapshot: Snapshot, call: Call, made: _Try) -> None:
        """Look at a container that was made without our CPUs, after one that was not with them."""
        sets = (call.cpus, call.mems)
        if not any(sets):
            return  # it failed for another reason
        self._refused = _counted(self._refused, self._clock())
        others = not snapshot.kubelet_binds or sets != made.sets
        if others or len(self._refused) >= REFUSED_MAX:
            self.conflict = (
                "the runtime makes containers without our CPUs alone, as beside another NRI plugin"
                f" that sets them: container={call.container} cpus={call.cpus!r} mems={call.mems!r}"
            )


def pause_after(before: float, lasted: float) -> float:
    """Return the seconds to the next try: twice those before it, unless the connection lasted."""
    if lasted >= STEADY_SECONDS:
        return PAUSE_SECONDS
    return min(max(PAUSE_SECONDS, 2 * before), PAUSE_SECONDS_MAX)


@dataclass(slots=True, eq=False)
class Nri:
    """
    Our plugin: connected again whenever the runtime is there, unless it is off or withdrawn.

    Attributes:
        act: is called in the loop after each call, and with None once our state changed: look at
            everything then.
    """

    path: Path
    act: Callable[[Call | None], None]
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float, float], float] = pause_after
    state: Problem = field(default_factory=lambda: _state(Standing.AWAY))
    _snapshot: Snapshot = field(default_factory=Snapshot)
    _published: asyncio.Event = field(default_factory=asyncio.Event)
    _lost: tuple[float, ...] = ()
    _loop: asyncio.AbstractEventLoop | None = None

    def publish(self, snapshot: Snapshot) -> None:
        """Answer out of this from now on; before the first one the runtime does not know us."""
        self._snapshot = snapshot
        self._published.set()

    def withdraw(self) -> None:
        """Bind nobody from now on."""
        self._snapshot = Snapshot()

    async def run(self) -> None:
        """Answer the runtime until the task is cancelled."""
        await self._published.wait()
        self._loop = asyncio.get_running_loop()
        pause = 0.0
        while self.state.reason not in (Standing.OFF, Standing.WITHDRAWN):
            began = self.clock()
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(REGISTER_SECONDS)
                try:
                    await asyncio.to_thread(self._talk, connection)
                finally:
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)  # the thread sees the end
            pause = self.pause(pause, self.clock() - began)
            await asyncio.sleep(pause)
        await asyncio.Event().wait()

    def _talk(self, connection: socket.socket) -> None:
        """Be registered and answer until the connection ends; in a thread."""
        state = _state(Standing.AWAY, "the runtime closed the connection")
        try:
            connection.connect(str(self.path))
            named = nri_messages.register(NAME, INDEX)
            service = nri_messages.RUNTIME_SERVICE
            connection.sendall(ttrpc.request(service, "RegisterPlugin", named, REGISTER_SECONDS))
            state = self._serve(connection) or state
        except (OSError, TenureError) as error:
            state = _state(Standing.AWAY, str(error))
        self._stand(state)

    def _serve(self, connection: socket.socket) -> Problem | None:
        """Answer until the connection ends; None = the runtime just closed it."""
        incoming, answering = ttrpc.Incoming(), Answering(self.clock)
        while received := connection.recv(_RECEIVED):
            for message in incoming.feed(received):
                if message.kind == ttrpc.REQUEST and message.connection == ttrpc.PLUGIN:
                    if not self._answer(connection, answering, message):
                        return self._given_up()
                elif message.kind == ttrpc.RESPONSE and (why := ttrpc.refused_in(message)):
                    raise ttrpc.FramingError(f"the runtime takes no plugin: {why}")
                if answering.conflict:
                    return _state(Standing.WITHDRAWN, answering.conflict)
        return None

    def _answer(
        self, connection: socket.socket, answering: Answering, message: ttrpc.Message
    ) -> bool:
        """Answer one call; False = the runtime did not wait for it."""
        method, payload = ttrpc.asked_in(message)
        try:
            answer, call, bound = answering.answer(self._snapshot, method, payload)
        except Exception as error:  # noqa: BLE001 - an error of ours may fail no container
            answer, call, bound = b"", None, None
            self._tell(partial(_log.error, "a call of NRI has no answer", exc_info=error))
        try:
            connection.sendall(ttrpc.response(message, answer))
        except (BrokenPipeError, ConnectionResetError):
            return False
        if method == "Synchronize":
            connection.settimeout(None)
            seconds = struct.pack("ll", SEND_SECONDS, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
            self._stand(_state(Standing.ON))
        elif call is not None:
            if bound is not None:
                said = {"pod_uid": call.pod_uid, "container": call.container}
                said |= {"cpus": str(bound.cpus)}
                self._tell(partial(_log.info, call.happening.name, extra=said))
            self._tell(partial(self.act, call))
        return True

    def _given_up(self) -> Problem:
        """Note that the runtime did not wait for an answer, and return what follows from it."""
        self._lost = _counted(self._lost, self.clock())
        often = len(self._lost) >= LOST_MAX
        words = f"the runtime gave up an answer of ours: times={len(self._lost)}"
        return _state(Standing.OFF if often else Standing.AWAY, words)

    def _stand(self, state: Problem) -> None:
        before, self.state = self.state, state
        if state != before:
            said = {"standing": state.reason, "reason": state.words}
            self._tell(partial(_log.info, "NRI", extra=said))
            self._tell(partial(self.act, None))

    def _tell(self, heard: Callable[[], None]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended, and we do with it
            self._loop.call_soon_threadsafe(heard)


def _state(standing: Standing, why: str = "") -> Problem:
    return Problem(about="NRI", reason=standing, words=why)


def _counted(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    """Return the times that count yet, and now."""
    return (*(one for one in times if now - one < LOST_SECONDS), now)


def _key(call: Call) -> tuple[str, str]:
    return call.pod_uid, call.container


def _wanted(snapshot: Snapshot, call: Call) -> Bound | None:
    unnamed = snapshot.bound.get((call.pod_uid, ""), Bound())
    bound = snapshot.bound.get(_key(call), unnamed)
    if snapshot.kubelet_binds and bound.quota and call.cpus:  # kubelet may know better by now
        bound = replace(bound, cpus=bound.cpus & parse_cpuset(call.cpus))
    return None if bound == Bound() else bound
