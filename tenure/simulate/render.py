"""The answer of `tenure simulate` in its forms; the JSON is an interface (cli.md, Output)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TextIO

from ledger.domain.cpuset import format_cpuset
from ledger.domain.devices import GPU, DeviceShare
from ledger.domain.kube.shared_templates import Amounts
from ledger.domain.log.events import PodObserved
from ledger.domain.proofs.canonical import canonical_json
from ledger.domain.resources import ANNOTATION_RESOURCE_STATUS
from ledger.domain.systems import DRA, VOLCANO
from ledger.domain.vocabulary import Vocabulary
from scheduler.cluster.model import RefusedPod
from scheduler.decide.answers import resources_of
from scheduler.decide.nodes.card_amounts import adopted_amounts, reserved_amounts
from scheduler.decide.outcome import Unplaced
from scheduler.record.core import Placed
from scheduler.usage.picture import NONE, Picture, gpu_groups
from tenure.card_totals import cards_text, nodes_text, totals_of
from tenure.output import Column, OutputFormat, fitted, write_csv, write_table, write_yaml
from tenure.picture import many_text
from tenure.simulate.results import Outcome, Result

ROWS_MAX: Final = 200
"""A table of more Pods is left out without `-o wide`."""

_COLUMNS: Final = (
    Column(key="namespace", title="NAMESPACE"),
    Column(key="name", title="NAME"),
    Column(key="node", title="NODE"),
    Column(key="cards", title="DEVICES"),
    Column(key="cpuset", title="CPUS"),
    Column(key="uid", title="UID", wide=True),
    Column(key="dialect", title="DIALECT", wide=True),
    Column(key="message", title="WHY NOT"),
)
_CSV_KEYS: Final = ("namespace", "name", "uid", "node", "devices", "cpuset", "message")
_REASONS_SHOWN: Final = 8
_BY_NUMBER: Final = "on which Pods are placed by number alone"


def write_result(result: Result, output: OutputFormat, out: TextIO) -> None:
    """Write the answer. JSON is streamed, because refusals name every node."""
    match output:
        case OutputFormat.JSON:
            _write_json(result, out)
        case OutputFormat.YAML:
            write_yaml(document_of(result), out)
        case OutputFormat.CSV:
            write_csv(
                [_row(outcome, result.vocabulary) for outcome in result.outcomes], _CSV_KEYS, out
            )
        case OutputFormat.TABLE | OutputFormat.WIDE:
            _write_tables(result, out, wide=output is OutputFormat.WIDE)


def document_of(result: Result) -> dict[str, Any]:
    """Return the whole answer as one JSON value."""
    names = tuple(node.name for node in result.nodes)
    return {
        "placements": [
            _placement(outcome, names, result.vocabulary) for outcome in result.outcomes
        ],
        "adopted": [_adopted(pod, result.vocabulary) for pod in result.adopted],
        "summary": summary_of(result),
    }


def summary_of(result: Result) -> dict[str, Any]:
    """Return the sums of the answer; a run on the openb trace has the paper's figures too."""
    tally, span = result.tally, result.ledger
    summary: dict[str, Any] = {
        "nodes": len(result.nodes),
        "pods": len(result.outcomes),
        "placed": tally.placed,
        "unschedulable": tally.failed,
        "adopted": len(result.adopted),
        "policy": result.policy,
        "seed": result.seed,
        "gpu": {
            "cards": result.cards,
            "core_percent_capacity": result.core_percent_capacity,
            "core_percent_allocated": result.core_percent_allocated,
        },
        "ledger": {"url": span.url, "from": span.first, "to": span.last},
        "conflicts": list(result.conflicts),
        "warnings": list(result.warnings),
    }
    if result.source == "openb":
        summary |= {
            "arrived_percent": round(result.arrived_percent, 4),
            "allocated_percent": round(result.allocated_percent, 4),
            "fragmentation_percent": round(result.fragmentation_percent, 4),
        }
    return summary


def devices_of(
    shares: Iterable[DeviceShare],
    vocabulary: Vocabulary,
    amounts: Mapping[int, Amounts] = MappingProxyType({}),
) -> dict[str, list[dict[str, Any]]]:
    """
    Return device type -> what is held, one entry per device, ascending.

    Rule: cli.md, Output: resources as in the allocation annotation, base units as decimal text.

    Args:
        amounts: GPU minor -> what is held of the card beside core percent and memory.
    """
    devices: dict[str, list[dict[str, Any]]] = {}
    for share in shares:
        held = resources_of(share, vocabulary, amounts.get(share.minor, ()))
        resources = {name: str(amount) for name, amount in held.items()}
        entry = {"minor": share.minor, "id": share.device_id, "resources": resources}
        devices.setdefault(share.device_type, []).append(entry)
    return devices


def _placement(outcome: Outcome, names: Sequence[str], vocabulary: Vocabulary) -> dict[str, Any]:
    entry = _entry(outcome, vocabulary)
    if isinstance(outcome, Unplaced) and outcome.nodes is not None:
        entry["unschedulable"]["nodes"] = outcome.nodes.by_node(tuple(names))
    return entry


def _entry(outcome: Outcome, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return a placement's entry; the nodes of a refusal are left empty."""
    match outcome:
        case Placed(placement=placement, annotations=annotations, claimed=claimed):
            status = annotations.get(ANNOTATION_RESOURCE_STATUS)
            return {
                "namespace": placement.request.namespace,
                "name": placement.request.name,
                "uid": placement.request.uid,
                "node": placement.node_name,
                "devices": devices_of(
                    (*placement.shares, *claimed), vocabulary, reserved_amounts(placement)
                ),
                "counted": {GPU: placement.counted} if placement.counted else {},
                "cpuset": format_cpuset(placement.cpuset),
                "cpuSharedPools": json.loads(status).get("cpuSharedPools", []) if status else [],
                "annotations": dict(annotations),
                "unschedulable": None,
            }
        case Unplaced(request=pod) | (RefusedPod() as pod):
            return {
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
                "node": None,
                "devices": {},
                "counted": {},
                "cpuset": "",
                "cpuSharedPools": [],
                "annotations": {},
                "unschedulable": {"message": outcome.message, "nodes": {}},
            }


def _adopted(pod: PodObserved, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "namespace": pod.namespace,
        "name": pod.pod_name,
        "uid": pod.pod_uid,
        "node": pod.node_name,
        "devices": devices_of(pod.shares, vocabulary, adopted_amounts(pod)),
        "counted": dict(pod.counted),
        "cpuset": format_cpuset(pod.cpuset),
        "source": pod.source,
    }


# --- JSON, one Pod a line ---------------------------------------------------------------------


def _write_json(result: Result, out: TextIO) -> None:
    names = tuple(f"{_json(node.name)}: " for node in result.nodes)
    out.write('{"placements": [')
    _write_lines(
        (_placement_text(outcome, names, result.vocabulary) for outcome in result.outcomes), out
    )
    out.write('],\n"adopted": [')
    _write_lines((_json(_adopted(pod, result.vocabulary)) for pod in result.adopted), out)
    out.write(f'],\n"summary": {json.dumps(summary_of(result), ensure_ascii=False, indent=2)}}}\n')


def _placement_text(outcome: Outcome, names: tuple[str, ...], vocabulary: Vocabulary) -> str:
    text = _json(_entry(outcome, vocabulary))
    if isinstance(outcome, Unplaced) and outcome.nodes is not None:
        texts = [_json(list(text)) for text in outcome.nodes.texts]
        codes = zip(names, outcome.nodes.codes, strict=True)
        nodes = ", ".join(name + texts[code] for name, code in codes)
        return text.removesuffix("}}}") + nodes + "}}}"
    return text


def _write_lines(texts: Iterator[str], out: TextIO) -> None:
    out.writelines(f"{',' if place else ''}\n{text}" for place, text in enumerate(texts))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- tables -----------------------------------------------------------------------------------


def _write_tables(result: Result, out: TextIO, *, wide: bool) -> None:
    if wide or len(result.outcomes) <= ROWS_MAX:
        columns = [column for column in _COLUMNS if wide or not column.wide]
        rows = [_row(outcome, result.vocabulary) for outcome in result.outcomes]
        if any(rows):
            write_table(rows, columns, out, wide=wide)
            out.write("\n")
    lines = (f"{line}\n" for line in _summary_lines(result, wide=wide))
    out.writelines(lines if wide else map(fitted, lines))


def _row(outcome: Outcome, vocabulary: Vocabulary) -> dict[str, Any]:
    entry = _entry(outcome, vocabulary)
    unschedulable = entry["unschedulable"]
    request = outcome.placement.request if isinstance(outcome, Placed) else outcome
    dialect = getattr(getattr(request, "request", request), "dialect", None)
    return {
        **entry,
        "devices": canonical_json(entry["devices"]) if entry["devices"] else "",
        "cards": _cards_text(outcome),
        "dialect": "" if dialect is None else str(dialect),
        "message": unschedulable["message"] if unschedulable else "",
    }


def _cards_text(outcome: Outcome) -> str:
    if not isinstance(outcome, Placed):
        return ""
    if outcome.placement.counted:
        return f"{GPU}:{','.join(['?'] * outcome.placement.counted)}"
    return cards_text((*outcome.placement.shares, *outcome.claimed))


def _summary_lines(result: Result, *, wide: bool) -> Iterator[str]:
    tally = result.tally
    yield (
        f"{_pods(len(result.outcomes))} decided: {tally.placed} placed,"
        f" {tally.failed} unschedulable (policy {result.policy}, {nodes_text(len(result.nodes))})"
    )
    if result.adopted:
        yield f"{_pods(len(result.adopted))} running already, adopted before the first decision"
    if result.picture is not None:
        yield from _card_lines(result.picture)
    if result.core_percent_capacity:
        yield (
            f"GPU fragmentation: {result.fragmentation_percent:.2f}%,"
            " idle and of no use to the usual Pods"
        )
    if result.source == "openb":
        series = result.allocated_at_arrived_percent()
        shown = ", ".join(
            f"{value:.2f}% at {step}%" for step, value in series.items() if step >= 80
        )
        yield f"arrived {result.arrived_percent:.2f}% of the GPUs; allocated {shown or '-'} arrived"
    yield f"{tally.decisions} decisions in {result.seconds:.2f} s" + (
        f", {tally.decisions / result.seconds:,.0f}/s" if result.seconds > 0 else ""
    )
    for conflict in result.conflicts:
        yield f"conflict: {conflict}"
    reasons = _failures(result.outcomes)
    for message, count in reasons.most_common(_REASONS_SHOWN):
        yield f"  {_pods(count)}: {message}"
    if not wide and len(result.outcomes) > ROWS_MAX:
        yield f"every Pod by name: -o wide, -o csv or -o json (more than {ROWS_MAX} are left out)"


def _card_lines(picture: Picture) -> Iterator[str]:
    """Say how the cards stand, in the map's numbers, and which of them are given otherwise."""
    totals = totals_of(picture.nodes)
    if totals.cards == NONE:
        return
    yield f"GPU: {totals.allocated}"
    apart = [
        group for node in picture.nodes for group in gpu_groups(node) if not group.is_inventoried
    ]
    hows = {DRA: "given by claims alone", VOLCANO: "on which Pods are placed card by card"}
    for how in (*hows.values(), _BY_NUMBER):
        groups = [group for group in apart if hows.get(group.system, _BY_NUMBER) == how]
        cards = sum((group.cards for group in groups), NONE)
        if cards != NONE:
            systems = ", ".join(sorted({group.system for group in groups})).replace(DRA, "DRA")
            noun = "card" if cards.exact == 1 else "cards"
            yield f"  {many_text(cards)} {noun} of {systems}, {how}"


def _pods(count: int) -> str:
    return "1 Pod" if count == 1 else f"{count} Pods"


def _failures(outcomes: Sequence[Outcome]) -> Counter[str]:
    """Count the Pods without a place by the reasons that refused them."""
    found: Counter[str] = Counter()
    for outcome in outcomes:
        match outcome:
            case Unplaced(reasons=reasons):
                found["; ".join(sorted(reason.reason for reason in reasons))] += 1
            case RefusedPod(errors=errors):
                found["; ".join(sorted({error.message for error in errors}))] += 1
            case Placed():
                pass
    return found
