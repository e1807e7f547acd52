"""GPU share, as its Pods are placed."""

from __future__ import annotations

from typing import Final

from ledger.domain.devices import GPU, DeviceShare
from ledger.domain.dialects.gpushare.annotations import GpuShareAnswer, encode_gpushare_answer
from ledger.domain.dialects.gpushare.demands import UNIT_BYTES
from ledger.domain.dialects.names import Dialect
from ledger.domain.nodes import NodeFacts
from scheduler.decide.dialects.gpushare.choose import choose_gpushare
from scheduler.decide.dialects.protocol import DialectChooser
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings


def _answer(
    placement: Placement,
    gpus: tuple[DeviceShare, ...],
    node: NodeFacts,
    now_ns: int,
    settings: SchedulingSettings,
) -> dict[str, str]:
    answer = GpuShareAnswer(
        card=gpus[0].minor,
        pod_units=placement.request.gpushare_units,
        card_units=_units_per_card(node, UNIT_BYTES[settings.vocabulary.gpushare_unit]),
        assume_time_ns=now_ns,
    )
    return encode_gpushare_answer(answer)


def _units_per_card(node: NodeFacts, unit_bytes: int) -> int:
    """
    Return the units of one card as the node daemon sees them: the mean, rounded down.

    Rule: GPU-sharing contract B.1 (`..._DEV`) and B.5 (16276 MiB are 15 units of GiB).
    """
    units = [card.memory_bytes // unit_bytes for card in node.devices if card.device_type == GPU]
    return sum(units) // max(1, len(units))


CHOOSER: Final = DialectChooser(dialect=Dialect.GPUSHARE, choose=choose_gpushare, answer=_answer)
