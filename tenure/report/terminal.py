"""The map in the terminal: every card while there is room, then every node, then how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from rich.text import Text

from ledger.domain.resources import TYPE_GPU
from scheduler.usage.model import WHOLE, CardNow, MappedNode
from tenure.output import one_line

DETAILED_NODES_MAX: Final = 24
"""Up to this many nodes each card is a number."""

ROWS_MAX: Final = 48
"""Rows of one-character cards, and of one-character nodes, before the next coarser form."""

PER_ROW: Final = 8
WIDTH_MIN: Final = 80
_UNKNOWN_MAX: Final = 12
_CELL: Final = 5
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
class CardTotals:
    """How the cards of some nodes stand."""

    nodes: int
    cards: int
    percent: int
    free: int
    closed: int
    unknown: int

    def __str__(self) -> str:
        parts = [f"{self.percent} % held", f"{self.free:,} free"]
        if self.closed:
            parts.append(f"{self.closed:,} closed")
        if self.unknown:
            parts.append(f"{self.unknown:,} unknown")
        cards = f"{self.cards:,} card{'' if self.cards == 1 else 's'}"
        return f"{_nodes(self.nodes)}, {cards}: {', '.join(parts)}"


def draw_map(nodes: Sequence[MappedNode], *, width: int = 80, blocks: bool = True) -> Text:
    """
    Return the map, no line longer than `width`, or than 80 in a narrower terminal.

    `blocks` False draws levels as digits, for a terminal without Unicode.
    """
    width = max(WIDTH_MIN, width)
    everything, nodes = nodes, [node for node in nodes if node.cards]
    text = Text(no_wrap=True, overflow="crop")
    if not nodes:
        text.append(f"no cards on {_nodes(len(everything))}\n")
        return text
    if len(nodes) <= DETAILED_NODES_MAX:
        _draw_detail(text, nodes, width)
        text.append("number = % held, + shared, m by memory, ", _QUIET)
    elif _card_rows(nodes, width) <= ROWS_MAX:
        _draw_models(text, nodes)
        _draw_cards(text, nodes, width, blocks)
        text.append(f"one sign a card: {_scale(blocks)} how full, ", _QUIET)
    else:
        _draw_models(text, nodes)
        if len(nodes) <= ROWS_MAX * width:
            _draw_nodes(text, nodes, width, blocks)
            text.append(f"one sign a node: {_scale(blocks)} how full, ", _QUIET)
    _draw_legend(text)
    bare = len(everything) - len(nodes)
    rest = f"; {_nodes(bare)} without cards" if bare else ""
    text.append(f"{totals_of(nodes)}{rest}\n")
    _draw_unknown(text, nodes, width)
    return text


def totals_of(nodes: Iterable[MappedNode]) -> CardTotals:
    """Return how the GPUs of the nodes stand together; unknown holders count as whole cards."""
    nodes = list(nodes)
    cards = [card for node in nodes for card in _gpus(node)]
    unknown = sum(node.unknown_cards for node in nodes)
    held = sum(card.level_percent for card in cards) + WHOLE * unknown
    free = sum(1 for card in cards if not card.tenants and not card.unhealthy)
    return CardTotals(
        nodes=len(nodes),
        cards=len(cards),
        percent=min(WHOLE, held // len(cards)) if cards else 0,
        free=max(0, free - unknown),
        closed=sum(card.unhealthy for card in cards),
        unknown=unknown,
    )


def _nodes(count: int) -> str:
    return f"{count:,} node{'' if count == 1 else 's'}"


def _draw_detail(text: Text, nodes: Sequence[MappedNode], width: int) -> None:
    columns = min(
        PER_ROW, max(len(row) for node in nodes for _, row in _detail_rows(node, PER_ROW))
    )
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
            text.append(f"{_fit(model, model_width):{model_width}} ", _QUIET)
            for card in row:
                sign, style = _cell(node, card)
                text.append(sign.ljust(_CELL), style)
            text.append(" " * _CELL * (columns - len(row)))
            text.append(f"{totals_of([node]).percent:>4}%\n" if first else "\n")
    text.append("\n")


def _detail_rows(node: MappedNode, columns: int) -> Iterable[tuple[str, Sequence[CardNow]]]:
    """Yield the rows of one node with what stands in the model column: GPUs, then other types."""
    gpus = _gpus(node)
    yield _model(node), gpus[:columns]
    for i in range(columns, len(gpus), columns):
        yield "", gpus[i : i + columns]
    others = [card for card in node.cards if card.device_type != TYPE_GPU]
    for device_type in sorted({card.device_type for card in others}):
        row = [card for card in others if card.device_type == device_type]
        for i in range(0, len(row), columns):
            yield one_line(device_type) if i == 0 else "", row[i : i + columns]


def _gpus(node: MappedNode) -> list[CardNow]:
    return [card for card in node.cards if card.device_type == TYPE_GPU]


def _names(nodes: Sequence[MappedNode]) -> list[str]:
    """Return the names of the nodes without the domain that all of them end with."""
    names = [one_line(node.name) for node in nodes]
    domains = {name.partition(".")[2] for name in names}
    if len(domains) == 1 and len(set(names)) > 1:
        return [name.partition(".")[0] for name in names]
    return names


def _draw_models(text: Text, nodes: Sequence[MappedNode]) -> None:
    rows: dict[str, list[MappedNode]] = {}
    for node in nodes:
        rows.setdefault(_model(node) or "-", []).append(node)
    titles = ("NODES", "CARDS", "HELD", *(band.upper() for band in _BANDS), "CLOSED")
    text.append(f"{'MODEL':18} {' '.join(title.rjust(6) for title in titles)}\n", "bold")
    for model, members in sorted(rows.items(), key=lambda row: (-len(row[1]), row[0])):
        totals, bands = totals_of(members), _bands(members)
        figures = (f"{totals.nodes:,}", f"{totals.cards:,}", f"{totals.percent}%")
        counts = (*(f"{bands[band]:,}" for band in _BANDS), f"{totals.closed:,}")
        text.append(f"{_fit(model, 18):18} {' '.join(f.rjust(6) for f in (*figures, *counts))}\n")
    text.append("\n")


def _bands(nodes: Iterable[MappedNode]) -> Counter[str]:
    """Return how many GPUs there are of each level; free ones are open and without tenants."""
    return Counter(
        _BANDS[3 if level >= WHOLE else 2 if level >= 50 else 1 if card.tenants else 0]
        for node in nodes
        for card in _gpus(node)
        if card.tenants or not card.unhealthy
        for level in (card.level_percent,)
    )


def _draw_cards(text: Text, nodes: Sequence[MappedNode], width: int, blocks: bool) -> None:
    for line in _lines(nodes, width):
        for i, node in enumerate(line):
            text.append(" " if i else "")
            for card in _gpus(node):
                text.append(*_sign(node, card, blocks))
        text.append("\n")
    text.append("\n")


def _lines(nodes: Sequence[MappedNode], width: int) -> Iterable[list[MappedNode]]:
    """Yield the nodes that fit on one line, GPUs next to each other, nodes a blank apart."""
    line: list[MappedNode] = []
    used = 0
    for node in nodes:
        cards = len(_gpus(node))
        if line and used + cards > width:
            yield line
            line, used = [], 0
        line.append(node)
        used += cards + 1
    if line:
        yield line


def _card_rows(nodes: Sequence[MappedNode], width: int) -> int:
    return sum(1 for _ in _lines(nodes, width))


def _draw_nodes(text: Text, nodes: Sequence[MappedNode], width: int, blocks: bool) -> None:
    for i in range(0, len(nodes), width):
        for node in nodes[i : i + width]:
            text.append(*_node_sign(node, blocks))
        text.append("\n")
    text.append("\n")


def _draw_legend(text: Text) -> None:
    text.append(".", _FREE)
    text.append(" free, ", _QUIET)
    text.append("!", _CLOSED)
    text.append(" closed, ", _QUIET)
    text.append("?", _UNKNOWN)
    text.append(" card unknown\n", _QUIET)


def _draw_unknown(text: Text, nodes: Sequence[MappedNode], width: int) -> None:
    hit = [node for node in nodes if node.unknown_holders]
    for node in hit[:_UNKNOWN_MAX]:
        shown = ", ".join(one_line(pod) for pod in node.unknown_holders[:4])
        more = len(node.unknown_holders) - 4
        rest = f" and {more} more" if more > 0 else ""
        verb = "holds" if len(node.unknown_holders) == 1 else "hold"
        held = f"{node.unknown_cards} of {len(_gpus(node))} cards of {one_line(node.name)}"
        line = f"card unknown: {shown}{rest} {verb} {held}"
        text.append("\n".join(wrap(line, width, subsequent_indent="  ")) + "\n", _UNKNOWN)
    if len(hit) > _UNKNOWN_MAX:
        text.append(f"card unknown on {len(hit) - _UNKNOWN_MAX} more nodes\n", _UNKNOWN)


def _cell(node: MappedNode, card: CardNow) -> tuple[str, str]:
    shared = "+" if card.tenants > 1 else ""
    if card.unhealthy:
        return f"{card.level_percent}!" if card.tenants else "!", _CLOSED
    if card.tenants:
        memory = "m" if card.by_memory else ""
        style = _FULL if card.level_percent >= WHOLE else _PARTLY
        return f"{card.level_percent}{memory}{shared}", style
    if node.unknown_cards and card.device_type == TYPE_GPU:
        return "?", _UNKNOWN
    return ".", _FREE


def _sign(node: MappedNode, card: CardNow, blocks: bool) -> tuple[str, str]:
    sign, style = _cell(node, card)
    if card.unhealthy:
        return "!", style
    return (_level(card.level_percent, blocks), style) if card.tenants else (sign, style)


def _node_sign(node: MappedNode, blocks: bool) -> tuple[str, str]:
    totals = totals_of([node])
    if totals.cards and totals.closed == totals.cards:
        return "!", _CLOSED
    if node.unknown_cards:
        return "?", _UNKNOWN
    if not any(card.tenants for card in _gpus(node)):
        return ".", _FREE
    return _level(totals.percent, blocks), _FULL if totals.percent >= WHOLE else _PARTLY


def _level(percent: int, blocks: bool) -> str:
    """Return the sign of a level; the last one is kept for what is full."""
    scale = _BLOCKS if blocks else _DIGITS
    last = len(scale) - 1
    return scale[last] if percent >= WHOLE else scale[min(last - 1, percent * last // WHOLE)]


def _scale(blocks: bool) -> str:
    return _BLOCKS if blocks else f"{_DIGITS[0]}..{_DIGITS[-2]}{_DIGITS[-1]}"


def _model(node: MappedNode) -> str:
    return ",".join(sorted({one_line(card.model or card.device_type) for card in _gpus(node)}))


def _fit(text: str, width: int) -> str:
    """Return at most `width` characters; both ends of a name tell it apart."""
    if len(text) <= width:
        return text
    kept = width - 1
    return f"{text[: (kept + 1) // 2]}~{text[len(text) - kept // 2 :]}"
