"""Read a generated week back into a run of the simulation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ledger.domain.errors import InputError, RefusedError
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.normalise import decode_pod
from ledger.domain.vocabulary import Vocabulary
from scheduler.cluster.model import Pod, RefusedPod
from tenure.simulate.model import Run
from tenure.simulate.schedule import Labels, Subjects, lines_of, read_schedule, with_labels
from tenure.simulate.trace.week import FORMAT, WEEK_SECONDS

MICROSECONDS: Final = 1_000_000
FILES: Final = ("trace.json", "cluster.json", "pods.jsonl", "schedule.csv")


def read_trace(directory: Path, vocabulary: Vocabulary) -> Run:
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
    cluster = _cluster(directory / "cluster.json", vocabulary)
    nodes = [cluster.decoded(name, {}) for name in cluster.by_kind.get("Node", {})]
    manifests = _manifests(directory / "pods.jsonl")
    subjects = Subjects(
        nodes=[facts for facts, _ in nodes],
        pods=_pods(directory / "pods.jsonl", manifests, vocabulary),
        node_with=lambda name, labels: cluster.decoded(name, labels)[0],
        pod_with=lambda path, labels: _request(with_labels(manifests[path], labels), vocabulary),
    )
    schedule = read_schedule(directory / "schedule.csv", subjects, start_us, all_arrive=False)
    return Run(
        source="trace",
        nodes=tuple(facts for facts, _ in nodes),
        arrivals=schedule.arrivals,
        start_us=start_us,
        inputs_hash=_inputs_hash(directory),
        changes=schedule.changes,
        timed=True,
        end_us=start_us + WEEK_SECONDS * MICROSECONDS,
        warnings=tuple(warning for _, found in nodes for warning in found),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    """The objects of a cluster, each kind by name."""

    path: Path
    by_kind: Mapping[str, Mapping[str, Mapping[str, Any]]]
    vocabulary: Vocabulary

    def decoded(self, name: str, labels: Labels) -> tuple[NodeFacts, list[str]]:
        """Return a Node under these labels, and warnings."""
        node = with_labels(self.by_kind["Node"][name], labels)
        device, topology = (
            self.by_kind.get(kind, {}).get(name) for kind in ("Device", "NodeResourceTopology")
        )
        try:
            return decode_node(node, device, topology, vocabulary=self.vocabulary)
        except InputError as error:
            raise error.at(f"{self.path}: Node {name}") from error


def _cluster(path: Path, vocabulary: Vocabulary) -> _Cluster:
    by_kind: dict[str, dict[str, Mapping[str, Any]]] = {}
    for item in _json(path)["items"]:
        by_kind.setdefault(item["kind"], {})[item["metadata"]["name"]] = item
    return _Cluster(path=path, by_kind=by_kind, vocabulary=vocabulary)


def _manifests(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return `namespace/name` -> manifest."""
    manifests: dict[str, Mapping[str, Any]] = {}
    for number, line in enumerate(lines_of(path), start=1):
        try:
            manifest = json.loads(line)
        except ValueError as error:
            raise InputError(f"not JSON: {error}", place=f"{path}:{number}") from error
        metadata = manifest["metadata"]
        manifests[f"{metadata['namespace']}/{metadata['name']}"] = manifest
    return manifests


def _pods(
    path: Path, manifests: Mapping[str, Mapping[str, Any]], vocabulary: Vocabulary
) -> dict[str, Pod]:
    pods: dict[str, Pod] = {}
    for number, (name, manifest) in enumerate(manifests.items(), start=1):
        try:
            pods[name] = _request(manifest, vocabulary)
        except InputError as error:
            raise error.at(f"{path}:{number}") from error
    return pods


def _request(manifest: Mapping[str, Any], vocabulary: Vocabulary) -> Pod:
    metadata = manifest["metadata"]
    try:
        return decode_pod(manifest, vocabulary)
    except RefusedError as refused:
        return RefusedPod(
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            errors=refused.errors,
        )
