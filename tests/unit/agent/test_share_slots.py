"""GPU share in MiB: a container is known by its slot, and told of its share beside its card."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.checkpoint import read_device_checkpoint
from agent.decide.slots_cdi import CardEdits
from agent.discover.machine import Discovery
from agent.plugin.files import SpecFolder
from agent.plugin.messages import NotYetError
from agent.plugin.preparing import Slots
from agent.plugin.sharing import NODE_UNREAD, ShareSlots
from ledger.domain.annotations.proof import ProvenDevice
from ledger.domain.errors import InputError
from ledger.domain.resources import SLOT
from tests.support.kubelets import checkpoint_of, entry
from tests.support.machines_found import card
from tests.support.shares import held_card, share_pod

START = "0123456789abcdef"
CARDS = tuple(card(number) for number in range(2))
FIRST, SECOND = (one.uuid for one in CARDS)
UNITS = 81408


@dataclass(kw_only=True)
class MibNode:
    """A node with one slot, whose kubelet has Pods and a record."""

    folder: Path
    pods: list[dict[str, Any]] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    record: list[dict[str, Any]] = field(default_factory=list)

    def devices_of(self, pod_uid: str, container: str) -> Sequence[ProvenDevice] | None:  # noqa: ARG002
        """Return a Pod's card."""
        return [held_card(self.held[pod_uid])] if pod_uid in self.held else None

    def shown_to(self, pod_uid: str) -> Sequence[str]:  # noqa: ARG002
        """Return nothing: containers see their own cards alone."""
        return ()

    def is_held(self, pod_uid: str) -> bool:
        """Tell whether a Pod holds something."""
        return pod_uid in self.held

    async def told(self) -> Sequence[Mapping[str, object]]:
        """Return kubelet's Pods."""
        return self.pods

    def plugin(self) -> ShareSlots:
        """Return what kubelet is served; machine and Node are known."""

        def checkpoint() -> Any:  # noqa: ANN401 - a checkpoint
            return read_device_checkpoint(checkpoint_of(self.record))

        slots = Slots(
            count=1,
            start=START,
            specifications=SpecFolder(self.folder),
            checkpoint=checkpoint,
            holdings=self,
            cards=lambda: {
                uuid: CardEdits(edits={"env": [f"SEES={uuid}"]}) for uuid in (FIRST, SECOND)
            },
        )
        made = ShareSlots(slots, pods=self.told, checkpoint=checkpoint, holdings=self)
        assert made.why_not() == NODE_UNREAD
        made.saw(Discovery(cards=CARDS))
        made.labelled({"cgpu.disable.isolation": "true"})
        assert made.why_not() == ""
        return made

    def give(self, uid: str, container: str, number: int) -> None:
        """Let kubelet keep a name for a container."""
        name = f"{SLOT}=slot-0000.{START}.{number}"
        self.record = [entry(uid, container, "slot-0000", name)]

    def shown(self) -> list[str]:
        """Return the environment of the one name that means something."""
        (file,) = self.folder.glob("tenure-*.json")
        device = json.loads(file.read_text())["devices"][0]
        return list(device["containerEdits"]["env"])


def prepare(plugin: ShareSlots) -> None:
    """Let a container start with the one slot."""
    asyncio.run(plugin.prepare(frozenset(["slot-0000"])))


def test_a_container_is_told_of_its_share_beside_its_card(tmp_path: Path) -> None:
    """The contract's variables but NVIDIA's own: the card is shown by its specification."""
    node = MibNode(folder=tmp_path)
    node.pods.append(share_pod("a", 8138, 100, card=1, card_units=UNITS))
    node.held["uid-a"] = SECOND
    node.give("uid-a", "c0", 1)
    plugin = node.plugin()

    prepare(plugin)

    assert node.shown() == [
        f"SEES={SECOND}",
        "ALIYUN_COM_GPU_MEM_IDX=1",
        "ALIYUN_COM_GPU_MEM_POD=8238",
        "ALIYUN_COM_GPU_MEM_CONTAINER=8138",
        "ALIYUN_COM_GPU_MEM_DEV=81408",
        "CGPU_DISABLE=true",
    ]
    assert plugin.started.is_set()
    prepare(plugin)  # the same again, as at a restart


def test_a_pod_of_another_dialect_is_told_of_its_card_alone(tmp_path: Path) -> None:
    """Every container with devices has a slot."""
    node = MibNode(folder=tmp_path)
    node.pods.append(share_pod("a", 0))
    node.held["uid-a"] = FIRST
    node.give("uid-a", "c0", 1)

    prepare(node.plugin())

    assert node.shown() == [f"SEES={FIRST}"]


def test_a_pod_that_kubelet_does_not_tell_of_waits(tmp_path: Path) -> None:
    """Nobody knows then whether it has a share; one whose annotation names another card ends it."""
    node = MibNode(folder=tmp_path)
    node.held["uid-a"] = FIRST
    node.give("uid-a", "c0", 1)
    plugin = node.plugin()

    with pytest.raises(NotYetError, match="kubelet does not tell of the pod: pod_uid=uid-a"):
        prepare(plugin)
    node.pods.append(share_pod("a", 100, card=1, card_units=UNITS))
    with pytest.raises(InputError, match="the ledger says another card"):
        prepare(plugin)
    assert not list(tmp_path.glob("tenure-*.json"))


def test_a_pod_is_marked_by_the_slots_of_its_containers(tmp_path: Path) -> None:
    """Once kubelet has recorded all of them."""
    node = MibNode(folder=tmp_path)
    node.pods.append(share_pod("a", 100, card=1, card_units=UNITS))
    plugin = node.plugin()
    assert asyncio.run(plugin.to_mark()) == ()

    node.give("uid-a", "c0", 1)

    assert [pod.uid for pod in asyncio.run(plugin.to_mark())] == ["uid-a"]
