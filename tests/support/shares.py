"""GPU share Pods as kubelet has them, and a kubelet in memory that admits them one by one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent.checkpoint import DeviceCheckpoint, DeviceEntry
from agent.discover.machine import Card, Discovery
from agent.plugin import messages
from agent.plugin.sharing import GpuShare
from ledger.domain.annotations.proof import ProvenDevice
from ledger.domain.dialects.gpushare.annotations import GpuShareAnswer, encode_gpushare_answer
from ledger.domain.dialects.gpushare.words import GPUSHARE_MEMORY
from ledger.domain.errors import TenureError

NOW_NS: Final = 1767225600000000000


def share_pod(
    name: str,
    *units: int,
    card: int = 0,
    after_ns: int = 0,
    init: Sequence[int] = (),
    assigned: bool = False,
    phase: str = "Pending",
    card_units: int = 15,
    uid: str = "",
    deleted: bool = False,
) -> dict[str, Any]:
    """Return a Pod with a container `c0`, `c1`... for each amount, bound to a card by us."""

    def made(names: str, amounts: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {
                "name": f"{names}{number}",
                "image": "i",
                "resources": {
                    section: {GPUSHARE_MEMORY: str(amount)} for section in ("limits", "requests")
                }
                if amount
                else {},
            }
            for number, amount in enumerate(amounts)
        ]

    answer = GpuShareAnswer(
        card=card,
        pod_units=max(sum(units), *init, 0),
        card_units=card_units,
        assume_time_ns=NOW_NS + after_ns,
        assigned=assigned,
    )
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "ml",
        "uid": uid or f"uid-{name}",
        "annotations": encode_gpushare_answer(answer),
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-05T14:05:09Z"
    return {
        "metadata": metadata,
        "spec": {"initContainers": made("i", init), "containers": made("c", units)},
        "status": {"phase": phase},
    }


def held_card(uuid: str) -> ProvenDevice:
    """Return a card as the ledger says that it is held."""
    return ProvenDevice(device_type="gpu", device_id=uuid, minor=0)


def given(pod_uid: str, container: str, ids: Sequence[str], **envs: str) -> DeviceEntry:
    """Return kubelet's record of a container that was given ids and told an environment."""
    answer = messages.ContainerAllocateResponse(envs=envs)
    return DeviceEntry(
        pod_uid=pod_uid,
        container=container,
        resource=GPUSHARE_MEMORY,
        device_ids={-1: tuple(ids)},
        response=answer.SerializeToString(),
    )


def recorded(*entries: DeviceEntry) -> DeviceCheckpoint:
    """Return a checkpoint with these entries."""
    return DeviceCheckpoint(entries=entries)


@dataclass(kw_only=True)
class ShareNode:
    """
    A node whose kubelet admits Pods, with an agent in `gpushare` mode, in memory.

    Attributes:
        pods: those that kubelet knows, by UID; bound: those that it will know, in its order.
        held: UID -> the card that the ledger says.
        started: UID and container -> the card of the environment that it runs with.
        failed: UIDs of Pods that kubelet rejected.
    """

    cards: tuple[Card, ...]
    rng: random.Random
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    bound: list[dict[str, Any]] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    record: dict[tuple[str, str], DeviceEntry] = field(default_factory=dict)
    started: dict[tuple[str, str], str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    refused: set[tuple[str, str]] = field(default_factory=set)
    agent: GpuShare = field(init=False)

    def __post_init__(self) -> None:
        self.restart_agent()

    def devices_of(self, pod_uid: str, container: str) -> Sequence[ProvenDevice] | None:  # noqa: ARG002
        """Return the card of a Pod."""
        return [held_card(self.held[pod_uid])] if pod_uid in self.held else None

    def shown_to(self, pod_uid: str) -> Sequence[str]:  # noqa: ARG002
        """Return nothing: containers see their own cards alone."""
        return ()

    def is_held(self, pod_uid: str) -> bool:
        """Tell whether a Pod holds something."""
        return bool(self.devices_of(pod_uid, "main"))

    def restart_agent(self) -> None:
        """Let another agent take the place of this one, which remembers nothing."""

        async def pods() -> Sequence[Mapping[str, object]]:
            return list(self.pods.values())

        self.agent = GpuShare(
            pods=pods,
            checkpoint=lambda: recorded(*self.record.values()),
            holdings=self,
        )
        self.agent.saw(Discovery(cards=self.cards))
        self.agent.labelled({})

    def restart_kubelet(self) -> None:
        """Let kubelet know nothing but its record, and admit all of its Pods again."""
        alive = [pod for uid, pod in self.pods.items() if uid not in self.failed]
        self.rng.shuffle(alive)
        self.bound = alive + self.bound
        self.pods.clear()
        self.agent.begin()

    def bind(self, pod: dict[str, Any]) -> None:
        """Let the scheduler give a Pod its card, and kubelet learn of it later."""
        minor = int(pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"])
        uid = pod["metadata"]["uid"]
        self.held[uid] = next(card.uuid for card in self.cards if card.minor == minor)
        self.bound.append(pod)

    def free_ids(self, uid: str) -> list[str]:
        """Return ids that kubelet may give, in an order of its own."""
        taken = {each for (pod, _), one in self.record.items() if pod != uid for each in one.ids()}
        ids = [one.ID for one in self.agent.listing().devices if one.health == "Healthy"]
        free = [each for each in ids if each not in taken]
        self.rng.shuffle(free)
        return free

    async def admit(self, *, dies_after: int = -1, stays_stale: bool = False) -> str:
        """
        Admit the next Pod, container after container; return its UID.

        Args:
            dies_after: kubelet ends without a word after so many answers, the last unrecorded.
            stays_stale: the Pod is rejected for another reason before anybody is asked, and is
                Pending among kubelet's Pods for now.
        """
        pod = self.bound.pop(0)
        uid = pod["metadata"]["uid"]
        self.pods[uid] = pod
        if stays_stale:
            self.failed[uid] = "for another reason"
            return str(uid)
        containers = [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]
        for number, container in enumerate(containers):
            key = (uid, container["name"])
            amount = int(container["resources"].get("limits", {}).get(GPUSHARE_MEMORY, 0))
            if not amount or key in self.record:
                continue
            ids = await self.agent.prefer(self.free_ids(uid), [], amount)
            try:
                answer = await self.agent.allocate(ids)
            except TenureError as error:
                self.failed[uid] = str(error)
                pod["status"] = {"phase": "Failed"}
                return str(uid)
            if number == dies_after:
                self.restart_kubelet()
                return str(uid)
            self.record[key] = given(uid, container["name"], ids, **answer.answer["envs"])
        return str(uid)

    async def start(self, uid: str) -> None:
        """Start the containers of an admitted Pod, as far as the agent lets."""
        for (pod, container), entry in self.record.items():
            if pod != uid or uid in self.failed:
                continue
            try:
                await self.agent.prepare(entry.ids())
            except TenureError:
                self.refused.add((uid, container))
                continue
            told = messages.envs_in(entry.response)
            self.started[uid, container] = told["NVIDIA_VISIBLE_DEVICES"]

    async def mark(self) -> None:
        """Set `ASSIGNED` of whoever the agent says."""
        for pod in await self.agent.to_mark():
            annotations = self.pods[pod.uid]["metadata"]["annotations"]
            annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] = "true"

    def delete(self, uid: str) -> None:
        """Let a Pod be gone, with what kubelet kept of it; the ledger frees its card."""
        self.pods.pop(uid, None)
        self.held.pop(uid, None)
        self.bound = [pod for pod in self.bound if pod["metadata"]["uid"] != uid]
        self.record = {key: one for key, one in self.record.items() if key[0] != uid}
