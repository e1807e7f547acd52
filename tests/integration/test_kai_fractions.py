"""Cards that KAI-Scheduler gives by fractions: the users hold them, not who keeps their place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cli import CommandLine, dumped
from tests.support.objects import Object, container, device, gpu_device, node, pod

pytestmark = pytest.mark.integration
UUIDS = ("GPU-11111111-0000-0000-0000-000000000000", "GPU-22222222-0000-0000-0000-000000000000")


@pytest.fixture
def line(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> CommandLine:  # noqa: ANN401 - Path
    """Return a command line with a folder of its own."""
    return CommandLine(tmp_path / "run.db", capsys)


def keeper(group: str, told: str | None, on: str = "n") -> Object:
    """Return the reservation Pod of a group."""
    body = pod(
        container(limits={"nvidia.com/gpu": 1}),
        name=f"gpu-reservation-{on}-{group}",
        namespace="kai-resource-reservation",
        uid=f"keeper-{on}-{group}",
        nodeName=on,
    )
    body["metadata"]["labels"] = {"runai-gpu-group": group}
    if told is not None:
        body["metadata"]["annotations"] = {"run.ai/reserve_for_gpu_index": told}
    return body


def user(name: str, *groups: str, on: str = "n", **asks: str) -> Object:
    """Return a Pod on the cards of groups."""
    body = pod(container(), name=name, namespace="team", uid=name, nodeName=on)
    key = "runai-gpu-group" if len(groups) == 1 else "runai-gpu-group/"
    body["metadata"]["labels"] = {
        key if len(groups) == 1 else f"{key}{group}": group for group in groups
    }
    body["metadata"]["annotations"] = {key.replace("_", "-"): asks[key] for key in asks}
    return body


def cards(number: int = 2, memory: str = "40960", name: str = "n") -> Object:
    """Return a node whose device plugin offers so many cards."""
    labels = {"nvidia.com/gpu.product": "A100"} | (
        {"nvidia.com/gpu.memory": memory} if memory else {}
    )
    allocatable = {"cpu": "16", "memory": "64Gi", "pods": "99", "nvidia.com/gpu": str(number)}
    return node(name, labels=labels, allocatable=allocatable)


def holders(line: CommandLine, *objects: Object) -> list[tuple[str, list[tuple[str, int | None]]]]:
    """Return each card of the first node with who holds how many MiB."""
    told = json.loads(line.run("map", dumped(line, *objects), "-o", "json").out)
    return [
        (each["id"], [(one["name"], one["memory_mib"]) for one in each["holders"]])
        for group in told["nodes"][0]["groups"]
        for each in group["devices"]
    ]


def test_users_hold_the_cards(line: CommandLine) -> None:
    """One on both cards; what one asks that can't be read is all of the card's memory."""
    found = holders(
        line,
        cards(),
        *(keeper(group, told) for group, told in zip("ab", UUIDS, strict=True)),
        user("both", "a", "b", gpu_fraction="0.25"),
        user("odd", "b", gpu_fraction="much"),
    )

    assert found == [
        (UUIDS[0], [("both", 10240)]),
        (UUIDS[1], [("both", 10240), ("odd", 40960)]),
    ]


def test_a_card_is_told_by_its_index_or_not_at_all(line: CommandLine) -> None:
    """Old releases wrote the index; one that is being reserved for has none, and is a card."""
    found = holders(
        line,
        cards(3),
        keeper("a", "2"),
        user("first", "a", gpu_memory="4000"),
        keeper("b", None),
        user("second", "b", gpu_memory="5000"),
    )

    assert found == [("", [("second", 5000)]), ("", []), ("", [("first", 4000)])]


def test_a_reservation_pod_without_users_holds_its_card(line: CommandLine) -> None:
    """Until KAI takes it away the card is nobody else's; an ended Pod is no user."""
    ended = user("done", "a", gpu_fraction="0.5")
    ended["status"] = {"phase": "Succeeded"}

    found = holders(line, cards(), keeper("a", UUIDS[0]), ended)

    assert found[0] == (UUIDS[0], [("gpu-reservation-n-a", None)])


def test_a_user_without_a_reservation_pod_holds_its_card(line: CommandLine) -> None:
    """It is on a card all the same."""
    path = dumped(line, cards(1), user("alone", "a", gpu_fraction="0.5"))
    told = json.loads(line.run("map", path, "-o", "json").out)

    assert told["summary"]["free"] == 0
    assert [one["name"] for one in told["nodes"][0]["groups"][0]["devices"][0]["holders"]] == [
        "alone"
    ]


def test_groups_of_one_name_on_two_nodes_are_two_cards(line: CommandLine) -> None:
    """A group is one of its node."""
    path = dumped(
        line,
        cards(1),
        cards(1, name="m"),
        keeper("a", UUIDS[0]),
        user("here", "a", gpu_fraction="0.5"),
        keeper("a", UUIDS[1], on="m"),
        user("there", "a", on="m", gpu_fraction="0.5"),
    )
    told = json.loads(line.run("map", path, "-o", "json").out)

    assert [
        [holder["name"] for holder in each["groups"][0]["devices"][0]["holders"]]
        for each in told["nodes"]
    ] == [["here"], ["there"]]


def test_a_fraction_of_a_card_without_memory_is_one(line: CommandLine) -> None:
    """It counts, though nobody can say how many MiB that is; whole cards are not free beside it."""
    waits = pod(
        container(limits={"nvidia.com/gpu": 1}), name="whole", namespace="team", uid="whole"
    )
    path = dumped(
        line, cards(1, memory=""), keeper("a", UUIDS[0]), user("u", "a", gpu_fraction="0.3"), waits
    )
    (card,) = json.loads(line.run("map", path, "-o", "json").out)["nodes"][0]["groups"][0][
        "devices"
    ]
    assert [(one["name"], one["memory_mib"]) for one in card["holders"]] == [("u", None)]

    told = json.loads(line.run("why", "team/whole", path, "-o", "json").out)
    assert (told["state"], told["nearest"]["ending"]["pods"]) == ("waiting", ["team/u"])


def test_a_fraction_that_waits_is_not_decided(line: CommandLine) -> None:
    """In `simulate` and in `why`, by its field; a Pod of the default scheduler asks for none."""
    waits = pod(container(), name="w", namespace="team", uid="w", schedulerName="kai-scheduler")
    plain = pod(container(), name="p", namespace="team", uid="p")
    for body in (waits, plain):
        body["metadata"]["annotations"] = {"gpu-memory": "4000"}
    path = dumped(line, cards(), waits, plain)

    why = line.run("why", "team/w", path).out
    told = json.loads(line.run("simulate", path, "-o", "json").out)["placements"]

    assert "not decided: metadata.annotations[gpu-memory]" in why
    assert "asks for 4000 MiB of a GPU" in why
    assert {each["name"]: each["node"] for each in told} == {"w": None, "p": "n"}


def test_a_fraction_leaves_other_devices_of_its_pod_alone(line: CommandLine) -> None:
    """RDMA that Koordinator gave is held beside a part of a card."""
    both = user("both", "a", gpu_fraction="0.5")
    rdma = [{"minor": 0, "resources": {"koordinator.sh/rdma": "50"}}]
    both["metadata"]["annotations"]["scheduling.koordinator.sh/device-allocated"] = json.dumps(
        {"rdma": rdma}
    )
    port = {"id": "mlx5_0", "minor": 0, "health": True, "resources": {"koordinator.sh/rdma": "100"}}
    given = device(gpu_device(0, id=UUIDS[0]), {"type": "rdma", **port}, name="n")

    found = holders(line, cards(1), given, keeper("a", UUIDS[0]), both)

    assert found == [(UUIDS[0], [("both", 12288)]), ("mlx5_0", [("both", None)])]


def test_users_of_a_card_in_replicas_are_named(line: CommandLine) -> None:
    """Nobody knows which card it is; the Pod that keeps their place holds nothing beside them."""
    shared = cards(8)
    shared["metadata"]["labels"] |= {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.replicas": "4"}
    path = dumped(line, shared, keeper("a", UUIDS[0]), user("u", "a", gpu_fraction="0.5"))
    (group,) = json.loads(line.run("map", path, "-o", "json").out)["nodes"][0]["groups"]

    assert [each["name"] for each in group["unplaced"]] == ["u"]
    assert (group["cards"], group["free"], group["gettable"]) == (2, 1, 0)


@pytest.mark.parametrize("memory", ["40960", ""])
def test_fractions_of_more_than_a_card_are_a_double(line: CommandLine, memory: str) -> None:
    """Also where its memory is known from the node's label, or from nobody."""
    users = [user(name, "a", gpu_fraction="0.6") for name in "uv"]
    path = dumped(line, cards(1, memory), keeper("a", UUIDS[0]), *users)
    double = json.loads(line.run("map", path, "-o", "json").out)["double"]

    assert [each["holders"] for each in double] == [["team/u", "team/v"]]
