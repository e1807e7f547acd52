"""The process that looks and confirms, before the service's own listener."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from agent.checkpoint import CheckpointError, CheckpointFault
from agent.decide.confirming import Said
from agent.decide.node_holdings import HeldByPod
from agent.decide.slots_cdi import CardEdits, specification_of
from agent.service.link import ServiceLink
from agent.service.wire import read_holdings
from agent.witness.confirmer import (
    CHECKPOINT_CORRUPT,
    GONE_FILE,
    NOTE_FILE,
    Gate,
    Historian,
    _observed,
    gone_in,
)
from agent.witness.history import Shown, Verdict
from agent.witness.said import Given, Inside, KubeletSaid
from agent.witness.seen import OnCard, Read, Seen, Source, Whose
from ledger.domain.annotations.proof import ProvenContainer, ProvenDevice
from ledger.domain.log.drift import NODE_GAVE_OTHER
from ledger.domain.proofs.merkle import EMPTY_ROOT
from ledger.signing import Checkpoint, PrivateKey, sign_note
from tests.support.agent_world import AgentWorld, Held
from tests.support.proofs import held_by_pod
from tests.support.witnessing import cards_with, kept

NAME: Final = "slot-0000.00112233445566778899.1"
Json = dict[str, Any]
PLAIN: Final = "nvidia.com/gpu"


class NotNamed(Held):
    """Kubelet tells no Pods, so that nobody knows a container by its name."""

    def devices_of(self, pod_uid: str, _: str) -> Sequence[ProvenDevice] | None:  # noqa: ARG002
        """Return none."""
        return None

    def is_held(self, pod_uid: str) -> bool:
        """Tell whether the Pod holds something."""
        return super().devices_of(pod_uid, "") is not None


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    """A node with nothing on it."""
    return AgentWorld(tmp_path)


def test_what_runs_since_before_tenure_is_told_and_what_we_gave_is_confirmed(
    world: AgentWorld,
) -> None:
    """One Pod of a plain device plugin, one of ours whose name shows its card."""
    world.scene.hold("p")
    world.create("p")
    world.specifications.write(
        NAME, specification_of(NAME, [CardEdits(edits={"env": ["A=b"]})], devices=["GPU-a-0"])
    )
    world.runtime.run("p", Inside(cdi=(f"tenure.sh/slot={NAME}",)))
    world.create("old")
    world.kept = (replace(kept("old", "GPU-a-1"), pod_uid="pod-old"),)
    pod = ("ml", "old")
    given = Given(pod=pod, container="main", resource=PLAIN, ids=frozenset({"GPU-a-1"}))
    world.kubelet.given = (given,)
    world.runtime.run("old", Inside(visible="GPU-a-1"))

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link)
        await confirmer.round()
        assert confirmer.problems == ()
        assert confirmer.given is not None
        assert [(one.pod_uid, one.device_ids) for one in confirmer.given] == [
            ("pod-old", ("GPU-a-1",))
        ]
        assert world.scene.assigned == ["pod-p"]
        [seen] = world.scene.agents.seen("uid-a").values()
        assert (seen.pod_uid, seen.namespace, seen.pod_name) == ("pod-old", "ml", "old")
        assert seen.ids == {"GPU-a-1"}

    world.run(act)


def test_a_container_with_another_card_is_told_at_once(world: AgentWorld) -> None:
    """Its name shows another one than is reserved for it."""
    event = world.scene.hold("p")
    world.create("p")
    world.specifications.write(
        NAME, specification_of(NAME, [CardEdits(edits={"env": ["A=b"]})], devices=["GPU-a-1"])
    )
    world.runtime.run("p", Inside(cdi=(f"tenure.sh/slot={NAME}",)))

    async def act(link: ServiceLink) -> None:
        await world.confirmer(link).round()
        assert world.scene.assigned == []
        state = world.scene.live.view.recorded("uid-a")
        assert state is not None
        said = world.scene.agents.otherwise("uid-a", state.holdings[f"{event.pod_uid}/1"])
        assert "reserved is something else" in said[NODE_GAVE_OTHER].words

    world.run(act)


def test_who_was_called_gone_waits_until_that_is_taken_back_also_after_a_crash(
    world: AgentWorld,
) -> None:
    """Kubelet heard of the Pod late; whom we called gone is on disk."""
    world.scene.hold("p")

    async def act(link: ServiceLink) -> None:
        await world.confirmer(link).round()
        assert world.scene.word().gone == {"pod-p"}
        confirmer = world.confirmer(link)  # as after a crash
        world.create("p")
        await confirmer.sources.pods.look()
        assert world.gate.devices_of("pod-p", "main") is None
        assert world.gate.soon.is_set()
        await confirmer.round()
        assert world.scene.word().gone == frozenset()
        devices = world.gate.devices_of("pod-p", "main")
        assert devices is not None
        assert [each.device_id for each in devices] == ["GPU-a-0"]
        (world.folder / GONE_FILE).write_text("torn")
        confirmer = world.confirmer(link)
        await confirmer.round()
        assert world.gate.state.may_start("pod-p")
        world.listed.clear()
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p"}

    world.run(act)


def test_a_name_that_was_written_before_opens_no_gate(world: AgentWorld) -> None:
    """Kubelet's Pods are not told, so the name alone would start a Pod that was called gone."""
    world.scene.hold("p")

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link)
        gate = Gate(NotNamed(link), world.folder)
        assert gate.is_held("pod-p")
        assert gate.passed == {"pod-p"}
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p"}
        assert not world.gate.is_held("pod-p")
        assert world.gate.soon.is_set()
        await confirmer.round()
        assert world.scene.word().gone == frozenset()
        assert world.gate.is_held("pod-p")
        (world.folder / GONE_FILE).write_text("torn")
        assert not Gate(NotNamed(link), world.folder).is_held("pod-p")

    world.run(act)


def test_of_two_agents_at_an_upgrade_each_takes_back_what_the_other_said(world: AgentWorld) -> None:
    """Kubelet calls the one that registered last, whoever called the Pod gone."""
    world.scene.hold("p")
    world.create("q")

    async def act(link: ServiceLink) -> None:
        new, gate = world.confirmer(link), world.gate
        await world.confirmer(link).round()
        assert world.scene.word().gone == {"pod-p"}
        world.scene.hold("q")
        while link.holdings is None or len(link.holdings.held) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        world.listed.clear()
        gate.become(replace(gate.state, gone=gate.state.gone | {"pod-q"}))
        assert gone_in(world.folder)[0] == {"pod-p", "pod-q"}
        world.create("p")
        await new.sources.pods.look()
        gate.state = replace(gate.state, gone=frozenset())  # told of since it looked last
        assert gate.devices_of("pod-p", "main") is None
        assert gate.soon.is_set()
        await new.round()
        assert world.scene.word().gone == {"pod-q"}
        assert gate.devices_of("pod-p", "main") is not None

    world.run(act)


def test_who_waited_for_what_another_agent_took_back_can_be_gone_later(world: AgentWorld) -> None:
    """It may start, so that it waits for nothing any more."""
    world.scene.hold("p")
    world.create("p")

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link)
        (world.folder / GONE_FILE).write_text('["pod-p"]')
        assert world.gate.devices_of("pod-p", "main") is None
        (world.folder / GONE_FILE).write_text("[]")
        await confirmer.round()
        assert world.gate.devices_of("pod-p", "main") is not None
        world.listed.clear()
        await confirmer.round()
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p"}

    world.run(act)


def holdings_of(world: AgentWorld) -> list[HeldByPod]:
    """Return what the service tells of node `a`."""
    _, body = world.scene.get("holdings")
    return list(read_holdings(json.dumps(body).encode())[2])


def test_nobody_is_called_gone_before_the_driver_told_its_processes(world: AgentWorld) -> None:
    """It is away since the agent began, so that not even a card is known."""
    world.scene.hold("p")
    world.driver_is_away = True

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link)
        await confirmer.round()
        assert world.scene.word().gone == frozenset()
        assert [one.reason for one in confirmer.problems] == ["SourceAway"]
        world.driver_is_away = False
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p"}

    world.run(act)


def test_a_kubelet_that_began_and_knows_no_pods_yet_says_nothing(world: AgentWorld) -> None:
    """We run, and it does not tell of us: what it does not tell may come."""
    world.scene.hold("p")
    world.runtime.run("agent", Inside())

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link, own_pod="pod-agent")
        await confirmer.round()
        assert world.scene.word().gone == frozenset()
        assert confirmer.gate.state.ran is None
        assert [one.reason for one in confirmer.problems] == ["SourceAway"]
        world.create("agent")
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p"}
        assert confirmer.gate.state.ran == {"pod-agent"}

    world.run(act)


def test_a_runtime_that_does_not_list_us_says_nothing(world: AgentWorld) -> None:
    """Kubelet says that we run, and the runtime lists nobody for a moment: others run, too."""
    world.scene.hold("p")
    running: Any = [{"name": "main", "state": {"running": {}}}]
    world.create("agent", containerStatuses=running)

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link, own_pod="pod-agent")
        await confirmer.round()
        assert world.scene.word().gone == frozenset()
        assert confirmer.gate.state.ran is None
        assert [one.reason for one in confirmer.problems] == ["SourceAway"]
        world.runtime.run("agent", Inside())
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p"}

    world.run(act)


@pytest.mark.parametrize("since", ["the agent began", "a moment"])
def test_a_card_that_is_lost_keeps_back_who_holds_it_and_nobody_else(
    world: AgentWorld, since: str
) -> None:
    """Who is on it can't be asked; of the other card all is known."""
    for name in ("p", "q"):
        world.scene.hold(name, percent=100)
    world.create("lives")
    held = {one.pod_uid: one.devices[0].device_id for one in holdings_of(world)}
    assert sorted(held.values()) == ["GPU-a-0", "GPU-a-1"]
    [on_lost] = (uid for uid, card in held.items() if card == "GPU-a-0")
    [other] = held.keys() - {on_lost}

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link)
        if since == "a moment":
            world.create(on_lost.removeprefix("pod-"))
            world.create(other.removeprefix("pod-"))
            await confirmer.round()
            del world.listed[1:]
        world.off_the_bus = {0}
        await confirmer.round()
        assert world.scene.word().gone == {other}
        assert {one.reason for one in confirmer.problems} == {"SourceAway"}
        assert confirmer.gate.state.ran is None or since == "a moment"
        world.off_the_bus = set()
        await confirmer.round()
        assert world.scene.word().gone == {on_lost, other}

    world.run(act)


def test_a_container_that_nobody_can_tell_of_keeps_nobody_else_back(world: AgentWorld) -> None:
    """The runtime never says what it was made with; its own Pod is there, and so is not gone."""
    world.scene.hold("p")
    world.scene.hold("q")
    world.runtime.run("q", None)

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link)
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p"}
        assert confirmer.gate.state.ran == frozenset({"pod-q"})
        assert [one.reason for one in confirmer.problems] == ["SourceAway"]
        world.runtime.end("q")
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p", "pod-q"}

    world.run(act)


def test_a_card_that_a_container_is_shown_is_not_observed_to_be_its(world: AgentWorld) -> None:
    """It is confirmed to have its own; with a process on the other card it has that, too."""
    both = ("GPU-a-0", "GPU-a-1")
    world.scene.hold("p", percent=100, shown=both)
    [(own, other)] = [
        (one.devices[0].device_id, *({*both} - {one.devices[0].device_id}))
        for one in holdings_of(world)
    ]
    world.create("p")
    world.specifications.write(
        NAME, specification_of(NAME, [CardEdits(edits={"env": ["A=b"]})], devices=[own])
    )
    nodes = ("/dev/nvidia0", "/dev/nvidia1")
    world.runtime.run("p", Inside(cdi=(f"tenure.sh/slot={NAME}",), nodes=nodes))

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link)
        await confirmer.round()
        assert world.scene.assigned == ["pod-p"]
        assert world.scene.agents.seen("uid-a") == {}
        assert link.holdings is not None
        whose = Whose(pod_uid="pod-p", container="main")
        for sources, cards in (
            ({Source.ENVIRONMENT}, []),
            ({Source.ENVIRONMENT, Source.PROCESS}, [{other}]),
        ):
            found = OnCard(uuid=other, holders=((whose, frozenset(sources)),))
            look = Seen(cards=(found,), live=frozenset(), complete=True)
            seen = [one.cards["main"] for one in _observed(link.holdings, look, Read())]
            assert seen == cards

    world.run(act)


def test_who_was_shown_a_card_is_not_gone_while_that_hides_its_processes(
    world: AgentWorld,
) -> None:
    """A process of it may be left there; its own card hides none."""
    world.scene.hold("p", percent=100, shown=("GPU-a-0", "GPU-a-1"))
    [own] = [one.devices[0].minor for one in holdings_of(world)]
    world.off_the_bus = {1 - own}

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link)
        await confirmer.round()
        assert world.scene.word().gone == frozenset()
        world.off_the_bus = set()
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p"}

    world.run(act)


def test_an_index_means_no_card_before_all_cards_were_told(world: AgentWorld) -> None:
    """With one off the bus the second of two is the first of those that are there."""
    world.off_the_bus = {0}
    world.create("old")
    world.runtime.run("old", Inside(visible="0"))

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link)
        for lost, wanted in (({0}, set()), (set(), {"GPU-a-0"}), ({0}, {"GPU-a-0"})):
            world.off_the_bus = lost
            await confirmer.round()
            assert confirmer.seen is not None
            assert cards_with(confirmer.seen, "pod-old") == wanted

    world.run(act)


def test_nobody_is_called_gone_while_it_is_not_known_whose_a_process_is(world: AgentWorld) -> None:
    """It may be of the Pod whose container has ended."""
    world.scene.hold("p")
    world.pids = (42,)

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link)
        await confirmer.round()
        assert world.scene.word().gone == frozenset()
        assert "SourceAway" in {one.reason for one in confirmer.problems}
        world.pids = ()
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p"}

    world.run(act)


def test_a_process_of_no_pod_holds_its_card_while_it_is_there(world: AgentWorld) -> None:
    """It is told of once, and gone when it has ended."""
    cgroup = world.folder / "proc/42/cgroup"
    cgroup.parent.mkdir(parents=True)
    cgroup.write_text("0::/system.slice/jupyter.service")
    world.pids = (42, 43)

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link)
        await confirmer.round()
        [seen] = world.scene.agents.seen("uid-a").values()
        assert (seen.pod_uid, sorted(seen.ids)) == ("process-42", ["GPU-a-0"])
        known = link.holdings
        assert known is not None
        observed = held_by_pod(
            pod_uid="process-42",
            namespace="unknown",
            pod_name="process-42",
            kind="observed",
            phase="observed",
            containers=(
                ProvenContainer(
                    index="",
                    devices=(ProvenDevice(device_type="gpu", device_id="GPU-a-0", minor=0),),
                ),
            ),
        )
        link.state = replace(
            link.state, known=replace(known, held={**known.held, observed.key: observed})
        )
        await confirmer.round()
        assert not confirmer.gate.state.gone
        world.pids = ()
        await confirmer.round()
        assert confirmer.gate.state.gone == {"process-42"}

    world.run(act)


def test_nothing_is_called_gone_where_a_source_is_away(world: AgentWorld) -> None:
    """Kubelet's answer, or its file, which is kept aside and named."""
    world.scene.hold("p")

    async def act(link: ServiceLink) -> None:
        world.kubelet.given = None
        confirmer = world.confirmer(link)
        await confirmer.round()
        assert [one.reason for one in confirmer.problems] == ["SourceAway"]
        world.kubelet.given = ()
        world.fault = CheckpointError(CheckpointFault.NOT_JSON, "torn")
        await confirmer.round()
        assert [one.reason for one in confirmer.problems] == [CHECKPOINT_CORRUPT, "SourceAway"]
        assert world.scene.word().gone == frozenset()
        assert len(list((world.folder / "aside").iterdir())) == 1
        world.fault = None
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p"}

    world.run(act)


def test_a_pod_that_ended_is_gone_once_nothing_of_it_is_left(world: AgentWorld) -> None:
    """Kubelet lists it still; a process may outlive its container's end by a moment."""
    world.scene.hold("p")
    world.create("p", phase="Succeeded")
    world.runtime.run("p", Inside())

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link)
        await confirmer.round()
        assert world.scene.word().gone == frozenset()
        world.runtime.end("p")
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p"}

    world.run(act)


@pytest.mark.parametrize("source", ["file", "http"])
def test_what_a_mirror_holds_is_not_gone_while_its_static_pod_runs(
    world: AgentWorld, source: str
) -> None:
    """Kubelet knows the Pod by another UID than the API."""
    world.scene.hold("p")
    world.create("p")
    metadata = world.listed[0]["metadata"]
    metadata["uid"] = "0123456789abcdef0123456789abcdef"
    metadata["annotations"] = {"kubernetes.io/config.source": source}

    async def act(link: ServiceLink) -> None:
        known = link.holdings
        assert known is not None
        metadata["namespace"] = known.pods()[0].namespace
        confirmer = world.confirmer(link)
        await confirmer.round()
        assert world.scene.word().gone == frozenset()
        world.listed.clear()
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p"}

    world.run(act)


def test_what_was_seen_before_another_message_was_taken_is_seen_again(world: AgentWorld) -> None:
    """Of two agents at an upgrade: the other one said more since the look began."""
    world.scene.hold("p")

    async def act(link: ServiceLink) -> None:
        confirmer = world.confirmer(link)
        asked = world.kubelet.answer

        async def meanwhile() -> KubeletSaid:
            before = link.sequence
            await link.confirm(Said(here=("pod-p",)), after=before)
            link.sequence = before  # the other agent's answer is not ours
            return await asked()

        world.kubelet.answer = meanwhile  # type: ignore[method-assign]
        await confirmer.round()
        assert world.scene.word().gone == frozenset()
        assert world.scene.agents.counts["late"] == 1
        assert not world.gate.state.may_start("pod-p")
        assert world.gate.soon.is_set()
        world.kubelet.answer = asked  # type: ignore[method-assign]
        await confirmer.round()
        assert world.scene.word().gone == {"pod-p"}

    world.run(act)


def test_the_last_checkpoint_is_kept_and_a_shorter_ledger_is_named(tmp_path: Path) -> None:
    """Over a restart of the agent; what does not follow is never kept."""
    key = PrivateKey.new("k")
    notes = {
        size: sign_note(Checkpoint(origin="o", size=size, root=EMPTY_ROOT).text(), key)
        for size in (0, 5)
    }
    shown = [
        Shown(checkpoint=notes[0]),
        Shown(checkpoint=notes[5], consistency=()),
        Shown(checkpoint=notes[0]),
    ]

    class Link(ServiceLink):
        """Shows what it is told to."""

        def __init__(self) -> None:
            self.asked: list[str] = []

        async def checkpoint(self, kept: str) -> Shown:
            """Show the next one."""
            self.asked.append(kept)
            return shown[len(self.asked) - 1]

    link = Link()
    found = []
    for _ in shown:
        keeper = Historian(link, tmp_path / NOTE_FILE, [key.public])
        asyncio.run(keeper.round())
        assert keeper.last is not None
        found.append(keeper.last.verdict)
    assert found == [Verdict.FIRST, Verdict.GROWN, Verdict.RESTORED]
    assert link.asked == ["", notes[0], notes[5]]
    assert (tmp_path / NOTE_FILE).read_text() == notes[5]
