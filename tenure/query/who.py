"""`tenure who`: who holds, or held, a name, and why; as people read it and as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from ledger.domain.cpuset import parse_cpuset
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.errors import InputError
from ledger.domain.resources import TYPE_GPU
from tenure import names
from tenure.asking import EVERYBODY, Answer, Sight
from tenure.kernel import KernelWord, kernel_words
from tenure.live.place import NO_PARQUET, Place, asks, say
from tenure.opening import moment_of, time_of, window_of
from tenure.options import At, DataOutput, Out, Since, Until
from tenure.output import (
    DataFormat,
    OutputFormat,
    one_line,
    write_csv,
    write_json,
    write_table,
    write_yaml,
)
from tenure.picture import UNKNOWN_HOLDER, devices_told, untold
from tenure.query.meant import cards_over, first_known, numbers_called, owner_text
from tenure.query.records import HOLDER_COLUMNS, HOLDER_KEYS, holder_record, shown
from tenure.times import iso_or_none, iso_time, read_moment

if TYPE_CHECKING:
    from ledger.domain.log.events import PodObserved
    from ledger.store.open import Ledger
    from ledger.store.reading.report_rows import Device, HolderRow
    from ledger.store.reading.views import When
    from scheduler.usage.others import OfOthers
    from tenure.times import LedgerTime


_MIB: Final = 1 << 20


@asks()
def who(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="NODE, NODE/CARD, a GPU's UUID, NODE/PCI-ADDRESS, NODE/cpu/LIST, POD or job/NAME.",
        ),
    ],
    *,
    at: At = None,
    since: Since = None,
    until: Until = None,
    history: Annotated[
        bool, typer.Option("--history", help="Everyone who ever held it, not one moment.")
    ] = False,
    place: Place,
    output: DataOutput = DataFormat.TABLE,
    out: Out = None,
) -> None:
    """
    Who holds, or held, a card, a CPU or a node: since when, until when, and why.

    Example: tenure who gpu-a/3 --at 2026-03-03T14:05:00+01:00

    Everyone who held it on a day: tenure who gpu-a/3 --since 2026-03-03 --until 2026-03-04

    Everyone who ever held it: tenure who gpu-a/3 --history

    What a Pod holds: tenure who ml/train-7

    The card that an Xid message names: tenure who gpu-a/0000:3b:00
    """
    from tenure.parquet import parquet_target

    parquet = parquet_target(output, out)
    form = output.text_form
    question = WhoQuestion(name=name, at=at, since=since, until=until, history=history, output=form)
    if parquet is None:
        place.print("who", answer_who, question)
        return
    with place.opened(NO_PARQUET) as source:
        answer = Answer()
        found = _find(source, question, EVERYBODY, answer)
    say(answer)
    parquet.write(found.records, HOLDER_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhoQuestion:
    """Who holds, or held, a name: now, at a moment, over an interval, or ever."""

    name: str
    at: str | None = None
    since: str | None = None
    until: str | None = None
    history: bool = False
    output: OutputFormat = OutputFormat.TABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Who holds what, and what is said where nobody does."""

    meant: names.Name
    at_us: int | None
    window: dict[str, str]
    records: list[dict[str, Any]]
    free: list[Device]
    last: HolderRow | None
    unknown: tuple[str, ...]
    untold: str
    kernel: Sequence[KernelWord]


def answer_who(source: Ledger, question: WhoQuestion, sight: Sight) -> Answer:
    """Answer who holds what. Raises InputError: an unknown name, or an unreadable question."""
    answer = Answer()
    found = _find(source, question, sight, answer)
    meant, form = found.meant, question.output
    match form:
        case OutputFormat.JSON | OutputFormat.YAML:
            document = {
                "name": str(meant),
                "at": None if found.window else iso_or_none(found.at_us),
                **found.window,
                **({"untold": found.untold} if found.untold else {}),
                **({} if sight.whole else {"namespace": sight.namespace}),
                "holders": found.records,
                **({"kernel": [one.record for one in found.kernel]} if found.kernel else {}),
            }
            write = write_json if form is OutputFormat.JSON else write_yaml
            write(document, answer.out)
        case OutputFormat.CSV:
            write_csv(found.records, HOLDER_KEYS, answer.out)
        case _:
            rows = [*map(shown, found.records), *map(_free_row, found.free)]
            if found.untold:
                answer.out.write(f"{meant}: {found.untold}\n")
                answer.out.write("last known:\n" if rows else "")
            if rows:
                wide = form is OutputFormat.WIDE
                columns = [c for c in HOLDER_COLUMNS if wide or not c.wide]
                columns = [
                    c for c in columns if c.key == "pod_path" or any(r.get(c.key) for r in rows)
                ]
                write_table(sorted(rows, key=_place), columns, answer.out, wide=wide)
            elif not found.untold:
                _write_nobody(meant, found.last, sight, answer.out)
            write_lines([*found.unknown, *(one.line for one in found.kernel)], answer.out)
    return answer


def _find(source: Ledger, question: WhoQuestion, sight: Sight, answer: Answer) -> _Found:
    from ledger.store.reading.timetravel import position_at

    readings = names.parse_name(question.name)
    now = time_of(source)
    when, window = _when(source, question, now, answer)
    at_us, since_us = when.at_us, when.since_us
    position = None if since_us is None else position_at(source, since_us)
    with source.connection.begin():
        meant = first_known(source, readings, sight, position)
        parts = [(when, frozenset[int]())]
        if isinstance(meant, names.CardName) and meant not in readings:
            parts = [(when, numbers_called(source, readings))]
        elif isinstance(meant, names.CardName) and position is not None:
            parts = list(cards_over(source, meant, when, position))
        found = (find_holders(source, meant, each, sight, then) for each, then in parts)
        holders = list(dict.fromkeys(chain.from_iterable(found)))
        told = holders or question.history
        last = None if told else _last_before(source, meant, since_us, sight, parts[0][1])
        free = _free_devices(source, meant, holders) if at_us is None and sight.whole else []
        unknown = unknown_lines(source, meant, when, holders)
        if at_us is None and sight.whole and not question.history:
            unknown += counted_lines(source, meant, at_us)
        not_told = untold(source, at_us, now, since_us)
        kernel: list[KernelWord] = []
        if isinstance(meant, names.CpuName) and at_us is None and not question.history:
            here = (w for w in kernel_words(source, sight) if w.row.node_name == meant.node)
            kernel = [one for one in here if one.is_about(meant.cpus, holders)]
    if question.at is not None and sight.whole:  # what was is the same in any transaction
        unknown += counted_lines(source, meant, at_us)
    asked_us = now.now_us if at_us is None else min(at_us, now.now_us)
    return _Found(
        meant=meant,
        at_us=at_us,
        window=window,
        records=[_record(holder, meant, asked_us) for holder in holders],
        free=free,
        last=last,
        unknown=unknown,
        untold=not_told,
        kernel=kernel,
    )


def _when(
    source: Ledger, question: WhoQuestion, now: LedgerTime, answer: Answer
) -> tuple[When, dict[str, str]]:
    from ledger.store.reading.report_queries import span
    from ledger.store.reading.views import When

    until, given = question.until, question.at is not None
    window = (question.since, until)
    if question.history + given + (window != (None, None)) > 1:
        fact = "--history, --at and an interval exclude each other"
        raise InputError(fact, field="--history" if question.history else "--at")
    if question.at is not None:
        at_us = moment_of(question.at, now, option="--at", say=answer.note)
        return When(at_us=at_us, since_us=at_us), {}
    if window == (None, None):
        return When(ever=question.history), {}
    with source.connection.begin():
        first_us = span(source.connection).first_at_us
    since_us, until_us = window_of(*window, now, first_us, answer.note)
    goes_on = until is None or read_moment(until, now, option="--until") > now.now_us
    last_us = until_us if goes_on else until_us - 1
    if last_us < since_us:
        raise InputError("the interval has no moment: its end is left out", field="--until")
    said = {"since": iso_time(since_us), "until": iso_time(until_us)}
    return When(at_us=last_us, since_us=since_us), said


def find_holders(
    source: Ledger,
    name: names.Name,
    when: When,
    sight: Sight = EVERYBODY,
    then: frozenset[int] = frozenset(),
) -> list[HolderRow]:
    """
    Return who of those who are seen holds what `name` names, by what is held and since when.

    Last, those who may: a Pod on cards that nobody can name may hold any of its node's.

    Args:
        then: the numbers of the devices that are meant, where a card's name alone means others.
    """
    found = _find_holders(source, name, when, sight, Others(source, when), then=then)
    return [holder for holder in found if sight.sees(holder.namespace)]


class Others:
    """Who holds cards that no inventory has: looked up once, whoever asks how often."""

    def __init__(self, source: Ledger, when: When) -> None:
        self._source, self._when = source, when
        self._found: dict[int, list[OfOthers]] | None = None

    def at(self, position: int) -> Sequence[OfOthers]:
        """Return what the holding that was opened there has of them."""
        if self._found is None:
            from tenure.picture import others_of_ledger

            self._found = {}
            for each in others_of_ledger(self._source, self._when):
                self._found.setdefault(each.position, []).append(each)
        return self._found.get(position, ())


def _find_holders(
    source: Ledger,
    name: names.Name,
    when: When,
    sight: Sight,
    others: Others,
    *,
    then: frozenset[int] = frozenset(),
) -> list[HolderRow]:
    from ledger.store.reading import pod_queries
    from ledger.store.reading import report_queries as queries

    match name:
        case names.CardName(node=node, device_type=device_type, minor=minor):
            held = queries.device_holders(
                source.connection, when, node=node, device_type=device_type, minor=minor, then=then
            )
            whole = by_others(others, queries.pod_holders(source.connection, when, node=node))
            return held + [
                each
                for each in (*whole, *by_claims_alone(source, when, node))
                if (each.device_type, each.minor) == (device_type, minor)
                or device_type in each.unknown_types.split(",")
            ]
        case names.CpuName(node=node, cpus=cpus):
            return queries.cpu_holders(source.connection, when, node=node, cpus=cpus)
        case names.NodeName(node=node):
            held = queries.device_holders(source.connection, when, node=node)
            whole = by_others(others, queries.pod_holders(source.connection, when, node=node))
            return held + _beside_cards([*whole, *by_claims_alone(source, when, node)])
        case names.PodName(namespace=namespace, name=pod):
            path = (namespace, pod)
            held = queries.device_holders(source.connection, when, pod=path)
            whole = by_others(others, queries.pod_holders(source.connection, when, pod=path))
            named = held or any(holder.device_type for holder in whole)
            return held + (_beside_cards(whole) if named else whole)
        case names.OwnerName():
            pods = pod_queries.pods(
                source.connection,
                owner=owner_text(name),
                namespace=name.namespace or sight.namespace or None,
            )
            paths = dict.fromkeys((pod.namespace, pod.pod_name) for pod in pods)
            return [
                holder
                for namespace, pod in paths
                for holder in _find_holders(
                    source, names.PodName(namespace=namespace, name=pod), when, sight, others
                )
            ]


def by_others(others: Others, holders: Sequence[HolderRow]) -> list[HolderRow]:
    """
    Return reservations by what they have of cards that no inventory has, where they have some.

    Of such cards that nobody can name it is said that they hold GPUs which are unknown.
    """
    rows: list[HolderRow] = []
    for holder in holders:
        of_others = others.at(holder.position)
        named = [_on_card(holder, each) for each in of_others if each.device is not None]
        rows += named
        if len(named) < len(of_others):
            unknown = {*filter(None, holder.unknown_types.split(",")), TYPE_GPU}
            rows.append(replace(holder, unknown_types=",".join(sorted(unknown))))
        elif not named or holder.cpuset or holder.unknown_types:
            rows.append(holder)
    return rows


def _on_card(whole: HolderRow, given: OfOthers) -> HolderRow:
    from scheduler.usage.picture import HolderNow

    device, holder = given.device, given.holder
    assert device is not None, given
    core = memory = 0
    if isinstance(holder, HolderNow):
        core, memory = holder.core_percent or 0, holder.memory_mib or 0
    of_card = given.group.memory_mib or 0
    return replace(
        whole,
        device_type=TYPE_GPU,
        minor=device.minor,
        device_id=device.id,
        model=given.group.model,
        core_percent=core,
        memory_bytes=memory * _MIB,
        memory_ratio_percent=min(WHOLE_PERCENT, memory * WHOLE_PERCENT // of_card)
        if of_card
        else 0,
        exclusive=isinstance(holder, HolderNow) and holder.whole,
        cpu_milli=0,
        cpuset="",
        unknown_types="",
    )


def by_claims_alone(source: Ledger, when: When, node: str) -> list[HolderRow]:
    """Return claims that hold cards of a node now and that no Pod tells of."""
    if when.ever or when.at_us is not None:
        return []
    from ledger.domain.log.events import BY_CLAIM, CLAIM, NodeDescribed
    from ledger.store.reading.kept import seldom_of, times_of
    from ledger.store.reading.report_rows import HolderRow
    from scheduler.usage.others import ALONE

    since: dict[tuple[str, str], int] = {}  # node, claim -> where it was said first, and ever since
    alone = Others(source, when).at(ALONE)
    for position, event in seldom_of(source.connection, NodeDescribed) if alone else ():
        assert isinstance(event, NodeDescribed), position
        named = {(event.node_uid, each.claim) for each in event.facts.systems.claims}
        left = {key: at for key, at in since.items() if key[0] != event.node_uid or key in named}
        since = {**dict.fromkeys(named, position), **left} if event.node_name == node else left
    times = times_of(source.connection, since.values())
    rows = []
    for each in alone:
        if position := since.get((each.node, each.holder.path), 0):
            whole = HolderRow(
                position=position,
                namespace=each.holder.namespace,
                pod_name=each.holder.name,
                node_uid=each.node,
                node_name=node,
                kind="observed",
                phase=BY_CLAIM,
                dialect="dra",
                opened_at_us=times.get(position, 0),
                holder=CLAIM,
                state=getattr(each.holder, "state", ""),
            )
            rows.append(_on_card(whole, each))
    return rows


def may_hold(
    source: Ledger, when: When, *, node: str, device_type: str | None = None
) -> list[HolderRow]:
    """Return who holds devices of a node that nobody can name, of one type or of any."""
    from ledger.store.reading import report_queries as queries

    return [
        holder
        for holder in queries.pod_holders(source.connection, when, node=node)
        if holder.unknown_types
        and (device_type is None or device_type in holder.unknown_types.split(","))
    ]


def unknown_lines(
    source: Ledger, name: names.Name, when: When, holders: Sequence[HolderRow]
) -> tuple[str, ...]:
    """Return a line for each Pod that may hold a card, with how many of the node's it holds."""
    from ledger.store.reading import report_queries as queries
    from ledger.store.reading import unnamed_queries
    from scheduler.usage.machines import GONE
    from scheduler.usage.pods import pod_of

    strangers = [each for each in holders if each.unknown_types and each.kind == "observed"]
    if not isinstance(name, names.CardName) or not strangers:
        return ()
    rows = unnamed_queries.unknown_rows(source.connection, when, node=name.node)
    seen = {row.position: pod_of(row) for row in rows}
    devices = queries.devices(source.connection, node=name.node, device_type=name.device_type)
    present = [device for device in devices if device.closed_reason != GONE]
    told = devices_told(source, name.node)
    if len(present) != sum(device.device_type == name.device_type for device in told):
        return ()  # these are parts of cards: counted beside
    lines = (
        _unknown_line(holder, name.device_type, seen[holder.position], len(present))
        for holder in strangers
    )
    return tuple(filter(None, lines))


def counted_lines(source: Ledger, name: names.Name, at_us: int | None) -> tuple[str, ...]:
    """Say of each node that is named how many of its cards are held, not known which."""
    from tenure.picture import picture_of_ledger, unplaced_line

    match name:
        case names.NodeName(node=node) | names.CardName(node=node, device_type="gpu"):
            picture = picture_of_ledger(source, at_us)
            lines = (unplaced_line(each) for each in picture.nodes if each.name == node)
            return tuple(filter(None, lines))
        case _:
            return ()


def _unknown_line(holder: HolderRow, device_type: str, event: PodObserved, present: int) -> str:
    from ledger.domain.log.unnamed import unnamed_cards

    if device_type not in event.unknown_types:
        return ""  # a card that no inventory has: counted beside
    verb = "holds" if holder.closed_at_us is None else "held"
    what = f"{device_type} devices"
    if device_type == TYPE_GPU:
        what = f"{min(present, unnamed_cards(event)) or 'some'} of {present} cards"
    return f"card unknown: {holder.namespace}/{holder.pod_name} {verb} {what} of {holder.node_name}"


def write_lines(lines: Sequence[str], out: TextIO) -> None:
    """Write lines with names in them, each on one line."""
    out.writelines(one_line(line) + "\n" for line in lines)


def _beside_cards(holders: Sequence[HolderRow]) -> list[HolderRow]:
    return [each for each in holders if each.cpuset or each.unknown_types or each.device_type]


def _free_devices(source: Ledger, name: names.Name, holders: Sequence[HolderRow]) -> list[Device]:
    from scheduler.usage.machines import GONE

    if not isinstance(name, names.NodeName):
        return []
    held = {holder.device_no for holder in holders if holder.device_no}
    places = {(each.node_uid, each.device_type, each.minor) for each in holders}
    return [
        device
        for device in devices_told(source, name.node)
        if device.device_no not in held
        and device.closed_reason != GONE
        and (device.device_no or (device.node_uid, device.device_type, device.minor) not in places)
    ]


def _last_before(
    source: Ledger, name: names.Name, at_us: int | None, sight: Sight, then: frozenset[int]
) -> HolderRow | None:
    """Return who held it last before it was free; `then` as of `find_holders`."""
    from ledger.store.reading.views import When

    ever = find_holders(source, name, When(ever=True), sight, then)
    ended = [
        holder
        for holder in ever
        if holder.closed_at_us is not None and (at_us is None or holder.closed_at_us <= at_us)
    ]
    return max(ended, key=lambda holder: (holder.closed_at_us or 0, holder.position), default=None)


def _record(holder: HolderRow, name: names.Name, now_us: int) -> dict[str, Any]:
    record = holder_record(holder, now_us=now_us)
    if isinstance(name, names.CpuName):
        record["held"] = f"{name.node}/cpu/{parse_cpuset(holder.cpuset) & name.cpus}"
    return record


def _free_row(device: Device) -> dict[str, Any]:
    reason = f"closed: {device.closed_reason}" if device.closed_reason else "free"
    if device.closed_reason == UNKNOWN_HOLDER:
        reason = "free or held, not known"
    return {
        "held": names.card_text(device.node_name, device.device_type, device.minor),
        "node": device.node_name,
        "device_type": device.device_type,
        "minor": device.minor,
        "pod_path": "",
        "why": reason,
        "model": device.model,
        "device_id": device.device_id,
    }


def _place(row: Mapping[str, Any]) -> tuple[str, bool, str, int]:
    """Return where a row stands: by node, GPUs first, then other devices, then CPUs."""
    device_type = row["device_type"]
    rank = "" if device_type == TYPE_GPU else device_type or "~"
    return row["node"], device_type is None, rank, row["minor"] or 0


def _write_nobody(name: names.Name, last: HolderRow | None, sight: Sight, out: TextIO) -> None:
    nobody = "nobody" if sight.whole else f"no Pod of namespace {sight.namespace}"
    holds = (
        "holds nothing"
        if isinstance(name, (names.PodName, names.OwnerName))
        else f"is held by {nobody}"
    )
    out.write(f"{name} {holds}\n")
    if last is not None:
        out.write("last:\n")
        record = holder_record(last, now_us=last.closed_at_us or 0)
        row = shown(record)
        write_table([row], [c for c in HOLDER_COLUMNS if not c.wide and row[c.key]], out)
