from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from ledger.domain.kube.node_objects import decode_node
from ledger.domain.nodes import NodeFacts
from scheduler.decide.cards.choose import choose
from scheduler.decide.outcome import Unfit
from scheduler.decide.settings import DeviceSettings, SchedulingSettings
from tests.support.cards import mgpu_pod, whole
from tests.support.machine_z import (
    GPU,
    HINT,
    MODEL,
    PARTITION,
    POLICY,
    TABLE,
    VENDOR,
    WHOLE,
    ask,
    facts_of,
    minors,
    place,
    reason,
    view_of,
)
from tests.support.objects import Object, device, gpu_device, node

HONOR = {POLICY: "Honor"}
TABLE_ONE = {
    "1": [{"minors": [minor], "allocationScore": 1} for minor in range(5)],
    "2": [{"minors": [0, 1], "allocationScore": 1}, {"minors": [2, 3], "allocationScore": 1}],
    "4": [{"minors": [0, 1, 2, 3], "allocationScore": 1}],
}
RINGS = {
    "2": [
        {"minors": [0, 1], "allocationScore": 1},
        {"minors": [1, 2], "allocationScore": 2, "ringBusBandwidth": "60Gi"},
        {"minors": [2, 3], "allocationScore": 2, "ringBusBandwidth": "300Gi"},
    ]
}


def machine(
    count: int,
    table: Mapping[str, Sequence[Object]] | None = None,
    labels: Mapping[str, str] = HONOR,
) -> NodeFacts:
    """Return a node of so many GPUs with this table on its Device object."""
    annotations = {} if table is None else {TABLE: table}
    gpus = [gpu_device(minor) for minor in range(count)]
    return facts_of(*gpus, labels=labels, annotations=annotations)


EXAMPLES = {
    "a single leaves a pair behind": ((1, 4), 1, [0]),
    "equal leftovers go to the first": ((4,), 1, [0]),
    "a pair": ((0,), 2, [2, 3]),
    "a quad": ((4,), 4, [0, 1, 2, 3]),
}


@pytest.mark.parametrize(("used", "count", "chosen"), EXAMPLES.values(), ids=EXAMPLES)
def test_the_contracts_table_one(used: tuple[int, ...], count: int, chosen: list[int]) -> None:
    """Koordinator contract 8.5, the examples on table 1."""
    view = view_of(machine(5, TABLE_ONE), used=used)

    assert minors(ask(view, {WHOLE: count})) == chosen


def test_a_card_used_by_one_percent_breaks_its_partitions() -> None:
    """Koordinator contract 8.5: none of its minors is used at all."""
    view = view_of(machine(5, TABLE_ONE), used=(0,), percent=1)

    assert minors(ask(view, {WHOLE: 2})) == [2, 3]
    assert reason(ask(view, {WHOLE: 4})) == "Insufficient Partitioned GPU Devices"


def test_an_unhealthy_card_breaks_its_partitions() -> None:
    """Koordinator contract 8.5: all are healthy."""
    gpus = [gpu_device(minor, health=minor != 0) for minor in range(5)]
    facts = facts_of(*gpus, labels=HONOR, annotations={TABLE: TABLE_ONE})

    assert minors(ask(view_of(facts), {WHOLE: 2})) == [2, 3]


def test_a_selector_filters_partitions() -> None:
    """Koordinator contract 8.5: all pass the filters."""
    gpus = [gpu_device(minor, labels={"tier": str(minor // 2)}) for minor in range(5)]
    facts = facts_of(*gpus, labels=HONOR, annotations={TABLE: TABLE_ONE})
    wish = {HINT: {"gpu": {"selector": {"matchLabels": {"tier": "1"}}}}}

    assert minors(ask(view_of(facts), {WHOLE: 2}, wish)) == [2, 3]


REFUSALS = {
    "no table": (None, 1, "node(s) missing GPU Partition Table", False),
    "a number that is not in it": (
        TABLE_ONE,
        3,
        "node(s) Unsupported number of GPU requests",
        False,
    ),
    "none free": (TABLE_ONE, 2, "Insufficient Partitioned GPU Devices", True),
}


@pytest.mark.parametrize(("table", "count", "text", "preemptible"), REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("by", ["the node", "the Pod"])
def test_a_table_that_binds_is_the_only_way(
    table: Mapping[str, Sequence[Object]] | None,
    count: int,
    text: str,
    preemptible: bool,  # noqa: FBT001 - a column of the table
    by: str,
) -> None:
    """Koordinator contract 8.5 and 13: `Honor`, or a partition spec, even an empty one."""
    facts = machine(6, table, HONOR if by == "the node" else {})
    annotations: dict[str, object] = {} if by == "the node" else {PARTITION: {}}

    answer = ask(view_of(facts, used=(1, 2)), {WHOLE: count}, annotations)

    assert reason(answer) == text
    assert isinstance(answer, Unfit)
    assert answer.preemptible is preemptible


@pytest.mark.parametrize("used", [(), (1, 2)])
@pytest.mark.parametrize("label", ["Prefer", "anything", ""])
def test_a_table_that_is_preferred_gives_way(used: tuple[int, ...], label: str) -> None:
    """Koordinator contract 8.5: failures fall through."""
    labels = {POLICY: label} if label else {}
    view = view_of(machine(6, TABLE_ONE, labels), used=used)

    assert minors(ask(view, {WHOLE: 2})) == ([0, 3] if used else [0, 1])
    assert minors(ask(view, {WHOLE: 3})) == ([0, 3, 4] if used else [0, 1, 2])


def test_parts_of_cards_know_no_partitions() -> None:
    """Koordinator contract 8.5: exclusive requests only."""
    view = view_of(machine(5, None))

    assert minors(ask(view, {GPU: 50}, {PARTITION: {}})) == [0]


RING_CASES = {
    "the highest score, and there what leaves a pair behind": ({}, "highest", (), [2, 3]),
    "the release's order": ({}, "release", (), [0, 1]),
    "the next score group": ({}, "highest", (2,), [0, 1]),
    "restricted to the first group": (
        {"allocatePolicy": "Restricted"},
        "highest",
        (2,),
        "Insufficient Partitioned GPU Devices",
    ),
    "a ring as fast as asked": ({"ringBusBandwidth": "200Gi"}, "highest", (), [2, 3]),
    "a ring just as fast": ({"ringBusBandwidth": "300Gi"}, "highest", (), [2, 3]),
    "no ring so fast": (
        {"ringBusBandwidth": "301Gi"},
        "highest",
        (),
        "Insufficient Partitioned GPU Devices",
    ),
}


@pytest.mark.parametrize(("spec", "order", "used", "expected"), RING_CASES.values(), ids=RING_CASES)
def test_score_groups_and_rings(
    spec: Object, order: str, used: tuple[int, ...], expected: list[int] | str
) -> None:
    """Koordinator contract 8.5, quirk Q2 as ours; a missing bandwidth meets no demand."""
    settings = DeviceSettings(scoring="LeastAllocated", partition_score_order=order)

    answer = ask(
        view_of(machine(4, RINGS), used=used), {WHOLE: 2}, {PARTITION: spec}, devices=settings
    )

    found = reason(answer) if isinstance(answer, Unfit) else minors(answer)
    assert found == expected


MODELS = {
    "H100": ({MODEL: "H100"}, True),
    "H800 with more words": ({MODEL: "H800-80GB-HBM3", VENDOR: "nvidia"}, True),
    "H20": ({MODEL: "H20"}, True),
    "H200": ({MODEL: "H200"}, False),
    "another vendor's": ({MODEL: "H100", VENDOR: "metax"}, False),
}


@pytest.mark.parametrize(("labels", "known"), MODELS.values(), ids=MODELS)
def test_some_models_have_a_table_of_their_own(labels: Mapping[str, str], known: bool) -> None:  # noqa: FBT001 - a column
    """Koordinator contract 8.5: singles, pairs, quads, all eight."""
    view = view_of(machine(8, None, {**labels, **HONOR}), used=(1,))

    answer = ask(view, {WHOLE: 4})

    if known:
        assert minors(answer) == [4, 5, 6, 7]
        assert minors(ask(view, {WHOLE: 1})) == [0]
        assert minors(ask(view, {WHOLE: 2})) == [2, 3]
    else:
        assert reason(answer) == "node(s) missing GPU Partition Table"


def test_measured_links_come_before_a_built_in_table() -> None:
    """Ours: what was measured on the node says more than what its model usually is."""
    rows = [[1.0] * 8 for _ in range(8)]
    for one, other in ((5, 6), (6, 5)):
        rows[one][other] = 99.0
    topologies = {"gpu": [{"name": "bandwidth", "topology": str(rows)}]}
    gpus = [gpu_device(minor) for minor in range(8)]
    body = device(*gpus, labels={MODEL: "H100"}, topologies=topologies)
    facts, _ = decode_node(node(), body)

    assert minors(ask(view_of(facts), {WHOLE: 2})) == [5, 6]
    assert minors(ask(view_of(facts), {WHOLE: 2}, {PARTITION: {}})) == [0, 1]


def test_a_required_scope_holds_for_partitions_too() -> None:
    """Ours: no partition across scopes for a Pod that requires one."""
    gpus = [gpu_device(minor, topology=place(minor % 2, f"r{minor}")) for minor in range(4)]
    table = {"2": [{"minors": [0, 1]}, {"minors": [0, 2]}]}
    facts = facts_of(*gpus, labels=HONOR, annotations={TABLE: table})
    wish = {HINT: {"gpu": {"requiredTopologyScope": "NUMANode"}}}

    assert minors(ask(view_of(facts), {WHOLE: 2}, wish)) == [0, 2]


def test_a_broken_table_is_none_and_is_said() -> None:
    """Koordinator contract 2.5: Honor Pods fail on that node."""
    body = device(gpu_device(0), labels={**HONOR, MODEL: "H100"}, annotations={TABLE: "{"})
    facts, warnings = decode_node(node(), body)

    assert facts.partitions is None
    assert ["GPU partition table ignored" in warning for warning in warnings] == [True]
    assert reason(ask(view_of(facts), {WHOLE: 1})) == "node(s) missing GPU Partition Table"


def test_whole_mgpu_cards_keep_to_a_table_that_binds() -> None:
    """Ours: the hardware's groups bind whoever asks for whole cards."""
    view = view_of(machine(5, TABLE_ONE), used=(0,))

    bound = choose(mgpu_pod(whole(1), whole(1)), view, SchedulingSettings())
    free = choose(
        mgpu_pod(whole(1), whole(1)),
        view_of(machine(5, TABLE_ONE, {}), used=(0,)),
        SchedulingSettings(),
    )

    assert (minors(bound), minors(free)) == ([2, 3], [1, 2])
