"""`tenure why`: why a Pod waits or where it went, and why a card is not free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer
from msgspec.structs import asdict

from ledger.domain.amounts import format_bytes
from ledger.domain.errors import InputError
from tenure.asking import EVERYBODY, Answer, Sight
from tenure.exits import with_next
from tenure.kernel import KernelWord, kernel_words
from tenure.live.place import Place, asks, say
from tenure.names import CardName, CpuName, NodeName, OwnerName, PodName, card_text, parse_name
from tenure.opening import time_of
from tenure.options import Files, ObjectFiles, Output
from tenure.output import Column, OutputFormat, one_line, write_answer, write_table
from tenure.picture import UNKNOWN_HOLDER, closed_by_others, devices_told
from tenure.progress import bar_after
from tenure.query import who
from tenure.query.meant import first_known
from tenure.query.records import (
    ENDED,
    HOLDER_COLUMNS,
    PLACED,
    REFUSED,
    WAITING,
    held_text,
    holder_record,
    shown,
    state_of,
)
from tenure.times import iso_time
from tenure.units import format_duration, format_time

if TYPE_CHECKING:
    from ledger.domain.log.events import RefusalReason
    from ledger.store.open import Ledger
    from ledger.store.reading.report_rows import (
        Device,
        HealthRow,
        HolderRow,
        PodSummary,
        RefusalRow,
    )
    from scheduler.whatif.prospects import Prospects
    from tenure.manifests import Manifests


STRANGERS_MAX: Final = 4
"""Pods named in one cell; the rest are counted."""
INVENTORY: Final = "inventory"
"""The reason of a change of health that an inventory said, not a message about the card."""
_REASON_COLUMNS: Final = (
    Column(key="nodes", title="NODES", right=True, show=lambda nodes: str(nodes or "-")),
    Column(key="reason", title="REASON"),
    Column(key="detail", title="CLOSEST"),
    Column(key="remedy", title="WOULD FIT IF"),
)
POD_COLUMNS: Final = (
    Column(key="path", title="POD"),
    Column(key="state", title="STATE"),
    Column(key="since_text", title="SINCE"),
    Column(key="held_text", title="HOLDS"),
    Column(key="message", title="WHY"),
    Column(key="pod_uid", title="POD UID", wide=True),
)
DEVICE_COLUMNS: Final = (
    Column(key="card", title="CARD"),
    Column(key="state", title="STATE"),
    Column(key="core_left_percent", title="CORE LEFT", right=True, show="{}%".format),
    Column(key="memory_left_bytes", title="MEMORY LEFT", right=True, show=format_bytes),
    Column(key="holders_text", title="HOLDERS"),
    Column(key="why", title="WHY"),
)
POD_CSV: Final = tuple(
    Column(key=key, title=key)
    for key in ("path", "pod_uid", "state", "since", "message", "refusals", "event", "policy")
)


@asks()
def why(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="NAMESPACE/POD, job/NAME, NODE/CARD or NODE.")
    ],
    files: Files = None,
    *,
    objects: ObjectFiles = None,
    place: Place,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Why a Pod waits, or where it went; why a card is not free.

    For a Pod that waits also what would make it fit now: a smaller request, another wish, Pods
    that would have to end.

    Example: tenure why ml/big-1

    Any cluster: kubectl get nodes,pods -A -o json | tenure why ml/big-1 -

    Node by node, with numbers: tenure why ml/big-1 -o wide

    All Pods of a job: tenure why job/train-7

    A card: tenure why gpu-a/3
    """
    with bar_after(1.0, f"looking at {one_line(name)}"):
        answer = _answer(name, files or (), objects or (), place, output)
    say(answer, output)


def _answer(
    name: str, files: Sequence[str], objects: Sequence[str], place: Place, output: OutputFormat
) -> Answer:
    if files:
        place.over(files, place.opened)
        if objects:
            error = InputError("files are asked in place of a ledger", field="--objects")
            raise with_next(error, "leave --objects or the files out")
        from tenure.query.why_objects import answer_objects

        return answer_objects(name, files, output)
    question = WhyQuestion(name=name, output=output)
    if not objects:
        return place.ask("why", answer_why, question)
    from tenure.manifests import as_admitted, read_manifests

    manifests = as_admitted(read_manifests(objects))
    with place.opened("a service knows its objects: leave --objects out") as source:
        return answer_why(source, question, EVERYBODY, manifests)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyQuestion:
    """Why a Pod waits, or where it went; why a card is not free."""

    name: str
    output: OutputFormat = OutputFormat.TABLE


def answer_why(
    source: Ledger, question: WhyQuestion, sight: Sight, manifests: Manifests | None = None
) -> Answer:
    """
    Answer why something is as it is.

    What would make a Pod fit names Pods of all namespaces, so it is told to whoever sees them.

    Raises:
        InputError: the ledger knows no such name, or it is no name of a Pod, a node or a card.
    """
    from ledger.store.reading import pod_queries
    from ledger.store.reading.report_rows import PodSummary

    answer, output = Answer(), question.output
    readings = parse_name(question.name)
    now_us = time_of(source).now_us
    stories: list[PodStory] = []
    with source.connection.begin():
        meant = first_known(source, readings, sight)
        match meant:
            case PodName(namespace=namespace, name=pod):
                found = pod_queries.pods(source.connection, pod=(namespace, pod))
                uid, _ = sight.binding.get(str(meant), ("", ""))
                if uid and uid not in {each.pod_uid for each in found}:
                    found.append(PodSummary(pod_uid=uid, namespace=namespace, pod_name=pod))
                ever = [_story(source, each, sight) for each in found]
                there = [story for story in ever if story.state in {WAITING, PLACED}]
                stories = (there or ever)[-1:]  # one refused at admission if there is no other
            case OwnerName(kind=kind, name=owner, namespace=namespace):
                within = namespace or sight.namespace or None
                found = pod_queries.pods(
                    source.connection, owner=f"{kind}/{owner}", namespace=within
                )
                stories = [_story(source, each, sight) for each in found]
            case CardName(node=node, device_type=device_type, minor=minor):
                sight.expect_whole("why a card is not free")
                _why_devices(
                    source,
                    now_us,
                    output,
                    node,
                    answer.out,
                    device_type=device_type,
                    minor=minor,
                )
            case NodeName(node=node):
                sight.expect_whole("why a card is not free")
                _why_devices(source, now_us, output, node, answer.out)
            case CpuName():
                error = InputError(
                    "why asks about Pods, nodes and cards", place=repr(question.name)
                )
                raise with_next(error, f"ask who holds it: tenure who {meant}")
    for story in stories:
        if story.state == WAITING and story.path in sight.in_part:
            answer.note(f"{story.path}: {sight.in_part[story.path]}")
    if stories:
        stories = [_with_note(source, story) for story in stories]
        if any(holder.cpuset for story in stories for holder in story.holders):
            with source.connection.begin():
                words = kernel_words(source, sight)
            stories = [
                replace(story, kernel=tuple(w for w in words if w.row.pod_uid == story.pod.pod_uid))
                for story in stories
            ]
        prospects = _prospects(source, stories, manifests, answer) if sight.whole else None
        _write_stories(stories, now_us, output, prospects, answer.out)
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStory:
    """Where one Pod stands, and the events that say so."""

    pod: PodSummary
    state: str
    holders: tuple[HolderRow, ...]
    refusal: RefusalRow | None
    refusals: int
    note: str = ""
    kernel: tuple[KernelWord, ...] = ()

    @property
    def path(self) -> str:
        """Return `namespace/name`."""
        return f"{self.pod.namespace}/{self.pod.pod_name}"

    @property
    def lost(self) -> HolderRow | None:
        """Return what it holds of a lost node, if that is where it stands."""
        from ledger.domain.log.state import LOST

        return next((each for each in self.holders if each.phase == LOST), None)

    @property
    def reasons(self) -> tuple[RefusalReason, ...]:
        """Return the reasons of the newest refusal, by number of nodes."""
        from ledger.domain.log.events import RequestRefused, decode_event

        if self.refusal is None:
            return ()
        event = decode_event(RequestRefused.event_type, self.refusal.body)
        assert isinstance(event, RequestRefused), self.refusal
        return tuple(sorted(event.reasons, key=lambda reason: (-reason.nodes, reason.reason)))


def _prospects(
    source: Ledger, stories: Sequence[PodStory], manifests: Manifests | None, answer: Answer
) -> Prospects | None:
    """
    Return what would make the one Pod fit now.

    None for several Pods, for one with a place or about to be bound, and for one that breaks rules.
    """
    by_rule = [reason.nodes == 0 for story in stories for reason in story.reasons]
    waits = [story for story in stories if story.state == WAITING and not story.note]
    if len(stories) != 1 or not waits or (by_rule and all(by_rule)):
        return None
    from scheduler.cluster.snapshot import read_objects, settings_of, snapshot_of_ledger
    from scheduler.whatif.prospects import prospects_of

    settings = settings_of(source)
    objects = None if manifests is None else read_objects(manifests, settings)
    for each in objects.unreadable if objects else ():
        answer.warn(each)
    cluster = snapshot_of_ledger(source, objects, settings)
    return prospects_of(stories[0].pod.pod_uid, cluster)


def _story(source: Ledger, pod: PodSummary, sight: Sight) -> PodStory:
    from ledger.store.reading import pod_queries
    from ledger.store.reading.views import When

    path = PodName(namespace=pod.namespace, name=pod.pod_name)
    ever = [
        holder
        for holder in who.find_holders(source, path, When(ever=True))
        if holder.pod_uid == pod.pod_uid and holder.position == pod.reserved_position
    ]
    refusal = None
    if pod.refused_position:
        refusal = next(pod_queries.refusals(source.connection, position=pod.refused_position), None)
    story = PodStory(
        pod=pod,
        state=state_of(pod, refusal, held=any(each.closed_at_us is None for each in ever)),
        holders=tuple(ever),
        refusal=refusal,
        refusals=pod_queries.refusal_count(source.connection, pod_uid=pod.pod_uid),
    )
    uid, why = sight.binding.get(story.path, ("", ""))
    if uid != pod.pod_uid or story.state == PLACED:  # by the ledger it is bound by now
        return story
    return replace(story, state=WAITING, refusal=None, note=why)


def _with_note(source: Ledger, story: PodStory) -> PodStory:
    """Return the story with what its lost node means, or that the search for cards was cut."""
    from ledger.domain.dialects.registry import may_be_cut
    from ledger.domain.log.events import PodReserved

    lost = story.lost
    if lost is not None:
        held = ", ".join(dict.fromkeys(map(held_text, story.holders)))
        return replace(
            story,
            note=f"still held, and not counted: {held}. It opens when the machine registers again"
            " and nothing of it runs there, or by your word: tenure ledger clear"
            f" {quote(lost.node_name)} --reason WHY",
        )
    if story.state != PLACED or not may_be_cut(story.holders[0].dialect):
        return story
    for recorded in source.read_events(after=story.pod.reserved_position - 1, limit=1):
        if isinstance(recorded.event, PodReserved):
            from ledger.domain.annotations.tenure import read_search_cut

            why = read_search_cut(recorded.event.annotations)
            note = f"the search for cards was cut short: {why}" if why else ""
            return replace(story, note=note)
    return story


def _write_stories(
    stories: Sequence[PodStory],
    now_us: int,
    output: OutputFormat,
    prospects: Prospects | None,
    out: TextIO,
) -> None:
    records = [_story_record(story, now_us) for story in stories]
    if output.is_table and len(stories) == 1:
        if prospects is not None and prospects.never:
            out.write(f"never as it is: {one_line(prospects.never)}\n")
        _write_story(stories[0], now_us, out)
        if prospects is not None:
            from tenure.query.prospects import write_prospects

            write_prospects(prospects, output, out)
        return
    if prospects is not None:
        from tenure.query.prospects import record_of

        records[0] |= record_of(prospects)
    write_records(records, map(_story_texts, stories), output, (POD_COLUMNS, POD_CSV), out)


def write_records(
    records: Sequence[dict[str, Any]],
    texts: Iterable[dict[str, Any]],
    output: OutputFormat,
    columns: tuple[Sequence[Column], Sequence[Column]],
    out: TextIO,
) -> None:
    """Write Pods as a table or as data; `texts` has more cells, `columns` the table's and CSV's."""
    rows = [record | more for record, more in zip(records, texts, strict=True)]
    document = records[0] if len(records) == 1 else records
    write_answer(output, rows, columns[not output.is_table], document=document, out=out)


def _story_record(story: PodStory, now_us: int) -> dict[str, Any]:
    refusal = story.refusal
    waits = story.state in {WAITING, REFUSED}
    event = refusal.position if waits and refusal else story.pod.reserved_position
    return {
        "path": story.path,
        "pod_uid": story.pod.pod_uid,
        "owner": story.pod.owner,
        "state": story.state,
        "since": iso_time(since_us) if (since_us := _since_us(story)) else "",
        "message": refusal.message if waits and refusal else story.note,
        "shape": refusal.shape if refusal else "",
        "reasons": [*map(asdict, story.reasons)] if waits else [],
        "refusals": story.refusals,
        "event": event,
        "policy": refusal.policy if waits and refusal else _policy(story),
        "holders": [holder_record(holder, now_us=now_us) for holder in story.holders],
        **({"kernel": [one.record for one in story.kernel]} if story.kernel else {}),
    }


def write_reasons(rows: Sequence[dict[str, Any]], out: TextIO) -> None:
    """Write why a Pod waits as a table, and below it what its advice means."""
    from scheduler.decide.outcome import what_release_means

    columns = [column for column in _REASON_COLUMNS if any(row[column.key] for row in rows)]
    write_table(rows, columns, out)
    if told := what_release_means(row["remedy"] for row in rows):
        out.write(f"{told}\n")


def _story_texts(story: PodStory) -> dict[str, Any]:
    first = story.reasons[0] if story.reasons and story.state in {WAITING, REFUSED} else None
    held = ", ".join(held_text(holder) for holder in story.holders)
    ended = next((h.end_reason for h in story.holders if h.end_reason), "")
    waits = story.note if story.state == WAITING else ""
    return {
        "since_text": format_time(since_us) if (since_us := _since_us(story)) else "",
        "held_text": held if story.state == PLACED else "",
        "message": first.reason if first else waits or ended or _policy(story),
    }


def _since_us(story: PodStory) -> int:
    if story.state in {WAITING, REFUSED} and story.refusal is not None:
        return story.refusal.at_us
    ends = [h.closed_at_us for h in story.holders if h.closed_at_us is not None]
    if story.state == ENDED and ends:
        return max(ends)
    return min((h.opened_at_us for h in story.holders), default=0)


def _policy(story: PodStory) -> str:
    return story.holders[0].policy if story.holders else ""


def _write_story(story: PodStory, now_us: int, out: TextIO) -> None:
    path = one_line(story.path)
    if story.state in {WAITING, REFUSED} and story.refusal is not None:
        lines = _waiting_lines(story, story.refusal, now_us)
        out.writelines(one_line(line) + "\n" for line in lines)
        if story.reasons:
            write_reasons([*map(asdict, story.reasons)], out)
        return
    if story.state == WAITING:
        out.write(f"{path} waits to be bound, {one_line(story.note)}\n")
        return
    since = format_time(_since_us(story))
    if story.state == ENDED:
        reason = next((h.end_reason for h in story.holders if h.end_reason), "")
        out.write(
            f"{path} holds nothing since {since}{f': {one_line(reason)}' if reason else ''}\n"
        )
    else:
        waited = f", after {story.refusals} refusals" if story.refusals else ""
        by = f" by policy {_policy(story)}" if _policy(story) else ""
        given = f"since {since}: event {story.pod.reserved_position}{by}{waited}"
        lost = story.lost
        if lost is None:
            out.write(f"{path} has its place {given}\n")
        else:
            when = format_time(lost.counted_until_us or 0)
            out.write(
                f"{path} lost its node {one_line(lost.node_name)} at {when}; placed {given}\n"
            )
        if story.note:
            out.write(f"{one_line(story.note)}\n")
        who.write_lines([one.line for one in story.kernel], out)
    from ledger.domain.log.events import CLAIM

    only_claims = all(holder.holder == CLAIM for holder in story.holders)
    _write_holders(story.holders, now_us, out, "CLAIM" if only_claims else "POD")


def _write_holders(
    holders: Sequence[HolderRow], now_us: int, out: TextIO, title: str = "POD"
) -> None:
    rows = [shown(holder_record(holder, now_us=now_us)) for holder in holders]
    columns = [c for c in HOLDER_COLUMNS if not c.wide and any(row.get(c.key) for row in rows)]
    columns = [replace(c, title=title) if c.title == "POD" else c for c in columns]
    write_table(rows, columns, out)


def _waiting_lines(story: PodStory, refusal: RefusalRow, now_us: int) -> Iterator[str]:
    ago = format_duration(max(0, now_us - refusal.at_us))
    at = f"{format_time(refusal.at_us)} ({ago} ago): event {refusal.position}"
    asks = f", asks for {refusal.shape}" if refusal.shape else ""
    times = "once" if story.refusals == 1 else f"{story.refusals} times"
    waits = f"waits{asks}; refused {times}, last {at}"
    yield f"{story.path} {f'was refused at admission, {at}' if story.state == REFUSED else waits}"
    yield refusal.message


def _why_devices(
    source: Ledger,
    now_us: int,
    output: OutputFormat,
    node: str,
    out: TextIO,
    *,
    device_type: str | None = None,
    minor: int | None = None,
) -> None:
    from ledger.store.reading import report_queries as queries
    from ledger.store.reading.views import When
    from scheduler.usage.machines import GONE

    devices = [
        each
        for each in devices_told(source, node)
        if device_type in {None, each.device_type} and minor in {None, each.minor}
    ]
    machines = {each.node_uid: each.machine_no for each in queries.nodes(source.connection)}
    changes = queries.health_changes(source.connection, node=node)
    holders = queries.device_holders(
        source.connection, node=node, device_type=device_type, minor=minor
    )
    alone = who.by_claims_alone(source, When(), node)
    like = (device_type or "gpu", minor)
    holders += [e for e in alone if like in {(e.device_type, e.minor), (e.device_type, None)}]
    unknown = who.may_hold(source, When(), node=node, device_type=device_type)
    rows, records = [], []
    closed = closed_by_others(source)
    for device in devices:
        mine = [
            h
            for h in holders
            if (h.node_uid, h.device_type, h.minor)
            == (device.node_uid, device.device_type, device.minor)
        ]
        strangers = [] if device.closed_reason == GONE else _of_device(unknown, device, machines)
        why = closed.get((device.node_uid, device.device_id), "")
        record = _device_record(device, changes, mine, strangers, why)
        each = [holder_record(h, now_us=now_us) for h in (*mine, *strangers)]
        records.append({**record, "holders": each})
        left = record["memory_left_bytes"] if record["memory_capacity_bytes"] else None
        count = f"{len(mine) or ''}{'?' if strangers else ''}"
        rows.append({**record, "memory_left_bytes": left, "holders_text": count})
    document = records[0] if minor is not None and len(records) == 1 else records
    write_answer(output, rows, DEVICE_COLUMNS, document=document, out=out)
    if device_type is None or minor is None:
        return
    holders += unknown
    if not output.is_table:
        return
    if holders:
        out.write("\n")
        _write_holders(holders, now_us, out)
    card = CardName(node=node, device_type=device_type, minor=minor)
    lines = who.unknown_lines(source, card, When(), holders)
    who.write_lines(lines or who.counted_lines(source, card, None), out)


def _of_device(
    unknown: Sequence[HolderRow], device: Device, machines: Mapping[str, int]
) -> list[HolderRow]:
    return [
        holder
        for holder in unknown
        if machines.get(holder.node_uid) == machines.get(device.node_uid)
        and device.device_type in holder.unknown_types.split(",")
    ]


def _device_record(
    device: Device,
    changes: Sequence[HealthRow],
    holders: Sequence[HolderRow],
    strangers: Sequence[HolderRow],
    closed_by: str,
) -> dict[str, Any]:
    observed = [holder for holder in holders if holder.kind == "observed"]
    core = device.core_used_percent + sum(holder.core_percent for holder in observed)
    memory = device.memory_used_bytes + sum(holder.memory_bytes for holder in observed)
    core_left = max(0, device.core_capacity_percent - core)
    memory_left = max(0, device.memory_capacity_bytes - memory)
    state, why = _device_state(
        device, changes, holders, core_left, memory_left, closed_by=closed_by
    )
    if strangers:
        closed = f"{why}; " if state == "closed" and why != UNKNOWN_HOLDER else ""
        state, why = "closed", f"{closed}{UNKNOWN_HOLDER}: {_names(strangers)} may hold it"
    return {
        "card": card_text(device.node_name, device.device_type, device.minor),
        "state": state,
        "why": why,
        "model": device.model,
        "device_id": device.device_id,
        "core_capacity_percent": device.core_capacity_percent,
        "core_left_percent": core_left,
        "memory_capacity_bytes": device.memory_capacity_bytes,
        "memory_left_bytes": memory_left,
        "healthy": device.healthy,
        "closed_reason": device.closed_reason,
    }


def _names(strangers: Sequence[HolderRow]) -> str:
    names = [f"{holder.namespace}/{holder.pod_name}" for holder in strangers]
    more = len(names) - STRANGERS_MAX
    return ", ".join(names[:STRANGERS_MAX]) + (f" and {more} more" if more > 0 else "")


def _device_state(
    device: Device,
    changes: Sequence[HealthRow],
    holders: Sequence[HolderRow],
    core_left: int,
    memory_left: int,
    *,
    closed_by: str,
) -> tuple[str, str]:
    """Return the state of a device in a word, and why it is so in a sentence."""
    if device.closed_reason:
        change = next((c for c in reversed(changes) if c.device_no == device.device_no), None)
        if not device.healthy and change is not None and not change.healthy:
            since = format_time(change.at_us)
            reason = change.reason or "unhealthy"
            if reason == INVENTORY:
                reason = closed_by or "unhealthy in the inventory"
            return "closed", f"{reason} since {since}, event {change.position}"
        return "closed", device.closed_reason
    if not holders:
        return "free", "nobody holds it"
    if any(holder.exclusive for holder in holders):
        return "full", "its holder has it alone"
    if core_left == 0 and device.core_capacity_percent:
        return "full", "its core is given out"
    if memory_left == 0 and device.memory_capacity_bytes:
        return "full", "its memory is given out"
    return "shared", "a Pod that asks for no more than what is left fits"
