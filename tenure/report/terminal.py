"""The map in the terminal: every card while there is room, then every node, then how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from rich.text import Text

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.resources import TYPE_GPU
from scheduler.usage.picture import (
    NONE,
    DeviceNow,
    Many,
    NodeNow,
    Picture,
    cards_of,
    gpu_groups,
    unplaced_cards,
)
from tenure.card_totals import nodes_text, totals_of
from tenure.output import one_line
from tenure.picture import many_text, unplaced_line

DETAILED_NODES_MAX: Final = 24
"""Up to this many nodes each card is a number."""

CARD_ROWS_MAX: Final = 70
"""Rows of one-character cards, each node's after its name, before the next coarser form."""

ROWS_MAX: Final = 48
"""Rows of one-character nodes, before there is the table by model alone."""

PER_ROW: Final = 8
WIDTH_MIN: Final = 80
NAME_MAX: Final = 18
_UNKNOWN_MAX: Final = 12
_CELL: Final = 5
_GRID_CARDS_MAX: Final = 16
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_DIGITS: Final = "12345678#"
_BANDS: Final = ("free", "1-49%", "50-99%", "full")

_FREE: Final = "green"
_PARTLY: Final = "cyan"
_FULL: Final = "bold blue"
_CLOSED: Final = "bold red"
_UNKNOWN: Final = "magenta"
_QUIET: Final = "dim"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """A card as drawn: `unknown` stands for a held one without a name, `shut` for a closed node."""

    card: DeviceNow
    unknown: bool = False
    shut: bool = False


def draw_map(picture: Picture, *, width: int = 80, blocks: bool = True, told: str = "") -> Text:
    """
    Return the map, no line longer than `width`, or than 80 in a narrower terminal.

    Args:
        blocks: False draws levels as digits, for a terminal without Unicode.
        told: which part of a cluster it is.
    """
    width = max(WIDTH_MIN, width)
    everything, nodes = picture.nodes, [node for node in picture.nodes if _has_devices(node)]
    text = Text(no_wrap=True, overflow="crop")
    part = f"{told}\n" if told else ""
    if not nodes:
        text.append(f"{part}no cards on {nodes_text(len(everything))}\n")
        _draw_notes(text, picture, width)
        return text
    if len(nodes) <= DETAILED_NODES_MAX:
        _draw_detail(text, nodes, width)
        text.append("number = % held, + shared, m by memory, ", _QUIET)
    elif (grid := _grid(nodes, width)).rows <= CARD_ROWS_MAX:
        _draw_models(text, nodes)
        _draw_cards(text, grid, blocks)
        text.append(f"one sign a card: {_scale(blocks)} how full, ", _QUIET)
    else:
        _draw_models(text, nodes)
        if len(nodes) <= ROWS_MAX * (width - NAME_MAX - 1):
            _draw_nodes(text, nodes, width, blocks)
            text.append("cards of some nodes: --node NAME\n", _QUIET)
            text.append(f"one sign a node: {_scale(blocks)} how full, ", _QUIET)
    _draw_legend(text)
    if part:
        _wrapped(text, told, width, "")
    bare = len(everything) - len(nodes)
    rest = f"; {nodes_text(bare)} without cards" if bare else ""
    text.append("\n".join(wrap(f"{totals_of(nodes)}{rest}", width)) + "\n")
    _draw_closed(text, nodes, width)
    _draw_unknown(text, nodes, width)
    _draw_notes(text, picture, width)
    return text


def _has_devices(node: NodeNow) -> bool:
    return any(group.devices or group.cards != NONE or group.unplaced for group in node.groups)


def _gpus(node: NodeNow) -> list[_Cell]:
    cards = [card for group in gpu_groups(node) for card in cards_of(group)]
    unknown = unplaced_cards(node)
    idle = [number for number, card in enumerate(cards) if not card.holders]
    preferred = sorted(idle, key=lambda number: (cards[number].is_good, number))
    held = set(preferred[len(preferred) - unknown :]) if unknown else set()
    return [
        _Cell(card=card, unknown=number in held, shut=not node.is_open)
        for number, card in enumerate(cards)
    ]


def _draw_detail(text: Text, nodes: Sequence[NodeNow], width: int) -> None:
    longest = max(len(row) for node in nodes for _, row in _detail_rows(node, PER_ROW))
    columns = min(PER_ROW, max(1, longest))
    names = _names(nodes)
    room = width - columns * _CELL - len(" 100%") - 2
    kinds = [model for node in nodes for model, _ in _detail_rows(node, columns)]
    model_width = max(5, min(14, max(map(len, kinds))))
    name_width = max(4, min(room - model_width, max(map(len, names), default=4)))
    heading = "".join(str(i).ljust(_CELL) for i in range(columns))
    text.append(f"{'NODE':{name_width}} {'MODEL':{model_width}} {heading} HELD\n", "bold")
    for node, name in zip(nodes, names, strict=True):
        for i, (model, row) in enumerate(_detail_rows(node, columns)):
            first = i == 0
            text.append(f"{_fit(name, name_width) if first else '':{name_width}} ")
            text.append(f"{_cut(model, model_width):{model_width}} ", _QUIET)
            for card in row:
                sign, style = _sign_of(card)
                text.append(sign.ljust(_CELL), style)
            text.append(" " * _CELL * (columns - len(row)))
            text.append(f"{totals_of([node]).percent:>4}%\n" if first else "\n")
    text.append("\n")


def _detail_rows(node: NodeNow, columns: int) -> Iterable[tuple[str, Sequence[_Cell]]]:
    """Yield the rows of one node with what stands in the model column: GPUs, then other types."""
    gpus = _gpus(node)
    yield _model(node), gpus[:columns]
    for i in range(columns, len(gpus), columns):
        yield "", gpus[i : i + columns]
    others = [group for group in node.groups if group.device_type != TYPE_GPU]
    for device_type in sorted({group.device_type for group in others}):
        row = [
            _Cell(card=card, shut=not node.is_open)
            for group in others
            if group.device_type == device_type
            for card in cards_of(group)
        ]
        for i in range(0, len(row), columns):
            yield one_line(device_type) if i == 0 else "", row[i : i + columns]


def _names(nodes: Sequence[NodeNow]) -> list[str]:
    """Return the names of the nodes without the domain that all of them end with."""
    names = [one_line(node.name) for node in nodes]
    domains = {name.partition(".")[2] for name in names}
    if len(domains) == 1 and len(set(names)) > 1:
        return [name.partition(".")[0] for name in names]
    return names


def _draw_models(text: Text, nodes: Sequence[NodeNow]) -> None:
    rows: dict[str, list[NodeNow]] = {}
    for node in nodes:
        rows.setdefault(_model(node) or "-", []).append(node)
    titles = ("NODES", "CARDS", "HELD", *(band.upper() for band in _BANDS), "CLOSED")
    text.append(f"{'MODEL':18} {' '.join(title.rjust(6) for title in titles)}\n", "bold")
    for model, members in sorted(rows.items(), key=lambda row: (-len(row[1]), row[0])):
        totals, bands = totals_of(members), _bands(members)
        figures = (f"{totals.nodes:,}", many_text(totals.cards), f"{totals.percent}%")
        counts = (*(f"{bands[band]:,}" for band in _BANDS), f"{totals.closed:,}")
        text.append(f"{_cut(model, 18):18} {' '.join(f.rjust(6) for f in (*figures, *counts))}\n")
    text.append("\n")


def _bands(nodes: Iterable[NodeNow]) -> Counter[str]:
    return Counter(
        _BANDS[3 if level >= WHOLE_PERCENT else 2 if level >= 50 else 1 if cell.card.holders else 0]
        for node in nodes
        for cell in _gpus(node)
        if cell.card.holders or cell.unknown or (cell.card.is_good and not cell.shut)
        for level in (WHOLE_PERCENT if cell.unknown else cell.card.level_percent,)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Nodes beside each other, each its name and a sign for every card; many cards go on below."""

    cells: Sequence[tuple[str, Sequence[_Cell]]]
    name_width: int
    cards_width: int
    columns: int

    @property
    def rows(self) -> int:
        return -(-len(self.cells) // self.columns)


def _grid(nodes: Sequence[NodeNow], width: int) -> _Grid:
    cards = [_gpus(node) for node in nodes]
    names = [_fit(name, NAME_MAX) for name in _names(nodes)]
    cards_width = min(_GRID_CARDS_MAX, max(map(len, cards)))
    name_width = max(map(len, names))
    return _Grid(
        cells=[
            ("" if first else name, row[first : first + cards_width])
            for name, row in zip(names, cards, strict=True)
            for first in range(0, len(row) or 1, cards_width or 1)
        ],
        name_width=name_width,
        cards_width=cards_width,
        columns=max(1, (width + 2) // (name_width + cards_width + 3)),
    )


def _draw_cards(text: Text, grid: _Grid, blocks: bool) -> None:
    for first in range(0, len(grid.cells), grid.columns):
        for i, (name, cards) in enumerate(grid.cells[first : first + grid.columns]):
            text.append("  " if i else "")
            text.append(f"{name:{grid.name_width}} ", _QUIET)
            for card in cards:
                text.append(*_sign(card, blocks))
            text.append(" " * (grid.cards_width - len(cards)))
        text.rstrip()
        text.append("\n")
    text.append("\n")


def _draw_nodes(text: Text, nodes: Sequence[NodeNow], width: int, blocks: bool) -> None:
    """Draw nodes in their order, before each row the name of its first one."""
    names = [_fit(name, NAME_MAX) for name in _names(nodes)]
    name_width = max(map(len, names))
    columns = width - name_width - 1
    for first in range(0, len(nodes), columns):
        text.append(f"{names[first]:{name_width}} ", _QUIET)
        for node in nodes[first : first + columns]:
            text.append(*_node_sign(node, blocks))
        text.append("\n")
    text.append("\n")


def _draw_legend(text: Text) -> None:
    text.append(".", _FREE)
    text.append(" free, ", _QUIET)
    text.append("x", _CLOSED)
    text.append(" node closed, ", _QUIET)
    text.append("!", _CLOSED)
    text.append(" closed,\n", _QUIET)
    text.append("?", _UNKNOWN)
    text.append(" held, which card is not known\n", _QUIET)


def _draw_closed(text: Text, nodes: Sequence[NodeNow], width: int) -> None:
    """Say why Pods that tolerate nothing do not get to nodes, those with one reason together."""
    shut: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        if not node.is_open:
            shut.setdefault(node.closed_because, []).append(one_line(node.name))
    for reasons, names in list(shut.items())[:_UNKNOWN_MAX]:
        shown = ", ".join(names[:4])
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        line = f"closed node: {shown}{more}: {one_line(', '.join(reasons))}"
        _wrapped(text, line, width, _CLOSED)
    if len(shut) > _UNKNOWN_MAX:
        text.append(f"nodes closed for {len(shut) - _UNKNOWN_MAX} more reasons\n", _CLOSED)


def _draw_unknown(text: Text, nodes: Sequence[NodeNow], width: int) -> None:
    hit = [line for node in nodes if (line := unplaced_line(node))]
    hit += [
        f"{one_line(node.name)}/{card.id if card.minor is None else card.minor}"
        f": {one_line(card.closed)}"
        for node in nodes
        for card in (card for group in node.groups for card in group.devices)
        if card.closed and any(holder.state for holder in card.holders)
    ]
    for line in hit[:_UNKNOWN_MAX]:
        _wrapped(text, line, width, _UNKNOWN)
    if len(hit) > _UNKNOWN_MAX:
        text.append(f"{len(hit) - _UNKNOWN_MAX} more such lines\n", _UNKNOWN)


def _draw_notes(text: Text, picture: Picture, width: int) -> None:
    """Say what is held twice, what contradicts itself, and what nobody looked at."""
    for double in picture.double[:_UNKNOWN_MAX]:
        holders = ", ".join(one_line(path) for path in double.holders)
        card = f"{one_line(double.node)}/{double.minor} {one_line(double.id)}".rstrip()
        _wrapped(text, f"held twice: {card}: {holders}", width, _CLOSED)
    for each in picture.contradictions[:_UNKNOWN_MAX]:
        _wrapped(text, f"{one_line(each.object)}: {one_line(each.text)}", width, _UNKNOWN)
    for what, found in (("held twice", picture.double), ("said wrongly", picture.contradictions)):
        if len(found) > _UNKNOWN_MAX:
            text.append(f"{what}: {len(found) - _UNKNOWN_MAX} more\n", _UNKNOWN)
    nodes: Counter[str] = Counter()
    held: dict[str, Many] = {}
    for node in picture.nodes:
        for name, units in node.not_looked_at.items():
            nodes[name] += 1
            more = Many(least=units.held, most=None if units.is_least else units.held)
            held[name] = held.get(name, NONE) + more
    if nodes:
        listed = ", ".join(
            f"{one_line(name)} ({nodes_text(count)}, {many_text(held[name])} held)"
            for name, count in sorted(nodes.items())
        )
        _wrapped(text, f"not looked at: {listed}", width, _QUIET)


def _wrapped(text: Text, line: str, width: int, style: str) -> None:
    text.append("\n".join(wrap(line, width, subsequent_indent="  ")) + "\n", style)


def _sign_of(cell: _Cell) -> tuple[str, str]:
    card = cell.card
    shared = "+" if len(card.holders) > 1 else ""
    if not card.is_good:
        return f"{card.level_percent}!" if card.holders else "!", _CLOSED
    if card.holders:
        memory = "m" if card.by_memory else ""
        style = _FULL if card.level_percent >= WHOLE_PERCENT else _PARTLY
        return f"{card.level_percent}{memory}{shared}", style
    if cell.unknown:
        return "?", _UNKNOWN
    return ("x", _CLOSED) if cell.shut else (".", _FREE)


def _sign(cell: _Cell, blocks: bool) -> tuple[str, str]:
    sign, style = _sign_of(cell)
    if not cell.card.is_good:
        return "!", style
    return (_level(cell.card.level_percent, blocks), style) if cell.card.holders else (sign, style)


def _node_sign(node: NodeNow, blocks: bool) -> tuple[str, str]:
    totals, cells = totals_of([node]), _gpus(node)
    if cells and totals.closed == len(cells):
        return "!", _CLOSED
    if totals.percent == 0 and not any(cell.card.holders for cell in cells):
        return ("x", _CLOSED) if not node.is_open else (".", _FREE)
    style = _FULL if totals.percent >= WHOLE_PERCENT else _PARTLY
    return _level(totals.percent, blocks), _UNKNOWN if totals.unknown else style


def _level(percent: int, blocks: bool) -> str:
    """Return the sign of a level; the last one is kept for what is full."""
    scale = _BLOCKS if blocks else _DIGITS
    last = len(scale) - 1
    return (
        scale[last]
        if percent >= WHOLE_PERCENT
        else scale[min(last - 1, percent * last // WHOLE_PERCENT)]
    )


def _scale(blocks: bool) -> str:
    return _BLOCKS if blocks else f"{_DIGITS[0]}..{_DIGITS[-2]}{_DIGITS[-1]}"


def _model(node: NodeNow) -> str:
    names = {one_line(group.model or "gpu") for group in gpu_groups(node)}
    return ",".join(
        sorted({name.removeprefix("NVIDIA-").removeprefix("NVIDIA ") for name in names})
    )


def _cut(text: str, width: int) -> str:
    """Return at most `width` characters; the beginning of a model tells it apart."""
    return text if len(text) <= width else f"{text[: width - 1]}~"


def _fit(text: str, width: int) -> str:
    """Return at most `width` characters; both ends of a name tell it apart."""
    if len(text) <= width:
        return text
    kept = width - 1
    return f"{text[: (kept + 1) // 2]}~{text[len(text) - kept // 2 :]}"
