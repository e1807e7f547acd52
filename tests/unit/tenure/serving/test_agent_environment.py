"""An agent of the mode `env` keeps its node's cards closed until a Pod of its own proves it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from agent.decide.env_proof import BLANK, SHOWN, ProbePod, Reason
from agent.discover.faults import ENVIRONMENT_UNPROVED, Faults, after_look, marked
from agent.discover.machine import Card, Discovery, Fault
from agent.https import NoAnswerError
from certs.ports import ApiError, ConflictError
from ledger.domain.annotations.tenure import visible_key
from tenure.serving.agent_environment import (
    AGAIN_SECONDS,
    FILE_NAME,
    PROBE_SECONDS,
    Prover,
    proving,
    stamp_of,
)

Json = dict[str, Any]
BROKEN: Final = Card(uuid="GPU-a", minor=0, memory_bytes=1, faults=(Fault(reason="Xid79"),))
WHOLE: Final = Card(uuid="GPU-b", minor=1, memory_bytes=1)
MACHINE: Final = Discovery(cards=(BROKEN, WHOLE))
PODS: Final = "/api/v1/namespaces/ours/pods"


class World:
    """A node whose runtime reads the variable, or does not; its API server, kubelet and clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stamp = "boot 1"
        self.seconds = 0.0
        self.shows = True
        self.runs = True
        self.away = False
        self.pods_there: dict[str, Json] = {}
        self.conditions: list[tuple[str, str]] = []
        self.made = 0
        self.prover = self.begun()

    def begun(self, owner: tuple[str, str] = ("", "")) -> Prover:
        """Return an agent as it is after a start."""
        made = Prover(
            objects=self,
            pods=self,
            pod=ProbePod(node="n", namespace="ours", image="i", owner=owner),
            stamp=lambda: self.stamp,
            file=self.folder / FILE_NAME,
            clock=lambda: self.seconds,
            wait=self.wait,
        )
        made.saw(MACHINE)
        return made

    async def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds

    def round(self) -> Reason:
        """Let the agent do what is due; return what is known then."""
        asyncio.run(self.prover.round())
        return self.prover.proof.reason

    async def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create a Pod, or bind one: its containers run and end at once."""
        if self.away:
            raise ApiError("the API can't be reached")
        if path == PODS:
            name = body["metadata"]["name"]
            if name in self.pods_there:
                raise ConflictError("there is one")
            self.made += 1
            uid = f"u{self.made}"
            self.pods_there[name] = {"metadata": {"name": name, "uid": uid}, "status": {}}
            return self.pods_there[name]
        name = path.removeprefix(f"{PODS}/").removesuffix("/binding")
        assert body["metadata"]["uid"] == self.pods_there[name]["metadata"]["uid"]
        assert body["target"]["name"] == "n"
        card = body["metadata"]["annotations"][visible_key("0")]
        if self.runs:
            self.pods_there[name]["status"] = self.ended(card)
        return {}

    def ended(self, card: str) -> Json:
        """Return what kubelet tells of a Pod whose containers have ended."""
        shown = ["/dev/nvidia1"] if self.shows else []
        said = {SHOWN: {"visible": card, "cards": shown}, BLANK: {"visible": "", "cards": []}}
        states = [
            {"name": name, "state": {"terminated": {"exitCode": 0, "message": json.dumps(one)}}}
            for name, one in said.items()
        ]
        return {"phase": "Succeeded", "containerStatuses": states}

    async def remove(self, path: str) -> None:
        """Delete a Pod."""
        if self.away:
            raise ApiError("the API can't be reached")
        self.pods_there.pop(path.removeprefix(f"{PODS}/"), None)

    async def pods(self) -> Sequence[Json]:
        """Return what kubelet tells."""
        if self.seconds < 1:  # kubelet begins
            raise NoAnswerError("not yet")
        return list(self.pods_there.values())

    async def read(self, _: str) -> Json:
        """Return the Node."""
        if self.away:
            raise ApiError("the API can't be reached")
        kind = "TenureEnvironment"
        said = [{"type": kind, "status": a, "reason": b} for a, b in self.conditions[-1:]]
        return {"status": {"conditions": said}}

    async def apply(self, path: str, body: Mapping[str, Any], *, manager: str, force: bool) -> Json:
        """Take note of the Node's condition."""
        if self.away:
            raise ApiError("the API can't be reached")
        assert (path, force) == ("/api/v1/nodes/n/status", True)
        assert manager == "tenure-agent-environment"
        [condition] = body["status"]["conditions"]
        self.conditions.append((condition["status"], condition["reason"]))
        return {}


def test_cards_are_closed_until_a_container_has_seen_one(tmp_path: Path) -> None:
    """By a reason of its own, which goes with the proof; its Pod goes too."""
    world = World(tmp_path)
    [fault] = world.prover.closes()
    assert fault.reason == ENVIRONMENT_UNPROVED
    assert world.round() is Reason.PROVED
    assert world.prover.closes() == ()
    assert (world.made, world.pods_there) == (1, {})
    assert world.conditions == [("True", "Proved")]
    world.round()
    assert (world.made, world.conditions) == (1, [("True", "Proved")])


def test_a_runtime_that_shows_no_card_keeps_them_closed(tmp_path: Path) -> None:
    """It is tried again after longer and longer, and opens them once it shows one."""
    world = World(tmp_path)
    world.shows = False
    assert world.round() is Reason.CARD_NOT_SHOWN
    [fault] = world.prover.closes()
    assert "CardNotShown" in fault.message
    assert world.conditions == [("False", "CardNotShown")]
    for _ in range(100):
        world.round()
    assert 4 <= world.made <= 8, world.made
    world.shows = True
    world.seconds += 2 * world.seconds
    assert world.round() is Reason.PROVED
    assert world.conditions[-1] == ("True", "Proved")


def test_what_is_closed_is_not_kept_of_a_card_and_no_fault_of_a_card_is_lost(
    tmp_path: Path,
) -> None:
    """The next agent finds on its Device object what passed, and takes it for nothing."""
    world = World(tmp_path)
    told = marked(MACHINE, Faults(), world.prover.closes())
    reasons = [[one.reason for one in card.faults] for card in told.cards]
    assert reasons == [[ENVIRONMENT_UNPROVED, "Xid79"], [ENVIRONMENT_UNPROVED]]
    assert [one.reason for one in after_look(Faults(), told).kept] == ["Xid79"]


def test_a_proof_outlives_an_upgrade_and_no_start_of_machine_or_runtime(tmp_path: Path) -> None:
    """An agent that begins again closes nothing; what is started anew is proved anew."""
    world = World(tmp_path)
    world.round()
    world.prover = world.begun()
    assert world.prover.closes() == ()
    world.round()
    assert world.made == 1

    world.stamp = "boot 2"
    world.shows = False
    assert world.round() is Reason.CARD_NOT_SHOWN
    world.prover = world.begun()
    assert world.prover.closes()
    world.stamp = ""  # the runtime is away: nothing starts, and nothing is known of it
    made = world.made
    world.round()
    assert world.made == made
    assert world.prover.closes()


def test_a_proof_counts_at_no_moment_in_which_the_runtime_is_not_the_one_that_gave_it(
    tmp_path: Path,
) -> None:
    """Whether or not a round has noticed; it counts again for the same start, and for no other."""
    world = World(tmp_path)
    world.round()
    for stamp in ("", "boot 2"):
        world.stamp = stamp
        [fault] = world.prover.closes()
        assert fault.reason == ENVIRONMENT_UNPROVED
        assert world.prover.is_so(Reason.NOT_YET)
    world.stamp = ""
    world.round()
    assert world.conditions[-1] == ("False", "NotProvedYet")
    world.stamp = "boot 1"
    assert world.prover.closes() == ()
    world.round()
    assert (world.made, world.conditions[-1]) == (1, ("True", "Proved"))


def test_two_agents_of_one_node_prove_it_beside_each_other(tmp_path: Path) -> None:
    """As at an upgrade of one that could not: neither is in the other's way."""
    world = World(tmp_path)
    older, newer = (world.begun(owner=(one, f"uid-{one}")) for one in ("old", "new"))

    async def both() -> None:
        waits, goes_on = asyncio.Event(), asyncio.Event()

        async def hang(_: float) -> None:
            waits.set()
            await goes_on.wait()

        older.wait = hang
        asked = asyncio.create_task(older._asked(WHOLE))
        await waits.wait()
        await newer.round()
        assert newer.proof.holds
        assert list(world.pods_there) == ["tenure-agent-probe-uid-old"]
        goes_on.set()
        assert (await asked).holds

    asyncio.run(both())
    assert world.pods_there == {}


def test_without_an_answer_of_the_api_nothing_opens_and_nothing_closes(tmp_path: Path) -> None:
    """What was proved counts; what was not is tried again."""
    world = World(tmp_path)
    world.away = True
    for _ in range(3):
        try:
            world.round()
        except ApiError:
            continue
    assert world.prover.proof.reason is Reason.NOT_MADE
    world.away = False
    world.seconds += 10 * AGAIN_SECONDS
    assert world.round() is Reason.PROVED
    world.away = True
    assert world.round() is Reason.PROVED
    assert world.prover.closes() == ()


def test_a_pod_that_never_ends_is_waited_for_so_long_and_taken_away(tmp_path: Path) -> None:
    """So is one that an agent left which was killed: the next try finds none."""
    world = World(tmp_path)
    world.runs = False
    assert world.round() is Reason.NOT_RUN
    assert world.seconds >= PROBE_SECONDS
    assert world.pods_there == {}
    world.runs = True
    left = {"metadata": {"name": "tenure-agent-probe-n", "uid": "old"}, "status": {}}
    world.pods_there["tenure-agent-probe-n"] = left
    world.prover = world.begun()
    assert world.round() is Reason.NOT_MADE
    world.seconds += AGAIN_SECONDS
    assert world.round() is Reason.PROVED


def test_a_node_without_a_whole_card_proves_nothing(tmp_path: Path) -> None:
    """There is none to show."""
    world = World(tmp_path)
    world.prover.saw(Discovery(cards=(BROKEN,)))
    assert world.round() is Reason.NOT_YET
    assert world.made == 0


def test_a_metric_says_what_is_known(tmp_path: Path) -> None:
    """One of the reasons is 1."""
    world, registry = World(tmp_path), CollectorRegistry()
    proving(world.prover, registry).close()

    def shown() -> list[str]:
        name = "tenure_agent_environment"
        return [one for one in Reason if registry.get_sample_value(name, {"reason": one}) == 1]

    assert shown() == [Reason.NOT_YET]
    world.round()
    assert shown() == [Reason.PROVED]


def test_each_start_of_the_runtime_is_another_one(tmp_path: Path) -> None:
    """Its socket is made anew, whatever its inode's number; without a socket nothing is known."""
    socket = tmp_path / "runtime.sock"
    assert stamp_of("b", None) == "b"
    assert stamp_of("b", socket) == ""
    socket.touch()
    first = stamp_of("b", socket)
    assert first == stamp_of("b", socket) != stamp_of("c", socket)
    time.sleep(0.05)  # file systems' clocks have ticks
    socket.chmod(0o700)
    assert stamp_of("b", socket) != first
