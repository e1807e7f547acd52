"""ResourceQuotas from files, translated and written out to be applied."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, BinaryIO, Final, TextIO

from ledger.domain.errors import InputError
from tenure.exits import note, warn, with_next
from tenure.manifests import Document, read_manifests
from tenure.output import write_json, write_yaml
from webhook.decide.settings import DomainSetting
from webhook.decide.validating.quota import translate_quota

KIND: Final = "ResourceQuota"

_SERVERS: Final = frozenset(
    {"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"}
)
"""Metadata that the API server writes; a manifest to apply has none of it."""


def answer_translate(
    files: Sequence[str],
    *,
    domain: str,
    as_json: bool,
    stdin: BinaryIO | None = None,
    out: TextIO | None = None,
) -> None:
    """
    Write every ResourceQuota of the input with what it has to count beside its cards.

    Rule: design section 8, Guests in the cluster.

    Raises:
        InputError: a file that can't be read, a quota that can't, or none at all.
    """
    documents = read_manifests(files, stdin=stdin).documents
    quotas = [document for document in documents if document.kind == KIND]
    if not quotas:
        error = InputError(f"no {KIND} in the input: objects={len(documents)}")
        raise with_next(error, "kubectl get resourcequota -A -o yaml | tenure quota translate -")
    left_out = len(documents) - len(quotas)
    if left_out:
        warn(f"objects of other kinds left out: {left_out}")
    result = [_translated(document, DomainSetting(domain)) for document in quotas]
    target = out or sys.stdout
    if as_json:
        write_json({"apiVersion": "v1", "kind": "List", "items": result}, target)
        return
    for number, quota in enumerate(result):
        if number:
            target.write("---\n")
        write_yaml(quota, target)


def _translated(document: Document, domain: DomainSetting) -> dict[str, Any]:
    try:
        quota = translate_quota(document.body, domain)
    except InputError as error:
        raise document.blame(error) from None
    if quota == document.body:
        note(f"nothing to add: {document.title}")
    written = document.body["metadata"]
    kept = {key: value for key, value in quota.items() if key != "status"}
    metadata = {key: value for key, value in written.items() if key not in _SERVERS}
    return {**kept, "metadata": metadata}
