"""The metrics as documented: every one, with its type and the words that it is exposed with."""

from __future__ import annotations

import re
from pathlib import Path

from webhook.server.metrics import Metrics

DOCS = Path(__file__).parents[4] / "docs"


def test_the_documentation_lists_every_metric() -> None:
    """In the order in which they are exposed."""
    text = (DOCS / "operations.md").read_text()
    shown = re.findall(r"^\| `(tenure_\w+)` \| (\w+) \| (.*) \|$", text, re.MULTILINE)
    found = Metrics().registry.collect()
    assert shown == [
        (f"{one.name}_total" if one.type == "counter" else one.name, one.type, one.documentation)
        for one in found
    ]
