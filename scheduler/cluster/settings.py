"""The settings of deciding, as a ledger records them and as the cluster's objects amend them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import section
from ledger.domain.kube.shared_templates import SharedTemplate, read_shared_templates
from ledger.domain.log.codec import decode_value, plain_value
from ledger.domain.proofs.canonical import canonical_json
from ledger.domain.resources import GPU_TEMPLATES_KEY, GPU_TEMPLATES_NAME, GPU_TEMPLATES_NAMESPACE
from ledger.domain.vocabulary import Vocabulary
from scheduler.cluster.documents import Document
from scheduler.decide.settings import SchedulingSettings


def settings_json(settings: SchedulingSettings, *, seed: int) -> str:
    """Return the settings and the seed of a run as canonical JSON, as the ledger records them."""
    return canonical_json({**plain_value(settings), "seed": seed})


def recorded_settings(text: str) -> SchedulingSettings:
    """
    Return the settings that an event of a ledger records, the defaults for an empty text.

    Raises:
        InputError: settings that this release does not know.
    """
    values = json.loads(text or "{}")
    values.pop("seed", None)
    settings: SchedulingSettings = decode_value(SchedulingSettings, values, "settings")
    return settings


def settings_hash(settings: SchedulingSettings, *, seed: int) -> str:
    """Return the hex SHA-256 of the canonical JSON; reservations quote it."""
    return hashlib.sha256(settings_json(settings, seed=seed).encode()).hexdigest()


def simulated(settings: SchedulingSettings, words: Vocabulary | None = None) -> SchedulingSettings:
    """Return the settings as a simulation decides by: every node grants CPUs of a Pod's own."""
    cpu = replace(settings.cpu, bound_by="koordlet")
    return replace(settings, cpu=cpu, vocabulary=words or settings.vocabulary)


def with_templates(
    settings: SchedulingSettings, templates: tuple[SharedTemplate, ...] | None
) -> SchedulingSettings:
    """Return the settings with the templates of the cluster's ConfigMap, where there is one."""
    if templates is None:
        return settings
    return replace(settings, devices=replace(settings.devices, shared_templates=templates))


InText = Callable[[str, str], tuple[Any, ...]]
"""The YAML documents of a text of this name; see `Documents.documents_in`."""


def is_of_templates(document: Document) -> bool:
    """Tell whether a ConfigMap is the one that says how cards are cut (Koordinator 8.7)."""
    return (document.namespace, document.name) == (GPU_TEMPLATES_NAMESPACE, GPU_TEMPLATES_NAME)


def templates_in(document: Document, documents_in: InText) -> tuple[SharedTemplate, ...]:
    """
    Return the templates of the ConfigMap.

    Rule: Koordinator contract 8.7.

    Raises:
        InputError: they can't be read; with the place.
    """
    try:
        return _templates(section(document.body, "data").get(GPU_TEMPLATES_KEY, ""), documents_in)
    except InputError as error:
        field = f"data[{GPU_TEMPLATES_KEY}]"
        within = InputError(str(error), field=field) if error.place else error.within(field)
        raise document.blame(within) from None


def _templates(text: object, documents_in: InText) -> tuple[SharedTemplate, ...]:
    if not isinstance(text, str):
        raise InputError("must be text")
    documents = documents_in(GPU_TEMPLATES_KEY, text)
    if len(documents) > 1:
        raise InputError(f"one document is needed: documents={len(documents)}")
    return read_shared_templates(documents[0] if documents else None)
