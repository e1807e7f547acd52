"""
Gangs and groups of random shapes on 20 nodes, while Pods come and go and processes are killed.

A round is repeated by its seed alone: `pytest -k seed-7`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tests.support.campaign import print_figures
from tests.support.forked import Point, forked
from tests.support.kube.api import JSON_PATCH
from tests.support.kube.at_rest import (
    PATIENCE_SECONDS,
    events_of,
    given_twice,
    listed,
    live,
    must_not_be,
    unsettled,
    wait,
)
from tests.support.kube.bursts import remove_pods
from tests.support.kube.control_plane import ControlPlane, Program, free_port
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.parties import (
    CREATE,
    DELETE,
    END,
    HOST,
    LIFT,
    POINTS,
    QUOTA,
    Act,
    Party,
    Script,
    begun_in_part,
    in_part,
    script,
    told_by,
    wrongly_seen,
)
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.recount import held_by_ledger

NODES: Final = {f"party-{number}": 8 if number % 3 == 2 else 4 for number in range(20)}
"""Their cards."""
SAMPLE: Final = 37
SEEDS: Final = 20
PARTIES, ALONE, KILLS, SECONDS = 25, 12, 3, 24.0
"""Of one round: 500 gangs and groups, and at least 60 kills in all."""
AT_POINT_SECONDS: Final = 5.0
"""Who has come to no such point by then is killed where it is."""
PART_SECONDS: Final = 60.0
"""A gang of which somebody is bound is whole by then, or by its own deadline if that is later. Only
time in which the service answers counts."""
LOOK_SECONDS: Final = 0.3


@dataclass(slots=True, kw_only=True)
class Round:
    """
    One service, one kube-scheduler, and what comes to them.

    Attributes:
        party_of: by the UID of each Pod that ever came.
        bound: UIDs of Pods that were seen with a node.
        ended: names of the parties whose Pods are no more.
    """

    plane: ControlPlane
    where: str
    url: str
    identities: Identities
    script: Script
    port: int = field(default_factory=free_port)
    scheduler: Program | None = None
    stack: ExitStack = field(default_factory=ExitStack)
    served: Served | None = None
    party_of: dict[str, Party] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    ended: set[str] = field(default_factory=set)

    # --- processes --------------------------------------------------------------------------------

    def start(self, point: Point | None = None) -> None:
        """Start the service."""
        self.served = self.stack.enter_context(
            extender(
                self.plane,
                self.url,
                self.identities,
                port=self.port,
                remembered=self.counts["starts"] > 0,
                ready=False,
                forked=True,
                point=point,
            )
        )
        self.counts["starts"] += 1

    def answers(self) -> bool:
        """Tell whether the service answers."""
        served = self.served
        return served is not None and served.leads()

    def words(self) -> str:
        """Return the end of what the service logged."""
        return "" if self.served is None else self.served.words()

    def _kill_service(self) -> None:
        assert self.served is not None
        self.served.kill()
        self.stack.close()
        self.counts["kills"] += 1

    def _kill(self, what: str, point: int) -> None:
        assert self.scheduler is not None
        if what != "kill scheduler":
            self._kill_service()
        if what in {"kill scheduler", "kill both"}:
            self.scheduler.kill()
            self.counts["kills"] += 1
            self.scheduler.start()
        if what == "kill service at a point":
            self.start(POINTS[point])
            assert self.served is not None
            until = time.monotonic() + AT_POINT_SECONDS
            while self.served.process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            self.counts["kills at a point"] += self.served.process.poll() is not None
            self._kill_service()
        if what != "kill scheduler":
            self.start()

    # --- Pods -------------------------------------------------------------------------------------

    def play(self) -> None:
        """Do all that the script says."""
        began = time.monotonic()
        for act in self.script.acts:
            time.sleep(max(0.0, began + act.at - time.monotonic()))
            self._do(act)

    def _do(self, act: Act) -> None:
        if act.what.startswith("kill"):
            self._kill(act.what, act.number)
            return
        party = self.script.parties[act.party]
        if act.what == CREATE:
            self._create(party, act.number)
        elif act.what == DELETE:
            remove_pods(self.plane, self.where, [f"{party.name}-{act.number}"])
            self.counts["members deleted"] += 1
        elif act.what == LIFT:
            self._lift(f"{party.name}-{act.number}")
        elif act.what == END:
            self._end(party)

    def _create(self, party: Party, number: int) -> None:
        made = self.plane.api().create(self.where, party.member(number))
        assert made.ok or made.status == 409, made.message
        if made.ok:
            self.party_of[made.body["metadata"]["uid"]] = party
            self.counts["pods"] += 1

    def _end(self, party: Party) -> None:
        remove_pods(self.plane, self.where, [f"{party.name}-{each}" for each in range(party.size)])
        self.ended.add(party.name)

    def _lift(self, name: str) -> None:
        """Take somebody else's gate from a Pod, whatever the service does with its own."""
        path = f"{self.where}/{name}"

        def lifts() -> bool:
            found = self.plane.api().get(path)
            gates = found.body["spec"].get("schedulingGates") or [] if found.ok else []
            if {"name": QUOTA} not in gates:
                return True
            at = f"/spec/schedulingGates/{gates.index({'name': QUOTA})}"
            patch = [
                {"op": "test", "path": at, "value": {"name": QUOTA}},
                {"op": "remove", "path": at},
            ]
            return self.plane.api().patch(path, patch, JSON_PATCH).ok

        wait(lifts)

    def copied(self) -> list[tuple[str, Party]]:
        """Return the Pods that ever came, for another thread."""
        return list(self.party_of.items())

    def pods_of(self, pods: list[dict[str, Any]], party: Party) -> list[dict[str, Any]]:
        """Return the Pods of a party."""
        return [one for one in pods if self.party_of.get(one["metadata"]["uid"]) is party]

    # --- what must hold ---------------------------------------------------------------------------

    def rests(self) -> None:
        """Wait until every Pod is bound as the ledger says, or waits with a reason."""
        wrong: list[str] = []

        def is_right() -> bool:
            wrong[:] = self.wrong()
            return not wrong

        wait(is_right, lambda: f"{wrong}\n{self.words()}")

    def wrong(self) -> list[str]:
        """Return what is not as it must be once nothing happens; fail for what must never be."""
        time.sleep(0.5)  # all of the ledger is read each time
        pods, log, told = listed(self.plane, self.where), events_of(self.url), told_by(self.url)
        self.bound.update(one["metadata"]["uid"] for one in live(pods))
        self.check(told, [*given_twice(pods), *must_not_be(log)])
        there = {one["metadata"]["uid"] for one in pods}
        return [
            *unsettled(pods, self.url, log),
            *(f"bound in part: {name}" for name in in_part(told, self.party_of, self.bound, there)),
            *(f"waits without a reason: {name}" for name in self.untold(pods)),
        ]

    def check(self, told: list[Any], never: list[str]) -> None:
        """Fail for what must not be at any time."""
        found = self.plane.api().get(DEVICES).body["items"]
        cards = {
            one["metadata"]["name"]: {card["minor"]: card["id"] for card in one["spec"]["devices"]}
            for one in found
        }
        never += begun_in_part(told, self.party_of)
        never += wrongly_seen(told, self.party_of, cards)
        assert not never, f"{never}\n{self.words()}"

    def untold(self, pods: list[dict[str, Any]]) -> list[str]:
        """Return the Pods that wait and have no refusal in the ledger, which `why` shows."""
        told = {one.uid for one in told_by(self.url) if one.what == "request.refused"}
        waiting = (one for one in pods if not one["spec"].get("nodeName"))
        return [one["metadata"]["name"] for one in waiting if one["metadata"]["uid"] not in told]

    def drain(self) -> None:
        """Let each party end once it is whole: every one that is left is bound in its turn."""
        parties = [one for name, one in self.script.parties.items() if name not in self.ended]
        for party in parties:
            if party.name.startswith("alone"):
                self._end(party)
                continue
            for number in range(party.size):
                self._create(party, number)
                self._lift(f"{party.name}-{number}")
        left = [party for party in parties if party.name not in self.ended]
        self.counts["drained"] = len(left)

        while left:
            wait(
                lambda: self._end_some(left),
                lambda: f"never whole: {[party.name for party in left]}\n{self.words()}",
            )

    def _end_some(self, left: list[Party]) -> bool:
        """Let parties that are whole end; tell whether there were any."""
        pods, before = listed(self.plane, self.where), len(left)
        for party in list(left):
            if all(one["spec"].get("nodeName") for one in self.pods_of(pods, party)):
                self._end(party)
                left.remove(party)
        return len(left) < before

    def nothing_is_left(self) -> None:
        """Wait until the ledger holds nothing, and every card of every node goes to others."""
        wait(lambda: not held_by_ledger(self.url), self.words)
        self.check(told_by(self.url), must_not_be(events_of(self.url)))
        for name, cards in NODES.items():
            amounts = {"nvidia.com/gpu": str(cards)}
            one = pod(f"all-{name}", amounts, schedulerName="tenure", nodeSelector={HOST: name})
            made = self.plane.api().create(self.where, one)
            assert made.ok, made.message
        wait(lambda: len(live(listed(self.plane, self.where))) == len(NODES), self.words)
        remove_pods(self.plane, self.where, [f"all-{name}" for name in NODES])
        wait(lambda: not held_by_ledger(self.url), self.words)


@dataclass(slots=True, kw_only=True)
class Watch:
    """
    Looks all the time for gangs that are bound in part.

    Attributes:
        since: gang -> since when the service answers while some of it are bound, and fewer than
            start together.
        late: what was so after its deadline, in words.
    """

    about: Round
    ends: threading.Event = field(default_factory=threading.Event)
    since: dict[str, float] = field(default_factory=dict)
    late: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Look until the end."""
        while not self.ends.wait(LOOK_SECONDS):
            pods, now = listed(self.about.plane, self.about.where), time.monotonic()
            self.about.bound.update(one["metadata"]["uid"] for one in live(pods))
            parts = self._parts() if self.about.answers() else ()
            self.since = {name: self.since.get(name, now) for name in parts}
            for name, since in self.since.items():
                wait_seconds = self.about.script.parties[name].wait_seconds
                if now - since > max(PART_SECONDS, wait_seconds) and name not in self.late:
                    self._look(name, now - since, pods)

    def _parts(self) -> list[str]:
        """Return the gangs of which some were seen bound, and fewer than start together."""
        about = self.about
        bound = Counter(party.name for uid, party in about.copied() if uid in about.bound)
        return [
            name
            for name, count in bound.items()
            if count < about.script.parties[name].least and name not in about.ended
        ]

    def _look(self, name: str, seconds: float, pods: list[dict[str, Any]]) -> None:
        about, there = self.about, {one["metadata"]["uid"] for one in pods}
        if name in in_part(told_by(about.url), dict(about.copied()), about.bound, there):
            self.late[name] = f"{name} is bound in part since {seconds:.0f} s"


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane) -> Iterator[None]:
    """Twenty nodes of four and of eight cards."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    for name, cards in NODES.items():
        add_gpu_node(plane, name, gpus=cards)
    yield
    for name in NODES:
        remove_node(plane, name)


@pytest.fixture
def where(
    plane: ControlPlane,
    nodes: None,  # noqa: ARG001 - they are to be there
    namespace: Callable[..., str],
) -> Iterator[str]:
    """Return where Pods are to be submitted; none stays for the next round."""
    path = pods_in(namespace(managed=False))
    yield path
    remove_pods(plane, path, [one["metadata"]["name"] for one in listed(plane, path)])


@pytest.mark.parametrize(
    ("ledger", "seed"),
    [
        pytest.param("sqlite", SAMPLE, id=f"seed-{SAMPLE}"),
        *(
            pytest.param(
                "postgres" if seed % 4 == 0 else "sqlite",
                seed,
                id=f"seed-{seed}",
                marks=pytest.mark.slow,
            )
            for seed in range(1, SEEDS + 1)
        ),
    ],
    indirect=["ledger"],
)
def test_gangs_and_groups_start_whole_are_told_why_they_wait_and_leave_nothing(
    plane: ControlPlane,
    where: str,
    ledger: str,
    identities: Identities,
    seed: int,
) -> None:
    """Whoever is killed meanwhile, and whatever else wants the cards."""
    one = Round(
        plane=plane,
        where=where,
        url=ledger,
        identities=identities,
        script=script(seed, parties=PARTIES, alone=ALONE, kills=KILLS, seconds=SECONDS),
    )
    watch = Watch(about=one)
    watching = threading.Thread(target=watch.run, daemon=True)
    with one.stack, plane.scheduler(asking(plane, one, identities, impatient=True)) as program:
        one.scheduler = program
        one.start()
        assert one.served is not None
        one.served.wait_ready()
        watching.start()
        try:
            for step in (one.play, one.rests, one.drain, one.nothing_is_left):
                since = time.monotonic()
                step()
                one.counts[f"s, {step.__name__}"] = round(time.monotonic() - since)
        finally:
            watch.ends.set()
            watching.join(PATIENCE_SECONDS)
            print_figures(
                f"gangs and groups, seed {seed}",
                {
                    "gangs and groups": PARTIES,
                    **one.counts,
                    "bound": len(one.bound),
                },
            )
    assert not watch.late, watch.late
    for question in ("verify", "ledger replay"):
        answer = forked(*question.split(), "--ledger", ledger, cwd=identities.keys)
        assert answer.returncode == 0, answer.stdout + answer.stderr
