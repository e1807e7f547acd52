"""`tenure map`: nodes, cards and CPUs in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ledger.domain.errors import InputError
from tenure.asking import Answer, Screen, Sight
from tenure.exits import stdout, with_next
from tenure.kernel import KernelWord, kernel_words
from tenure.live.place import Place, asks, expect_now, say
from tenure.live.place import watch as watch_it
from tenure.opening import moment_of, time_of
from tenure.options import At, Files, Output
from tenure.output import (
    LINE_WIDTH,
    WIDTH_MAX,
    WIDTH_MIN,
    Column,
    OutputFormat,
    one_line,
    write_answer,
)
from tenure.picture import many_record, picture_of_cluster, picture_of_ledger, untold
from tenure.units import format_time

if TYPE_CHECKING:
    from agent.decide.cpus_now import CpusNow
    from ledger.domain.log.events import PodObserved, PodReserved
    from ledger.domain.log.recorded_node import RecordedNode
    from ledger.store.open import Ledger
    from ledger.store.reading.timetravel import Loaded
    from scheduler.cluster.model import Cluster
    from scheduler.decide.settings import SchedulingSettings
    from scheduler.usage.picture import (
        CardGroup,
        Contradicted,
        DeviceNow,
        HolderNow,
        NodeNow,
        Picture,
        Units,
    )

_MAP_COLUMNS: Final = (
    Column(key="node", title="NODE"),
    Column(key="open", title="OPEN"),
    Column(key="device_type", title="TYPE"),
    Column(key="system", title="SYSTEM"),
    Column(key="minor", title="MINOR"),
    Column(key="device_id", title="ID"),
    Column(key="model", title="MODEL"),
    Column(key="level_percent", title="HELD"),
    Column(key="by_memory", title="BY MEMORY"),
    Column(key="tenants", title="TENANTS"),
    Column(key="closed", title="CLOSED"),
    Column(key="unknown_holders", title="UNKNOWN HOLDERS"),
    Column(key="unknown_cards", title="UNKNOWN CARDS"),
)
_CPU_COLUMNS: Final = (
    Column(key="node", title="NODE"),
    Column(key="socket", title="SOCKET", right=True),
    Column(key="numa", title="NUMA", right=True),
    Column(key="core", title="CORE", right=True),
    Column(key="cpu", title="CPU", right=True),
    Column(key="reserved", title="RESERVED"),
    Column(key="holders", title="HOLDERS"),
)


Nodes = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="NAME",
        help="These nodes alone: names or patterns such as 'gpu-00*', divided by commas, or"
        " several times.",
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model", metavar="NAME", help="Cards of these models alone, likewise; '*a100*' too."
    ),
]
Namespaces = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Nodes of which Pods of these namespaces hold something, likewise. Of a live service"
        " a single name: what its Pods hold, for who may see no more.",
    ),
]


@asks(but=("namespace",))
def draw(
    files: Files = None,
    *,
    node: Nodes = None,
    model: Models = None,
    namespace: Namespaces = None,
    at: At = None,
    cpus: Annotated[
        bool, typer.Option("--cpus", help="Sockets, NUMA nodes, cores and who holds them.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Draw it again and again.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.5, max=3600, metavar="SECONDS", help="Between two drawings.")
    ] = 2.0,
    place: Place,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Nodes and cards in the terminal: how full each card is, which are shared, free or closed.

    Example: tenure map --at "2h ago"

    Any cluster: kubectl get nodes,pods -A -o json | tenure map -

    Some of it: tenure map --node 'gpu-00*' --model '*a100*'

    CPUs: tenure map --cpus
    """
    _expect(files or (), at=at, cpus=cpus, watch=watch, output=output)
    place, whose = _within(place, _joined(namespace))
    question = MapQuestion(
        at=at,
        cpus=cpus,
        output=output,
        node=_joined(node),
        model=_joined(model),
        namespace=whose,
        **_screen_here(),
    )
    if files:
        place.over(files, place.opened)
        say(_answer_files(files, question), output)
        return
    if watch:
        watch_it(place, "map", answer_map, lambda width: replace(question, width=width), interval)
        return
    place.print("map", answer_map, question)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapQuestion:
    """
    Nodes with their cards, or with their CPUs, now or at a moment.

    Attributes:
        node, model, namespace: what is shown alone; names and patterns, divided by commas.
        width, blocks, colour: of the screen; see `Screen`.
    """

    at: str | None = None
    cpus: bool = False
    output: OutputFormat = OutputFormat.TABLE
    node: str = ""
    model: str = ""
    namespace: str = ""
    width: int = 80
    blocks: bool = True
    colour: bool = False

    @property
    def screen(self) -> Screen:
        """Where it is shown, within sane bounds."""
        return Screen(width=min(self.width, WIDTH_MAX), blocks=self.blocks, colour=self.colour)

    @property
    def choice(self) -> Choice:
        """What of the cluster is shown."""
        return Choice(
            nodes=words_of(self.node),
            models=words_of(self.model),
            namespaces=words_of(self.namespace),
        )


def answer_map(source: Ledger, question: MapQuestion, sight: Sight) -> Answer:
    """
    Draw the cluster of a ledger.

    Whoever sees one namespace sees the cards that its Pods hold, and how much of each they hold.

    Raises:
        InputError: the moment can't be read.
    """
    if question.cpus:
        return _answer_cpus(source, question, sight)
    answer, at = Answer(), question.at
    now = time_of(source)
    at_us = None if at is None else moment_of(at, now, option="--at", say=answer.note)
    picture = picture_of_ledger(source, at_us, sight)
    answer.note(f"at {format_time(at_us or now.now_us)}")
    if not sight.whole:
        answer.note(f"cards that Pods of namespace {sight.namespace} hold, and what these hold")
    _show(picture, question, answer, not_told=untold(source, at_us, now))
    return answer


def _answer_cpus(source: Ledger, question: MapQuestion, sight: Sight) -> Answer:
    from agent.decide.cpus_now import cpus_of_states
    from ledger.store.reading.timetravel import position_at, state_at

    sight.expect_whole("a map of CPUs")
    answer, at = Answer(), question.at
    now = time_of(source)
    at_us = None if at is None else moment_of(at, now, option="--at", say=answer.note)
    position = source.head().position if at_us is None else position_at(source, at_us)
    loaded = state_at(source, position)
    described, holdings = _told_of_cpus(source, loaded)
    answer.note(f"at {format_time(at_us or now.now_us)}")
    for finding in loaded.findings:
        answer.warn(finding)
    nodes = cpus_of_states(loaded.state.nodes.values(), described, holdings)
    words: Sequence[KernelWord] = ()
    if at_us is None:
        with source.connection.begin():
            words = kernel_words(source, sight)
    _show_cpus(nodes, question, answer, words)
    return answer


def _answer_files(files: Sequence[str], question: MapQuestion) -> Answer:
    from agent.decide.cpus_now import cpus_of_objects
    from scheduler.decide.settings import SchedulingSettings

    settings = SchedulingSettings()
    answer, cluster = Answer(), _cluster_of_files(files, settings)
    if question.cpus:
        _show_cpus(cpus_of_objects(cluster.nodes, cluster.adopted), question, answer)
    else:
        _show(picture_of_cluster(cluster, settings.vocabulary), question, answer)
    return answer


def _expect(
    files: Sequence[str], *, at: str | None, cpus: bool, watch: bool, output: OutputFormat
) -> None:
    if cpus and watch:
        raise InputError("--watch draws cards", field="--watch")
    expect_now(files, watch=watch, at=at)
    if watch and (at is not None or not output.is_table):
        raise InputError("--watch draws what is held now", field="--watch")


def _joined(given: Sequence[str] | None) -> str:
    return ",".join(given or ())


def _within(place: Place, namespaces: str) -> tuple[Place, str]:
    """Ask a service for one namespace by its rights; return what is left to choose by."""
    if place.service is None or not namespaces or any(sign in namespaces for sign in ",*?["):
        return place, namespaces
    return replace(place, service=replace(place.service, namespace=namespaces)), ""


def _screen_here() -> dict[str, Any]:
    """Return what stdout is, in the words of `MapQuestion`."""
    console = stdout()
    return {
        "width": LINE_WIDTH.get() or WIDTH_MIN,
        "blocks": (sys.stdout.encoding or "").lower().replace("-", "") == "utf8",
        "colour": console.is_terminal and not console.no_color,
    }


def _told_of_cpus(
    source: Ledger, loaded: Loaded
) -> tuple[dict[str, RecordedNode], dict[int, PodReserved | PodObserved]]:
    """Return what was said of nodes, by UID, and what opened holdings of CPUs, by position."""
    from ledger.domain.log.events import NodeDescribed, PodObserved, PodReserved
    from ledger.store.reading.kept import events_at, events_of

    positions = [
        holding.opened_position
        for node in loaded.state.nodes.values()
        for holding in node.holdings.values()
        if holding.cpuset
    ]
    with source.connection.begin():
        described = events_of(source.connection, NodeDescribed, loaded.position)
        opened_by = events_at(source.connection, positions)
    return (
        {event.node_uid: event.facts for event in described},
        {
            position: event
            for position, event in opened_by.items()
            if isinstance(event, PodReserved | PodObserved)
        },
    )


def _show_cpus(
    nodes: Sequence[CpusNow],
    question: MapQuestion,
    answer: Answer,
    kernel: Sequence[KernelWord] = (),
) -> None:
    from tenure.report.cpu_map import cpu_records, cpu_rows, draw_cpus

    every, nodes = len(nodes), chosen_cpus(nodes, question.choice)
    if question.choice:
        answer.note(_told(len(nodes), every, question.choice))
    if not question.output.is_table:
        write_answer(
            question.output,
            list(cpu_rows(nodes)),
            _CPU_COLUMNS,
            document=cpu_records(nodes, kernel),
            out=answer.out,
        )
        return
    answer.draw(draw_cpus(nodes, kernel, width=question.screen.width), question.screen)


def _cluster_of_files(files: Sequence[str], settings: SchedulingSettings) -> Cluster:
    from scheduler.cluster.mending import cluster_as_far_as_read
    from scheduler.cluster.snapshot import of_files
    from tenure.manifests import read_manifests, warn_of

    manifests = read_manifests(files)
    cluster = cluster_as_far_as_read(manifests, of_files(settings, manifests))
    warn_of(cluster, files)
    return cluster


def _told(shown: int, every: int, choice: Choice) -> str:
    return f"{shown:,} of {every:,} node{'' if every == 1 else 's'} shown ({one_line(str(choice))})"


def _show(whole: Picture, question: MapQuestion, answer: Answer, *, not_told: str = "") -> None:
    choice = question.choice if whole.nodes or not not_told else Choice()
    picture = chosen(whole, choice)
    told = _told(len(picture.nodes), len(whole.nodes), choice) if choice else ""
    if not question.output.is_table:
        if told:
            answer.note(told)
        write_answer(
            question.output,
            list(_rows_of(picture)),
            _MAP_COLUMNS,
            document={
                **({"untold": not_told} if not_told else {}),
                **picture_record(picture, whole=whole if choice else None),
            },
            out=answer.out,
        )
        return
    from tenure.report.terminal import draw_map

    if not_told:
        answer.out.write(f"{not_told}\n" + ("last known:\n" if picture.nodes else ""))
        if not picture.nodes:
            return
    screen = question.screen
    drawn = draw_map(picture, width=screen.width, blocks=screen.blocks, told=told)
    answer.draw(drawn, screen)


def _rows_of(picture: Picture) -> Iterator[dict[str, Any]]:
    """
    Yield a row per card; each has the Pods beside it that hold cards of its like, not known which.

    `unknown_cards` is how many of those cards they hold together. A node without a card that has
    such Pods gets a row without a minor.
    """
    for node, group in ((each, group) for each in picture.nodes for group in each.groups):
        about = {
            "node": node.name,
            "open": node.is_open,
            "device_type": group.device_type,
            "system": group.system,
            "model": group.model,
            "unknown_holders": " ".join(pod.path for pod in group.unplaced),
            "unknown_cards": sum(pod.cards for pod in group.unplaced),
        }
        for device in group.devices:
            yield {
                **about,
                "minor": device.minor,
                "device_id": device.id,
                "level_percent": device.level_percent,
                "by_memory": device.by_memory,
                "tenants": len(device.holders),
                "closed": not device.is_good,
            }
        if group.unplaced and not group.devices:
            yield about


def picture_record(picture: Picture, *, whole: Picture | None = None) -> dict[str, Any]:
    """
    Return all of the picture as `-o json` has it: an interface, docs/map.md.

    Of a part of a `whole` one also of how many nodes it is a part.
    """
    sums = picture.summary
    return {
        "summary": {
            "nodes": len(picture.nodes),
            **({} if whole is None else {"nodes_in_all": len(whole.nodes)}),
            "cards": many_record(sums.cards),
            "free": many_record(sums.free),
            "gettable": many_record(sums.gettable),
            **({} if picture.is_part else {"percent": asdict(picture.parts)}),
        },
        "nodes": [_node(node) for node in picture.nodes],
        "double": [
            {**asdict(double), "holders": list(double.holders)} for double in picture.double
        ],
        "contradictions": [asdict(each) for each in picture.contradictions],
    }


def _node(node: NodeNow) -> dict[str, Any]:
    return {
        "node": node.name,
        "open": node.is_open,
        "closed_because": list(node.closed_because),
        "groups": [_group(group) for group in node.groups],
        "not_looked_at": _units(node.not_looked_at),
    }


def _group(group: CardGroup) -> dict[str, Any]:
    return {
        "system": group.system,
        "model": group.model,
        "memory_mib": group.memory_mib,
        "mode": group.mode,
        "cards": many_record(group.cards),
        "free": many_record(group.free),
        "gettable": many_record(group.gettable),
        "units": _units(group.units),
        "devices": [_device(device) for device in group.devices],
        "unplaced": [
            {
                "namespace": each.namespace,
                "name": each.name,
                "uid": each.uid,
                "amount": each.amount,
                "unit": each.unit,
            }
            for each in group.unplaced
        ],
    }


def _units(units: Mapping[str, Units]) -> dict[str, Any]:
    return {
        name: {
            "allocatable": each.allocatable,
            "held": {"min": each.held, "max": None} if each.is_least else each.held,
        }
        for name, each in units.items()
    }


def _device(device: DeviceNow) -> dict[str, Any]:
    return {
        "id": device.id,
        "minor": device.minor,
        "healthy": device.healthy,
        "closed": device.closed,
        "holders": [_holder(holder) for holder in device.holders],
    }


def _holder(holder: HolderNow) -> dict[str, Any]:
    return {
        "namespace": holder.namespace,
        "name": holder.name,
        "uid": holder.uid,
        "core_percent": holder.core_percent,
        "memory_mib": holder.memory_mib,
        "whole": holder.whole,
        **({} if holder.users is None else {"pods": list(holder.users)}),
        **({"state": holder.state} if holder.state else {}),
    }


_LIKE_MAX: Final = 3
_ABOUT_NODES: Final = ("Node", "Device", "NodeResourceTopology")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """
    What is asked for. A node is shown where each of them that is not empty has a word for it.

    Attributes:
        models: whatever their case.
        namespaces: of Pods that hold something of the node.
    """

    nodes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Tell whether anything is left out at all."""
        return bool(self.nodes or self.models or self.namespaces)

    def __str__(self) -> str:
        return " ".join(
            f"--{option} {','.join(words)}"
            for option, words in (
                ("node", self.nodes),
                ("model", self.models),
                ("namespace", self.namespaces),
            )
            if words
        )


def words_of(text: str) -> tuple[str, ...]:
    """Return names and patterns (`*`, `?`, `[a-c]`) that commas divide."""
    return tuple(word for each in text.split(",") if (word := each.strip()))


def chosen(picture: Picture, choice: Choice) -> Picture:
    """
    Return the nodes that are asked for, of a model that is asked for the cards of that model alone.

    What is said of a Pod that nobody can tell a node of stays, but for another namespace's.

    Raises:
        InputError: there is none.
    """
    if not choice:
        return picture
    nodes = [
        replace(node, groups=groups, sums=node.sums if groups == node.groups else None)
        for node in picture.nodes
        if _is_node(node.name, choice.nodes)
        if (groups := _groups(node, choice.models)) or not choice.models
        if _is_held(_namespaces(node), choice.namespaces)
    ]
    if not nodes:
        raise _nothing(
            choice,
            nodes=(node.name for node in picture.nodes),
            models=(group.model for node in picture.nodes for group in node.groups),
            namespaces=(name for node in picture.nodes for name in _namespaces(node)),
        )
    shown = {node.name for node in nodes}
    left_out = {node.name for node in picture.nodes} - shown
    return replace(
        picture,
        nodes=tuple(nodes),
        double=tuple(each for each in picture.double if each.node in shown),
        contradictions=tuple(
            each for each in picture.contradictions if _concerns(each, left_out, choice)
        ),
    )


def chosen_cpus(nodes: Sequence[CpusNow], choice: Choice) -> Sequence[CpusNow]:
    """Return the nodes that are asked for. Raises InputError: none, or a model is asked for."""
    if choice.models:
        error = InputError("CPUs are told without a model", field="--model")
        raise with_next(error, "leave it out, or leave --cpus out")
    found = [
        node
        for node in nodes
        if _is_node(node.node, choice.nodes) and _is_held(_owners(node), choice.namespaces)
    ]
    if choice and not found:
        raise _nothing(
            choice,
            nodes=(node.node for node in nodes),
            namespaces=(name for node in nodes for name in _owners(node)),
        )
    return found


def _is_one(name: str, words: Sequence[str]) -> bool:
    return not words or any(fnmatchcase(name, word) for word in words)


def _is_node(name: str, words: Sequence[str]) -> bool:
    """Tell of a node's name; without its domain too, as the map may draw it."""
    return _is_one(name, words) or _is_one(name.partition(".")[0], words)


def _is_model(name: str, words: Sequence[str]) -> bool:
    return _is_one(name.casefold(), [word.casefold() for word in words])


def _is_held(namespaces: Iterable[str], words: Sequence[str]) -> bool:
    return not words or any(_is_one(name, words) for name in namespaces)


def _groups(node: NodeNow, models: Sequence[str]) -> tuple[CardGroup, ...]:
    return tuple(group for group in node.groups if _is_model(group.model, models))


def _namespaces(node: NodeNow) -> set[str]:
    unplaced = {pod.namespace for group in node.groups for pod in group.unplaced}
    cards = (card for group in node.groups for card in group.devices)
    return unplaced | {holder.namespace for card in cards for holder in card.holders}


def _owners(node: CpusNow) -> set[str]:
    return {holder.pod.partition("/")[0] for holder in node.holders}


def _concerns(each: Contradicted, left_out: set[str], choice: Choice) -> bool:
    kind, _, name = each.object.partition(" ")
    if kind in _ABOUT_NODES:
        return name not in left_out
    namespace = name.partition("/")[0]
    return kind != "Pod" or _is_one(namespace, choice.namespaces)


def _nothing(
    choice: Choice,
    *,
    nodes: Iterable[str],
    models: Iterable[str] = (),
    namespaces: Iterable[str] = (),
) -> InputError:
    """Return the error that says which word has nothing, with what looks like it."""
    looks: tuple[tuple[str, str, Sequence[str], Iterable[str], Callable[..., bool]], ...] = (
        ("node", "no node is called", choice.nodes, nodes, _is_node),
        ("model", "no card is of model", choice.models, models, _is_model),
        ("namespace", "nothing is held by namespace", choice.namespaces, namespaces, _is_one),
    )
    for option, fact, words, names, fits in looks:
        known = sorted(set(names) - {""})
        if words and not any(fits(name, words) for name in known):
            error = InputError(f"{fact} {' or '.join(words)}", field=f"--{option}")
            return with_next(error, _did_you_mean(words, known, option))
    error = InputError("no node is all of that", field=str(choice))
    return with_next(error, "leave one of them out")


def _did_you_mean(words: Sequence[str], known: Sequence[str], option: str) -> str:
    by_fold = {
        each: name
        for name in known
        for each in (name.partition(".")[0].casefold(), name.casefold())
    }
    like: list[str] = []
    for word in words:
        core = word.strip("*?").casefold()
        like += [name for fold, name in by_fold.items() if core and core in fold]
        like += [by_fold[fold] for fold in get_close_matches(core, by_fold, n=_LIKE_MAX)]
    if like:
        names = list(dict.fromkeys(like))[:_LIKE_MAX]
        return f"did you mean {' or '.join(one_line(name) for name in names)}?"
    first = f", such as {one_line(known[0])}" if known else ""
    return f"there are {len(known):,} {option}s{first}; * stands for any letters"
