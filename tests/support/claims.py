"""What is claimed of a command line's answer: of one place in its JSON, or of its text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.cli import CommandLine
from tests.support.corpus import NOW
from tests.support.truth import differences

Json = Any
MODELS_TABLE: Final = {"cards": "Cards", "free": "Free"}
CELL: Final = r"<t[hd][^>]*>(.*?)</t[hd]>"
NAMES: Final = ("name", "node", "id", "pod", "path", "minor", "object", "group")
"""By which of its fields a step names an entry of a list, after `namespace/name`."""

OF_SIMULATE: Final = ("--now", NOW)
UNREADABLE: Final = 2
"""The exit code of an answer that is none; 1 is the answer "no"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAsked:
    """A command line, whether the ledger is asked in place of the files, and what is claimed."""

    command: tuple[str, ...]
    of_ledger: bool
    claims: tuple[Json, ...]


def command_lines(claims: Sequence[Json], dump: str) -> dict[str, CommandAsked]:
    """Return the command lines by the name of their case, "COMMAND of DUMP"."""
    found: dict[str, list[Json]] = {}
    for claim in claims:
        ledger = ("--ledger",) if claim.get("ledger") else ()
        found.setdefault(" ".join((*claim["command"], *ledger, "of", dump)), []).append(claim)
    return {
        case: CommandAsked(
            command=tuple(of_case[0]["command"]),
            of_ledger=bool(of_case[0].get("ledger")),
            claims=tuple(of_case),
        )
        for case, of_case in found.items()
    }


def failures(asked: CommandAsked, line: CommandLine, dump: Path) -> Iterator[str]:
    """Yield what a command line tells otherwise than claimed."""
    texts: dict[bool, str] = {}
    for claim in asked.claims:
        as_json = "path" in claim
        if as_json not in texts:
            code, texts[as_json] = _answer(asked, line, dump, as_json=as_json)
            if code >= UNREADABLE and code != claim.get("code"):
                yield f"exit code {code}: {texts[as_json][-500:]}"
                return
        text = texts[as_json]
        told = reach(json.loads(text), claim["path"]) if as_json else text
        yield from _differences(claim, told)


def _answer(
    asked: CommandAsked, line: CommandLine, dump: Path, *, as_json: bool
) -> tuple[int, str]:
    """Return the exit code and what was printed; a report's page as the sums of its models."""
    verb, *others = asked.command
    words = [verb, *others, *([] if asked.of_ledger else [str(dump)])]
    words += OF_SIMULATE if verb == "simulate" else ()
    if verb == "report":
        words += ["-o", "-", *(["--no-verify"] if asked.of_ledger else [])]
    elif as_json:
        words += ["-o", "json"]
    answer = line.ask(*words) if asked.of_ledger else line.run(*words)
    if verb == "report" and as_json:
        return answer.code, json.dumps(sums_of(answer.out))
    return answer.code, answer.out if as_json else answer.out + answer.err


def _differences(claim: Json, told: Json) -> Iterator[str]:
    where = "/".join(map(str, claim.get("path", ("text",))))
    text = told if isinstance(told, str) else "" if told is None else json.dumps(told)
    if "is" in claim:
        yield from differences(claim["is"], told, where)
    for words in claim.get("contains", ()):
        if words not in text:
            yield f"{where}: {words!r} is to be told, told is {text[-700:]!r}"
    for words in claim.get("lacks", ()):
        if words in text:
            yield f"{where}: {words!r} is told and not so: {text[-700:]!r}"
    for words in claim.get("matches", ()):
        if not re.search(words, text):
            yield f"{where}: {words!r} is to match, told is {text[-700:]!r}"


def reach(told: Json, path: Sequence[str | int]) -> Json:
    """Return the value at a path; None where there is none."""
    for step in path:
        if isinstance(told, list):
            if isinstance(step, int):
                told = told[step] if step < len(told) else None
            else:
                told = next((each for each in told if _is_called(each, step)), None)
        else:
            told = told.get(step) if isinstance(told, dict) else None
    return told


def _is_called(entry: Json, name: str) -> bool:
    """Whether an entry of a list has that name, with its namespace or without."""
    if not isinstance(entry, dict):
        return bool(entry == name)
    if "namespace" in entry and f"{entry['namespace']}/{entry.get('name')}" == name:
        return True
    return any(str(entry[key]) == name for key in NAMES if key in entry)


def sums_of(page: str) -> Json:
    """Return the cards and the free ones in a report's table by model, as ranges."""
    sums = {name: [0, 0] for name in MODELS_TABLE}
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        rows = [
            [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(CELL, row, re.DOTALL)]
            for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)
        ]
        if rows and rows[0][:1] == ["Model"] and set(MODELS_TABLE.values()) <= set(rows[0]):
            gpus = [row for row in rows[1:] if len(row) == len(rows[0]) and row[0] != "rdma"]
            for row in gpus:
                for name, ends in sums.items():
                    low, _, high = row[rows[0].index(MODELS_TABLE[name])].partition(" to ")
                    ends[:] = [ends[0] + int(low), ends[1] + int(high or low)]
    return {name: {"min": low, "max": high} for name, (low, high) in sums.items()}
