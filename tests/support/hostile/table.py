"""
All rows of docs/threat-model.md, a module for each attacker.

A row says who calls, what they try and what came of it. `tests/unit/test_threat_model.py` plays
every row and compares the page with what came. A new row is one more `Attack` of its module.
"""

from __future__ import annotations

from typing import Final

from tests.support.hostile import leaf, namespace, node, node_files, port

ATTACKS: Final = (
    *port.ATTACKS,
    *leaf.ATTACKS,
    *namespace.ATTACKS,
    *node.ATTACKS,
    *node_files.ATTACKS,
)
