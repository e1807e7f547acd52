"""The report's page of a week on 10,000 cards: its bytes, and its first paint in a browser."""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from ledger.domain.log.events import RefusalReason
from ledger.store.reading.gpu_hours import CapacityChange
from scheduler.usage.capacity import capacity_at
from scheduler.usage.model import (
    CardInfo,
    History,
    Hold,
    HoldEnd,
    NodeInfo,
    Share,
)
from tenure.report.model import Report, ReportSource, Totals
from tenure.report.page import render
from tenure.report.waiting import Wait

MONDAY = 1_772_409_600_000_000
SECOND = 1_000_000
WEEK = 7 * 86_400 * SECOND
NAMESPACES = 24


def week(cards: int, holds_per_card: int, seed: int) -> History:
    """Return a week in which every card is held again and again, by a whole Pod or a half."""
    rng = random.Random(seed)
    nodes = cards // 8
    stays: list[tuple[int, int, int, int]] = []
    for card in range(cards):
        mean = WEEK // holds_per_card
        for lane in range(1 + card % 2):
            at = rng.randrange(mean)
            while at < WEEK:
                until = at + rng.randrange(mean // 10, 3 * mean) // SECOND * SECOND
                stays.append((MONDAY + at // SECOND * SECOND, card, MONDAY + until, lane))
                at = until + rng.randrange(mean // 2)
    stays.sort()
    holds, pods = [], []
    for i, (opened, card, until, _) in enumerate(stays):
        closed = until if until < MONDAY + WEEK else None
        holds.append(Hold(card, i, opened, closed, 2 * i + 5, card % 2, 0 if closed is None else 1))
        pods.append((f"team-{i % NAMESPACES:02}", f"train-{i:06}-{rng.randrange(16**5):05x}"))
    return History(
        axis="time",
        start=MONDAY,
        end=MONDAY + WEEK,
        nodes=tuple(
            NodeInfo(
                name=f"gpu-{n:05}",
                cards=range(n * 8, n * 8 + 8),
            )
            for n in range(nodes)
        ),
        cards=tuple(
            CardInfo(
                node=i // 8,
                device_type="gpu",
                minor=i % 8,
                model=("H100-80GB", "A100-80GB", "L40S")[i // 8 % 3],
                memory_capacity_bytes=80 << 30,
            )
            for i in range(nodes * 8)
        ),
        pods=tuple(pods),
        shares=(
            Share(
                core_percent=100,
                memory_bytes=80 << 30,
                memory_ratio_percent=100,
                exclusive=True,
            ),
            Share(core_percent=50, memory_bytes=40 << 30, memory_ratio_percent=50),
        ),
        endings=(HoldEnd(policy="fgd"), HoldEnd(policy="fgd", end_reason="completed")),
        holds=tuple(holds),
    )


def changes_of(history: History) -> list[CapacityChange]:
    """Return when how much of the cards was taken and given back, as if no card were shared."""
    changes = [CapacityChange(history.start, 0, 0, 100 * len(history.cards), 0, 0)]
    for hold in history.holds:
        percent = history.shares[hold.share].percent
        changes.append(CapacityChange(hold.opened, percent, 0, -percent, 0, 0))
        if hold.closed is not None:
            changes.append(CapacityChange(hold.closed, -percent, 0, percent, 0, 0))
    return sorted(changes)


def waits_of(history: History, count: int, seed: int) -> tuple[Wait, ...]:
    """Return waits of some of the Pods before they ran."""
    rng = random.Random(seed)
    chosen = sorted(rng.sample(range(len(history.holds)), min(count, len(history.holds))))
    waits = []
    for i in chosen:
        hold = history.holds[i]
        namespace, name = history.pods[hold.pod]
        asked = hold.opened - rng.randrange(36_000) * SECOND
        message = f"0/{len(history.nodes)} nodes are available: {rng.randrange(900)} Insufficient"
        waits.append(
            Wait(
                namespace=namespace,
                name=name,
                opened=asked,
                closed=hold.opened,
                node=history.nodes[history.cards[hold.card].node].name,
                admission=False,
                shape="1 x whole gpu, 6 cpu, 32 GiB",
                refusals=((asked, message),),
                reasons=(
                    RefusalReason(
                        reason="Insufficient gpu devices",
                        nodes=rng.randrange(1, 900),
                        nearest_node=f"gpu-{rng.randrange(1250):05}",
                        detail="asks 1 whole GPU, 0 untouched",
                        remedy="release 1 whole GPU",
                    ),
                ),
            )
        )
    return tuple(sorted(waits, key=lambda wait: wait.opened))


def report(history: History, waits: tuple[Wait, ...]) -> Report:
    """Return a report around a history."""
    pods = len(history.pods)
    return Report(
        totals=Totals(decided=pods, placed=pods, refused=len(waits), waiting=0, events=2 * pods),
        history=history,
        source=ReportSource(
            command="benchmarks/page.py",
            ledger="",
            origin="",
            seed="",
            chain_head="",
            position=2 * pods,
            head_at_us=history.end,
            version="",
        ),
        capacity=capacity_at(changes_of(history), [MONDAY + WEEK * i // 360 for i in range(361)]),
        waits=waits,
    )


OPENED = """async () => {
  const paint = await new Promise((done) => new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) {
      if (entry.name === "first-contentful-paint") done(entry.startTime);
    }
  }).observe({ type: "paint", buffered: true }));
  const ready = performance.getEntriesByType("navigation")[0].domComplete;
  const slider = document.getElementById("moment"), from = performance.now();
  slider.value = Math.round(slider.max / 2);
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  return { paint, ready, step: performance.now() - from };
}"""


def opened(path: Path, rounds: int) -> dict[str, float]:
    """Return medians of what a browser says, in milliseconds: first paint, ready, one step."""
    told: list[dict[str, Any]] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for _ in range(rounds):
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.goto(path.as_uri())
            told.append(page.evaluate(OPENED))
            page.close()
        browser.close()
    return {key: statistics.median(each[key] for each in told) for key in told[0]}


def main() -> None:
    """Print one line per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cards", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    for holds_per_card in (1, 10):
        history = week(asked.cards, holds_per_card, 1)
        drawn = report(history, waits_of(history, 5_000, 2))
        started = time.process_time()
        html = render(drawn)
        seconds = time.process_time() - started
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            path.write_text(html, encoding="utf-8")
            said = opened(path, asked.rounds)
        print(
            f"{len(history.cards):,} cards, {len(history.holds):,} holdings:"
            f" {len(html.encode()) / 1e6:.2f} MB, written in {seconds:.1f} s of CPU;"
            f" first paint {said['paint']:.0f} ms, ready {said['ready']:.0f} ms,"
            f" one step of the slider {said['step']:.0f} ms"
        )


if __name__ == "__main__":
    main()
