"""Read a generated week back into a run of the simulation."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ledger.domain.errors import InputError, RefusedError
from ledger.domain.node_objects import decode_node
from ledger.domain.nodes import NodeFacts
from ledger.domain.normalise import NormaliseSettings, decode_pod
from ledger.domain.requests import PodRequest
from tenure.simulate.model import Arrival, HealthChange, RefusedPod, Run
from tenure.trace.week import FORMAT, SCHEDULE_COLUMNS, WEEK_SECONDS

MICROSECONDS: Final = 1_000_000
FILES: Final = ("trace.json", "cluster.json", "pods.jsonl", "schedule.csv")


def read_trace(directory: Path, settings: NormaliseSettings) -> Run:
    """
    Return the run that the trace in `directory` describes.

    Raises:
        InputError: a file is missing, is not a trace of this format, or an object can't be read;
            with file, line and field.
    """
    header = _json(directory / "trace.json")
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        place = str(directory / "trace.json")
        raise InputError(f"not a trace: format is not {FORMAT}", place=place)
    start_us = round(datetime.fromisoformat(header["start"]).timestamp() * MICROSECONDS)
    nodes, warnings = _nodes(directory / "cluster.json")
    pods = _pods(directory / "pods.jsonl", settings)
    arrivals, changes = _schedule(directory / "schedule.csv", start_us, pods, nodes)
    return Run(
        source="trace",
        nodes=nodes,
        arrivals=arrivals,
        start_us=start_us,
        inputs_hash=_inputs_hash(directory),
        health_changes=changes,
        timed=True,
        end_us=start_us + WEEK_SECONDS * MICROSECONDS,
        warnings=warnings,
    )


def _inputs_hash(directory: Path) -> str:
    digest = hashlib.sha256()
    for name in FILES:
        digest.update(hashlib.sha256((directory / name).read_bytes()).digest())
    return digest.hexdigest()


def _json(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"can't read: {error.strerror}", place=str(path)) from error
    except ValueError as error:
        raise InputError(f"not JSON: {error}", place=str(path)) from error


def _nodes(path: Path) -> tuple[tuple[NodeFacts, ...], tuple[str, ...]]:
    by_kind: dict[str, dict[str, Mapping[str, Any]]] = {}
    for item in _json(path)["items"]:
        by_kind.setdefault(item["kind"], {})[item["metadata"]["name"]] = item
    devices = by_kind.get("Device", {})
    topologies = by_kind.get("NodeResourceTopology", {})
    nodes: list[NodeFacts] = []
    warnings: list[str] = []
    for name, node in by_kind.get("Node", {}).items():
        try:
            facts, found = decode_node(node, devices.get(name), topologies.get(name))
        except InputError as error:
            raise error.at(f"{path}: Node {name}") from error
        nodes.append(facts)
        warnings.extend(found)
    return tuple(nodes), tuple(warnings)


def _pods(path: Path, settings: NormaliseSettings) -> dict[str, PodRequest | RefusedPod]:
    pods: dict[str, PodRequest | RefusedPod] = {}
    for number, line in enumerate(_lines(path), start=1):
        try:
            manifest = json.loads(line)
            pod = _request(manifest, settings)
        except InputError as error:
            raise error.at(f"{path}:{number}") from error
        except ValueError as error:
            raise InputError(f"not JSON: {error}", place=f"{path}:{number}") from error
        pods[f"{pod.namespace}/{pod.name}"] = pod
    return pods


def _request(manifest: Mapping[str, Any], settings: NormaliseSettings) -> PodRequest | RefusedPod:
    metadata = manifest["metadata"]
    try:
        return decode_pod(manifest, settings)
    except RefusedError as refused:
        return RefusedPod(
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            errors=refused.errors,
        )


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from file
    except OSError as error:
        raise InputError(f"can't read: {error.strerror}", place=str(path)) from error


def _schedule(
    path: Path,
    start_us: int,
    pods: Mapping[str, PodRequest | RefusedPod],
    nodes: tuple[NodeFacts, ...],
) -> tuple[tuple[Arrival, ...], tuple[HealthChange, ...]]:
    index = {node.name: i for i, node in enumerate(nodes)}
    arrivals: list[Arrival] = []
    changes: list[HealthChange] = []
    rows = csv.DictReader(_lines(path))
    if tuple(rows.fieldnames or ()) != SCHEDULE_COLUMNS:
        expected = ",".join(SCHEDULE_COLUMNS)
        raise InputError(f"columns are not {expected}", place=f"{path}:1")
    for number, row in enumerate(rows, start=2):
        try:
            at_us = start_us + int(row["at_seconds"]) * MICROSECONDS
            if row["event"] == "arrive":
                pod, lifetime_us = pods[row["object"]], int(row["value"]) * MICROSECONDS
                arrivals.append(Arrival(at_us=at_us, pod=pod, lifetime_us=lifetime_us))
            else:
                changes.append(_health_change(at_us, row, index))
        except (KeyError, ValueError) as error:
            raise InputError(f"can't read the row: {error}", place=f"{path}:{number}") from error
    return tuple(arrivals), tuple(changes)


def _health_change(at_us: int, row: Mapping[str, str], index: Mapping[str, int]) -> HealthChange:
    node, device_type, minor = row["object"].split("/")
    return HealthChange(
        at_us=at_us,
        node=index[node],
        device_type=device_type,
        minor=int(minor),
        healthy=row["event"] == "recover",
        reason=row["value"],
    )
