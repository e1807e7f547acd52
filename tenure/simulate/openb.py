"""
The openb trace files as a run: the published method of the FGD paper.

Rule: cli.md, `tenure simulate`, Input; Weng et al., "Beware of Fragmentation", USENIX ATC 2023.
"""

from __future__ import annotations

import csv
import hashlib
import io
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Final

from msgspec import structs

from ledger.domain.devices import GPU, WHOLE_PERCENT, DeviceRecord
from ledger.domain.dialects.names import OUR_DIALECT
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import default_uid
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand, PodRequest, PodSnapshot
from tenure.simulate.model import Arrival, Run
from tenure.simulate.trace.shapes import CARD_MEMORY_MIB

NAMESPACE: Final = "default"

_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_ARRIVAL_COLUMNS: Final = ("pod", "trace_pod")
_RANK_COLUMNS: Final = ("sn", "rank")
_MIB: Final = 1 << 20
_SECOND_US: Final = 1_000_000
_GPUS_MAX: Final = 64  # per node; a larger number is a slip, not a machine
_NUMBER_MAX: Final = 10**12


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a file. `place` is `file:line`."""

    place: str
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return a cell, empty when the file has no such column."""
        return (self.cells.get(column) or "").strip()

    def number(self, column: str, most: int = _NUMBER_MAX) -> int:
        """Return a whole number from 0 to `most`."""
        text = self.text(column)
        if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) > most:
            fact = f"not a whole number from 0 to {most}: value={text!r}"
            raise InputError(fact, field=column, place=self.place)
        return int(text)


@dataclass(frozen=True, slots=True)
class _Pod:
    """A Pod of the trace. `created_s` counts from the trace's first day; None = not told."""

    request: PodRequest
    created_s: int | None


def read_openb(
    *,
    nodes_csv: Path,
    pods_csv: Path,
    arrivals_csv: Path | None = None,
    rank_csv: Path | None = None,
    inflate: Decimal | None = None,
    seed: int = 0,
    start_us: int = 0,
) -> Run:
    """
    Read a trace and return the run it describes.

    Pods arrive in file order at their creation times; in the exact order of `arrivals_csv`, or
    with `inflate` in the paper's sampled order, one a second. Ties between nodes go by file
    order, by `rank_csv`, or with `inflate` by the paper's node order for the seed.

    Raises:
        InputError: a file that can't be read; with file, line and column.
    """
    texts = {
        name: _text_of(path)
        for name, path in {
            "nodes": nodes_csv,
            "pods": pods_csv,
            "arrivals": arrivals_csv,
            "rank": rank_csv,
        }.items()
        if path is not None
    }
    warnings: list[str] = []
    nodes = _nodes(_rows(nodes_csv, texts["nodes"], _NODE_COLUMNS), warnings)
    pods = _pods(_rows(pods_csv, texts["pods"], _POD_COLUMNS))
    rank = None
    if rank_csv is not None:
        rank = _rank(rank_csv, _rows(rank_csv, texts["rank"], _RANK_COLUMNS), nodes)
    if arrivals_csv is not None:
        rows = _rows(arrivals_csv, texts["arrivals"], _ARRIVAL_COLUMNS)
        arrivals = _one_a_second(_listed(rows, pods), start_us)
    elif inflate is not None:
        rng = random.Random(seed)
        arrivals = _one_a_second(_inflated(pods, nodes, inflate, rng), start_us)
        rank = _shuffled_rank(len(nodes), rng) if rank is None else rank
    else:
        arrivals = _as_created(pods.values(), start_us)
    return Run(
        source="openb",
        nodes=nodes,
        arrivals=tuple(arrivals),
        start_us=start_us,
        inputs_hash=_hash(texts, inflate, start_us),
        typical=tuple(pod.request for pod in pods.values()),
        rank=rank,
        warnings=tuple(warnings),
    )


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text: byte={error.start}", place=str(path)) from error
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", place=str(path)) from error


def _rows(path: Path, text: str, columns: Sequence[str]) -> list[_Row]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        for column in columns:
            if column not in header:
                raise InputError("the column is missing", field=column, place=f"{path}:1")
        rows = []
        for cells in reader:
            place = f"{path}:{reader.line_num}"
            if not cells:
                continue
            if len(cells) != len(header):
                fact = f"{len(cells)} cells below a header of {len(header)}"
                raise InputError(fact, place=place)
            rows.append(_Row(place, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise InputError(f"not CSV: {error}", place=f"{path}:{reader.line_num}") from error
    if not rows:
        raise InputError("no row below the header", place=str(path))
    return rows


def _nodes(rows: Sequence[_Row], warnings: list[str]) -> tuple[NodeFacts, ...]:
    nodes: dict[str, NodeFacts] = {}
    unknown: dict[str, str] = {}
    for row in rows:
        name, model = _name(row, "sn", nodes), row.text("model")
        gpus = row.number("gpu", _GPUS_MAX)
        if gpus and model not in CARD_MEMORY_MIB:
            unknown.setdefault(model, row.place)
        card = DeviceRecord(
            device_type=GPU,
            minor=0,
            device_id="",
            model=model,
            memory_bytes=CARD_MEMORY_MIB.get(model, 0) * _MIB,
        )
        nodes[name] = NodeFacts(
            uid=default_uid("Node", "", name),
            name=name,
            cpu_milli=row.number("cpu_milli"),
            memory_bytes=row.number("memory_mib") * _MIB,
            devices=tuple(replace(card, minor=minor) for minor in range(gpus)),
        )
    warnings.extend(
        f"{place}: model: no memory size is known, its cards count without memory: value={model!r}"
        for model, place in unknown.items()
    )
    return tuple(nodes.values())


def _pods(rows: Sequence[_Row]) -> dict[str, _Pod]:
    pods: dict[str, _Pod] = {}
    demands: dict[tuple[int, int, str], tuple[DeviceDemand, ...]] = {}
    snapshots: dict[str, PodSnapshot] = {}
    for row in rows:
        name = _name(row, "name", pods)
        key = (
            row.number("num_gpu", _GPUS_MAX),
            row.number("gpu_milli", 1000),
            row.text("gpu_spec"),
        )
        if key not in demands:
            demands[key] = _demands(row, *key)
        qos = row.text("qos")
        request = PodRequest(
            uid=default_uid("Pod", NAMESPACE, name),
            namespace=NAMESPACE,
            name=name,
            cpu_milli=row.number("cpu_milli"),
            memory_bytes=row.number("memory_mib") * _MIB,
            dialect=OUR_DIALECT if demands[key] else None,
            devices=demands[key],
            snapshot=snapshots.setdefault(qos, PodSnapshot(qos=qos)),
        )
        created = row.number("creation_time") if row.text("creation_time") else None
        pods[name] = _Pod(request, created)
    return pods


def _demands(row: _Row, count: int, milli: int, models: str) -> tuple[DeviceDemand, ...]:
    """Return what a row asks of GPUs: percent per card, from thousandths that must be tenths."""
    if not count:
        if milli:
            fact = f"a share of no GPU: num_gpu=0, value={milli}"
            raise InputError(fact, field="gpu_milli", place=row.place)
        return ()
    if not milli or milli % 10:
        fact = f"not a share in whole percent, 10 to 1000: value={milli}"
        raise InputError(fact, field="gpu_milli", place=row.place)
    percent = milli // 10
    return (
        DeviceDemand(
            device_type=GPU,
            count=count,
            core_percent=percent,
            memory_ratio_percent=percent,
            exclusive=percent == WHOLE_PERCENT,
            model_names=tuple(sorted({model for model in models.split("|") if model})),
        ),
    )


def _name(row: _Row, column: str, known: Mapping[str, object]) -> str:
    name = row.text(column)
    if not name:
        raise InputError("empty", field=column, place=row.place)
    if name in known:
        raise InputError(f"used twice: value={name!r}", field=column, place=row.place)
    return name


def _listed(rows: Sequence[_Row], pods: Mapping[str, _Pod]) -> Iterator[PodRequest]:
    seen: set[str] = set()
    for row in rows:
        name, source = row.text("pod"), row.text("trace_pod")
        if source not in pods:
            fact = f"no such Pod in the trace: value={source!r}"
            raise InputError(fact, field="trace_pod", place=row.place)
        if not name or name in seen:
            fact = f"empty or used twice: value={name!r}"
            raise InputError(fact, field="pod", place=row.place)
        seen.add(name)
        yield _renamed(pods[source].request, name)


def _inflated(
    pods: Mapping[str, _Pod], nodes: Sequence[NodeFacts], ratio: Decimal, rng: random.Random
) -> Iterator[PodRequest]:
    """
    Yield the whole trace in random order, then Pods drawn from it, up to `ratio` x all GPUs.

    Rule: FGD paper's simulator: sorted by name, shuffled, then drawn with replacement as
    `<name>-tuned-<i>` until the next one would ask for more than `ratio` x capacity.
    """
    trace = [pods[name].request for name in sorted(pods)]
    rng.shuffle(trace)
    yield from trace
    capacity = sum(record.core_percent for node in nodes for record in node.devices)
    asked = sum(_gpu_percent(request) for request in trace)
    if not any(_gpu_percent(request) for request in trace):
        return
    drawn = 0
    while True:
        request = rng.choice(trace)
        asked += _gpu_percent(request)
        if asked > ratio * capacity:
            return
        yield _renamed(request, f"{request.name}-tuned-{drawn}")
        drawn += 1


def _gpu_percent(request: PodRequest) -> int:
    return sum(demand.count * demand.core_percent for demand in request.devices)


def _renamed(request: PodRequest, name: str) -> PodRequest:
    if request.name == name:
        return request
    return replace(request, name=name, uid=default_uid("Pod", NAMESPACE, name))


def _one_a_second(requests: Iterable[PodRequest], start_us: int) -> Iterator[Arrival]:
    for second, request in enumerate(requests):
        yield Arrival(at_us=start_us + second * _SECOND_US, pod=request)


def _as_created(pods: Iterable[_Pod], start_us: int) -> Iterator[Arrival]:
    """Yield the Pods in file order, each at its creation time but never before the one above."""
    at_us = start_us
    for pod in pods:
        created_us = start_us + (pod.created_s or 0) * _SECOND_US
        at_us = max(at_us, created_us)
        request = pod.request
        if pod.created_s is not None:
            snapshot = structs.replace(request.snapshot, created_at_us=created_us)
            request = replace(request, snapshot=snapshot)
        yield Arrival(at_us=at_us, pod=request)


def _rank(path: Path, rows: Sequence[_Row], nodes: Sequence[NodeFacts]) -> tuple[int, ...]:
    """Return the tie-break position of every node: each of the nodes once, from 0, no gaps."""
    names = {node.name for node in nodes}
    ranks: dict[str, int] = {}
    used: set[int] = set()
    for row in rows:
        name, number = _name(row, "sn", ranks), row.number("rank", len(nodes) - 1)
        if name not in names:
            fact = f"no such node in the trace: value={name!r}"
            raise InputError(fact, field="sn", place=row.place)
        if number in used:
            raise InputError(f"used twice: value={number}", field="rank", place=row.place)
        ranks[name] = number
        used.add(number)
    for node in nodes:
        if node.name not in ranks:
            raise InputError(
                f"no rank for a node: value={node.name!r}", field="sn", place=str(path)
            )
    return tuple(ranks[node.name] for node in nodes)


def _shuffled_rank(count: int, rng: random.Random) -> tuple[int, ...]:
    rank = list(range(count))
    rng.shuffle(rank)
    return tuple(rank)


def _hash(texts: Mapping[str, str], inflate: Decimal | None, start_us: int) -> str:
    digest = hashlib.sha256()
    for name, text in texts.items():
        digest.update(f"{name}:{hashlib.sha256(text.encode()).hexdigest()}\n".encode())
    digest.update(f"inflate:{inflate}\nstart:{start_us}\n".encode())
    return digest.hexdigest()
