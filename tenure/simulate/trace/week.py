"""
A virtual week of a GPU cluster: objects, arrivals with lifetimes, a dying card.

Layout of the directory, all deterministic in (nodes, pods, seed):
    trace.json      what this is and how it was made
    cluster.json    `kind: List` of Node, Device and NodeResourceTopology objects
    pods.jsonl      one Pod manifest a line, in arrival order
    schedule.csv    at_seconds,event,object,value: when what happens (docs/schedules.md)
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from tenure.simulate.schedule import COLUMNS
from tenure.simulate.trace.week_cluster import cluster_objects, stable_uuid
from tenure.simulate.trace.week_pods import TEAMS, Draft, Team

FORMAT: Final = "tenure-week/v1"
WEEK_START: Final = datetime(2026, 3, 2, tzinfo=UTC)
"""A Monday, midnight UTC."""

WEEK_SECONDS: Final = 7 * 86_400


def write_week(directory: Path, *, nodes: int, pods: int, seed: int) -> dict[str, int]:
    """Write the four files; return how many nodes, cards, Pods and faults they hold."""
    rng = random.Random(seed)
    objects = list(cluster_objects(rng, nodes))
    cards = [
        (item["metadata"]["name"], device["minor"])
        for item in objects
        if item["kind"] == "Device"
        for device in item["spec"]["devices"]
        if device["type"] == "gpu"
    ]
    arrivals = sorted(_arrival_seconds(rng) for _ in range(pods))
    drafts = [_draw(rng) for _ in arrivals]
    rows: list[tuple[int, str, str, str]] = []
    manifests = []
    for index, (at, (team, draft)) in enumerate(zip(arrivals, drafts, strict=True)):
        manifest = _manifest(index, at, team, draft)
        manifests.append(manifest)
        path = f"{team.namespace}/{manifest['metadata']['name']}"
        rows.append((at, "arrive", path, str(draft.lifetime_seconds)))
    faults = _faults(rng, cards)
    _write_json(directory / "cluster.json", {"apiVersion": "v1", "kind": "List", "items": objects})
    _write_lines(directory / "pods.jsonl", manifests)
    _write_schedule(directory / "schedule.csv", sorted(rows + faults))
    summary = {"nodes": nodes, "cards": len(cards), "pods": pods, "faults": len(faults)}
    _write_json(
        directory / "trace.json",
        {"format": FORMAT, "seed": seed, "start": WEEK_START.isoformat(), **summary},
    )
    return summary


def _arrival_seconds(rng: random.Random) -> int:
    """Draw an arrival: busy in the day (peak at 15:00), quiet at night and at the weekend."""
    for _ in range(1000):
        at = rng.randrange(WEEK_SECONDS)
        hour = at % 86_400 / 3600
        weekend = at >= 5 * 86_400
        level = (0.55 + 0.45 * math.cos((hour - 15) / 24 * 2 * math.pi)) * (0.5 if weekend else 1)
        if rng.random() < level:
            return at
    raise AssertionError("a thousand draws never fell into the day")


def _draw(rng: random.Random) -> tuple[Team, Draft]:
    team = rng.choices(TEAMS, weights=[team.weight for team in TEAMS])[0]
    kinds = [kind for _, kind in team.kinds]
    kind = rng.choices(kinds, weights=[weight for weight, _ in team.kinds])[0]
    return team, kind(rng)


def _manifest(index: int, at: int, team: Team, draft: Draft) -> Mapping[str, Any]:
    kind = draft.owner_kind
    owner = f"{team.namespace}-{kind.lower()}-{index // 7:04d}"
    name = f"{owner}-{index:05d}"
    created = (WEEK_START + timedelta(seconds=at)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": team.namespace,
            "name": name,
            "uid": stable_uuid("pod", f"{team.namespace}/{name}"),
            "creationTimestamp": created,
            "labels": {"team": team.namespace, **draft.labels},
            "annotations": dict(draft.annotations),
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
                    "kind": kind,
                    "name": owner,
                    "uid": stable_uuid(kind, owner),
                    "controller": True,
                }
            ],
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/work:1",
                    "resources": {
                        "requests": dict(draft.requests),
                        "limits": dict(draft.requests),
                    },
                }
            ],
            **draft.spec,
        },
    }


def _faults(rng: random.Random, cards: list[tuple[str, int]]) -> list[tuple[int, str, str, str]]:
    """Return one card that dies on Wednesday, and a few that fail and come back."""
    count = max(2, len(cards) // 250)
    chosen = rng.sample(cards, min(count, len(cards)))
    node, minor = chosen[0]
    rows = [(2 * 86_400 + 10 * 3600, "fail", f"{node}/gpu/{minor}", "Xid79")]
    for node, minor in chosen[1:]:
        at = rng.randrange(86_400, 5 * 86_400)
        rows.append((at, "fail", f"{node}/gpu/{minor}", "Xid94"))
        back = at + rng.randrange(3600, 86_400)
        rows.append((back, "recover", f"{node}/gpu/{minor}", "replaced"))
    return rows


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _write_lines(path: Path, values: list[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for value in values:
            file.write(json.dumps(value, sort_keys=True, separators=(",", ":")) + "\n")


def _write_schedule(path: Path, rows: list[tuple[int, str, str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
