"""The cluster's ConfigMap of shared templates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledger.domain.errors import InputError
from ledger.domain.kube.shared_templates import SharedTemplate, read_shared_templates
from ledger.domain.resources import GPU_TEMPLATES_KEY, GPU_TEMPLATES_NAME, GPU_TEMPLATES_NAMESPACE
from scheduler.cluster.documents import Document, section

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
