"""A made-up week of a cluster, in the values that the map and the report draw."""

from __future__ import annotations

import random

from ledger.store.reading.report_rows import UsageRecord
from scheduler.usage.capacity import PARTS
from scheduler.usage.model import (
    CapacityPoint,
    CardInfo,
    History,
    Hold,
    HoldEnd,
    NodeInfo,
    Outage,
    Share,
)
from scheduler.usage.picture import exactly
from tenure.report.model import ModelRow, Report, ReportSource, Totals
from tenure.report.waiting import CauseRow

MONDAY = 1_772_409_600_000_000  # 2026-03-02T00:00:00Z
SECOND = 1_000_000
HOUR = 3600 * SECOND
WEEK = 168 * HOUR
MODELS = ("A100-SXM4-80GB", "A100-SXM4-80GB", "V100-SXM2-32GB", "T4")
NAMESPACES = ("ml-research", "vision", "speech", "recsys", "batch", "notebooks")
PERCENTS = (100, 100, 100, 50, 25, 10)


def week(nodes: int = 16, pods: int = 400, seed: int = 1) -> History:
    """Return a history in which nobody ever gets more of a card than is left of it."""
    rng = random.Random(seed)
    infos: list[NodeInfo] = []
    cards: list[CardInfo] = []
    for n in range(nodes):
        first, model = len(cards), MODELS[n % len(MODELS)]
        cards += [
            CardInfo(
                node=n,
                device_type="gpu",
                minor=minor,
                model=model,
                memory_capacity_bytes=16 << 30,
            )
            for minor in range(4 if model == "T4" else 8)
        ]
        infos.append(
            NodeInfo(
                name=f"gpu-{model[:4].lower().strip('-')}-{n:03}",
                cards=range(first, len(cards)),
            )
        )
    shares = tuple(
        Share(
            core_percent=percent,
            memory_bytes=percent * (16 << 30) // 100,
            memory_ratio_percent=percent,
            exclusive=percent == 100,
        )
        for percent in PERCENTS
    )
    holds: list[Hold] = []
    names: list[tuple[str, str]] = []
    held: list[list[tuple[int, int]]] = [[] for _ in cards]
    for i, at in enumerate(sorted(rng.randrange(WEEK // SECOND) for _ in range(pods))):
        opened, share = MONDAY + at * SECOND, rng.randrange(len(PERCENTS))
        until = opened + rng.randrange(1, 40) * HOUR + rng.randrange(3600) * SECOND
        card = next(
            (
                c
                for c in rng.sample(range(len(cards)), len(cards))
                if sum(p for end, p in held[c] if end > opened) + PERCENTS[share] <= 100
            ),
            None,
        )
        if card is None:
            continue
        held[card].append((until, PERCENTS[share]))
        closed = until if until < MONDAY + WEEK else None
        ending = 0 if closed is None else rng.choice((1, 1, 1, 2))
        holds.append(Hold(card, len(names), opened, closed, 3 * i + 40, share, ending))
        names.append((rng.choice(NAMESPACES), f"train-{i:04}-{rng.randrange(16**5):05x}"))
    return History(
        axis="time",
        start=MONDAY,
        end=MONDAY + WEEK,
        nodes=tuple(infos),
        cards=tuple(cards),
        pods=tuple(names),
        shares=shares,
        endings=(
            HoldEnd(policy="fgd"),
            HoldEnd(policy="fgd", end_reason="completed"),
            HoldEnd(policy="fgd", end_reason="evicted"),
        ),
        holds=tuple(sorted(holds, key=lambda hold: (hold.opened, hold.position, hold.card))),
        outages=(
            Outage(card=3, opened=MONDAY + 60 * HOUR, closed=None, reason="Xid79"),
            Outage(card=9, opened=MONDAY + 30 * HOUR, closed=MONDAY + 50 * HOUR, reason="Xid94"),
        ),
    )


def points(history: History) -> tuple[CapacityPoint, ...]:
    """What becomes of the GPUs at 241 moments: `audit_capacity` says it of a ledger."""
    span = history.end - history.start
    return tuple(point(history, history.start + span * i // 240) for i in range(241))


def point(history: History, at: int) -> CapacityPoint:
    """What becomes of the GPUs at one moment."""
    held, closed = [0] * len(history.cards), set()
    for hold in history.holds:
        if hold.opened <= at and (hold.closed is None or hold.closed > at):
            held[hold.card] += history.shares[hold.share].percent
    for outage in history.outages:
        if outage.opened <= at and (outage.closed is None or outage.closed > at):
            closed.add(outage.card)
    parts = dict.fromkeys(("allocated", "stranded", "idle", "closed"), 0)
    for index, card in enumerate(history.cards):
        if card.device_type == "gpu":
            used = min(100, held[index])
            parts["allocated"] += used
            left = "closed" if index in closed else "stranded" if used else "idle"
            parts[left] += 100 - used
    return CapacityPoint(at, **parts)


def report(history: History, **totals: float | None) -> Report:
    """Return a whole report around a history."""
    counts = {"decided": 2 * len(history.pods), "placed": len(history.pods), "events": 4711}
    counts |= {"refused": 31, "waiting": 7}
    capacity = points(history)
    whole = sum(each.capacity for each in capacity)
    sums = {name: sum(getattr(each, name) for each in capacity) for name in PARTS}
    return Report(
        totals=Totals(**{"over": 0, "verified_seconds": 1.4, **counts, **totals}),  # type: ignore[arg-type]
        history=history,
        cards=exactly(len(history.cards)),
        models=(
            ModelRow(
                model=history.cards[0].model,
                is_gpu=True,
                nodes={node.name for node in history.nodes},
                cards=exactly(len(history.cards)),
                free=exactly(len(history.cards)),
            ),
        )
        if history.cards
        else (),
        source=ReportSource(
            command="tenure report -o report.html",
            ledger="sqlite:///tenure.db",
            origin="simulation/5f3c9a01",
            seed="42",
            chain_head="5f3c9a01" * 8,
            position=4711,
            head_at_us=history.end,
            version="0.1.0",
        ),
        capacity=capacity,
        mean={name: round(100 * part / whole, 1) for name, part in sums.items()} if whole else None,
        causes=(
            CauseRow(
                words="no card has as much left as it asks for",
                pods=21,
                example="vision/train-0042-0af3e",
                detail="0/14 nodes are available: 14 Insufficient gpu devices.",
                remedy="release 2 cards on gpu-a100-004",
            ),
            CauseRow(
                words="cards are free only where too little memory is left",
                pods=9,
                example="speech/serve-7",
                detail="0/14 nodes are available: 9 Insufficient cpu, 5 Insufficient memory.",
            ),
            CauseRow(
                words="a rule refuses it: must be a multiple of 100",
                pods=1,
                example="batch/typo",
                detail="spec.containers[0].resources.limits: must be a multiple of 100",
            ),
        ),
        usage=tuple(
            UsageRecord(
                group=name, pods=60 - 9 * i, gpu_hours=900 / (i + 1), cpu_hours=7200 / (i + 1)
            )
            for i, name in enumerate(NAMESPACES)
        ),
    )
