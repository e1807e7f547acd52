"""`tenure serve cpus`: binds the containers of a node to CPUs, where its label permits that."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import operator
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

import aiohttp
from prometheus_client import CollectorRegistry, Counter, Gauge

from agent.cpus.binder import MARK, NOT_BOUND, Binder, Round
from agent.cpus.nri import Nri, snapshot_of
from agent.cpus.nri_messages import Call, Happening
from agent.cpus.suppression import SAMPLE_SECONDS, Suppression
from agent.cpus.switch import Switch
from agent.cpus.tree import Kubepods, version_of_kernel
from agent.decide.cgroup_plan import plan_removal, with_strays
from agent.decide.cgroups import CgroupVersion, Problem
from agent.decide.node_cpus import FoundCpus
from agent.decide.planned_pods import Memo, believed_cpus, by_their_own_words, node_planned
from agent.decide.wanted_cpus import NodePlanned, wanted_of
from agent.durable import write_durably
from agent.report.condition import Condition
from agent.service.keeping import CopyFile
from agent.service.own_node import node_of_token
from certs.ports import ApiError, ConflictError
from ledger.domain.errors import InputError
from ledger.domain.resources import (
    CONDITION_TENURE_CPUS,
    LABEL_TENURE_BIND_CPUS,
    LABEL_TENURE_CPU_MANAGED,
)
from tenure.exits import with_next
from tenure.kube.objects import connected
from tenure.serving.agent_cpus import CpuReader, make_cpu_reader
from tenure.serving.agent_reporting import now_text
from tenure.serving.agent_words import Told, expect_https, kubelet_of, words_of
from tenure.serving.background import as_coroutine, every, tasks_of_process, told_to_stop
from tenure.serving.connections import Connections
from tenure.serving.cpus_options import CpusOptions, RestoreOptions
from tenure.serving.cpus_words import CpuWords
from tenure.serving.listening import announced
from tenure.serving.memory import give_back, trim
from tenure.serving.probes import probes_app

LOCK: Final = "cpus.lock"
ROUND_SECONDS: Final = 30.0
"""The whole tree and the machine are looked at so often; what is told is acted on at once."""
SETTLE_SECONDS: Final = 0.01
PAUSE_SECONDS: Final = 0.25
"""Before a round at most: changes are planned for together."""
SHARE: Final = 0.025
"""Of a core: rounds rest for it, as far as the pause allows."""
SHARE_SECONDS: Final = 1.0
"""So long before, what was not used counts: the first rounds after it do not rest."""
AGAIN_SECONDS: Final = 1.0
ASK_SECONDS: Final = 1.0
NEW_SECONDS: Final = 5.0
"""Kubelet knows a new container within this time; a sandbox it never lists."""
FAILING_SECONDS: Final = 60.0
"""Rounds that fail for so long close the Node: kubelet may just be starting again."""
_TOPS: Final = ("kubepods.slice", "kubepods")
_LINES_MAX: Final = 20
_MOVES: Final = {Happening.RUN_POD_SANDBOX, Happening.STOP_POD_SANDBOX, Happening.REMOVE_CONTAINER}

_log: Final = logging.getLogger("tenure.cpus")


async def serve_cpus(options: CpusOptions) -> None:
    """
    Serve until SIGTERM or SIGINT. Cgroups stay as they are when we go.

    Raises:
        InputError: there is no cgroup of Pods here, or our token says no node.
    """
    expect_https(options)
    if not options.service:
        missing = InputError("nobody would say who has which CPUs", field="--service")
        raise with_next(missing, "name the scheduler's API")
    stopping = told_to_stop()
    registry = CollectorRegistry()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        node, _ = node_of_token(options.token)
        kubelet = kubelet_of(options, session, node)
        config = None if options.kubeconfig is None else str(options.kubeconfig)
        objects = await stack.enter_async_context(connected(config))
        tree = stack.enter_context(closing(opened_tree(options)))
        # The tree is closed once no task watches it, and no thread works on it.
        stack.push_async_callback(asyncio.get_running_loop().shutdown_default_executor)
        tasks = await stack.enter_async_context(tasks_of_process())
        told = words_of(options, session, kubelet, registry, tasks)
        switch = Switch(objects, node, clock=time.monotonic, now=now_text)
        binder = Binder(tree=tree, state=options.state, clock=time.monotonic)
        spoken = CpuWords(told, options.state)
        known = Known(told, switch, make_cpu_reader(options, kubelet), spoken.gone)
        rounds = Rounds(binder, switch, known, spoken, registry)
        if options.nri is not None:
            rounds.nri = Nri(options.nri, rounds.hear)
            tasks.append(rounds.nri.run())
        if percent := options.best_effort_threshold:
            stat = options.host / "proc/stat"
            rounds.suppression = Suppression(tree, stat, percent, time.monotonic)
        app = probes_app(
            registry, rounds.why_not_ready, lambda: [*rounds.lines(), *told.words.lines()]
        )
        await stack.enter_async_context(announced(app, options.probes, "probes", Connections()))
        words = "Rounds of work that failed"
        failures = Counter("tenure_cpus_failures", words, ["what"], registry=registry)
        tasks.append(every(options.look_seconds, "node", rounds.look, failures))
        tasks.append(every(AGAIN_SECONDS, "tell", rounds.tell, failures))
        tasks.append(every(AGAIN_SECONDS, "confirm", spoken.say, failures))
        tasks.append(every(ROUND_SECONDS, "trim", as_coroutine(trim), failures))
        tasks.append(rounds.run(options.state / LOCK, failures))
        give_back()
        tasks.start()
        await stopping.wait()


def opened_tree(options: CpusOptions) -> Kubepods:
    """Return the cgroups of the node's Pods. Raises InputError: there are none here."""
    top, cpu = options.kubepods, options.kubepods_cpu
    if top is None:
        mount = options.host / "sys/fs/cgroup"
        places = [mount / part / name for part in ("", "cpuset") for name in _TOPS]
        top = next((one for one in places if (one / "cpuset.cpus").is_file()), None)
        if top is None:
            missing = InputError(f"no cgroup of Pods below {mount}", field="--kubepods")
            raise with_next(missing, "name kubelet's cgroup of all Pods")
        if top.parent.name == "cpuset":
            cpu = mount / "cpu" / top.name
    return Kubepods(top, cpu, version_of_kernel(os.uname().release))


async def restore(options: RestoreOptions) -> tuple[list[str], list[str]]:
    """
    Give back what was bound on this node; return what was written, and what was refused.

    Raises:
        InputError: a process of this node binds, kubelet does not say what runs here, or no copy of
            the service's word says which claims have CPUs.
    """
    with (options.state / LOCK).open("w") as lock, closing(opened_tree(options)) as tree:
        if not _is_locked(lock):
            busy = InputError("a process of this node binds its CPUs", place=lock.name)
            step = f"take the label off: kubectl label node NODE {LABEL_TENURE_BIND_CPUS}-"
            raise with_next(busy, step)
        async with aiohttp.ClientSession() as session:
            name, _ = node_of_token(options.token)
            kubelet = kubelet_of(options, session, name)
            found, faults = await make_cpu_reader(options, kubelet).read()
        if found is None:
            raise InputError("; ".join(one.message for one in faults))
        if (copy := CopyFile(options.state).read()) is not None:
            found = replace(found, told=copy.known.cpu_claims)
        node = by_their_own_words(node_planned(found, found.pods, (), (), {})[0])
        if options.dry_run:
            return [*map(str, plan_removal(tree.look(), node).writes)], []
        fault = await _take_words_off(options, name)
        write_durably(options.state / MARK, b"")
        binder = Binder(tree=tree, state=options.state, clock=time.monotonic)
        made = binder.round(node, allowed=False)
        if not made.problems:
            (options.state / MARK).unlink(missing_ok=True)
        return [*map(str, made.applied.done)], [*fault, *(one.about for one in made.problems)]


async def _take_words_off(options: CpusOptions, node: str) -> list[str]:
    """Have the Node say no more that it binds, or Pods still come; return why it still does."""
    try:
        config = None if options.kubeconfig is None else str(options.kubeconfig)
        async with connected(config) as objects:
            switch = Switch(objects, node, clock=time.monotonic, now=now_text)
            await switch.look()
            await switch.say(None, binds=False)
    except (ApiError, ConflictError, InputError) as error:
        words = f"label {LABEL_TENURE_CPU_MANAGED} and condition {CONDITION_TENURE_CPUS}"
        return [f"of the Node {words}: {error}"]
    return []


def _is_locked(file: IO[str]) -> bool:
    """Take the lock of who writes on this node; tell whether we have it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def rests_until(before: float, now: float, used: float) -> float:
    """Return until when rounds rest, after one that used so many seconds of a core."""
    return min(max(before, now - SHARE_SECONDS) + used / SHARE, now + PAUSE_SECONDS)


class Known:
    """What a plan needs of the node: the machine, kubelet and its Pods, and the ledger's word."""

    def __init__(
        self, told: Told, switch: Switch, reader: CpuReader, gone: Callable[[], frozenset[str]]
    ) -> None:
        self.told: Final = told
        self._gone = gone
        self.doubted: tuple[Problem, ...] = ()
        self._switch, self._reader = switch, reader
        self._found: FoundCpus | None = None
        self._read_at = float("-inf")
        self._seen: object = None
        self._inputs: tuple[object, ...] = ()
        self._node: NodePlanned | None = None
        self._memo: Memo = {}

    async def node(self) -> NodePlanned:
        """Return it as it is known now. Raises InputError: something is not."""
        pods, link, words = self.told.pods, self.told.link, self._switch.annotations
        if self._switch.allowed is None:
            raise InputError("the Node was not read yet")
        if pods.problem and not pods.pods:
            raise InputError(f"kubelet tells no Pods: {pods.problem}")
        if link.holdings is None:
            raise InputError("nobody has said yet who has which CPUs")
        found = await self._machine()
        inputs = (found, pods.pods, link.holdings, link.is_heard, words)
        if self._node is None or any(map(operator.is_not, inputs, self._inputs)):
            held, doubted = believed_cpus(
                self.told.believing, link.holdings, pods.pods, is_heard=link.is_heard
            )
            whole = replace(found, told=link.holdings.cpu_claims)
            node, unread = node_planned(whole, pods.pods, held, doubted, words, memo=self._memo)
            self._inputs, self._node, self.doubted = inputs, node, (*doubted, *unread)
        return replace(self._node, gone=self._gone())

    async def _machine(self) -> FoundCpus:
        """Return the machine and kubelet's record, read again if kubelet may have given CPUs."""
        now, found = time.monotonic(), self._found
        is_static = found is not None and found.managers.cpu.is_static
        seen = self.told.pods.pods if is_static else None
        if found is not None and seen == self._seen and now - self._read_at < ROUND_SECONDS:
            return found
        new, faults = await self._reader.read()
        if new is not None:
            self._found, self._read_at, self._seen = new, now, seen
            return new
        if found is None or now - self._read_at >= FAILING_SECONDS:
            raise InputError("; ".join(one.message for one in faults))
        return found


class Rounds:
    """
    The rounds of a node: what is known is planned for, written where it may be, and told.

    Attributes:
        nri: by it the runtime binds containers as they are made; None = it does not.
        suppression: what best effort Pods have by the load; None = all of their pool.
    """

    def __init__(
        self,
        binder: Binder,
        switch: Switch,
        known: Known,
        spoken: CpuWords,
        registry: CollectorRegistry,
    ) -> None:
        self.last: Round | None = None
        self.nri: Nri | None = None
        self.suppression: Suppression | None = None
        self._binder, self._switch, self._known = binder, switch, known
        self._spoken, self._soon = spoken, spoken.soon
        self._problem = "no round was made yet"
        self._stands_by = True
        self._worked_at = self._whole_at = self._asked_at = self._rests_until = float("-inf")
        self._first: dict[str, float] = {}  # container that kubelet does not tell -> since when
        known.told.link.changed.append(self._soon.set)
        known.told.pods.changed.append(self._soon.set)
        words = "Writes to files of cgroups, by what came of them"
        self._writes = Counter("tenure_cpus_writes", words, ["result"], registry=registry)
        words = "What is not as it should be, by reason"
        self._problems = Gauge("tenure_cpus_problems", words, ["reason"], registry=registry)
        words = "Writes that the last plan asked for"
        self._planned = Gauge("tenure_cpus_planned", words, registry=registry)

    async def look(self) -> None:
        """Read the Node. Raises ApiError, InputError."""
        before = self._switch.allowed
        await self._switch.look()
        if self._switch.allowed != before:
            _log.info("the Node's label", extra={LABEL_TENURE_BIND_CPUS: self._switch.allowed})
            self._soon.set()

    async def tell(self) -> None:
        """Say on the Node what we do. Raises ApiError, ConflictError."""
        if self._stands_by or self._switch.allowed is None:
            return
        if not self._switch.allowed:
            await self._switch.say(None, binds=False)
        elif self.last is not None and not self._fails():
            await self._switch.say(self.last.condition(self._name), binds=True)
        else:
            condition = Condition(status="False", reason=NOT_BOUND, message=self._problem)
            await self._switch.say(condition, binds=False)

    async def run(self, lock: Path, failures: Counter) -> None:
        """Make rounds until cancelled, once no other process of this node does."""
        with lock.open("w") as file:
            while not _is_locked(file):  # noqa: ASYNC110 - another process has it
                await asyncio.sleep(PAUSE_SECONDS)
            self._stands_by = False
            self._spoken.begin()
            self._soon.set()
            await every(SETTLE_SECONDS, "round", self._round, failures)

    async def _round(self) -> None:
        """Wait for something to do, and do it. Raises what `Known.node` and `Binder.round` do."""
        loop, changed = asyncio.get_running_loop(), self._binder.tree.changed
        is_new = any(time.monotonic() - at < NEW_SECONDS for at in self._first.values())
        soon = self._problem or is_new or (self._switch.allowed is False and self._binder.is_marked)
        at_last = SAMPLE_SECONDS if self.suppression else ROUND_SECONDS
        loop.add_reader(changed, self._soon.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS if soon else at_last):
                    await self._soon.wait()
        finally:
            loop.remove_reader(changed)  # or libuv ends us by SIGABRT once the tree is closed
        self._soon.clear()
        await asyncio.sleep(max(self._rests_until - time.monotonic(), SETTLE_SECONDS))
        began = time.process_time()
        try:
            if (allowed := self._switch.allowed) is False and self._binder.is_marked:
                if self.nri:
                    self.nri.withdraw()
                await self._switch.say(None, binds=False)  # nobody is sent here any more
            node, now = await self._known.node(), time.monotonic()
            if self.suppression:
                node = await asyncio.to_thread(self.suppression.node, node)
            whole, doubted = now - self._whole_at >= ROUND_SECONDS, self._known.doubted
            made = await asyncio.to_thread(
                self._binder.round, node, allowed=allowed, whole=whole, doubted=doubted
            )
            self._worked_at, self._whole_at = now, now if whole else self._whole_at
            self._note(made)
            self._rests_until = rests_until(
                self._rests_until, time.monotonic(), time.process_time() - began
            )
        except Exception as error:
            self._problem, self._rests_until = str(error), time.monotonic() + PAUSE_SECONDS
            raise

    def _note(self, made: Round) -> None:
        beside = [*self._spoken.problems()]
        if self.nri and self._switch.allowed and self.nri.state.words:
            beside.append(self.nri.state)
        made = replace(made, problems=(*made.problems, *beside))
        done, refused = made.applied.done, made.applied.refused
        self._problem = "; ".join(f"{one.about}: {one.reason}" for one in refused)
        self._writes.labels("done").inc(len(done))
        for one in refused:
            self._writes.labels(one.reason).inc()
        self._problems.clear()
        for problem in made.problems:
            self._problems.labels(problem.reason).inc()
        self._planned.set(len(made.plan.writes))
        if done or refused:
            _log.info("written", extra={"done": len(done), "refused": self._problem})
        elif made.plan.writes and made.plan != (self.last and self.last.plan):
            _log.info("planned, and not written", extra={"writes": len(made.plan.writes)})
        self.last = made
        self._ask_for_new(made)
        self._spoken.take(made)
        if self.nri and self._switch.allowed:
            node, v1 = made.node, made.tree.version is CgroupVersion.V1
            binds = node.cpus.kubelet_static or not node.binds_memory
            wanted = wanted_of(with_strays(made.tree.cgroups, node))
            self.nri.publish(snapshot_of(wanted, kubelet_binds=binds, v1=v1))
        elif self.nri:
            self.nri.withdraw()

    def hear(self, call: Call | None) -> None:
        """Have a Pod that starts planned for, if it can be before its containers are made."""
        if call is None or call.happening in _MOVES:
            self._known.told.pods.somebody_came()
            self._soon.set()

    def _ask_for_new(self, made: Round) -> None:
        """Have kubelet asked for containers that it has not told of, for a while."""
        known = {one.id for pod in made.node.pods for one in pod.containers}
        known |= {pod.uid for pod in made.node.pods} | {""}
        now = time.monotonic()
        cgroups = made.tree.cgroups
        new = {one.container for one in cgroups}.union(one.pod_uid for one in cgroups) - known
        self._first = {one: self._first.get(one, now) for one in new}
        is_new = any(now - at < NEW_SECONDS for at in self._first.values())
        # What kubelet's static policy gives, others leave at once, and we have to know of it.
        pause = ASK_SECONDS / 2 if made.node.cpus.kubelet_static else ASK_SECONDS
        if is_new and now - self._asked_at >= pause:
            self._asked_at = now
            self._known.told.pods.somebody_came()

    def _name(self, about: str) -> str:
        pods = ((pod["metadata"]["uid"], pod) for pod in self._known.told.pods.pods)
        pod = next((pod for uid, pod in pods if uid == about), None)
        return f"{pod['metadata'].get('namespace')}/{pod['metadata'].get('name')}" if pod else about

    def _fails(self) -> bool:
        return time.monotonic() - self._worked_at >= FAILING_SECONDS

    def why_not_ready(self) -> str:
        """Return why no round is made; who stands by is ready to."""
        return "" if self._stands_by or not self._fails() else self._problem

    def lines(self) -> list[str]:
        """Return in lines what is done here, and what is not."""
        if self._stands_by:
            return ["cpus: another process of this node binds, we stand by"]
        if self.last is None:
            return [f"cpus: nothing yet: {self._problem}"]
        said = self.last.in_words(self._name)
        if self._switch.allowed:
            return [f"cpus: bound, {len(said)} problems", *said[:_LINES_MAX]]
        writes = [*map(str, self.last.plan.writes)]
        fact = f"without the label {LABEL_TENURE_BIND_CPUS}=true: {len(writes)} writes"
        return [f"cpus: planned alone, {fact}", *said[:_LINES_MAX], *writes[:_LINES_MAX]]
