from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cli import CommandLine
from tests.support.hami import ALLOCATED, REGISTER, allocated, card, registered
from tests.support.objects import Json, Object, container, device, gpu_device, node, pod
from tests.support.simulating import Simulate

pytestmark = pytest.mark.integration

GPU: Final = "nvidia.com/gpu"
MEM: Final = "nvidia.com/gpumem"
PERCENT: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
OURS: Final = "scheduling.koordinator.sh/device-allocated"
MIB: Final = 2**20


def hami_node(name: str, *cards: Object) -> Object:
    """Return a node as HAMi's device plugin leaves it: ten shares a card."""
    quantities = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: 10 * len(cards)}
    return node(name, allocatable=quantities, annotations={REGISTER: registered(*cards)})


TWO_CARDS: Final = hami_node("n1", card("GPU-a"), card("GPU-b", index=1))
"""Two cards of 32768 MiB."""


def asking(name: str, limits: dict[str, Json], **more: Json) -> Object:
    """Return a pending Pod of one container."""
    return pod(container(limits=limits), name=name, **more)


def running(name: str, limits: dict[str, Json], text: str) -> Object:
    """Return a Pod that HAMi has placed on n1."""
    fields: Object = {"uid": f"uid-{name}", "nodeName": "n1", "phase": "Running"}
    annotations = {ALLOCATED: text, "hami.io/vgpu-node": "n1"}
    return pod(container(limits=limits), name=name, annotations=annotations, **fields)


def given(name: str, limits: dict[str, Json], text: str, **more: Json) -> Object:
    """Return a Pod that HAMi's scheduler has given cards of n1, and not bound yet."""
    annotations = {ALLOCATED: text, "hami.io/vgpu-node": "n1", "hami.io/bind-phase": "allocating"}
    fields: Object = {"uid": f"uid-{name}", "phase": "Pending", "schedulerName": "hami-scheduler"}
    return pod(container(limits=limits), name=name, annotations=annotations, **{**fields, **more})


def cards_of(document: dict[str, Any], name: str) -> list[tuple[str, int, int]]:
    """Return id, core and MiB of each card that a Pod got."""
    placed = next(item for item in document["placements"] if item["name"] == name)
    entries = json.loads(placed["annotations"][OURS])["gpu"]
    return [
        (
            entry["id"],
            int(entry["resources"].get("koordinator.sh/gpu-core", 0)),
            int(entry["resources"]["koordinator.sh/gpu-memory"]) // MIB,
        )
        for entry in entries
    ]


def message_of(document: dict[str, Any], name: str) -> str:
    """Return why a Pod waits."""
    waiting = next(item for item in document["placements"] if item["name"] == name)
    return str(waiting["unschedulable"]["message"])


def test_shares_of_different_cards_are_given(simulate: Simulate) -> None:
    """Contract 1: each amount is of each card, and nothing of HAMi's is written."""
    document = simulate(TWO_CARDS, asking("a", {GPU: 2, MEM: 3000, CORES: 30}))

    assert cards_of(document, "a") == [("GPU-a", 30, 3000), ("GPU-b", 30, 3000)]
    annotations = document["placements"][0]["annotations"]
    assert annotations["tenure.sh/visible.0"] == "GPU-a,GPU-b"
    assert not [key for key in annotations if "hami" in key or "nvidia" in key]


OWNED: Final = "tenure.sh/owned"
PROVIDER: Final = "koordinator.sh/gpu-isolation-provider"
MANAGED: Final[Object] = {"tenure.sh/managed": "true"}
WAIVED: Final[Object] = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "ml", "labels": {"tenure.sh/isolation": "none", **MANAGED}},
}
NOT_ISOLATED: Final = f"node(s) didn't have the isolation asked for (label {PROVIDER})."


def plain_node(name: str, **labels: str) -> list[Object]:
    """Return a node with a Device object, of which HAMi knows nothing."""
    return [node(name, labels=labels), device(gpu_device(0), name=name)]


@pytest.mark.parametrize(
    ("objects", "waits"),
    [
        pytest.param(plain_node("n1"), True, id="a node that says nothing"),
        pytest.param(plain_node("n1", **{PROVIDER: "none"}), True, id="a node without one"),
        pytest.param(
            plain_node("n1", **{PROVIDER: "HAMi-core"}), False, id="a node with HAMi-core"
        ),
        pytest.param([*plain_node("n1"), WAIVED], False, id="a namespace that does without"),
        pytest.param([hami_node("n1", card("GPU-a"))], False, id="HAMi's own node"),
        pytest.param(
            [hami_node("n1", card("GPU-a")), device(gpu_device(0), name="n1")],
            True,
            id="a node of a Device object that HAMi registers too",
        ),
        pytest.param(
            [hami_node("n1", card("GPU-a", mode="mps"))], True, id="HAMi's node in another mode"
        ),
    ],
)
def test_a_share_goes_where_something_limits_it(
    simulate: Simulate,
    objects: list[Object],
    waits: bool,  # noqa: FBT001 - a case
) -> None:
    """HAMi's words promise limits."""
    document = simulate(*objects, asking("a", {GPU: 1, MEM: 1000}))

    if waits:
        assert message_of(document, "a").endswith(f"1 {NOT_ISOLATED}")
    else:
        assert cards_of(document, "a")


def test_what_is_placed_beside_hami_is_said_not_to_be_placed_so_live(simulate: Simulate) -> None:
    """A simulation answers as HAMi would; hami-scheduler does not count what we grant there."""
    shown = simulate(TWO_CARDS, asking("a", {GPU: 1, MEM: 1000}), asking("b", {GPU: 1}))
    assert cards_of(shown, "a")
    assert cards_of(shown, "b")
    (warning,) = shown["summary"]["warnings"]
    assert warning == (
        "placed where another scheduler gives the cards too (hami-scheduler), as it would be there;"
        " our own grants nothing there until the node is owned (NodeOfOtherScheduler): pods=2"
    )

    owned: Object = {**TWO_CARDS, "spec": {"taints": [{"key": OWNED, "effect": "NoSchedule"}]}}
    owned["metadata"] = {**TWO_CARDS["metadata"], "labels": {OWNED: "true"}}
    tolerations: Json = [{"key": OWNED, "operator": "Exists"}]
    whole = asking("b", {GPU: 1}, tolerations=tolerations)
    shown = simulate(owned, asking("a", {GPU: 1, MEM: 1000}, tolerations=tolerations), whole)
    assert message_of(shown, "a").endswith(f"1 {NOT_ISOLATED}")
    assert cards_of(shown, "b")
    assert not [one for one in shown["summary"]["warnings"] if "scheduler" in one]


def test_a_pods_own_word_is_not_its_namespaces(
    simulate: Simulate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Admission takes it away, `check` shows that, and `simulate` and `why` decide by it."""
    namespace: Object = {**WAIVED, "metadata": {"name": "ml", "labels": MANAGED}}
    mine = asking(
        "a",
        {GPU: 1, MEM: 1000},
        annotations={"tenure.sh/isolation": "none"},
        labels={"hami.io/webhook": "ignore"},
    )
    document = simulate(*plain_node("n1"), namespace, mine)
    assert message_of(document, "a").endswith(f"1 {NOT_ISOLATED}")

    line = CommandLine(tmp_path / "none.db", capsys)
    assert NOT_ISOLATED in line.run("why", "ml/a", "in.json").out
    (tmp_path / "pod.json").write_text(json.dumps(mine))
    namespaces = {"without": WAIVED, "with": namespace}
    taken = []
    for name, one in namespaces.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(one))
        said = json.loads(line.run("check", "pod.json", f"{name}.json", "-o", "json").out)
        judged = next(one for one in said if one["kind"] == "Pod")
        steps = {step["path"]: step["op"] for step in judged["patch"]}
        taken.append(steps.get("/metadata/annotations/tenure.sh~1isolation") == "remove")
    assert taken == [False, True]


def test_what_hami_gave_is_not_given_again(simulate: Simulate) -> None:
    """Contract 3: its Pods hold their cards, by UUID, beside ours."""
    document = simulate(
        TWO_CARDS,
        running("theirs", {GPU: 1, MEM: 30000, CORES: 50}, allocated([("GPU-a", 30000, 50)])),
        running("whole", {GPU: 1, CORES: 100}, allocated([("GPU-b", 32768, 100)])),
        asking("small", {GPU: 1, MEM: 2000, CORES: 50}),
        asking("large", {GPU: 1, MEM: 3000}),
    )

    assert cards_of(document, "small") == [("GPU-a", 50, 2000)]
    assert message_of(document, "large").endswith(" 1 Insufficient gpu devices.")


def test_what_hami_gave_and_has_not_bound_yet_is_not_given_again(simulate: Simulate) -> None:
    """Contract 3: HAMi counts it from when it chooses, and whoever comes later in the file too."""
    text = allocated([("GPU-a", 30000, 0)])
    document = simulate(
        TWO_CARDS,
        asking("ours", {GPU: 1, MEM: 20000}),
        asking("second", {GPU: 1, MEM: 20000}),
        given("theirs", {GPU: 1, MEM: 30000}, text),
    )

    assert cards_of(document, "ours") == [("GPU-b", 0, 20000)]
    assert message_of(document, "second").endswith(" 1 Insufficient gpu devices.")
    (held,) = document["adopted"]
    assert (held["name"], held["node"]) == ("theirs", "n1")
    assert held["source"] == "vgpu-devices-allocated"
    assert document["summary"]["conflicts"] == []


def test_a_card_that_limits_nothing_shuts_no_other_one(simulate: Simulate) -> None:
    """Each card has its mode: shares go to those of `hami-core`."""
    modes = ("mig", "mps", *["hami-core"] * 2)
    cards = [card(f"GPU-{n}", index=n, mode=mode) for n, mode in enumerate(modes)]
    share: dict[str, Json] = {GPU: 1, MEM: 30000}
    names = ("a", "b", "c")
    document = simulate(hami_node("n1", *cards), *(asking(name, share) for name in names))

    assert [cards_of(document, name)[0][0] for name in "ab"] == ["GPU-2", "GPU-3"]
    assert message_of(document, "c").endswith(" 1 Insufficient gpu devices.")
    pair = simulate(hami_node("n1", *cards[:3]), asking("a", {GPU: 2, MEM: 1}))
    assert message_of(pair, "a").endswith(f" 1 {NOT_ISOLATED}")


def test_a_card_that_the_register_lists_no_more_leaves_the_others_open(
    simulate: Simulate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its holder has none of those that are listed, and is told with the card's id."""
    text = allocated([("GPU-gone", 3000, 0)])
    document = simulate(
        TWO_CARDS,
        running("left", {GPU: 1, MEM: 3000}, text),
        asking("share", {GPU: 1, MEM: 1000}),
        asking("whole", {GPU: 1}),
    )

    assert len(cards_of(document, "share") + cards_of(document, "whole")) == 2
    fact = "vgpu-devices-allocated names a card that the node does not list: GPU-gone"
    assert any("ml/left" in one and fact in one for one in document["summary"]["conflicts"])
    line = CommandLine(tmp_path / "none.db", capsys)
    shown = json.loads(line.run("map", "in.json", "-o", "json").out)
    assert (shown["summary"]["free"], shown["summary"]["gettable"]) == (2, 2)
    assert {"object": "Pod ml/left", "text": fact} in shown["contradictions"]


def test_an_over_held_card_is_full_and_no_more(
    simulate: Simulate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `map` draws it: a card gives at most what it has, by memory where no core is asked."""
    objects = [
        TWO_CARDS,
        running("a", {GPU: 1, MEM: 9000, CORES: 80}, allocated([("GPU-a", 9000, 80)])),
        running("b", {GPU: 1, MEM: 9000, CORES: 50}, allocated([("GPU-a", 9000, 50)])),
        running("c", {GPU: 1, MEM: 16384}, allocated([("GPU-b", 16384, 0)])),
    ]
    document = simulate(*objects)

    assert document["summary"]["gpu"]["core_percent_allocated"] == 100
    assert document["summary"]["conflicts"] == ["n1/gpu 0: over-held by ml/a, ml/b"]

    line = CommandLine(tmp_path / "none.db", capsys)
    run = line.ask("simulate", "in.json").out
    assert "GPU: 1.5 of 2 cards allocated (75.00%)" in run
    assert "1 node, 2 cards: 75 % held" in line.run("map", "in.json").out


def test_what_hami_gave_of_a_scaled_card_is_judged_by_its_figures(
    simulate: Simulate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`devcore` 200, `devmem` twice the card: two Pods of 60 % are no double allocation."""
    cards = [card(f"GPU-{n}", index=n, mib=163840, devcore=200) for n in range(3)]
    scaled = hami_node("n1", *cards)
    scaled["metadata"] = {**scaled["metadata"], "labels": {"nvidia.com/gpu.memory": "81920"}}
    limits: dict[str, Json] = {GPU: 1, MEM: 60000, CORES: 60}
    less: dict[str, Json] = {GPU: 1, MEM: 81920}
    objects = [
        scaled,
        *(running(name, limits, allocated([("GPU-0", 60000, 60)])) for name in ("a", "b")),
        running("c", less, allocated([("GPU-1", 81920, 0)])),
        asking("full", {GPU: 1, MEM: 81920}),
        asking("second", {GPU: 1, MEM: 1}),
    ]
    document = simulate(*objects, asking("small", {GPU: 1, MEM: 1}))

    assert document["summary"]["conflicts"] == []
    assert cards_of(document, "full") == [("GPU-2", 0, 81920)]
    assert message_of(document, "second").endswith(" 1 Insufficient gpu devices.")
    line = CommandLine(tmp_path / "none.db", capsys)
    drawn = [line.run("map", "in.json", "-o", "json").out]
    line.run("simulate", "in.json", "--ledger", str(tmp_path / "new.db"))
    drawn.append(line.run("map", "--ledger", str(tmp_path / "new.db"), "-o", "json").out)
    for shown in map(json.loads, drawn):
        assert shown["double"] == []
        group = shown["nodes"][0]["groups"][0]
        assert group["memory_mib"] == 81920
        assert [one["core_percent"] for one in group["devices"][0]["holders"]] == [60, 60]

    third = running("d", {GPU: 1, CORES: 90}, allocated([("GPU-0", 0, 90)]))
    document = simulate(*objects, third)
    assert document["summary"]["conflicts"] == ["n1/gpu 0: over-held by ml/a, ml/b, ml/d"]
    (double,) = json.loads(line.run("map", "in.json", "-o", "json").out)["double"]
    assert double["holders"] == ["ml/a", "ml/b", "ml/d"]


@pytest.mark.parametrize("devcore", [100, 200])
def test_all_of_the_compute_is_a_card_alone_where_hami_does_not_scale_it(
    simulate: Simulate, devcore: int
) -> None:
    """Contract 1, fact 3: HAMi keeps others off a Pod of 100 where the card's compute is 100."""
    document = simulate(
        hami_node("n1", card("GPU-a", devcore=devcore)),
        running("a", {GPU: 1, MEM: 1000, CORES: 100}, allocated([("GPU-a", 1000, 100)])),
        running("b", {GPU: 1, MEM: 1000, CORES: 30}, allocated([("GPU-a", 1000, 30)])),
        asking("c", {GPU: 1, MEM: 1000}),
    )

    double = ["n1/gpu 0: over-held by ml/a, ml/b"]
    assert document["summary"]["conflicts"] == (double if devcore == 100 else [])
    assert message_of(document, "c").endswith(" 1 Insufficient gpu devices.")


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"schedulerName": "tenure"}, id="a Pod that names our scheduler"),
        pytest.param({"phase": "Failed"}, id="a Pod that has ended"),
    ],
)
def test_who_is_not_hamis_holds_nothing_before_it_is_bound(
    simulate: Simulate, fields: dict[str, Json]
) -> None:
    """As at admission: whoever names our scheduler is ours, whatever it carries."""
    limits = {GPU: 1, MEM: 30000}
    document = simulate(TWO_CARDS, given("p", limits, allocated([("GPU-a", 30000, 0)]), **fields))

    assert document["adopted"] == []
    assert [item["name"] for item in document["placements"]] == ([] if "phase" in fields else ["p"])


def test_whole_cards_are_counted_by_the_register(simulate: Simulate) -> None:
    """Contract 4: HAMi's plugin advertises twenty of two cards."""
    document = simulate(TWO_CARDS, asking("a", {GPU: 2}), asking("b", {GPU: 1}))

    assert cards_of(document, "a") == [("GPU-a", 100, 32768), ("GPU-b", 100, 32768)]
    assert message_of(document, "b").endswith(" 1 Insufficient gpu devices.")


@pytest.mark.parametrize(
    ("annotations", "given"),
    [
        ({"nvidia.com/use-gputype": "a100"}, "GPU-c"),
        ({"nvidia.com/nouse-gputype": "V100"}, "GPU-c"),
        ({"nvidia.com/use-gpuuuid": "GPU-b"}, "GPU-b"),
        ({"nvidia.com/nouse-gpuuuid": "GPU-a"}, "GPU-b"),
    ],
)
def test_a_pod_gets_the_cards_it_wishes(
    simulate: Simulate, annotations: Object, given: str
) -> None:
    """Contract 2: by model and by UUID, of a share and of a whole card."""
    another = card("GPU-c", index=2, type="NVIDIA A100-SXM4-80GB")
    cards = hami_node("n1", card("GPU-a"), card("GPU-b", index=1), another)
    document = simulate(
        cards,
        asking("share", {GPU: 1, MEM: 3000}, annotations=annotations),
    )
    whole = simulate(cards, asking("whole", {GPU: 1}, annotations=annotations))

    assert [one[0] for one in cards_of(document, "share")] == [given]
    assert [one[0] for one in cards_of(whole, "whole")] == [given]


def test_a_wish_that_no_card_meets_is_the_reason(simulate: Simulate) -> None:
    """`why` has what to drop; the message counts the nodes."""
    wish = {"nvidia.com/use-gputype": "H100"}
    document = simulate(TWO_CARDS, asking("a", {GPU: 1, MEM: 3000}, annotations=wish))

    assert message_of(document, "a").endswith(" 1 CardFilterMismatch.")


BUSY: Final = running("busy", {MEM: 8000}, "GPU-a,NVIDIA,8000,30:;")
TWO_NODES: Final = (TWO_CARDS, hami_node("n2", card("GPU-c"), card("GPU-d", index=1)))


@pytest.mark.parametrize("policy", ["scarcity", "binpack", "spread", "random"])
@pytest.mark.parametrize(
    ("key", "value", "chosen"),
    [
        ("node-scheduler-policy", "binpack", {"GPU-a", "GPU-b"}),
        ("node-scheduler-policy", "spread", {"GPU-c", "GPU-d"}),
        ("gpu-scheduler-policy", "binpack", {"GPU-a", "GPU-c", "GPU-d"}),
        ("gpu-scheduler-policy", "spread", {"GPU-b", "GPU-c", "GPU-d"}),
    ],
)
def test_a_wish_for_a_policy_comes_before_the_settings(
    simulate: Simulate, policy: str, key: str, value: str, chosen: set[str]
) -> None:
    """Contract 2: whatever the cluster's policy is, this Pod goes by its own."""
    limits = {GPU: 1, MEM: 3000, CORES: 10}
    pods = [asking(f"p{n}", limits, annotations={f"hami.io/{key}": value}) for n in range(2)]
    document = simulate(*TWO_NODES, BUSY, *pods, node={"policy": policy})

    assert cards_of(document, "p0")[0][0] in chosen


def test_a_policy_that_nobody_has_is_refused(simulate: Simulate) -> None:
    """Contract 2: never placed as if it had not been asked."""
    wish = {"hami.io/gpu-scheduler-policy": "topology-aware"}
    document = simulate(TWO_CARDS, asking("a", {GPU: 2, MEM: 3000}, annotations=wish))

    assert "gpu-scheduler-policy" in message_of(document, "a")
    assert "links between shares of cards" in message_of(document, "a")
