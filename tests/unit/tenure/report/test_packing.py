import json

from hypothesis import given
from hypothesis import strategies as st

from scheduler.usage.model import CardInfo, History, Hold, HoldEnd, NodeInfo, Outage, Share
from tenure.report.thin import pack, tick_of
from tests.support.packing import unpack

MONDAY = 1_772_409_600_000_000

names = st.text(st.characters(blacklist_characters="\n", codec="utf-8"), max_size=80)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Any small history: nodes with any cards, holds in the order that the model demands."""
    nodes: list[NodeInfo] = []
    cards: list[CardInfo] = []
    for name in draw(st.lists(names, min_size=1, max_size=4)):
        first = len(cards)
        for minor in range(draw(st.integers(1, 3))):
            memory = draw(st.sampled_from([0, 16 << 30]))
            cards.append(
                CardInfo(
                    node=len(nodes), device_type="gpu", minor=minor, memory_capacity_bytes=memory
                )
            )
        nodes.append(NodeInfo(name=name, cards=range(first, len(cards))))
    pods = tuple(draw(st.lists(st.tuples(names, names), min_size=1, max_size=5)))
    tick = draw(st.sampled_from([1, 1_000_000, 60_000_000]))

    def hold() -> Hold:
        opened = MONDAY + tick * draw(st.integers(0, 1000))
        lasted = draw(st.none() | st.integers(0, 1000))
        return Hold(
            draw(st.integers(0, len(cards) - 1)),
            draw(st.integers(0, len(pods) - 1)),
            opened,
            None if lasted is None else opened + tick * lasted,
            draw(st.integers(1, 1 << 40)),
            draw(st.integers(0, 1)),
            0,
        )

    holds = [hold() for _ in range(draw(st.integers(0, 8)))]
    return History(
        axis="time",
        start=MONDAY,
        end=MONDAY + tick * 2000,
        nodes=tuple(nodes),
        cards=tuple(cards),
        pods=pods,
        shares=(
            Share(core_percent=100, memory_bytes=16 << 30, memory_ratio_percent=100),
            Share(
                core_percent=0,
                memory_bytes=1,
                memory_ratio_percent=1,
                exclusive=True,
                observed=True,
            ),
        ),
        endings=(HoldEnd(policy="fgd", end_reason="completed"),),
        holds=tuple(sorted(holds, key=lambda h: (h.opened, h.position, h.card))),
        outages=(Outage(card=0, opened=MONDAY + tick, closed=None, reason="Xid79"),),
    )


@given(history=histories())
def test_a_history_survives_the_page(history: History) -> None:
    """Packed, written as JSON, read and unpacked it is the same history, to the microsecond."""
    assert unpack(json.loads(json.dumps(pack(history, tick_of(history))))) == history


def test_an_empty_ledger_is_a_history_too() -> None:
    """Nothing held on nothing, at one moment."""
    nothing = History(axis="time", start=MONDAY, end=MONDAY, nodes=(), cards=())

    assert unpack(pack(nothing, tick_of(nothing))) == nothing


def test_times_are_packed_in_the_largest_whole_unit() -> None:
    """Events on the minute cost no microseconds."""
    history = History(
        axis="time",
        start=MONDAY,
        end=MONDAY + 600_000_000,
        nodes=(NodeInfo(name="a", cards=range(1)),),
        cards=(CardInfo(node=0, device_type="gpu", minor=0),),
        pods=(("ml", "x"),),
        shares=(Share(core_percent=100, memory_bytes=0, memory_ratio_percent=100),),
        endings=(HoldEnd(),),
        holds=(Hold(0, 0, MONDAY + 60_000_000, MONDAY + 180_000_000, 7, 0, 0),),
    )

    assert tick_of(history) == 60_000_000


def test_ten_thousand_pods_take_few_bytes() -> None:
    """A hold costs about 25 bytes, name included: a week of a large cluster fits a page."""
    count = 10_000
    history = History(
        axis="time",
        start=MONDAY,
        end=MONDAY + 7 * 86_400_000_000,
        nodes=tuple(
            NodeInfo(name=f"gpu-node-{i:04}", cards=range(i * 8, i * 8 + 8)) for i in range(125)
        ),
        cards=tuple(CardInfo(node=i // 8, device_type="gpu", minor=i % 8) for i in range(1000)),
        pods=tuple((f"team-{i % 7}", f"train-{i:05}-x7k2p") for i in range(count)),
        shares=tuple(
            Share(core_percent=c, memory_bytes=c << 30, memory_ratio_percent=c) for c in range(100)
        ),
        endings=(HoldEnd(policy="fgd", end_reason="completed"),),
        holds=tuple(
            Hold(
                i * 7919 % 1000,
                i,
                MONDAY + i * 60_000_000,
                MONDAY + i * 60_000_000 + 3_600_000_000 + i * 104_729_000_000 % 86_400_000_000,
                2 * i + 3,
                i % 100,
                0,
            )
            for i in range(count)
        ),
    )

    assert len(json.dumps(pack(history, tick_of(history)))) < 30 * count
