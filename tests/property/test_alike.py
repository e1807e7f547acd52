from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.normalise import decode_pod
from ledger.domain.request.requests import PodRequest
from scheduler.decide import engine as deciding
from scheduler.decide.engine import Engine
from scheduler.decide.filter import filtering
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import SchedulingSettings
from tests.property.test_cards_hints import machines, requests
from tests.support.examples import examples
from tests.support.machine_z import (
    ANY_VF,
    GPU,
    HINT,
    JOINT,
    PARTITION,
    RDMA,
    SAME_PCIE,
    WHOLE,
    facts_of,
    machine_z_devices,
)
from tests.support.objects import Object, gpu_pod

NEVER = 10**9
TABLE = {"2": [{"minors": [0, 1]}, {"minors": [3, 4]}], "1": [{"minors": [2]}]}
PARTITIONED = {"scheduling.koordinator.sh/gpu-partitions": TABLE}
PCIE = {"gpu": {"requiredTopologyScope": "PCIe"}}
ALONE = {"gpu": {"exclusivePolicy": "PCIeLevel"}}
WISHES: tuple[tuple[Object, Object], ...] = (
    ({WHOLE: 2, RDMA: 1}, {JOINT: SAME_PCIE}),
    ({WHOLE: 2, RDMA: 60}, {JOINT: SAME_PCIE}),
    ({WHOLE: 1, RDMA: 1}, {JOINT: SAME_PCIE, HINT: ANY_VF}),
    ({WHOLE: 1, RDMA: 100}, {JOINT: SAME_PCIE}),
    ({WHOLE: 2}, {HINT: PCIE}),
    ({WHOLE: 3}, {HINT: {"gpu": {"requiredTopologyScope": "NUMANode"}}}),
    ({WHOLE: 2}, {HINT: ALONE}),
    ({WHOLE: 1}, {PARTITION: {}}),
    ({WHOLE: 2}, {PARTITION: {}}),
    ({f"{GPU}.shared": 2, f"{GPU}-memory-ratio": 100, RDMA: 1}, {JOINT: SAME_PCIE}),
    ({RDMA: 40}, {HINT: {"rdma": {"vfSelector": {}, "exclusivePolicy": "PCIeLevel"}}}),
)
"""Requests that pass the tests over arrays where only a closer look refuses."""


@contextmanager
def grouped_after(refusals: int) -> Iterator[None]:
    """Group nodes alike after so many refusals of one decision."""
    with (
        mock.patch.object(deciding, "REFUSALS_BEFORE", refusals),
        mock.patch.object(filtering, "REFUSALS_BEFORE", refusals),
    ):
        yield


@st.composite
def fleets(draw: st.DrawFn) -> tuple[NodeFacts, ...]:
    """A few kinds of machines, several of each, one of them perhaps with a card that is ill."""
    kinds = draw(st.lists(machines(), min_size=1, max_size=2))
    nodes = []
    for number in range(draw(st.integers(2, 6))):
        kind = kinds[number % len(kinds)]
        name = f"n{number}"
        ill = draw(st.sampled_from([-1, -1, -1, 0]))
        devices = tuple(
            _named(record, name, healthy=record.healthy and place != ill)
            for place, record in enumerate(kind.devices)
        )
        nodes.append(replace(kind, uid=f"uid-{name}", name=name, devices=devices))
    return tuple(nodes)


def _named(record: DeviceRecord, node: str, *, healthy: bool) -> DeviceRecord:
    return replace(record, device_id=f"{node}-{record.device_id}", healthy=healthy)


def decisions(
    nodes: Sequence[NodeFacts], pods: Sequence[PodRequest], policy: str
) -> list[Placement | Unplaced]:
    """Return what becomes of the Pods, one after the other; every third one ends at once."""
    engine = Engine(nodes, SchedulingSettings(node_policy=policy))
    answers = []
    for number, request in enumerate(pods):
        answer = engine.decide(request)
        answers.append(answer)
        if isinstance(answer, Placement):
            engine.reserve(answer)
            if number % 3 == 2:
                engine.release(request.uid)
    return answers


@given(
    nodes=fleets(),
    pods=st.lists(requests(), min_size=1, max_size=8),
    policy=st.sampled_from(["scarcity", "binpack", "bestfit", "random"]),
)
def test_one_refusal_for_nodes_alike_changes_no_answer(
    nodes: tuple[NodeFacts, ...], pods: list[PodRequest], policy: str
) -> None:
    """Places, devices, reasons and numbers are those of looking at every node by itself."""
    named = [replace(request, uid=f"p{number}") for number, request in enumerate(pods)]
    with grouped_after(NEVER):
        expected = decisions(nodes, named, policy)
    with grouped_after(1):
        assert decisions(nodes, named, policy) == expected


@given(nodes=fleets(), pods=st.lists(requests(), min_size=2, max_size=8))
def test_a_filter_fails_only_nodes_that_would_refuse(
    nodes: tuple[NodeFacts, ...], pods: list[PodRequest]
) -> None:
    """The best node is the same; of the others those fail that give the Pod nothing alone."""
    engine = Engine(nodes, SchedulingSettings(node_policy="binpack"))
    *earlier, last = [replace(request, uid=f"p{number}") for number, request in enumerate(pods)]
    for request in earlier:
        answer = engine.decide(request)
        if isinstance(answer, Placement):
            engine.reserve(answer)
    engine.forget()
    everywhere = list(range(len(nodes)))
    with grouped_after(NEVER):
        expected = engine.filter(last, everywhere)
    engine.forget()
    with grouped_after(1):
        judged = engine.filter(last, everywhere)

    assert judged.best == expected.best
    assert set(judged.passing.tolist()) <= set(expected.passing.tolist())
    for place in set(expected.passing.tolist()) - set(judged.passing.tolist()):
        assert engine.filter(last, [place]).best is None


MIXES = (
    ((0, 0, 50, 100, 100), (0, 0, 50, 100, 100), 0.7, 0.95),
    ((0, 0, 0, 100), (0,), 0.8, 1.0),
    ((0, 50, 100), (0, 0, 0, 50, 100), 0.8, 0.93),
)
"""Percents of GPUs and NICs that are held, the share of VFs in use and of healthy devices."""


def loaded(seed: int) -> Engine:
    """Return sixteen machines Z of two kinds, their devices held in part, at random."""
    rng = random.Random(seed)
    gpus, nics, used, healthy = MIXES[seed % len(MIXES)]
    kinds = [facts_of(*machine_z_devices(), annotations=more) for more in ({}, PARTITIONED)]
    nodes = []
    for number in range(16):
        kind, name = kinds[number % 2], f"n{number}"
        devices = tuple(_named(each, name, healthy=rng.random() < healthy) for each in kind.devices)
        nodes.append(replace(kind, uid=f"uid-{name}", name=name, devices=devices))
    engine = Engine(nodes, SchedulingSettings())
    for number, node in enumerate(nodes):
        held = []
        for record in node.devices:
            percent = rng.choice(gpus if record.device_type == "gpu" else nics)
            functions = tuple(vf.bus_id for vf in record.vfs if rng.random() < used)
            if percent or functions:
                held.append(_share(record, percent, functions))
        pod = PodObserved(
            pod_uid=f"held-{number}",
            attempt=1,
            namespace="ml",
            pod_name=f"held-{number}",
            node_uid=node.uid,
            node_name=node.name,
            source="device-allocated",
            shares=tuple(held),
        )
        engine.adopt(number, pod)
    return engine


def _share(record: DeviceRecord, percent: int, functions: tuple[str, ...]) -> DeviceShare:
    return DeviceShare(
        device_type=record.device_type,
        minor=record.minor,
        device_id=record.device_id,
        core_percent=percent,
        memory_bytes=record.memory_bytes * percent // 100,
        memory_ratio_percent=percent,
        exclusive=percent == 100,
        vf_bus_ids=functions,
    )


def test_refusals_of_loaded_machines_are_those_of_each_by_itself() -> None:
    """On machines that differ in nothing but their holders, over every wish about devices."""
    machines, refused = examples(240), 0
    for seed in range(machines):
        engine = loaded(seed)
        for number, (limits, wishes) in enumerate(WISHES):
            asked = decode_pod(gpu_pod(limits, annotations=wishes))
            request = replace(asked, uid=f"p{number}")
            with grouped_after(NEVER):
                expected = engine.decide(request)
            engine.forget()
            with grouped_after(1):
                assert engine.decide(request) == expected, (seed, number)
            engine.forget()
            refused += isinstance(expected, Unplaced)
    assert refused > 0.4 * machines, "there is little to compare"
