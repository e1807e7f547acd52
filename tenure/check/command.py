"""The work of `tenure check`: options in, files read, every object decided, the answer written."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TextIO

from ledger.domain.errors import InputError
from tenure.admission_config import admission_settings
from tenure.check.checker import Checker
from tenure.check.facts import facts_of, priorities_of, user_of, written
from tenure.check.render import write_checked
from tenure.exits import AnswerIsNo, with_next
from tenure.manifests import Manifests, read_manifests
from tenure.output import CheckFormat, OutputFormat
from webhook.decide.review import CREATE, UPDATE
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings

USER: Final = "check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line of `tenure check`, as typed."""

    files: tuple[str, ...]
    operation: str = CREATE
    old: tuple[str, ...] = ()
    user: str = USER
    output: CheckFormat = CheckFormat.TABLE
    settings: AdmissionSettings = DEFAULT_ADMISSION
    config: Path | None = None


def check_command(options: Options, *, out: TextIO | None = None) -> None:
    """
    Run the command. Everything is read before anything is decided; nothing is written.

    Raises:
        InputError: wrong usage or unreadable input.
        AnswerIsNo: an object is refused.
    """
    if (options.operation == UPDATE) != bool(options.old):
        fact = "needs --old" if options.operation == UPDATE else "--old is for UPDATE"
        error = InputError(f"{fact}: operation={options.operation}", field="--operation")
        raise with_next(error, "tenure check new.yaml --operation UPDATE --old old.yaml")
    if options.config is not None:
        options = replace(options, settings=admission_settings(options.config))
    if not options.files:
        error = InputError("missing argument", field="FILE")
        raise with_next(error, "name a file with manifests, or two --config to compare")
    manifests = read_manifests(options.files)
    if not manifests.documents:
        raise with_next(InputError("no object in the input"), "name a file with manifests")
    checker = _checker(options, manifests)
    results = [checker.check(document) for document in manifests.documents]
    if options.output is CheckFormat.DIFF:
        from tenure.check.as_diff import write_diff

        write_diff(manifests.documents, results, out or sys.stdout)
    else:
        write_checked(results, OutputFormat(options.output.value), out or sys.stdout)
    if not all(result.allowed for result in results):
        raise AnswerIsNo


def _checker(options: Options, manifests: Manifests) -> Checker:
    old = read_manifests(options.old).documents if options.old else ()
    return Checker(
        operation=options.operation,
        user=user_of(options.user),
        settings=options.settings,
        facts=facts_of(manifests),
        pods={
            (document.namespace, document.name): written(document)
            for document in manifests.of_kind("Pod")
        },
        priorities=priorities_of(manifests),
        old={(document.kind, document.namespace, document.name): document for document in old},
    )
