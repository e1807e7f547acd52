from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from ledger.domain.request.normalise import decode_pod
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement, Unfit, Unplaced
from scheduler.decide.settings import SchedulingSettings
from tests.support.machine_z import (
    ANY_VF,
    BESIDE,
    GPU,
    HINT,
    JOINT,
    RDMA,
    SAME_PCIE,
    WHOLE,
    ask,
    bus_id,
    facts_of,
    machine_z,
    minors,
    nic_device,
    place,
    reason,
    view_of,
)
from tests.support.objects import Object, gpu_device, gpu_pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the contract's table: what is asked and in use, which devices come out."""

    gpus: int
    rdma: int = 1
    used: tuple[int, ...] = ()
    functions: tuple[str, ...] = ()
    joint: Object = field(default_factory=lambda: dict(BESIDE))
    scope: str = ""
    chosen: list[int] = field(default_factory=list)
    nics: list[int] = field(default_factory=list)
    refusal: str = ""


ROWS = {
    "two GPUs share the NIC of their root": Row(gpus=2, chosen=[0, 1], nics=[10]),
    "three fill a NUMA node and take a NIC of each root": Row(
        gpus=3, chosen=[0, 1, 2], nics=[10, 11]
    ),
    "four take the lowest": Row(gpus=4, chosen=[0, 1, 2, 3], nics=[10, 11, 12]),
    "four are never on one NUMA node": Row(
        gpus=4, scope="NUMANode", refusal="Insufficient Topology Scoped GPU Devices"
    ),
    "one packs beside a used one": Row(gpus=1, used=(3,), chosen=[4], nics=[12]),
    "one stays on the NUMA node that is in use": Row(gpus=1, used=(2,), chosen=[0], nics=[10]),
    "a full NIC is passed over": Row(gpus=3, used=(11,), chosen=[0, 1, 2], nics=[10, 12]),
    "a full NIC breaks one root for all": Row(
        gpus=3,
        used=(11,),
        joint=dict(SAME_PCIE),
        refusal="node(s) Device Joint-Allocate rules violation",
    ),
    "two NICs, the GPU's first": Row(gpus=1, rdma=200, chosen=[0], nics=[10, 11]),
    "a VF in use": Row(gpus=2, functions=(bus_id(10, 0),), chosen=[0, 1], nics=[10]),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_contracts_table_of_joint_allocation(row: Row) -> None:
    """Koordinator contract 8.6, every row but the NUMA affinity's."""
    hint = {**ANY_VF, "gpu": {"requiredTopologyScope": row.scope}} if row.scope else ANY_VF
    view = view_of(machine_z(), used=row.used, functions=row.functions)

    answer = ask(view, {WHOLE: row.gpus, RDMA: row.rdma}, {HINT: hint, JOINT: row.joint})

    if row.refusal:
        assert reason(answer) == row.refusal
        return
    assert (minors(answer), minors(answer, "rdma")) == (row.chosen, row.nics)
    assert not isinstance(answer, Unfit)
    held = [share.vf_bus_ids for share in answer.shares if share.device_type == "rdma"]
    assert held == [(bus_id(nic, int(bus_id(nic, 0) in row.functions)),) for nic in row.nics]


def test_three_gpus_and_their_nics_may_be_under_the_same_roots() -> None:
    """Koordinator contract 8.6: the least number of NICs becomes that of the roots."""
    answer = ask(view_of(machine_z()), {WHOLE: 3, RDMA: 1}, {JOINT: SAME_PCIE})

    assert (minors(answer), minors(answer, "rdma")) == ([0, 1, 2], [10, 11])


@pytest.mark.parametrize(
    ("used", "asked", "joint", "gpus", "nics"),
    [
        pytest.param((10,), {}, SAME_PCIE, [2], [11], id="the first root's NIC is held"),
        pytest.param((12, 3), {}, SAME_PCIE, [0], [10], id="not beside the GPU in use"),
        pytest.param((10,), {WHOLE: 2}, SAME_PCIE, [3, 4], [12], id="two GPUs under one root"),
        pytest.param((0, 1), {}, {**SAME_PCIE, "deviceTypes": ["rdma", "gpu"]}, [2], [11],
                     id="the NIC is the primary, its root's GPUs are held"),
    ],
)  # fmt: skip
def test_another_root_with_all_that_is_asked_for_is_found(
    used: tuple[int, ...], asked: Object, joint: Object, gpus: list[int], nics: list[int]
) -> None:
    """DIVERGENCES: the release looks at the first choice of the primary only."""
    view = view_of(machine_z(), used=used)

    answer = ask(view, {WHOLE: 1, RDMA: 1, **asked}, {JOINT: joint})

    assert (minors(answer), minors(answer, "rdma")) == (gpus, nics)


def test_no_root_with_all_that_is_asked_for_keeps_the_first_reason() -> None:
    """Two GPUs are under roots 0 and 2, whose NICs are held; the one under root 1 is alone."""
    view = view_of(machine_z(), used=(10, 12))

    answer = ask(view, {WHOLE: 2, RDMA: 1}, {JOINT: SAME_PCIE})

    assert reason(answer) == "node(s) Device Joint-Allocate rules violation"


def test_too_few_nics_for_the_roots_are_insufficient() -> None:
    """Koordinator contract 8.6: five GPUs have three roots and two NICs are left."""
    view = view_of(machine_z(), used=(11, 12))

    answer = ask(view, {WHOLE: 5, RDMA: 1}, {JOINT: SAME_PCIE})

    assert reason(answer) == "Insufficient rdma devices"
    assert isinstance(answer, Unfit)
    assert (answer.requested, answer.available, answer.preemptible) == (3, 1, True)


def test_one_nic_less_than_wanted_is_taken_where_nothing_requires_more() -> None:
    """Koordinator contract 8.6: the own count is the lower bound."""
    view = view_of(machine_z(), used=(11, 12))

    assert minors(ask(view, {WHOLE: 5, RDMA: 1}, {JOINT: BESIDE}), "rdma") == [10]


def test_a_nic_whose_root_nobody_knows_is_under_no_same_root() -> None:
    """Ours: what can't be known is not taken for the same."""
    nic = nic_device(10, 0, "")
    view = view_of(facts_of(gpu_device(0, topology=place(0, "")), nic))

    answer = ask(view, {WHOLE: 1, RDMA: 1}, {JOINT: SAME_PCIE})

    assert reason(answer) == "node(s) Device Joint-Allocate rules violation"


def test_the_first_type_is_the_primary_and_gpus_have_no_preference_as_a_secondary() -> None:
    """Koordinator contract 8.6: the NIC goes first; the GPU ignores its root."""
    view = view_of(machine_z(), used=(10,))
    joint = {"deviceTypes": ["rdma", "gpu"]}

    answer = ask(view, {WHOLE: 1, RDMA: 1}, {JOINT: joint})

    assert (minors(answer), minors(answer, "rdma")) == ([0], [11])


def test_a_type_for_all_devices_is_chosen_on_its_own() -> None:
    """Koordinator contract 8.6: `ApplyForAll` drops out of the joint types."""
    annotations = {JOINT: SAME_PCIE, HINT: {"rdma": {"allocateStrategy": "ApplyForAll"}}}

    answer = ask(view_of(machine_z()), {WHOLE: 1, RDMA: 5}, annotations)

    assert (minors(answer), minors(answer, "rdma")) == ([0], [10, 11, 12])


STRATEGIES = {
    "three whole": (300, {}, 3, 100),
    "a part of one": (5, {}, 1, 5),
    "all of them": (5, {"allocateStrategy": "ApplyForAll"}, 3, 5),
    "the whole of all": (100, {"allocateStrategy": "ApplyForAll"}, 3, 100),
    "whole ones whatever the strategy": (200, {"allocateStrategy": "ApplyForAll"}, 2, 100),
    "as a count": (3, {"allocateStrategy": "RequestsAsCount"}, 3, 1),
    "as a count of whole ones": (
        3,
        {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"},
        3,
        100,
    ),
    "whole ones are no count": (200, {"allocateStrategy": "RequestsAsCount"}, 2, 100),
}


@pytest.mark.parametrize(("units", "hint", "count", "each"), STRATEGIES.values(), ids=STRATEGIES)
def test_how_many_nics_a_request_means(units: int, hint: Object, count: int, each: int) -> None:
    """Koordinator contract 8.3, every row of the table."""
    answer = ask(view_of(machine_z()), {RDMA: units}, {HINT: {"rdma": hint}})

    assert len(minors(answer, "rdma")) == count
    assert not isinstance(answer, Unfit)
    assert {share.core_percent for share in answer.shares} == {each}


def test_five_nics_as_a_count_need_five() -> None:
    """Koordinator contract 8.3: `rdma 5` with RequestsAsCount is five NICs."""
    hint = {HINT: {"rdma": {"allocateStrategy": "RequestsAsCount"}}}
    five = facts_of(*(nic_device(minor, 0, f"r{minor}") for minor in range(5)))

    assert minors(ask(view_of(five), {RDMA: 5}, hint), "rdma") == [0, 1, 2, 3, 4]
    assert reason(ask(view_of(machine_z()), {RDMA: 5}, hint)) == "Insufficient rdma devices"


def selector(**labels: str) -> Object:
    """Return a selector of these labels."""
    return {"matchLabels": labels}


def test_all_devices_are_all_that_the_selector_keeps() -> None:
    """Koordinator contract 8.3: none kept is insufficient, one that is full too."""
    facts = facts_of(
        nic_device(0, 0, "a"), nic_device(1, 0, "b"), nic_device(2, 0, "c", labels={"fabric": "ib"})
    )
    roce = {"rdma": {"allocateStrategy": "ApplyForAll", "selector": selector(fabric="roce")}}
    none = {"rdma": {"allocateStrategy": "ApplyForAll", "selector": selector(fabric="eth")}}

    assert minors(ask(view_of(facts), {RDMA: 5}, {HINT: roce}), "rdma") == [0, 1]
    assert minors(ask(view_of(facts, used=(2,)), {RDMA: 5}, {HINT: roce}), "rdma") == [0, 1]
    full = ask(view_of(facts, used=(1,)), {RDMA: 5}, {HINT: roce})
    nothing = ask(view_of(facts), {RDMA: 5}, {HINT: none})
    assert reason(full) == reason(nothing) == "Insufficient rdma devices"
    assert isinstance(full, Unfit)
    assert isinstance(nothing, Unfit)
    assert (full.preemptible, nothing.preemptible) == (True, False)


SELECTORS = {
    "labels": (selector(tier="gold"), [1]),
    "an expression": (
        {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gold"]}]},
        [0],
    ),
    "presence": ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, [1]),
    "nothing": ({}, [0]),
}


@pytest.mark.parametrize("asked", [{WHOLE: 1}, {GPU: 50}, {"koordinator.sh/gpu-memory": "1Gi"}])
@pytest.mark.parametrize(("wish", "chosen"), SELECTORS.values(), ids=SELECTORS)
def test_a_selector_keeps_gpus_by_label(wish: Object, chosen: list[int], asked: Object) -> None:
    """Koordinator contract 2.1: absent keeps all, `{}` too."""
    facts = facts_of(gpu_device(0), gpu_device(1, labels={"tier": "gold"}))

    assert minors(ask(view_of(facts), asked, {HINT: {"gpu": {"selector": wish}}})) == chosen


DIALECTS = {
    "mGPU": {"vke.volcengine.com/mgpu-core": 30, "vke.volcengine.com/mgpu-memory": 1024},
    "GPU share": {"aliyun.com/gpu-mem": 1024},
}


@pytest.mark.parametrize("asked", DIALECTS.values(), ids=DIALECTS)
def test_a_selector_is_for_every_dialect(asked: Object) -> None:
    """Ours: a label is a label, whoever asks; a filter of the cards before any search."""
    facts = facts_of(gpu_device(0), gpu_device(1, labels={"tier": "gold"}))
    wish = {HINT: {"gpu": {"selector": selector(tier="gold")}}}

    assert (minors(ask(view_of(facts), asked)), minors(ask(view_of(facts), asked, wish))) == (
        [0],
        [1],
    )


def test_a_selector_without_a_device_is_no_matter_of_time() -> None:
    """Koordinator contract 13: no Pod's end helps."""
    answer = ask(view_of(machine_z()), {WHOLE: 1}, {HINT: {"gpu": {"selector": selector(a="b")}}})

    assert reason(answer) == "Insufficient gpu devices"
    assert isinstance(answer, Unfit)
    assert not answer.preemptible


def test_functions_are_taken_in_the_order_of_their_numbers() -> None:
    """Koordinator contract, quirk Q15 as ours: `.2` before `.10`; other text comes last."""
    names = ["0000:5e:01.10", "vf-1", "0000:5e:01.2", "0000:5d:02.0", ""]
    group = {"vfs": [{"minor": -1, "busID": name} for name in names]}
    facts = facts_of(nic_device(0, 0, "a", vfGroups=[group]))
    taken: list[str] = []
    for _ in range(4):
        answer = ask(view_of(facts, functions=taken), {RDMA: 1}, {HINT: ANY_VF})
        assert not isinstance(answer, Unfit)
        taken.extend(answer.shares[0].vf_bus_ids)

    assert taken == ["0000:5d:02.0", "0000:5e:01.2", "0000:5e:01.10", "vf-1"]
    answer = ask(view_of(facts, functions=taken), {RDMA: 1}, {HINT: ANY_VF})
    assert reason(answer) == "Insufficient rdma devices"


def test_functions_come_from_groups_that_match() -> None:
    """Koordinator contract 8.6: of all matching groups; a NIC without a free one is skipped."""
    test = {"labels": {"use": "test"}, "vfs": [{"minor": 0, "busID": "0000:0b:01.0"}]}
    facts = facts_of(nic_device(10, 0, "a"), nic_device(11, 0, "b", vfGroups=[test]))
    wish = {"rdma": {"vfSelector": selector(use="test")}}

    answer = ask(view_of(facts), {RDMA: 1}, {HINT: wish})

    assert minors(answer, "rdma") == [11]
    assert reason(ask(view_of(facts), {RDMA: 200}, {HINT: wish})) == "Insufficient rdma devices"


def test_no_function_at_all_is_said_in_its_own_words() -> None:
    """Koordinator contract 8.6 and 13: preemption can't help."""
    facts = facts_of(nic_device(10, 0, "a", vfGroups=[]))

    answer = ask(view_of(facts), {RDMA: 1}, {HINT: ANY_VF})

    assert reason(answer) == "Insufficient rdma VirtualFunctions"
    assert isinstance(answer, Unfit)
    assert not answer.preemptible


def test_a_whole_root_is_one_without_any_used_device_of_the_type() -> None:
    """Koordinator contract, quirk Q5 as ours."""
    wish = {HINT: {"gpu": {"exclusivePolicy": "PCIeLevel"}}}
    view = view_of(machine_z(), used=(0, 12), percent=1)

    assert minors(ask(view, {WHOLE: 1}, wish)) == [2]
    assert minors(ask(view, {WHOLE: 2}, wish)) == [3, 4]
    assert minors(ask(view, {GPU: 50}, wish)) == [2]
    crowded = view_of(machine_z(), used=(0, 2, 4), percent=1)
    answer = ask(crowded, {WHOLE: 1}, wish)
    assert reason(answer) == "Insufficient gpu devices"
    assert isinstance(answer, Unfit)
    assert answer.preemptible


def test_a_part_alone_on_its_device_keeps_others_out() -> None:
    """Koordinator contract 2.1: `DeviceLevel` for a part of a NIC or a card."""
    wish = {HINT: {"rdma": {"exclusivePolicy": "DeviceLevel"}}}
    view = view_of(machine_z(), used=(10,), percent=1)

    answer = ask(view, {RDMA: 5}, wish)

    assert minors(answer, "rdma") == [11]
    assert not isinstance(answer, Unfit)
    assert [(share.core_percent, share.exclusive) for share in answer.shares] == [(5, True)]


SCOPES = {
    "one root": (2, "PCIe", [0, 1]),
    "one NUMA node": (3, "NUMANode", [0, 1, 2]),
    "the node": (5, "Node", [0, 1, 2, 3, 4]),
}


@pytest.mark.parametrize(("count", "scope", "chosen"), SCOPES.values(), ids=SCOPES)
def test_a_required_scope_is_met(count: int, scope: str, chosen: list[int]) -> None:
    """Koordinator contract 8.4."""
    wish = {HINT: {"gpu": {"requiredTopologyScope": scope}}}

    assert minors(ask(view_of(machine_z()), {WHOLE: count}, wish)) == chosen


def test_a_scope_that_is_only_crowded_may_be_helped() -> None:
    """Koordinator contract 13: by preemption, unlike one that is too small."""
    wish = {HINT: {"gpu": {"requiredTopologyScope": "PCIe"}}}
    crowded = ask(view_of(machine_z(), used=(0, 4)), {WHOLE: 2}, wish)
    small = ask(view_of(machine_z()), {WHOLE: 3}, wish)

    assert reason(crowded) == reason(small) == "Insufficient Topology Scoped GPU Devices"
    assert isinstance(crowded, Unfit)
    assert isinstance(small, Unfit)
    assert (crowded.preemptible, small.preemptible) == (True, False)


def test_parts_of_several_gpus_have_no_scope() -> None:
    """Koordinator contract 8.4: without a scope they skip the tree, with one they are refused."""
    parts = {"koordinator.sh/gpu.shared": 2, "koordinator.sh/gpu-memory-ratio": 80}
    wish = {HINT: {"gpu": {"requiredTopologyScope": "NUMANode"}}}

    assert minors(ask(view_of(machine_z()), parts)) == [0, 1]
    answer = ask(view_of(machine_z()), parts, wish)
    assert reason(answer) == "node(s) Unsupported Multi-Shared GPU"


def test_a_scope_on_a_node_that_tells_no_places_is_refused() -> None:
    """Koordinator contract 8.4: only if every GPU has a topology."""
    facts = facts_of(gpu_device(0, topology=place(0, "a")), gpu_device(1))
    wish = {HINT: {"gpu": {"requiredTopologyScope": "NUMANode"}}}

    assert reason(ask(view_of(facts), {WHOLE: 2}, wish)) == (
        "node(s) missing GPU Device Topology Tree"
    )
    assert minors(ask(view_of(facts), {WHOLE: 2})) == [0, 1]


def test_a_part_of_a_gpu_packs_by_scope_and_then_by_score() -> None:
    """Koordinator contract 8.4: the deepest scope in use, inside it the best-scored device."""
    view = view_of(machine_z(), used=(3,), percent=40)

    assert minors(ask(view, {GPU: 30})) == [4]  # LeastAllocated


def test_a_refusal_after_a_closer_look_comes_with_numbers() -> None:
    """cli.md, Output: the node that came closest, what it has, what would help."""
    nodes = [
        replace(
            machine_z(),
            name=f"n{place}",
            uid=f"uid-n{place}",
            devices=tuple(
                replace(each, device_id=f"{each.device_id}-{place}") for each in machine_z().devices
            ),
        )
        for place in range(2)
    ]
    engine = Engine(nodes, SchedulingSettings())
    first = engine.decide(replace(decode_pod(gpu_pod({WHOLE: 2})), uid="uid-first"))
    assert isinstance(first, Placement)
    engine.reserve(first)
    wish = {HINT: {"gpu": {"requiredTopologyScope": "PCIe"}}}

    answer = engine.decide(decode_pod(gpu_pod({WHOLE: 3}, annotations=wish)))

    assert isinstance(answer, Unplaced)
    (count,) = answer.reasons
    assert count.reason == "Insufficient Topology Scoped GPU Devices"
    assert (count.nodes, count.detail) == (2, "asks 3 cards, 2 there")
    assert count.remedy
