from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import yaml

from tests.support.mutation import mutate
from tests.support.objects import Object
from webhook.decide.settings import DEFAULT_ADMISSION

TEXT: Final = (Path(__file__).parents[2] / "docs" / "admission.md").read_text()


def example(name: str) -> Object:
    """Return the Pod that stands behind a comment of that name."""
    match = re.search(rf"<!-- {name} -->\n```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert match is not None
    body: Object = yaml.safe_load(match[1])
    return body


def test_the_example_is_what_admission_does() -> None:
    """A reader who tries it gets just that Pod."""
    assert mutate(example("before")) == example("after")


def test_the_defaults_in_the_table_are_the_defaults() -> None:
    """Of those that have a value."""
    shown = dict(re.findall(r"^\| `([A-Za-z.]+)` \| `([^`]+)` \|", TEXT, re.MULTILINE))
    rules = DEFAULT_ADMISSION

    assert shown == {
        "domain": str(rules.domain),
        "wholeCards": rules.vocabulary.whole_cards,
        "schedulerName": rules.scheduler_name,
        "takeover.rule": str(rules.takeover.rule),
        "mode": str(rules.mode),
        "slotMode": rules.vocabulary.slot_mode,
        "isolationProviders": ", ".join(rules.isolation_providers),
        "gpushare.unit": rules.vocabulary.gpushare_unit,
        "mgpu.multiMinMemoryMiB": str(rules.vocabulary.mgpu_multi_min_memory_mib),
        "mgpu.maxMemoryMiB": str(rules.vocabulary.mgpu_max_memory_mib),
        "cpu.defaultBindPolicy": rules.vocabulary.default_bind_policy,
        "cpu.boundBy": "koordlet" if rules.koordlet_binds_cpus else "agent",
        "cpu.defaultExclusivePolicy": rules.vocabulary.default_exclusive_policy,
    }
