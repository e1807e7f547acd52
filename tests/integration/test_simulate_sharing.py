from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cli import CommandLine
from tests.support.objects import Json, Object, container, device, gpu_device, node, pod
from tests.support.simulating import NOW, Simulate

pytestmark = pytest.mark.integration

NOW_NS: Final = "1767225600000000000"
CARD_MIB: Final = 16276
GPU_MEM: Final = "aliyun.com/gpu-mem"
GPU_COUNT: Final = "aliyun.com/gpu-count"
IDX: Final = "ALIYUN_COM_GPU_MEM_IDX"
CORE: Final = "vke.volcengine.com/mgpu-core"
MEMORY: Final = "vke.volcengine.com/mgpu-memory"
COUNTS: Final = "vke.volcengine.com/container-multiple-gpu"
POLICY: Final = "vke.volcengine.com/mgpu-compute-policy"
INDEX: Final = "vke.volcengine.com/gpu-index-container-"
NATIVE: Final = "native-burst-share"


def share_node(name: str, cards: int, *, units: int = CARD_MIB) -> Object:
    """Return a node whose daemon reports so many cards of so many units."""
    return node(
        name,
        allocatable={"cpu": 64, "memory": "256Gi", GPU_MEM: cards * units, GPU_COUNT: cards},
    )


def sharing(name: str, *units: int, card: int | None = None, on: str = "", **more: Json) -> Object:
    """Return a Pod of containers that ask for so much; with a node it runs there on that card."""
    containers = [
        container(f"c{number}", limits={GPU_MEM: amount}) for number, amount in enumerate(units)
    ]
    if not on:
        return pod(*containers, name=name, **more)
    annotations = {IDX: str(card), "ALIYUN_COM_GPU_MEM_POD": str(sum(units))}
    return pod(
        *containers, name=name, annotations=annotations, nodeName=on, phase="Running", **more
    )


def holding(node_name: str, used: Mapping[int, int]) -> list[Object]:
    """Return one running Pod per card that uses so much of it."""
    return [
        sharing(f"{node_name}-{card}", units, card=card, on=node_name)
        for card, units in used.items()
    ]


def placement(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the entry of one Pod."""
    entry: dict[str, Any] = next(item for item in document["placements"] if item["name"] == name)
    return entry


def minors(entry: Mapping[str, Any]) -> list[int]:
    """Return the cards of an entry."""
    return [item["minor"] for item in entry["devices"].get("gpu", [])]


N1: Final = [share_node("n1", 2), *holding("n1", {0: 16276, 1: 12207})]
N2: Final = [share_node("n2", 2), *holding("n2", {0: 12207, 1: 12207})]
N3: Final = [share_node("n3", 2), *holding("n3", {0: 8138, 1: 16276})]


def test_three_nodes_two_cards_each(simulate: Simulate) -> None:
    """
    GPU share proposal, 2.1, the figure: 8138 MiB go to GPU 0 of N3 alone.

    N1 has 4069 MiB left in all; N2 has 8138, in two halves.
    """
    document = simulate(*N1, *N2, *N3, sharing("new", 8138))

    entry = placement(document, "new")
    assert (entry["node"], minors(entry)) == ("n3", [0])
    assert {key: text for key, text in entry["annotations"].items() if "ALIYUN" in key} == {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_GPU_ID": "0",
        "ALIYUN_COM_GPU_MEM_POD": "8138",
        "ALIYUN_COM_GPU_MEM_DEV": "16276",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": NOW_NS,
    }
    assert document["summary"]["conflicts"] == []


def test_two_of_the_three_nodes_refuse(simulate: Simulate) -> None:
    """The same figure without N3: every node has its reason, and nothing is bound."""
    entry = placement(simulate(*N1, *N2, sharing("new", 8138)), "new")

    assert entry["node"] is None
    assert entry["annotations"] == {}
    assert entry["unschedulable"] == {
        "message": "0/2 nodes are available: 2 Insufficient gpu devices.",
        "nodes": {"n1": ["Insufficient gpu devices"], "n2": ["Insufficient gpu devices"]},
    }


FOUR_CARDS: Final = [
    share_node("n1", 4),
    *holding("n1", {0: CARD_MIB - 12207, 1: CARD_MIB - 8138, 2: CARD_MIB - 4069}),
]


def test_four_cards_of_one_node(simulate: Simulate) -> None:
    """GPU share proposal, 2.2, the figure: of 12207, 8138, 4069 and 16276 MiB GPU 1 is taken."""
    entry = placement(simulate(*FOUR_CARDS, sharing("new", 8138)), "new")

    assert (entry["node"], minors(entry), entry["annotations"][IDX]) == ("n1", [1], "1")


@pytest.mark.parametrize(
    ("gpus", "card", "warnings"),
    [
        pytest.param("1", 0, 0, id="the best card: the next one by what is left"),
        pytest.param("0,1", 3, 0, id="two cards"),
        pytest.param("one", 1, 1, id="no index: ignored and reported, card 0 is not condemned"),
        pytest.param("1,9", 0, 1, id="a card that is not there: reported"),
        pytest.param("", 1, 0, id="an empty list"),
    ],
)
def test_cards_of_the_unhealthy_list_are_avoided(
    simulate: Simulate, gpus: str, card: int, warnings: int
) -> None:
    """GPU-sharing contract B.1 and B.3: ConfigMap `unhealthy-gpu-<node>`, key `gpus`."""
    listed: Object = {
        "kind": "ConfigMap",
        "metadata": {"name": "unhealthy-gpu-n1", "namespace": "kube-system"},
        "data": {"gpus": gpus},
    }

    document = simulate(*FOUR_CARDS, listed, sharing("new", 8138))

    assert minors(placement(document, "new")) == [card]
    assert len(document["summary"]["warnings"]) == warnings


def test_several_containers_are_on_one_card(simulate: Simulate) -> None:
    """B.3: the sum of the containers, or the largest init container, on ONE card."""
    entry = placement(simulate(*FOUR_CARDS, sharing("sum", 4000, 4138)), "sum")
    assert (minors(entry), entry["annotations"]["ALIYUN_COM_GPU_MEM_POD"]) == ([1], "8138")

    init = [container("setup", limits={GPU_MEM: 9000})]
    entry = placement(simulate(*FOUR_CARDS, sharing("init", 4000, init=init)), "init")
    assert (minors(entry), entry["annotations"]["ALIYUN_COM_GPU_MEM_POD"]) == ([0], "9000")

    entry = placement(simulate(*FOUR_CARDS, sharing("apart", 8138, 8139)), "apart")
    assert entry["node"] is None


def in_gib() -> list[Object]:
    """Return a node of two cards of 15 units, and who asks for some of them."""
    return [
        share_node("n1", 2, units=15),
        sharing("held", 8, card=1, on="n1"),
        sharing("fits", 7),
        sharing("whole", 15),
        sharing("late", 1),
    ]


def test_units_of_gib(simulate: Simulate) -> None:
    """B.5: in GiB mode a card of 16276 MiB is 15 units, and all amounts count GiB."""
    document = simulate(*in_gib(), gpushare={"unit": "GiB"})

    fits = placement(document, "fits")
    assert (minors(fits), fits["annotations"]["ALIYUN_COM_GPU_MEM_POD"]) == ([1], "7")
    assert fits["annotations"]["ALIYUN_COM_GPU_MEM_DEV"] == "15"
    assert fits["devices"]["gpu"][0]["resources"]["koordinator.sh/gpu-memory"] == str(7 * 2**30)
    assert minors(placement(document, "whole")) == [0]
    assert placement(document, "late")["node"] is None


def test_files_say_by_their_nodes_that_they_count_gib(simulate: Simulate) -> None:
    """Without a setting, too: inventory, holdings, demands and annotations alike."""
    document = simulate(*in_gib())

    assert minors(placement(document, "fits")) == [1]
    assert placement(document, "fits")["annotations"]["ALIYUN_COM_GPU_MEM_DEV"] == "15"
    assert minors(placement(document, "whole")) == [0]
    assert placement(document, "late")["node"] is None


@pytest.mark.parametrize("units", [1, 16, 16000])
def test_nobody_is_placed_where_nodes_count_in_two_units(
    simulate: Simulate, capsys: pytest.CaptureFixture[str], units: int
) -> None:
    """Sixteen of one node are a card, and of the other next to nothing: it is not decided."""
    objects = [share_node("gib", 2, units=16), share_node("mib", 2, units=16000)]

    document = simulate(*objects, *(sharing(f"p{each}", units) for each in range(6)))

    words = "requests[aliyun.com/gpu-mem]: not decided: nodes count it in MiB and in GiB"
    for each in document["placements"]:
        assert (each["node"], each["devices"]) == (None, {})
        assert each["unschedulable"]["message"].endswith(words)
    cli = CommandLine(Path("run-0.db").absolute(), capsys)
    told = json.loads(cli.ask("map", "-o", "json").out)
    sizes = {each["node"]: each["groups"][0]["memory_mib"] for each in told["nodes"]}
    assert sizes == {"gib": 16384, "mib": 16000}
    assert words in cli.ask("why", "ml/p0").out


@pytest.mark.parametrize(
    ("more", "free"),
    [
        pytest.param({"phase": "Succeeded"}, True, id="succeeded"),
        pytest.param({"phase": "Failed"}, True, id="failed"),
        pytest.param({"phase": "Pending"}, False, id="bound and not started"),
        pytest.param({"phase": "Running"}, False, id="running"),
    ],
)
@pytest.mark.parametrize("deleting", [False, True], ids=["kept", "being deleted"])
def test_a_card_is_held_until_the_end(
    simulate: Simulate,
    more: Mapping[str, str],
    free: bool,  # noqa: FBT001 - a column of the table
    deleting: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """B.3, ours: a terminal phase releases, a deletionTimestamp does not."""
    holder = sharing("old", CARD_MIB, card=0, on="n1") | {"status": dict(more)}
    if deleting:
        holder["metadata"]["deletionTimestamp"] = NOW

    document = simulate(share_node("n1", 1), holder, sharing("new", CARD_MIB))

    assert (placement(document, "new")["node"] == "n1") is free


def test_an_over_full_card_is_closed_and_named(simulate: Simulate) -> None:
    """B.3, ours: what is available is never below 0; upstream's difference looks nearly empty."""
    full = [sharing(f"p{number}", 10000, card=0, on="n1") for number in range(2)]

    document = simulate(share_node("n1", 1), *full, sharing("new", 1))

    assert placement(document, "new")["node"] is None
    assert document["summary"]["conflicts"] == ["n1/gpu 0: over-held by ml/p0, ml/p1"]


def test_the_second_generation_is_read_the_first_written(simulate: Simulate) -> None:
    """B.1, read order: v2 if it parses, with the compute of `core-percentage`; v1 is written."""
    running = pod(
        container("a", limits={GPU_MEM: 4000, "aliyun.com/gpu-core.percentage": 30}),
        container("b", limits={GPU_MEM: 9000}),
        name="v2",
        annotations={
            "scheduler.framework.gpushare.allocation": {"0": {"1": 4000}, "1": {"1": 9000}},
            "gpushare.alibabacloud.com/core-percentage": {"0": {"1": 30}},
            IDX: "0",
        },
        nodeName="n1",
        phase="Running",
    )

    document = simulate(share_node("n1", 2), running, sharing("new", 3276))

    (adopted,) = document["adopted"]
    assert adopted["source"] == "gpushare-v2"
    (card,) = adopted["devices"]["gpu"]
    assert (card["minor"], card["resources"]["koordinator.sh/gpu-core"]) == (1, "30")
    new = placement(document, "new")
    assert (minors(new), new["annotations"][IDX]) == ([1], "1")
    assert not any("scheduler.framework" in key for key in new["annotations"])


@pytest.mark.parametrize(
    ("annotations", "conflict"),
    [
        pytest.param(
            {IDX: "first"},
            f"n1: held by ml/odd: metadata.annotations[{IDX}]: not an integer: value='first'",
            id="an index that is no number",
        ),
        pytest.param(
            {IDX: "5"},
            "n1: held by ml/odd: the pod has card 5, which the node does not have",
            id="a card that is not there",
        ),
    ],
)
def test_a_malformed_allocation_closes_the_node_and_is_named(
    simulate: Simulate, annotations: Object, conflict: str
) -> None:
    """cli.md, Running Pods: the card is unknown; never silent, never card 0."""
    odd = pod(
        container(limits={GPU_MEM: 100}),
        name="odd",
        annotations=annotations,
        nodeName="n1",
        phase="Running",
    )

    document = simulate(share_node("n1", 2), odd, sharing("new", 100))

    assert document["summary"]["conflicts"] == [conflict]
    refused = placement(document, "new")["unschedulable"]["nodes"]
    assert refused == {"n1": ["node(s) have a Pod on an unknown card"]}


# --- mGPU -------------------------------------------------------------------------------------


def mgpu_node(
    name: str = "n1", cards: int = 4, *, mib: int = 16384, labels: Mapping[str, str] | None = None
) -> Object:
    """Return an mGPU node with so many cards."""
    return node(
        name,
        allocatable={"cpu": 64, "memory": "256Gi", CORE: 100 * cards, MEMORY: mib * cards},
        labels={"vke.node.gpu.schedule": "mgpu", POLICY: "fixed-share"} | dict(labels or {}),
    )


def mgpu(
    name: str, *asks: tuple[int, int] | None, counts: str = "", policy: str = "", **more: Json
) -> Object:
    """Return a Pod with one container per (core, MiB); None asks for nothing, 0 MiB for none."""
    containers = []
    for number, ask in enumerate(asks):
        amounts = {} if ask is None else {CORE: ask[0]} | ({MEMORY: ask[1]} if ask[1] else {})
        containers.append(container(f"c{number}", limits=amounts))
    annotations = {**({COUNTS: counts} if counts else {}), **more.pop("annotations", {})}
    if policy:
        annotations[POLICY] = policy
    return pod(*containers, name=name, annotations=annotations, **more)


def cards_of(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return container name -> cards, as the annotations say."""
    return {
        key.removeprefix(INDEX): text
        for key, text in entry["annotations"].items()
        if key.startswith(INDEX)
    }


MULTI_NODE: Final = mgpu_node(labels={POLICY: NATIVE})


def test_each_container_of_an_mgpu_pod_gets_its_cards(simulate: Simulate) -> None:
    """Volcano mGPU proposal, "A container shares multiple GPU cards" and "Schedule Result"."""
    asks = mgpu("multi", (100, 4096), (100, 0), (99, 768), counts="2,1,3", policy=NATIVE)

    entry = placement(simulate(MULTI_NODE, asks), "multi")

    assert entry["annotations"]["vke.volcengine.com/assumed"] == "true"
    assert cards_of(entry) == {"c0": "0,1", "c1": "2", "c2": "0,1,3"}
    shares = {
        item["minor"]: (
            item["resources"]["koordinator.sh/gpu-core"],
            int(item["resources"]["koordinator.sh/gpu-memory"]) // 2**20,
        )
        for item in entry["devices"]["gpu"]
    }
    assert shares == {
        0: ("83", 2048 + 256),
        1: ("83", 2048 + 256),
        2: ("100", 16384),
        3: ("33", 256),
    }


def test_a_list_with_as_many_units_as_containers_is_a_list(simulate: Simulate) -> None:
    """A.5, known faults upstream: `2,0` on two containers is placed there as if it were none."""
    asks = mgpu("pair", (100, 4096), None, counts="2,0", policy=NATIVE)

    assert cards_of(placement(simulate(MULTI_NODE, asks), "pair")) == {"c0": "0,1"}


def test_whole_cards_over_several_use_up_their_memory(simulate: Simulate) -> None:
    """A.5, known faults upstream: a whole-card multi request never charges memory there."""
    whole = mgpu("whole", (200, 0), counts="2", policy=NATIVE)
    rest = mgpu("rest", *[(1, 8192)] * 4, counts="1,1,1,1", policy=NATIVE)

    document = simulate(MULTI_NODE, whole, rest)

    assert cards_of(placement(document, "whole")) == {"c0": "0,1"}
    assert set(minors(placement(document, "rest"))) == {2, 3}


@pytest.mark.parametrize(
    ("labels", "asks", "reason"),
    [
        pytest.param({}, mgpu("p", (50, 512)), None, id="all default"),
        pytest.param(
            {"vke.node.gpu.schedule": "nvidia"},
            mgpu("p", (50, 512)),
            "MGPUNodeInvalid",
            id="nvidia",
        ),
        pytest.param(
            {"vke.node.gpu.schedule": "yes"}, mgpu("p", (50, 512)), "MGPUNodeInvalid", id="no value"
        ),
        pytest.param({POLICY: "burst"}, mgpu("p", (50, 512)), "MGPUNodeInvalid", id="no policy"),
        pytest.param({POLICY: NATIVE}, mgpu("p", (50, 512)), "MGPUPolicyMismatch", id="differ"),
        pytest.param({POLICY: NATIVE}, mgpu("p", (50, 512), policy=NATIVE), None, id="alike"),
        pytest.param({POLICY: NATIVE}, mgpu("p", (200, 0)), None, id="whole cards ignore it"),
        pytest.param(
            {},
            mgpu("p", (100, 0), (50, 512), policy=NATIVE),
            "MGPUPolicyMismatch",
            id="one part among whole cards counts",
        ),
        pytest.param(
            {}, mgpu("p", (200, 0), counts="2"), "MGPUPolicyMismatch", id="multi, not native"
        ),
        pytest.param(
            {POLICY: NATIVE},
            mgpu("p", (200, 0), counts="2", policy=NATIVE),
            None,
            id="multi, native",
        ),
        pytest.param(
            {POLICY: NATIVE},
            mgpu("p", (50, 2560), counts="5", policy=NATIVE),
            "Insufficient gpu devices",
            id="more cards than the node has",
        ),
        pytest.param(
            {}, mgpu("p", *[(60, 512)] * 5), "NoCombinationOfDevices", id="no combination"
        ),
    ],
)
def test_the_filter_of_mgpu(
    simulate: Simulate, labels: Mapping[str, str], asks: Object, reason: str | None
) -> None:
    """GPU-sharing contract A.4, steps 2 to 5."""
    entry = placement(simulate(mgpu_node(labels=labels), asks), "p")

    if reason is None:
        assert entry["node"] == "n1", entry["unschedulable"]
    else:
        assert entry["unschedulable"]["nodes"] == {"n1": [reason]}


def test_mgpu_can_be_turned_off(simulate: Simulate) -> None:
    """A.2: off, no node serves it; other dialects are served as before."""
    document = simulate(
        mgpu_node(),
        share_node("n2", 1),
        mgpu("p", (50, 512)),
        sharing("q", 100),
        mgpu={"enabled": False},
    )

    assert placement(document, "p")["unschedulable"]["nodes"]["n1"] == ["MGPUDisabled"]
    assert placement(document, "q")["node"] == "n2"


@pytest.mark.parametrize(("policy", "cards"), [("binpack", [0, 0, 0]), ("Spread", [0, 1, 2])])
def test_cards_are_filled_or_evened_out(simulate: Simulate, policy: str, cards: list[int]) -> None:
    """Volcano mGPU proposal, card-level binpack and spread; the design text's spelling is taken."""
    pods = [mgpu(f"p{number}", (20, 1024)) for number in range(3)]

    document = simulate(mgpu_node(), *pods, mgpu={"policy": policy})

    assert [minors(placement(document, f"p{number}")) for number in range(3)] == [
        [card] for card in cards
    ]


@pytest.mark.parametrize(
    ("node_policy", "card_policy", "where"),
    [
        ("binpack", "binpack", ("n2", [1])),
        ("binpack", "spread", ("n2", [0])),
        ("spread", "binpack", ("n1", [0])),
        ("spread", "spread", ("n1", [0])),
    ],
)
def test_the_node_is_chosen_by_its_own_policy(
    simulate: Simulate, node_policy: str, card_policy: str, where: tuple[str, list[int]]
) -> None:
    """A.5, ours: the score picks cards on a node; larger on emptier nodes, it compares none."""
    running = mgpu(
        "old", (30, 4096), annotations={f"{INDEX}c0": "1"}, nodeName="n2", phase="Running"
    )

    document = simulate(
        mgpu_node("n1", 2),
        mgpu_node("n2", 2),
        running,
        mgpu("new", (20, 2048)),
        node={"policy": node_policy},
        mgpu={"policy": card_policy},
    )

    entry = placement(document, "new")
    assert (entry["node"], minors(entry)) == where


def test_a_card_takes_so_many_containers_of_ours_after_a_restart_too(simulate: Simulate) -> None:
    """
    A.5: at most 16 instances on a card, one per container, whoever gave them.

    What a run wrote is given to the next one as running Pods: 2 x 8 containers on card 0.
    """
    eights = [mgpu(f"p{number}", *[(1, 256)] * 8) for number in range(2)]
    first = simulate(mgpu_node(cards=1), *eights, mgpu={"searchLevels": 8})
    running = []
    for body in eights:
        entry = placement(first, body["metadata"]["name"])
        assert entry["node"] == "n1"
        body["metadata"]["annotations"] |= entry["annotations"]
        body["spec"]["nodeName"] = entry["node"]
        running.append(body)

    again = simulate(mgpu_node(cards=1), *running, mgpu("late", (1, 256)))

    assert [pod["source"] for pod in again["adopted"]] == ["device-allocated"] * 2
    assert placement(again, "late")["unschedulable"]["nodes"] == {"n1": ["GPUContainerLimit"]}
    assert again["summary"]["conflicts"] == []


def test_a_search_that_was_cut_says_so(simulate: Simulate) -> None:
    """A.5: that the search was cut is recorded: on the Pod, so in the ledger, and in the answer."""
    document = simulate(mgpu_node(), mgpu("six", *[(10, 256)] * 6), mgpu("five", *[(10, 256)] * 5))

    cut = "first found: containers=6, searched=5"
    assert placement(document, "six")["annotations"]["tenure.sh/search-cut"] == cut
    assert "tenure.sh/search-cut" not in placement(document, "five")["annotations"]
    assert document["summary"]["warnings"] == [f"ml/six: the search for cards was cut short: {cut}"]


def test_why_says_that_a_search_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A.5: still known when the ledger is asked later; a full search leaves no word."""
    monkeypatch.chdir(tmp_path)
    items = [mgpu_node(), mgpu("six", *[(10, 256)] * 6), mgpu("one", (10, 256))]
    Path("in.json").write_text(json.dumps({"kind": "List", "items": items}), "utf-8")
    line = CommandLine(tmp_path / "run.db", capsys)
    assert line.ask("simulate", "in.json").code == 0

    cut = "the search for cards was cut short: first found: containers=6, searched=5"
    assert cut in line.ask("why", "ml/six").out
    assert json.loads(line.ask("why", "ml/six", "-o", "json").out)["message"] == cut
    assert json.loads(line.ask("why", "ml/one", "-o", "json").out)["message"] == ""


def test_uuids_or_indexes_by_setting(simulate: Simulate) -> None:
    """A.6, `id` mode: UUIDs under the same key, with a Device object that knows them."""
    cards = device(*(gpu_device(minor) for minor in range(2)))
    objects = [node(allocatable={"cpu": 64, "memory": "256Gi"}), cards, mgpu("p", (200, 0))]

    by_index = placement(simulate(*objects), "p")
    by_id = placement(simulate(*objects, mgpu={"scheduleMode": "id"}), "p")

    assert cards_of(by_index) == {"c0": "0,1"}
    assert cards_of(by_id) == {"c0": "GPU-0,GPU-1"}


def test_dialects_share_the_cards_of_a_node(simulate: Simulate) -> None:
    """Several dialects on one node: one card's capacity is one row, whoever asks."""
    objects = [
        node(allocatable={"cpu": 64, "memory": "256Gi"}),
        device(gpu_device(0), gpu_device(1)),
        mgpu("volcano", (60, 8192)),
        sharing("aliyun", 16384),
        pod(container(limits={"nvidia.com/gpu": 1}), name="nvidia"),
        sharing("more", 1),
        mgpu("last", (40, 256)),
    ]

    document = simulate(*objects)

    assert minors(placement(document, "volcano")) == [0]
    assert minors(placement(document, "aliyun")) == [0]
    assert minors(placement(document, "nvidia")) == [1]
    for name in ("more", "last"):
        assert placement(document, name)["node"] is None
