"""The cards of a report's end by their model: what the map says of them, summed."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.resources import TYPE_GPU
from scheduler.usage.picture import NONE, CardGroup, Many, Picture, cards_of, exactly


@dataclass(slots=True, kw_only=True)
class ModelRow:
    """
    The cards of one model.

    Attributes:
        full, partly: cards that are held whole, or in part.
        level_percent: what is held of all of them; of one that nobody can name all of it.
    """

    model: str
    is_gpu: bool
    nodes: set[str] = field(default_factory=set)
    cards: Many = NONE
    full: Many = NONE
    partly: Many = NONE
    free: Many = NONE
    closed: int = 0
    level_percent: int = 0

    @property
    def percent(self) -> float:
        """Return how much of them is held."""
        most = WHOLE_PERCENT * self.cards.least
        return round(WHOLE_PERCENT * min(most, self.level_percent) / most, 1) if most else 0.0


def models_in(picture: Picture) -> tuple[ModelRow, ...]:
    """Return the cards of a picture by model, GPUs and the most first; other types by type."""
    rows: dict[str, ModelRow] = {}
    for node in picture.nodes:
        for group in node.groups:
            if group.cards == NONE:
                continue
            model, is_gpu = group.model or group.device_type, group.device_type == TYPE_GPU
            row = rows.setdefault(model, ModelRow(model=model, is_gpu=is_gpu))
            row.nodes.add(node.name)
            _add(row, group)
    return tuple(
        sorted(rows.values(), key=lambda row: (not row.is_gpu, -row.cards.least, row.model))
    )


def _add(row: ModelRow, group: CardGroup) -> None:
    devices = cards_of(group)
    levels = [card.level_percent for card in devices if card.holders]
    idle = len(devices) - len(levels) or len(devices)
    row.cards += group.cards
    row.free += group.free
    row.closed += sum(not card.is_good for card in devices)
    held = sum(pod.level_percent for pod in group.unplaced)
    row.level_percent += sum(levels) + min(WHOLE_PERCENT * idle, held)
    if group.mode in {"replicas", "slices"} and group.held is not None:
        row.partly += group.held
        return
    full = sum(level == WHOLE_PERCENT for level in levels)
    row.full += exactly(full + min(idle, sum(pod.cards for pod in group.unplaced)))
    row.partly += exactly(len(levels) - full)
