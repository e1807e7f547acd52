"""A live cluster counts GPU share in its setting's unit; files say by their numbers what it is."""

from __future__ import annotations

import pytest

from ledger.domain.adopted.pods import adopt
from ledger.domain.dialects.gpushare.reader import READER
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.normalise import examine_pod
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary
from scheduler.decide.answers import encode
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from tests.support.objects import Object, container, node, pod

MEMORY, COUNT, MIB, GIB = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", 2**20, 2**30
BYTES = {"MiB": MIB, "GiB": GIB}
BY_NODE = Vocabulary(gpushare_unit="")


def a_node(memory: int, vocabulary: Vocabulary) -> NodeFacts:
    """Return a node that offers so many units on two cards."""
    amounts = {MEMORY: str(memory), COUNT: "2", "cpu": "64", "memory": "1Ti"}
    return decode_node(node("n", allocatable=amounts), vocabulary=vocabulary)[0]


def a_pod(name: str, units: int, **given: str) -> Object:
    """Return a Pod that asks for so many units; `given` are its annotations."""
    return pod(container(limits={MEMORY: units}), name=name, uid=name, annotations=given)


@pytest.mark.parametrize("each", [16, 16000])
@pytest.mark.parametrize("unit", ["MiB", "GiB"])
def test_a_live_cluster_counts_by_its_setting_alone(unit: str, each: int) -> None:
    """What cards have, Pods ask for, running Pods hold and annotations say is in one unit."""
    vocabulary = Vocabulary(gpushare_unit=unit)
    settings = SchedulingSettings(vocabulary=vocabulary)
    facts = a_node(2 * each, vocabulary)
    units = min(each, 1024)
    words = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": str(units)}

    (held,) = adopt(a_pod("held", units, **words), facts, vocabulary).shares
    request, errors = examine_pod(a_pod("new", units), vocabulary)

    assert not errors
    assert [card.memory_bytes for card in facts.devices] == [each * BYTES[unit]] * 2
    assert held.memory_bytes == units * BYTES[unit]
    assert [demand.memory_bytes for demand in request.devices] == [units * BYTES[unit]]
    placed = Engine([facts], settings).decide(request)
    assert isinstance(placed, Placement)
    answer = encode(placed, node=facts, now_ns=1, settings=settings)
    assert answer["ALIYUN_COM_GPU_MEM_POD"] == str(units)
    assert answer["ALIYUN_COM_GPU_MEM_DEV"] == str(each)


@pytest.mark.parametrize("unit", ["MiB", "GiB"])
def test_a_live_card_of_sixteen_units_takes_one_pod_of_sixteen(unit: str) -> None:
    """Whatever the unit is: two cards take two such Pods, and never a third."""
    settings = SchedulingSettings(vocabulary=Vocabulary(gpushare_unit=unit))
    engine = Engine([a_node(32, settings.vocabulary)], settings)
    cards = []
    for number in range(3):
        answer = engine.decide(examine_pod(a_pod(f"p{number}", 16), settings.vocabulary)[0])
        if isinstance(answer, Placement):
            engine.reserve(answer)
            cards += [share.minor for share in answer.shares]

    assert sorted(cards) == [0, 1]


@pytest.mark.parametrize(
    ("memory", "size"),
    [(30, 15 * GIB), (316, 158 * GIB), (998, 499 * GIB), (1000, 500 * MIB), (30720, 15 * GIB)],
)
def test_without_a_unit_a_cards_number_says_it(memory: int, size: int) -> None:
    """No card has 499 MiB, and none 500 GiB."""
    assert [one.memory_bytes for one in a_node(memory, BY_NODE).devices] == [size, size]


@pytest.mark.parametrize(("memory", "units"), [(30, 3), (30720, 3072)])
def test_without_a_unit_a_pod_holds_by_that_of_its_node(memory: int, units: int) -> None:
    """Two nodes of one cluster may differ."""
    words = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": str(units)}

    (share,) = adopt(a_pod("p", units, **words), a_node(memory, BY_NODE), BY_NODE).shares

    assert (share.minor, share.memory_bytes) == (1, 3 * GIB)


def test_without_a_unit_nobody_can_say_what_a_pod_asks_for() -> None:
    """It names the field, and has no demand that might fit somewhere."""
    request, (error,) = examine_pod(a_pod("p", 16), BY_NODE)

    assert not request.devices
    assert error.field == "spec.containers[0].resources.requests[aliyun.com/gpu-mem]"
    assert error.message == "not decided: nodes count it in MiB and in GiB"


def test_files_have_the_unit_that_all_their_nodes_tell() -> None:
    """Where two are told there is none; where none is told the setting counts."""
    gib, mib = {MEMORY: 30, COUNT: 2}, {MEMORY: 30720, COUNT: 2}
    assert READER.fitted(DEFAULT_VOCABULARY, [gib, {}, gib]) == Vocabulary(gpushare_unit="GiB")
    assert READER.fitted(Vocabulary(gpushare_unit="GiB"), [mib]) == DEFAULT_VOCABULARY
    assert READER.fitted(DEFAULT_VOCABULARY, [gib, mib]) == BY_NODE
    assert READER.fitted(DEFAULT_VOCABULARY, [{}, {MEMORY: 0}]) == DEFAULT_VOCABULARY
