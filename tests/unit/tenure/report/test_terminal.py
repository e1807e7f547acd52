import pytest

from scheduler.usage.model import CardNow, MappedNode
from tenure.report.terminal import draw_map, totals_of


def card(minor: int = 0, level: int = 0, **other: object) -> CardNow:
    """A GPU that is `level` % full, with one tenant if it holds anything."""
    values: dict[str, object] = {"model": "A100", "tenants": int(level > 0), **other}
    return CardNow(device_type="gpu", minor=minor, level_percent=level, **values)  # type: ignore[arg-type]


def node(name: str, *cards: CardNow, **other: object) -> MappedNode:
    """A node with these cards."""
    return MappedNode(name=name, cards=cards, **other)  # type: ignore[arg-type]


def cells(line: str) -> list[str]:
    """What stands behind node and model on one line."""
    return line.split()[2:]


def test_each_card_of_a_few_nodes_is_a_number() -> None:
    """Number, + for shared, m for memory, . free, ! closed: readable without any colour."""
    text = draw_map(
        [
            node(
                "gpu-a",
                card(0, 100),
                card(1, 50, tenants=2),
                card(2),
                card(3, unhealthy=True),
                card(4, 25, unhealthy=True),
                card(5, 62, by_memory=True),
            )
        ]
    ).plain

    assert cells(text.splitlines()[1]) == ["100", "50+", ".", "!", "25!", "62m", "39%"]


def test_cards_that_nobody_can_name_the_holder_of_are_questions() -> None:
    """Which of the free ones it is nobody knows; who it is stands below."""
    text = draw_map(
        [
            node(
                "gpu-a",
                card(0, 100),
                card(1),
                card(2),
                unknown_holders=("ml/train-0",),
                unknown_cards=1,
            )
        ]
    ).plain

    assert cells(text.splitlines()[1])[:3] == ["100", "?", "?"]
    assert "card unknown: ml/train-0 holds 1 of 3 cards of gpu-a" in text


def test_other_devices_have_a_row_of_their_own() -> None:
    """They are named by type, and no GPU total counts them."""
    nic = CardNow(device_type="rdma", minor=0, level_percent=50, tenants=1)
    text = draw_map([node("gpu-a", card(0), nic)]).plain

    assert text.splitlines()[2].split() == ["rdma", "50"]
    assert "1 node, 1 card: 0 % held, 1 free" in text


def test_sixteen_cards_take_two_rows() -> None:
    """Eight to a row, the percentage on the first."""
    text = draw_map([node("gpu-a", *(card(i, 100) for i in range(16)))]).plain

    assert cells(text.splitlines()[1])[-1] == "100%"
    assert text.splitlines()[2].split() == ["100"] * 8


@pytest.mark.parametrize("count", [1, 24, 25, 400, 2000, 20_000])
@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_longer_than_the_terminal(count: int, width: int) -> None:
    """Whatever the size of the fleet and the length of its names; nor does it scroll for ever."""
    fleet = [
        node(f"ip-10-0-{i}.eu-west-1.compute.internal", *(card(k, 12 * k) for k in range(8)))
        for i in range(count)
    ]

    lines = draw_map(fleet, width=width).plain.splitlines()

    assert max(map(len, lines)) <= width
    assert len(lines) < 80


def test_many_nodes_are_one_sign_a_card_with_a_table_by_model() -> None:
    """The table counts levels, the signs show which nodes they are on."""
    fleet = [node(f"n{i}", card(0, 100), card(1, 50), card(2)) for i in range(30)]

    lines = draw_map(fleet).plain.splitlines()

    assert lines[1].split() == ["A100", "30", "90", "50%", "30", "0", "30", "30", "0"]
    assert lines[3].startswith("█▄. █▄.")


def test_a_terminal_without_unicode_gets_digits() -> None:
    """The scale stands in the legend."""
    fleet = [node(f"n{i}", card(0, 100), card(1, 50), card(2)) for i in range(30)]

    text = draw_map(fleet, blocks=False).plain

    assert "#5. #5." in text
    assert text.isascii()


def test_a_full_card_and_an_almost_full_one_differ() -> None:
    """The last sign is kept for what is really full."""
    fleet = [node(f"n{i}", card(0, 100), card(1, 99)) for i in range(30)]

    assert draw_map(fleet).plain.splitlines()[3].startswith("█▇")


def test_nodes_without_cards_are_counted_and_not_drawn() -> None:
    """A real cluster has many of them."""
    text = draw_map([node("gpu-a", card()), node("cpu-1"), node("cpu-2")]).plain

    assert "cpu-1" not in text
    assert "; 2 nodes without cards" in text
    assert "no cards on 1 node" in draw_map([node("cpu-1")]).plain


def test_a_name_cannot_command_the_terminal() -> None:
    """Node and Pod names come from anywhere."""
    text = draw_map(
        [node("a\x1b[2J", card(), unknown_holders=("x/\x1b]0;y\x07",), unknown_cards=1)]
    ).plain

    assert "\x1b" not in text
    assert "\x07" not in text


def test_totals_count_unknown_holders_as_whole_cards() -> None:
    """One card held by a stranger is not free, wherever it is."""
    totals = totals_of([node("a", card(0, 50), card(1), unknown_holders=("x/y",), unknown_cards=1)])

    assert (totals.percent, totals.free, totals.unknown) == (75, 0, 1)
