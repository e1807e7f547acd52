"""The work of `tenure check`: options in, files read, every object decided, the answer written."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final, TextIO

from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import metadata_of
from tenure.check.checker import Checked, Checker
from tenure.check.facts import facts_of, priorities_of, user_of, written
from tenure.exits import AnswerIsNo, note, printable, with_next
from tenure.manifests import Document, Manifests, read_manifests
from tenure.output import CheckFormat, Column, OutputFormat, fitted, one_line, write_answer
from tenure.settings import admission_settings
from webhook.decide.review import CREATE, UPDATE
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings

_WIDTH: Final = 1_000_000
"""No value is folded: a change of it is one line."""

_COLUMNS: Final = (
    Column(key="namespace", title="NAMESPACE"),
    Column(key="kind", title="KIND"),
    Column(key="name", title="NAME"),
    Column(key="allowed", title="ALLOWED", show=lambda allowed: "yes" if allowed else "no"),
    Column(key="changes", title="CHANGES", right=True),
    Column(key="message", title="MESSAGE", wide=True),
)
_CSV: Final = tuple(
    Column(key=key, title=key)
    for key in ("namespace", "kind", "name", "allowed", "message", "warnings")
)

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
        runtime_classes={one.name: one.body for one in manifests.of_kind("RuntimeClass")},
        old={(document.kind, document.namespace, document.name): document for document in old},
        **({"nearly": _nearly(manifests)} if manifests.of_kind("Node") else {}),
    )


def _nearly(manifests: Manifests) -> Callable[[Mapping[str, Any]], Iterator[str]]:
    """Return what says of a Pod which resources nobody offers, as `why` and `simulate` do."""
    from ledger.domain.request.near_names import NOBODY
    from ledger.domain.request.normalise import examine_pod
    from scheduler.cluster.snapshot import of_files, read_objects, snapshot_of_objects
    from scheduler.decide.outcome import Unplaced
    from scheduler.decide.settings import DEFAULT_SCHEDULING as SETTINGS
    from scheduler.whatif.what_if import what_if_of

    settings = of_files(SETTINGS, manifests)
    cluster = snapshot_of_objects(read_objects(manifests, settings), settings)
    what_if = what_if_of(cluster, "")

    def say(pod: Mapping[str, Any]) -> Iterator[str]:
        named = {**pod, "metadata": {"name": "any", **metadata_of(pod)}}
        with contextlib.suppress(InputError):  # the Pod's own causes say what is wrong with it
            answer = what_if.decide(examine_pod(named, settings.vocabulary)[0])
            if isinstance(answer, Unplaced) and NOBODY in answer.message:
                yield f"spec.containers: {answer.message.partition('. ')[2]}"

    return say


def write_checked(results: Sequence[Checked], output: OutputFormat, out: TextIO) -> None:
    """Write the answer: an array of objects, or a table with every violation below it."""
    rows = [row_of(result) for result in results]
    match output:
        case OutputFormat.JSON | OutputFormat.YAML:
            write_answer(output, rows, _COLUMNS, out=out)
        case OutputFormat.CSV:
            write_answer(output, rows, _CSV, out=out)
        case OutputFormat.TABLE | OutputFormat.WIDE:
            shown = [
                {**row, "changes": _changes(result) or None}
                for row, result in zip(rows, results, strict=True)
            ]
            write_answer(output, shown, _COLUMNS, out=out)
            _write_details(results, out, wide=output is OutputFormat.WIDE)


def row_of(result: Checked) -> dict[str, Any]:
    """Return one entry of the array."""
    return {
        "kind": result.kind,
        "namespace": result.namespace,
        "name": result.name,
        "allowed": result.allowed,
        "message": result.message,
        "causes": [
            {"field": cause.field, "reason": cause.reason, "message": cause.message}
            for cause in result.causes
        ],
        "warnings": list(result.warnings),
        "patch": [operation.as_json() for operation in result.patch],
        "object": dict(result.body),
    }


def _changes(result: Checked) -> int:
    return sum(operation.op != "test" for operation in result.patch)


def _write_details(results: Sequence[Checked], out: TextIO, *, wide: bool) -> None:
    for result in results:
        lines = [f"  {cause}" for cause in result.causes]
        lines += [f"  warning: {text}" for text in result.warnings]
        if lines:
            name = f"{result.namespace}/{result.name}" if result.namespace else result.name
            verdict = "allowed" if result.allowed else "refused"
            title = f"{result.kind} {name} is {verdict}"
            text = "\n" + "\n".join(map(_line, (f"{title}:", *lines))) + "\n"
            out.write(text if wide else fitted(text))


def _line(text: str) -> str:
    return printable(text.replace("\n", " "))


def write_diff(documents: Sequence[Document], results: Sequence[Checked], out: TextIO) -> None:
    """
    Write the diff of each object that changes; say on stderr what is refused, and every warning.

    Both sides are YAML of the whole object in the order of its keys, without its comments.
    """
    for document, result in zip(documents, results, strict=True):
        out.writelines(_diff(document, result))
        about = f"{result.kind} {one_line(f'{result.namespace}/{result.name}'.strip('/'))}"
        for text in _said(result):
            note(f"{about}: {text}".replace("\n", " "))


def _diff(document: Document, result: Checked) -> Iterator[str]:
    name = f"{document.namespace}/{document.name}".strip("/")
    about = one_line(f"{document.place()} {document.kind} {name}")
    for line in unified_diff(
        _lines(written(document)), _lines(result.body), about, f"{about}, as admitted", lineterm=""
    ):
        yield f"{printable(line)}\n"


def _lines(body: Mapping[str, Any]) -> Sequence[str]:
    import yaml

    text = yaml.safe_dump(dict(body), sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text.splitlines()


def _said(result: Checked) -> Iterable[str]:
    yield from (f"refused: {cause}" for cause in result.causes)
    yield from (f"warning: {text}" for text in result.warnings)
