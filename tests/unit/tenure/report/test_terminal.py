from dataclasses import replace
from functools import cache

import pytest

from scheduler.usage.picture import (
    Contradicted,
    DeviceNow,
    Double,
    HolderNow,
    NodeNow,
    Picture,
    Units,
    Unplaced,
    group_of,
)
from tenure.card_totals import totals_of
from tenure.report.terminal import ROWS_MAX, draw_map


def card(
    minor: int = 0,
    level: int = 0,
    *,
    tenants: int = 0,
    core: bool = True,
    closed: str | None = None,
) -> DeviceNow:
    """A GPU that is `level` % full, with one tenant if it holds anything."""
    count = tenants or int(level > 0)
    return DeviceNow(
        id="",
        minor=minor,
        healthy=closed is None,
        closed=closed,
        holders=tuple(
            HolderNow(
                namespace="ml",
                name=f"p{number}",
                uid=f"p{number}",
                core_percent=level // count if core else None,
                level_percent=level // count,
            )
            for number in range(count)
        ),
    )


def stranger(path: str, cards: int = 1) -> Unplaced:
    """A Pod on cards that nobody can name."""
    namespace, _, name = path.partition("/")
    return Unplaced(
        namespace=namespace,
        name=name,
        uid=name,
        amount=cards,
        unit="nvidia.com/gpu",
        cards=cards,
    )


def node(
    name: str,
    *cards: DeviceNow,
    unplaced: tuple[Unplaced, ...] = (),
    shut: str = "",
    model: str = "A100",
) -> NodeNow:
    """A node with these cards."""
    group = group_of(
        system="nvidia", model=model, devices=cards, unplaced=unplaced, is_open=not shut
    )
    return NodeNow(
        name=name, closed_because=(shut,) if shut else (), groups=(group,) if cards else ()
    )


def drawn(*nodes: NodeNow, width: int = 80, blocks: bool = True) -> str:
    """The map of these nodes, without its colours."""
    return draw_map(Picture(nodes=nodes), width=width, blocks=blocks).plain


def cells(line: str) -> list[str]:
    """What stands behind node and model on one line."""
    return line.split()[2:]


def test_each_card_of_a_few_nodes_is_a_number() -> None:
    """Number, + for shared, m for memory, . free, ! closed: readable without any colour."""
    text = drawn(
        node(
            "gpu-a",
            card(0, 100),
            card(1, 50, tenants=2),
            card(2),
            card(3, closed="Xid79"),
            card(4, 25, closed="Xid79"),
            card(5, 62, core=False),
        )
    )

    assert cells(text.splitlines()[1]) == ["100", "50+", ".", "!", "25!", "62m", "39%"]


def test_of_cards_held_by_number_so_many_are_questions_and_the_rest_is_free() -> None:
    """Which of them it is nobody knows, how many it is stands there."""
    text = drawn(
        node("gpu-a", *(card(minor) for minor in range(8)), unplaced=(stranger("ml/train-0"),))
    )

    assert cells(text.splitlines()[1])[:8] == [".", ".", ".", ".", ".", ".", ".", "?"]
    assert "gpu-a: 1 of 8 held, which one is not known (ml/train-0); 7 free" in text
    assert "1 node, 8 cards: 12 % held, 7 free" in text


def test_free_cards_of_closed_nodes_are_marked_and_counted_apart() -> None:
    """Nobody who tolerates nothing gets them."""
    text = drawn(node("a", card(0, 100), card(1)), node("b", card(0), card(1), shut="cordoned"))

    assert cells(text.splitlines()[2])[:2] == ["x", "x"]
    assert "4 cards: 25 % held, 1 free, 2 more free on closed nodes" in text
    assert "closed node: b: cordoned" in text


def test_what_is_held_twice_said_wrongly_or_not_looked_at_is_told_below() -> None:
    """A resource that nobody understands is one line with its amount."""
    rdma = {"rdma/hca": Units(allocatable=4, held=4)}
    picture = Picture(
        nodes=tuple(NodeNow(name=name, not_looked_at=rdma) for name in "ab"),
        double=(Double(node="a", id="GPU-1", minor=1, holders=("ml/x", "ml/y")),),
        contradictions=(Contradicted(object="Pod ml/x", text="no such card"),),
    )

    assert draw_map(picture).plain.splitlines() == [
        "no cards on 2 nodes",
        "held twice: a/1 GPU-1: ml/x, ml/y",
        "Pod ml/x: no such card",
        "not looked at: rdma/hca (2 nodes, 8 held)",
    ]


def test_other_devices_have_a_row_of_their_own() -> None:
    """They are named by type, and no GPU total counts them."""
    gpus = node("gpu-a", card(0))
    nics = group_of(
        system="rdma", device_type="rdma", mode="shares", devices=(card(0, 50),), is_open=True
    )
    text = drawn(replace(gpus, groups=(*gpus.groups, nics)))

    assert text.splitlines()[2].split() == ["rdma", "50"]
    assert "1 node, 1 card: 0 % held, 1 free" in text


def test_sixteen_cards_take_two_rows() -> None:
    """Eight to a row, the percentage on the first."""
    text = drawn(node("gpu-a", *(card(i, 100) for i in range(16))))

    assert cells(text.splitlines()[1])[-1] == "100%"
    assert text.splitlines()[2].split() == ["100"] * 8


@cache
def fleet_of(count: int) -> Picture:
    """So many nodes with long names, and cards of all levels."""
    cards = [card(k, 12 * k) for k in range(8)]
    names = (f"ip-10-0-{i}.eu-west-1.compute.internal" for i in range(count))
    return Picture(nodes=tuple(node(name, *cards) for name in names))


@pytest.mark.parametrize("count", [1, 24, 25, 400, 2_000, ROWS_MAX * 200 + 1])
@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_longer_than_the_terminal(count: int, width: int) -> None:
    """Whatever the size of the fleet and the length of its names; nor does it scroll for ever."""
    lines = draw_map(fleet_of(count), width=width, blocks=True).plain.splitlines()

    assert max(map(len, lines)) <= width
    assert len(lines) < 80


def test_many_nodes_are_one_sign_a_card_with_a_table_by_model() -> None:
    """The table counts levels, the signs behind each name how full that node's cards are."""
    fleet = [node(f"n{i}", card(0, 100), card(1, 50), card(2)) for i in range(30)]

    lines = drawn(*fleet).splitlines()

    assert lines[1].split() == ["A100", "30", "90", "50%", "30", "0", "30", "30", "0"]
    assert lines[3].startswith("n0  █▄.  n1  █▄.  n2  █▄.")


@pytest.mark.parametrize(
    ("model", "short", "in_table"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100-80GB-HBM3", "H100-80GB-HBM3"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3", "H100 80GB HBM3"),
        ("NVIDIA-GeForce-RTX-4090", "GeForce-RTX-4~", "GeForce-RTX-4090"),
        ("NVIDIA-RTX-6000-Ada-Generation", "RTX-6000-Ada-~", "RTX-6000-Ada-Gene~"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "A100-SXM4-80G~", "A100-SXM4-80GB-MI~"),
        ("Tesla-T4", "Tesla-T4", "Tesla-T4"),
    ],
)
def test_a_model_is_told_by_its_beginning(model: str, short: str, in_table: str) -> None:
    """The vendor goes without saying, and what has no room is cut off the end."""
    few = node("a", card(0), model=model)
    fleet = [node(f"n{number}", card(0), model=model) for number in range(30)]

    assert drawn(few).splitlines()[1].removeprefix("a ").strip().startswith(f"{short} ")
    assert drawn(*fleet).splitlines()[1].startswith(f"{in_table} ")


@pytest.mark.parametrize("width", [80, 200])
def test_the_name_of_each_of_204_nodes_is_seen(width: int) -> None:
    """Of a common domain nothing is said, and a node with many cards goes on below."""
    fleet = [node(f"gpu-{i:04d}.example", *(card(k) for k in range(8))) for i in range(203)]
    fleet.append(node("gpu-9999.example", *(card(k, 100) for k in range(20))))

    words = drawn(*fleet, width=width).split()

    assert {each.name.partition(".")[0] for each in fleet} <= set(words)
    assert words[words.index("gpu-9999") + 1 :][:2] == ["█" * 16, "█" * 4]


def test_a_row_of_one_sign_a_node_begins_with_the_name_of_its_first() -> None:
    """So that a node can be found among thousands, and asked for by its name."""
    fleet = [node(f"gpu-{i:04d}", *(card(k, 100) for k in range(8))) for i in range(1000)]

    lines = drawn(*fleet).splitlines()

    assert lines[3] == f"gpu-0000 {'█' * 71}"
    assert lines[4] == f"gpu-0071 {'█' * 71}"
    assert "cards of some nodes: --node NAME" in lines


def test_a_terminal_without_unicode_gets_digits() -> None:
    """The scale stands in the legend."""
    fleet = [node(f"n{i}", card(0, 100), card(1, 50), card(2)) for i in range(30)]

    text = drawn(*fleet, blocks=False)

    assert "n0  #5.  n1  #5." in text
    assert text.isascii()


def test_a_full_card_and_an_almost_full_one_differ() -> None:
    """The last sign is kept for what is really full."""
    fleet = [node(f"n{i}", card(0, 100), card(1, 99)) for i in range(30)]

    assert drawn(*fleet).splitlines()[3].startswith("n0  █▇")


def test_nodes_without_cards_are_counted_and_not_drawn() -> None:
    """A real cluster has many of them."""
    text = drawn(node("gpu-a", card()), node("cpu-1"), node("cpu-2"))

    assert "cpu-1" not in text
    assert "; 2 nodes without cards" in text
    assert "no cards on 1 node" in drawn(node("cpu-1"))


def test_a_name_cannot_command_the_terminal() -> None:
    """Node and Pod names come from anywhere."""
    text = drawn(node("a\x1b[2J", card(), unplaced=(stranger("x/\x1b]0;y\x07"),)))

    assert "\x1b" not in text
    assert "\x07" not in text


def test_totals_count_unknown_holders_as_whole_cards() -> None:
    """One card held by a stranger is not free, wherever it is."""
    totals = totals_of([node("a", card(0, 50), card(1), unplaced=(stranger("x/y"),))])

    assert (totals.percent, totals.free.exact, totals.unknown) == (75, 0, 1)
