"""What happens when in a run with times: a schedule in CSV over the objects of the input."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import section
from ledger.domain.nodes import NodeFacts
from scheduler.cluster.model import Clearing, HealthChange, NodeChange
from scheduler.cluster.model import Pod as AskingPod
from tenure.simulate.model import Arrival, Change, PodChange

COLUMNS: Final = ("at_seconds", "event", "object", "value")
EVENTS: Final = ("arrive", "delete", "fail", "recover", "label", "lose", "return", "clear")
SECONDS_MAX: Final = 10 * 366 * 86_400

_MICROSECONDS: Final = 1_000_000
_DELETED: Final = "deleted"

Labels = Mapping[str, str | None]
"""Labels that were changed since the input; None = taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """
    What a schedule speaks of.

    Attributes:
        nodes: in input order.
        pods: `namespace/name` -> Pod that asks for a place, in input order.
        node_with: a Node's name and its changed labels -> the Node as it is then.
        pod_with: likewise, by `namespace/name`.
    """

    nodes: Sequence[NodeFacts]
    pods: Mapping[str, AskingPod]
    node_with: Callable[[str, Labels], NodeFacts]
    pod_with: Callable[[str, Labels], AskingPod]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Arrivals and changes, each in the order of time, then of the file."""

    arrivals: tuple[Arrival, ...]
    changes: tuple[Change, ...]


def read_schedule(path: Path, subjects: Subjects, start_us: int, *, all_arrive: bool) -> Schedule:
    """
    Read a schedule.

    Args:
        all_arrive: a Pod that the file does not let arrive is there from the start; otherwise it
            never comes.

    Raises:
        InputError: a row that can't be read, or that names what is not there; with file and line.
    """
    rows = list(_rows(path))
    named = {row["object"] for _, row in rows if row["event"] == "arrive"}
    coming = subjects.pods.keys() if all_arrive else subjects.pods.keys() & named
    reading = _Reading(subjects, start_us, [name for name in subjects.pods if name in coming])
    timed = [(_timed(row, start_us, f"{path}:{number}"), number, row) for number, row in rows]
    for at_us, number, row in sorted(timed, key=lambda each: each[:2]):
        try:
            reading.take(at_us, row)
        except InputError as error:
            raise error.at(f"{path}:{number}") from None
    return reading.done()


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a file. Raises InputError when it can't be read."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from file
    except OSError as error:
        raise InputError(f"can't read: {error.strerror}", place=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text", place=str(path)) from error


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    rows = csv.DictReader(lines_of(path), strict=True)
    try:
        if tuple(rows.fieldnames or ()) != COLUMNS:
            raise InputError(f"columns are not {','.join(COLUMNS)}", place=f"{path}:1")
        for row in rows:
            if None in row or None in row.values():
                fact = f"not as many fields as columns: expected={len(COLUMNS)}"
                raise InputError(fact, place=f"{path}:{rows.line_num}")
            yield rows.line_num, row
    except csv.Error as error:
        raise InputError(f"not CSV: {error}", place=f"{path}:{rows.line_num}") from error


def _timed(row: Mapping[str, str], start_us: int, place: str) -> int:
    try:
        return start_us + _whole(row["at_seconds"], "at_seconds") * _MICROSECONDS
    except InputError as error:
        raise error.at(place) from None


class _Reading:
    """A schedule as far as it was read: what arrived, and how everything is by then."""

    def __init__(self, subjects: Subjects, start_us: int, coming: Sequence[str]) -> None:
        self._subjects = subjects
        self._coming = dict.fromkeys(coming)
        self._start_us = start_us
        self._places = {node.name: place for place, node in enumerate(subjects.nodes)}
        self._nodes = list(subjects.nodes)
        self._lost = {place for place, node in enumerate(subjects.nodes) if node.lost}
        self._labels: dict[str, dict[str, str | None]] = {}
        self._arrivals: dict[str, Arrival] = {}
        self._changes: list[Callable[[Mapping[str, int]], Change]] = []

    def take(self, at_us: int, row: Mapping[str, str]) -> None:
        """Take one row; rows come in the order of time."""
        about, value = row["object"], row["value"]
        match row["event"]:
            case "arrive":
                self._arrive(at_us, about, value)
            case "delete":
                self._change_pod(at_us, about, None, value or _DELETED)
            case "fail" | "recover" as event:
                self._change_health(at_us, about, value, healthy=event == "recover")
            case "label" if "/" in about:
                self._pod(about)
                pod = self._subjects.pod_with(about, self._labelled(about, value))
                self._change_pod(at_us, about, pod, "")
            case "label":
                place = self._node(about)
                facts = self._subjects.node_with(about, self._labelled(about, value))
                self._change_node(at_us, replace(facts, lost=self._nodes[place].lost))
            case "lose" | "return" as event:
                lost, node = event == "lose", self._nodes[self._node(about)]
                if node.lost is lost:
                    raise InputError(f"the Node is {'' if lost else 'not '}lost already: {about}")
                self._change_node(at_us, replace(node, lost=lost), value or _DELETED)
            case "clear":
                self._clear(at_us, about, value)
            case event:
                fact = f"not one of {', '.join(EVENTS)}: value={event!r}"
                raise InputError(fact, field="event")

    def done(self) -> Schedule:
        known = {
            path: self._arrivals.get(path)
            or Arrival(at_us=self._start_us, pod=self._subjects.pods[path])
            for path in dict.fromkeys((*self._arrivals, *self._coming))
        }
        ordered = sorted(known, key=lambda path: known[path].at_us)  # stable
        indices = {path: index for index, path in enumerate(ordered)}
        changes = [make(indices) for make in self._changes]
        return Schedule(arrivals=tuple(known[path] for path in ordered), changes=tuple(changes))

    def _arrive(self, at_us: int, path: str, lifetime: str) -> None:
        if path in self._arrivals:
            raise InputError(f"the Pod arrives twice: {path}", field="object")
        self._arrivals[path] = Arrival(
            at_us=at_us,
            pod=self._pod(path),
            lifetime_us=_whole(lifetime, "value") * _MICROSECONDS if lifetime else None,
        )

    def _change_health(self, at_us: int, about: str, reason: str, *, healthy: bool) -> None:
        name, _, device = about.partition("/")
        place = self._node(name)
        named = {"/".join(map(str, each.key)): each for each in self._subjects.nodes[place].devices}
        if device not in named:
            fact = f"the Node has no such device, such as {name}/gpu/0: value={about!r}"
            raise InputError(fact, field="object")
        change = HealthChange(
            at_us=at_us,
            node=place,
            device_type=named[device].device_type,
            minor=named[device].minor,
            healthy=healthy,
            reason=reason,
        )
        self._changes.append(lambda _: change)

    def _clear(self, at_us: int, name: str, reason: str) -> None:
        place = self._node(name)
        if place not in self._lost:
            raise InputError(f"the Node was never lost: value={name!r}", field="object")
        change = Clearing(at_us=at_us, node=place, reason=reason)
        self._changes.append(lambda _: change)

    def _change_node(self, at_us: int, facts: NodeFacts, reason: str = "") -> None:
        place = self._node(facts.name)
        self._nodes[place] = facts
        if facts.lost:
            self._lost.add(place)
        change = NodeChange(at_us=at_us, node=place, facts=facts, reason=reason)
        self._changes.append(lambda _: change)

    def _change_pod(self, at_us: int, path: str, pod: AskingPod | None, reason: str) -> None:
        self._pod(path)

        def change(indices: Mapping[str, int]) -> PodChange:
            return PodChange(at_us=at_us, arrival=indices[path], pod=pod, reason=reason)

        self._changes.append(change)

    def _labelled(self, about: str, value: str) -> Labels:
        """Return the labels of an object that differ from the input's by now, this one too."""
        key, sign, text = value.partition("=")
        dropped = not sign and key.endswith("-")
        if not key or (not sign and not dropped):
            fact = f"a label is set by KEY=VALUE and taken away by KEY-: value={value!r}"
            raise InputError(fact, field="value")
        labels = self._labels.setdefault(about, {})
        labels[key.removesuffix("-") if dropped else key] = None if dropped else text
        return dict(labels)

    def _node(self, name: str) -> int:
        if name not in self._places:
            raise InputError(f"there is no such Node: value={name!r}", field="object")
        return self._places[name]

    def _pod(self, path: str) -> AskingPod:
        if path not in self._subjects.pods:
            fact = f"there is no such Pod that asks for a place: value={path!r}"
            raise InputError(fact, field="object")
        if path not in self._coming:
            raise InputError(f"the Pod never arrives: value={path!r}", field="object")
        return self._subjects.pods[path]


def with_labels(body: Mapping[str, object], labels: Labels) -> dict[str, object]:
    """Return an object of Kubernetes with these labels changed."""
    metadata = section(body, "metadata")
    merged = {**section(metadata, "labels"), **labels}
    kept = {key: text for key, text in merged.items() if text is not None}
    return {**body, "metadata": {**metadata, "labels": kept}}


def _whole(text: str, field: str) -> int:
    digits = text.isascii() and text.isdigit()
    if not digits or len(text) > len(str(SECONDS_MAX)) or int(text) > SECONDS_MAX:
        fact = f"not a number of seconds from 0 to {SECONDS_MAX}: value={text!r}"
        raise InputError(fact, field=field)
    return int(text)
