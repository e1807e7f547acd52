"""Whether two settings say the same of requests: files, a ledger's settings, a webhook's word."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TextIO

from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import found_in
from ledger.domain.vocabulary import Vocabulary
from tenure.exits import AnswerIsNo, with_next
from tenure.output import Column, OutputFormat, write_answer
from tenure.settings import ADMISSION, SCHEDULER, keys_of, read_admission, read_one, read_scheduling
from tenure.sources.text import InputFile, read_source

DIGEST: Final = "vocabulary"
"""The key under which digests differ where only they are known."""
_DIGEST_LENGTH: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedVocabulary:
    """What one place says requests mean; of a webhook its digest. `is_path`: the name is a file."""

    name: str
    digest: str
    keys: Mapping[str, str] | None = None
    is_path: bool = False

    @property
    def title(self) -> str:
        """Return the name as the head of a column."""
        return self.name if self.is_path else self.name.upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """One key that two places set differently; empty where one does not set it."""

    key: str
    first: str
    second: str


def told_by(name: str, vocabulary: Vocabulary) -> StatedVocabulary:
    """Return what a vocabulary says, by the keys of the settings files."""
    keys = {key.path: str(getattr(vocabulary, key.fields[0])) for key in keys_of(Vocabulary)}
    del keys["deviceTypes"]
    for kind in vocabulary.unit_types:
        said = {
            "resource": kind.resource,
            "unit": str(kind.unit),
            "memory": kind.memory,
            "aliases": ", ".join(kind.aliases),
            "virtualFunctions": str(kind.virtual_functions).lower(),
            "modelLabel": kind.model_label,
            "uniqueIds": str(kind.unique_ids).lower(),
        }
        keys |= {f"deviceTypes.{kind.name}.{key}": text for key, text in said.items()}
    return StatedVocabulary(name=name, digest=vocabulary.digest, keys=keys)


def differences(first: StatedVocabulary, second: StatedVocabulary) -> list[SettingDifference]:
    """Return every key in which two places differ, by name; none where their digests are one."""
    if first.digest == second.digest:
        return []
    if first.keys is None or second.keys is None:
        return [SettingDifference(key=DIGEST, first=first.digest, second=second.digest)]
    return [
        SettingDifference(key=key, first=first.keys.get(key, ""), second=second.keys.get(key, ""))
        for key in sorted({*first.keys, *second.keys})
        if first.keys.get(key, "") != second.keys.get(key, "")
    ]


def vocabulary_of_file(path: Path) -> Vocabulary:
    """Return what a settings file of any kind says. Raises InputError with file, line and field."""
    source = read_source(path)
    if _kind_of(source) == SCHEDULER:
        return read_one(source, SCHEDULER, read_scheduling).vocabulary
    return read_one(source, ADMISSION, read_admission).vocabulary


def compare_command(
    files: Sequence[Path],
    *,
    objects: Sequence[str],
    ledger: str | None,
    digest: str | None,
    output: OutputFormat,
    out: TextIO | None = None,
) -> None:
    """
    Say in which keys a settings file differs from another one, a ledger or a webhook.

    Raises:
        InputError: wrong usage or unreadable input.
        AnswerIsNo: they differ.
    """
    if objects:
        error = InputError("settings are compared by themselves", field="FILE")
        raise with_next(error, "leave the objects out, or give one --config alone")
    told = [replace(told_by(str(path), vocabulary_of_file(path)), is_path=True) for path in files]
    if ledger is not None:
        told.append(_of_ledger(ledger))
    if digest is not None:
        told.append(_of_webhook(digest))
    if len(told) != 2:
        error = InputError(f"two settings are compared: given={len(told)}", field="--config")
        raise with_next(error, "tenure check --config scheduler.yaml --config admission.yaml")
    first, second = told
    found = differences(first, second)
    columns = (
        Column(key="key", title="KEY"),
        Column(key="first", title=first.title),
        Column(key="second", title=second.title),
    )
    rows = [{"key": one.key, "first": one.first, "second": one.second} for one in found]
    stream = out or sys.stdout
    if rows or output is not OutputFormat.TABLE:
        write_answer(output, rows, columns, out=stream)
    else:
        stream.write(f"{first.name} and {second.name} say the same of requests: {first.digest}\n")
    if found:
        raise AnswerIsNo


def _kind_of(source: InputFile) -> object:
    first = next((document for document in source.documents if document is not None), None)
    return found_in(first, "kind")


def _of_ledger(url: str) -> StatedVocabulary:
    from scheduler.cluster.snapshot import settings_of
    from tenure.opening import opened

    with opened(url) as source:
        return told_by("the ledger", settings_of(source).vocabulary)


def _of_webhook(digest: str) -> StatedVocabulary:
    text = digest.lower()
    if len(text) != _DIGEST_LENGTH or not set(text) <= set("0123456789abcdef"):
        error = InputError(f"not a SHA-256 in hexadecimal: value={digest!r}", field="--vocabulary")
        raise with_next(error, "copy it from the metric tenure_admission_vocabulary_info")
    return StatedVocabulary(name="the webhook", digest=text)
