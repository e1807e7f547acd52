"""GPU share over real sockets: kubelet's calls, its record, and what its plugin answers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from agent.checkpoint import FILE_NAME
from agent.discover.machine import Discovery, Fault
from agent.plugin.files import CheckpointFile
from agent.plugin.serving import LIST_SECONDS, DevicePlugin, Metrics
from agent.plugin.sharing import GpuShare
from ledger.domain.annotations.proof import ProvenDevice
from ledger.domain.dialects.gpushare.words import GPUSHARE_MEMORY
from tests.support.kubelets import FakeKubelet
from tests.support.machines_found import card
from tests.support.shares import held_card, share_pod

pytestmark = pytest.mark.integration

SECONDS = 60.0
CARDS = tuple(card(number, gib=16) for number in range(2))
FIRST, SECOND = (card.uuid for card in CARDS)


@dataclass(kw_only=True)
class World:
    """A kubelet, its Pods, and who holds which card."""

    kubelet: FakeKubelet
    pods: list[dict[str, Any]] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)

    def devices_of(self, pod_uid: str, container: str) -> Sequence[ProvenDevice] | None:  # noqa: ARG002
        """Return a Pod's card."""
        return [held_card(self.held[pod_uid])] if pod_uid in self.held else None

    def shown_to(self, pod_uid: str) -> Sequence[str]:  # noqa: ARG002
        """Return nothing: containers see their own cards alone."""
        return ()

    def is_held(self, pod_uid: str) -> bool:
        """Tell whether a Pod holds something."""
        return bool(self.devices_of(pod_uid, "main"))

    async def told(self) -> Sequence[Mapping[str, object]]:
        """Return kubelet's Pods."""
        return self.pods

    def bind(self, name: str, *units: int, card: int) -> None:
        """Let a Pod of kubelet's hold a card."""
        self.pods.append(share_pod(name, *units, card=card))
        self.held[f"uid-{name}"] = CARDS[card].uuid

    @contextmanager
    def agent(self, list_seconds: float = LIST_SECONDS) -> Iterator[GpuShare]:
        """Run the plugin in a loop of its own until the block ends; nothing outlives it."""
        checkpoint = CheckpointFile(self.kubelet.folder / FILE_NAME).read
        made: Future[tuple[GpuShare, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

        async def serve() -> None:
            share = GpuShare(pods=self.told, checkpoint=checkpoint, holdings=self)
            metrics = Metrics(CollectorRegistry())
            folder = self.kubelet.folder
            plugin = DevicePlugin(
                share,
                folder=folder,
                start="0123456789abcdef",
                metrics=metrics,
                list_seconds=list_seconds,
            )
            over = asyncio.Event()
            running = asyncio.ensure_future(plugin.run())
            made.set_result((share, asyncio.get_running_loop(), over))
            await over.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        share, loop, over = made.result(SECONDS)
        try:
            yield share
        finally:
            loop.call_soon_threadsafe(over.set)
            thread.join(SECONDS)

    def registered(self, times: int) -> None:
        """Wait until the plugin registered so often."""
        end = time.monotonic() + SECONDS
        while len(self.kubelet.registered) < times:
            assert time.monotonic() < end, "it does not register"
            time.sleep(0.02)


def test_a_plugin_whose_ids_kubelet_never_asks_for_registers_again(sockets: Path) -> None:
    """
    Kubelet takes the late end of the agent before for that of this one, ahead of its first list.

    Then it knows no id of the resource, and the plugin hears of it by nothing at all.
    """
    world = World(kubelet=FakeKubelet(sockets))
    with world.kubelet.running(), world.agent(list_seconds=0.0) as share:
        share.saw(Discovery(cards=CARDS))
        share.labelled({})
        world.registered(3)
        assert len({request.endpoint for request in world.kubelet.registered}) >= 3


def test_kubelet_is_answered_as_the_contract_says(sockets: Path) -> None:
    """Registered once cards and Node are known; crashes in between give nobody another's card."""
    world = World(kubelet=FakeKubelet(sockets))
    kubelet = world.kubelet
    with kubelet.running():
        with world.agent() as share:
            share.saw(Discovery(cards=CARDS))
            share.labelled({})
            world.registered(1)
            (request,) = kubelet.registered
            assert request.resource_name == GPUSHARE_MEMORY
            assert request.options.pre_start_required
            assert request.options.get_preferred_allocation_available
            ids = [one for one, _ in kubelet.slots()]
            assert ids == [f"{card.uuid}-_-{number}" for card in CARDS for number in range(15)]

            with pytest.raises(grpc.RpcError, match="no pod waits for the amount: units=2"):
                kubelet.give("nobody", "c0", GPUSHARE_MEMORY, *ids[:2])

            world.bind("a", 2, 3, card=1)
            liked = kubelet.preferred(ids, 2)
            assert liked == [f"{SECOND}-_-0", f"{SECOND}-_-1"]
            answer = kubelet.give("uid-a", "c0", GPUSHARE_MEMORY, *liked)
            assert dict(answer.envs) == {
                "NVIDIA_VISIBLE_DEVICES": SECOND,
                "ALIYUN_COM_GPU_MEM_IDX": "1",
                "ALIYUN_COM_GPU_MEM_POD": "5",
                "ALIYUN_COM_GPU_MEM_CONTAINER": "2",
                "ALIYUN_COM_GPU_MEM_DEV": "15",
            }
            kubelet.start(*liked)
        with world.agent() as share:  # another one, which remembers nothing
            share.saw(Discovery(cards=CARDS))
            share.labelled({"cgpu.disable.isolation": "true"})
            world.registered(2)
            answer = kubelet.give("uid-a", "c1", GPUSHARE_MEMORY, *ids[:3])
            assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == SECOND
            assert answer.envs["CGPU_DISABLE"] == "true"
            kubelet.start(*ids[:3])

            world.held["uid-a"] = FIRST
            with pytest.raises(grpc.RpcError, match="kubelet keeps another card for it"):
                kubelet.start(*ids[:3])

            closed = replace(CARDS[0], faults=(Fault(reason="Xid79"),))
            share.saw(Discovery(cards=(closed, CARDS[1])))
            told = dict(kubelet.slots())
            assert told[ids[0]] == "Unhealthy"
            assert told[ids[-1]] == "Healthy"
