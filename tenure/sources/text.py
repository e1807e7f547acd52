"""One input file: its bytes become documents, and a field of a document becomes `file:line`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.sources.json_text import NotJsonError, json_documents, json_line, line_at

BYTES_MAX: Final = 1 << 30
"""A larger file is refused: a cluster of 15,000 nodes and 150,000 Pods is a tenth of it."""

_DOCUMENT_END: Final = "\n---\n"
"""Between documents of YAML, each of which may be JSON; broken JSON has no such line."""

_FLOW_YAML_MAX: Final = 1 << 20
_QUOTED_KEY: Final = re.compile(r'[\s\[]*\{\s*"')
_HALF_PAIR: Final = re.compile(r"\\(?:u|U0000)[dD][89a-fA-F]")
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One input file, its text, and the documents in it."""

    name: str
    text: str
    documents: tuple[Any, ...]
    is_json: bool

    def place_of(self, number: int, field: str = "") -> str:
        """
        Return `file:line` of a field of document `number`, or of its nearest parent that exists.

        `field` is a path as errors give it: `spec.containers[0].resources.limits[cpu]`.
        """
        if self.is_json:
            return f"{self.name}:{json_line(self.text, number, field)}"
        from tenure.sources.yaml_text import yaml_line

        return f"{self.name}:{yaml_line(self.text, number, field)}"


def read_source(path: Path) -> InputFile:
    """Read and parse one file. Raises InputError: no YAML or JSON text; with file and line."""
    try:
        with path.open("rb") as file:
            content = _bytes_of(file, str(path))
    except FileNotFoundError as error:
        step = "check the path; it is read from the current directory"
        raise with_next(InputError("no such file or directory", place=str(path)), step) from error
    except OSError as error:
        fact = f"can't read it: {(error.strerror or str(error)).lower()}"
        raise with_next(InputError(fact, place=str(path)), "check its permissions") from error
    return parse_source(str(path), content)


def read_stream(stream: BinaryIO, name: str) -> InputFile:
    """Read and parse what comes in on a stream. Raises InputError as `read_source`."""
    return parse_source(name, _bytes_of(stream, name))


def parse_source(name: str, content: bytes) -> InputFile:
    """Parse the bytes of one file: JSON where it is JSON, else YAML. Raises InputError."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError("not UTF-8 text", place=f"{name}:{line}") from error
    called_json = name.removesuffix(".gz").endswith(".json")
    if called_json or text.lstrip()[:1] in ("{", "["):
        try:
            documents = tuple(json_documents(text))
            _refuse_halves(name, text, documents)
            return InputFile(name=name, text=text, documents=documents, is_json=True)
        except RecursionError as error:
            raise InputError("nested deeper than any manifest", place=name) from error
        except NotJsonError as error:
            is_flow = _QUOTED_KEY.match(text) is None and len(text) <= _FLOW_YAML_MAX
            if called_json or not (is_flow or _DOCUMENT_END in text):  # `{kind: Pod}` is YAML
                column = "" if error.column is None else f":{error.column}"
                place = f"{name}:{error.line}{column}"
                raise InputError(f"broken JSON: {error.fact}", place=place) from error
    from tenure.sources.yaml_text import yaml_documents

    documents = yaml_documents(name, text)
    _refuse_halves(name, text, documents)
    return InputFile(name=name, text=text, documents=documents, is_json=False)


def _refuse_halves(name: str, text: str, documents: tuple[Any, ...]) -> None:
    """Raise InputError where an escape leaves half a surrogate pair: no UTF-8 text can hold it."""
    found = _HALF_PAIR.search(text)
    if found is None:
        return
    try:
        json.dumps(documents, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        place = f"{name}:{line_at(text, found.start())}"
        raise InputError("not valid text: half a surrogate pair", place=place) from error


def _bytes_of(stream: BinaryIO, name: str) -> bytes:
    content = stream.read(BYTES_MAX + 1)
    if content.startswith(_GZIP):
        content = _unpacked(content, name)
    if len(content) > BYTES_MAX:
        raise InputError(f"larger than {BYTES_MAX >> 20} MiB", place=name)
    return content


def _unpacked(content: bytes, name: str) -> bytes:
    """Return what a gzip file holds, as far as anything may be read. Raises InputError."""
    import gzip
    import io
    import zlib

    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return file.read(BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"broken gzip: {str(error).lower()}", place=name) from error


def content_of(path: Path) -> bytes:
    """Return the bytes of a file. Raises InputError: it can't be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        fact = f"can't read it: {(error.strerror or str(error)).lower()}"
        raise InputError(fact, place=str(path)) from error
