"""
Bind calls of gangs that are not begun: they wait for each other, then all are bound or none.

Rule: docs/adr/0043; `scheduler.decide.group.permit` says who is allowed. Every other call goes on
at once. A call whose caller is gone is void. Once its gang is begun a Pod is bound, whoever waits.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from scheduler.decide.group import permit
from scheduler.decide.group.permit import Allow, Attempt, Call, Facts, Reject
from scheduler.service.binding import Binder
from scheduler.service.ports import BindCall, Clock, Start, WhyNot
from scheduler.service.starts import Starts
from scheduler.service.telling import NORMAL, about_pod
from scheduler.service.wakeups import Wakeups

LOOK_SECONDS: Final = 0.2
"""Between two looks at deadlines and at the lead."""
WAITS: Final = "WaitsForGang"
DRAINING: Final = "the scheduler is being stopped"

_log: Final = logging.getLogger("tenure.scheduler.permits")


class Permits:
    """
    Lets bind calls pass, those of a gang that is not begun once enough of its members have one.

    Attributes:
        counts: how calls that waited ended.
    """

    def __init__(
        self,
        starts: Starts,
        binder: Binder,
        clock: Clock,
        wakeups: Wakeups,
        *,
        start: Start,
        why_not: WhyNot,
    ) -> None:
        self._starts = starts
        self._binder = binder
        self._clock = clock
        self._run = start
        self._why_not = why_not
        self._is_draining = False
        self._attempts: dict[str, Attempt] = {}  # by name of the gang
        self._waiting: dict[int, tuple[BindCall, asyncio.Future[str]]] = {}  # by number of the call
        self._numbers = itertools.count(1)
        self._announced: dict[str, int] = {}  # name of the gang -> how many had come, as told last
        self.counts: Counter[str] = Counter()
        wakeups.member_given_up.subscribe(self.give_up)

    def __len__(self) -> int:
        return len(self._waiting)

    async def bind(self, call: BindCall) -> str:
        """Bind a Pod once its gang may begin; return why not, empty when it is bound there."""
        uid = call.pod_uid
        name = self._starts.not_begun(uid)
        if not name or self._binder.is_under_way(uid):
            return await self._binder.bind(call)
        why = self._why_nothing() or self._starts.why_not(name, {uid: call.node_name})
        if why:
            return why
        one = Call(number=next(self._numbers), pod_uid=uid, node_name=call.node_name)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self._starts.permitted(name):
            self._waiting[one.number] = call, answer
            self._allow(name, (one,))
            return await answer
        attempt, rejected = permit.come(
            self._attempts.get(name),
            one,
            self._clock.monotonic(),
            needed=self._starts.needed(name),
            others=sum(each.size for gang, each in self._attempts.items() if gang != name),
            seconds=self._starts.seconds_left(name),
        )
        self._waiting[one.number] = call, answer
        if rejected is not None:
            self._reject(rejected)
        if attempt is not None:
            self._attempts[name] = attempt
            if attempt.calls.get(uid) == one:
                self._starts.coming(uid, attempt.until)
            self._look(name)
        try:
            return await answer
        finally:
            if one.number in self._waiting:  # its caller waits no more
                self._void(name, one)

    def expire(self) -> None:
        """Look at who waits: at deadlines, at what became of members, at the lead; tell of it."""
        for name in list(self._attempts):
            self._look(name)
        counts = {name: len(attempt.calls) for name, attempt in self._attempts.items()}
        for name, count in counts.items():
            if self._announced.get(name) != count:
                self._tell(name)
        self._announced = counts

    def waiting(self) -> dict[str, tuple[str, str]]:
        """Return the Pods that wait, by `namespace/name`: their UIDs, and for whom they wait."""
        return {
            f"{call.namespace}/{call.pod_name}": (call.pod_uid, self._describe(name))
            for name in self._attempts
            for call in self._calls(name)
        }

    def drain(self) -> None:
        """Reject whoever waits, and who comes: this process is being stopped."""
        self._is_draining = True
        self.expire()

    def give_up(self, pod_uid: str, why: str) -> None:
        """End the attempt of a gang of which a member that waits to be bound has gone."""
        for name, attempt in list(self._attempts.items()):
            if pod_uid in attempt.calls:
                call, _ = self._waiting[attempt.calls[pod_uid].number]
                self._look(name, wrong=f"{call.namespace}/{call.pod_name}: {why}")

    def _tell(self, name: str) -> None:
        note = self._describe(name)
        for call in self._calls(name):
            pod = about_pod(call.namespace, call.pod_name, call.pod_uid)
            self._binder.telling.tell(pod, WAITS, note, action="Binding", kind=NORMAL)

    def _calls(self, name: str) -> list[BindCall]:
        return [self._waiting[one.number][0] for one in self._attempts[name].calls.values()]

    def _describe(self, name: str) -> str:
        """Return how many of a gang have come, and until when they wait."""
        attempt, clock = self._attempts[name], self._clock
        until = clock.wall_us() / 1e6 + attempt.until - clock.monotonic()
        come = f"held: {len(attempt.calls)} of {self._starts.needed(name)} members have come"
        return f"{come}, until {datetime.fromtimestamp(until, UTC):%H:%M:%S} UTC"

    def _why_nothing(self) -> str:
        return DRAINING if self._is_draining else self._why_not()

    def _void(self, name: str, one: Call) -> None:
        """Forget a call whose caller is gone: nothing is bound by it."""
        del self._waiting[one.number]
        self._starts.coming(one.pod_uid, 0.0)
        self.counts["caller gone"] += 1
        attempt = permit.gone(self._attempts[name], one)
        if attempt is None:
            del self._attempts[name]
        else:
            self._attempts[name] = attempt

    def _look(self, name: str, wrong: str = "") -> None:
        """Let the calls of a gang be bound, or be answered, if it is time."""
        attempt, now = self._attempts[name], self._clock.monotonic()
        nodes = {uid: one.node_name for uid, one in attempt.calls.items()}
        needed, is_late = self._starts.needed(name), now >= attempt.until
        is_enough = len(nodes) >= needed
        facts = Facts(
            needed=needed,
            why_not=self._why_nothing(),
            wrong=wrong
            or (self._starts.why_not(name, nodes, closely=is_enough) if needed > 0 else ""),
            missing=self._starts.missing(name, nodes) if is_late else (),
        )
        verdict = permit.judge(attempt, facts, now)
        if verdict is None:
            return
        del self._attempts[name]
        words = {"group": name, "members": len(nodes), "needed": needed}
        if isinstance(verdict, Allow):
            _log.info("a gang is begun", extra=words)
            self._starts.no_delay(name)
            self._allow(name, verdict.calls)
            return
        _log.info("a gang is not begun", extra={**words, "reason": verdict.why})
        self._reject(verdict)
        if verdict.is_over:
            self._starts.back_off(name)

    def _allow(self, name: str, calls: Sequence[Call]) -> None:
        self.counts["allowed"] += len(calls)
        for one in calls:
            self._starts.coming(one.pod_uid, 0.0)
            self._starts.permit(name, one.pod_uid, one.node_name)
            self._run(self._bind(name, *self._waiting.pop(one.number)))

    async def _bind(self, name: str, call: BindCall, answer: asyncio.Future[str]) -> None:
        """Bind a Pod, whether or not somebody still waits for the answer."""
        try:
            error = await self._binder.bind(call)
        except BaseException:
            answer.cancel()
            raise
        finally:
            self._starts.end_permit(name, call.pod_uid)
        if not answer.done():
            answer.set_result(error)

    def _reject(self, verdict: Reject) -> None:
        self.counts["rejected"] += len(verdict.calls)
        for one in verdict.calls:
            self._starts.coming(one.pod_uid, 0.0)
            _, answer = self._waiting.pop(one.number)
            if not answer.done():
                answer.set_result(verdict.why)
